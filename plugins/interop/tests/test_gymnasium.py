"""Simulators under Gymnasium's interface: what its wrappers and Stable-Baselines3 get is what a run gets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mmrl
from mmrl import UserError

gymnasium = pytest.importorskip("gymnasium")
from mmrl_interop.gymnasium import to_gymnasium, to_sb3  # noqa: E402

TASK = "robotics/reach"


@pytest.fixture(scope="module")
def task():
    with mmrl.open_task(TASK) as task:
        yield task


def expert(envs):
    return envs._simulator.expert().numpy()


def test_spaces_and_first_observations(task):
    envs = to_gymnasium(task, 3)
    seen, infos = envs.reset(seed=1)
    assert envs.observation_space.contains(seen) and set(seen) >= {"state"}
    assert all(isinstance(text, str) and text for text in infos["instruction"])
    again, _ = envs.reset(seed=1)
    assert all(np.array_equal(seen[k], again[k]) for k in seen)
    other, _ = envs.reset(seed=2)
    assert not all(np.array_equal(seen[k], other[k]) for k in seen)
    envs.close()


def test_one_modality_is_a_box(task):
    envs = to_gymnasium(task, 2, observe="state")
    assert isinstance(envs.single_observation_space, gymnasium.spaces.Box) and envs.reset()[0].shape[0] == 2
    with pytest.raises(UserError, match="observe names 'back'"):
        to_gymnasium(task, 2, observe=["back"])
    with pytest.raises(UserError, match="autoreset"):
        to_gymnasium(task, 2, autoreset="never")


def test_what_cannot_render_says_so(task, monkeypatch):
    envs = to_gymnasium(task, 2)
    envs.reset()
    assert envs.render_mode == "rgb_array" and len(envs.render()) == 2
    spec = dataclasses.replace(task.simulator_spec, capabilities=frozenset({"partial-reset", "per-env-seed"}))
    monkeypatch.setattr(type(task), "simulator_spec", property(lambda _: spec))
    blind = to_gymnasium(task, 2)
    assert blind.render_mode is None
    with pytest.raises(UserError, match="has no capability `render-cpu` or `render-gpu`"):
        blind.render()


def test_actions_are_those_of_the_options():
    with mmrl.open_task(TASK, {"dims": 4}) as task:
        envs = to_gymnasium(task, 2, observe="state")
        assert envs.action_space.shape == (2, 4)
        envs.reset()
        envs.step(envs.action_space.sample())
        envs.close()


def test_prompts_can_be_chosen(task):
    envs = to_gymnasium(task, 3, observe="state", split="test")
    ids = [prompt.id for prompt in task.prompts("test")]
    first, infos = envs.reset(options={"prompts": [4, 0, 4]})
    assert list(infos["prompt_id"]) == [ids[4], ids[0], ids[4]]
    assert np.array_equal(first[0], first[2]) and not np.array_equal(first[0], first[1])
    assert np.array_equal(envs.reset(options={"prompts": [0, 4, 1]})[0][:2], first[[1, 0]])
    assert np.array_equal(envs.reset(options={"prompts": np.array([4, 0, 4])})[0], first)
    envs.reset(options={"prompts": None})
    envs.close()


def played(envs, steps, act):
    """(rewards, terminated, truncated, infos) of each step."""
    envs.reset(seed=3)
    return [envs.step(act(envs))[1:] for _ in range(steps)]


def test_the_expert_succeeds_and_the_next_step_resets(task):
    envs = to_gymnasium(task, 4, observe="state")
    rows = played(envs, 40, expert)
    ended = np.array([terminated | truncated for _, terminated, truncated, _ in rows])
    assert ended.any(0).all()
    for n in range(4):
        first = int(ended[:, n].argmax())
        rewards = np.array([row[0][n] for row in rows[: first + 1]])
        infos = rows[first][3]
        assert infos["success"][n] and infos["length"][n] == first + 1
        assert infos["return"][n] == pytest.approx(rewards.sum()) == pytest.approx(1.0, abs=1e-5)
        reward, terminated, truncated, _ = (part[n] if not isinstance(part, dict) else part for part in rows[first + 1])
        assert reward == 0 and not terminated and not truncated  # the step that resets
    envs.close()


def test_a_time_limit_truncates(task):
    envs = to_gymnasium(task, 2, observe="state")
    rows = played(envs, 20, lambda e: np.zeros(e.action_space.shape, np.float32))
    lengths = [row[3]["length"] for row in rows if "length" in row[3]]
    assert lengths and all(row[2].all() or not row[2].any() for row in rows) and (lengths[0] == envs._rules.max_steps).all()
    envs.close()


def test_same_step_gives_the_last_observation(task):
    slow, fast = to_gymnasium(task, 2, observe="state"), to_gymnasium(task, 2, observe="state", autoreset="same-step")
    for envs in (slow, fast):
        envs.reset(seed=5)
    for _ in range(40):
        action = expert(slow)
        a, b = slow.step(action), fast.step(action)
        assert np.array_equal(a[1], b[1]) and np.array_equal(a[2], b[2])
        if (ended := a[2] | a[3]).any():
            assert np.array_equal(b[4]["final_obs"][ended], a[0][ended]) and not np.array_equal(b[0][ended], a[0][ended])
            break
    else:
        pytest.fail("no episode ended")
    for envs in (slow, fast):
        envs.close()


def test_gymnasium_wrappers_count_what_we_count(task):
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(to_gymnasium(task, 3, observe="state"))
    envs.reset(seed=0)
    returns = []
    for _ in range(40):
        _, _, terminated, truncated, infos = envs.step(expert(envs.unwrapped))
        returns += list(infos["episode"]["r"][terminated | truncated]) if "episode" in infos else []
    assert returns and np.allclose(returns, 1.0, atol=1e-5)
    envs.close()


def test_bad_actions_are_refused(task):
    envs = to_gymnasium(task, 2, observe="state")
    envs.reset()
    for bad in (np.full((2, 7), np.nan, np.float32), np.zeros((2, 3), np.float32)):
        with pytest.raises(UserError):
            envs.step(bad)
    envs.close()


@pytest.mark.always
@pytest.mark.slow
def test_ppo_of_stable_baselines_trains(task):
    sb3 = pytest.importorskip("stable_baselines3")
    envs = to_sb3(task, 8, observe="state", seed=0)
    model = sb3.PPO("MlpPolicy", envs, n_steps=32, batch_size=64, seed=0)
    before = [p.clone() for p in model.policy.parameters()]
    model.learn(600)
    episodes = list(model.ep_info_buffer)
    assert episodes and all(1 <= e["l"] <= envs.envs._rules.max_steps and -1e-5 <= e["r"] <= 1 + 1e-5 for e in episodes)
    assert any(not p.equal(q) for p, q in zip(before, model.policy.parameters(), strict=True))
    envs.close()
