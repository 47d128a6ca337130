"""VAGEN's credit from turn to turn and from token to token, against its published code, sums written out, and plain GAE."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from mmrl.algorithms.gae import bi_level_gae, gae
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Score, Status, Turn
from mmrl.config.sections import RlStage

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "bi-level-gae.jsonl").read_text().splitlines()]
NAN = float("nan")


@pytest.mark.parametrize("row", ROWS)
def test_advantages_and_targets_are_the_published_ones(row: dict[str, Any]) -> None:
    def episode(sizes: list[int], rewards: list[float]) -> Conversation:
        turns = [
            Turn(observed_ids=(1,), token_ids=(9,) * size, logprobs=(-1.0,) * size, text="", reward=paid)
            for size, paid in zip(sizes, rewards, strict=True)
        ]
        return Conversation(prompt=Prompt(messages=[]), group=0, turns=tuple(turns), status=Status.FINISHED)

    rollouts = [episode(*e) for e in zip(row["sizes"], row["rewards"], strict=True)]
    width = max(r.length for r in rollouts)
    values = torch.tensor([v + [0.0] * (width - len(v)) for v in row["values"]])
    measured = {"values": values, "bootstrap": torch.full((len(rollouts),), 5.0)}
    signals = Signals(rollouts, [Score(0.0)] * len(rollouts), RlStage(kind="rl", steps=1), measure=lambda names: measured)
    options = {name: row[name] for name in ("gamma", "turn_gamma", "lam")}
    credit = load_algorithm("bi-level-gae", {**options, "whiten": False}).credit(signals)
    for name, found in (("advantages", credit.advantages), ("returns", credit.returns_NT)):
        assert found is not None
        for n, want in enumerate(row[name]):
            np.testing.assert_allclose(found[n, : len(want)], want, atol=2e-5)


def batch(chance: random.Random, turns: int) -> tuple[torch.Tensor, ...]:
    """rewards, values, bootstrap, units, turns: units of one or two tokens, tokens of no unit at the end, failed rows."""
    rows = []
    for _ in range(chance.randint(1, 4)):
        of_turn = sorted(chance.randrange(turns) for _ in range(chance.randint(1, 7)))
        units = [u for u in range(len(of_turn)) for _ in range(chance.randint(1, 2))]
        rows.append((units, [of_turn[u] for u in units], chance.random() < 0.2))
    width = max(len(units) for units, *_ in rows)

    def made(number: int, empty: int) -> torch.Tensor:
        return torch.tensor([[*row[number], *[empty] * (width - len(row[number]))] for row in rows])

    units, own = made(0, -1), made(1, -1)
    noise = torch.tensor([[chance.gauss(0, 1) for _ in range(3 * width)] for _ in rows], dtype=torch.float64)
    rewards = noise[:, :width].where(units >= 0, 0.0)
    rewards[torch.tensor([failed for *_, failed in rows])] = NAN
    cut = torch.tensor([chance.random() < 0.5 for _ in rows])
    return rewards, noise[:, width : 2 * width], noise[:, -1].where(cut, 0.0), units, own


@settings(max_examples=25, deadline=None)
@given(some.integers(0, 2**32))
def test_advantages_equal_sums_written_out(seed: int) -> None:
    """Rewards within turns too, as those of a KL penalty are, which the turns before are paid as well."""
    chance = random.Random(seed)
    given = batch(chance, turns=4)
    gamma, turn_gamma, lam = (chance.choice([1.0, 0.9, 0.5, 0.0]) for _ in range(3))
    found, targets = bi_level_gae(*given, gamma=gamma, turn_gamma=turn_gamma, lam=lam, whiten=False)
    rewards, values, bootstrap, units, turns = (x.numpy() for x in given)
    for n in range(len(units)):
        if np.isnan(rewards[n]).any():
            assert found[n].isnan().all() and targets[n].isnan().all()
            continue
        places = [np.flatnonzero(units[n] == u) for u in range(units[n].max() + 1)]
        paid, worth = [rewards[n, p].sum() for p in places], [values[n, p[0]] for p in places]
        numbers = [turns[n, p[0]] for p in places]
        whole = [[u for u, number in enumerate(numbers) if number == turn] for turn in sorted({*numbers})]
        ahead = [*(sum(paid[u] for u in turn[:-1]) + worth[turn[-1]] for turn in whole), bootstrap[n]]
        deltas = [paid[turn[-1]] + turn_gamma * ahead[k + 1] - worth[turn[-1]] for k, turn in enumerate(whole)]
        for k, turn in enumerate(whole):
            at_end = sum((turn_gamma * lam) ** power * delta for power, delta in enumerate(deltas[k:]))
            for u in turn:
                steps = [paid[v] + gamma * worth[v + 1] - worth[v] for v in range(u, turn[-1])]
                want = sum((gamma * lam) ** power * delta for power, delta in enumerate([*steps, at_end]))
                np.testing.assert_allclose(found[n, places[u]], want, atol=1e-5)
                assert targets[n, places[u][0]].item() == pytest.approx(want + worth[u], abs=1e-5)


@settings(max_examples=10, deadline=None)
@given(some.integers(0, 2**32))
def test_where_it_is_plain_gae(seed: int) -> None:
    """With one turn that ended, with one that was cut off and a single discount, and with no discount and lam = 1."""
    chance = random.Random(seed)
    gamma, turn_gamma, lam, whiten = *(chance.choice([1.0, 0.9, 0.3]) for _ in range(3)), chance.random() < 0.5
    rewards, values, bootstrap, units, turns = batch(chance, turns=1)
    for left, discount in ((bootstrap * 0, turn_gamma), (bootstrap, gamma)):
        plain = gae(rewards, values, left, units, gamma=gamma, lam=lam, whiten=whiten)
        found = bi_level_gae(rewards, values, left, units, turns, gamma=gamma, turn_gamma=discount, lam=lam, whiten=whiten)
        torch.testing.assert_close(found, plain, equal_nan=True)
    several = batch(chance, turns=4)
    torch.testing.assert_close(
        bi_level_gae(*several, gamma=1.0, turn_gamma=1.0, lam=1.0), gae(*several[:4], gamma=1.0, lam=1.0), equal_nan=True
    )


def test_a_turn_costs_a_discount_and_a_word_does_not() -> None:
    """Two turns of three words and of one, paid 1 at the end: every word of the first turn has the same, discounted once."""
    units, turns = torch.arange(4)[None], torch.tensor([[0, 0, 0, 1]])
    found, targets = bi_level_gae(
        torch.tensor([[0.0, 0.0, 0.0, 1.0]]), torch.zeros(1, 4), torch.zeros(1), units, turns, turn_gamma=0.5, whiten=False
    )
    assert found.tolist() == targets.tolist() == [[0.5, 0.5, 0.5, 1.0]]
