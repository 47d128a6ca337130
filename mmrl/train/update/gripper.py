"""RLPD with a critic of its own for the gripper, which chooses among few actions by their Qs: double DQN on the same batches, and
a penalty for each change of the gripper (Luo et al., HIL-SERL, arXiv 2410.21845, its `SACAgentHybridSingleArm`)."""

from __future__ import annotations

import copy

import torch

from mmrl.algorithms import off_policy
from mmrl.api.seeds import derive
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.action_values import ChoiceValues
from mmrl.policies.actors import Actor
from mmrl.train.update.critics import Figures
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn
from mmrl.train.update.rlpd import Rlpd


class WithGripper(Rlpd):
    """The learner of an `off-policy` stage whose policy chooses what the gripper does. The other critics read the other numbers
    of an action, as if the gripper were a part of the world."""

    def __init__(self, actor: Actor, features: int, stage: OffPolicyStage, seed: int, place: int = 0) -> None:
        """place: index of the number of the features that says how far the gripper is open or closed, with `stage.gripper`."""
        super().__init__(actor, features, stage, seed)
        assert actor.gripper is not None
        self.gripper, self.place = actor.gripper, place
        self.gripper_target = copy.deepcopy(self.gripper).requires_grad_(False)
        self.modules["gripper_target"] = self.gripper_target
        # the policy's optimiser has these weights too, for their means: it never gets a gradient of them
        self.optimizers["gripper"] = Optimizer(list(self.gripper.named_parameters()), self.of_critics)

    def begin_anew(self) -> None:
        super().begin_anew()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "gripper anew"))
            fresh = ChoiceValues(self.features, self.gripper.choices, hidden=self.gripper.hidden).state_dict()
        for module in (self.gripper, self.gripper_target):
            module.load_state_dict(fresh)
        self.optimizers["gripper"].forget()

    def learn_beside(self, drawn: Drawn, generator: torch.Generator, step: int) -> Figures:
        """One step of the gripper's critic and of its target."""
        rewards_n, figures = drawn.rewards_n, Figures()
        if self.stage.gripper:
            changed_n = self.changes(drawn)
            rewards_n = rewards_n - self.stage.gripper.penalty * changed_n
            figures["off_policy/gripper_changes"] = changed_n.float().mean()
        with torch.no_grad():
            following_n = off_policy.double_q(self.gripper(drawn.after_nF), self.gripper_target(drawn.after_nF))
            targets_n = off_policy.td_targets(rewards_n, drawn.discounts_n, following_n)
        choice_n = self.gripper.choice_of(drawn.actions_nA[:, -1])
        q_n = self.gripper(drawn.seen_nF).gather(1, choice_n[:, None])[:, 0]
        loss = off_policy.td_loss(q_n[None], targets_n, drawn.weights_n)
        self.stepped("gripper", loss, step)
        off_policy.follow(list(self.gripper_target.parameters()), list(self.gripper.parameters()), self.stage.target_rate)
        return figures | {"off_policy/gripper_loss": loss.detach()}

    def changes(self, drawn: Drawn) -> torch.Tensor:
        """bool [n]: which transitions pay `stage.gripper.penalty`."""
        how = self.stage.gripper
        assert how is not None
        at_n = drawn.seen_nF[:, self.place]
        above_n, below_n = at_n > how.threshold, at_n < how.threshold
        closed_n, open_n = (below_n, above_n) if how.above == "open" else (above_n, below_n)
        return off_policy.changes(drawn.actions_nA[:, -1], closed_n, open_n)
