"""A policy that steers a frozen one by the noise with which its flow begins (DSRL)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.load import make_policy, saved_policy
from mmrl.policies.planned_base import planned_base
from mmrl.policies.squashed import Squashed
from mmrl.policies.steered import Steered
from mmrl.testing.cases import mostly_slow

N, DIMS, CHUNK, STATE = 3, 3, 2, 4
SHARED = {"dims": DIMS, "chunk": CHUNK, "state": STATE}
FLOW = {"kind": "vla", "model": "tiny:qwen2_5_vl:hidden=32,layers=1", "options": {"dims": DIMS, "chunk": CHUNK, "head": "flow"}}
DIFFUSION: dict[str, Any] = {
    "kind": "diffusion",
    "model": "tiny:diffusion:width=8,horizon=4,moments=1,times=4,pictures=0",
    "options": {**SHARED, "scheduler": "DDIM"},
}
BASES = {
    "diffusion": DIFFUSION,
    "vla": FLOW,
    "pi0": {"kind": "pi0", "model": "tiny:pi0:hidden=32,layers=1,chunk=3", "options": SHARED},
    "smolvla": {"kind": "smolvla", "model": "tiny:smolvla:hidden=32,layers=2,chunk=3", "options": SHARED},
    "gr00t": {"kind": "gr00t", "model": "tiny:gr00t:hidden=32,layers=1,chunk=3", "options": SHARED},
    "xvla": {"kind": "xvla", "model": "tiny:xvla:hidden=32,layers=1,chunk=3", "options": SHARED},
}
SEEDS, CALLS = torch.tensor([5, 6, 7]), torch.tensor([0, 3, 1])


def steered(base: Any, **options: Any) -> Any:
    config = PolicyConfig(kind="steered", model="mlp", options={"base": base, "state": STATE, "hidden": [16], **options})
    return make_policy(config, device="cpu", seed=1)


def seen() -> Observation:
    torch.manual_seed(3)
    images = {"front": torch.randint(0, 256, (N, 56, 56, 3), dtype=torch.uint8)}
    return Observation(images=images, state=torch.randn(N, STATE), instructions=["pick up the red cube"] * N)


class Told(CallRandomness):
    """Randomness whose first use is given: another way to begin a flow than the policy's own."""

    start: torch.Tensor

    def normal(self, use: int, *shape: int) -> torch.Tensor:
        assert self.start.shape[1:] == shape
        return self.start if use == 0 else super().normal(use, *shape)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("kind", mostly_slow(BASES, everyday=2))
def test_it_does_what_the_base_does_from_this_noise(kind: str, each: bool) -> None:
    """And no other noise is in the base's steps."""
    policy, shown = steered(BASES[kind], each=each, reach=1.7), seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    features, chosen = found.choices[:, 0].split([policy.width, policy.actor.dims], -1)
    ahead, numbers = policy.base.noise_shape
    assert chosen.shape[1] == numbers * (ahead if each else 1)
    told = Told(seeds_n=SEEDS + 9, calls_n=CALLS)
    object.__setattr__(told, "start", (1.7 * chosen.tanh()).reshape(N, -1, numbers).expand(-1, ahead, -1))
    with torch.no_grad():
        base = policy.base.simulated(policy.base.choose(shown, told, 0.0)[0], shown)
    assert torch.equal(found.actions_nKA, base) and found.actions_nKA.shape == (N, CHUNK, DIMS)
    assert torch.equal(policy.actions_of(shown, chosen.tanh()), base.flatten(1).clamp(-1, 1)), "as it is acted again later"
    again = policy.act(shown, SEEDS + 1, CALLS, 1.0)
    assert (again.actions_nKA - base).abs().max() > 1e-3, "noise changes nothing"
    still = policy.act(shown, SEEDS, CALLS, 0.0)
    assert torch.equal(still.actions_nKA, policy.act(shown, SEEDS + 1, CALLS, 0.0).actions_nKA)
    assert torch.equal(features[:, -STATE:], shown.state) and not any(p.requires_grad for p in policy.base.model.parameters())


def test_a_base_that_nobody_steers_begins_with_standard_normal_noise_of_its_own_for_each_action() -> None:
    policy, shown = steered(DIFFUSION, reach=0.2), seen()
    ahead, numbers = policy.base.noise_shape
    draw = CallRandomness(seeds_n=SEEDS, calls_n=CALLS)
    told = Told(seeds_n=SEEDS + 9, calls_n=CALLS)
    object.__setattr__(told, "start", draw.normal(0, ahead, numbers))
    with torch.no_grad():
        base = policy.base.simulated(policy.base.choose(shown, told, 0.0)[0], shown)
        assert torch.equal(policy.unsteered(shown, draw), base)
    many = CallRandomness(seeds_n=torch.arange(2000), calls_n=torch.zeros(2000, dtype=torch.int64)).normal(0, ahead, numbers)
    assert many.std().item() == pytest.approx(1, abs=0.05) and (many[:, 0] - many[:, 1]).abs().mean() > 1


@pytest.mark.parametrize("kind", mostly_slow(BASES, everyday=1))
def test_a_call_of_it_reads_pictures_once(kind: str) -> None:
    """And what it chooses from is, bit for bit, what the base says of them when it is asked for that alone."""
    base = {**DIFFUSION, "model": DIFFUSION["model"].replace("pictures=0", "pictures=1")} if kind == "diffusion" else BASES[kind]
    policy, shown = steered(base), seen()
    read = passes_of_eyes(policy.base)
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    assert len(read) == 1
    features = found.choices[:, 0, : policy.width]
    assert torch.equal(features, policy.remembered(shown)) and len(read) == 2
    dark = replace(shown, images={"front": shown.images["front"] // 2})
    assert (policy.act(dark, SEEDS, CALLS, 1.0).choices[:, 0, : policy.width] - features).abs().max() > 1e-3
    assert len(read) == 3, "other pictures are read anew"


@pytest.mark.parametrize("residual", [0.0, 0.3])
def test_a_call_of_a_perceptron_that_sees_reads_pictures_once(residual: float) -> None:
    base = {**FLOW, "options": {**FLOW["options"], "chunk": 1}}  # type: ignore[dict-item]
    given = {"dims": DIMS, "base": base, "hidden": [8], "residual": residual}
    policy: Any = make_policy(PolicyConfig(kind="squashed", model="mlp", options=given), device="cpu", seed=0)
    read = passes_of_eyes(policy.base)
    policy.act(seen(), SEEDS, CALLS, 1.0)
    assert len(read) == 1


def passes_of_eyes(base: Any) -> list[int]:
    """It grows by one with each pass of the base's first layer over pictures."""
    found: list[int] = []
    first = next(m for name, m in base.model.named_modules() if name.endswith("patch_embed") or isinstance(m, torch.nn.Conv2d))
    weigh = first.forward
    first.forward = lambda *args: (found.append(1), weigh(*args))[1]
    return found


def test_the_density_is_that_of_the_noise_whatever_the_chunk() -> None:
    policy, shown = steered(DIFFUSION), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.7)
    features, chosen = found.choices[:, 0].split([policy.width, policy.actor.dims], -1)
    mean, spread = policy.actor.terms(features)
    normal = torch.distributions.Normal(mean, 0.7 * spread)
    expected = (normal.log_prob(chosen) - torch.log(1 - chosen.tanh().square())).sum(-1)
    torch.testing.assert_close(found.logprobs_nKC[:, 0, 0], expected, atol=1e-4, rtol=1e-4)
    _, tokens = policy.unsampled(found.choices)
    for ratio in ("token", "chunk"):
        none = torch.zeros(N)
        calls = ActionMicroBatch(
            observation=shown,
            choices=found.choices,
            slots=1,
            tokens_S=tokens,
            valid_SK=torch.tensor([[True, True], [True, False], [True, True]]),
            ratio=ratio,
            sampler_logprobs_L=none,
            advantages_L=none,
            rollout_L=none.long(),
            place_L=none.long(),
            off_policy_L=none.bool(),
        )
        torch.testing.assert_close(policy.outputs(calls, 0.7).logprobs_L, expected, atol=1e-4, rtol=1e-4)


def test_a_saved_one_is_the_same_and_its_base_is_not_saved_with_it(tmp_path: Path) -> None:
    policy, shown = steered(DIFFUSION, reach=0.5, each=True, noise=0.2), seen()
    policy.save(tmp_path)
    again = saved_policy(tmp_path, PolicyConfig(model="mlp"), "cpu")
    assert isinstance(again, Steered) and (again.own.reach, again.own.each, again.chunk) == (0.5, True, CHUNK)
    one, two = (p.act(shown, SEEDS, CALLS, 1.0) for p in (policy, again))
    assert torch.equal(one.actions_nKA, two.actions_nKA) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.safetensors")) < 20_000


@pytest.mark.parametrize("kind", mostly_slow(BASES, everyday=1))
def test_a_plan_of_it_is_the_base_and_the_perceptron(kind: str) -> None:
    options = {"base": BASES[kind], "state": STATE, "hidden": [16]}
    config = PolicyConfig(kind="steered", model="mlp", options=options, attn_implementation="eager")
    policy = make_policy(config, device="cpu", seed=0)
    planned = Steered.planned(config)
    assert (planned.width, planned.chunk) == (policy.width, policy.chunk)
    assert planned.noise_shape is None and planned.frozen is not None
    assert {name: p.shape for name, p in planned.model.named_parameters()} == {name: p.shape for name, p in policy.parameters()}
    ours = sum(2 * N * p.numel() for name, p in policy.parameters() if name.endswith("weight"))
    if kind == "vla":  # computed from sizes
        assert counted(lambda: planned.call(N, 0)) == ours
        return
    base = planned_base(BASES[kind], config)
    acting = counted(lambda: base.call(N, 9))
    assert acting > 0 and counted(lambda: planned.call(N, 9)) == acting + ours
    if not base.reads_text:  # else as many tokens would have to be told
        assert counted(lambda: policy.act(seen(), SEEDS, CALLS, 0.0)) == acting + ours


def counted(call: Callable[[], Any]) -> int:
    """Operations of matrix products."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def test_another_policy_may_stand_on_one_that_was_not_saved_too() -> None:
    given = {"dims": DIMS, "base": DIFFUSION, "hidden": [8]}
    policy = make_policy(PolicyConfig(kind="squashed", model="mlp", options=given), device="cpu", seed=0)
    assert isinstance(policy, Squashed) and policy.width == policy.base.width and not policy.reads_text
    assert steered(FLOW).reads_text, "the base reads the instruction"
    assert Squashed.planned(PolicyConfig(kind="squashed", model="mlp", options=given)).width == policy.width


@pytest.mark.parametrize(
    "options, said",
    [
        ({"base": ""}, "base is empty"),
        ({"base": 3}, "must be a text or a table"),
        ({"base": "nowhere"}, "base: 'nowhere' is no folder here: "),
        ({"base": {"kind": "pi0"}}, "is no policy: give a folder with one, or kind, model and options"),
        ({"base": {**DIFFUSION, "device": "cpu"}}, "is no policy: give a folder with one, or kind, model and options"),
        ({"base": {"kind": "pi", "model": "tiny:pi0"}}, "no policy 'pi'. Did you mean 'pi0'?"),
        ({"base": {**DIFFUSION, "options": {"steps": "many"}}}, "base.options.steps = 'many' must be a whole number"),
        ({"base": {**FLOW, "options": {"head": "normal"}}}, "doesn't act by a flow from noise"),
        ({"base": {"kind": "vlm", "model": "tiny:qwen2_5_vl"}}, "doesn't act in simulators"),
        ({"base": {"kind": "pi0", "model": "nowhere/at/all"}}, "policy.options.base.model: 'nowhere/at/all'"),
        ({"reach": 0}, "reach = 0 must be"),
        ({"hidden": []}, "must be a list of widths"),
        ({"residual": 0.1}, "residual"),
    ],
)
def test_what_it_can_not_be_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        steered(options.pop("base", DIFFUSION), **options)


@pytest.mark.parametrize(
    "above",
    [
        {"kind": "steered", "model": "mlp", "options": {"state": STATE}},
        {"kind": "squashed", "model": "mlp", "options": {"dims": DIMS}},
        {"kind": "squashed", "model": "mlp", "options": {"dims": DIMS, "residual": 0.1}},
        {"kind": "robotics/residual", "model": "mlp", "options": {"state": STATE}},
    ],
)
def test_an_option_of_the_base_is_named_as_such_where_it_acts(above: dict[str, Any]) -> None:
    """It was said of the option of the policy above, which may be right."""
    base = {**DIFFUSION, "options": {**DIFFUSION["options"], "state": STATE + 1, "chunk": 1}}
    policy = make_policy(
        PolicyConfig(**above | {"options": {"base": base, "hidden": [16], **above["options"]}}), device="cpu", seed=1
    )
    with pytest.raises(
        UserError, match=rf"policy\.options\.base\.options\.state = {STATE + 1}, and the simulator shows a state of"
    ):
        policy.act(seen(), SEEDS, CALLS, 1.0)


def test_the_last_state_of_an_episode_is_read_with_what_was_asked_for_then() -> None:
    policy, shown = steered(FLOW), seen()
    found, some = policy.act(shown, SEEDS, CALLS, 1.0), torch.zeros(N, CHUNK)
    track = TrajectoryData(
        images={name: torch.cat([rows, rows[:1]]) for name, rows in shown.images.items()},
        state=torch.cat([shown.state, shown.state[:1]]),
        instruction=shown.instructions[0],
        instructions=(*shown.instructions, "put it down"),
        choices=found.choices,
        logprobs_TKC=found.logprobs_nKC,
        valid_TK=some.bool(),
        rewards_TK=some,
    )
    first = shown.rows(torch.tensor([0]))
    expected = policy.remembered(replace(first, instructions=["put it down"]))
    features, _ = policy.transitions(track)
    torch.testing.assert_close(features[-1:], expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(features[-1:], policy.remembered(first), atol=1e-3)


def test_it_learns_from_nobody_else() -> None:
    policy, shown = steered(DIFFUSION), seen()
    with pytest.raises(UserError, match="train its base by imitation"):
        policy.choices_of(torch.zeros(N, CHUNK, DIMS), shown)
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    some = torch.zeros(N, CHUNK)
    track = TrajectoryData(
        images={},
        state=torch.cat([shown.state, shown.state[:1]]),
        instruction="",
        choices=found.choices,
        logprobs_TKC=found.logprobs_nKC,
        valid_TK=some.bool(),
        rewards_TK=some,
        corrected_TK=torch.tensor([False, True, False])[:, None],
    )
    with pytest.raises(UserError, match="in which another acted"):
        policy.transitions(track)
    features, actions = policy.transitions(replace(track, corrected_TK=torch.zeros(N, 1, dtype=torch.bool)))
    assert features.shape == (N + 1, policy.width)
    assert torch.equal(actions, found.choices[:, 0, policy.width :].tanh())
