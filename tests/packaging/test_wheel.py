"""The wheels: what is in them, and that the bundled plugins are listed once however they were installed."""

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

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PLUGINS = {
    path.parent.name: path.parent
    for path in sorted([*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("sims/*/pyproject.toml")], key=lambda p: p.parent.name)
}
MODULES = {f"mmrl_{name}" for name in PLUGINS}


def run(*command: object, **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, out: Path, *what: str) -> Path:
    """The wheel of a folder; without `--wheel` it is built from the sdist, which so is complete."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *what, folder)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def plugin_wheels(tmp_path_factory):
    return {name: build(folder, tmp_path_factory.mktemp(name), "--wheel") for name, folder in PLUGINS.items()}


def files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def sources(package: Path) -> set[str]:
    """The files of a package in the tree, as a wheel names them."""
    return {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def entry_points(wheel: Path) -> configparser.ConfigParser:
    archive = zipfile.ZipFile(wheel)
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode())
    return parser


def test_the_core_wheel_holds_the_packages_and_nothing_else(wheel):
    expected = sources(ROOT / "mmrl").union(*(sources(folder / f"mmrl_{name}") for name, folder in PLUGINS.items()))
    assert {"mmrl/__init__.py", "mmrl/ui/cli/__init__.py", "mmrl_classification/__init__.py"} <= expected
    assert any(name.startswith("mmrl/ui/cli/templates/") for name in expected)
    assert files(wheel) == expected


def test_the_sdist_can_be_built_and_read(wheel):
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith((".venv", "runs", ".git/")) for name in names)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_builds_as_its_own_distribution(plugin, plugin_wheels):
    assert files(plugin_wheels[plugin]) == sources(PLUGINS[plugin] / f"mmrl_{plugin}")
    assert dict(entry_points(plugin_wheels[plugin])["mmrl.plugins"]) == {plugin: f"mmrl_{plugin}"}


def test_the_core_wheel_has_the_entry_points_of_all_plugins(wheel, plugin_wheels):
    union = {name: module for own in plugin_wheels.values() for name, module in entry_points(own)["mmrl.plugins"].items()}
    assert union == {name: f"mmrl_{name}" for name in PLUGINS}
    assert dict(entry_points(wheel)["mmrl.plugins"]) == union
    assert dict(entry_points(wheel)["console_scripts"]) == {"mmrl": "mmrl.ui.cli:main"}
    assert dict(entry_points(wheel)["pytest11"]) == {"mmrl": "mmrl.testing.pytest_plugin"}


def test_the_import_contracts_forget_no_plugin_and_no_part_of_the_engine():
    linter = PYPROJECT["tool"]["importlinter"]
    assert set(linter["root_packages"]) == {"mmrl"} | MODULES


def test_types_are_checked_in_every_plugin():
    mypy = PYPROJECT["tool"]["mypy"]
    assert set(mypy["packages"]) == {"mmrl"} | MODULES
    assert {path.name for place in mypy["mypy_path"] for path in (ROOT / place).glob("mmrl_*")} == MODULES


def installed_plugins(site: Path, wheels: list[Path]) -> list[dict]:
    """What `mmrl plugins --json` says where these wheels are installed."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, *wheels)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MMRL_")} | {"PYTHONPATH": str(site)}
    code = "import mmrl, mmrl_classification; print(mmrl.__file__, mmrl_classification.__file__, sep='\\n')"
    where = run(sys.executable, "-c", code, cwd=site, env=env).splitlines()
    assert all(Path(path).is_relative_to(site) for path in where), "the tree was imported, not the wheel"
    found = json.loads(run(sys.executable, "-m", "mmrl", "plugins", "--json", cwd=site, env=env))
    return [p for p in found if p["name"] in PLUGINS]


def test_bundled_plugins_are_listed_once(tmp_path, wheel, plugin_wheels):
    alone = installed_plugins(tmp_path / "alone", [wheel])
    assert [(p["name"], p["dist"], p["error"]) for p in alone] == [(name, "mmrl", None) for name in PLUGINS]
    assert all(p["specs"] for p in alone)
    both = installed_plugins(tmp_path / "both", [wheel, *plugin_wheels.values()])
    assert [p["name"] for p in both] == list(PLUGINS)
    assert [p["specs"] for p in both] == [p["specs"] for p in alone]


def test_an_editable_install_exposes_the_packages_only(tmp_path):
    """dev-mode-exact: `import tests` or `import configs` must not work because mmrl is installed for development."""
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=ROOT)
    archive = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    mapped = archive.read("_editable_impl_mmrl.py").decode()
    assert {line.split("'")[1] for line in mapped.splitlines() if line.startswith("F.map_module")} == {"mmrl"} | MODULES
    paths = [archive.read(name).decode().strip() for name in archive.namelist() if name.endswith(".pth")]
    assert paths == ["import _editable_impl_mmrl"]  # no folder is put on the path
