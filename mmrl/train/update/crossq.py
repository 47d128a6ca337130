"""CrossQ: a soft actor-critic whose critics have batch normalisation and no target networks (Bhatt et al., CrossQ: Batch
Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity, arXiv 1902.05605)."""

from __future__ import annotations

import torch

from mmrl.algorithms import off_policy
from mmrl.train.update.critics import frozen
from mmrl.train.update.replay import Drawn
from mmrl.train.update.rlpd import Rlpd


class CrossQ(Rlpd):
    """The learner of an `off-policy` stage with `crossq`. What follows a transition is valued by the critics that learn, in the
    same pass as the transition, so that both are normalised by the moments of both together. As published, the policy climbs the
    lowest of the critics, which the running moments normalise there."""

    def compared(self, drawn: Drawn, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            chosen_nA, logprobs_n = self.sampled(drawn.after_nF, generator)
        self.critic.train()
        both = self.critic.outputs(torch.cat([drawn.seen_nF, drawn.after_nF]), torch.cat([drawn.actions_nA, chosen_nA]))
        self.critic.eval()
        here, after = both.chunk(2, 1)
        after_En = self.bins.mean(after.detach()) if self.bins else after.detach()
        following_n = self.soft(self.lowest(after_En, generator), logprobs_n)
        return here, off_policy.td_targets(drawn.rewards_n, drawn.discounts_n, following_n)

    def worth(self, features_nF: torch.Tensor, chosen_nA: torch.Tensor) -> torch.Tensor:
        return off_policy.lowest(frozen(self.critic, features_nF, chosen_nA))
