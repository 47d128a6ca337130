"""A history of observations: what a policy sees of earlier calls is what was there, in episodes, demonstrations and updates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import earlier, in_track, present
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.policies.acting.vla import VLA
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", DIAL)


def vla(**options):
    config = PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1", kind="vla")
    return VLA(config, dims=2, size=28, head="normal", seed=1, **options)


def collector(policy, environments=2):
    task = plugins.registry().make_task("dial/turn", {"n": 4})
    made = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=environments))
    return made, [replace(p, task="dial/turn") for p in task.prompts("train", 0)]


def told(rows, k, stride=1):
    """A slow reference: what was there k calls before, or at first."""
    return torch.stack([rows[max(0, t - k * stride)] for t in range(len(rows))])


def test_episodes_have_the_pictures_of_earlier_calls_and_are_scored_as_they_were_sampled():
    policy = vla(history=2, chunk=2)
    made, asked = collector(policy)  # fewer environments than episodes, so that later ones begin beside others
    made.ready()
    sampling = SamplingParams(max_tokens=1, temperature=1.0, seed=5)
    found = made.collect(asked, made.encode(asked), 2, sampling)
    assert len({len(one.data.choices) for one in found}) > 1 or len(found) > 2
    for one in found:
        images = one.data.images
        assert list(present(images)) == ["front"] and len(images) == 3
        for k in (1, 2):
            assert torch.equal(images[earlier("front", k)], told(images["front"], k))
    one = max(found, key=lambda r: len(r.data.choices)).data
    calls = slice(0, len(one.choices))
    from mmrl.api.simulators.types import Observation

    seen = Observation(
        images={name: rows[calls] for name, rows in one.images.items()},
        state=one.state[calls],
        instructions=[one.instruction] * len(one.choices),
    )
    logprobs = policy.head.score(policy.features(seen)[0], one.choices, 1.0)[0]
    torch.testing.assert_close(logprobs, one.logprobs_TKC, atol=1e-5, rtol=1e-5)
    blind = replace(seen, images={name: seen.images["front"] for name in seen.images})
    assert len(one.choices) < 2 or (policy.features(blind)[0] - policy.features(seen)[0]).abs().max() > 1e-4
    made.close()


def test_a_demonstration_looks_back_by_calls_and_not_by_steps():
    """A policy with chunks acts once in `chunk` steps, and an expert at each."""
    policy = vla(history=1, chunk=3)
    made, asked = collector(policy)
    asked = asked[:2]
    for one in made.demonstrate(asked, made.encode(asked), [""] * 2):
        images = one.data.images
        assert torch.equal(images[earlier("front", 1)], told(images["front"], 1, 3))
        single = replace(asked[0], meta={**asked[0].meta, "call": 4})
    (moment,) = made.demonstrate([single], made.encode([single]), [""])
    (whole,) = made.demonstrate(asked[:1], made.encode(asked[:1]), [""])
    at = 4 % len(whole.data.choices)
    assert torch.equal(moment.data.images[earlier("front", 1)][0], whole.data.images["front"][max(0, at - 3)])
    assert in_track(whole.data, 0, 3) is whole.data
    made.close()


def test_what_has_no_history_is_refused():
    policy = vla(history=1)
    made, _ = collector(vla())
    seen = made.lanes("dial/turn")[0].reset_all([1, 2])
    with pytest.raises(UserError, match=r"policy\.options\.history = 1, and the observation has no earlier pictures"):
        policy.act(seen, torch.arange(2), torch.zeros(2, dtype=torch.int64), 1.0)
    with pytest.raises(UserError, match="history"):
        vla(history=-1)
    made.close()
