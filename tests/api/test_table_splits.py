"""The splits of tables: two tables, or one that is divided by its rows."""

import json

import pytest

from mmrl.api.errors import UserError
from mmrl.api.tasks.image_sources import split_of
from mmrl.api.tasks.table_splits import divided, open_splits, own_test
from mmrl.api.tasks.tables import read_table


@pytest.fixture
def table(tmp_path):
    def write(name, rows):
        (tmp_path / name).write_text("".join(json.dumps({"n": n}) + "\n" for n in range(rows)))
        return str(tmp_path / name)

    return write


def test_a_table_is_divided_by_the_numbers_of_its_rows(table):
    tables, chosen = open_splits(table("all.jsonl", 50), None, 0.3)
    shares = {"train": 0.7, "test": 0.3}
    assert {split: list(numbers) for split, numbers in chosen.items()} == {
        split: [n for n in range(50) if split_of(str(n), 0, shares) == split] for split in shares
    }
    assert tables["train"] is tables["test"] and sorted([*chosen["train"], *chosen["test"]]) == list(range(50))


def test_a_test_table_leaves_the_other_whole_however_short_it_is(table):
    """A first row may fall into `test` when a table is divided, which means nothing to one that isn't."""
    share = next(s / 100 for s in range(1, 100) if split_of("0", 0, {"train": 1 - s / 100, "test": s / 100}) == "test")
    train, test = table("train.jsonl", 1), table("test.jsonl", 3)
    _, chosen = open_splits(train, test, share)
    assert {split: list(numbers) for split, numbers in chosen.items()} == {"train": [0], "test": [0, 1, 2]}
    with pytest.raises(UserError, match=r"all 1 rows of .*train.jsonl are in 'test': add more, or set test_share or test_path"):
        open_splits(train, None, share)


def test_rows_with_one_key_are_in_one_split_and_an_empty_split_is_left_out(table):
    rows = read_table(table("all.jsonl", 40))
    _, chosen = divided(rows, 0.5, key=lambda number: str(number % 4))
    keys = [{n % 4 for n in numbers} for numbers in chosen.values()]
    assert len(keys) == 2 and sum(map(len, keys)) == 4
    assert list(divided(rows, 0.0)[1]) == ["train"]


def test_an_empty_table_is_refused(table):
    with pytest.raises(UserError, match=r"empty.jsonl has no rows: add some, or correct the path"):
        open_splits(table("empty.jsonl", 0), None, 0.2)


def test_the_own_test_split_of_a_data_set_is_used_and_a_benchmark_is_one_split(table, tmp_path):
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_list([{"n": n} for n in range(9)])
    datasets.DatasetDict({"train": part, "validation": part.select(range(4))}).save_to_disk(tmp_path / "two")
    _, chosen = open_splits(str(tmp_path / "two"), None, 0.3)
    assert {split: list(numbers) for split, numbers in chosen.items()} == {"train": [*range(9)], "test": [*range(4)]}
    _, chosen = open_splits(str(tmp_path / "two"), None, 1)
    assert {split: list(numbers) for split, numbers in chosen.items()} == {"test": [*range(4)]}


def test_a_data_set_without_a_test_split_is_one_table(table, tmp_path):
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_list([{"n": n} for n in range(3)])
    datasets.DatasetDict({"train": part}).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": part, "validation": part.select(range(2))}).save_to_disk(tmp_path / "two")
    for path, rows in ((table("all.jsonl", 5), 5), (str(tmp_path / "one"), 3), (str(tmp_path / "two"), 2)):
        train = read_table(path)
        test = own_test(path, train)
        assert len(test) == rows and (test.name == train.name) == (rows != 2)
