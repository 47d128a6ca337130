"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: pictures, videos and sounds in one prompt are what their own processors and
forward passes make of them, and a checkpoint of the whole model gives its thinker. The parity suite of `mmrl.testing` holds for
them as for all families (tests/testing/test_policies_kit.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.media.sounds import MAX_SECONDS, Waveform
from mmrl.api.types import Prompt, user_message
from mmrl.config.load import load_config
from mmrl.config.parts import part_of
from mmrl.config.sections import LoraConfig, PolicyConfig, SftStage
from mmrl.policies.lora import CONFIG, WEIGHTS
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.known_families import QwenOmni
from mmrl.policies.vlm.prompt_inputs import FRAMES, SECONDS_PER_GRID
from mmrl.policies.vlm.published import layers_in_files, save_model
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.weights import changed_weights, parameter_versions
from mmrl.train.export import layout_of, loader_of
from mmrl.train.smoke import smoke
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

SECOND = {"qwen2_5_omni": 25, "qwen3_omni_moe": 13}
"""Positions of a second of video."""


@pytest.fixture(scope="module", params=[pytest.param("qwen2_5_omni", marks=pytest.mark.slow), "qwen3_omni_moe"])
def case(request, tmp_path_factory):
    """(family, policy of a folder whose media can be told from the answers, transformers' own class with the same weights)."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model, processor = tiny.build(request.param, hidden=32, spread=0.1)
    for p in model.parameters():
        if p.ndim == 1:
            torch.nn.init.normal_(p, p.mean().item(), 0.1)
    save_model(model, folder)
    processor.save_pretrained(folder)
    return request.param, VLM(PolicyConfig(model=str(folder))), type(model).from_pretrained(folder).eval()


def noise(seed, seconds, rate=16_000):
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * rate))
    return Waveform(samples_T=samples.astype(np.float32), rate=rate)


def clip(seed, frames, seconds, side=28):
    """Frames that are so many seconds apart, of two by three tokens."""
    pixels = np.random.default_rng(seed).integers(0, 255, (frames, 2 * side, 3 * side, 3), dtype=np.uint8)
    return VideoFrames(frames_THWC=pixels, times_s=tuple(n * seconds for n in range(frames)), duration_s=frames * seconds)


def prompt(*media, text="What is it?"):
    return Prompt(id="p", messages=[user_message(text, *media)], answer="7")


def mixed(side=28):
    """All kinds of media, in several orders; frames aren't whole positions apart."""
    return [
        prompt(cases.picture(1, 56, 84), noise(1, 1.4), clip(2, 6, 0.37, side), noise(2, 2.3), cases.picture(3, 64, 64)),
        prompt(noise(3, 1.1), clip(4, 4, 0.5), clip(5, 5, 0.21)),
        prompt(noise(6, 0.7), text="Which sound is heard?"),
        prompt(),
    ]


def test_a_prompt_is_what_the_processor_makes_of_it(case):
    """But the time between frames, for which it takes one rate for all videos, and what lies behind the longest sound."""
    _, vlm, _ = case
    shown = mixed(vlm.reader.video_limits.factor)[0]
    inputs, parts = vlm.encode(shown), shown.messages[0]["content"]
    text = vlm.processor.apply_chat_template(
        [{"role": "user", "content": [{"type": p["type"]} if p["type"] != "text" else p for p in parts]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    of = {kind: [p[kind] for p in parts if p["type"] == kind] for kind in ("image", "video", "audio")}
    wanted = vlm.processor(
        text=text,
        images=of["image"],
        videos=[torch.from_numpy(of["video"][0].frames_THWC).permute(0, 3, 1, 2)],
        audio=[w.samples_T for w in of["audio"]],
        videos_kwargs={"do_resize": False, "do_sample_frames": False},
        return_tensors="pt",
    )
    assert torch.equal(inputs.ids, wanted["input_ids"][0]) and not inputs.token_types
    longest = int(wanted[FRAMES].sum(-1).max())
    assert longest == 230 and inputs.media.keys() == wanted.keys() - {"input_ids", "attention_mask"}
    for name, value in inputs.media.items():
        told = wanted[name][..., :longest] if name in ("input_features", FRAMES) else wanted[name]
        assert torch.equal(value, told) or name == SECONDS_PER_GRID
        assert value.untyped_storage().nbytes() == value.nbytes or "pixel" in name  # of five minutes nothing is kept
    assert inputs.media[SECONDS_PER_GRID].tolist() == pytest.approx([2 * 0.37])


def logprobs(own, vlm, inputs, answer, temperature):
    """What transformers' own forward pass says of a completion's tokens."""
    answer = torch.tensor(answer)
    ids = torch.cat([inputs.ids, answer])[None]
    with torch.no_grad():
        output = own(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs.media)
    logits = output.logits[0, -len(answer) - 1 : -1] / temperature
    logits[:, sorted(vlm.banned)] = -torch.inf
    return logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]


def test_an_update_computes_what_transformers_does(case):
    """In rows that share a prompt, with frames between whole positions."""
    _, vlm, own = case
    made = cases.rollouts(vlm, mixed()[:2], group=2)
    batch = pack(made, cases.credit(1.0, -1.0, 0.5, 2.0), vlm, shared_prefix=True, budget=10_000)
    with torch.no_grad():
        found = torch.cat([vlm.outputs(micro, 1.0).logprobs_L for micro in batch.micro])
    order = torch.cat([micro.rollout_L for micro in batch.micro]).unique_consecutive().tolist()
    wanted = torch.cat([logprobs(own, vlm, made[n].inputs, made[n].turns[0].token_ids, 1.0) for n in order])
    assert sorted(order) == [0, 1, 2, 3] and (found - wanted).abs().max() < 1e-5


def test_log_probabilities_and_greedy_answers_are_those_of_transformers(case):
    """Prompts are decoded together, and transformers sees each alone."""
    _, vlm, own = case
    inputs, sampler = [vlm.encode(p) for p in mixed()], LocalGenerator(vlm)
    groups = sampler.generate(inputs, 2, SamplingParams(max_tokens=5, temperature=0.8, seed=3))
    for one, samples in zip(inputs, groups, strict=True):
        for sample in samples:
            wanted = logprobs(own, vlm, one, sample.token_ids, 0.8)
            assert (torch.tensor(sample.logprobs) - wanted).abs().max() < 1e-5
    first = inputs[1]
    ((greedy,),) = sampler.generate([first], 1, SamplingParams(max_tokens=6, temperature=0.0))
    given = {"input_ids": first.ids[None], "attention_mask": torch.ones_like(first.ids)[None], **first.media}
    found = own.generate(**given, max_new_tokens=6, do_sample=False, suppress_tokens=sorted(vlm.banned))
    assert found[0, len(first.ids) :].tolist() == list(greedy.token_ids)


def test_positions_of_frames_are_their_times(case):
    """Qwen2.5-Omni rounds them down. The text goes on behind the last frame, or behind the last row or column."""
    family, vlm, _ = case
    inputs = vlm.encode(prompt(clip(1, 6, 0.37)))
    shown = inputs.ids == vlm.model.config.video_token_id
    times = inputs.positions[0, shown].unique() - inputs.positions[0, shown].min()
    exact = [0.74 * n * SECOND[family] for n in range(3)]
    assert times.tolist() == pytest.approx([int(t) for t in exact] if family == "qwen2_5_omni" else exact, abs=1e-4)
    last = int(shown.nonzero().max())
    assert inputs.positions[:, last + 1].tolist() == pytest.approx([float(inputs.positions[:, : last + 1].max()) + 1] * 3)
    assert inputs.next_position == float(inputs.positions.max()) + 1
    heard = vlm.encode(prompt(noise(1, 0.5)))
    assert heard.positions.tolist() == [list(range(len(heard.ids)))] * 3


def test_a_sound_is_heard_alike_whatever_is_beside_it(case):
    """transformers' tower of Qwen3-Omni fills a short sound up to the longest of a pass, and its convolutions see that."""
    family, vlm, own = case
    short, longer = (torch.randn(80, n, generator=torch.Generator().manual_seed(n)) for n in (33, 230))

    def heard(tower, *sounds):
        lengths = torch.tensor([s.shape[1] for s in sounds])
        more = {"aftercnn_lens": None} if family == "qwen2_5_omni" else {}
        with torch.no_grad():
            output = tower(torch.cat(sounds, 1), feature_lens=lengths, **more)
        assert output.pooler_output is None or torch.equal(output.pooler_output, output.last_hidden_state)
        return output.last_hidden_state

    mended, tower = (model.get_encoder(modality="audio") for model in (vlm.model, own))
    alone, before = heard(tower, short), len(heard(tower, longer))
    for sounds, start in (((short, longer), 0), ((longer, short, longer), before)):
        assert (heard(mended, *sounds)[start : start + len(alone)] - alone).abs().max() < 1e-6
    if family == "qwen3_omni_moe":
        assert (heard(tower, short, longer)[: len(alone)] - alone).abs().max() > 1e-3


def test_the_head_computes_no_logits_that_nobody_reads(case):
    _, vlm, _ = case
    seen = []
    hook = vlm.model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.shape[1]))
    one = vlm.encode(mixed()[2])
    with torch.no_grad():
        found = vlm.family.hidden(one.ids[None], None, one.positions[:, None], one.media)
    hook.remove()
    assert sum(seen) <= 1 and found.shape[1] == len(one.ids)


def test_groups_with_other_sounds_fit_into_one_pass(case):
    """Sounds of several lengths are padded, as the model is told which frames are sound."""
    _, vlm, _ = case
    made = cases.rollouts(vlm, [prompt(noise(1, 0.5), cases.picture(1)), prompt(noise(2, 1.7))], group=2)
    apart = [pack([r], cases.credit(1.0), vlm, shared_prefix=True, budget=10_000) for r in made]
    together = pack(made, cases.credit(*[1.0] * 4), vlm, shared_prefix=True, budget=10_000)
    assert len(together.micro) == 1 and len(together.micro[0].media["input_features"]) == 2
    with torch.no_grad():
        found = vlm.outputs(together.micro[0], 1.0).logprobs_L.sum()
        wanted = sum(vlm.outputs(one.micro[0], 1.0).logprobs_L.sum() for one in apart)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-3)


def test_a_longer_sound_may_come_in_a_later_turn(case):
    """The spectrogram that was there is padded, and the model is told so."""
    _, vlm, own = case
    first, reply = vlm.encode(prompt(noise(1, 0.56))), user_message("And now?", noise(2, 1.7), cases.picture(1))
    later, _ = vlm.extend(first, vlm.encode_completion("7"), [reply])
    assert later.media[FRAMES].sum(-1).tolist() == [56, 170]
    assert torch.equal(later.media["input_features"][:1, :, :56], first.media["input_features"])
    ids = later.ids[None]
    with torch.no_grad():
        wanted = own(input_ids=ids, attention_mask=torch.ones_like(ids), **later.media).logits
        found = vlm.family.head(vlm.family.hidden(ids, None, later.positions[:, None], later.media))
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize(("media", "rows"), [(("picture",), 2), (("sound",), 2), (("picture", "sound"), 1)])
def test_ranks_of_a_pass_reach_both_towers(case, monkeypatch, media, rows):
    """With sharded weights all ranks reduce the same gradients: a pass without a picture or sound gets a blank row with both."""
    _, vlm, _ = case
    monkeypatch.setattr(vlm, "root", object())
    shown = [cases.picture(1) if kind == "picture" else noise(1, 0.5) for kind in media]
    batch = pack(cases.rollouts(vlm, [prompt(*shown)], group=1), cases.credit(1.0), vlm, shared_prefix=True, budget=10_000)
    assert len(batch.micro[0].ids_BS) == rows


@pytest.mark.parametrize("media", [(), ("picture",), ("sound",), ("picture", "sound")])
def test_weight_decay_leaves_a_tower_that_nothing_reached(case, monkeypatch, media):
    """With sharded weights, blank pictures and sounds give its weights gradients of zero; these are dropped."""
    _, vlm, _ = case
    learner = Learner(vlm, SftStage(kind="sft", steps=1))
    monkeypatch.setattr(vlm, "root", lambda work: work())
    monkeypatch.setattr("mmrl.train.update.optimizer.DTensor", torch.Tensor)  # as if sharded
    shown = [cases.picture(1) if kind == "picture" else noise(1, 0.5) for kind in media]
    batch = pack(cases.rollouts(vlm, [prompt(*shown)], group=1), cases.credit(1.0), vlm, shared_prefix=True, budget=10_000)
    learner._gradients(batch, [], 0.0, False, [()] * len(batch.micro), None)
    reached = {part_of(name) for name, p in vlm.parameters() if p.grad is not None}
    learner.optimizer.clear()
    towers = {"picture": {"vision", "projector"}, "sound": {""}}
    assert reached == {"language", "head"}.union(*(towers[kind] for kind in media))


@pytest.mark.slow
def test_a_whole_checkpoint_gives_its_thinker(case, tmp_path, capfd):
    """What speaks in it is left alone, and what is saved has the form of the whole model again."""
    family, vlm, own = case
    vlm.save(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    whole = getattr(transformers, settings["architectures"][0])
    assert settings["model_type"] == family and settings["enable_audio_output"] is False and "Thinker" not in whole.__name__
    assert layout_of(tmp_path) == "transformers" and loader_of(tmp_path) == type(own).__name__
    weights = load_file(tmp_path / "model.safetensors")
    parts = {"audio_tower": "conv", "visual": "patch_embed", "model": "embed_tokens", "lm_head": "weight"}
    assert {name.split(".")[1] for name in weights} == {*parts} and all(name.startswith("thinker.") for name in weights)
    assert all(any(name.startswith(f"thinker.{part}.{inner}") for name in weights) for part, inner in parts.items())
    sent = dict(changed_weights(vlm.model, {}, parameter_versions(vlm.model)))
    assert sent.keys() == weights.keys() and all(torch.equal(value, weights[name]) for name, value in sent.items())
    spoken = {f"{part}.a.weight": torch.zeros(2) for part in ("talker", "token2wav", "code2wav")}
    (tmp_path / "config.json").write_text(json.dumps(settings | {"enable_audio_output": True}))
    save_file(weights | spoken, tmp_path / "model.safetensors", {"format": "pt"})
    config = PolicyConfig(model=str(tmp_path))
    capfd.readouterr()
    again = VLM(config)
    assert "UNEXPECTED" not in "".join(capfd.readouterr()), "transformers would list what speaks"
    assert type(again.model) is type(own) and isinstance(again.family, QwenOmni)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), own.parameters(), strict=True))
    for more, why in (
        (
            {"model.norm.weight": torch.ones(32)},
            "have two values of one weight, model.norm.weight and thinker.model.norm.weight: copy",
        ),
        ({"thinker.other.weight": torch.ones(2)}, "have (thinker.)?other.weight that the model in its config.json lacks"),
    ):
        save_file(weights | more, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=f"its files {why}"):
            VLM.check(config)
    del weights["thinker.model.norm.weight"]
    save_file(weights | spoken, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"its files lack model\.(language_model\.)?norm\.weight of the model in its config.json"):
        VLM.check(config)
    (tmp_path / "config.json").write_text(json.dumps(settings | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(UserError, match=r"its weights are quantised \(gptq, 4 bits\)"):
        VLM.check(config)


@pytest.mark.slow
def test_adapters_are_saved_by_published_names(case, tmp_path):
    """vLLM leaves others out without a word, and another version of transformers has others in memory. Those that peft makes of a
    thinker are read, too."""
    _, vlm, _ = case
    parts = ["*layers.0.self_attn.q_proj", "*audio_tower.layers.*fc1", "*visual*mlp*"]
    lora = LoraConfig(rank=2, target_modules=parts)
    adapted = VLM(PolicyConfig(model=vlm.base, lora=lora))
    for _, p in adapted.parameters():
        torch.nn.init.normal_(p, 0, 0.1)
    adapted.save(tmp_path / "a")
    saved, settings = load_file(tmp_path / "a" / WEIGHTS), json.loads((tmp_path / "a" / CONFIG).read_text())
    weights = load_file(Path(vlm.base) / "model.safetensors").keys()
    layers = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in saved}
    assert layers == set(settings["target_modules"]) and {f"{layer}.weight" for layer in layers} < weights
    assert {layer.split(".")[1] for layer in layers} == {"model", "visual", "audio_tower"}
    (tmp_path / "b").mkdir()
    names = {name: layer for layer, name in layers_in_files(vlm.model).items() if name in layers}
    own = {name.replace(layer, names[layer]): value for name, value in saved.items() for layer in layers if layer + "." in name}
    save_file(own, tmp_path / "b" / WEIGHTS, {"format": "pt"})
    (tmp_path / "b" / CONFIG).write_text(json.dumps(settings | {"target_modules": "whole.*"}))
    wanted = cases.merged_copy(adapted.model)
    for folder in ("a", "b"):
        vlm.processor.save_pretrained(tmp_path / folder)
        VLM.check(PolicyConfig(model=str(tmp_path / folder)))
        merged = VLM(PolicyConfig(model=str(tmp_path / folder))).model
        assert all(torch.equal(p, q) for p, q in zip(merged.parameters(), wanted.parameters(), strict=True))
    assert [loader_of(tmp_path / folder)[-28:] for folder in "ab"] == ["", "ThinkerForConditionalGeneration"[-28:]]
    again = VLM(PolicyConfig(model=vlm.base, lora=lora), source=tmp_path / "a")
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(again.parameters(), adapted.parameters(), strict=True))


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        ({"thinker_config": None}, r"damaged \(thinker_config is no table\): copy it again"),
        ({"thinker_config": []}, r"damaged \(thinker_config is no table\): copy it again"),
        ({"model_type": ["qwen2_5_omni"]}, r"knows no \['qwen2_5_omni'\] model"),
    ],
)
def test_a_whole_checkpoint_with_a_damaged_config_is_refused(tmp_path, damaged, why):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_omni", "thinker_config": {}} | damaged))
    with pytest.raises(UserError, match=why):
        VLM.check(PolicyConfig(model=str(tmp_path)))


def test_a_folder_without_ears_or_template_is_refused(case, tmp_path):
    _, vlm, _ = case
    vlm.save(tmp_path)
    template = (tmp_path / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").write_text(template.replace("part['type'] == 'audio'", "false"))
    with pytest.raises(UserError, match="its chat template leaves sounds out: use one that shows them"):
        VLM.check(PolicyConfig(model=str(tmp_path)))


def test_long_sounds_are_cut_where_the_processor_cuts_them(case):
    family, vlm, _ = case
    assert vlm.reader.sound_limits.most_s == (4 if family == "qwen2_5_omni" else MAX_SECONDS)
    frames = vlm.encode(prompt(noise(1, 5.0))).media[FRAMES]
    assert int(frames.sum()) == (400 if family == "qwen2_5_omni" else 500)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen3-Omni-30B-A3B-Instruct"])
def test_smoke_takes_a_tiny_model_that_sees_and_hears(tmp_path, name):
    text = f'name = "a"\npolicy = {{ model = "{name}" }}\n[[tasks]]\nid = "audio/sounds"\n'
    (tmp_path / "a.toml").write_text(text + '[[stages]]\nkind = "rl"\nsteps = 4\n')
    found = smoke(load_config(tmp_path / "a.toml"))
    assert found.policy.model == "tiny:qwen2_5_omni" and found.policy.max_pixels
