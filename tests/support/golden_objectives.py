"""Writes tests/golden/objectives.jsonl: what the losses and advantages of TRL, verl and ms-swift make of random batches.

    .venv/bin/python tests/support/golden_objectives.py trl             # TRL 1.16
    .peers/verl/bin/python tests/support/golden_objectives.py verl      # verl 0.9.1
    .peers/swift/bin/python tests/support/golden_objectives.py swift    # ms-swift 4.6, with msgspec

Each call replaces the rows of its program. TRL's and ms-swift's loss is a method of their trainer: it is called with an object
that has what it reads, and a model whose log-probabilities and entropies are the row's.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "objectives.jsonl"
GROUP = 4
Loss = Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]


def batches(seed: int, per_token: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Two groups of four rollouts: log-probabilities now and before the update, entropies, advantages, a mask, all [8, 6]."""
    noise = torch.Generator().manual_seed(seed)
    for _ in range(3):
        shape = (2 * GROUP, 6)
        old, moved, entropy = (torch.randn(shape, generator=noise) for _ in range(3))
        lengths = torch.randint(1, 7, (shape[0],), generator=noise)
        lengths[0] = 6
        advantages = torch.randn(shape if per_token else (shape[0], 1), generator=noise).expand(shape)
        yield {
            "old": (old - 2).clamp_max(-0.01).round(decimals=3),
            "logprobs": ((old - 2).clamp_max(-0.01) + 0.5 * moved).clamp_max(-0.001).round(decimals=3) - 4e-4,  # never at a bound
            "entropy": entropy.abs().round(decimals=3),
            "advantages": advantages.round(decimals=3),
            "mask": (torch.arange(6) < lengths[:, None]).long(),
        }


def rows(name: str, settings: dict[str, Any], loss: Loss, how: str, per_token: bool = False) -> Iterator[dict[str, Any]]:
    """What a loss, (logprobs, the others) -> loss, makes of each batch. settings: mmrl's, with `algorithm`, its id."""
    for number, batch in enumerate(batches(len(name), per_token)):
        logprobs = batch["logprobs"].clone().requires_grad_()
        found = loss(logprobs, batch)
        found.backward()
        yield {
            "name": f"{name}-{number}",
            "settings": settings,
            **{key: json.loads(json.dumps(x.tolist()), parse_float=lambda t: round(float(t), 4)) for key, x in batch.items()},
            "loss": found.item(),
            "gradient": [[float(f"{x:.6g}") for x in line] for line in logprobs.grad.tolist()],
            "how": how,
        }


def trainer(**settings: Any) -> SimpleNamespace:
    """What the trainers of TRL and ms-swift read of themselves, and the stand-in of accelerate for one process."""
    alone = SimpleNamespace(
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
        pad_across_processes=lambda x, dim, pad_index: x,
        num_processes=1,
    )
    args = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1, "log_entropy": False}
    args["gradient_accumulation_steps"] = 1
    args |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0}
    args |= {"vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "top_entropy_quantile": settings.get("top_entropy_quantile", 1.0)}
    own = {"accelerator": alone, "model": SimpleNamespace(training=True), "beta": 0.0, "use_vllm": False}
    own |= {"importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2, "max_completion_length": 6}
    own |= {"top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "current_gradient_accumulation_steps": 1}
    own |= {"aux_loss_enabled": False, "_entropy_bonus_enabled": False, "vllm_importance_sampling_correction": False}
    own |= {"_metrics": {"train": defaultdict(list)}, "model_accepts_loss_kwargs": False, "compute_loss_func": None}
    own["args"] = SimpleNamespace(**{**args, **{k: settings[k] for k in args if k in settings}})
    return SimpleNamespace(**{**own, **settings})


def of_trl() -> Iterator[dict[str, Any]]:
    import trl
    from trl.experimental.gmpo import GMPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer

    def called(cls: Any = GRPOTrainer, **settings: Any) -> Loss:
        def loss(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            own = trainer(**settings)
            own._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, batch["entropy"], None)
            own.get_off_policy_mask, own.get_gamma_weights = GRPOTrainer.get_off_policy_mask, GRPOTrainer.get_gamma_weights
            own.get_high_entropy_mask = lambda *a: GRPOTrainer.get_high_entropy_mask(own, *a)
            ids = torch.zeros_like(batch["mask"])
            given = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": batch["mask"]}
            given |= {"advantages": batch["advantages"][:, 0], "old_per_token_logps": batch["old"]}
            return cls._compute_loss(own, None, {**given, "num_items_in_batch": batch["mask"].sum()})

        return loss

    how = f"ran trl {trl.__version__}: GRPOTrainer._compute_loss"
    plain = {"algorithm": "grpo"}
    yield from rows("trl-sapo", {"algorithm": "sapo"}, called(loss_type="sapo"), how)
    yield from rows("trl-vespo", {"algorithm": "vespo"}, called(loss_type="vespo"), how)
    luspo = {"algorithm": "gspo", "normalise": "constant", "constant": 1, "clip_low": 0.2, "clip_high": 0.2}
    yield from rows("trl-luspo", luspo, called(loss_type="luspo", importance_sampling_level="sequence"), how)
    yield from rows("trl-entropy", {**plain, "entropy_share": 0.2}, called(loss_type="grpo", top_entropy_quantile=0.2), how)
    few = {**plain, "normalise": "token", "entropy_share": 0.0}
    yield from rows("trl-entropy-0", few, called(loss_type="dapo", top_entropy_quantile=0.0), how)
    yield from rows("trl-mask", {**plain, "off_policy_mask": -0.3}, called(loss_type="grpo", off_policy_mask_threshold=-0.3), how)
    how = f"ran trl {trl.__version__}: GMPOTrainer._compute_loss"
    yield from rows("trl-gmpo", {"algorithm": "gmpo"}, called(GMPOTrainer, epsilon_low=0.4, epsilon_high=0.4), how)


def masked(gap: float, cap: float, loss: Loss) -> Loss:
    """verl's loss with truncated weights for the sampler, which are 0 for what its geometric mask rejects; the policy is the one
    before the update, and the sampler the old one of the batch."""
    from verl.trainer.ppo import rollout_corr_helper as helper

    def found(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        mask, moved = batch["mask"].float(), logprobs.detach() - batch["old"]
        weights, _ = helper.compute_rollout_correction_weights(moved, mask, "token", cap)
        bounds = f"{math.exp(-gap)}_{math.exp(gap)}"
        kept, _ = helper.compute_rollout_rejection_mask(moved, mask, "seq_mean_k1", bounds)
        return loss(logprobs, {**batch, "old": logprobs.detach(), "weights": weights * kept})

    return found


def of_verl() -> Iterator[dict[str, Any]]:
    import numpy as np
    import verl
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig, PolicyLossConfig

    def called(name: str, average: str = "token-mean", low: float = 0.2, high: float = 0.2, **more: Any) -> Loss:
        own = {"strategy": "fsdp", "rollout_n": GROUP, "ppo_micro_batch_size_per_gpu": 8, "clip_ratio_c": more.pop("c", 3.0)}
        config = ActorConfig(**own, clip_ratio_low=low, clip_ratio_high=high, policy_loss=PolicyLossConfig(**more))

        def loss(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            function = core_algos.get_policy_loss_fn(name)
            given = (batch["old"], logprobs, batch["advantages"].clone(), batch["mask"].float(), average, config)
            return function(*given, *([batch["weights"]] if "weights" in batch else []))[0]

        return loss

    how = f"ran verl {verl.__version__}: trainer/ppo/core_algos.py"
    sequence = "seq-mean-token-mean"
    yield from rows("verl-sapo", {"algorithm": "sapo"}, called("sapo"), how, per_token=True)
    gspo = {"algorithm": "gspo", "clip_low": 0.2, "clip_high": 0.2, "per_token": True}
    yield from rows("verl-gspo", gspo, called("gspo", sequence), how, per_token=True)
    yield from rows("verl-gmpo", {"algorithm": "gmpo"}, called("geo_mean", low=0.4, high=0.4), how)
    for kind, bound in (("tv", 0.05), ("kl", 0.01)):
        settings = {"algorithm": "divergence-ppo", "divergence": kind, "clip_low": bound, "clip_high": 2 * bound, "limit": 1.3}
        found = called(f"dppo_{kind}", low=bound, high=2 * bound, c=1.3)
        yield from rows(f"verl-dppo-{kind}", settings, found, how, per_token=True)
    yield from rows("verl-dro", {"algorithm": "dro"}, called("dro", dro_beta=0.05), how, per_token=True)
    yield from rows("verl-gpg", {"algorithm": "gpg"}, called("gpg"), how, per_token=True)
    cov = {"algorithm": "clip-cov", "share": 1.0, "low": 0.1, "high": 0.8}
    found = called("clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.1, clip_cov_ub=0.8)
    yield from rows("verl-clip-cov", cov, found, how, per_token=True)
    found = called("kl_cov", kl_cov_ratio=0.2, ppo_kl_coef=0.7)
    yield from rows("verl-kl-cov", {"algorithm": "kl-cov", "share": 0.2, "penalty": 0.7}, found, how, per_token=True)
    rloo = {"algorithm": "rloo", "loss": "grpo", "normalise": "token", "dual_clip": 3.0}
    yield from rows("verl-rloo", rloo, called("vanilla"), how, per_token=True)

    for gap, cap in ((0.2, 1e6), (0.15, 1.3)):
        settings = {"algorithm": "grpo", "normalise": "token", "gap_mask": gap, "cap": cap, "dual_clip": 3.0}
        yield from rows(f"verl-gap-{gap}", settings, masked(gap, cap, called("vanilla")), how)

    noise = torch.Generator().manual_seed(0)
    for number in range(8):
        groups = torch.randint(0, 3, (9,), generator=noise)
        groups[:6] = torch.tensor([0, 0, 1, 1, 2, 2])
        lengths = torch.randint(1, 7, (9,), generator=noise)
        mask = (torch.arange(6) < lengths[:, None]).float()
        rewards = torch.randint(0, 5, (9,), generator=noise) / 4
        if number % 2:  # verl's factor of GPG is the paper's where the rewards that are 0 are those of groups without spread
            rewards = torch.where(groups == 0, 0.0, rewards + torch.arange(9) / 16 + 0.1)
        paid = torch.zeros(9, 6)
        paid[:, 0] = rewards
        for algorithm, name, settings in (
            ("opo", "opo", {}),
            ("grpo-passk", "grpo_passk", {"scale": "group"}),
            ("grpo-passk", "grpo_passk", {"scale": "none"}),
            *([("gpg", "gpg", {})] if number % 2 else []),
        ):
            config = {"norm_adv_by_std_in_grpo": settings.get("scale") == "group"}
            function = core_algos.get_adv_estimator_fn(name)
            found, _ = function(paid, mask, index=np.array(groups.tolist()), config=config)
            yield {
                "name": f"verl-advantage-{algorithm}-{len(settings)}-{number}",
                "settings": {"algorithm": algorithm, **settings},
                "rewards": rewards.tolist(),
                "groups": groups.tolist(),
                "lengths": lengths.tolist(),
                "credit": found[:, 0].tolist(),
                "how": how,
            }
    yield from token_baselines(how)


def token_baselines(how: str) -> Iterator[dict[str, Any]]:
    """verl's optimal token baseline, of one turn and of several with observations between them, which mmrl's rows leave out."""
    import numpy as np
    from verl.trainer.ppo import core_algos

    noise = torch.Generator().manual_seed(1)
    for number in range(12):
        groups = torch.randint(0, 3, (9,), generator=noise)
        groups[:6] = torch.tensor([0, 0, 1, 1, 2, 2])
        mask = (torch.arange(8) < torch.randint(1, 9, (9, 1), generator=noise)).float()
        turns = number % 2
        if turns:
            mask *= torch.rand(9, 8, generator=noise) < 0.7
            mask[:, 0] = 1
        shares_NTV = (2 * torch.randn(9, 8, 4, generator=noise)).softmax(-1)
        own_NT, squares_NT = shares_NTV[..., 0], (shares_NTV**2).sum(-1)
        paid = torch.randint(-2, 5, (9, 8), generator=noise) / 4 * mask
        name = "tir_optimal_token_baseline" if turns else "optimal_token_baseline"
        tail = number % 4 < 2
        given = {"index": np.array(groups.tolist()), "old_log_probs": own_NT.log(), "sum_pi_squared": squares_NT}
        found, _ = core_algos.get_adv_estimator_fn(name)(paid, mask, **given, handle_zero_tail=tail)
        kept = mask.bool()
        rows = {"paid": paid, "slopes": 1 - 2 * own_NT + squares_NT, "token_credit": found}
        yield {
            "name": f"verl-advantage-{name}-{number}",
            "settings": {"algorithm": "otb", "tail": tail},
            "groups": groups.tolist(),
            **{key: [row[there].tolist() for row, there in zip(x, kept, strict=True)] for key, x in rows.items()},
            "how": how,
        }


def of_swift() -> Iterator[dict[str, Any]]:
    import swift
    from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

    def called(**settings: Any) -> Loss:
        def loss(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            off = ("rollout_importance_sampling_mode", "off_policy_sequence_mask_delta", "chord_sft_iterator")
            own = trainer(**{**dict.fromkeys(off), **settings})
            own.compute_entropy = own.overlong_filter = own.log_rollout_offpolicy_metrics = own._has_teacher = False
            own.disable_rollout_importance_sampling, own.num_generations, own.sdar_loss_coef = True, GROUP, 0.0
            own._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, batch["entropy"])
            for name in ("_compute_fipo_influence", "_compute_off_policy_sequence_mask", "_undo_gradient_accumulation_scaling"):
                setattr(own, name, getattr(GRPOTrainer, name).__get__(own))
            given = {"completion_mask": batch["mask"].bool(), "truncated_mask": torch.zeros(8, dtype=torch.bool)}
            given |= {"advantages": batch["advantages"], "old_per_token_logps": batch["old"], "rollout_per_token_logps": None}
            given |= {"num_items_in_batch": batch["mask"].sum(), "teacher_per_token_logps": None}
            return GRPOTrainer._compute_loss_and_metrics(own, None, None, SimpleNamespace(**given))[0]

        return loss

    how = f"ran ms-swift {swift.__version__}: GRPOTrainer._compute_loss_and_metrics"
    yield from rows("swift-sapo", {"algorithm": "sapo"}, called(loss_type="sapo", tau_pos=1.0, tau_neg=1.05), how, per_token=True)
    token = {"algorithm": "gspo", "clip_low": 0.2, "clip_high": 0.2, "per_token": True}
    yield from rows("swift-token", token, called(loss_type="grpo", importance_sampling_level="sequence_token"), how, True)
    real = {"algorithm": "real"}
    yield from rows("swift-real", real, called(loss_type="real", real_tau=0.5), how)
    half = {"fipo_gamma": 0.5 ** (1 / 2), "fipo_clip_range": 0.2, "fipo_safety_threshold": 1.2}
    for only_raises, delta in ((True, None), (False, 1.4)):
        settings = {"algorithm": "fipo", "clip_high": 0.2, "dual_clip": delta or 0.0, "half_life": 2.0, "safe_ratio": 1.2}
        found = called(loss_type="fipo", fipo_clip_high_only=only_raises, delta=delta, **half)
        yield from rows(f"swift-fipo-{only_raises}", {**settings, "only_raises": only_raises}, found, how)
    yield from told(f"ran ms-swift {swift.__version__}: rl_core/advantage.py")


def told(how: str) -> Iterator[dict[str, Any]]:
    """RLSD's reweighted advantages, and those with which the policy gradient is that of GRPO's loss plus SDAR's."""
    from swift.rl_core.advantage import apply_rlsd_reweight, compute_sdar_loss

    noise = torch.Generator().manual_seed(2)
    for number in range(8):
        rewards = torch.randint(0, 3, (2, GROUP), generator=noise) / 2
        rewards[:, 0] = 1.0
        rewards[:, 1] = 0.0
        base = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        mask = (torch.arange(6) < torch.randint(1, 7, (2 * GROUP, 1), generator=noise)).float()
        logprobs = -torch.rand(2 * GROUP, 6, generator=noise) * 2
        answers = logprobs + 0.3 * torch.randn(2 * GROUP, 6, generator=noise)
        if number % 2:
            settings = {"algorithm": "sdar", "told_weight": 0.1 * number, "sharpness": 5.0 / number}
            own = logprobs.clone().requires_grad_()
            surrogate = -((own - own.detach()).exp() * base[:, None] * mask).sum() / mask.sum()
            distilled, _ = compute_sdar_loss(own, answers, mask, gate_beta=settings["sharpness"])
            (surrogate + settings["told_weight"] * distilled).backward()
            credit = -own.grad * mask.sum()
        else:
            settings = {"algorithm": "rlsd", "weight": 0.7, "last_weight": 0.3, "only_negative": number > 4}
            credit = apply_rlsd_reweight(base, mask, answers, logprobs, 0.6, 0.2, settings["only_negative"])
        yield {
            "name": f"swift-advantage-{settings['algorithm']}-{number}",
            "settings": settings,
            "rewards": rewards.flatten().tolist(),
            "told": answers.tolist(),
            "logprobs": logprobs.tolist(),
            "mask": mask.tolist(),
            "told_credit": credit.tolist(),
            "how": how,
        }


def main() -> None:
    (program,) = sys.argv[1:]
    kept = (
        [line for line in OUT.read_text().splitlines() if not line.startswith(f'{{"name": "{program}-')] if OUT.exists() else []
    )
    made = [json.dumps(row) for row in {"trl": of_trl, "verl": of_verl, "swift": of_swift}[program]()]
    OUT.write_text("\n".join([*kept, *made]) + "\n")


if __name__ == "__main__":
    main()
