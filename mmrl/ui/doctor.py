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
from mmrl.api.processes import sandbox
from mmrl.api.processes.attempt import try_python
from mmrl.registry.distributions import DISTRIBUTION, canonical, foreign_owners
from mmrl.registry.plugin_info import PluginInfo
from mmrl.registry.plugins import registry
from mmrl.run_folder import machine as facts
from mmrl.run_folder.machine import Facts

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
CPU_TORCH = "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
"""Installs the CPU build; pip's default is the CUDA build, with gigabytes of libraries that only a GPU needs."""
BUSY = "run mmrl doctor again when the machine is less busy"
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
    installed, checks = _plugins(), _simulators()
    judged = set(checks.values())
    tries = {"torch": facts.TRY_TORCH, "torchvision": facts.TRY_TORCHVISION, "transformers": facts.TRY_TRANSFORMERS}
    with ThreadPoolExecutor(max_workers=2) as pool:
        imports = {name: pool.submit(try_python, code, timeout_s) for name, code in tries.items() if name in have}
        simulators = {check: pool.submit(try_python, facts.TRY_SIMULATOR, timeout_s, check) for check in checks}
    tried = {name: answer.result() for name, answer in imports.items()}
    return [
        check_python(),
        check_mmrl(have, list(foreign_owners())),
        *check_base(have, tried, pth=facts.has_pth(), gpus=gpus, vision_asks=facts.requirements("torchvision")),
        *(check_extra(extra, wanted, have) for extra, wanted in extras.items() if not _are_plugins(wanted, installed)),
        check_opencv(have),
        *(check_plugin(p, facts.requirements(p.dist) if p.dist and p.name not in judged else (), have) for p in installed),
        check_gpu(tried.get("torch", {}), gpus),
        *_once(finding for check, answer in simulators.items() for finding in check_simulator(check, answer.result())),
        check_isolation(sandbox.problem()),
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


def check_base(
    have: Mapping[str, str],
    tried: Mapping[str, Facts],
    *,
    pth: bool,
    gpus: Sequence[str] = (),
    vision_asks: Sequence[Requirement] = (),
) -> list[Finding]:
    """Findings on mmrl and on the libraries that every training run imports.

    have: distribution -> version. tried: library -> the result of importing it (`TRY_TORCH` and so on). pth: whether mmrl's .pth
    file for torchvision is installed. gpus: the names that the driver lists. vision_asks: the requirements of torchvision.
    """
    if "torch" not in have:
        cure = 'pip install "multimodal-rl[train]"' if gpus else f'{CPU_TORCH} && pip install "multimodal-rl[train]"'
        return [base(name="torch", state="missing", detail="training needs it", cure=cure)]
    return [
        check_import("torch", have, tried),
        check_torchvision(have, tried, pth=pth, asks=vision_asks),
        check_import("transformers", have, tried),
    ]


def check_mmrl(have: Mapping[str, str], foreign: Sequence[str] = ()) -> Finding:
    """The finding on mmrl itself. foreign: warnings about other distributions that own its files."""
    if DISTRIBUTION not in have:
        return base(
            name="mmrl",
            state="broken",
            detail=f"runs from its sources, {DISTRIBUTION} is not installed",
            cure="pip install -e . in its folder",
        )
    if foreign:
        what, _, cure = "; ".join(foreign).partition(": ")
        return base(name="mmrl", state="broken", detail=f"{have[DISTRIBUTION]}; {what}", cure=cure)
    return base(name="mmrl", state="ok", detail=f"{DISTRIBUTION} {have[DISTRIBUTION]}")


def check_import(name: str, have: Mapping[str, str], tried: Mapping[str, Facts]) -> Finding:
    if name not in have:
        return base(name=name, state="broken", detail="not installed, though torch is", cure='pip install "multimodal-rl[train]"')
    version, answer = have[name], tried[name]
    if "timed_out" in answer:
        late = f"{version} took longer than {answer['timed_out']:g} s to import: the machine may be busy"
        return base(name=name, state="note", detail=late, cure=BUSY)
    if "error" in answer:
        return base(
            name=name,
            state="broken",
            detail=f"{version} does not import: {answer['error']}",
            cure=f"pip install --force-reinstall --no-deps {name}=={version.partition('+')[0]}",
        )
    build = {"cpu": " (CPU build)", None: ""}.get(answer.get("build"), f" (CUDA {answer.get('build')})")
    return base(name=name, state="ok", detail=version + build)


def check_torchvision(
    have: Mapping[str, str], tried: Mapping[str, Facts], *, pth: bool, asks: Sequence[Requirement] = ()
) -> Finding:
    """torchvision 0.N is built for torch 2.(N-15), and since 0.29.1 also for later ones, as its own requirements (`asks`) say.

    Any other torch, or another build of it, breaks every vision model.
    """
    if "torchvision" in have:
        torch, ours, newest = Version(have["torch"]), Version(have["torchvision"]), Version(have["torch"]).minor + 15
        built_for = (ours.major, ours.minor) == (0, newest) or torch.major != 2
        if not built_for and not any(r.name == "torch" and r.specifier.contains(torch, prereleases=True) for r in asks):
            fitting = f"==0.{newest}.*" if newest <= 29 else f">=0.29.1,<0.{newest + 1}"
            return base(
                name="torchvision",
                state="broken",
                cure=f'pip install --no-deps "torchvision{fitting}"',
                detail=f"{ours} does not fit torch {torch}, which needs torchvision{fitting}",
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
        detail=f"{ours} imports with CPU torch only where mmrl is imported first",
    )


def check_extra(extra: str, wanted: Sequence[Requirement], have: Mapping[str, str]) -> Finding:
    """The requirements of an extra of mmrl against the installed distributions. A partly installed `train` is broken."""
    this = partial(Finding, group="extra", name=extra, needed=extra == "train")
    absent, unfit = _lacking(wanted, have)
    if unfit:
        return this(state="broken", detail=_outside(unfit, have), cure=_install(unfit))
    here = [str(path) for r in absent if (path := checkout_of(r.name))]
    names, cure = ", ".join(r.name for r in absent), f'pip install "{DISTRIBUTION}[{extra}]"'
    if here:  # mmrl runs from its repository, where these are beside it
        cure = " ".join(["pip install", *(f"-e {path}" for path in here)])
    if absent and extra == "train" and "torch" in have:
        return this(state="broken", detail=f"not installed: {names}", cure=cure)
    if absent:
        return this(state="missing", detail=f"it adds: {names}", cure=cure)
    return this(state="ok", detail=", ".join(f"{r.name} {have[canonical(r.name)]}" for r in wanted))


def checkout_of(dist: str, root: Path = Path(__file__).parents[2]) -> Path | None:
    """The folder of a bundled plugin or simulator in a checkout of mmrl's repository; None for another distribution, or where
    mmrl wasn't installed from a checkout."""
    name = canonical(dist).removeprefix(f"{DISTRIBUTION}-")
    found = (root / room / name for room in ("plugins", "sims"))
    return next((path for path in found if name != canonical(dist) and (path / "pyproject.toml").is_file()), None)


def _lacking(wanted: Iterable[Requirement], have: Mapping[str, str]) -> tuple[list[Requirement], list[Requirement]]:
    """(requirements that are not installed, requirements whose installed version is outside their range)."""
    absent = [r for r in wanted if canonical(r.name) not in have]
    present = [r for r in wanted if r not in absent]
    return absent, [r for r in present if not r.specifier.contains(have[canonical(r.name)], prereleases=True)]


def _outside(unfit: Iterable[Requirement], have: Mapping[str, str]) -> str:
    return "; ".join(f"{r.name} {have[canonical(r.name)]} is outside {r.specifier}" for r in unfit)


def _install(wanted: Iterable[Requirement]) -> str:
    return "pip install " + " ".join(f'"{r.name}{r.specifier}"' for r in wanted)


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
        return base(name="opencv", state="missing", detail="plugins that compare pictures bring it")
    return base(name="opencv", state="ok", detail=f"{installed[0]} {have[installed[0]]}")


def check_plugin(plugin: PluginInfo, wanted: Sequence[Requirement] = (), have: Mapping[str, str] = {}) -> Finding:
    """The finding on one plugin of the registry. wanted: requirements of its distribution. have: distribution -> installed
    version. The cure is the command that the plugin's error advises, if any."""
    this = partial(Finding, group="plugin", name=plugin.name)
    detail = f"{plugin.dist or plugin.target} {plugin.version or ''}".strip()
    if plugin.error is not None:
        advised = re.search(r"pip install .+$", plugin.error)
        cure = advised[0] if advised else "mmrl plugins --errors shows the traceback"
        return this(state="broken", detail=plugin.error, cure=cure)
    absent, unfit = _lacking(wanted, have)
    if unfit:
        return this(state="broken", detail=f"{detail}; {_outside(unfit, have)}", cure=_install(unfit))
    if absent:
        detail += f", without {', '.join(r.name for r in absent)}"
        return this(state="missing", detail=detail, cure=f"pip install {plugin.dist}")
    return this(state="ok", detail=detail)


def check_gpu(torch: Facts, listed: Sequence[str]) -> Finding:
    """The GPUs that torch sees (result of `TRY_TORCH`) against those that the driver lists."""
    if torch.get("gpus"):
        remarks = [f"cuda:{i}: {said}" for i, said in enumerate(torch.get("remarks", ())) if said]
        state: Literal["ok", "note", "broken"] = "broken" if "can't be used" in " ".join(remarks) else "note" if remarks else "ok"
        return machine(name="gpu", state=state, detail="; ".join([", ".join(torch["gpus"]), *remarks]))
    if not listed and torch.get("build", "cpu") != "cpu":
        return machine(
            name="gpu",
            state="note",
            detail=f"none is listed, but torch is a GPU build ({torch['build']}) with gigabytes of unused libraries",
            cure=f"pip uninstall -y torch torchvision && {CPU_TORCH}",
        )
    if not listed:
        return machine(name="gpu", state="missing", detail="models run on the CPU, which is enough for small ones")
    if "timed_out" in torch:
        return machine(name="gpu", state="note", detail=f"{', '.join(listed)}: torch gave no answer about it in time", cure=BUSY)
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
        detail=f"{', '.join(listed)}: torch does not see it{': ' if torch.get('why') else ''}{torch.get('why', '')}",
        cure="unset CUDA_VISIBLE_DEVICES; if that does not help, the driver is older than torch's CUDA: see nvidia-smi",
    )


def check_simulator(check: str, answer: Facts) -> list[Finding]:
    """Findings of a plugin's own check (`SimulatorSpec.doctor`). answer: the result of `TRY_SIMULATOR`. None is `needed`."""
    plugin = check.partition(":")[0].partition(".")[0]
    if isinstance(answer, dict) and "timed_out" in answer:
        return [
            machine(name=plugin, state="note", detail=f"its check {check}: {answer['error']}: the machine may be busy", cure=BUSY)
        ]
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return [machine(name=plugin, state="broken", detail=f"its check {check} failed: {answer['error']}")]
    required, known = {"state", "detail"}, {"state", "detail", "cure"}
    if isinstance(answer, dict) and all(isinstance(row, dict) and required <= set(row) <= known for row in answer.values()):
        findings = [machine(name=name, **row) for name, row in answer.items()]
        if all(f.state in STATES and isinstance(f.detail, str) and isinstance(f.cure, str) for f in findings):
            return findings
    return [machine(name=plugin, state="broken", detail=f"its check {check} returned no findings, but {str(answer)[:80]!r}")]


def check_isolation(problem: str) -> Finding:
    """How far verifiers can be isolated here. problem: why there is no sandbox, empty if there is one."""
    if not problem:
        return machine(name="isolation", state="ok", detail='verifiers can run in a sandbox: judge.isolation = "strict"')
    return machine(
        name="isolation",
        state="note",
        detail=f'verifiers run in processes of their own; judge.isolation = "strict" is not possible: {problem}',
        cure=sandbox.CURE,
    )


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each name, the worst: two plugins may look for the same browser, and one cure is enough."""
    found: dict[str, Finding] = {}
    for finding in findings:
        known = found.get(finding.name)
        if known is None or STATES.index(finding.state) > STATES.index(known.state):
            found[finding.name] = finding
    return list(found.values())


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


def _simulators() -> dict[str, str]:
    """Check of a simulator (`SimulatorSpec.doctor`) -> name of its plugin."""
    try:
        return {spec.doctor: spec.id.partition("/")[0] for spec in registry().specs("simulators").values() if spec.doctor}
    except UserError:  # `_plugins` reports it
        return {}


def _are_plugins(wanted: Iterable[Requirement], plugins: Iterable[PluginInfo]) -> bool:
    """Whether an extra requires only installed plugins, which have findings of their own."""
    return {canonical(r.name) for r in wanted} <= {canonical(p.dist) for p in plugins if p.dist}


def _plugins() -> list[PluginInfo]:
    try:
        return registry().plugins
    except UserError as error:  # MMRL_STRICT, or a local file that does not load
        return [PluginInfo(name="plugins", dist=None, version=None, target="", error=str(error))]


def _existing(path: Path) -> Path:
    return next(p for p in [path.absolute(), *path.absolute().parents] if p.exists())
