"""What a GPU machine without a network lacks to run mmrl from this folder: downloads it beforehand, and puts it on a path there.

    python benchmarks/gpu_bundle.py [--folder .gpu-bundle] [--python 3.12]

Downloads wheels for that Python on Linux (x86-64) in the versions of constraints.txt, and writes a manifest. What a GPU machine
has (torch, transformers and what they need) isn't among them, nor is anything that needs more than a few megabytes. A second
call changes nothing. Prints one JSON object. `prepare` is the other half, for `gpu_all.py`: standard library alone, no pip.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER, MANIFEST = ".gpu-bundle", "manifest.json"
LARGEST = 60 * 2**20
"""Bytes that a bundle may have."""
BROUGHT = (
    *("click", "packaging", "pluggy", "tomli-w", "tomlkit"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
    *("rich", "markdown-it-py", "mdurl", "Pygments"),
    *("num2words", "math-verify", "latex2sympy2-extended", "antlr4-python3-runtime", "psutil"),
    *("trl==1.16.0", "accelerate", "datasets", "dill", "multiprocess", "xxhash"),
    *("levenshtein", "rapidfuzz", "json-repair"),
    "bitsandbytes",
)
"""What mmrl, the plugins of `PLUGINS` and TRL need beyond `GIVEN`."""
LEFT_OUT = {"bitsandbytes": r"libbitsandbytes_(?!cpu\.|cuda13).*\.so"}
"""Distribution -> names of files that its wheel is brought without, a pattern. Nine tenths of bitsandbytes are libraries for
other platforms and for other versions of CUDA than 13."""
GIVEN = (
    *("torch", "torchvision", "transformers", "peft", "safetensors", "numpy", "pillow", "opencv-python-headless", "tokenizers"),
    *("huggingface-hub", "pyyaml", "regex", "tqdm", "requests", "filelock", "fsspec", "sympy", "jinja2"),
)
"""What the machine brings."""
HEAVY = (
    "av",
    "pyarrow",
    "pandas",
    "scikit-learn",
    "scipy",
    "scikit-image",
    "tensorboard",
    "httpx",
    "httpx2",
    "qwen-vl-utils",
    "timm",
)
"""What isn't brought: dozens of megabytes, or nothing that is measured uses it. What needs them is left out where they aren't."""
UNUSED = ("docopt",)
"""Required by a package for its command alone."""
PLUGINS = ("plugins/classification", "plugins/grounding", "plugins/robotics", "plugins/vqa", "sims/tabletop")
"""The plugins that the benchmarks use."""
EXTRAS = ("train", "mathematics", "quantized")
"""Extras of mmrl that they need."""
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# -- before: download -----------------------------------------------------------------------------------------------------------


def build(folder: Path, python: str) -> dict[str, Any]:
    """Downloads the wheels into the folder, unless they are there, and returns its manifest. Exits with a line if pip can't, if
    something is missing, or if the folder would be too large."""
    asked = {"python": python, "wanted": BROUGHT, "left_out": LEFT_OUT, "constraints": (ROOT / "constraints.txt").read_text()}
    made_from = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    known = read_manifest(folder)
    if known and known["made_from"] == made_from and all(_is_there(folder, name, row) for name, row in known["wheels"].items()):
        return known | {"downloaded": False}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".gpu-bundle-") as new:
        _download(Path(new), python)
        for name, _, path in wheels_of(Path(new)):
            if name in LEFT_OUT:
                slim(path, re.compile(LEFT_OUT[name]))
        wheels = {}
        for path in sorted(Path(new).glob("*.whl")):
            wheels[path.name] = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        found: dict[str, Any] = {"python": python, "made_from": made_from, "bytes": sum(w["bytes"] for w in wheels.values())}
        found["wheels"] = wheels
        if lost := unmet(Path(new)):
            raise SystemExit(f"the bundle lacks {', '.join(lost)}: add them to BROUGHT, GIVEN or HEAVY in {Path(__file__).name}")
        if found["bytes"] > LARGEST:
            raise SystemExit(f"the bundle has {found['bytes'] / 2**20:.0f} MiB, more than {LARGEST >> 20}: bring less")
        (Path(new) / MANIFEST).write_text(json.dumps(found, indent=1) + "\n")
        os.chmod(new, 0o755)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(new, folder)
    return found | {"downloaded": True}


def _download(folder: Path, python: str) -> None:
    tag = "cp" + python.replace(".", "")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    command += ["-c", str(ROOT / "constraints.txt"), "--python-version", python, "--implementation", "cp"]
    for abi in (tag, "abi3", "none"):
        command += ["--abi", abi]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run([*command, *BROUGHT], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip can't download the wheels:\n{done.stderr[-2000:]}")


def slim(wheel: Path, left_out: re.Pattern[str]) -> None:
    """Rewrite a wheel without the files whose names match wholly, also in its RECORD. Raises SystemExit if none does: then the
    pattern is out of date."""
    slimmed = wheel.with_suffix(".slim")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(slimmed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        out = {name for name in old.namelist() if left_out.fullmatch(Path(name).name)}
        if not out:
            raise SystemExit(f"{wheel.name} has no file {left_out.pattern}: see LEFT_OUT in {Path(__file__).name}")
        for one in old.infolist():
            content = old.read(one)
            if one.filename.endswith(".dist-info/RECORD"):
                rows = list(csv.reader(io.StringIO(content.decode())))
                kept = io.StringIO()
                csv.writer(kept, lineterminator="\n").writerows(row for row in rows if row and row[0] not in out)
                content = kept.getvalue().encode()
            if one.filename not in out:
                new.writestr(one, content, zipfile.ZIP_DEFLATED)
    slimmed.replace(wheel)


def _is_there(folder: Path, name: str, row: dict[str, Any]) -> bool:
    path = folder / name
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None if there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return found


def unmet(folder: Path) -> list[str]:
    """Requirements of the wheels, of mmrl and of the plugins that nothing meets: no wheel, no given and no heavy package."""
    from packaging.requirements import Requirement

    known = {canonical(name) for name in (*GIVEN, *HEAVY, *UNUSED)} | {name for name, _, _ in wheels_of(folder)}
    asked = [r for _, _, path in wheels_of(folder) for r in _requires(path)]
    asked += [r for d in tree_distributions() for r in d.requires if canonical(Requirement(r).name) not in OWN]
    required = [Requirement(r) for r in asked]
    names = {canonical(r.name) for r in required if r.marker is None or r.marker.evaluate({"extra": ""})}
    return sorted(names - known)


# -- there: put on a path -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distribution:
    """mmrl or one of its plugins in this folder."""

    name: str
    version: str
    place: Path
    """The folder that goes on the path."""
    requires: list[str]
    entry_points: dict[str, dict[str, str]]


@dataclass
class Prepared:
    """What `prepare` did."""

    path: list[str] = field(default_factory=list)
    """For PYTHONPATH."""
    brought: dict[str, str] = field(default_factory=dict)
    """Distribution -> version, taken from the bundle."""
    lacking: list[str] = field(default_factory=list)
    """Requirements that neither the machine nor the bundle meets."""


OWN = {"multimodal-rl", *(f"multimodal-rl-{Path(place).name}" for place in PLUGINS)}


def tree_distributions() -> list[Distribution]:
    """mmrl, with what `EXTRAS` and the plugins of `PLUGINS` need, and these plugins."""
    found = []
    for place in (".", *PLUGINS):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
        requires = list(project["dependencies"])
        if place == ".":
            requires += [r for extra in EXTRAS for r in project["optional-dependencies"][extra]]
        text = (ROOT / "mmrl" / "__init__.py").read_text()
        version = project.get("version") or re.search(r'__version__ = "([^"]+)"', text)[1]  # type: ignore[index]
        found.append(Distribution(project["name"], version, (ROOT / place).resolve(), requires, project.get("entry-points", {})))
    return found


def prepare(folder: Path, target: Path) -> Prepared:
    """Unpacks the wheels that this interpreter lacks into `target`, and registers mmrl and its plugins there as pip's editable
    installs are: by their metadata, with their folders on the path. What is installed and fits is never replaced. Exits with a
    line if the bundle is for another Python."""
    done = Prepared(path=[str(target)])
    target.mkdir(parents=True, exist_ok=True)
    manifest, here = read_manifest(folder), f"{sys.version_info.major}.{sys.version_info.minor}"
    if manifest and manifest["python"] != here:
        raise SystemExit(
            f"{folder} is for Python {manifest['python']}, and this is {here}: make bench-gpu-bundle PYTHON_VERSION={here}"
        )
    wheels = {name: (version, path) for name, version, path in wheels_of(folder)}
    try:
        import packaging.requirements
    except ModuleNotFoundError:
        if "packaging" not in wheels:
            raise SystemExit(f"packaging is missing, and {folder} has none: make bench-gpu-bundle") from None
        done.brought["packaging"], wheel = wheels["packaging"]
        unpack(wheel, target)
        sys.path.insert(0, str(target))
        import packaging.requirements
    waiting = [(r, "mmrl") for d in tree_distributions() for r in d.requires] + [("trl>=1.16,<1.17", "vs_trl.py")]
    seen: set[str] = set()
    while waiting:
        text, asker = waiting.pop(0)
        wanted = packaging.requirements.Requirement(text)
        name = canonical(wanted.name)
        if name in seen | OWN or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        installed = _installed(name)
        if installed and wanted.specifier.contains(installed, prereleases=True):
            continue
        if name in wheels and wanted.specifier.contains(wheels[name][0], prereleases=True):
            seen.add(name)
            version, wheel = wheels[name]
            unpack(wheel, target)
            done.brought[name] = version
            waiting += [(r, name) for r in _requires(wheel)]
        elif name not in UNUSED:
            seen.add(name)
            done.lacking.append(f"{text}{f' (here: {installed})' if installed else ''}, for {asker}")
    for one in tree_distributions():
        done.path.append(str(one.place))
        if _installed(one.name) != one.version:
            register(one, target)
    return done


def wheels_of(folder: Path) -> list[tuple[str, str, Path]]:
    """(distribution, version, file) of each wheel."""
    found = []
    for path in sorted(folder.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        found.append((canonical(name), version, path))
    return found


def unpack(wheel: Path, target: Path) -> None:
    """Unpacks the importable files of a wheel; commands, headers and data stay out."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            top, _, rest = name.partition("/")
            if not top.endswith(".data"):
                archive.extract(name, target)
            elif rest.startswith(("purelib/", "platlib/")) and not name.endswith("/"):
                place = target / rest.partition("/")[2]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(name))


def register(one: Distribution, target: Path) -> None:
    """Writes the metadata by which importlib.metadata finds a distribution of this folder and its entry points."""
    folder = target / f"{one.name.replace('-', '_')}-{one.version}.dist-info"
    folder.mkdir(exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {one.name}", f"Version: {one.version}"]
    (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {r}" for r in one.requires)]) + "\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in one.entry_points.items()]
    (folder / "entry_points.txt").write_text("\n".join(groups))
    (folder / "INSTALLER").write_text("gpu_bundle\n")


def _requires(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
        head = archive.read(name).decode().partition("\n\n")[0]
    return re.findall(r"^Requires-Dist: (.+)$", head.replace("\r", ""), re.MULTILINE)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / FOLDER)
    parser.add_argument("--python", default="3.12", help="the GPU machine's Python")
    args = parser.parse_args()
    found = build(args.folder.absolute(), args.python)
    print(json.dumps({"folder": str(args.folder), "mib": round(found["bytes"] / 2**20, 1), **found}))


if __name__ == "__main__":
    main()
