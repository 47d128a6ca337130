"""A simulator that breaks its contract is named at the step where it does, and nothing is made of what it gave."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mmrl_robotics.small import Small

from mmrl.api.errors import UserError
from mmrl.api.types import Prompt
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
N = 3


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([DIAL]))


def play(reward="own", sees_success=None):
    policy = Small(PolicyConfig(model="mlp", kind="robotics/small"), dims=2, state=2, hidden=[8], seed=3)
    task = plugins.registry().make_task("dial/turn", {"reward": reward, "never": True})
    task.simulation = replace(task.simulation, sees_success=sees_success)
    made = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=N))
    asked = [Prompt(id=str(i), messages=[], seed=i, task="dial/turn") for i in range(N)]
    return made.collect(asked, made.encode(asked), 1, SamplingParams(max_tokens=1, temperature=1.0, seed=5))


def seen(change):
    return lambda moved: replace(moved, observation=change(moved.observation))


NAN = torch.tensor([0.5, torch.nan, 0.5])
STEPS = {
    "nothing": (lambda moved: None, "gave a NoneType in place of a mmrl.api.simulators.types.Transition"),
    "one flag for all": (
        lambda moved: replace(moved, terminated_N=torch.zeros(1, dtype=torch.bool)),
        r"terminated_N is torch.bool \[1\], and must be torch.bool \[3\]",
    ),
    "numbers for flags": (lambda moved: replace(moved, success_N=torch.zeros(N)), "success_N is torch.float32"),
    "a list": (lambda moved: replace(moved, reward_N=[0.0] * N), "gave a list for reward_N, not a tensor"),
    "a column": (lambda moved: replace(moved, reward_N=torch.zeros(N, 1)), r"reward_N is torch.float32 \[3, 1\]"),
    "lost": (lambda moved: replace(moved, lost_N=torch.zeros(2, dtype=torch.bool)), "lost_N is"),
    "no part": (lambda moved: replace(moved, parts={}), r"gave the parts \['near'\], and now gives \[\]"),
    "nan part": (lambda moved: replace(moved, parts={"near": NAN}), "part 'near' is nan, and must be from 0 to 1"),
    "large part": (lambda moved: replace(moved, parts={"near": NAN.nan_to_num(1e30)}), r"part 'near' is 1e\+30"),
    "a long intervention": (
        lambda moved: replace(moved, interventions_NA=torch.zeros(N, 3)),
        "a row of interventions_NA has 3 numbers, and an action has 2",
    ),
    "a large intervention": (
        lambda moved: replace(moved, interventions_NA=torch.full((N, 2), 3.0)),
        r"a row of interventions_NA is \[3.0, 3.0\]: give numbers from -1 to 1, or NaN in all",
    ),
    "half an intervention": (
        lambda moved: replace(moved, interventions_NA=NAN[:2].repeat(N, 1)),
        r"a row of interventions_NA is \[0.5, nan\]: give numbers from -1 to 1, or NaN in all",
    ),
    "nan reward": (lambda moved: replace(moved, reward_N=NAN), "gave a reward that is not finite"),
    "float pictures": (
        seen(lambda o: replace(o, images={k: v / 255 for k, v in o.images.items()})),
        "camera 'front' is torch.float32",
    ),
    "other size": (
        seen(lambda o: replace(o, images={k: v[:, :20] for k, v in o.images.items()})),
        r"camera 'front' is torch.uint8 \[3, 20, 36, 3\], and must be torch.uint8 \[3, 36, 36, 3\]",
    ),
    "one camera more": (
        seen(lambda o: replace(o, images={**o.images, "wrist": o.images["front"]})),
        r"showed the cameras \['front'\], and now shows \['front', 'wrist'\]",
    ),
    "no state": (seen(lambda o: replace(o, state=None)), "gives a state in some observations only"),
    "one row more": (seen(lambda o: replace(o, state=torch.zeros(N + 1, 2))), r"state is torch.float32 \[4, 2\]"),
    "no text": (seen(lambda o: replace(o, instructions=[None] * N)), "not 3 texts"),
    "one text less": (seen(lambda o: replace(o, instructions=["go"] * 2)), "not 3 texts"),
}


@pytest.mark.parametrize(("change", "message"), STEPS.values(), ids=STEPS)
def test_a_step_that_is_none(monkeypatch, change, message):
    """From the second one on, so that names that change are seen."""
    import dial

    step, count = dial.Dial.step, iter(range(99))

    def changed(self, actions_NA, active_N):
        moved = step(self, actions_NA, active_N)
        return change(moved) if next(count) else moved

    monkeypatch.setattr(dial.Dial, "step", changed)
    with pytest.raises(UserError, match=message) as error:
        play()
    assert "simulator 'dial/dial'" in str(error.value) and "\n" not in str(error.value)


RESETS = {
    "nothing": (lambda shown: None, "gave a NoneType in place of a mmrl.api.simulators.types.Observation"),
    "all rows": (lambda shown: replace(shown, state=torch.zeros(N + 2, 2)), r"state is torch.float32 \[5, 2\]"),
    "a list of pictures": (lambda shown: replace(shown, images={"front": [1, 2]}), "gave a list for camera 'front'"),
    "a list for a state": (lambda shown: replace(shown, state=[1.0, 2.0]), "gave a list for state"),
    "flat pictures": (lambda shown: replace(shown, images={"front": torch.zeros(N, 4, dtype=torch.uint8)}), "camera 'front' is"),
}


@pytest.mark.parametrize(("change", "message"), RESETS.values(), ids=RESETS)
def test_a_reset_that_is_none(monkeypatch, change, message):
    import dial

    reset = dial.Dial.reset
    monkeypatch.setattr(dial.Dial, "reset", lambda self, *arguments: change(reset(self, *arguments)))
    with pytest.raises(UserError, match=message) as error:
        play()
    assert "reset() or restore() of simulator 'dial/dial'" in str(error.value)


def test_what_it_raises_is_told_with_its_name(monkeypatch):
    import dial

    def broken(self, actions_NA, active_N):
        raise RuntimeError("the motor is hot")

    monkeypatch.setattr(dial.Dial, "step", broken)
    with pytest.raises(UserError, match="simulator 'dial/dial' raised RuntimeError: the motor is hot"):
        play()


def test_rows_of_what_is_not_active_mean_nothing(monkeypatch):
    """A part may be anything there."""
    import dial

    step, expected = dial.Dial.step, [r.outcome for r in play(reward="stages")]

    def stale(self, actions_NA, active_N):
        moved = step(self, actions_NA, active_N)
        return replace(moved, parts={"near": torch.where(active_N, moved.parts["near"], torch.nan)})

    monkeypatch.setattr(dial.Dial, "step", stale)
    assert [r.outcome for r in play(reward="stages")] == expected


@pytest.mark.parametrize("reward", ["own", "stages"])
def test_what_a_lost_environment_gave_means_nothing(monkeypatch, reward):
    """Its episode is begun again, and the run goes on."""
    import dial

    step, lose = dial.Dial.step, iter([True])

    def broken(self, actions_NA, active_N):
        moved = step(self, actions_NA, active_N)
        first = torch.arange(N) == 0
        if not next(lose, False):
            return moved
        bad = {"near": torch.where(first, torch.nan, moved.parts["near"])}
        return replace(moved, lost_N=first, reward_N=torch.where(first, torch.nan, moved.reward_N), parts=bad)

    monkeypatch.setattr(dial.Dial, "step", broken)
    found = play(reward)
    assert all(torch.isfinite(torch.tensor(list(r.outcome.values()))).all() and r.data is not None for r in found)


def test_nobody_looks_for_success_where_all_environments_are_lost(monkeypatch):
    """A model that looks for it has no answer for no pictures."""
    import dial

    step, lose, looked = dial.Dial.step, iter([True]), []

    def broken(self, actions_NA, active_N):
        moved = step(self, actions_NA, active_N)
        return replace(moved, lost_N=torch.ones(N, dtype=torch.bool)) if next(lose, False) else moved

    def sees(observation):
        looked.append(len(observation))
        return torch.zeros(len(observation), dtype=torch.bool)

    monkeypatch.setattr(dial.Dial, "step", broken)
    found = play(sees_success=sees)
    assert looked and min(looked) > 0 and len(found) == N and all(r.data is not None for r in found)
