"""A policy acts on a stream of its own: it doesn't race with the simulators on the default one, and planted races are found."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mmrl_robotics.small import Small

import pretended_device as pretended
from mmrl.api.errors import PluginError
from mmrl.config.sections import CriticConfig, PolicyConfig, SimulateConfig
from mmrl.policies.critic import Critic
from mmrl.policies.vlm import varlen
from mmrl.policies.vlm.vision import stacked_attention
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators import lockstep, streams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from pretended_device import Race
from pretended_device.streams import STREAMS

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
SAMPLING = SamplingParams(max_tokens=1, temperature=1.0, seed=5)


# -- what finds races -----------------------------------------------------------------------------------------------------


def test_what_has_not_been_waited_for_is_a_race(device):
    early, own = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(own), pytest.raises(Race, match="reads what was written by an operation before there was a second"):
        early + 1
    own.wait_stream(torch.cuda.current_stream())
    late = early + 1
    with torch.cuda.stream(own):
        early + 1
        with pytest.raises(
            Race, match=r"mul .*test_streams.py.* on stream 1 reads what was written by add .* on the default stream"
        ):
            late[1:] * 2
        late.view(2, 2)  # reads nothing
    event = torch.cuda.current_stream().record_event()
    assert not (late == 0).any(), "the host has read what comes later, which orders no streams"
    with torch.cuda.stream(own):
        with pytest.raises(Race):
            late.sum()
        own.wait_event(event)
        late.sum()
        third = torch.cuda.Stream()
        third.wait_event(own.record_event())
    with torch.cuda.stream(third):
        late.sum()  # through the second


@pytest.mark.parametrize(
    "write", [lambda x: x.add_(1), lambda x: x[1:].copy_(x.new_ones(3)), lambda x: torch._foreach_mul_([x], 2.0)]
)
def test_writing_what_is_still_read_is_a_race(device, write):
    x, own = torch.ones(4, device="cuda"), torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        x[:2].sum()
        event = own.record_event()
    with pytest.raises(Race, match="writes what was used by sum"):
        write(x)
    torch.cuda.current_stream().wait_event(event)
    write(x)


@pytest.mark.parametrize("kept", ["", "recorded", "waited for", "held"])
def test_memory_that_is_taken_anew_while_another_stream_reads_it_is_a_race(device, kept):
    own, here = torch.cuda.Stream(), torch.cuda.current_stream()
    x = torch.ones(4, device="cuda")
    own.wait_stream(here)
    with torch.cuda.stream(own):
        y = x.view(2, 2).t()
        y.sum()
    if kept == "recorded":
        x.record_stream(own)
    if kept == "waited for":
        here.wait_stream(own)
    del x  # the view still has it
    torch.ones(4, device="cuda")
    if kept == "held":
        return
    del y
    if kept:
        torch.ones(4, device="cuda")
        return
    with pytest.raises(Race, match="may take memory that was freed after sum"):
        torch.ones(4, device="cuda")


def test_each_thread_begins_on_the_default_stream_and_the_device_can_be_waited_for(device):
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        x, found = torch.ones(4, device="cuda"), []
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert found == [torch.cuda.default_stream()] and found != [own]
    torch.cuda.synchronize()
    assert x.sum().item() == 4


def test_what_an_earlier_test_left_behind_is_no_race(device):
    with torch.cuda.stream(torch.cuda.Stream()):
        kept = [torch.ones(4, device="cuda") for _ in range(9)][-1]
    STREAMS.begin(device)
    own = torch.cuda.Stream()
    kept.sum()
    with torch.cuda.stream(own), pytest.raises(Race):
        kept.add_(1)  # but what happens now counts


# -- acting ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def play(device, monkeypatch):
    """Plays episodes, or the expert's, with some of the ways in which simulator and policy meet; returns what is in them."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([DIAL]))

    def played(where="cuda", lanes=2, way="plain"):
        config = PolicyConfig(model="mlp", kind="robotics/small")
        acting = Small(config, device=where, dims=2, state=2, hidden=[8], seed=3)
        task = plugins.registry().make_task("dial/turn", {"never": True, "max_steps": 4})
        made = SimulatorCollector(acting, {"t": task}, SimulateConfig(num_envs=4, lanes=lanes), device=where)
        made.critic = Critic(acting, CriticConfig(hidden_sizes=[4]), 0, outputs=1) if way == "critic" else None
        made.with_expert, made.interventions = way == "advice", 0.9 if way == "interventions" else 0.0
        for lane in made.lanes("t") if way == "history" else ():
            lane.history = 1
        found = []
        with contextlib.closing(made):  # also after a race, or the threads of its lanes would outlive the test
            for first in (0, 8):  # the second time memory is taken anew
                asked = [replace(p, task="t") for p in task.prompts("train", 0)[first : first + 8]]
                if way == "expert":
                    found += made.demonstrate(asked, [None] * len(asked), [""] * len(asked))
                else:
                    found += made.collect(asked, made.encode(asked), 1, SAMPLING)
        return [[x.cpu() for x in tensors_of(r.data)] for r in found]

    return played


def tensors_of(track):
    parts = [getattr(track, name) for name in track.__dataclass_fields__]
    return [*track.images.values(), *(x for x in parts if isinstance(x, torch.Tensor))]


WAYS = ("plain", "history", "critic", "advice", "interventions", "expert")


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_on_its_own_stream_acts_as_on_the_cpu_without_a_race(play, way):
    there, here = play(way=way), play("cpu", way=way)
    assert len(STREAMS.all) == 2 and len(there) == 16
    for one, other in zip(there, here, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_the_policy_is_on_its_stream_and_the_simulator_on_the_default_one(play, monkeypatch):
    from dial_simulator import Dial

    seen = {"act": set(), "step": set(), "expert": set(), "reset": set()}

    def noted(kind, name):
        real = getattr(kind, name)

        def call(*arguments, **options):
            seen[name].add(torch.cuda.current_stream() is torch.cuda.default_stream())
            return real(*arguments, **options)

        monkeypatch.setattr(kind, name, call)

    noted(Small, "act")
    for name in ("step", "expert", "reset"):
        noted(Dial, name)
    play(way="interventions")
    assert seen == {"act": {False}, "step": {True}, "expert": {True}, "reset": {True}}
    play(lanes=1)
    assert len(STREAMS.all) == 2 and seen["act"] == {False, True}, "there is nothing beside which a single lane's policy acts"


@pytest.mark.parametrize("lanes", [1, 2])
def test_whatever_thread_steps_a_simulator_is_on_its_gpu(play, monkeypatch, lanes):
    """A new thread is on the first one, where code that names no device would compute."""
    from dial_simulator import Dial

    current, seen, kinds = threading.local(), [], {name: getattr(Dial, name) for name in ("step", "reset")}

    @contextlib.contextmanager
    def entered(device):
        current.gpu = torch.device(device)
        yield
        del current.gpu

    def noted(real):
        def call(*arguments, **options):
            seen.append(vars(current).get("gpu"))
            return real(*arguments, **options)

        return call

    monkeypatch.setattr(torch.cuda, "device", entered)
    for name, real in kinds.items():
        monkeypatch.setattr(Dial, name, noted(real))
    play(lanes=lanes)
    assert set(seen) == {torch.device("cuda")} and len(seen) > 4


def followed(monkeypatch, where):
    """Events are only followed by the policy's stream, or only by the default one."""
    real = streams.ActingStream.follow

    def follow(self, event):
        if (torch.cuda.current_stream() is torch.cuda.default_stream()) == (where == "default"):
            real(self, event)

    monkeypatch.setattr(streams.ActingStream, "follow", follow)


@pytest.mark.parametrize(
    "where, message",
    [
        ("default", "on stream 1 reads what was written by .* on the default stream"),
        ("policy's", "on the default stream reads what was written by .* on stream 1"),
    ],
)
def test_an_event_that_is_not_followed_is_a_race(play, monkeypatch, where, message):
    followed(monkeypatch, where)
    with pytest.raises((Race, PluginError), match=message):
        play()


@pytest.mark.parametrize("fault", ["", "the stream's own work is not waited for", "the memory is not kept"])
def test_what_the_expert_says_is_kept_until_the_policy_has_read_it(device, monkeypatch, fault):
    own = torch.cuda.Stream()
    if fault == "the memory is not kept":
        monkeypatch.setattr(pretended.DeviceTensor, "record_stream", lambda self, stream: None)
    if fault == "the stream's own work is not waited for":
        monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda self, other: None)

    def advised():
        with torch.cuda.stream(own):
            said = streams.on_default_stream(pretended.DEVICE, lambda: torch.ones(4, device="cuda"))
            said.sum()
        del said
        torch.ones(4, device="cuda")  # as another lane does on the default stream

    if fault:
        with pytest.raises(Race):
            advised()
    else:
        advised()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # one size after the other; torch's kernel for all
def test_what_passes_keep_for_later_ones_is_kept_for_each_stream(device, monkeypatch, dtype):
    monkeypatch.setattr(varlen, "_kernel", lambda: lambda q, k, v, ends, *_, **__: q + ends.sum())
    monkeypatch.setattr(varlen.VARLEN, "failure", "")
    ends, own = torch.tensor([0, 2, 5]), torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), own):
        with torch.cuda.stream(stream):
            qkv = torch.ones(3, 1, 1, 5, 4, device="cuda", dtype=dtype)
            stacked_attention(torch.nn.Module(), *qkv, scaling=1.0, cu_seq_lens_q=ends, attention_mask=None)
    assert not varlen.VARLEN.failure


def test_a_stream_of_its_own_costs_no_wait_and_no_copy(play, device, monkeypatch):
    def cost():
        with device.counting() as seen:
            play()
        return len(seen.waits), len(seen.copies), len(STREAMS.all)

    two = cost()
    monkeypatch.setattr(lockstep, "ActingStream", lambda device, lanes: streams.ActingStream(torch.device("cpu"), lanes))
    STREAMS.begin(device)
    one = cost()
    assert two[:2] == one[:2] and (two[2], one[2]) == (2, 1) and min(one) > 0
