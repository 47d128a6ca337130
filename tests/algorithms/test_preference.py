"""Losses on pairs against numpy, their derivatives against differences, and their values against TRL's own trainers."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.preference import LOSSES, PairSums, Settings, credit
from mmrl.config.preferences import PAIR_SETTINGS

OPTIONS = {
    "dpo": Settings(beta=0.3, label_smoothing=0.1),
    "ipo": Settings(beta=0.2),
    "kto": Settings(beta=0.4, desirable_weight=1.5, undesirable_weight=0.75),
    "simpo": Settings(beta=2.5, margin=1.2, label_smoothing=0.05),
    "bradley-terry": Settings(margin=0.5),
}


def sums(logprobs, reference=None, lengths=None, kl=0.0):
    logprobs = torch.tensor(logprobs, dtype=torch.float64)
    return PairSums(
        logprobs_P2=logprobs,
        reference_P2=torch.zeros_like(logprobs) if reference is None else torch.tensor(reference, dtype=torch.float64),
        lengths_P2=torch.ones_like(logprobs) if lengths is None else torch.tensor(lengths, dtype=torch.float64),
        kl=kl,
    )


EXAMPLE = sums(
    [[-3.0, -5.0], [-9.5, -2.0], [-1.0, -1.5]], [[-4.0, -4.5], [-8.0, -2.5], [-1.2, -1.1]], [[3, 4], [7, 2], [1, 1]], 0.7
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow(name, found, s):
    """The loss of each pair, by the papers' formulas, one at a time."""
    losses = []
    for (w, v), (rw, rv), (nw, nv) in zip(
        found.logprobs_P2.tolist(), found.reference_P2.tolist(), found.lengths_P2.tolist(), strict=True
    ):
        if name == "dpo":
            h = s.beta * math.log(np.exp(w) / np.exp(rw)) - s.beta * math.log(np.exp(v) / np.exp(rv))
            loss = -(1 - s.label_smoothing) * np.log(sigmoid(h)) - s.label_smoothing * np.log(sigmoid(-h))
        elif name == "ipo":
            loss = ((w - rw) / nw - (v - rv) / nv - 0.5 / s.beta) ** 2
        elif name == "kto":
            good = s.desirable_weight * (1 - sigmoid(s.beta * ((w - rw) - found.kl)))
            loss = (good + s.undesirable_weight * (1 - sigmoid(s.beta * (found.kl - (v - rv))))) / 2
        elif name == "simpo":
            gap = s.beta / nw * w - s.beta / nv * v - s.margin
            loss = -(1 - s.label_smoothing) * np.log(sigmoid(gap)) - s.label_smoothing * np.log(sigmoid(-gap))
        else:
            loss = -np.log(np.exp(w) / (np.exp(w) + np.exp(v + s.margin)))
        losses.append(loss - s.nll_weight * w / nw)
    return float(np.mean(losses))


@pytest.mark.parametrize("nll", [0.0, 0.3])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_of_its_paper(name: str, nll: float) -> None:
    chosen = Settings(**{**{k: getattr(OPTIONS[name], k) for k in OPTIONS[name].__slots__}, "nll_weight": nll})
    assert credit(name, EXAMPLE, chosen).loss == pytest.approx(slow(name, EXAMPLE, chosen), rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_the_weights_are_minus_the_slope_of_the_loss(name: str) -> None:
    found, step = credit(name, EXAMPLE, OPTIONS[name]), 1e-6
    for p in range(3):
        for side in range(2):
            moved = []
            for sign in (1, -1):
                logprobs = EXAMPLE.logprobs_P2.clone()
                logprobs[p, side] += sign * step
                there = PairSums(logprobs_P2=logprobs, reference_P2=EXAMPLE.reference_P2, lengths_P2=EXAMPLE.lengths_P2, kl=0.7)
                moved.append(slow(name, there, OPTIONS[name]))
            assert found.weights_P2[p, side].item() == pytest.approx(-(moved[0] - moved[1]) / (2 * step), abs=1e-7)


numbers = st.floats(-30, 0)


@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=6),
    st.sampled_from(["dpo", "simpo", "bradley-terry"]),
)
@settings(max_examples=40, deadline=None)
def test_a_logistic_loss_pulls_the_sides_apart_alike(rows: list, name: str) -> None:
    """What the preferred side gains, the other loses; SimPO's per token. Whatever the numbers, nothing is infinite."""
    pairs = sums([r[:2] for r in rows], None if name != "dpo" else [r[2:] for r in rows])
    found = credit(name, pairs, Settings(beta=0.5))
    assert math.isfinite(found.loss) and found.loss > 0
    assert (found.weights_P2[:, 0] >= 0).all() and torch.allclose(
        found.weights_P2.sum(1), torch.zeros(len(rows), dtype=torch.float64)
    )


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.floats(-5, 5))
@settings(max_examples=40, deadline=None)
def test_dpo_reads_nothing_but_the_gap_of_log_ratios(rows: list, shift: float) -> None:
    """A prompt's own constant, which the partition function is, changes nothing (Rafailov et al., lemma 1)."""
    plain = credit("dpo", sums(rows, [(0.0, 0.0)] * len(rows)), Settings(beta=0.2))
    moved = credit("dpo", sums([(a + shift, b + shift) for a, b in rows], [(0.0, 0.0)] * len(rows)), Settings(beta=0.2))
    assert moved.loss == pytest.approx(plain.loss, abs=1e-9)


def test_at_the_reference_model_the_losses_have_their_known_values() -> None:
    same = sums([[-4.0, -6.0]], [[-4.0, -6.0]], [[2, 3]])
    assert credit("dpo", same, Settings()).loss == pytest.approx(math.log(2))
    assert credit("ipo", same, Settings(beta=0.1)).loss == pytest.approx(25.0)
    assert credit("kto", same, Settings()).loss == pytest.approx(0.5)


def test_every_loss_has_its_settings_in_the_run_file() -> None:
    assert PAIR_SETTINGS.keys() == LOSSES.keys()
    for name, keys in PAIR_SETTINGS.items():
        for key in set(keys) - {"reference"}:
            changed = Settings(**{**{k: getattr(OPTIONS[name], k) for k in OPTIONS[name].__slots__}, key: 0.45})
            assert credit(name, EXAMPLE, changed).loss != credit(name, EXAMPLE, OPTIONS[name]).loss, f"{name} doesn't read {key}"


# -- TRL ----------------------------------------------------------------------------------------------------------------------

NEEDS_TRL = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason='needs trl: pip install "trl>=1.16,<1.17"')


class Model:
    """Gives TRL the log-probabilities of the rows of `EXAMPLE`, spread evenly over their tokens."""

    def __init__(self, table_N, lengths_N):
        self.table_N, self.lengths_N = table_N, lengths_N

    def __call__(self, input_ids, **_):
        logprobs = torch.zeros(input_ids.shape, dtype=torch.float64)
        for n, (total, length) in enumerate(zip(self.table_N.tolist(), self.lengths_N.tolist(), strict=True)):
            logprobs[n, : int(length)] = total / length
        logprobs = logprobs[:, :-1]
        nothing = torch.zeros_like(logprobs)
        return SimpleNamespace(
            log_probs=logprobs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool(), logits=nothing[..., None]
        )


def rows_of(lengths_N):
    """Ids and masks: one token of a prompt, then the completions."""
    width = int(lengths_N.max()) + 1
    mask = torch.zeros(len(lengths_N), width, dtype=torch.long)
    for n, length in enumerate(lengths_N.tolist()):
        mask[n, 1 : 1 + int(length)] = 1
    return {"input_ids": torch.ones_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask}


def trainer(**own):
    accelerator = SimpleNamespace(
        gather_for_metrics=lambda x: x, gather=lambda x: x, device=torch.device("cpu"), unwrap_model=lambda m: m
    )
    model = SimpleNamespace(training=True)
    base = {"accelerator": accelerator, "model": model, "aux_loss_enabled": False, "precompute_ref_logps": True, "_tp_size": 1}
    return SimpleNamespace(**base, _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, **own)


def by_side(values_P2):
    return values_P2.T.reshape(-1)


@pytest.mark.slow
@NEEDS_TRL
@pytest.mark.parametrize(("name", "theirs"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_dpo_and_ipo_are_those_of_trl(name: str, theirs: str) -> None:
    from trl import DPOTrainer

    lengths_N = by_side(EXAMPLE.lengths_P2)
    inputs = rows_of(lengths_N) | {
        "ref_chosen_logps": EXAMPLE.reference_P2[:, 0],
        "ref_rejected_logps": EXAMPLE.reference_P2[:, 1],
    }
    own = {"loss_types": [theirs], "loss_weights": [1.0], "beta": 0.3, "label_smoothing": 0.0, "ld_alpha": None}
    own |= {"f_divergence_type": "reverse_kl", "use_weighting": False}
    loss = DPOTrainer._compute_loss(trainer(**own), Model(by_side(EXAMPLE.logprobs_P2), lengths_N), inputs, False)
    assert credit(name, EXAMPLE, Settings(beta=0.3)).loss == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.slow
@NEEDS_TRL
def test_kto_is_that_of_trl() -> None:
    from trl import KTOTrainer

    lengths_N = by_side(EXAMPLE.lengths_P2)
    inputs = rows_of(lengths_N) | {
        "label": torch.tensor([True] * 3 + [False] * 3),
        "ref_logps": by_side(EXAMPLE.reference_P2),
        "ref_KL_logps": torch.full((6,), -2.0, dtype=torch.float64),
    }
    own = {"beta": 0.4, "loss_type": "kto", "calculate_KL": True, "desirable_weight": 1.5, "undesirable_weight": 0.75}
    one = trainer(**own, _compute_kl_logps=lambda model, batch: torch.full((6,), -1.3, dtype=torch.float64))
    loss = KTOTrainer._compute_loss(one, Model(by_side(EXAMPLE.logprobs_P2), lengths_N), inputs, False)
    assert credit("kto", EXAMPLE, OPTIONS["kto"]).loss == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.slow
@NEEDS_TRL
def test_simpo_is_that_of_trl() -> None:
    from trl.experimental.cpo import CPOTrainer

    own = trainer(loss_type="simpo", beta=2.5, simpo_gamma=1.2, label_smoothing=0.05, alpha=0.0)
    means_P2 = EXAMPLE.logprobs_P2 / EXAMPLE.lengths_P2
    losses, *_ = CPOTrainer.cpo_loss(own, means_P2[:, 0], means_P2[:, 1])
    assert credit("simpo", EXAMPLE, OPTIONS["simpo"]).loss == pytest.approx(losses.mean().item(), rel=1e-6)
