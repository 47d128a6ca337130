"""Episodes in simulators: what is played, paid, cut off, refilled, lost and demonstrated, against a slow reference."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mmrl_robotics.small import Small

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.api.types import Status
from mmrl.config.sections import CriticConfig, PolicyConfig, SimulateConfig
from mmrl.policies.critic import Critic
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators import lockstep
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.twin import TwinCollector
from mmrl.run_folder.metrics import REDUCTIONS

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
SAMPLING = SamplingParams(max_tokens=1, temperature=1.0, seed=5)


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([DIAL]))


def policy(chunk=1, **options):
    config = PolicyConfig(model="mlp", kind="robotics/small")
    return Small(config, dims=2, state=2, hidden=[8], chunk=chunk, seed=3, **options)


def collector(chunk=1, environments=4, lanes=1, policy_=None, **options):
    task = plugins.registry().make_task("dial/turn", options)
    config = SimulateConfig(num_envs=environments, lanes=lanes)
    return SimulatorCollector(policy_ or policy(chunk), {"dial/turn": task}, config)


def prompts(n, split="train", **meta):
    made = plugins.registry().make_task("dial/turn", {"n": n}).prompts(split, 0)
    return [replace(p, task="dial/turn", meta={**p.meta, **meta}) for p in made]


def collected(made, asked, group_size=1, sampling=SAMPLING):
    found = made.collect(asked, made.encode(asked), group_size, sampling)
    made.close()
    return found


def test_a_prompt_that_comes_again_gives_further_episodes():
    first, second = prompts(2)  # a step of more prompts than a task has starts held each episode several times
    asked = [([first, second, first], (0, 0, 1)), ([first], (2,))]  # by two learners
    parts = [collected(collector(), own, 2, replace(SAMPLING, earlier=earlier)) for own, earlier in asked]
    played = [r.data.choices for part in parts for r in part]
    group = [r.data.choices for r in collected(collector(), [first], 6)]
    assert all(map(torch.equal, [*played[:2], *played[4:]], group)), "as the members of one larger group"
    assert len({choices.numpy().tobytes() for choices in played}) == 8


def replayed(rollout, **options):
    """The same actions in an environment of its own, step by step: (observations, rewards of parts, success, how it ended)."""
    from dial import Dial

    simulator = Dial(num_envs=1)
    seen = [simulator.reset(torch.tensor([rollout.prompt.seed]), None, rollout.prompt.meta.get("variant"))]
    track = rollout.data
    gaps, successes, ended = [], [], False
    for call in range(len(track.choices)):
        for k in range(track.valid_TK.shape[1]):
            if ended:
                assert not track.valid_TK[call, k], "nothing is carried out after the end"
                continue
            assert track.valid_TK[call, k]
            found = simulator.step(track.choices[call, k][None].clamp(-1, 1), torch.tensor([True]))
            gaps.append(-float(found.reward_N[0]))
            successes.append(bool(found.success_N[0]))
            ended = bool(found.terminated_N[0]) or successes[-1] or len(gaps) == options.get("limit", 6)
            last = found.observation
        seen.append(last)
    assert ended, "an episode that is over was cut off or ended"
    return seen, gaps, successes, bool(found.terminated_N[0])


def test_instructions_that_differ_are_told_where_a_policy_reads_none(monkeypatch, recwarn):
    from dial import Dial

    collector().ready()
    assert not [w for w in recwarn if "instructions that differ" in str(w.message)], "of one instruction nothing is said"
    plain = Dial.observe
    monkeypatch.setattr(
        Dial, "observe", lambda self, ids: replace(plain(self, ids), instructions=[f"turn by {n}" for n in ids.tolist()])
    )
    with pytest.warns(UserWarning, match="task 'dial/turn' gives instructions that differ, such as 'turn by 0' and 'turn by 1'"):
        collector().ready()


@pytest.mark.parametrize("key", ["with_expert", "interventions"])
def test_an_expert_gives_one_action_at_a_time(key):
    """Also where the run file leaves the chunk to the checkpoint."""
    made = collector(chunk=2)
    setattr(made, key, True)
    with pytest.raises(UserError, match=r"by its files the policy carries out 2 in each call: set chunk = 1 in policy\.options,"):
        collected(made, prompts(1))


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("lanes", [1, 3])
def test_an_episode_is_what_its_actions_make_of_its_start(chunk, lanes):
    """Whatever else went on in its lane: 20 episodes in 5 environments."""
    found = collected(collector(chunk, environments=5, lanes=lanes, reward="own"), prompts(20))
    assert [r.prompt.id for r in found] == [f"train-{i}" for i in range(20)] and [r.group for r in found] == list(range(20))
    statuses = set()
    for rollout in found:
        track = rollout.data
        seen, gaps, successes, thrown = replayed(rollout)
        assert torch.equal(track.state, torch.cat([s.state for s in seen]))
        assert torch.equal(track.images["front"], torch.cat([s.images["front"] for s in seen]))
        assert track.rewards_TK[track.valid_TK].tolist() == pytest.approx([-g for g in gaps])
        assert not track.rewards_TK[~track.valid_TK].any()
        status = Status.FINISHED if thrown or successes[-1] else Status.TRUNCATED_TIME
        assert rollout.status is status
        assert rollout.outcome == pytest.approx(
            {
                "success": float(any(successes)),
                "success_at_end": float(successes[-1]),
                "return": -sum(gaps),
                "steps": len(gaps),
                "near": max(max(0.0, 1 - g) for g in gaps),
            },
            abs=1e-5,
        )
        assert rollout.length == len(gaps) and rollout.environment_reward == pytest.approx(-sum(gaps))
        statuses.add(status)
    assert statuses == {Status.FINISHED, Status.TRUNCATED_TIME}, "both were seen"


def test_what_is_sampled_depends_on_neither_company_nor_place():
    alone = collected(collector(environments=1), prompts(6))
    many = collected(collector(environments=7, lanes=2), prompts(6))
    for a, b in zip(alone, many, strict=True):
        torch.testing.assert_close(a.data.choices, b.data.choices)
        torch.testing.assert_close(a.data.logprobs_TKC, b.data.logprobs_TKC)
    other = collected(collector(environments=7), prompts(6), sampling=replace(SAMPLING, seed=6))
    assert not torch.allclose(other[0].data.choices[0], many[0].data.choices[0])
    again = collected(collector(environments=7, lanes=2), prompts(6))
    assert all(torch.equal(a.data.choices, b.data.choices) for a, b in zip(again, many, strict=True)), "bit for bit"


def test_a_group_begins_in_one_state_and_goes_different_ways():
    found = collected(collector(environments=6), prompts(3), group_size=4)
    for g in range(3):
        group = found[4 * g : 4 * g + 4]
        assert {r.group for r in group} == {g}
        assert all(torch.equal(r.data.state[0], group[0].data.state[0]) for r in group)
        assert len({tuple(r.data.choices[0].flatten().tolist()) for r in group}) == 4


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("abilities", [{"partial-reset", "snapshot"}, {"snapshot"}])
def test_a_group_begins_in_one_state_where_seeds_are_not_each_environments_own(monkeypatch, abilities, lanes):
    """Then the first one's start is kept and restored, by the lane that knows it."""
    import dial

    spec = replace(dial.SPEC, capabilities=frozenset(abilities))
    reset, draws = dial.Dial.reset, itertools.count()

    def drawn_for_all(self, seeds_n, env_ids_n=None, variant=None):
        return reset(self, seeds_n + 1000 * next(draws), env_ids_n, variant)

    monkeypatch.setattr(dial.Dial, "reset", drawn_for_all)
    made = collector(environments=6, lanes=lanes)
    for lane in made.lanes("dial/turn"):
        lane.spec = spec
    found = collected(made, prompts(2), group_size=4)
    starts = [tuple(r.data.state[0].tolist()) for r in found]
    assert len(set(starts[:4])) == 1 and len(set(starts[4:])) == 1 and starts[0] != starts[4]


@pytest.mark.parametrize("environments", [8, 64])
def test_the_calls_with_which_groups_begin_do_not_grow_with_the_environments(monkeypatch, environments):
    """One reset for the new starts and, where the simulator joins states, one restore for all others of their groups."""
    import dial

    def join(self, states):
        return {name: torch.cat([state[name] for state in states]) for name in states[0]}

    monkeypatch.setattr(dial.Dial, "join", join, raising=False)
    monkeypatch.setattr(lockstep, "make_lane", planted := counted(lockstep.make_lane))
    made = collector(environments=environments, never=True)
    found = collected(made, prompts(environments // 4), group_size=4)
    assert planted.calls == [("reset", environments // 4), ("restore", 3 * environments // 4)]
    starts = [tuple(r.data.state[0].tolist()) for r in found]
    assert len(set(starts)) == environments // 4 and all(len(set(starts[n : n + 4])) == 1 for n in range(0, environments, 4))


def test_once_trajectories_are_made_a_lane_holds_no_second_copy_of_them():
    made = collector(environments=2)
    found = collected(made, prompts(2))
    (lane,) = made.lanes("dial/turn")
    assert found and all(len(r.data.choices) for r in found) and not lane.calls


def counted(make):
    """`make_lane` whose seeds don't fix starts; `calls` are the resets and restores, each with its number of environments."""

    def planted(*arguments):
        lane = make(*arguments)
        lane.spec = replace(lane.spec, capabilities=frozenset({"partial-reset", "snapshot"}))
        reset, restore = lane.simulator.reset, lane.simulator.restore
        lane.simulator.reset = lambda seeds, *rest: planted.calls.append(("reset", len(seeds))) or reset(seeds, *rest)
        lane.simulator.restore = lambda ids, state: planted.calls.append(("restore", len(ids))) or restore(ids, state)
        return lane

    planted.calls = []
    return planted


def test_without_partial_resets_all_wait_for_the_last(monkeypatch):
    import dial

    made = collector(environments=4)
    lane = made.lanes("dial/turn")[0]
    lane.spec = replace(dial.SPEC, capabilities=frozenset({"per-env-seed"}))
    found = collected(made, prompts(10))
    assert len(found) == 10 and all(replayed(r) for r in found)
    assert lane.simulator.resets == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("potential_based", [True, False])
def test_stages_are_paid_by_their_difference_or_as_they_are(potential_based):
    made = collector(environments=3, reward="stages", stages={"near": 0.5, "success": 2.0}, potential_based=potential_based)
    for rollout in collected(made, prompts(8)):
        _, gaps, successes, _ = replayed(rollout)
        potential = [0.5 * max(0.0, 1 - g) + 2.0 * s for g, s in zip(gaps, successes, strict=True)]
        before = [0.0, *potential[:-1]]
        wanted = [p - b for p, b in zip(potential, before, strict=True)] if potential_based else potential
        assert rollout.data.rewards_TK[rollout.data.valid_TK].tolist() == pytest.approx(wanted, abs=1e-5)
        if potential_based:
            assert rollout.environment_reward == pytest.approx(potential[-1], abs=1e-5)


def test_success_ends_an_episode_or_may_be_lost_again():
    go_on = collected(collector(environments=3, terminate_on_success=False), prompts(30))
    ends = collected(collector(environments=3), prompts(30))
    assert all(r.outcome["steps"] == 6 or r.status is Status.FINISHED for r in go_on)
    lost = [r for r in go_on if r.outcome["success"] and not r.outcome["success_at_end"]]
    assert lost and not [r for r in ends if r.outcome["success"] and not r.outcome["success_at_end"]]
    assert [r.outcome["success"] for r in go_on] == [r.outcome["success"] for r in ends], "until then they are the same"


def test_the_time_limit_is_the_tasks():
    found = collected(collector(max_steps=2, never=True), prompts(12))
    assert {r.outcome["steps"] for r in found if r.status is Status.TRUNCATED_TIME} == {2}


def test_a_variant_is_that_of_the_prompt():
    far, plain = prompts(40, variant="far"), prompts(40)
    found = collected(collector(environments=8), [p for pair in zip(far, plain, strict=True) for p in pair])
    marks = torch.stack([r.data.state[0, 1] for r in found])
    torch.testing.assert_close(marks[::2] * 0.8, marks[1::2])


@pytest.mark.parametrize("abilities", [{"per-env-seed"}, {"snapshot"}])
def test_episodes_of_several_variants_where_all_are_reset_at_once(abilities):
    """A reset for one variant may not move what has begun in another."""
    import dial

    far, plain = prompts(6, variant="far"), prompts(6)
    made = collector(environments=4)
    made.lanes("dial/turn")[0].spec = replace(dial.SPEC, capabilities=frozenset(abilities))
    found = collected(made, [p for pair in zip(far, plain, strict=True) for p in pair])
    marks = torch.stack([r.data.state[0, 1] for r in found])
    torch.testing.assert_close(marks[::2] * 0.8, marks[1::2])
    assert all(replayed(r) for r in found)


def test_tasks_with_the_same_simulation_share_their_environments():
    """As a task that is evaluated in many variants has; what is played is the same as apart."""
    make = plugins.registry().make_task
    tasks = {"one": make("dial/turn", {}), "two": make("dial/turn", {}), "other": make("dial/turn", {"reward": "own"})}
    made = SimulatorCollector(policy(), tasks, SimulateConfig(num_envs=4, lanes=2))
    one, two, other = made.lanes("one"), made.lanes("two"), made.lanes("other")
    assert one is two and other is not one
    asked = [replace(p, task=task) for task in tasks for p in prompts(5)]
    found = made.collect(asked, made.encode(asked), 2, SAMPLING)
    figures = made.metrics()
    assert figures["simulator/steps"] == sum(r.outcome["steps"] for r in found), "each is counted once"
    assert figures.keys() < REDUCTIONS.keys(), "it is known how they add up over learners"
    closed = []
    for lane in {*one, *other}:
        lane.simulator.close = lambda lane=lane: closed.append(lane)
    made.close()
    assert len(closed) == 4 and len(set(closed)) == 4, "and closed once"
    for task, label in zip(tasks.values(), tasks, strict=True):
        alone = SimulatorCollector(policy(), {label: task}, SimulateConfig(num_envs=4, lanes=2))
        own = [p for p in asked if p.task == label]
        for a, b in zip(collected(alone, own, 2), [r for r in found if r.prompt.task == label], strict=True):
            torch.testing.assert_close(a.data.choices, b.data.choices)
            assert a.outcome == pytest.approx(b.outcome)


def test_an_environment_that_breaks_has_its_episode_begun_again_and_counted():
    broken = prompts(5)[2].seed
    made = collector(environments=2, breaks=broken, never=True)
    found = made.collect(prompts(5), [None] * 5, 1, SAMPLING)
    assert [r.status is Status.ENVIRONMENT_ERROR for r in found] == [False, False, True, False, False]
    assert found[2].data is None and not found[2].outcome and found[2].length == 0
    assert made.metrics()["simulator/lost"] == 3, "it was tried three times"
    assert made.metrics()["simulator/lost"] == 0
    made.close()


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_an_episode_whose_state_is_not_finite_is_begun_again_and_counted(monkeypatch, odd):
    """As where a simulation has become unstable; what others play and are paid stays the same."""
    from dial import Dial

    expected = collected(collector(reward="own"), prompts(4))
    step, count = Dial.step, itertools.count()

    def unstable(self, actions_NA, active_N):
        found = step(self, actions_NA, active_N)
        if next(count) != 1:
            return found
        state, reward_N = found.observation.state.clone(), found.reward_N.clone()
        state[2, 1], reward_N[2] = odd, torch.nan
        return replace(found, observation=replace(found.observation, state=state), reward_N=reward_N)

    monkeypatch.setattr(Dial, "step", unstable)
    made = collector(reward="own")
    with pytest.warns(UserWarning, match=r"environment 2 was lost \(loss number 1\): number 1 of its state is (nan|inf)"):
        found = made.collect(prompts(4), [None] * 4, 1, SAMPLING)
    assert made.metrics()["simulator/lost"] == 1
    assert [r.outcome for r in found] == [r.outcome for r in expected]
    assert all(torch.equal(a.data.choices, b.data.choices) for a, b in zip(found, expected, strict=True))
    made.close()


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("bootstrap", ["truncated", "always"])
def test_the_critic_values_what_is_seen_and_the_states_that_are_bootstrapped(bootstrap, lanes, twin):
    acting = policy(chunk=2)
    made = collector(environments=4, lanes=lanes, policy_=acting)
    critic = Critic(acting, CriticConfig(hidden_sizes=[4], bootstrap=bootstrap), 0, outputs=2)
    with torch.no_grad():
        for p in critic.head.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    if twin:
        made = TwinCollector(acting, policy(chunk=2), made.tasks, made.config)
    made.critic = critic
    found = collected(made, prompts(16))
    assert {r.status for r in found} == {Status.FINISHED, Status.TRUNCATED_TIME}
    for rollout in found:
        track = rollout.data
        shown = Observation(images=track.images, state=track.state, instructions=[track.instruction] * len(track.state))
        with torch.no_grad():
            values = critic.of(acting.states_of(shown))
        torch.testing.assert_close(track.values_TU, values[:-1])
        goes_on = bootstrap == "always" or rollout.status is Status.TRUNCATED_TIME
        assert track.bootstrap == pytest.approx(float(values[-1, 0]) if goes_on else 0.0, abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 3])
def test_demonstrations_are_the_experts_and_chunks_look_ahead(chunk):
    made = collector(chunk, environments=4)
    asked = prompts(6, "warm")
    for rollout in made.demonstrate(asked, [None] * 6, [""] * 6):
        track = rollout.data
        assert rollout.is_demonstration and track.logprobs_TKC.isnan().all()
        pointer, mark = track.state[:-1].unbind(1)
        wanted = ((mark - pointer) / 0.5).clamp(-1, 1)
        for t in range(len(track.choices)):
            ahead = wanted[t : t + chunk]
            assert track.valid_TK[t].tolist() == [k < len(ahead) for k in range(chunk)]
            torch.testing.assert_close(track.choices[t, : len(ahead), 0], ahead)
    made.close()


def test_a_moment_of_a_demonstration_is_one_call_of_it():
    made = collector(environments=4)
    whole = made.demonstrate(prompts(1, "warm"), [None], [""])[0].data
    steps_ = made.lanes("dial/turn")[0].steps
    first = prompts(1, "warm")[0]
    asked = [replace(first, id=f"m{call}", meta={"call": call}) for call in range(5)]
    for call, rollout in enumerate(made.demonstrate(asked, [None] * 5, [""] * 5)):
        at = call % len(whole.choices)
        assert torch.equal(rollout.data.choices, whole.choices[at : at + 1]) and len(rollout.data.state) == 2
        assert torch.equal(rollout.data.state[0], whole.state[at])
    assert made.lanes("dial/turn")[0].steps == 2 * steps_, "the episode was played once for all its moments"
    made.close()


# -- what is refused ------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    task = plugins.registry().make_task("dial/turn", {})
    wide = Small(PolicyConfig(model="mlp", kind="robotics/small"), dims=3, state=2)
    with pytest.raises(UserError, match=r"takes actions of 2 numbers, and policy.options.dims = 3: make them equal"):
        collected(SimulatorCollector(wide, {"dial/turn": task}, SimulateConfig(num_envs=2)), prompts(1))
    blind = Small(PolicyConfig(model="mlp", kind="robotics/small"), dims=2, state=5)
    with pytest.raises(UserError, match=r"policy.options.state = 5, and the simulator shows a state of 2"):
        collected(SimulatorCollector(blind, {"dial/turn": task}, SimulateConfig(num_envs=2)), prompts(1))
    other = Small(PolicyConfig(model="cnn", kind="robotics/small"), dims=2, size=36, camera="wrist")
    with pytest.raises(UserError, match=r"camera = 'wrist' is not a camera of the simulator: choose one of front"):
        collected(SimulatorCollector(other, {"dial/turn": task}, SimulateConfig(num_envs=2)), prompts(1))
    with pytest.raises(UserError, match=r"has no part 'nearer' for the task's stages: it has success, near"):
        collected(collector(stages={"nearer": 1.0}), prompts(1))
    with pytest.raises(UserError, match=r"simulator 'dial/dial' has no option 'colour'"):
        lockstep.make_lane(replace(task.simulation, options={"colour": 1}), 2, "cpu")
    with pytest.raises(UserError, match="no simulator 'dial/none'"):
        lockstep.make_lane(replace(task.simulation, simulator="dial/none"), 2, "cpu")


def test_a_policy_that_gives_nan_is_told():
    acting = policy()
    with torch.no_grad():
        acting.head.mean[0].bias.fill_(torch.nan)
    with pytest.raises(UserError, match="the policy's actions are not finite: most likely a learning rate was too high"):
        collected(collector(policy_=acting), prompts(1))


def test_a_start_that_is_not_finite_is_not_the_policys_fault(monkeypatch):
    from dial import Dial

    reset = Dial.reset

    def odd(*arguments):
        shown = reset(*arguments)
        return replace(shown, state=shown.state + torch.tensor([0.0, torch.nan]))

    monkeypatch.setattr(Dial, "reset", odd)
    with pytest.raises(UserError, match=r"number 1 of its state is nan, and the policy's actions .*: mend"):
        collected(collector(), prompts(1))
