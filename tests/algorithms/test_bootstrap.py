"""Episodes that are bootstrapped where they ended, against what RLinf's code computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from golden_rlinf import GOES_ON, TERMINATED
from mmrl.algorithms.gae import gae
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt, Score, Status
from mmrl.config.sections import CriticConfig, RlStage

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "rlinf-bootstrap.jsonl").read_text().splitlines()]
KINDS: dict[str, Any] = {"standard": "truncated", "always": "always"}
"""RLinf's `bootstrap_type` -> `critic.bootstrap`."""


def episodes(row: dict[str, Any]) -> list[tuple[slice, int, Trajectory]]:
    """Each episode with its calls and its environment, in a row whose environments began anew one by one."""
    rewards, values, last = (torch.tensor(row[name]) for name in ("rewards", "values", "last"))
    found = []
    for env in range(rewards.shape[1]):
        begin = 0
        for call in range(len(rewards)):
            if row["ends"][call][env] == GOES_ON:
                continue
            own, end = slice(begin, call + 1), row["ends"][call][env]
            paid = rewards[own, env]
            track = TrajectoryData(
                instruction="",
                images={},
                state=None,
                choices=torch.zeros(*paid.shape, 1),
                logprobs_TKC=torch.zeros(*paid.shape, 1),
                valid_TK=torch.ones(paid.shape, dtype=torch.bool),
                rewards_TK=paid,
                values_TU=values[own, env],
                bootstrap=float(last[call, env, 0]),
            )
            status = Status.FINISHED if end == TERMINATED else Status.TRUNCATED_TIME
            found.append((own, env, Trajectory(prompt=Prompt(messages=[]), group=0, status=status, data=track)))
            begin = call + 1
    return found


@pytest.mark.parametrize("row", ROWS)
def test_advantages_and_returns_are_those_of_the_published_code(row: dict[str, Any]) -> None:
    played = episodes(row)
    assert {e for call in row["ends"] for e in call} >= {TERMINATED}
    critic = CriticConfig(bootstrap=KINDS[row["bootstrap"]])
    stage = RlStage(kind="rl", steps=1, ratio="action", credit="action", critic=critic)
    values = [e.data.values_TU.flatten() for *_, e in played if e.data is not None and e.data.values_TU is not None]
    measured = {
        "values": torch.nn.utils.rnn.pad_sequence(values, batch_first=True),
        "bootstrap": torch.tensor([e.bootstrap for *_, e in played]),
    }
    signals = Signals([e for *_, e in played], [Score(0.0)] * len(played), stage, measure=lambda names: measured)
    given = [signals[name] for name in ("rewards_NT", "values_NT", "bootstrap_N", "units_NT")]
    found = gae(*given, gamma=row["gamma"], lam=row["lam"], whiten=False)
    for name, mine in zip(("advantages", "returns"), found, strict=True):
        calls, chunk = len(row["ends"]), len(row["rewards"][0][0])
        published = np.array(row[name]).reshape(calls, chunk, -1)
        for n, (own, env, _) in enumerate(played):
            expected = published[own, :, env].flatten()
            assert np.allclose(mine[n, : len(expected)], expected, atol=2e-5)
