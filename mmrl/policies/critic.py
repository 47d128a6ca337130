"""The value function of a policy: the expected return from the state before each token."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from mmrl.api.errors import UserError
from mmrl.config.sections import CriticConfig
from mmrl.policies.batches import ActionMicroBatch, MicroBatch
from mmrl.policies.policy import Policy
from mmrl.policies.return_bins import Bins, distributional_loss


class Critic:
    """A head on hidden states: the policy's own, or those of a second copy of its model.

    The last layer is initialised to zero, so the first values of all states are 0, or the middle of the range of the bins.
    """

    def __init__(self, policy: Policy, config: CriticConfig, seed: int, outputs: int = 1) -> None:
        """outputs: number of values of a state; a policy that acts may have one for each action of a chunk."""
        if not policy.width:
            raise UserError(f"{type(policy).__name__} has no states that a critic could read: leave critic out")
        self.config, self.outputs = config, outputs
        numbers = {"low": config.low, "high": config.high, "smoothing": config.smoothing}
        self.bins = Bins(number=config.bins, **numbers) if config.bins else None
        self.backbone: Any = policy.clone() if config.backbone == "separate" else None
        noise = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for size, following in pairwise([policy.width, *config.hidden_sizes, outputs * max(config.bins, 1)]):
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

    def values(
        self, micro: MicroBatch | ActionMicroBatch, states_QH: torch.Tensor | None, returns_L: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(values_L before each trained token, values_R after each rollout, loss_L of bins), float32. states_QH: the policy's, if
        shared. returns_L: targets of bins, whose loss is then the third; otherwise it is None."""
        if self.backbone is not None:
            states_QH = self.backbone.states(micro)
        elif states_QH is not None and self.config.detach:
            states_QH = states_QH.detach()
        assert states_QH is not None
        if self.bins is None or returns_L is None:
            return (*micro.critic_values(self.of(states_QH)), None)
        logprobs_QUM = self.distribution(states_QH)
        logprobs_LM = torch.stack([micro.critic_values(one_QU)[0] for one_QU in logprobs_QUM.unbind(-1)], 1)
        return (*micro.critic_values(self.bins.mean(logprobs_QUM)), distributional_loss(logprobs_LM, returns_L, self.bins))

    def of(self, states_QH: torch.Tensor) -> torch.Tensor:
        """float32 [Q, U]: the values of states."""
        return self.head(states_QH.float()) if self.bins is None else self.bins.mean(self.distribution(states_QH))

    def distribution(self, states_QH: torch.Tensor) -> torch.Tensor:
        """float32 [Q, U, M]: log-probabilities of the bins."""
        return self.head(states_QH.float()).unflatten(-1, (self.outputs, -1)).log_softmax(-1)
