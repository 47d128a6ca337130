"""Writes tests/golden/preference.jsonl: what the losses on pairs of TRL and ms-swift make of random log-probabilities.

    .venv/bin/python tests/support/golden_preference.py trl             # TRL 1.16
    PYTHONPATH=FOLDER .venv/bin/python tests/support/golden_preference.py bco    # with trl==0.24.0 unpacked in FOLDER
    .peers/swift/bin/python tests/support/golden_preference.py swift    # ms-swift 4.6, with msgspec

Each call replaces the rows of its program. A loss is a method of a trainer: it is called with an object that has what it reads,
and a model whose log-probabilities are the row's. A row has mmrl's keys of a stage, from which `of_trl` makes TRL's; those of
ms-swift belong to successive steps.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "preference.jsonl"
PAIRS, TOKENS = 4, 5
DPO = {
    "dpo": "sigmoid",
    "dpo-norm": "sigmoid_norm",
    "hinge": "hinge",
    "ipo": "ipo",
    "exo": "exo_pair",
    "robust": "robust",
    "discopop": "discopop",
    "nca": "nca_pair",
    "bco": "bco_pair",
    "sppo": "sppo_hard",
    "apo-zero": "apo_zero",
    "apo-down": "apo_down",
    "aot": "aot",
    "aot-unpaired": "aot_unpaired",
}
"""mmrl's loss -> TRL's `loss_type`."""
DIVERGENCES = {"forward-kl": "forward_kl", "jensen-shannon": "js_divergence", "alpha": "alpha_divergence"}
GAPS = ("dpo", "dpo-norm", "hinge", "ipo", "exo", "robust", "discopop")
"""Losses that may have another divergence."""


def dpo_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, keys) of what `DPOTrainer` computes."""
    smoothing = {"robust": 0.15, "exo": 0.02, "aot": 0.1, "aot-unpaired": 0.1}
    for loss in DPO:
        keys: dict[str, Any] = {"loss": loss, "beta": 0.3}
        keys |= {"label_smoothing": smoothing[loss]} if loss in smoothing else {}
        yield loss, keys
        yield f"{loss}-tail", keys | {"tail_weight": 0.4}
        if loss not in ("aot", "aot-unpaired", "hinge"):  # with weights, TRL 1.16's hinge has no gradient: autograd raises
            yield f"{loss}-weights", keys | {"on_policy_weights": True}
        for divergence in DIVERGENCES if loss in GAPS else ():
            alpha = {"divergence_alpha": 0.3} if divergence == "alpha" else {}
            yield f"{loss}-{divergence}", keys | {"divergence": divergence, **alpha}
    yield "mpo", {"losses": {"dpo": 0.8, "bco": 0.2}, "nll_weight": 1.0, "beta": 0.1}
    yield "mpo-tail", {"losses": {"dpo": 0.8, "bco": 0.2}, "nll_weight": 1.0, "beta": 0.1, "tail_weight": 0.5}


def cpo_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, keys) of what `CPOTrainer` computes."""
    for loss in ("dpo", "hinge", "ipo"):
        yield f"cpo-{loss}", {"loss": loss, "reference": "none", "nll_weight": 1.0, "beta": 0.2}
    yield "simpo", {"loss": "simpo", "beta": 2.5, "margin": 1.2, "label_smoothing": 0.05}
    for alpha in (0.25, -0.5, 2.0):
        bent = {"loss": "alphapo", "beta": 2.5, "margin": 1.2, "label_smoothing": 0.05, "reward_alpha": alpha}
        yield f"alphapo{alpha:g}", bent


def batch(name: str, equal: bool) -> dict[str, torch.Tensor]:
    """Log-probabilities of tokens under both models and the sums of squared probabilities, [2 P, T] with zeros after the end, and
    lengths [2 P], the preferred sides before the rejected ones. equal: the preferred sides have as many tokens, so that means
    over the tokens of a batch and over those of each side are the same."""
    noise = torch.Generator().manual_seed(sum(map(ord, name)))
    lengths = torch.randint(1, TOKENS + 1, (2 * PAIRS,), generator=noise)
    lengths[:PAIRS] = 4 if equal else lengths[:PAIRS]
    there = torch.arange(TOKENS) < lengths[:, None]
    own, reference, share = (torch.rand(2 * PAIRS, TOKENS, generator=noise, dtype=torch.float64) for _ in range(3))
    own, reference = (torch.log(0.02 + 0.9 * x).round(decimals=4) for x in (own, reference))
    squares = (own.exp() ** 2 + share * (1 - own.exp()) ** 2).round(decimals=6)
    found = {"logprobs": own * there, "reference": reference * there, "squares": squares.where(there, 1.0)}
    return found | {"lengths": lengths}


def row(name: str, keys: dict[str, Any], given: dict[str, torch.Tensor], loss: torch.Tensor, how: str) -> dict[str, Any]:
    """A row of the file: the loss, and its derivative by the log-probability of each token."""
    (slopes,) = torch.autograd.grad(loss, given["logprobs"])
    tables = {key: [[round(x, 6) for x in line] for line in given[key].tolist()] for key in ("logprobs", "reference", "squares")}
    there = torch.arange(TOKENS) < given["lengths"][:, None]
    found = [[float(f"{x:.9g}") for x in line] for line in (slopes * there).tolist()]
    return {"name": name, "keys": keys, **tables, "lengths": given["lengths"].tolist()} | {
        "loss": float(f"{loss.item():.9g}"),
        "slopes": found,
        "how": how,
    }


# -- TRL ----------------------------------------------------------------------------------------------------------------------


class Model:
    """Gives log-probabilities of rows of ids [2 P, 1 + T], whose first token is the prompt."""

    def __init__(self, logprobs: torch.Tensor, squares: torch.Tensor) -> None:
        self.logprobs, self.squares = logprobs, squares

    def __call__(self, **_: Any) -> SimpleNamespace:
        nothing = torch.zeros_like(self.logprobs)
        return SimpleNamespace(
            log_probs=self.logprobs,
            log_sum_sq_probs=self.squares.log(),
            entropy=nothing,
            mean_logits=nothing,
            is_top1=nothing.bool(),
        )


def trainer(**own: Any) -> SimpleNamespace:
    """What the losses read of a trainer."""
    accelerator = SimpleNamespace(
        gather_for_metrics=lambda x: x,
        gather=lambda x: x,
        device=torch.device("cpu"),
        unwrap_model=lambda m: m,
        autocast=contextlib.nullcontext,
    )
    model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    base = {"accelerator": accelerator, "model": model, "aux_loss_enabled": False, "_tp_size": 1, "_total_train_tokens": 0}
    return SimpleNamespace(**base, _metrics=defaultdict(lambda: defaultdict(list)), **own)


def of_trl(keys: dict[str, Any]) -> dict[str, Any]:
    """What `DPOTrainer` has of its arguments, for a stage's keys."""
    losses = keys.get("losses") or {keys["loss"]: 1.0}
    types, weights = [DPO[loss] for loss in losses], [*losses.values()]
    if nll := keys.get("nll_weight"):
        types, weights = [*types, "sft"], [*weights, nll]
    return {
        "loss_types": types,
        "loss_weights": weights,
        "beta": keys["beta"],
        "label_smoothing": keys.get("label_smoothing", 0.0),
        "ld_alpha": keys.get("tail_weight"),
        "use_weighting": keys.get("on_policy_weights", False),
        "f_divergence_type": DIVERGENCES.get(keys.get("divergence", ""), "reverse_kl"),
        "f_alpha_divergence_coef": 1 - keys.get("divergence_alpha", 0.5),
        "args": SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None),
    }


def dpo_rows() -> Iterator[dict[str, Any]]:
    import trl
    from trl import DPOTrainer

    for name, keys in dpo_cases():
        given = batch(name, equal="nll_weight" in keys)
        kind = torch.float32 if keys.get("divergence") == "alpha" else torch.float64  # its code has no limit for float64
        given["logprobs"] = given["logprobs"].requires_grad_()
        logprobs, reference = given["logprobs"].to(kind), given["reference"].to(kind)
        mask = torch.zeros(2 * PAIRS, 1 + TOKENS, dtype=torch.long)
        mask[:, 1:] = torch.arange(TOKENS) < given["lengths"][:, None]
        inputs = {"input_ids": torch.ones_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask}
        one = trainer(**of_trl(keys), precompute_ref_logps=True, ref_model=object())
        good, bad = DPOTrainer.compute_ref_log_probs(one, Model(reference, given["squares"]), inputs)
        inputs |= {"ref_chosen_logps": good, "ref_rejected_logps": bad}
        loss = DPOTrainer._compute_loss(one, Model(logprobs, given["squares"].to(kind)), inputs, False)
        yield row(f"trl-{name}", keys, given, loss, f"ran trl {trl.__version__}: DPOTrainer._compute_loss")


def without_reference(
    cases: Iterator[tuple[str, dict[str, Any]]], kind: type, means: Callable[[str], bool], how: str
) -> Iterator[dict[str, Any]]:
    """Rows of a trainer that has no reference model. means: whether a loss reads means over tokens."""
    for name, keys in cases:
        given = batch(name, equal=True)
        given["logprobs"] = given["logprobs"].requires_grad_()
        sums, lengths = given["logprobs"].sum(1), given["lengths"]
        read = sums / lengths if means(keys["loss"]) else sums
        nll = -sums[:PAIRS].sum() / lengths[:PAIRS].sum()
        own = {"loss_type": {"dpo": "sigmoid", "alphapo": "simpo"}.get(keys["loss"], keys["loss"])}
        own |= {"beta": keys["beta"], "alpha": keys.get("reward_alpha", 0.0)}
        own |= {"simpo_gamma": keys.get("margin", 0.0), "label_smoothing": keys.get("label_smoothing", 0.0)}
        own |= {"cpo_alpha": keys.get("nll_weight", 0.0)}
        one = trainer(**own, concatenated_forward=lambda *_, r=read, n=nll: (r[:PAIRS], r[PAIRS:], r, r, n))
        for method in ("cpo_loss", "odds_ratio_loss"):
            if hasattr(kind, method):
                setattr(one, method, getattr(kind, method).__get__(one))
        loss, _ = kind.get_batch_loss_metrics(one, None, {})
        yield row(f"trl-{name}", keys, given, loss, how)


def trl_rows() -> Iterator[dict[str, Any]]:
    import trl
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    yield from dpo_rows()
    how = f"ran trl {trl.__version__}: experimental {{}}.get_batch_loss_metrics"
    yield from without_reference(
        cpo_cases(), CPOTrainer, lambda loss: loss in ("ipo", "simpo", "alphapo"), how.format("CPOTrainer")
    )
    orpo = iter([("orpo", {"loss": "orpo", "beta": 0.3})])
    yield from without_reference(orpo, ORPOTrainer, lambda loss: True, how.format("ORPOTrainer"))


# -- ms-swift -----------------------------------------------------------------------------------------------------------------


def swift_rows() -> Iterator[dict[str, Any]]:
    """Three steps of the quality loss of MPO, which keeps a running mean of the rewards."""
    import swift
    from swift.rlhf_trainers import dpo_trainer

    one = trainer(beta=0.3, reference_free=False, label_smoothing=0.0, f_divergence_type="reverse_kl")
    one.accelerator.use_distributed = False
    one.running = dpo_trainer.RunningMoments(one.accelerator)
    for number in range(3):
        given = batch(f"shift {number}", equal=False)
        given["logprobs"] = given["logprobs"].requires_grad_()
        own, reference = given["logprobs"].sum(1), given["reference"].sum(1)
        sides = own[:PAIRS], own[PAIRS:], reference[:PAIRS], reference[PAIRS:]
        losses, *_ = dpo_trainer.DPOTrainer.dpo_loss(one, *sides, loss_type="bco_pair")
        assert math.isfinite(one.running.mean)
        how = f"ran ms-swift {swift.__version__}: DPOTrainer.dpo_loss"
        yield row(f"swift-shift-{number}", {"loss": "bco", "beta": 0.3, "reward_shift": True}, given, losses.mean(), how)


# -- the binary classifier of TRL 0.24, which 1.16 no longer has --------------------------------------------------------------


def bco_rows() -> Iterator[dict[str, Any]]:
    """Three steps of `BCOTrainer`, whose sides needn't be of one prompt, and which keeps a running mean of the rewards."""
    import trl
    from trl.trainer.bco_trainer import BCOTrainer, RunningMoments

    one = trainer(beta=0.3, match_underlying_distribution=False)
    one.accelerator.use_distributed = False
    one.running = RunningMoments(one.accelerator)
    for number in range(3):
        given = batch(f"bco {number}", equal=False)
        given["logprobs"] = given["logprobs"].requires_grad_()
        own, reference = given["logprobs"].sum(1), given["reference"].sum(1)
        sides = own[:PAIRS], own[PAIRS:], reference[:PAIRS], reference[PAIRS:]
        losses, *_ = BCOTrainer.bco_loss(one, *sides, None, None)
        how = f"ran trl {trl.__version__}: BCOTrainer.bco_loss"
        yield row(f"bco-shift-{number}", {"loss": "bco", "beta": 0.3, "reward_shift": True}, given, losses.mean(), how)


if __name__ == "__main__":
    program = sys.argv[1]
    made = list({"trl": trl_rows, "swift": swift_rows, "bco": bco_rows}[program]())
    kept = OUT.read_text().splitlines() if OUT.exists() else []
    kept = [line for line in kept if not json.loads(line)["name"].startswith(f"{program}-")]
    OUT.write_text("".join(f"{line}\n" for line in [*kept, *map(json.dumps, made)]))
    print(f"{len(made)} rows of {program} in {OUT}")
