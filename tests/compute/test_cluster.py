"""What a run on a cluster says and refuses, without a cluster."""

import importlib.util
import os
import socket
import threading
from pathlib import Path

import pytest
import torch

import runs
from mmrl import __version__
from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.compute.cluster import follow, raise_outcome, train_on_cluster
from mmrl.compute.cluster.connect import connect_to_cluster, describe_ray_error
from mmrl.compute.cluster.relay import Relay, describe_failure
from mmrl.compute.cluster.resources import ResourceRequest, check_resources, missing_resources
from mmrl.compute.progress import RelayedProgress
from mmrl.compute.ray import engines_per_rank, spare_gpus
from mmrl.config.sections import ComputeConfig, LoraConfig, PolicyConfig
from mmrl.evaluation.results import Evaluation, PromptResult
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.broadcast import WeightsLost
from mmrl.rollout.generate.engines import Engine, load_weights
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.transfer import RESTARTED, packed_weights
from mmrl.train.on_cluster import check_node, learn


class There:
    """Stands for the module `ray`, connected to a cluster that has this."""

    def __init__(self, has, free=None):
        self.has, self.free = has, has if free is None else free

    def cluster_resources(self):
        return self.has

    def available_resources(self):
        return self.free


# -- the way there ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ray:/host:1", "10.0.0.1:6379", "http://host:10001", "ray://host", "somewhere"])
def test_what_is_no_address_is_refused_with_those_that_are(address):
    with pytest.raises(UserError, match=r"is no address of a cluster: give ray://HOST:PORT, auto .* or local"):
        with connect_to_cluster(address, ResourceRequest(1, 0)):
            pass


def test_without_ray_the_package_to_install_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(UserError, match=r'--cluster needs Ray, which is not installed: pip install "multimodal-rl\[ray\]"'):
        train_on_cluster(runs.toy_config("."), runs.Silent(), "local", learn=print, report=print)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    with pytest.raises(UserError, match=r'compute\.placement = "separate" needs Ray, which is not installed'):
        runs.run(runs.toy_config(".", compute={"placement": "separate"}))


def test_where_nobody_answers_that_is_said_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=r"no server answers there \(.*refused\): start the cluster \(ray start --head"):
            with connect_to_cluster(address, ResourceRequest(1, 0)):
                pass


def test_other_versions_are_named():
    said = "The client's Ray version does not match the server: 2.59.0 vs. 2.60.0\nThis may cause issues"
    assert describe_ray_error("ray://h:1", RuntimeError(said)).startswith(
        "--cluster ray://h:1 runs other versions than this machine: "
    )
    said = "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.12.1"
    found = describe_ray_error("auto", RuntimeError(said))
    assert "3.12.1" in found and "\n" not in found and found.endswith("install the same Python and Ray on both")


# -- its room -----------------------------------------------------------------------------------------------------------


def test_engines_count_where_they_are_processes_of_their_own():
    compute = ComputeConfig(learners=4, engines=3, tensor_parallel=2, placement="separate")
    assert ResourceRequest.of(compute).amounts(use_gpu=True) == {"CPU": 7, "GPU": 4 + 3 * 2}
    hybrid = compute.model_copy(update={"placement": "hybrid"})
    assert ResourceRequest.of(hybrid).amounts(use_gpu=True) == {"CPU": 7, "GPU": 4 * 2 + 3 * 2}, "learners sample with vLLM too"
    colocated = compute.model_copy(update={"placement": "colocated"})
    assert ResourceRequest.of(colocated).amounts(use_gpu=True) == {"CPU": 4, "GPU": 4 * 2}
    assert ResourceRequest.of(colocated).amounts(use_gpu=False) == {"CPU": 4}


def test_judges_count_with_their_workers_and_simulators_with_their_lanes():
    compute = ComputeConfig(learners=2, judges=3, simulators="actors")
    wanted = ResourceRequest.of(compute, processes=4, lanes=2, tasks=3)
    assert wanted.amounts(use_gpu=True) == {"CPU": 2 + 3 * 4 + 2 * 2, "GPU": 2}
    assert wanted.most_cpus == 2 + 3 * 4 + 2 * 2 * 3
    said = "compute.learners = 2, compute.judges = 3 of judge.num_workers = 4 and simulate.lanes = 2 of each learner"
    assert missing_resources(There({"CPU": 17.0}), wanted) == f"{said} want 18 CPUs of 17 in the cluster"
    assert not missing_resources(There({"CPU": 18.0}), wanted)
    beside = ResourceRequest.of(compute.model_copy(update={"judges": 0, "simulators": "local"}), processes=4, lanes=2, tasks=3)
    assert (beside.amounts(use_gpu=False), beside.most_cpus, str(beside)) == ({"CPU": 2}, 2, "compute.learners = 2")


def test_more_than_the_cluster_holds_is_refused_with_both_numbers(monkeypatch):
    wanted = ResourceRequest(5, 2)
    with pytest.raises(
        UserError, match=r"^compute\.learners = 5 and compute\.engines = 2 want 7 CPUs of 4 in the cluster: ask for"
    ):
        check_resources(There({"CPU": 4.0}), wanted, "auto")
    with pytest.raises(UserError, match=r"want 7 GPUs of 0 in the cluster"):
        check_resources(There({"CPU": 9.0}), wanted, "cuda")
    monkeypatch.setattr("mmrl.compute.cluster.resources.PATIENCE_S", 0.0)
    with pytest.raises(UserError, match=r"want 7 CPUs of 3 that are free: wait for the other programs on the cluster"):
        check_resources(There({"CPU": 9.0}, {"CPU": 3.0}), wanted, "auto")


def test_gpus_are_taken_where_there_are_some_and_they_are_not_refused():
    assert check_resources(There({"CPU": 9.0, "GPU": 8.0}), ResourceRequest(2, 0), "auto") is True
    assert check_resources(There({"CPU": 9.0, "GPU": 8.0}), ResourceRequest(2, 0), "cpu") is False
    assert check_resources(There({"CPU": 9.0}), ResourceRequest(2, 0), "auto") is False
    assert (
        missing_resources(There({"CPU": 9.0, "GPU": 1.0}), ResourceRequest(2, 0), True)
        == "compute.learners = 2 want 2 GPUs of 1 in the cluster"
    )


# -- what is said -------------------------------------------------------------------------------------------------------


class Called:
    """A Ray actor in this process: what is asked of it is done at once."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        method = getattr(self._actor, name)
        return type("Method", (), {"remote": staticmethod(method)})


class Inline:
    """Stands for the module `ray`, whose references are the things themselves."""

    def __init__(self, over=lambda: True):
        self.over = over

    def get(self, thing):
        return thing

    def wait(self, things, timeout):
        return (things, []) if self.over() else ([], things)


def test_what_the_first_learner_is_told_reaches_the_terminal_in_order_and_as_stubs(monkeypatch):
    monkeypatch.setattr("ray.get", lambda thing: thing)
    relay = Called(Relay())
    teller = RelayedProgress(relay)
    item = PromptResult(id="1", value=1.0, values=(1.0,), answers=("yes",))
    figure = Evaluation(
        task="t", split="test", metric="m", value=1.0, low=0.5, high=1.0, n=1, items=(item,), episodes=({"f": 1},)
    )
    teller.note("first")
    teller.step_finished(3, {"loss": 0.5})
    teller.evaluated(3, [figure])
    teller.tell("ended", "finished", "")
    heard = []

    class Show(runs.Silent):
        def note(self, text):
            heard.append(text)

        def step_finished(self, step, metrics):
            heard.append((step, metrics))

        def evaluated(self, step, figures):
            heard.append((step, figures[0].value, figures[0].items, figures[0].episodes))

    assert follow(Inline(), relay, "", Show(), threading.Event(), lambda: "") == ("finished", "")
    assert heard == ["first", (3, {"loss": 0.5}), (3, 1.0, (), ())]


def test_a_wish_to_stop_reaches_the_run_with_the_next_thing_it_says(monkeypatch):
    monkeypatch.setattr("ray.get", lambda thing: thing)
    relay, run = Called(Relay()), type("Run", (), {"stop": False})()
    teller = RelayedProgress(relay)
    teller.begun(run)
    teller.step_finished(1, {})
    assert run.stop is False
    relay.ask_to_stop.remote()
    teller.step_finished(2, {})
    assert run.stop is True
    later = type("Run", (), {"stop": False})()
    teller.begun(later)  # a run that begins after the wish
    assert later.stop is True
    teller.tell("ended", "stopped", "")
    assert relay.receive.remote(0.0)[-1] == ("ended", ("stopped", "")), "what is said after the wish is heard too"


def test_with_nobody_left_to_end_a_step_a_wish_to_stop_ends_the_run(monkeypatch):
    monkeypatch.setattr("mmrl.compute.cluster.LOOK_S", 0.0)
    monkeypatch.setattr("mmrl.compute.cluster.HEARD_S", 0.001)
    stop, show = threading.Event(), runs.Silent()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        follow(
            Inline(lambda: False), Called(Relay()), "", show, stop, lambda: "compute.learners = 2 want 2 CPUs of 1 in the cluster"
        )
    (said,) = show.notes
    assert said.startswith("compute.learners = 2 want 2 CPUs of 1 in the cluster: waiting for a node to come back; Ctrl-C ends")


def test_how_a_run_ended_is_what_the_command_ends_with():
    assert raise_outcome("finished", "", retries=2) is None
    with pytest.raises(KeyboardInterrupt):
        raise_outcome("stopped", "", retries=2)
    with pytest.raises(UserError, match=r"^policy\.model is wrong$"):
        raise_outcome("refused", "policy.model is wrong", retries=2)
    with pytest.raises(
        UserError, match=r"died more often than compute\.retries = 2 allows; the last time: learner 1: killed: fix"
    ):
        raise_outcome("died", "learner 1: killed", retries=2)


def test_a_failure_is_told_by_what_was_raised_first():
    inner = ValueError("a\n b")
    wrapped = RuntimeError("many lines")
    wrapped._base_exc = inner  # as Ray Train wraps what a learner raised
    failed = RuntimeError("Training failed")
    failed.worker_failures = {1: wrapped, 3: RuntimeError("a consequence")}
    assert describe_failure(failed) == "learner 1: ValueError: a b"
    assert describe_failure(OSError("no room")) == "OSError: no room"


# -- learners -----------------------------------------------------------------------------------------------------------


def test_a_node_with_another_mmrl_or_without_the_folder_is_named(tmp_path):
    job = {"folder": str(tmp_path / "gone"), "versions": {"mmrl": __version__}}
    with pytest.raises(
        UserError, match=r"node \S+ has no folder .*gone \(No such file.*\): give the command in a folder that all"
    ):
        check_node(job)
    with pytest.raises(
        UserError, match=rf"has mmrl {__version__}, but the terminal has 0\.0\.7: install the same version on all"
    ):
        check_node({**job, "versions": {"mmrl": "0.0.7"}})


@pytest.mark.parametrize(
    "raised, told, passed_on",
    [
        (UserError("a wrong key"), ("refused", "a wrong key"), None),
        (KeyboardInterrupt(), ("stopped", ""), None),
        (SystemExit(2), None, None),  # of a rank whose fault another tells
        (ranks.RankLost("rank 0: another died"), None, ranks.RankLost),
        (ZeroDivisionError("1/0"), None, ZeroDivisionError),
    ],
)
def test_only_what_another_attempt_can_mend_is_left_to_ray(monkeypatch, raised, told, passed_on):
    """Ray tries again after whatever a learner raises."""
    import ray.train

    def fail(*_):
        raise raised

    relay = Relay()
    monkeypatch.setattr("ray.get", lambda thing: thing)
    monkeypatch.setattr(ray.train, "get_context", lambda: type("Context", (), {"get_world_rank": lambda self: 0})())
    monkeypatch.setattr("mmrl.train.on_cluster._learn", fail)
    job = {"relay": Called(relay), "environment": {}}
    if passed_on:
        with pytest.raises(passed_on):
            learn(job)
    else:
        learn(job)
    heard = dict(relay.receive(0.0))
    assert heard.get("ended") == told
    assert ("broke" in heard) is isinstance(raised, ZeroDivisionError)


def test_attempts_are_counted_and_the_first_leaves_its_mark():
    relay = Relay()
    assert relay.begin("the run before") == (0, "the run before")
    assert relay.begin("another") == (1, "the run before")


# -- engines ------------------------------------------------------------------------------------------------------------

TINY = PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1")


def test_engines_are_the_learners_in_turn():
    assert [engines_per_rank(5, 2, rank) for rank in range(2)] == [3, 2]
    assert [engines_per_rank(2, 2, rank) for rank in range(2)] == [1, 1]


def test_an_engine_with_vllm_holds_the_weights_on_its_gpu_once(tmp_path, monkeypatch):
    made = {}

    class Noted:
        def __init__(self, policy, settings, batch_size, max_context, device, routes):
            made.update(policy=policy.device, vllm=device)

        def ready(self): ...

    monkeypatch.setattr("mmrl.rollout.generate.vllm.VllmGenerator", Noted)
    monkeypatch.setattr("mmrl.rollout.generate.engines.prepare_device", lambda *given: made.update(prepared=given))
    config = runs.toy_config(tmp_path, policy={"model": TINY.model}, compute={"sampler": "vllm", "placement": "separate"})
    monkeypatch.chdir(tmp_path)  # where an engine goes
    Engine(config, "cuda", str(tmp_path), {}).ready()
    prepared = ("cuda", "float32")  # torch's own settings would make its samples differ from the learner's
    assert made == {"policy": torch.device("cpu"), "vllm": torch.device("cuda"), "prepared": prepared}


def test_engines_have_the_gpus_behind_the_learners():
    there = [str(i) for i in range(8)]
    assert spare_gpus(there, 2, [3, 3], 0) == ["2", "3", "4"] and spare_gpus(there, 2, [3, 3], 1) == ["5", "6", "7"]
    assert spare_gpus(there, 2, [4, 2], 0) == ["2", "3", "4", "5"] and spare_gpus(there, 2, [4, 2], 1) == ["6", "7"]
    with pytest.raises(UserError, match=r"want 4 GPUs besides the 2 of the learners .* of the 8 here 2 are left for them"):
        spare_gpus(there, 2, [4, 4], 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_handed_out_arrive_as_they_are(dtype):
    ours, theirs = (VLM(TINY.model_copy(update={"dtype": dtype}), seed=seed) for seed in (1, 2))
    packed = packed_weights(ours)
    for _, _, data_B in packed.values():
        data_B.flags.writeable = False  # as Ray's are
    before = [p._version for p in theirs.model.parameters()]
    load_weights(theirs, packed)
    assert all(
        torch.equal(a, b) for a, b in zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True)
    )
    assert all(p._version > v for p, v in zip(theirs.model.parameters(), before, strict=True)), "a sampler of its own must see it"


def test_of_lora_the_adapters_alone_are_handed_out():
    policy = VLM(TINY.model_copy(update={"lora": LoraConfig(rank=2)}), seed=1)
    packed = packed_weights(policy)
    assert packed and all(".lora_" in name for name in packed)
    assert sum(d.nbytes for _, _, d in packed.values()) == 4 * sum(p.numel() for _, p in policy.parameters() if p.requires_grad)


def test_no_variable_but_the_plugins_goes_to_other_nodes(monkeypatch):
    from mmrl.compute.ray import switches

    monkeypatch.setenv("MMRL_PLUGINS", "toy")
    monkeypatch.setenv("A_SECRET", "x")
    assert switches()["MMRL_PLUGINS"] == "toy" and all(name.startswith("MMRL_") for name in switches())
    assert "A_SECRET" in os.environ


def test_an_engine_tells_its_sampler_that_the_weights_are_others(monkeypatch):
    """vLLM has weights of its own: between waking and resting it doesn't look at the policy's."""
    held = {}

    class Copying:
        def __init__(self, policy):
            self.policy = policy
            self.wake_up()

        def wake_up(self):
            held["weight"] = self.policy.model.get_output_embeddings().weight.detach().clone()

        def generate(self, *asked):
            return held["weight"]

    policy, learner = (VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"), seed=seed) for seed in (0, 1))
    engine = object.__new__(Engine)
    engine.policy, engine.version, engine.generator = policy, 0, Copying(policy)
    monkeypatch.setattr("ray.get", lambda packed: packed)
    sampling = SamplingParams(max_tokens=1, temperature=1.0)
    before = policy.model.get_output_embeddings().weight.detach().clone()
    assert torch.equal(engine.generate(0, [None], [], 1, sampling, []), before)
    found = engine.generate(1, [packed_weights(learner)], [], 1, sampling, [])
    assert torch.equal(found, learner.model.get_output_embeddings().weight) and not torch.equal(found, before)


def test_an_engine_has_a_version_once_all_of_it_has_arrived():
    class Receiving:
        def __init__(self):
            self.fails = False

        def join(self, *given):
            if self.fails:
                raise WeightsLost("nobody is there")

        take = took = join

        def generate(self, *asked):
            return "sampled"

    engine = object.__new__(Engine)
    engine.receiver = engine.generator = receiver = Receiving()
    engine.joined, engine.version = False, 1

    def samples(version):
        return engine.generate(version, (), [], 1, SamplingParams(max_tokens=1, temperature=1.0), []) == "sampled"

    assert samples(1) and not samples(2), "it has no way to get them"
    assert engine.take(None) == RESTARTED, "it is in no group"
    assert engine.join(None, 1) == engine.take(None) == "" and not samples(1) and not samples(2), "weights are half written"
    receiver.fails = True
    assert engine.took(2) == "failed (nobody is there)" and not samples(2)
    receiver.fails = False
    assert engine.took(2) == RESTARTED and not samples(2), "what failed has to join again"
    assert engine.join(None, 1) == engine.take(None) == engine.took(2) == "" and samples(2)


class Actors:
    """Stand for Ray's actors: `calls` are answered at once."""

    def __init__(self, number, lost_at=()):
        self.number, self.lost_at, self.asked = number, lost_at, []
        self.generate = self

    def remote(self, version, references, inputs, group_size, sampling, numbers):
        self.asked.append(list(numbers))
        return None if version in self.lost_at else [f"prompt {n} of version {version}" for n in numbers]


def broadcasting(monkeypatch, engines, **compute):
    """The learner's side, whose transfers only count."""
    from mmrl.rollout.generate import engines as module

    sent = []

    class Counting:
        references, sent = (), 0

        def __init__(self, settings, policy):
            self.lost = True

        def behind(self):
            return self.lost

        def send(self, engines, version, before, now):
            sent.append((version, not before))
            self.lost = False

        def wait(self):
            pass

        def close(self):
            self.lost = True

    monkeypatch.setattr(module, "BroadcastTransfer", Counting)
    monkeypatch.setattr(module, "engine_answers", lambda asked, retries: asked)
    config = runs.toy_config(Path(), compute={"placement": "separate", "weight_transfer": "broadcast", **compute})
    made = module.EngineActors(config, VLM(TINY, seed=1))
    made.engines = engines
    return made, sent


def test_prompts_of_an_engine_that_lost_its_weights_go_to_the_others_until_the_next_sync(monkeypatch):
    engines = [Actors(0), Actors(1, lost_at=[1])]
    made, sent = broadcasting(monkeypatch, engines)
    sampling = SamplingParams(max_tokens=1, temperature=1.0)
    numbers = [3, 5, 7, 9, 11]
    for version in (1, 2):
        assert made.generate(range(5), 1, sampling, numbers) == [f"prompt {n} of version {version}" for n in numbers]
        made.sleep()
    assert sent == [(1, True), (2, True)], "all weights, in a new group"
    assert engines[0].asked == [[3, 7, 11], [5, 9], [3, 7, 11]] and engines[1].asked == [[5, 9], [5, 9]]
    made.wake_up()
    assert len(sent) == 2, "nothing changed and nobody lost anything"


def test_where_no_engine_has_the_weights_left_they_are_sent_again_or_the_run_ends_with_one_line(monkeypatch):
    sampling = SamplingParams(max_tokens=1, temperature=1.0)
    made, sent = broadcasting(monkeypatch, [Actors(0, lost_at=[1])])
    assert made.generate(range(2), 1, sampling) == ["prompt 0 of version 2", "prompt 1 of version 2"] and len(sent) == 2
    made, sent = broadcasting(monkeypatch, [Actors(0, lost_at=[1])], staleness=1)
    with pytest.raises(UserError, match=r'^the engines of a learner died while .* go on with --resume; with .*"store"'):
        made.generate(range(2), 1, sampling)
