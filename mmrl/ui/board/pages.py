"""The board's pages as HTML, and the parts of them that are fetched again."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from mmrl.ui.board.search import SORTS, STATUSES, Wanted
from mmrl.ui.board.state import State
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
KINDS = {"running": "live", "finished": "good", "failed": "bad", "stopped": "warn", "unreadable": "bad"}
"""State -> how its badge looks."""


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
        told = f" <b>{alarms:,}</b>" if tab == "alarms" and alarms else ""
        links.append(f'<a href="{link("/" + tab, run=run)}"{current} data-tab="{tab}">{name}{told}</a>')
    return f'<span class="tabs-of-run">{"".join(links)}</span>'


def address(path: str, /, **fields: Any) -> str:
    """An address on the board; empty fields are left out."""
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def link(path: str, /, **fields: Any) -> str:
    """The same in an attribute."""
    return esc(address(path, **fields))


def failure(what: str) -> str:
    """In the place of what can't be shown."""
    return f'<p class="card failure" role="alert">{esc(what, 1000)}</p>'


# -- the list of runs ---------------------------------------------------------------------------------------------------


def status(state: State) -> str:
    return f'<span class="status {KINDS.get(state.state, "warn")}">{esc(state.state)}</span>'


def runs(states: Sequence[State], folder: str) -> str:
    """The list, the newest first."""
    ordered = sorted(states, key=lambda one: one.started, reverse=True)
    empty = (
        ""
        if ordered
        else f'<p class="hint" id="none">There is no run in {esc(folder, 300)} yet; it appears here when it begins.</p>'
    )
    heads = (
        ("name", "Run"), ("state", "State"), ("progress", "Progress"), ("left", "Time left"),
        ("eval", "Last evaluation"), ("reward", "Reward"), ("started", "Begun"),
    )  # fmt: skip
    columns = "".join(
        f'<th scope="col" data-sort="{key}"><button type="button" class="sort">{name}</button></th>' for key, name in heads
    )
    return (
        '<form id="choose" action="/curves" method="get"><div class="bar-of-tools">'
        '<label>Find <input type="search" id="find" autocomplete="off" placeholder="name, task or state"></label>'
        '<button type="submit" id="overlay" data-least="1">Overlay curves</button>'
        '<button type="submit" id="compare" formaction="/compare" data-exactly="2">Compare two</button></div>'
        f'<div class="card scroll"><table id="runs"><caption class="unseen">Runs in {esc(folder, 300)}</caption>'
        f'<thead><tr><th scope="col"><span class="unseen">Choose</span></th>{columns}</tr></thead>'
        f"<tbody>{''.join(map(row, ordered))}</tbody></table></div>{empty}</form>"
    )


def row(state: State) -> str:
    """A run in the list."""
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
        "left": "" if state.left is None else state.left, "eval": state.evals[0].get("value") if state.evals else "",
        "reward": "" if state.reward is None else state.reward, "started": state.started,
    }  # fmt: skip
    cells = {
        "name": f'<a href="{link("/curves", run=state.name)}">{name}</a><small>{esc(tasks, 200)}</small>',
        "state": f"{status(state)}{why}{f'<small>{alarms}</small>' if alarms else ''}",
        "progress": f"{done}<small>step {state.step:,}{of}{f', stage {esc(state.stage, 80)}' if state.stage else ''}</small>",
        "left": f"{left or duration(state.seconds)}<small>{'left' if left else 'taken'}</small>" if state.step else "",
        "eval": "".join(map(_evaluation, state.evals[:3]))
        + (f"<small>and {len(state.evals) - 3} more tasks</small>" if len(state.evals) > 3 else ""),
        "reward": "" if state.reward is None else number(state.reward),
        "started": f'<time datetime="{esc(state.started)}">{esc(_when(state.started))}</time>',
    }
    titles = {
        "name": "Run",
        "state": "State",
        "progress": "Progress",
        "left": "Time",
        "eval": "Last evaluation",
        "reward": "Reward",
        "started": "Begun",
    }
    body = "".join(
        f'<td data-field="{key}" data-title="{titles[key]}" data-value="{esc(str(sort[key]))}">{html}</td>'
        for key, html in cells.items()
    )
    box = f'<td><input type="checkbox" name="run" value="{esc(state.name)}" aria-label="choose {name}"></td>'
    return f'<tr data-run="{esc(state.name)}">{box}{body}</tr>'


def _cut(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " ..."


def _evaluation(one: Mapping[str, Any]) -> str:
    unit = "%" if one.get("metric") == "accuracy" else ""
    value, low, high = (one.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, int | float):
        return ""
    known = isinstance(low, int | float) and isinstance(high, int | float)
    interval = f"{number(low, unit)} to {number(high, unit)}" if known else "no interval"
    at = f", step {one['step']:,}" if isinstance(one.get("step"), int) else ""
    return f"<b>{number(value, unit)}</b><small>{interval}, {esc(one.get('task', ''), 60)}{at}</small>"


def _when(started: str) -> str:
    try:
        return datetime.datetime.fromisoformat(started).astimezone(datetime.UTC).strftime("%d %b %Y, %H:%M UTC")
    except ValueError:
        return started[:40]


# -- rollouts -----------------------------------------------------------------------------------------------------------


def filters(run: str, wanted: Wanted, tasks: Sequence[str], statuses: Sequence[str], sources: Sequence[str]) -> str:
    """What rollouts are chosen by."""

    def choice(name: str, label: str, options: Sequence[str], chosen: str, none: str) -> str:
        listed = "".join(f"<option{' selected' if one == chosen else ''}>{esc(one, 200)}</option>" for one in options)
        empty = f'<option value="">{none}</option>' if none else ""
        return f'<label>{label} <select name="{name}">{empty}{listed}</select></label>'

    def bound(name: str, label: str, value: float | None) -> str:
        shown = "" if value is None else f"{value:g}"
        return f'<input type="number" step="any" name="{name}" value="{shown}" aria-label="{label}" placeholder="{name}">'

    prompt = f'<input type="hidden" name="prompt" value="{esc(wanted.prompt)}">' if wanted.prompt else ""
    several = sum(one.startswith("truncated-") for one in statuses) > 1 or wanted.status == "truncated"
    known = [one for one in STATUSES if one != "truncated" or several]
    known += [one for one in statuses if one not in STATUSES]
    step = "" if wanted.step is None else str(wanted.step)
    return (
        f'<form id="filters" class="bar-of-tools" action="/rollouts" method="get">'
        f'<input type="hidden" name="run" value="{esc(run)}">{prompt}<label class="grow">Search <input type="search" name="q" '
        f'value="{esc(wanted.q)}" placeholder="words said, asked or answered"></label>'
        f'<label>Step <input type="number" min="0" name="step" value="{step}" placeholder="any"></label>'
        f"{choice('task', 'Task', tasks, wanted.task, 'all')}{choice('status', 'Status', known, wanted.status, 'any')}"
        f"{choice('source', 'Written by', sources, wanted.source, 'anybody')}"
        f"<fieldset><legend>Reward</legend>{bound('low', 'lowest reward', wanted.low)}<span>to</span>"
        f"{bound('high', 'highest reward', wanted.high)}</fieldset>"
        f'{choice("sort", "First", SORTS, wanted.sort, "")}<button type="submit">Show</button></form>'
        f'<div class="steps" id="steps"><button type="button" id="earlier" aria-label="earlier step">&lsaquo;</button>'
        f'<input type="range" id="step" data-steps-url="{link("/api/steps", run=run)}" aria-label="recorded step">'
        '<button type="button" id="later" aria-label="later step">&rsaquo;</button>'
        '<output for="step" id="step-shown"></output></div>'
    )


def groups(cards: Sequence[str], run: str, wanted: Wanted, after: str, said: str, legend: str = "") -> str:
    """A page of groups, and the link to the next. said: what is known of how many there are. legend: HTML, of their marks."""
    fields = {name: getattr(wanted, name) for name in ("step", "task", "status", "source", "low", "high", "q", "prompt", "sort")}
    more = f'<a id="more" href="{link("/rollouts", run=run, **fields, after=after)}">More</a>' if after else ""
    empty = "" if cards or wanted.after else '<p class="hint" id="none">No rollout fits.</p>'
    found = f'<p class="hint" id="found">{esc(said)}</p>{legend}'
    return f'{found}<div id="groups" class="groups">{"".join(cards)}</div>{empty}{more}'


# -- settings -----------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Cells are HTML."""
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="card scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table>'
        f'<caption class="unseen">{esc(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def other_run(path: str, run: str, other: str, names: Sequence[str], **fields: Any) -> str:
    """A form that chooses the run to put beside this one."""
    options = "".join(f"<option{' selected' if one == other else ''}>{esc(one)}</option>" for one in names if one != run)
    hidden = "".join(f'<input type="hidden" name="{name}" value="{esc(str(value))}">' for name, value in fields.items() if value)
    return (
        f'<form class="bar-of-tools" action="{path}" method="get"><input type="hidden" name="run" value="{esc(run)}">{hidden}'
        f'<label>Beside <select name="with"><option value="">no other run</option>{options}</select></label>'
        '<button type="submit">Show</button></form>'
    )
