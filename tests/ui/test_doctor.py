"""Every check of `mmrl doctor` on a planted fault and on a healthy machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mmrl.api.processes.attempt import try_python
from mmrl.registry.plugin_info import PluginInfo
from mmrl.run_folder import machine
from mmrl.ui import doctor

HAVE = {
    "multimodal-rl": "0.2.0",
    "torch": "2.13.0+cpu",
    "torchvision": "0.28.0",
    "transformers": "5.24.0",
    "qwen-vl-utils": "0.0.14",
}
TRIED = {"torch": {"build": "cpu", "gpus": []}, "torchvision": {"compiled": False}, "transformers": {}}
TRAIN = [Requirement(r) for r in ("torch>=2.11", "transformers>=5.16,<5.25", "qwen-vl-utils>=0.0.14", "numpy>=1.26")]


def base(have=HAVE, tried=TRIED, pth=True, vision_asks=()):
    asks = [Requirement(r) for r in vision_asks]
    return {f.name: f for f in doctor.check_base(have, tried, pth=pth, vision_asks=asks)}


def test_a_healthy_base():
    found = base()
    assert list(found) == ["torch", "torchvision", "transformers"]
    assert {f.state for f in found.values()} == {"ok"}
    assert found["torch"].detail == "2.13.0+cpu (CPU build)"


@pytest.mark.parametrize(("version", "state"), [((3, 10, 4), "broken"), ((3, 11, 0), "ok"), ((3, 13, 1), "ok")])
def test_python(version, state):
    finding = doctor.check_python(version)
    assert finding.state == state
    assert finding.detail.startswith(".".join(map(str, version)))


def test_mmrl_that_is_not_installed():
    finding = doctor.check_mmrl({"mmrl": "0.1.7"})
    assert (finding.state, finding.cure) == ("broken", "pip install -e . in its folder")


def test_another_distribution_that_owns_the_package_mmrl():
    told = "the distribution mmrl 0.1.7 in /site is not ours and owns the command mmrl too: pip uninstall -y mmrl"
    finding = doctor.check_mmrl(HAVE, [told])
    assert (finding.state, finding.needed, finding.cure) == ("broken", True, "pip uninstall -y mmrl")
    assert finding.detail == "0.2.0; the distribution mmrl 0.1.7 in /site is not ours and owns the command mmrl too"
    assert doctor.check_mmrl(HAVE).detail == "multimodal-rl 0.2.0"


def test_a_core_without_training_is_not_broken():
    found = doctor.check_base({}, {}, pth=False)
    assert [(f.name, f.state) for f in found] == [("torch", "missing")]
    assert doctor.is_healthy(found)


def test_torch_is_installed_for_the_machine_that_is_there():
    """The CPU build has to be asked for; the CUDA build is what pip takes by itself."""
    (without,) = doctor.check_base({}, {}, pth=False)
    (beside_gpu,) = doctor.check_base({}, {}, pth=False, gpus=["H200"])
    cpu = "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
    assert without.cure == f'{cpu} && pip install "multimodal-rl[train]"'
    assert beside_gpu.cure == 'pip install "multimodal-rl[train]"'
    needless = doctor.check_gpu({"build": "13.0", "gpus": []}, [])
    assert needless.cure == f"pip uninstall -y torch torchvision && {cpu}"
    assert doctor.check_gpu({"build": "cpu", "gpus": []}, []).cure == ""


@pytest.mark.parametrize(
    ("torch", "torchvision", "asks", "cure"),
    [
        ("2.13.0+cpu", "0.27.1", "torch==2.12.1", "==0.28.*"),
        ("2.13.0", "0.29.0+cu130", "torch==2.14.0", "==0.28.*"),
        ("2.13.0", "0.29.2", "torch>=2.14.0", "==0.28.*"),
        ("2.11.0+cu130", "0.28.0", "torch==2.13.0", "==0.26.*"),
        ("2.14.1", "0.28.0", "torch==2.13.0", "==0.29.*"),
        ("2.15.0", "0.29.0", "torch==2.14.0", ">=0.29.1,<0.31"),
    ],
)
def test_torchvision_of_another_torch(torch, torchvision, asks, cure):
    finding = base({**HAVE, "torch": torch, "torchvision": torchvision}, vision_asks=["numpy", asks])["torchvision"]
    assert (finding.state, finding.needed) == ("broken", True)
    assert finding.cure == f'pip install --no-deps "torchvision{cure}"'
    assert finding.detail == f"{torchvision} does not fit torch {torch}, which needs torchvision{cure}"


@pytest.mark.parametrize(
    ("torch", "torchvision", "asks"),
    [
        ("2.15.0+cu132", "0.29.2+cu132", "torch>=2.14.0"),  # its operators use the ABI that later versions of torch keep
        ("2.13.1", "0.28.0", "torch==2.13.0"),  # of one number, though its own requirement is of one patch
        ("2.14.1+cpu", "0.29.1", "torch>=2.14.0"),
    ],
)
def test_torchvision_that_fits_this_torch(torch, torchvision, asks):
    finding = base({**HAVE, "torch": torch, "torchvision": torchvision}, vision_asks=["numpy", asks])["torchvision"]
    assert finding.state == "ok"


def test_what_the_installed_torchvision_asks_for_is_read():
    """No rule of numbers knows it: of a torchvision that is not yet known, nor of a torch."""
    asks = machine.requirements("torchvision")
    (torch,) = [r for r in asks if r.name == "torch"]
    assert torch.specifier.contains(machine.installed()["torch"], prereleases=True)


def test_torchvision_that_fits_by_version_only():
    """Operators that fail to load are harmless with CPU torch, where mmrl declares them, and an error with CUDA torch."""
    assert base()["torchvision"].state == "ok"
    note = base(pth=False)["torchvision"]
    assert (note.state, note.cure) == ("note", "python -m mmrl.compute.torchvision --install-pth")
    cuda = {**TRIED, "torch": {"build": "13.0", "gpus": ["H200"]}}
    finding = base({**HAVE, "torch": "2.13.0+cu130"}, cuda)["torchvision"]
    assert finding.state == "broken"
    assert "(nms) do not load" in finding.detail
    assert base(tried={**cuda, "torchvision": {"compiled": True}})["torchvision"].state == "ok"


@pytest.mark.parametrize("name", ["torch", "torchvision", "transformers"])
def test_a_library_that_does_not_import(name):
    error = "RuntimeError: operator torchvision::nms does not exist"
    finding = base(tried={**TRIED, name: {"error": error}})[name]
    assert (finding.state, finding.needed) == ("broken", True)
    assert error in finding.detail
    assert finding.cure == f"pip install --force-reinstall --no-deps {name}=={HAVE[name].partition('+')[0]}"


@pytest.mark.parametrize("name", ["torch", "torchvision", "transformers"])
def test_a_library_that_is_not_imported_in_time_is_not_broken(name):
    """A busy machine takes minutes for what takes seconds: nothing is to be installed again."""
    late = {"error": "no answer within 120 s", "timed_out": 120.0}
    found = base(tried={**TRIED, name: late})
    finding = found[name]
    assert (finding.state, finding.needed) == ("note", True) and doctor.is_healthy(found.values())
    assert finding.detail == f"{HAVE[name]} took longer than 120 s to import: the machine may be busy"
    assert finding.cure == "run mmrl doctor again when the machine is less busy"
    assert doctor.check_gpu(late, ["RTX 4090"]).state == "note"
    (simulator,) = doctor.check_simulator("mmrl_arm.check:findings", late)
    assert (simulator.name, simulator.state, simulator.cure) == ("mmrl_arm", "note", finding.cure)


@pytest.mark.parametrize("name", ["torchvision", "transformers"])
def test_a_library_that_was_left_out(name):
    finding = base({n: v for n, v in HAVE.items() if n != name})[name]
    assert (finding.state, finding.cure) == ("broken", 'pip install "multimodal-rl[train]"')


@pytest.mark.parametrize("version", ["5.15.2", "5.25.0", "4.57.0"])
def test_transformers_out_of_range(version):
    finding = doctor.check_extra("train", TRAIN, {**HAVE, "numpy": "2.4.6", "transformers": version})
    assert (finding.state, finding.needed) == ("broken", True)
    assert finding.detail == f"transformers {version} is outside <5.25,>=5.16"
    assert finding.cure == 'pip install "transformers<5.25,>=5.16"'


def test_extras():
    have = {**HAVE, "numpy": "2.4.6"}
    whole = doctor.check_extra("train", TRAIN, have)
    assert whole.state == "ok"
    assert whole.detail == "torch 2.13.0+cpu, transformers 5.24.0, qwen-vl-utils 0.0.14, numpy 2.4.6"
    del have["qwen-vl-utils"]
    half = doctor.check_extra("train", TRAIN, have)
    assert (half.state, half.detail, half.cure) == (
        "broken",
        "not installed: qwen-vl-utils",
        'pip install "multimodal-rl[train]"',
    )
    none = doctor.check_extra("train", TRAIN, {})
    assert (none.state, none.detail) == ("missing", "it adds: torch, transformers, qwen-vl-utils, numpy")
    other = doctor.check_extra("vllm", [Requirement("vllm>=0.30")], have)
    assert (other.state, other.detail, other.cure) == ("missing", "it adds: vllm", 'pip install "multimodal-rl[vllm]"')


def test_a_bundled_plugin_is_installed_from_the_checkout_that_mmrl_runs_from(tmp_path):
    """No index has it before a release."""
    root = Path(__file__).parents[2]
    found = doctor.check_extra("jigsaw", [Requirement("multimodal-rl-jigsaw>=0.2")], {})
    assert (found.state, found.cure) == ("missing", f"pip install -e {root / 'plugins' / 'jigsaw'}")
    assert doctor.checkout_of("multimodal-rl-tabletop") == root / "sims" / "tabletop"
    assert doctor.checkout_of("jigsaw") is doctor.checkout_of("multimodal-rl-jigsaw", tmp_path) is None


def test_requirements_of_an_extra_are_its_own(monkeypatch):
    class Declared(dict):
        def get_all(self, name):
            return self.get(name)

    declared = Declared(
        {
            "Provides-Extra": ["train", "vllm", "all"],
            "Requires-Dist": [
                "click>=8.1",
                "torch>=2.11; extra == 'train'",
                "vllm>=0.30; extra == 'vllm'",
                "multimodal-rl[train,vllm]; extra == 'all'",
                "colorama; sys_platform == 'win32'",
            ],
        }
    )
    monkeypatch.setattr(machine.metadata, "metadata", lambda dist: declared)
    found = {extra: [r.name for r in wanted] for extra, wanted in machine.extras().items()}
    assert found == {"train": ["torch"], "vllm": ["vllm"], "all": ["torch", "vllm"]}


def test_extras_of_what_is_not_installed():
    assert machine.extras("mmrl-that-nobody-installed") == {}


def test_both_opencvs():
    finding = doctor.check_opencv({"opencv-python": "4.9.0", "opencv-python-headless": "5.0.0"})
    assert (finding.state, finding.needed) == ("broken", True)
    assert finding.cure == "pip uninstall -y opencv-python opencv-python-headless && pip install opencv-python-headless"
    assert doctor.check_opencv({"opencv-python-headless": "5.0.0"}).state == "ok"
    assert doctor.check_opencv({}).state == "missing"


def test_plugins():
    good = PluginInfo(name="good", dist="mmrl-good", version="1.2", target="mmrl_good")
    bad = PluginInfo(
        name="bad",
        dist="mmrl-bad",
        version="0.1",
        target="mmrl_bad",
        error="failed to import: no module named 'skimage': pip install \"scikit-image>=0.2\"",
    )
    odd = PluginInfo(name="odd", dist="mmrl-odd", version="0.1", target="mmrl_odd", error="failed to import: ValueError: x")
    found = [doctor.check_plugin(p, [Requirement("numpy>=1")], {"numpy": "2.4"}) for p in (good, bad, odd)]
    assert [f.state for f in found] == ["ok", "broken", "broken"]
    assert found[0].detail == "mmrl-good 1.2"
    assert found[1].cure == 'pip install "scikit-image>=0.2"'
    assert found[2].cure == "mmrl plugins --errors shows the traceback"
    assert doctor.is_healthy(found)  # the core trains without them
    short = doctor.check_plugin(good, [Requirement("numpy>=1"), Requirement("av")], {"numpy": "2.4"})
    assert (short.state, short.detail, short.cure) == ("missing", "mmrl-good 1.2, without av", "pip install mmrl-good")
    unfit = doctor.check_plugin(good, [Requirement("numpy>=3")], {"numpy": "2.4"})
    assert (unfit.state, unfit.detail) == ("broken", "mmrl-good 1.2; numpy 2.4 is outside >=3")
    assert unfit.cure == 'pip install "numpy>=3"'


def test_a_plugin_asks_for_what_the_core_s_extras_bring(site):
    site("mmrl-zoo", {}, {}, requires=["multimodal-rl[board]>=0.2", "av", "pytest; extra == 'test'"])
    assert [r.name for r in machine.requirements("mmrl-zoo")] == ["pillow", "starlette", "uvicorn", "av"]
    assert machine.requirements("mmrl-that-nobody-installed") == []


@pytest.mark.parametrize(
    ("torch", "smi", "state", "words"),
    [
        ({"build": "13.0", "gpus": ["H200"]}, ["H200"], "ok", "H200"),
        ({"build": "cpu", "gpus": []}, [], "missing", "CPU"),
        ({"build": "cpu", "gpus": []}, ["RTX 4090"], "broken", "torch is a CPU build"),
        ({"build": "13.0", "gpus": []}, ["RTX 4090"], "broken", "torch does not see it"),
        ({"build": "13.0", "gpus": [], "why": "The driver is old"}, ["T4"], "broken", "does not see it: The driver is old"),
        ({"build": "13.0", "gpus": ["A", "B"], "remarks": ["", "no bfloat16"]}, ["A", "B"], "note", "A, B; cuda:1: no bfloat16"),
        ({"build": "13.0", "gpus": ["A"], "remarks": ["it can't be used: x"]}, ["A"], "broken", "cuda:0: it can't be used: x"),
        ({"build": "13.0", "gpus": []}, [], "note", "torch is a GPU build (13.0)"),
        ({"error": "crashed"}, [], "missing", "CPU"),
    ],
)
def test_gpu(torch, smi, state, words):
    finding = doctor.check_gpu(torch, smi)
    assert finding.state == state
    assert words in finding.detail


def test_nvidia_smi_is_asked(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200'\necho 'NVIDIA H200'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine.nvidia_gpus() == ["NVIDIA H200", "NVIDIA H200"]
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert machine.nvidia_gpus() == []
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert machine.nvidia_gpus() == []


SAID = {
    "arm": {"state": "ok", "detail": "arm 1.0"},
    "arm pictures": {"state": "missing", "detail": "no driver", "cure": "apt-get install driver"},
}


def test_a_simulator_says_what_it_misses():
    found = doctor.check_simulator("mmrl_arm.check:findings", SAID)
    assert [(f.group, f.name, f.state, f.detail, f.cure, f.needed) for f in found] == [
        ("machine", "arm", "ok", "arm 1.0", "", False),
        ("machine", "arm pictures", "missing", "no driver", "apt-get install driver", False),
    ]


def test_what_two_plugins_look_for_is_said_once(tmp_path, monkeypatch):
    """With the cure of the one that found it worse."""
    browser = {"state": "missing", "detail": "none on the path", "cure": "install Chromium"}
    (tmp_path / "eyes.py").write_text(f"def one(): return {{'chromium': {browser}}}\n")
    (tmp_path / "hands.py").write_text("def two(): return {'chromium': {'state': 'note', 'detail': 'old', 'cure': 'set X'}}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(doctor.facts, "installed", dict)
    monkeypatch.setattr(doctor, "_simulators", lambda: {"hands:two": "hands", "eyes:one": "eyes"})
    found = [f for f in doctor.diagnose(tmp_path, 60.0) if f.name == "chromium"]
    assert [(f.state, f.cure) for f in found] == [("missing", "install Chromium")]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"arm": "ok"},
        {"arm": {"state": "fine", "detail": "1.0"}},
        {"arm": {"state": "ok"}},
        {"arm": {"state": "ok", "detail": 1}},
        {"arm": {"state": "ok", "detail": "1.0", "needed": True}},
    ],
)
def test_a_simulator_that_says_something_else_is_broken(answer):
    (finding,) = doctor.check_simulator("mmrl_arm.check:findings", answer)
    assert (finding.name, finding.state, finding.needed) == ("mmrl_arm", "broken", False)
    assert "its check mmrl_arm.check:findings returned no findings, but" in finding.detail


def test_a_check_is_run_in_a_process_of_its_own(tmp_path, monkeypatch):
    """Also for a plugin that is a local file; a check that crashes does not end the doctor."""
    (tmp_path / "arm.py").write_text(
        "import os, signal\n"
        "def findings():\n    print('noise')\n    return {'arm': {'state': 'ok', 'detail': str(os.getpid())}}\n"
        "def crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "arm.py"))
    (arm,) = doctor.check_simulator("arm:findings", try_python(machine.TRY_SIMULATOR, 60.0, "arm:findings"))
    assert (arm.name, arm.state) == ("arm", "ok") and arm.detail.isdigit() and arm.detail != str(os.getpid())
    (crashed,) = doctor.check_simulator("arm:crash", try_python(machine.TRY_SIMULATOR, 60.0, "arm:crash"))
    assert (crashed.state, crashed.detail) == ("broken", "its check arm:crash failed: crashed with SIGSEGV")
    (absent,) = doctor.check_simulator("arm:none", try_python(machine.TRY_SIMULATOR, 60.0, "arm:none"))
    assert absent.state == "broken" and "arm has no 'none'" in absent.detail


def test_run_folder(tmp_path):
    assert doctor.check_run_folder(tmp_path / "runs" / "deeper").state == "ok"
    assert not (tmp_path / "runs").exists()
    (tmp_path / "file").touch()
    finding = doctor.check_run_folder(tmp_path / "file" / "runs")  # permissions would not stop root
    assert (finding.state, finding.needed) == ("broken", True)
    assert finding.detail == f"{tmp_path / 'file'}: Not a directory"


def test_space(tmp_path):
    assert doctor.check_space(tmp_path / "runs", 2 * 2**30).state == "ok"
    finding = doctor.check_space(tmp_path / "runs", 2**30)
    assert (finding.state, finding.needed, finding.detail) == ("broken", True, f"1.0 GiB free at {tmp_path}")
    assert "GiB free" in doctor.check_space(tmp_path / "runs").detail  # of the real disk


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('noise'); print('{\"a\": 1}')", {"a": 1}),
        ("raise ValueError('planted')", {"error": "ValueError: planted"}),
        ("raise SystemExit(3)", {"error": "exit code 3"}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {"error": "crashed with SIGSEGV"}),
        ("raise SystemExit", {"error": "it ended without an answer"}),
        ("print('{}'); print('bye')", {"error": "it ended without an answer, and printed 'bye' last"}),
    ],
)
def test_code_is_tried_in_a_child_process(code, answer):
    assert try_python(code, 30.0) == answer


def test_what_hangs_is_not_waited_for():
    assert try_python("import time; time.sleep(60)", 0.5) == {"error": "no answer within 0.5 s", "timed_out": 0.5}


PLANTED = {
    "torch/__init__.py": "class version:\n    cuda = hip = None\nclass cuda:\n    is_available = lambda: False",
    "torchvision/__init__.py": "",
    "torchvision/extension.py": "_has_ops = lambda: True",
    "transformers/__init__.py": "AutoModelForImageTextToText = AutoProcessor = Qwen2_5_VLForConditionalGeneration = None",
}


def run_doctor(tmp_path, *arguments, **planted):
    """`mmrl doctor` with one-line stand-ins for the libraries, which import fast."""
    for name, source in {**PLANTED, **{f"{name}/__init__.py": source for name, source in planted.items()}}.items():
        path = tmp_path / "planted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    search = os.pathsep.join([str(tmp_path / "planted"), str(Path(doctor.__file__).parents[1])])
    command = [sys.executable, "-m", "mmrl", "doctor", "--runs", str(tmp_path), *arguments]
    env = {**os.environ, "PYTHONPATH": search}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)


def test_json_is_a_contract(tmp_path):
    done = run_doctor(tmp_path, "--json")
    report = json.loads(done.stdout)
    assert set(report) == {"ok", "findings"}
    assert all(set(f) == {"group", "name", "state", "detail", "cure", "needed"} for f in report["findings"])
    assert {f["state"] for f in report["findings"]} <= {"ok", "note", "missing", "broken"}
    names = [(f["group"], f["name"]) for f in report["findings"]]
    for expected in [
        ("base", "python"),
        ("base", "torch"),
        ("extra", "train"),
        ("plugin", "mmrl"),
        ("machine", "gpu"),
        ("machine", "gymnasium"),
        ("machine", "metaworld"),
        ("machine", "maniskill"),
        ("machine", "run folder"),
        ("machine", "disk"),
    ]:
        assert expected in names
    assert report["ok"] == (done.returncode == 0)


def test_a_torch_that_crashes_does_not_take_the_doctor_with_it(tmp_path):
    done = run_doctor(tmp_path, torch="import os; os.abort()")
    assert done.returncode == 1
    assert "does not import: crashed with SIGABRT" in done.stdout
    assert "torch                pip install --force-reinstall --no-deps torch==" in done.stdout
    assert done.stderr == ""
