"""Pictures come to the device one micro-batch ahead: the same numbers, two micro-batches at a time, and nobody reads too early.

Whatever the copies' stream and the one that computes don't wait for is a race, see `pretended_device.streams`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import vlm_cases as cases
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.transfer import upload
from mmrl.api.types import Prompt, Status
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import ConversationPacker, pack
from mmrl.train.update.pack_trajectories import pack_trajectories
from mmrl.train.update.packer import PackOptions
from mmrl.train.update.prefetch import Prefetcher
from pretended_device.streams import STREAMS

STAGE = {"kind": "rl", "steps": 1, "algorithm": "grpo", "minibatches": 2, "epochs": 2, "learning_rate": 1e-3}
RUN = {
    "name": "x",
    "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
    "tasks": [{"id": "x/y"}],
    "train": {"micro_batch_tokens": 1},
    "stages": [STAGE],
}


@dataclass
class Copies:
    """What prefetchers have started to copy."""

    memory: list[StorageWeakRef] = field(default_factory=list)
    most: int = 0
    """Copies whose memory was held at the same time."""

    @property
    def held(self):
        """Copies whose memory is held now."""
        return sum(not memory.expired() for memory in self.memory)

    def add(self, copy):
        self.memory.append(StorageWeakRef(next(iter(copy.tensors.values())).untyped_storage()))
        self.most = max(self.most, self.held)
        return copy

    def __len__(self):
        return len(self.memory)


@pytest.fixture
def copies(device, monkeypatch):
    seen, start = Copies(), Prefetcher._start
    monkeypatch.setattr(Prefetcher, "_start", lambda self, pinned: seen.add(start(self, pinned)))
    return seen


def unfinished():
    """Copies that the stream which computes has not waited for."""
    default, own = STREAMS.all
    return own.clock[own.number] - default.clock[own.number]


def media(n, rows=3):
    pixels = torch.full((rows, 4), float(n))
    return {"grid": torch.tensor([[n, n]]), "pixels": pixels, "types": torch.arange(rows) + n}


def prefetched(device, count):
    made = Prefetcher(device, on_host=("grid",))
    return [made.add(media(n)) for n in range(count)]


def same(found, n):
    wanted = media(n)
    assert list(found) == list(wanted) and found["grid"].device.type == "cpu" and torch.equal(found["grid"], wanted["grid"])
    for name in ("pixels", "types"):
        assert found[name].device.type == "cuda" and found[name].tolist() == wanted[name].tolist()


def test_each_pass_copies_each_micro_batch_once_and_the_host_waits_for_none(device, copies):
    known = prefetched(torch.device("cuda"), 5)
    assert not copies, "nothing comes before it is asked for"
    for _ in range(2):
        with device.no_waits(), device.counting() as seen:
            for each in known:
                each["pixels"], each["types"]
                assert copies.held == 2, "this one and the next, or the one before the last"
        assert len(seen.copies) == 5 and all(copy.up for copy in seen.copies)
    for n, each in enumerate(known):
        same(each, n)
    assert copies.most == 2 and len(STREAMS.all) == 2


def test_the_next_is_on_its_way_while_the_present_one_is_there(device, copies):
    known = prefetched(torch.device("cuda"), 3)
    assert known[0]["pixels"][0, 0] == 0.0
    assert len(copies) == 2 and unfinished() == 1, "the second is copied, and not waited for"


def test_names_are_known_without_a_copy(device, copies):
    (one, *_) = prefetched(torch.device("cuda"), 3)
    assert list(one) == ["grid", "pixels", "types"] and len(one) == 3 and "audio" not in one and one["grid"].tolist() == [[0, 0]]
    assert not copies


def test_any_order_reads_the_same(device, copies):
    known = prefetched(torch.device("cuda"), 4)
    for n in (2, 2, 0, 3, 1, 1, 0, 2, 3, 3):
        same(known[n], n)
    assert copies.most == 2


def test_a_pass_that_ends_early_leaves_no_copy_behind(device, copies):
    known = prefetched(torch.device("cuda"), 4)
    same(known[0], 0)
    known.clear()
    assert len(copies) == 2 and copies.held == 0 and unfinished() == 0
    torch.ones(4, device="cuda")  # may take their memory


@pytest.mark.parametrize("count", [1, 2])
def test_what_fits_at_once_comes_once(device, copies, count):
    known = prefetched(torch.device("cuda"), count)
    for n in [*range(count)] * 3:
        same(known[n], n)
    assert len(copies) == count


def test_who_still_holds_pictures_keeps_them(device, copies):
    known = prefetched(torch.device("cuda"), 5)
    held = [each["pixels"] for each in known]
    assert [x.tolist() for x in held] == [media(n)["pixels"].tolist() for n in range(5)]


def test_on_a_cpu_everything_stays_as_it_is():
    given = media(1)
    assert Prefetcher(torch.device("cpu")).add(given) is given


def test_what_is_on_the_device_stays_there(device, copies):
    given = upload(media(1), "cuda", on_host=("grid",))
    assert Prefetcher(torch.device("cuda"), ("grid",)).add(given) is given and not copies


# -- an update ------------------------------------------------------------------------------------------------------------


def updated():
    """(metrics, weights after) two epochs of two mini-batches, and how many micro-batches those have."""
    config = parse_config(RUN)
    policy = VLM(config.policy, device="cuda")
    rollouts = cases.rollouts(policy, [cases.prompt(seed) for seed in (1, 2)])
    credit = cases.credit(*[(-1.0) ** n * (1 + n / 8) for n in range(len(rollouts))])
    batches = ConversationPacker(config, policy).pack(rollouts, credit, PackOptions(minibatches=2))
    metrics = Learner(policy, config.stages[0], load_algorithm("grpo", {})).update(batches, 0)
    return metrics, [p.detach().cpu() for _, p in policy.parameters()], [len(b.micro) for b in batches]


def test_an_update_is_the_same_bit_for_bit_and_holds_two_micro_batches(device, copies, monkeypatch):
    metrics, weights, counts = updated()
    passes = 1 + STAGE["epochs"]  # the first has the old log-probabilities; each runs from one mini-batch into the next
    assert counts == [4, 4] and len(copies) == passes * sum(counts) and copies.most == 2
    at_once = lambda self, given: upload(given, self.device, self.on_host)  # noqa: E731
    monkeypatch.setattr(Prefetcher, "add", at_once)
    wanted, others, _ = updated()
    assert metrics == wanted and all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def test_a_team_finds_the_pictures_of_its_rows_in_the_same_way(device, copies):
    policy = VLM(PolicyConfig(model=RUN["policy"]["model"]), device="cuda")
    rollouts = cases.rollouts(policy, [cases.prompt(seed) for seed in (1, 2, 3)])
    team = SimpleNamespace(size=2, place=0, gather_object=lambda own: [own])
    credit = Credit(advantages=torch.ones(len(rollouts)))
    given = {"shared_prefix": True, "budget": 60}
    shared = pack(rollouts, credit, policy, **given, team=team)
    assert not copies
    alone = pack(rollouts, credit, policy, **given)
    for mine, whole in zip(shared.micro, alone.micro, strict=True):
        assert mine.media.keys() == whole.media.keys() and mine.ids_BS.device.type == "cuda"
        pixels = mine.media["pixel_values"]
        assert pixels.device.type == "cuda" and torch.equal(pixels.cpu(), whole.media["pixel_values"].cpu())


# -- episodes -------------------------------------------------------------------------------------------------------------


def episode(seed, length=3):
    g = torch.Generator().manual_seed(seed)
    return TrajectoryData(
        instruction=f"do {seed}",
        images={"front": torch.randint(0, 256, (length + 1, 4, 4, 3), dtype=torch.uint8, generator=g)},
        state=torch.randn(length + 1, 2, generator=g),
        choices=torch.randint(0, 9, (length, 1, 2), generator=g).cuda(),
        logprobs_TKC=-torch.rand(length, 1, 2, generator=g).cuda(),
        valid_TK=torch.ones(length, 1, dtype=torch.bool).cuda(),
        rewards_TK=torch.randn(length, 1, generator=g).cuda(),
        values_TU=None,
        bootstrap=0.0,
    )


def packed_calls(tracks):
    made = [Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track) for track in tracks]
    return pack_trajectories(made, Credit(advantages=torch.ones(len(made))), PackOptions(ratio="chunk"), budget=2)[0]


def test_pictures_of_a_simulator_on_the_host_come_ahead_and_those_on_the_device_stay(device, copies):
    tracks = [episode(seed) for seed in (1, 2)]
    images = torch.cat([track.images["front"][:-1] for track in tracks])
    states = torch.cat([track.state[:-1] for track in tracks])
    there = packed_calls([replace(t, images={"front": t.images["front"].cuda()}, state=t.state.cuda()) for t in tracks])
    assert all(m.observation.images["front"].device.type == "cuda" for m in there.micro)
    assert len(STREAMS.all) == 1
    come = packed_calls(tracks)
    assert len(come.micro) == 3
    for n, (micro, other) in enumerate(zip(come.micro, there.micro, strict=True)):
        seen = micro.observation.on("cuda")
        assert seen.images["front"].device.type == seen.state.device.type == "cuda"
        assert seen.images["front"].tolist() == images[2 * n : 2 * n + 2].tolist() == other.observation.images["front"].tolist()
        assert seen.state.tolist() == states[2 * n : 2 * n + 2].tolist() == other.observation.state.tolist()
        del seen  # as a pass does
    assert copies.most == 2 and len(copies) == 3
