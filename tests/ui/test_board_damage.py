"""Damaged and hostile run folders: pages and reports show the readable rest and one line for each error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from boards import board
from damage import HARM, damages, whole
from long_runs import write_run
from mmrl import UserError
from mmrl.testing.cases import mostly_slow
from mmrl.ui.board import pages, rollouts, run_queries, sections
from mmrl.ui.board.index import Index
from mmrl.ui.board.run_paths import NotFound, RunPaths, index_file
from mmrl.ui.board.search import Wanted
from mmrl.ui.board.state import state
from mmrl.ui.report.report import write_report


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    whole(tmp_path / "runs" / "odd")
    whole(tmp_path / "runs" / "sound")
    return tmp_path / "runs"


def show(run: Path, other: Path) -> str:
    """All pages and reports of a run; a UserError or an OSError gives its line, as on the page."""
    found = state(run.name, run)
    html = [pages.row(found)]
    index_file(run).unlink(missing_ok=True)
    for _ in range(2):  # without an index, then with one
        for part in (
            lambda: rollouts.listed(run.name, run, Wanted()),
            lambda: rollouts.listed(run.name, run, Wanted(sort="best")),
            lambda: rollouts.alone(run.name, run, "10.0")[1],
            lambda: sections.alarms(run.name, run),
            lambda: sections.episodes(run.name, run),
            lambda: sections.compare(run.name, run, other.name, other, ("last", "last"), []),
            lambda: sections.settings(run.name, run, other.name, other, []),
            lambda: str(run_queries.curves(run, found) | run_queries.series(run, ["reward/mean"], 0, 100, 50)) and "",
            lambda: write_report(run).read_text(),
        ):
            try:
                html.append(part())
            except (UserError, NotFound, OSError):
                continue
        index = Index(run, index_file(run))
        try:
            index.grow(5.0)
        finally:
            index.close()
    return "".join(html)


@pytest.mark.parametrize("part", mostly_slow(range(2), everyday=1))
def test_some_damages(runs: Path, part: int) -> None:
    _all_are_shown(runs, range(part * 31, 10**6, 149))


@pytest.mark.exhaustive  # ten minutes; some of them are tested above
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_all_damages(runs: Path, part: int) -> None:
    _all_are_shown(runs, range(part, 10**6, 4))


def _all_are_shown(runs: Path, chosen: range) -> None:
    seen = 0
    for n, (what, damage) in enumerate(damages(runs / "odd")):
        if n not in chosen and not what.endswith("restored"):
            continue
        damage()
        try:
            html = show(runs / "odd", runs / "sound")
        except Exception as error:
            error.add_note(what)
            raise
        seen += 1
        assert not [harm for harm in HARM if harm in html], what
    assert seen > 10


def test_pipes_and_links_in_place_of_files_are_not_read(runs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text((runs / "sound" / "rollouts" / "step-000010.jsonl").read_text().replace("cup", "SECRET"))
    for n, name in enumerate(("metrics.jsonl", "errors.jsonl", "summary.json", "rollouts/step-000010.jsonl")):
        for kind in ("pipe", "link"):
            run = whole(runs / f"{kind}-{n}")
            (run / name).unlink()
            if kind == "pipe":
                os.mkfifo(run / name)
            else:
                (run / name).symlink_to(secret)
    for part in ("rollouts", "evaluations", "episodes"):
        run = whole(runs / f"folder-{part}")
        (run / part).rename(tmp_path / part)
        (run / part).symlink_to(tmp_path / part)
    with board(runs, tmp_path / "caches") as served:
        listed = served.get("/")
        assert listed.code == 200 and 'data-run="sound"' in listed.text
        for run in sorted(runs.iterdir()):
            for path in ("/curves", "/rollouts", "/rollout", "/alarms", "/episodes", "/settings", "/text", "/api/curves"):
                fields = {"id": "10.0"} if path in ("/rollout", "/text") else {}
                answer = served.get(path, run=run.name, **fields)
                assert answer.code < 500 and "SECRET" not in answer.text, (run, path)
                if run.name.startswith("folder-"):
                    assert answer.code == 404 and "link" in answer.text
    for run in runs.iterdir():
        try:
            assert "SECRET" not in write_report(run).read_text()
        except UserError as error:
            assert "\n" not in str(error)


def test_one_run_that_cannot_be_read_hides_no_other(runs: Path, tmp_path: Path) -> None:
    os.rename(runs / "odd", os.fsencode(runs) + b"/o\xff")
    write_run(runs / "huge", 10, 10, 1, 1)
    with open(runs / "huge" / "metrics.jsonl", "a") as file:
        file.write('{"step": 11, "stage": "rl", "time": 44.0, "metrics": {"reward/mean": ' + "9" * 400 + "}}\n")
    assert RunPaths.of(runs).names() == ["huge", "sound"]
    with board(runs, tmp_path / "caches") as served:
        text = served.get("/").text
        assert 'data-run="sound"' in text and 'data-run="huge"' in text
        assert served.get("/curves", run="huge").code == 200
