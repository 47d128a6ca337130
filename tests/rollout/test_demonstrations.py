"""What policies that act imitate: a task's own demonstrations, and an expert's episodes in bounded memory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mmrl_robotics.small import Small

from mmrl.api.errors import PluginError, UserError
from mmrl.api.services import expert_episodes
from mmrl.api.simulators.types import Demonstration, Simulation
from mmrl.api.types import Prompt
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.registry import plugins
from mmrl.rollout.simulators.demonstrations import EpisodeCache, num_bytes, task_demonstration
from mmrl.rollout.simulators.lockstep import SimulatorCollector

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([DIAL]))


def policy(chunk=1, dims=2):
    return Small(PolicyConfig(model="mlp", kind="robotics/small"), dims=dims, state=2, hidden=[8], chunk=chunk, seed=3)


def shown(**changes):
    """Three moments, and five actions from the first of them on."""
    found = Demonstration(
        instruction="turn to the mark",
        images={"front": torch.arange(3 * 4 * 4 * 3, dtype=torch.uint8).view(3, 4, 4, 3)},
        state=torch.arange(6.0).view(3, 2) / 10,
        actions_MA=torch.linspace(-1, 1, 10).view(5, 2),
    )
    return replace(found, **changes)


def collector(demonstration=None, chunk=1, dims=2, **simulate):
    task = plugins.registry().make_task("dial/turn", {})
    if demonstration is not None:
        task.demonstration = demonstration
    return SimulatorCollector(policy(chunk, dims), {"dial/turn": task}, SimulateConfig(num_envs=3, **simulate))


def prompts(n, **meta):
    made = plugins.registry().make_task("dial/turn", {"n": n}).prompts("warm", 0)
    return [replace(p, task="dial/turn", meta=meta) for p in made]


def imitated(made, asked):
    return made.demonstrate(asked, made.encode(asked), [""] * len(asked))


# -- a task's own -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_a_demonstration_is_a_call_for_each_moment_and_chunks_look_ahead(chunk):
    given = shown()
    (rollout,) = imitated(collector(lambda prompt: given, chunk), prompts(1))
    track = rollout.data
    assert rollout.is_demonstration and track.instruction == "turn to the mark" and track.logprobs_TKC.isnan().all()
    assert torch.equal(track.images["front"][:-1], given.images["front"]) and torch.equal(track.state[:-1], given.state)
    assert torch.equal(track.state[-1], given.state[-1]), "what came after is not known"
    assert track.valid_TK.shape == track.rewards_TK.shape == (3, chunk) and not track.rewards_TK.any()
    for t in range(3):
        ahead = given.actions_MA[t : t + chunk]
        assert track.valid_TK[t].tolist() == [k < len(ahead) for k in range(chunk)]
        torch.testing.assert_close(track.choices[t, : len(ahead)], ahead)


def test_actions_that_are_foreseen_and_not_carried_out_are_learned_too():
    """A network that predicts more actions than a call carries out, such as pi0's 50."""
    made, given = collector(lambda prompt: shown(), chunk=2), shown().actions_MA
    made.policy.__class__ = type("Farsighted", (Small,), {"ahead": 4})
    (rollout,) = imitated(made, prompts(1))
    assert rollout.data.choices.shape == (3, 4, 2) and rollout.data.valid_TK.all() and rollout.data.valid_TK.shape == (3, 2)
    for t in range(3):
        wanted = [min(t + k, len(given) - 1) for k in range(4)]  # the last is repeated
        torch.testing.assert_close(rollout.data.choices[t], given[wanted])


def test_cameras_stand_in_the_simulators_order():
    """By which a policy without names of cameras takes the first one, in episodes and in demonstrations."""
    images = {name: torch.full((3, 4, 4, 3), n, dtype=torch.uint8) for n, name in enumerate(("other", "wrist", "front"))}
    made = collector(lambda prompt: shown(images=images))
    task, asked = made.tasks["dial/turn"], prompts(1)
    for chosen, order in (({}, ["front", "other", "wrist"]), ({"cameras": ["wrist", "front"]}, ["wrist", "front", "other"])):
        task.simulation = replace(task.simulation, options=chosen)
        (given,) = made.encode(asked)
        assert list(given.images) == order and all(torch.equal(given.images[name], images[name]) for name in order)
    task.simulation = Simulation(simulator="")
    assert list(made.encode(asked)[0].images) == list(images)


def test_one_moment_has_no_history():
    given = shown()
    one = replace(given, images={name: rows[:1] for name, rows in given.images.items()}, state=given.state[:1])
    made = collector(lambda prompt: one)
    made.policy.history = 2
    with pytest.raises(UserError, match=r"of one moment each, and policy.options.history = 2 asks for the pictures before it"):
        imitated(made, prompts(1))


def test_a_task_may_demonstrate_some_prompts_and_leave_others_to_the_expert():
    given = shown()
    mixed = collector(lambda prompt: given if prompt.seed % 2 else None)
    asked = prompts(6)
    found = imitated(mixed, asked)
    expert = imitated(collector(), asked)
    for prompt, rollout, other in zip(asked, found, expert, strict=True):
        if prompt.seed % 2:
            assert torch.equal(rollout.data.choices[:, 0], given.actions_MA[:3])
        else:
            assert torch.equal(rollout.data.choices, other.data.choices)
            assert torch.equal(rollout.data.images["front"], other.data.images["front"])
    mixed.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions_MA": torch.zeros(2, 2)}, "it has 2 actions for 3 moments: give each its own"),
        ({"actions_MA": torch.zeros(5)}, r"actions_MA must be a float32 tensor \[M, A\]"),
        ({"actions_MA": torch.zeros(5, 2, dtype=torch.float64)}, r"actions_MA must be a float32 tensor \[M, A\]"),
        ({"state": torch.zeros(2, 2)}, "state has 2 moments, and others have 3"),
        ({"state": torch.zeros(3)}, r"state must be float32 \[T, S\]"),
        ({"images": {"front": torch.zeros(3, 4, 4, 3)}}, r"images\['front'\] must be uint8 \[T, H, W, 3\]"),
        ({"images": {}, "state": None}, "it has neither a picture nor a state"),
    ],
)
def test_what_is_no_demonstration_is_the_plugins_fault(changes, message):
    with pytest.raises(PluginError, match=message):
        collector(lambda prompt: shown(**changes)).encode(prompts(1))


def test_data_that_cannot_be_used_are_the_prompts_fault():
    nan = shown().actions_MA.clone()
    nan[1, 0] = torch.nan
    for changes, message in [
        ({"actions_MA": nan}, "numbers that are not finite: mend or remove its episode"),
        ({"state": torch.full((3, 2), torch.inf)}, "numbers that are not finite"),
        ({"actions_MA": torch.full((5, 2), -1.5)}, r'an action of 1.5, .* in \[-1, 1\]: .* set units = "physical" and'),
    ]:
        with pytest.raises(UserError, match=message) as error:
            collector(lambda prompt, changes=changes: shown(**changes)).encode(prompts(1))
        assert not isinstance(error.value, PluginError)
    rounded = shown(actions_MA=torch.full((5, 2), 1 + 1e-6))
    assert demonstrated_by(lambda prompt: rounded) is rounded


def demonstrated_by(demonstration):
    task = plugins.registry().make_task("dial/turn", {})
    task.demonstration = demonstration
    return task_demonstration(task, Prompt(messages=[], id="a", task="dial/turn"))


def test_what_a_task_raises_is_told_with_its_name():
    def broken(prompt):
        raise KeyError("action")

    with pytest.raises(PluginError, match=r"task 'dial/turn': demonstration\(\) of prompt 'a' raised KeyError"):
        demonstrated_by(broken)
    with pytest.raises(PluginError, match=r"is a dict: return a mmrl.api.simulators.types.Demonstration"):
        demonstrated_by(lambda prompt: {})


def test_a_policy_of_another_width_is_refused():
    with pytest.raises(UserError, match=r"an action of its demonstrations has 2 numbers, and policy.options.dims = 3: make them"):
        imitated(collector(lambda prompt: shown(), dims=3), prompts(1))


def test_physical_actions_need_a_policy_with_statistics():
    given = shown(actions_MA=torch.full((5, 2), 30.0), physical_units=True)
    with pytest.raises(UserError, match=r"the policy has no statistics: set policy.options.statistics"):
        imitated(collector(lambda prompt: given), prompts(1))


# -- an expert's ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_an_expert_shows_is_the_same_whatever_is_kept(lanes):
    """Twelve episodes, moments of them in an order that comes back to each: with room for all, and for none."""
    asked = [replace(p, id=f"{p.id}-{call}", meta={"call": call}) for call in (0, 3, 1) for p in prompts(12)]
    plenty, none = collector(lanes=lanes), collector(lanes=lanes, demonstration_cache_mb=0)
    for start in range(0, len(asked), 5):
        some = asked[start : start + 5]
        for a, b in zip(imitated(plenty, some), imitated(none, some), strict=True):
            assert torch.equal(a.data.choices, b.data.choices) and torch.equal(a.data.state, b.data.state)
            assert torch.equal(a.data.images["front"], b.data.images["front"])
    assert len(plenty._played) == 12 and len(none._played) == 0
    plenty.close()
    none.close()


def test_the_newest_are_kept_within_the_bound():
    (rollout,) = imitated(made := collector(), prompts(1))
    one, keys = rollout.data, "abcdef"
    kept = EpisodeCache(3 * num_bytes(one))
    for key in keys:
        kept.add({key: one}, lasting=False)
        if "a" in kept:
            assert kept["a"] is one  # it is asked for, so it is not the oldest
    assert [key for key in keys if key in kept] == ["a", "e", "f"] and kept.bytes == 3 * num_bytes(one)
    made.close()


def test_what_could_not_be_played_again_is_kept(monkeypatch):
    """Of a simulator whose episodes are no function of a seed."""
    import dial

    capabilities = dial.SPEC.capabilities - {"per-env-seed"}
    made = collector(demonstration_cache_mb=0)
    for lane in made.lanes("dial/turn"):
        lane.spec = replace(lane.spec, capabilities=capabilities)
    imitated(made, prompts(4))
    assert len(made._played) == 4
    made.close()


def test_the_experts_episodes_are_those_that_a_stage_imitates():
    episodes = expert_episodes("dial/turn", {}, 10, split="warm", environments=2)
    found = list(episodes)
    wanted = imitated(made := collector(), prompts(10))
    assert len(found) == 10 and episodes.action.dims == 2 and all(o["success"] == 1.0 for _, o in found)
    for (demonstration, _), rollout in zip(found, wanted, strict=True):
        assert torch.equal(demonstration.actions_MA, rollout.data.choices[:, 0])
        assert torch.equal(demonstration.state, rollout.data.state[:-1])
        assert torch.equal(demonstration.images["front"], rollout.data.images["front"][:-1])
    episodes.close()
    made.close()
    with pytest.raises(UserError, match=r"split 'warm' of task 'dial/turn' has 64 episodes, and 65 are requested: request fewer"):
        expert_episodes("dial/turn", {}, 65, split="warm")


def test_a_task_without_a_simulator_has_none():
    with pytest.raises(UserError, match="the task has no simulator, only demonstrations"):
        plugins.registry().make_simulator(Simulation(simulator=""), 1, "cpu")
