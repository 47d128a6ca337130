"""The attacks that fit a task, a verifier or a simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.specs import SimulatorSpec, TaskSpec, VerifierSpec
from mmrl.api.types import Case
from mmrl.registry import plugins
from mmrl.registry.importing import build_errors, check_options
from mmrl.testing.attack.campaign import Attack, Attempt
from mmrl.testing.attack.completions import attack_verifier, hostile_completions
from mmrl.testing.attack.options import attack_options
from mmrl.testing.attack.turns import attack_environment, attack_simulator
from mmrl.testing.sample import sample_rows
from mmrl.testing.verifiers import case_of

CASES = 1
"""Rows of each task on which a verifier gets all hostile completions."""


def attacks_on(id: str, options: Mapping[str, Any] | None = None) -> dict[str, Attack]:
    """Kind of attack -> the attack, for all tasks, verifiers and simulators with this id. options: of the task or simulator.

    Raises UserError for an unknown id, wrong options, a verifier that is a model, or one that no task names which can be made
    without options."""
    registry, options = plugins.registry(), options or {}
    found: dict[str, Attack] = {}
    if task := _spec("tasks", id):
        found |= _on_task(task, options)
    if verifier := _spec("verifiers", id):
        if options and not found:
            raise UserError(f"verifier {id!r} is attacked without options: attack a task that names it, with --set KEY=VALUE")
        found |= _on_verifier(verifier)
    if simulator := _spec("simulators", id):
        found |= _on_simulator(simulator, options)
    if not found and verifier:
        raise UserError(f"verifier {id!r} is a model, and only verifiers that are functions are attacked")
    if not found:
        registry.get("tasks", id)  # raises UserError with what is meant
    return found


def _on_task(spec: TaskSpec, options: Mapping[str, Any]) -> dict[str, Attack]:
    registry = plugins.registry()
    task = registry.build_task(spec, options)

    def first_rows(changed: Mapping[str, Any]) -> None:
        made = registry.build_task(spec, {**options, **changed})
        sample_rows(made, made.splits[0], 1, broken=[])

    found: dict[str, Attack] = {"options": partial(attack_options, spec.id, registry.target(spec), first_rows)}
    if task.simulation is None:
        rows = sample_rows(task, task.splits[0], CASES, broken=[])
        for name in spec.verifiers:
            if not (verifier := registry.get("verifiers", name)).model:
                found[f"completions, {verifier.id}"] = partial(attack_verifier, verifier.id, [case_of(verifier, r) for r in rows])
        if type(task).environment is not Task.environment and rows:
            found["turns"] = partial(attack_environment, task, rows[0], spec.id, hostile_completions())
    return found


def _on_verifier(spec: VerifierSpec) -> dict[str, Attack]:
    registry = plugins.registry()
    if spec.model:
        return {}

    made = partial(registry.make_verifier, spec.id)
    return {
        "options": partial(attack_options, spec.id, registry.target(spec), made, ("case",)),
        "completions": partial(attack_verifier, spec.id, _cases(spec)),
    }


def _cases(spec: VerifierSpec) -> list[Case]:
    """A row of a task that names the verifier; where there is none, a case without an answer."""
    for task in plugins.registry().specs("tasks").values():
        if spec.id in {_spec("verifiers", name) and _spec("verifiers", name).id for name in task.verifiers}:
            try:
                made = plugins.registry().build_task(task, {})
                rows = sample_rows(made, made.splits[0], CASES, broken=[])
            except UserError:  # it needs options, such as a path
                continue
            if made.simulation is None and rows:
                return [case_of(spec, row) for row in rows]
    raise UserError(
        f"no task that names verifier {spec.id!r} can be made without options: attack such a task, with --set KEY=VALUE"
    )


def _on_simulator(spec: SimulatorSpec, options: Mapping[str, Any]) -> dict[str, Attack]:
    target, own = plugins.registry().target(spec), {**spec.options, **options}
    filled = {} if spec.screens else {"num_envs": 1, "device": "cpu"}

    check_options(f"simulator {spec.id!r}", target, own, filled=tuple(filled))

    def made(changed: Mapping[str, Any]) -> Any:
        wanted = {**own, **changed}
        check_options(f"simulator {spec.id!r}", target, wanted, filled=tuple(filled))
        with build_errors(f"simulator {spec.id!r}", target, wanted):
            return target(**filled, **wanted)

    def actions() -> Iterator[Attempt]:
        if spec.action:
            yield from attack_simulator(spec.id, lambda n: target(num_envs=n, device="cpu", **own), spec.action.dims)

    return {"options": partial(attack_options, spec.id, target, made, tuple(filled)), "actions": actions}


def _spec(kind: str, id: str) -> Any:
    try:
        return plugins.registry().get(kind, id)
    except UserError:
        return None
