"""Every row of the table of published values: what peers' code and formulas give."""

import json
import math
from pathlib import Path

import pytest
import torch

from mmrl.algorithms import advantage, labels, loss, shaping
from mmrl.api.types import Score

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "algorithms.jsonl").read_text().splitlines()
    if line.strip()
]


def one_group(rewards):
    return torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.long)


def inputs(ratio, credit, rollout=(0,)):
    return loss.LossInputs(
        logprobs_L=torch.tensor(ratio, dtype=torch.float64),
        old_logprobs_L=torch.zeros(len(ratio), dtype=torch.float64),
        advantages_L=torch.full((len(ratio),), float(credit), dtype=torch.float64),
        rollout_L=torch.zeros(len(ratio), dtype=torch.long),
        lengths_N=torch.tensor([len(ratio)]),
    )


def lite_ppo(group, batch):
    """The group's members are the first of the batch, the rest another group."""
    groups = torch.tensor([0] * len(group) + [1] * (len(batch) - len(group)))
    rewards = torch.tensor(batch, dtype=torch.float64)
    return advantage.group_relative(rewards, groups, scale="batch", biased=True, epsilon=0.0)[0]


def clip_higher(ratio, advantage, eps_low, eps_high):
    return -loss.clipped_surrogate(inputs([math.log(ratio)], advantage), clip_low=eps_low, clip_high=eps_high)[0]


def sequence_ratio(token_log_ratios):
    return -loss.sequence_surrogate(inputs(token_log_ratios, 1.0), clip_low=1.0, clip_high=math.inf)[0][0]


def step_filter(v, next_v, reward, mc_return):
    """A step and the next; the rows' returns are those of a reward here and none later."""
    assert mc_return == reward
    rewards, values = torch.tensor([[reward, 0.0]]), torch.tensor([[v, next_v]], dtype=torch.float64)
    return advantage.step_filter(rewards, values, torch.zeros(1), torch.tensor([[0, 1]]))[0][0, 0]


def temporal(acc, format, shuffled_acc, lengths):
    rule = pytest.importorskip("mmrl_video.temporal_contrast").TemporalContrast()
    timed = torch.tensor([rule.paid(Score(a), rule.matters(acc, shuffled_acc)) for a in acc])
    acc = torch.tensor(acc, dtype=torch.float64)
    return acc + torch.tensor(format) + timed + shaping.length_bonus(acc, torch.tensor(lengths))


def grasp(is_src_obj_grasped, consecutive_grasp, success, previous_potential):
    potential = shaping.grasp_potential(bool(is_src_obj_grasped), bool(consecutive_grasp), bool(success))
    return shaping.potential_difference(torch.tensor([[previous_potential, potential]], dtype=torch.float64))[0, 1]


def miniwob(kind):
    return lambda env_reward, raw_reward, done: shaping.outcome(raw_reward, env_reward, done, kind=kind, threshold=0.5)


def end_episode(raw, elapsed_ms, EPISODE_MAX_TIME_ms, time_proportional):
    return shaping.time_proportional(raw, elapsed_ms, EPISODE_MAX_TIME_ms) if time_proportional else raw


def overlong(response_len, max_resp_len, overlong_buffer_len, penalty_factor):
    lengths = torch.tensor([response_len])
    return shaping.overlong_penalty(lengths, max_length=max_resp_len, buffer=overlong_buffer_len, factor=penalty_factor)


def outcome_at_last(complete, reward_coef):
    return shaping.outcome_at_last(torch.tensor([complete]), torch.tensor([[True, True, False]]), scale=reward_coef)[0, 1]


def harmonic_mean(base, new):
    return pytest.importorskip("mmrl_classification.task").harmonic_mean(base, new)


CHECKS = {
    ("VLM-R1", "cosine_length"): lambda num_tokens, acc_reward_arg: shaping.cosine_length(torch.tensor([num_tokens])),
    ("CLS-RL", "base_to_new harmonic mean"): harmonic_mean,
    ("Video-R1", "T-GRPO total reward per rollout"): temporal,
    ("MiniWoB++", "binary"): miniwob("binary"),
    ("MiniWoB++", "thresholded(0.5)"): miniwob("thresholded"),
    ("MiniWoB++", "original(time-decayed)"): miniwob("original"),
    ("MiniWoB++", "core.js endEpisode"): end_episode,
    ("GRPO(VLM-R1 trainer)", "advantage of rollout 0"): lambda rewards: advantage.group_relative(*one_group(rewards))[0],
    ("GUI-G1 / Dr.GRPO", "advantage of rollout 0"): lambda rewards: advantage.group_relative(*one_group(rewards), scale="none")[
        0
    ],
    ("W-REINFORCE", "advantage of rollout 0"): lambda rewards, **more: advantage.weighted(
        torch.tensor(rewards), positive=more["lambda"]
    )[0],
    ("TTRV", "frequency - 0.75*normalised entropy (rollout 0)"): lambda answers: labels.frequency_entropy(answers),
    ("DigiRL", "step filter 1[clamp(nv-v-0.05+r+mc,0,1)>0]"): step_filter,
    ("RL4VLA", "step reward = difference of potential"): grasp,
    ("SimpleVLA-RL", "outcome reward at the last valid action token"): outcome_at_last,
    ("DAPO", "overlong soft penalty"): overlong,
    ("DAPO", "clip-higher token objective min(r*A, clip(r,1-lo,1+hi)*A)"): clip_higher,
    ("GSPO", "sequence ratio exp(mean log-ratio)"): sequence_ratio,
    ("Co-Reward", "reward of original-question rollouts vs majority of the rephrased question"): (
        lambda original_answers, rephrased_answers: labels.co_reward(original_answers, rephrased_answers)
    ),
    ("Lite PPO", "advantage of rollout 0 (group mean, batch std)"): lite_ppo,
    ("StableReinforce", "pre-clipped ratio"): lambda log_ratio: loss.bounded_ratio(
        torch.tensor([log_ratio], dtype=torch.float64)
    ),
}
OF_ROLLOUT_0 = {"TTRV"}
"""Systems of which `value` is the first entry of `expected_vector`, elsewhere it is the mean."""


def test_the_table_is_whole():
    assert len(ROWS) == 77
    assert {(row["system"], row["what"]) for row in ROWS} == CHECKS.keys()


@pytest.mark.parametrize("row", ROWS, ids=[f"{n}-{row['system']}" for n, row in enumerate(ROWS)])
def test_published_value(row):
    arguments = dict(row["inputs"])
    vector = arguments.pop("expected_vector", None)
    found = torch.as_tensor(CHECKS[row["system"], row["what"]](**arguments), dtype=torch.float64)
    if vector is None:
        assert found.numel() == 1 and found.item() == pytest.approx(row["value"], abs=1e-6)
    else:
        assert found.tolist() == pytest.approx(vector, abs=1e-6)
        assert (found[0] if row["system"] in OF_ROLLOUT_0 else found.mean()).item() == pytest.approx(row["value"], abs=1e-6)
