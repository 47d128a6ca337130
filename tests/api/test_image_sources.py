"""Pictures at hand: the same everywhere, and nothing of one split in another."""

import hashlib
import os

import numpy as np
import pytest
from PIL import Image

from mmrl.api.errors import UserError
from mmrl.api.tasks import image_sources
from mmrl.api.tasks.image_sources import (
    PHOTOGRAPHS,
    SPLIT_SHARES,
    ImageFolder,
    PhotographCrops,
    chance,
    hash_rank,
    list_files,
    part,
    photograph,
    random_crop,
    split_files,
    split_of,
)


def test_draws_are_the_same_on_every_machine():
    digest = hashlib.sha256(b"7\x1fa\x1fb").digest()
    assert hash_rank(7, "a", "b") == int.from_bytes(digest[:8], "big") != hash_rank(7, "ab")
    assert chance(7, "a").random() == chance(7, "a").random() != chance(8, "a").random()


def test_any_text_has_its_rank():
    names = ["\ud800", "\udc80", "\udfff.png", "", "\0", "é", "é".encode().decode(errors="surrogateescape") + "\udcff"]
    assert len({hash_rank(0, name) for name in names}) == len(names)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_every_photograph_is_there(name):
    found = photograph(name)
    assert found.mode == "RGB" and min(found.size) >= 256


@pytest.mark.parametrize("size", [(600, 400), (400, 600), (512, 512)])
def test_parts_of_splits_share_no_pixel(size):
    train, test = part("train", size), part("test", size)
    axis = 0 if size[0] >= size[1] else 1
    assert train[axis] == 0 and test[axis] >= train[axis + 2] and test[axis + 2] <= size[axis]
    assert {train[1 - axis], test[1 - axis]} == {0} and train[3 - axis] == test[3 - axis] == size[1 - axis]
    with pytest.raises(UserError, match="no split 'warm'"):
        part("warm", size)


def test_a_piece_shows_nothing_of_the_other_splits_part(monkeypatch):
    """The train part is black and the test part white: bicubic resampling, which looks further, still never mixes them."""
    pixels = np.zeros((300, 500, 3), dtype=np.uint8)
    pixels[:, part("train", (500, 300))[2] :] = 255
    monkeypatch.setattr(image_sources, "photograph", lambda name: Image.fromarray(pixels))
    for n in range(200):
        for split, colour in (("train", 0), ("test", 255)):
            assert random_crop(split, chance(n, split), 40, 30).getextrema() == ((colour, colour),) * 3


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for n in range(40):
        Image.new("RGB", (20 + n, 10), (n, 0, 0)).save(tmp_path / ("deep" if n % 2 else ".") / f"{n:02d}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_a_folders_images_go_by_their_paths(folder):
    found = list_files(str(folder))
    assert len(found) == 40 and list(found) == sorted(found) and "deep/01.png" in found and "00.png" in found
    for path, message in (("nowhere", "does not exist"), ("notes.txt", "is a file")):
        with pytest.raises(UserError, match=message):
            list_files(str(folder / path))
    for path in ("x" * 3000, "x" * 90_000, "a\nb", "\0"):
        with pytest.raises(UserError, match=r"folder .*: (give a folder of images|correct the path)") as caught:
            list_files(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="has no images"):
        list_files(str(folder / "empty"))


def test_hidden_files_and_folders_are_left_out(folder):
    for hidden in (".venv/a.png", ".b.png", "deep/.ipynb_checkpoints/c.png"):
        (folder / hidden).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / hidden)
    assert len(list_files(str(folder))) == 40


def test_a_subfolder_that_cannot_be_read_is_named(folder, monkeypatch):
    scan = os.scandir

    def refusing(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UserError, match=r"folder .*deep can't be read: Permission denied: check its permissions"):
        list_files(str(folder))


def test_the_split_of_a_file_is_its_own_whatever_is_added():
    before = {f"{n}.png": split_of(f"{n}.png", 0) for n in range(2000)}
    shares = {split: sum(s == split for s in before.values()) / 2000 for split in SPLIT_SHARES}
    assert shares == pytest.approx(SPLIT_SHARES, abs=0.04)
    assert before != {id: split_of(id, 1) for id in before}


def test_items_of_a_folder(folder):
    source = ImageFolder(str(folder), 25, 2, 0)
    ids = {split: set(found) for split, found in source.ids.items()}
    assert not ids["train"] & ids["test"] and len(ids["train"]) + len(ids["test"]) == 80
    for split, found in source.ids.items():
        for index, id in enumerate(found):
            assert split_of(id.removesuffix("#1"), 0) == split and source.name(split, index).endswith(id.removesuffix("#1"))
            assert max(source.open(split, index).size) <= 25
    (folder / "zz.png").write_bytes((folder / "00.png").read_bytes())
    again = ImageFolder(str(folder), 25, 2, 0)
    assert all(set(source.ids[split]) <= set(again.ids[split]) for split in SPLIT_SHARES), "a file more moves no other"


def test_a_folder_of_other_files(folder):
    assert list(list_files(str(folder), (".txt",), "note")) == ["notes.txt"]
    with pytest.raises(UserError, match=r"has no clips \(\.mp4, \.mov\): add some, or give another folder"):
        list_files(str(folder), (".mp4", ".mov"), "clip")
    with pytest.raises(UserError, match="is a file: give a folder of clips"):
        list_files(str(folder / "notes.txt"), (".mp4",), "clip")


def test_each_split_gets_a_file(folder):
    empty = "train" if split_of("notes.txt", 0) == "test" else "test"
    with pytest.raises(UserError, match=f"has 1 note, and none of them is in split '{empty}': add more, or set another seed"):
        split_files(str(folder), 3, 0, (".txt",), "note")
    ids, paths = split_files(str(folder), 2, 0)
    assert [str(p.relative_to(folder)) for p in paths["test"]] == [id.removesuffix("#1") for id in ids["test"]]
    half = len(ids["test"]) // 2
    assert [f"{id}#1" for id in ids["test"][:half]] == ids["test"][half:], "all once before any comes again"
    assert ids["test"][:half] == sorted(ids["test"][:half], key=lambda id: hash_rank(0, "order", id))


def test_pieces_of_photographs():
    source = PhotographCrops(32, {"train": 6, "test": 3}, 0, ("china", "coffee"))
    assert [len(found) for found in source.ids.values()] == [6, 3]
    assert {source.name("train", i) for i in range(6)} <= {"china", "coffee"}
    assert (
        source.open("train", 2).tobytes() == PhotographCrops(32, {"train": 9}, 0, ("china", "coffee")).open("train", 2).tobytes()
    )
    for wrong in (["cat"], "china", 5, True, None, {}, [5], [["china"]], ["x" * 9000]):
        with pytest.raises(UserError, match=r"photographs = .* must be a list of names out of astronaut") as caught:
            PhotographCrops(32, {"train": 1}, 0, wrong)
        assert len(str(caught.value)) < 500
