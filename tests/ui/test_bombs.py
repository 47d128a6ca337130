"""Run folders that are made to bring pages down: within bounds, and what is left out is said."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import bounds
from boards import board
from bombs import BOMBS, bombed, pictures
from damage import whole
from mmrl.run_folder import bounded, excerpt
from mmrl.testing.cases import mostly_slow, some_of
from mmrl.ui.board import app, live_updates, pages, run_paths, state
from mmrl.ui.board.index import Index
from mmrl.ui.board.live_updates import MOST, UpdateHub
from mmrl.ui.board.run_paths import RunPaths, index_file
from mmrl.ui.board.run_queries import curves
from mmrl.ui.report import media_sources
from mmrl.ui.report.media_sources import Decoding, EmbeddedMedia, LinkedMedia
from mmrl.ui.report.report import write_report


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


TRUE = [name for name in BOMBS if not name.startswith(("pipe ", "folder ", "link "))]
OFTEN = {
    *("sparse metrics.jsonl", "sparse rollouts/step-000010.jsonl", "long line", "many lines of lists", "many metrics"),
    *("rollouts in a line", "large group", "many animations", "deep run file", "linked folder"),
}
"""Bombs of which CI measures the pages, of every kind one or two."""


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(TRUE, OFTEN))
def test_pages_of_a_bomb_are_bounded(tmp_path: Path, name: str) -> None:
    run = bombed(tmp_path / "runs", name)
    cost = bounds.report(run)
    assert cost.texts["report"].startswith("0 "), cost.texts["report"][:500]
    assert cost.peak_mb < bounds.MEMORY_MB and cost.seconds < bounds.SECONDS
    cost = bounds.board(tmp_path / "runs", run.name, wait=2.0)
    assert cost.peak_mb < bounds.MEMORY_MB and cost.seconds < bounds.SECONDS, cost.slowest
    for page, text in cost.texts.items():
        assert text[0] in "24", f"{page}: {text[:500]}"
        assert page[:2] != "/ " or 'data-run="sound"' in text


SAID = {
    "sparse config.toml": "config.toml: it has 8.6 GB, and at most 1.0 MB are read",
    "sparse summary.json": "summary.json: it has 8.6 GB, and at most 17 MB are read",
    "pipe metrics.jsonl": "metrics.jsonl: it is no regular file",
    "link errors.jsonl": "errors.jsonl: Too many levels of symbolic links",
    "folder rollouts/step-000010.jsonl": "step-000010.jsonl: it is no regular file",
    "many metrics": "metrics.jsonl: 60 of 100 metrics are left out",
    "long line": "metrics.jsonl: 1 of 21 lines are left out, being too large (one may have 100 kB)",
    "line of lists": "metrics.jsonl: 1 of 21 lines can&#x27;t be read",
    "long key of the run file": "config.toml: a key has more than 40 parts",
    "deep run file": "config.toml: it has more than 64 levels of tables",
}
"""Bomb -> what the report says, with lower bounds."""


@pytest.mark.parametrize("name", SAID)
def test_the_report_says_what_it_leaves_out(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, bound, value in ((bounded, "LINE", 100_000), (excerpt, "LINE", 100_000), (excerpt, "METRICS", 40)):
        monkeypatch.setattr(module, bound, value) if not name.startswith("sparse") else None
    monkeypatch.setattr("mmrl.run_folder.validated.VALUES", 1000)
    run = bombed(tmp_path / "runs", name, 1.0 if name.startswith("sparse") else 0.005)
    page = write_report(run).read_text()
    assert 'class="card left-out"' in page and SAID[name] in page
    assert "left-out" not in write_report(run.parent / "sound").read_text()


# -- the list of runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, why",
    [
        ("sparse config.toml", "config.toml: it has 8.6 GB"),
        ("pipe metrics.jsonl", "metrics.jsonl: it is no regular file"),
        ("linked folder", "rollouts/ of bomb is a symbolic link"),
        ("long key of the run file", "config.toml: a key has more than 40 parts"),
        ("odd start", "0001-01-01"),
    ],
)
def test_a_fault_of_a_run_is_its_row(tmp_path: Path, name: str, why: str) -> None:
    bombed(tmp_path / "runs", name)
    states = [state.state_in_list(name, RunPaths.of(tmp_path / "runs")) for name in ("bomb", "sound")]
    html = pages.runs([found for found in states if found], "runs")
    assert why in html and html.count("<tr data-run=") == 2
    assert "unreadable" not in html.partition('<tr data-run="sound"')[2].partition("</tr>")[0]


def test_a_bug_about_a_run_is_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = whole(tmp_path / "runs" / "odd")
    found = state.state("odd", run)
    html = pages.runs([dataclasses.replace(found, step="x"), dataclasses.replace(found, name="sound")], "runs")  # type: ignore[arg-type]
    assert "a bug in the board: TypeError" in html and 'data-run="sound"' in html
    monkeypatch.setattr(state, "state", lambda name, path: {}["x"])
    odd = state.state_in_list("odd", RunPaths.of(run.parent))
    assert odd and odd.why == "a bug in the board: KeyError: 'x'"
    assert capsys.readouterr().err.count("Traceback") == 2, "the board's terminal has both"


def test_a_row_is_there_alone_too_and_for_runs_only(tmp_path: Path) -> None:
    bombed(tmp_path / "runs", "linked folder")
    whole(tmp_path / "outside")
    with board(tmp_path / "runs", tmp_path / "caches") as served:
        answer = served.get("/part/row", run="bomb")
        assert answer.code == 200 and "rollouts/ of bomb is a symbolic link" in answer.text
        for name in ("../outside", "none", "", "\0"):
            assert served.get("/part/row", run=name).code == 404


def test_of_many_runs_the_newest_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bombed(tmp_path / "runs", "many runs", 0.002)
    places = RunPaths.of(tmp_path / "runs")
    assert len(places.names()) == 22 and places.listed()[1] == ""
    monkeypatch.setattr(run_paths, "LISTED", 1)
    names, left_out = places.listed()
    assert names == ["sound"] and left_out.startswith("The newest 1 of 22 runs are listed")
    assert places.run("many-00000"), "the others have their pages"
    monkeypatch.setattr(run_paths, "FOLDERS", 10)
    assert "Only the first 10 folders were searched" in places.listed()[1]


def test_a_list_that_takes_long_comes_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        whole(tmp_path / "runs" / name)
    monkeypatch.setattr(app, "PATIENCE", 0.0)
    states, _ = app._states(app.Board(RunPaths.of(tmp_path / "runs")))
    assert [(found.name, found.state) for found in states] == [("a", "not read"), ("b", "not read")]


def test_a_state_is_read_again_when_a_file_changes(tmp_path: Path) -> None:
    run = whole(tmp_path / "run")
    assert state.state("run", run) is state.state("run", run)
    (run / "summary.json").unlink()
    assert state.state("run", run).state == "stopped"
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 11, "stage": "rl", "time": 44.0, "metrics": {f"m{n}": 1.0 for n in range(30_000)}}) + "\n")
    assert state.state("run", run).step == 11, "also of a line longer than the end that is read"


def test_of_many_tasks_the_list_keeps_some(tmp_path: Path) -> None:
    run = bombed(tmp_path / "runs", "many evaluations", 0.0005)
    found = state.state("bomb", run)
    assert (len(found.evals), found.more_evals) == (64, 36)
    assert "and 97 more tasks" in pages.row(found)


# -- the index ------------------------------------------------------------------------------------------------------------


def test_the_index_says_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excerpt, "METRICS", 10)
    run = bombed(tmp_path / "runs", "many metrics", 0.001)
    for _ in range(2):  # also when the index is opened again
        index = Index(run, index_file(run))
        index.grow(5.0)
        index.close()
        with open(run / "metrics.jsonl", "a") as file:
            file.write('{"half": \n')
    found = curves(run, state.state("bomb", run))
    assert len(found["keys"]) == 10
    assert found["left_out"] == [
        "metrics.jsonl: 10 of 20 metrics are left out",
        "metrics.jsonl: 1 lines can't be read, or are too large",
    ]


def test_the_index_ends_where_a_file_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmrl.ui.board.index.MOST_BYTES", 1000)
    run = bombed(tmp_path / "runs", "sparse metrics.jsonl")
    index = Index(run, index_file(run))
    index.grow(5.0)
    index.grow(5.0)
    assert not index.behind and index.fact("full") and len(index.columns.keys()) > 10
    index.close()
    assert "what follows the first" in curves(run, state.state("bomb", run))["left_out"][-1]


FAKE = """
import json, os, signal, sys
for line in sys.stdin:
    order = json.loads(line)
    for run in order["runs"]:
        if run == "bad":
            os.pwrite(int(sys.argv[2]), b'"bad"\\n', 0)
            os.write(1, b'{"kind": "rea')
            os.kill(os.getpid(), signal.SIGKILL)
        os.pwrite(int(sys.argv[2]), b'""\\n', 0)
        print(json.dumps({"kind": "ready", "run": run}), flush=True)
"""
"""An indexer that dies of a run while it writes a message."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpdateHub]:
    import sys

    monkeypatch.setattr(live_updates, "INDEXER", (sys.executable, "-c", FAKE))
    monkeypatch.setattr(live_updates, "AGAIN", 0.02)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    hub = UpdateHub(RunPaths(tmp_path))
    hub.loop = loop
    hub._watch()
    yield hub
    hub.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_run_that_the_indexer_dies_of_is_skipped(hub: UpdateHub) -> None:
    hub.ask("bad")
    end = time.monotonic() + 60
    while not hub.skipped("bad"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "died of this run 2 times" in hub.gone["bad"]
    hub.ask("good", 60.0)
    assert hub.ready["good"].is_set() and hub.process and hub.process.poll() is None
    began = time.monotonic()
    hub.ask("bad", 60.0)
    assert time.monotonic() - began < 30, "nobody waits for it"


def test_a_slow_page_is_told_to_reload_and_the_others_what_is_new(tmp_path: Path) -> None:
    hub = UpdateHub(RunPaths(tmp_path))
    slow, quick = asyncio.Queue[dict[str, Any]](), asyncio.Queue[dict[str, Any]]()
    hub.pages = {slow: frozenset({"x"}), quick: frozenset({"x"})}
    for _ in range(MOST):
        slow.put_nowait({"kind": "eval", "run": "x"})
    hub._tell({"kind": "eval", "run": "x", "row": {"step": 3}})
    assert [slow.get_nowait(), slow.qsize()] == [{"kind": "steps", "run": "x", "reload": True}, 0]
    assert quick.get_nowait() == {"kind": "eval", "run": "x", "row": {"step": 3}}


def test_a_skipped_run_is_tried_again_later(hub: UpdateHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.strikes["bad"] = [time.monotonic()] * 2
    assert hub.skipped("bad")
    monkeypatch.setattr(live_updates, "FORGIVEN", 0.0)
    assert not hub.skipped("bad")


@pytest.mark.parametrize("times", mostly_slow([1, 2], everyday=1))
def test_an_indexer_that_is_killed_is_started_again(tmp_path: Path, times: int) -> None:
    whole(tmp_path / "runs" / "run")
    with board(tmp_path / "runs", tmp_path / "caches") as served:
        served.indexed("run", 4)
        server = psutil.Process(served.process.pid)
        for _ in range(times):
            (indexer,) = server.children()
            os.kill(indexer.pid, signal.SIGKILL)
            end = time.monotonic() + 60
            while not [child for child in server.children() if child != indexer and child.status() != psutil.STATUS_ZOMBIE]:
                assert time.monotonic() < end
                time.sleep(0.05)
        whole(tmp_path / "runs" / "new")
        served.indexed("new", 4)


# -- media ----------------------------------------------------------------------------------------------------------------


def test_media_are_decoded_within_what_a_page_may_take(tmp_path: Path) -> None:
    pictures(run := whole(tmp_path / "run"), 3, 600)
    decoding = Decoding(pixels=2 * 600 * 600)
    shown = [EmbeddedMedia(run / "rollouts", 10**6, decoding).still(f"media/p{n}.png") for n in range(3)]
    assert [isinstance(still, str) for still in shown] == [False, False, True]
    assert shown[2] == "left out for time: media/p2.png"
    assert EmbeddedMedia(run / "rollouts", 10**6).still("media/p0.png", among=10_000) == "left out for size: media/p0.png"


def test_videos_are_decoded_once_and_within_what_a_page_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = whole(tmp_path / "run") / "episodes" / "step-000010"
    decoding = Decoding(pixels=12 * 48 * 48)
    shown = [LinkedMedia(folder, str, str, decoding).film(f"pick-{n}.webp") for n in range(2)]
    assert not isinstance(shown[0], str) and shown[0].count == 12 and shown[1] == "left out for time: pick-1.webp"
    monkeypatch.setattr(media_sources.webp, "decode_webp", None)
    assert LinkedMedia(folder, str, str).film("pick-0.webp") == shown[0]


def test_a_bomb_of_a_video_is_not_decoded(tmp_path: Path) -> None:
    run = bombed(tmp_path / "runs", "animation", 0.1)
    folder = run / "episodes" / "step-000010"
    assert (folder / "f0.webp").stat().st_size < 20_000
    for source in (EmbeddedMedia(folder, 10**6), LinkedMedia(folder, str, str)):
        assert source.film("f0.webp") == "not a video: f0.webp"
