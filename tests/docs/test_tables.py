"""The tables that docs/site/docs_tables.py writes are those of today, and the site's versions are as the selector reads them."""

from __future__ import annotations

import pytest

import docs_build
import docs_tables

OLD = "the table is old: python docs/site/docs_tables.py"


def test_the_table_of_versions_is_that_of_today():
    assert docs_tables.stored("versions") == docs_tables.versions(), OLD


def test_the_table_says_what_is_accepted_and_what_is_tested():
    table = docs_tables.versions()
    tested = docs_tables.pins(docs_tables.ROOT / "constraints.txt")
    assert f"| torch | train | >=2.11, <2.16 | {tested['torch']} |" in table
    assert "| lerobot | 0.6.1 | `tests/support/constraints-lerobot.txt` |" in table and "| verl | " in table
    assert docs_tables.pins(docs_tables.ROOT / "sims/maniskill/constraints.txt")["mani-skill"], "names are compared as pip does"


@pytest.mark.slow
def test_the_table_of_machines_is_that_of_the_plan(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    table = docs_tables.sizes()
    assert docs_tables.stored("sizes") == table, OLD
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| Qwen")]
    assert len(rows) == len(docs_tables.HOW) * len(docs_tables.MODELS)
    for model in {row[0] for row in rows}:
        needs = [_gib(row) for row in rows if row[0] == model]
        assert needs == sorted(needs), "4 bits need less than whole adapters, and these less than all weights"


def _gib(row: list[str]) -> int:
    return int(row[2].split()[0].replace(",", ""))


def test_the_selector_reads_the_versions_newest_first():
    assert docs_build.versions(["0.3", "0.2"]) == [
        {"version": "0.3", "title": "0.3", "aliases": ["latest"]},
        {"version": "0.2", "title": "0.2", "aliases": []},
    ]
