"""The tasks: what is asked, which items, and one clear line for bad input."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import pytest
from mmrl_classification.sampling import Item, base_and_new, few_shot, harmonic_mean, list_size, offer, split
from mmrl_classification.task import STYLES, Dataset, Digits, Folder
from PIL import Image

from mmrl import UserError
from mmrl.api.media.images import load_image
from mmrl.api.statistics import wilson
from mmrl.testing import check_plugin

TEN = {f"c{i}": 5 for i in range(10)}


def ids(task, name, seed=0):
    return [p.id for p in task.prompts(name, seed)]


# -- digits -----------------------------------------------------------------------------------------------------------


def test_digits_are_split_for_good_and_share_nothing():
    task = Digits()
    parts = {name: ids(task, name) for name in ("warm", "train", "test")}
    assert {name: len(part) for name, part in parts.items()} == {"warm": 100, "train": 1300, "test": 397}
    assert sorted(int(i) for part in parts.values() for i in part) == list(range(1797))
    assert [part[:5] for part in parts.values()] == [  # an accuracy is comparable only while these stay
        ["146", "1600", "1283", "1312", "354"],
        ["1497", "762", "1467", "1653", "1710"],
        ["1579", "1074", "1511", "331", "359"],
    ]
    assert set(Counter(p.answer for p in task.prompts("warm", 0))) == set("0123456789")


def test_a_digit_is_posed_as_picture_question_and_answer():
    task = Digits(size=28)
    prompts = task.prompts("train", 0)
    prompt = prompts[7]
    assert prompt.text == "What digit is shown?" and prompt.answer in "0123456789" and len(prompt.answer) == 1
    assert task.gold(prompt) == f"<answer>{prompt.answer}</answer>"
    assert [(i.size, i.mode) for i in prompt.images] == [((28, 28), "RGB")]
    assert [p.id for p in prompts[3:5]] == [prompts[3].id, prompts[4].id]
    assert prompts[-1].id == prompts[1299].id
    with pytest.raises(IndexError):
        prompts[1300]


def test_a_digit_is_the_one_that_its_answer_names():
    from sklearn.datasets import load_digits

    data = load_digits()
    for prompt in Digits(size=8).prompts("test", 0)[:20]:
        assert prompt.answer == str(data.target[int(prompt.id)])
        values = data.images[int(prompt.id)]
        assert [prompt.images[0].getpixel((x, 3))[0] for x in range(8)] == [round(values[3, x] * 255 / 16) for x in range(8)]


@pytest.mark.parametrize("size", [7, 0, -1, 5000, 56.0, "56", None])
def test_digits_of_no_size_are_refused(size):
    with pytest.raises(UserError, match=r"size = .* whole number of pixels from 8 to 4096"):
        Digits(size=size)


# -- what is asked ------------------------------------------------------------------------------------------------------


def test_prompts_word_for_word(folder):
    root = folder({"cat": 2, "dog_house": 2})

    def asked(**options):
        prompt = Folder(path=root, fractions={"train": 1}, **options).prompts("train", 0)[0]
        return prompt.text, prompt.meta["labels"]

    question = "What type of object is in the photo?"
    text, labels = asked(style="cls-rl")
    assert sorted(labels) == ["cat", "dog_house"]
    assert text == (
        f"{question}\n Please choose one from list [ {labels[0]}, {labels[1]}].\n Please output the thinking process "
        "in <think> </think> and final answer in <answer> </answer> tags."
    )
    assert asked(style="no-thinking", open_ended=True)[0] == f"{question}\n Please directly output the answer."
    assert asked(style="no-thinking", question="What type of animal is in the photo?", open_ended=True)[0] == (
        "What type of animal is in the photo?\n Please directly output the answer."
    )
    assert asked(style="question", open_ended=True) == (question, ("cat", "dog_house"))
    assert asked(open_ended=True)[0].startswith(question + "\nThink in <think> </think> tags")


@pytest.mark.parametrize(
    "style, gold",
    [
        ("question", "<answer>cat</answer>"),
        ("direct", "cat"),
        ("no-thinking", "cat"),
        ("tags", "<think>The picture shows: cat.</think>\n<answer>cat</answer>"),
        ("cls-rl", "<think>The picture shows: cat.</think>\n<answer>cat</answer>"),
    ],
)
def test_gold_has_the_form_that_the_style_asks_for(folder, style, gold):
    task = Folder(path=folder({"cat": 2, "dog": 2}), style=style, fractions={"train": 1})
    prompt = next(p for p in task.prompts("train", 0) if p.answer == "cat")
    assert task.gold(prompt) == gold


def test_the_size_of_the_label_list_is_the_published_one():
    published = {}
    for n in range(1, 1001):
        size = int(n * 0.4)
        published[n] = min(n if size < 30 else size, 100)
    assert {n: list_size(n) for n in published} == published
    assert [list_size(n) for n in (2, 29, 74, 75, 100, 250, 1000)] == [2, 29, 74, 30, 40, 100, 100]


def test_offered_labels_hold_the_answer_once_and_differ_from_item_to_item():
    labels = [f"l{i}" for i in range(100)]
    lists = [offer("l7", labels, 0, str(i)) for i in range(50)]
    assert all(len(x) == len(set(x)) == 40 and "l7" in x and set(x) <= set(labels) for x in lists)
    assert lists[0] == offer("l7", list(reversed(labels)), 0, "0") and len(set(lists)) == 50
    assert offer("l7", labels, 1, "0") != lists[0]
    places = Counter(x.index("l7") for x in lists)
    assert max(places.values()) < 10 and len(places) > 20  # no fixed place gives the answer away


def test_the_runs_seed_draws_the_labels_but_never_the_split(folder):
    task = Folder(path=folder(TEN))
    assert ids(task, "test", 0) == ids(task, "test", 1)
    assert task.prompts("test", 0)[0].text != task.prompts("test", 1)[0].text
    assert task.prompts("test", 0)[0] == task.prompts("test", 0)[0]


# -- which items --------------------------------------------------------------------------------------------------------


def test_a_folder_is_split_by_class_and_in_mixed_order(folder):
    counts = {"a": 10, "b": 5, "c": 1}
    root = folder(counts)
    task = Folder(path=root)
    train, test = task.prompts("train", 0), task.prompts("test", 0)
    assert Counter(p.answer for p in train) == {"a": 8, "b": 4, "c": 1} and Counter(p.answer for p in test) == {"a": 2, "b": 1}
    assert sorted(ids(task, "train") + ids(task, "test")) == sorted(f"{c}/{i}.png" for c, n in counts.items() for i in range(n))
    assert [p.answer for p in train] != sorted(p.answer for p in train)
    assert all(p.id.startswith(p.answer + "/") and str(p.images[0]).endswith(p.id) and Path(p.images[0]).is_file() for p in train)
    three = Folder(path=root, fractions={"warm": 0.2, "train": 0.4, "test": 0.2})
    assert three.splits == ("warm", "train", "test")
    assert [Counter(p.answer for p in three.prompts(s, 0)) for s in three.splits] == [
        {"a": 2, "b": 1},
        {"a": 4, "b": 2, "c": 1},
        {"a": 2, "b": 1},
    ]
    assert ids(Folder(path=root, seed=1), "test") != ids(task, "test")


def test_every_split_gets_something_of_a_small_class():
    for count, sizes in ((1, [1, 0]), (2, [1, 1]), (3, [2, 1]), (4, [3, 1]), (10, [8, 2])):
        parts = split([Item(str(i), "a", i) for i in range(count)], {"train": 0.8, "test": 0.2}, 0)
        assert [len(part) for part in parts.values()] == sizes
    parts = split([Item(str(i), "a", i) for i in range(5)], {"train": 0.1, "test": 0.5}, 0)
    assert [len(part) for part in parts.values()] == [1, 2]


def test_adding_a_picture_does_not_shuffle_the_others():
    items = [Item(str(i), "a", i) for i in range(1000)]
    before = {i.id for i in split(items, {"train": 0.5, "test": 0.5}, 0)["train"]}
    after = {i.id for i in split([*items, Item("new", "a", 0)], {"train": 0.5, "test": 0.5}, 0)["train"]}
    assert len(before ^ after) <= 2


def test_folders_named_train_and_test_are_the_splits(folder):
    root = folder({"train/cat": 3, "train/dog": 2, "valid/cat": 1, "valid/dog": 1})
    task = Folder(path=root)
    assert task.splits == ("train", "test") and sorted(ids(task, "test")) == ["valid/cat/0.png", "valid/dog/0.png"]
    assert {p.answer for p in task.prompts("train", 0)} == {"cat", "dog"}
    with pytest.raises(UserError, match="own splits, train, test: leave fractions out"):
        Folder(path=root, fractions={"train": 1})


def test_few_shot_takes_k_of_each_class_and_fewer_shots_are_among_more(folder):
    root = folder(TEN)
    four = Folder(path=root, shots=4)
    assert Counter(p.answer for p in four.prompts("train", 0)) == dict.fromkeys(TEN, 4)
    assert set(ids(Folder(path=root, shots=2), "train")) < set(ids(four, "train"))
    assert ids(four, "test") == ids(Folder(path=root), "test")
    assert set(ids(Folder(path=root, shots=2, seed=1), "train")) != set(ids(Folder(path=root, shots=2), "train"))
    with pytest.raises(UserError, match=r"class 'c0' of .*pictures has 4 images to train on and shots is 5: lower it"):
        Folder(path=root, shots=5)
    assert few_shot([Item("x", "a", 0), Item("y", "b", 0)], 1, 0, "x") == [Item("x", "a", 0), Item("y", "b", 0)]


def test_base_and_new_are_the_halves_of_the_sorted_classes(folder):
    assert base_and_new("abcde") == (("a", "b", "c"), ("d", "e"))
    root = folder({f"c{i}": 5 for i in range(5)})
    task = Folder(path=root, classes="base-to-new")
    base, new = {"c0", "c1", "c2"}, {"c3", "c4"}
    assert {p.answer for p in task.prompts("train", 0)} == base
    assert {p.answer for p in task.prompts("test", 0)} == base | new
    for prompt in [*task.prompts("train", 0), *task.prompts("test", 0)]:  # a base picture is never offered a new class
        assert set(prompt.meta["labels"]) == (base if prompt.answer in base else new)
        assert prompt.meta["group"] == ("base" if prompt.answer in base else "new")
    for which, classes in (("base", base), ("new", new)):
        half = Folder(path=root, classes=which)
        assert {p.answer for s in half.splits for p in half.prompts(s, 0)} == classes
    with pytest.raises(UserError, match=r"classes = 'base-to-new' needs a split named 'test', and .* is cut into train, val"):
        Folder(path=root, classes="base-to-new", fractions={"train": 0.6, "val": 0.4})
    extra = Folder(path=root, classes="new", labels=["c0", "c1", "c2", "c3", "c4", "axolotl"])
    assert set(extra.prompts("test", 0)[0].meta["labels"]) == {"c3", "c4", "axolotl"}


@pytest.mark.parametrize(
    "classes, count, half", [("base", 2, "base"), ("new", 3, "new"), ("base-to-new", 2, "base"), ("base-to-new", 3, "new")]
)
def test_a_half_of_one_class_is_refused(folder, classes, count, half):
    root = folder({f"c{i}": 5 for i in range(count)})
    with pytest.raises(UserError, match=f"halves the {count} classes of .*, and one {half} class is too few: use 4 classes"):
        Folder(path=root, classes=classes)
    assert len(Folder(path=folder({f"c{i}": 5 for i in range(4)}, root="four"), classes=classes).splits) == 2


def test_the_summary_is_base_new_and_their_harmonic_mean(folder):
    task = Folder(path=folder({f"c{i}": 5 for i in range(4)}), classes="base-to-new")
    test = list(task.prompts("test", 0))
    by_group = {g: [p for p in test if p.meta["group"] == g] for g in ("base", "new")}
    results = [(p, 1.0) for p in by_group["base"]] + [(by_group["new"][0], 1.0), (by_group["new"][1], 0.0)]
    assert task.summarise(results) == pytest.approx(
        {
            "base": 1.0,
            "base_low": 0.3424,
            "base_high": 1,
            "new": 0.5,
            "new_low": 0.0945,
            "new_high": 0.9055,
            "harmonic_mean": 2 / 3,
        },
        abs=5e-5,
    )
    partly = [(p, 0.25) for p in test]  # no accuracy, so no interval of one
    assert task.summarise(partly) == {"base": 0.25, "new": 0.25, "harmonic_mean": 0.25}
    assert task.summarise([(p, 0.0) for p in test])["harmonic_mean"] == 0
    assert task.summarise(results[:1]) == task.summarise([]) == {}
    plain = Folder(path=task.path)
    assert plain.summarise([(p, 1.0) for p in plain.prompts("test", 0)]) == {}


def test_intervals_are_wilsons():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert wilson(2, 2) == pytest.approx((2 / (2 + 1.96**2), 1), abs=5e-5)
    assert wilson(0, 4)[0] == 0 and wilson(4, 4)[1] == 1


def test_harmonic_means_equal_the_published_ones():
    path = Path(__file__).parents[3] / "tests" / "golden" / "algorithms.jsonl"
    if not path.exists():
        pytest.skip("the golden table is not part of this package")
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "harmonic mean" in row["what"]]
    assert len(rows) == 3
    for row in rows:
        assert harmonic_mean(**row["inputs"]) == pytest.approx(row["value"], abs=2e-6)
    assert harmonic_mean(1, 0) == harmonic_mean(0, 0) == 0


def test_names_rename_and_merge_classes(folder):
    root = folder({"n01": 2, "n02": 2, "n03": 2})
    task = Folder(path=root, names={"n01": "crane", "n02": "crane"}, fractions={"train": 1})
    assert Counter(p.answer for p in task.prompts("train", 0)) == {"crane": 4, "n03": 2}
    with pytest.raises(UserError, match=r"names has 'n0l', which is not a class of .*\. Did you mean 'n0[123]'"):
        Folder(path=root, names={"n0l": "crane"})
    with pytest.raises(UserError, match=r"classes 'Hot Dog' and 'hot_dog' of .* read the same"):
        Folder(path=root, names={"n01": "Hot Dog", "n02": "hot_dog"})


def test_another_process_with_another_hash_seed_makes_the_same(folder):
    root = folder({f"c{i}": 4 for i in range(4)})
    code = (
        "import sys; from mmrl_classification.task import Folder; t = Folder(path=sys.argv[1], shots=2)\n"
        "print([(p.id, p.text) for s in t.splits for p in t.prompts(s, 3)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code, str(root)],
            env={"PYTHONHASHSEED": str(h), "PATH": ""},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for h in (1, 2)
    }
    assert len(runs) == 1 and "c0" in runs.pop()


# -- bad input ----------------------------------------------------------------------------------------------------------


def test_bad_options_are_refused_in_one_line(folder, tmp_path):
    root = folder({"cat": 2, "dog": 2})
    for options, message in (
        ({"style": "tag"}, "style = 'tag' is unknown: choose one of question, tags, .* Did you mean 'tags'"),
        ({"open_ended": "yes"}, "open_ended = 'yes' must be true or false"),
        ({"labels": "open"}, r"labels = 'open' must be a list .*: leave it out .*, or set open_ended = true to offer none"),
        ({"classes": "old"}, "classes = 'old' is unknown"),
        ({"shots": 0}, "shots = 0 must be a whole number from 1$"),
        ({"shots": "4"}, "shots = '4' must be"),
        ({"shots": True}, "shots = True must be"),
        ({"labels": ["cat", "cow"]}, "labels does not contain 'dog', the answer for some images of .*: add it"),
        ({"labels": "cat"}, "labels = 'cat' must be a list"),
        ({"labels": []}, "labels does not contain 'cat'"),
        ({"fractions": {"train": 0.9, "test": 0.2}}, "sum to 1 at most"),
        ({"fractions": {}}, "fractions = {}"),
        ({"fractions": {"train": -1}}, "above 0"),
        ({"fractions": {"train": "all"}}, "above 0"),
        ({"fractions": 0.5}, "fractions = 0.5"),
        ({"fractions": {"a": 0.1, "b": 0.1, "c": 0.1}}, "split 'a' of .* is empty"),
        (
            {"fractions": {"test": 1.0}, "shots": 1},
            "shots = 1 needs a split named 'train', and .*pictures is cut into test: name it",
        ),
        ({"labels": 5}, "labels = 5 must be a list"),
        ({"names": "cat"}, r"names = 'cat' must be a table, such as \{n01440764 = 'tench'\}"),
        ({"quarantine": "no"}, "quarantine = 'no' must be true or false"),
        ({"question": 3}, "question = 3 must be a text"),
        ({"seed": "x"}, "seed = 'x' must be a whole number"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            Folder(path=root, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="there is no split 'dev': choose one of train, test"):
        Folder(path=root).prompts("dev", 0)


def test_bad_folders_are_refused_in_one_line(folder, tmp_path):
    with pytest.raises(UserError, match=r"folder .*nowhere does not exist: set path to"):
        Folder(path=tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"folder .*file is a file: set path to"):
        Folder(path=tmp_path / "file")
    (tmp_path / "bare").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "bare" / "a.png")
    with pytest.raises(UserError, match="bare has no class folders"):
        Folder(path=tmp_path / "bare")
    root = folder({"cat": 2, "dog": 2})
    (root / "empty").mkdir()
    (root / "empty" / "notes.txt").write_text("no picture")
    with pytest.raises(
        UserError, match=r"class folder .*pictures/empty has no images \(\.jpg, .*\): add some, or remove the folder"
    ):
        Folder(path=root)
    with pytest.raises(UserError, match="has only the class 'cat', and classification needs two: add a class, or correct path"):
        Folder(path=folder({"cat": 3}, root="single"))
    with pytest.raises(
        UserError, match="flat/test has no class folders: put the images of each class into a folder named after it"
    ):
        flat = folder({"train/cat": 1, "train/dog": 1, "test": 1}, root="flat")  # never a task that tells train from test
        Folder(path=flat)


def test_an_unreadable_folder_is_named(folder, monkeypatch):
    def refuse(root):
        raise PermissionError(13, "Permission denied", str(root))

    monkeypatch.setattr("mmrl_classification.sources._folders", refuse)
    with pytest.raises(UserError, match=r"folder .*pictures can't be read: Permission denied: check its permissions"):
        Folder(path=folder({"cat": 1, "dog": 1}))


def test_hidden_files_and_other_files_are_no_pictures(folder):
    root = folder({"cat": 1, "dog": 1})
    (root / ".git").mkdir()
    (root / "__MACOSX").mkdir()
    (root / "README.md").write_text("x")
    (root / "cat" / ".DS_Store").write_text("x")
    (root / "cat" / "._0.png").write_text("x")
    (root / "cat" / "labels.csv").write_text("x")
    shutil.copytree(root / "cat", root / "cat" / ".ipynb_checkpoints")
    assert ids(Folder(path=root, fractions={"train": 1}), "train") in (["cat/0.png", "dog/0.png"], ["dog/0.png", "cat/0.png"])


def test_a_broken_picture_raises_with_its_name_when_it_is_decoded(bad_folder):
    root, broken = bad_folder
    task = Folder(path=root, fractions={"train": 1})
    failed = []
    for prompt in task.prompts("train", 0):  # listing decodes nothing
        try:
            load_image(prompt.images[0])
        except UserError as error:
            assert prompt.id.rpartition("/")[2] in str(error) and "\n" not in str(error)
            failed.append(prompt.id)
    assert sorted(failed) == broken and len(task.prompts("train", 0)) == 16 and task.quarantined == ()


def test_quarantine_names_every_broken_picture_and_goes_on(bad_folder):
    root, broken = bad_folder
    with pytest.warns(UserWarning, match=r"^4 of 16 images of .* are left out: .*broken\.jpg") as caught:
        task = Folder(path=root, fractions={"train": 1}, quarantine=True)
    assert len(caught) == 1 and all(name in str(caught[0].message) for name in broken)
    assert [id for id, _ in task.quarantined] == broken and all(id in cause for id, cause in task.quarantined)
    prompts = task.prompts("train", 0)
    assert len(prompts) == 12
    pictures = {p.id: load_image(p.images[0]) for p in prompts}
    assert pictures["dog/one-pixel.png"].size == (1, 1) and pictures["dog/wide.png"].size == (30_000, 200)
    assert pictures["dog/animated.gif"].getpixel((0, 0)) == (255, 0, 0)
    assert pictures["dog/sixteen-bit.png"].getpixel((0, 0)) == pictures["dog/transparent.png"].getpixel((0, 0)) == (255, 255, 255)
    assert pictures["dog/cmyk.jpg"].getpixel((8, 8))[0] > 245


# -- data sets ----------------------------------------------------------------------------------------------------------


def table(count=10, names=("cat", "dog")):
    pictures = [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(count)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))})
    return datasets.Dataset.from_dict({"image": pictures, "label": [i % len(names) for i in range(count)]}, features=features)


def test_a_data_set_from_disk_parquet_and_folder(tmp_path, folder):
    table().save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict(train=table(), validation=table(4)).save_to_disk(str(tmp_path / "parts"))
    table().to_parquet(str(tmp_path / "a.parquet"))
    for where in (tmp_path / "saved", tmp_path / "a.parquet"):
        task = Dataset(path=str(where))
        assert task.splits == ("train", "test") and [len(task.prompts(s, 0)) for s in task.splits] == [8, 2]
        for prompt in task.prompts("train", 0):
            row = int(prompt.id.removeprefix("train/"))
            assert prompt.images[0].getpixel((0, 0)) == (row, 0, 0) and prompt.answer == ("cat", "dog")[row % 2]
    task = Dataset(path=str(tmp_path / "parts"))
    assert sorted(ids(task, "test")) == [f"validation/{i}" for i in range(4)] and len(task.prompts("train", 0)) == 10
    task = Dataset(path=str(tmp_path / "parts"), split_names={"test": "train", "train": "validation"})
    assert len(task.prompts("test", 0)) == 10
    task = Dataset(path=str(folder({"cat": 5, "dog": 5})))
    assert len(task.prompts("train", 0)) == 8 and task.prompts("train", 0)[0].images[0].size == (8, 8)


def test_text_labels_and_other_columns(tmp_path):
    rows = {"pic": [Image.new("RGB", (2, 2), (i, 0, 0)) for i in range(6)], "what": ["b", "a", "c"] * 2}
    features = datasets.Features({"pic": datasets.Image(), "what": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "d"))
    task = Dataset(path=str(tmp_path / "d"), image_column="pic", label_column="what", classes="base", fractions={"train": 1})
    assert {p.answer for p in task.prompts("train", 0)} == {"a", "b"}
    with pytest.raises(UserError, match="has no column 'image': set image_column and label_column; it has pic, what"):
        Dataset(path=str(tmp_path / "d"))


def test_class_numbers_keep_their_order_in_base_and_new(tmp_path):
    table(8, names=("zebra", "ant", "yak", "bee")).save_to_disk(str(tmp_path / "d"))
    task = Dataset(path=str(tmp_path / "d"), classes="base", fractions={"train": 1})
    assert {p.answer for p in task.prompts("train", 0)} == {"zebra", "ant"}


def test_bad_data_sets_are_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"data set .*/missing can't be loaded: .*: check path"):
        Dataset(path=str(tmp_path / "missing"))
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"a\.parquet can't be loaded"):
        Dataset(path=str(tmp_path / "a.parquet"))
    datasets.DatasetDict(one=table(), two=table()).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(UserError, match="has the splits one, two: assign them"):
        Dataset(path=str(tmp_path / "d"))
    with pytest.raises(UserError, match="has no split 'three': split_names must name one of one, two"):
        Dataset(path=str(tmp_path / "d"), split_names={"train": "three"})
    with pytest.raises(UserError, match=r"split_names = 'one' must be a table, such as \{train = 'training'\}"):
        Dataset(path=str(tmp_path / "d"), split_names="one")
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("string")})
    rows = {"image": [b"no picture", None, b"x"], "label": ["a", "b", None]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"row 2 of 'train' of data set .* has the label None"):
        Dataset(path=str(tmp_path / "none"))
    whole.select([0, 1]).save_to_disk(str(tmp_path / "broken"))
    task = Dataset(path=str(tmp_path / "broken"), fractions={"train": 1})
    for id, message in (
        ("train/0", "image in row 0 of 'train' of data set .* is broken"),
        ("train/1", "image in row 1 of .* is missing"),
    ):
        with pytest.raises(UserError, match=message):
            task.prompts("train", 0)[[i.id for i in task.prompts("train", 0).items].index(id)]


# -- the conformance kit ------------------------------------------------------------------------------------------------


def test_everything_passes_the_conformance_kit(folder, tmp_path):
    root = str(folder({f"kind_{i}": 6 for i in range(6)}))
    datasets.load_dataset(root).save_to_disk(str(tmp_path / "saved"))
    options = {f"classification/folder{s}": {"path": root} for s in ("", "@cls-rl", "@no-thinking-rl")}
    options |= {f"classification/dataset{s}": {"path": str(tmp_path / "saved")} for s in ("", "@cls-rl", "@no-thinking-rl")}
    check_plugin("classification", n=8, options=options)
    assert set(STYLES) == {"question", "tags", "confidence", "direct", "cls-rl", "no-thinking"}


def test_questions_are_asked_in_other_words():
    task = Digits(style="tags")
    prompt = task.prompts("test", 0)[0]
    other = task.rephrase(prompt)
    assert other.text == prompt.text.replace(task.question, task.otherwise) != prompt.text
    assert (other.answer, other.images) == (prompt.answer, prompt.images)
    folder = Folder(path="assets/samples/classes", rephrased="What is it?", seed=1)
    prompt = folder.prompts("train", 0)[0]
    assert folder.rephrase(prompt).text == prompt.text.replace(folder.question, "What is it?")
