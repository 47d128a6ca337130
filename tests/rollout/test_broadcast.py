"""Weights that are broadcast in buckets: a sender and its receivers as threads, over gloo."""

import concurrent.futures
import datetime
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from mmrl.api.errors import UserError
from mmrl.config.sections import ComputeConfig, LoraConfig, PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate import broadcast, transfer
from mmrl.rollout.generate.broadcast import Group, Load, Meeting, WeightSender, WeightsLost
from mmrl.rollout.generate.engines import Engine, PolicyReceiver, load_weights
from mmrl.rollout.generate.weights import parameter_versions

CPU = torch.device("cpu")
ROOM = 256


def made_weights(seed=0):
    """Of five blocks, in two dtypes; the third is larger than a bucket."""
    draw = torch.Generator().manual_seed(seed)
    sizes = {"a.q": (4, 6), "a.k": (2, 3), "b.up": (5, 5), "c.big": (17, 9), "d.norm": (), "e.down": (7, 3)}
    return [
        (f"{name}.weight", torch.randn(size, generator=draw).to(torch.bfloat16 if name == "a.k" else torch.float32))
        for name, size in sizes.items()
    ]


class Receivers:
    """Stand for samplers, in threads: each takes what it is asked to take, in order."""

    def __init__(self, count):
        self.pools = [ThreadPoolExecutor(1) for _ in range(count)]
        self.groups, self.weights, self.loads = [None] * count, [{} for _ in range(count)], []

    def join(self, meeting):
        def work(k):
            self.groups[k] = Group(meeting, 1 + k, CPU)

        self.joining = [pool.submit(work, k) for k, pool in enumerate(self.pools)]

    def take(self, k, load):
        for name, value in self.groups[k].receive(load):
            self.weights[k][name] = value.clone()

    def announce(self, load):
        self.loads.append([place[0] for place in load.places])
        return [pool.submit(self.take, k, load) for k, pool in enumerate(self.pools)]

    def settle(self, asked):
        for one in asked:
            one.result(30)


def joined(count, sender=None):
    receivers, sender = Receivers(count), sender or WeightSender("127.0.0.1", ROOM, CPU)
    meeting = sender.meet(count)
    receivers.join(meeting)
    sender.join(meeting)
    for one in receivers.joining:
        one.result()
    return sender, receivers


@pytest.fixture
def impatient(monkeypatch):
    """Call it to have little patience from then on."""
    return lambda seconds=0.3: monkeypatch.setattr(broadcast, "PATIENCE_S", seconds)


@pytest.mark.parametrize("count", [1, 3])
def test_all_weights_arrive_bit_for_bit_in_whole_blocks_again_and_again(count):
    sender, receivers = joined(count)
    for seed in range(3):  # the same buffers each time
        given = made_weights(seed)
        receivers.loads.clear()
        sender.send(iter(given), receivers.announce, receivers.settle)
        assert receivers.loads == [
            ["a.q.weight", "a.k.weight"],
            ["b.up.weight"],
            ["c.big.weight"],
            ["d.norm.weight", "e.down.weight"],
        ]
        for weights in receivers.weights:
            assert list(weights) == [name for name, _ in given]
            assert all(torch.equal(weights[name], value) and weights[name].dtype == value.dtype for name, value in given)
    sender.close()


def test_two_buckets_are_in_use_and_no_more():
    """The next bucket is gathered while one is on the wire; the one after waits until the first has landed."""
    sender, receivers = joined(1)
    on_the_wire, landed = {}, []

    def gathered():
        for name, value in made_weights():
            on_the_wire[name[0]] = len(receivers.loads) - len(landed)
            yield name, value

    def settle(asked):
        receivers.settle(asked)
        landed.append(1)

    sender.send(gathered(), receivers.announce, settle)
    assert on_the_wire == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1}, "a block is known to be whole when the next begins"
    assert len(landed) == len(receivers.loads) == 4
    sender.close()


def test_a_receiver_that_leaves_is_noticed_at_once_by_all_and_a_new_group_sends_all():
    sender, receivers = joined(2)
    receivers.groups[1].close()
    with pytest.raises(WeightsLost):
        sender.send(iter(made_weights()), receivers.announce, receivers.settle)
    assert sender.group is None
    sender, again = joined(2, sender)
    assert sender.generation == 2
    sender.send(iter(made_weights(5)), again.announce, again.settle)
    assert all(torch.equal(weights[name], value) for weights in again.weights for name, value in made_weights(5))
    sender.close()


def test_a_receiver_that_hangs_is_noticed_at_the_deadline(impatient):
    impatient(5)  # of gloo's own group, which is left only when its broadcast has failed, too
    sender, _ = joined(1)
    impatient()
    given = [(f"{n}.w.weight", torch.zeros(2**20)) for n in range(3)]  # more than the sockets hold
    with pytest.raises(WeightsLost, match=r"no broadcast within 0\.3 s"):
        sender.send(iter(given), lambda load: None, lambda asked: None)
    assert sender.group is None


def test_a_load_of_another_generation_is_not_taken(impatient):
    sender, receivers = joined(1)
    impatient()
    with pytest.raises(WeightsLost, match="weights of generation 2 reached a member of generation 1"):
        receivers.groups[0].receive(Load(2, [], 64))
    sender.close()


def test_who_never_joins_is_waited_for_until_the_deadline(impatient):
    impatient()
    sender = WeightSender("127.0.0.1", ROOM, CPU)
    with pytest.raises(WeightsLost, match="join"):
        sender.join(sender.meet(1))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    with pytest.raises(WeightsLost, match=f"can't join at 127.0.0.1:{port}"):
        Group(Meeting("127.0.0.1", port, 1, 2), 1, CPU)


# -- the learner and its engines ------------------------------------------------------------------------------------------

TINY = PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1")


class Actor:
    """An engine in a thread of its own, as Ray's actors are in a process; `remote` gives a future."""

    def __init__(self, policy):
        self.engine, self.pool = object.__new__(Engine), ThreadPoolExecutor(1)
        self.engine.policy, self.engine.receiver, self.engine.generator = policy, PolicyReceiver(policy), object()
        self.engine.joined, self.engine.version = False, 0
        self.takes = 0

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: self.pool.submit(self.call, name, *given))

    def call(self, name, *given):
        self.takes += name == "take"
        return getattr(self.engine, name)(*given)

    def restart(self):
        """As Ray does after a process died: nothing of it is left but its name."""
        self.engine.receiver.group.close()
        self.engine.joined, self.engine.version = False, 0


@pytest.fixture
def without_ray(monkeypatch):
    def wait(asked, num_returns, timeout):
        done, pending = concurrent.futures.wait(asked, timeout)
        return list(done), list(pending)

    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(transfer, "engine_answers", lambda asked, retries: [one.result() for one in asked])


def sent_to(policy, actors, retries=0, before=None, version=1):
    way = transfer.BroadcastTransfer(ComputeConfig(placement="separate", weight_transfer="broadcast", retries=retries), policy)
    way.send(actors, version, before or {}, parameter_versions(policy.model))
    return way


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["whole", "adapters"])
def test_engines_get_the_bits_that_they_get_from_the_store(without_ray, lora):
    made = TINY.model_copy(update={"lora": lora})
    learner, stored, *others = (VLM(made, seed=seed) for seed in (1, 2, 2, 2))
    with torch.no_grad():
        for p in learner.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    actors = [Actor(policy) for policy in others]
    way = sent_to(learner, actors)
    way.wait()
    load_weights(stored, transfer.packed_weights(learner))
    for actor, policy in zip(actors, others, strict=True):
        assert actor.engine.version == 1
        assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), stored.model.parameters(), strict=True))
    known = parameter_versions(learner.model)
    changed, _ = next(transfer.trained_weights(learner))
    with torch.no_grad():
        learner.model.get_parameter(changed).mul_(2)
    way.send(actors, 2, known, parameter_versions(learner.model))
    way.wait()
    assert 0 < way.sent < 2 * learner.model.get_parameter(changed).nbytes + 128, "what changed, and no more"
    assert all(torch.equal(p.model.get_parameter(changed), learner.model.get_parameter(changed)) for p in others)
    way.close()


def test_prompts_can_be_prepared_while_weights_are_on_their_way(without_ray):
    learner, actor, open_ = VLM(TINY, seed=1), Actor(VLM(TINY, seed=2)), threading.Event()
    actor.pool.submit(open_.wait)
    way = sent_to(learner, [actor])
    assert not way._sending.done(), "`send` has returned"
    open_.set()
    way.wait()
    assert actor.engine.version == 1
    way.close()


def test_an_engine_that_was_restarted_gets_all_weights_in_a_new_group_and_is_named_where_it_may_not_be(without_ray):
    learner, policies = VLM(TINY, seed=1), [VLM(TINY, seed=2) for _ in range(2)]
    actors = [Actor(policy) for policy in policies]
    way = sent_to(learner, actors, retries=1)
    way.wait()
    actors[1].restart()
    known = parameter_versions(learner.model)
    way.send(actors, 2, known, known)  # of which nothing has changed
    with torch.no_grad():
        policies[1].model.get_output_embeddings().weight.zero_()
    way.wait()
    assert way.sender.generation == 2 and [actor.engine.version for actor in actors] == [2, 2]
    assert all(torch.equal(a, b) for a, b in zip(policies[1].model.parameters(), learner.model.parameters(), strict=True))
    way.settings = way.settings.model_copy(update={"retries": 0})
    actors[1].restart()
    way.send(actors, 3, {}, known)
    with pytest.raises(
        UserError, match=r"^weights of version 3 didn't reach the engines, with compute\.retries = 0: engine 1 died"
    ):
        way.wait()
    assert way.behind()
    way.close()


@pytest.mark.parametrize(("device", "index"), [("cuda", 3), ("cuda:1", 1)])
def test_nccl_has_the_learners_gpu_and_leaves_errors_to_the_group(device, index, monkeypatch):
    """NCCL's watchdog would end the process at an error; torch takes no GPU without an index."""
    seen = []

    class Nccl:
        Options = SimpleNamespace

        def __init__(self, store, rank, size, options):
            seen.append(os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"])

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    broadcast._backend(None, 0, 2, datetime.timedelta(seconds=1), torch.device(device))
    assert seen == [index, "0"] and "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ


def test_a_sender_that_can_not_join_says_why_at_once(monkeypatch):
    def refusing(*_):
        raise ValueError("Expected a torch.device with a specified index")

    monkeypatch.setattr(broadcast, "_backend", refusing)
    sender = WeightSender("127.0.0.1", 1024, torch.device("cpu"))
    with pytest.raises(WeightsLost, match=r"ValueError: Expected a torch\.device"):
        sender.join(sender.meet(1))
