"""GPUs that are missing, too old, taken or too small, with torch's answers in their place."""

import warnings

import pytest
import torch

import mmrl.train.start
from mmrl.api.errors import UserError
from mmrl.compute import devices
from mmrl.config.sections import PolicyConfig

OLD_DRIVER = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
    "downloading and installing a new version from the URL: ... (Triggered internally at CUDAFunctions.cpp:119.)"
)
GIB = 2**30


@pytest.fixture(autouse=True)
def asked_anew():
    devices.why_no_gpu.cache_clear()
    yield
    devices.why_no_gpu.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that computes, as far as `prepare_device` looks; a dictionary of what it answers, to be changed."""
    answers = {"capability": (9, 0), "free": 79 * GIB, "error": None}
    ones = torch.ones

    def compute(*shape, device=None, **options):
        if answers["error"]:
            raise answers["error"]
        return ones(*shape, **options)

    monkeypatch.setattr(torch, "ones", compute)
    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda device=None: "NVIDIA H100",
        "get_device_capability": lambda device=None: answers["capability"],
        "mem_get_info": lambda device=None: (answers["free"], 80 * GIB),
        "memory_reserved": lambda device=None: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    return answers


def no_gpu(monkeypatch, warning=""):
    """torch warns when it first looks, and not again."""
    said = []

    def look():
        if warning and not said:
            said.append(warning)
            warnings.warn(warning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", look)


def test_without_a_gpu_the_cpu_is_taken_and_a_gpu_that_is_asked_for_is_refused(monkeypatch):
    no_gpu(monkeypatch)
    assert devices.resolve_device(PolicyConfig(model="x")) == "cpu"
    with pytest.raises(UserError, match=r'^policy\.device = \'cuda\', but torch sees no GPU: use "cpu" or "auto"'):
        devices.resolve_device(PolicyConfig(model="x", device="cuda"))


def test_a_driver_that_is_too_old_is_named_and_no_run_goes_to_the_cpu_unasked(monkeypatch):
    no_gpu(monkeypatch, OLD_DRIVER)
    with pytest.raises(
        UserError, match=r"can't use the GPU: The NVIDIA driver on your system is too old \(found version 11040\); m"
    ):
        devices.resolve_device(PolicyConfig(model="x"))
    devices.why_no_gpu.cache_clear()
    no_gpu(monkeypatch, OLD_DRIVER)
    with pytest.raises(
        UserError, match=r"torch sees no GPU \(The NVIDIA driver on your system is too old \(found version 11040\)\)"
    ):
        devices.check_device("simulate.device", "cuda")
    assert devices.resolve_device(PolicyConfig(model="x", device="cpu")) == "cpu"


def test_a_gpu_of_which_there_are_fewer_is_refused(gpu):
    with pytest.raises(UserError, match=r"^simulate\.device = 'cuda:1', but there are 1 GPUs: count from cuda:0$"):
        devices.check_device("simulate.device", "cuda:1")
    assert devices.check_device("simulate.device", "cuda:0") == "cuda:0"


def test_a_gpu_that_works_is_left_alone_and_computes_exactly(gpu):
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = True  # torch's own
    torch.backends.cuda.enable_cudnn_sdp(True)
    devices.prepare_device("cuda", "bfloat16")
    assert torch.backends.cudnn.allow_tf32 is False, "float32 convolutions would have 10 bits"
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "torch would prefer it, and give rows that see nothing other numbers"
    assert not (products.allow_bf16_reduced_precision_reduction or products.allow_fp16_reduced_precision_reduction)
    assert devices.remark("cuda:0") == "" and devices.held_by_others("cuda") == 0
    gpu["error"] = RuntimeError("nobody looks at a GPU that isn't used")
    devices.prepare_device("cpu", "float32")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors"),
            "architecture",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."),
            "other processes hold its memory: nvidia-smi",
        ),
        (RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"), "another process has it for itself"),
        (RuntimeError("CUDA error: something\nnew"), "CUDA error: something new: see mmrl doctor"),
    ],
    ids=["other architecture", "full", "exclusive", "unknown"],
)
def test_a_gpu_that_cannot_compute_is_refused_in_a_line(gpu, error, told):
    gpu["error"] = error
    with pytest.raises(UserError) as refused:
        devices.prepare_device("cuda:0", "float32")
    assert told in str(refused.value) and "cuda:0" in str(refused.value) and "\n" not in str(refused.value)
    assert told in devices.remark("cuda:0")


def test_bfloat16_needs_a_gpu_that_has_it(gpu):
    gpu["capability"] = (7, 5)
    with pytest.raises(
        UserError, match=r'^policy\.dtype = "bfloat16", which NVIDIA H100 .* set policy\.dtype = "float16" or "float32"$'
    ):
        devices.prepare_device("cuda", "bfloat16")
    for narrower in ("float16", "float32"):
        devices.prepare_device("cuda", narrower)
    assert "only by emulation" in devices.remark("cuda:0")
    gpu["capability"] = (8, 0)
    devices.prepare_device("cuda", "bfloat16")


def test_memory_of_other_processes_does_not_count_for_a_run(gpu, monkeypatch):
    """It is told, and a run that the rest is too small for is refused before anything is loaded."""
    from mmrl.config.load import parse_config
    from mmrl.train.plan.machines import GPUS

    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 1, "group_size": 2}
    policy = {"model": "Qwen/Qwen2.5-VL-3B", "dtype": "bfloat16", "device": "cuda"}
    config = parse_config({"name": "x", "policy": policy, "tasks": [{"id": "classification/digits"}], "stages": [stage]})
    monkeypatch.setattr(mmrl.train.start, "current_machine", lambda device, measured: (GPUS["h100"], 1))

    class Notes:
        device = "cuda"

        def __init__(self):
            self.config, self.notes = config, []

        def note(self, text):
            self.notes.append(text)

    alone = Notes()
    mmrl.train.start.check_memory(alone, alone)
    assert not any("other processes" in note for note in alone.notes)
    gpu["free"] = 40 * GIB
    shared = Notes()
    with pytest.raises(
        UserError, match=r"is too small: weights, gradients and optimiser of stages\.0 take 62\.9 GiB, but it has 39\.6"
    ):
        mmrl.train.start.check_memory(shared, shared)
    assert shared.notes == ["other processes hold 40.0 GiB of the 79.6 GiB of NVIDIA H100 80GB HBM3: nvidia-smi lists them"]
    assert "other processes hold 40.0 GiB" in devices.remark("cuda:0")
    with pytest.raises(
        UserError, match=r"^out of memory \(CUDA out of memory\., of which other processes hold 40\.0 GiB\): lower "
    ):
        with mmrl.train.start.out_of_memory_errors(config):
            raise torch.OutOfMemoryError("CUDA out of memory.")
