"""Which GPU a simulator's processes are told to take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.gpus import CUDA, EGL, cuda_variables, egl_variables

SMI = "#!/bin/sh\necho GPU-11aa-1\necho GPU-22bb-2\necho GPU-33cc-3\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three GPUs, of which the user says nothing."""
    for name in (CUDA, EGL):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.parametrize(
    "visible, device, cuda, egl",
    [
        (None, "cpu", None, None),
        (None, "cuda:3", "3", "3"),
        (None, torch.device("cuda:3"), "3", "3"),
        (None, "cuda:0", "0", None),
        ("2", "cuda:0", "2", "2"),
        ("4,5,6,7", "cuda:3", "7", "7"),
        ("4, 5", "cuda:1", "5", "5"),
        ("GPU-33cc-3,GPU-22bb", "cuda:1", "GPU-22bb", "1"),
        ("MIG-99", "cuda:0", "MIG-99", None),
        ("2", "cpu", None, None),
    ],
)
def test_it_is_the_simulator_s_as_the_whole_machine_calls_it(monkeypatch, visible, device, cuda, egl) -> None:
    if visible is not None:
        monkeypatch.setenv(CUDA, visible)
    assert cuda_variables(device) == ({} if cuda is None else {CUDA: cuda})
    assert egl_variables(device) == ({} if egl is None else {CUDA: egl, EGL: egl})


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert cuda_variables("cuda") == {CUDA: "2"} and egl_variables("cuda")[EGL] == "2"


def test_who_names_a_gpu_to_draw_on_is_believed(monkeypatch) -> None:
    monkeypatch.setenv(EGL, "1")
    assert egl_variables("cuda:3") == {}


def test_without_the_driver_s_program_no_number_is_known(monkeypatch) -> None:
    monkeypatch.setenv(CUDA, "GPU-22bb")
    monkeypatch.setenv("PATH", "/no/such")
    assert egl_variables("cuda:0") == {} and cuda_variables("cuda:0") == {CUDA: "GPU-22bb"}


@pytest.mark.parametrize("visible", ["0,1", "", "3,4,,5"])
def test_a_gpu_that_this_process_does_not_see_is_refused(monkeypatch, visible) -> None:
    monkeypatch.setenv(CUDA, visible)
    with pytest.raises(UserError, match=r"there is no 'cuda:2', as CUDA_VISIBLE_DEVICES = '.*': name more GPUs in it"):
        cuda_variables("cuda:2")
