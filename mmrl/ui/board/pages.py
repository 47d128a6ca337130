"""HTML of the board: the frame of every page, the list of runs, the form and list of rollouts, tables."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from mmrl.api.errors import shorten
from mmrl.run_folder.figures import unit_of
from mmrl.ui.board.search import SORTS, STATUSES, Wanted
from mmrl.ui.board.state import State, unreadable
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import count, duration, esc

TABS = (
    ("curves", "Curves"),
    ("rollouts", "Rollouts"),
    ("episodes", "Episodes"),
    ("alarms", "Alarms"),
    ("compare", "Compare"),
    ("settings", "Settings"),
)
NOTES = 20
"""Lines of a list of what is left out."""
KINDS = {"running": "live", "finished": "good", "failed": "bad", "stopped": "warn", "unreadable": "bad"}
"""State -> CSS class of its badge."""
COLUMNS = {
    "name": "Run",
    "state": "State",
    "progress": "Progress",
    "left": "Time",
    "eval": "Last evaluation",
    "reward": "Reward",
    "started": "Started",
}
"""Column of the list of runs -> its title. The time is what is left of a running run, of others what has passed."""


def page(kind: str, title: str, body: str, *, state: State | None = None, run: str = "") -> str:
    """A whole page. kind: one of the tabs, `runs` or `rollout`; body: HTML."""
    tabs = _tabs(kind, run, state.alarms if state else 0) if run else ""
    badge = f" {status(state)}" if state else ""
    name = f'<h1 id="title">{esc(title)}{badge}</h1>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{esc(title)} - mmrl board</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/page.css">
<link rel="stylesheet" href="/static/uplot/uPlot.min.css">
<link rel="stylesheet" href="/static/board.css">
<script src="/static/theme.js"></script>
</head>
<body data-page="{esc(kind)}" data-run="{esc(run)}">
<a class="skip" href="#main">Skip to the content</a>
<header class="top"><nav aria-label="board"><a class="brand" href="/">mmrl board</a>{tabs}</nav>
<div class="tools"><span id="live" role="status" aria-live="polite"></span>
<button type="button" id="keys" aria-label="keyboard shortcuts" title="keyboard shortcuts">?</button>
<button type="button" id="theme" aria-label="colours: as the system">auto</button></div></header>
<main id="main" tabindex="-1">{name}
{body}
</main>
<div id="tip" role="status" hidden></div>
<script type="module" src="/static/board.js"></script>
</body>
</html>
"""


def _tabs(kind: str, run: str, alarms: int) -> str:
    shown = {"rollout": "rollouts"}.get(kind, kind)
    links = []
    for tab, name in TABS:
        current = ' aria-current="page"' if tab == shown else ""
        number = f" <b>{alarms:,}</b>" if tab == "alarms" and alarms else ""
        links.append(f'<a href="{link("/" + tab, run=run)}"{current} data-tab="{tab}">{name}{number}</a>')
    return f'<span class="tabs-of-run">{"".join(links)}</span>'


def address(path: str, /, **fields: Any) -> str:
    """An address on the board with query fields; empty fields are left out."""
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def link(path: str, /, **fields: Any) -> str:
    """An address, escaped for an HTML attribute."""
    return esc(address(path, **fields))


def failure(what: str) -> str:
    """An error message as HTML, in place of the content."""
    return f'<p class="card failure" role="alert">{esc(what, 1000)}</p>'


def notes(lines: Sequence[str], most: int = NOTES) -> str:
    """Lines as an HTML list, such as what a page leaves out; empty without any. most: maximal number of lines."""
    unique = list(dict.fromkeys(lines))
    more = [f"and {len(unique) - most:,} more"] if len(unique) > most else []
    items = "".join(f"<li>{esc(line, 600)}</li>" for line in (*unique[:most], *more))
    return f'<ul class="notes">{items}</ul>' if items else ""


# -- the list of runs ---------------------------------------------------------------------------------------------------


def status(state: State) -> str:
    return f'<span class="status {KINDS.get(state.state, "warn")}">{esc(state.state)}</span>'


def runs(states: Sequence[State], folder: str, left_out: str = "") -> str:
    """The list of runs as HTML, newest first. left_out: what it does not have, as a sentence."""
    ordered = sorted(states, key=lambda state: state.started, reverse=True)
    empty = (
        "" if ordered else f'<p class="hint" id="none">No runs in {esc(folder, 300)} yet; a run appears here when it starts.</p>'
    )
    columns = "".join(
        f'<th scope="col" data-sort="{key}"><button type="button" class="sort">{name}</button></th>'
        for key, name in COLUMNS.items()
    )
    return (
        '<form id="choose" action="/curves" method="get"><div class="bar-of-tools">'
        '<label>Find <input type="search" id="find" autocomplete="off" placeholder="name, task or state"></label>'
        '<button type="submit" id="overlay" data-least="1">Overlay curves</button>'
        '<button type="submit" id="compare" formaction="/compare" data-exactly="2">Compare two</button></div>'
        f'<div class="card scroll"><table id="runs"><caption class="unseen">Runs in {esc(folder, 300)}</caption>'
        f'<thead><tr><th scope="col"><span class="unseen">Select</span></th>{columns}</tr></thead>'
        f"<tbody>{''.join(map(sound_row, ordered))}</tbody></table></div>{empty}{notes([left_out] if left_out else [])}</form>"
    )


def sound_row(state: State) -> str:
    """A run's row; of a run that cannot be shown the row that says so."""
    try:
        return row(state)
    except Exception as error:  # noqa: BLE001  one run must not break the list; its row shows the error
        traceback.print_exc()
        return row(unreadable(state.name, f"a bug in the board: {type(error).__name__}: {shorten(error)}"))


def row(state: State) -> str:
    """A run's row in the list, as HTML."""
    name = esc(state.name, 300)
    of = f" of {state.steps:,}" if state.steps else ""
    done = (
        f'<progress max="{state.steps}" value="{min(state.step, state.steps)}" aria-label="progress"></progress>'
        if state.steps
        else ""
    )
    why = f'<small class="why">{esc(_cut(state.why))}</small>' if state.why else ""
    tasks = ", ".join(state.tasks[:4]) + (" ..." if len(state.tasks) > 4 else "")
    alarms = f'<a href="{link("/alarms", run=state.name)}">{count(state.alarms, "warning")}</a>' if state.alarms else ""
    left = duration(state.left) if state.left is not None else ""
    sort = {
        "name": state.name, "state": state.state, "progress": state.step / state.steps if state.steps else 0,
        "left": (state.seconds if state.left is None else state.left) if state.step else None, "reward": state.reward,
        "eval": state.evals[0].get("value") if state.evals else None, "started": state.started,
    }  # fmt: skip
    by = {key: "" if value is None else esc(str(value)) for key, value in sort.items()}
    cells = {
        "name": f'<a href="{link("/curves", run=state.name)}">{name}</a><small>{esc(tasks, 200)}</small>',
        "state": f"{status(state)}{why}{f'<small>{alarms}</small>' if alarms else ''}",
        "progress": f"{done}<small>step {state.step:,}{of}{f', stage {esc(state.stage, 80)}' if state.stage else ''}</small>",
        "left": f"{left or duration(state.seconds)}<small>{'left' if left else 'elapsed'}</small>" if state.step else "",
        "eval": "".join(map(_evaluation, state.evals[:3]))
        + (f"<small>and {len(state.evals) - 3 + state.more_evals} more tasks</small>" if len(state.evals) > 3 else ""),
        "reward": "" if state.reward is None else number(state.reward),
        "started": f'<time datetime="{esc(state.started)}">{esc(_when(state.started))}</time>',
    }
    body = "".join(
        f'<td data-field="{key}" data-title="{COLUMNS[key]}" data-value="{by[key]}">{html}</td>' for key, html in cells.items()
    )
    box = f'<td><input type="checkbox" name="run" value="{esc(state.name)}" aria-label="select {name}"></td>'
    return f'<tr data-run="{esc(state.name)}">{box}{body}</tr>'


def _cut(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " ..."


def _evaluation(figure: Mapping[str, Any]) -> str:
    unit = unit_of(figure.get("metric", ""))
    value, low, high = (figure.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, int | float):
        return ""
    known = isinstance(low, int | float) and isinstance(high, int | float)
    interval = f"{number(low, unit)} to {number(high, unit)}" if known else "no interval"
    at = f", step {figure['step']:,}" if isinstance(figure.get("step"), int) else ""
    metric, task = (esc(figure.get(key, ""), 60) for key in ("metric", "task"))
    return f"<b>{number(value, unit)}</b> {metric}<small>{interval}, {task}{at}</small>"


def _when(started: str) -> str:
    try:
        return datetime.datetime.fromisoformat(started).astimezone(datetime.UTC).strftime("%d %b %Y, %H:%M UTC")
    except (ValueError, OverflowError):  # the first year east of Greenwich is before the first year
        return started[:40]


# -- rollouts -----------------------------------------------------------------------------------------------------------


def filters(run: str, wanted: Wanted, tasks: Sequence[str], statuses: Sequence[str], sources: Sequence[str]) -> str:
    """The form that filters rollouts, and the slider over steps, as HTML. tasks, statuses, sources: the options to offer."""

    def choice(name: str, label: str, options: Sequence[str], chosen: str, none: str) -> str:
        listed = "".join(f"<option{' selected' if value == chosen else ''}>{esc(value, 200)}</option>" for value in options)
        empty = f'<option value="">{none}</option>' if none else ""
        return f'<label>{label} <select name="{name}">{empty}{listed}</select></label>'

    def bound(name: str, label: str, value: float | None) -> str:
        shown = "" if value is None else f"{value:g}"
        return f'<input type="number" step="any" name="{name}" value="{shown}" aria-label="{label}" placeholder="{name}">'

    prompt = f'<input type="hidden" name="prompt" value="{esc(wanted.prompt)}">' if wanted.prompt else ""
    several = sum(status.startswith("truncated-") for status in statuses) > 1 or wanted.status == "truncated"
    known = [status for status in STATUSES if status != "truncated" or several]
    known += [status for status in statuses if status not in STATUSES]
    step = "" if wanted.step is None else str(wanted.step)
    return (
        f'<form id="filters" class="bar-of-tools" action="/rollouts" method="get">'
        f'<input type="hidden" name="run" value="{esc(run)}">{prompt}<label class="grow">Search <input type="search" name="q" '
        f'value="{esc(wanted.q)}" placeholder="words of prompt, completion or answer"></label>'
        f'<label>Step <input type="number" min="0" name="step" value="{step}" placeholder="any"></label>'
        f"{choice('task', 'Task', tasks, wanted.task, 'all')}{choice('status', 'Status', known, wanted.status, 'any')}"
        f"{choice('source', 'Source', sources, wanted.source, 'any')}"
        f"<fieldset><legend>Reward</legend>{bound('low', 'lowest reward', wanted.low)}<span>to</span>"
        f"{bound('high', 'highest reward', wanted.high)}</fieldset>"
        f'{choice("sort", "Order", SORTS, wanted.sort, "")}<button type="submit">Show</button></form>'
        f'<div class="steps" id="steps"><button type="button" id="earlier" aria-label="earlier step">&lsaquo;</button>'
        f'<input type="range" id="step" data-steps-url="{link("/api/steps", run=run)}" aria-label="recorded step">'
        '<button type="button" id="later" aria-label="later step">&rsaquo;</button>'
        '<output for="step" id="step-shown"></output></div>'
    )


def groups(cards: Sequence[str], run: str, wanted: Wanted, after: str, summary: str, legend: str = "") -> str:
    """A page of groups as HTML, with a link to the next page. cards: HTML of the groups. after: cursor of the next page. summary:
    the number of matching rollouts in words. legend: HTML of their marks."""
    fields = {name: getattr(wanted, name) for name in ("step", "task", "status", "source", "low", "high", "q", "prompt", "sort")}
    more = f'<a id="more" href="{link("/rollouts", run=run, **fields, after=after)}">More</a>' if after else ""
    empty = "" if cards or wanted.after else '<p class="hint" id="none">No matching rollouts.</p>'
    found = f'<p class="hint" id="found">{esc(summary)}</p>{legend}'
    return f'{found}<div id="groups" class="groups">{"".join(cards)}</div>{empty}{more}'


# -- settings -----------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table as HTML. heads, rows: cells as HTML. caption: plain text for screen readers."""
    head = "".join(f'<th scope="col">{title}</th>' for title in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="card scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table>'
        f'<caption class="unseen">{esc(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def other_run(path: str, run: str, other: str, names: Sequence[str], **fields: Any) -> str:
    """A form that selects a second run. path: its address. fields: hidden fields to keep."""
    options = "".join(f"<option{' selected' if name == other else ''}>{esc(name)}</option>" for name in names if name != run)
    hidden = "".join(f'<input type="hidden" name="{name}" value="{esc(str(value))}">' for name, value in fields.items() if value)
    return (
        f'<form class="bar-of-tools" action="{path}" method="get"><input type="hidden" name="run" value="{esc(run)}">{hidden}'
        f'<label>Compare with <select name="with"><option value="">no other run</option>{options}</select></label>'
        '<button type="submit">Show</button></form>'
    )
