"""The tables of options in the docs are what policies and verifiers declare. `MMRL_UPDATE_DOCS=1` writes them anew."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mmrl.api.annotations import describe_hint, hints_of
from mmrl.registry import plugins
from mmrl.ui.cli.options import Option, options_of

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(<!-- options: (?P<kind>\w+) (?P<id>\S+) -->\n\n?)(?P<rows>(?:\|.*\n)*)")
PAGES = sorted(path for path in ROOT.glob("docs/*.md") if TABLE.search(path.read_text()))


def target(kind: str, id: str) -> Any:
    return plugins.registry().target(plugins.registry().get(kind, id))


def options(kind: str, id: str) -> list[Option]:
    return options_of(kind, plugins.registry().get(kind, id), target(kind, id))


def table(kind: str, id: str) -> str:
    hints = hints_of(target(kind, id))
    rows = ["| option | what it is | default | meaning |", "|---|---|---|---|"]
    for option in options(kind, id):
        default = "unset" if option.default is None else f"`{json.dumps(option.default)}`"
        cells = [
            f"`{option.name}`",
            describe_hint(hints[option.name]),
            "required" if option.required else default,
            option.meaning,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def tables() -> list[tuple[Path, str, str, str]]:
    """(page, kind, id, rows) of each table in the docs."""
    return [(page, found["kind"], found["id"], found["rows"]) for page in PAGES for found in TABLE.finditer(page.read_text())]


def test_every_policy_with_options_has_a_table():
    """pi0.5 has pi0's, see below."""
    ids = {id for id in plugins.registry().specs("policies") if options("policies", id)}
    assert {id for _, kind, id, _ in tables() if kind == "policies"} == ids - {"pi05"}


def test_the_tables_are_what_is_declared():
    if os.environ.get("MMRL_UPDATE_DOCS"):
        for page in PAGES:
            begun = (found[1].rstrip() + "\n\n" + table(found["kind"], found["id"]) for found in TABLE.finditer(page.read_text()))
            page.write_text(TABLE.sub(lambda _, begun=begun: next(begun), page.read_text()))
    for page, kind, id, rows in tables():
        assert rows == table(kind, id), f"{page.name}: {id}: run this file with MMRL_UPDATE_DOCS=1"


@pytest.mark.parametrize(("kind", "id"), sorted({(kind, id) for _, kind, id, _ in tables()}))
def test_every_option_says_what_it_does(kind, id):
    assert [option.name for option in options(kind, id) if not option.meaning] == []


def test_options_of_pi05_are_those_of_pi0_but_for_the_layout():
    mine, other = ([option for option in options("policies", id) if option.name != "layout"] for id in ("pi05", "pi0"))
    assert mine == other
