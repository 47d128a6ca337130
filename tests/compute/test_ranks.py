"""Two processes that train together, on shares of unlike size, do what one does alone.

The file is also the program of each process: `python test_ranks.py RANK FOLDER NAME...` plays these cases on its share of the
rollouts and writes what came out.
"""

import datetime
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import distributed

import forked
import vlm_cases as cases
from mmrl.algorithms.presets import Normalise, load_algorithm
from mmrl.algorithms.signals import Signals
from mmrl.api.errors import UserError
from mmrl.api.types import Score
from mmrl.config.sections import CriticConfig, DistillStage, PolicyConfig, RlStage, SftStage
from mmrl.policies.batches import Credit
from mmrl.policies.critic import Critic
from mmrl.policies.reference import Reference
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry import plugins
from mmrl.train.update.demonstrations import Demonstrations
from mmrl.train.update.learner import Learner
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.pack_conversations import pack

pytestmark = pytest.mark.slow

MODEL = "tiny:qwen2_5_vl:hidden=32,layers=1"
SGD = {"steps": 4, "optimizer": "sgd", "beta1": 0.0, "learning_rate": 0.5, "max_grad_norm": math.inf}
WAYS = get_args(Normalise)
"""To average a loss over tokens."""
SHARES = {"uneven": (range(4), range(4, 12)), "empty": (range(12), range(0))}
"""Which of the twelve rollouts each rank has; the first share ends inside a group."""
BOUNDS = {
    "gspo": {"clip_low": 0.2, "clip_high": 0.2},
    "cispo": {"clip_low": 0.1, "clip_high": 0.1},
    "d3s": {"clip_low": 0.95, "clip_high": 20.0},
    "clip-cov": {"share": 0.2, "low": 0.0, "high": 9.0},
    "kl-cov": {"share": 0.3},
    "divergence-ppo": {"clip_low": 0.01, "clip_high": 0.01},
    "gmpo": {"clip_low": 0.1, "clip_high": 0.1},
    "m2po": {"budget": 3e-3, "least_low": 0.0, "least_high": 0.0},
    "bapo": {"lower_max": 0.7, "upper_start": 1.1},
}
"""Such that the second pass is cut off in some places and not in all."""


def rl(algorithm="grpo", shares="uneven", settings=None, gold=None, **stage):
    return {"stage": RlStage(kind="rl", algorithm=algorithm, settings=settings or {}, **{**SGD, "epochs": 2, **stage}),
            "shares": shares, "gold": gold}  # fmt: skip


def distill(divergence, shares="uneven"):
    return {"stage": DistillStage(kind="distill", teacher="x", divergence=divergence, **SGD), "shares": shares, "gold": None}


def algorithms():
    others = {"opd", "kdrl", "dppo"}  # two have a teacher, and one is for policies that act
    return [i for i in plugins.registry().specs("algorithms") if "/" not in i and i not in others]


def all_cases():
    found = {f"{i}, {n}": rl(i, settings={"normalise": n, **BOUNDS.get(i, {})}) for i in algorithms() for n in WAYS}
    for estimate in ("k1", "k2", "k3"):
        found[f"KL in the loss, {estimate}"] = rl(kl_coef=0.3, kl_estimator=estimate)
    found |= {
        "KL in the reward": rl("reinforce++", kl_coef=0.3, kl_in="reward"),
        "entropy": rl(entropy_coef=5.0),
        "importance": rl(importance_sampling="truncate", importance_sampling_cap=1.0),
        "masked importance": rl(importance_sampling="mask", importance_sampling_cap=1.0),
        "mini-batches": rl(minibatches=2),
        "a separate critic": rl("ppo", critic=CriticConfig(backbone="separate", hidden_sizes=[8], learning_rate=0.5)),
        "a critic's bounds": rl("ppo", critic=CriticConfig(clip_range=0.01, huber=0.1, learning_rate=0.5)),
        "a critic's warm-up": rl("ppo", critic=CriticConfig(warmup_steps=2, learning_rate=0.5)),
        "a critic of turns": rl("ppo", credit="turn", critic=CriticConfig(learning_rate=0.5)),
        "imitation": rl(gold=(0.4, False)),
        "uncertain imitation": rl(gold=(0.4, True)),
        "imitation alone": rl(gold=(1.0, False)),
        "clipped": rl(max_grad_norm=0.1),
        "supervised": {"stage": SftStage(kind="sft", **SGD), "shares": "uneven", "gold": None},
        **{f"distill, {d}": distill(d) for d in ("reverse", "forward", "sampled", "hard")},
        "empty": rl(shares="empty"),
        "empty, KL": rl(shares="empty", kl_coef=0.3, entropy_coef=0.1),
        "empty, ppo": rl("ppo", shares="empty"),
        "empty, mini-batches": rl(shares="empty", minibatches=2),
        "empty, imitation": rl(shares="empty", gold=(0.4, False)),
        "empty, imitation alone": rl(shares="empty", gold=(1.0, False)),
        "empty, supervised": {"stage": SftStage(kind="sft", **SGD), "shares": "empty", "gold": None},
        "empty, distill": distill("reverse", "empty"),
    }
    return found


class Player:
    """One rank's models and rollouts, or those of a process that is alone (rank None)."""

    def __init__(self, rank):
        self.rank = rank
        torch.set_num_threads(1)
        self.policy = VLM(PolicyConfig(model=MODEL))
        self.other = VLM(PolicyConfig(model=MODEL), seed=1)
        self.first = {name: p.detach().clone() for name, p in self.policy.parameters()}
        made = cases.rollouts(self.policy, [cases.prompt(k) for k in range(4)], group=3, longest=7)
        every = self.mine(made, Credit(advantages=torch.ones(12)), "uneven", True)
        exact = Learner(self.policy, SftStage(kind="sft", steps=1)).measure(every, frozenset({"logprobs"}))["logprobs"]
        noise = torch.Generator().manual_seed(1)
        self.exact = [self.said(r, exact[n, : r.length]) for n, r in enumerate(made)]
        self.rollouts = [
            self.said(r, exact[n, : r.length] + 0.3 * torch.randn(r.length, generator=noise)) for n, r in enumerate(made)
        ]
        rewards = torch.rand(12, generator=noise)
        self.scores = [Score(float(r), {"a": float(r), "b": float(r > 0.5)}) for r in rewards]
        self.scores[5] = Score(None)

    @staticmethod
    def said(rollout, logprobs):
        """The rollout with these log-probabilities of its sampler."""
        return replace(rollout, turns=(replace(rollout.turns[0], logprobs=tuple(logprobs.tolist())),))

    def packed(self, rollouts, credit, keep_zero):
        return pack(rollouts, credit, self.policy, shared_prefix=True, budget=150, keep_zero=keep_zero)

    def mine(self, rollouts, credit, shares, keep_zero):
        """The batch of this rank's share."""
        own = SHARES[shares][self.rank] if self.rank is not None else range(len(rollouts))
        return self.packed([r if n in own else r.to_stub() for n, r in enumerate(rollouts)], credit, keep_zero)

    def learner(self, stage, algorithm, gap_limit=math.inf):
        with torch.no_grad():
            for name, p in self.policy.parameters():
                p.copy_(self.first[name])
        is_rl = isinstance(stage, RlStage)
        critic = None
        if algorithm and algorithm.has_critic:
            critic = Critic(self.policy, (stage.critic if is_rl else None) or CriticConfig(learning_rate=0.5), 0)
            with torch.no_grad():  # it begins at zero, where no gradient reaches the backbone
                list(critic.head.parameters())[-2].normal_(generator=torch.Generator().manual_seed(2))
        reference = Reference(self.policy, adapters=False) if is_rl and stage.kl_coef else None
        if reference:
            reference.copy = self.other
        teacher = self.other if isinstance(stage, DistillStage) else None
        return Learner(self.policy, stage, algorithm, temperature=0.9, reference=reference, critic=critic, teacher=teacher,
                       gap_limit=gap_limit)  # fmt: skip

    def credit(self, stage, algorithm, learner, shares):
        ones = Credit(advantages=torch.ones(12))
        if algorithm is None:
            return ones
        signals = Signals(
            self.rollouts,
            self.scores,
            stage if isinstance(stage, RlStage) else RlStage(kind="rl", steps=1),
            weights=[{"a": 1.0, "b": 0.5}] * 12,
            kl=getattr(stage, "kl_coef", 0.0),
            measure=lambda names: learner.measure(self.mine(self.rollouts, ones, shares, True), names),
            greedy=lambda: torch.full((12,), 0.4),
            past=lambda rollout: (2, 6, 0.3, 0.5),
        )
        return algorithm.credit(signals)

    def play(self, stage, shares, gold):
        """(gradient of each optimiser step, weights at the end, metrics)."""
        sampled = isinstance(stage, DistillStage) and stage.divergence == "sampled"
        algorithm = load_algorithm("opd", {}) if sampled else None
        if isinstance(stage, RlStage):
            algorithm = load_algorithm(stage.algorithm, stage.settings, 7)
        learner = self.learner(stage, algorithm)
        credit = self.credit(stage, algorithm, learner, shares)
        count, batches = getattr(stage, "minibatches", 1), []
        for k in range(count):
            left_out = torch.tensor([r.group % count != k for r in self.rollouts])
            left_out = left_out if credit.advantages.ndim == 1 else left_out[:, None]
            part = replace(credit, advantages=credit.advantages.masked_fill(left_out, torch.nan))
            batches.append(self.mine(self.rollouts, part, shares, learner.needs_every_rollout))
        shown = None
        if gold:
            shown = Demonstrations(
                batch=self.mine(self.exact, Credit(advantages=torch.ones(12)), shares, True), weight=gold[0], uncertain=gold[1]
            )
            batches = [] if gold[0] == 1 else batches
        gradients, reduce = [], Optimizer._reduce

        def keep(optimizer):
            reduce(optimizer)
            gradients.append(
                torch.cat([torch.zeros(m.numel()) if m.grad is None else m.grad.flatten() for m in optimizer.masters])
            )

        Optimizer._reduce = keep
        try:
            metrics = learner.update(batches, 0, kl=getattr(stage, "kl_coef", 0.0), demonstrations=shown)
        finally:
            Optimizer._reduce = reduce
        return gradients, torch.cat([m.detach().flatten() for m in learner.optimizer.masters]), metrics

    def refused(self, limit):
        """The message with which an update is refused, "" if it isn't. The second share was sampled with other probabilities."""
        wrong = {n: self.said(r, torch.tensor(r.turns[0].logprobs) + 0.5) for n, r in enumerate(self.exact) if n >= 4}
        rollouts = [wrong.get(n, r) for n, r in enumerate(self.exact)]
        stage = RlStage(kind="rl", **SGD)
        learner = self.learner(stage, load_algorithm("grpo", {}), limit)
        batch = self.mine(rollouts, Credit(advantages=torch.linspace(-1, 1, 12)), "uneven", True)
        try:
            learner.update([batch], 0)
        except UserError as error:
            assert all(torch.equal(p, self.first[name]) for name, p in self.policy.parameters())
            assert not any(p.grad is not None for _, p in self.policy.parameters())
            return str(error)
        return ""

    def everything(self, names):
        found = {name: self.play(**case) for name, case in all_cases().items() if name in names}
        found["gap"] = [self.refused(limit) for limit in (0.1, 0.45, math.inf)]
        return found


if __name__ == "__main__":
    number, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=number, world_size=2, timeout=datetime.timedelta(seconds=60)
    )
    torch.save(Player(number).everything(names), folder / f"{number}.pt")
    distributed.destroy_process_group()
    sys.exit(0)


NEAR = {f"{i}, {n}" for k, i in enumerate(algorithms()) if i != "grpo" for n in WAYS if n != WAYS[k % len(WAYS)]}
"""The cases that CI leaves out: of each algorithm but the first all ways to average but one, which is another one in turn."""


def compared(folder, names):
    """What a process alone found, and what two found that ran together."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = [forked.start([str(n), str(folder), *names], script=__file__, env=env, stderr=subprocess.PIPE) for n in (0, 1)]
    try:
        alone = Player(None).everything(names)
        for rank in ranks:
            _, said = rank.communicate(timeout=600)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
    return alone, *(torch.load(folder / f"{n}.pt", weights_only=False) for n in (0, 1))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return compared(tmp_path_factory.mktemp("ranks"), [name for name in all_cases() if name not in NEAR])


# one test for all cases: each process of a parallel test run would play them again
def test_two_ranks_do_what_one_does(played):
    do_the_same(played)


@pytest.mark.exhaustive
def test_two_ranks_do_what_one_does_with_all_ways_to_average(tmp_path):
    do_the_same(compared(tmp_path, sorted(NEAR)))


def do_the_same(played):
    """Relative to the length of the gradient: single entries are sums that cancel."""
    for name in played[0].keys() - {"gap"}:
        (gradients, weights, metrics), *ranks = (p[name] for p in played)
        passes = {"mini-batches": 4, "supervised": 1, "distill": 1, "imitation alone": 1}
        assert len(gradients) == next((n for part, n in passes.items() if part in name), 2), name
        assert all(g.norm() > 1e-3 for g in gradients), f"{name}: there is nothing to compare"
        for theirs, their_weights, their_metrics in ranks:
            for one, two in zip(gradients, theirs, strict=True):
                assert (one - two).norm() < 1e-5 * one.norm(), name
            assert torch.allclose(weights, their_weights, rtol=1e-5, atol=1e-5), name
            assert their_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6), name
        assert torch.equal(ranks[0][1], ranks[1][1]), f"{name}: the ranks stay bit-equal"


def test_the_cases_have_what_they_are_about(played):
    """Bounds cut something off, averages differ, and the gradient of each part is there."""
    alone = played[0]
    clipping = {name.split(", ")[0] for name in alone if name.endswith(WAYS) and alone[name][2]["clip_share"] > 0}
    assert {"grpo", "gspo", "stable-reinforce", "cispo"} <= clipping
    plain = alone["grpo, sequence"]
    for name in (
        "grpo, token",
        "grpo, constant",
        "entropy",
        "importance",
        "masked importance",
        "imitation",
        "KL in the loss, k2",
    ):
        assert (alone[name][0][0] - plain[0][0]).norm() > 1e-2 * plain[0][0].norm(), name
    assert alone["a critic's bounds"][2]["value_clip_share"] > 0
    assert len(alone["a separate critic"][1]) > 1.9 * len(plain[1])
    assert alone["clipped"][2]["grad_norm"] > 0.1 and "imitation/loss" in alone["imitation"][2]
    assert alone["supervised"][0][0].norm() > 0


def test_both_ranks_refuse_together(played):
    """The first rank's rollouts are right and the second's are off by 0.5 nats a token: the mean of all is between."""
    alone, *ranks = (p["gap"] for p in played)
    assert [bool(text) for text in alone] == [True, False, False]
    assert "sampler and learner disagree by" in alone[0] and "limits.logprob_gap = 0.1" in alone[0]
    assert ranks == [alone, alone]
