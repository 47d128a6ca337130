"""Critics of actions that learn from a memory: their targets, IQL's values, Cal-QL's penalty, their optimiser, and what resumes
them."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.transfer import download, upload_one
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.action_values import ActionValues
from mmrl.policies.batch_renorm import BatchRenorm
from mmrl.policies.return_bins import Bins, distributional_loss
from mmrl.policies.shard_files import Under
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn, Replay, draw_mixed

Figures = dict[str, float | torch.Tensor]
"""Name -> a metric; of those on the device only the last ones are wanted, so nobody waits for them before `read`."""


class Critics:
    """An ensemble of critics. A subclass says how its policy goes on after a step, and how it learns from the critics."""

    optimizer: Optimizer
    """That of the policy."""

    def __init__(self, features: int, dims: int, stage: OffPolicyStage, seed: int, device: torch.device) -> None:
        """features: numbers of an observation's features. dims: the first numbers of an action, which the critics read."""
        self.stage, self.seed, self.dims, self.calls, self.device = stage, seed, dims, 0, device
        self.bins = Bins(low=stage.low, high=stage.high, number=stage.bins, smoothing=stage.smoothing) if stage.bins else None
        self.features = features
        self.critic = self._new_critic(seed)
        self.novelty = Spread()
        """Of the novelty that was paid so far."""
        self._visited: tuple[Replay, int, torch.Tensor] | None = None
        """While the policy explores: a memory, how many transitions it had got, and its states, on the device."""
        self.modules: dict[str, nn.Module] = {"critic": self.critic}
        """What is saved beside the policy."""
        self.target = self.critic
        """Those that follow the critics; CrossQ has none, and asks the critics themselves."""
        if not stage.crossq:
            self.target = self.modules["target"] = copy.deepcopy(self.critic).requires_grad_(False)
        self.others = stage.model_copy(update={"ema_decay": 0.0, "parts": []})
        """The stage of those whose mean weights nobody asks for, and whose weights are no part of the policy."""
        self.of_critics = self.others.model_copy(update={"learning_rate": stage.critic_learning_rate or stage.learning_rate})
        """The same with the learning rate of the critics."""
        self.optimizers = {"critic": Optimizer(list(self.critic.named_parameters()), self.of_critics)}
        self.values: ActionValues | None = None
        """IQL's values of states."""
        self.advantages_n = torch.zeros(0, device=self.device)
        """How far the Q of each action of the last batch was above the value of its state, before both were updated."""
        if stage.expectile:
            self.values = self._new_values(seed)
            self.modules["values"] = self.values
            self.optimizers["values"] = Optimizer(list(self.values.named_parameters()), self.of_critics)

    def _new_critic(self, seed: int) -> ActionValues:
        stage, how = self.stage, self.stage.crossq
        renorm = functools.partial(BatchRenorm, momentum=how.momentum, warmup=how.warmup_updates) if how else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            new = ActionValues(
                self.features,
                self.dims,
                critics=stage.critics,
                hidden=stage.hidden,
                bins=self.bins,
                dropout=stage.dropout,
                renorm=renorm,
            )
        return new.to(self.device).eval()

    def _new_values(self, seed: int) -> ActionValues:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "values"))
            return ActionValues(self.features, 0, critics=1, hidden=self.stage.hidden).to(self.device)

    def begin_anew(self) -> None:
        """Forget what the critics have learned, such as while the policy explored."""
        fresh = self._new_critic(derive(self.seed, "anew")).state_dict()
        self.critic.load_state_dict(fresh)
        self.target.load_state_dict(fresh)
        self.optimizers["critic"].forget()
        if self.values is not None:
            self.values.load_state_dict(self._new_values(derive(self.seed, "anew")).state_dict())
            self.optimizers["values"].forget()
        self._visited = None

    # -- what a subclass defines ------------------------------------------------------------------------------------------

    def following(self, drawn: Drawn, generator: torch.Generator) -> torch.Tensor:
        """[n]: the value of what follows each transition."""
        raise NotImplementedError

    def contrasted(self, drawn: Drawn, q_En: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Cal-QL's penalty, or CQL's."""
        raise NotImplementedError

    # -- an update --------------------------------------------------------------------------------------------------------

    def learn_values(self, online: Replay, offline: Replay | None, step: int) -> tuple[Drawn, torch.Generator, Figures]:
        """`updates` steps of the critics. Returns the last batch, its generator, and metrics."""
        figures: Figures = {}
        stage, share = self.stage, self.offline_share(online, offline)
        for number in range(stage.updates):
            seed = derive(self.seed, "off-policy", self.calls, number)
            drawn = draw_mixed(online, offline, stage.batch_size, seed, share=share, steps=stage.n_step).on(self.device)
            generator = torch.Generator().manual_seed(derive(seed, "noise"))
            novelty = {}
            if step < stage.explore_steps:
                far_n = off_policy.novelty(drawn.seen_nF, self._states(online))
                self.novelty.add(far_n.cpu())
                drawn = replace(drawn, rewards_n=far_n / self.novelty.std)
                novelty = {"off_policy/novelty": far_n.mean()}
            with self.dropping(self.calls, number):
                errors_n, figures = self._update_critic(drawn, generator, step)
            figures |= novelty
            online.reprioritise(drawn.places_n, errors_n)
        self.calls += 1
        return drawn, generator, figures

    @contextmanager
    def dropping(self, *seed: int | str) -> Iterator[None]:
        """Within it the critics, and their targets, drop numbers, which are a function of the seed."""
        if not self.stage.dropout:
            yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derive(self.seed, "dropout", *seed))
            self.critic.train(), self.target.train()
            try:
                yield
            finally:
                self.critic.eval(), self.target.eval()

    def offline_share(self, online: Replay, offline: Replay | None) -> float:
        """The share of a batch that is offline: all of it as long as nothing was played."""
        if offline is None:
            return 0.0
        return self.stage.offline_share if len(online) else 1.0

    def _states(self, memory: Replay) -> torch.Tensor:
        """The memory's states on the device: while nothing is added, many updates are paid for novelty among the same ones."""
        if self._visited is None or self._visited[:2] != (memory, memory.added):
            self._visited = memory, memory.added, memory.states.to(self.device)
        return self._visited[2]

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Standard normal numbers, the same on every device."""
        return upload_one(torch.randn(*shape, generator=generator), self.device)

    def pessimistic(self, features_nF: torch.Tensor, actions_nA: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """[n]: the lowest value of a subset of the target critics, drawn anew."""
        return self.lowest(self.target(features_nF, actions_nA), generator)

    def lowest(self, q_En: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """[n]: the lowest Q of a subset of the critics, drawn anew."""
        subset = torch.randperm(self.stage.critics, generator=generator)[: self.stage.subset]
        return off_policy.lowest(q_En, upload_one(subset, self.device))

    def mean_value(self, features_nF: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
        """The mean over critics [n], as REDQ, RLPD and ResFiT have it, with a gradient by the actions alone."""
        return frozen(self.critic, features_nF, actions_nA).mean(0)

    def floor(self, drawn: Drawn) -> torch.Tensor | None:
        """[n]: the returns below which Cal-QL's penalty pushes no Q; None of CQL's."""
        return drawn.paid_n if self.stage.conservative_calibrated else None

    def anywhere(self, drawn: Drawn, generator: torch.Generator) -> torch.Tensor:
        """[n, M, A]: actions in the whole of [-1, 1], for the penalty."""
        shape = (len(drawn.rewards_n), self.stage.conservative_samples, self.dims)
        return upload_one(torch.rand(shape, generator=generator) * 2 - 1, self.device)

    def compared(self, drawn: Drawn, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """(what the critics give for the transitions' actions, see `ActionValues.outputs`; their targets [n], without a
        gradient)."""
        with torch.no_grad():
            following_n = self.following(drawn, generator)
            targets_n = off_policy.td_targets(drawn.rewards_n, drawn.discounts_n, following_n)
        return self.critic.outputs(drawn.seen_nF, drawn.actions_nA[:, : self.dims]), targets_n

    def _update_critic(self, drawn: Drawn, generator: torch.Generator, step: int) -> tuple[torch.Tensor, Figures]:
        """(errors [n], metrics)."""
        stage = self.stage
        outputs, targets = self.compared(drawn, generator)
        if self.bins:
            q_En = self.bins.mean(outputs)
            per = distributional_loss(outputs.flatten(0, 1), targets.repeat(stage.critics), self.bins)
            loss = (per.unflatten(0, (stage.critics, -1)) * drawn.weights_n).mean(1).sum()
        else:
            q_En = outputs
            loss = off_policy.td_loss(q_En, targets, drawn.weights_n)
        figures: Figures = {"value_loss": loss.detach(), "value": q_En.detach().mean()}
        if stage.conservative:
            penalty = self.contrasted(drawn, q_En, generator)
            figures["off_policy/conservative"] = penalty.detach()
            loss = loss + stage.conservative * penalty
        figures["grad_norm/critic"] = self.stepped("critic", loss, step)["grad_norm"]
        figures |= self.learn_beside(drawn, generator, step)
        if self.target is not self.critic:
            off_policy.follow(list(self.target.parameters()), list(self.critic.parameters()), stage.target_rate)
        return (q_En.detach() - targets).abs().mean(0), figures

    def value_of(self, features_nF: torch.Tensor) -> torch.Tensor:
        """[n]: IQL's values of states."""
        assert self.values is not None
        return self.values.outputs(features_nF, features_nF.new_zeros(len(features_nF), 0))[0]

    def learn_beside(self, drawn: Drawn, generator: torch.Generator, step: int) -> Figures:
        """One step of what else the targets are made of, before the target critics move: IQL's values learn an expectile of the
        lowest of all target critics at the memory's actions. As in the published code, all losses are of the weights before the
        update. Returns metrics."""
        if self.values is None:
            return {}
        with torch.no_grad():
            q_n = off_policy.lowest(self.target(drawn.seen_nF, drawn.actions_nA[:, : self.dims]))
        values_n = self.value_of(drawn.seen_nF)
        self.advantages_n = q_n - values_n.detach()
        loss = off_policy.expectile_loss(q_n, values_n, drawn.weights_n, expectile=self.stage.expectile)
        self.stepped("values", loss, step)
        above = (self.advantages_n > 0).float().mean()
        return {"off_policy/expectile_loss": loss.detach(), "off_policy/above_value": above}

    def stepped(self, name: str, loss: torch.Tensor, step: int) -> dict[str, float]:
        """One step of an optimiser. Raises UserError for a loss that isn't finite."""
        if not loss.isfinite():
            raise UserError(f"the loss of the {name} is not finite: most likely a learning rate was too high; lower it")
        self.optimizers[name].backward(loss)
        return self.optimizers[name].step(step)

    def forget(self) -> None:
        """Drop the optimisers' running means, see `Optimizer.forget`."""
        for optimizer in self.optimizers.values():
            optimizer.forget()

    # -- resume -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that `load_state` needs to go on bit for bit, beside the memories."""
        found = {f"{name}/{key}": x for name, module in self.modules.items() for key, x in module.state_dict().items()}
        found |= {"calls": torch.tensor(self.calls), "novelty": self.novelty.state()}
        for name, optimizer in self.optimizers.items():
            found |= {f"optimizer/{name}/{key}": x for key, x in optimizer.state().items()}
        return {name: x.detach().clone() for name, x in found.items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` gave. Raises UserError for the state of another shape."""
        for name, module in self.modules.items():
            own = {key: tensors.get(f"{name}/{key}") for key in module.state_dict()}
            for key, x in module.state_dict().items():
                if (found := own[key]) is None or found.shape != x.shape:
                    there = None if found is None else list(found.shape)
                    raise UserError(f"the saved {name}'s {key} is {there}, and {list(x.shape)} here: make the sizes equal")
            module.load_state_dict(own)
        self.calls = int(tensors["calls"])
        self.novelty.load_state(tensors["novelty"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state(Under(tensors, f"optimizer/{name}/"))

    def close(self) -> None:
        """End the stage."""


class Spread:
    """The standard deviation of all numbers that were added."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0.0, 0.0, 0.0
        """Of the numbers; the last is the sum of their squared distances to the mean."""

    def add(self, x_n: torch.Tensor) -> None:
        count, mean = len(x_n), x_n.double().mean().item()
        moved, total = mean - self.mean, self.count + count
        self.squares += (x_n.double() - mean).square().sum().item() + moved**2 * self.count * count / total
        self.mean, self.count = self.mean + moved * count / total, total

    @property
    def std(self) -> float:
        """At least a little above 0."""
        return max(math.sqrt(self.squares / max(1.0, self.count)), 1e-6)

    def state(self) -> torch.Tensor:
        return torch.tensor([self.count, self.mean, self.squares], dtype=torch.float64)

    def load_state(self, saved: torch.Tensor) -> None:
        self.count, self.mean, self.squares = saved.tolist()


def read(figures: Mapping[str, float | torch.Tensor]) -> dict[str, float]:
    """The metrics as numbers, those on the device by one copy."""
    told = download({name: x for name, x in figures.items() if isinstance(x, torch.Tensor)})
    return {name: float(told.get(name, x)) for name, x in figures.items()}


def frozen(critic: ActionValues, features_nF: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
    """[E, n]: Qs with a gradient by the actions alone."""
    critic.requires_grad_(False)
    q_En: torch.Tensor = critic(features_nF, actions_nA)
    critic.requires_grad_(True)
    return q_En


def even_density(drawn: Drawn, many: int, dims: int) -> torch.Tensor:
    """[n, M]: the log-density of actions anywhere in a box of sides 2."""
    return torch.full((len(drawn.rewards_n), many), -dims * math.log(2), device=drawn.rewards_n.device)
