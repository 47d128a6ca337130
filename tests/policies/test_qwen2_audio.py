"""Qwen2-Audio: prompts are what its own processor makes, log-probabilities what its own forward gives; what doesn't fit is
told. The parity suite of `mmrl.testing` holds for it as for all families (tests/testing/test_policies_kit.py)."""

from __future__ import annotations

import fnmatch
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

import recordings
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.media.sounds import SoundClip, Waveform
from mmrl.api.types import Prompt, user_message
from mmrl.config.load import load_config
from mmrl.config.sections import PolicyConfig
from mmrl.policies.names import tiny_that_hears
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.loading import auto_class
from mmrl.policies.vlm.published import save_model
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.smoke import smoke
from mmrl.train.update.pack_conversations import pack

TINY = "tiny:qwen2_audio:hidden=32,layers=2"
UNUSED = ["model.audio_tower.embed_positions.weight"]
"""Weights that get no gradient: transformers holds the sinusoids of the encoder fixed."""


@pytest.fixture(scope="module")
def vlm():
    return VLM(PolicyConfig(model=TINY))


def noise(seed, seconds=0.3, rate=16_000):
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * rate))
    return Waveform(samples_T=samples.astype(np.float32), rate=rate)


def prompt(seed, *sounds):
    return Prompt(id=str(seed), messages=[user_message("Which sound is heard? " + "x" * seed, *sounds)], answer="7")


def published(vlm, shown, *more):
    """What the processor makes of a conversation by itself, with ids of a completion behind it."""
    sounds = [part["audio"] for part in shown.messages[0]["content"] if part["type"] == "audio"]
    parts = [{"type": "audio"} if p["type"] == "audio" else dict(p) for p in shown.messages[0]["content"]]
    text = vlm.processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True)
    waves = [w.samples_T for w in sounds]
    found = dict(vlm.processor(text=text, audio=waves or None, sampling_rate=16_000, return_tensors="pt"))
    found["input_ids"] = torch.cat([found["input_ids"], torch.tensor([more], dtype=torch.long)], 1)
    found["attention_mask"] = torch.ones_like(found["input_ids"])
    return found


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_prompt_is_what_the_processor_makes_of_it(vlm, count):
    shown = prompt(1, *(noise(n, 0.2 + 0.3 * n) for n in range(count)))
    inputs, wanted = vlm.encode(shown), published(vlm, shown)
    assert torch.equal(inputs.ids, wanted["input_ids"][0]) and not inputs.token_types
    assert inputs.media.keys() == ({"input_features", "feature_attention_mask"} if count else set())
    assert all(torch.equal(value, wanted[name]) for name, value in inputs.media.items())
    heard = int((inputs.ids == vlm.model.config.audio_token_id).sum())
    assert heard == sum(((round(100 * s) - 1) // 2 + 1 - 2) // 2 + 1 for s in (0.2, 0.5)[:count])


def test_a_prompt_as_long_as_a_spectrogram_is_read_right(vlm):
    """The mask of frames [1, 400] is none of the arguments that run along the tokens, though it may have their length."""
    short = prompt(0, noise(0))
    more = 400 - len(vlm.encode(short).ids)
    (p,) = [part for part in short.messages[0]["content"] if part["type"] == "text"]
    text = next(
        p["text"] + "x" * n + "#" * k for n in range(400) for k in range(2)
        if len(vlm.tokenizer.encode("x" * n + "#" * k, add_special_tokens=False)) == more
    )  # fmt: skip
    exact = Prompt(messages=[user_message(text, noise(0))])
    if len(vlm.encode(exact).ids) != 400:
        pytest.fail("the text has another number of tokens")
    assert "feature_attention_mask" in vlm.encode(exact).media and not vlm.encode(exact).token_types


def test_log_probabilities_are_those_of_its_own_forward(vlm):
    prompts = [prompt(1, noise(1)), prompt(4, noise(2, 0.5), noise(3)), prompt(2)]
    inputs = [vlm.encode(p) for p in prompts]
    groups = LocalGenerator(vlm).generate(inputs, 3, SamplingParams(max_tokens=6, temperature=0.8))
    for p, samples in zip(prompts, groups, strict=True):
        for sample in samples:
            ids = torch.tensor(sample.token_ids)
            with torch.no_grad():
                logits = vlm.model(**published(vlm, p, *sample.token_ids)).logits[0, -len(ids) - 1 : -1] / 0.8
            logits[:, sorted(vlm.banned)] = -torch.inf
            wanted = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
            assert (torch.tensor(sample.logprobs) - wanted).abs().max() < 1e-5


def test_greedy_answers_are_those_of_generate(vlm):
    shown = prompt(3, noise(5, 0.4))
    ((sample,),) = LocalGenerator(vlm).generate([vlm.encode(shown)], 1, SamplingParams(max_tokens=8, temperature=0.0))
    given = published(vlm, shown)
    found = vlm.model.generate(**given, max_new_tokens=8, do_sample=False, suppress_tokens=sorted(vlm.banned))
    assert found[0, given["input_ids"].shape[1] :].tolist() == list(sample.token_ids)


def test_a_group_shares_a_row_and_its_gradients(vlm):
    made = cases.rollouts(vlm, [prompt(1, noise(1)), prompt(5, noise(2, 0.6), noise(3))])
    from mmrl.testing import policies

    shared, gradient = policies._update(vlm, made, shared=True)
    apart, own = policies._update(vlm, made, shared=False)
    assert (shared - apart).abs().max() < 1e-5 and ((gradient - own).norm() / own.norm()) < 1e-5


def test_a_sound_is_heard_at_the_models_rate_and_cut_to_its_length(vlm, tmp_path):
    samples = recordings.tone(6.0, 48_000)
    (tmp_path / "a.wav").write_bytes(recordings.wav(samples[None], rate=48_000))
    inputs = vlm.encode(prompt(1, SoundClip(path=str(tmp_path / "a.wav"))))
    assert int(inputs.media["feature_attention_mask"].sum()) == 400 == 100 * tiny.audio.SECONDS
    part = Waveform(samples_T=recordings.tone(4.0).astype(np.float32), rate=16_000)
    gap = inputs.media["input_features"] - vlm.encode(prompt(1, part)).media["input_features"]
    assert gap[..., 2:-2].abs().max() < 0.05


def test_what_does_not_fit_is_told(vlm, tmp_path):
    frames = VideoFrames(frames_THWC=np.zeros((2, 28, 28, 3), np.uint8), times_s=(0.0, 0.5), duration_s=1.0)
    for medium in (cases.picture(1), frames):
        with pytest.raises(UserError, match="a qwen2_audio model hears sounds and sees nothing"):
            vlm.encode(prompt(1, medium))
    with pytest.raises(UserError, match=r"a sound has 0\.01 s: a model needs 0\.1 s: leave it out"):
        vlm.encode(prompt(1, noise(1, 0.01)))
    with pytest.raises(UserError, match=r"the text .* contains '<\|AUDIO\|>', a sound's placeholder: remove it"):
        vlm.encode(Prompt(messages=[user_message("<|AUDIO|>", noise(1))]))
    with pytest.raises(UserError, match="a qwen2_5_vl model can't hear sounds here: choose one that does"):
        cases.policy("qwen2_5_vl").encode(prompt(1, noise(1)))
    with pytest.raises(UserError, match="max_pixels: a Qwen2AudioProcessor takes no pictures: leave them out"):
        VLM(PolicyConfig(model=TINY, max_pixels=12544))
    (tmp_path / "x.wav").write_bytes(b"")
    with pytest.raises(UserError, match=r"sound .*x\.wav is empty, 0 bytes") as told:
        vlm.encode(prompt(1, SoundClip(path=str(tmp_path / "x.wav"))))
    assert "\n" not in str(told.value)


def test_the_shortest_sound_has_two_tokens(vlm):
    """Of one, transformers takes the prompt for one that it must fill up itself."""
    inputs = vlm.encode(prompt(1, noise(1, vlm.reader.sound_limits.least_s)))
    assert int((inputs.ids == vlm.model.config.audio_token_id).sum()) == 2
    cases.rollouts(vlm, [prompt(1, noise(1, 0.1))], group=1)


def test_a_checkpoint_learns_and_is_loaded_by_transformers(tmp_path):
    model, processor = tiny.build("qwen2_audio", hidden=32, spread=0.1)
    save_model(model, tmp_path)
    processor.save_pretrained(tmp_path)
    VLM.check(PolicyConfig(model=str(tmp_path)))
    assert auto_class(str(tmp_path), False) is Qwen2AudioForConditionalGeneration
    assert tiny_that_hears(str(tmp_path)) == "tiny:qwen2_audio"
    names = {"language_model.model.layers.1.mlp.up_proj.weight", "language_model.lm_head.weight", "audio_tower.conv1.weight"}
    assert names < load_file(tmp_path / "model.safetensors").keys(), "they are those of the published checkpoint"
    vlm, again = VLM(PolicyConfig(model=str(tmp_path))), AutoProcessor.from_pretrained(tmp_path)
    given = published(vlm, prompt(1, noise(1)))
    assert type(again) is type(processor) and again.chat_template == processor.chat_template
    output = vlm.model(**given, labels=given["input_ids"])
    output.loss.backward()
    assert torch.equal(output.logits, model.eval()(**given).logits)
    unused = [name for name, p in vlm.model.named_parameters() if p.grad is None or not p.grad.any()]
    assert all(fnmatch.filter(UNUSED, name) for name in unused) and len(unused) == len(UNUSED)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"audio_token_index": 10**6}, r"config.json has audio_token_index = 1000000, and its embeddings have \d+ rows"),
        ({"audio_token_index": 0}, r"its pad_token is '<\|endoftext\|>', a sound's placeholder"),
        ({"architectures": ["Qwen2AudioEncoder"]}, "has no qwen2_audio model|reads text alone|encoder"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, change, why):
    tiny.save(str(tmp_path), "qwen2_audio", hidden=32)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(UserError, match=why) as told:
        VLM.check(PolicyConfig(model=str(tmp_path)))
    assert "\n" not in str(told.value)


def test_a_folder_without_ears_or_template_is_refused(tmp_path):
    tiny.save(str(tmp_path), "qwen2_audio", hidden=32)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'][-1]['text'] }}{% endfor %}")
    with pytest.raises(UserError, match="its chat template leaves sounds out: use one that shows them"):
        VLM.check(PolicyConfig(model=str(tmp_path)))
    (tmp_path / "processor_config.json").unlink()
    with pytest.raises(UserError, match=r"it has no processor for (sounds|pictures): copy"):
        VLM.check(PolicyConfig(model=str(tmp_path)))


def test_smoke_takes_a_tiny_model_that_hears(tmp_path):
    assert not tiny_that_hears("Qwen/Qwen2.5-VL-3B-Instruct") and not tiny_that_hears(str(tmp_path))
    text = 'name = "a"\npolicy = { model = "Qwen/Qwen2-Audio-7B-Instruct" }\n[[tasks]]\nid = "audio/sounds"\n'
    (tmp_path / "a.toml").write_text(text + '[[stages]]\nkind = "rl"\nsteps = 4\n')
    config = load_config(tmp_path / "a.toml")
    assert smoke(config).policy.model == "tiny:qwen2_audio" and smoke(config).policy.max_pixels is None


@pytest.mark.parametrize("sounds", [0, 1])
def test_its_projector_is_reached_by_sounds(vlm, sounds):
    rollouts = cases.rollouts(vlm, [prompt(1, *[noise(1)] * sounds)], group=1)
    batch = pack(rollouts, cases.credit(1.0), vlm, shared_prefix=True, budget=10_000)
    assert (batch.looks, batch.hears) == (bool(sounds), bool(sounds))
