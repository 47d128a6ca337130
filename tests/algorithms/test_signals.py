"""What an advantage may ask for, against slow references on ragged episodes of several turns."""

import math

import numpy as np
import pytest
import torch

from mmrl.algorithms.gae import gae
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import MEASURED, SIGNALS, Signals
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError
from mmrl.api.types import Prompt, Score, Status, Turn
from mmrl.config.sections import RlStage

WEIGHTS = [{"exact": 1.0, "format": 0.25}, {"exact": 2.0}]
"""Of two tasks; the second has no format."""


def stage(**keys):
    return RlStage(kind="rl", steps=1, **keys)


def turn(size, reward=0.0, actions=(), text=""):
    return Turn(
        observed_ids=(1,), token_ids=(9,) * size, logprobs=(-1.0,) * size, text=text, reward=reward, action_rewards=tuple(actions)
    )


def episode(*turns, group=0, status=Status.FINISHED, **meta):
    return Conversation(prompt=Prompt(messages=[], meta=meta), group=group, turns=turns, status=status)


def cases(seed, count=60):
    """rollouts, scores, weights: ragged turns, some without a token, chunks of actions, failed scores, every way to end."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rollouts, scores, weights = [], [], []
        for _ in range(int(rng.integers(1, 7))):
            turns = []
            for _ in range(int(rng.integers(1, 4))):
                actions, each = int(rng.integers(0, 4)), int(rng.integers(0, 3))
                rewards = rng.normal(size=actions).tolist()
                reward = sum(rewards) if actions else float(rng.normal() * (rng.random() < 0.7))
                turns.append(turn(actions * each if actions else int(rng.integers(0, 5)), reward, rewards))
            if not any(len(t.token_ids) for t in turns) and rng.random() < 0.8:
                turns.append(turn(2, 0.5))
            task = int(rng.integers(0, 2))
            status = list(Status)[int(rng.integers(0, len(Status)))]
            meta = {"weight": 1.5} if rng.random() < 0.5 else {}
            rollouts.append(episode(*turns, group=int(rng.integers(0, 3)), status=status, **meta))
            parts = {name: float(rng.normal()) for name in WEIGHTS[task]} | {"other": 9.0}
            value = sum(w * parts[name] for name, w in WEIGHTS[task].items())
            scores.append(Score(None, parts) if rng.random() < 0.2 else Score(value, parts))
            weights.append(WEIGHTS[task])
        if max(r.length for r in rollouts):
            yield rollouts, scores, weights


def model(rollouts, seed=0):
    """What a model would measure: the true shape, numbers where tokens are, 0 behind the end."""
    rng, longest = np.random.default_rng(seed), max(r.length for r in rollouts)
    inside = torch.arange(longest)[None] < torch.tensor([r.length for r in rollouts])[:, None]
    made = {
        name: torch.tensor(rng.normal(-1, 0.5, (len(rollouts), longest)), dtype=torch.float32).where(inside, 0.0)
        for name in ("logprobs", "entropy", "reference", "teacher", "values", "answers", "masked", "slopes", "told", "shown")
    }
    return made | {"bootstrap": torch.tensor(rng.normal(size=len(rollouts)), dtype=torch.float32)}


def penalty(name, p, q):
    return {"k1": p - q, "k2": (p - q) ** 2 / 2, "k3": math.exp(q - p) - 1 - (q - p)}[name]


def token_rewards(rollout, score):
    """What stands at each token of a rollout: walk over the turns, then over their actions."""
    if score.value is None:
        return [math.nan] * rollout.length
    paid, at = [0.0] * rollout.length, 0
    for t in rollout.turns:
        size = len(t.token_ids)
        for k, reward in enumerate(t.action_rewards or (t.reward,)):
            last = at + size // max(len(t.action_rewards), 1) * (k + 1) - 1
            if paid:
                paid[max(last, 0)] += reward
        at += size
    if paid:
        paid[-1] += score.value
    return paid


# -- rewards ----------------------------------------------------------------------------------------------------------------


def test_where_rewards_stand():
    """By hand: two turns of 2 and 3 tokens that pay 0.5 and 0.25, a chunk of two actions of two tokens each that pay 1 and 2,
    and a score of 8 at the end."""
    first = episode(turn(2, 0.5), turn(3, 0.25))
    second = episode(turn(4, 3.0, (1.0, 2.0)), turn(1, -1.0))
    single = episode(turn(3))
    signals = Signals([first, second, single], [Score(8.0), Score(None), Score(1.0)], stage())
    assert signals.rewards_NT.tolist()[0] == [0.0, 0.5, 0.0, 0.0, 8.25]
    assert signals.rewards_NT[1].isnan().all(), "behind its end too"
    assert signals.rewards_NT.tolist()[2] == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert signals.rewards_N.tolist()[::2] == [8.75, 1.0] and signals.rewards_N[1].isnan()
    paid = Signals([second], [Score(8.0)], stage())
    assert paid.rewards_NT.tolist() == [[0.0, 1.0, 0.0, 2.0, 7.0]] and paid.rewards_N.tolist() == [10.0]


def test_what_is_paid_where_nothing_was_sampled_is_not_lost():
    """A turn without tokens: the state in which an episode was left, with what the environment still paid."""
    found = Signals(
        [episode(turn(2, 1.0), turn(0, 0.5)), episode(turn(0, 0.25), turn(2, 1.0)), episode(turn(0, 4.0))],
        [Score(8.0), Score(8.0), Score(8.0)],
        stage(),
    )
    assert found.rewards_NT.tolist() == [[0.0, 9.5], [0.25, 9.0], [0.0, 0.0]]
    assert found.rewards_N.tolist() == [9.5, 9.25, 12.0], "without any token there is a reward and nothing to train"


def test_actions_that_do_not_divide_a_turn_stay_in_their_own_unit():
    """Four tokens, three actions: the tokens' actions are 0, 0, 1, 2, and each action is paid at its last token."""
    signals = Signals([episode(turn(4, 7.0, (1.0, 2.0, 4.0)))], [Score(0.0)], stage(credit="action"))
    assert signals.units_NT.tolist() == [[0, 0, 1, 2]] and signals.rewards_NT.tolist() == [[0.0, 1.0, 2.0, 4.0]]


@pytest.mark.parametrize("seed", [0, 1])
def test_rewards_equal_the_slow_reference(seed):
    for rollouts, scores, weights in cases(seed):
        signals = Signals(rollouts, scores, stage(), weights=weights)
        rewards_N, rewards_NT = signals.rewards_N, signals.rewards_NT
        assert rewards_N.dtype == rewards_NT.dtype == torch.float64
        for n, (r, s) in enumerate(zip(rollouts, scores, strict=True)):
            want = token_rewards(r, s)
            np.testing.assert_allclose(rewards_NT[n, : r.length], want, atol=1e-12)
            if s.failed:
                assert rewards_N[n].isnan() and rewards_NT[n].isnan().all()
            else:
                assert not rewards_NT[n, r.length :].any()
                assert rewards_N[n].item() == pytest.approx(s.value + sum(t.reward for t in r.turns))
                assert not r.length or rewards_N[n].item() == pytest.approx(sum(want)), "the two agree"


@pytest.mark.parametrize("estimate", ["k1", "k2", "k3"])
def test_a_penalty_in_the_reward_is_taken_off_token_by_token(estimate):
    for rollouts, scores, weights in cases(3, 30):
        given = model(rollouts)
        keys = dict(kl_coef=0.1, kl_in="reward", kl_estimator=estimate)
        signals = Signals(rollouts, scores, stage(**keys), weights=weights, kl=0.3, measure=lambda names, g=given: g)
        for n, (r, s) in enumerate(zip(rollouts, scores, strict=True)):
            if s.failed:
                assert signals.rewards_N[n].isnan() and signals.rewards_NT[n].isnan().all()
                continue
            p, q = given["logprobs"][n].tolist(), given["reference"][n].tolist()
            off = [0.3 * penalty(estimate, p[t], q[t]) for t in range(r.length)]  # today's weight, not the stage's first
            want = np.array(token_rewards(r, s)) - off
            np.testing.assert_allclose(signals.rewards_NT[n, : r.length], want, atol=1e-9)
            assert not signals.rewards_NT[n, r.length :].any()
            plain = s.value + sum(t.reward for t in r.turns)
            assert signals.rewards_N[n].item() == pytest.approx(plain - sum(off))
            assert not r.length or signals.rewards_N[n].item() == pytest.approx(signals.rewards_NT[n].sum().item())


def test_a_penalty_in_the_loss_leaves_rewards_alone():
    rollouts, scores = [episode(turn(2))], [Score(1.0)]
    assert Signals(rollouts, scores, stage(kl_coef=0.1, kl_in="loss"), kl=0.1).rewards_NT.tolist() == [[0.0, 1.0]]
    assert Signals(rollouts, scores, stage(kl_coef=0.1, kl_in="reward"), kl=0.0).rewards_N.tolist() == [1.0]


# -- the others -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credit", ["token", "action", "chunk", "turn"])
def test_units_of_credit(credit):
    for rollouts, scores, weights in cases(4):
        units_NT = Signals(rollouts, scores, stage(credit=credit), weights=weights).units_NT
        assert units_NT.dtype == torch.int64
        for n, r in enumerate(rollouts):
            names = []
            for number, t in enumerate(r.turns):
                size, actions = len(t.token_ids), max(len(t.action_rewards), 1)
                for k in range(size):
                    own = {"token": len(names), "action": (number, k // (size // actions))}
                    names.append(own.get(credit, number))
            want = [sorted(set(names)).index(name) for name in names]  # numbered from 0 in the order they come
            assert units_NT[n].tolist() == want + [-1] * (units_NT.shape[1] - r.length)


def test_units_by_hand():
    rollouts = [episode(turn(4, 3.0, (1.0, 2.0)), turn(0), turn(2)), episode(turn(1))]
    want = {"token": [0, 1, 2, 3, 4, 5], "action": [0, 0, 1, 1, 2, 2], "turn": [0, 0, 0, 0, 1, 1], "chunk": [0, 0, 0, 0, 1, 1]}
    for credit, units in want.items():
        signals = Signals(rollouts, [Score(0.0)] * 2, stage(credit=credit))
        assert signals.units_NT.tolist() == [units, [0, -1, -1, -1, -1, -1]]


def test_a_unit_is_paid_what_its_own_tokens_are():
    """Rewards and units agree: the sums over actions, turns and the whole are the environment's."""
    for rollouts, scores, weights in cases(5):
        of = {c: Signals(rollouts, scores, stage(credit=c), weights=weights) for c in ("action", "turn")}
        for n, (r, s) in enumerate(zip(rollouts, scores, strict=True)):
            if s.failed or not r.length or not all(len(t.token_ids) for t in r.turns):
                continue
            turns = [t.reward for t in r.turns]
            actions = [a for t in r.turns for a in (t.action_rewards or (t.reward,))]
            for credit, want in (("turn", turns), ("action", actions)):
                units, paid = of[credit].units_NT[n], of[credit].rewards_NT[n]
                got = [paid[units == u].sum().item() for u in range(int(units.max()) + 1)]
                assert got == pytest.approx([*want[:-1], want[-1] + s.value])


@pytest.mark.parametrize("weight", ["x", None, math.nan, math.inf, 10**400, [1], True])
def test_a_prompts_weight_that_is_no_number_is_named(weight):
    signals = Signals([episode(weight=weight)], [Score(1.0)], stage())
    with pytest.raises(PluginError, match=r'has meta\["weight"\] = .*, not a finite number'):
        signals["difficulty_N"]


def test_what_is_known_of_each_rollout():
    for rollouts, scores, weights in cases(6):
        signals = Signals(rollouts, scores, stage(), weights=weights, past=lambda r: (1, 2, 3.0 + r.group, 4.0))
        assert signals.groups_N.tolist() == [r.group for r in rollouts]
        assert signals.lengths_N.tolist() == [sum(len(t.token_ids) for t in r.turns) for r in rollouts]
        assert signals.difficulty_N.tolist() == [r.prompt.meta.get("weight", 1.0) for r in rollouts]
        assert signals.past_N4.tolist() == [[1.0, 2.0, 3.0 + r.group, 4.0] for r in rollouts]
        longest = max(r.length for r in rollouts)
        assert signals.mask_NT.tolist() == [[t < r.length for t in range(longest)] for r in rollouts]
        assert {signals[s].dtype for s in ("groups_N", "lengths_N")} == {torch.int64} and signals.mask_NT.dtype == torch.bool
        names = sorted({name for w in weights for name in w})
        assert signals.weights_NR.tolist() == [[w.get(name, 0.0) for name in names] for w in weights]
        for s, w, row in zip(scores, weights, signals.parts_NR.tolist(), strict=True):
            for name, value in zip(names, row, strict=True):
                if s.failed or name not in w:
                    assert math.isnan(value)
                else:
                    assert value == s.parts[name]


@pytest.mark.parametrize(("keys", "at_end"), [({}, 0.0), ({"critic": {}}, 0.0), ({"critic": {"bootstrap": "always"}}, 2.5)])
def test_a_bootstrap_is_for_what_the_environment_cut_off(keys, at_end):
    """Not for an answer that was cut off at its length, which was scored as it stands; nor for one that ended, unless the stage
    says so."""
    ends = [
        (Status.FINISHED, at_end),
        (Status.TRUNCATED_LENGTH, 0.0),
        (Status.TRUNCATED_TURNS, 2.5),
        (Status.TRUNCATED_TIME, 2.5),
        (Status.ENVIRONMENT_ERROR, 0.0),
    ]
    assert {s for s, _ in ends} == set(Status)
    rollouts = [episode(turn(2), status=s) for s, _ in ends]
    measured = {"values": torch.ones(5, 2), "bootstrap": torch.full((5,), 2.5)}
    signals = Signals(rollouts, [Score(0.0)] * 5, stage(**keys), measure=lambda names: measured)
    assert signals.bootstrap_N.tolist() == [want for _, want in ends]
    assert signals.values_NT.tolist() == [[1.0, 1.0]] * 5 and signals.values_NT.dtype == torch.float64


@pytest.mark.parametrize(
    ("signal", "measured"),
    [
        ("logprobs_NT", "logprobs"),
        ("teacher_logprobs_NT", "teacher"),
        ("entropy_NT", "entropy"),
        ("slopes_NT", "slopes"),
        ("told_logprobs_NT", "told"),
        ("shown_logprobs_NT", "shown"),
    ],
)
def test_what_is_measured_is_passed_on(signal, measured):
    rollouts = [episode(turn(2)), episode(turn(3))]
    given = model(rollouts)
    signals = Signals(rollouts, [Score(0.0)] * 2, stage(), measure=lambda names: given)
    assert torch.equal(signals[signal], given[measured].double())


def test_how_far_the_stage_is():
    rollouts = [episode(turn(1))] * 3
    assert Signals(rollouts, [Score(0.0)] * 3, stage(), progress=0.25).progress_N.tolist() == [0.25] * 3


def test_greedy_answers_are_passed_on():
    signals = Signals([episode(turn(1))] * 2, [Score(0.0)] * 2, stage(), greedy=lambda: torch.tensor([0.5, torch.nan]))
    assert signals.baselines_N.dtype == torch.float64
    assert signals.baselines_N[0] == 0.5 and signals.baselines_N[1].isnan()


# -- what is made, and when -------------------------------------------------------------------------------------------------


class Asked:
    """Signals that note what they had made."""

    def __init__(self, **keys):
        self.calls = []
        rollouts = [episode(turn(2), group=n // 2) for n in range(4)]
        self.rollouts, given = rollouts, model(rollouts)

        def measure(names):
            self.calls.append(names)
            return {k: v for k, v in given.items() if k in names or (k == "bootstrap" and "values" in names)}

        def note(name, value):
            self.calls.append(name)
            return value

        self.signals = Signals(
            rollouts,
            [Score(float(n), {"exact": float(n)}) for n in range(4)],
            stage(**keys),
            weights=[{"exact": 1.0}] * 4,
            kl=keys.get("kl_coef", 0.0),
            measure=measure,
            greedy=lambda: note("greedy", torch.zeros(4)),
            past=lambda r: note("past", (0, 0, 0.0, 0.0)),
        )


MODELS = {"logprobs", "reference"}


@pytest.mark.parametrize(
    ("algorithm", "keys", "calls"),
    [
        ("grpo", {}, []),
        ("grpo", {"kl_coef": 0.1}, []),
        ("grpo", {"kl_coef": 0.1, "kl_in": "reward"}, [MODELS]),
        ("gdpo", {}, []),
        ("gui-g1", {}, []),
        ("reinforce++", {}, []),
        ("reinforce++", {"kl_coef": 0.1, "kl_in": "reward"}, [MODELS]),
        ("remax", {}, ["greedy"]),
        ("dcpo", {}, ["past"] * 4),
        ("ppo", {}, [{"values"}]),
        ("ppo", {"kl_coef": 0.1, "kl_in": "reward"}, [{"values"} | MODELS]),
        ("digirl", {}, [{"values"}]),
        ("archer", {}, [{"values", "answers"}]),
        ("opd", {}, [{"teacher", "logprobs"}]),
        ("kdrl", {}, [{"teacher", "logprobs"}]),
        ("d3s", {}, [{"entropy"}]),
        ("advantage-reweighting", {}, [{"logprobs"}]),
        ("nft", {}, []),
        ("vppo", {}, [{"masked", "logprobs"}]),
        ("otb", {}, [{"slopes"}]),
        ("rlsd", {}, [{"told", "logprobs"}]),
        ("sdar", {}, [{"told", "logprobs"}]),
        ("sdpo", {}, [{"shown", "logprobs"}]),
        ("bi-level-gae", {}, [{"values"}]),
    ],
)
def test_only_what_is_asked_for_is_made_and_all_of_it_in_one_pass(algorithm, keys, calls):
    asked = Asked(**keys)
    load_algorithm(algorithm, {}).credit(asked.signals)
    assert asked.calls == calls


def test_every_signal_says_what_it_is():
    assert set(MEASURED) < set(SIGNALS) and len(SIGNALS) == 24
    assert all(len(text) > 20 and not text.startswith("_") for text in SIGNALS.values())
    assert all(name.split("_")[-1] in ("N", "NR", "NT", "N4") for name in SIGNALS)
    shapes = {"N": (4,), "NR": (4, 1), "NT": (4, 2), "N4": (4, 4)}
    asked = Asked()
    asked.signals.expect(frozenset(SIGNALS))
    for name in SIGNALS:
        assert tuple(asked.signals[name].shape) == shapes[name.split("_")[-1]], name


# -- rewards, units and values together -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bootstrap", ["truncated", "always"])
@pytest.mark.parametrize("credit", ["token", "action", "turn"])
def test_credit_of_episodes_equals_the_sums_written_out(credit, bootstrap):
    """Signals -> gae, with a discount and a bootstrap, against a walk over each episode's units."""
    gamma, lam = 0.9, 0.8
    for rollouts, scores, weights in cases(7, 40):
        given = model(rollouts)
        how = stage(credit=credit, critic={"bootstrap": bootstrap})
        signals = Signals(rollouts, scores, how, weights=weights, measure=lambda names, g=given: g)
        found = gae(
            *(signals[s] for s in ("rewards_NT", "values_NT", "bootstrap_N", "units_NT")), gamma=gamma, lam=lam, whiten=False
        )
        for n, (r, s) in enumerate(zip(rollouts, scores, strict=True)):
            if s.failed or not r.length:
                assert found[0][n].isnan().all() == s.failed
                continue
            units, paid = signals.units_NT[n].tolist()[: r.length], token_rewards(r, s)
            starts = [t for t in range(r.length) if t == 0 or units[t] != units[t - 1]]
            value = [float(given["values"][n, t]) for t in starts]
            goes_on = r.status in (Status.TRUNCATED_TURNS, Status.TRUNCATED_TIME)
            goes_on |= bootstrap == "always" and r.status is Status.FINISHED
            value.append(float(given["bootstrap"][n]) if goes_on else 0.0)
            reward = [sum(paid[a:b]) for a, b in zip(starts, [*starts[1:], r.length], strict=True)]
            credits, later = [], 0.0
            for u in reversed(range(len(starts))):
                later = reward[u] + gamma * value[u + 1] - value[u] + gamma * lam * later
                credits.insert(0, later)
            for t in range(r.length):
                u = sum(start <= t for start in starts) - 1
                assert found[0][n, t].item() == pytest.approx(credits[u], abs=1e-5)
                target = found[1][n, t].item()
                assert target == pytest.approx(credits[u] + value[u], abs=1e-5) if t in starts else math.isnan(target)
