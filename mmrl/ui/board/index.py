"""The index of a run folder: an SQLite file with its metrics by column and the places and texts of its rollouts, so that every
row is parsed only once.

An index is a cache and may be removed at any time. The indexer process (`watching`) fills it while other processes read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.run_folder.bounded import CONFIG, LINE, Budget, lines
from mmrl.run_folder.excerpt import MetricNames
from mmrl.run_folder.files import open_regular_file, size_text
from mmrl.run_folder.reader import step_entries
from mmrl.run_folder.validated import parsed
from mmrl.ui.board.column_store import Columns, number

VERSION = 6
"""Version of the tables below: an index of another version is rebuilt."""
READ = 4 << 20
"""Bytes that are read from a file in one call."""
MARK = 4096
"""Bytes before the place up to which `metrics.jsonl` is indexed that tell whether it is still the same file."""
MOST_BYTES, MOST_ROWS, MOST_EVALS = 8 << 30, 2_000_000, 50_000
"""Bytes of `metrics.jsonl`, rows of steps, and evaluations, from which on no more are indexed."""
EVAL = 4000
"""Largest number of characters of an evaluation; of a larger one the further figures are left out."""
ROLLOUTS, STEP_VALUES, BATCH = 20_000, 4_000_000, 500
"""Largest number of rollouts of a step that are indexed, and of values in them; number of rollouts that are written at once."""
SEARCHED, WORDS = 4000, 20_000
"""Searchable characters of a completion, of a message of the prompt a quarter of it; and of a rollout in all."""

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value);
CREATE TABLE evals (step INTEGER, task TEXT, split TEXT, metric TEXT, row TEXT, PRIMARY KEY (step, task, split, metric));
CREATE TABLE kinds (name TEXT, value TEXT, PRIMARY KEY (name, value)) WITHOUT ROWID;
CREATE TABLE files (step INTEGER PRIMARY KEY, size INTEGER, changed INTEGER, rows INTEGER, broken INTEGER);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, step INTEGER, line INTEGER, offset INTEGER, length INTEGER, task TEXT, prompt TEXT, grp INTEGER,
    status TEXT, source TEXT, reward REAL, advantage REAL, tokens INTEGER, failed INTEGER, said INTEGER
);
CREATE UNIQUE INDEX by_place ON rollouts (step, line);
CREATE INDEX by_reward ON rollouts (reward, step, grp);
CREATE VIRTUAL TABLE words USING fts5 (text, content='', detail=none);
"""


@dataclass(slots=True)
class News:
    """New rows of a run folder."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """New rows of `metrics.jsonl`: steps and evaluations."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """New rows of `errors.jsonl`."""
    steps: list[int] = field(default_factory=list)
    """Steps whose rollouts were indexed."""
    again: bool = False
    """Whether earlier rows are invalid because the run resumed at an earlier step or was replaced."""


class Index:
    """The index of one run, open for writing. It is rebuilt when the run folder contains another run than before."""

    def __init__(self, run: Path, file: Path) -> None:
        self.run, self.file = run, file
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.db = self._opened()
        except sqlite3.DatabaseError:  # damaged by a full disk or a kill: rebuild it
            _remove(file)
            self.db = self._opened()
        self.columns = Columns(self.db)
        self.names = MetricNames(set(self.columns.keys()), self.fact("names_left"))
        self.looked, self.pause = 0.0, 0.0
        self.waiting: list[tuple[int, int, int]] = []
        """(step, size, modification time) of files of rollouts that are not indexed yet, oldest first."""

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.file, timeout=30, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        known = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name = 'facts'")}
        facts = dict(db.execute("SELECT name, value FROM facts")) if known else {}
        if facts.get("version") == VERSION and facts.get("run") == self._identity():
            return db
        if known:
            db.close()
            _remove(self.file)
            return self._opened()
        with _whole(db):
            for statement in _TABLES.strip().split(";\n"):
                db.execute(statement)
            Columns.create(db)
            self._set(db, version=VERSION, run=self._identity(), errors_at=0, inode=0, next=1, **_NOTHING)
        return db

    def _identity(self) -> str:
        """A text that differs between runs of the same name: a checksum of the manifest, or of its beginning."""
        with open_regular_file(self.run / "manifest.json") as file:
            return hashlib.sha256(file.read(CONFIG)).hexdigest()

    @staticmethod
    def _set(db: sqlite3.Connection, **facts: Any) -> None:
        db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def fact(self, name: str) -> Any:
        return self.db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]

    def close(self) -> None:
        self.db.close()

    def grow(self, seconds: float) -> News:
        """Index new rows for about `seconds`, metrics first. Raises OSError if the folder has vanished."""
        end, news = time.monotonic() + seconds, News()
        with _whole(self.db):
            self._grow_metrics(news, end)
            self._grow_errors(news)
        with _whole(self.db):
            self._grow_rollouts(news, end)
        return news

    @property
    def behind(self) -> bool:
        """Whether there is more to index now."""
        return bool(self.waiting) or (not self.fact("full") and self._size("metrics.jsonl") - self.fact("at") > READ)

    def _size(self, name: str) -> int:
        try:
            return (self.run / name).stat().st_size
        except FileNotFoundError:
            return 0

    # -- metrics --------------------------------------------------------------------------------------------------------

    def _grow_metrics(self, news: News, end: float) -> None:
        path, at = self.run / "metrics.jsonl", self.fact("at")
        try:
            about = path.stat()
        except FileNotFoundError:
            if not self.run.is_dir():
                raise
            return
        inode = self.fact("inode")
        other = about.st_size < at or (inode and inode != about.st_ino)
        if not other and 0 < at < about.st_size:  # after two resumes the new file may have the old inode
            other = self._mark(path, at) != self.fact("mark")
        if other:  # a run that resumes at an earlier step rewrites the file
            for table in ("columns", "evals"):
                self.db.execute(f"DELETE FROM {table}")
            self._set(self.db, errors_at=0, **_NOTHING)
            self.names = MetricNames()
            at, news.again = 0, True
        if about.st_size == at or self.fact("full"):
            return
        while at < about.st_size and not self.fact("full"):
            before = at
            rows, broken, at = read_lines(path, at)
            self._take(rows)
            news.rows += rows
            full = at > MOST_BYTES or self.fact("rows") > MOST_ROWS or self.fact("evals") > MOST_EVALS
            self._set(self.db, at=at, inode=about.st_ino, broken=self.fact("broken") + broken, full=int(full))
            if at == before or time.monotonic() > end:
                break
        found = {"names_left": self.names.left, "left_out": json.dumps(self._left_out())}
        self._set(self.db, mark=self._mark(path, at), **found)

    @staticmethod
    def _mark(path: Path, at: int) -> str:
        """A checksum of what a file has just before byte `at`."""
        with open_regular_file(path) as file:
            file.seek(max(0, at - MARK))
            return hashlib.sha256(file.read(min(at, MARK))).hexdigest()

    def _left_out(self) -> list[str]:
        """Lines about what of `metrics.jsonl` is not in the index."""
        found = list(self.names.left_out)
        if broken := self.fact("broken"):
            found.append(f"metrics.jsonl: {broken:,} lines can't be read, or are too large")
        if self.fact("full"):
            found.append(f"metrics.jsonl: what follows the first {size_text(self.fact('at'))} is left out")
        return found

    def _take(self, rows: list[dict[str, Any]]) -> None:
        first = self.fact("rows")
        steps = [row for row in rows if "metrics" in row]
        for row in steps:
            row["metrics"] = self.names.kept(row["metrics"])
        self.columns.append(first, steps)
        evals = [row for row in rows if "eval" in row]
        self._set(self.db, rows=first + len(steps), evals=self.fact("evals") + len(evals))
        for row in evals:
            figure = row["eval"]
            text = json.dumps(row)
            if len(text) > EVAL:
                row["eval"] = {key: figure[key] for key in ("task", "split", "metric", "value", "low", "high", "n")}
                text = json.dumps(row)
            key = (row["step"], figure["task"], figure["split"], figure["metric"])
            self.db.execute("INSERT OR REPLACE INTO evals VALUES (?, ?, ?, ?, ?)", (*key, text))

    def _grow_errors(self, news: News) -> None:
        at = self.fact("errors_at")
        if (size := self._size("errors.jsonl")) == at:
            return
        news.errors, _, at = read_lines(self.run / "errors.jsonl", 0 if size < at else at)
        self._set(self.db, errors_at=at)

    # -- rollouts -------------------------------------------------------------------------------------------------------

    def _grow_rollouts(self, news: News, end: float) -> None:
        if not self.waiting and time.monotonic() - self.looked > self.pause:
            self._look()
        while self.waiting and time.monotonic() < end:
            step, size, changed = self.waiting.pop()  # newest first, since people look at them first
            try:
                self._take_rollouts(step, size, changed)
            except FileNotFoundError:  # the run has just resumed at an earlier step
                self._forget(step)
            except OSError:  # unreadable or not a file: counted as an unreadable line
                self.db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, 0, 1)", (step, size, changed))
            news.steps.append(step)

    def _look(self) -> None:
        """Find new, changed and removed files of rollouts. The more files a folder has, the less often it is listed."""
        began = time.monotonic()
        known = {step: (size, changed) for step, size, changed in self.db.execute("SELECT step, size, changed FROM files")}
        present: dict[int, tuple[int, int]] = {}
        for step, entry in step_entries(self.run / "rollouts"):
            with contextlib.suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                present[step] = about.st_size, about.st_mtime_ns
        for step in known.keys() - present.keys():
            self._forget(step)
        self.waiting = sorted((step, *about) for step, about in present.items() if known.get(step) != about)
        self._set(self.db, recorded=len(present), newest=max(present, default=0))
        self.looked = time.monotonic()
        self.pause = max(0.5, 50 * (self.looked - began))

    def _forget(self, step: int) -> None:
        self.db.execute("DELETE FROM rollouts WHERE step = ?", (step,))  # their words stay, but match no rollout
        self.db.execute("DELETE FROM files WHERE step = ?", (step,))

    def _take_rollouts(self, step: int, size: int, changed: int) -> None:
        self._forget(step)
        first, broken = self.fact("next"), 0  # ids are never reused, because the words of removed rollouts stay
        id, batch = first, list[tuple[tuple[Any, ...], str]]()
        file = self.run / "rollouts" / f"step-{step:06d}.jsonl"
        for line, (offset, length, row) in enumerate(located(file, Budget(values=STEP_VALUES))):
            if row is None or id - first == ROLLOUTS:
                broken += 1
                continue
            batch.append(((id, step, line, offset, length, *_summary(row)), _words(row)))
            id += 1
            if len(batch) == BATCH:
                self._add_rollouts(batch)
                batch.clear()
        self._add_rollouts(batch)
        self._set(self.db, next=id)
        self.db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", (step, size, changed, id - first, broken))

    def _add_rollouts(self, batch: list[tuple[tuple[Any, ...], str]]) -> None:
        """Add rollouts. batch: (their row in the table, their searchable text)."""
        kinds = {(name, place[n]) for place, _ in batch for name, n in (("task", 5), ("status", 8), ("source", 9))}
        self.db.executemany("INSERT OR IGNORE INTO kinds VALUES (?, ?)", kinds)
        self.db.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 15)})", (place for place, _ in batch))
        self.db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", ((place[0], words) for place, words in batch))


_NOTHING = {"rows": 0, "at": 0, "broken": 0, "evals": 0, "full": 0, "names_left": 0, "left_out": "[]", "mark": ""}
"""Facts of an index without metrics."""


def _summary(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The indexed columns of a rollout: task, prompt, group, status, source, reward, advantage, tokens, failed, and a checksum of
    the completion."""
    score = row.get("score") or {}
    reward = row["reward"] if "reward" in row else score.get("value")
    group, tokens = (row.get(key) if isinstance(row.get(key), int) else None for key in ("group", "tokens"))
    texts = [str(row.get(key) or "") for key in ("task", "prompt_id")]
    kinds = [str(row.get(key) or "") for key in ("status", "source")]
    said = zlib.crc32(str(row.get("completion") or "").encode(errors="replace"))
    values = [None if (v := number(value)) != v else v for value in (reward, row.get("advantage"))]
    return (*texts, group, *kinds, *values, tokens, int(score.get("status") == "failed" or reward is None), said)


def _words(row: Mapping[str, Any]) -> str:
    """The searchable text of a rollout."""
    answer = row.get("answer")
    texts = [str(row.get("completion") or "")[:SEARCHED], (answer if isinstance(answer, str) else json.dumps(answer))[:SEARCHED]]
    for message in row.get("messages") or []:
        parts = message.get("content") if isinstance(message, dict) else None
        texts += [str(p.get("text", ""))[: SEARCHED // 4] for p in parts or [] if isinstance(p, dict) and p.get("type") == "text"]
    text = " ".join([str(row.get("prompt_id") or ""), str(row.get("task") or ""), *texts])[:WORDS]
    return text.encode(errors="replace").decode()  # SQLite refuses lone surrogates


def read_lines(path: Path, at: int) -> tuple[list[dict[str, Any]], int, int]:
    """(rows, number of unreadable lines, offset to go on at): the next complete rows of a JSONL file from byte `at` on, of about
    `READ` bytes. A line that is longer than `LINE` is passed over in parts, of which the last is unreadable."""
    with open_regular_file(path) as file:
        file.seek(at)
        data = file.read(READ)
        while data and b"\n" not in data and len(data) <= LINE and (more := file.read(READ)):
            data += more
    end = data.rfind(b"\n") + 1
    if not end:  # an incomplete line, still being written, or a part of one that is too long
        return [], 0, at + (len(data) if len(data) > LINE else 0)
    rows, broken = [], 0
    for line in data[:end].split(b"\n"):
        row = parsed(line)
        if row is not None:
            rows.append(row)
        elif line.strip():
            broken += 1
    return rows, broken, at + end


def located(path: Path, budget: Budget | None = None) -> Iterator[tuple[int, int, dict[str, Any] | None]]:
    """Yields (byte offset, length in bytes, row) of each line of a file of rollouts; the row is None if it is unreadable or too
    large. budget: what may be read."""
    for at, length, line in lines(path):
        if line is None or line.strip():
            taken = line is not None and (budget is None or budget.take(line))
            yield at, length, parsed(line) if line is not None and taken else None


@contextlib.contextmanager
def _whole(db: sqlite3.Connection) -> Iterator[None]:
    """A transaction: its changes are written completely or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _remove(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{file}{suffix}")
