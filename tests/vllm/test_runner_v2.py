"""vLLM's Model Runner V2 beside the learner, by Triton's interpreter, and the experts that it tells; see `test_parity.py`."""

import os

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import interpreted_triton
import runs
import vlm_cases as cases
from mmrl.config.sections import ComputeConfig
from mmrl.rollout.generate import vllm as vllm_generator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.rollout.generate.vllm_routes import expert_routes
from mmrl.train.update.routing import Routing
from vllm_cases import FAMILY, sampled, varied

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get(interpreted_triton.ASKED) != "interpreted", reason="it needs Triton's interpreter"),
]
STAGE = {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 2, "experts": {"router_replay": "R3"}}


def test_routes_are_those_of_the_learner_and_are_replayed_in_a_run(tmp_path, monkeypatch):
    """In the second step vLLM seems to tell others. The first test here: beside an engine, a run's would be another process."""
    begun = []
    begin = Routing.begin
    monkeypatch.setattr(Routing, "begin", lambda *args, **options: begun.append(1) or begin(*args, **options))

    def told(outputs, prompt, model):
        for output in outputs:
            output.routed_experts = (output.routed_experts + len(begun)) % 4
        return expert_routes(outputs, prompt, model)

    monkeypatch.setattr(vllm_generator, "expert_routes", told)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    config = runs.toy_config(
        tmp_path,
        policy={"model": f"tiny:{FAMILY}:hidden=128,layers=2"},
        stages=[STAGE],
        compute={"sampler": "vllm"},
        generate={"max_tokens": 4, "batch_size": 8},
        evaluate={"num_prompts": 0},
    )
    right, wrong = [r["metrics"] for r in runs.rows(runs.run(config)) if "experts/mismatch" in r.get("metrics", {})]
    assert right["experts/mismatch"] == 0 and right["logprob_gap"] < 1e-6
    assert wrong["experts/mismatch"] > 0.3 and wrong["logprob_gap"] > 1e-4


@pytest.fixture(scope="module")
def policy():
    return cases.policy(FAMILY, hidden=128)


@pytest.fixture(scope="module")
def generator(policy):
    settings = ComputeConfig(sampler="vllm", model_runner="v2")
    made = VllmGenerator(policy, settings, batch_size=64, max_context=1024, routes=True)
    made.ready()
    assert made.engine.vllm_config.use_v2_model_runner
    yield made
    made.close()


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_log_probabilities_are_the_learners_and_follow_its_weights(policy, generator, clip, temperature):
    for _ in range(2):
        _, groups, gap = sampled(policy, generator, varied(clip, 4), temperature, max_tokens=4, seed=3)
        assert len(gap) > 20 and gap.max() < 1e-5
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.mul_(1.03)
    assert temperature == 0 or len({s.token_ids for g in groups for s in g}) > 4


def test_banned_ids_are_never_sampled_and_seeds_repeat(policy, generator, clip):
    inputs = [policy.encode(p) for p in varied(clip, 2)[1:]]
    draw = lambda seed: generator.generate(inputs, 4, SamplingParams(max_tokens=8, temperature=2.0, seed=seed))  # noqa: E731
    tokens = [[s.token_ids for g in draw(seed) for s in g] for seed in (5, 5, 6)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert len({t for ids in tokens[0] for t in ids}) > 20 and not policy.banned & {t for ids in tokens[0] for t in ids}
