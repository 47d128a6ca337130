"""Checks of tasks that act in simulators, and of verifiers that score the outcomes of their episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Prompt, Score
from mmrl.testing.checks import CheckFailed, Report, run_checks
from mmrl.testing.task_repeats import global_random_state_is_untouched, same_in_another_process, same_seed_gives_same_rows
from mmrl.testing.task_subject import TaskSubject
from mmrl.testing.tasks import every_split_has_rows, ids_are_unique, prompts_pickle, rows_can_be_used
from mmrl.testing.verifiers import Verify

STARTS = 4
"""Rows of each split whose start is simulated."""


def simulator_is_there(subject: TaskSubject) -> str:
    """The task's simulator can be made with the task's options, and has the parts that the task rewards."""
    from mmrl.api.simulators.types import Simulation
    from mmrl.registry import plugins

    simulation = subject.make().simulation
    if not isinstance(simulation, Simulation):
        raise CheckFailed(f"simulation is {simulation!r:.80}: set it to a mmrl.api.simulators.types.Simulation")
    if not simulation.simulator:
        return "none: the task only has demonstrations"
    try:
        plugins.registry().make_simulator(simulation, 1, "cpu").close()
    except UserError as error:
        raise CheckFailed(f"simulator {simulation.simulator!r} can't be made: {error}") from error
    return simulation.simulator


def demonstrations_can_be_used(subject: TaskSubject) -> str:
    """The task's own demonstrations have an instruction, observations of one shape and an action for each."""
    from mmrl.rollout.simulators.demonstrations import task_demonstration

    task, count = subject.make(), 0
    for split, rows in subject.rows.items():
        for row in rows:
            try:
                demonstration = task_demonstration(task, row)
            except UserError as error:
                raise CheckFailed(f"row {row.id!r} of {split!r}: {error}") from error
            if demonstration is not None and not demonstration.instruction.strip():
                raise CheckFailed(f"the demonstration of row {row.id!r} of {split!r} has no instruction: describe the goal")
            count += demonstration is not None
    return f"{count} of them" if count else "none: the simulator's expert demonstrates, if it has one"


def starts_can_be_simulated(subject: TaskSubject) -> str:
    """The first rows of each split can be started and give an instruction. Rows with the task's own demonstration are skipped."""
    import torch

    from mmrl.registry import plugins

    task = subject.make()
    played = {s: [r for r in rows[:STARTS] if task.demonstration(r) is None] for s, rows in subject.rows.items()}
    if not any(played.values()):
        return "none"
    assert task.simulation is not None
    simulator = plugins.registry().make_simulator(task.simulation, 1, "cpu")
    instructions: set[str] = set()
    try:
        for split, rows in played.items():
            for row in rows:
                try:
                    observation = simulator.reset(torch.tensor([row.seed]), None, row.meta.get("variant"))
                except UserError as error:
                    raise CheckFailed(f"row {row.id!r} of {split!r} can't be started: {error}") from error
                if not observation.instructions[0].strip():
                    raise CheckFailed(f"row {row.id!r} of {split!r} starts without an instruction: describe the goal")
                instructions.add(observation.instructions[0])
    finally:
        simulator.close()
    return f"{len(instructions)} instructions, such as {min(instructions)!r}"


def splits_start_apart(subject: TaskSubject) -> None:
    """No two splits have a row with the same seed."""
    seen: dict[int, str] = {}
    for split, rows in subject.rows.items():
        for row in rows:
            if seen.setdefault(row.seed, split) != split:
                raise CheckFailed(
                    f"row {row.id!r} of {split!r} has the seed of a row of {seen[row.seed]!r}: an evaluation on it would measure "
                    "memory; give each split its own seeds"
                )


GATES = (every_split_has_rows, simulator_is_there)
CHECKS = (
    rows_can_be_used,
    ids_are_unique,
    same_seed_gives_same_rows,
    same_in_another_process,
    global_random_state_is_untouched,
    splits_start_apart,
    demonstrations_can_be_used,
    starts_can_be_simulated,
    prompts_pickle,
)


def check_acting_task(subject: TaskSubject) -> Report:
    """Check a task with a simulation."""
    return Report(subject.spec.id, "task", run_checks(subject, GATES, CHECKS))


# -- verifiers of outcomes --------------------------------------------------------------------------------------------------


class OutcomeSubject:
    """A verifier of outcomes under test, and the parts of the simulators of its tasks."""

    def __init__(self, spec: VerifierSpec, verify: Verify, rows: Sequence[tuple[Task, Prompt]]) -> None:
        from mmrl.registry import plugins

        self.spec, self.verify = spec, verify
        self.acting = all(task.simulation is not None for task, _ in rows)
        simulators = {t.simulation.simulator for t, _ in rows if t.simulation is not None and t.simulation.simulator}
        self.parts = sorted({p for s in simulators for p in plugins.registry().get("simulators", s).parts})

    def outcome(self, success: float, steps: float = 1.0) -> dict[str, float]:
        """The outcome of an episode; success: 0 or 1."""
        return {
            "success": success,
            "success_at_end": success,
            "return": success,
            "steps": steps,
            **dict.fromkeys(self.parts, success),
        }

    def value(self, outcome: Mapping[str, float]) -> float:
        """The verifier's value for an outcome. Raises CheckFailed if it raises or returns a number out of its range."""
        try:
            score = self.verify(Case(completion="", outcome=dict(outcome)))
        except Exception as error:
            raise CheckFailed(
                f"it raised {type(error).__name__}: {error} for the outcome {dict(outcome)}: read case.outcome"
            ) from error
        value = score.value if isinstance(score, Score) else score
        if value is None or not math.isfinite(value) or not self.spec.low - 1e-6 <= value <= self.spec.high + 1e-6:
            raise CheckFailed(
                f"it gave {value!r}, outside of its range [{self.spec.low:g}, {self.spec.high:g}]: correct low and high"
            )
        return float(value)


def success_at_once_scores_highest(subject: OutcomeSubject) -> None:
    """An episode that succeeds at once, in every part, gets the spec's `high`."""
    value = subject.value(subject.outcome(1.0, steps=0.0))
    if not math.isclose(value, subject.spec.high, rel_tol=1e-6, abs_tol=1e-9):
        raise CheckFailed(f"it gives {value:g} to an episode that succeeds at once, not high={subject.spec.high:g}: correct high")


def failure_scores_lower(subject: OutcomeSubject) -> None:
    """An episode without success gets less than `high`."""
    if not subject.value(subject.outcome(0.0, steps=100.0)) < subject.spec.high - 1e-6:
        raise CheckFailed("it gives a failed episode as much as a successful one: read case.outcome")


def same_outcome_same_score(subject: OutcomeSubject) -> None:
    """The same outcome gets the same value."""
    outcome = subject.outcome(1.0, steps=7.0)
    if subject.value(outcome) != subject.value(outcome):
        raise CheckFailed("the same outcome got two values: draw nothing at random")


def its_spec_says_that_it_judges_outcomes(subject: OutcomeSubject) -> None:
    """The spec says `outcome=True`, unless the verifier's tasks all act, which says the same."""
    if not (subject.spec.outcome or subject.acting):
        raise CheckFailed(
            "it judges the outcome of an episode, and not what the last turn says: write outcome=True in its spec, so that "
            "evaluations call the share success and not accuracy"
        )


def check_outcome_verifier(spec: VerifierSpec, verify: Verify, rows: Sequence[tuple[Task, Prompt]]) -> Report:
    """Check a verifier of the outcomes of episodes, in simulators or environments."""
    subject = OutcomeSubject(spec, verify, rows)
    checks = (
        success_at_once_scores_highest,
        failure_scores_lower,
        same_outcome_same_score,
        its_spec_says_that_it_judges_outcomes,
    )
    return Report(spec.id, "verifier", run_checks(subject, (), checks))
