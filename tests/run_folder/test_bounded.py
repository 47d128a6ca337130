"""Bounds of what is read of a run folder that others wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bombs import bombed
from damage import whole
from mmrl import UserError
from mmrl.run_folder import bounded, excerpt, files, reader, validated
from mmrl.run_folder.bounded import Budget


@pytest.mark.parametrize(
    "size, text", [(0, "0 bytes"), (999, "999 bytes"), (1 << 20, "1.0 MB"), (12_345, "12 kB"), (8 << 30, "8.6 GB")]
)
def test_sizes_in_words(size, text):
    assert files.size_text(size) == text


def test_a_larger_file_is_not_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert files.contents(tmp_path / "x", 5) == files.contents(tmp_path / "x") == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, and at most 4 bytes are read") as told:
        files.contents(tmp_path / "x", 4)
    assert files.reason(told.value) == "x: it has 5 bytes, and at most 4 bytes are read"


def test_a_long_line_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded, "LINE", 10)
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"{}\n" + b"a" * 3_000_000 + b"\n" + b"b" * 10 + b"\n" + b"c" * 9 + b"\n" + b"d")
    found = list(bounded.lines(file))
    assert [line for _, _, line in found] == [b"{}\n", None, None, b"c" * 9 + b"\n", b"d"]
    assert [length for _, length, _ in found] == [3, 3_000_001, 11, 10, 1]
    assert [at for at, _, _ in found] == [0, 3, 3_000_004, 3_000_015, 3_000_025]
    assert list(bounded.lines(file, 3_000_015)) == found[3:]
    monkeypatch.setattr(bounded, "SCANNED", 5)
    assert [line for _, _, line in bounded.lines(file)] == [b"{}\n", None], "it ends early"
    monkeypatch.setattr(bounded, "LINES", 1)
    assert len(list(bounded.lines(file))) == 1


def test_a_budget_is_spent():
    budget = Budget(size=30, values=5)
    assert budget.take(b'{"a":[1,2]}') and (budget.size, budget.values) == (19, 2)
    assert not budget.take(b"[[],[]]") and budget.size == 12, "too many values, but it was read"
    assert budget.take(b"[1]") and not budget.take(b'"a text longer than that"')
    assert budget.refused == 2


@pytest.mark.parametrize("line", [b"[" * 100 + b"]" * 100, b'{"step": 1, "x": ' + b"[" * 70 + b"]" * 70 + b"}", b"[" * 10**5])
def test_deep_lines_are_no_rows(line):
    assert validated.parsed(line) is None


def test_a_line_of_too_many_values_is_no_row(monkeypatch):
    line = b'{"step": 1, "x": [1, 2, 3]}'
    assert validated.parsed(line)
    monkeypatch.setattr(validated, "VALUES", 4)
    assert validated.parsed(line) is None


@pytest.mark.parametrize("key", [".".join("a" * 41), " . ".join(['"a"', "'b'", "c"] * 20)])
def test_a_run_file_with_a_long_key_is_refused(tmp_path, key):
    for text in (f"{key} = 1", f"[{key}]", f"x = {{{key} = 1}}"):
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(ValueError, match=r"config\.toml: a key has more than 40 parts"):
            bounded.toml_table(tmp_path / "config.toml")


def test_a_run_file_with_texts_that_look_like_keys_is_read(tmp_path):
    text = "No word is a key. " * 100 + "." * 100
    (tmp_path / "config.toml").write_text(f'{".".join("a" * 40)} = "{text}"\nb = {[0.5] * 100}\n')
    assert bounded.toml_table(tmp_path / "config.toml")["b"] == [0.5] * 100


def test_messages_of_too_many_parts_say_so():
    part = {"type": "text", "text": "a"}
    messages = [{"role": "user", "content": [part] * n} for n in (300, 300, 50)]
    row = validated.row({"step": 1, "messages": messages})
    assert row is not None
    assert [len(message["content"]) for message in row["messages"]] == [300, 201]
    assert row["messages"][-1]["content"][-1]["text"] == "... 150 more parts of the messages are left out"
    assert validated.row({"step": 1, "messages": messages[:1]})["messages"] == messages[:1]


# -- excerpts -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return whole(tmp_path / "run")


def test_of_a_sound_run_nothing_is_left_out(run):
    found, all_of_it = excerpt.read_excerpt(run), reader.read_run(run)
    assert found.left_out == [] and found.every == 1
    assert [row["metrics"] for row in found.steps] == [row["metrics"] for row in all_of_it.steps]
    assert [row["step"] for row in found.evals] == [row["step"] for row in all_of_it.evals]
    for name in ("errors", "rollout_files", "item_files", "episode_folders"):
        assert getattr(found, name) == getattr(all_of_it, name)


def test_steps_of_a_long_run_are_spread_evenly(run, monkeypatch):
    monkeypatch.setattr(excerpt, "STEPS", 10)
    rows = [{"step": n, "stage": "rl", "time": 1.0, "metrics": {"a": n}} for n in range(1, 43)]
    eval = json.loads(next(line for line in (run / "metrics.jsonl").read_text().splitlines() if '"eval"' in line))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows[:20], eval, *rows[20:]]))
    found = excerpt.read_excerpt(run)
    assert [row["step"] for row in found.steps] == [1, 9, 17, 25, 33, 41, 42], "and the last one"
    assert found.every == 8 and len(found.evals) == 1
    assert found.left_out == ["metrics.jsonl: of 42 steps, one in 8 is shown"]


def test_metrics_beyond_the_first_are_left_out(run, monkeypatch):
    monkeypatch.setattr(excerpt, "METRICS", 3)
    rows = [{"step": 1, "stage": "rl", "time": 1.0, "metrics": {"x" * 400: 1, **{f"m{n}": n for n in range(5)}}}]
    (run / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    found = excerpt.read_excerpt(run)
    assert found.steps[0]["metrics"] == {"m0": 0, "m1": 1, "m2": 2}
    assert found.left_out == ["metrics.jsonl: 3 of 6 metrics are left out"]


def test_what_can_not_be_read_is_told_and_the_rest_is_there(run):
    for name in ("config.toml", "manifest.json"):
        (run / name).write_text("= [")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"half": \n{"step": 99, "st')
    (run / "summary.json").unlink()
    os.mkfifo(run / "summary.json")
    found = excerpt.read_excerpt(run)
    assert len(found.steps) == 10 and found.config["stages"] == []
    assert [line.partition(":")[0] for line in found.left_out] == [
        "metrics.jsonl",
        "config.toml",
        "manifest.json",
        "summary.json",
    ]
    assert found.left_out[0].endswith(" lines can't be read") and ": 1 of " in found.left_out[0], "the last line is still written"


def test_rows_within_a_budget(run):
    file = run / "rollouts" / "step-000010.jsonl"
    whole_rows = excerpt.rows(file, Budget(), left := [])
    assert len(whole_rows) == 4 and not left
    size = len(file.read_bytes().splitlines()[0])
    assert len(excerpt.rows(file, Budget(size=2 * size), left)) == 1
    assert "rollouts/step-000010.jsonl: 1 of 2 lines are left out" in left[0] and "at its end are left out" in left[1]
    assert excerpt.rows(run / "none.jsonl", Budget(), left) == [] and len(left) == 2


def test_the_last_errors_are_read(run, monkeypatch):
    monkeypatch.setattr(excerpt, "ERRORS", 100)
    rows = [{"step": n, "where": "rl", "what": "odd"} for n in range(100)]
    (run / "errors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = excerpt.read_excerpt(run)
    assert [row["step"] for row in found.errors] == [98, 99]
    assert found.left_out == ["errors.jsonl: the first 4.2 kB of 4.3 kB are left out"]


@pytest.mark.parametrize("name", ["config.toml", "manifest.json"])
def test_a_sparse_file_is_refused_before_it_is_read(tmp_path, name):
    run = bombed(tmp_path / "runs", f"sparse {name}")
    with pytest.raises(UserError, match=r"it has 8\.6 GB"):
        reader.read_run(run)


def test_items_beyond_the_bound_of_a_page_are_refused(run):
    file = run / "evaluations" / "step-000010.jsonl"
    assert reader.read_items(file, 1 << 20)
    with pytest.raises(UserError, match="and at most 100 bytes are read"):
        reader.read_items(file, 100)
    row = {**json.loads(file.read_text().splitlines()[0]), "x": [[]] * 20_000}
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match="more than 4,096 values"):
        reader.read_items(file, 1 << 17)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_in_place_of_the_temporary_one_is_not_written_to(tmp_path, kind):
    run = bombed(tmp_path / "runs", f"{kind} in place of the new report")
    files.replace_file(run / "report.html", b"new")
    assert (run / "report.html").read_bytes() == b"new"
    if kind == "link":
        assert (tmp_path / "precious.txt").read_text() == "precious"
