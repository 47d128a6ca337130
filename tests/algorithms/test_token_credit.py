"""Credit of tokens by verl's optimal baseline and self-distillation of ms-swift and TRL, against what these gave; slow loops."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import runs
from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.group_baselines import optimal_token_baseline
from mmrl.algorithms.loss import LossInputs
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.selection import likelihood_weighted
from mmrl.api.errors import UserError
from mmrl.train.resolve import resolve

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = [json.loads(line) for line in (GOLDEN / "objectives.jsonl").read_text().splitlines()]
SDPO = [json.loads(line) for line in (GOLDEN / "corrections.jsonl").read_text().splitlines() if '"trl-sdpo-' in line]
TOKENS, TOLD, LIKELY = ([r for r in ROWS if name in r] for name in ("token_credit", "told_credit", "reweighted_credit"))
NAN = float("nan")


def test_the_table_is_whole():
    assert len(TOKENS) == 12 and len(TOLD) == 8 and len(SDPO) == 4 and len(LIKELY) == 6


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("row", TOKENS, ids=lambda row: row["name"])
def test_credit_of_tokens_is_theirs(row):
    mask = padded([[1.0] * len(paid) for paid in row["paid"]]).bool()
    algorithm = load_algorithm((settings := dict(row["settings"])).pop("algorithm"), settings)
    found = algorithm.advantage(padded(row["paid"]), torch.tensor(row["groups"]), padded(row["slopes"]), mask)
    np.testing.assert_allclose(found.numpy(), padded(row["token_credit"]).numpy(), atol=2e-6)


@pytest.mark.parametrize("row", LIKELY, ids=lambda row: row["name"])
def test_credit_of_unlikely_tokens_is_theirs(row):
    """That of AR-Lopti's `compute_grpo_outcome_advantage`, with mmrl's epsilon, and `compute_reweight_advantage`. A failed
    rollout counts in no mean, and is NaN."""
    algorithm = load_algorithm((settings := dict(row["settings"])).pop("algorithm"), settings)
    mask = torch.tensor([*row["mask"], [1.0] * 5]).bool()
    logprobs = torch.tensor([*row["logprobs"], [-1.0] * 5], dtype=torch.float64)
    given = {"rewards_N": torch.tensor([*row["rewards"], NAN]), "groups_N": torch.tensor([*row["groups"], 0])}
    given |= {"logprobs_NT": logprobs, "mask_NT": mask}
    found = algorithm.advantage(*(given[name] for name in algorithm.needs))
    assert found.dtype == torch.float32 and found[-1].isnan().all()
    np.testing.assert_allclose(found[:-1].numpy(), row["reweighted_credit"], rtol=1e-5, atol=1e-6)


def test_less_credit_for_unlikely_tokens_by_hand():
    """Advantages of 1 and -1, times 0.25 p + 0.75; the last token isn't trained. Nothing but the share changes with it."""
    given = (torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([[1.0, 0.2, 0.4], [0.6, 0.01, 1.0]]).log())
    mask = torch.tensor([[True, True, False], [True, True, False]])
    found = likelihood_weighted(*given, mask, share=0.25) / likelihood_weighted(*given, mask, share=0.0)
    assert found[:, :2].tolist() == [[pytest.approx(1.0), pytest.approx(0.8)], [pytest.approx(0.9), pytest.approx(0.7525)]]
    plain = group_relative(*given[:2])[:, None].expand(2, 3).where(mask, 0.0)
    assert torch.equal(likelihood_weighted(*given, mask, share=0.0), plain)


@pytest.mark.parametrize(
    ("id", "settings", "message"),
    [
        *(("advantage-reweighting", {"share": share}, r"settings\.share") for share in (-0.1, 1.1)),
        *(("advantage-reweighting", {"share": share}, "share = .* must be a number") for share in ("all", True)),
        ("advantage-reweighting", {"share": NAN}, "nan is not allowed: give a number"),
        ("divergence-ppo", {"penalty": -1e-3}, r"settings\.penalty"),
        ("grpo", {"penalty": 1e-3}, "algorithm 'grpo' has no setting 'penalty'"),
    ],
)
def test_settings_that_are_none_are_refused(id, settings, message, tmp_path, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    algorithm = {"algorithm": id, "settings": settings}
    with pytest.raises(UserError, match=message):
        resolve(runs.toy_config(tmp_path, stages=[{"kind": "rl", "steps": 1, **algorithm}]))


@pytest.mark.parametrize("row", TOLD, ids=lambda row: row["name"])
def test_credit_from_a_policy_that_knows_the_answer_is_theirs(row):
    """A quarter into the stage. A failed rollout counts in no mean, and is NaN."""
    algorithm = load_algorithm((settings := dict(row["settings"])).pop("algorithm"), settings)
    more = {"rewards": [NAN], "told": [[0.0] * 6], "logprobs": [[0.0] * 6], "mask": [[1.0] * 6]}
    table = {key: torch.tensor([*row[key], *value], dtype=torch.float64) for key, value in more.items()}
    given = {"rewards_N": table["rewards"], "told_logprobs_NT": table["told"], "logprobs_NT": table["logprobs"]}
    given |= {"mask_NT": table["mask"].bool(), "groups_N": torch.arange(9) // 4 % 2, "progress_N": torch.full((9,), 0.25)}
    found = algorithm.advantage(*(given[name] for name in algorithm.needs))
    np.testing.assert_allclose(found[:8].numpy(), row["told_credit"], rtol=1e-4, atol=1e-5)
    assert found[8].isnan().all()


@pytest.mark.parametrize(
    ("id", "settings"), [("sdar", {"told_weight": 0.3}), ("rlsd", {"weight": 0.7}), ("rlsd", {"only_negative": True})]
)
def test_who_was_told_nothing_knows_nothing_better(id, settings):
    """Rollouts whose prompt has no gold completion have GRPO's advantage, and others their own."""
    rewards, groups = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    told = torch.tensor([[-0.5, -0.1]] * 2 + [[NAN, NAN]] * 2, dtype=torch.float64)
    given = {"rewards_N": rewards, "groups_N": groups, "told_logprobs_NT": told, "logprobs_NT": torch.full((4, 2), -0.3)}
    given |= {"mask_NT": torch.tensor([[True, True]] * 3 + [[True, False]]), "progress_N": torch.zeros(4)}
    found, plain = (
        one.advantage(*(given[name] for name in one.needs)) for one in (load_algorithm(id, settings), load_algorithm("grpo", {}))
    )
    assert torch.equal(found[2:], plain[2:, None] * given["mask_NT"][2:]) and not torch.equal(found[:2], found[2:])


@pytest.mark.parametrize("row", SDPO, ids=lambda row: row["name"])
def test_the_first_update_of_sdpo_is_theirs(row):
    """The rollouts without another success are left out."""
    logits, taught, slopes = (torch.tensor(row[key], dtype=torch.float64) for key in ("logits", "taught", "slopes"))
    mask, ids, has = torch.tensor(row["mask"]).bool(), torch.tensor(row["ids"])[..., None], torch.tensor(row["has"]).bool()
    own = logits.requires_grad_()
    logprobs = own.log_softmax(-1).gather(-1, ids)[..., 0]
    shown = taught.log_softmax(-1).gather(-1, ids)[..., 0].where(has[:, None], NAN)
    algorithm = load_algorithm("sdpo", {})
    given = {"rewards_N": has.double(), "groups_N": torch.zeros(5, dtype=torch.int64), "shown_logprobs_NT": shown}
    given |= {"logprobs_NT": logprobs.detach(), "mask_NT": mask}
    credit = algorithm.advantage(*(given[name] for name in algorithm.needs))
    assert credit.isnan().any(1).tolist() == (~has).tolist() and not credit[has][~mask[has]].any()
    kept = mask & has[:, None]
    known = {"old_logprobs_L": logprobs.detach()[kept], "advantages_L": credit[kept], "rollout_L": kept.nonzero()[:, 0]}
    loss, _ = algorithm.loss(LossInputs(logprobs_L=logprobs[kept], lengths_N=kept.sum(1), **known))
    loss.mean().backward()
    np.testing.assert_allclose(own.grad, slopes, atol=2e-6)


def test_a_share_of_sdpo_mixes_it_with_the_groups_advantage():
    """Of two groups the second has no other success, and of the first the second completion; the last score failed."""
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 0.0, NAN], dtype=torch.float64), torch.tensor([0, 0, 1, 1, 0])
    shown = torch.tensor([[NAN, NAN], [-0.5, -0.1], *[[NAN, NAN]] * 2, [-1.0, -1.0]], dtype=torch.float64)
    given = {"rewards_N": rewards, "groups_N": groups, "shown_logprobs_NT": shown, "logprobs_NT": torch.full((5, 2), -0.3)}
    given["mask_NT"] = torch.tensor([[True, True], [True, True], [True, True], [True, False], [True, True]])
    for share in (0.25, 1.0):
        algorithm = load_algorithm("sdpo", {"share": share})
        plain = load_algorithm("grpo", {}).advantage(rewards, groups)
        found = algorithm.advantage(*(given[name] for name in algorithm.needs))
        alone = [[NAN, NAN]] if share == 1 else [[(1 - share) * a.item()] * 2 for a in plain[:1]]
        mixed = [[share * gain + (1 - share) * plain[1].item() for gain in (-0.2, 0.2)]]
        nothing = [[NAN if share == 1 else 0.0] * 2] * 2
        np.testing.assert_allclose(found, [*alone, *mixed, *nothing, [NAN, NAN]], atol=1e-6)


@pytest.mark.parametrize("tail", [True, False])
def test_the_optimal_token_baseline_one_place_at_a_time(tail):
    """With scores that failed. Of all baselines at a place it has the least mean of energy times squared advantage."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        paid, slopes, groups = rng.normal(size=(6, 4)), rng.random((6, 4)), rng.integers(0, 3, 6)
        lengths, failed = rng.integers(0, 5, 6), rng.random(6) < 0.2
        paid[failed] = NAN
        mask = np.arange(4) < lengths[:, None]
        found = optimal_token_baseline(*map(torch.tensor, (paid, groups, slopes, mask)), tail=tail).double().numpy()
        for n, t in itertools.product(range(6), range(4)):
            group = [m for m in range(6) if groups[m] == groups[n] and lengths[m] and not failed[m]]
            to_go = {m: sum(paid[m, t : lengths[m]]) for m in group if t < lengths[m]}
            if failed[n] or n not in to_go or len(group) < 2:
                assert math.isnan(found[n, t]) if failed[n] else found[n, t] == 0
            elif len(to_go) == 1:
                assert found[n, t] == pytest.approx(to_go[n] if tail else 0.0, abs=1e-6)
            else:
                baseline = to_go[n] - found[n, t]
                energy = [sum(slopes[m, : t + 1]) for m in to_go]
                spread = [np.dot(energy, (np.array([*to_go.values()]) - baseline - shift) ** 2) for shift in (-1e-3, 0, 1e-3)]
                assert min(spread) == spread[1]
    groups, slopes = torch.arange(150) // 3, torch.rand(150, 1, generator=torch.Generator().manual_seed(0)).double() ** 0.5
    equal = optimal_token_baseline(torch.full((150, 1), 0.1).double(), groups, slopes, torch.ones(150, 1).bool())
    assert not equal.any(), "exactly 0, so that the groups are left out"
