"""The index of a run folder: it reads folders in any condition and drops rows that a resumed run took back."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from long_runs import rollout, write_run
from mmrl.run_folder.bounded import Budget
from mmrl.run_folder.writer import RunFolder
from mmrl.ui.board import sampled_curves, search
from mmrl.ui.board.column_store import CHUNK, Columns
from mmrl.ui.board.index import Index, read_lines
from mmrl.ui.board.search import Wanted


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "one", steps=40, every=10, groups=3, size=4)


def grown(run: Path, file: Path) -> Index:
    index = Index(run, file)
    while True:
        news = index.grow(5.0)
        if not (news.rows or news.steps or index.behind):
            return index


def series(index: Index, key: str, points: int = 800) -> list[float | None]:
    return index.columns.series([key], index.fact("rows"), 0, 1e9, points)[key].value


def test_it_has_what_the_files_have(run: Path, tmp_path: Path) -> None:
    index = grown(run, tmp_path / "i.sqlite")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["metrics"] for row in rows if "metrics" in row]
    assert set(index.columns.keys()) == {key for row in steps for key in row}
    for key in steps[0]:
        assert series(index, key) == [row[key] for row in steps]
    assert index.db.execute("SELECT count(*) FROM evals").fetchone()[0] == sum("eval" in row for row in rows)
    assert index.db.execute("SELECT count(*) FROM rollouts").fetchone()[0] == 4 * 3 * 4


def test_it_goes_on_where_it_was(run: Path, tmp_path: Path) -> None:
    grown(run, tmp_path / "i.sqlite").close()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 41, "stage": "rl", "time": 170.0, "metrics": {"kl": 9.0, "new": 1.0}}\n{"step": 42, "sta')
    index = Index(run, tmp_path / "i.sqlite")
    news = index.grow(5.0)
    assert [row["step"] for row in news.rows] == [41], "half a line waits for its end"
    assert series(index, "kl")[-1] == 9.0 and series(index, "new") == [None] * 40 + [1.0]
    with open(run / "metrics.jsonl", "a") as file:
        file.write('ge": "rl", "time": 174.0, "metrics": {"kl": null}}\n')
    assert [row["step"] for row in index.grow(5.0).rows] == [42]
    assert series(index, "kl")[-2:] == [9.0, None]


def test_a_resume_takes_back_what_came_after(run: Path, tmp_path: Path) -> None:
    index = grown(run, tmp_path / "i.sqlite")
    RunFolder(run).rewind(25)
    index.looked = 0.0
    index.pause = 0.0
    news = index.grow(5.0)
    assert news.again
    assert len(series(index, "kl")) == 25
    assert search.steps(index.db) == [10, 20]
    assert not search.search(index.db, Wanted(step=30), 10).groups


def test_a_new_file_is_known_by_what_it_has_and_not_only_by_its_inode(run: Path, tmp_path: Path) -> None:
    """A file that replaces the one that replaced this one may get this one's inode, and be longer by now."""
    index = grown(run, tmp_path / "i.sqlite")
    folder = RunFolder(run)
    folder.rewind(25)
    for step in range(26, 91):
        folder.metrics(step, "rl", {"kl": 9.0, **{f"padding/{n}": 1.0 for n in range(40)}})
    index._set(index.db, inode=(run / "metrics.jsonl").stat().st_ino)
    assert index.grow(5.0).again
    assert series(index, "kl")[25:] == [9.0] * 65


def test_another_run_of_the_same_name_begins_anew(run: Path, tmp_path: Path) -> None:
    grown(run, tmp_path / "i.sqlite").close()
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "started": "2030-01-01T00:00:00+00:00"}))
    index = Index(run, tmp_path / "i.sqlite")
    assert index.fact("rows") == 0
    index.close()
    (tmp_path / "i.sqlite").write_bytes(b"no database" * 1000)
    assert len(series(grown(run, tmp_path / "i.sqlite"), "kl")) == 40, "a broken index is made again"


def test_lines_that_can_not_be_read_are_counted_and_passed_over(run: Path, tmp_path: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[3:3] = ["{broken\n", "[1, 2]\n", '{"step": "x", "metrics": {}}\n', "\n", "[" * 100_000 + "\n"]
    (run / "metrics.jsonl").write_text("".join(lines))
    file = run / "rollouts" / "step-000010.jsonl"
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join([rows[0], '{"half": \n', *rows[1:]]))
    index = grown(run, tmp_path / "i.sqlite")
    assert len(series(index, "kl")) == 40
    assert index.fact("broken") == 4
    assert index.db.execute("SELECT rows, broken FROM files WHERE step = 10").fetchone() == (12, 1)
    found = search.members(index.db, run, search.search(index.db, Wanted(step=10, sort="oldest"), 1).groups[0], Budget())
    assert [line for line, _ in found] == [0, 2, 3, 4], "a rollout's number is its line's"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 2 * CHUNK), min_size=1, max_size=4), st.integers(2, 50), st.integers(0, 99))
@example([1, 1], 10, 2)  # a metric that comes with the second call
def test_columns_hold_every_value_however_they_grew(sizes: list[int], points: int, seed: int) -> None:
    chance = random.Random(seed)
    db = sqlite3.connect(":memory:")
    Columns.create(db)
    columns, rows = Columns(db), []
    for size in sizes:
        new = []
        for _ in range(size):
            step = len(rows) + len(new) + 1
            values = {key: chance.choice([chance.random(), None]) for key in ("a", "b") if chance.random() < 0.8}
            new.append({"step": step, "time": float(step), "metrics": values})
        columns.append(len(rows), new)
        rows += new
    for key in ("a", "b"):
        known = [row["metrics"].get(key) for row in rows]
        broken = [key in row["metrics"] and row["metrics"][key] is None for row in rows]
        whole = columns.series([key], len(rows), 1, len(rows), 10**9)[key]
        assert (whole.value, whole.gaps) == (known, [i for i, is_gap in enumerate(broken) if is_gap])
        assert "gaps" in whole.as_json() or not any(broken)
        few = columns.series([key], len(rows), 1, len(rows), points)[key]
        if few.low:
            assert len(few.value) == points and few.value[-1] == known[-1], "the newest value is shown as it is"
            finite = [v for v in known if v is not None]
            assert min((v for v in few.low if v is not None), default=None) == min(finite, default=None)
            assert max((v for v in few.high if v is not None), default=None) == max(finite, default=None)
            edges = [0, *few.step]
            for i, ((start, stop), value) in enumerate(zip(pairwise(edges), few.value, strict=True)):
                own = [v for v in known[start:stop] if v is not None]
                assert (i in few.gaps) == (not own and any(broken[start:stop]))
                assert (value is None) == (not own) and (value is None or math.isclose(value, sum(own) / len(own)))


def test_a_part_of_a_curve(run: Path, tmp_path: Path) -> None:
    index = grown(run, tmp_path / "i.sqlite")
    found = index.columns.series(["kl"], 40, 10, 20, 800)["kl"]
    assert found.step == list(range(9, 22)), "one more on each side, so that the curve leaves the picture"
    assert found.value == series(index, "kl")[8:21]


def test_a_sketch_of_a_long_run_is_spread_over_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", steps=8000, every=10**6, groups=1, size=1)
    rows = sampled_curves.sample_rows(run / "metrics.jsonl")
    steps = [row["step"] for row in rows if "metrics" in row]
    assert steps[0] == 1 and steps[-1] == 8000 and steps == sorted(set(steps))
    assert 300 < len(steps) < 500
    assert max(b - a for a, b in pairwise(steps)) < 50
    assert sampled_curves.sample_rows(tmp_path / "none.jsonl") == []
    few = [{"step": i, "time": 1.0, "metrics": m} for i, m in enumerate(({"kl": 1.0}, {}, {"kl": None}))]
    curve = sampled_curves.row_curves(few, ["kl"], 0, 9)["kl"]
    assert (curve.value, curve.gaps) == ([1.0, None, None], [2])


def test_what_is_asked_for_is_found(run: Path, tmp_path: Path) -> None:
    rows = [rollout(40, 0, m, None, random.Random(m)) for m in range(4)]
    rows[0] |= {
        "completion": 'the zebra\'s stripes, 30% of "them" AND more snake_case \u1980\u19b0x',
        "reward": 2.5,
        "status": "truncated-turns",
    }
    rows[1] |= {"score": {"value": None, "parts": {}, "status": "failed", "detail": "it raised"}, "reward": None}
    rows[2] |= {"source": "gold", "prompt_id": "mine"}
    (run / "rollouts" / "step-000040.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = grown(run, tmp_path / "i.sqlite")

    def hits(**wanted) -> set[tuple[int, int]]:
        return search.search(index.db, Wanted(**wanted), 100).hits

    for words in ("zebra", "ZEB", "zebra's stri", 'them" and', "30% zebra", "stripes zebra", "snake_ca", "\u1980\u19b0x"):
        assert hits(q=words) == {(40, 0)}, words
    for words in ("zebraa", "ebra", "zebra OR blue", "NEAR(zebra)", "*"):
        assert hits(q=words) == set(), words
    assert hits(status="failed") == {(40, 1)}
    assert hits(status="truncated", step=40) == {(40, 0)}
    assert hits(source="gold") == {(40, 2)} == hits(prompt="mine")
    assert hits(low=2.0) == {(40, 0)}
    assert hits(task="nothing", q="zebra") == set()
    assert search.count(index.db, Wanted(step=10)) == 12


@pytest.mark.parametrize("sort", search.SORTS)
def test_pages_show_every_group_once(run: Path, tmp_path: Path, sort: str) -> None:
    index, seen, after = grown(run, tmp_path / "i.sqlite"), [], ""
    while True:
        found = search.search(index.db, Wanted(sort=sort, after=after), 5)
        seen += found.groups
        if not (after := found.after):
            break
    assert sorted(seen) == sorted({(row[1], row[2], row[0]) for row in index.db.execute("SELECT task, step, grp FROM rollouts")})
    first = search.search(index.db, Wanted(sort=sort), 1)
    (step, _, _) = first.groups[0]
    rewards = [row["reward"] for _, row in search.members(index.db, run, first.groups[0], Budget())]
    assert {"newest": step == 40, "oldest": step == 10, "best": 1.0 in rewards, "worst": 0.0 in rewards}[sort]


def test_a_form_with_nonsense_asks_for_nothing() -> None:
    nonsense = {"step": "x", "low": "nan", "high": "1e999", "sort": "; DROP", "after": "[1]", "q": "  "}
    assert Wanted.of(nonsense) == Wanted(step=-1, after="[1]")
    assert Wanted.of({"low": "-1.5", "step": "30", "q": "a b", "status": "failed"}) == Wanted(
        low=-1.5, step=30, q="a b", status="failed"
    )


def test_a_line_longer_than_a_read(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"step": 1, "completion": "x" * (10 << 20)}) + "\n" + json.dumps({"step": 2}) + "\n")
    rows, broken, at = read_lines(file, 0)
    rows += read_lines(file, at)[0]
    assert [row["step"] for row in rows] == [1, 2] and not broken
