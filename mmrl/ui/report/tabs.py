"""Tabbed panels without a script; in print all panels are visible."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl.ui.report.text import esc


def tabs(key: str, word: str, panels: Sequence[tuple[str, str, str]], chosen: int) -> str:
    """Panels as HTML, of which the reader selects one by its tab. key: a letter unique on the page. word: the label before the
    tabs, such as "Step". panels: (tab, title, HTML). chosen: index of the panel shown first."""
    rules, radios, labels, bodies = [], [], [], []
    for i, (name, title, body) in enumerate(panels):
        tab, panel = f"{key}-tab-{i}", f"{key}-panel-{i}"
        checked = " checked" if i == chosen else ""
        rules.append(
            f"#{tab}:checked~#{panel}{{display:block}}"
            f"#{tab}:checked~.tabs [for={tab}]{{background:var(--ink);color:var(--card)}}"
            f"#{tab}:focus-visible~.tabs [for={tab}]{{outline:2px solid var(--c1);outline-offset:2px}}"
        )
        radios.append(f'<input type="radio" name="{key}" id="{tab}"{checked} aria-label="{esc(title)}">')
        labels.append(f'<label for="{tab}">{esc(name)}</label>')
        bodies.append(f'<div class="panel" id="{panel}"><h3 class="panel-title">{esc(title)}</h3>{body}</div>')
    row = f'<div class="tabs" aria-hidden="true"><span>{esc(word)}</span>{"".join(labels)}</div>'
    return f'<div class="tabbed"><style>{"".join(rules)}</style>{"".join(radios)}{row}{"".join(bodies)}</div>'
