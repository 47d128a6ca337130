"""Steered answers to videos: what learns and what doesn't, when the entropy is raised and lowered, and that rows keep apart."""

import functools
import json
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import runs
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate import steering as module
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.steering import SteeredLayer, Steering, Switch
from mmrl.testing.cases import mostly_slow
from mmrl.ui.cli import main

LONG = 14


@functools.cache
def policy(family: str) -> VLM:
    """Less indifferent than tiny models are, so that entropies differ from token to token."""
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=64,layers=2"))
    with torch.no_grad():
        for name, p in vlm.model.named_parameters():
            if name.endswith("weight") and "norm" not in name and "visual" not in name:
                p.mul_(6.0)
    return vlm


def film(seed: int, frames: int = 6) -> VideoFrames:
    pictures = np.random.RandomState(seed).randint(0, 255, (frames, 56, 56, 3), dtype=np.uint8)
    return VideoFrames(frames_THWC=pictures, times_s=tuple(i / 2 for i in range(frames)), duration_s=frames / 2)


def prompt(seed: int) -> Prompt:
    """The longer the more the seed says."""
    return Prompt(id=f"p{seed}", messages=[user_message("What happens?" + "x" * seed, film(seed, 4 + 2 * seed))], answer="7")


def decode(vlm, inputs, steering, group=1, temperature=0.0, tokens=LONG, seed=1):
    sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed, logits_processor=steering)
    return LocalGenerator(vlm).generate(inputs, group, sampling)


@pytest.fixture
def layers(monkeypatch):
    """The controllers that are made."""
    made = []

    class Kept(SteeredLayer):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(module, "SteeredLayer", Kept)
    return made


# -- against a reference without a cache ---------------------------------------------------------------------------------


def reference(vlm, one, rate, interval, ema, tokens=LONG):
    """Greedy tokens, entropies, signs and the controller, of the whole text anew at each token: the controller is added where the
    last layer makes its values."""
    video = (one.ids == vlm.model.config.video_token_id).nonzero()[:, 0]
    attention = vlm.model.model.language_model.layers[-1].self_attn
    added = torch.zeros(len(video), attention.v_proj.out_features, requires_grad=True)
    adam = torch.optim.Adam([added], lr=rate)
    hook = attention.v_proj.register_forward_hook(lambda _, __, out: out.index_add(1, video, added[None]))
    ids, found, entropies, signs, means = one.ids, [], [], [], []
    try:
        for t in range(tokens):
            steps = torch.arange(t)[None, None] + one.next_position
            positions = torch.cat([one.positions[:, None], steps.expand(len(one.positions), 1, -1)], 2)
            hidden = vlm.family.hidden(ids[None], None, positions, one.media)[0, -1]
            logits = vlm.model.get_output_embeddings()(hidden).detach() if t == 0 else vlm.model.get_output_embeddings()(hidden)
            logprobs = (logits + vlm.bias_V).log_softmax(-1)
            allowed = logprobs[torch.isfinite(logprobs)]
            entropy = -(allowed.exp() * allowed).sum()
            h = entropy.item()
            means.append(h if t == 0 else ema * means[-1] + (1 - ema) * h)
            signs.append(-1 if means[-1] == max(means) else 1)
            entropies.append(h)
            if t and t % interval == 0:
                adam.zero_grad()
                (signs[-1] * entropy).backward()
                adam.step()
            found.append(int(logprobs.argmax()))
            if found[-1] in vlm.eos:
                break
            ids = torch.cat([ids, torch.tensor(found[-1:])])
    finally:
        hook.remove()
        vlm.model.zero_grad()
    return found, entropies, signs, added.detach()


@pytest.mark.parametrize("family", cases.FAMILIES)
@pytest.mark.parametrize(("rate", "interval", "ema"), mostly_slow([(0.3, 2, 0.6), (0.05, 1, 0.9)], everyday=1))
def test_prompts_of_any_length_are_steered_as_each_is_alone_without_a_cache(family, rate, interval, ema, layers):
    vlm = policy(family)
    inputs = [vlm.encode(prompt(k)) for k in (2, 0, 1)]
    assert len({len(i.ids) for i in inputs}) == 3
    steering = Steering(rate, interval, ema)
    groups = decode(vlm, inputs, steering)
    (layer,) = layers
    order = sorted(range(3), key=lambda i: len(inputs[i].ids))
    for row, k in enumerate(order):
        tokens, entropies, signs, added = reference(vlm, inputs[k], rate, interval, ema)
        assert list(groups[k][0].token_ids) == tokens
        trace = steering.traces[row]
        assert trace.tokens == len(tokens) and trace.entropy == pytest.approx(np.mean(entropies), abs=1e-3)
        assert trace.peak == max(t for t, sign in enumerate(signs, 1) if sign < 0) and {*signs} == {-1, 1}
        if len(tokens) == LONG:
            mine = layer.controller[int((layer.row_N == row).nonzero()[0, 0])].detach().transpose(0, 1).flatten(1)
            mine = mine[layer.place_N1S1[int((layer.row_N == row).nonzero()[0, 0]), 0, :, 0]]
            assert (mine - added).abs().max() < 0.05 * rate and added.abs().max() > rate, "float noise is a small part of a step"
    plain = [s.token_ids for (s,) in decode(vlm, inputs, None)]
    assert plain != [s.token_ids for (s,) in groups], "or nothing was steered"


def test_a_row_alone_is_the_row_in_a_batch_and_in_a_group():
    vlm = policy("qwen2_5_vl")
    inputs = [vlm.encode(prompt(k)) for k in range(3)]
    together, alone = Steering(0.1, 1, 0.9), [Steering(0.1, 1, 0.9) for _ in inputs]
    found = decode(vlm, inputs, together, group=2)
    for k, one in enumerate(inputs):
        (single,) = decode(vlm, [one], alone[k])
        assert [s.token_ids for s in found[k]] == [single[0].token_ids] * 2
        assert np.abs(np.array(found[k][0].logprobs) - single[0].logprobs).max() < 1e-3
        assert together.traces[2 * k].peak == alone[k].traces[0].peak


def test_rows_that_are_dropped_take_their_controllers_with_them():
    def layer(rows):
        torch.manual_seed(0)
        prefix = module.ReservedLayer(dynamic(torch.randn(4, 2, 5, 3)[rows]), 1)
        place = torch.tensor([[False, True, True, True, False], [False, False, True, True, False]] * 2)
        return SteeredLayer(prefix, place[rows], 0.1, Switch(0.5))

    def dynamic(x):
        from transformers.cache_utils import DynamicLayer

        made = DynamicLayer()
        made.update(x, x)
        return made

    many, few = layer([0, 1, 2, 3]), layer([2, 1])
    torch.manual_seed(1)
    for step in range(6):
        noise, entropy = torch.randn(4, 2, 6 + step, 3), torch.rand(4)
        if step == 3:
            many.reorder_cache(torch.tensor([2, 1]))
            assert many.row_N.tolist() == [2, 1]
        rows = [0, 1, 2, 3] if step < 3 else [2, 1]
        for one, own in ((many, rows), (few, [2, 1])):
            _, values = one.update(torch.ones(len(own), 2, 1, 3), torch.ones(len(own), 2, 1, 3))
            one.learn((one.switch(entropy[own])[:, None, None, None] * values * noise[own]).sum())
    assert torch.equal(many.controller, few.controller) and many.controller.abs().max() > 0.1
    assert torch.equal(many.values, few.values), "what is remembered stays as it is"
    assert (few.controller[1, :, 0] == 0).all() and few.first == 1, "no video's token"


# -- what learns, and what doesn't ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_model_stays_as_it_is(family, monkeypatch):
    vlm = policy(family)
    frozen = next(vlm.model.parameters())
    frozen.requires_grad_(False)
    before = {n: p.clone() for n, p in vlm.model.named_parameters()}
    inputs = [vlm.encode(prompt(1))]
    plain = decode(vlm, inputs, None, 3, 1.0)
    try:
        assert decode(vlm, inputs, Steering(1.0, 1, 0.9), 3, 1.0) != plain
        with monkeypatch.context() as broken:
            broken.setattr(torch.autograd, "grad", lambda _, wanted: [torch.full_like(x, torch.nan) for x in wanted])
            with pytest.raises(UserError, match=r"evaluate\.steering\.learning_rate = 0\.5 made .* not finite: lower it"):
                decode(vlm, inputs, Steering(0.5, 1, 0.9))
        for name, p in vlm.model.named_parameters():
            assert torch.equal(p, before[name]) and p.grad is None and p.requires_grad == (p is not frozen), name
    finally:
        frozen.requires_grad_(True)
    assert decode(vlm, inputs, None, 3, 1.0) == plain
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_only_the_controller_has_gradients(layers, monkeypatch):
    """Each step's graph holds one leaf that wants a gradient."""
    vlm, leaves = policy("qwen2_5_vl"), set()
    grad = torch.autograd.grad

    def seen(loss, wanted):
        todo, done = [loss.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is not None and node not in done:
                done.add(node)
                todo += [n for n, _ in node.next_functions]
                leaves.update({id(node.variable)} if hasattr(node, "variable") else ())
        return grad(loss, wanted)

    monkeypatch.setattr(torch.autograd, "grad", seen)
    decode(vlm, [vlm.encode(prompt(1))], Steering(0.1, 2, 0.9))
    assert leaves == {id(layers[0].controller)}


@pytest.mark.parametrize("family", cases.FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_learning_rate_of_0_gives_exactly_the_unsteered_answers(family, temperature, layers):
    vlm = policy(family)
    inputs = [vlm.encode(prompt(k)) for k in (1, 0)]
    plain = decode(vlm, inputs, None, 3, temperature)
    looking = Steering(0.0, 1, 0.9)
    assert decode(vlm, inputs, looking, 3, temperature) == plain and len(layers) == 1
    assert len(looking.traces) == 6 and all(t.tokens <= LONG and t.entropy > 0 for t in looking.traces)


def test_without_steering_nothing_of_it_runs(monkeypatch):
    vlm, modes = policy("qwen2_5_vl"), set()
    step = vlm.family.step
    monkeypatch.setattr(vlm.family, "step", lambda *a: modes.add(torch.is_inference_mode_enabled()) or step(*a))
    for name in ("begin", "__call__", "figures"):
        monkeypatch.setattr(Steering, name, lambda *_: pytest.fail("steered"))
    decode(vlm, [vlm.encode(prompt(1))], None, 2, 1.0)
    assert modes == {True}


def test_prompts_without_a_video_are_answered_as_ever(layers):
    vlm = policy("qwen2_5_vl")
    without = [vlm.encode(cases.prompt(1)), vlm.encode(Prompt(id="t", messages=[user_message("Why?")], answer="x"))]
    steering = Steering(1.0, 1, 0.9)
    assert decode(vlm, without, steering) == decode(vlm, without, None) and not layers and not steering.traces
    mixed = [*without, vlm.encode(prompt(1))]
    found, plain = decode(vlm, mixed, steering), decode(vlm, mixed, None)
    assert found[:2] == plain[:2] and found[2] != plain[2] and len(steering.traces) == 1
    assert Steering(1.0, 1, 0.9).figures() == {}


def test_answers_that_end_early_are_seen_to_their_end_alone():
    vlm = policy("qwen2_vl")
    vlm.bias_V[vlm.end_id] += 6.0
    try:
        steering = Steering(0.1, 2, 0.5)
        groups = decode(vlm, [vlm.encode(prompt(k)) for k in (0, 1)], steering, 8, 1.0, 20)
    finally:
        vlm.bias_V[vlm.end_id] -= 6.0
    lengths = [len(s.token_ids) for g in groups for s in g]
    assert len(set(lengths)) > 3 and [t.tokens for t in steering.traces] == lengths
    assert all(1 <= t.peak <= t.tokens for t in steering.traces)
    assert steering.figures()["tokens"] == pytest.approx(np.mean(lengths))


# -- which way ------------------------------------------------------------------------------------------------------------


def test_the_sign_turns_where_the_running_mean_passes_its_maximum():
    entropies = np.random.RandomState(0).rand(3, 40).astype(np.float32) * np.linspace(1, 3, 40)
    entropies[:, 25:] = 0.1
    for ema in (0.0, 0.5, 0.9):
        switch, found = Switch(ema), []
        for t in range(40):
            found.append(switch(torch.tensor(entropies[:, t])).tolist())
        for row in range(3):
            mean = highest = float(entropies[row, 0])
            signs = [-1.0]
            for h in map(float, entropies[row, 1:]):
                mean = ema * mean + (1 - ema) * h
                signs.append(-1.0 if mean >= highest else 1.0)
                highest = max(highest, mean)
            assert [f[row] for f in found] == signs
            assert signs[25:] == [1.0] * 15 and -1.0 in signs[1:25], "past its maximum it is only lowered"


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_entropy_falls_while_it_is_lowered_and_rises_while_it_is_raised(family, monkeypatch):
    """Of the same tokens, so that nothing else differs."""
    vlm = policy(family)
    inputs, words = [vlm.encode(prompt(1))], iter(())

    def scripted(self, logits, sampling, noise):
        return torch.full((len(logits),), 20 + next(words)), torch.zeros(len(logits))

    def entropies(sign, rate):
        nonlocal words
        words, seen = iter(range(99)), []
        monkeypatch.setattr(Switch, "__call__", lambda _, h: seen.append(float(h[0])) or torch.full_like(h, sign))
        decode(vlm, inputs, Steering(rate, 1, 0.9), tokens=40)
        return np.array(seen)

    monkeypatch.setattr(LocalGenerator, "_choose", scripted)
    plain, lowered, raised = entropies(1.0, 0.0), entropies(1.0, 3.0), entropies(-1.0, 3.0)
    assert (lowered[:2] == plain[:2]).all(), "what is learned of a token serves the next"
    assert (lowered - plain)[20:].mean() < -0.2 and (raised - plain)[20:].mean() > 0.05
    assert (lowered - plain)[30:].mean() < 3 * (lowered - plain)[2:10].mean(), "further and further"


# -- evaluations ----------------------------------------------------------------------------------------------------------

PLUGIN = """
import numpy as np
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message
from mmrl.api.media.clips import VideoFrames

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="steered/films", target="steered:Films", verifiers={"steered/odd": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="steered/odd", target="steered:odd")]

def odd(case):
    return float(sum(map(ord, case.completion)) % 2)

class Films(Task):
    def prompts(self, split, seed):
        for i in range(6):
            frames = np.random.RandomState(i).randint(0, 255, (4, 56, 56, 3), dtype=np.uint8)
            film = VideoFrames(frames_THWC=frames, times_s=(0.0, 0.5, 1.0, 1.5), duration_s=2.0)
            yield Prompt(id=f"{split}-{i}", messages=[user_message("What?", film)], answer="x")
"""
RUN = """
name = "x"
policy.model = "tiny:qwen2_5_vl:hidden=32,layers=1"
tasks = [{id = "TASK"}]
stages = [{kind = "rl", steps = 1, prompts_per_step = 2, group_size = 2}]
generate.max_tokens = 8
evaluate = {num_prompts = 4, steering = {learning_rate = 2.0, interval = 1}}
"""


@pytest.fixture
def mmrl_eval(tmp_path, monkeypatch):
    sys.modules.pop("steered", None)
    (tmp_path / "steered.py").write_text(PLUGIN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{tmp_path / 'steered.py'}:{runs.TOY}")
    monkeypatch.chdir(tmp_path)

    def call(*arguments, task="steered/films"):
        (tmp_path / "x.toml").write_text(RUN.replace("TASK", task))
        return CliRunner().invoke(main, ["eval", "x.toml", *arguments])

    return call


def test_both_are_reported_side_by_side(mmrl_eval):
    plain, steered, still = (
        json.loads(mmrl_eval("--json", *more).stdout)["steered/films"]
        for more in ((), ("--steer",), ("--steer", "--set", "evaluate.steering.learning_rate=0"))
    )
    assert plain["value"] == steered["value"] == still["value"], "the figure itself is the unsteered one"
    extra = steered["extra"]
    assert set(extra) - set(plain["extra"]) == {"steered", "steered/gain"} | {
        f"{way}/{name}" for way in ("steered", "unsteered") for name in ("entropy", "peak", "tokens")
    }
    assert extra["steered/gain"] == pytest.approx(extra["steered"] - steered["value"])
    assert steered["intervals"].keys() == {"steered", "steered/gain"}
    low, high = steered["intervals"]["steered"]
    assert 0 <= low <= extra["steered"] <= high <= 1 and 1 <= extra["steered/peak"] <= extra["steered/tokens"] <= 8
    assert extra["steered/entropy"] != extra["unsteered/entropy"]
    for name in ("entropy", "peak", "tokens"):
        assert still["extra"][f"steered/{name}"] == still["extra"][f"unsteered/{name}"] == extra[f"unsteered/{name}"]
    assert still["extra"]["steered/gain"] == 0.0
    lines = mmrl_eval("--steer").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines if line.split() and line.split()[0] in ("steered", "unsteered")}
    assert f"{extra['steered/entropy']:.3f}" in rows["unsteered"].replace(
        f"{extra['unsteered/entropy']:.3f}", f"{extra['steered/entropy']:.3f}"
    )
    assert any(line.strip().startswith("steered - unsteered") for line in lines)
    assert any("entropy, nats" in line and "highest at token" in line for line in lines)


def test_a_task_without_videos_is_not_steered_and_that_is_said(mmrl_eval):
    done = mmrl_eval("--steer", task="toy/colour")
    assert done.exit_code == 0, done.stderr
    assert "  not steered: no prompt has a video" in done.stdout.splitlines()
    assert "steered" not in json.loads(mmrl_eval("--steer", "--json", task="toy/colour").stdout)["toy/colour"]["extra"]
    assert "steered" not in mmrl_eval(task="toy/colour").stdout


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("learning_rate=-0.1", "'evaluate.steering.learning_rate': input should be greater than or equal to 0; found -0.1"),
        ("learning_rate=inf", "'evaluate.steering.learning_rate'"),
        ("interval=0", "'evaluate.steering.interval': input should be greater than or equal to 1; found 0"),
        ("interval=1.5", "'evaluate.steering.interval'"),
        ("ema=1", "'evaluate.steering.ema': input should be less than 1; found 1"),
        ("ema=-0.1", "'evaluate.steering.ema'"),
        ("intervall=2", "unknown key 'evaluate.steering.intervall': did you mean 'interval'?"),
    ],
)
def test_bad_settings_are_one_line(mmrl_eval, setting, told):
    done = mmrl_eval("--steer", "--set", f"evaluate.steering.{setting}")
    assert done.exit_code == 2 and told in done.stderr and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("mmrl: ")


def test_policies_that_act_are_not_steered(tmp_path, monkeypatch):
    from mmrl.train.resolve import resolve

    dial = runs.TOY.replace("toy.py", "dial.py")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", dial)
    config = runs.toy_config(
        tmp_path,
        policy={"kind": "vla", "model": "tiny:qwen2_5_vl:hidden=32,layers=1", "options": {"dims": 2, "bins": 8}},
        tasks=[{"id": "dial/turn", "options": {"size": 56, "reward": "own"}, "verifiers": {"dial/success": 1.0}}],
        stages=[{"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2}],
        evaluate={"num_prompts": 2, "steer": True},
    )
    with pytest.raises(UserError, match=r"evaluate\.steer is for answers in words to videos, but task 'dial/turn' acts"):
        resolve(config)
