"""IQL: critics that ask for no action that the memory doesn't have, and a policy that imitates its actions, the more the better
they are (Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, arXiv 2110.06169)."""

from __future__ import annotations

import torch

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.actors import Actor, SquashedNormal
from mmrl.train.update.critics import Critics, Figures, read
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn, Replay


class Iql(Critics):
    """The learner of an `off-policy` stage with `iql`: a policy, its critics, the values of states, and what resumes them."""

    def __init__(self, actor: Actor, features: int, stage: OffPolicyStage, seed: int) -> None:
        """actor: the policy that learns. features: numbers of an observation's features. Raises UserError for a policy whose
        actions have no density."""
        if not isinstance(actor, SquashedNormal):
            raise UserError("stages.iql learns how far actions spread, and policy.options.noise is fixed: set it to 0")
        if actor.residual:
            raise UserError(
                "stages.iql imitates the memory's actions, and a residual policy chooses corrections: set "
                "policy.options.residual = 0"
            )
        assert stage.iql is not None
        super().__init__(features, actor.dims, stage, seed, next(actor.parameters()).device)
        self.settings, self.actor = stage.iql, actor
        self.modules = {"actor": actor, **self.modules}
        self.optimizer = Optimizer(list(actor.named_parameters()), stage)
        self.optimizers = {"actor": self.optimizer, **self.optimizers}

    def update(self, online: Replay, offline: Replay | None = None, step: int = 0) -> dict[str, float]:
        """`updates` steps of the critics and the values, and one of the policy on the last batch. step: index in the stage, for
        the learning rate. Returns metrics."""
        drawn, _, figures = self.learn_values(online, offline, step)
        return read(figures | self._update_actor(drawn, step))

    def following(self, drawn: Drawn, generator: torch.Generator) -> torch.Tensor:
        return self.value_of(drawn.after_nF)

    def _update_actor(self, drawn: Drawn, step: int) -> Figures:
        settings = self.settings
        weights_n = off_policy.advantage_weights(settings.inverse_temperature * self.advantages_n, largest=settings.max_weight)
        logprobs_n = self.actor.logprobs(drawn.seen_nF, drawn.actions_nA)
        loss = -(weights_n * logprobs_n).mean()
        stepped = self.stepped("actor", loss, step)
        return {"loss": loss.detach(), "off_policy/imitated_weight": weights_n.mean(), **stepped}
