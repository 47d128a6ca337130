"""Keys of preference stages that can't work, or not together, are refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import runs
from mmrl import Task
from mmrl.api.errors import UserError
from mmrl.config.preferences import PreferenceStage
from mmrl.train.checks.preferences import check_preference
from mmrl.train.resolve import resolve


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss": "ipo", "label_smoothing": 0.1}, 'label_smoothing has no effect with loss = "ipo": drop it'),
        ({"loss": "dpo", "margin": 1.0}, 'margin has no effect with loss = "dpo": drop it'),
        ({"loss": "simpo", "reference": "frozen"}, 'reference has no effect with loss = "simpo": drop it'),
        ({"loss": "bradley-terry", "nll_weight": 1.0}, "nll_weight is for policies"),
        ({"loss": "bradley-terry", "pairs": "sampled"}, "trains a reward model, which samples nothing"),
        ({"loss": "kto", "prompts_per_step": 1}, "set prompts_per_step to at least 2"),
        ({"loss": "kto", "desirable_weight": 0.0, "undesirable_weight": 0.0}, "are both 0, so there is no loss"),
        (
            {"loss": "aot", "prompts_per_step": 1},
            'loss = "aot" compares the distributions of a step.s pairs: set prompts_per_step',
        ),
        ({"loss": "exo", "label_smoothing": 0.0}, "the loss exo is infinite without label_smoothing: drop it"),
        ({"loss": "sppo", "divergence": "alpha"}, 'divergence has no effect with loss = "sppo": drop it'),
        ({"divergence_alpha": 0.3}, 'divergence_alpha has no effect with divergence = "reverse-kl": drop it'),
        ({"loss": "aot", "on_policy_weights": True}, 'on_policy_weights has no effect with loss = "aot": drop it'),
        ({"loss": "orpo", "tail_weight": 0.5}, 'tail_weight has no effect with loss = "orpo": drop it'),
        ({"reward_alpha": 0.5, "loss": "simpo"}, 'reward_alpha has no effect with loss = "simpo": drop it'),
        ({"reward_alpha": 11.0, "loss": "alphapo"}, "reward_alpha"),
        ({"reward_alpha": float("nan"), "loss": "alphapo"}, "reward_alpha"),
        ({"loss": "alphapo", "reference": "none"}, 'reference has no effect with loss = "alphapo": drop it'),
        ({"reward_shift": True}, 'reward_shift has no effect with loss = "dpo": drop it'),
        (
            {"loss": "nca", "reference": "none"},
            'the loss nca measures each side against the reference model: drop reference = "none"',
        ),
        ({"reference": "none", "divergence": "forward-kl"}, 'divergence is one from the reference model, and reference = "none"'),
        ({"losses": {"dpo": 1.0}}, 'losses has one loss: write loss = "dpo"'),
        ({"losses": {"dpo": 1.0, "bco": 1.0}, "loss": "ipo"}, "losses takes the place of loss: drop one of the two"),
        ({"losses": {"dpo": 1.0, "bradley-terry": 1.0}}, "bradley-terry trains a reward model, and the other losses a policy"),
        ({"losses": {"dpo": 1.0, "nca": 1.0}, "divergence": "alpha"}, "divergence has no meaning for nca: drop one of the two"),
        ({"losses": {"dpo": 1.0, "nca": 1.0}, "margin": 1.0}, r"margin has no effect with losses = \{dpo, nca\}: drop it"),
        ({"losses": {"dpo": 1.0, "nca": 0.0}}, "stages.0.losses.nca"),
        ({"discopop_tau": 1.0, "loss": "discopop"}, "discopop_tau"),
        ({"reference": "adapter"}, r'stages.0.reference = "adapter" needs adapters'),
        ({"reference_every": 2, "reference": "none"}, "reference_every moves the reference model, and there is none: drop it"),
        ({"reference_every": 2, "loss": "simpo"}, "reference_every moves the reference model, and there is none: drop it"),
        ({"reference_decay": 0.5}, "reference_decay = 0.5 has no effect without reference_every: set that to 10"),
        ({"group_size": 1}, "group_size"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
    ],
)
def test_keys_that_can_t_work_are_refused(tmp_path: Path, keys: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(runs.toy_config(tmp_path, stages=[{"kind": "preference", "steps": 1, **keys}]))


def test_a_task_without_pairs_is_refused(tmp_path: Path) -> None:
    config = runs.toy_config(tmp_path, stages=[{"kind": "preference", "steps": 1}])

    with pytest.raises(UserError, match=r"task 'toy/colour' has no pairs: set pairs = \"sampled\", or use judge/pairs"):
        check_preference(config, 0, PreferenceStage(kind="preference", steps=1), {"toy/colour": Task()})


def test_a_simulator_has_no_words_to_weigh(tmp_path: Path) -> None:
    config = runs.toy_config(tmp_path, stages=[{"kind": "preference", "steps": 1}])
    task = type("Acts", (Task,), {"simulation": "s"})()
    stage = PreferenceStage(kind="preference", steps=1, pairs="sampled", on_policy_weights=True)
    with pytest.raises(UserError, match="on_policy_weights is for words, and task 'toy/colour' acts in a simulator: drop it"):
        check_preference(config, 0, stage, {"toy/colour": task})
