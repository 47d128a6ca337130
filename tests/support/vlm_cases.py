"""Prompts, rollouts and gradients for the tests of policies, packing and sampling."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.algorithms.loss import LossInputs, average, clipped_surrogate
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Rollout, Status, Turn, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.lora import merge
from mmrl.policies.vlm.tiny.tokens import CHAT_TEMPLATE, make_tokenizer
from mmrl.policies.vlm.vlm import VLM

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
LATER = ("llava_next", "granite4_vision", "glm_ocr", "paddleocr_vl", "exaone4_5", "muse_glimmer", "step3p7", "gemma4_unified")
LATER += ("lighton_ocr", "hunyuan_vl", "video_llama_3")
"""Families of which the page of verdicts, and the tests that need no model, are enough each day."""


def with_later_slow(families):
    return [pytest.param(family, marks=pytest.mark.slow) if family in LATER else family for family in families]


@functools.cache
def policy(family: str, hidden: int = 64) -> VLM:
    return VLM(PolicyConfig(model=f"tiny:{family}:hidden={hidden},layers=2"))


def picture(seed: int, width: int = 56, height: int = 56) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(0, 255, (height, width, 3), dtype=np.uint8))


def prompt(seed: int, images: int = 1, size: tuple[int, int] = (56, 56)) -> Prompt:
    """A prompt whose length and pictures depend on the seed; no two pictures have the same size."""
    pictures = [picture(10 * seed + k, size[0] + 28 * k, size[1] + 56 * seed) for k in range(images)]
    return Prompt(id=f"p{seed}", messages=[user_message("What digit is shown? " + "x" * seed, *pictures)], answer="7")


def rollouts(vlm: VLM, prompts, group: int = 4, longest: int = 9, seed: int = 0) -> list[Conversation]:
    """Ragged completions of random ids that may be sampled, two of each length at most."""
    rng = np.random.RandomState(seed)
    allowed = [i for i in range(len(vlm.bias_V)) if i not in vlm.banned]
    made = []
    for g, p in enumerate(prompts):
        encoded = vlm.encode(p)
        for _ in range(group):
            ids = tuple(int(i) for i in rng.choice(allowed, rng.randint(1, longest + 1)))
            turn = Turn(observed_ids=tuple(encoded.ids.tolist()), token_ids=ids, logprobs=(-1.0,) * len(ids), text="")
            made.append(Conversation(prompt=p, group=g, turns=(turn,), status=Status.FINISHED, inputs=encoded))
    return made


def two_turns(vlm, text, pictures, said=9, answer=12):
    """A conversation whose environment shows a picture; `prompt` with another text and so many pictures before it."""
    asked = Prompt(id="p", messages=[user_message(text, *[picture(k, 56, 56) for k in range(pictures)])])
    first = vlm.encode(asked)
    ids = tuple(vlm.encode_completion("x" * said))
    final, observed = vlm.extend(first, ids, [user_message("and now", picture(7))])
    turns = (
        Turn(observed_ids=tuple(first.ids.tolist()), token_ids=ids, logprobs=(-1.0,) * len(ids), text=""),
        Turn(observed_ids=observed, token_ids=ids[:1] * answer, logprobs=(-1.0,) * answer, text=""),
    )
    rows = (first.media_rows, final.media_rows)
    told = Conversation(prompt=asked, group=0, turns=turns, status=Status.FINISHED, inputs=first)
    return replace(told, final_inputs=final, media_rows=rows)


def merged_copy(model):
    """A copy of the model without adapters, with its adapters merged into the weights."""
    whole = copy.deepcopy(model)
    merge(whole)
    return whole


def credit(*advantages: float) -> Credit:
    """One advantage for each rollout."""
    return Credit(advantages=torch.tensor(advantages))


def as_rollouts(prompts, inputs, groups) -> list[Rollout]:
    """Sampled groups as rollouts."""
    return [
        Conversation(
            prompt=p,
            group=g,
            status=Status.FINISHED,
            inputs=i,
            turns=(Turn(observed_ids=tuple(i.ids.tolist()), token_ids=s.token_ids, logprobs=s.logprobs, text=""),),
        )
        for g, (p, i, samples) in enumerate(zip(prompts, inputs, groups, strict=True))
        for s in samples
    ]


def logprobs_and_gradient(
    vlm: VLM, batch, temperature: float = 0.8, normalise: str = "token"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(all trained logprobs ordered by rollout and place, the flat gradient of the GRPO loss)."""
    vlm.model.zero_grad()
    found = []
    for micro in batch.micro:
        logprobs, _ = vlm.logprobs(micro, temperature)
        loss, _ = clipped_surrogate(
            LossInputs(
                logprobs_L=logprobs,
                old_logprobs_L=logprobs.detach(),
                advantages_L=micro.advantages_L,
                rollout_L=micro.rollout_L,
                lengths_N=batch.lengths_N,
            ),
            clip_low=0.2,
            clip_high=0.2,
        )
        average(loss, micro, batch, normalise).backward()
        found += [(int(n), place, value) for place, (n, value) in enumerate(zip(micro.rollout_L, logprobs.detach(), strict=True))]
    gradient = torch.cat([p.grad.flatten() for _, p in vlm.parameters() if p.grad is not None]).clone()
    vlm.model.zero_grad()
    return torch.stack([value for _, _, value in sorted(found, key=lambda f: f[:2])]), gradient


def naive_logprobs(vlm: VLM, rollout: Rollout, temperature: float) -> torch.Tensor:
    """The log-probabilities of a completion's tokens, by `naive_distribution`."""
    ids = torch.tensor(rollout.turns[0].token_ids)
    return naive_distribution(vlm, rollout, temperature).gather(1, ids[:, None])[:, 0]


def naive_distribution(vlm: VLM, rollout: Rollout, temperature: float) -> torch.Tensor:
    """transformers' own forward of one prompt and one completion, nothing packed, padded or shared: the log-probabilities of all
    tokens in the place of each of the completion's, [L, V]."""
    p, ids = rollout.prompt, torch.tensor([rollout.turns[0].token_ids])
    encoded = vlm.processor.apply_chat_template(
        [{"role": m["role"], "content": list(m["content"])} for m in p.messages],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
    )
    start = encoded["input_ids"].shape[1]
    encoded["input_ids"] = torch.cat([encoded["input_ids"], ids], 1)
    encoded["attention_mask"] = torch.ones_like(encoded["input_ids"])
    for key in ("mm_token_type_ids", "token_type_ids"):
        if key in encoded:
            encoded[key] = torch.cat([encoded[key], torch.zeros_like(ids)], 1)
    vlm.model.rope_deltas = None
    logits = vlm.model(**encoded).logits[0, start - 1 : -1] / temperature
    logits[:, sorted(vlm.banned)] = -torch.inf
    return logits.log_softmax(-1)


def naive_states(vlm: VLM, rollout: Conversation) -> tuple[torch.Tensor, list[list[int]]]:
    """transformers' own forward of one prompt and all that followed it: (the last hidden states of all its tokens; for each turn
    the places before its sampled tokens)."""
    encoded = vlm.processor.apply_chat_template(
        [{"role": m["role"], "content": list(m["content"])} for m in rollout.prompt.messages],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
    )
    ids, at = encoded["input_ids"][0].tolist(), []
    for number, turn in enumerate(rollout.turns):
        ids += turn.observed_ids if number else ()
        at.append(list(range(len(ids) - 1, len(ids) - 1 + len(turn.token_ids))))
        ids += turn.token_ids
    added = len(ids) - encoded["input_ids"].shape[1]
    encoded["input_ids"] = torch.tensor([ids])
    encoded["attention_mask"] = torch.ones_like(encoded["input_ids"])
    for key in ("mm_token_type_ids", "token_type_ids"):
        if key in encoded:
            encoded[key] = torch.cat([encoded[key], torch.zeros(1, added, dtype=encoded[key].dtype)], 1)
    vlm.family.forget_positions()
    with torch.no_grad():
        return vlm.model(**encoded, output_hidden_states=True).hidden_states[-1][0], at


def in_turns(vlm: VLM, images: int = 1, group: int = 3) -> list[Conversation]:
    """Two prompts; every third rollout goes on for a second turn, and one of these ends with what was observed last."""
    found = rollouts(vlm, [prompt(1, images), prompt(2, images)], group=group, longest=6)
    for n in range(0, len(found), 3):
        more = Turn(observed_ids=(107, 109, 111), token_ids=(120 + n, 121, 122), logprobs=(-1.0,) * 3, text="")
        last = Turn(observed_ids=(112, 113), token_ids=(), logprobs=(), text="")
        found[n] = replace(found[n], turns=(*found[n].turns, more, *([last] if n else [])))
    return found


def llava(folder: Path) -> str:
    """A tiny checkpoint of a family that mmrl has no adapter for, written to the folder."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = make_tokenizer()
    text = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        bos_token_id=None, pad_token_id=0, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=28),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<|image_pad|>",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
