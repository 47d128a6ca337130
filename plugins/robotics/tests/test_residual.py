"""A correction of a frozen policy: what the base plans, when it looks, and what is learned from."""

import pytest
import torch
from mmrl_robotics.residual import Residual
from mmrl_robotics.small import Small

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import follow
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import CriticConfig, PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.critic import Critic
from mmrl.policies.load import make_policy

STATE, DIMS = 3, 2


def seen(rows: torch.Tensor) -> Observation:
    return Observation(images={}, state=rows, instructions=["go"] * len(rows))


def draw(seeds: list[int], calls: list[int]) -> CallRandomness:
    return CallRandomness(seeds_n=torch.tensor(seeds), calls_n=torch.tensor(calls))


@pytest.fixture(params=[1, 3])
def residual(request, tmp_path) -> Residual:
    """Over a base with chunks of 1 or 3."""
    base = Small(PolicyConfig(model="mlp"), dims=DIMS, state=STATE, chunk=request.param, hidden=[16], seed=5)
    with torch.no_grad():
        for parameter in base.model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    base.save(tmp_path)
    return Residual(PolicyConfig(model="mlp"), base=str(tmp_path), state=STATE, hidden=[16], seed=7, scale=0.5)


def test_the_base_carries_out_its_chunks_whatever_stands_beside_it(residual):
    """Three episodes that began at different calls, in any order of rows: each follows the plan of its last look."""
    chunk, states = residual.base.chunk, torch.randn(8, 3, STATE, generator=torch.Generator().manual_seed(2))
    plans: dict[int, torch.Tensor] = {}
    for t in range(8):
        envs = [e for e in ([0, 1, 2], [2, 0, 1])[t % 2] if t >= e]  # environment e begins at call e
        seeds, calls = [100 + e for e in envs], [t - e for e in envs]
        actions, choices, _, _ = residual.choose(seen(states[t, envs]), draw(seeds, calls), 1.0)
        for row, (e, call) in enumerate(zip(envs, calls, strict=True)):
            if call % chunk == 0:
                alone = residual.base.choose(seen(states[t, [e]]), draw([100 + e], [call]), 0.0)[0].clamp(-1, 1)
                plans[e] = alone[0]
            expected = plans[e][call % chunk]
            torch.testing.assert_close(choices[row, 0, DIMS:], expected)
            moved = choices[row, 0, :DIMS].clamp(-1, 1)
            torch.testing.assert_close(actions[row, 0], (expected + 0.5 * moved).clamp(-1, 1))


def test_a_plan_for_another_instruction_is_dropped(tmp_path):
    """One that sees the state alone is asked anew at calls 2 and 5, as if it played alone, and not at 3, where a chunk that
    began with the episode would end. An episode that is played again begins with a new plan."""
    Small(PolicyConfig(model="mlp"), dims=DIMS, state=STATE, chunk=3, hidden=[16], seed=5).save(tmp_path)
    residual = Residual(PolicyConfig(model="mlp"), base=str(tmp_path), state=STATE, hidden=[16], seed=7)
    states = torch.randn(6, 1, STATE, generator=torch.Generator().manual_seed(2))
    for again in (0.0, 1.0):
        planned = [residual.base.choose(seen(states[t] + again), draw([9], [t]), 0.0)[0][0].clamp(-1, 1) for t in range(6)]
        for t, begin in enumerate([0, 0, 2, 2, 2, 5]):
            shown = Observation(images={}, state=states[t] + again, instructions=["pick" if t < 2 else "place"])
            choices = residual.choose(shown, draw([9], [t]), 1.0)[1]
            torch.testing.assert_close(choices[0, 0, DIMS:], planned[begin][t - begin])


def test_rows_of_one_seed_have_plans_of_their_own(residual):
    """Such as those of a memory, whose calls have no random numbers."""
    rows = torch.randn(3, STATE)
    found = residual.choose(seen(rows), draw([0, 0, 0], [0, 0, 4]), 1.0)[1][:, 0, DIMS:]
    torch.testing.assert_close(found, residual.base.choose(seen(rows), draw([0] * 3, [0] * 3), 0.0)[0][:, 0].clamp(-1, 1))


def test_at_first_nothing_is_corrected(residual):
    rows = torch.randn(4, STATE)
    actions = residual.choose(seen(rows), draw([1, 2, 3, 4], [0] * 4), 0.0)[0]
    torch.testing.assert_close(actions, residual.base.choose(seen(rows), draw([1, 2, 3, 4], [0] * 4), 0.0)[0][:, :1].clamp(-1, 1))


def test_what_is_learned_from_is_what_was_drawn(residual):
    """Log-probabilities and the states that a critic reads, without asking the base again."""
    with torch.no_grad():
        residual.head.mean[-1].weight.normal_(generator=torch.Generator().manual_seed(3))
    rows = torch.randn(5, STATE, generator=torch.Generator().manual_seed(4))
    start = draw([1, 2, 3, 4, 5], [0] * 5)
    residual.choose(seen(rows.flip(0)), start, 1.0)
    later = draw([1, 2, 3, 4, 5], [1] * 5)  # in mid-chunk, where the base has chunks
    _, choices, logprobs, states = residual.choose(seen(rows), later, 0.7)
    calls = ActionMicroBatch(
        observation=seen(rows),
        choices=choices,
        slots=1,
        valid_SK=torch.ones(5, 1, dtype=torch.bool),
        ratio="action",
        sampler_logprobs_L=logprobs.flatten(),
        advantages_L=torch.zeros(5),
        rollout_L=torch.arange(5),
        place_L=torch.zeros(5, dtype=torch.int64),
        off_policy_L=torch.zeros(5, dtype=torch.bool),
    )
    asked = residual.base.choose
    residual.base.choose = None  # type: ignore[method-assign]
    try:
        torch.testing.assert_close(residual.scored(calls, 0.7)[0], logprobs)
        torch.testing.assert_close(residual.states(calls), states)
    finally:
        residual.base.choose = asked  # type: ignore[method-assign]


def test_the_value_of_a_state_is_that_of_the_state_with_the_planned_action(residual):
    """As when the next call comes, so that a cut-off is bootstrapped with what `act` would have said there."""
    critic = Critic(residual, CriticConfig(hidden_sizes=[8]), seed=0)
    with torch.no_grad():
        for parameter in critic.head.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(6))
    before, rows = torch.randn(2, 4, STATE, generator=torch.Generator().manual_seed(5))
    seeds_n, calls_n = torch.arange(4), torch.ones(4, dtype=torch.int64)
    residual.act(seen(before), seeds_n, calls_n - 1, 1.0)
    said = residual.values(seen(rows), seeds_n, calls_n, critic)
    torch.testing.assert_close(said, residual.act(seen(rows), seeds_n, calls_n, 1.0, critic).values_nU)
    if residual.base.chunk > 1:  # a new look would plan something else
        other = residual.values(seen(rows), seeds_n + 50, calls_n * 0, critic)
        assert (said - other).abs().max() > 1e-3


# -- what it sees through, and what it corrects -------------------------------------------------------------------------------


def shown(seed=0, n=4) -> Observation:
    draws = torch.Generator().manual_seed(seed)
    images = {name: torch.randint(0, 256, (n, 40, 40, 3), dtype=torch.uint8, generator=draws) for name in ("front", "wrist")}
    return Observation(images=images, state=torch.randn(n, STATE, generator=draws), instructions=["push it", "go", "x", "go"][:n])


def without(given: Observation, camera: str) -> Observation:
    images = {**given.images, camera: given.images[camera] * 0}
    return Observation(images=images, state=given.state, instructions=given.instructions)


def test_a_correction_sees_through_its_own_camera_and_the_base_through_another(tmp_path):
    base = Small(PolicyConfig(model="cnn"), dims=DIMS, size=40, camera="front", hidden=[16], seed=5)
    with torch.no_grad():
        base.head.mean[-1].weight.normal_(generator=torch.Generator().manual_seed(1))
    base.save(tmp_path)
    policy = Residual(PolicyConfig(model="cnn"), base=str(tmp_path), size=40, camera="wrist", hidden=[16], seed=7, scale=0.5)
    with torch.no_grad():
        policy.head.mean[-1].weight.normal_(generator=torch.Generator().manual_seed(2))
    start, whole = draw([1, 2, 3, 4], [0] * 4), shown()
    actions, choices, _, _ = policy.choose(whole, start, 0.0)
    assert actions.shape == (4, 1, DIMS) and choices.shape == (4, 1, 2 * DIMS)
    moved, planned = choices.split(DIMS, -1)
    blind, unmoved = policy.choose(without(whole, "wrist"), start, 0.0)[1].split(DIMS, -1)
    assert torch.equal(unmoved, planned) and (blind - moved).abs().amax((1, 2)).min() > 1e-4
    other = policy.choose(without(whole, "front"), start, 0.0)[1][..., DIMS:]
    assert (other - planned).abs().amax((1, 2)).min() > 1e-4


def test_a_base_that_looks_back_is_shown_earlier_pictures(tmp_path):
    """Those of its own calls, so that it must be called at each step."""
    for chunk in (1, 2):
        options = {"dims": DIMS, "chunk": chunk, "history": 2, "head": "normal"}
        model = PolicyConfig(model="tiny:qwen3_vl:hidden=32,layers=1", kind="vla", options=options)
        make_policy(model, device="cpu", seed=3).save(tmp_path / str(chunk))
    policy = Residual(PolicyConfig(model="mlp"), base=str(tmp_path / "1"), state=STATE, hidden=[16], seed=7)
    now, numbers = shown(n=2), torch.arange(2)
    there = follow(now, follow(shown(1, n=2), None, numbers < 0, policy.history), numbers < 0, policy.history)
    wanted = policy.base.act(there, numbers, numbers, 0.0).actions_nKA
    assert policy.history == 2 and torch.equal(policy.act(there, numbers, numbers, 0.0).actions_nKA, wanted)
    refused = {"base": str(tmp_path / "2"), "state": STATE, "hidden": [16]}
    said = r"^policy\.options\.base: the base looks at earlier calls and chooses 2 actions in each"
    with pytest.raises(UserError, match=said):
        Residual(PolicyConfig(model="mlp"), **refused)
    with pytest.raises(UserError, match=said):
        Residual.planned(PolicyConfig(kind="robotics/residual", model="mlp", options=refused))
    Residual.planned(PolicyConfig(kind="robotics/residual", model="mlp", options={**refused, "base": str(tmp_path / "1")}))


DIFFUSION = {
    "kind": "diffusion",
    "model": "tiny:diffusion:width=8,horizon=4,moments=1,times=4,pictures=0",
    "options": {"dims": DIMS, "chunk": 2, "state": STATE},
}


def corrected(base, **config):
    options = {"base": base, "state": STATE, "hidden": [16]}
    return make_policy(PolicyConfig(kind="robotics/residual", model="mlp", options=options, **config), device="cpu", seed=7)


def test_a_base_that_was_not_saved_is_the_one_that_was(tmp_path):
    """Keys of `[policy]` that the base doesn't read are for others."""
    make_policy(PolicyConfig(**DIFFUSION), device="cpu").save(tmp_path / "base")
    one, two = (corrected(base, attn_implementation="eager") for base in (DIFFUSION, str(tmp_path / "base")))
    seeds_n, calls_n = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    found = one.act(shown(), seeds_n, calls_n, 1.0)
    assert torch.equal(found.actions_nKA, two.act(shown(), seeds_n, calls_n, 1.0).actions_nKA)
    one.save(tmp_path / "saved")
    again = make_policy(PolicyConfig(kind="robotics/residual", model=str(tmp_path / "saved")), device="cpu")
    assert again.where == DIFFUSION and torch.equal(again.act(shown(), seeds_n, calls_n, 1.0).actions_nKA, found.actions_nKA)


def test_a_correction_is_corrected_too(tmp_path):
    """At first by nothing."""
    base = corrected(DIFFUSION)
    with torch.no_grad():
        base.head.mean[-1].weight.normal_(generator=torch.Generator().manual_seed(3))
    base.save(tmp_path)
    seeds_n, calls_n = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    found = corrected(str(tmp_path)).act(shown(), seeds_n, calls_n, 0.0).actions_nKA
    torch.testing.assert_close(found, base.act(shown(), seeds_n, calls_n, 0.0).actions_nKA)
    assert (found - corrected(DIFFUSION).act(shown(), seeds_n, calls_n, 0.0).actions_nKA).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("nowhere", "policy.options.base: 'nowhere' is no folder here: "),
        ({"kind": "pi0"}, "policy.options.base: {'kind': 'pi0'} is no policy: give a folder with one, or kind, "),
        ({"kind": "vlm", "model": "tiny:qwen2_5_vl"}, "policy.options.base: vlm 'tiny:qwen2_5_vl' doesn't act in simulators"),
        ({"kind": "act", "model": "tiny:act:width=x"}, "policy.options.base.model: "),
    ],
)
def test_what_can_not_be_corrected_is_said_without_loading_anything(base, said, tmp_path):
    with pytest.raises(UserError) as error:
        Residual.check(PolicyConfig(kind="robotics/residual", model="mlp", options={"base": base}))
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["pi0", "pi05", "pi0_fast", "smolvla", "gr00t", "vla"])
def test_large_policies_are_corrected_like_small_ones(kind, tmp_path):
    """A saved pi0, GR00T or VLA with chunks: at first its very actions, call by call."""
    model, options = {
        "pi0": ("tiny:pi0:hidden=32,layers=1,chunk=5", {"chunk": 2, "state": STATE, "cameras": ["wrist"], "steps": 3}),
        "gr00t": ("tiny:gr00t:hidden=32,layers=1,chunk=5", {"chunk": 2, "state": STATE, "cameras": ["wrist"], "steps": 3}),
        "pi05": ("tiny:pi05:hidden=32,layers=1,chunk=5", {"chunk": 2, "state": STATE, "cameras": ["wrist"], "steps": 3}),
        "pi0_fast": ("tiny:pi0_fast:hidden=32,layers=1,chunk=5", {"chunk": 2, "state": STATE, "action_tokens": 12}),
        "smolvla": ("tiny:smolvla:hidden=32,layers=2,chunk=5", {"chunk": 2, "state": STATE, "cameras": ["wrist"]}),
        "vla": ("tiny:qwen3_vl:hidden=32,layers=1", {"chunk": 2, "cameras": ["wrist"], "head": "normal"}),
    }[kind]
    base = make_policy(PolicyConfig(model=model, kind=kind, options={"dims": DIMS, **options}), device="cpu", seed=3)
    base.save(tmp_path / "base")
    policy = Residual(PolicyConfig(model="mlp"), base=str(tmp_path / "base"), state=STATE, hidden=[16], seed=7)
    seeds_n, calls_n = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    wanted = base.act(shown(), seeds_n, calls_n, 0.0).actions_nKA
    read: list[int] = []
    sees = next(m for n, m in policy.base.model.named_modules() if n.endswith("patch_embed") or isinstance(m, torch.nn.Conv2d))
    weigh = sees.forward
    sees.forward = lambda *args: (read.append(1), weigh(*args))[1]
    for call in range(2):
        found = policy.act(shown(call), seeds_n, calls_n + call, 0.0).actions_nKA
        torch.testing.assert_close(found, wanted[:, call : call + 1], atol=1e-5, rtol=1e-5)
    assert len(read) == 1, "it looks once for both of its actions"
    assert not any(name.startswith("base") for name, _ in policy.parameters())
    copied = policy.clone()
    assert copied.base is policy.base and copied.model is not policy.model, "nobody changes the base: it isn't copied"
    policy.save(tmp_path / "saved")
    again = Residual(PolicyConfig(model=str(tmp_path / "saved")), base=str(tmp_path / "base"), state=STATE, hidden=[16])
    assert torch.equal(
        again.act(shown(), seeds_n, calls_n, 1.0).actions_nKA, policy.act(shown(), seeds_n, calls_n, 1.0).actions_nKA
    )
