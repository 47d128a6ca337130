"""Worlds: what neighbours do doesn't matter, states come back, and MuJoCo's own C code does the same."""

import contextlib
import threading
from types import SimpleNamespace

import numpy
import pytest
import torch
from mmrl_mjx.tasks import TASKS

from mmrl import UserError

ON = torch.ones(3, dtype=torch.bool)


def rows(transition, place: int) -> list[torch.Tensor]:
    return [transition.observation.state[place], transition.reward_N[place], transition.success_N[place]]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for step, again in zip(one, other, strict=True) for a, b in zip(step, again, strict=True))


def test_a_grasp_is_the_same_bits_while_neighbours_are_reset(arms) -> None:
    """Through twenty steps of contact; the neighbours begin anew every three, and one of them is inactive now and then."""
    simulator = arms("pick", 3)
    seen = []
    for disturbed in (False, True):
        simulator.reset(torch.tensor([5, 6, 7]))
        steps = []
        for step in range(20):
            active = ON.clone()
            if disturbed and step % 3 == 2:
                simulator.reset(torch.tensor([50 + step, 90 + step]), torch.tensor([2, 0]))
                active[2] = step % 2 == 0
            steps.append(rows(simulator.step(simulator.expert(), active), 1))
        seen.append(steps)
    assert same(*seen) and steps[-1][2], "it was picked up, in the same bits"


def test_a_grasp_goes_on_from_a_snapshot_in_the_same_bits(arms) -> None:
    simulator, ids = arms("pick", 3), torch.arange(3)
    simulator.reset(torch.tensor([5, 6, 7]))
    for _ in range(12):
        simulator.step(simulator.expert(), ON)
    state = simulator.snapshot(ids)
    first = [rows(simulator.step(simulator.expert(), ON), 1) for _ in range(8)]
    simulator.reset(torch.tensor([1, 2, 3]))
    simulator.restore(torch.tensor([2]), {name: value[1:2] for name, value in state.items()})
    again = [rows(simulator.step(simulator.expert(), ON), 2) for _ in range(8)]
    assert same(first, again)


def test_a_state_of_another_task_is_refused(arms) -> None:
    state = arms("pick", 3).snapshot(torch.tensor([0]))
    with pytest.raises(UserError, match=r"the state doesn't fit 1 environments of mjx/reach: restore it in the task it is of"):
        arms("reach", 2).restore(torch.tensor([0]), state)


def test_mujocos_own_code_does_the_same(arms) -> None:
    """While a cube is lifted, a quarter of a second with the controls held: within a millimetre, and 0.04 rad."""
    import mujoco
    import mujoco_warp

    simulator = arms("pick", 3)
    simulator.reset(torch.tensor([5, 6, 7]))
    for _ in range(14):
        simulator.step(simulator.expert(), ON)
    worlds = simulator._worlds
    data = mujoco.MjData(worlds.source)
    for name in ("qpos", "qvel", "ctrl", "qacc_warmstart"):
        getattr(data, name)[:] = worlds.views[name][1].numpy()
    before = data.qpos.copy()
    for _ in range(50):
        mujoco.mj_step(worlds.source, data)
        mujoco_warp.step(worlds.model, worlds.data)
    after = worlds.views["qpos"][1].numpy()
    assert abs(after - before).max() > 0.01, "it moved"
    numpy.testing.assert_allclose(after[:9], data.qpos[:9], atol=1e-3)
    things, theirs = after[9:].reshape(3, 7), data.qpos[9:].reshape(3, 7)
    numpy.testing.assert_allclose(things[:, :3], theirs[:, :3], atol=1e-3)
    numpy.testing.assert_allclose(things[:, 3:], theirs[:, 3:], atol=0.02)  # between two soft fingers it turns easily


def test_a_world_that_falls_apart_is_lost_alone(arms) -> None:
    """A speed that isn't finite: the episode is void, the others go on in the same bits, and a reset repairs it."""
    simulator, seeds = arms("pick", 3), torch.tensor([5, 6, 7])
    seen = []
    for broken in (False, True):
        simulator.reset(seeds)
        simulator.step(simulator.expert(), ON)
        if broken:
            simulator._worlds.views["qvel"][0, 2] = float("inf")
        moved = simulator.step(torch.zeros(3, 4), ON)
        seen.append([rows(moved, 1), rows(moved, 2)])
    assert moved.lost_N.tolist() == [True, False, False] and same(*seen)
    assert simulator.reset(seeds[:1], torch.tensor([0])).state.isfinite().all()
    assert not simulator.step(torch.zeros(3, 4), ON).lost_N.any()


def test_a_device_that_warp_lacks_is_refused() -> None:
    from mmrl_mjx.simulator import Mjx

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=r"^mjx: Warp has no device 'cuda' here: use cpu, or cuda with an NVIDIA GPU$"):
        Mjx(num_envs=1, device="cuda", task="reach")


def test_two_threads_have_warp_on_their_device_each(arms, monkeypatch) -> None:
    """Where there is a GPU, it is Warp's device before and afterwards. The first thread would leave while the second is inside,
    and waits half a second for it; the second comes in when the first has left."""
    import warp

    worlds = [arms("reach", 2)._worlds, arms("pick", 3)._worlds]
    runtime = warp.get_device("cpu").runtime
    gpu, inside, out, seen = object(), threading.Event(), threading.Event(), []
    monkeypatch.setattr(warp, "is_cuda_available", lambda: True)
    monkeypatch.setattr(runtime, "default_device", gpu)
    came = threading.Event()

    def first() -> None:
        with worlds[0].on_stream():
            inside.set()
            came.wait(0.5)
        out.set()

    def second() -> None:
        inside.wait()
        with worlds[1].on_stream():
            came.set()
            out.wait(0.5)
            seen.append(str(runtime.default_device))

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["cpu"] and runtime.default_device is gpu


@pytest.mark.parametrize("supported", [True, False])
def test_a_graph_is_conditional_where_the_driver_can(monkeypatch, supported) -> None:
    import mujoco_warp
    import warp
    from mmrl_mjx.physics import Worlds

    class Enough(Exception):
        pass

    def no_data(*_: object, **__: object) -> None:
        raise Enough

    get_device, put_model, made = warp.get_device, mujoco_warp.put_model, []
    monkeypatch.setattr(
        warp, "get_device", lambda *name: SimpleNamespace(is_cuda=True) if name == ("cuda:7",) else get_device(*name)
    )
    monkeypatch.setattr(warp, "ScopedDevice", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(warp, "is_conditional_graph_supported", lambda: supported)
    monkeypatch.setattr(mujoco_warp, "put_model", lambda source: made.append(put_model(source)) or made[0])
    monkeypatch.setattr(mujoco_warp, "make_data", no_data)
    with pytest.raises(Enough):
        Worlds(TASKS["reach"].scene(TASKS["reach"].colours), 1, torch.device("cuda:7"), 1)
    assert made[0].opt.graph_conditional is supported
