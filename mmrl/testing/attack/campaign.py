"""Run attacks one after another, and count what held and what fell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmrl.api.errors import LONGEST, PluginError, UserError, shorten
from mmrl.testing.sample import TimeIsUp, time_limit

SHOWN = 10
"""Number of fallen attempts of each kind that are shown."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One bad input, and what became of it."""

    name: str
    fault: str = ""
    """What went wrong; empty if it held."""


Attack = Callable[[], Iterator[Attempt]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All attempts of one kind."""

    kind: str
    tried: int
    fell: Sequence[str]
    seconds: float
    complete: bool = True
    """False if the time was over before all was tried."""

    @property
    def held(self) -> int:
        return self.tried - len(self.fell)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"held": self.held}


def run(
    attacks: Mapping[str, Attack], seconds: float = float("inf"), told: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Run each kind of attack for at most `seconds`, between attempts. told: called with each outcome.

    An attack that raises has fallen: it says what it expects, and anything else is a fault of what is attacked."""
    outcomes = []
    for kind, attack in attacks.items():
        start, tried, complete = time.monotonic(), 0, True
        fell: list[str] = []
        try:
            for attempt in attack():
                tried += 1
                if attempt.fault:
                    fell.append(f"{attempt.name}: {attempt.fault}")
                if time.monotonic() - start > seconds:
                    complete = False
                    break
        except Exception as error:  # noqa: BLE001  told as a fault of this kind, and the others go on
            tried += 1
            fell.append(f"the attack itself: {type(error).__name__}: {shorten(error, 600)}")
        outcomes.append(Outcome(kind, tried, fell, round(time.monotonic() - start, 1), complete))
        told(outcomes[-1])
    return outcomes


def refusal_fault(error: BaseException) -> str:
    """What is wrong with an error as the answer to bad input; empty if it is a UserError of one line. A PluginError stands for an
    exception that the plugin didn't expect."""
    if isinstance(error, PluginError) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, UserError):
        return f"{type(error).__name__}: {shorten(error, 200)}"
    text = str(error)
    if "\n" in text:
        return f"a message of several lines: {text[:200]!r}"
    return "" if len(text) <= LONGEST else f"a message of {len(text)} characters: {text[:200]!r}"


def attempt(name: str, most_s: float, act: Callable[..., Any], *arguments: Any) -> Attempt:
    """Do something that may be refused by a UserError of one line, and take at most `most_s` seconds."""
    start, fault = time.monotonic(), ""
    try:
        with time_limit(most_s):
            act(*arguments)
    except TimeIsUp:
        fault = f"it took more than {most_s:g} s"
    except Exception as error:  # noqa: BLE001  judged
        fault = refusal_fault(error)
    took = time.monotonic() - start
    return Attempt(name, fault or (f"it took {took:.1f} s, more than {most_s:g}" if took > most_s else ""))


def show(outcomes: Sequence[Outcome]) -> str:
    """A table of what was tried, held and fell, and below it what fell."""
    width = max([len(o.kind) for o in outcomes] + [len("attack")])
    lines = [f"{'attack':<{width}}  {'tried':>6}  {'held':>6}  {'fell':>5}  {'s':>6}"]
    for o in [*outcomes, _sum(outcomes)]:
        lines.append(
            f"{o.kind:<{width}}  {o.tried:>6}  {o.held:>6}  {len(o.fell):>5}  {o.seconds:>6.0f}"
            + ("" if o.complete else "  cut short")
        )
    for o in outcomes:
        lines += [f"{o.kind}: {text}" for text in o.fell[:SHOWN]]
        if len(o.fell) > SHOWN:
            lines.append(f"{o.kind}: and {len(o.fell) - SHOWN} more")
    return "\n".join(lines)


def _sum(outcomes: Sequence[Outcome]) -> Outcome:
    fell = [text for o in outcomes for text in o.fell]
    return Outcome("all", sum(o.tried for o in outcomes), fell, sum(o.seconds for o in outcomes))
