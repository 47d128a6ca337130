"""What a check is: a function of a subject that raises Fault where a rule is broken, and may return a note."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Subject = TypeVar("Subject")


class CheckFailed(Exception):
    """A rule is broken. The message says what was seen, the likely cause and the cure."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found."""

    name: str
    """The rule, in words joined by underscores."""
    ok: bool
    message: str = ""
    """What is wrong, why, and what to do; empty when the check passes."""
    note: str = ""
    """Something to know that is no fault; of a gate that fails, how many checks were not run."""

    @property
    def told(self) -> str:
        """What a person reads: the message, and the note in brackets."""
        return f"{self.message} ({self.note})" if self.message and self.note else self.message or self.note


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one task, verifier or simulator."""

    id: str
    kind: str
    """`task`, `verifier` or `simulator`."""
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
    """Run every check; where a gate fails, what follows would only repeat it and is left out."""
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
    except (Exception, SystemExit) as error:  # noqa: BLE001  the author's code may raise anything, and that is the finding
        return CheckResult(check.__name__, False, f"raised {type(error).__name__}: {error}")
