"""Compiled layers: the numbers of layers that aren't, for rows of many lengths by the same code, and what happens if it fails.

Everyday tests compile with torch's tracing and its formulas of gradients, but let torch's own operations run what was traced: the
C++ that inductor makes takes minutes to compile.
"""

import contextlib
import copy
import threading
import warnings

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from transformers.modeling_layers import GradientCheckpointingLayer

import learners
import other_families
import runs
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies import compiling, lora_products
from mmrl.policies.batches import Credit
from mmrl.policies.compiling import compiled_layers
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.layers import repeated_layers
from mmrl.policies.lora import add_adapters
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.checks.compute import check_compile
from mmrl.train.update.pack_conversations import pack


def fails(*_):
    raise RuntimeError("no C compiler\nwas found")


BACKENDS = {
    "traced": "aot_eager",
    "no code": fails,
    "no code for gradients": aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=fails),
}


@pytest.fixture
def compile_by(monkeypatch):
    """Compile with a backend from now on, in this test alone."""

    def use(backend):
        def compiled(forward):
            return torch.compile(forward, dynamic=True, backend=BACKENDS[backend])

        torch._dynamo.reset()
        counters.clear()
        monkeypatch.setattr(compiling, "compiled", compiled)
        monkeypatch.setattr(compiling, "_KINDS", {})

    return use


def batch(vlm, seed=0, longest=9):
    rollouts = cases.rollouts(vlm, [cases.prompt(1 + seed), cases.prompt(2 + seed)], longest=longest, seed=seed)
    credit = Credit(advantages=torch.linspace(-1.0, 1.0, 8))
    return pack(rollouts, credit, vlm, shared_prefix=vlm.family.shares_prefix, budget=10_000)


def both(vlm, made, **checkpointed):
    """(log-probabilities, gradient) of a batch: as they are, and compiled."""
    found = []
    for on in (False, True):
        with compiled_layers([vlm.model], on), gradient_checkpointing(vlm.model, bool(checkpointed), **checkpointed):
            found.append(cases.logprobs_and_gradient(vlm, made))
    return found


def close(one, two, atol=1e-5):
    near = all(torch.allclose(a, b, rtol=0, atol=atol) for a, b in zip(one, two, strict=True))
    return near and one[1].abs().max() > 1e-3


def kinds(model):
    return {type(layer) for layer in repeated_layers(model)}


class Small(GradientCheckpointingLayer):
    """What tests compile in a second."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 16).view(4, 4))

    def forward(self, x, past_key_values=None):
        if x.shape[-1] != 4:
            raise ValueError("a layer of width 4")
        return x + (x @ self.weight).tanh()


def passed(model, on, rows=3, **checkpointed):
    """(output, gradient of each weight)."""
    model.zero_grad()
    with compiled_layers([model], on), gradient_checkpointing(model, bool(checkpointed), **checkpointed):
        output = model(torch.linspace(-1.0, 1.0, rows * 4).view(rows, 4))
    output.square().sum().backward()
    return output.detach(), *(p.grad.clone() for p in model.parameters())


@contextlib.contextmanager
def told():
    """The warnings of mmrl; torch's own are turned off by torch itself, unless all are recorded."""
    found = []
    with warnings.catch_warnings(record=True) as everything:
        warnings.simplefilter("always")
        yield found
    found += [str(w.message) for w in everything if "train.compile" in str(w.message)]


@pytest.mark.parametrize("backend", ["no code", "no code for gradients"])
def test_what_cannot_be_compiled_is_told_once_and_runs_as_it_is(compile_by, backend):
    compile_by(backend)
    model = torch.nn.Sequential(Small(), Small(), Small())
    with told() as warned:
        for _ in range(2):
            assert all(map(torch.equal, passed(model, False), passed(model, True)))
    (one,) = warned
    assert "train.compile: Small can't be compiled" in one and "no C compiler was found" in one


def test_a_failure_behind_checkpointed_layers_lets_them_be_computed_again_as_they_were(compile_by, monkeypatch):
    compile_by("traced")
    make, calls = compiling.compiled, []

    def compiled(forward):
        run = make(forward)

        def third_fails(*args, **kwargs):
            calls.append(1)
            return fails() if len(calls) == 3 else run(*args, **kwargs)

        return third_fails

    monkeypatch.setattr(compiling, "compiled", compiled)
    model = torch.nn.Sequential(*(Small() for _ in range(4)))
    with told() as warned:
        assert close(passed(model, False, offload=False), passed(model, True, offload=False))
    assert len(warned) == 1 and len(calls) == 3 + 2, "the two before it are computed again by what was compiled"


def test_every_kind_of_arguments_is_compiled_by_the_same_settings(compile_by, monkeypatch):
    """Since torch 2.12 they belong to a context, and checkpointed layers run in contexts of their own; gradients may be computed
    in another thread, as they are on a GPU."""
    seen = []

    def noting(graph, inputs):
        seen.append((torch._dynamo.config.recompile_limit, torch._functorch.config.force_non_lazy_backward_lowering))
        return graph.forward

    monkeypatch.setitem(BACKENDS, "noting", noting)
    compile_by("noting")
    model = torch.nn.Sequential(Small(), Small())
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model.to(dtype)
        with compiled_layers([model]), gradient_checkpointing(model):
            output = model(torch.ones(3, 4, dtype=dtype, requires_grad=True))
        thread = threading.Thread(target=output.sum().backward)
        thread.start()
        thread.join()
        assert all(p.grad is not None for p in model.parameters())
        model.zero_grad()
    assert len(seen) >= 3 and set(seen) == {(compiling.RECOMPILATIONS, True)}


def test_layers_keep_their_names_and_forward_passes(compile_by, monkeypatch):
    compile_by("no code")
    model, failed = torch.nn.Sequential(Small(), Small()), []
    monkeypatch.setattr(compiling.Kind, "fail", lambda kind, error: failed.append(error))
    own, names = model[1].forward, list(model.state_dict())
    model[1].forward = own
    with pytest.raises(ZeroDivisionError), compiled_layers([model, model]):
        assert list(model.state_dict()) == names and model[1].forward is own
        model[0](torch.ones(1, 4), past_key_values="a cache")
        assert not failed
        model[0](torch.ones(1, 4))
        raise ZeroDivisionError
    assert len(failed) == 1 and "forward" not in vars(model[0])


def test_a_policy_that_computes_with_weights_of_layers_is_refused():
    policy, tasks = {"kind": "pi0", "model": "tiny:pi0"}, [{"id": "robotics/pick"}]
    stages, train = [{"kind": "rl", "steps": 1}], {"compile": True}
    config = parse_config({"name": "x", "policy": policy, "tasks": tasks, "stages": stages, "train": train})
    with pytest.raises(UserError, match=r"train\.compile is for policies of kind vlm, reward, vla, not 'pi0': leave it out"):
        check_compile(config)


def test_errors_of_a_layer_are_its_own(compile_by):
    compile_by("traced")
    with told() as warned, compiled_layers([model := Small()]), pytest.raises(ValueError, match="of width 4"):
        model(torch.ones(1, 5))
    assert not warned


def test_layers_and_rows_of_many_lengths_share_what_is_compiled(compile_by):
    compile_by("traced")
    model, counted = torch.nn.Sequential(Small(), Small(), Small()), []
    for rows in (3, 5, 8, 21):
        assert close(passed(model, False, rows=rows), passed(model, True, rows=rows))
        counted.append(counters["stats"]["unique_graphs"])
    assert 1 <= counted[0] == counted[-1] <= 2, "the first layer's inputs have no gradient"


@pytest.mark.exhaustive  # a minute
@pytest.mark.slow
def test_the_same_numbers_for_rows_of_many_lengths_by_the_same_code(compile_by):
    compile_by("traced")
    vlm, counted = cases.policy("qwen2_5_vl"), []
    with told() as warned:
        for seed in range(4):
            assert close(*both(vlm, batch(vlm, seed, longest=5 + 9 * seed)))
            counted.append(counters["stats"]["unique_graphs"])
    assert not warned and 2 < counted[0] == counted[-1] <= 16


@pytest.mark.slow
def test_the_sampler_is_not_compiled(compile_by):
    compile_by("no code")
    vlm = cases.policy("qwen2_5_vl")
    inputs, sampling = [vlm.encode(cases.prompt(1))], SamplingParams(max_tokens=5, temperature=0.8, seed=3)
    plain = LocalGenerator(vlm).generate(inputs, 2, sampling)
    with told() as warned, compiled_layers([vlm.model]):
        assert LocalGenerator(vlm).generate(inputs, 2, sampling) == plain
    assert not any("DecoderLayer" in one for one in warned)


@pytest.mark.slow
@pytest.mark.parametrize("offload", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_with_checkpointing(compile_by, offload):
    compile_by("traced")
    vlm = cases.policy("qwen3_vl")
    one, two = both(vlm, batch(vlm), offload=offload)
    assert close(one, two)


@pytest.mark.exhaustive  # two minutes
@pytest.mark.slow
def test_with_adapters(compile_by):
    compile_by("traced")
    vlm = VLM(PolicyConfig(model="tiny:qwen3_vl:hidden=64,layers=2", lora=LoraConfig(rank=4)))
    with torch.no_grad():
        for _, p in vlm.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.1)
    with told() as warned:
        for seed in range(3):
            assert close(*both(vlm, batch(vlm, seed), offload=False))
            assert close(*both(vlm, batch(vlm, seed)))
    assert not warned


@pytest.mark.exhaustive  # a minute
@pytest.mark.slow
def test_attention_by_blocks(compile_by):
    compile_by("traced")
    vlm = cases.policy("qwen2_5_vl")
    with attention.small_blocks():
        for seed in range(3):
            assert close(*both(vlm, batch(vlm, seed)))
    assert counters["stats"]["unique_graphs"] <= 16


@pytest.mark.slow
@pytest.mark.exhaustive  # a minute each
@pytest.mark.parametrize("family", ["llava_onevision", "gemma3", "qwen3_5", "idefics3"])
def test_other_families(compile_by, family):
    compile_by("traced")
    vlm = other_families.policy(family)
    counted = []
    for seed in range(5):
        assert close(*both(vlm, batch(vlm, seed, longest=5 + 9 * seed)))
        counted.append(counters["stats"]["unique_graphs"])
    assert counted[-1] == counted[-2] <= 16, "lengths that are multiples of 8 may have code of their own, and no others"


@pytest.mark.slow
@pytest.mark.exhaustive  # minutes
def test_a_whole_run_with_a_reference_and_a_critic_and_its_resume(compile_by, monkeypatch, tmp_path):
    compile_by("traced")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    stage = {"kind": "rl", "steps": 4, "prompts_per_step": 3, "group_size": 4, "optimizer": "sgd", "learning_rate": 0.1}
    stage |= {"algorithm": "ppo", "critic": {"backbone": "separate"}, "kl_coef": 0.1}

    def config(name, on=True):
        return runs.toy_config(tmp_path, name, stages=[stage], train={"threads": 1, "compile": on}, checkpoint={"every": 2})

    with told() as warned:
        plain, whole = runs.run(config("plain", False)), runs.run(config("whole"))
        with pytest.raises(KeyboardInterrupt):
            runs.run(config("cut"), progress=runs.Silent(3))
        assert runs.trajectory(runs.run(config("cut"), resume=True)) == runs.trajectory(whole)
    assert not warned and counters["stats"]["unique_graphs"] > 2
    one, two = ([r["metrics"] for r in runs.rows(folder) if r.get("metrics")] for folder in (plain, whole))
    for a, b in zip(one, two, strict=True):
        for name in ("loss", "kl", "value_loss", "gradient_norm"):
            assert b.get(name, 0.0) == pytest.approx(a.get(name, 0.0), rel=1e-3, abs=1e-5), name
        assert b["logprob_gap"] < 1e-4


@pytest.mark.slow
@pytest.mark.exhaustive  # a minute each
@pytest.mark.parametrize("name", learners.COMPILED)
def test_whole_runs_of_each_kind_of_policy(compile_by, tmp_path, name):
    compile_by("traced")
    with told() as warned, learners.prepared():
        plain, compiled = (learners.play(each, tmp_path / "of" / each) for each in (name, f"compiled, {name}"))
    assert not warned and counters["stats"]["unique_graphs"] > 1
    assert learners.differences(plain, compiled, bound=1e-4) == []


@pytest.mark.slow
def test_the_code_that_inductor_makes(monkeypatch):
    monkeypatch.setattr(compiling, "_KINDS", {})
    torch._dynamo.reset()
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=2"))
    with told() as warned:
        for seed in range(2):
            assert close(*both(vlm, batch(vlm, seed)))
    assert not warned and not any(compiling.kind_of(kind).failure for kind in kinds(vlm.model))


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
def test_adapters_over_bfloat16_are_compiled_without_a_break(split, monkeypatch):
    """With factors split as on a GPU, too, whose product of bfloat16 into float32 a CPU doesn't have."""
    monkeypatch.setattr(lora_products, "splits", lambda x: split)
    monkeypatch.setattr(lora_products, "times", lambda x, y: x.float() @ y.float())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(24, 40)}).bfloat16()
        add_adapters(model, LoraConfig(rank=4, target_modules=["one"]), 0)
        torch.nn.init.normal_(model["one"].lora_B["default"].weight)
        x, slope = torch.randn(3, 50, 24).bfloat16(), torch.randn(3, 50, 40).bfloat16()
    found = []
    for whole in (False, True):
        layer, given = copy.deepcopy(model)["one"], x.clone().requires_grad_()
        forward = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager") if whole else layer
        out = forward(given)
        out.backward(slope)
        found.append((out, given.grad, *(layer.get_parameter(f"lora_{m}.default.weight").grad for m in "AB")))
    for mine, true in zip(*found, strict=True):
        torch.testing.assert_close(mine, true, rtol=2**-7, atol=2**-7)
