"""The value function of a policy: what a rollout is still going to be paid, seen from the state before each token."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import nn

from mmrl.policies.vlm import VLM
from mmrl.schema import CriticConfig
from mmrl.types import MicroBatch


class Critic:
    """A head on hidden states: the policy's own, or those of a second copy of its model that only serves this.

    The last layer begins at zero, so the first values are 0 whatever the state.
    """

    def __init__(self, policy: VLM, config: CriticConfig, seed: int) -> None:
        self.config = config
        self.backbone = twin(policy) if config.backbone == "separate" else None
        width = policy.model.config.get_text_config().hidden_size
        noise = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for size, following in pairwise([width, *config.hidden, 1]):
            layer = nn.utils.skip_init(nn.Linear, size, following)  # its own initialisation would draw from the global generator
            with torch.no_grad():
                nn.init.orthogonal_(layer.weight, generator=noise)
                layer.bias.zero_()
            layers += [layer, nn.GELU()]
        with torch.no_grad():
            layers[-2].weight.zero_()  # type: ignore[operator]
        self.head = nn.Sequential(*layers[:-1]).to(policy.device)

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """(name, parameter); names begin with `value.`, those of a separate backbone with `critic.`."""
        yield from self.head.named_parameters(prefix="value")
        if self.backbone is not None:
            for name, parameter in self.backbone.parameters():
                yield f"critic.{name}", parameter

    def values(self, micro: MicroBatch, states_QH: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(values_L before each trained token, values_R after each rollout), float32. states_QH: the policy's, if shared."""
        if self.backbone is not None:
            states_QH = self.backbone.states(micro)
        elif states_QH is not None and self.config.detach:
            states_QH = states_QH.detach()
        assert states_QH is not None
        values_Q = self.head(states_QH.float())[:, 0]
        return values_Q[: len(micro.source_L)], values_Q[len(micro.source_L) :]


def twin(policy: VLM, frozen: bool = False) -> VLM:
    """A second policy with a copy of the weights as they are now; frozen as the reference of a KL penalty."""
    other = copy.copy(policy)
    other.model = copy.deepcopy(policy.model)
    if frozen:
        other.model.requires_grad_(False)
    other.family = type(policy.family)(other.model, policy.processor)
    return other
