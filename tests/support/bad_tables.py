"""Tables that tasks read: with wrong rows, cut off, of other encodings, of absurd size, or no tables."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broken_bytes import broken
from damage import ODD, as_json, paths

SAMPLES = Path(__file__).parents[2] / "assets" / "samples"
HALF, TEST = {"shares": {"train": 0.5, "test": 0.5}}, {"shares": {"test": 1.0}}
READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "questions.jsonl": ("vqa/table", {"test_share": 0.5}),
    "pairs.jsonl": ("judge/pairs", {"test_share": 0.5}),
    "refer.jsonl": ("grounding/refer-data", HALF),
    "detect.jsonl": ("grounding/detect-data", HALF),
    "coco.json": ("grounding/count-data", HALF),
    "video/video_r1.json": ("video/qa-data", {**HALF, "seed": 1}),
    "video/next_qa.csv": ("video/qa-data", HALF),
    "video/seed_bench_r1.jsonl": ("video/qa-data@seed-bench-r1", HALF),
    "video/time_r1.json": ("video/temporal-data", {**HALF, "seed": 1}),
    "video/activitynet.json": ("video/temporal-data", TEST),
    "video/charades_sta.txt": ("video/temporal-data", {**HALF, "seed": 1}),
    "video/next_gqa.json": ("video/grounded-data", TEST),
    "video/tracking.jsonl": ("video/tracking-data", TEST),
    "video/got_10k.json": ("video/tracking-data", TEST),
    "walks/episodes.jsonl": ("gui/inverse", HALF),
    "audio/avqa.jsonl": ("audio/choice-data@r1-aqa", {"test_share": 0.5}),
    "audio/mmau.json": ("audio/choice-data", {"test_share": 0.5}),
    "clicks/episodes.jsonl": ("gui/recorded", TEST),
    "photographs/points.json": ("grounding/point-data", HALF),
    "photographs/drawn.jsonl": ("rendering/rows", {}),
    "photographs/maps.jsonl": ("transit/rows", {}),
    "photographs/screens.json": ("gui/grounding-data", TEST),
    "photographs/steps.jsonl": ("gui/next-action", TEST),
}
"""Table in `assets/samples`, or in the same folders one of `MADE` -> the task that reads it, and its options."""
ROW = {"image": "a.jpg", "question": "What is it?", "answer": "B", "options": ["a cat", "a dog"], "id": "r"}
LINES = {"Red": ["Oak", "Bay", "Elm"], "Blue": ["Ivy", "Bay", "Hay"]}
MAP = {"type": "planning", "difficulty_city": "easy", "station_1": "Oak", "station_2": "Ivy", "question": "How?", "answer": 1}
CLICK = {"goal": "x", "step_instruction": "y", "action": {"action_type": "click", "x": 9, "y": 9}, "bbox": [4, 4, 20, 20]}
CODE = '<svg viewBox="0 0 100 50"><rect width="{}" height="30" fill="red"/></svg>'
PICTURES = [f"{n:02}.jpg" for n in range(10)]
MADE: dict[str, list[dict[str, Any]]] = {
    "points.json": [{"image": p, "expression": "a thing", "bbox": [4, 4, 20, 20], "label": "thing"} for p in PICTURES],
    "drawn.jsonl": [{"code": CODE.format(9 + n), "image": p} for n, p in enumerate(PICTURES)],
    "maps.jsonl": [{"figure": p, "metro_data": LINES, "question_transfer_count": 1, **MAP} for p in PICTURES],
    "screens.json": [
        {"img_filename": p, "bbox": [4, 4, 20, 20], "instruction": "x", "data_type": "icon", "data_source": "ios"}
        for p in PICTURES
    ],
    "steps.jsonl": [{"screenshot": p, "episode_id": n // 3, "index": n % 3, **CLICK} for n, p in enumerate(PICTURES)],
}


def whole_table(table: str, folder: Path) -> bytes:
    """A table's content; the folder is made and gets what lies beside the table, and its videos, but not the table."""
    source = SAMPLES / table
    folder.mkdir()
    for file in (*source.parent.iterdir(), *source.parent.glob("videos/*/*")):
        if file != source:
            (folder / file.name).symlink_to(file)
    rows = MADE.get(source.name)
    return source.read_bytes() if rows is None else as_json(rows, table.endswith(".jsonl"))


def broken_tables(table: str, whole: bytes) -> Iterator[tuple[str, bytes]]:
    """(what is wrong, file): the whole one, its rows changed, then its bytes."""
    yield WHOLE, whole
    if table.endswith(".csv"):
        yield from _wrong_cells(whole.decode())
    if table.endswith((".json", ".jsonl")):
        yield from _wrong_rows(whole.decode(), table.endswith(".jsonl"))
    yield from broken(whole, 12, table, (0.0, 0.1, 0.5, 0.99))


WHOLE = "nothing"


def _wrong_rows(data: str, by_line: bool) -> Iterator[tuple[str, bytes]]:
    """Each field in turn missing, or something that it shouldn't be, in each row that has it."""
    whole = [json.loads(line) for line in data.splitlines()] if by_line else json.loads(data)
    for path in dict.fromkeys(path for row in (whole[:3] if by_line else [whole]) for path in paths(row)):
        for word, value in {"missing": None, **ODD}.items():
            changed = json.loads(json.dumps(whole))
            for row in changed if by_line else [changed]:
                _put(row, path, value, word == "missing")
            yield f"{'.'.join(map(str, path))}: {word}", as_json(changed, by_line)


def _put(row: Any, path: tuple[Any, ...], value: Any, gone: bool) -> None:
    for key in path[:-1]:
        row = row.get(key) if isinstance(row, dict) else row[key] if isinstance(row, list) and key < len(row) else None
    if (isinstance(row, dict) and path[-1] in row) or (isinstance(row, list) and path[-1] < len(row)):
        if gone:
            del row[path[-1]]
        else:
            row[path[-1]] = value


def _wrong_cells(data: str) -> Iterator[tuple[str, bytes]]:
    head, *rows = csv.reader(io.StringIO(data))
    for number, column in enumerate(head):
        for word, value in ODD.items():
            out = io.StringIO()
            csv.writer(out).writerows([head, *([*row[:number], f"{value}"[:500], *row[number + 1 :]] for row in rows)])
            yield f"{column}: {word}", out.getvalue().encode("utf-8", "surrogatepass")


# -- a table of questions, in every format ------------------------------------------------------------------------------------


def question_tables() -> Iterator[tuple[str, bytes]]:
    """(name, file) of tables of questions about `a.jpg`, for `vqa/table`."""
    line = json.dumps(ROW) + "\n"
    for name, row in _odd_lines().items():
        yield f"{name}.jsonl", (3 * line + row + "\n" + 3 * line).encode("utf-8", "surrogatepass")
        yield f"only {name}.jsonl", (row + "\n").encode("utf-8", "surrogatepass")
        yield f"{name}.json", f"[{line}, {row}]".encode("utf-8", "surrogatepass")
    cells = {**ROW, "options": json.dumps(ROW["options"])}
    text = io.StringIO()
    csv.writer(text).writerows([list(cells), *[list(cells.values())] * 5])
    table = text.getvalue()
    texts = {"jsonl": line * 5, "json": json.dumps([ROW] * 5), "csv": table, "tsv": table.replace(",", "\t")}
    for kind, whole in texts.items():
        for what, changed in broken(whole.encode(), 8, kind):
            yield f"{what}.{kind}", changed
        for encoding in ("utf-8-sig", "utf-16", "utf-32", "latin-1", "cp500"):
            yield f"{encoding}.{kind}", whole.replace("cat", "chaté").encode(encoding)
        for what, changed in {
            "carriage returns": whole.replace("\r", "").replace("\n", "\r"),
            "both line ends": whole.replace("\r", "").replace("\n", "\r\n"),
            "NUL": whole.replace("What", "Wh\0at"),
            "blank lines": "\n" * 100_000 + whole + "\n" * 100_000,
            "blanks": " " * 1_000_000,
            "a question of 3 MB": whole.replace("What is it?", "a" * 3_000_000),
            "an unclosed quote": whole.replace("What", '"What', 1),
        }.items():
            yield f"{what}.{kind}", changed.encode()
    for name, text in _odd_csv(table).items():
        yield f"{name}.csv", text.encode()
    for suffix in (".txt", ".xlsx", ".gz", ".arrow", "", ".jsonl.gz", ".CSV", ".parquet"):
        yield f"a suffix, of JSONL{suffix}", (line * 3).encode()


def _odd_lines() -> dict[str, str]:
    odd = {
        "nothing": "", "half": '{"image": "a.j', "a list": "[1, 2]", "a number": "12", "null": "null", "a text": '"x"',
        "twice in a line": json.dumps(ROW) * 2, "a comma": json.dumps(ROW) + ",", "a key twice": '{"image": "a.jpg", "image": 7}',
        "deep": "[" * 20_000 + "]" * 20_000, "deep objects": '{"a":' * 20_000 + "1" + "}" * 20_000,
        "bytes": "\0\0\0", "a row of other keys": '{"__class__": "x", "__proto__": {}}', "empty": "{}",
        "a huge number": '{"image": "a.jpg", "question": "q", "answer": ' + "9" * 5000 + "}",
    }  # fmt: skip
    changes = {
        "an image": [
            "../../../../etc/passwd", "/etc/passwd", "http://127.0.0.1:9/x.png", "file:///etc/passwd", "/dev/zero", "a" * 100_000,
            "a\0.jpg", ["a.jpg"] * 300, {"bytes": None, "path": None}, {"bytes": "x"}, 7, "", None, "data:image/png;base64,AA",
            [[["a.jpg"]]], [], ".", "~", "a.jpg/b", "\ud800",
        ],
        "a question": ["", " ", 7, ["a"], None, "<image><video><|im_end|>", "\ud800", "{text}", "%s{0}"],
        "an answer": [None, [], {}, True, {"a": 1}, [[]], 1e308, -1, "", "\0", [{"answer": []}], ["a"] * 10_000],
        "options": [[], ["a"], ["a"] * 100, ["a", "a"], {"A": 1, "B": [2]}, {"A": "x"}, "a,b", "[1", 7, [None, {}], {"": ""}],
        "an id": [None, [], {}, "a\nb", "../x", 10**30, "a" * 100_000],
    }  # fmt: skip
    keys = {"an image": "image", "a question": "question", "an answer": "answer", "options": "options", "an id": "id"}
    for what, values in changes.items():
        odd |= {f"{what}, {n}": json.dumps({**ROW, keys[what]: value}) for n, value in enumerate(values)}
    return odd


def _odd_csv(table: str) -> dict[str, str]:
    head, rest = table.split("\r\n", 1)
    return {
        "a header alone": head,
        "a header twice": head + "\r\n" + table,
        "columns twice": "image,image,answer\na,b,c\n",
        "an empty name": ",,\n1,2,3\n",
        "ragged": f"{head}\na.jpg,q\na.jpg,q,a,b,c,d,e,f\n",
        "semicolons": table.replace(",", ";"),
        "20,000 columns": ",".join(f"c{i}" for i in range(20_000)) + "\n" + ",".join("1" * 20_000) + "\n",
        "a cell of 200,000": f"{head}\na.jpg,{'a' * 200_000},B,,r\n",
        "a formula": f"{head}\na.jpg,=cmd|' /C calc'!A0,B,,r\n",
        "a quote without end": f'{head}\na.jpg,"q,a\n' + "x,y,z\n" * 10_000,
        "100,000 rows": head + "\n" + rest.split("\r\n")[0].join(["\n"] * 100_000),
    }


def parquet_tables(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(name, file) of Parquet tables of questions. folder: for work."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def written(columns: Any) -> bytes:
        pq.write_table(pa.table(columns), folder / "made.parquet", compression="zstd")
        return (folder / "made.parquet").read_bytes()

    rows = {key: [value] * 50 for key, value in ROW.items()}
    for what, changed in broken(written(rows), 40, "parquet"):
        yield f"{what}.parquet", changed
    yield "only magic.parquet", b"PAR1"
    yield "a footer of 2 GB.parquet", b"PAR1" + struct.pack("<I", 2**31 - 1) + b"PAR1"
    yield "no rows.parquet", written({key: pa.array([], pa.string()) for key in ROW})
    yield "no columns.parquet", written({})
    for name, values in {
        "nothing": pa.nulls(5),
        "bytes": pa.array([b"\x89PNG" + bytes(100)] * 5),
        "numbers": pa.array([float("nan"), 1e300, -1.0, 0.0, None]),
        "lists of lists": pa.array([[["a"]]] * 5),
        "structures": pa.array([{"bytes": b"\xff\xd8", "path": None}] * 5),
        "times": pa.array([0] * 5, pa.timestamp("ns")),
        "decimals": pa.array([None] * 5, pa.decimal128(38, 10)),
        "words": pa.array(["a"] * 5).dictionary_encode(),
        "maps": pa.array([[("a", 1)]] * 5, pa.map_(pa.string(), pa.int64())),
    }.items():
        for key in ("image", "question", "answer", "options"):
            yield f"{key} of {name}.parquet", written({**{k: v[:5] for k, v in rows.items()}, key: values})
    long = pa.array(["q" * 1000]).dictionary_encode().take(pa.array([0] * 300_000))
    yield "300 MB of questions.parquet", written({**{k: [v] * 300_000 for k, v in ROW.items()}, "question": long})


def odd_table_paths(folder: Path) -> Iterator[tuple[str, Any]]:
    """(what, path) of what is no file of a table: folders, pipes, devices, links, data sets that are damaged."""
    for kind in ("jsonl", "json", "csv", "tsv", "parquet", "txt"):
        (folder / f"folder.{kind}").mkdir()
        yield f"a folder, {kind}", folder / f"folder.{kind}"
        os.mkfifo(folder / f"pipe.{kind}")
        yield f"a pipe, {kind}", folder / f"pipe.{kind}"
        (folder / f"zero.{kind}").symlink_to("/dev/zero")
        yield f"zeros without end, {kind}", folder / f"zero.{kind}"
        (folder / f"loop.{kind}").symlink_to(f"loop.{kind}")
        yield f"a link to itself, {kind}", folder / f"loop.{kind}"
        yield f"nothing, {kind}", folder / f"gone.{kind}"
        yield f"a line break, {kind}", f"{folder}/go\nne.{kind}"
        yield f"NUL, {kind}", f"{folder}/a\0.{kind}"
        yield f"too long a name, {kind}", f"{folder}/{'n' * 300}.{kind}"
        yield f"half a character, {kind}", f"{folder}/\ud800.{kind}"
    for name, files in _data_sets().items():
        (folder / name).mkdir()
        for file, text in files.items():
            (folder / name / file).write_bytes(text)
        yield f"a data set, {name}", folder / name
    for value in ("", " ", ":", "::::", "http://127.0.0.1:9/a.csv", "-", "/dev/null", None, 7, [], {}, b"a.csv", True):
        yield f"{value!r}", value


def _data_sets() -> dict[str, dict[str, bytes]]:
    arrow = {"_data_files": [{"filename": "../../../../etc/passwd"}], "_fingerprint": "x", "_split": "train"}
    noise = random.Random(0).randbytes(3000)
    return {
        "nothing": {},
        "state alone": {"state.json": b"{}"},
        "splits alone": {"dataset_dict.json": b'{"splits": ["train"]}'},
        "splits of a number": {"dataset_dict.json": b'{"splits": 7}'},
        "broken state": {"state.json": b"{bad", "dataset_info.json": b"{}"},
        "another's file": {"state.json": json.dumps(arrow).encode(), "dataset_info.json": b"{}"},
        "a program": {"a program.py": b"raise SystemExit('it was run')\n", "README.md": b"---\nconfigs: 7\n---\n"},
        "an address": {"README.md": b"---\nconfigs:\n- config_name: a\n  data_files: http://127.0.0.1:9/x.parquet\n---\n"},
        "noise": {"train.parquet": noise, "test.parquet": noise},
        "noise as CSV": {"train.csv": noise},
        "two schemas": {"a.jsonl": b'{"a": 1}\n', "b.jsonl": b'{"b": ["x"]}\n'},
    }
