"""Run the checks for an id, or for everything that a plugin brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmrl.errors import UserError
from mmrl.interfaces import Task
from mmrl.specs import TaskSpec
from mmrl.targets import suggest
from mmrl.testing.checks import CheckResult, Report
from mmrl.testing.sample import take
from mmrl.testing.tasks import check_task
from mmrl.testing.verifiers import check_verifier
from mmrl.types import Prompt

Options = Mapping[str, Any]


def check_id(id: str, n: int = 32, options: Options | None = None, task: str | None = None) -> list[Report]:
    """Check a task or a verifier (both, where the id is both) on n rows.

    `options` are the task's. A verifier is checked on rows of `task`, by default of the tasks whose specs name it.
    """
    from mmrl import plugins

    registry = plugins.registry()
    kinds = [kind for kind in ("tasks", "verifiers") if _find(kind, id)]
    if not kinds:
        verifier = suggest(id, registry.specs("verifiers")) and not suggest(id, registry.specs("tasks"))
        registry.get("verifiers" if verifier else "tasks", id)  # raises what is known about it
    reports = []
    if "tasks" in kinds:
        reports.append(check_task(registry.get("tasks", id), n=n, options=options))
    if "verifiers" in kinds:
        spec = registry.get("verifiers", id)
        users = [registry.get("tasks", task)] if task else _users(spec.id)
        if not users:
            raise UserError(f"no installed task names verifier {spec.id!r}: say on which to check it with --task TASK")
        rows = _rows(users, n, {t.id: options or {} for t in users})
        reports.append(check_verifier(spec, rows, is_metric=_is_metric(spec.id, users)))
    return reports


def check_plugin(name: str, n: int = 32, options: Mapping[str, Options] | None = None) -> list[Report]:
    """Check every task and verifier of a plugin; AssertionError names each rule that is broken and the cure.

    `options` are for tasks that need some: `{"flags/folder": {"root": "tests/pictures"}}`. A verifier is checked on the
    tasks that name it; one that no task names can't be, and its report says so.
    """
    from mmrl import plugins

    registry, options = plugins.registry(), options or {}
    info = next((p for p in registry.plugins if p.name == name), None)
    if info is None:
        raise AssertionError(f"plugin {name!r} is not installed: run `pip install -e .` in its folder")
    if info.error:
        raise AssertionError(f"{info.label} {info.error}") from info.cause
    reports = [check_task(registry.get("tasks", id), n=n, options=options.get(id)) for id in info.specs.get("tasks", ())]
    for id in info.specs.get("verifiers", ()):
        if users := _users(id):
            reports.append(check_verifier(registry.get("verifiers", id), _rows(users, n, options), is_metric=_is_metric(id, users)))
        else:
            reports.append(Report(id, "verifier", (CheckResult("is_used", True, note="no task names it: there is nothing to score"),)))
    if failed := [str(r) for r in reports if not r.ok]:
        raise AssertionError("\n".join(failed))
    return reports


def _find(kind: str, id: str) -> Any:
    """The spec of an id, or None."""
    from mmrl import plugins

    try:
        return plugins.registry().get(kind, id)
    except UserError:
        return None


def _resolved(verifiers: Iterable[str]) -> list[str]:
    """The full ids behind ids of verifiers, those that exist."""
    return [spec.id for v in verifiers if (spec := _find("verifiers", v))]


def _users(verifier: str) -> list[TaskSpec]:
    """The tasks whose specs name a verifier."""
    from mmrl import plugins

    return [t for t in plugins.registry().specs("tasks").values() if verifier in _resolved(t.verifiers)]


def _is_metric(verifier: str, users: Iterable[TaskSpec]) -> bool:
    """Some of these tasks is evaluated by the verifier, or does not name it at all and only lends its rows."""
    return any(verifier in _resolved([t.metric]) or verifier not in _resolved(t.verifiers) for t in users)


def _rows(tasks: Iterable[TaskSpec], n: int, options: Mapping[str, Options]) -> list[tuple[Task, Prompt]]:
    """n rows of the first split of each task."""
    from mmrl import plugins

    made = [plugins.registry().make_task(t.id, options.get(t.id)) for t in tasks]
    return [(task, prompt) for task in made for prompt in take(task, task.splits[0], n)]
