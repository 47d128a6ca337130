"""The conformance kit on both tasks, the plugin's spec, and options that are refused."""

import dataclasses

import mmrl_driving
import pytest
import torch
from mmrl_driving.road import Road

from mmrl import SimulatorSpec, UserError
from mmrl.testing.simulators import check_simulator

(SPEC,) = mmrl_driving.mmrl_simulators()


STATES = dataclasses.replace(SPEC, cameras=(), capabilities=SPEC.capabilities - {"render-cpu", "render-gpu"})
"""What is left of the spec with `obs = "state"`."""


@pytest.mark.parametrize(
    "spec,options",
    [
        (SPEC, {"task": "crossing", "size": 16, "horizon": 20, "traffic": 2}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (SPEC, {"task": "motorway", "size": 24, "cameras": ("front", "top"), "traffic": 7}),
                (STATES, {"task": "motorway", "obs": "state"}),
                (STATES, {"task": "crossing", "obs": "state", "traffic": 0}),
            )
        ),
    ],
    ids=("crossing", "motorway", "motorway, state", "crossing, state"),
)
def test_conformance(spec: SimulatorSpec, options: dict) -> None:
    report = check_simulator(spec, Road, options=options)
    assert report.ok, str(report)


def test_the_spec_is_what_the_instance_is() -> None:
    road = Road(num_envs=1, device="cpu")
    assert road.action == SPEC.action and road.max_steps == SPEC.max_steps == 80
    assert Road(num_envs=1, device="cpu", task="motorway").max_steps == 60
    assert SPEC.variants == mmrl_driving.VARIANTS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "roundabout"}, "task: 'roundabout' is not one of crossing, motorway"),
        ({"task": ["crossing"]}, "task: ['crossing'] is not one of crossing, motorway"),
        ({"obs": "lidar"}, "obs: 'lidar' is not one of rgb, state"),
        ({"size": 4}, "size = 4 must be a whole number of 16 to 1024"),
        ({"size": 64.0}, "size = 64.0 must be a whole number of 16 to 1024"),
        ({"traffic": 9}, "traffic = 9 must be a whole number of 0 to 8"),
        ({"traffic": True}, "traffic = True must be a whole number of 0 to 8"),
        ({"templates": 0}, "templates = 0 must be a whole number of 1 to 3"),
        ({"horizon": 0}, "horizon = 0 must be a whole number of 1 to 10000"),
        ({"cameras": []}, "cameras = [] must be a list of one or more different names of top, front"),
        ({"cameras": ["top", "top"]}, "cameras = ['top', 'top'] must be a list of one or more different names of top, front"),
        ({"cameras": ["rear"]}, "cameras: 'rear' is not one of top, front"),
        ({"cameras": 3}, "cameras = 3 must be a list of one or more different names of top, front"),
        ({"num_envs": 0}, "driving/road: num_envs = 0 must be a whole number of 1 or more"),
    ],
)
def test_a_bad_option_is_one_line(options: dict, said: str) -> None:
    with pytest.raises(UserError) as refused:
        Road(**{"num_envs": 1, "device": "cpu"} | options)
    assert str(refused.value) == said


def test_bad_calls_are_refused_in_a_line(road) -> None:
    one = road(2, obs="state")
    state = one.snapshot(torch.arange(2))
    with pytest.raises(UserError, match=r"^the state doesn't fit 1 environments of this road: restore it with the traffic that"):
        one.restore(torch.tensor([0]), state)
    with pytest.raises(UserError, match="the state doesn't fit 2 environments"):
        road(2, obs="state", traffic=2).restore(torch.arange(2), state)
    with pytest.raises(UserError, match="has no variant 'fog'"):
        one.reset(torch.arange(2), variant="fog")
    one.close()
    with pytest.raises(UserError, match=r"^this road is closed: make a new one$"):
        one.reset(torch.arange(2))
