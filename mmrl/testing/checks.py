"""Checks: a check is a function of a subject that raises CheckFailed if a rule is broken, and may return a note."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from mmrl.api.moved import moved_name

Subject = TypeVar("Subject")

__getattr__ = partial(moved_name, __name__)


class CheckFailed(Exception):
    """A rule is broken. The message gives what was found, the likely cause and the remedy."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    name: str
    """The rule, in words joined by underscores."""
    ok: bool
    message: str = ""
    """What is wrong, why, and what to do; empty when the check passes."""
    note: str = ""
    """A remark that is no failure; for a gate that fails, how many checks were not run."""

    @property
    def told(self) -> str:
        """The text for people: the message, and the note in brackets."""
        return f"{self.message} ({self.note})" if self.message and self.note else self.message or self.note


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one task, verifier, simulator or model."""

    id: str
    kind: str
    """`task`, `verifier`, `simulator` or `policy`."""
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.results)

    def as_json(self) -> dict[str, Any]:
        """The format of `mmrl check --json`."""
        checks = [{"name": r.name, "ok": r.ok, "message": r.message, "note": r.note} for r in self.results]
        return {"id": self.id, "kind": self.kind, "ok": self.ok, "checks": checks}

    def __str__(self) -> str:
        """The failures, one per line; for an assertion's message."""
        return "\n".join(f"{self.kind} {self.id!r} fails {r.name}: {r.told}" for r in self.results if not r.ok)


def run_checks(
    subject: Subject, gates: Sequence[Callable[[Subject], str | None]], checks: Sequence[Callable[[Subject], str | None]]
) -> tuple[CheckResult, ...]:
    """Run all checks. If a gate fails, the checks after it would fail for the same reason and are not run."""
    results = []
    for i, check in enumerate((*gates, *checks), start=1):
        results.append(_run(check, subject))
        if check in gates and not results[-1].ok:
            left = len(gates) + len(checks) - i
            results[-1] = replace(results[-1], note=f"{left} checks that follow were not run" if left else "")
            break
    return tuple(results)


def _run(check: Callable[[Subject], str | None], subject: Subject) -> CheckResult:
    try:
        return CheckResult(check.__name__, True, note=check(subject) or "")
    except CheckFailed as fault:
        return CheckResult(check.__name__, False, str(fault))
    except (Exception, SystemExit) as error:  # noqa: BLE001  any exception of the plugin's code is a failure
        return CheckResult(check.__name__, False, f"raised {type(error).__name__}: {error}")
