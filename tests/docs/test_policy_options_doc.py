"""The tables of options of policies in the docs are what the policies declare. `MMRL_UPDATE_DOCS=1` writes them anew."""

import json
import os
import re
from pathlib import Path

import pytest

from mmrl.registry import plugins
from mmrl.registry.importing import describe_hint, hints_of
from mmrl.ui.cli.options import Option, options_of

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(<!-- options: (?P<kind>\S+) -->\n\n)(?P<rows>(?:\|.*\n)*)")
PAGES = sorted(path for path in ROOT.glob("docs/*.md") if TABLE.search(path.read_text()))
ELSEWHERE = {"openai": "they are those of an endpoint, see docs/judge.md", "pi05": "those of pi0"}


def options(kind: str) -> list[Option]:
    spec = plugins.registry().get("policies", kind)
    return options_of("policies", spec, plugins.registry().target(spec))


def table(kind: str) -> str:
    hints = hints_of(plugins.registry().target(plugins.registry().get("policies", kind)))
    rows = ["| option | what it is | default | meaning |", "|---|---|---|---|"]
    for option in options(kind):
        default = "unset" if option.default is None else f"`{json.dumps(option.default)}`"
        cells = [
            f"`{option.name}`",
            describe_hint(hints[option.name]),
            "required" if option.required else default,
            option.meaning,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def tables() -> list[tuple[Path, str, str]]:
    """(page, kind, rows) of each table in the docs."""
    return [(page, found["kind"], found["rows"]) for page in PAGES for found in TABLE.finditer(page.read_text())]


def test_every_kind_with_options_has_a_table():
    kinds = [kind for kind in plugins.registry().specs("policies") if options(kind)]
    assert {kind for _, kind, _ in tables()} | ELSEWHERE.keys() == set(kinds)


def test_the_tables_are_what_the_policies_declare():
    if os.environ.get("MMRL_UPDATE_DOCS"):
        for page in PAGES:
            page.write_text(TABLE.sub(lambda found: found[1] + table(found["kind"]), page.read_text()))
    for page, kind, rows in tables():
        assert rows == table(kind), f"{page.name}: {kind}: run this file with MMRL_UPDATE_DOCS=1"


@pytest.mark.parametrize("kind", sorted({kind for _, kind, _ in tables()}))
def test_every_option_says_what_it_does(kind):
    assert [option.name for option in options(kind) if not option.meaning] == []


def test_options_of_pi05_are_those_of_pi0_but_for_the_layout():
    mine, other = ([option for option in options(kind) if option.name != "layout"] for kind in ("pi05", "pi0"))
    assert mine == other
