"""What rules that learn pay for the transitions of a memory, and when it is paid again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from mmrl.config.sections import OffPolicyStage
from mmrl.train.stages.off_policy import MEMORY, OFFLINE, OffPolicySteps
from mmrl.train.update.paying import Paying
from mmrl.train.update.replay import Episode, Layout, Replay

LAYOUT = Layout(simulator="dial", action=1, features=1)
GAMMA = 0.9


class Counting:
    """A rule that has learned twice, and counts how often it is asked."""

    revision, asked = 2, 0

    def pay_for(self, after: object) -> torch.Tensor:
        self.asked += 1
        return torch.full((3,), 7.0)


def paid(changing: float) -> Replay:
    memory = Replay(LAYOUT, 4, gamma=GAMMA, changing=True)
    rows = torch.arange(3.0)[:, None]
    fixed = {"rewards_T": torch.ones(3), "terminated": True, "changing_T": torch.full((3,), changing)}
    memory.add(Episode(seen_TF=rows, after_TF=rows + 1, actions_TA=rows / 3, **fixed))
    return memory


def test_a_resumed_run_pays_again_for_nothing_that_a_checkpoint_has_by_the_same_revision(tmp_path: Path) -> None:
    """Neither for its memory nor for what others did in the policy's place: the numbers would be rounded otherwise."""
    paid(1.0).save(tmp_path / MEMORY)
    paid(2.0).save(tmp_path / OFFLINE)
    steps, rule = object.__new__(OffPolicySteps), Counting()
    steps.stage = OffPolicyStage(kind="off-policy", steps=1, gamma=GAMMA)
    steps.rules, steps.memory, steps.paying = [], Replay(LAYOUT, 4, gamma=GAMMA, changing=True), Paying([rule])  # type: ignore
    steps.load_beside(tmp_path)
    assert steps.taken_over and steps.offline is not None and len(steps.offline) == 3
    seen = SimpleNamespace(rows_of=lambda places, after: list(places), shown=lambda rows: rows)
    for memory, whole in ((steps.memory, 2.0), (steps.offline, 3.0)):
        steps.paying.correct(memory, seen)  # type: ignore[arg-type]
        assert memory._kept["rewards"][:3].tolist() == [whole] * 3
    assert not rule.asked
    rule.revision += 1
    steps.paying.correct(steps.offline, seen)  # type: ignore[arg-type]
    assert rule.asked == 1 and steps.offline._kept["rewards"][:3].tolist() == [8.0] * 3
