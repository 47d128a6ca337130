"""`import torchvision` beside a torch that its compiled operators don't fit."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mmrl.compute import torchvision

ROOT = Path(torchvision.__file__).parents[1]
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

FAKE_TORCH = """
import types
ops = types.SimpleNamespace(torchvision=types.SimpleNamespace())
defined = []
def define(name, schema):
    if hasattr(ops.torchvision, name.split("::")[1]):
        raise RuntimeError(f"{name} is defined twice")
    setattr(ops.torchvision, name.split("::")[1], schema)
    defined.append((name, schema))
library = types.SimpleNamespace(define=define)
"""
FAKE_TORCHVISION = """
import torch
from . import extension
if not hasattr(torch.ops.torchvision, "nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
"""
FAKE_EXTENSION = """
import torch
LOADS = {loads}
if LOADS:
    torch.library.define("torchvision::nms", "compiled")
    torch.library.define("torchvision::qnms", "compiled")
def _has_ops():
    return LOADS
"""


def fake_libraries(directory: Path, *, loads: bool) -> Path:
    """A torch and a torchvision of a few lines; `loads` says whether the compiled operators fit."""
    (directory / "torchvision").mkdir()
    (directory / "torch.py").write_text(FAKE_TORCH)
    (directory / "torchvision" / "__init__.py").write_text(FAKE_TORCHVISION)
    (directory / "torchvision" / "extension.py").write_text(FAKE_EXTENSION.format(loads=loads))
    return directory


def python(code: str, *path: Path) -> str:
    """What `code` prints in an interpreter that reads no .pth file (-S) and finds packages in `path`."""
    start = f"import sys; sys.path[:0] = {[str(p) for p in path]!r}\n"
    done = subprocess.run([sys.executable, "-S", "-c", start + code], capture_output=True, text=True, timeout=120)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def listed(nms: str, qnms: str) -> str:
    """What SHOW prints."""
    return str([("torchvision::nms", nms), ("torchvision::qnms", qnms)])


SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
PREPARE = "from mmrl.compute.torchvision import prepare_torchvision; prepare_torchvision(); prepare_torchvision()\n"
SHOW = "import torch, torchvision; print(torch.defined)"


def test_the_fault_is_real_without_it(tmp_path):
    assert python(SHOW, fake_libraries(tmp_path, loads=False)) == "RuntimeError: operator torchvision::nms does not exist"


def test_missing_operators_are_declared_once(tmp_path):
    path = fake_libraries(tmp_path, loads=False)
    assert python(PREPARE + SHOW, path, ROOT, SITE_PACKAGES) == listed(SCHEMA, SCHEMA)


def test_importing_mmrl_is_enough(tmp_path):
    """A plugin may import vision code before mmrl makes a model."""
    path = fake_libraries(tmp_path, loads=False)
    assert python("import mmrl\n" + SHOW, path, ROOT, SITE_PACKAGES) == listed(SCHEMA, SCHEMA)


def test_compiled_operators_are_left_alone(tmp_path):
    path = fake_libraries(tmp_path, loads=True)
    assert python(PREPARE + SHOW, path, ROOT, SITE_PACKAGES) == listed("compiled", "compiled")


def test_operators_that_someone_else_declared_are_left_alone(tmp_path):
    path = fake_libraries(tmp_path, loads=False)
    theirs = "import torch; torch.library.define('torchvision::nms', 'theirs')\n"
    assert python(PREPARE + theirs + SHOW, path, ROOT, SITE_PACKAGES) == listed("theirs", SCHEMA)


def test_it_mends_a_process_whose_import_has_failed_before(tmp_path):
    path = fake_libraries(tmp_path, loads=False)
    failed = "try:\n    import torchvision\nexcept RuntimeError:\n    pass\n"
    assert python(failed + PREPARE + SHOW, path, ROOT, SITE_PACKAGES) == listed(SCHEMA, SCHEMA)


def test_preparing_imports_nothing():
    assert python(PREPARE + "print({'torch', 'torchvision', 'transformers'} & set(sys.modules))", ROOT, SITE_PACKAGES) == "set()"


def test_pth_serves_processes_that_never_heard_of_mmrl(tmp_path):
    libraries, site = tmp_path / "libraries", tmp_path / "site"
    libraries.mkdir(), site.mkdir()
    fake_libraries(libraries, loads=False)
    assert torchvision.install_pth(site) == site / torchvision.PTH_NAME
    assert torchvision.install_pth(site).read_text().count("\n") == 1  # site runs a .pth line by line
    start = f"import site; before = set(sys.modules); site.addsitedir({str(site)!r}); new = set(sys.modules) - before\n"
    assert python(start + "print(new)", libraries, ROOT, SITE_PACKAGES) == "set()"  # nothing is imported at start-up
    assert python(start + SHOW, libraries, ROOT, SITE_PACKAGES) == listed(SCHEMA, SCHEMA)
    # After mmrl is uninstalled, the file left behind is harmless.
    assert python(start + SHOW, libraries) == "RuntimeError: operator torchvision::nms does not exist"


def test_the_command_writes_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["compat", "--install-pth"])
    torchvision.main()
    assert capsys.readouterr().out == f"wrote {tmp_path / torchvision.PTH_NAME}\n"
    assert (tmp_path / torchvision.PTH_NAME).is_file()


@pytest.mark.slow
def test_the_real_torchvision_imports():
    pytest.importorskip("torch")
    code = PREPARE + "import torchvision, torch; print(torch.ops.torchvision.nms)"
    assert python(code, ROOT, SITE_PACKAGES, Path(sysconfig.get_path("platlib"))) == "torchvision.nms"
