"""The wheels: each owns its own files and entry points, so that one comes and goes without the others."""

import configparser
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from contracts import contracts, packages

ROOT = Path(__file__).parents[2]
PLUGINS = {
    path.parent.name: path.parent for path in [*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("sims/*/pyproject.toml")]
}
CORE = "multimodal-rl"
DISTRIBUTIONS = {CORE: ROOT, **{f"{CORE}-{name}": folder for name, folder in sorted(PLUGINS.items())}}
BUILD = """
import sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

out, core, *plugins = sys.argv[1:]
list(SdistBuilder(core).build(directory=out))
for folder in (core, *plugins):
    list(WheelBuilder(folder).build(directory=out, versions=["standard"]))
"""


def run(*command: object, **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder with all wheels and the core's sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-c", BUILD, out, *DISTRIBUTIONS.values())
    return out


@pytest.fixture(scope="module")
def wheels(built) -> dict[str, Path]:
    return {name: next(built.glob(f"{name.replace('-', '_')}-*.whl")) for name in DISTRIBUTIONS}


def files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def sources(package: Path) -> set[str]:
    """The files of a package in the tree, as a wheel names them."""
    return {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def entry_points(wheel: Path) -> dict[str, dict[str, str]]:
    archive = zipfile.ZipFile(wheel)
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode())
    return {section: dict(parser[section]) for section in parser.sections()}


def test_each_wheel_holds_its_package_and_nothing_else(wheels):
    assert files(wheels[CORE]) == sources(ROOT / "mmrl") >= {"mmrl/__init__.py", "mmrl/py.typed", "mmrl/ui/cli/__init__.py"}
    assert any(name.startswith("mmrl/ui/cli/templates/plugin/mmrl_example/") for name in files(wheels[CORE]))
    for name, folder in PLUGINS.items():
        package = f"mmrl_{name}"
        assert files(wheels[f"{CORE}-{name}"]) == sources(folder / package) >= {f"{package}/__init__.py", f"{package}/py.typed"}


def test_each_wheel_has_its_own_entry_points(wheels):
    assert entry_points(wheels[CORE]) == {
        "console_scripts": {"mmrl": "mmrl.ui.cli:main"},
        "pytest11": {"mmrl": "mmrl.testing.pytest_plugin"},
    }
    for name in PLUGINS:
        others = {"inspect_ai": {"mmrl_interop": "mmrl_interop.inspect_task"}} if name == "interop" else {}
        assert entry_points(wheels[f"{CORE}-{name}"]) == {"mmrl.plugins": {name: f"mmrl_{name}"}} | others


def test_the_sdist_is_complete(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} | sources(ROOT / "mmrl") <= names
    assert not any(name.startswith((".venv", "runs", ".git/", "plugins", "sims")) for name in names)


def install(site: Path, *wheels: Path) -> None:
    """What pip does with a wheel of pure Python, but for its scripts."""
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(site)


def test_plugins_are_listed_where_their_wheels_are_installed(tmp_path, wheels):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MMRL_")} | {"PYTHONPATH": str(tmp_path)}
    install(tmp_path, *wheels.values())
    found = json.loads(run(sys.executable, "-m", "mmrl", "plugins", "--json", cwd=tmp_path, env=env))
    ours = {p["name"]: (p["dist"], p["version"], p["error"]) for p in found if p["name"] in PLUGINS}
    assert ours == {name: (f"{CORE}-{name}", "0.2.0", None) for name in PLUGINS}
    assert all(p["specs"] and p["contract"] for p in found if p["name"] in PLUGINS)
    code = "import mmrl, mmrl_jigsaw; print(mmrl.__file__, mmrl_jigsaw.__file__, sep='\\n')"
    where = run(sys.executable, "-c", code, cwd=tmp_path, env=env).splitlines()
    assert all(Path(path).is_relative_to(tmp_path) for path in where), "the tree was imported, not the wheel"


def test_uninstalling_a_plugin_leaves_the_core_whole(tmp_path, wheels):
    """And the other way round: no file has two owners."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    install(site, wheels[CORE], wheels[f"{CORE}-jigsaw"])
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "uninstall", "-q", "-y", f"{CORE}-jigsaw")
    assert sources(site / "mmrl") == sources(ROOT / "mmrl") and not (site / "mmrl_jigsaw").exists()
    everything = [name for wheel in wheels.values() for name in zipfile.ZipFile(wheel).namelist()]
    assert len(everything) == len(set(everything))


def test_the_import_contracts_and_the_type_checker_find_every_plugin():
    modules = sorted(f"mmrl_{name}" for name in PLUGINS)
    assert packages() == modules
    settings = contracts(["mmrl_a", "mmrl_b"])
    assert settings["root_packages"] == ["mmrl", "mmrl_a", "mmrl_b"]
    assert ["mmrl_a | mmrl_b", "mmrl"] in [contract.get("layers") for contract in settings["contracts"]]
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    assert {path.name for pattern in checked for path in ROOT.glob(pattern)} == {"mmrl", *modules}


@pytest.mark.parametrize("name", [CORE, f"{CORE}-jigsaw"])
def test_an_editable_install_exposes_the_package_only(tmp_path, name):
    """dev-mode-exact: `import tests` or `import configs` must not work because mmrl is installed for development."""
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=DISTRIBUTIONS[name])
    archive = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    implementation = f"_editable_impl_{name.replace('-', '_')}"
    mapped = archive.read(f"{implementation}.py").decode()
    package = "mmrl_jigsaw" if "jigsaw" in name else "mmrl"
    assert [line.split("'")[1] for line in mapped.splitlines() if line.startswith("F.map_module")] == [package]
    paths = [archive.read(name).decode().strip() for name in archive.namelist() if name.endswith(".pth")]
    assert paths == [f"import {implementation}"]  # no folder is put on the path
