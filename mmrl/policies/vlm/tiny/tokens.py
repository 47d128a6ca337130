"""The tokenizer and the chat template that the tiny checkpoints share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

CHAT_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Phrases that tasks use, so that a prompt has about ten tokens instead of fifty bytes.
CORPUS = [
    "What digit is shown? What type of object is in the photo? Please choose one from list [ a, b, c].",
    "Please directly output the answer.",
    "Please output the thinking process in <think> </think> and final answer in <answer> </answer> tags.",
    "user assistant 0 1 2 3 4 5 6 7 8 9 yes no",
    "The colour of the shape is red green blue yellow black white circle square triangle",
]

LEARNED, WORDS = 400, 100
"""Number of special and learned tokens, and of `words` for which the embeddings have room."""


def template(picture: str, video: str = "", sound: str = "") -> str:
    """The chat template with these texts in place of a picture, of a video and of a sound. Media without a text are left out."""
    found = CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", picture)
    found = found.replace("<|vision_start|><|video_pad|><|vision_end|>", video)
    return (
        found.replace("{% else %}{{ part", f"{{% elif part['type'] == 'audio' %}}{sound}{{% else %}}{{{{ part")
        if sound
        else found
    )


def make_tokenizer(
    words: Sequence[str] = (), special: Sequence[str] = (), named: Mapping[str, str] | None = None, written: Sequence[str] = ()
) -> Any:
    """A byte-level BPE tokenizer. words: texts that get a token of their own. special: special tokens of a family's own. named:
    attribute of the tokenizer, as the family's processor reads it -> its special token. written: tokens of a family's own that
    are text of answers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 20, trainer)
    own = list(dict.fromkeys([*special, *(named or {}).values()]))
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in own])
    bpe.add_tokens([AddedToken(t, normalized=False) for t in (*written, *TAGS, *words)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[*SPECIAL[1:], *own],
        model_specific_special_tokens=dict(named or {}),
    )
    if named is None:  # Qwen's processors read these, and know their names themselves once a checkpoint is saved
        tokenizer.image_token, tokenizer.video_token = "<|image_pad|>", "<|video_pad|>"
        tokenizer.vision_start_token, tokenizer.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def rows(tokenizer: Any) -> int:
    """Rows of the embeddings: room for `WORDS` tokens behind the last tag, a multiple of 64. The last rows have no token."""
    return -(-(int(tokenizer.convert_tokens_to_ids(TAGS[-1])) + 1 + WORDS) // 64) * 64


def ids(tokenizer: Any, **tokens: str) -> dict[str, int]:
    """Setting of a configuration -> the id of its token."""
    return {name: int(tokenizer.convert_tokens_to_ids(token)) for name, token in tokens.items()}
