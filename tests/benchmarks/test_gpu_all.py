"""The runner of the GPU benchmarks: limits, partial results, what is left behind, and where mmrl comes from on a bare machine."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import gpu_all  # noqa: E402
import gpu_bundle  # noqa: E402
from gpu_parts import PARTS, Part  # noqa: E402

SCRIPTS = {
    "good": "import json, sys; print('hello', file=sys.stderr); print('noise'); print(json.dumps({'speed': {'gpu': 7}}))",
    "bad": "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)",
    "silent": "pass",
    "meets": "import time\nfrom pathlib import Path\nPath('NAME').touch()\n"
    "while not Path('OTHER').exists(): time.sleep(0.01)\nprint({})",
    "hangs": "import os, subprocess, sys, time, pathlib\n"
    'pathlib.Path(os.environ[\'MMRL_BENCH_PARTIAL\']).write_text(\'{"speed": {"gpu": 3}, "partial": true}\')\n'
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
    "pathlib.Path('child').write_text(str(child.pid))\ntime.sleep(99)",
}


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Makes a part of a script."""
    monkeypatch.chdir(tmp_path)

    def make(name, script, limit=20.0, **options):
        path = tmp_path / f"{name}.py"
        path.write_text(script)
        return Part(name=name, limit=limit, command=lambda size, device: [str(path)], keys=("speed.gpu",), **options)

    return make


def run(parts, folder, seconds=60.0, resume=None):
    """(rows of the summary, rows of parts.jsonl)."""
    results = gpu_all.Results(folder / "out", {"size": "tiny"}, resume)
    args = argparse.Namespace(size="tiny", device="cuda", seconds=seconds, resume=resume)
    gpu_all.run(results.left(parts), args, dict(os.environ), results, folder)
    results.write()
    rows = [json.loads(line) for line in (folder / "out" / "parts.jsonl").read_text().splitlines()]
    return json.loads((folder / "out" / "summary.json").read_text())["parts"], {row["part"]: row for row in rows}


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_parts_that_end_fail_or_say_nothing(part, tmp_path):
    parts = [part(name, SCRIPTS[name]) for name in ("good", "bad", "silent")]
    parts.append(part("lacks", SCRIPTS["good"], needs=("json", "a_module_that_nobody_has")))
    shown, rows = run(parts, tmp_path)
    assert shown["good"]["state"] == "ok" and shown["good"]["figures"] == {"speed.gpu": 7}
    assert rows["good"]["result"] == {"speed": {"gpu": 7}}
    assert (shown["bad"]["state"], shown["bad"]["why"], rows["bad"]["last_lines"]) == (
        "failed",
        "ended with 3",
        ["what went wrong"],
    )
    assert (shown["silent"]["state"], shown["silent"]["why"]) == ("failed", "printed no JSON object")
    assert (shown["lacks"]["state"], shown["lacks"]["why"]) == ("skipped", "needs a_module_that_nobody_has")
    assert "good: hello" in (tmp_path / "out" / "log.txt").read_text()
    late, _ = run(parts[:1], tmp_path, seconds=10.0)
    assert late["good"] == {"state": "skipped", "why": "no time was left"}


def test_parts_that_do_not_fit_let_later_ones_go_first_and_have_what_is_left(part, tmp_path):
    parts = [part("long", SCRIPTS["good"], limit=50.0), part("short", SCRIPTS["good"], limit=5.0)]
    shown, _ = run(parts, tmp_path, seconds=40.0)
    assert list(shown) == ["short", "long"] and {row["state"] for row in shown.values()} == {"ok"}


def test_commands_go_on_where_the_last_one_stopped(part, tmp_path, monkeypatch):
    """What ended, also with an error, isn't repeated; what broke off comes behind what never began."""
    differs = SCRIPTS["good"] + "; sys.exit(1)"
    parts = [part("ends", SCRIPTS["good"]), part("differs", differs), part("bad", SCRIPTS["bad"])]
    parts.append(part("long", SCRIPTS["good"], limit=50.0))
    monkeypatch.setattr(gpu_all, "PARTS", tuple(parts))
    kept = tmp_path / "kept"
    shown, _ = run(parts, tmp_path, seconds=40.0, resume=kept)
    states = {name: row["state"] for name, row in shown.items()}
    assert states == {"ends": "ok", "differs": "partial", "bad": "failed", "long": "skipped"}
    assert shown["long"]["why"] == "no time was left", "a later command has time for all of it"

    for file in (tmp_path / "out").iterdir():  # as where each command begins with an empty folder
        file.unlink()
    (tmp_path / "bad.py").write_text(SCRIPTS["good"])
    again, rows = run(parts, tmp_path, resume=kept)
    assert {name: row["state"] for name, row in again.items()} == states | {"bad": "ok", "long": "ok"}
    assert again["ends"] == shown["ends"] and rows["ends"]["result"] == {"speed": {"gpu": 7}}
    written = [json.loads(line)["part"] for line in (kept / "parts.jsonl").read_text().splitlines()]
    assert written == ["ends", "differs", "bad", "long", "long", "bad"]
    assert (tmp_path / "out" / "log.txt").read_text().count("ends: hello") == 1
    assert json.loads((kept / "summary.json").read_text())["parts"] == again


def test_a_part_that_says_too_much_fills_no_file(part, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_all, "MOST_LOG", 1000)
    script = "import sys; print('x' * 99 + chr(10) * 1000, file=sys.stderr); print('end', file=sys.stderr); print('{\"a\": 1}')"
    shown, _ = run([part("loud", script)], tmp_path)
    assert shown["loud"]["state"] == "ok" and len((tmp_path / "out" / "log.txt").read_text()) < 20_000


def test_without_what_mmrl_needs_nothing_is_run(tmp_path, monkeypatch):
    (tmp_path / "mmrl").mkdir()
    (tmp_path / "mmrl" / "__init__.py").write_text("import a_module_that_nobody_has")
    why = (
        r"^mmrl can't be imported here, so nothing was run: ModuleNotFoundError: .*nobody_has.*: is the bundle there \(make bench"
    )
    with pytest.raises(SystemExit, match=why):
        gpu_all.check({**os.environ, "PYTHONPATH": str(tmp_path)})


def test_three_commands_of_ten_minutes_have_room_for_all_parts():
    """Each part with all of its limit, after half a minute for the start."""
    args, waiting = argparse.Namespace(device="cuda"), gpu_all.groups(PARTS)
    for _ in range(3):
        left = 580.0 - 12.0
        while waiting:
            group = gpu_all.next_group(waiting, left, args)
            seconds = max(part.limit for part in group)
            if seconds > left - gpu_all.GRACE_S:
                break
            waiting.remove(group)
            left -= seconds
    assert not waiting


def test_parts_that_measure_no_speed_run_side_by_side_and_the_others_alone(part, tmp_path):
    meet = [
        part(name, SCRIPTS["meets"].replace("NAME", name).replace("OTHER", other), shares=True)
        for name, other in (("a", "b"), ("b", "a"))
    ]
    alone = [part("c", SCRIPTS["good"]), part("d", SCRIPTS["good"])]
    assert [[p.name for p in group] for group in gpu_all.groups([*meet, *alone])] == [["a", "b"], ["c"], ["d"]]
    shown, _ = run([*meet, *alone], tmp_path)
    assert [row["state"] for row in shown.values()] == ["failed", "failed", "ok", "ok"], "both met, and printed no object"
    assert all("took more" not in row.get("why", "") for row in shown.values())


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_its_children_and_keeps_what_it_had(part, tmp_path):
    shown, rows = run([part("hangs", SCRIPTS["hangs"], limit=1.0), part("good", SCRIPTS["good"])], tmp_path)
    assert (shown["hangs"]["state"], shown["hangs"]["why"]) == ("partial", "took more than 1 s")
    assert shown["hangs"]["figures"] == {"speed.gpu": 3} and rows["hangs"]["result"]["partial"] is True
    assert gone(int((tmp_path / "child").read_text())) and shown["good"]["state"] == "ok"


@pytest.mark.slow
def test_a_run_that_is_told_to_end_writes_what_it_has(part, tmp_path):
    """As one process, by SIGTERM: the part's processes end, the summary is on disk and printed."""
    path = tmp_path / "hangs.py"
    path.write_text(SCRIPTS["hangs"])
    starter = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import gpu_all; from gpu_parts import Part\n"
        f"gpu_all.PARTS = (Part(name='hangs', limit=60, command=lambda s, d: [{str(path)!r}], keys=('speed.gpu',)),)\n"
        "gpu_all.main()"
    )
    command = [sys.executable, "-c", starter, "--out", "out", "--bundle", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path)
    until = time.monotonic() + 30
    while not (tmp_path / "child").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    found = json.loads(printed)
    assert found["parts"]["hangs"]["state"] == "partial" and found["parts"]["hangs"]["figures"] == {"speed.gpu": 3}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["parts"] == found["parts"]
    assert gone(int((tmp_path / "child").read_text()))


def test_every_part_names_a_benchmark_that_is_there():
    for part in PARTS:
        for size, device in (("full", "cuda"), ("tiny", "cpu")):
            file, *options = part.command(size, device)
            assert (ROOT / "benchmarks" / file).is_file() and device in options
    alone = sum(part.limit for part in PARTS if part.name != "digits")  # which is beside the self-test
    assert alone < 1700 and PARTS[0].name == "self_test", "half an hour, with what it takes to start"


# -- the bundle -----------------------------------------------------------------------------------------------------------------


def wheel(folder, name, version, requires=(), files=()):
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        for file in files:
            archive.writestr(file, "x = 1\n")
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\nAbout it\n")
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with these distributions, a bundle, and mmrl with these requirements."""
    here = {"torch": "2.11.0+cu130", "rich": "9.0", "numpy": "2.5.2"}
    monkeypatch.setattr(gpu_bundle, "_installed", here.get)
    ours = gpu_bundle.Distribution(
        "multimodal-rl", "0.2.0", tmp_path / "tree", ["torch>=2.11,<2.14", "rich>=13", "pydantic>=2", "scipy>=1.12"], {}
    )
    plugin = gpu_bundle.Distribution(
        "multimodal-rl-flags", "0.1", tmp_path / "plugin", ["multimodal-rl>=0.2"], {"mmrl.plugins": {"flags": "mmrl_flags"}}
    )
    monkeypatch.setattr(gpu_bundle, "tree_distributions", lambda: [ours, plugin])
    monkeypatch.setattr(gpu_bundle, "OWN", {"multimodal-rl", "multimodal-rl-flags"})
    folder = tmp_path / "bundle"
    folder.mkdir()
    wheel(folder, "rich", "15.0.0", ["numpy>=1"], ["rich-15.0.0.data/purelib/rich_more.py", "rich-15.0.0.data/scripts/rich"])
    wheel(folder, "pydantic", "2.14.3", ["pydantic-core==2.50.4", "email-validator; extra == 'email'"])
    wheel(folder, "pydantic_core", "2.50.4")
    wheel(folder, "torch", "9.0")
    return folder


def test_only_what_is_missing_or_too_old_is_taken_from_the_bundle(bare, tmp_path):
    done = gpu_bundle.prepare(bare, tmp_path / "site")
    assert done.brought == {"rich": "15.0.0", "pydantic": "2.14.3", "pydantic-core": "2.50.4"}
    assert [text.partition(",")[0] for text in done.lacking] == ["scipy>=1.12", "trl>=1.16"]
    assert not (tmp_path / "site" / "torch").exists() and (tmp_path / "site" / "rich_more.py").is_file()
    assert done.path == [str(tmp_path / "site"), str(tmp_path / "tree"), str(tmp_path / "plugin")]


def test_plugins_are_found_by_their_entry_points_as_if_they_were_installed(bare, tmp_path):
    done = gpu_bundle.prepare(bare, tmp_path / "site")
    code = (
        "from importlib.metadata import entry_points, distribution; (ep,) = entry_points(group='mmrl.plugins')\n"
        "print(ep.name, ep.value, ep.dist.name, ep.dist.version, ep.dist.requires, distribution('multimodal-rl').version)"
    )
    env = {"PYTHONPATH": os.pathsep.join(done.path)}
    found = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=env, check=True)
    assert found.stdout.split("\n")[0] == "flags mmrl_flags multimodal-rl-flags 0.1 ['multimodal-rl>=0.2'] 0.2.0"


def test_without_packaging_the_bundle_s_own_reads_the_requirements(tmp_path):
    import packaging

    folder = Path(packaging.__file__).parent
    with zipfile.ZipFile(wheel(tmp_path, "packaging", "26.3"), "a") as archive:
        for file in folder.rglob("*.py"):
            if file.name != "__init__.py" or file.parent != folder:
                archive.write(file, f"packaging/{file.relative_to(folder)}")
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import gpu_bundle\n"
        f"done = gpu_bundle.prepare(pathlib.Path({str(tmp_path)!r}), pathlib.Path({str(tmp_path / 'site')!r}))\n"
        "print(done.brought, any(text.startswith('torch>=') for text in done.lacking))"
    )
    found = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env={})
    assert found.stdout == "{'packaging': '26.3'} True\n", found.stderr[-1000:]
    assert (tmp_path / "site" / "packaging" / "requirements.py").is_file()


def test_a_wheel_is_slimmed_by_the_files_that_nothing_loads(tmp_path):
    """Its RECORD names what is left, and a pattern that has become useless is refused."""
    files = [f"kernels/lib{name}.so" for name in ("kernels_cpu", "kernels_cuda118", "kernels_cuda130", "other_cuda118")]
    path = wheel(tmp_path, "kernels", "1.0", files=files)
    record = "kernels-1.0.dist-info/RECORD"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(record, "".join(f'"{name}",sha256=x,6\n' for name in [*files, "kernels/a,b.py"]) + f"{record},,\n")
    gpu_bundle.slim(path, re.compile(r"libkernels_(?!cpu\.|cuda13).*\.so"))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and files[1] not in archive.namelist() and {*files} - {files[1]} < {*archive.namelist()}
        assert archive.read(record).decode().split() == [
            *(f"{name},sha256=x,6" for name in files if name != files[1]), '"kernels/a,b.py",sha256=x,6', f"{record},,",
        ]  # fmt: skip
    with pytest.raises(
        SystemExit, match=r"^kernels-1\.0-py3-none-any\.whl has no file .*cuda118: see LEFT_OUT in gpu_bundle\.py$"
    ):
        gpu_bundle.slim(path, re.compile(r"libkernels_cuda118"))


def test_of_bitsandbytes_cuda_13_and_the_cpu_are_brought():
    left_out = re.compile(gpu_bundle.LEFT_OUT["bitsandbytes"])
    for name in ("cpu", "cuda130", "cuda132"):
        assert not left_out.fullmatch(f"libbitsandbytes_{name}.so")
    for name in ("cuda118", "cuda128", "rocm70", "xpu2025"):
        assert left_out.fullmatch(f"libbitsandbytes_{name}.so")


def test_a_bundle_for_another_python_is_refused(bare, tmp_path):
    (bare / "manifest.json").write_text(json.dumps({"python": "3.9", "wheels": {}}))
    with pytest.raises(SystemExit, match=r"is for Python 3\.9, and this is 3\.\d+: make bench-gpu-bundle PYTHON_VERSION=3\.\d+$"):
        gpu_bundle.prepare(bare, tmp_path / "site")


def test_a_bundle_is_made_once_and_again_when_it_is_damaged_or_would_be_another(tmp_path, monkeypatch):
    made = []

    def download(folder, python):
        made.append(python)
        wheel(folder, "click", "8.5.1")

    monkeypatch.setattr(gpu_bundle, "_download", download)
    monkeypatch.setattr(gpu_bundle, "unmet", lambda folder: [])
    folder = tmp_path / "bundle"
    assert gpu_bundle.build(folder, "3.12")["downloaded"] and not gpu_bundle.build(folder, "3.12")["downloaded"]
    (folder / "click-8.5.1-py3-none-any.whl").write_text("damaged")
    assert gpu_bundle.build(folder, "3.12")["downloaded"] and gpu_bundle.build(folder, "3.13")["python"] == "3.13"
    assert made == ["3.12", "3.12", "3.13"]
    monkeypatch.setattr(gpu_bundle, "LARGEST", 10)
    with pytest.raises(SystemExit, match="more than 0: bring less"):
        gpu_bundle.build(folder, "3.12")
    monkeypatch.setattr(gpu_bundle, "unmet", lambda folder: ["pydantic"])
    with pytest.raises(SystemExit, match="the bundle lacks pydantic"):
        gpu_bundle.build(folder, "3.12")
    assert gpu_bundle.read_manifest(folder)["python"] == "3.13", "what was there stays"


def test_what_mmrl_needs_is_brought_or_given(tmp_path):
    """Of the requirements in the pyproject files as they are now, with wheels that need nothing."""
    for name in gpu_bundle.BROUGHT:
        wheel(tmp_path, name.partition("==")[0].replace("-", "_"), "1.0")
    assert gpu_bundle.unmet(tmp_path) == []
    next(tmp_path.glob("pydantic-1.0*")).unlink()
    assert gpu_bundle.unmet(tmp_path) == ["pydantic"]
    assert {d.name for d in gpu_bundle.tree_distributions()} == gpu_bundle.OWN
