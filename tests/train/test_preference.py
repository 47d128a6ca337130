"""Preference stages, against gradient descent on the papers' losses through transformers' plain forward of one prompt and one
completion."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

import runs
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.sampling import Group
from mmrl.api.types import Prompt, Score
from mmrl.config.preferences import PAIR_SETTINGS, PreferenceStage
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow
from mmrl.train.resolve import resolve
from mmrl.train.run import Run
from mmrl.train.stages.preference import best_and_worst, mismatched, pair_stub, tail_shares, terms_of

DESCENT = {"optimizer": "sgd", "beta1": 0.0, "learning_rate": 0.5, "max_grad_norm": math.inf}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY]))


class Folder:
    path = Path("nowhere")

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.errors: list[str] = []

    def metrics(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        self.rows.append(metrics)

    def error(self, step: int, where: str, what: str, **alarm: Any) -> None:
        self.errors.append(what)


def begun(folder: Path, stage: dict, task: Any = None, **sections: Any) -> Run:
    """A run in front of the first step of a preference stage on the toy task. task: takes its place."""
    stage = {"kind": "preference", "steps": 9, "prompts_per_step": 3, **DESCENT, **stage}
    sections = {"evaluate": {"num_prompts": 0}, "record": {"rollouts_every": 0, "trackers": []}, **sections}
    config = runs.toy_config(folder, stages=[stage], **sections)
    setup = runs.setup(config, {"toy/colour": task}) if task else resolve(config)
    quiet = SimpleNamespace(step_finished=lambda *a: None, note=lambda text: None)
    run = Run(setup, Folder(), VLM(setup.config.policy), None, quiet, lambda number: None)  # type: ignore[arg-type]
    run.prepare(setup.config.stages[0])
    return run


def step(run: Run) -> dict[str, float]:
    run.step(run.config.stages[0])
    return run.folder.rows[-1]  # type: ignore[attr-defined]


def pairs_of(run: Run) -> list:
    """The pairs of the next step, which draws the same again."""
    steps = type(run.steps)(run, run.config.stages[0])
    steps.source.restore(run.at.source) if run.at.source else None
    return steps.given()


def weights(policy: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for _, p in policy.parameters()]).clone()


def descended(policy: Any, loss: torch.Tensor) -> torch.Tensor:
    parameters = [p for _, p in policy.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)])
    return weights(policy) - DESCENT["learning_rate"] * flat


def tokens(policy: Any, rollout: Any) -> torch.Tensor:
    return cases.naive_logprobs(policy, rollout, 1.0).double()


def by_hand(keys: dict, policy: Any, reference: Any, pairs: list) -> torch.Tensor:
    """The loss with default settings but for `keys`."""
    found, kl = [], 0.0
    if keys.get("loss") == "kto":
        answered = mismatched(pairs)
        with torch.no_grad():
            gaps = [tokens(policy, r).sum() - tokens(reference, r).sum() for r in answered]
        kl = max(float(sum(gaps)) / len(gaps), 0.0)
    for pair in pairs:
        sides = (pair.preferred, pair.rejected)
        own = [tokens(policy, r) for r in sides]
        with torch.no_grad():
            other = [tokens(reference, r) for r in sides]
        n, m = (len(one) for one in own)
        tail = [torch.where(torch.arange(len(one)) < min(n, m), 1.0, keys.get("tail_weight", 1.0)) for one in own]
        a, b = (((x - y) * share).sum() for x, y, share in zip(own, other, tail, strict=True))
        good, bad, h = own[0].sum(), own[1].sum(), 0.1 * (a - b)
        weight = 1.0
        if keys.get("on_policy_weights"):
            with torch.no_grad():
                sums = [cases.naive_distribution(policy, r, 1.0).double().exp().square().sum(1).log() for r in sides]
                weight = math.prod(math.exp((x - y).mean()) for x, y in zip(own, sums, strict=True))
        loss = {
            "dpo": -logsigmoid(h),
            "ipo": ((good - other[0].sum()) / n - (bad - other[1].sum()) / m - 5) ** 2,
            "simpo": -logsigmoid(2 * good / n - 2 * bad / m - 1),
            "kto": (2 - (0.1 * (a - kl)).sigmoid() - (0.1 * (kl - b)).sigmoid()) / 2,
            "hinge": (1 - keys.get("beta", 0.1) * (good - bad)).relu(),
            "mpo": -0.8 * logsigmoid(h) - 0.2 * (logsigmoid(0.1 * a) + logsigmoid(-0.1 * b)),
        }["mpo" if "losses" in keys else keys.get("loss", "dpo")]
        found.append(weight * loss - keys.get("nll_weight", 0.0) * good / n)
    return torch.stack(found).mean()


STEPPED = [
    {"loss": "dpo"},
    {"losses": {"dpo": 0.8, "bco": 0.2}, "nll_weight": 1.0, "tail_weight": 0.3},
    {"loss": "dpo", "on_policy_weights": True, "nll_weight": 0.01},
    {"loss": "hinge", "reference": "none", "beta": 4.0},
    {"loss": "kto"},
    {"loss": "ipo"},
    {"loss": "simpo"},
]


@pytest.mark.parametrize("keys", mostly_slow(STEPPED, everyday=3), ids=str)
def test_steps_are_those_of_the_papers(tmp_path: Path, keys: dict) -> None:
    """The second one too, in which the policy has left the reference model. Some sides have more tokens than others, and the
    hinge lets a pair alone that the others of its step pull."""
    loss = keys.get("loss", "")
    run = begun(tmp_path, {**keys, "learning_rate": {"ipo": 0.02, "hinge": 0.05}.get(loss, 0.5), "prompts_per_step": 5})
    reference = copy.deepcopy(run.policy)
    near = 1e-4 if "on_policy_weights" in keys else 1e-5  # the sum of p^2 is what float32 leaves of 1 and a bit more
    for _ in range(2):
        before, pairs = copy.deepcopy(run.policy), pairs_of(run)
        wanted = by_hand(keys, before, reference, pairs)
        rate = run.config.stages[0].learning_rate
        moved = (descended(before, wanted) - weights(before)) * rate / DESCENT["learning_rate"]
        found = step(run)
        assert found["loss"] == pytest.approx(wanted.item(), rel=near)
        assert moved.norm() > 1e-5 and (weights(run.policy) - weights(before) - moved).norm() < 2e-3 * moved.norm()
    assert len({r.length for p in pairs for r in (p.preferred, p.rejected)}) > 1
    assert found["preference/pairs"] == 5 and 0 <= found["preference/accuracy"] <= 1
    assert ("preference/kl" in found) == (loss == "kto") and ("preference/weight" in found) == ("on_policy_weights" in keys)


LEARNED = [
    {"losses": {"dpo": 0.8, "bco": 0.2}, "nll_weight": 1.0, "reward_shift": True},
    *({"loss": loss} for loss in PAIR_SETTINGS if loss not in ("bradley-terry", "discopop")),
    {"loss": "discopop", "discopop_tau": 0.5},  # with 0.05 it pushes the sides together first
    {"loss": "dpo", "reference": "none", "nll_weight": 1.0},
    {"loss": "dpo", "divergence": "forward-kl"},
    {"loss": "dpo", "divergence": "jensen-shannon"},
    {"loss": "dpo", "tail_weight": 0.3, "on_policy_weights": True},
]


@pytest.mark.parametrize("keys", mostly_slow(LEARNED, everyday=1), ids=str)
def test_the_loss_falls_and_the_preferred_side_gains_on_the_other(tmp_path: Path, keys: dict) -> None:
    run = begun(tmp_path, {**keys, "prompts_per_step": 8, "optimizer": "adamw", "beta1": 0.9, "learning_rate": 1e-3})
    found = [step(run) for _ in range(20)]
    start, end = ({k: (x[k] + y[k]) / 2 for k in x.keys() & y.keys()} for x, y in (found[:2], found[-2:]))  # all 16 pairs
    assert end["loss"] < start["loss"]
    gaps = [one["preference/logprob_preferred"] - one["preference/logprob_rejected"] for one in (start, end)]
    assert gaps[1] > gaps[0] + 0.05 and end["preference/margin"] > start["preference/margin"]
    if "nll_weight" in keys or keys.get("loss") in ("orpo", "apo-zero", "nca", "bco"):
        assert end["preference/logprob_preferred"] > start["preference/logprob_preferred"]


def test_the_division_into_micro_batches_changes_nothing(tmp_path: Path) -> None:
    """Neither do rows of one completion, whose sides are in different passes."""
    moved = []
    for train in ({}, {"micro_batch_tokens": 1}, {"packing": "per-completion", "micro_batch_tokens": 40}):
        run = begun(tmp_path, {}, train={"threads": 1, **train})
        before = weights(run.policy)
        step(run)
        moved.append(weights(run.policy) - before)
    assert all((one - moved[0]).norm() < 1e-4 * moved[0].norm() for one in moved[1:])


def test_the_reference_model_sees_each_pair_once(tmp_path: Path) -> None:
    """16 pairs in batches of 8: from the third step on, they are known. A checkpoint holds what is known."""
    run = begun(tmp_path, {"prompts_per_step": 8})
    counted: list[int] = []
    ask = run.steps.reference.logprobs
    run.steps.reference.logprobs = lambda micro, t: counted.append(int(micro.final_R.numel())) or ask(micro, t)
    asked = []
    for _ in range(4):
        step(run)
        asked.append(sum(counted))
        counted.clear()
    assert asked == [16, 16, 0, 0]
    kept, state = dict(run.steps.reference.kept), run.steps.learner.state()
    run.steps.reference.kept = {}
    run.steps.learner.load_state(state)
    assert run.steps.reference.kept == kept and len(kept) == 32


@pytest.mark.parametrize("decay", [0.0, 0.6])
def test_the_reference_model_follows_the_policy(tmp_path: Path, decay: float) -> None:
    """TR-DPO: every two steps it takes a share of the policy, and nothing is known of it then."""
    run = begun(tmp_path, {"prompts_per_step": 8, "reference_every": 2, "reference_decay": decay})
    expected, found = weights(run.policy), []
    for number in range(1, 5):
        found.append(step(run))
        if number % 2 == 0:
            expected = decay * expected + (1 - decay) * weights(run.policy)
            assert not run.steps.reference.kept
        torch.testing.assert_close(weights(run.steps.reference.copy), expected, atol=1e-6, rtol=1e-6)
        assert (weights(run.policy) - expected).norm() > 1e-3 or (decay == 0 and number % 2 == 0)
    if decay == 0:
        assert [one["loss"] == pytest.approx(math.log(2), abs=1e-7) for one in found] == [True, False, True, False]


class Answers:
    """A judge: the first of a group is worth 0.5, and so on."""

    def __init__(self, *values: float | None) -> None:
        self.values = values

    def group(self) -> Group:
        rollouts = [SimpleNamespace(environment_reward=0.0, name=n) for n in range(len(self.values))]
        scores = [Score(v) for v in self.values]
        return Group(place=("t", 0), number=0, prompt=Prompt(messages=[]), inputs=None, rollouts=rollouts, scores=scores)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "best", "worst"),
    [
        ((0.5, 1.0, 0.0), 1, 2),
        ((1.0, 1.0, 0.0, 0.0), 0, 2),
        ((None, 0.2, 0.1), 1, 2),
        ((0.3, None, 0.3), None, None),
        ((None,), None, None),
    ],
)
def test_a_group_s_pair_is_its_best_and_its_worst(values: tuple, best: int | None, worst: int | None) -> None:
    found = best_and_worst(Answers(*values).group())
    assert (found and (found.preferred.name, found.rejected.name)) == (None if best is None else (best, worst))  # type: ignore[attr-defined]


def test_sampled_pairs_are_the_judge_s(tmp_path: Path) -> None:
    """Of each group the best is to become likelier, and the worst less likely."""
    stage = {"kind": "preference", "pairs": "sampled", "steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2}
    folder = runs.run(runs.toy_config(tmp_path, stages=[stage], evaluate={"num_prompts": 0}))
    first, second = (row["metrics"] for row in runs.rows(folder) if "metrics" in row)
    assert first["preference/pairs"] == 2 and first["loss"] == pytest.approx(math.log(2)) and first["grad_norm"] > 0
    assert second["loss"] != first["loss"] and {"reward/mean", "entropy", "length/mean"} <= second.keys()


def test_each_loss_has_what_is_set_of_what_it_reads_and_its_own_defaults() -> None:
    dpo, simpo, exo = terms_of(
        PreferenceStage(kind="preference", steps=1, losses={"dpo": 0.5, "simpo": 2.0, "exo": 1.0}, margin=3.0)
    )
    assert (dpo.loss, dpo.weight, dpo.settings.beta, dpo.settings.margin, dpo.settings.label_smoothing) == ("dpo", 0.5, 0.1, 0, 0)
    assert (simpo.loss, simpo.weight, simpo.settings.beta, simpo.settings.margin) == ("simpo", 2.0, 2.0, 3.0)
    assert (exo.settings.beta, exo.settings.label_smoothing) == (0.1, 1e-3)
    (robust,) = terms_of(PreferenceStage(kind="preference", steps=1, loss="robust", beta=0.3))
    assert (robust.settings.beta, robust.settings.label_smoothing) == (0.3, 0.1)


def test_the_tail_is_what_one_side_has_more() -> None:
    """Two pairs, of 3 and 1 and of 2 and 4 tokens."""
    found = tail_shares(torch.tensor([3, 2, 1, 4]), 0.25)
    assert found is not None and tail_shares(torch.tensor([3, 1]), 1.0) is None
    assert found.tolist() == [[1, 0.25, 0.25, 0.25], [1, 1, 0.25, 0.25], [1, 0.25, 0.25, 0.25], [1, 1, 0.25, 0.25]]


def test_a_step_with_one_pair_has_no_other_prompt_to_compare_with(tmp_path: Path) -> None:
    """The estimate of the KL is then 0, and the step is made."""
    run = begun(tmp_path, {"loss": "kto"})
    for _ in range(2):
        found = run.steps.learn(pairs_of(run)[:1])
        assert found["preference/pairs"] == 1 and found["preference/kl"] == 0 and found["grad_norm"] > 0
    assert found["loss"] < 0.5


@pytest.mark.parametrize(
    ("shares", "mine", "answered"), [([[], [1, 2]], [0], [1, 2]), ([[1, 2], []], [1, 2], [1, 2]), ([[], []], [1], [])]
)
def test_a_rank_with_one_pair_has_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: list, mine: list, answered: list
) -> None:
    """Pairs of two other ranks, or of this one, have theirs on all ranks, in the same order."""
    pairs = pairs_of(begun(tmp_path, {"loss": "kto"}))
    monkeypatch.setattr("mmrl.compute.ranks.all_gather_object", lambda own: shares)
    seen = [pair if n in mine else pair_stub(pair) for n, pair in enumerate(pairs)]
    found = mismatched(seen)
    assert [r.completion for r in found] == [pairs[n].preferred.completion for n in answered]
    assert [r.is_stub for r in found] == [n not in mine for n in answered]


@pytest.mark.slow
def test_a_group_without_spread_gives_no_pair(tmp_path: Path) -> None:
    stage = {"kind": "preference", "pairs": "sampled", "steps": 1, "prompts_per_step": 2, "group_size": 3, "learning_rate": 1e-2}
    tasks = [{"id": "toy/colour", "verifiers": {"toy/zero": 1.0}}]
    folder = runs.run(runs.toy_config(tmp_path, stages=[stage], tasks=tasks, evaluate={"num_prompts": 0}))
    (found,) = (row["metrics"] for row in runs.rows(folder) if "metrics" in row)
    assert found["preference/pairs"] == 0 and found["grad_norm"] == 0 and found["zero_std_share"] == 1


# -- bad input ----------------------------------------------------------------------------------------------------------------


def toy(**methods: Any) -> Any:
    from toy import Colour

    return type("Changed", (Colour,), methods)()


def test_a_pair_of_equal_sides_is_left_out_and_named(tmp_path: Path) -> None:
    """One of 16 is passed over; if all are like it, the run ends."""
    run = begun(
        tmp_path, {"prompts_per_step": 15}, toy(pair=lambda self, p: (p.answer, "red" if p.id == "train-red-0" else "none"))
    )
    step(run)
    assert run.folder.errors == [
        "left out train-red-0: both sides of its pair are 'red', so neither is preferred: correct or remove it"
    ]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"prompts are broken so far.*both sides of its pair are"):
        step(begun(tmp_path, {}, toy(pair=lambda self, p: ("same", "same"))))


@pytest.mark.parametrize("pair", [("one",), "ab", ("one", 2), None])
def test_a_pair_that_is_none_is_the_task_s_fault(tmp_path: Path, pair: Any) -> None:
    with pytest.raises(UserError, match=r"pair\(\) of prompt 'train-\w+-\d' must be two texts"):
        step(begun(tmp_path, {}, toy(pair=lambda self, p: pair if pair != "ab" else 7)))


# -- resume, smoke ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"pairs": "task"},
        {"pairs": "sampled"},
        {"loss": "bco", "reward_shift": True},
        {"loss": "dpo", "reference_every": 2, "reference_decay": 0.5},
    ],
    ids=str,
)
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, keys: dict) -> None:
    """Also with the reference's results, which another division into passes would change in their last digits, and with the mean
    reward so far."""

    def config(name: str) -> Any:
        stage = {"kind": "preference", "loss": "kto", "steps": 8, "prompts_per_step": 4, "learning_rate": 1e-2, **keys}
        return runs.toy_config(tmp_path / name, stages=[stage], evaluate={"num_prompts": 2})

    whole = runs.run(config("whole"))
    with pytest.raises(KeyboardInterrupt):
        runs.run(config("cut"), progress=runs.Silent(5))
    assert runs.trajectory(runs.run(config("cut"), resume=True)) == runs.trajectory(whole)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["task", "sampled"])
def test_a_smoke_run_proves_the_update(tmp_path: Path, pairs: str) -> None:
    from mmrl.train.smoke import smoke

    stage = {"kind": "preference", "pairs": pairs, "steps": 500, "prompts_per_step": 64}
    folder = runs.run(smoke(runs.toy_config(tmp_path, stages=[stage])))
    assert '"step": 1' in (folder.path / "summary.json").read_text()
