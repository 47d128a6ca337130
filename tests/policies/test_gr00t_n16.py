"""GR00T N1.6 against what NVIDIA's released code computed (`tests/support/golden_gr00t_n16.py`), and what its files may hold."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import gr00t_n16_cases as cases
from flow_cases import calls, gradients
from gr00t_cases import gr00t
from gr00t_parity import Noise
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config import parts
from mmrl.config.sections import PartConfig, PolicyConfig
from mmrl.policies.gr00t import loading, tiny
from mmrl.policies.gr00t.config import N1_6, head_config
from mmrl.policies.gr00t.eagle import EagleNetwork, eagle_config
from mmrl.policies.gr00t.eagle_reading import ADDED, CURE, PICTURE, tokenizer_of
from mmrl.policies.gr00t.network import load_network, read_plan
from mmrl.policies.gr00t.policy import Gr00t
from pi0_cases import CALLS, SEEDS, moved, seen

GOLDEN = Path(__file__).parents[1] / "golden" / "gr00t-n16.jsonl"
ROWS = {row["way"]: row for row in map(json.loads, GOLDEN.read_text().splitlines())}
MODEL = "tiny:gr00t_n1d6:hidden=32,layers=2,chunk=5"
EAGLE = {
    **{"model_type": "eagle_3_vl", "select_layer": -1, "downsample_ratio": 0.5, "use_backbone_lora": 0, "use_llm_lora": 0},
    "image_token_index": cases.IMAGE,
    "text_config": {
        "architectures": ["Qwen3ForCausalLM"],
        "rope_theta": 1000000,
        "max_position_embeddings": 40960,
        **cases.TEXT_SIZES,
    },
    "vision_config": {
        **{"model_type": "siglip2_vision_model", "use_rope": False, "use_windows_attn": False, "patch_size": 14},
        **cases.VISION_SIZES,
    },
}
IDLE = {"language_model.lm_head.weight": (64, 16), "vision_model.vision_model.head.probe": (1, 1, 24)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A checkpoint with the golden weights under the published names, two of which nothing reads."""
    folder = tmp_path_factory.mktemp("gr00t") / "model"
    (folder / "backbone").mkdir(parents=True)
    (folder / "backbone" / "config.json").write_text(json.dumps(EAGLE))
    (folder / "config.json").write_text(json.dumps({"model_type": "Gr00tN1d6", "model_name": N1_6.model_name, **cases.HEAD}))
    weights = {}
    for name, own in read_plan(folder).network().named_parameters():
        for ours, theirs in (
            ("backbone.vision_model.", "backbone.model.vision_model.vision_model."),
            ("backbone.projector.", "backbone.model.mlp1."),
            ("backbone.language_model.", "backbone.model.language_model.model."),
        ):
            name = name.replace(ours, theirs)
        weights[name] = cases.weight(name, own.shape)
    weights |= {f"backbone.model.{name}": torch.full(shape, 9.0) for name, shape in IDLE.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "statistics.json").write_text(json.dumps({cases.EMBODIMENT: cases.tables()[1]}))
    return folder


def policy_of(published, way, monkeypatch):
    """Its tokenizer is a small one, and the tokens are the golden ones."""
    settings = cases.KWARGS | cases.SETTINGS[way] | {"modality_configs": {cases.EMBODIMENT: cases.tables()[0]}}
    if way == "area":  # this release always has bars, and no setting that says so
        settings["letter_box_transform"] = True
    table = {"processor_class": "Gr00tN1d6Processor", "processor_kwargs": settings}
    (published / "processor_config.json").write_text(json.dumps(table))
    monkeypatch.setattr(loading, "tokenizer_of", lambda *_: tiny._tokenizer())
    policy = gr00t(str(published), dims=4, chunk=5, state=4)
    row = ROWS[way]
    tokens = [[t for t, real in zip(*both, strict=True) if real] for both in zip(row["ids"], row["mask"], strict=True)]
    monkeypatch.setattr(policy.reader, "ids", lambda text, _: tokens[cases.TEXTS.index(text)])
    shown = {camera: cases.pictures(way, camera) for camera in cases.CAMERAS}
    return policy, Observation(images=shown, state=cases.states(), instructions=list(cases.TEXTS))


def golden(row, name, *shape):
    return torch.tensor(row[name]).view(*shape)


@pytest.mark.parametrize("way", ROWS)
def test_all_is_as_the_released_code_computes_it(way, published, monkeypatch):
    policy, shown = policy_of(published, way, monkeypatch)
    row, network = ROWS[way], policy.model
    assert policy.embodiment.number == cases.NUMBER
    inputs = policy.reader.inputs(shown, policy.device)
    assert inputs["input_ids"][inputs["attention_mask"].bool()].tolist() == [
        t for ids, mask in zip(row["ids"], row["mask"], strict=True) for t, real in zip(ids, mask, strict=True) if real
    ]
    for text, said in zip(("pick up the red cube please", "push it"), row["said"], strict=True):
        assert policy.reader.processor.decode(policy.reader.written(text, policy.reader.sizes(shown))) == said
    count, _, high, wide = row["size"]
    patches = inputs["pixel_values"].view(count, high // 14, wide // 14, 14, 14, 3)
    pixels = patches.permute(0, 5, 1, 3, 2, 4).reshape(count, 3, high, wide)
    torch.testing.assert_close(pixels[0, :, 0, 0], torch.tensor(row["first"]))
    numbers = (pixels * 127.5 + 127.5).round().to(torch.uint8).numpy()
    assert hashlib.sha256(numbers.tobytes()).hexdigest() == row["pixels"]
    real_nP, state = inputs["attention_mask"].bool(), policy._state(shown)
    features = golden(row, "features", *real_nP.shape, 16)
    torch.testing.assert_close(state, golden(row, "state", 2, 9), atol=1e-5, rtol=1e-5)
    noise = cases.filled("noise", 2, cases.AHEAD, cases.NUMBERS)
    with torch.no_grad():
        torch.testing.assert_close(network.features(inputs)[real_nP], features[real_nP], atol=1e-5, rtol=1e-5)
        context = network.encode(inputs, state, torch.full((2,), cases.NUMBER))
        velocity = network.action_head.velocity(context, noise, torch.tensor([0.25, 0.6]))
    torch.testing.assert_close(velocity, golden(row, "velocity", 2, 7, 6), atol=1e-5, rtol=1e-5)
    chosen = policy.choose(shown, Noise(noise), 0.0)[0]
    torch.testing.assert_close(chosen, golden(row, "normalised", 2, 7, 6)[:, :5, :4], atol=1e-5, rtol=1e-5)
    actions = policy.embodiment.physical(chosen, shown.state)
    torch.testing.assert_close(actions, golden(row, "actions", 2, 5, 4), atol=1e-5, rtol=1e-5)
    assert actions.std() > 0.3 and (actions[0] - actions[1]).abs().max() > 0.1 and features[real_nP].std() > 0.3


def test_a_saved_folder_has_the_published_names_and_is_the_same_policy(published, tmp_path, monkeypatch):
    policy, _ = policy_of(published, "area", monkeypatch)
    policy.save(tmp_path / "saved")
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (published, tmp_path / "saved"))
    assert theirs.keys() - ours.keys() == {f"backbone.model.{name}" for name in IDLE} and not ours.keys() - theirs.keys()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    for file in ("processor_config.json", "statistics.json", "config.json"):
        assert json.loads((tmp_path / "saved" / file).read_text()) == json.loads((published / file).read_text()), file
    monkeypatch.undo()
    own = moved(gr00t(MODEL))
    own.save(tmp_path / "tiny")
    again = gr00t(str(tmp_path / "tiny"))
    assert again.plan.version is N1_6 and again.reader.written("push it", ((56, 56),)) == own.reader.written(
        "push it", ((56, 56),)
    )
    one, two = (p.act(seen(), SEEDS, CALLS, 1.0) for p in (own, again))
    assert torch.equal(one.choices, two.choices) and one.choices.std() > 0.1


def test_tied_embeddings_may_stand_under_either_name(published, tmp_path):
    shutil.copytree(published, tmp_path / "m")
    weights = load_file(published / "model.safetensors")
    words = weights.pop("backbone.model.language_model.model.embed_tokens.weight")
    save_file(weights | {"backbone.model.language_model.lm_head.weight": words}, tmp_path / "m" / "model.safetensors")
    for folder in (published, tmp_path / "m"):
        assert torch.equal(load_network(folder).backbone.language_model.embed_tokens.weight, words)


def test_weights_that_do_not_fit_are_named_as_published(published, tmp_path):
    weights = load_file(published / "model.safetensors")
    token, bias = "action_head.mask_token", "backbone.model.mlp1.1.bias"
    for name, changed, told in (
        ("a", {k: v for k, v in weights.items() if k != bias}, f"{bias} is missing in its files and [16] by its config"),
        (
            "b",
            weights | {"backbone.model.mlp2.x": torch.zeros(1)},
            "backbone.model.mlp2.x is [1] in its files and unknown by its",
        ),
        ("c", {k: v for k, v in weights.items() if k != token}, f"{token} is missing in its files and [1, 1, 24] by its config"),
    ):
        shutil.copytree(published, tmp_path / name)
        save_file(changed, tmp_path / name / "model.safetensors")
        with pytest.raises(UserError) as caught:
            load_network(tmp_path / name)
        assert told in str(caught.value) and "take both from one checkpoint" in str(caught.value)


def test_the_published_sizes():
    """Of nvidia/GR00T-N1.6-3B, whose name counts its weights."""
    with torch.device("meta"):
        network = EagleNetwork(
            eagle_config(N1_6.model_name), head_config({"max_state_dim": 128, "max_action_dim": 128}, N1_6), 16
        )
    assert 2.5 < sum(p.numel() for p in network.parameters()) / 1e9 < 3.5
    assert head_config({}, N1_6).action_horizon == 16 and head_config({}, N1_6).vl_self_attention_cfg is None
    assert head_config({"state_dropout_prob": 0.2}).state_dropout_prob == 0, "N1.7 has no token for it"


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("vision_config", "use_windows_attn"), True, r"vision_config\.use_windows_attn = True, and only False can be read"),
        (("select_layer",), -4, r"select_layer = -4, and only -1 can be read"),
        (
            ("text_config", "architectures"),
            ["Qwen2ForCausalLM"],
            r"text_config\.architectures = \['Qwen2ForCausalLM'\], and only",
        ),
        (("text_config", "num_hidden_layers"), 2, r"select_layer = 3, and the backbone has 2 layers"),
    ],
)
def test_another_backbone_is_refused(place, value, told, published, tmp_path):
    shutil.copytree(published, tmp_path / "m")
    table = json.loads(json.dumps(EAGLE))
    (table if len(place) == 1 else table[place[0]])[place[-1]] = value
    (tmp_path / "m" / "backbone" / "config.json").write_text(json.dumps(table))
    with pytest.raises(UserError, match=told):
        Gr00t.check(PolicyConfig(model=str(tmp_path / "m"), kind="gr00t", options={"embodiment": "gr1"}))


def test_the_tokenizer_must_have_the_models_token_for_pictures(published, tmp_path):
    """Eagle's tokens follow those of a Qwen3, which has none of them."""
    from mmrl.policies.vlm.tiny.tokens import make_tokenizer

    plain, own = make_tokenizer(), tiny._tokenizer()
    plain.save_pretrained(tmp_path / "plain")
    own.save_pretrained(tmp_path / "own")
    eagle = read_plan(published).backbone
    first = len(plain)
    found = tokenizer_of("x", str(tmp_path / "plain"), replace(eagle, image_token_id=first))
    assert [found.convert_tokens_to_ids(token) for token in ADDED] == [first + i for i in range(len(ADDED))]
    number = own.convert_tokens_to_ids(PICTURE)
    assert len(tokenizer_of("x", str(tmp_path / "own"), replace(eagle, image_token_id=number))) == len(own)
    with pytest.raises(UserError) as told:
        tokenizer_of("x", str(tmp_path / "own"), eagle)
    assert f"has {PICTURE} as token {number}, and the model as 60: {CURE}" in str(told.value)


def test_its_head_is_a_part_of_its_own_and_learns():
    policy = gr00t(MODEL)
    names = [name for name, _ in policy.parameters()]
    assert {parts.part_of(name) for name in names} == {"vision", "projector", "language", "head"}
    assert {parts.part_of(name) for name in names if ".projector." in name} == {"projector"}
    made = calls(seen(), policy.act(seen(), SEEDS, CALLS, 1.0).choices)
    everywhere = {parts.part_of(name) for name in gradients(policy, made)}
    assert everywhere == {"vision", "projector", "language", "head"}
    frozen = [PartConfig(match=part, freeze=True) for part in ("vision", "projector", "language")]
    for name, p in policy.parameters():
        p.requires_grad_(parts.entry(frozen, name) is None)
    assert all(name.startswith("action_head.") for name in gradients(policy, made))
