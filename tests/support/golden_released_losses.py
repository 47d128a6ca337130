"""Adds to tests/golden/objectives.jsonl what the released code of papers makes of random batches.

    mkdir clones && cd clones
    git clone https://github.com/alibaba/ROLL                 # and check out the commits in COMMITS
    git clone https://github.com/Kwai-Klear/CE-GPPO
    git clone https://github.com/wizard-III/Archer2.0         # ASPO
    git clone https://github.com/Infini-AI-Lab/M2PO
    git clone https://github.com/WooooDyy/BAPO
    git clone https://github.com/verl-project/verl-recipe     # GVPO
    git clone https://github.com/tajwarfahim/maxrl
    git clone https://github.com/zhyang2226/AR-Lopti
    git clone https://github.com/PrimeIntellect-ai/prime-rl
    .venv/bin/python tests/support/golden_released_losses.py clones

and `clones/pkpo.py`, listing 1 of PKPO (arXiv 2505.15201). The functions are run as they stand in their files, without what
these import: of verl two helpers stand in, its masked mean and what gathers from other processes, of which there are none.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from golden_objectives import GROUP, OUT, rows

COMMITS = {"ROLL": "8eb27cc", "CE-GPPO": "10558fe", "Archer2.0": "b08d963", "M2PO": "af54a3e", "BAPO": "7287044"}
COMMITS |= {"verl-recipe": "48ea0a7", "maxrl": "c0698eb", "AR-Lopti": "cbeb333", "prime-rl": "559b447"}
CORE = "verl/trainer/ppo/core_algos.py"


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).sum() / mask.sum()


class Clones:
    """The folder with the clones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def functions(self, repository: str, file: str, **given: Any) -> tuple[SimpleNamespace, str]:
        """(The functions and methods of a file, in a namespace with `given`; what a row says of where it comes from.)"""
        tree = ast.parse((self.folder / repository / file).read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in found:
            node.decorator_list = [d for d in node.decorator_list if getattr(d, "id", "") == "_sorted_apply"]
        flags = annotations.compiler_flag  # hints name what isn't there
        space = {
            "torch": torch,
            "np": np,
            "defaultdict": defaultdict,
            "verl_F": SimpleNamespace(masked_mean=masked_mean),
            **given,
        }
        exec(compile(ast.Module(found, []), file, "exec", flags=flags, dont_inherit=True), space)
        commit = f" @{COMMITS[repository]}" if repository in COMMITS else ""
        return SimpleNamespace(**space), f"ran {repository or 'listing 1 of arXiv 2505.15201'}{commit}: {file}"


def losses(clones: Clones) -> Iterator[dict[str, Any]]:
    yield from topr(clones)
    published, how = clones.functions("CE-GPPO", CORE)
    for weights in ((0.75, 1.0), (0.25, 1.5)):

        def gppo(logprobs: torch.Tensor, batch: dict[str, torch.Tensor], weights: Any = weights) -> torch.Tensor:
            given = {"gppo_loss_beta1": weights[0], "gppo_loss_beta2": weights[1], "clip_ratio_c": 1.6}
            tensors = (batch["old"], logprobs, batch["advantages"], batch["mask"].float())
            return published.compute_gppo_loss_general_beta(*tensors, cliprange_low=0.2, cliprange_high=0.3, **given)[0]

        settings = {"clip_high": 0.3, "low_weight": weights[0], "high_weight": weights[1], "dual_clip": 1.6}
        yield from rows(f"released-gppo-{weights[0]}", {"algorithm": "ce-gppo", **settings}, gppo, how, per_token=True)

    archer, how = clones.functions("Archer2.0", CORE)
    for limit in (3.0, 1.4):

        def aspo(logprobs: torch.Tensor, batch: dict[str, torch.Tensor], limit: float = limit) -> torch.Tensor:
            mask = batch["mask"].bool()
            tensors = (batch["old"], logprobs, batch["advantages"], mask, mask)  # the last: which have the narrower bounds
            bounds = {"negative_clip_ratio_c": limit, "positive_clip_ratio_c": limit}
            return archer.compute_policy_loss_archer(*tensors, **bounds)[0]

        yield from rows(f"released-aspo-{limit}", {"algorithm": "aspo", "limit": limit}, aspo, how, per_token=True)
    yield from of_batches(clones)
    yield from gvpo(clones)


def topr(clones: Clones) -> Iterator[dict[str, Any]]:
    published, how = clones.functions("ROLL", "roll/pipeline/rlvr/actor_pg_worker.py")

    def loss(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        worker = SimpleNamespace(_get_or_cache_config=lambda _, usual: usual, _topr_sample_logged=True, _cached_metrics={})
        ratio, data = (logprobs - batch["old"]).exp(), SimpleNamespace(batch={"scores": batch["advantages"][:, 0]})
        found = published._compute_topr_loss(worker, ratio, logprobs, batch["old"], batch["advantages"], data)
        return ((found * batch["mask"]).sum(1) / batch["mask"].sum(1)).mean()  # its seq-mean-token-mean

    yield from rows("released-topr", {"algorithm": "topr", "level": "token", "normalise": "sequence"}, loss, how)


def of_batches(clones: Clones) -> Iterator[dict[str, Any]]:
    m2po, how = clones.functions("M2PO", CORE)
    torch.set_default_dtype(torch.float64)  # in which its bound is below the token that it comes from, as it intends
    for budget, low, high in ((0.04, 0.3, 0.5), (0.1, 0.0, 0.0), (0.06, 0.0, 0.0), (0.9, 0.3, 0.5)):

        def moment(logprobs: torch.Tensor, batch: dict[str, torch.Tensor], given: Any = (budget, low, high)) -> torch.Tensor:
            tensors = (batch["old"], logprobs, batch["advantages"], batch["mask"])
            with contextlib.redirect_stdout(io.StringIO()):
                return m2po.compute_m2po_policy_loss(*tensors, *given)[0]

        settings = {"algorithm": "m2po", "budget": budget, "least_low": low, "least_high": high}
        yield from rows(f"released-m2po-{budget}", settings, moment, how)
    torch.set_default_dtype(torch.float32)

    bapo, how = clones.functions("BAPO", "recipe/bapo/policy_loss.py", agg_loss=m2po.agg_loss)
    for share, upper in ((0.5, 3.0), (0.3, 2.0), (0.9, 1.5)):

        class Config(SimpleNamespace):
            def get(self, name: str, usual: float) -> float:
                return usual

        def balanced(
            logprobs: torch.Tensor, batch: dict[str, torch.Tensor], share: float = share, upper: float = upper
        ) -> torch.Tensor:
            steps = {"ratio_lower_step": 0.05, "ratio_upper_step": 0.05, "adv_ratio_target": share / (1 - share), "eps": 1e-8}
            bounds = {"ratio_lower_start": 0.6, "ratio_lower_max": 0.9, "ratio_upper_start": 1.2, "ratio_upper_max": upper}
            config = Config(policy_loss=SimpleNamespace(**steps, **bounds))
            tensors = (batch["old"], logprobs, batch["advantages"], batch["mask"].float())
            return bapo.compute_policy_loss_bapo(*tensors, config=config)[0]

        settings = {"algorithm": "bapo", "positive_share": share, "upper_max": upper}
        yield from rows(f"released-bapo-{share}", settings, balanced, how, per_token=True)


def gvpo(clones: Clones) -> Iterator[dict[str, Any]]:
    def alone(data: dict[str, torch.Tensor], *_: Any) -> dict[str, torch.Tensor]:
        return data

    published, how = clones.functions("verl-recipe", "gvpo/gvpo_core_algos.py", allgather_dict_tensors=alone)
    mesh = SimpleNamespace(_flatten=lambda: SimpleNamespace(get_group=lambda: None))
    torch.distributed.get_world_size = lambda group: 1

    def loss(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        groups = batch["advantages"].view(2, GROUP, -1)
        groups = torch.cat([groups[:, :-1], -groups[:, :-1].sum(1, keepdim=True)], 1)  # rewards less their mean
        batch["advantages"] = groups.view(2 * GROUP, -1).round(decimals=3)
        tensors = (batch["old"], logprobs, batch["advantages"], batch["mask"].float())
        prompts = torch.arange(2).repeat_interleave(GROUP)
        return published.compute_policy_loss_gvpo(*tensors, 0.3, prompts, mesh, GROUP) / 2  # the mean over its groups

    yield from rows("released-gvpo", {"algorithm": "gvpo", "beta": 0.3}, loss, how)


def credits(clones: Clones) -> Iterator[dict[str, Any]]:
    maxrl, from_maxrl = clones.functions("maxrl", CORE)
    pkpo, from_pkpo = clones.functions("", "pkpo.py")
    noise = torch.Generator().manual_seed(5)
    for number in range(10):
        sizes = torch.randint(2, 8, (3,), generator=noise)
        groups = torch.arange(3).repeat_interleave(sizes)
        k = int(torch.randint(2, int(sizes.min()) + 1, (), generator=noise))
        binary, graded = (torch.randint(0, most, (len(groups),), generator=noise) / (most - 1) for most in (2, 5))
        mask = torch.ones(len(groups), 1)
        made, _ = maxrl.compute_maxrl_outcome_advantage(binary[:, None].clone(), mask, np.array(groups.tolist()))
        best = [pkpo.sloo_minus_one(graded[groups == g].double().numpy(), k) for g in range(3)]
        for id, settings, rewards, credit, how in (
            ("maxrl", {}, binary, made[:, 0], from_maxrl),
            ("pkpo", {"k": k}, graded, torch.tensor(np.concatenate(best)), from_pkpo),
        ):
            yield {
                "name": f"released-advantage-{id}-{number}",
                "settings": {"algorithm": id, **settings},
                "rewards": rewards.tolist(),
                "groups": groups.tolist(),
                "lengths": [1] * len(groups),
                "credit": credit.tolist(),
                "how": how,
            }


def reweighted(clones: Clones) -> Iterator[dict[str, Any]]:
    """Credit of tokens by GRPO's advantage and their probabilities."""
    grpo, _ = clones.functions("AR-Lopti", CORE)
    trainer, how = clones.functions("AR-Lopti", "verl/trainer/ppo/ray_trainer.py", RayWorkerGroup=None)
    noise = torch.Generator().manual_seed(7)
    for number in range(6):
        sizes = torch.randint(2, 6, (2,), generator=noise)
        groups = torch.arange(2).repeat_interleave(sizes)
        rewards = torch.randint(0, 3, (len(groups),), generator=noise) / 2
        logprobs = torch.log(torch.rand(len(groups), 5, generator=noise).clamp_min(1e-3)).round(decimals=4)
        mask = (torch.arange(5) < torch.randint(1, 6, (len(groups), 1), generator=noise)).float()
        share = (0.0, 0.2, 0.3, 0.5, 0.8, 1.0)[number]
        paid = torch.zeros_like(mask)
        paid[:, 0] = rewards
        plain, _ = grpo.compute_grpo_outcome_advantage(paid, mask, np.array(groups.tolist()), epsilon=1e-4)
        found = trainer.compute_reweight_advantage(plain, logprobs, "both_linear_normal", share, 1 - share, 1.0)
        yield {
            "name": f"released-reweighted-{number}",
            "settings": {"algorithm": "advantage-reweighting", "share": share},
            "rewards": rewards.tolist(),
            "groups": groups.tolist(),
            "logprobs": [[round(x, 4) for x in line] for line in logprobs.tolist()],
            "mask": mask.tolist(),
            "reweighted_credit": found.tolist(),
            "how": how,
        }


def penalised(clones: Clones) -> Iterator[dict[str, Any]]:
    """The gradient of prime-rl's default loss, which has another value than a weighted log-probability."""
    given = {"LossOutputs": SimpleNamespace}
    prime, how = clones.functions("prime-rl", "src/prime_rl/trainer/rl/loss.py", **given)
    noise = torch.Generator().manual_seed(11)
    for number, weight in enumerate((0.0, 1e-3, 0.5)):
        old = torch.log(torch.rand(40, generator=noise).clamp_min(0.02)).round(decimals=4)
        logprobs = (old + torch.randn(40, generator=noise) / 2).clamp_max(-1e-3).round(decimals=4).requires_grad_()
        advantages = torch.randn(40, generator=noise).round(decimals=4)
        inputs = SimpleNamespace(trainer_logprobs=logprobs, inference_logprobs=old, advantages=advantages)
        inputs.loss_mask, inputs.loss_weights = torch.ones(40, dtype=torch.bool), None
        chosen = SimpleNamespace(dppo_mask_low=0.1, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=weight)
        (slopes,) = torch.autograd.grad(prime.default_loss_fn(inputs, chosen).loss, logprobs)
        yield {
            "name": f"released-penalised-{number}",
            "settings": {"algorithm": "divergence-ppo", "clip_low": 0.1, "clip_high": 0.2, "limit": 1e6, "penalty": weight},
            **{key: [round(x, 4) for x in t.tolist()] for key, t in (("logprobs", logprobs), ("old", old))},
            "advantages": [round(x, 4) for x in advantages.tolist()],
            "penalised_gradient": slopes.tolist(),
            "how": how,
        }


def main() -> None:
    clones = Clones(Path(sys.argv[1]))
    kept = [line for line in OUT.read_text().splitlines() if not line.startswith('{"name": "released-')]
    made = [json.dumps(row) for row in (*losses(clones), *credits(clones), *reweighted(clones), *penalised(clones))]
    assert all(math.isfinite(json.loads(line).get("loss", 0.0)) for line in made)
    OUT.write_text("\n".join([*kept, *made]) + "\n")


if __name__ == "__main__":
    main()
