"""pyproject.toml's ranges, constraints.txt's pins and the plugins' own pyprojects say the same."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mmrl.run_folder.machine import canonical

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PLUGINS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted([*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("sims/*/pyproject.toml")], key=lambda p: p.parent.name)
}


def pins() -> dict[str, Requirement]:
    return own_pins("constraints.txt")


def own_pins(file: str) -> dict[str, Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    found = [Requirement(line) for line in lines if line]
    assert len({canonical(r.name) for r in found}) == len(found), "a package is pinned twice"
    return {canonical(r.name): r for r in found}


def version(name: str) -> str:
    clauses = list(pins()[name].specifier)
    assert len(clauses) == 1 and clauses[0].operator == "==", f"{name} is not pinned to one version"
    return clauses[0].version


def test_make_setup_installs_every_extra_that_the_pins_are_for():
    installed = re.search(r"-e \"\.\[(.+)\]\"", (ROOT / "Makefile").read_text())[1].split(",")
    assert installed == ["train", "tasks", "board", "ray", "test", "dev"]
    assert set(installed) <= set(EXTRAS)


SMALL = [name for name in PLUGINS if name != "maniskill"]


@pytest.mark.parametrize("extra", ["core", "train", "pictures", *SMALL, "board", "ray", "test", "dev"])
def test_what_is_asked_for_is_pinned_within_its_range(extra):
    wanted = [Requirement(r) for r in (PROJECT["dependencies"] if extra == "core" else EXTRAS.get(extra, []))]
    for r in wanted:
        if r.name != "mmrl":
            assert r.specifier.contains(version(canonical(r.name))), f"{r} against {version(canonical(r.name))}"


def test_one_extra_brings_what_all_bundled_plugins_need():
    """But for ManiSkill, which is hundreds of megabytes."""
    (tasks,) = map(Requirement, EXTRAS["tasks"])
    assert tasks.extras == {name for name in PLUGINS if name in EXTRAS} - {"maniskill"}


def test_torchvision_is_the_one_for_torch():
    torch, torchvision = version("torch").split("."), version("torchvision").split(".")
    assert torch[0] == "2" and torchvision[:2] == ["0", str(int(torch[1]) + 15)]


def test_nothing_that_breaks_beside_cpu_torch_is_pinned():
    assert not {"torchaudio", "torchcodec", "opencv-python"} & set(pins())
    assert not [name for name in pins() if name.startswith(("nvidia-", "triton"))]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_core_wheel_asks_for_what_its_bundled_plugin_asks_for(plugin):
    """`mmrl[train,PLUGIN]` brings at least what the plugin's own distribution would."""
    ours = {canonical(r.name): r for r in map(Requirement, [*PROJECT["dependencies"], *EXTRAS["train"], *EXTRAS.get(plugin, [])])}
    for theirs in map(Requirement, PLUGINS[plugin].get("dependencies", [])):
        name = canonical(theirs.name)
        if name == "mmrl":
            continue
        assert name in ours, f"plugins/{plugin} needs {theirs}: add it to the extra {plugin!r} of the root pyproject.toml"
        assert theirs.extras <= ours[name].extras
        assert set(theirs.specifier) <= set(ours[name].specifier), f"{theirs} there, {ours[name]} here"


def test_what_simulators_need_is_pinned_beside_them():
    """ManiSkill's beside the project's own pins, each package in one of the two; Meta-World's alone, with another numpy."""
    maniskill = own_pins("sims/maniskill/constraints.txt")
    assert not set(maniskill) & set(pins()), "pinned twice"
    for r in map(Requirement, EXTRAS["maniskill"]):
        pinned = (maniskill | pins())[canonical(r.name)]
        assert r.specifier.contains(str(pinned.specifier).removeprefix("=="))
    metaworld = own_pins("sims/gym/constraints-metaworld.txt")
    assert {"metaworld", "mujoco", "gymnasium", "packaging"} <= set(metaworld) and "torch" not in metaworld
    assert str(metaworld["numpy"].specifier).startswith("==1.")
