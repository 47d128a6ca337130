"""What vLLM is asked for and when, with an engine that only takes notes; the real one is asked in `tests/vllm`."""

import copy
import dataclasses
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

import runs
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.config.sections import ComputeConfig, LoraConfig
from mmrl.policies.lora import add_adapters, merged_weights
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.capabilities import Capabilities
from mmrl.rollout.generate import vllm_options, weights
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.rollout.generate.vllm_engine import check_served
from mmrl.train.update.learner import Learner


class Engine:
    """Notes the calls; takes weights as vLLM's workers do, so that they are read."""

    def __init__(self):
        self.calls, self.names = [], []
        self.engine_core = SimpleNamespace(shutdown=lambda: self.calls.append("shutdown"))
        self.model_executor = SimpleNamespace(is_failed=False)
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="uni"))

    def sleep(self, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags):
        self.calls.append(f"wake {' '.join(tags)}")

    def collective_rpc(self, method, args):
        self.calls.append(method)
        self.names = [name for name, _ in args[0]]

    def reset_prefix_cache(self, reset_running_requests):
        self.calls.append("forget")

    def reset_mm_cache(self): ...

    def reset_encoder_cache(self): ...

    def abort_request(self, ids): ...


@pytest.fixture
def policy():
    return copy.copy(cases.policy("qwen2_5_vl"))


@pytest.fixture
def generator(policy, monkeypatch):
    monkeypatch.setattr("mmrl.rollout.generate.vllm.start_engine", lambda *a: (Engine(), None))
    made = VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=4, max_context=64)
    yield made
    made.close()


def published(model):
    return [name for name, _ in weights.changed_weights(model, {}, weights.parameter_versions(model))]


def ask(generator):
    """What sampling makes it do."""
    generator.engine.calls.clear()
    generator.wake_up()
    assert generator.generate([], 1, SamplingParams(max_tokens=1, temperature=1.0)) == []
    return list(generator.engine.calls)


def test_it_sleeps_once_started_and_wakes_to_new_weights_before_it_samples(generator):
    generator.sleeps = True  # as on a GPU
    generator.ready()
    assert generator.engine.calls == ["sleep 2"] and generator.resting
    woken = ["wake weights", "mmrl_reload", "forget", "wake kv_cache"]
    assert ask(generator) == woken and not generator.resting
    assert ask(generator) == [], "awake, and no weight changed"
    generator.sleep()
    generator.sleep()
    assert generator.engine.calls == ["sleep 2"], "once"
    assert ask(generator) == woken, "level 2 dropped the weights, so all come again though none changed"
    assert generator.engine.names == published(generator.policy.model)


def test_at_level_1_it_keeps_its_weights_and_is_sent_what_changed(policy, monkeypatch):
    monkeypatch.setattr("mmrl.rollout.generate.vllm.start_engine", lambda *a: (Engine(), None))
    settings = ComputeConfig(sampler="vllm", sleep_level=1)
    generator = VllmGenerator(policy, settings, batch_size=4, max_context=64)
    generator.sleeps = True
    generator.ready()
    assert generator.engine.calls == ["sleep 1"]
    assert ask(generator) == ["wake weights", "mmrl_reload", "forget", "wake kv_cache"]
    generator.sleep()
    assert ask(generator) == ["wake weights", "wake kv_cache"], "none changed"
    generator.sleep()
    with torch.no_grad():
        policy.model.get_parameter("model.visual.blocks.0.mlp.gate_proj.weight").add_(0)
    assert ask(generator) == ["wake weights", "mmrl_reload", "forget", "wake kv_cache"]
    assert 0 < len(generator.engine.names) < 8
    generator.close()


def test_where_it_can_not_sleep_rest_is_only_noted(generator):
    assert not generator.sleeps, "on a CPU"
    generator.ready()
    assert generator.engine.calls == [] and generator.resting
    assert ask(generator) == ["mmrl_reload", "forget"] and not generator.resting
    generator.sleep()
    assert ask(generator) == [] and generator.syncs == 1


def test_weights_that_did_not_arrive_are_sent_again(generator, monkeypatch):
    generator.ready()

    def fail(method, args):
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(generator.engine, "collective_rpc", fail)
        generator.sync()
    assert ask(generator) == ["mmrl_reload", "forget"]


def test_a_worker_that_died_is_said_in_one_line(generator, monkeypatch):
    generator.ready()

    def fail(method, args):
        generator.engine.model_executor.is_failed = True
        raise RuntimeError("cancelled\nand more")

    monkeypatch.setattr(generator.engine, "collective_rpc", fail)
    with pytest.raises(UserError, match=r"^a process of vLLM died \(cancelled.*go on with --resume$") as caught:
        generator.sync()
    assert "\n" not in str(caught.value)


def test_only_blocks_that_were_written_to_are_sent(generator):
    """Whole ones: of q, k and v, which vLLM fuses, all."""
    generator.ready()
    ask(generator)
    model = generator.policy.model
    with torch.no_grad():
        model.get_parameter("model.language_model.layers.1.self_attn.k_proj.bias").add_(0)
        model.get_parameter("model.visual.blocks.0.mlp.gate_proj.weight").add_(0)
    assert ask(generator) == ["mmrl_reload", "forget"]
    wanted = ("model.layers.1.self_attn.", "visual.blocks.0.mlp.")  # as published checkpoints have it
    assert generator.engine.names == [name for name in published(model) if name.startswith(wanted)]
    parts = ("model.language_model.layers.1.self_attn.", "model.visual.blocks.0.mlp.")
    assert generator.sent == sum(4 * value.numel() for name, value in merged_weights(model) if name.startswith(parts)) > 0
    assert {name.split(".")[-2] for name in generator.engine.names} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"), *("gate_proj", "up_proj", "down_proj")
    }  # fmt: skip


def test_an_adapter_sends_the_block_of_the_layer_that_it_belongs_to(policy):
    policy.model = copy.deepcopy(policy.model)
    add_adapters(policy.model, LoraConfig(rank=2, target_modules=["*language_model.layers.0.self_attn.v_proj"]), seed=0)
    before = weights.parameter_versions(policy.model)
    (adapter,) = [p for name, p in policy.model.named_parameters() if "lora_B" in name]
    with torch.no_grad():
        adapter.add_(1.0)
    sent = dict(weights.changed_weights(policy.model, before, weights.parameter_versions(policy.model)))
    start, own = "model.layers.0.self_attn.", "model.language_model.layers.0.self_attn."
    whole = {name.replace(own, start): value for name, value in merged_weights(policy.model) if name.startswith(own)}
    assert set(sent) == set(whole)
    assert all(torch.equal(sent[name], whole[name]) for name in sent)
    plain = policy.model.get_submodule(f"{own}v_proj").base_layer.weight
    assert (sent[f"{start}v_proj.weight"] - plain).abs().max() > 1e-3, "what it learned is in it"


def test_a_tied_weight_is_sent_once_as_a_published_checkpoint_has_it(policy):
    """vLLM's Command A Vision knows no other name of it."""
    policy.model = copy.deepcopy(policy.model)
    assert policy.model.lm_head.weight is policy.model.get_input_embeddings().weight
    before = weights.parameter_versions(policy.model)
    with torch.no_grad():
        policy.model.lm_head.weight.add_(1.0)
    sent = dict(weights.changed_weights(policy.model, before, weights.parameter_versions(policy.model)))
    assert "model.embed_tokens.weight" in sent and "lm_head.weight" not in sent
    everything = dict(weights.changed_weights(policy.model, {}, before))
    assert "model.embed_tokens.weight" in everything and "lm_head.weight" not in everything


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "internvl", "llava", "glm4v_moe", "ernie4_5_vl_moe", "gemma4"])
def test_weights_are_sent_by_the_names_of_published_checkpoints(family, tmp_path):
    """Those that transformers saves, with the prefix of CLIP's and SigLIP's towers, which it leaves out for a model made here;
    buffers as well, when all are sent."""
    model, _ = tiny.build(family, hidden=32, layers=2)
    sent = dict(weights.changed_weights(model, {}, weights.parameter_versions(model)))
    assert "_weight_conversions" not in vars(model)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    prefixed = family in ("gemma3", "llava")
    names = {name.replace("vision_tower.", "vision_tower.vision_model.") if prefixed else name: name for name in saved}
    assert names.keys() <= sent.keys() and all("lm_head" in name for name in sent.keys() - names.keys()), "tied ones twice"
    assert all(torch.equal(sent[name], saved[own]) for name, own in names.items())


def test_experts_are_turned_as_in_published_checkpoints():
    """Qwen3-VL's are [expert, in, out] there, and transformers saves them as it holds them, [expert, out, in]."""
    model, _ = tiny.build("qwen3_vl_moe", hidden=32, layers=1)
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    sent = dict(weights.changed_weights(model, {}, weights.parameter_versions(model)))[name]
    assert sent.shape == (4, 32, 64) and torch.equal(sent.transpose(1, 2), model.get_parameter(name))


def test_experts_of_a_layer_go_together():
    model, _ = tiny.build("glm4v_moe", hidden=32, layers=2)
    before = weights.parameter_versions(model)
    with torch.no_grad():
        model.get_parameter("model.language_model.layers.1.mlp.experts.down_proj").add_(0)
    sent = dict(weights.changed_weights(model, before, weights.parameter_versions(model)))
    kinds = {name.removeprefix("model.language_model.layers.1.mlp.").partition(".")[0] for name in sent}
    assert kinds == {"experts", "gate", "shared_experts"} and all(".layers.1.mlp." in name for name in sent)
    assert sum(".experts.3." in name for name in sent) == 3


def _read(asked, answers):
    for handle, places in iter(asked.get, None):
        answers.put([(name, value.tolist(), str(value.dtype)) for name, value in weights.open_shared(handle, places)])


@pytest.mark.slow
def test_another_process_reads_the_shared_weights():
    given = [
        ("a.q.weight", torch.arange(6.0).view(2, 3)),
        ("a.k.weight", torch.tensor([1.5, -2.0], dtype=torch.bfloat16)),
        ("b.up.weight", torch.arange(30)),
        ("c.norm.weight", torch.tensor(3.0)),
    ]
    shared, context = weights.SharedWeights(200, torch.device("cpu")), multiprocessing.get_context("spawn")
    asked, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=_read, args=(asked, answers))
    process.start()
    loads, found = [], []
    for places in shared.loads(iter(given)):
        asked.put((*shared.handles(1), places))
        loads.append([name for name, *_ in places])
        found += answers.get()
    asked.put(None)
    process.join()
    assert loads == [["a.q.weight", "a.k.weight"], ["b.up.weight"], ["c.norm.weight"]], "whole blocks, as many as fit"
    assert found == [(name, value.tolist(), str(value.dtype)) for name, value in given]


SPREAD = """
import copy
import torch
from torch import distributed

import vlm_cases as cases
from mmrl.rollout.generate.weights import changed_weights, parameter_versions
from mmrl.policies.lora import add_adapters
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.capabilities import Capabilities
from mmrl.config.sections import LoraConfig

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for adapted in (False, True):
        policy = copy.copy(cases.policy("qwen2_5_vl"))
        policy.model = copy.deepcopy(policy.model)
        if adapted:
            add_adapters(policy.model, LoraConfig(rank=2, target_modules=["*q_proj", "vision"]), seed=0)
        plain = copy.deepcopy(policy.model)
        policy.family = type(policy.family)(policy.model, policy.processor)
        policy.spread()
        before = parameter_versions(policy.model)
        for model in (plain, policy.model):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if ("lora_B" if adapted else "layers.1.self_attn.q_proj") in name:
                        p.add_(0.5)
        sent = dict(changed_weights(policy.model, before, parameter_versions(policy.model)))
        whole = dict(changed_weights(plain, {}, {}))
        assert 0 < len(sent) < len(whole) and all(torch.equal(sent[name], whole[name]) for name in sent)
    distributed.destroy_process_group()
    print("done")
"""


@pytest.mark.slow
def test_weights_that_are_spread_over_ranks_are_sent_whole(tmp_path):
    (tmp_path / "spread.py").write_text(SPREAD)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", tmp_path / "spread.py"]
    env = os.environ | {"PYTHONPATH": str(Path(runs.TOY).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr[-3000:]


OPTIONS = """model runner load_format dtype max_model_len max_num_seqs gpu_memory_utilization enable_sleep_mode
generation_config logits_processors additional_config worker_extension_cls limit_mm_per_prompt mm_device_do_normalize
disable_log_stats kv_cache_memory_bytes enable_chunked_prefill max_num_batched_tokens tensor_parallel_size device_ids
distributed_executor_backend enforce_eager mm_processor_cache_gb enable_prefix_caching block_size"""


def known(modes=("raw_logprobs", "processed_logprobs"), without=()):
    """A stand-in for vLLM's class of arguments."""
    fields = [(name, object, None) for name in OPTIONS.split() if name not in without]
    return dataclasses.make_dataclass("EngineArgs", [*fields, ("logprobs_mode", Literal[modes], None)])


def arguments(policy, args=known(), device=None, **settings):
    compute = ComputeConfig(sampler="vllm", **settings)
    return vllm_options.engine_args(policy, compute, 4, 64, "folder", device or policy.device, args)


def gpu(policy, index=0):
    """The same policy, as if it lay on a GPU."""
    model = SimpleNamespace(dtype=torch.bfloat16, config=policy.model.config)
    return SimpleNamespace(device=torch.device("cuda", index), model=model, banned={7, 3}, family=policy.family)


def test_on_a_gpu_it_is_given_a_share_of_it_and_can_sleep(policy):
    found = arguments(gpu(policy), gpu_memory_utilization=0.3)
    assert (found["gpu_memory_utilization"], found["enable_sleep_mode"], found["dtype"]) == (0.3, True, "bfloat16")
    assert "tensor_parallel_size" not in found and found["additional_config"] == {"mmrl_banned": [3, 7]}
    assert arguments(gpu(policy), sleep_mode=False)["enable_sleep_mode"] is False
    elsewhere = arguments(policy, device=torch.device("cuda"), gpu_memory_utilization=0.3)
    assert elsewhere == found | {name: elsewhere[name] for name in ("dtype", "additional_config")}, "wherever the policy is"


@pytest.mark.parametrize(
    ("learners", "spread", "wanted"),
    [(1, 2, [[0, 1]]), (2, 2, [[0, 2], [1, 3]]), (2, 3, [[0, 2, 3], [1, 4, 5]]), (3, 1, [[0], [1], [2]])],
)
def test_it_is_spread_over_gpus_of_which_no_other_learner_has_one(policy, monkeypatch, learners, spread, wanted):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: learners * spread)
    monkeypatch.setattr(vllm_options, "has_separate_workers", lambda settings: True)
    monkeypatch.setattr(ranks, "world_size", lambda: learners)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(learners))
    found = [arguments(gpu(policy, own), tensor_parallel=spread) for own in range(learners)]
    assert {(one["tensor_parallel_size"], one["distributed_executor_backend"]) for one in found} == {(spread, "mp")}
    assert [one["device_ids"] for one in found] == wanted


def test_it_is_not_spread_over_gpus_that_are_not_there(policy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"learner on GPU 1 needs 1 more that no learner has, and there are 3 for 2: lower it"):
        arguments(gpu(policy, 1), tensor_parallel=2)


def test_it_is_on_the_gpu_of_its_learner(policy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # as an engine's process inherits it, which is no rank
    assert arguments(gpu(policy, 1))["device_ids"] == [1]
    assert arguments(gpu(policy, 1), tensor_parallel=2)["device_ids"] == [1, 0]
    assert arguments(gpu(policy), tensor_parallel=2)["device_ids"] == [0, 1]
    assert "device_ids" not in arguments(gpu(policy))


def test_on_a_cpu_it_has_a_gigabyte_and_no_gpu(policy):
    found = arguments(policy, tensor_parallel=2)
    assert found["kv_cache_memory_bytes"] == 2**30 and found["tensor_parallel_size"] == 2
    assert "enable_sleep_mode" not in found and "device_ids" not in found


def test_settings_of_its_own_go_to_vllm_by_their_names_there(policy):
    given = {"enable_prefix_caching": False, "block_size": 64, "kv_cache_memory_bytes": 2**20}
    found = arguments(policy, vllm=given)
    assert found.items() >= given.items()
    assert arguments(policy)["mm_processor_cache_gb"] == 0 and "enable_prefix_caching" not in arguments(policy)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"blocksize": 64}, r"^compute\.vllm\.blocksize: the EngineArgs .* have no such argument; did you mean block_size\?$"),
        ({"max_model_len": 9}, r"^compute\.vllm\.max_model_len: use generate\.max_context$"),
        ({"logprobs_mode": "raw_logprobs"}, r"^compute\.vllm\.logprobs_mode can't be set: log-probabilities have to be those .*"),
        ({"quantization": "fp8"}, r"^compute\.vllm\.quantization can't be set: .* the learner's: leave it out$"),
        ({"load_format": "auto"}, r"^compute\.vllm\.load_format can't be set: mmrl sets it itself: leave it out$"),
    ],
)
def test_settings_that_vllm_does_not_know_or_that_are_not_its_own_are_refused(policy, given, why):
    with pytest.raises(UserError, match=why):
        arguments(policy, vllm=given)


def test_a_vllm_with_another_signature_is_refused(policy):
    with pytest.raises(UserError, match=r"^the installed vLLM has no argument mm_device_do_normalize, which mmrl needs: pip"):
        arguments(policy, known(without=["mm_device_do_normalize"]))
    with pytest.raises(UserError, match=r"^the installed vLLM doesn't know logprobs_mode = 'processed_logprobs', which"):
        arguments(policy, known(modes=("raw_logprobs",)))


def test_a_model_with_recurrent_layers_has_no_cache_of_prefixes(policy):
    policy.family = copy.copy(policy.family)
    policy.family.capabilities = Capabilities(packs=True, recurrent=("Conv",))
    assert arguments(policy)["enable_prefix_caching"] is False


def test_yarn_with_several_axes_is_refused(policy):
    """vLLM 0.32 would take other frequencies than transformers: tests/vllm/test_published_settings.py."""
    policy.model = SimpleNamespace(config=copy.deepcopy(policy.model.config))
    rotary = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
    policy.model.config.get_text_config().rope_parameters = rotary | {"mrope_section": [2, 3, 3]}
    with pytest.raises(UserError, match=r"YaRN's frequencies .* four times original_max_position_embeddings.*: use \"local\""):
        check_served(policy, None, torch.device("cuda"))
    policy.model.config.get_text_config().rope_parameters = rotary
    check_served(policy, SimpleNamespace(is_mm_prefix_lm=False), torch.device("cuda"))


def test_what_vllm_computes_otherwise_on_a_cpu_is_refused_there():
    """By 0.3 nats a token."""
    policy = cases.policy("lfm2_vl")
    with pytest.raises(UserError, match=r'on a CPU vLLM .*its convolutions.*: use "local"'):
        check_served(policy, None, torch.device("cpu"))
    check_served(policy, None, torch.device("cuda"))


def test_among_several_learners_its_workers_are_processes_with_a_group_of_their_own(policy, tmp_path):
    settings = ComputeConfig(sampler="vllm")
    assert not vllm_options.has_separate_workers(settings)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        assert vllm_options.has_separate_workers(settings)
        assert arguments(policy)["distributed_executor_backend"] == "mp"
    finally:
        distributed.destroy_process_group()


def test_a_run_lets_it_rest_before_each_update(tmp_path, monkeypatch):
    told = []

    class Noted(LocalGenerator):
        def __init__(self, policy, settings, batch_size, max_context, device=None, routes=False):
            super().__init__(policy, batch_size)

        def generate(self, *args, **options):
            told.append("sample")
            return super().generate(*args, **options)

        def sleep(self):
            told.append("rest")

    update = Learner.update

    def learn(self, *args, **options):
        told.append("learn")
        return update(self, *args, **options)

    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    monkeypatch.setattr("mmrl.rollout.generate.vllm.VllmGenerator", Noted)
    monkeypatch.setattr("mmrl.rollout.generate.vllm_engine.check_installed", lambda: None)
    monkeypatch.setattr(Learner, "update", learn)
    config = runs.toy_config(tmp_path, compute={"sampler": "vllm"}, evaluate={"num_prompts": 0})
    runs.run(config)
    # each stage is prepared, two steps imitate, four sample
    assert told == ["rest", *["rest", "learn"] * 2, "rest", *["sample", "rest", "learn"] * 4]
