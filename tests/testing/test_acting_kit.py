"""Checks of tasks that act and of verifiers of outcomes, each against a planted fault."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl import Prompt, TaskSpec, VerifierSpec
from mmrl.api.simulators.types import Demonstration
from mmrl.registry import plugins
from mmrl.testing import check_id
from mmrl.testing.kit import check_task, check_verifier

DIAL = Path(__file__).parents[1] / "support" / "dial.py"
SPEC = TaskSpec(id="dial/other", target="-:-")


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(DIAL))
    plugins.registry()


def turn(**changes):
    base = sys.modules["dial"].Turn
    return type("Other", (base,), changes)


def report(kind):
    return {r.name: r for r in check_task(SPEC, lambda: kind(n=6), n=6).results}


def test_what_is_right_passes_in_one_call():
    for id in ("dial/turn", "dial/success", "dial/dial"):
        for found in check_id(id, n=6):
            assert found.ok, str(found)
            assert found.results


def edited(edit):
    base = sys.modules["dial"].Turn

    def prompts(self, split, seed):
        return [edit(p, split, i) for i, p in enumerate(base.prompts(self, split, seed))]

    return turn(prompts=prompts)


def simulated(**changes):
    base = sys.modules["dial"].Turn

    def made(self, **options):
        base.__init__(self, **options)
        self.simulation = replace(self.simulation, **changes)

    return turn(__init__=made)


FAULTS = {
    "ids_are_unique": (lambda: edited(lambda p, s, i: replace(p, id="same")), "two rows of 'warm' have the id 'same'"),
    "splits_start_apart": (lambda: edited(lambda p, s, i: replace(p, seed=i)), "an evaluation on it would measure memory"),
    "simulator_is_there": (lambda: simulated(simulator="dial/none"), "simulator 'dial/none' can't be made: no simulator"),
    "same_seed_gives_same_rows": (
        lambda: edited(lambda p, s, i: Prompt(id=p.id, messages=[], seed=p.seed, meta={"at": id(object())})),
        "differs from",
    ),
}


@pytest.mark.parametrize("check", list(FAULTS))
def test_a_planted_fault_is_found(check):
    make, message = FAULTS[check]
    found = report(make())[check]
    assert not found.ok and message in found.message


def test_parts_that_the_simulator_does_not_have():
    found = report(simulated(stages={"near & closer": 1.0}))["simulator_is_there"]
    assert not found.ok and "'dial/dial' has no part 'closer' for the task's stages: it has success, near" in found.message
    found = report(turn(simulation="dial/dial", __init__=lambda self, n: setattr(self, "n", n)))["simulator_is_there"]
    assert not found.ok and "set it to a mmrl.api.simulators.types.Simulation" in found.message


def test_starts_without_an_instruction(monkeypatch):
    dial = sys.modules["dial"]
    real = dial.Dial.observe
    monkeypatch.setattr(dial.Dial, "observe", lambda self, ids: replace(real(self, ids), instructions=[""] * len(ids)))
    found = report(turn())["starts_can_be_simulated"]
    assert not found.ok and "starts without an instruction: describe the goal" in found.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instruction": " "}, "has no instruction: describe the goal"),
        ({"actions_MA": torch.zeros(0, 2)}, "actions_MA must be a float32 tensor [M, A] with at least one action"),
        ({"actions_MA": torch.full((1, 2), 3.0)}, "has an action of 3, and a simulator's are in [-1, 1]"),
    ],
)
def test_demonstrations_that_cannot_be_used(changes, message):
    shown = Demonstration(instruction="turn", images={}, state=torch.zeros(1, 2), actions_MA=torch.zeros(1, 2))

    def demonstration(self, prompt):
        return replace(shown, **changes) if prompt.id == "warm-3" else shown if prompt.id.startswith("warm") else None

    found = report(turn(demonstration=demonstration))
    assert not found["demonstrations_can_be_used"].ok and message in found["demonstrations_can_be_used"].message
    assert found["starts_can_be_simulated"].ok, "the others are"


@pytest.mark.parametrize(
    ("verify", "check", "message"),
    [
        (
            lambda case: 0.5 * case.outcome["success"],
            "success_at_once_scores_highest",
            "gives 0.5 to an episode that succeeds at once",
        ),
        (lambda case: 1.0, "failure_scores_lower", "gives a failed episode as much as a successful one"),
        (lambda case: case.outcome["nothing"], "success_at_once_scores_highest", "it raised KeyError: 'nothing'"),
        (lambda case: 7.0, "success_at_once_scores_highest", "outside of its range [0, 1]"),
    ],
)
def test_verifiers_of_outcomes(verify, check, message):
    task = sys.modules["dial"].Turn(n=2)
    rows = [(task, task.prompts("train", 0)[0])]
    found = {r.name: r for r in check_verifier(VerifierSpec(id="dial/x", target="-:-"), rows, verify).results}
    assert not found[check].ok and message in found[check].message
    assert set(found) == {
        "success_at_once_scores_highest",
        "failure_scores_lower",
        "same_outcome_same_score",
        "its_spec_says_that_it_judges_outcomes",
    }


def test_a_verifier_that_draws_is_found():
    values = iter([1.0, 0.0, 0.3, 0.4])
    task = sys.modules["dial"].Turn(n=2)
    rows = [(task, task.prompts("train", 0)[0])]
    found = {r.name: r for r in check_verifier(VerifierSpec(id="dial/x", target="-:-"), rows, lambda case: next(values)).results}
    assert not found["same_outcome_same_score"].ok
