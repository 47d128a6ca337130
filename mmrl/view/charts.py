"""Which curves a report shows, in which order and with which words, and how they are filled from a run's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from mmrl.view.svg import Number, Series, limits, line_chart, number, stacked_chart
from mmrl.view.text import count, esc

MAX_SERIES = 8
"""Lines in one chart; the page has as many colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture of the catalogue: the metrics that belong in it and how to read it."""

    title: str
    keys: tuple[str, ...]
    """Patterns of metric keys; a metric is drawn by the first chart that names it."""
    hint: str
    unit: str = ""
    zero: bool = False
    spiky: bool = False
    """Rare wild values may leave the picture, with a note."""
    stacked: bool = False
    per_stage: bool = False
    """One chart for each stage, because the values can't be compared between stages."""
    several: bool = False
    """Say nothing when there is only one line: another chart shows it already."""


SECTIONS: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    (
        "Learning",
        (
            Chart(
                title="Reward",
                keys=("reward/mean",),
                zero=True,
                hint="Mean over the sampled completions. It should rise; the bold line is smoothed.",
            ),
            Chart(
                title="Spread of rewards",
                keys=("reward/std",),
                zero=True,
                hint="Standard deviation. Groups learn from their differences; near zero there is little left to learn.",
            ),
            Chart(
                title="Reward by part",
                keys=("reward/*",),
                zero=True,
                several=True,
                hint="What each verifier gave, before weighting. One part rising alone can mean that it is being gamed.",
            ),
            Chart(
                title="Reward by part, of each task",
                keys=("task/*/reward/*",),
                zero=True,
                several=True,
                hint="The same for each task: a part may be easy in one and out of reach in another.",
            ),
            Chart(
                title="Reward by task",
                keys=("task/*/reward",),
                zero=True,
                several=True,
                hint="A task that falls while others rise is paying for them.",
            ),
        ),
    ),
    (
        "Behaviour",
        (
            Chart(
                title="Completion length",
                keys=("length/mean", "length/max"),
                zero=True,
                hint="Tokens. A steady climb without more reward is padding.",
            ),
            Chart(
                title="Completion length by task", keys=("task/*/length",), zero=True, several=True, hint="Tokens, on average."
            ),
            Chart(
                title="Cut off",
                keys=("length/truncated_share",),
                unit="%",
                zero=True,
                hint="Share of episodes that met a limit, of length or turns. If it is high, raise it.",
            ),
            Chart(
                title="Entropy",
                keys=("entropy",),
                zero=True,
                hint="How undecided the policy is, in nats per token. Near zero it has stopped exploring.",
            ),
            Chart(
                title="Same answer to different prompts",
                keys=("answers/top_share",),
                unit="%",
                zero=True,
                hint="Share of groups whose commonest text is the commonest of all. Near 100% the picture no longer matters.",
            ),
            Chart(
                title="Success of episodes",
                keys=("episode/success", "episode/success_at_end"),
                unit="%",
                zero=True,
                hint="Sampled, so below what evaluations say of the likeliest actions. At the end: in the last state.",
            ),
            Chart(
                title="Steps of an episode",
                keys=("episode/steps",),
                zero=True,
                hint="Fewer for the same success is a shorter way.",
            ),
            Chart(title="Return", keys=("episode/return",), hint="What the simulator paid in an episode."),
            Chart(
                title="Parts of the task",
                keys=("episode/*",),
                zero=True,
                hint="How far each part was reached, at its best in an episode.",
            ),
            Chart(
                title="Turns",
                keys=("turns/mean",),
                zero=True,
                hint="Turns per episode. Fewer for the same reward is a shorter way.",
            ),
        ),
    ),
    (
        "Optimisation",
        (
            Chart(
                title="KL",
                keys=("kl",),
                zero=True,
                spiky=True,
                hint="From the reference; without one, from the weights that sampled, which is 0 with one epoch.",
            ),
            Chart(
                title="Weight of the KL penalty",
                keys=("kl_weight",),
                zero=True,
                hint="With kl_target it rises while the KL is above the target, and falls below.",
            ),
            Chart(
                title="Clipped tokens",
                keys=("clip_share",),
                unit="%",
                zero=True,
                hint="Share whose update was clipped. Above a fifth or so, steps are too large.",
            ),
            Chart(
                title="Groups without spread",
                keys=("zero_spread_share",),
                unit="%",
                zero=True,
                hint="All completions scored alike: nothing to learn from. Harder or easier prompts help.",
            ),
            Chart(
                title="Groups without spread, by task",
                keys=("task/*/zero_spread_share",),
                unit="%",
                zero=True,
                several=True,
                hint="A task near 100% costs time and teaches nothing.",
            ),
            Chart(
                title="Groups left out",
                keys=("sampling/left_out_share",),
                unit="%",
                zero=True,
                hint="Share of the sampled groups that the sampling rules dropped. At 100% the step trained on nothing.",
            ),
            Chart(
                title="Groups sampled",
                keys=("sampling/groups", "sampling/hinted", "sampling/ground_truth", "sampling/replayed"),
                zero=True,
                hint="In all, for those that are trained on; of them saved by a hint, with the gold completion, failed before.",
            ),
            Chart(
                title="Share of the prompts, by task",
                keys=("task/*/share",),
                unit="%",
                zero=True,
                several=True,
                hint="As the spread of their groups has weighted them; those that had failed before come on top.",
            ),
            Chart(
                title="Called positive",
                keys=("condition/positive_share",),
                unit="%",
                zero=True,
                hint="Share of the completions that were trained on as good ones. 0% means that all of a step were alike.",
            ),
            Chart(
                title="Loss",
                keys=("loss",),
                spiky=True,
                per_stage=True,
                hint="In SFT the cross-entropy, in distillation the divergence: it falls. In RL it hovers about zero.",
            ),
            Chart(
                title="Gradient norm",
                keys=("grad_norm",),
                zero=True,
                spiky=True,
                per_stage=True,
                hint="Before clipping. Rare spikes are normal, a rising floor is not.",
            ),
            Chart(title="Learning rate", keys=("learning_rate",), zero=True, per_stage=True, hint="As scheduled."),
        ),
    ),
    (
        "Critic",
        (
            Chart(
                title="Values", keys=("value",), hint="What the critic expects, on average. It should come to follow the reward."
            ),
            Chart(
                title="Value loss",
                keys=("value_loss",),
                zero=True,
                spiky=True,
                hint="Its error. It falls at first; while it is large, advantages are mostly noise.",
            ),
            Chart(
                title="Clipped values",
                keys=("value_clip",),
                unit="%",
                zero=True,
                hint="Share whose update was clipped. If it is high, the critic can't keep up.",
            ),
            Chart(
                title="Gradient norm of the critic",
                keys=("grad_norm/critic",),
                zero=True,
                spiky=True,
                hint="Of its own weights, before clipping.",
            ),
        ),
    ),
    (
        "Teacher and gold completions",
        (
            Chart(
                title="Divergence from the teacher",
                keys=("divergence",),
                zero=True,
                spiky=True,
                hint="Over the whole vocabulary, in nats per token. It should fall.",
            ),
            Chart(
                title="Weight of gold completions",
                keys=("imitation/weight",),
                zero=True,
                hint="Beside the sampled ones; the rest of the loss is the algorithm's.",
            ),
            Chart(
                title="Loss of gold completions",
                keys=("imitation/loss",),
                zero=True,
                spiky=True,
                hint="What they add to the loss, weighted.",
            ),
        ),
    ),
    (
        "Health and speed",
        (
            Chart(
                title="Sampler and learner disagree by",
                keys=("logprob_gap",),
                zero=True,
                spiky=True,
                hint="Difference of their log-probabilities for the same tokens. It belongs near zero.",
            ),
            Chart(
                title="Failed scores",
                keys=("judge/failed_share",),
                unit="%",
                zero=True,
                hint="A verifier raised or ran out of time. Those rollouts are left out, not counted as zero.",
            ),
            Chart(title="Seconds per step", keys=("time/*",), unit="s", stacked=True, hint="By part of the step."),
            Chart(
                title="Simulator steps a second",
                keys=("simulator/steps_per_s",),
                zero=True,
                hint="Of all environments together, while episodes are played.",
            ),
            Chart(
                title="Simulator and policy",
                keys=("simulator/busy_share", "policy/idle_share"),
                unit="%",
                zero=True,
                hint="Share of playing in which a simulator was stepped, and in which the policy waited for one.",
            ),
            Chart(
                title="Environments lost",
                keys=("simulator/lost",),
                zero=True,
                hint="They broke; their episodes were begun again. Anything but 0 needs a look at the simulator.",
            ),
        ),
    ),
)
PARTS = ("generate", "update", "judge", "process", "other", "evaluate")
"""Parts of the time, in the order of their colours."""
HIDDEN = ("time/step", "simulator/steps")  # the sum of what the stacked chart shows; what the speed is made of

Points = dict[str, list[tuple[float, Number]]]
"""Stage -> (step, value) in order."""


def table(steps: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Metric key -> its points by stage. Values that are not numbers become gaps."""
    found: dict[str, Points] = {}
    for row in steps:
        for key, value in row["metrics"].items():
            y = float(value) if isinstance(value, int | float) else None
            found.setdefault(key, {}).setdefault(row["stage"], []).append((row["step"], y))
    return found


def boundaries(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """(x, stage) wherever a stage follows another."""
    return [(after["step"] - 0.5, after["stage"]) for before, after in pairwise(steps) if before["stage"] != after["stage"]]


def stages(steps: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]] = ()) -> list[tuple[str, str, int]]:
    """(stage, algorithm or "", number of steps) in the order they ran. planned: the run file's stages, by which neighbours of
    one kind are told apart."""
    found: list[tuple[str, str, int]] = []
    at = 0
    for row in steps:
        stage = row["stage"]
        full = at + 1 < len(planned) and found and found[-1][2] == planned[at].get("steps")
        if not found or found[-1][0] != stage or (full and planned[at + 1].get("kind") == stage):
            at += bool(found)
            known = at < len(planned) and planned[at].get("kind") == stage == "rl"
            found.append((stage, str(planned[at].get("algorithm") or "") if known else "", 0))
        found[-1] = (*found[-1][:2], found[-1][2] + 1)
    return found


def curves(steps: Sequence[Mapping[str, Any]]) -> str:
    """All sections of charts that have data, as HTML; metrics outside the catalogue come last, each in a chart of its own."""
    metrics, marks = table(steps), boundaries(steps)
    one_task = sum(fnmatchcase(key, "task/*/zero_spread_share") for key in metrics) == 1  # what is said of it is said of all
    left = [key for key in metrics if key not in HIDDEN and not (one_task and key.startswith("task/"))]
    sections = []
    for title, charts in SECTIONS:
        cards = []
        for chart in charts:
            keys = [key for pattern in chart.keys for key in left if fnmatchcase(key, pattern)]
            if chart.stacked:
                keys.sort(key=lambda key: PARTS.index(part) if (part := key.partition("/")[2]) in PARTS else len(PARTS))
            left = [key for key in left if key not in keys]
            if keys and not (chart.several and len(keys) == 1):
                cards += _cards(chart, {key: metrics[key] for key in keys}, marks)
        sections.append((title, cards))
    cards = []
    for key in sorted(left):
        cards += _cards(Chart(title=key, keys=(key,), spiky=True, hint="Reported by a plugin."), {key: metrics[key]}, marks)
    sections.append(("Also reported", cards))
    return "".join(
        f'<section><h2>{title}</h2><div class="charts">{"".join(cards)}</div></section>' for title, cards in sections if cards
    )


def evaluation_card(
    evals: Sequence[Mapping[str, Any]], marks: Sequence[tuple[float, str]], settings: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """The evaluations over steps with their intervals, as a card; nothing when there are none. settings: `[evaluate]`."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in evals:
        one = row["eval"]
        by_name.setdefault(f"{one['task']} {one['metric']} ({one['split']})", []).append({"step": row["step"], **one})
    series: list[Series] = []
    for name, rows in list(by_name.items())[:MAX_SERIES]:
        low, high, ys = ([row.get(key) for row in rows] for key in ("low", "high", "value"))
        series.append(Series(name=name, xs=[row["step"] for row in rows], ys=ys, low=low, high=high, color=len(series) + 1))
    if not series:
        return ""
    unit = "%" if all(row["eval"]["metric"] == "accuracy" for row in evals) else ""
    svg = line_chart(series, unit=unit, height=240, boundaries=marks)
    samples, temperature = settings.get("samples", 1), settings.get("temperature", 0.0)
    asked = f"{count(samples, 'answer')} each at temperature {temperature:g}" if temperature else "greedy"
    return _card(
        "Evaluation",
        f"Held-out items, {asked}. The band is the 95% interval: overlapping bands are no progress yet.",
        series,
        unit,
        svg,
        [],
        len(by_name) - len(series),
    )


def _cards(chart: Chart, metrics: Mapping[str, Points], marks: Sequence[tuple[float, str]]) -> list[str]:
    names = list(dict.fromkeys(stage for points in metrics.values() for stage in points))
    if chart.per_stage and len(names) > 1:
        return [_chart_card(chart, f"{chart.title} ({name})", _series(metrics, [name]), marks) for name in names]
    return [_chart_card(chart, chart.title, _series(metrics, names), marks)]


def _series(metrics: Mapping[str, Points], names: Sequence[str]) -> list[Series]:
    found: list[Series] = []
    for key, points in metrics.items():
        rows = sorted((point for name in names for point in points.get(name, [])), key=lambda point: point[0])
        if rows:
            found.append(
                Series(
                    name=_name(key, len(metrics) > 1),
                    xs=[x for x, _ in rows],
                    ys=[y for _, y in rows],
                    color=len(found) % MAX_SERIES + 1,
                )
            )
    return found


def _chart_card(chart: Chart, title: str, series: list[Series], marks: Sequence[tuple[float, str]]) -> str:
    shown = series if chart.stacked else series[:MAX_SERIES]
    notes = []
    gaps = sum(y is None for s in shown for y in s.ys)
    if gaps:
        notes.append(f"{gaps} {'value is' if gaps == 1 else 'values are'} not a number")
    if chart.stacked:
        svg = stacked_chart(_aligned(shown), unit=chart.unit, boundaries=marks)
    else:
        svg = line_chart(shown, unit=chart.unit, zero=chart.zero, spiky=chart.spiky, boundaries=marks)
        values = [y for s in shown for y in s.ys if y is not None]
        low, high = limits(values, spiky=chart.spiky)
        if values and (max(values) > high or min(values) < low):
            wild = max(values) if max(values) > high else min(values)
            notes.append(f"reaches {number(wild, chart.unit)}, off the chart")
    return _card(title, chart.hint, shown, chart.unit, svg, notes, len(series) - len(shown))


def _aligned(series: Sequence[Series]) -> list[Series]:
    """The series over the union of their steps."""
    xs = sorted({x for s in series for x in s.xs})
    found = []
    for s in series:
        known = dict(zip(s.xs, s.ys, strict=True))
        found.append(Series(name=s.name, xs=xs, ys=[known.get(x) for x in xs], color=s.color))
    return found


def _card(title: str, hint: str, series: Sequence[Series], unit: str, svg: str, notes: Sequence[str], hidden: int) -> str:
    last = [next((y for y in reversed(s.ys) if y is not None), None) for s in series]
    figure, legend = "", ""
    if len(series) == 1:
        figure = f'<output title="latest value">{number(last[0], unit)}</output>'
    else:
        keys = "".join(
            f'<li><i class="key s{s.color}"></i><span>{esc(s.name)}</span><b>{number(y, unit)}</b></li>'
            for s, y in zip(series, last, strict=True)
        )
        more = f"<li>and {hidden} more, in metrics.jsonl</li>" if hidden > 0 else ""
        legend = f'<ul class="legend">{keys}{more}</ul>'
    note = "".join(f'<p class="note">{esc(text)}</p>' for text in notes)
    return (
        f'<figure class="card chart-card"><figcaption><h3>{esc(title)}</h3>{figure}<p>{esc(hint)}</p></figcaption>'
        f"{svg}{legend}{note}</figure>"
    )


def _name(key: str, several: bool) -> str:
    """The part of a metric key that tells it from its neighbours in the same chart."""
    if not several:
        return key
    head, _, rest = key.partition("/")
    if head != "task":
        return rest or key
    task, reward, part = rest.partition("/reward/")
    return f"{task}: {part}" if reward else rest.rpartition("/")[0]
