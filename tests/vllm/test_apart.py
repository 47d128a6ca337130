"""vLLM whose workers are processes of their own: spread over two, and beside each of two learners; see `test_parity.py`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import vlm_cases as cases
from mmrl.config.sections import ComputeConfig
from mmrl.rollout.generate import weights
from mmrl.rollout.generate.vllm import VllmGenerator
from processes import alive, gone
from vllm_cases import FAMILY, GAP, sampled, varied

pytestmark = pytest.mark.slow
SUPPORT = str(Path(__file__).parents[1] / "support")


@pytest.fixture(scope="module", autouse=True)
def tidy():
    """vLLM's CPU build leaves the memory that its workers shared, some megabytes."""
    shared = Path("/dev/shm")
    before = set(shared.glob("vllm_dist_*"))
    yield
    for left in set(shared.glob("vllm_dist_*")) - before:
        left.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def policy():
    return cases.policy(FAMILY, hidden=128)


@pytest.fixture(scope="module")
def generator(policy):
    made = VllmGenerator(policy, ComputeConfig(sampler="vllm", tensor_parallel=2), batch_size=64, max_context=1024)
    made.ready()
    yield made
    made.close()


def test_two_processes_share_the_model_and_say_what_the_learner_says(policy, generator, clip):
    assert len(generator.engine.model_executor.workers) == 2 and not torch.distributed.is_initialized()
    heads = generator.engine.collective_rpc(_heads)
    assert heads == [policy.model.config.get_text_config().num_attention_heads // 2] * 2, "half of them each"
    assert generator.engine.collective_rpc(_sums_in_16_bits) == [False, False]
    _, groups, gap = sampled(policy, generator, varied(clip, 24), 0.7, seed=3)
    assert len(gap) > 200 and gap.mean() < GAP and gap.max() < 10 * GAP
    assert not policy.banned & {t for g in groups for s in g for t in s.token_ids}


def _sums_in_16_bits(worker):
    products = torch.backends.cuda.matmul
    return products.allow_bf16_reduced_precision_reduction or products.allow_fp16_reduced_precision_reduction


def _heads(worker):
    (first, *_) = (m for m in worker.get_model().modules() if type(m).__name__.endswith("QKVParallelLinear") and m.num_kv_heads)
    return first.num_heads


@pytest.mark.parametrize("load_bytes", [2**28, 2**16])
def test_weights_reach_both_through_shared_memory_however_little_fits(policy, generator, clip, monkeypatch, load_bytes):
    monkeypatch.setattr(weights, "LOAD_BYTES", load_bytes)
    prompts, loads = varied(clip, 12), []
    fetch = generator.engine.collective_rpc
    monkeypatch.setattr(generator.engine, "collective_rpc", lambda *a, **k: loads.append(len(a)) or fetch(*a, **k))
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.3 * p.std() * torch.randn_like(p))
    assert sampled(policy, generator, prompts)[2].mean() < GAP
    whole = sum(4 * p.numel() for p in policy.model.parameters())
    assert generator.sent == whole and (len(loads) == 1) == (load_bytes == 2**28)
    with torch.no_grad():
        policy.model.get_parameter("model.language_model.layers.1.self_attn.q_proj.weight").mul_(1.5)
    assert sampled(policy, generator, prompts)[2].mean() < GAP
    assert generator.sent < whole / 8, "of the block that it is in, no more"


LEARNERS = """
import sys
import torch
from torch import distributed

import vlm_cases as cases
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.config.sections import ComputeConfig
from vllm_cases import GAP, sampled

def together(rank):
    found = torch.tensor([rank + 1.0])
    distributed.all_reduce(found)
    return found.item() == 3.0

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    policy = cases.policy("qwen2_5_vl", hidden=128)
    generator = VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=8, max_context=256)
    for asked in range(1 + rank):  # of different prompts, and not equally often
        prompts = [cases.prompt(4 * rank + n) for n in range(2 + asked)]
        with torch.no_grad():
            policy.model.get_parameter("lm_head.weight").mul_(1.1 + rank)
        assert sampled(policy, generator, prompts)[2].mean() < GAP
    assert generator.syncs == 1 + rank
    assert together(rank) and distributed.get_world_size() == 2
    (worker,) = generator.engine.model_executor.workers
    generator.close()
    del generator
    assert together(rank) and not worker.proc.is_alive()
    distributed.destroy_process_group()
    print(f"rank {rank} done")
"""


def test_each_of_two_learners_has_one_of_its_own_and_their_group_outlives_it(tmp_path):
    (tmp_path / "learners.py").write_text(LEARNERS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", tmp_path / "learners.py"]
    env = os.environ | {"PYTHONPATH": SUPPORT, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0 and "rank 0 done" in done.stdout and "rank 1 done" in done.stdout, done.stderr[-3000:]


SAMPLING = """
import vlm_cases as cases
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.config.sections import ComputeConfig

if __name__ == "__main__":
    policy = cases.policy("qwen2_5_vl", hidden=128)
    generator = VllmGenerator(policy, ComputeConfig(sampler="vllm", tensor_parallel=2), batch_size=8, max_context=1024)
    generator.ready()
    print(*(w.proc.pid for w in generator.engine.model_executor.workers), flush=True)
    inputs = [policy.encode(cases.prompt(n)) for n in range(4)]
    try:
        while True:
            generator.generate(inputs, 2, SamplingParams(max_tokens=200, temperature=0.7))
    except Exception as error:
        print(error)
        generator.close()
"""


@pytest.mark.parametrize("killed", ["the learner", "a worker"])
def test_a_process_that_is_killed_leaves_none_behind(tmp_path, killed):
    (tmp_path / "sampling.py").write_text(SAMPLING)
    env = os.environ | {"PYTHONPATH": SUPPORT, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, tmp_path / "sampling.py"], env=env, stdout=subprocess.PIPE, text=True) as learner:
        try:
            workers = [int(pid) for pid in learner.stdout.readline().split()]
            assert len(workers) == 2 and all(map(alive, workers))
            time.sleep(2)  # in the middle of a generation
            os.kill(learner.pid if killed == "the learner" else workers[1], signal.SIGKILL)
            said = learner.stdout.read()
            learner.wait(60)
        finally:
            learner.kill()
    assert all(gone(pid, 30) for pid in workers)
    if killed == "a worker":
        last = said.splitlines()[-1]
        assert last.startswith("a process of vLLM died (") and last.endswith("go on with --resume")
