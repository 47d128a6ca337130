"""The conformance kit on classic environments that render."""

import dataclasses

import mmrl_gym
import pytest

from mmrl.api.simulators.types import ActionSpec
from mmrl.testing.simulators import check_simulator

(SPEC, _) = mmrl_gym.mmrl_simulators()


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id,dims,options",
    [
        ("Pendulum-v1", 1, {"instruction": "swing the pole up and hold it there", "size": 32}),
        ("CartPole-v1", 2, {"instruction": "balance the pole", "size": 48, "success_return": 100.0}),
    ],
)
def test_conformance(env_id: str, dims: int, options: dict) -> None:
    pytest.importorskip("gymnasium", reason='Gymnasium is not installed: pip install "multimodal-rl[gym]"')
    pytest.importorskip(
        "pygame", reason='pygame, with which the classic environments draw, is not installed: pip install "multimodal-rl[gym]"'
    )
    from mmrl_gym.simulator import Gym

    spec = dataclasses.replace(SPEC, action=ActionSpec(dims=dims))
    report = check_simulator(spec, Gym, n=2, options={"env_id": env_id, **options})
    assert report.ok, str(report)
    skipped = {r.name for r in report.results if r.note.startswith("skipped")}
    assert skipped <= {"expert_is_in_range", "the_time_limit_is_the_engines"}
