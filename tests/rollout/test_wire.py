"""Simulators over a wire: messages, who may connect, what is lost when an end dies or lies, and deadlines."""

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from mmrl_robotics.small import Small

import runs
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import ActionSpec, Observation, Simulation
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.registry import plugins
from mmrl.rollout import simulators
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.watchdog import Watchdog
from mmrl.rollout.simulators.wire import handshake, shared, worker
from mmrl.rollout.simulators.wire.client import WireSimulator, WireSimulators
from mmrl.rollout.simulators.wire.frames import HEAD, MAGIC, MOST_HEADER, PROTOCOL, Broken, receive_frame, send_frame
from mmrl.rollout.simulators.wire.server import Server
from mmrl.rollout.simulators.wire.shared import SharedReader, SharedWriter
from mmrl.rollout.simulators.wire.values import decode, encode
from mmrl.testing.simulators import check_simulator

DIAL = os.path.join(os.path.dirname(runs.TOY), "dial.py")
TOKEN = "a token of the tests"
ODD = """
import os, signal, time
from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec
import dial

@hookimpl
def mmrl_simulators():
    spec = dict(action=ActionSpec(dims=2), max_steps=6, capabilities=frozenset({"partial-reset", "per-env-seed"}))
    return [SimulatorSpec(id="fault/fault", target="fault:Fault", **spec)]

class Fault(dial.Dial):
    '''By the second number of an action: below -0.9 the process dies, below -0.7 it hangs, below -0.5 its pictures change.'''
    def step(self, actions_NA, active_N):
        least = float(actions_NA[active_N][:, 1].min())
        if least < -0.9:
            os.kill(os.getpid(), signal.SIGKILL)
        if least < -0.7:
            time.sleep(60)
        if least < -0.5:
            self.size += 1
        return super().step(actions_NA, active_N)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("odd")
    (made / "fault.py").write_text(ODD)
    return made


@pytest.fixture(autouse=True)
def loaded(folder, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL, str(folder / "fault.py")]))


@pytest.fixture
def served():
    """A server of both simulators; yields (its address, the lines of its log)."""
    said: list[str] = []
    made = Server(["dial/dial", "fault/fault"], TOKEN, host="127.0.0.1", port=0, options={}, most=4, say=said.append)
    threading.Thread(target=made.serve, daemon=True).start()
    yield made.address, said
    made.close()


def connected(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 30)


def await_(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- messages -------------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_sent_also_through_shared_memory():
    seen = Observation(
        images={"front": torch.arange(2 * 80 * 80 * 3).view(2, 80, 80, 3).to(torch.uint8)},
        state=torch.tensor([[0.1], [float("nan")]]),
        instructions=["a", "ü"],
    )
    action = ActionSpec(dims=2, units=(1.0, -2.0), offsets=(3.0, 0.5))
    value = [seen, {"n": (1, 2.5, None, True)}, b"\0x", torch.zeros(0, 3), action, numpy.int64(3)]
    arrays: list[numpy.ndarray] = []
    header = encode(value, arrays)
    near, far = socket.socketpair()
    writer, reader = SharedWriter(), SharedReader()
    with near, far:
        assert reader.finds(writer.offer()) and not SharedReader().finds({"name": f"mmrl-{'0' * 32}", "proof": "x"})
        writer.agreed = True
        place = writer.write(arrays)
        for sent, how in ((arrays, None), ([], place)):
            sender = threading.Thread(target=send_frame, args=(near, [header, how], sent))
            sender.start()
            (tree, told), got = receive_frame(far, time.monotonic() + 30)
            sender.join()
            found = decode(tree, reader.read(told) if told else got)
            assert torch.equal(found[0].images["front"], seen.images["front"]) and found[0].instructions == ["a", "ü"]
            assert torch.equal(found[0].state.nan_to_num(7), seen.state.nan_to_num(7))
            assert found[1:3] == value[1:3] and found[3].shape == (0, 3) and found[4] == value[4] and found[5] == 3
            found[0].images["front"][:] = 0  # its own memory
    writer.close()
    with pytest.raises(TypeError, match="a set can't be sent"):
        encode({"a": {1}}, [])


@pytest.mark.parametrize("made", [list, tuple])
def test_an_instruction_for_each_of_many_environments_fits_into_a_message(made):
    texts = made(f"put the ü {n} into the basket" for n in range(40_000))
    arrays: list[numpy.ndarray] = []
    header = encode(texts, arrays)
    assert len(json.dumps(header)) < 100 and decode(header, arrays) == texts
    for data in (b"3", b"[1]", b"[", b"\xff"):
        with pytest.raises(Broken, match="a message can't be read"):
            decode(header, [numpy.frombuffer(data, numpy.uint8)])


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="nothing reserves room here")
def test_what_does_not_fit_into_shared_memory_goes_over_the_wire(monkeypatch, tmp_path):
    """A container's /dev/shm may have 64 MB; who writes beyond its end is killed."""
    monkeypatch.setattr(shared, "folder", lambda: tmp_path)
    reserve = os.posix_fallocate

    def small(descriptor, start, size):
        if size > 1 << 16:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", small)
    writer, reader = SharedWriter(), SharedReader()
    assert reader.finds(writer.offer())
    writer.agreed = True
    much, less = [numpy.ones(1 << 17, numpy.uint8)], [numpy.arange(1 << 15, dtype=numpy.uint8)]
    assert writer.write(much) is None
    assert numpy.array_equal(reader.read(writer.write(less))[0], less[0])
    assert writer.write(much) is None and not list(tmp_path.iterdir())
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: small(0, 0, 1 << 20))
    assert SharedWriter().offer() is None and not list(tmp_path.iterdir())


def test_bytes_of_a_stranger_are_refused_before_they_cost_anything():
    text = json.dumps([{}, [["float64", [1 << 20]]]]).encode()
    for sent, why in (
        (b"GET / HTTP/1.1\r\n\r\n--", "the other end is no simulator of mmrl: its message begins with b'GET '"),
        (HEAD.pack(MAGIC, PROTOCOL + 1, 2, 0), f"speaks version {PROTOCOL + 1} of the wire, and this one {PROTOCOL}"),
        (HEAD.pack(MAGIC, PROTOCOL, MOST_HEADER + 1, 0), "is longer than"),
        (HEAD.pack(MAGIC, PROTOCOL, 4, 1 << 62), "is longer than"),
        (HEAD.pack(MAGIC, PROTOCOL, 4, 0) + b"[[[[", "header can't be read"),
        (HEAD.pack(MAGIC, PROTOCOL, 200_000, 0) + b"[" * 200_000, "header can't be read"),
        (HEAD.pack(MAGIC, PROTOCOL, len(text), 8) + text, "has 8 bytes of arrays, and its header lists 8388608"),
        (HEAD.pack(MAGIC, PROTOCOL, 24, 8) + b'[{},[["object",[1]]]]   ', "an array of 'object'"),
        (HEAD.pack(MAGIC, PROTOCOL, 24, 8) + b'[{},[["float64",[-1]]]] ', "an array of the shape"),
        (HEAD.pack(MAGIC, PROTOCOL, 9, 0)[:-3], "the connection was closed"),
    ):
        near, far = socket.socketpair()
        with far:
            with near:
                near.settimeout(30)
                near.sendall(sent)
            with pytest.raises(Broken, match=None) as error:
                receive_frame(far, time.monotonic() + 30)
            assert why in str(error.value)
    for tree in (
        {"tensor": 3},
        {"tensor": -1},
        {"os.system": "x"},
        {"a": 1, "b": 2},
        {"observation": {"images": {"map": {}}}},
        [],
    ):
        with pytest.raises(Broken, match="can't be read"):
            decode(tree, [])


def test_only_who_knows_the_token_is_served(served, monkeypatch):
    """A wrong token, a stranger's bytes, a simulator or a program that isn't served, and a port in use: each is one line."""
    address, said = served
    simulation = Simulation(simulator="dial/dial")
    for simulator, options, token, why in (
        ("dial/dial", {}, "another one, as long", "the token is wrong: set MMRL_SIMULATOR_TOKEN"),
        ("gym/env", {}, TOKEN, r"simulator 'gym/env' is not served here: there is dial/dial, fault/fault"),
        ("dial/dial", {"python": "/bin/sh"}, TOKEN, "option 'python' names a program of the server's machine"),
    ):
        with pytest.raises(UserError, match=f"^simulate.address {address}: {why}"):
            WireSimulator(replace(simulation, simulator=simulator, options=options), 2, 0, 5.0, address=address, token=token)
    with connected(address) as stranger:
        stranger.sendall(b"\x16\x03\x01" + b"x" * 100)
        receive_frame(stranger)
    await_(lambda: any("no simulator of mmrl" in line for line in said))
    with pytest.raises(UserError, match=r"^127\.0\.0\.1 port \d+ can't be listened on: Address already in use: give another"):
        Server(["dial/dial"], TOKEN, host="127.0.0.1", port=int(address.rpartition(":")[2]), options={}, most=1, say=print)
    with pytest.raises(UserError, match=r"^simulate\.address 127\.0\.0\.1:1: no server answers"):
        WireSimulator(simulation, 2, 0, 5.0, address="127.0.0.1:1", token=TOKEN)
    monkeypatch.delenv(handshake.VARIABLE, raising=False)
    with pytest.raises(UserError, match="needs the server's token"):
        handshake.token_of_environment()
    monkeypatch.setenv(handshake.VARIABLE, "short")
    with pytest.raises(UserError, match="has 5 characters"):
        handshake.token_of_environment()


@pytest.mark.parametrize("wrong", ["localhost", "host:0", "host:70000", "http://host:1", ":7", "host:１"])
def test_an_address_is_a_host_and_a_port(wrong):
    with pytest.raises(ValueError, match="is no address: write host:port"):
        SimulateConfig(address=wrong)


def test_a_snapshot_is_unpickled_only_where_it_was_made():
    near, far = socket.socketpair()
    with near, far:
        wants = {"simulator": "dial/dial", "options": {}, "num_envs": 2}
        one, other = (worker._Worker(near, wants, key) for key in (b"a", b"b"))
        one._called("reset", [torch.tensor([1, 2])])
        state = one._called("snapshot", [torch.tensor([0])])
        assert one._called("restore", [torch.tensor([0]), state]).images["front"].shape[0] == 1
        for forged in (state, b"", b"x" * 99):
            with pytest.raises(UserError, match="not one of this server's snapshots"):
                other._called("restore", [torch.tensor([0]), forged])
        one.shared.close()
        other.shared.close()


# -- deadlines of simulators in this process ------------------------------------------------------------------------------


def test_a_call_that_takes_too_long_is_told_and_others_are_not(monkeypatch):
    """By a clock of its own, as a pause of the machine would make any call slow."""
    told, now = [], [0.0]
    monkeypatch.setattr(simulators.watchdog, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    watchdog = Watchdog(9.0, told.append)
    for _ in range(3):
        with watchdog.watch("step() of simulator 'quick'"):
            pass
    await_(lambda: not watchdog._wake.is_set())  # its thread has looked since, and nothing is going on
    now[0] += 10.0
    with watchdog.watch("step() of simulator 'slow'"):
        now[0] += 10.0
        await_(lambda: told)
    for _ in range(60):  # however a close and the thread's look fall together
        quick = Watchdog(9.0, told.append)
        with quick.watch("step() of simulator 'quick'"):
            pass
        quick.close()
    assert len(told) == 1 and told[0].startswith("step() of simulator 'slow' took longer than simulate.timeout_s = 9 s: raise it")
    watchdog.close()


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["time.sleep(60)", "re.fullmatch('(a+)+b', 'a' * 64)"])
def test_a_simulator_that_hangs_here_ends_the_process(hang):
    """Also one whose C code holds Python's lock, where only the traceback of the interpreter's own timer is left."""
    code = (
        "import re, time; from mmrl.rollout.simulators import watchdog; watchdog.GRACE_S = 0.5\n"
        f"with watchdog.Watchdog(0.5).watch('step() of simulator x'): {hang}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if "sleep" in hang:
        assert done.returncode == 2 and done.stderr.startswith("mmrl: step() of simulator x took longer"), done.stderr
        assert len(done.stderr.splitlines()) == 1
    else:
        assert done.returncode == 1 and "Timeout (0:00:01)!" in done.stderr


# -- episodes -------------------------------------------------------------------------------------------------------------


def collected(simulators=None, lanes=2):
    policy = Small(PolicyConfig(model="mlp", kind="robotics/small"), dims=2, state=2, hidden=[8], chunk=2, seed=3)
    task = plugins.registry().make_task("dial/turn", {"n": 8, "reward": "own"})
    made = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=6, lanes=lanes), "cpu", simulators)
    asked = [replace(p, task="dial/turn") for p in task.prompts("train", 0)]
    made.ready()
    found = made.collect(asked, made.encode(asked), 2, SamplingParams(max_tokens=1, temperature=1.0, seed=5))
    made.close()
    return found


@pytest.mark.slow
def test_episodes_are_the_very_same_over_the_wire(served, monkeypatch):
    address, _ = served
    monkeypatch.setenv(handshake.VARIABLE, TOKEN)
    here = collected()
    for config in ({"compute": {"simulators": "processes"}}, {"simulate": {"address": address}}):
        for one, two in zip(here, collected(WireSimulators(runs.toy_config(".", **config))), strict=True):
            assert (one.status, one.outcome) == (two.status, two.outcome)
            for name in ("choices", "rewards_TK", "state", "logprobs_TKC"):
                assert torch.equal(getattr(one.data, name), getattr(two.data, name))
            assert torch.equal(one.data.images["front"], two.data.images["front"])


class InThread(WireSimulator):
    """With the worker in a thread of this process."""

    def _spawned(self, wants):
        near, far = socket.socketpair()
        given = {**wants, "threads": torch.get_num_threads()}
        os.environ[worker.KEY] = "a key"
        threading.Thread(target=worker.serve, args=(far.detach(), given), daemon=True).start()
        return near


def test_it_conforms():
    spec = plugins.registry().get("simulators", "dial/dial")
    report = check_simulator(spec, lambda num_envs, device: InThread(Simulation(simulator=spec.id), num_envs, 0, 30.0), n=3)
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_simulator_that_dies_hangs_or_changes_is_replaced_or_ends_the_run(served):
    """Each death is counted; the episodes of the others in it are lost, and a reset mends them."""
    address, said = served
    every, seeds, still = torch.ones(3, dtype=torch.bool), torch.tensor([1, 2, 3]), torch.zeros(3, 2)
    fault = torch.zeros(3, 2)
    made = WireSimulator(Simulation(simulator="fault/fault"), 3, 2, 5.0, address=address, token=TOKEN)
    made.reset(seeds)
    fault[1, 1] = -1.0
    with pytest.warns(UserWarning, match="its process died, and its episodes are restarted: its process was killed by SIGKILL"):
        with pytest.raises(
            UserError, match=r"died more often than compute\.retries = 2 allows \(its process was killed by SIGKILL"
        ):
            made.step(fault, every)
    made.close()
    made = WireSimulator(Simulation(simulator="fault/fault"), 3, 1, 1.5, address=address, token=TOKEN)
    before = made.reset(seeds)
    process = int(said[-1].rpartition(" ")[2])
    os.kill(process, signal.SIGKILL)
    with pytest.warns(UserWarning, match="its process died, and its episodes are restarted"):
        after = made.reset(torch.tensor([2]), torch.tensor([1]))
    assert torch.equal(after.state[0], before.state[1])
    assert made.step(still, every).lost_N.tolist() == [True, False, True]
    made.reset(torch.tensor([1, 3]), torch.tensor([0, 2]))
    with pytest.raises(UserError, match="an action is NaN"):
        made.step(torch.full((3, 2), torch.nan), every)
    fault[1, 1] = -0.8
    with pytest.raises(UserError, match=r"compute\.retries = 1 allows \(step took longer than 1\.5 s\)"):
        made.step(fault, every)
    numbers = [int(line.rpartition(" process ")[2]) for line in said if " environments, process " in line]
    assert len(numbers) == 5
    await_(lambda: not any(map(_runs, numbers)))
    made.close()


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_that_lies_costs_a_line():
    """Answers that are no simulator's: a transition without its fields, another magic, an end in the middle of a message."""

    def serve(listening, answer):
        channel, _ = listening.accept()
        with channel:
            wants = handshake.challenge(channel, TOKEN)
            handshake.accept(channel, wants["proof"])
            send_frame(channel, {"result": {"map": {"said": {"map": {}}, "expert": False}}, "warned": []})
            receive_frame(channel)
            channel.sendall(answer)

    good = json.dumps([{"result": {"transition": {"map": {}}}, "warned": []}, []]).encode()
    for answer, why in (
        (struct.pack("<4sHIQ", MAGIC, PROTOCOL, len(good), 0) + good, "a message can't be read"),
        (b"nonsense" * 9, "no simulator of mmrl"),
        (struct.pack("<4sHIQ", MAGIC, PROTOCOL, 500, 10) + b"[", "the connection was closed"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=serve, args=(listening, answer), daemon=True).start()
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            made = WireSimulator(Simulation(simulator="dial/dial"), 2, 0, 5.0, address=address, token=TOKEN)
            with pytest.raises(UserError, match=why):
                made.reset(torch.tensor([1, 2]))
            made.close()
