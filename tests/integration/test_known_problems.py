"""PPO with a critic on problems whose solution is known in closed form, through the engine's own signals, packing and learner.

The policy is a table: an embedding of what a position is, and a linear layer over it. Everything else is the engine's.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from mmrl.algorithms.presets import load_algorithm, with_defaults
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Score, Status, Turn
from mmrl.config.sections import RlStage
from mmrl.policies.batches import Credit
from mmrl.policies.critic import Critic
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vlm import ForwardOutputs
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

TOKENS = 8
"""Tokens 0..4 are states (or contexts); the chain's moves are 5 (left) and 6 (right), and 7 ends a turn."""
LEFT, RIGHT, END = 5, 6, 7


class Family:
    completion_type, on_host = 0, ()

    def __init__(self, model, processor):
        self.model = model


class Table:
    """Logits and hidden states that depend on a token and the one before it. `allowed`: the tokens that may follow a token."""

    device, banned, processor, exact_sampler, choices, root = torch.device("cpu"), frozenset(), None, False, 1, None
    end_id = 0

    def __init__(self, allowed):
        features = TOKENS * TOKENS
        self.model = torch.nn.Module()
        self.model.embed = torch.nn.Parameter(torch.eye(features))
        self.model.out = torch.nn.Parameter(torch.zeros(features, TOKENS))
        self.width = features
        self.mask = torch.full((features, TOKENS), -torch.inf)
        for token, following in allowed.items():
            for before in range(TOKENS):
                self.mask[before * TOKENS + token, following] = 0.0
        self.family = Family(self.model, None)

    def parameters(self):
        return self.model.named_parameters()

    def clone(self, frozen=False):
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        return other

    def feature(self, ids_BS):
        """A state is a state whatever came before it; a move belongs to the state that it was made in."""
        before = ids_BS.roll(1, 1)
        return torch.where(ids_BS < LEFT, 0, before) * TOKENS + ids_BS

    def logprobs_of(self, feature, temperature=1.0):
        return (self.model.embed[feature] @ self.model.out / temperature + self.mask[feature]).log_softmax(-1)

    def outputs(self, micro, temperature, *, states=False, entropy_gradient=False):
        feature = self.feature(micro.ids_BS).flatten()
        logprobs_LV = self.logprobs_of(feature[micro.source_L], temperature)
        entropy_L = -(logprobs_LV.exp() * logprobs_LV.clamp_min(-1e4)).sum(-1).detach()
        states_QH = self.states(micro) if states else None
        return ForwardOutputs(
            logprobs_L=logprobs_LV.gather(1, micro.target_L[:, None])[:, 0], entropy_L=entropy_L, states_QH=states_QH
        )

    def states(self, micro):
        return self.model.embed[self.feature(micro.ids_BS).flatten()[torch.cat([micro.source_L, micro.final_R])]]

    @torch.no_grad()
    def probabilities(self, state):
        return self.logprobs_of(torch.tensor([state]))[0].exp().numpy()


class Problem:
    """A policy, its critic and its learner, and steps of the engine on rollouts that an environment gives."""

    def __init__(self, allowed, settings=None, critic=None, **stage):
        self.policy = Table(allowed)
        stage = {"epochs": 4, "max_grad_norm": 10.0, "schedule": "linear"} | stage
        self.stage = with_defaults(
            RlStage(kind="rl", algorithm="ppo", settings=settings or {}, critic={"learning_rate": 0.05} | (critic or {}), **stage)
        )
        self.algorithm = load_algorithm("ppo", self.stage.settings)
        self.critic = Critic(self.policy, self.stage.critic, seed=3)
        self.learner = Learner(self.policy, self.stage, self.algorithm, critic=self.critic, gap_limit=1e-5)
        self.rng = np.random.default_rng(0)

    def pack(self, rollouts, credit):
        return pack(rollouts, credit, self.policy, shared_prefix=False, budget=4096, keep_zero=self.learner.needs_every_rollout)

    def measure(self, rollouts, names):
        return self.learner.measure(self.pack(rollouts, Credit(advantages=torch.ones(len(rollouts)))), names)

    def step(self, rollouts, scores, number):
        signals = Signals(rollouts, scores, self.stage, measure=lambda names: self.measure(rollouts, names))
        return self.learner.update([self.pack(rollouts, self.algorithm.credit(signals))], number)

    def values(self, states):
        """What the critic says of these states."""
        rollouts = [rollout(s, [((LEFT,), (0.0,), 0.0)], []) for s in states]
        return self.measure(rollouts, frozenset({"values"}))["values"][:, 0].tolist()


def rollout(start, turns, observed, status=Status.FINISHED, group=0):
    """turns: (ids, logprobs, reward) of each; observed: the state before each turn but the first, and the one it was left in."""
    inputs = PromptInputs(ids=torch.tensor([start]), positions=None, media={}, token_types={})
    before = [(start,), *((s,) for s in observed)]
    made = [Turn(observed_ids=o, token_ids=i, logprobs=p, text="", reward=r) for o, (i, p, r) in zip(before, turns, strict=False)]
    if len(before) > len(turns):  # nothing was sampled in the state that the environment left the episode in
        made.append(Turn(observed_ids=before[-1], token_ids=(), logprobs=(), text=""))
    return Conversation(prompt=Prompt(messages=[]), group=group, turns=tuple(made), status=status, inputs=inputs)


# -- a contextual bandit ----------------------------------------------------------------------------------------------------

MEANS = np.array([[0.9, 0.2, 0.4], [0.1, 0.8, 0.5], [0.3, 0.0, 0.6], [-0.5, -0.2, -0.9]])
"""Expected reward of each arm (tokens 5, 6, 7) in each context."""
NOISE = 0.2
ARMS = {context: [5, 6, 7] for context in range(4)}


def bandit_step(problem, number, per_context=16):
    rollouts, scores = [], []
    for context in range(4):
        chances = problem.policy.probabilities(context)[5:8].astype(float)
        for arm in problem.rng.choice(3, per_context, p=chances / chances.sum()):
            rollouts.append(rollout(context, [((5 + int(arm),), (math.log(chances[arm]),), 0.0)], [], group=context))
            scores.append(Score(float(MEANS[context, arm] + NOISE * problem.rng.normal())))
    return problem.step(rollouts, scores, number)


def bandit_values(problem):
    """The expected reward of the policy as it is, in each context."""
    return [float(problem.policy.probabilities(c)[5:8] @ MEANS[c]) for c in range(4)]


@pytest.mark.parametrize("backbone", ["shared", pytest.param("separate", marks=pytest.mark.slow)])
def test_a_contextual_bandit_is_solved_and_its_values_are_the_expected_rewards(backbone):
    problem = Problem(ARMS, critic={"backbone": backbone}, steps=200, learning_rate=0.05)
    assert problem.values(range(4)) == [0.0] * 4
    for number in range(200):
        found = bandit_step(problem, number)
    best = [problem.policy.probabilities(c)[5:8] for c in range(4)]
    assert [int(p.argmax()) for p in best] == MEANS.argmax(1).tolist() and min(p.max() for p in best) > 0.95
    # towards the end some 20 steps of 16 noisy rewards count in each context: 0.2 / sqrt(320) is a standard error of 0.011
    assert problem.values(range(4)) == pytest.approx(bandit_values(problem), abs=0.05)
    assert found["value_loss"] == pytest.approx(NOISE**2 / 2, rel=0.4), "what is left is the noise"
    assert found["logprob_gap"] < 1e-5


@pytest.mark.slow
def test_while_the_critic_warms_up_the_policy_stays_bit_for_bit():
    """The values then are those of a policy that picks each arm as often: the mean of a context's expected rewards."""
    problem = Problem(ARMS, critic={"warmup_steps": 120}, steps=130, learning_rate=0.05, weight_decay=0.1, schedule="constant")
    before = {name: p.detach().clone() for name, p in problem.policy.parameters()}
    for number in range(120):
        found = bandit_step(problem, number, per_context=48)
        assert found["grad_norm"] == 0.0 and found["grad_norm/critic"] > 0.0
    assert all(torch.equal(p, before[name]) for name, p in problem.policy.parameters())
    # the arms' means differ by about 0.3, to which the noise comes, and some 5 steps count: 0.36 / sqrt(48 * 5) is 0.023
    assert problem.values(range(4)) == pytest.approx(MEANS.mean(1).tolist(), abs=0.08)
    found = bandit_step(problem, 120)
    assert found["grad_norm"] > 0.0 and not torch.equal(problem.policy.model.out, before["out"])


# -- a chain with a time limit ----------------------------------------------------------------------------------------------

GAMMA, LIMIT = 0.7, 3
MOVES = {state: [LEFT, RIGHT] for state in range(5)} | {LEFT: [END], RIGHT: [END]}
TRUNCATED, ENDED = "truncated", "ended"


def move(state, action):
    """States 0..4; right of 4 pays 1 and ends the episode, which stays where it is."""
    if action == RIGHT:
        return min(state + 1, 4), float(state == 4), state == 4
    return max(state - 1, 0), 0.0, False


def chain_step(problem, number, bootstraps, each=6):
    """Episodes from every state, of at most three moves; a turn is a move and an end token. `bootstraps`: after which of the
    ends of an episode the values go on, by the status it is given."""
    rollouts, starts = [], [s for s in range(5) for _ in range(each)]
    for start in starts:
        state, turns, observed, over = start, [], [], False
        while not over and len(turns) < LIMIT:
            chances = problem.policy.probabilities(state).astype(float)
            action = RIGHT if problem.rng.random() < chances[RIGHT] else LEFT
            logprob = math.log(chances[action])
            state, reward, over = move(state, action)
            turns.append(((action, END), (logprob, 0.0), reward))
            observed.append(state)
        cut_off = (ENDED if over else TRUNCATED) in bootstraps
        status = Status.TRUNCATED_TURNS if cut_off else Status.FINISHED
        rollouts.append(rollout(start, turns, observed, status))
    return problem.step(rollouts, [Score(0.0)] * len(rollouts), number)


def chain_values(right, bootstraps, first=1.0):
    """What lambda = 1 converges to for a policy that moves right with these probabilities: the mean, over the visits of a state,
    of the discounted rewards that follow, where a bootstrap is the value itself.

    first: the discount before a move's reward, which is gamma when every token is a step and the end token follows the move.
    """
    values = np.zeros(5)
    visits = np.zeros((LIMIT, 5))
    visits[0] = 1.0
    outcomes = [[(p, *move(s, a)) for a, p in ((RIGHT, right[s]), (LEFT, 1 - right[s]))] for s in range(5)]
    for t in range(1, LIMIT):
        for s in range(5):
            for p, following, _, over in outcomes[s]:
                visits[t, following] += visits[t - 1, s] * p * (not over)
    for _ in range(500):
        gains = np.zeros((LIMIT + 1, 5))
        for t in reversed(range(LIMIT)):
            for s in range(5):
                for p, following, reward, over in outcomes[s]:
                    if over:
                        later = values[following] * (ENDED in bootstraps)
                    elif t == LIMIT - 1:
                        later = values[following] * (TRUNCATED in bootstraps)
                    else:
                        later = gains[t + 1, following]
                    gains[t, s] += p * first * (reward + GAMMA * later)
        values = (visits * gains[:LIMIT]).sum(0) / visits.sum(0)
    return values


def optimum(first=1.0):
    return [first * (first * GAMMA) ** k for k in (4, 3, 2, 1, 0)]


def test_the_closed_form_of_always_moving_right():
    """Worked out by hand. Without a bootstrap, a visit pays only where the end is no further than the moves that are left:
    state 2 is visited with 3, 2 and 1 of them left, and needs 3."""
    right = np.ones(5)
    assert chain_values(right, {TRUNCATED}) == pytest.approx(optimum())
    assert chain_values(right, {TRUNCATED}, first=GAMMA) == pytest.approx(optimum(GAMMA))
    assert chain_values(right, set()) == pytest.approx([0, 0, 0.49 / 3, 0.7 * 2 / 3, 1.0])
    assert chain_values(right, {TRUNCATED, ENDED}) == pytest.approx([v / (1 - GAMMA) for v in optimum()])


def certain(problem):
    """Move right with a probability that is 1 in float32."""
    with torch.no_grad():
        problem.policy.model.out[:, RIGHT] = 40.0
        problem.policy.model.out[:, LEFT] = -40.0


WAYS = {"right": {TRUNCATED}, "never": set(), "always": {TRUNCATED, ENDED}}
"""After which ends of an episode the values go on: as it should be, and two faults of peers."""
EXHAUSTIVE = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("way", "backbone", "credit", "lam"),
    [
        ("right", "shared", "turn", 0.5),
        ("right", "shared", "token", 1.0),
        pytest.param("never", "shared", "turn", 1.0, marks=pytest.mark.slow),
        pytest.param("always", "shared", "token", 1.0, marks=pytest.mark.slow),
        pytest.param("right", "shared", "turn", 0.0, marks=pytest.mark.slow),
        pytest.param("right", "separate", "token", 1.0, marks=pytest.mark.slow),
        pytest.param("right", "shared", "token", 0.0, marks=EXHAUSTIVE),
        pytest.param("right", "separate", "turn", 1.0, marks=EXHAUSTIVE),
        pytest.param("never", "separate", "token", 1.0, marks=EXHAUSTIVE),
        pytest.param("always", "separate", "turn", 1.0, marks=EXHAUSTIVE),
    ],
)
def test_the_values_of_a_given_policy(way, backbone, credit, lam):
    """Episodes that were cut off are worth what would have followed; those that ended, nothing more. Both ways to get this wrong
    converge to other values, which are known too. With the right one lambda makes no difference."""
    steps, first = 250, GAMMA if credit == "token" else 1.0
    problem = Problem(
        MOVES,
        {"gamma": GAMMA, "lam": lam},
        {"warmup_steps": steps, "clip_range": 0.0, "backbone": backbone},
        steps=steps,
        credit=credit,
        learning_rate=0.05,
    )
    certain(problem)
    for number in range(steps):
        chain_step(problem, number, WAYS[way], each=1)
    expected = {name: chain_values(np.ones(5), ends, first) for name, ends in WAYS.items()}
    assert problem.values(range(5)) == pytest.approx(expected[way].tolist(), abs=0.02)
    apart = [np.abs(values - expected[way]).max() for name, values in expected.items() if name != way]
    assert min(apart) > 0.1, "so the tolerance tells them apart"


@pytest.mark.slow
@pytest.mark.parametrize(("way", "credit"), [("right", "turn"), ("right", "token"), ("never", "turn"), ("always", "turn")])
def test_the_chain_is_solved_to_its_optimum(way, credit):
    """The policy learns too. Its values are those of its own probabilities, and only with the right bootstrap the optimum's."""
    steps, first = 200, GAMMA if credit == "token" else 1.0
    critic = {"clip_range": 0.5, "warmup_steps": 20}
    problem = Problem(MOVES, {"gamma": GAMMA, "lam": 1.0}, critic, steps=steps, credit=credit, learning_rate=0.03)
    for number in range(steps):
        found = chain_step(problem, number, WAYS[way], each=4)
    right = np.array([problem.policy.probabilities(s)[RIGHT] for s in range(5)])
    assert found["logprob_gap"] < 1e-5
    values = np.array(problem.values(range(5)))
    for name, ends in WAYS.items():
        error = np.abs(values - chain_values(right, ends, first)).max()
        assert (error < 0.03) if name == way else (error > 0.1)
    if way == "right":
        assert right.min() > 0.95 and values.tolist() == pytest.approx(optimum(first), abs=0.02)


# -- what the critic's settings do ------------------------------------------------------------------------------------------


def paid(problem, rewards, number=0, contexts=None):
    """One step of arm 5, these rewards for these contexts."""
    contexts = contexts or [0] * len(rewards)
    chance = [math.log(problem.policy.probabilities(c)[5]) for c in contexts]
    rollouts = [rollout(c, [((5,), (p,), 0.0)], []) for c, p in zip(contexts, chance, strict=True)]
    return problem.step(rollouts, [Score(r) for r in rewards], number)


def test_a_value_moves_no_further_than_its_clip():
    """From 0 towards 1, in steps of about 0.02 (a weight and a bias, 0.01 each): the one that passes 0.2 is the last, but for
    Adam's momentum; without the clip it gets to 1."""
    for clip, low, high in ((0.2, 0.19, 0.4), (0.0, 0.9, 1.2)):
        problem = Problem(
            ARMS,
            critic={"clip_range": clip, "learning_rate": 0.01, "detach": True},
            steps=1,
            epochs=100,
            learning_rate=1e-9,
            schedule="constant",
            beta1=0.0,
        )
        found = paid(problem, [1.0])
        assert low < problem.values([0])[0] < high
        assert found["value_clip_share"] == (1.0 if clip else 0.0)


@pytest.mark.parametrize(("huber", "slope"), [(math.inf, 2.0), (0.5, 0.5), (3.0, 2.0)])
def test_an_error_beyond_huber_weighs_no_more(huber, slope):
    """Plain descent on one value of 0 with a target of 2: the bias moves by rate x weight x error, or x huber; so does the
    weight of its only feature, which is 1."""
    problem = Problem(
        ARMS,
        critic={"clip_range": 0.0, "huber": huber, "learning_rate": 0.1, "value_coef": 0.25, "max_grad_norm": 1e9},
        steps=1,
        epochs=1,
        optimizer="sgd",
        beta1=0.0,
        learning_rate=1e-9,
        schedule="constant",
    )
    found = paid(problem, [2.0])
    assert found["value_loss"] == pytest.approx(2.0 if huber > 2 else 0.5 * (2 - 0.25)) and found["value"] == 0.0
    bias, weight = problem.critic.head[0].bias.item(), problem.critic.head[0].weight[0, 0].item()
    assert bias == pytest.approx(0.1 * 0.25 * slope) and weight == pytest.approx(0.1 * 0.25 * slope)
    assert problem.values([0])[0] == pytest.approx(2 * 0.1 * 0.25 * slope) and problem.values([1])[0] == pytest.approx(bias)


@pytest.mark.parametrize(("policy_limit", "critic_limit"), [(1e9, 0.01), (0.01, 1e9), (0.02, 0.03)])
def test_the_gradients_of_policy_and_critic_are_clipped_apart(policy_limit, critic_limit):
    """Rewards 1 and 5 in two contexts, values 0, not whitened. Policy: a token's logit gradient is A (1/3 - 1) for the arm and
    A / 3 for the two others, of length A sqrt(2/3); a mean of two. Critic: weights -r / 2 each, times 0.5; bias their sum."""
    problem = Problem(
        ARMS,
        {"whiten": False},
        {"clip_range": 0.0, "learning_rate": 1.0, "max_grad_norm": critic_limit},
        steps=1,
        epochs=1,
        optimizer="sgd",
        beta1=0.0,
        learning_rate=1.0,
        schedule="constant",
        max_grad_norm=policy_limit,
        parts=[{"match": "embed", "freeze": True}],
    )
    before = {name: p.detach().clone() for name, p in [*problem.policy.parameters(), *problem.critic.parameters()]}
    found = paid(problem, [1.0, 5.0], contexts=[0, 1])
    moved = {n: (p.detach() - before[n]) for n, p in [*problem.policy.parameters(), *problem.critic.parameters()]}
    policy_norm = math.sqrt(2 / 3) * math.sqrt(1 + 25) / 2
    critic_norm = 0.25 * math.sqrt(1 + 25 + 36)
    assert found["grad_norm"] == pytest.approx(policy_norm) and found["grad_norm/critic"] == pytest.approx(critic_norm)
    assert moved["out"].norm().item() == pytest.approx(min(policy_norm, policy_limit), rel=1e-4)
    head = math.hypot(moved["value.0.weight"].norm().item(), moved["value.0.bias"].item())
    assert head == pytest.approx(min(critic_norm, critic_limit), rel=1e-4)


@pytest.mark.parametrize(
    ("backbone", "detach", "moves"), [("shared", False, True), ("shared", True, False), ("separate", False, False)]
)
def test_whose_weights_the_value_loss_reaches(backbone, detach, moves):
    """Equal rewards and values have no advantage, so only the value loss can move the policy's embedding."""
    problem = Problem(ARMS, critic={"backbone": backbone, "detach": detach, "hidden_sizes": [4]}, steps=5, learning_rate=0.1)
    before = problem.policy.model.embed.detach().clone()
    own = None if problem.critic.backbone is None else problem.critic.backbone.model.embed.detach().clone()
    for number in range(3):  # the last layer begins at zero, so what is below has its first gradient in the second step
        paid(problem, [1.0, 1.0], number)
    assert torch.equal(problem.policy.model.embed, before) != moves
    assert problem.policy.model.out.abs().max() == 0.0
    if own is not None:
        assert not torch.equal(problem.critic.backbone.model.embed, own), "a separate critic learns its own"


def test_detach_is_about_a_shared_backbone_only():
    problem = Problem(ARMS, critic={"backbone": "separate", "detach": True, "hidden_sizes": [4]}, steps=5, learning_rate=0.1)
    own = problem.critic.backbone.model.embed.detach().clone()
    for number in range(3):
        paid(problem, [1.0, 1.0], number)
    assert not torch.equal(problem.critic.backbone.model.embed, own)
