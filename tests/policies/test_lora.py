"""Adapters: what gets one, that the model is itself without them, that sampler and learner agree with them, and files."""

import copy
import json
import re

import peft
import pytest
import torch
from safetensors.torch import load_file

import vlm_cases as cases
from adapted import ALL, TINY, batch, optimizer_of, policy, scores, train
from coded_families import emu3
from mmrl.api.errors import UserError
from mmrl.config.parts import part_of
from mmrl.config.sections import LoraConfig, PolicyConfig, RunConfig
from mmrl.policies.batches import Credit
from mmrl.policies.lora import (
    adapter_chain,
    add_adapters,
    disable_adapters,
    is_adapter,
    merge,
    merged_weights,
    some_outputs,
    target_modules,
)
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.loading import skeleton
from mmrl.policies.vlm.vlm import VLM
from mmrl.policies.vlm.vocabulary import read_vocabulary
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.testing.cases import mostly_slow
from mmrl.train.checks.compute import check_dora
from mmrl.train.plan.counter import Counter
from mmrl.train.update.pack_conversations import pack


def trained(vlm):
    return train(vlm, optimizer_of(vlm))


def base_weights(vlm):
    return {n.replace(".base_layer", ""): p for n, p in vlm.model.named_parameters() if not is_adapter(n)}


# -- what adapters belong to --------------------------------------------------------------------------------------------


def adapters(folder, base):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(base))
    return str(folder)


def test_adapters_of_adapters_lead_to_the_model_beneath(tmp_path):
    inner = adapters(tmp_path / "inner", {"base_model_name_or_path": "org/model"})
    outer = adapters(tmp_path / "outer", {"base_model_name_or_path": inner})
    assert adapter_chain(outer) == ([tmp_path / "outer", tmp_path / "inner"], "org/model")
    assert adapter_chain("tiny:qwen2_5_vl") == ([], "tiny:qwen2_5_vl")


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_adapters_in_a_circle_are_refused_by_all_who_follow_them(tmp_path, names):
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        adapters(tmp_path / name, {"base_model_name_or_path": str(tmp_path / following / "." / "")})
    config = PolicyConfig(model=str(tmp_path / "a"))
    for follow in (VLM, VLM.check, skeleton, lambda config: read_vocabulary(config, config.model)):
        with pytest.raises(UserError, match="a: the base models of its adapters form a circle: name a whole model"):
            follow(config)


@pytest.mark.parametrize("content", [[1], {}, {"base_model_name_or_path": None}, "x"])
def test_a_damaged_adapter_config_is_named(tmp_path, content):
    with pytest.raises(UserError, match=r"adapter_config\.json can't be read .*: save the adapters again"):
        adapter_chain(adapters(tmp_path / "a", content))


def test_adapters_go_with_the_alpha_they_were_trained_with(tmp_path):
    policy(alpha=16.0).save(tmp_path / "a")
    assert policy(alpha=16.0, source=tmp_path / "a").lora.alpha == 16.0
    with pytest.raises(UserError, match=r"trained with policy\.lora\.alpha = 16\.0, not 8\.0: set that"):
        policy(alpha=8.0, source=tmp_path / "a")


# -- which layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_layers_of_each_part(family):
    model = cases.policy(family).model
    language, vision, projector = ({t for t in target_modules(model, [p])} for p in ("language", "vision", "projector"))
    assert len(language) == 2 * 7, "two layers of q, k, v, o, gate, up, down"
    assert "model.visual.blocks.1.attn.qkv" in vision and not any("merger" in n for n in vision)
    assert {
        "model.visual.merger.mlp.0",
        "model.visual.merger.mlp.2",
    } <= projector or "model.visual.merger.linear_fc1" in projector
    assert len(projector) == (4 if family == "qwen3_vl" else 2), "deepstack has a merger of its own"
    assert target_modules(model, ["*.q_proj"]) == [f"model.language_model.layers.{i}.self_attn.q_proj" for i in (0, 1)]
    everything = target_modules(model, ["*"])
    assert set(everything) == language | vision | projector and "lm_head" not in everything, "it is the embeddings'"
    assert target_modules(model, ["*.patch_embed.proj"]) == [], "a convolution"


@pytest.mark.parametrize("part", ["vision", "language"])
def test_experts_have_no_adapters_in_place_of_layers_of_their_old_names(part):
    """peft turns `gate_proj` and the like of GLM-4.5V, wherever they are, into the experts' fused weights."""
    model, _ = tiny.build(**tiny.parse("tiny:glm4v_moe:hidden=32,layers=2", 0))
    asked = set(target_modules(model, [part]))
    add_adapters(model, LoraConfig(rank=2, target_modules=[part]), 0)
    adapted = {name.partition(".lora_")[0] for name, _ in model.named_parameters() if is_adapter(name)}
    assert adapted == asked and {part_of(name) for name in adapted} == {part}
    with pytest.raises(UserError, match="matches no linear layer"):
        add_adapters(model, LoraConfig(rank=2, target_modules=["*.gate_proj"]), 0)


def test_adapters_of_experts_are_merged():
    """Of peft's own runs: two fused weights of a module have adapters around each other."""
    model, _ = tiny.build(**tiny.parse("tiny:glm4v_moe:hidden=32,layers=2", 0))
    ids = torch.arange(5, 25)[None]
    before = model(input_ids=ids).logits
    fused = peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["gate_up_proj", "down_proj"])
    peft.inject_adapter_in_model(fused, model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
        adapted = model(input_ids=ids).logits
        assert (adapted - before).abs().max() > 1e-3
        merge(model)
        torch.testing.assert_close(model(input_ids=ids).logits, adapted, atol=1e-5, rtol=1e-4)
    assert not any("lora" in name or "base_layer" in name for name, _ in model.named_modules(remove_duplicate=False))


def test_a_head_of_its_own_may_have_one(tmp_path):
    assert target_modules(VLM(PolicyConfig(model=cases.llava(tmp_path / "llava"))).model, ["head"]) == ["lm_head"]


def test_adapters_have_the_rank_and_the_scale_that_were_asked_for():
    vlm = policy(target_modules=["*.q_proj"], rank=3, alpha=6.0)
    assert [tuple(p.shape) for _, p in vlm.parameters()] == [(3, 64), (64, 3)] * 2
    layer = vlm.model.get_submodule("model.language_model.layers.0.self_attn.q_proj")
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=noise)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        b.copy_(torch.randn(b.shape, generator=noise))
        expected = layer.base_layer(x) + 6.0 / 3 * (x @ a.T @ b.T)
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_only_adapters_are_trained():
    vlm = policy(target_modules=ALL)
    names = {n for n, _ in vlm.parameters()}
    assert names == {n for n, p in vlm.model.named_parameters() if p.requires_grad} and all(map(is_adapter, names))
    assert [n for n, _ in vlm.parameters()] == [n for n, _ in vlm.model.named_parameters() if is_adapter(n)]
    with torch.no_grad():
        next(p for _, p in vlm.parameters()).requires_grad_(False)
    assert {n for n, _ in vlm.parameters()} == names, "whatever needs a gradient at the moment"


def test_the_seed_makes_the_adapters_and_no_global_generator_is_touched():
    before = torch.get_rng_state()
    one, two, other = policy(seed=1), policy(seed=1), policy(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    same = [torch.equal(p, q) for (_, p), (_, q) in zip(one.parameters(), two.parameters(), strict=True)]
    assert all(same) and len(same) == 28
    for (name, p), (_, q) in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q) == ("lora_B" in name)
        assert ("lora_B" in name) == (not p.any())


def test_no_layer_to_adapt():
    with pytest.raises(UserError, match=r"policy\.lora\.target_modules = \['head'\] matches no linear layer"):
        policy(target_modules=["head"])


# -- what they compute --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_new_adapters_change_nothing_and_switched_off_ones_never(family, dtype):
    plain = VLM(PolicyConfig(model=TINY.format(family), dtype=dtype))
    vlm = policy(family, dtype, target_modules=ALL)
    assert torch.equal(scores(vlm), scores(plain)), "so the KL of the first step is 0"
    frozen = {n: p.clone() for n, p in base_weights(vlm).items()}
    train(vlm, optimizer_of(vlm))
    moved = (scores(vlm) - scores(plain)).abs().max()
    assert moved > 0.01
    with disable_adapters(vlm.model):
        assert torch.equal(scores(vlm), scores(plain))
    assert (scores(vlm) - scores(plain)).abs().max() == moved, "they are on again"
    assert all(torch.equal(p, frozen[n]) and torch.equal(p, dict(plain.parameters())[n]) for n, p in base_weights(vlm).items())
    assert all(p.dtype == torch.float32 for _, p in vlm.parameters())
    assert vlm.model.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [4.0, 8.0, 5.0])
def test_a_pass_without_gradients_is_that_of_peft_bit_for_bit_in_fewer_operations(alpha, dtype):
    """By 1, by another power of two, and by a number with which products are rounded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(24, 40)}).to(dtype)
        add_adapters(model, LoraConfig(rank=4, alpha=alpha, target_modules=["one"]), 0)
        torch.nn.init.normal_(model["one"].lora_B["default"].weight)
        layer, x = copy.deepcopy(model)["one"], torch.randn(3, 50, 24, dtype=dtype)
    counts = []
    with torch.no_grad():
        for passed in (layer, lambda x: type(layer).forward(layer, x)):
            counter = Counter()
            with counter:
                found = passed(x)
            counts.append(counter.kernels)
        assert torch.equal(layer(x), found) and found.dtype == dtype
        with disable_adapters(layer):
            assert torch.equal(layer(x), layer.base_layer(x)) and not torch.equal(layer(x), found)
    assert torch.equal(layer(x), found) and layer(x).requires_grad
    assert counts[0] == counts[1] - (alpha != 5.0) - (dtype != torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_those_of_peft_and_layers_of_one_input_keep_it_once_as_it_is(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({name: torch.nn.Linear(24, 40) for name in "qk"}).to(dtype)
        add_adapters(model, LoraConfig(rank=4, alpha=8.0, target_modules=["q", "k"]), 0)
        for layer in model.values():
            torch.nn.init.normal_(layer.lora_B["default"].weight)
        x, wanted = torch.randn(3, 50, 24).to(dtype), torch.randn(3, 50, 40).to(dtype)
    found, inputs = [], []
    for forward in (lambda layer, x: layer(x), lambda layer, x: type(layer).forward(layer, x)):
        layers, given, kept = copy.deepcopy(model), x.clone().requires_grad_(), {}
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.setdefault(t.data_ptr(), t), lambda t: t):
            out = sum(forward(layer, given) for layer in layers.values())
        out.backward(wanted)
        weights = [p.grad for _, p in sorted(layers.named_parameters()) if p.grad is not None]
        assert len(weights) == 4
        found.append((given.grad, weights))
        inputs.append([t.dtype for t in kept.values() if t.numel() == x.numel()])
    (ours, own), (theirs, others) = found
    assert all(map(torch.equal, own, others))
    # of the four products' gradients, which are rounded, ours adds those of a layer first
    assert (ours - theirs).abs().max() <= 2 * torch.finfo(dtype).eps * theirs.abs().max()
    assert inputs == [[dtype], [torch.float32] * 2]


@pytest.mark.parametrize("rows", [0, 50])
@pytest.mark.parametrize("alpha", [4.0, 5.0])
def test_gradients_are_scaled_within_their_products(alpha, rows):
    """By 1, and by a number with which products are rounded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(24, 40)})
        add_adapters(model, LoraConfig(rank=4, alpha=alpha, target_modules=["one"]), 0)
        torch.nn.init.normal_(model["one"].lora_B["default"].weight)
        x, slope = torch.randn(rows, 24), torch.randn(rows, 40)
    found = []
    for forward in (lambda layer, x: layer(x), lambda layer, x: type(layer).forward(layer, x)):
        layer, given, counter = copy.deepcopy(model)["one"], x.clone().requires_grad_(), Counter()
        out = forward(layer, given)
        with counter:
            out.backward(slope)
        weights = [p.grad for p in layer.parameters() if p.requires_grad]
        found.append((given.grad, weights, len(counter.products), counter.kernels))
    (ours, own, *counts), (theirs, others, *_) = found
    torch.testing.assert_close([ours, *own], [theirs, *others], rtol=1e-5, atol=1e-5)
    assert counts == [5, 6], "of both weights, both inputs and the layer beneath; and a sum"


def test_switching_off_leaves_gradients_and_freezing_alone_and_ends_with_an_error():
    vlm = policy()
    (_, still), *_, (_, free) = vlm.parameters()
    still.requires_grad_(False)
    micro = batch(vlm).micro[0]
    logprobs, _ = vlm.logprobs(micro, 1.0)
    with pytest.raises(ZeroDivisionError), torch.no_grad(), disable_adapters(vlm.model):
        vlm.logprobs(micro, 1.0)
        raise ZeroDivisionError
    logprobs.sum().backward()
    assert free.requires_grad and free.grad.any() and not still.requires_grad and still.grad is None
    train(vlm, optimizer_of(vlm))
    on = scores(vlm)
    with disable_adapters(vlm.model):
        off = scores(vlm)
    assert not torch.equal(on, off)


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_sampler_and_learner_agree_after_updates_packed_or_not(family):
    vlm = policy(family, target_modules=ALL)
    train(vlm, optimizer_of(vlm))
    prompts = [cases.prompt(1), cases.prompt(2)]
    inputs = [vlm.encode(p) for p in prompts]
    groups = LocalGenerator(vlm).generate(inputs, 3, SamplingParams(max_tokens=8, temperature=0.8, seed=0))
    rollouts = cases.as_rollouts(prompts, inputs, groups)
    sampled = torch.tensor([x for r in rollouts for x in r.turns[0].logprobs])
    for shared in (True, False):
        made = pack(rollouts, Credit(advantages=torch.ones(6)), vlm, shared_prefix=shared, budget=10_000)
        found = torch.zeros_like(sampled)
        start = torch.tensor([0, *(r.length for r in rollouts)]).cumsum(0)
        for micro in made.micro:
            with torch.no_grad():
                logprobs, _ = vlm.logprobs(micro, 0.8)
            for n in micro.rollout_L.unique().tolist():
                found[start[n] : start[n + 1]] = logprobs[micro.rollout_L == n]
        assert (found - sampled).abs().max() < 1e-5


def test_the_gradient_reaches_adapters_of_every_part():
    vlm = policy(target_modules=ALL)
    train(vlm, optimizer_of(vlm), last=2)  # the first step moves B alone, as A's gradient is B's multiple
    fresh = policy(target_modules=ALL)
    moved = {n: not torch.equal(p, q) for (n, p), (_, q) in zip(vlm.parameters(), fresh.parameters(), strict=True)}
    assert all(moved.values())


# -- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_adapters_load_again_bit_for_bit_and_training_goes_on(dtype, tmp_path):
    vlm = policy(dtype=dtype, target_modules=ALL, seed=3)
    optimizer = optimizer_of(vlm)
    train(vlm, optimizer)
    vlm.save(tmp_path / "p")
    state = {k: v.clone() for k, v in optimizer.state().items()}
    again = policy(dtype=dtype, target_modules=ALL, seed=3, source=tmp_path / "p")
    assert torch.equal(scores(vlm), scores(again))
    resumed = optimizer_of(again)
    resumed.load_state(state)
    train(vlm, optimizer, 3, 5)
    train(again, resumed, 3, 5)
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(vlm.parameters(), again.parameters(), strict=True))
    files = {f.name for f in (tmp_path / "p").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= files and "model.safetensors" not in files


def test_the_same_adapters_make_the_same_files(tmp_path):
    for name in "ab":
        policy(target_modules=ALL).save(tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_folder_is_one_that_peft_loads(tmp_path):
    import peft

    vlm = policy(target_modules=ALL)
    train(vlm, optimizer_of(vlm))
    vlm.save(tmp_path / "p")
    plain = VLM(PolicyConfig(model=TINY.format("qwen2_5_vl")))
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(plain.model), str(tmp_path / "p")).base_model.model
    theirs = {n: p for n, p in loaded.named_parameters() if is_adapter(n)}
    ours = dict(vlm.parameters())
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[n], ours[n]) for n in ours)
    settings = json.loads((tmp_path / "p" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "tiny:qwen2_5_vl:hidden=64,layers=2,seed=0"
    assert (settings["r"], settings["lora_alpha"], settings["lora_dropout"]) == (4, 16.0, 0.0)


@pytest.mark.parametrize("dtype", mostly_slow(["float32", "bfloat16"], everyday=1))
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_merged_weights_compute_the_same_without_adapters(family, dtype, tmp_path):
    vlm = policy(family, dtype, target_modules=ALL, seed=5)
    train(vlm, optimizer_of(vlm))
    before = {n: p.clone() for n, p in vlm.model.named_parameters()}
    whole = cases.merged_copy(vlm.model)
    assert all(torch.equal(p, before[n]) for n, p in vlm.model.named_parameters()), "the policy is left as it is"
    plain = VLM(PolicyConfig(model=TINY.format(family), dtype=dtype), seed=5)
    assert {n: p.dtype for n, p in whole.named_parameters()} == {n: p.dtype for n, p in plain.parameters()}
    layer = vlm.model.get_submodule("model.language_model.layers.1.mlp.up_proj")
    delta = 4.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    expected = (layer.base_layer.weight.float() + delta).to(whole.dtype)
    assert torch.equal(whole.get_submodule("model.language_model.layers.1.mlp.up_proj").weight, expected)
    off = dict(merged_weights(vlm.model))["model.language_model.layers.1.mlp.up_proj.weight"].float() - expected.float()
    assert off.abs().max() < delta.abs().max() / 4, "up to the rounding of bfloat16"
    vlm.save(tmp_path / "adapters")
    whole.save_pretrained(tmp_path / "whole")
    vlm.processor.save_pretrained(tmp_path / "whole")
    near = 1e-5 if dtype == "float32" else 0.05
    by_folder = {}
    for folder in ("adapters", "whole"):
        VLM.check(PolicyConfig(model=str(tmp_path / folder)))
        by_folder[folder] = VLM(PolicyConfig(model=str(tmp_path / folder), dtype=dtype))  # another seed: the file names its base
        assert (scores(by_folder[folder]) - scores(vlm)).abs().max() < near
        assert all(p.requires_grad and not is_adapter(n) for n, p in by_folder[folder].parameters())
    assert torch.equal(scores(by_folder["adapters"]), scores(by_folder["whole"]))


def test_new_adapters_on_a_model_that_was_saved_as_adapters(tmp_path):
    first = policy(seed=5)
    train(first, optimizer_of(first))
    first.save(tmp_path / "first")
    config = PolicyConfig(model=str(tmp_path / "first"), lora=LoraConfig(rank=2))
    second = VLM(config, seed=6)
    assert (scores(second) - scores(first)).abs().max() < 1e-5
    train(second, optimizer_of(second))
    second.save(tmp_path / "second")
    assert torch.equal(scores(VLM(config, seed=6, source=tmp_path / "second")), scores(second))
    assert (scores(VLM(PolicyConfig(model=str(tmp_path / "second")))) - scores(second)).abs().max() < 1e-5


def test_folders_that_hold_other_adapters_or_none(tmp_path):
    policy(rank=4).save(tmp_path / "p")
    with pytest.raises(UserError, match=r"its adapters don't match policy\.lora"):
        policy(rank=8, source=tmp_path / "p")
    with pytest.raises(UserError, match=r"its adapters don't match policy\.lora"):
        policy(target_modules=["vision"], source=tmp_path / "p")
    with pytest.raises(UserError, match="holds no adapters that can be read"):
        policy(source=tmp_path)
    (tmp_path / "p" / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="holds no adapters that can be read") as caught:
        policy(source=tmp_path / "p")
    assert "\n" not in str(caught.value)
    (tmp_path / "p" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json can't be read"):
        VLM(PolicyConfig(model=str(tmp_path / "p")))


@pytest.mark.parametrize("match", ["vision", "*.vqmodel.*"])
def test_layers_that_make_ids_of_pictures_have_no_adapters(match):
    """No gradient reaches them, so they would train nothing, and say nothing."""
    model, _ = emu3()
    with pytest.raises(
        UserError, match=rf'^policy\.lora\.target_modules: "{re.escape(match)}" matches only layers that make ids'
    ):
        add_adapters(model, LoraConfig(rank=2, target_modules=["language", match]), seed=0)
    assert not any(is_adapter(name) for name, _ in model.named_parameters())


def test_the_file_holds_adapters_and_nothing_else(tmp_path):
    policy(target_modules=["*.q_proj"]).save(tmp_path / "p")
    names = load_file(tmp_path / "p" / "adapter_model.safetensors").keys()
    layer = "base_model.model.model.language_model.layers.{}.self_attn.q_proj.lora_{}.weight"
    assert names == {layer.format(i, x) for i in (0, 1) for x in "AB"}


def test_another_family_has_adapters_too(tmp_path):
    name = cases.llava(tmp_path / "llava")
    config = PolicyConfig(model=name, lora=LoraConfig(target_modules=["vision", "projector", "head"]))
    vlm, plain = VLM(config), VLM(PolicyConfig(model=name))
    made = batch(vlm, shared=False)
    optimizer = optimizer_of(vlm)
    for step in range(2):
        for micro in made.micro:
            vlm.logprobs(micro, 1.0)[0].sum().backward()
        optimizer.step(step)
    assert {n.split(".lora_")[0] for n, _ in vlm.parameters()} >= {"lm_head", "model.multi_modal_projector.linear_1"}
    with disable_adapters(vlm.model):
        assert torch.equal(scores(vlm, shared=False), scores(plain, shared=False))
    vlm.save(tmp_path / "p")
    assert torch.equal(scores(VLM(config, source=tmp_path / "p"), shared=False), scores(vlm, shared=False))


# -- rsLoRA and DoRA ----------------------------------------------------------------------------------------------------


def test_the_scale_of_rslora_is_by_the_root_of_the_rank(tmp_path):
    vlm = trained(policy(target_modules=["*.q_proj"], rank=9, alpha=6.0, use_rslora=True))
    layer = vlm.model.get_submodule("model.language_model.layers.0.self_attn.q_proj")
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.base_layer(x) + 6.0 / 3 * (x @ a.T @ b.T))
    vlm.save(tmp_path / "p")
    with pytest.raises(UserError, match=r"were trained with policy\.lora\.use_rslora = true, not false: set that"):
        policy(source=tmp_path / "p", target_modules=["*.q_proj"], rank=9, alpha=6.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", [{"use_rslora": True}, {"use_dora": True}, {"use_rslora": True, "use_dora": True}])
def test_the_ways_of_peft_begin_as_the_model_and_are_files_merged_weights_and_a_model_of_peft(way, dtype, tmp_path):
    vlm = policy(dtype=dtype, target_modules=ALL, seed=5, **way)
    plain = VLM(PolicyConfig(model=TINY.format("qwen2_5_vl"), dtype=dtype), seed=5)
    near = 1e-5 if dtype == "float32" else 0.05
    assert (scores(vlm) - scores(plain)).abs().max() <= (1e-6 if dtype == "float32" else 0.01)
    trained(vlm)
    assert (scores(vlm) - scores(plain)).abs().max() > 0.1
    with disable_adapters(vlm.model):
        assert torch.equal(scores(vlm), scores(plain))
    vlm.save(tmp_path / "p")
    again = policy(dtype=dtype, source=tmp_path / "p", target_modules=ALL, seed=5, **way)
    assert torch.equal(scores(again), scores(vlm)) and torch.equal(scores(vlm.clone(frozen=True)), scores(vlm))
    plain.model.load_state_dict(dict(merged_weights(vlm.model)))
    assert (scores(plain) - scores(vlm)).abs().max() < near
    assert (scores(VLM(PolicyConfig(model=str(tmp_path / "p"), dtype=dtype))) - scores(vlm)).abs().max() < near
    theirs = VLM(PolicyConfig(model=TINY.format("qwen2_5_vl"), dtype=dtype), seed=5)
    peft.PeftModel.from_pretrained(theirs.model, str(tmp_path / "p"))
    assert (scores(theirs) - scores(vlm)).abs().max() < near


def test_a_pattern_that_matches_nothing_is_refused_beside_one_that_does():
    """unsloth#9326: some of what was to be adapted was left out in silence. A run file is checked before, but for models of the
    hub."""
    for pattern in ("*.embed_tokens", "*.q_prj"):
        with pytest.raises(UserError, match=rf"target_modules = \['{re.escape(pattern)}'\] matches no linear layer"):
            policy(target_modules=["*.q_proj", pattern])


def test_a_run_begins_with_adapters_of_dora_over_a_checkpoint(tmp_path):
    """Those of a checkpoint's own folder were refused as no LoRA; those of a tiny model, which no file is read for, were not."""
    tiny.save(str(tmp_path / "base"), "qwen2_5_vl", hidden=32, layers=1)
    vlm = VLM(PolicyConfig(model=str(tmp_path / "base"), lora=LoraConfig(rank=2, use_dora=True)))
    trained(vlm)
    vlm.save(tmp_path / "p")
    begun = VLM(PolicyConfig(model=str(tmp_path / "p")))
    assert (scores(begun) - scores(vlm)).abs().max() < 1e-5
    with disable_adapters(vlm.model):
        assert (scores(begun) - scores(vlm)).abs().max() > 0.01


def test_a_few_outputs_of_a_layer_are_those_of_all_with_dora():
    layer = torch.nn.ModuleDict({"q": torch.nn.Linear(8, 6, bias=False)})
    add_adapters(layer, LoraConfig(rank=2, target_modules=["*q"], use_dora=True), seed=0)
    torch.nn.init.normal_(layer.q.lora_B["default"].weight)
    x, rows = torch.randn(3, 8), torch.tensor([4, 1])
    wanted, found = layer.q(x)[:, rows], some_outputs(layer.q, x, rows)
    torch.testing.assert_close(found, wanted)
    trained = [p for p in layer.parameters() if p.requires_grad]
    assert len(trained) == 3
    for own, gradient in zip(*(torch.autograd.grad(made.square().sum(), trained) for made in (found, wanted)), strict=True):
        torch.testing.assert_close(own, gradient)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"policy": {"model": "m", "lora": {"use_dora": True, "nf4": ["language"]}}}, "leave one of them out"),
        ({"compute": {"learners": 2, "weights": "sharded"}}, 'set compute.weights = "replicated"'),
        ({"train": {"compile": True}}, "leave one of them out"),
    ],
)
def test_dora_is_refused_where_rows_are_not_whole(sections, said):
    stages = [{"kind": "rl", "steps": 1}]
    data = {"name": "x", "policy": {"model": "m", "lora": {"use_dora": True}}, "tasks": [{"id": "a/b"}], "stages": stages}
    with pytest.raises(UserError, match=rf"policy\.lora\.use_dora.*{said}"):
        check_dora(RunConfig(**(data | sections)))
