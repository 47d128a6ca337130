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
from mmrl.config.preferences import PreferenceStage
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow
from mmrl.train.resolve import resolve
from mmrl.train.run import Run
from mmrl.train.stages.preference import best_and_worst, mismatched, pair_stub

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


def total(policy: Any, rollout: Any) -> torch.Tensor:
    return cases.naive_logprobs(policy, rollout, 1.0).double().sum()


def by_hand(loss: str, policy: Any, reference: Any, pairs: list) -> torch.Tensor:
    """The loss with default settings."""
    found = []
    if loss == "kto":
        answered = mismatched(pairs)
        with torch.no_grad():
            gaps = [total(policy, r) - total(reference, r) for r in answered]
        kl = max(float(sum(gaps)) / len(gaps), 0.0)
    for pair in pairs:
        (good, bad) = (total(policy, r) for r in (pair.preferred, pair.rejected))
        (n, m) = (pair.preferred.length, pair.rejected.length)
        with torch.no_grad():
            gone, bone = (total(reference, r) for r in (pair.preferred, pair.rejected))
        if loss == "dpo":
            found.append(-logsigmoid(0.1 * ((good - gone) - (bad - bone))))
        elif loss == "ipo":
            found.append(((good - gone) / n - (bad - bone) / m - 5) ** 2)
        elif loss == "simpo":
            found.append(-logsigmoid(2 * good / n - 2 * bad / m - 1))
        else:
            up, down = 0.1 * ((good - gone) - kl), 0.1 * (kl - (bad - bone))
            found.append((2 - up.sigmoid() - down.sigmoid()) / 2)
    return torch.stack(found).mean()


@pytest.mark.parametrize("loss", mostly_slow(["dpo", "kto", "ipo", "simpo"], everyday=2))
def test_steps_are_those_of_the_papers(tmp_path: Path, loss: str) -> None:
    """The second one too, in which the policy has left the reference model."""
    run = begun(tmp_path, {"loss": loss, "learning_rate": 0.02 if loss == "ipo" else 0.5})
    reference = copy.deepcopy(run.policy)
    for _ in range(2):
        before, pairs = copy.deepcopy(run.policy), pairs_of(run)
        wanted = by_hand(loss, before, reference, pairs)
        rate = run.config.stages[0].learning_rate
        moved = (descended(before, wanted) - weights(before)) * rate / DESCENT["learning_rate"]
        found = step(run)
        assert found["loss"] == pytest.approx(wanted.item(), rel=1e-5)
        assert moved.norm() > 1e-4 and (weights(run.policy) - weights(before) - moved).norm() < 1e-3 * moved.norm()
    assert found["preference/pairs"] == 3 and 0 <= found["preference/accuracy"] <= 1
    assert ("preference/kl" in found) == (loss == "kto")


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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss": "ipo", "label_smoothing": 0.1}, 'label_smoothing has no effect with loss = "ipo": drop it'),
        ({"loss": "dpo", "margin": 1.0}, 'margin has no effect with loss = "dpo": drop it'),
        ({"loss": "simpo", "reference": "frozen"}, 'reference has no effect with loss = "simpo": drop it'),
        ({"loss": "bradley-terry", "nll_weight": 1.0}, "nll_weight is for policies"),
        ({"loss": "bradley-terry", "pairs": "sampled"}, "trains a reward model, which samples nothing"),
        ({"loss": "kto", "prompts_per_step": 1}, "set prompts_per_step to at least 2"),
        ({"loss": "kto", "desirable_weight": 0.0, "undesirable_weight": 0.0}, "are both 0, so there is no loss"),
        ({"reference": "adapter"}, r'stages.0.reference = "adapter" needs adapters'),
        ({"group_size": 1}, "group_size"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
    ],
)
def test_keys_that_can_t_work_are_refused(tmp_path: Path, keys: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(runs.toy_config(tmp_path, stages=[{"kind": "preference", "steps": 1, **keys}]))


def test_a_task_without_pairs_is_refused(tmp_path: Path) -> None:
    config = runs.toy_config(tmp_path, stages=[{"kind": "preference", "steps": 1}])
    from mmrl import Task

    with pytest.raises(UserError, match=r"task 'toy/colour' has no pairs: set pairs = \"sampled\", or use judge/pairs"):
        from mmrl.train.checks.preferences import check_preference

        check_preference(config, 0, PreferenceStage(kind="preference", steps=1), {"toy/colour": Task()})


# -- resume, smoke ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["task", "sampled"])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, pairs: str) -> None:
    """Also with the reference's results, which another division into passes would change in their last digits."""

    def config(name: str) -> Any:
        stage = {"kind": "preference", "loss": "kto", "pairs": pairs, "steps": 8, "prompts_per_step": 4, "learning_rate": 1e-2}
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
