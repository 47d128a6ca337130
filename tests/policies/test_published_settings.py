"""Settings of published checkpoints that tiny models lack: sampled and trained alike, with each of them.

A tiny model has the code of its family, and not all ways through it: its windows are longer than a prompt, its experts are of one
group. A new version of transformers, or a new way of mmrl's, must be right with these, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import vlm_cases as cases
from changed_models import change
from mmrl.api.episodes import Conversation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.policies import BOUNDS, PolicySubject, packed_rows_equal_separate_ones, samples_have_the_logprobs_of_an_update
from mmrl.train.update.pack_conversations import pack
from published_settings import SETTINGS, WINDOW, set_values

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_model_is_sampled_and_trained_alike(setting, monkeypatch):
    family, values = SETTINGS[setting]
    name = f"tiny:{family}:hidden=64,layers=4"
    plain = VLM(PolicyConfig(model=name))
    change(monkeypatch, lambda config: set_values(config, values))
    policy = VLM(PolicyConfig(model=name))
    assert differs(plain, policy), "transformers knows nothing of the setting"
    subject = PolicySubject(name, policy, lambda _: policy, BOUNDS["float32"])
    packed_rows_equal_separate_ones(subject)
    samples_have_the_logprobs_of_an_update(subject)


def differs(plain: VLM, policy: VLM) -> bool:
    """Whether two models have other shapes or, with the same weights, other log-probabilities."""
    shapes = [{key: value.shape for key, value in vlm.model.state_dict().items()} for vlm in (plain, policy)]
    if shapes[0] != shapes[1]:
        return True
    plain.model.load_state_dict(policy.model.state_dict())
    rollouts = cases.rollouts(policy, [cases.prompt(1)], longest=2 * WINDOW)
    own_L, others_L = logprobs(policy, rollouts), logprobs(plain, rollouts)
    return bool((own_L - others_L).abs().max() > BOUNDS["float32"])


def logprobs(vlm: VLM, rollouts: Sequence[Conversation]) -> torch.Tensor:
    batch = pack(rollouts, cases.credit(*[1.0] * len(rollouts)), vlm, shared_prefix=False, budget=1)
    with torch.no_grad():
        return torch.cat([vlm.outputs(micro, 1.0).logprobs_L for micro in batch.micro])
