"""The checks behind `mmrl doctor`: each returns findings with a state and a fix.

Each check is a function of plain facts (`mmrl.run_folder.machine`), so that tests can pass in faults.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.version import Version

from mmrl.api.errors import UserError
from mmrl.registry.plugins import PluginInfo, registry
from mmrl.run_folder import machine as facts
from mmrl.run_folder.machine import Facts, canonical

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The software Vulkan driver in Debian's package of chromium."""
CPU_TORCH = "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
"""Installs the CPU build; pip's default is the CUDA build, with gigabytes of libraries that only a GPU needs."""
STATES = ("ok", "note", "missing", "broken")
SPACE_GIB = 2.0
"""Free disk space in GiB below which even a run of a small model may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    group: Literal["base", "extra", "plugin", "machine"]
    name: str
    state: Literal["ok", "note", "missing", "broken"]
    """`note`: it works, with a remark; `missing`: it is optional and not installed."""
    detail: str
    cure: str = ""
    """How to fix it, as a command if possible."""
    needed: bool = False
    """The core or training needs it: if it is broken, `mmrl doctor` exits with code 1."""


base = partial(Finding, group="base", needed=True)
machine = partial(Finding, group="machine")


def diagnose(runs: Path = Path("runs"), timeout_s: float = 120.0) -> list[Finding]:
    """All findings about this environment and machine, in display order. runs: the folder for runs. timeout_s: of each import."""
    have, extras, gpus = facts.installed(), facts.extras(), facts.nvidia_gpus()
    tries = {"torch": facts.TRY_TORCH, "torchvision": facts.TRY_TORCHVISION, "transformers": facts.TRY_TRANSFORMERS}
    with ThreadPoolExecutor(max_workers=2) as pool:
        imports = {name: pool.submit(facts.try_python, code, timeout_s) for name, code in tries.items() if name in have}
        simulators = {check: pool.submit(facts.try_python, facts.TRY_SIMULATOR, timeout_s, check) for check in _simulators()}
    tried = {name: answer.result() for name, answer in imports.items()}
    return [
        check_python(),
        *check_base(have, tried, pth=facts.has_pth(), gpus=gpus),
        *(check_extra(extra, wanted, have) for extra, wanted in extras.items()),
        check_opencv(have),
        *map(check_plugin, _plugins()),
        check_gpu(tried.get("torch", {}), gpus),
        *check_worlds(extras),
        *(finding for check, answer in simulators.items() for finding in check_simulator(check, answer.result())),
        check_run_folder(runs),
        check_space(runs),
    ]


def is_healthy(findings: Iterable[Finding]) -> bool:
    return not any(f.state == "broken" and f.needed for f in findings)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The output of `mmrl doctor --json`."""
    return {"ok": is_healthy(findings), "findings": [asdict(f) for f in findings]}


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    number = ".".join(map(str, version))
    if version < (3, 11):
        return base(
            name="python",
            state="broken",
            detail=f"{number}; mmrl needs 3.11 or later",
            cure="create a new environment with Python 3.11 or later",
        )
    return base(name="python", state="ok", detail=f"{number} ({sys.executable})")


def check_base(have: Mapping[str, str], tried: Mapping[str, Facts], *, pth: bool, gpus: Sequence[str] = ()) -> list[Finding]:
    """Findings on mmrl and on the libraries that every training run imports.

    have: distribution -> version. tried: library -> the result of importing it (`TRY_TORCH` and so on). pth: whether mmrl's .pth
    file for torchvision is installed. gpus: the names that the driver lists.
    """
    if "torch" not in have:
        cure = 'pip install "mmrl[train]"' if gpus else f'{CPU_TORCH} && pip install "mmrl[train]"'
        return [check_mmrl(have), base(name="torch", state="missing", detail="training needs it", cure=cure)]
    return [
        check_mmrl(have),
        check_import("torch", have, tried),
        check_torchvision(have, tried, pth=pth),
        check_import("transformers", have, tried),
    ]


def check_mmrl(have: Mapping[str, str]) -> Finding:
    if "mmrl" in have:
        return base(name="mmrl", state="ok", detail=have["mmrl"])
    return base(
        name="mmrl",
        state="broken",
        detail="runs from its sources, so that no bundled plugin is found",
        cure="pip install -e . in its folder",
    )


def check_import(name: str, have: Mapping[str, str], tried: Mapping[str, Facts]) -> Finding:
    if name not in have:
        return base(name=name, state="broken", detail="not installed, though torch is", cure='pip install "mmrl[train]"')
    version, answer = have[name], tried[name]
    if "error" in answer:
        return base(
            name=name,
            state="broken",
            detail=f"{version} does not import: {answer['error']}",
            cure=f"pip install --force-reinstall --no-deps {name}=={version.partition('+')[0]}",
        )
    build = {"cpu": " (CPU build)", None: ""}.get(answer.get("build"), f" (CUDA {answer.get('build')})")
    return base(name=name, state="ok", detail=version + build)


def check_torchvision(have: Mapping[str, str], tried: Mapping[str, Facts], *, pth: bool) -> Finding:
    """torchvision 0.N needs torch 2.(N-15) of the same build; any other torch breaks every vision model."""
    if "torchvision" in have:
        torch, ours = Version(have["torch"]), Version(have["torchvision"])
        if torch.major == 2 and (ours.major, ours.minor) != (0, torch.minor + 15):
            fitting = f"0.{torch.minor + 15}"
            return base(
                name="torchvision",
                state="broken",
                cure=f'pip install --no-deps "torchvision=={fitting}.*"',
                detail=f"{ours} does not fit torch {torch}, which needs {fitting}",
            )
    finding = check_import("torchvision", have, tried)
    if finding.state != "ok" or tried["torchvision"]["compiled"]:
        return finding
    if tried["torch"].get("build", "cpu") != "cpu":
        return base(
            name="torchvision",
            state="broken",
            detail=f"{ours}: its operators (nms) do not load: it is built for another CUDA version than torch {torch}",
            cure="install torch and torchvision again, both from the same index",
        )
    if pth:
        return base(name="torchvision", state="ok", detail=f"{ours}; mmrl declares the operators that it misses with CPU torch")
    return base(
        name="torchvision",
        state="note",
        cure="python -m mmrl.compute.torchvision --install-pth",
        detail=f"{ours} does not import with CPU torch, except in mmrl's own processes",
    )


def check_extra(extra: str, wanted: Sequence[Requirement], have: Mapping[str, str]) -> Finding:
    """The requirements of an extra of mmrl against the installed distributions. A partly installed `train` is broken."""
    this = partial(Finding, group="extra", name=extra, needed=extra == "train")
    absent = [r for r in wanted if canonical(r.name) not in have]
    present = {r: have[canonical(r.name)] for r in wanted if r not in absent}
    unfit = {r: version for r, version in present.items() if not r.specifier.contains(version, prereleases=True)}
    if unfit:
        return this(
            state="broken",
            cure="pip install " + " ".join(f'"{r.name}{r.specifier}"' for r in unfit),
            detail="; ".join(f"{r.name} {version} is outside {r.specifier}" for r, version in unfit.items()),
        )
    names, cure = ", ".join(r.name for r in absent), f'pip install "mmrl[{extra}]"'
    if absent and extra == "train" and "torch" in have:
        return this(state="broken", detail=f"not installed: {names}", cure=cure)
    if absent:
        return this(state="missing", detail=f"it adds: {names}", cure=cure)
    return this(state="ok", detail=", ".join(f"{r.name} {version}" for r, version in present.items()))


def check_opencv(have: Mapping[str, str]) -> Finding:
    """Every distribution of OpenCV installs the module cv2: the last one installed wins, and removing one breaks the other."""
    installed = [name for name in OPENCV if name in have]
    if len(installed) > 1:
        return base(
            name="opencv",
            state="broken",
            detail=f"{' and '.join(installed)} are installed together, and each owns cv2",
            cure=f"pip uninstall -y {' '.join(installed)} && pip install opencv-python-headless",
        )
    if not installed:
        return base(name="opencv", state="missing", detail="it reads videos", cure='pip install "mmrl[train]"')
    return base(name="opencv", state="ok", detail=f"{installed[0]} {have[installed[0]]}")


def check_plugin(plugin: PluginInfo) -> Finding:
    """The finding on one plugin of the registry; the cure is the command that its error advises, if any."""
    this = partial(Finding, group="plugin", name=plugin.name)
    if plugin.error is None:
        return this(state="ok", detail=f"{plugin.dist or plugin.target} {plugin.version or ''}".strip())
    advised = re.search(r"pip install .+$", plugin.error)
    return this(state="broken", detail=plugin.error, cure=advised[0] if advised else "mmrl plugins --errors shows the traceback")


def check_gpu(torch: Facts, listed: Sequence[str]) -> Finding:
    """The GPUs that torch sees (result of `TRY_TORCH`) against those that the driver lists."""
    if torch.get("gpus"):
        return machine(name="gpu", state="ok", detail=", ".join(torch["gpus"]))
    if not listed and torch.get("build", "cpu") != "cpu":
        return machine(
            name="gpu",
            state="note",
            detail=f"none is listed, but torch is a GPU build ({torch['build']}) with gigabytes of unused libraries",
            cure=f"pip uninstall -y torch torchvision && {CPU_TORCH}",
        )
    if not listed:
        return machine(name="gpu", state="missing", detail="models run on the CPU, which is enough for small ones")
    if torch.get("build") == "cpu":
        return machine(
            name="gpu",
            state="broken",
            detail=f"{', '.join(listed)}: unused, because torch is a CPU build",
            cure="install torch and torchvision again, both from the CUDA index that pytorch.org names",
        )
    return machine(
        name="gpu",
        state="broken",
        detail=f"{', '.join(listed)}: torch does not see it",
        cure="unset CUDA_VISIBLE_DEVICES; if that does not help, the driver is older than torch's CUDA: see nvidia-smi",
    )


def check_worlds(extras: Iterable[str]) -> list[Finding]:
    """Findings on the Vulkan driver and the browser, each only if mmrl has the extra that needs it."""
    findings = []
    if "maniskill" in extras:
        findings.append(check_vulkan(facts.vulkan_drivers(), facts.try_python(facts.TRY_VULKAN, 20.0)))
    if "browser" in extras:
        findings.append(check_chromium(facts.chromium()))
    return findings


def check_simulator(check: str, answer: Facts) -> list[Finding]:
    """Findings of a plugin's own check (`SimulatorSpec.doctor`). answer: the result of `TRY_SIMULATOR`. None is `needed`."""
    plugin = check.partition(":")[0].partition(".")[0]
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return [machine(name=plugin, state="broken", detail=f"its check {check} failed: {answer['error']}")]
    required, known = {"state", "detail"}, {"state", "detail", "cure"}
    if isinstance(answer, dict) and all(isinstance(row, dict) and required <= set(row) <= known for row in answer.values()):
        findings = [machine(name=name, **row) for name, row in answer.items()]
        if all(f.state in STATES and isinstance(f.detail, str) and isinstance(f.cure, str) for f in findings):
            return findings
    return [machine(name=plugin, state="broken", detail=f"its check {check} returned no findings, but {str(answer)[:80]!r}")]


def check_vulkan(drivers: Sequence[Path], tried: Facts, swiftshader: Path = SWIFTSHADER) -> Finding:
    """The finding on Vulkan. drivers: driver files that the loader reads. tried: the result of `TRY_VULKAN`."""
    install = "apt-get install libvulkan1 mesa-vulkan-drivers, version 25 or later"
    if gone := [p for p in drivers if not p.is_file()]:
        return machine(
            name="vulkan",
            state="broken",
            detail=f"VK_ICD_FILENAMES names {gone[0]}, which does not exist",
            cure="unset VK_ICD_FILENAMES, or name a file that exists",
        )
    if "error" in tried:
        return machine(name="vulkan", state="broken", detail=f"the query of the driver failed: {tried['error']}", cure=install)
    if not tried["loader"]:
        return machine(name="vulkan", state="missing", detail="no libvulkan.so.1: simulators can't render", cure=install)
    if tried["devices"]:
        return machine(name="vulkan", state="ok", detail=f"{tried['devices']} device(s)")
    if drivers:
        return machine(name="vulkan", state="broken", detail=f"no device answers: {', '.join(map(str, drivers))}", cure=install)
    if swiftshader.is_file():
        return machine(
            name="vulkan",
            state="note",
            detail=f"the system has no driver, but chromium's package has a software renderer: {swiftshader}",
            cure=f"export VK_ICD_FILENAMES={swiftshader}, for programs that don't find it",
        )
    return machine(name="vulkan", state="missing", detail="no driver: simulators can't render", cure=install)


def check_chromium(path: str | None) -> Finding:
    if path:
        return machine(name="chromium", state="ok", detail=path)
    return machine(
        name="chromium", state="missing", cure="apt-get install chromium", detail="no browser: tasks on web pages can't run"
    )


def check_run_folder(runs: Path) -> Finding:
    """Whether files can be written to the folder of runs; the folder itself is not created."""
    there = _existing(runs)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return machine(
            name="run folder",
            state="broken",
            needed=True,
            detail=f"{there}: {error.strerror}",
            cure="make it writable, or choose another folder (`runs` in the run file)",
        )
    return machine(name="run folder", state="ok", needed=True, detail=f"{runs.absolute()} is writable")


def check_space(runs: Path, free_bytes: int | None = None) -> Finding:
    """The finding on free disk space. free_bytes: for tests; by default the free space of the disk of `runs`."""
    there = _existing(runs)
    free = (shutil.disk_usage(there).free if free_bytes is None else free_bytes) / 2**30
    if free < SPACE_GIB:
        return machine(
            name="disk",
            state="broken",
            needed=True,
            detail=f"{free:.1f} GiB free at {there}",
            cure=f"free at least {SPACE_GIB:g} GiB for checkpoints",
        )
    return machine(name="disk", state="ok", needed=True, detail=f"{free:.0f} GiB free")


def _simulators() -> list[str]:
    """The distinct checks (`SimulatorSpec.doctor`) of all simulators."""
    try:
        return list(dict.fromkeys(spec.doctor for spec in registry().specs("simulators").values() if spec.doctor))
    except UserError:  # `_plugins` reports it
        return []


def _plugins() -> list[PluginInfo]:
    try:
        return registry().plugins
    except UserError as error:  # MMRL_STRICT, or a local file that does not load
        return [PluginInfo(name="plugins", dist=None, version=None, target="", error=str(error))]


def _existing(path: Path) -> Path:
    return next(p for p in [path.absolute(), *path.absolute().parents] if p.exists())
