"""`mmrl new plugin NAME`: the package works as it is written, as a user would install and run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import forked
import mmrl as core
from mmrl.ui.cli.new import TEMPLATE

NAME = "traffic-signs"


@pytest.fixture
def package(mmrl, site, tmp_path: Path) -> Path:
    """A new package, which counts as installed: its folder is on the path, beside the metadata that pip would write."""
    done = mmrl("new", "plugin", NAME)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / f"multimodal-rl-{NAME}"
    about = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    place = site(about["name"], {}, about["entry-points"]["mmrl.plugins"], about["dependencies"], about["version"])
    (place / "mmrl_traffic_signs").symlink_to(folder / "mmrl_traffic_signs")
    return folder


def run(folder: Path, *command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, timeout=timeout, capture_output=True, text=True, check=False
    )


def test_it_is_listed_checked_and_its_own_tests_pass(package: Path) -> None:
    (listed,) = (p for p in json.loads(run(package, "mmrl", "plugins", "--json").stdout) if p["name"] == NAME)
    assert listed["error"] is None and listed["dist"] == "multimodal-rl-traffic-signs" and listed["contract"] == core.CONTRACT
    assert listed["specs"] == {"tasks": ["traffic-signs/colour"], "verifiers": ["traffic-signs/exact"]}
    (report,) = json.loads(run(package, "mmrl", "check", "traffic-signs/colour", "--json").stdout)
    assert report["ok"], report
    tested = run(package, "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout + tested.stderr
    assert "warning" not in tested.stdout, "an editable mmrl is no news to the author of a plugin"


def test_its_tests_fail_when_the_verifier_is_wrong(package: Path) -> None:
    path = package / "mmrl_traffic_signs" / "task.py"
    right, wrong = "case.completion.strip().lower() == case.answer", "case.answer in case.completion.lower()"
    assert right in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(right, wrong), "utf-8")
    tested = run(package, "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 1 and "2 failed" in tested.stdout
    assert "verifier 'traffic-signs/exact' fails listing_every_answer_scores_low" in tested.stdout


@pytest.mark.always
@pytest.mark.slow
def test_it_trains_two_steps_a_stage(package: Path) -> None:
    done = forked.run(["train", "run.toml", "--smoke"], cwd=package, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (package / "runs" / f"{NAME}-smoke" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [(row["step"], row["stage"]) for row in rows if "metrics" in row] == [(1, "sft"), (2, "sft"), (3, "rl"), (4, "rl")]


@pytest.mark.exhaustive  # two minutes; another test trains some steps
@pytest.mark.slow
def test_it_learns(package: Path) -> None:
    """The run file as it is written: the warm start leaves something to learn, and reinforcement learns it."""
    done = run(package, "mmrl", "train", "run.toml", "--set", "train.threads=1", timeout=280)
    assert done.returncode == 0, done.stderr
    summary = json.loads((package / "runs" / NAME / "summary.json").read_text("utf-8"))
    before, last = (summary[when][f"{NAME}/colour"] for when in ("before", "last"))
    assert (before["n"], last["metric"]) == (100, "accuracy")
    assert before["value"] > 0.4 and before["value"] + 0.05 < last["value"] and last["value"] > 0.9, (before, last)


def test_what_runs_leave_behind_is_not_committed(package: Path) -> None:
    """The dotfile is written too."""
    assert (package / ".gitignore").read_text("utf-8").split() == [
        ".venv/",
        "__pycache__/",
        "runs/",
        "preview-*.html",
        "preview-*.png",
    ]


def test_it_builds(package: Path, tmp_path: Path) -> None:
    """The wheel holds the package and names the entry point; no network is needed."""
    out = tmp_path / "wheel"
    built = run(package, "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(out), ".")
    assert built.returncode == 0, built.stderr
    (wheel,) = out.iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "mmrl_traffic_signs/task.py" in names and not any("test" in name for name in names)


def test_its_run_file_is_valid(package: Path) -> None:
    from mmrl.config.load import load_config

    config = load_config(package / "run.toml")
    assert (config.name, config.tasks[0].id) == (NAME, "traffic-signs/colour")
    assert [s.kind for s in config.stages] == ["sft", "rl"]


def test_the_template_fits_the_running_core() -> None:
    """`mmrl new` writes the range and the contract of the running core in place of the template's."""
    assert '"multimodal-rl>=0.2,<0.3"' in (TEMPLATE / "pyproject.toml").read_text("utf-8")
    assert core.__version__.startswith("0.2."), "the template's range is replaced by another core's: see mmrl.ui.cli.new.fill"
    assert f"\nMMRL_CONTRACT = {core.CONTRACT}\n" in (TEMPLATE / "mmrl_example" / "__init__.py").read_text("utf-8")


@pytest.mark.parametrize("name", ["Flags", "my_flags", "-x", "x-", "a--b", "1st", "a/b", "../x", "x" * 41, "flags!", "é"])
def test_names_that_can_not_be(mmrl, tmp_path: Path, name: str) -> None:
    done = mmrl("new", "plugin", "--", name)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"mmrl: {name!r} is not a plugin name: use lower-case letters, digits and single hyphens, such as traffic-signs\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_or_taken(mmrl, tmp_path: Path) -> None:
    assert mmrl("new", "plugin", "flags", "--dir", "sub/dir").returncode == 0
    assert os.listdir(tmp_path / "sub" / "dir") == ["multimodal-rl-flags"], "nothing is left beside it"
    again = mmrl("new", "plugin", "flags", "--dir", "sub/dir")
    assert again.returncode == 2
    cure = "choose another name, or another parent folder with --dir"
    assert again.stderr == f"mmrl: sub/dir/multimodal-rl-flags already exists: {cure}\n"
    (tmp_path / "file").write_text("")
    blocked = mmrl("new", "plugin", "flags", "--dir", "file")
    assert (
        blocked.returncode == 2
        and "choose another parent folder with --dir" in blocked.stderr
        and blocked.stderr.count("\n") == 1
    )
    taken = mmrl("new", "plugin", "classification")
    assert taken.returncode == 2 and "is already installed: choose another name" in taken.stderr
