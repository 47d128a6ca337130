"""Tables that people bring: every format gives the same rows, and a broken one is told by file and line when it is asked for."""

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import tracemalloc

import numpy
import pytest
from PIL import Image

from mmrl.api.errors import UserError
from mmrl.api.tasks import data_sets, tables
from mmrl.api.tasks.image_sources import hash_order, hash_rank
from mmrl.api.tasks.tables import LazyItems, read_table, resolve_image

ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]


def written(folder, kind):
    path = folder / f"table.{kind}"
    if kind in ("jsonl", "ndjson"):
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in ROWS))
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind in ("csv", "tsv"):
        sign = "," if kind == "csv" else "\t"
        path.write_text("\ufeff" + "".join(f"{sign.join(map(str, row))}\n" for row in (ROWS[0], *(r.values() for r in ROWS))))
    else:
        import datasets

        datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "json", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path, kind):
    rows = read_table(written(tmp_path, kind))
    values = [{"id": row["id"], "n": int(row["n"])} for row in rows]
    assert values == ROWS and len(rows) == 3 and rows[-1] == rows[2]
    with pytest.raises(IndexError):
        rows[3]


def test_a_data_set_on_disk_has_its_splits_and_undecoded_pictures(tmp_path):
    import datasets

    picture = tmp_path / "p.png"
    Image.new("RGB", (4, 4), "red").save(picture)
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int64")})
    one = datasets.Dataset.from_dict({"image": [str(picture)], "n": [1]}, features=features)
    datasets.DatasetDict({"train": one, "validation": one}).save_to_disk(str(tmp_path / "data"))
    for split in ("train", "test"):
        (row,) = read_table(str(tmp_path / "data"), split=split)
        assert row["n"] == 1 and isinstance(row["image"], str | bytes)
    with pytest.raises(UserError, match="has no split 'warm': it has train, validation"):
        read_table(str(tmp_path / "data"), split="warm")


@pytest.mark.parametrize(
    ("name", "text", "index", "message"),
    [
        ("t.jsonl", '{"a": 1}\n\n{"a": \n', 1, r"t\.jsonl line 3 is no JSON"),
        ("t.jsonl", '{"a": 1}\n[2]\n', 1, r"t\.jsonl line 2 holds a list, not an object"),
        ("t.jsonl", "[" * 100_000 + "\n", 0, r"t\.jsonl line 1 is no JSON"),
        ("t.json", '[{"a": 1}, 5]', 1, r"t\.json item 1 holds a int, not an object"),
        ("t.csv", "a,b\n1,2\n3\n", 1, r"t\.csv line 3 has 1 fields and the header 2"),
    ],
)
def test_a_broken_row_is_told_by_its_place_when_it_is_asked_for(tmp_path, name, text, index, message):
    (tmp_path / name).write_text(text)
    rows = read_table(str(tmp_path / name))
    with pytest.raises(UserError, match=message) as caught:
        rows[index]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.json", b'{"a": 1}', "holds a dict: give a list of objects"),
        ("t.json", b"[", "is no JSON"),
        ("t.csv", b"a,a\n1,2\n", "must name each column once"),
        ("t.csv", b"a\n\xff\xfe\n", "is no table"),
        ("t.parquet", b"no", "is no Parquet table"),
        ("t.jsonl", None, "does not exist: check the path"),
    ],
)
def test_a_table_that_is_none_is_refused_at_once(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_table(str(tmp_path / name))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (KeyError("box"), " has no key 'box': it has id, n"),
        (ValueError("reversed"), ": reversed: correct or remove it"),
        (UserError("no picture"), ": no picture"),
    ],
)
def test_what_fails_in_making_an_item_names_its_row(tmp_path, fault, message):
    def make(row, number):
        if row["n"] == 2:
            raise fault
        return row["n"] * 10

    rows = read_table(written(tmp_path, "jsonl"))
    items = LazyItems(rows, make, (2, 1, 0))
    assert (len(items), items[0], items[2]) == (3, 30, 10)
    with pytest.raises(UserError, match=rf"table\.jsonl line 3{message}"):
        items[1]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_pictures_may_be_written_in_base64(kind, tmp_path):
    """As in ReasonMap's rows and the tables of VLMEvalKit."""
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "olive").save(file, kind)
    text = base64.b64encode(file.getvalue()).decode()
    for written in (text, f"data:image/{kind.lower()};base64,{text}", "\r\n".join((text[:76], text[76:], ""))):
        assert resolve_image("/data/t.jsonl", written) == file.getvalue()
    (tmp_path / "t.tsv").write_text(f"image\tanswer\n{text}{'A' * 200_000}\tB\n")
    assert read_table(str(tmp_path / "t.tsv"))[0]["answer"] == "B", "however long it is"
    with pytest.raises(ValueError, match="base64"):
        resolve_image("/data/t.jsonl", text[:20] + "?" + text[20:])
    assert str(resolve_image("/data/t.jsonl", f"{text[:12]}.png")).endswith(f"{text[:12]}.png"), "a short text is a path"


def test_pictures_are_found_beside_their_table():
    assert (
        resolve_image("/data/t.jsonl", "a/b.png") == "/data/a/b.png"
        and resolve_image("/data/t.jsonl", "b.png", "/other") == "/other/b.png"
    )
    assert resolve_image("/data/t.jsonl", "/abs.png") == "/abs.png" and resolve_image("/data/t.jsonl", b"bytes") == b"bytes"
    with pytest.raises(ValueError, match="empty path"):
        resolve_image("/data/t.jsonl", " ")
    with pytest.raises(ValueError, match="path has 100,000 characters"):
        resolve_image("/data/t.jsonl", "x" * 100_000)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *((wrong, "path = .* must be a text") for wrong in (5, True, None, {})),
        ("x" * 3000, r"\.\.\.x+ can't be read: File name too long"),
        ("x" * 3000 + ".jsonl", r"\.\.\.x+\.jsonl can't be read: File name too long"),
        ("no\nsuch.jsonl", r"no\?such\.jsonl does not exist"),
        ("no/such.txt", r"no/such\.txt does not exist: check the path, which is relative to /.*; a table is \.jsonl"),
        (__file__, r"test_tables\.py has a format that can.t be read: save it as \.jsonl"),
        ("no/such/folder", "no/such/folder does not exist, and is no data set on the Hub"),
        ("./nope", r"\./nope does not exist"),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_a_path_that_can_be_no_table_is_told_in_one_short_line(path, message):
    with pytest.raises(UserError, match=message) as caught:
        read_table(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_is_neither_here_nor_on_the_hub_says_both(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        UserError, match=r"nope is no file or folder here, and the Hub gives no data set of this name \(no network"
    ):
        read_table("nope")


def test_no_bar_is_drawn_over_a_runs_lines(tmp_path, capfd):
    assert len(read_table(written(tmp_path, "parquet"))) == 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_row_of_a_text_takes_some_bytes_until_it_is_read(tmp_path, kind):
    path, count = tmp_path / f"t.{kind}", 20_000
    line = '{"a": "x", "b": 1}\n' if kind == "jsonl" else '"x, y",1\n'
    path.write_text(("" if kind == "jsonl" else "a,b\n") + line * count)
    tracemalloc.start()
    try:
        rows = read_table(str(path))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(rows) == count and held < 40 * count
    assert len(rows[count - 1]) == 2


def test_rows_of_csv_are_found_by_their_place(tmp_path):
    import csv

    cells = [["1", "ä\nü"], ["2", 'say "x"'], ["3", "a\r\nb,c"], ["4", ""]]
    for end in ("\n", "\r\n", "\r"):
        for mark in ("", "\ufeff"):
            with open(tmp_path / "t.csv", "w", encoding="utf-8", newline="") as file:
                file.write(f"{mark}n,ö{end}")
                csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([*cells[:2], [], *cells[2:]])
            rows = read_table(str(tmp_path / "t.csv"))
            assert [list(rows[i].values()) for i in (3, 0, 2, 1)] == [cells[i] for i in (3, 0, 2, 1)]
            assert list(rows[0]) == ["n", "ö"]


def test_lines_are_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_LINE", 64)
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n' + json.dumps({"a": "x" * 200}) + '\n\n{"a": 3}')
    rows = read_table(str(tmp_path / "t.jsonl"))
    assert len(rows) == 3 and rows[0] == {"a": 1} and rows[2] == {"a": 3} and rows.location(2).endswith("line 4")
    with pytest.raises(UserError, match="line 2 is no JSON"):
        rows[1]
    (tmp_path / "t.csv").write_text("a,b\n1," + "x" * 100 + "\n")
    with pytest.raises(UserError, match=r"t\.csv is no table \(.*a line of more than 64 characters"):
        read_table(str(tmp_path / "t.csv"))


def write_shard(path, *files):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as shard:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))


def write_sample(key, suffix="png", **said):
    Image.new("RGB", (4, 4), "red").save(buffer := io.BytesIO(), "PNG")
    return (f"{key}.{suffix}", buffer.getvalue()), (f"{key}.json", json.dumps(said).encode()), (f"{key}.txt", b"words")


@pytest.mark.parametrize(("place", "suffix"), [("shards", "png"), ("shards/train-000.tar", "PNG")])
def test_samples_of_webdataset_are_rows(tmp_path, place, suffix):
    """A picture of each, whatever its suffix, and what its JSON holds."""
    samples = [write_sample(f"{n:03}", suffix, question="What?", boxes=[[1, n]]) for n in range(2)]
    write_shard(tmp_path / "shards" / "train-000.tar", *samples[0], *samples[1])
    table = read_table(str(tmp_path / place))
    assert sorted(table.columns) == ["__key__", "boxes", "image", "question", "txt"] and len(table) == 2
    picture = samples[1][0][1]
    assert table[1] == {"__key__": "001", "image": picture, "question": "What?", "boxes": [[1, 1]], "txt": "words"}


def test_shards_are_read_as_datasets_reads_them(tmp_path):
    """Long names, numbers, arrays, several pictures, structures, files that a system left, splits by names."""
    import datasets
    import numpy as np

    np.save(array := io.BytesIO(), np.arange(3))
    for shard in ("train-000", "train-001", "test-000"):
        files = [("._a.png", b"x"), ("README", b"x")]
        for n in range(4):
            key = f"{'long' * 40}/{shard}-{n}"
            (_, picture), *others = write_sample(key, question=f"{n}?", own={"n": n})
            files += [(f"{key}.jpg", b"j"), (f"{key}.seg.png", b"s"), (f"{key}.png", picture), *others]
            files += [(f"{key}.cls", str(n).encode()), (f"{key}.npy", array.getvalue()), (f"{key}.jsn", b"[1]")]
        write_shard(tmp_path / "shards" / f"{shard}.tar", *files)
    for split in ("train", "test"):
        read = read_table(str(tmp_path / "shards"), split=split)
        table = datasets.load_dataset(str(tmp_path / "shards"), split=split, cache_dir=str(tmp_path / "cache"))
        expected = tables._table("", data_sets._samples(table))
        assert len(read) == (8 if split == "train" else 4) and set(read.columns) == set(expected.columns)
        assert [*read] == [*expected]
        assert {"question"} == {key for row in read.scan(["question"]) for key in ("question", "image") if key in row}


def test_a_broken_sample_of_a_shard_is_told_and_the_others_are_read(tmp_path):
    samples = [[*write_sample(f"s{n}", question=f"{n}?")] for n in range(6)]
    samples[1][1] = ("s1.json", b'{"question": ')
    samples[2] = samples[2][1:]
    samples[3].append(samples[3][0])
    samples[4][2] = ("s4.txt", b"\xff")
    write_shard(tmp_path / "a" / "a.tar", *(file for sample in samples for file in sample))
    table, found = read_table(str(tmp_path / "a" / "a.tar")), []
    for index in range(len(table)):
        try:
            found.append(sorted(table[index]))
        except UserError as error:
            found.append(str(error).partition("a.tar ")[2])
    whole = ["__key__", "image", "question", "txt"]
    assert found == [
        whole,
        "sample s1 can't be read: its .json can't be decoded (Expecting value: line 1 column 14 (char 13)): correct or remove it",
        ["__key__", "question", "txt"],
        "sample s3 can't be read: it has two files s3.png: correct or remove it",
        "sample s4 can't be read: its .txt can't be decoded ('utf-8' codec can't decode byte 0xff in position 0: invalid start "
        "byte): correct or remove it",
        whole,
    ]
    assert [row and row["question"] for row in table.scan(["question"])] == ["0?", None, "2?", None, None, "5?"]


@pytest.mark.parametrize(
    ("cut", "why"), [(9 * 1024 + 100, "no header at byte 9,216"), (10 * 1024 + 300, "no header"), (1024 + 700, "unexpected end")]
)
def test_a_shard_that_is_torn_anywhere_is_refused(tmp_path, cut, why):
    write_shard(tmp_path / "whole.tar", *(file for n in range(8) for file in write_sample(f"s{n}", question="?")[:2]))
    (tmp_path / "a.tar").write_bytes((tmp_path / "whole.tar").read_bytes()[:cut])
    with pytest.raises(UserError, match=rf"a\.tar can't be loaded: .*{why}.*: the file may be torn, so fetch it again"):
        read_table(str(tmp_path / "a.tar"))


def test_a_shard_without_samples_is_refused(tmp_path):
    write_shard(tmp_path / "a.tar", ("README", b"x"))
    with pytest.raises(UserError, match=r"a\.tar has no samples: a sample is files with one name"):
        read_table(str(tmp_path / "a.tar"))


def test_a_split_may_stand_behind_the_path(tmp_path):
    import datasets

    part = datasets.Dataset.from_list([{"n": n} for n in range(3)])
    datasets.DatasetDict({"train": part, "test": part.select([2]), "testmini": part.select([1])}).save_to_disk(tmp_path / "d")
    assert [row["n"] for row in read_table(f"{tmp_path}/d@test", split="train")] == [2], "and no other name of it"
    (tmp_path / "a@b.jsonl").write_text('{"n": 1}\n')
    assert len(read_table(str(tmp_path / "a@b.jsonl"))) == len(read_table(f"{tmp_path}/a@b.jsonl@train")) == 1
    with pytest.raises(UserError, match=r"a@b\.jsonl is one table, without the split 'dev': leave @dev out"):
        read_table(f"{tmp_path}/a@b.jsonl@dev")
    with pytest.raises(UserError, match=r"data set .*d has no split 'dev': it has train, test, testmini"):
        read_table(f"{tmp_path}/d@dev")
    part.save_to_disk(tmp_path / "whole")
    assert len(read_table(f"{tmp_path}/whole@train")) == 3
    with pytest.raises(UserError, match=r"data set .*whole was saved without splits: leave @dev out"):
        read_table(f"{tmp_path}/whole@dev")


def test_a_torn_shard_is_fetched_again(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"0" * 700)
    with pytest.raises(UserError, match=r"a\.tar can't be loaded: .*: the file may be torn, so fetch it again"):
        read_table(str(tmp_path / "a.tar"))


def test_where_a_picture_is():
    assert resolve_image("data/rows.jsonl", "file:///tmp/a.png") == "/tmp/a.png"
    with pytest.raises(ValueError, match=r"'https://a\.org/b\.png' is a URL: save it as a file first"):
        resolve_image("rows.jsonl", "https://a.org/b.png")


def test_pictures_within_lists_and_structures_stay_undecoded(tmp_path):
    import datasets

    Image.new("RGB", (4, 4), "red").save(tmp_path / "p.png")
    data = (tmp_path / "p.png").read_bytes()
    features = datasets.Features({"many": [datasets.Image()], "one": {"shot": datasets.Image(), "n": datasets.Value("int64")}})
    rows = {"many": [[{"bytes": data, "path": None}] * 2], "one": [{"shot": {"bytes": data, "path": None}, "n": 1}]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "t.parquet"))
    assert read_table(str(tmp_path / "t.parquet"))[0] == {"many": [data, data], "one": {"shot": data, "n": 1}}


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_rows_are_scanned_in_slices(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tables, "SCANNED", 2)
    found = list(read_table(written(tmp_path, kind)).scan(("id", "other")))
    assert [row["id"] for row in found] == ["a", "b", "c"] and (kind != "parquet" or found[0] == {"id": "a"})
    assert list(read_table(written(tmp_path, "parquet")).scan(("other",))) == [{}, {}, {}]


def test_a_row_that_cant_be_read_is_none_in_a_scan(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\nno\n{"a": 3}\n')
    assert list(read_table(str(tmp_path / "t.jsonl")).scan(("a",))) == [{"a": 1}, None, {"a": 3}]

    def read_slice(part, keys):
        raise OSError("one of them is broken")

    table = tables.DataTable("t", 3, [{"a": 1}, 5, {"a": 3}].__getitem__, read_slice=read_slice)
    assert list(table.scan(("a",))) == [{"a": 1}, None, {"a": 3}]


def test_json_lines_are_known_by_what_is_in_them(tmp_path):
    (tmp_path / "t.json").write_text('{"a": 1}\n{"a": 2}\n{"a"\n')  # as POPE publishes them
    rows = read_table(str(tmp_path / "t.json"))
    assert len(rows) == 3 and rows[0] == {"a": 1} and rows[1] == {"a": 2}
    with pytest.raises(UserError, match=r"t\.json line 3 is no JSON"):
        rows[2]
    for broken in ('[{"a": 1}]\n[{"a": 2}]', '{"a": 1} {"a": 2}', '{\n"a": 1}\n{"a": 2}'):
        (tmp_path / "t.json").write_text(broken)
        with pytest.raises(UserError, match=r"t\.json is no JSON"):
            read_table(str(tmp_path / "t.json"))


def test_numbers_are_ordered_by_their_hash():
    numbers = [*range(0, 600, 3), 7]
    ordered = hash_order(numbers, 3, "order", "train")
    assert list(ordered) == sorted(numbers, key=lambda n: hash_rank(3, "order", "train", str(n)))


@pytest.mark.slow
def test_a_long_parquet_is_read_in_slices(tmp_path):
    """Three million rows of a kilobyte, in a file of kilobytes."""
    import pyarrow
    import pyarrow.parquet

    count = 3_000_000
    zeros = pyarrow.array(numpy.zeros(count, int))
    table = pyarrow.table({"q": pyarrow.array(["q" * 1000]).dictionary_encode().take(zeros), "n": zeros})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", compression="zstd")
    code = (
        "import resource, datasets\nfrom mmrl.api.tasks.tables import read_table\n"
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\nbefore = most()\n"
        f"rows = read_table({str(tmp_path / 't.parquet')!r})\n"
        f"assert len(rows) == {count} and len(rows[2_000_000]['q']) == 1000\nprint(most() - before)"
    )
    cache = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=cache)
    assert int(done.stdout) < 512


def test_a_json_file_too_large_to_be_read_as_a_whole_is_refused(tmp_path):
    with open(tmp_path / "t.json", "wb") as file:
        file.truncate(2**29 + 1)
    with pytest.raises(
        UserError, match=r"t\.json has 536,870,913 bytes of JSON, which has to be read as a whole: save it as \.jsonl"
    ):
        read_table(str(tmp_path / "t.json"))
