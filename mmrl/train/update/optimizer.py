"""How weights move: which ones, at what rate, by which rule, and what is kept of their way."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import distributed
from torch.autograd.graph import increment_version
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from mmrl.api.errors import UserError
from mmrl.config.parts import entry, part_of
from mmrl.config.sections import CriticConfig, Training
from mmrl.policies.shard import distribute_like, full_tensor


class Optimizer:
    """One stage's: the policy's weights and a critic's own, clipped apart and stepped together.

    bfloat16 weights are too coarse for small steps: they follow float32 masters, which are what is stepped.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Parameter]],
        stage: Training,
        critic: Sequence[tuple[str, Parameter]] = (),
        settings: CriticConfig | None = None,
    ) -> None:
        """named: the policy's weights; those that need no gradient are left out. critic: those of the value function alone, by
        names that begin with `value.` or `critic.`. What `stage.parts` freezes needs no gradient until `release`."""
        self.stage = stage
        self.settings = settings or CriticConfig()
        everything = [*named, *critic]
        ours = {name: entry(stage.parts, name) for name, p in everything if p.requires_grad}
        self.frozen = [p for name, p in everything if (part := ours.get(name)) and part.freeze]
        for p in self.frozen:
            p.requires_grad_(False)
        self.named = [(name, p) for name, p in everything if p.requires_grad]
        if not self.named:
            raise UserError(f"stages.parts freezes all of the {len(ours)} weights that could be trained: leave some of them free")
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for _, p in self.named]
        own = {name for name, _ in critic}
        self.critic = [m for m, (name, _) in zip(self.masters, self.named, strict=True) if name in own]
        self.policy = [m for m, (name, _) in zip(self.masters, self.named, strict=True) if name not in own]
        groups: dict[tuple[float, float, bool, bool], list[torch.Tensor]] = {}
        for master, (name, _) in zip(self.masters, self.named, strict=True):
            part, usual = ours[name], self.settings.learning_rate if name in own else stage.learning_rate
            rate = usual if part is None or part.learning_rate is None else part.learning_rate
            decay = stage.weight_decay if part is None or part.weight_decay is None else part.weight_decay
            muon, spread = stage.optimizer == "muon" and _is_inner(name, master), isinstance(master, DTensor)
            groups.setdefault((rate, decay, muon, spread), []).append(master)  # torch steps no two kinds of tensors together
        ordered = sorted(groups.items(), key=lambda item: item[0][2])  # the muon groups last; of the others, as they came
        self.rates = [rate for (rate, *_), _ in ordered]
        self.rule = _rule(
            stage,
            *([{"params": p, "lr": r, "weight_decay": d} for (r, d, m, _), p in ordered if m == muon] for muon in (False, True)),
        )
        self.averages = [m.detach().clone() for m in self.policy] if stage.ema_decay else []
        self.averaging = False
        self.steps = 0
        """Steps taken since this was made."""

    def release(self) -> None:
        """At the stage's end: a later one may train what this one froze."""
        for p in self.frozen:
            p.requires_grad_(True)
        self.frozen = []

    def learning_rates(self, step: int) -> list[float]:
        """The rates of the parameter groups at a step of the stage, a pure function of its number."""
        return [rate * _factor(self.stage, step) for rate in self.rates]

    def gather(self) -> None:
        """Gradients of bfloat16 weights add up in float32: in bfloat16 the later micro-batches would be rounded away."""
        for master, (_, p) in zip(self.masters, self.named, strict=True):
            if master is not p and p.grad is not None:
                master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
                p.grad = None

    def clear(self) -> None:
        """Forget the gradients."""
        for master, (_, p) in zip(self.masters, self.named, strict=True):
            master.grad = p.grad = None

    def forget_blank(self) -> None:
        """No rank saw a picture: of weights that are spread over them, blank ones gave those that look gradients of zeros, which
        an optimiser's means and weight decay would follow. One process alone would have none."""
        for master, (name, p) in zip(self.masters, self.named, strict=True):
            if isinstance(master, DTensor) and part_of(name.removeprefix("critic.")) in ("vision", "projector"):
                master.grad = p.grad = None

    def step(self, step: int, only_critic: bool = False) -> dict[str, float]:
        """Clip the gradients, step, forget them. only_critic: the policy's are forgotten first, so that nothing of it moves.

        Raises UserError, with the weights as they were, when one is not finite.
        """
        if only_critic:
            for master in self.policy:
                master.grad = None
        self._reduce()
        norm = clip_grad_norm(self.policy, self.stage.max_grad_norm)
        critic_norm = clip_grad_norm(self.critic, self.settings.max_grad_norm)
        for whose, keys, value in (("the", "", norm), ("the critic's", "stages.critic.", critic_norm)):
            if not torch.isfinite(value):
                self.clear()
                raise UserError(
                    f"{whose} gradient is not finite (norm {value.item()}): lower {keys}learning_rate or {keys}max_grad_norm; "
                    "--resume goes on from before this step"
                )
        for group, rate in zip(self.rule.param_groups, self.learning_rates(step), strict=True):
            group["lr"] = rate
        self.steps += 1  # before it, so that an interrupt inside is noticed
        self.rule.step()
        increment_version(self.masters)  # as fused rules don't, and samplers with weights of their own go by it
        with torch.no_grad():
            for master, (_, p) in zip(self.masters, self.named, strict=True):
                if master is not p and master.grad is not None:
                    p.copy_(master)
            if not only_critic:
                for average, master in zip(self.averages, self.policy, strict=False):
                    average.lerp_(master, 1 - self.stage.ema_decay)
        self.clear()
        found = {"grad_norm": norm.item(), "learning_rate": learning_rate(self.stage, step)}
        return found | ({"grad_norm/critic": critic_norm.item()} if self.critic else {})

    def _reduce(self) -> None:
        """Add up the gradients of all ranks, of weights that each holds whole. One that is missing on some of them counts as
        zeros; on all, as missing."""
        masters = [m for m in self.masters if not isinstance(m, DTensor)]
        if not (distributed.is_available() and distributed.is_initialized() and masters):
            return
        there = torch.tensor([float(m.grad is not None) for m in masters], device=masters[0].device)
        distributed.all_reduce(there, distributed.ReduceOp.MAX)
        for master, has in zip(masters, there.tolist(), strict=True):
            if has:
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                master.grad = master.grad.contiguous()
                distributed.all_reduce(master.grad)

    @torch.no_grad()
    def adopt(self) -> None:
        """At the stage's end: go on with the mean weights, where there are any."""
        weights = {id(m): p for m, (_, p) in zip(self.masters, self.named, strict=True)}
        for average, master in zip(self.averages, self.policy, strict=False):
            master.copy_(average)
            weights[id(master)].copy_(average)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Meanwhile the policy has its mean weights (`stage.ema`); then those that are trained, bit for bit."""
        if not self.averages:
            yield
            return
        self._exchange()
        self.averaging = True
        try:
            yield
        finally:
            self._exchange()
            self.averaging = False

    @torch.no_grad()
    def _exchange(self) -> None:
        """Swap the averages with what is in the weights."""
        weights = {id(m): p for m, (_, p) in zip(self.masters, self.named, strict=True)}
        for average, master in zip(self.averages, self.policy, strict=True):
            p = weights[id(master)]
            if master is p:
                trained = p.clone()
                p.copy_(average)
                average.copy_(trained)
            else:
                p.copy_(master if self.averaging else average)

    def state(self) -> dict[str, torch.Tensor]:
        """The rule's tensors, float32 masters and means by parameter name, as they go into a safetensors file.

        Where there are means, the weights as they are trained are among them, so that the policy may be saved with its means.
        """
        if self.averaging:
            raise RuntimeError("the weights are means at the moment: ask for the state outside averaged()")
        found: dict[str, torch.Tensor] = {}
        means = {id(m): a for m, a in zip(self.policy, self.averages, strict=False)}
        for master, (name, p) in zip(self.masters, self.named, strict=True):
            found |= {f"{name}/{k}": torch.as_tensor(v).contiguous() for k, v in self.rule.state.get(master, {}).items()}
            if master is not p or id(master) in means:
                found[f"{name}/master"] = master.detach()
            if id(master) in means:
                found[f"{name}/ema"] = means[id(master)]
        return found

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned. ValueError for the state of other weights."""
        keys: dict[str, list[str]] = {}
        for path in sorted(tensors):  # all ranks gather what is spread in the same order
            name, key = path.rsplit("/", 1)
            keys.setdefault(name, []).append(key)
        if others := sorted(keys.keys() - {name for name, _ in self.named}):
            raise ValueError(f"its optimiser moves {len(others)} weights that this model hasn't, such as {others[0]}")
        means = {id(m): a for m, a in zip(self.policy, self.averages, strict=False)}
        for master, (name, p) in zip(self.masters, self.named, strict=True):
            state = {key: tensors[f"{name}/{key}"] for key in keys.get(name, ())}  # of one weight at a time
            if "master" in state:
                master.copy_(distribute_like(state.pop("master"), master))
                if master is not p:
                    p.copy_(master)
            if "ema" in state and id(master) in means:
                means[id(master)].copy_(distribute_like(state["ema"], master))
            state.pop("ema", None)
            if state:
                placed = {k: v.to(self._place(k, p), copy=True) for k, v in state.items()}
                self.rule.state[master] = {
                    k: v if k == "step" else distribute_like(v, master, factor=True) for k, v in placed.items()
                }

    def _place(self, key: str, p: Parameter) -> torch.device:
        """torch counts steps on the CPU unless the rule is fused."""
        return p.device if key != "step" or self.rule.defaults.get("fused") else torch.device("cpu")


def clip_grad_norm(weights: Sequence[torch.Tensor], limit: float) -> torch.Tensor:
    """Scale the gradients down until their norm, over all ranks, is at most `limit`; what it was."""
    kinds = [[w for w in weights if isinstance(w, DTensor) == spread] for spread in (False, True)]
    if not all(kinds):
        return full_tensor(torch.nn.utils.clip_grad_norm_(weights, limit))
    norms = [full_tensor(torch.nn.utils.get_total_norm([w.grad for w in kind if w.grad is not None])) for kind in kinds]
    norm = torch.stack(norms).norm()
    for kind in kinds:
        torch.nn.utils.clip_grads_with_norm_(kind, limit, norm)
    return norm


def learning_rate(stage: Training, step: int) -> float:
    """The stage's rate at a step, a pure function of its number, so that a resumed run goes on exactly."""
    return stage.learning_rate * _factor(stage, step)


def _factor(stage: Training, step: int) -> float:
    """The share of its learning rate that a group has at a step: up over the warm-up, then as scheduled."""
    if step < stage.warmup_steps:
        return (step + 1) / stage.warmup_steps
    done = (step - stage.warmup_steps) / max(1, stage.steps - stage.warmup_steps)
    left = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[stage.schedule]
    return stage.min_lr_ratio + (1 - stage.min_lr_ratio) * left


def _is_inner(name: str, weight: torch.Tensor) -> bool:
    """A matrix between hidden states, which muon steps; embeddings and heads are none."""
    steps = name.split(".")
    return weight.ndim == 2 and not any("embed" in s or s == "lm_head" for s in steps) and steps[0] != "value"


class Muon:
    """Jordan et al., Muon, for the matrices between hidden states, at rates that match AdamW's; AdamW for all else."""

    def __init__(self, stage: Training, others: list[dict], matrices: list[dict]) -> None:
        self.rules: list[torch.optim.Optimizer] = (
            [torch.optim.AdamW(others, betas=(stage.beta1, stage.beta2), fused=True)] if others else []
        )
        self.rules += [torch.optim.Muon(matrices, momentum=stage.beta1, adjust_lr_fn="match_rms_adamw")] if matrices else []
        self.param_groups = [group for rule in self.rules for group in rule.param_groups]
        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = collections.defaultdict(dict)
        for rule in self.rules:
            rule.state = self.state
        self.defaults = self.rules[0].defaults

    def step(self) -> None:
        for rule in self.rules:
            rule.step()


def _rule(stage: Training, groups: list[dict], matrices: list[dict]) -> torch.optim.Optimizer | Muon:
    betas = (stage.beta1, stage.beta2)
    if stage.optimizer == "muon":
        return Muon(stage, groups, matrices)
    if stage.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=betas, fused=True)
    if stage.optimizer == "adam":
        return torch.optim.Adam(groups, betas=betas, fused=True)
    if stage.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=stage.beta1)
    if stage.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=stage.beta2)
    return torch.optim.Adafactor(groups)
