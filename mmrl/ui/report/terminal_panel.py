"""The live panel of a run: lines that fit the terminal's width and height.

The terminal must not wrap a line, since the panel's height would be wrong. Model output ends a margin before the edge, because
terminals differ in the width of some characters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from mmrl.api.errors import is_finite
from mmrl.api.signals import AGAIN
from mmrl.api.verifiers.parse import thought
from mmrl.run_folder.figures import interval_text
from mmrl.run_folder.metrics import PARTS
from mmrl.ui.report.eta import TimeEstimator
from mmrl.ui.report.text import count, duration, visible

SHOWN = {
    "sft": (("loss", "loss"), ("grad_norm", "gradient norm"), ("time/step", "s/step")),
    "rl": (
        ("reward/mean", "reward"),
        ("length/mean", "length"),
        ("length/truncated_share", "cut off"),
        ("entropy", "entropy"),
        ("zero_std_share", "no spread"),
        ("logprob_gap", "logprob gap"),
        ("time/step", "s/step"),
    ),
    "preference": (
        ("preference/accuracy", "pairs right"),
        ("preference/margin", "margin"),
        ("loss", "loss"),
        ("grad_norm", "gradient norm"),
        ("time/step", "s/step"),
    ),
    "off-policy": (
        ("reward/mean", "reward"),
        ("episode/success", "success"),
        ("value", "value"),
        ("entropy", "entropy"),
        ("off_policy/transitions", "remembered"),
        ("time/step", "s/step"),
    ),
    "recap": (
        ("reward/mean", "reward"),
        ("episode/success", "success"),
        ("recap/value_order", "value order"),
        ("loss", "loss"),
        ("recap/calls", "remembered"),
        ("time/step", "s/step"),
    ),
    "hg-dagger": (
        ("reward/mean", "reward"),
        ("episode/success", "success"),
        ("episode/intervened_share", "corrected"),
        ("loss", "loss"),
        ("hg_dagger/calls", "imitated"),
        ("time/step", "s/step"),
    ),
    "distill": (
        ("loss", "loss"),
        ("length/mean", "length"),
        ("entropy", "entropy"),
        ("grad_norm", "gradient norm"),
        ("time/step", "s/step"),
    ),
}
"""Stage kind -> (metric, its label); the first metric is drawn as a sparkline."""
BARS, ASCII_BARS = " ▁▂▃▄▅▆▇█", " _.:-=+*#"
"""Characters of a sparkline; the second set for terminals without Unicode."""
LABEL = 11
"""Columns of a line's label."""
ENDS = 24
"""Columns of the range beside a sparkline."""
EVALUATIONS = 4
"""Maximal number of tasks whose last evaluation is shown."""
ASKED_LINES, SAID_LINES = 2, 3
"""Maximal lines of a prompt and of its completion."""
END = 2000
"""Characters kept at each end of a prompt or completion."""
MARGIN = 2
"""Columns left free beside model output."""
COLOURS = dict(zip(PARTS, ("#76a3f5", "#d47731", "#40c19b", "#8170c7", "#9fa2b6", "#b56388", "#e2b642"), strict=True))
"""Part of a step's time -> its colour, as in the report's dark theme, under black letters."""
UNJOINED = dict.fromkeys((0x200C, 0x200D, *range(0xFE00, 0xFE10), 0x20E3, *range(0x1F3FB, 0x1F400), *range(0xE0000, 0xE0080)))
UNJOINED |= {0x1F1E6 + n: chr(ord("A") + n) for n in range(26)}
"""Translation table that removes characters which join others into one emoji, and writes flags as letters: most terminals don't
join them, so a line's width would be unknown."""
HINT = "Ctrl-C stops after this step and saves"
STOPPING = f"stopping after this step; {AGAIN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A rollout as text that is safe to print."""

    step: int
    of: str
    """Task and prompt id."""
    asked: str
    """The last message to the policy."""
    said: str
    """The completion without its thinking."""
    thinking: int
    """Characters of thinking."""
    outcome: str
    """Score and status."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Sample:
        """row: a row of the run folder's `rollouts/`."""
        score, thinking = row.get("score") or {}, thought(str(row.get("completion")))
        unscored = "episode lost" if score.get("status") == "lost" else "score failed"
        outcome = [f"score {value:.3g}" if is_finite(value := score.get("value")) else unscored]
        outcome += ["cut off"] if str(row.get("status")).startswith("truncated") else []
        outcome += ["gold completion"] if row.get("source") == "gold" else []
        return cls(
            step=row["step"],
            of=_clean(f"{row.get('task')} {row.get('prompt_id')}"),
            asked=_clean(_asked(row)),
            said=_clean(thinking[1]),
            thinking=len(thinking[0]),
            outcome=", ".join(outcome),
        )


def shown_metrics(kind: str) -> Sequence[tuple[str, str]]:
    """(metric, label) of what is shown of a stage of this kind, the most important first."""
    return SHOWN.get(kind, SHOWN["sft"])


@dataclass
class Seen:
    """The state of a run that the panel shows."""

    name: str
    pace: TimeEstimator
    title: str = ""
    """The stage in words; empty before the first stage."""
    history: deque[float] = field(default_factory=lambda: deque(maxlen=240))
    """Values of the first metric of `SHOWN` in this stage."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last step."""
    evaluated: tuple[int, Sequence[Any]] = (0, ())
    """(step, figures) of the last evaluation."""
    sample: Sample | None = None
    """A rollout of the last step that recorded rollouts."""
    stopping: bool = False
    """Whether the run ends after this step."""


def panel(seen: Seen, console: Console, now: float) -> Group:
    """The panel, with as many blocks as fit the console. now: time of the clock of `seen.pace`."""
    width = console.width - 1  # some terminals wrap a line that fills the last column
    plain = not console.encoding.startswith("utf")
    if not seen.title:
        return Group(_line(width, (seen.name, "bold"), "  starting, ", duration(now - seen.pace.began)))
    blocks = [
        (0, _where(seen, width, now, plain)),
        (2, [*_figures(seen, width), *_curve(seen, width, plain)]),
        (3, _evaluated(seen, width)),
        (4, _parts(seen, width)),
        (5, _sample(seen, width, console)),
        (1, [_hint(seen, width)]),
    ]
    return Group(*_fitted([(rank, lines) for rank, lines in blocks if lines], console.height))


def figure(values: Mapping[str, float], key: str) -> str:
    """A metric to display; a dash if the step did not measure it, such as the entropy of a step without an update."""
    return f"{values[key]:.3g}" if key in values else "–"


def sparkline(values: Sequence[float] | deque[float], bars: str = BARS) -> str:
    """The values as a row of bars, scaled from the lowest to the highest value."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    low = min(known)
    half = max(known) / 2 - low / 2 or 1.0  # the whole span of a run that diverges may be more than a number holds
    return "".join(bars[1 + round((v / 2 - low / 2) / half * (len(bars) - 2))] if math.isfinite(v) else " " for v in values)


# -- lines ----------------------------------------------------------------------------------------------------------------


def _fitted(blocks: Sequence[tuple[int, Sequence[Text]]], height: int) -> list[Text]:
    """The lines of (rank, lines) in order, with a blank line between blocks. In a low terminal blank lines are dropped first,
    from the bottom, then the blocks of the highest rank; the first line stays."""
    blocks, room = list(blocks), max(1, height - 1)  # the cursor needs a line below the panel, which must not scroll
    while len(blocks) > 1 and sum(len(lines) for _, lines in blocks) > room:
        blocks.remove(max(blocks, key=lambda block: block[0]))
    blank = room - sum(len(lines) for _, lines in blocks)
    return [line for n, (_, lines) in enumerate(blocks) for line in ([Text()] * (0 < n <= blank) + list(lines))][:room]


def _line(width: int, *parts: str | tuple[str, str] | Text) -> Text:
    line = Text.assemble(*parts, no_wrap=True, overflow="crop")
    line.truncate(width, overflow="crop")
    return line


def _labelled(width: int, label: str, *parts: str | tuple[str, str] | Text) -> Text:
    return _line(width, (f"{label:{LABEL}}", "dim"), *parts)


def _flow(cells: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Cells with equal numbers of lines side by side, in as many rows as needed."""
    lines: list[Text] = []
    row: list[Sequence[Text]] = []
    for cell in [*cells, None]:
        if cell is None or sum(c[0].cell_len for c in [*row, cell]) > width:
            lines += [_line(width, *same) for same in zip(*row, strict=True)]
            row = []
        row += [] if cell is None else [cell]
    return lines


def _hint(seen: Seen, width: int) -> Text:
    """The last line; it leaves room for the ^C that terminals echo."""
    return _line(width, (STOPPING, "bold yellow") if seen.stopping else (HINT, "dim"))


# -- blocks -------------------------------------------------------------------------------------------------------------------


def _where(seen: Seen, width: int, now: float, plain: bool) -> list[Text]:
    """Title, progress and remaining time of the stage, and of the run if it has several stages."""
    pace = seen.pace
    head = _line(width, (seen.name, "bold"), "  ", (seen.title, "cyan"), "  ")
    head.append(("-" if plain else "─") * (width - head.cell_len), "dim")
    rows = [("stage", pace.done, pace.steps, f"{duration(now - pace.entered)}{_left(pace.left(now))}")]
    if len(pace.stages) > 1:
        seconds, whole = pace.left_of_run(now) or (None, True)
        rows.append(("run", *pace.run_steps, f"{duration(now - pace.began)}{_left(seconds, whole)}"))
    counts = [f"{done}/{steps}" for _, done, steps, _ in rows]
    tails = [f" {n:>{max(map(len, counts))}}  {row[3]}" for n, row in zip(counts, rows, strict=True)]
    room = width - LABEL - max(map(len, tails))
    bars = [_bar(done / max(1, steps), room, plain) if room >= 5 else Text() for _, done, steps, _ in rows]
    return [head, *(_labelled(width, row[0], bar, tail) for row, bar, tail in zip(rows, bars, tails, strict=True))]


def _left(seconds: float | None, whole: bool = True) -> str:
    return "" if seconds is None else f", {'' if whole else 'over '}{duration(seconds)} left"


def _bar(share: float, width: int, plain: bool) -> Text:
    done = round(share * width)
    return Text.assemble((("#" if plain else "━") * done, "cyan"), (("." if plain else "─") * (width - done), "dim"))


def _figures(seen: Seen, width: int) -> list[Text]:
    """Labels and values of the metrics, in columns; in several rows of columns if the terminal is narrow."""
    shown = shown_metrics(seen.pace.kind)
    columns = [max(len(label) + 2, LABEL) for _, label in shown]
    if sum(columns) > width:
        columns = [max(columns)] * len(columns)
    cells = [
        (Text(f"{label:{n}}", "dim"), Text(f"{figure(seen.values, key):{n}}", "bold"))
        for (key, label), n in zip(shown, columns, strict=True)
    ]
    return _flow(cells, width) if seen.values else []


def _curve(seen: Seen, width: int, plain: bool) -> list[Text]:
    label = shown_metrics(seen.pace.kind)[0][1]
    last = list(seen.history)[-max(1, width - LABEL - ENDS) :]
    known = [v for v in last if math.isfinite(v)]
    if not known:
        return []
    ends = f"  {min(known):.3g} to {max(known):.3g}"
    return [_labelled(width, label, (sparkline(last, ASCII_BARS if plain else BARS), "cyan"), (ends, "dim"))]


def _evaluated(seen: Seen, width: int) -> list[Text]:
    """A line for each task's last evaluation, with the value first, since the end of a line may be cut off."""
    step, figures = seen.evaluated
    if not figures:
        return []
    when = f"after {count(step, 'step')} of the run" if step else "before any training"
    lines = [_labelled(width, "evaluated", f"{when}, 95% intervals")]
    for f in figures[:EVALUATIONS]:
        interval = f" ({interval_text(f.low, f.high)})  "
        name = _shortened(f"{f.task} {f.metric}", width - LABEL - len(f"{f.value:.3f}{interval}"))
        lines.append(_labelled(width, "", (f"{f.value:.3f}", "bold"), interval, name))
    if more := len(figures) - EVALUATIONS:
        lines += [_labelled(width, "", f"and {count(more, 'more task')}")] if more > 0 else []
    return lines


def _parts(seen: Seen, width: int) -> list[Text]:
    """A bar of the last step's time by part, and its legend."""
    seconds = {part: max(0.0, seen.values.get(f"time/{part}", 0.0)) for part in PARTS}
    total = sum(seconds.values())
    if not total:
        return []
    bar, start, at = Text(), 0, 0.0
    keys: list[Sequence[Text]] = []
    for part, spent in seconds.items():
        at += spent
        end = round(at / total * (width - LABEL))
        style = f"black on {COLOURS[part]}"
        bar.append(part[0] * (end - start), style)
        start = end
        if spent / total >= 0.005:
            keys.append([Text.assemble((part[0], style), f" {part} {spent / total:.0%}  ")])
    legend = _flow(keys, width - LABEL)
    return [_labelled(width, "time", bar), *(_labelled(width, "", line) for line in legend)]


def _sample(seen: Seen, width: int, console: Console) -> list[Text]:
    sample = seen.sample
    if sample is None:
        return []
    room = max(1, width - LABEL - MARGIN)
    step = f"  step {sample.step}, "
    name = _shortened(sample.of, room - len(sample.outcome) - len(step))
    lines = [_labelled(width, "rollout", (sample.outcome, "bold"), step, name)]
    note = f"({count(sample.thinking, 'character')} of thinking) " if sample.thinking else ""
    for label, before, text, most in (("asked", "", sample.asked, ASKED_LINES), ("said", note, sample.said, SAID_LINES)):
        whole = Text.assemble((before, "dim"), _shortened(text, max(8, (most * room - len(before)) * 7 // 8)))
        wrapped = whole.wrap(console, room, overflow="fold")[:most]
        lines += [_labelled(width, label if n == 0 else "", line) for n, line in enumerate(wrapped)]
    return lines


def _asked(row: Mapping[str, Any]) -> str:
    """The last message to the policy; its media as `[image]` and `[video]`."""
    messages = [m for m in row.get("messages") or [] if m.get("role") != "assistant"]
    content = messages[-1].get("content") if messages else ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return " ".join(str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]" for part in parts)


def _clean(text: str) -> str:
    """The start and end of a text on one line, without characters that control the terminal."""
    text = text if len(text) <= 2 * END else f"{text[:END]} ... {text[-END:]}"
    return visible(" ".join(text.split())).translate(UNJOINED)


def _shortened(text: str, columns: int) -> str:
    """The text, with its middle replaced by dots if it is wider than `columns`."""
    size = Text(text).cell_len
    if size <= columns:
        return text
    half = max(1, (columns - len(" ... ")) * len(text) // (2 * size))
    return f"{text[:half]} ... {text[-half:]}"
