"""Episodes as batches of calls: every target with its own credit, whatever the ratio, the split and what was dropped."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from mmrl.algorithms.loss import average
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.layout import values_per_target
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt, Score, Status
from mmrl.config.sections import RlStage
from mmrl.policies.batches import Credit
from mmrl.train.update.pack_trajectories import TrajectoryPacker, pack_trajectories
from mmrl.train.update.packer import PackOptions

RATIOS = ("token", "action", "chunk")
K, C = 3, 2


def trajectory_data(seed, length, dropped):
    """`dropped`: actions of the last chunk that were not carried out."""
    g = torch.Generator().manual_seed(seed)
    valid = torch.ones(length, K, dtype=torch.bool)
    valid[-1, K - dropped :] = False
    return TrajectoryData(
        instruction=f"do {seed}",
        images={"front": torch.randint(0, 256, (length + 1, 4, 4, 3), dtype=torch.uint8, generator=g)},
        state=torch.randn(length + 1, 2, generator=g),
        choices=torch.randint(0, 9, (length, K, C), generator=g),
        logprobs_TKC=-torch.rand(length, K, C, generator=g),
        valid_TK=valid,
        rewards_TK=torch.randn(length, K, generator=g) * valid,
        values_TU=torch.randn(length, K, generator=g),
        bootstrap=float(torch.randn(1, generator=g)),
    )


SHAPES = [(1, 4, 0), (2, 2, 2), (3, 1, 1), (4, 5, 0), (5, 3, 1)]


def rollouts():
    return [
        Trajectory(
            prompt=Prompt(messages=[]),
            group=n // 2,
            status=Status.TRUNCATED_TIME if n % 2 else Status.FINISHED,
            data=trajectory_data(*s),
        )
        for n, s in enumerate(SHAPES)
    ]


def slow_targets(t, ratio):
    """[(call, [(k, c), ...])] of each target, one after the other."""
    found = []
    for call in range(len(t.choices)):
        carried = [k for k in range(K) if t.valid_TK[call, k]]
        if ratio == "chunk":
            found.append((call, [(k, c) for k in carried for c in range(C)]))
        elif ratio == "action":
            found += [(call, [(k, c) for c in range(C)]) for k in carried]
        else:
            found += [(call, [(k, c)]) for k in carried for c in range(C)]
    return found


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("credit", ["token", "action", "chunk", "turn"])
def test_signals_of_episodes_are_those_of_their_targets(ratio, credit):
    some = rollouts()
    scores = [Score(0.5), Score(1.0), Score(None), Score(0.0), Score(2.0)]
    values = torch.arange(5 * 40.0).view(5, 40)
    signals = Signals(
        some,
        scores,
        RlStage(kind="rl", steps=1, ratio=ratio, credit=credit),
        measure=lambda names: {"values": values, "bootstrap": torch.ones(5)},
    )
    signals.expect(frozenset({"values_NT", "bootstrap_N"}))
    for n, rollout in enumerate(some):
        t, wanted = rollout.data, slow_targets(rollout.data, ratio)
        assert int(signals.lengths_N[n]) == len(wanted) == rollout.num_targets(ratio)
        paid = [0.0] * len(wanted)
        for call, k in itertools.product(range(len(t.choices)), range(K)):
            if t.valid_TK[call, k]:
                last = max(i for i, (c, pairs) in enumerate(wanted) if c == call and any(p[0] == k for p in pairs))
                paid[last] += float(t.rewards_TK[call, k])
        if scores[n].value is not None:
            paid[-1] += scores[n].value
            assert signals.rewards_NT[n, : len(wanted)].tolist() == pytest.approx(paid, abs=1e-5)
            assert float(signals.rewards_N[n]) == pytest.approx(sum(paid), abs=1e-5)
        else:
            assert signals.rewards_NT[n].isnan().all()
        keys = [
            i if credit == "token" else (call, pairs[0][0]) if credit == "action" else call
            for i, (call, pairs) in enumerate(wanted)
        ]
        order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        assert signals.units_NT[n, : len(wanted)].tolist() == [order[key] for key in keys]
        assert (signals.units_NT[n, len(wanted) :] == -1).all()
    assert signals.bootstrap_N.tolist() == [0, 1, 0, 1, 0], "only what was cut off is worth more"


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("budget", [1, 4, 99])
def test_every_target_is_in_one_pass_with_its_own_credit(ratio, parts, budget):
    some = rollouts()
    longest = max(r.num_targets(ratio) for r in some)
    credit = Credit(
        advantages=torch.arange(5.0)[:, None] * 1000 + torch.arange(longest) + 0.5,
        values_NT=torch.arange(5.0)[:, None] * 1000 + torch.arange(longest) + 0.25,
        returns_NT=-torch.arange(5.0)[:, None] * 1000 - torch.arange(longest),
    )
    batches = pack_trajectories(some, credit, PackOptions(ratio=ratio, minibatches=parts, seed=7), budget=budget)
    assert len(batches) == parts and all(len(m.choices) <= budget for b in batches for m in b.micro)
    seen = set()
    for batch in batches:
        assert batch.num_tokens == sum(len(m.rollout_L) for m in batch.micro)
        for micro in batch.micro:
            at = 0
            for s in range(len(micro.choices)):
                n = next(i for i, r in enumerate(some) if r.data.instruction == micro.observation.instructions[s])
                t = some[n].data
                (call,) = [i for i in range(len(t.choices)) if torch.equal(t.state[i], micro.observation.state[s])]
                assert torch.equal(micro.choices[s], t.choices[call]) and torch.equal(
                    micro.observation.images["front"][s], t.images["front"][call]
                )
                for place, (c, pairs) in enumerate(slow_targets(t, ratio)):
                    if c != call:
                        continue
                    assert int(micro.rollout_L[at]) == n and int(micro.place_L[at]) == place
                    assert float(micro.advantages_L[at]) == n * 1000 + place + 0.5
                    assert float(micro.values_L[at]) == n * 1000 + place + 0.25 and float(micro.returns_L[at]) == -(
                        n * 1000 + place
                    )
                    wanted = sum(float(t.logprobs_TKC[call, k, i]) for k, i in pairs)
                    assert float(micro.sampler_logprobs_L[at]) == pytest.approx(wanted, abs=1e-5)
                    seen.add((n, place))
                    at += 1
            assert at == len(micro.rollout_L)
    assert seen == {(n, i) for n, r in enumerate(some) for i in range(r.num_targets(ratio))}
    assert batches[0].lengths_N.tolist() == [r.num_targets(ratio) for r in some]


def test_failed_episodes_and_calls_without_credit_are_left_out_and_the_latter_counted():
    some = rollouts()
    advantages = torch.tensor([1.0, torch.nan, 0.0, 2.0, 0.0])
    (batch,) = pack_trajectories(some, Credit(advantages=advantages), PackOptions(ratio="action"), budget=99)
    trained = {int(n) for m in batch.micro for n in m.rollout_L}
    assert trained == {0, 3} and batch.num_rollouts == 4
    assert batch.num_tokens == sum(r.num_targets("action") for n, r in enumerate(some) if n != 1)
    assert batch.lengths_N[1] == 0
    (batch,) = pack_trajectories(some, Credit(advantages=advantages), PackOptions(ratio="action", keep_zero=True), budget=99)
    assert {int(n) for m in batch.micro for n in m.rollout_L} == {0, 2, 3, 4}
    lost = Trajectory(prompt=Prompt(messages=[]), group=9, status=Status.ENVIRONMENT_ERROR, data=None)
    (batch,) = pack_trajectories([lost], Credit(advantages=torch.tensor([torch.nan])), PackOptions(), budget=9)
    assert batch.micro == () and batch.num_tokens == 0


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_critics_values_belong_to_actions_or_to_calls(ratio):
    t = trajectory_data(*SHAPES[0])
    for values in (t.values_TU, t.values_TU[:, :1]):
        found = values_per_target(values, t.valid_TK, C, ratio)
        wanted = [
            float(values[call, pairs[0][0] if values.shape[1] > 1 and ratio != "chunk" else 0])
            for call, pairs in slow_targets(t, ratio)
        ]
        assert found.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_every_mini_batch_is_an_average_over_episodes_however_their_calls_are_dealt(parts, ratio):
    """Each call weighs one over its episode's length in all of them, and so a step is as long in each."""
    credit = Credit(advantages=torch.tensor([1.0, 2.0, torch.nan, -1.0, 3.0]))
    options = PackOptions(ratio=ratio, keep_zero=True, minibatches=parts, seed=7)
    batches = pack_trajectories(rollouts(), credit, options, budget=2)
    for batch in batches:
        for way in ("sequence", "token"):
            means = [average(torch.ones_like(m.advantages_L), m, batch, way) for m in batch.micro]
            assert float(sum(means)) == pytest.approx(1.0, abs=1e-6)
    counts = [batch.num_rollouts for batch in batches]
    assert sum(counts) == pytest.approx(4.0, abs=1e-6) and (parts > 1 or counts == [4])


# -- epochs ---------------------------------------------------------------------------------------------------------------


def dealt(minibatches, budget=8, keep_zero=True):
    """(what the packer deals for an update, the episodes, their credit)"""
    config = SimpleNamespace(train=SimpleNamespace(micro_batch_tokens=budget))
    packer = TrajectoryPacker(config, SimpleNamespace(root=None, tokens_per_call=lambda trajectories: 1))
    some = rollouts()
    credit = Credit(advantages=torch.tensor([1.0, 2.0, 0.0, -1.0, 3.0]))
    options = PackOptions(keep_zero=keep_zero, minibatches=minibatches, seed=7, ratio="action")
    return packer.deal(some, credit, options), some, credit


def held(batches):
    """Of each mini-batch the targets that are computed, as (rollout, place)."""
    return [{p for m in b.micro for p in zip(m.rollout_L.tolist(), m.place_L.tolist(), strict=True)} for b in batches]


def test_each_epoch_deals_every_call_once_and_anew():
    deal, some, credit = dealt(3)
    every = {(n, i) for n, r in enumerate(some) for i in range(r.num_targets("action"))}
    passes = [held(deal(epoch)) for epoch in range(3)]
    for parts in passes:
        assert set().union(*parts) == every and sum(map(len, parts)) == len(every)
    assert len({frozenset(map(frozenset, parts)) for parts in passes}) == 3, "no two epochs have the same mini-batches"
    plain = pack_trajectories(some, credit, PackOptions(ratio="action", keep_zero=True, minibatches=3, seed=7), budget=8)
    for mine, theirs in zip(deal(0), plain, strict=True):
        assert all(torch.equal(a.place_L, b.place_L) for a, b in zip(mine.micro, theirs.micro, strict=True)), "the first as ever"
    for epoch in range(3):
        assert held(deal(epoch)) == passes[epoch], "asked again, the same"
        assert held(dealt(3, budget=2)[0](epoch)) == passes[epoch], "and however small a pass is"


def test_what_has_no_gradient_is_counted_and_not_computed_in_any_epoch():
    deal, some, _ = dealt(3, keep_zero=False)
    tokens = sum(r.num_targets("action") for r in some)
    for epoch in range(3):
        batches = deal(epoch)
        assert sum(b.num_tokens for b in batches) == tokens and not any(n == 2 for part in held(batches) for n, _ in part)


def test_one_mini_batch_is_dealt_once():
    batches, some, credit = dealt(1)
    (plain,) = pack_trajectories(some, credit, PackOptions(ratio="action", keep_zero=True), budget=8)
    assert held(batches) == held([plain])
