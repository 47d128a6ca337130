"""The learner of a `recap` stage: a distribution of values of states, and a policy that imitates under conditions."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmrl.algorithms import recap
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.config.sections import RecapStage
from mmrl.policies.action_values import ActionValues
from mmrl.policies.eyes import Eyes
from mmrl.policies.return_bins import Bins, distributional_loss
from mmrl.policies.shard_files import Under
from mmrl.train.update.experience import Experience, Lived
from mmrl.train.update.learner import Learner
from mmrl.train.update.optimizer import Optimizer


class Conditioned:
    """Values read what a frozen copy of the policy sees of an observation, without a condition."""

    def __init__(self, imitator: Learner, eyes: Eyes, stage: RecapStage, seed: int) -> None:
        """imitator: learns the policy. seed: of the values' first weights and of all draws."""
        self.imitator, self.eyes, self.stage, self.seed, self.calls = imitator, eyes, stage, seed, 0
        self.device = imitator.policy.device
        self.bins = Bins(low=-1.0, high=0.0, number=stage.bins, smoothing=stage.smoothing)
        self._begin()

    def _begin(self) -> None:
        """New values and optimisers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.values = ActionValues(self.eyes.width, 0, critics=1, hidden=self.stage.hidden, bins=self.bins).to(self.device)
        keys = {"learning_rate": self.stage.value_learning_rate, "ema_decay": 0.0, "parts": []}  # parts are the policy's
        self.value_optimizer = Optimizer(list(self.values.named_parameters()), self.stage.model_copy(update=keys))

    @property
    def optimizer(self) -> Optimizer:
        """That of the policy."""
        return self.imitator.optimizer

    def restart(self) -> None:
        """Go back to the policy and the values as they were when the stage began."""
        with torch.no_grad():
            for (_, mine), (_, first) in zip(self.imitator.policy.parameters(), self.eyes.copy.parameters(), strict=True):
                mine.copy_(first)
        self.imitator.optimizer.forget()
        self._begin()

    def logprobs(self, features_nF: torch.Tensor) -> torch.Tensor:
        """[n, bins]: the distribution of the return from these states on."""
        nothing = features_nF.new_zeros(len(features_nF), 0)
        return self.values.outputs(features_nF.to(self.device), nothing.to(self.device))[0]

    @torch.no_grad()
    def value_of(self, features_nF: torch.Tensor) -> torch.Tensor:
        """float32 [n], on the host: its mean."""
        return self.bins.mean(self.logprobs(features_nF)).cpu()

    def learn_values(self, experience: Experience, step: int) -> dict[str, float]:
        """`value_updates` steps towards the returns of all episodes. Returns metrics."""
        features = experience.joined("features")
        returns = torch.cat([episode.returns(self.stage.failure) for episode in experience])
        summed = 0.0
        for number in range(self.stage.value_updates):
            generator = torch.Generator().manual_seed(derive(self.seed, "values", self.calls, number))
            drawn = torch.randint(len(returns), (self.stage.value_batch_size,), generator=generator)
            logprobs = self.logprobs(features[drawn])
            loss = distributional_loss(logprobs, returns[drawn].to(self.device), self.bins).mean()
            if not loss.isfinite():
                raise UserError("the loss of the values is not finite: most likely value_learning_rate is too high; lower it")
            loss.backward()
            self.value_optimizer.step(step)
            summed += loss.item()
        return {"value_loss": summed / self.stage.value_updates}

    def labels(self, experience: Experience) -> tuple[list[bool], dict[str, float]]:
        """(whether each call is positive, in the order of `Experience.calls`; metrics). Of each task's calls of the policy
        itself, those above the task's threshold are; all of an expert's are."""
        found = [(episode, self._advantages(episode)) for episode in experience]
        bounds = {}
        for task in dict.fromkeys(episode.task for episode in experience):
            judged = [a[~episode.tensors["corrected"]] for episode, a in found if episode.task == task]
            together = torch.cat(judged)
            bounds[task] = recap.threshold(together, self.stage.condition.top) if len(together) else 0.0
        positive = [(a > bounds[episode.task]) | episode.tensors["corrected"] for episode, a in found]
        corrected, whole = experience.joined("corrected"), torch.cat(positive)
        own = whole[~corrected]
        metrics = {
            "condition/positive_share": whole.float().mean().item(),
            "recap/corrected_share": corrected.float().mean().item(),
        }
        return whole.tolist(), metrics | ({"recap/above_share": own.float().mean().item()} if len(own) else {})

    def _advantages(self, episode: Lived) -> torch.Tensor:
        stage, tensors = self.stage, episode.tensors
        values_T, returns_T = self.value_of(tensors["features"]), episode.returns(stage.failure)
        return recap.advantages(returns_T, tensors["steps"], values_T, longest=episode.longest, lookahead=stage.lookahead)

    def judged(self, fresh: list[Lived]) -> dict[str, float]:
        """How well the values foresaw episodes that they haven't learned from: the mean size of the error, and the chance that a
        call in an episode that succeeded has a higher value than one in an episode that failed."""
        values = torch.cat([self.value_of(episode.tensors["features"]) for episode in fresh])
        returns = torch.cat([episode.returns(self.stage.failure) for episode in fresh])
        good = torch.cat([torch.full((len(episode),), episode.success) for episode in fresh])
        metrics = {"value": values.mean().item(), "recap/value_error": (values - returns).abs().mean().item()}
        order = recap.ordered(values, good)
        return metrics | ({} if order is None else {"recap/value_order": order})

    # -- resume -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that `load_state` needs to go on bit for bit, beside the experience."""
        found = {f"values/{name}": x for name, x in self.values.state_dict().items()}
        found |= {f"value_optimizer/{name}": x for name, x in self.value_optimizer.state().items()}
        found |= {f"imitator/{name}": x for name, x in self.imitator.state().items()}
        found |= {f"eyes/{name}": x for name, x in self.eyes.state().items()}
        return {name: x.detach().clone() for name, x in found.items()} | {"calls": torch.tensor(self.calls)}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` gave."""
        self.calls = int(tensors["calls"])
        self.values.load_state_dict({name: tensors[f"values/{name}"] for name in self.values.state_dict()})
        self.value_optimizer.load_state(Under(tensors, "value_optimizer/"))
        self.imitator.load_state(Under(tensors, "imitator/"))
        self.eyes.load(Under(tensors, "eyes/"))

    def close(self) -> None:
        self.imitator.close()
