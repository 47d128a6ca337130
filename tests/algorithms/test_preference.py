"""Losses on pairs against plain Python, their derivatives against differences, and what is known of each."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.preference import LOSSES, PairCredit, PairSums, Settings, Term, credit, imitation, pair_weights
from mmrl.config.preferences import PAIR_SETTINGS, WHOLE

OPTIONS = {
    "dpo": Settings(beta=0.3, label_smoothing=0.1),
    "dpo-norm": Settings(beta=1.5, label_smoothing=0.1),
    "robust": Settings(beta=0.3, label_smoothing=0.2),
    "hinge": Settings(beta=0.1),
    "ipo": Settings(beta=0.2),
    "exo": Settings(beta=0.3, label_smoothing=0.01),
    "discopop": Settings(beta=0.05, discopop_tau=0.07),
    "nca": Settings(beta=0.2),
    "bco": Settings(beta=0.2),
    "sppo": Settings(beta=0.4),
    "apo-zero": Settings(beta=0.3),
    "apo-down": Settings(beta=0.3),
    "aot": Settings(beta=0.3, label_smoothing=0.1),
    "aot-unpaired": Settings(beta=0.3, label_smoothing=0.1),
    "kto": Settings(beta=0.4, desirable_weight=1.5, undesirable_weight=0.75),
    "simpo": Settings(beta=2.5, margin=1.2, label_smoothing=0.05),
    "alphapo": Settings(beta=2.5, margin=1.2, label_smoothing=0.05, reward_alpha=0.3),
    "orpo": Settings(beta=0.4),
    "bradley-terry": Settings(margin=0.5),
}
DIVERGENCES = {
    "forward-kl": Settings(beta=0.3, divergence="forward-kl"),
    "jensen-shannon": Settings(beta=0.3, divergence="jensen-shannon"),
    "alpha": Settings(beta=0.3, divergence="alpha", divergence_alpha=0.3),
}
CASES = [
    *OPTIONS.items(),
    ("alphapo", Settings(reward_alpha=-0.5)),
    *(("dpo", chosen) for chosen in DIVERGENCES.values()),
    ("ipo", DIVERGENCES["alpha"]),
]
GAPS = [loss for loss, keys in PAIR_SETTINGS.items() if "divergence" in keys]


def sums(logprobs, reference=None, lengths=None, **others):
    logprobs = torch.tensor(logprobs, dtype=torch.float64)
    return PairSums(
        logprobs_P2=logprobs,
        reference_P2=torch.zeros_like(logprobs) if reference is None else torch.tensor(reference, dtype=torch.float64),
        lengths_P2=torch.ones_like(logprobs) if lengths is None else torch.tensor(lengths, dtype=torch.float64),
        **others,
    )


EXAMPLE = sums(
    [[-3.0, -5.0], [-9.5, -2.0], [-1.0, -1.5]],
    [[-4.0, -4.5], [-8.0, -2.5], [-1.2, -1.1]],
    [[3, 4], [7, 2], [1, 1]],
    kl=0.7,
    shift=0.3,
)


def of(name: str, pairs: PairSums, chosen: Settings) -> PairCredit:
    return credit([Term(loss=name, settings=chosen)], pairs)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def plain(gap, smoothing=0.0):
    return -(1 - smoothing) * math.log(sigmoid(gap)) - smoothing * math.log(sigmoid(-gap))


def moved(p, q, s):
    """f'(p / q) from the probabilities."""
    u = p / q
    return {
        "reverse-kl": lambda: math.log(u),
        "forward-kl": lambda: 1 - 1 / u,
        "jensen-shannon": lambda: math.log(2 * u / (1 + u)),
        "alpha": lambda: (1 - u**-s.divergence_alpha) / s.divergence_alpha,
    }[s.divergence]()


def slow(name, found, s):
    """The mean loss, by the papers' formulas, one pair at a time."""
    rows = list(zip(found.logprobs_P2.tolist(), found.reference_P2.tolist(), found.lengths_P2.tolist(), strict=True))
    if name == "aot":
        own, others = sorted(w - v for (w, v), _, _ in rows), sorted(w - v for _, (w, v), _ in rows)
        losses = [plain(s.beta * (a - b), s.label_smoothing) for a, b in zip(own, others, strict=True)]
    elif name == "aot-unpaired":
        good, bad = (sorted(one[side] - other[side] for one, other, _ in rows) for side in (0, 1))
        losses = [plain(s.beta * (a - b), s.label_smoothing) for a, b in zip(good, bad, strict=True)]
    else:
        losses = [slow_pair(name, *row, s, found.kl, found.shift) for row in rows]
    return sum(losses) / len(losses)


def slow_pair(name, own, other, lengths, s, kl, shift):
    (w, v), (nw, nv), e, t = own, lengths, s.label_smoothing, s.discopop_tau
    a, b = (moved(math.exp(x), math.exp(y), s) for x, y in zip(own, other, strict=True))
    h, x, y = s.beta * (a - b), s.beta * a, s.beta * b
    m, n = math.exp(w / nw), math.exp(v / nv)
    return {
        "dpo": lambda: plain(h, e),
        "dpo-norm": lambda: plain(s.beta * (a / nw - b / nv), e),
        "robust": lambda: ((1 - e) * plain(h) - e * plain(-h)) / (1 - 2 * e),
        "hinge": lambda: max(0, 1 - h),
        "ipo": lambda: (a / nw - b / nv - 0.5 / s.beta) ** 2,
        "exo": lambda: sigmoid(h) * math.log(sigmoid(h) / (1 - e)) + sigmoid(-h) * math.log(sigmoid(-h) / e),
        "discopop": lambda: plain(h) * (1 - sigmoid(h / t)) + math.exp(-h) * sigmoid(h / t),
        "nca": lambda: plain(x) + plain(-x) / 2 + plain(-y) / 2,
        "bco": lambda: plain(x - shift) + plain(shift - y),
        "sppo": lambda: (a - 0.5 / s.beta) ** 2 + (b + 0.5 / s.beta) ** 2,
        "apo-zero": lambda: 1 - sigmoid(x) + sigmoid(y),
        "apo-down": lambda: sigmoid(x) + 1 - sigmoid(x - y),
        "kto": lambda: (
            s.desirable_weight * (1 - sigmoid(s.beta * (a - kl))) / 2
            + s.undesirable_weight * (1 - sigmoid(s.beta * (kl - b))) / 2
        ),
        "simpo": lambda: plain(s.beta / nw * w - s.beta / nv * v - s.margin, e),
        "alphapo": lambda: plain(s.beta * (n**-s.reward_alpha - m**-s.reward_alpha) / s.reward_alpha - s.margin, e),
        "orpo": lambda: -math.log(m) + s.beta * plain(math.log(m / (1 - m)) - math.log(n / (1 - n))),
        "bradley-terry": lambda: -math.log(math.exp(w) / (math.exp(w) + math.exp(v + s.margin))),
    }[name]()


@pytest.mark.parametrize(("name", "chosen"), CASES)
def test_a_loss_is_that_of_its_paper(name: str, chosen: Settings) -> None:
    assert of(name, EXAMPLE, chosen).loss == pytest.approx(slow(name, EXAMPLE, chosen), rel=1e-9)


@pytest.mark.parametrize(("name", "chosen"), CASES)
def test_the_weights_are_minus_the_slope_of_the_loss(name: str, chosen: Settings) -> None:
    found, step = of(name, EXAMPLE, chosen), 1e-6
    for p in range(3):
        for side in range(2):
            there = []
            for sign in (1, -1):
                logprobs = EXAMPLE.logprobs_P2.clone()
                logprobs[p, side] += sign * step
                there.append(slow(name, replace(EXAMPLE, logprobs_P2=logprobs), chosen))
            assert found.weights_P2[p, side].item() == pytest.approx(-(there[0] - there[1]) / (2 * step), abs=1e-6)


def test_losses_are_added_by_their_weights_and_pairs_by_theirs() -> None:
    """Each pair's loss is multiplied, and the mean is over all pairs."""
    terms = [Term(loss="dpo", settings=OPTIONS["dpo"], weight=0.8), Term(loss="bco", settings=OPTIONS["bco"], weight=0.2)]
    one, other, both = of("dpo", EXAMPLE, OPTIONS["dpo"]), of("bco", EXAMPLE, OPTIONS["bco"]), credit(terms, EXAMPLE)
    assert both.loss == pytest.approx(0.8 * one.loss + 0.2 * other.loss)
    assert torch.allclose(both.weights_P2, 0.8 * one.weights_P2 + 0.2 * other.weights_P2)
    assert torch.equal(both.rewards_P2, one.rewards_P2)
    second = credit(terms, replace(EXAMPLE, weights_P=torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64)))
    alone = {k: getattr(EXAMPLE, k)[1:2] for k in ("logprobs_P2", "reference_P2", "lengths_P2")}
    assert second.loss == pytest.approx(credit(terms, replace(EXAMPLE, **alone)).loss)
    assert (second.weights_P2[[0, 2]] == 0).all() and torch.allclose(second.weights_P2[1], 3 * both.weights_P2[1])


def test_imitation_is_of_the_preferred_side_s_tokens() -> None:
    loss, weights_P2 = imitation(0.5, EXAMPLE.logprobs_P2, EXAMPLE.lengths_P2)
    assert loss == pytest.approx(0.5 * (3 / 3 + 9.5 / 7 + 1) / 3)
    assert weights_P2.tolist() == [[pytest.approx(0.5 / n / 3), 0] for n in (3, 7, 1)]


def test_a_pair_that_the_policy_samples_counts_most() -> None:
    """p over the sum of p^2: 0.5 / 0.5 of one side, and of the other's two tokens 0.1 / 0.4 and 0.4 / 0.4, on average 1/2."""
    logprobs = torch.tensor([[math.log(0.5), math.log(0.1 * 0.4)]], dtype=torch.float64)
    collisions = torch.tensor([[math.log(0.5), math.log(0.4 * 0.4)]], dtype=torch.float64)
    assert pair_weights(logprobs, collisions, torch.tensor([[1.0, 2.0]])).tolist() == [pytest.approx(0.5)]


# -- extremes -----------------------------------------------------------------------------------------------------------------

FAR = [[[0.0, 0.0]], [[0.0, -1e4]], [[-1e4, 0.0]], [[-1e4, -1e4]], [[-3.0, -3.0]]]


@pytest.mark.parametrize(("name", "chosen"), CASES)
def test_nothing_is_infinite(name: str, chosen: Settings) -> None:
    """For completions that are certain or next to impossible, to the policy or to the reference model; nor are the weights in
    float32, with which they are multiplied."""
    for own in FAR:
        for other in FAR:
            for lengths in ([[1, 1]], [[1, 900]]):
                found = of(name, sums(own, other, lengths, kl=0.5, shift=-0.2), chosen)
                assert math.isfinite(found.loss), (own, other)
                assert (found.weights_P2.float().abs() < 1e18).all(), (own, other)


def test_a_pair_that_is_far_the_wrong_way_round_is_still_turned() -> None:
    """Where the plain formula of DiscoPOP is 0 times infinity, and where the odds of ORPO are."""
    wrong = sums([[-1e5, 0.0]], [[0.0, -1e5]])
    for name in ("dpo", "robust", "discopop", "hinge", "aot", "simpo", "orpo"):
        found = of(name, wrong, Settings())
        assert found.weights_P2[0, 0] > 1e-3 and found.weights_P2[0, 1] < -1e-3, name


# -- what is known of each ----------------------------------------------------------------------------------------------------

numbers = st.floats(-30, 0)
quadruples = st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=6)
few = settings(max_examples=40, deadline=None)


@given(quadruples, st.sampled_from(["dpo", "simpo", "bradley-terry", "discopop", "hinge", "aot"]))
@few
def test_a_loss_of_the_difference_pulls_the_sides_apart_alike(rows: list, name: str) -> None:
    """What the preferred side gains, the other loses; SimPO's per token. Whatever the numbers, nothing is infinite."""
    pairs = sums([r[:2] for r in rows], None if name in ("simpo", "bradley-terry") else [r[2:] for r in rows])
    found = of(name, pairs, Settings(beta=0.5))
    assert math.isfinite(found.loss) and found.loss >= 0
    assert torch.allclose(found.weights_P2.sum(1), torch.zeros(len(rows), dtype=torch.float64))
    assert name == "discopop" or (found.weights_P2[:, 0] >= 0).all()  # which isn't convex near 0


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.floats(-5, 5), st.sampled_from(GAPS))
@few
def test_a_loss_of_the_difference_reads_nothing_else(rows: list, shift: float, name: str) -> None:
    """A prompt's own constant, which the partition function is, changes nothing (Rafailov et al., lemma 1)."""
    chosen = OPTIONS[name]
    before = of(name, sums(rows, [(0.0, 0.0)] * len(rows)), chosen)
    after = of(name, sums([(a + shift, b + shift) for a, b in rows], [(0.0, 0.0)] * len(rows)), chosen)
    assert after.loss == pytest.approx(before.loss, rel=1e-6, abs=1e-9)


@given(quadruples, st.floats(0.01, 0.45))
@few
def test_robust_is_dpo_on_average_over_wrong_labels(rows: list, wrong: float) -> None:
    pairs = sums([r[:2] for r in rows], [r[2:] for r in rows])
    turned = sums([r[1::-1] for r in rows], [r[:1:-1] for r in rows])
    chosen = Settings(beta=0.3, label_smoothing=wrong)
    mean = (1 - wrong) * of("robust", pairs, chosen).loss + wrong * of("robust", turned, chosen).loss
    assert mean == pytest.approx(of("dpo", pairs, Settings(beta=0.3)).loss, rel=1e-6, abs=1e-9)


@given(quadruples, st.randoms())
@few
def test_optimal_transport_doesn_t_know_which_pair_is_which(rows: list, random: object) -> None:
    """The rejected sides may be dealt anew, and for the paired loss the pairs of the reference model."""
    dealt = random.sample(rows, len(rows))  # type: ignore[attr-defined]
    one = of("aot-unpaired", sums([r[:2] for r in rows], [r[2:] for r in rows]), Settings())
    mixed = [(r[0], d[1], r[2], d[3]) for r, d in zip(rows, dealt, strict=True)]
    other = sums([r[:2] for r in mixed], [r[2:] for r in mixed])
    assert of("aot-unpaired", other, Settings()).loss == pytest.approx(one.loss, abs=1e-9)
    own = of("aot", sums([r[:2] for r in rows], [r[2:] for r in rows]), Settings())
    assert of("aot", sums([r[:2] for r in rows], [d[2:] for d in dealt]), Settings()).loss == pytest.approx(own.loss, abs=1e-9)


def test_the_alpha_divergence_lies_between_the_two_kls() -> None:
    def loss(**chosen: object) -> float:
        return of("dpo", EXAMPLE, Settings(beta=0.3, **chosen)).loss  # type: ignore[arg-type]

    alpha = {share: loss(divergence="alpha", divergence_alpha=share) for share in (1e-3, 1.0)}
    assert alpha[1.0] == loss(divergence="forward-kl") and alpha[1e-3] == pytest.approx(loss(), rel=2e-3)


def test_exo_is_least_where_the_policy_doubts_labels_as_much() -> None:
    chosen = Settings(beta=1.0, label_smoothing=0.1)
    best = of("exo", sums([[math.log(9), 0.0]]), chosen)
    assert best.loss == pytest.approx(0, abs=1e-12) and best.weights_P2.abs().max() < 1e-12


def test_at_the_reference_model_the_losses_have_their_known_values() -> None:
    """And pull the preferred side up from the other. DiscoPOP alone first pushes it down: with tau 0.05, its slope has the other
    sign from a difference of -0.15 to one of 0.08."""
    same = sums([[-4.0, -6.0]], [[-4.0, -6.0]], [[2, 3]])
    half, two = math.log(2), 2 * math.log(2)
    known = {"dpo": half, "dpo-norm": half, "robust": half, "aot": half, "aot-unpaired": half, "hinge": 1, "ipo": 25, "kto": 0.5}
    known |= {"exo": math.log(0.5 / math.sqrt(0.1 * 0.9)), "discopop": half / 2 + 0.5, "nca": two, "bco": two, "sppo": 50}
    known |= {"apo-zero": 1, "apo-down": 1}
    for name, loss in known.items():
        found = of(name, same, Settings(label_smoothing=0.1 if name == "exo" else 0.0))
        assert found.loss == pytest.approx(loss), name
        assert (found.weights_P2[0, 0] > found.weights_P2[0, 1]) == (name != "discopop"), name
    for gap, pulls in ((-0.2, True), (-0.1, False), (0.05, False), (0.1, True)):
        assert (of("discopop", sums([[gap, 0.0]]), Settings(beta=1.0)).weights_P2[0, 0] > 0) == pulls


def test_every_loss_has_its_settings_in_the_run_file() -> None:
    assert PAIR_SETTINGS.keys() == LOSSES.keys() == OPTIONS.keys()
    changed = dict.fromkeys(Settings.__slots__, 0.45) | {"divergence": "jensen-shannon"}
    for name, keys in PAIR_SETTINGS.items():
        chosen = replace(OPTIONS[name], divergence="alpha") if "divergence" in keys else OPTIONS[name]
        for key in changed.keys() & set(keys):
            assert of(name, EXAMPLE, replace(chosen, **{key: changed[key]})).loss != of(name, EXAMPLE, chosen).loss, (name, key)
        shifted = of(name, replace(EXAMPLE, shift=5.0), chosen).loss != of(name, EXAMPLE, chosen).loss
        assert shifted == ("reward_shift" in keys), name
    assert set(WHOLE) <= {key for keys in PAIR_SETTINGS.values() for key in keys}


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
    assert of("kto", EXAMPLE, OPTIONS["kto"]).loss == pytest.approx(loss.item(), rel=1e-6)
