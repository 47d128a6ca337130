"""Writes tests/golden/corrections.jsonl: the weights of verl and ms-swift for a sampler with other probabilities, and TRL's of an
entropy bonus that adapts, and its SDPO.

    .peers/verl/bin/python tests/support/golden_corrections.py verl     # verl 0.9.1
    .peers/swift/bin/python tests/support/golden_corrections.py swift   # ms-swift 4.6, with msgspec
    .venv/bin/python tests/support/golden_corrections.py trl            # TRL 1.16

Each call replaces the rows of its program. A row has mmrl's keys of a stage; verl's are made from them by `of_verl`, or are those
of one of its presets.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "corrections.jsonl"
IS, LEVEL, CAP, FLOOR = (f"importance_sampling{end}" for end in ("", "_level", "_cap", "_floor"))
NORMALISE = "importance_sampling_normalise"
VERL: dict[str, dict[str, Any]] = {
    "token": {IS: "truncate"},
    "token-icepop": {IS: "mask", FLOOR: 0.5, CAP: 1.5},
    "token-normalised": {IS: "truncate", CAP: 1.3, NORMALISE: True},
    "token-icepop-normalised": {IS: "mask", FLOOR: 0.5, CAP: 1.5, NORMALISE: True},
    "sequence": {IS: "truncate", LEVEL: "sequence"},
    "sequence-normalised": {IS: "truncate", LEVEL: "sequence", CAP: 1.5, NORMALISE: True},
    **{
        f"rs-{level}-{estimator}": {"gap_mask": gap, "gap_level": level, "gap_estimator": estimator}
        for level, gaps in {
            "token": {"k1": 0.4, "k2": 0.1, "k3": 0.1},
            "sum": {"k1": 0.5, "k2": 0.2, "k3": 0.2},
            "mean": {"k1": 0.2, "k2": 0.06, "k3": 0.06},
            "max": {"k2": 0.15, "k3": 0.15},
        }.items()
        for estimator, gap in gaps.items()
    },
}
PRESETS: dict[str, dict[str, Any]] = {
    "decoupled_token_is": {IS: "truncate"},
    "decoupled_token_icepop": {IS: "mask", FLOOR: 0.5, CAP: 5.0},
    "decoupled_seq_is": {IS: "truncate", LEVEL: "sequence"},
    "decoupled_seq_is_rs": {IS: "truncate", LEVEL: "sequence", "gap_mask": math.log(2), "gap_level": "sum"},
    "decoupled_geo_rs": {"gap_mask": 0.001},
    "decoupled_geo_rs_seq_tis": {IS: "truncate", LEVEL: "sequence", "gap_mask": 0.001},
    "decoupled_geo_rs_token_tis": {IS: "truncate", "gap_mask": 0.001},
    "decoupled_k3_rs": {"gap_mask": 0.01, "gap_estimator": "k3"},
    "decoupled_k3_rs_seq_tis": {IS: "truncate", LEVEL: "sequence", "gap_mask": 0.01, "gap_estimator": "k3"},
    "decoupled_k3_rs_token_tis": {IS: "truncate", "gap_mask": 0.01, "gap_estimator": "k3"},
}
"""verl's presets without `bypass_mode` -> the keys of a stage."""
SWIFT: dict[str, dict[str, Any]] = {
    "token_truncate": {IS: "truncate", CAP: 1.3},
    "token_mask": {IS: "mask", CAP: 1.3},
    "sequence_truncate": {IS: "truncate", LEVEL: "geometric", CAP: 1.1},
}


def batches(name: str, spread: float) -> Iterator[dict[str, torch.Tensor]]:
    """Log-probabilities before the update and at the sampler, and a mask, all [7, 9]; spread: of the log-ratios of a token."""
    noise = torch.Generator().manual_seed(sum(map(ord, name)))
    for _ in range(2):
        old, moved = (torch.randn(7, 9, generator=noise) for _ in range(2))
        share = torch.rand(7, 1, generator=noise)
        lengths = torch.randint(1, 10, (7, 1), generator=noise)
        mask = (torch.arange(9) < lengths) & ((torch.rand(7, 9, generator=noise) < 0.8) | (torch.arange(9) == 0))
        old = (old - 3).clamp_max(-1.0).round(decimals=3)
        yield {"old": old, "sampler": (old - spread * share * moved).round(decimals=5), "mask": mask.long()}


def of_verl(keys: dict[str, Any]) -> dict[str, Any]:
    """verl's arguments for a stage's keys."""
    found: dict[str, Any] = {"rollout_is_batch_normalize": keys.get(NORMALISE, False)}
    if kind := keys.get(IS):
        cap, floor = keys.get(CAP, 2.0), keys.get(FLOOR, 0.0)
        found |= {"rollout_is": keys.get(LEVEL, "token")}
        found |= {"rollout_is_threshold": f"{floor}_{cap}" if kind == "mask" else cap}
    if gap := keys.get("gap_mask"):
        estimator, level = keys["gap_estimator"], keys["gap_level"]
        found["rollout_rs"] = f"token_{estimator}" if level == "token" else f"seq_{level}_{estimator}"
        found["rollout_rs_threshold"] = f"{math.exp(-gap)}_{math.exp(gap)}" if estimator == "k1" else gap
    return found


def verl_rows() -> Iterator[dict[str, Any]]:
    import verl
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo import rollout_corr_helper as helper

    how = f"ran verl {verl.__version__}: trainer/ppo/rollout_corr_helper.py"
    named = {name: (keys, of_verl(keys), 0.6) for name, keys in VERL.items()}
    for name, keys in PRESETS.items():
        preset = getattr(RolloutCorrectionConfig, name)()
        read = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold", "rollout_is_batch_normalize")
        spread = 0.9 if "rs" not in name else 0.005 if "geo" in name else 0.25
        named[name] = keys, {key: getattr(preset, key) for key in read}, spread
    for name, (keys, arguments, spread) in named.items():
        for number, batch in enumerate(batches(name, spread)):
            mask = batch["mask"].float()
            found, kept, _ = helper.compute_rollout_correction_and_rejection_mask(
                batch["old"], batch["sampler"], mask, **arguments
            )
            weights = mask if found is None else found.batch["rollout_is_weights"]
            yield row(f"verl-{name}-{number}", keys, batch, weights * kept, how)


def swift_rows() -> Iterator[dict[str, Any]]:
    import swift
    from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

    how = f"ran ms-swift {swift.__version__}: GRPOTrainer._apply_rollout_importance_sampling"
    for mode, keys in SWIFT.items():
        own = SimpleNamespace(rollout_importance_sampling_mode=mode, rollout_importance_sampling_threshold=keys[CAP])
        own._compute_sequence_level_ratios = GRPOTrainer._compute_sequence_level_ratios.__get__(own)
        for number, batch in enumerate(batches(mode, 0.6)):
            moved, mask = batch["old"] - batch["sampler"], batch["mask"].bool()
            found = GRPOTrainer._apply_rollout_importance_sampling(own, moved, mask)
            yield row(f"swift-{mode}-{number}", keys, batch, found * mask, how)


def trl_rows() -> Iterator[dict[str, Any]]:
    """What GRPO's loss takes of a bonus, and the controller's state, for entropies that fall and rise."""
    import trl
    from trl.trainer.grpo_trainer import GRPOTrainer

    from golden_objectives import trainer

    noise = torch.Generator().manual_seed(5)
    for number in range(4):
        keys = {"target": 0.4, "delta": 0.1 + 0.03 * number, "least": 0.05 * (number % 2), "most": 0.45}
        first = 0.05 * number
        own = trainer(loss_type="dapo", entropy_coef=first, use_adaptive_entropy=True, _entropy_bonus_enabled=True)
        own.accelerator.sync_gradients, own._last_world_entropy, own._entropy_window_stats = True, math.inf, None
        for key, theirs in {"target": "entropy_target", "delta": "entropy_coef_delta"}.items():
            setattr(own.args, theirs, keys[key])
        own.args.entropy_coef_min, own.args.entropy_coef_max = keys["least"], keys["most"]
        entropies, used, kept = [], [], []
        for moment in range(24):
            level = 0.4 + 0.3 * math.cos(moment / 4)
            entropy, mask = torch.rand(4, 5, generator=noise) * 2 * level, (torch.rand(4, 5, generator=noise) < 0.8).long()
            mask[:, 0] = 1
            logprobs = -torch.rand(4, 5, generator=noise)
            own._get_per_token_logps_and_entropies = lambda *_, p=logprobs, e=entropy, **__: (p, e, None)
            ids = torch.zeros_like(mask)
            given = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask}
            given |= {"advantages": torch.zeros(4), "old_per_token_logps": logprobs, "num_items_in_batch": mask.sum()}
            loss = GRPOTrainer._compute_loss(own, None, given).item()  # without advantages the bonus alone
            entropies.append(((entropy * mask).sum() / mask.sum()).item())
            used.append(-loss / entropies[-1])
            kept.append(own.entropy_coef)
        rows = {"first": first, "entropies": entropies, "used": [round(x, 7) + 0.0 for x in used], "kept": kept}
        yield {
            "name": f"trl-entropy-{number}",
            "keys": keys,
            **rows,
            "how": f"ran trl {trl.__version__}: GRPOTrainer._compute_loss",
        }


def sdpo_rows() -> Iterator[dict[str, Any]]:
    """SDPO's first update: the gradient, by the policy's logits, of its mean loss over the tokens of rollouts with a teacher."""
    import trl
    from trl.experimental.sdpo import loss_utils

    noise = torch.Generator().manual_seed(6)
    for number in range(4):
        logits, taught = (2 * torch.randn(5, 4, 3, generator=noise) for _ in range(2))
        mask = (torch.arange(4) < torch.randint(1, 5, (5, 1), generator=noise)).float()
        has = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
        own, ids = logits.clone().requires_grad_(), torch.randint(0, 3, (5, 4), generator=noise)
        logprobs = own.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        found = loss_utils.compute_sampled_token_self_distillation_loss(own, taught, ids, distillation_alpha=1.0)
        found = loss_utils.apply_importance_sampling_clipping(found, logprobs, logprobs.detach(), 2.0)
        ((found * mask * has[:, None]).sum() / (mask * has[:, None]).sum()).backward()
        table = {"logits": logits, "taught": taught, "ids": ids, "mask": mask, "has": has, "slopes": own.grad}
        yield {
            "name": f"trl-sdpo-{number}",
            **{
                key: json.loads(json.dumps(x.tolist()), parse_float=lambda t: float(f"{float(t):.7g}"))
                for key, x in table.items()
            },
            "how": f"ran trl {trl.__version__}: experimental/sdpo/loss_utils.py",
        }


def row(name: str, keys: dict[str, Any], batch: dict[str, torch.Tensor], weights: torch.Tensor, how: str) -> dict[str, Any]:
    tables = {key: [[round(x, 5) for x in line] for line in table.tolist()] for key, table in batch.items()}
    return {
        "name": name,
        "keys": keys,
        **tables,
        "weights": [[float(f"{x:.6g}") for x in w] for w in weights.tolist()],
        "how": how,
    }


if __name__ == "__main__":
    program = sys.argv[1]
    made = list({"verl": verl_rows, "swift": swift_rows, "trl": lambda: [*trl_rows(), *sdpo_rows()]}[program]())
    kept = OUT.read_text().splitlines() if OUT.exists() else []
    kept = [line for line in kept if not json.loads(line)["name"].startswith(f"{program}-")]
    OUT.write_text("".join(f"{line}\n" for line in [*kept, *map(json.dumps, made)]))
    print(f"{len(made)} rows of {program} in {OUT}")
