"""Whole runs with vLLM as the sampler, in vLLM's environment; see `test_parity.py`."""

import json
import random
import time

import numpy
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import runs
from mmrl.api.errors import UserError
from mmrl.rollout.generate.vllm import VllmGenerator

MODEL = {"model": "tiny:qwen2_5_vl:hidden=128,layers=1"}
STAGES = [
    {"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-3},
    {"kind": "rl", "steps": 6, "prompts_per_step": 3, "group_size": 4, "learning_rate": 1e-3},
]


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


def run(folder, name, **sections):
    options = {k: sections.pop(k) for k in ("resume", "progress") if k in sections}
    rest = {"policy": MODEL, "stages": STAGES, "compute": {"sampler": "vllm"}}
    return runs.run(runs.toy_config(folder, name=name, **rest | sections), **options)


def steps(folder):
    return [r["metrics"] for r in runs.rows(folder) if "metrics" in r and r["stage"] == "rl"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
        return run(tmp_path_factory.mktemp("whole"), "whole")


def test_grpo_learns_with_it_and_the_gap_stays_small(whole):
    found = steps(whole)
    assert len(found) == 6 and max(m["logprob_gap"] for m in found) < 5e-3
    assert any(m["grad_norm"] > 0 for m in found)
    summary = json.loads((whole.path / "summary.json").read_text())
    assert summary["last"]["toy/colour"]["n"] == 4


def test_answers_that_are_interrupted_are_trained_with_the_log_probabilities_of_their_own_weights(tmp_path, monkeypatch):
    made = VllmGenerator.ready

    def slow(self):
        made(self)
        step = self.engine.step
        self.engine.step = lambda: time.sleep(0.02) or step()

    monkeypatch.setattr(VllmGenerator, "ready", slow)
    stages = [{**STAGES[1], "steps": 10}]
    folder = run(tmp_path, "cut", stages=stages, compute={"sampler": "vllm", "staleness": 2, "interrupt": True})
    found = steps(folder)
    assert len(found) == 10 and max(m["staleness/max"] for m in found) <= 2
    assert any(m["interrupted/share"] > 0 for m in found)


def test_global_generators_and_threads_are_left_alone(tmp_path):
    short = [{**STAGES[1], "steps": 1}]
    run(tmp_path, "first", stages=short, compute={"sampler": "local"})  # what is imported for the first time may draw
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    run(tmp_path, "second", stages=short)
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert torch.get_num_threads() == 1, "as `train.threads` says"


ENVIRONMENT = """
from mmrl import Prompt, Reply, Task, TaskSpec, VerifierSpec, hookimpl, user_message
from PIL import Image

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="look/again", target="look:Look", verifiers={"look/letters": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="look/letters", target="look:letters")]

class Environment:
    said = 0

    def step(self, text):
        self.said += 1
        shown = Image.new("RGB", (56, 28 + 28 * self.said), (40 * self.said, len(text) % 9 * 20, 90))
        return Reply(messages=(user_message(f"And now? {self.said}", shown),), reward=len(text) / 10)

    def close(self): pass

class Look(Task):
    def prompts(self, split, seed):
        for i in range(12):
            message = user_message(f"{i}?", Image.new("RGB", (56, 56), (20 * i, 90, 30)))
            yield Prompt(id=f"{split}-{i}", messages=[message], answer="x")

    def environment(self, prompt):
        return Environment()

def letters(case):
    return min(0.9, sum(ord(c) % 17 for c in case.completion) / 400)
"""


def test_episodes_of_several_turns_go_on_with_what_the_environment_showed(tmp_path, monkeypatch):
    (tmp_path / "look.py").write_text(ENVIRONMENT)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "look.py"))
    generate = {"max_tokens": 4, "max_turns": 3}
    stages = [{**STAGES[1], "steps": 3}]
    folder = run(tmp_path, "turns", tasks=[{"id": "look/again"}], stages=stages, generate=generate)
    found = steps(folder)
    gaps = [m["logprob_gap"] for m in found if "logprob_gap" in m]  # a step without spread learns nothing
    assert len(found) == 3 and gaps and max(gaps) < 5e-3
    assert all(m["turns/mean"] > 1 for m in found)


def test_adapters_are_worked_into_what_it_samples_with(tmp_path):
    policy = {**MODEL, "lora": {"target_modules": ["language", "vision"]}}
    found = steps(run(tmp_path, "lora", policy=policy, stages=[{**STAGES[1], "steps": 4}]))
    assert max(m["logprob_gap"] for m in found) < 5e-3 and found[-1]["grad_norm"] > 0


def test_a_stopped_run_goes_on(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "parts", progress=runs.Silent(5))
    parts = run(tmp_path, "parts", resume=True)
    assert [m["reward/mean"] for m in steps(parts)] == pytest.approx([m["reward/mean"] for m in steps(whole)], abs=1e-6)
    assert [m["loss"] for m in steps(parts)] == pytest.approx([m["loss"] for m in steps(whole)], abs=1e-4)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("gemma3:hidden=128,layers=2", "tokens of its pictures see later ones, which vLLM's attention on a CPU can't do"),
        ("qwen3_5:hidden=128,layers=2", "on a CPU vLLM computes its linear attention in bfloat16 alone"),
        ("qwen2_5_vl:hidden=64,layers=1", r"its attention heads have 16 numbers, and on a CPU vLLM has 32, .*"),
    ],
)
def test_models_that_it_would_not_run_as_the_learner_does_are_refused(tmp_path, model, why):
    kind = model.partition(":")[0]
    with pytest.raises(UserError, match=rf"^compute\.sampler = \"vllm\" can't serve a {kind} model: {why}: use \"local\""):
        run(tmp_path, "refused", policy={"model": f"tiny:{model}"})
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"enable_prefix_cashing": True}, r"have no such argument; did you mean enable_prefix_caching\?"),
        ({"block_size": "wide"}, r"can't serve a qwen2_5_vl model: vLLM can't take it: .*"),
    ],
)
def test_settings_that_it_does_not_know_are_refused(tmp_path, given, why):
    with pytest.raises(UserError, match=why):
        run(tmp_path, "refused", compute={"sampler": "vllm", "vllm": given})
    assert not (tmp_path / "refused").exists()


def test_settings_of_its_own_reach_it(tmp_path, monkeypatch):
    made = []
    ready = VllmGenerator.ready
    monkeypatch.setattr(VllmGenerator, "ready", lambda self: (ready(self), made.append(self.engine.vllm_config)))
    given = {"enable_prefix_caching": False, "mm_processor_cache_gb": 0.5, "kv_cache_memory_bytes": 2**26}
    found = steps(run(tmp_path, "own", compute={"sampler": "vllm", "vllm": given}, stages=[{**STAGES[1], "steps": 1}]))
    assert found[0]["logprob_gap"] < 5e-3
    config = made[0]
    assert not config.cache_config.enable_prefix_caching and config.cache_config.kv_cache_memory_bytes == 2**26
    assert config.model_config.multimodal_config.mm_processor_cache_gb == 0.5


def test_a_prompt_that_is_longer_than_what_it_was_started_for_is_refused_by_its_length(tmp_path):
    with pytest.raises(UserError, match=r"a prompt has \d+ tokens, and vLLM was started for 16 .*raise generate\.max_context"):
        run(tmp_path, "long", generate={"max_tokens": 4, "max_context": 16}, stages=[{**STAGES[1], "steps": 1}])
