"""Names of weights, the parts they belong to, and patterns that are refused before a model is loaded."""

import pytest
import torch

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config import parts
from mmrl.config.parts import matches, part_of
from mmrl.config.sections import PolicyConfig, RunConfig
from mmrl.policies.acting.vla import VLA
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.loading import skeleton
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.checks.parts import check_parts


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.visual.patch_embed.proj.weight", "vision"),
        ("model.visual.blocks.3.attn.qkv.weight", "vision"),
        ("model.visual.pos_embed.weight", "vision"),
        ("model.visual.merger.mlp.0.weight", "projector"),
        ("model.visual.deepstack_merger_list.0.linear_fc1.weight", "projector"),
        ("model.language_model.layers.0.self_attn.q_proj.weight", "language"),
        ("model.language_model.layers.0.self_attn.q_proj.lora_A.default.weight", "language"),
        ("model.visual.blocks.0.mlp.up_proj.lora_B.default.weight", "vision"),
        ("model.language_model.embed_tokens.weight", "language"),
        ("lm_head.weight", "head"),
        ("value.0.weight", "value"),
        ("critic.model.visual.blocks.0.w", "value"),
        # LLaVA, PaliGemma, Gemma 3; SigLIP has a pooling head of its own
        ("model.vision_tower.encoder.layers.0.mlp.fc1.weight", "vision"),
        ("model.vision_tower.head.probe", "vision"),
        ("model.multi_modal_projector.linear_1.weight", "projector"),
        ("model.image_newline", "projector"),
        # Idefics, SmolVLM
        ("model.vision_model.encoder.layers.0.mlp.fc1.weight", "vision"),
        ("model.connector.modality_projection.proj.weight", "projector"),
        ("model.text_model.layers.0.mlp.up_proj.weight", "language"),
        # older layouts and others
        ("language_model.lm_head.weight", "head"),
        ("visual.merger.ln_q.weight", "projector"),
        ("model.layers.0.mlp.up_proj.weight", "language"),
        ("model.language_model.layers.0.vision_gate.weight", "language"),
        ("model.aligner.fc1.weight", "projector"),
        ("qformer.encoder.layer.0.attention.weight", "projector"),
        ("audio_tower.layers.0.fc1.weight", ""),
    ],
)
def test_the_part_of_a_name(name, part):
    assert part_of(name) == part
    assert [p for p in parts.PARTS if matches(p, name)] == [p for p in [part] if p]


def test_patterns_are_of_whole_names_and_mind_case():
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    assert (
        matches("*.layers.0.*", name) and matches("*q_proj*", name) and matches(name, name) and matches("*.layers.[01].*", name)
    )
    assert not any(matches(p, name) for p in ("*.layers.1.*", "layers.0", "*.Q_PROJ.*", "q_proj", "lang*"))


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_every_weight_of_the_families_has_the_part_of_its_module(family):
    vlm = cases.policy(family)
    model = vlm.model.model
    mergers = [model.visual.merger, *getattr(model.visual, "deepstack_merger_list", [])]
    of = {id(p): "vision" for p in model.visual.parameters()}
    of |= {id(p): "projector" for m in mergers for p in m.parameters()}
    of |= {id(p): "language" for p in model.language_model.parameters()}
    assert {part_of(name): 0 for name, _ in vlm.parameters()} == {"vision": 0, "projector": 0, "language": 0}
    assert all(part_of(name) == of[id(p)] for name, p in vlm.parameters())


# -- the skeleton -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_a_skeleton_has_the_names_and_shapes_of_the_model_and_no_weights(family, tmp_path):
    vlm = cases.policy(family)
    vlm.save(tmp_path / "p")
    (tmp_path / "p" / "model.safetensors").unlink()
    real = {n: p.shape for n, p in vlm.model.named_parameters()}
    for name in (f"tiny:{family}:hidden=64,layers=2", str(tmp_path / "p")):
        built = skeleton(PolicyConfig(model=name))
        assert {n: p.shape for n, p in built.named_parameters()} == real
        assert all(p.device.type == "meta" for p in built.parameters())


def test_a_skeleton_of_another_family(tmp_path):
    name = cases.llava(tmp_path / "llava")
    vlm = VLM(PolicyConfig(model=name))
    built = skeleton(PolicyConfig(model=name))
    assert [n for n, _ in built.named_parameters()] == [n for n, _ in vlm.parameters()]
    assert {part_of(n) for n, _ in built.named_parameters()} == {"vision", "projector", "language", "head"}


def test_a_config_that_is_no_image_text_to_text_model_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"policy\.model: .* can't be built from its config") as caught:
        skeleton(PolicyConfig(model=str(tmp_path)))
    assert "\n" not in str(caught.value)


# -- what is refused ----------------------------------------------------------------------------------------------------


def run(*stages, model="tiny:qwen2_5_vl:hidden=32,layers=1", lora=None):
    return RunConfig(
        name="x",
        policy={"model": model} | ({"lora": lora} if lora is not None else {}),
        tasks=[{"id": "a/b"}],
        stages=[{"kind": "sft", "steps": 1, **s} for s in stages],
    )


def refused(config, *critics):
    with pytest.raises(UserError) as caught:
        check_parts(config, critics)
    assert "\n" not in str(caught.value)
    return str(caught.value)


FREEZE = {"freeze": True}


def test_patterns_that_match_are_accepted():
    check_parts(
        run(
            {},
            {"parts": [{"match": m, **FREEZE} for m in ("vision", "*.visual.merger.ln_q.*", "projector", "*.layers.0.*")]},
            {"parts": [{"match": "*", "learning_rate": 1.0}]},
        )
    )
    check_parts(run({"parts": [{"match": "vision", **FREEZE}]}, lora={"target_modules": ["language", "*.attn.qkv"]}))


def test_a_part_that_is_misspelt():
    found = refused(run({}, {"parts": [{"match": "vison", **FREEZE}]}))
    assert found.startswith("stages.1.parts: 'vison' matches none of the ") and "did you mean 'vision'?" in found
    assert "use vision, projector, language or a pattern" in found


def test_a_pattern_of_no_weight():
    found = refused(run({"parts": [{"match": "*.q_prj.weight", **FREEZE}]}))
    assert "'*.q_prj.weight' matches none" in found and "did you mean 'q_proj'?" in found
    assert "model.visual.patch_embed.proj.weight" in found, "what names look like"
    found = refused(run({"parts": [{"match": "*.layers.7.*", **FREEZE}]}))
    assert "'*.layers.7.*' matches none" in found and "did you mean" not in found


def test_a_tied_head_is_explained(tmp_path):
    found = refused(run({"parts": [{"match": "head", **FREEZE}]}))
    assert 'stages.0.parts: "head" matches nothing, as this model\'s head is tied to its embeddings' in found
    check_parts(run({"parts": [{"match": "head", **FREEZE}]}, model=cases.llava(tmp_path / "llava")))


def test_the_value_function_is_there_in_a_stage_that_has_one():
    stage = {"kind": "rl", "parts": [{"match": "value", "learning_rate": 1.0}]}
    assert 'stages.1.parts match "value" matches nothing, as the stage has no critic' in refused(run(stage, stage), 0)
    check_parts(run(stage, stage), {0, 1})
    own = {"kind": "rl", "parts": [{"match": "critic.*", **FREEZE}]}
    assert "'critic.*' matches none" in refused(run(own), 0)
    check_parts(run(own | {"critic": {"backbone": "separate"}}), {0})


def test_an_entry_behind_one_that_takes_it_all():
    found = refused(run({"parts": [{"match": "vision", **FREEZE}, {"match": "*.visual.blocks.*", "learning_rate": 1.0}]}))
    assert found == "stages.0.parts match '*.visual.blocks.*' has no effect, as earlier entries match the same: move it up"


def test_a_stage_that_trains_nothing():
    everything = [{"match": m, **FREEZE} for m in ("vision", "projector", "language")]
    assert refused(run({"parts": everything})) == "stages.0.parts leaves nothing to train: freeze less"
    rl = {"kind": "rl", "parts": everything}
    assert "leaves nothing to train" in refused(run(rl), 0), "a critic alone is no policy"
    check_parts(run({"parts": everything[:2]}))


def test_with_adapters_only_those_can_be_frozen():
    found = refused(run({"parts": [{"match": "vision", **FREEZE}]}, lora={}))
    assert "'vision' matches none of the 14 adapters, which are all that policy.lora trains" in found
    assert "leaves nothing to train" in refused(run({"parts": [{"match": "language", **FREEZE}]}, lora={}))


ACTS = {"dims": 2, "chunk": 2, "decoding": "parallel"}
HEADS = [
    {"head": "l1", "scale": "network", "decoding": "oft"},
    {"head": "l1"},
    {"head": "normal"},
    {"head": "flow"},
    {"head": "tokens"},
]


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_the_weights_that_a_policy_has_besides_the_model_are_known_before_it_is_made(options):
    config = PolicyConfig(kind="vla", model="tiny:qwen2_5_vl:hidden=32,layers=1", options=ACTS | options | {"state": 3})
    made = VLA(config, **config.options)
    assert VLA.own_names(config) == [name for name, _ in made.parameters() if name.startswith("own.")]


def test_a_policys_own_weights_are_named_beside_adapters():
    """As in RIPT-VLA: first the network of the scale is trained alone, and then it stays."""
    scale = "own.head.scale.*"
    first = {"parts": [{"match": scale, "learning_rate": 1.0}, {"match": "*", **FREEZE}]}
    config = run(first, {"parts": [{"match": scale, **FREEZE}]}, lora={})
    policy = config.policy.model_copy(update={"kind": "vla", "options": HEADS[0]})
    check_parts(config.model_copy(update={"policy": policy}), beside=VLA.own_names)
    assert "'own.head.scale.*' matches none of the 14 adapters, which" in refused(config)
    with pytest.raises(UserError, match=r"'own.head.scale.\*' matches none of the \d+ adapters and own weights, which"):
        check_parts(config, beside=VLA.own_names)  # whose head is another
    everything = run({"parts": [{"match": m, **FREEZE} for m in ("vision", "projector", "language")]})
    whole = policy.model_copy(update={"lora": None})
    check_parts(everything.model_copy(update={"policy": whole}), beside=VLA.own_names)  # the head is trained alone


def test_adapters_on_no_layer():
    found = refused(run({}, lora={"target_modules": ["language", "*.q_prj"]}))
    assert found.startswith("policy.lora.target_modules: '*.q_prj' matches none of the ") and "linear layers" in found
    assert "did you mean 'q_proj'?" in found
    assert '"head" matches nothing' in refused(run({}, lora={"target_modules": ["head"]}))
    assert "embed_tokens" in refused(run({}, lora={"target_modules": ["*.embed_tokens"]})), "an embedding is not a linear layer"


def test_nothing_is_built_without_patterns(monkeypatch):
    monkeypatch.setattr("mmrl.policies.vlm.loading.skeleton", None)
    check_parts(run({}, {}))


def test_no_weights_are_made(monkeypatch):
    monkeypatch.setattr(tiny, "build", None)
    before = torch.get_rng_state()
    check_parts(run({"parts": [{"match": "vision", **FREEZE}]}))
    assert torch.equal(before, torch.get_rng_state())


def test_weights_that_only_make_ids_of_pictures_are_not_trained():
    """As of Emu3: no gradient reaches them, so the stage would train nothing, and say nothing."""

    def build(_):
        layers = {"vqmodel": torch.nn.Linear(2, 2), "language_model": torch.nn.Linear(2, 2)}
        return torch.nn.ModuleDict({"model": torch.nn.ModuleDict(layers), "lm_head": torch.nn.Linear(2, 2)})

    others = [{"match": "language", **FREEZE}, {"match": "head", **FREEZE}]
    check_parts(run({"parts": [{"match": "vision", **FREEZE}]}), build=build)
    with pytest.raises(UserError, match=r"^stages\.0\.parts match 'vision' has only weights that make ids .*: no gradient flows"):
        check_parts(run({"parts": [{"match": "vision", "learning_rate": 1e-5}, *others]}), build=build)
    with pytest.raises(UserError, match=r"^stages\.0\.parts leaves nothing to train: freeze less$"):
        check_parts(run({"parts": others}), build=build)
