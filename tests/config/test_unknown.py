"""What is said of keys that a section doesn't have. Nothing here needs torch."""

from __future__ import annotations

import pytest

import mmrl.config.load as configs
from mmrl.api.errors import UserError

GOOD = {
    "name": "keys",
    "policy": {"model": "m"},
    "tasks": [{"id": "a/b"}],
    "stages": [{"kind": "rl", "steps": 1}, {"kind": "sft", "steps": 1}],
}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("stages.0.hidden_sizes", "it belongs in [stages.critic]"),
        (
            "stages.0.clip_high",
            ": a setting of the algorithm is written settings = {clip_high = ...}; known keys are kind, steps",
        ),
        ("stages.0.gamma", "or [[stages]] of kind 'off-policy'; a setting of the algorithm is written settings = {gamma = ...}"),
        ("stages.1.clip_high", ": known keys are kind, steps"),
        ("stages.0.max_frames", "it belongs in [policy.video]"),
        ("stages.0.divergence", "it belongs in [[stages]] of kind 'distill'"),
        ("stages.0.critic.epochs", "it belongs in [[stages]]"),
        ("stages.0.seed", "it belongs to no section, so write it at the top of the file"),
        ("train.learning_rate", "it belongs in [[stages]]"),
        ("group_size", "it belongs in [[stages]] or [[tasks]]"),
        ("stages.0.num_generations", "what TRL and ms-swift call so is 'stages.group_size' here (docs/from-trl.md)"),
        ("stages.0.epsilon_high", "what TRL and ms-swift call so is 'stages.settings.clip_high' here (docs/from-trl.md)"),
        ("stages.0.clip_ratio_high", "what verl calls so is 'stages.settings.clip_high' here (docs/from-verl.md)"),
        ("stages.0.lr", "what verl calls so is 'stages.learning_rate' or 'stages.critic.learning_rate' here (docs/from-verl.md)"),
        ("data.max_prompt_length", "it is a section of verl, and docs/from-verl.md says what is written in its place"),
        ("stages.0.max_prompt_length", "what verl calls so has no key here (docs/from-verl.md)"),
        ("stages.0.beta", "settings = {beta = ...}; what TRL and ms-swift call so is 'stages.kl_coef' here (docs/from-trl.md)"),
        ("stages.0.rlsd_lambda", "what ms-swift calls so is 'stages.settings.weight' here (docs/from-ms-swift.md)"),
        ("save_freq", "what verl and LeRobot call so is 'checkpoint.every' here (docs/from-verl.md)"),
        ("stages.0.stpes", "did you mean 'steps'?"),
    ],
)
def test_the_error_says_where_a_key_belongs_or_what_it_is_called_here(key, said):
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, [f"{key}=1"])
    assert str(caught.value).startswith("run file: unknown key") and said in str(caught.value)
