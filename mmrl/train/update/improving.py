"""PA-RL: critics choose among a policy's samples and move the best of them up, and the policy imitates what they found (Mark et
al., Policy Agnostic RL, arXiv 2412.06685). The critics are Cal-QL's or IQL's."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmrl.algorithms import off_policy
from mmrl.api.seeds import derive
from mmrl.api.transfer import upload_one
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.acting.heads import categorical
from mmrl.policies.eyes import Eyes
from mmrl.policies.shard_files import Under
from mmrl.train.update.candidates import Candidates
from mmrl.train.update.critics import Critics, read
from mmrl.train.update.learner import Learner
from mmrl.train.update.replay import Drawn, Replay, draw_mixed


class Improving(Critics):
    """The learner of an `off-policy` stage with `improve`: critics, the policy that imitates, its optimiser, and what resumes
    them."""

    def __init__(
        self,
        imitator: Learner,
        source: Candidates,
        features: int,
        dims: int,
        stage: OffPolicyStage,
        seed: int,
        eyes: Eyes | None = None,
    ) -> None:
        """imitator: learns the policy. features, dims: numbers of an observation's features and of a whole chunk of actions.
        eyes: what sees for the critics, if it isn't the policy."""
        super().__init__(features, dims, stage, seed, imitator.policy.device)
        assert stage.improve is not None
        self.imitator, self.source, self.eyes, self.how = imitator, source, eyes, stage.improve
        self.optimizer = imitator.optimizer

    def improved(
        self, features_nF: torch.Tensor, candidates_nMA: torch.Tensor, instead_nA: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(actions [n, keep, A], their Qs): see `off_policy.improve`. The Q is the mean over critics, as in the published
        code."""
        how = self.how
        q_of = lambda actions: self.critic(features_nF, actions).mean(0)  # noqa: E731
        return off_policy.improve(
            candidates_nMA, q_of, keep=how.keep, steps=how.steps, step_size=how.step_size, instead_nA=instead_nA
        )

    def best(self, features_nF: torch.Tensor, candidates_nMA: torch.Tensor) -> torch.Tensor:
        """[n, A]: the best improved candidate."""
        return self.improved(features_nF, candidates_nMA)[0][:, 0]

    def picked(
        self,
        features_nF: torch.Tensor,
        candidates_nMA: torch.Tensor,
        temperature: float,
        uniform_n: torch.Tensor,
        instead_nA: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[n, A]: one improved candidate each, drawn with the chances softmax(Q / temperature); with temperature 0 the best.
        uniform_n: numbers in (0, 1) that decide."""
        actions, q_nk = self.improved(features_nF, candidates_nMA, instead_nA)
        number_n = categorical(q_nk, temperature, uniform_n)[0]
        return actions[torch.arange(len(number_n), device=self.device), number_n]

    def update(self, online: Replay, offline: Replay | None = None, step: int = 0) -> dict[str, float]:
        """`updates` steps of the critics. Returns metrics."""
        return read(self.learn_values(online, offline, step)[2])

    def following(self, drawn: Drawn, generator: torch.Generator) -> torch.Tensor:
        if self.values is not None:
            return self.value_of(drawn.after_nF)
        best = self.best(drawn.after_nF, self.source.of(drawn, True, generator))
        return self.pessimistic(drawn.after_nF, best, generator)

    def contrasted(self, drawn: Drawn, q_En: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Without weights by density, which no policy has to give: the data's own action is among the candidates, and the
        policy's are the best ones, here and where the transition ends."""
        many = self.stage.conservative_samples
        here = self.best(drawn.seen_nF, self.source.of(drawn, False, generator))[:, None]
        there = self.best(drawn.after_nF, self.source.of(drawn, True, generator))[:, None]
        q_EnM = self.critic(drawn.seen_nF, torch.cat([self.anywhere(drawn, generator), here, there], 1))
        best = [q_EnM[..., at : at + 1].expand(-1, -1, many) for at in (many, many + 1)]  # each counts as often as the others
        q_EnM = torch.cat([q_EnM[..., :many], *best, q_En[..., None]], -1)
        number = torch.arange(q_EnM.shape[-1], device=self.device)
        calibrated = (number >= many) & (number < 3 * many)
        return off_policy.conservative_loss(q_EnM, torch.zeros_like(q_EnM[0]), q_En, self.floor(drawn), calibrated)

    def imitated(self, online: Replay, offline: Replay | None, number: int) -> tuple[Drawn, torch.Tensor, dict[str, float]]:
        """(transitions, the actions [n, A] to imitate where they begin, metrics) of one update of the policy. number: of the
        update since the critics last learned."""
        seed = derive(self.seed, "imitate", self.calls, number)
        drawn = draw_mixed(online, offline, self.how.batch_size, seed, share=self.offline_share(online, offline)).on(self.device)
        generator = torch.Generator().manual_seed(derive(seed, "noise"))
        candidates = self.source.of(drawn, False, generator)
        instead = drawn.actions_nA if self.how.data_action else None
        uniform_n = upload_one(torch.rand(len(candidates), generator=generator), self.device)
        best = self.picked(drawn.seen_nF, candidates, self.how.imitation_temperature, uniform_n, instead)
        with torch.no_grad():
            gain = self.critic(drawn.seen_nF, best).mean() - self.critic(drawn.seen_nF, candidates).mean()
        return drawn, best, {"off_policy/gain": gain.item()}

    def forget(self) -> None:
        super().forget()
        self.optimizer.forget()

    # -- resume -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        found = super().state() | {f"imitator/{name}": x.detach().clone() for name, x in self.imitator.state().items()}
        return found | {f"eyes/{name}": x.detach().clone() for name, x in (self.eyes.state() if self.eyes else {}).items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_state(tensors)
        self.imitator.load_state(Under(tensors, "imitator/"))
        if self.eyes:
            self.eyes.load(Under(tensors, "eyes/"))

    def close(self) -> None:
        self.imitator.close()
