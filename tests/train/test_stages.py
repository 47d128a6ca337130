"""The steps of each kind of stage, against updates worked out apart from the engine: transformers' plain forward of one prompt
and one completion, autograd, and gradient descent at a rate of 1. What the policy answers is written in the test."""

import copy
import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import vlm_cases as cases
from mmrl import Task
from mmrl.algorithms.kl import ESTIMATES
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.specs import TaskSpec, VerifierSpec
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig, stage_limit
from mmrl.data.prompts import Splits
from mmrl.judge import weighted_score
from mmrl.judge.rewards import weights_of
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.angles import prompt_angles, question_angles
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry import plugins
from mmrl.rollout.turns import ConversationCollector
from mmrl.run_folder.rollouts import select_rollouts
from mmrl.train.resolve import algorithm_of, algorithm_specs, with_algorithm_defaults
from mmrl.train.run import Run
from mmrl.train.sampling.angles import measure_step, order_prompts
from mmrl.train.setup import Setup

MODEL = "tiny:qwen2_5_vl:hidden=32,layers=1"
DESCENT = {"optimizer": "sgd", "beta1": 0.0, "learning_rate": 1.0, "max_grad_norm": math.inf}


class Numbers(Task):
    """Prompts p0, p1, ... in order; the gold completion is `1!`."""

    def prompts(self, split, seed):
        return [Prompt(id=f"p{i}", messages=[user_message(f"p{i}")], answer="1!", meta={"difficulty": i}) for i in range(12)]


class Scripted(ConversationCollector):
    """Gives each prompt the answers that the script has for it; one that ends in `-` is cut off. Its logprobs are the policy's
    plus `off`, the sampler's own error, in turn."""

    def __init__(self, policy, script, off=(0.0,)):
        super().__init__(policy, SimpleNamespace(batch_size=256, wake_up=lambda: None, sleep=lambda: None))
        self.script, self.off, self.calls = script, off, []

    def collect(self, prompts, inputs, size, sampling, version=0, numbers=()):
        self.calls.append((len(prompts), size, sampling))
        return [
            self.one(p, i, text, n, sampling.temperature or 1.0, self.off[k % len(self.off)])
            for n, (p, i) in enumerate(zip(prompts, inputs, strict=True))
            for k, text in enumerate(self.script(p)[:size])
        ]

    def one(self, prompt, inputs, text, group, temperature, off):
        ids = self.policy.encode_completion(text.rstrip("-"))[: -1 if text.endswith("-") else None]
        turn = Turn(observed_ids=tuple(inputs.ids.tolist()), token_ids=tuple(ids), logprobs=(), text=text.rstrip("-"))
        status = Status.TRUNCATED_LENGTH if text.endswith("-") else Status.FINISHED
        made = Conversation(prompt=prompt, group=group, turns=(turn,), status=status, inputs=inputs)
        with torch.no_grad():
            logprobs = cases.naive_logprobs(self.policy, made, temperature) + off
        return replace(made, turns=(replace(turn, logprobs=tuple(logprobs.tolist())),))


class Judge:
    """A completion is worth the number that it begins with; `x` fails; the verifier `length` counts its exclamation marks."""

    def score(self, cases_, weights):
        return [weighted_score(w, self.verdicts(c.completion)) for c, w in zip(cases_, weights, strict=True)]

    @staticmethod
    def verdicts(text):
        number = text.partition(" ")[0].rstrip("!")
        return {
            "right": Score(None, {}, "out") if number == "x" else Score(float(number)),
            "length": Score(float(text.count("!"))),
        }


class Kept:
    """A sampler that keeps what it gave."""

    def __init__(self, sampler):
        self.sampler, self.prompts = sampler, sampler.prompts

    def __call__(self, prompts, at):
        self.last = self.sampler(prompts, at)
        return self.last

    def __getattr__(self, name):
        return getattr(self.sampler, name)


def sampled(run):
    """The groups of the next step."""
    return run.steps.sampler(run.steps.source.upcoming(run.steps.sampler.prompts), run.at.moment)


def credit_of(run, groups):
    return run.steps.credit(groups, run.at.moment)


def batches_of(run, groups):
    return run.steps.batches(groups, credit_of(run, groups), run.at.moment).dealt


class Folder:
    path = Path("nowhere")

    def __init__(self):
        self.rows, self.kept, self.errors = [], {}, []

    def metrics(self, step, kind, metrics):
        self.rows.append(metrics)

    def rollouts(self, step, rows):
        self.kept[step] = rows

    def error(self, step, where, what, **alarm):
        self.errors.append((where, what))


def silent():
    return SimpleNamespace(step_finished=lambda *a: None, note=lambda text: None)


def setup_of(config):
    """What a run file with tasks and verifiers that no plugin has comes to."""
    config = with_algorithm_defaults(config)
    tasks = {t.label: Numbers() for t in config.tasks}
    return Setup(
        config=config,
        device="cpu",
        policy=plugins.registry().get("policies", "vlm"),
        tasks=tasks,
        weights={t.label: weights_of(t, TaskSpec(id=t.id, target="")) for t in config.tasks},
        metrics={},
        verifiers={},
        verifier_options={},
        algorithms=[
            algorithm_of(s, spec, stage_limit(config, s)) for s, spec in zip(config.stages, algorithm_specs(config), strict=True)
        ],
        splits=Splits(tasks, config.seed),
    )


def begun(stage, script=None, *, off=(0.0,), tasks=None, teacher=None, lora=None, temperature=1.0, generate=None, **config):
    """A run in front of the first step of this stage. script: prompt id -> answers, or a function of the prompt."""
    data = {
        "name": "x",
        "policy": {"model": MODEL, **({"lora": lora} if lora else {})},
        "tasks": tasks or [{"id": "a", "verifiers": {"right": 1.0}}],
        "stages": [
            {"kind": "rl", "steps": 10, "prompts_per_step": 2, "group_size": 4, "order": "easy-first", **DESCENT, **stage}
        ],
        "generate": {"temperature": temperature, **(generate or {"max_tokens": 8})},
        "evaluate": {"num_prompts": 0},
        "record": {"rollouts_every": 0, "trackers": []},
        "limits": {"logprob_gap": math.inf},
        "judge": {"failure_limit": 0.5},
        **config,
    }
    if stage.get("kind") == "distill":
        del data["stages"][0]["prompts_per_step"], data["stages"][0]["group_size"]
        data["stages"][0] |= stage
    setup = setup_of(parse_config(data))
    config = setup.config
    policy = VLM(config.policy)
    run = Run(setup, Folder(), policy, Judge(), silent(), lambda number: teacher)
    answers = script if callable(script) else lambda prompt: (script or {})[prompt.id].split(" ")
    run.collector = Scripted(policy, answers, off)
    run.prepare(config.stages[0])
    if hasattr(run.steps, "sampler"):
        run.steps.sampler = Kept(run.steps.sampler)
    return run


def step(run):
    """Metrics of the next step."""
    run.step(run.config.stages[0])
    return run.folder.rows[-1]


def weights(policy):
    return torch.cat([p.detach().flatten() for _, p in policy.parameters()]).clone()


def descended(policy, loss, before=None):
    """What one step of gradient descent at a rate of 1 makes of the weights."""
    parameters = [p for _, p in policy.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)])
    return (weights(policy) if before is None else before) - flat


def same(found, expected, before):
    """Moved to the same place, and by something to speak of."""
    moved = (expected - before).norm()
    return moved > 1e-3 and (found - expected).norm() < 2e-4 * moved


def logprobs(policy, rollout, temperature=1.0):
    return cases.naive_logprobs(policy, rollout, temperature)


def perturb(policy, size=0.05):
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(size * torch.randn(p.shape, generator=noise))


def standardised(rewards):
    """By GRPO: less the mean, over the deviation with one degree of freedom less, plus 1e-4."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (deviation + 1e-4) for r in rewards]


MIXED = {"p0": "1 0!! 0.5 0", "p1": "0 1! 0 0"}
EVERY = "1 0!! 0.5 0"


# -- an ordinary step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_step_of_grpo_is_what_it_is_by_hand(temperature):
    """Each completion counts the same, and its tokens among themselves; one whose score failed leaves the update."""
    run = begun({}, {"p0": "1 0!! 0.5 x", "p1": "0 1! 0 0"}, temperature=temperature)
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    advantages = [*standardised([1, 0, 0.5]), None, *standardised([0, 1, 0, 0])]
    loss = (
        sum(-a * logprobs(policy, r, temperature).mean() for a, r in zip(advantages, rollouts, strict=True) if a is not None) / 7
    )
    assert same(weights(run.policy), descended(policy, loss), before)
    assert found["reward/mean"] == pytest.approx(2.5 / 7) and found["judge/failed_share"] == 1 / 8
    assert found["logprob_gap"] < 1e-6 and found["kl"] == 0.0


def test_verifiers_weights_go_from_one_end_of_the_stage_to_the_other():
    for steps, expected in ((5, [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)]), (1, [(0.0, 1.0)])):
        tasks = [{"id": "a", "verifiers": {"right": [0.0, 1.0], "length": [1.0, 0.5]}}]
        run = begun({"steps": steps, "prompts_per_step": 1}, lambda p: EVERY.split(" "), tasks=tasks)
        for at, (right, length) in zip((0, 2, 4), expected, strict=False):
            while run.at.stage_step < at:
                step(run)
            step(run)
            scores = [s.value for s in run.steps.sampler.last.scores]
            assert scores == pytest.approx([right, 2 * length, 0.5 * right, 0.0])


def test_every_time_a_step_samples_it_has_a_seed_of_its_own():
    """Another round of dynamic sampling, or a hint, would otherwise meet the very same noise again."""
    run = begun({"dynamic_sampling": 2, "hints": "ghpo", "hint_shares": [1.0]}, lambda p: ["0"] * 4)
    seeds = []
    for _ in range(2):
        step(run)
        seeds.append([s.seed for _, _, s in run.collector.calls])
        run.collector.calls.clear()
    assert [len(s) for s in seeds] == [6, 6] and len({*seeds[0], *seeds[1]}) == 12
    again = begun({"dynamic_sampling": 2, "hints": "ghpo", "hint_shares": [1.0]}, lambda p: ["0"] * 4)
    step(again)
    assert [s.seed for _, _, s in again.collector.calls] == seeds[0]


# -- nothing left -------------------------------------------------------------------------------------------------------

IDLE = [
    {},
    {"kl_coef": 0.5},
    {"kl_coef": 0.5, "kl_in": "reward"},
    {"entropy_coef": 0.5},
    {"algorithm": "ppo"},
    {"algorithm": "reinforce++"},
    {"condition": {"top": 0.5}},
    {"weight_decay": 0.1},
    {"minibatches": 2, "epochs": 2, "learning_rate": 0.1},
    {"optimizer": "adamw", "weight_decay": 0.1, "beta1": 0.9, "learning_rate": 0.01},
    {"labels": "majority"},
]


@pytest.mark.parametrize("extra", IDLE, ids=[str(sorted(e)) for e in IDLE])
def test_a_step_that_nothing_is_left_of_moves_nothing_and_the_run_goes_on(extra):
    alike = {f"p{i}": "0 0 0 0" for i in range(2, 6)}
    run = begun({"dynamic_sampling": 1, **extra}, {**MIXED, **alike, "p6": EVERY, "p7": EVERY})
    learnt = step(run)
    assert "sampling/filtered_share" in learnt and "logprob_gap" in learnt
    perturb(run.policy)  # away from the reference
    before = weights(run.policy)
    critic = [p.clone() for _, p in run.steps.learner.critic.parameters()] if run.steps.learner.critic else []
    found = step(run)
    assert torch.equal(weights(run.policy), before)
    assert all(
        torch.equal(a, p) for a, (_, p) in zip(critic, run.steps.learner.critic.parameters() if critic else [], strict=True)
    )
    assert all(math.isfinite(v) for v in found.values())
    assert found["sampling/filtered_share"] == 1.0 and found["sampling/groups"] == 4.0 and found["zero_std_share"] == 1.0
    assert found["grad_norm"] == 0.0 and found["loss"] == 0.0 and "logprob_gap" not in found
    assert run.steps.source.draws == 6, "the prompts are spent"
    after = step(run)
    assert not torch.equal(weights(run.policy), before) and after["sampling/filtered_share"] == 0.0
    assert run.steps.source.draws == 8 and run.at.step == 3


def test_what_is_recorded_of_an_idle_step_has_no_advantage():
    run = begun({"dynamic_sampling": 1}, lambda p: ["0"] * 4, record={"rollouts_every": 1, "rollouts": 99, "trackers": []})
    step(run)
    assert len(run.folder.kept[1]) == 16 and all(math.isnan(row["advantage"]) for row in run.folder.kept[1])


# -- what is recorded ---------------------------------------------------------------------------------------------------


def kept(limit, sizes, taught=(), tasks="", gold=()):
    """Group -> members recorded, in their order. taught: groups; tasks: a letter for each group; gold: rollouts."""
    rollouts = []
    for group, size in enumerate(sizes):
        prompt = Prompt(id="p", messages=[user_message("p")], answer="", task=tasks[group] if tasks else "a")
        for _ in range(size):
            turn = Turn(observed_ids=(1,), token_ids=(2,), logprobs=(math.nan if len(rollouts) in gold else -1.0,), text="0")
            rollouts.append(Conversation(prompt=prompt, group=group, turns=(turn,), status=Status.FINISHED))
    credit = Credit(advantages=torch.tensor([float(r.group in taught) for r in rollouts]))
    numbers = select_rollouts(rollouts, credit.taught, limit)
    assert len({*numbers}) == len(numbers) <= limit
    return [rollouts[n].group for n in numbers] if not gold else numbers


def test_groups_are_recorded_whole():
    assert kept(16, [6, 6, 6]) == [0] * 6 + [1] * 6
    assert kept(8, [6, 6, 2]) == [0] * 6 + [2] * 2, "what is left has room for a smaller one"
    assert kept(4, [4]) == [0] * 4 and kept(9, [2, 2]) == [0, 0, 1, 1]


def test_a_first_group_that_is_too_large_keeps_its_gold_completion():
    assert kept(3, [5, 2]) == [0, 0, 0]
    assert kept(3, [5, 2], gold=(4,)) == [0, 1, 4]
    assert kept(1, [5], gold=(3, 4)) == [3]


def test_groups_that_taught_something_come_first_and_each_task_in_turn():
    assert kept(2, [1, 1, 1], taught={2}) == [2, 0]
    assert kept(4, [1] * 6, tasks="aaaabb") == [0, 4, 1, 5]
    assert kept(4, [1] * 6, tasks="aaaabb", taught={3, 5}) == [3, 5, 0, 4], "of each task first"
    assert kept(1, [1, 1], tasks="ab", taught={1}) == [1], "the task that taught something begins"
    assert kept(4, [1] * 4, tasks="abbb") == [0, 1, 2, 3]


def test_a_step_records_the_groups_that_taught_something_with_their_sources():
    script = {"p0": "0 0 0 0", "p1": EVERY, "p2": "1 1 1 1", "p3": "0 1! 0 0"}
    recorded = {"rollouts_every": 1, "rollouts": 11, "trackers": []}
    for algorithm in ("grpo", "ppo"):  # one advantage for each rollout, and one for each token
        run = begun({"prompts_per_step": 4, "algorithm": algorithm}, script, record=recorded)
        step(run)
        rows = run.folder.kept[1]
        assert len(rows) == 8 and {row["source"] for row in rows} == {"policy"}
        if algorithm == "grpo":
            assert [row["prompt_id"] for row in rows] == ["p1"] * 4 + ["p3"] * 4
    run = with_hints("guide", record=recorded)
    step(run)
    assert [row["source"] for row in run.folder.kept[1]] == ["policy"] * 4 + ["hint"] * 4
    run = begun({"ground_truth": "when-failed"}, {"p0": "0 0!! 0 0", "p1": EVERY}, record=recorded)
    step(run)
    assert [row["source"] for row in run.folder.kept[1]] == ["policy"] * 4 + ["gold"] + ["policy"] * 4


# -- cut off ------------------------------------------------------------------------------------------------------------


def test_masked_completions_leave_the_update_and_stay_in_their_groups_statistics():
    script = {"p0": "1- 0!! 0.5 0", "p1": "0 1! 0- 0-"}
    run = begun({"overlong": "mask"}, script)
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    credit = credit_of(run, sampled(run))
    expected = [*standardised([1, 0, 0.5, 0]), *standardised([0, 1, 0, 0])]
    assert credit.advantages.isnan().tolist() == [True, False, False, False, False, False, True, True]
    for n in (1, 2, 3, 4, 5):
        assert credit.advantages[n].item() == pytest.approx(expected[n], abs=1e-6)
    run = begun({"overlong": "mask"}, script)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    loss = sum(-expected[n] * logprobs(policy, rollouts[n]).mean() for n in (1, 2, 3, 4, 5)) / 5
    assert same(weights(run.policy), descended(policy, loss), before)
    assert found["length/truncated_share"] == 3 / 8 and found["reward/mean"] == pytest.approx(2.5 / 8)
    kept = begun({}, script)
    assert not credit_of(kept, sampled(kept)).advantages.isnan().any()


def test_masked_rows_of_credit_by_tokens_leave_as_a_whole():
    run = begun({"overlong": "mask", "algorithm": "ppo"}, {"p0": "1- 0!! 0.5 0", "p1": "0 1! 0- 0"})
    groups = sampled(run)
    credit = credit_of(run, groups)
    assert credit.advantages.isnan().any(1).tolist() == credit.advantages.isnan().all(1).tolist()
    assert credit.advantages.isnan().any(1).tolist() == [True, False, False, False, False, False, True, False]
    (batch,) = run.steps.batches(groups, credit, run.at.moment).dealt
    assert {int(n) for m in batch.micro for n in m.rollout_L} == {1, 2, 3, 4, 5, 7}


# -- hints --------------------------------------------------------------------------------------------------------------


def with_hints(kind, record=None, **stage):
    """p0 fails and succeeds with its hint, p1 does without."""

    def script(prompt):
        return (
            ["0", "1", "0", "0!"] if "Hint" in prompt.text else ["0", "0!", "0", "0"] if prompt.id == "p0" else EVERY.split(" ")
        )

    return begun({"hints": kind, **stage}, script, off=(0.0, -0.25, 0.25), **({"record": record} if record else {}))


def test_guide_trains_hinted_answers_under_the_prompt_itself_weighted_by_importance():
    run = with_hints("guide")
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    assert [r.off_policy for r in rollouts] == [False] * 4 + [True] * 4 + [False] * 4
    advantages = [*standardised([0, 0, 0, 0, 0, 1, 0, 0]), *standardised([1, 0, 0.5, 0])]
    loss, gap, own, clipped, tokens = 0.0, 0.0, 0, 0.0, 0
    for a, r in zip(advantages, rollouts, strict=True):
        new, sampler = logprobs(policy, r), torch.tensor(r.turns[0].logprobs)
        ratio = (new - (sampler if r.off_policy else new.detach())).exp()
        loss = loss - torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean() / 12
        if r.off_policy:
            assert not (ratio - 1).abs().max() < 1e-2, "the hint makes a difference"
        else:
            gap, own = gap + (new - sampler).abs().sum().item(), own + len(new)
        clipped += ((ratio.clamp(0.8, 1.2) * a) < (ratio * a)).sum().item()
        tokens += len(new)
    assert same(weights(run.policy), descended(policy, loss), before)
    assert found["logprob_gap"] == pytest.approx(gap / own, rel=1e-3) and found["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert found["clip_share"] == pytest.approx(clipped / tokens) and clipped
    assert found["sampling/hinted"] == 1.0


def test_ghpo_trains_them_under_the_hinted_prompt_as_its_own_samples():
    run = with_hints("ghpo")
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    assert ["Hint: 1!" in r.prompt.text for r in rollouts] == [True] * 4 + [False] * 4 and not any(r.off_policy for r in rollouts)
    advantages = [*standardised([0, 1, 0, 0]), *standardised([1, 0, 0.5, 0])]
    loss = sum(-a * logprobs(policy, r).mean() for a, r in zip(advantages, rollouts, strict=True)) / 8
    assert same(weights(run.policy), descended(policy, loss), before)
    own = [(logprobs(policy, r) - torch.tensor(r.turns[0].logprobs)).abs() for r in rollouts]
    assert found["logprob_gap"] == pytest.approx(torch.cat(own).mean().item(), rel=1e-3)


def test_importance_leaves_what_was_sampled_elsewhere_to_the_losses_own_ratio():
    one, two = with_hints("guide"), with_hints("guide", importance_sampling="truncate", importance_sampling_cap=1.0)
    one.collector.off = two.collector.off = (0.0,)
    step(one), step(two)
    assert (weights(one.policy) - weights(two.policy)).norm() < 1e-5


def test_failures_of_hints_that_did_not_help_stop_a_run_too():
    def script(prompt):
        return ["x", "x", "0", "0"] if "Hint" in prompt.text else ["0"] * 4

    run = begun({"hints": "ghpo", "hint_shares": [1.0]}, script, judge={"failure_limit": 0.2})
    with pytest.raises(UserError, match="4 of 16 scores of step 1 failed"):
        step(run)


# -- the gold completion ------------------------------------------------------------------------------------------------


def test_the_gold_completion_is_trained_on_and_becomes_likelier():
    run = begun({"ground_truth": "when-failed", "learning_rate": 0.1}, {"p0": "0 0!! 0 0", "p1": EVERY}, off=(0.5, -0.5))
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    gold = rollouts[4]
    assert [r.is_demonstration for r in rollouts] == [n == 4 for n in range(9)] and gold.completion == "1!"
    assert gold.turns[0].token_ids == tuple(policy.encode_completion("1!"))
    advantages = [*standardised([0, 0, 0, 0, 1]), *standardised([1, 0, 0.5, 0])]
    loss = sum(-a * logprobs(policy, r).mean() for a, r in zip(advantages, rollouts, strict=True)) / 9
    assert same(weights(run.policy), before + 0.1 * (descended(policy, loss) - before), before)
    with torch.no_grad():
        assert logprobs(run.policy, gold).sum() > logprobs(policy, gold).sum() + 0.01
    assert found["logprob_gap"] == pytest.approx(0.5, rel=1e-4), "nobody sampled it, so it has no gap"
    assert found["reward/mean"] == pytest.approx(1.5 / 8), "what the policy itself earned"
    assert found["length/mean"] == pytest.approx(sum(r.length for r in rollouts if r is not gold) / 8)
    assert found["zero_std_share"] == 0.0, "the group taught something"


ALGORITHMS = [
    "grpo",
    "dr-grpo",
    "rloo",
    "dcpo",
    "awr",
    "filtered-cloning",
    "psr",
    "nsr",
    "reinforce++",
    "ppo",
    "gdpo",
    "lite-ppo",
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_beside_a_sampled_answer_that_is_as_good_it_counts_exactly_nothing(algorithm):
    run = begun({"ground_truth": "always", "algorithm": algorithm}, {"p0": "1 0!! 0.3 0.1", "p1": "0.7 0 0 0.2"})
    groups = sampled(run)
    credit = credit_of(run, groups)
    assert (credit.advantages[4] == 0).all(), "as good as the best: nothing, whatever the algorithm makes of a mean reward"
    if algorithm != "nsr":
        assert (credit.advantages[9] > 0).any(), "the best of its group"
    if algorithm == "grpo":
        expected = standardised([1, 0, 0.3, 0.1, 0.35])
        assert credit.advantages[:4].tolist() == pytest.approx(expected[:4], abs=1e-6), "the mean stays where it was"


@pytest.mark.parametrize(
    ("stage", "answers", "expected"),
    [
        ({}, ["1!", "0!", "1", "0"], [1, 0, 1, 0]),
        ({"overlong_buffer": 0.5}, ["1", "1!!!!!!", "1", "1!!"], [0, -1, 0, 0]),
        ({"labels": "majority"}, ["1", "0", "1", "1"], [1, 0, 1, 1]),
        ({"labels": "ttrv"}, ["1", "0", "1", "1"], [1, 0, 1, 1]),
        ({"length": {"min_tokens": 4, "max_tokens": 9, "bonus": 1.0}}, ["1", "1!!!!!", "1", "1"], [0, 1, 0, 0]),
    ],
)
def test_an_algorithm_that_takes_rewards_apart_sees_all_that_they_are_made_of(stage, answers, expected):
    """GDPO, with a single part that has spread, is that part standardised in its group."""
    run = begun({"algorithm": "gdpo", "settings": {"batch": False}, "prompts_per_step": 1, **stage}, lambda p: answers)
    groups = sampled(run)
    assert credit_of(run, groups).advantages.tolist() == pytest.approx(standardised(expected), rel=1e-3)


def test_an_algorithm_that_takes_rewards_apart_sees_what_a_smoke_run_pays():
    stage = {"algorithm": "gdpo", "settings": {"batch": False}, "prompts_per_step": 1}
    run = begun(stage, lambda p: ["1!"] * 4, name="x-smoke", smoke=True)  # the gold completion earns no more
    groups = sampled(run)
    assert groups.groups[0].rewards == [1, 2, 1, 2]
    assert credit_of(run, groups).advantages.tolist() == pytest.approx(standardised([0, 1, 0, 1]), rel=1e-3)


class Played(Numbers):
    """Its environment, which nobody asks here, pays for what the policy did."""

    def environment(self, prompt):
        raise NotImplementedError


def paying(run, rewards):
    """Of the completions of each prompt, in turn."""
    collect = run.collector.collect

    def paid(*given, **named):
        made = zip(collect(*given, **named), itertools.cycle(rewards))
        return [replace(r, turns=(replace(r.turns[0], reward=reward),)) for r, reward in made]

    run.collector.collect = paid


def test_an_algorithm_that_takes_rewards_apart_sees_what_an_environment_pays(monkeypatch):
    monkeypatch.setitem(globals(), "Numbers", Played)
    run = begun({"algorithm": "gdpo", "settings": {"batch": False}, "prompts_per_step": 1}, lambda p: ["1"] * 4)
    paying(run, [0.0, 0.5, 0.0, 0.0])
    groups = sampled(run)
    assert credit_of(run, groups).advantages.tolist() == pytest.approx(standardised([0, 1, 0, 0]), rel=1e-3)


def test_an_algorithm_that_takes_rewards_apart_leaves_out_what_doesnt_reward_the_gold_completion():
    """By `right` alone the gold completion is the one that stands out; `length` has spread among the others only."""
    tasks = [{"id": "a", "verifiers": {"right": 1.0, "length": 0.25}}]
    stage = {"algorithm": "gdpo", "settings": {"batch": False}, "ground_truth": "always", "ground_truth_without": ["length"]}
    run = begun({**stage, "prompts_per_step": 1}, lambda p: ["0!!", "0", "0", "0"], tasks=tasks)
    groups = sampled(run)
    right, length = standardised([0, 0, 0, 0, 1]), [*standardised([2, 0, 0, 0]), 0.0]
    assert [s.value for s in groups.scores] == [0.5, 0.0, 0.0, 0.0, 1.0]
    expected = [r + 0.25 * n for r, n in zip(right, length, strict=True)]
    assert credit_of(run, groups).advantages.tolist() == pytest.approx(expected, rel=1e-3)


# -- a baseline ---------------------------------------------------------------------------------------------------------


def test_the_greedy_baseline_is_sampled_with_each_tasks_own_limit():
    tasks = [{"id": "a", "max_tokens": 3, "verifiers": {"right": 1.0}}, {"id": "b", "verifiers": {"right": 1.0}, "group_size": 2}]
    asked = []

    def script(prompt):
        asked.append(prompt.task)
        return ["0.25" if prompt.task == "a" else "x", "1", "0", "0"]

    run = begun({"algorithm": "remax", "prompts_per_step": 6}, script, tasks=tasks, judge={"failure_limit": 1.0})
    groups = sampled(run)
    run.collector.calls.clear()
    found = run.steps.greedy(groups, run.at.moment)
    assert {g.prompt.task for g in groups.groups} == {"a", "b"}
    assert sorted((size, s.max_tokens, s.temperature) for _, size, s in run.collector.calls) == [(1, 3, 0.0), (1, 8, 0.0)]
    assert sum(n for n, _, _ in run.collector.calls) == 6
    for r, baseline in zip(groups.rollouts, found.tolist(), strict=True):
        assert math.isnan(baseline) if r.prompt.task == "b" else baseline == 0.25
    assert len(run.folder.errors) == sum(g.prompt.task == "b" for g in groups.groups), "what failed is written down"


def test_the_greedy_baseline_has_what_an_environment_pays_as_the_rewards_have():
    run = begun({"algorithm": "remax", "prompts_per_step": 1}, lambda p: ["0.25", "1", "0", "0"])
    paying(run, [0.5])
    assert credit_of(run, sampled(run)).advantages.tolist() == [0.0, 0.75, -0.25, -0.25]


# -- the KL penalty -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_the_penalty_in_the_loss_by_hand(name):
    """No group has spread, so the penalty is all that there is; every token counts the same."""
    stage = {"kl_coef": 0.5, "kl_estimator": name, "settings": {"normalise": "token"}}
    run = begun(stage, lambda p: ["1", "1!!", "1", "1"])
    reference = copy.deepcopy(run.policy)
    perturb(run.policy)
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    pairs = [(logprobs(policy, r), logprobs(reference, r).detach()) for r in rollouts]
    by_hand = {"k1": lambda d: d, "k2": lambda d: d**2 / 2, "k3": lambda d: torch.exp(-d) - 1 + d}
    each = torch.cat([by_hand[name](mine - theirs) for mine, theirs in pairs])
    assert same(weights(run.policy), descended(policy, 0.5 * each.mean()), before)
    assert found["loss"] == pytest.approx(0.5 * each.mean().item(), rel=1e-3)
    k3 = torch.cat([by_hand["k3"](mine - theirs) for mine, theirs in pairs]).mean().item()
    assert found["kl"] == pytest.approx(k3, rel=1e-3) and found["kl_coef"] == 0.5 and k3 > 0.01


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_the_penalty_in_the_reward_by_hand(name):
    stage = {"kl_coef": 0.5, "kl_in": "reward", "kl_estimator": name}
    run = begun(stage, MIXED)
    reference = copy.deepcopy(run.policy)
    perturb(run.policy)
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    step(run)
    rollouts = run.steps.sampler.last.rollouts
    with torch.no_grad():
        off = [ESTIMATES[name](logprobs(policy, r), logprobs(reference, r)).sum().item() for r in rollouts]
    rewards = [r - 0.5 * o for r, o in zip([1, 0, 0.5, 0, 0, 1, 0, 0], off, strict=True)]
    advantages = [*standardised(rewards[:4]), *standardised(rewards[4:])]
    assert max(abs(a - b) for a, b in zip(advantages[:4], standardised([1, 0, 0.5, 0]), strict=True)) > 0.05
    loss = sum(-a * logprobs(policy, r).mean() for a, r in zip(advantages, rollouts, strict=True)) / 8
    assert same(weights(run.policy), descended(policy, loss), before), "and nothing of it is in the loss"


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_at_the_first_step_the_reference_is_the_policy_exactly(lora, kl_in):
    run = begun({"kl_coef": 0.5, "kl_in": kl_in, "learning_rate": 0.3}, lambda p: EVERY.split(" "), lora=lora)
    assert (run.steps.learner.reference.copy is None) == (lora is not None)
    with_kl = step(run)
    assert with_kl["kl"] == 0.0
    plain = begun({"learning_rate": 0.3}, lambda p: EVERY.split(" "), lora=lora)
    step(plain)
    assert (weights(run.policy) - weights(plain.policy)).abs().max() < 1e-6, "a penalty of nothing pulls nowhere"
    assert step(run)["kl"] > 1e-7


def test_the_weight_follows_the_divergence():
    run = begun({"kl_coef": 0.2, "kl_target": 1e-4, "kl_horizon": 5.0, "learning_rate": 0.05}, lambda p: EVERY.split(" "))
    expected = 0.2
    for _ in range(4):
        found = step(run)
        assert found["kl_coef"] == pytest.approx(expected)
        expected *= 1 + min(max(found["kl"] / 1e-4 - 1, -0.2), 0.2) / 5.0
    assert run.at.memory == {"kl": pytest.approx(expected)} and expected > 0.2 * 0.96 * 1.04**2
    fixed = begun({"kl_coef": 0.2}, lambda p: EVERY.split(" "))
    assert [step(fixed)["kl_coef"] for _ in range(3)] == [0.2] * 3 and fixed.at.memory == {}


def test_the_reference_follows_every_so_many_steps():
    run = begun({"kl_coef": 0.1, "reference_every": 2, "learning_rate": 0.05}, lambda p: EVERY.split(" "))
    found = [step(run)["kl"] for _ in range(5)]
    assert found[0] == found[2] == found[4] == 0.0 and found[1] > 1e-6 and found[3] > 1e-6
    still = begun({"kl_coef": 0.1, "learning_rate": 0.05}, lambda p: EVERY.split(" "))
    assert [step(still)["kl"] > 1e-6 for _ in range(5)] == [False, True, True, True, True]


def test_the_optimiser_begins_anew_every_so_many_steps():
    """Adam's first step moves each weight by the learning rate, whatever its gradient; a later one doesn't."""
    adam = {"optimizer": "adam", "beta1": 0.9, "learning_rate": 1e-3, "optimizer_every": 2}
    run, sizes = begun(adam, lambda p: EVERY.split(" ")), []
    for _ in range(4):
        before = weights(run.policy)
        step(run)
        moved = (weights(run.policy) - before).abs()
        sizes.append(((moved[moved > 0] - 1e-3).abs() < 1e-5).float().mean().item())
    assert sizes[0] > 0.95 and sizes[2] > 0.95 and sizes[1] < 0.8 and sizes[3] < 0.8


def test_a_stage_has_a_limit_of_its_own_and_a_task_may_have_a_smaller_one():
    tasks = [{"id": "a", "verifiers": {"right": 1.0}}, {"id": "b", "verifiers": {"right": 1.0}, "max_tokens": 3}]
    stage = {"max_tokens": 5, "prompts_per_step": 12, "algorithm": "dr-grpo", "order": "shuffled"}
    run = begun(stage, lambda p: EVERY.split(" "), tasks=tasks)
    step(run)
    assert {s.max_tokens for _, _, s in run.collector.calls} == {3, 5} and run.steps.algorithm.constant == 5.0
    with pytest.raises(UserError, match=r"stages\.0\.max_tokens = 9 is above generate\.max_tokens = 8: raise the latter"):
        begun({"max_tokens": 9})


# -- imitation ----------------------------------------------------------------------------------------------------------


def gold_of(policy, ids):
    """Rollouts with the gold completion of these prompts."""
    collector = ConversationCollector(policy, None)
    prompts = [Prompt(id=i, task="a", messages=[user_message(i)]) for i in ids]
    return collector.demonstrate(prompts, collector.encode(prompts), ["1!"] * len(ids))


@pytest.mark.parametrize("uncertain", [False, True])
def test_mixed_is_one_loss_of_both(uncertain):
    """The first three prompts are imitated, the next two sampled."""
    imitation = {"start_weight": 0.75, "end_weight": 0.25, "decay_steps": 4, "batch_size": 3, "uncertainty_weighting": uncertain}
    run = begun({"imitation": imitation}, lambda p: EVERY.split(" "), temperature=0.7)
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    assert [r.prompt.id for r in rollouts] == ["p3"] * 4 + ["p4"] * 4
    advantages = 2 * standardised([1, 0, 0.5, 0])
    learned = sum(-a * logprobs(policy, r, 0.7).mean() for a, r in zip(advantages, rollouts, strict=True)) / 8
    each = torch.cat([logprobs(policy, g, 1.0) for g in gold_of(policy, ["p0", "p1", "p2"])])
    p = each.detach().exp()
    imitated = (-each * (p * (1 - p) if uncertain else 1.0)).mean()
    assert same(weights(run.policy), descended(policy, 0.25 * learned + 0.75 * imitated), before)
    assert found["imitation/weight"] == 0.75 and found["imitation/loss"] == pytest.approx(0.75 * imitated.item(), rel=1e-4)


def test_the_weight_of_imitation_goes_from_start_to_end_and_stays():
    imitation = {"start_weight": 0.9, "end_weight": 0.1, "decay_steps": 4, "batch_size": 1}
    run = begun({"imitation": imitation, "learning_rate": 1e-3}, lambda p: EVERY.split(" "))
    assert [step(run)["imitation/weight"] for _ in range(6)] == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1])


def test_a_weight_of_one_samples_nothing_and_a_weight_of_none_imitates_nothing():
    imitation = {"start_weight": 1.0, "end_weight": 0.0, "decay_steps": 1, "batch_size": 2}
    run = begun({"imitation": imitation}, lambda p: EVERY.split(" "))
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    first = step(run)
    assert "reward/mean" not in first and run.collector.calls == [] and run.steps.source.draws == 2
    each = torch.cat([logprobs(policy, g) for g in gold_of(policy, ["p0", "p1"])])
    assert same(weights(run.policy), descended(policy, -each.mean()), before)
    second = step(run)
    assert "imitation/weight" not in second and second["reward/mean"] == 0.375 and run.steps.source.draws == 4


def sasr(gamma=1.0, steps=12):
    """Which steps were supervised, and the metrics."""
    stage = {"imitation": {"rule": "sasr", "gamma": gamma, "batch_size": 2}, "steps": steps, "learning_rate": 0.02}
    run = begun(stage, lambda p: EVERY.split(" "))
    found = [step(run) for _ in range(steps)]
    return ["imitation/loss" in f for f in found], found, run


def test_sasr_takes_a_supervised_step_by_the_chance_of_its_gradient_norms():
    supervised, found, run = sasr()
    assert supervised[0], "the first is, so that there is a norm to compare with"
    first = last = None
    for n, (was, metrics) in enumerate(zip(supervised, found, strict=True)):
        chance = 1.0 if first is None else last / (last + first)
        assert was == (random.Random(derive(0, "sasr", n)).random() < chance)
        assert ("reward/mean" in metrics) != was, "one or the other"
        if was:
            assert metrics["imitation/weight"] == 1.0
            first, last = first or metrics["grad_norm"], metrics["grad_norm"]
    assert run.at.memory == {"sasr_first": first, "sasr_last": last} and last < first
    assert 2 < sum(supervised) < 10


def test_hpt_imitates_the_prompts_that_fail_and_reinforces_the_others():
    """Each prompt counts the same: two of three are learned from their answers, the third from its gold completion."""
    script = {"p0": EVERY, "p1": "0 0! 0 0!!", "p2": "0 1! 0 0"}
    run = begun({"imitation": {"rule": "hpt"}, "prompts_per_step": 3}, script, temperature=0.7)
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    advantages = [*standardised([1, 0, 0.5, 0]), *standardised([0, 1, 0, 0])]
    pairs = zip(advantages, rollouts[:4] + rollouts[8:], strict=True)
    learned = sum(-a * logprobs(policy, r, 0.7).mean() for a, r in pairs) / 8
    imitated = -torch.cat([logprobs(policy, g, 1.0) for g in gold_of(policy, ["p1"])]).mean()
    assert same(weights(run.policy), descended(policy, 2 / 3 * learned + 1 / 3 * imitated), before)
    assert found["imitation/weight"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("up_to", "weight"), [(0.0, None), (0.25, 0.5), (0.5, 1.0)])
def test_hpts_gate_is_a_share_of_successes(up_to, weight):
    run = begun({"imitation": {"rule": "hpt", "up_to": up_to}}, {"p0": "1 1! 0 0", "p1": "0 1! 0 0"})
    before = weights(run.policy)
    found = step(run)
    assert found.get("imitation/weight") == weight and not torch.equal(weights(run.policy), before)


def test_relift_imitates_what_was_too_hard_as_soon_as_there_is_enough_of_it():
    """p1 fails in the first step, p2 and p3 in the second; the two that came first are imitated, after the step's own update."""
    script = {"p0": EVERY, "p1": "0 0! 0 0", "p2": "0 0! 0 0", "p3": "0 0 0 0"}
    run = begun({"imitation": {"rule": "relift", "batch_size": 2}}, {**script, "p4": EVERY, "p5": EVERY})
    first = step(run)
    assert "imitation/loss" not in first and run.at.memory == {"relift/1/a": 1.0}
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    second = step(run)
    assert second["zero_std_share"] == 1.0, "this step's own answers teach nothing, so only the imitation is seen"
    imitated = -torch.cat([logprobs(policy, g, 1.0) for g in gold_of(policy, ["p1", "p2"])]).mean()
    assert same(weights(run.policy), descended(policy, imitated), before)
    assert second["imitation/loss"] == pytest.approx(imitated.item(), rel=1e-4) and run.at.memory == {"relift/3/a": 3.0}
    assert "imitation/loss" not in step(run) and run.at.memory == {"relift/3/a": 3.0}


def test_relift_sees_failed_prompts_that_a_filter_leaves_out():
    settings = {"imitation": {"rule": "relift", "batch_size": 3}, "min_success_rate": 0.5}
    run = begun(settings, {"p0": EVERY, "p1": "0 0! 0 0", "p2": EVERY, "p3": EVERY})
    step(run)
    assert run.at.memory == {"relift/1/a": 1.0}


def test_a_second_update_that_is_interrupted_leaves_the_step_half_done(monkeypatch):
    """The first has moved the weights already, so they belong to no step, and the optimiser forgets once."""
    run = begun({"imitation": {"rule": "relift", "batch_size": 1}}, {"p0": EVERY, "p1": "0 0! 0 0"})
    update = run.steps.learner.update

    def interrupted(batches, *rest, **options):
        if not batches:
            raise KeyboardInterrupt
        return update(batches, *rest, **options)

    monkeypatch.setattr(run.steps.learner, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step(run)
    assert not run.consistent


@pytest.mark.parametrize(("target", "temperature"), [(1e-3, 0.5), (100.0, 1.5)])
def test_aepo_imitates_its_own_right_answers_at_a_temperature_that_moves_the_entropy(target, temperature):
    """Of the first of two prompts; a first step has measured nothing yet. The second step's own answers teach nothing."""
    rule = {"target": target, "low": 0.5, "high": 1.5, "weight": 0.25, "prompts": 0.5}
    run = begun({"entropy_control": rule}, {**MIXED, "p2": "1 1! 1 1!!", "p3": "0 0 0 0"})
    first = step(run)
    assert "imitation/loss" not in first and run.at.memory == {"entropy": first["entropy"]} and len(run.collector.calls) == 1
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    second = step(run)
    again, size, at = run.collector.calls[2]
    assert (again, size, at.temperature) == (1, 4, temperature)
    gold = [run.collector.one(r.prompt, r.inputs, r.turns[0].text, 0, 1.0, 0.0) for r in run.steps.sampler.last.rollouts[:4]]
    imitated = -torch.cat([logprobs(policy, g) for g in gold]).mean()
    assert same(weights(run.policy), descended(policy, 0.25 * imitated), before)
    assert second["imitation/weight"] == 0.25 and second["imitation/loss"] == pytest.approx(0.25 * imitated.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("target", "weights", "kept"),
    [(100.0, [0.0, 0.02 + 0.03, 0.02 + 0.06, 0.1], 0.1), (1e-3, [0.0] * 4, 0.0)],
    ids=["below the target", "above it"],
)
def test_the_entropy_bonus_grows_while_the_entropy_is_below_its_target(target, weights, kept):
    """The first step has measured nothing yet, and the weight is at most 0.1. Above the target it shrinks unused."""
    rule = {"target": target, "delta": 0.03, "most": 0.1}
    run = begun({"entropy_coef": 0.02, "adaptive_entropy": rule, "learning_rate": 1e-9}, {f"p{n}": "1 0 1 0" for n in range(12)})
    found = [step(run) for _ in range(4)]
    assert [f["entropy_coef"] for f in found] == pytest.approx(weights)
    assert run.steps.learner.penalties.entropy_coef == pytest.approx(weights[-1])
    assert run.at.memory == {"entropy_coef": pytest.approx(kept), "entropy": found[-1]["entropy"]}


def test_aepo_imitates_nothing_where_no_answer_is_right():
    run = begun({"entropy_control": {}}, lambda p: ["0", "0!", "0.4", "0"])
    step(run)
    assert "imitation/loss" not in step(run)


def test_verifiers_that_have_converged_weigh_less_from_the_step_that_fills_two_windows():
    """`right` is solved in the newest two steps, and `length` stays at half of its range."""
    values = ["0!!"] * 2 + ["1!!"] * 4  # 12 prompts, easy first: each step has the next two
    tasks = [{"id": "a", "verifiers": {"right": 1.0, "length": 0.25}}]
    run = begun({"reweight": {"window": 2, "temperature": 1.0}}, lambda p: [values[int(p.id[1:]) // 2]] * 4, tasks=tasks)
    run.setup.verifiers.update({n: VerifierSpec(id=n, target="", high=high) for n, high in (("right", 1.0), ("length", 4.0))})
    found = [step(run) for _ in range(6)]
    assert all(f["task/a/weight/right"] == f["task/a/weight/length"] == 1.0 for f in found[:4])
    right, length = (2 * math.exp(x) / (math.exp(0) + math.exp(1)) for x in (0, 1))
    assert (found[4]["task/a/weight/right"], found[4]["task/a/weight/length"]) == pytest.approx((right, length))
    assert found[4]["reward/mean"] == pytest.approx(right * 1.0 * 1 + length * 0.25 * 2)
    assert len(run.at.memory) == 8 and all(key.startswith("objective/") for key in run.at.memory)


def test_a_curriculum_begins_with_the_largest_angles_and_moves_by_those_of_each_step():
    run = begun({"order": "shuffled", "curriculum": {"width": 1e-3, "step": 2.0}}, lambda p: ["1", "1", "1", "0"])
    before = [question_angles(run.policy, run.steps.source["a", i]) for i in range(12)]
    order = sorted(range(12), key=lambda i: -before[i])
    found = step(run)
    assert [g.place[1] for g in run.steps.sampler.last.groups] == order[:2]
    assert found["task/a/curriculum"] == 0.0
    angles = [prompt_angles(run.policy, run.steps.source["a", i]) for i in order[:2]]
    second = step(run)
    centre = 2.0 * (math.tanh(2 * (0.75 - 0.5)) + math.tanh(2 * sum(angles) / 2))
    assert second["task/a/curriculum"] == pytest.approx(centre, rel=1e-4) and centre > 0.5
    assert run.steps.sampler.last.groups[0].place[1] == order[round(centre)]
    assert run.steps.source.curriculum.orders == {"a": order}  # by the weights at the beginning of the stage


def test_a_run_that_samples_ahead_saves_what_came_of_the_steps_so_far():
    """Also where it is stopped while later steps are sampled, whose prompts it draws again."""
    stage = {"algorithm": "dcpo", "importance_sampling": "truncate", "replay_share": 0.5, "success_threshold": 2.0}
    run = begun(stage, lambda p: ["1", "0", "0", "1"], compute={"staleness": 1})
    for number in (1, 2):
        step(run)
        assert run.steps.sampler.jobs and run.at.source["draws"] == 2 * number
        shown = [[label, index] for label, index, *_ in run.at.source["past"]]
        assert len(shown) == 2 * number and [row[:2] for row in run.at.source["failed"]] == shown
    run.steps.close()


def test_a_prompt_that_can_not_be_shown_comes_last_in_a_curriculum(monkeypatch):
    def angles(policy, prompt):
        if prompt.id == "p3":
            raise UserError("its picture is gone")
        return -1.0 if prompt.id == "p5" else 0.5

    monkeypatch.setattr("mmrl.train.sampling.angles.question_angles", angles)
    run = begun({"order": "shuffled", "curriculum": {}})
    order_prompts(run, run.steps.source)
    assert run.steps.source.curriculum.orders["a"][-2:] == [5, 3]
    monkeypatch.setattr("mmrl.train.sampling.angles.prompt_angles", angles)
    measure_step(run, run.steps.source, [("a", 3), ("a", 4)])
    assert run.steps.source.curriculum.angles == {("a", 4): 0.5}


@pytest.mark.timeout(20)
def test_a_prompt_that_can_not_be_shown_is_not_all_that_an_epoch_filter_leaves(monkeypatch):
    """All others are too easy from their first epoch on."""
    run = begun({"order": "shuffled", "prompts_per_step": 5, "epoch_filter": {"up_to": 0.7}}, lambda p: ["1", "1!", "1", "1"])
    encode = run.collector.encode

    def encoded(prompts):
        if prompts[0].id == "p3":
            raise UserError("torn")
        return encode(prompts)

    run.collector.encode = encoded
    shown = []
    for _ in range(9):
        step(run)
        shown += [g.place[1] for g in run.steps.sampler.last.groups]
    assert len(run.folder.errors) == 1 and len(shown) == 45 and {*shown} == {*range(12)} - {3}


def test_sasrs_gamma_weighs_the_first_norm():
    rare, _, _ = sasr(gamma=1e6, steps=4)
    often, _, _ = sasr(gamma=1e-6, steps=4)
    assert rare == [True, False, False, False] and often == [True] * 4


# -- told whether it was good -------------------------------------------------------------------------------------------


def test_recap_imitates_everything_under_what_it_deserved():
    """The two best of eight by advantage are good; one failed and is out; each completion counts the same."""
    stage = {"condition": {"positive": "good", "negative": "bad", "top": 0.3, "drop": 0.0}}
    run = begun(stage, {"p0": "1 0!! 0.5 x", "p1": "0 1! 0 0.25"})
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    assert {r.prompt.text for r in rollouts} == {"p0\n\ngood", "p1\n\ngood"}, "what is sampled, is as if it were good"
    assert run.evaluator.shown(Prompt(messages=[user_message("q")])).text == "q\n\ngood"
    loss = 0.0
    for r, label in zip(rollouts, ("good", "bad", "bad", None, "bad", "good", "bad", "bad"), strict=True):
        if label:
            shown = replace(r, prompt=Prompt(messages=[user_message(r.prompt.id), {"role": "user", "content": ""}][:1]))
            shown = replace(shown, prompt=replace(shown.prompt, messages=[two_parts(r.prompt.id, label)]))
            loss = loss - logprobs(policy, shown).mean() / 7
    assert same(weights(run.policy), descended(policy, loss), before)
    assert found["logprob_gap"] < 1e-6, "of those that are trained as they were sampled"
    assert found["clip_share"] == 0.0


def two_parts(text, more):
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": f"\n{more}"}]}


# -- mini-batches and passes --------------------------------------------------------------------------------------------


def test_minibatches_are_whole_groups_and_compare_with_the_weights_before_the_first():
    script = {f"p{i}": answers for i, answers in enumerate(("1 0!! 0.5 0", "0 1! 0 0", "0 0 1 1!", "0.5 0 0 0!"))}
    stage = {"prompts_per_step": 4, "minibatches": 2, "epochs": 2, "learning_rate": 0.3}
    run = begun(stage, script)
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    start = copy.deepcopy(policy)
    found = step(run)
    assert run.steps.learner.optimizer.steps == 4
    rollouts = run.steps.sampler.last.rollouts
    rewards = [[1, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0.5, 0, 0, 0]]
    advantages = [a for r in rewards for a in standardised(r)]
    losses, ratios = [], []
    for _ in range(2):
        for groups in ((0, 2), (1, 3)):
            loss = 0.0
            for a, r in zip(advantages, rollouts, strict=True):
                if r.group in groups:
                    ratio = (logprobs(policy, r) - logprobs(start, r).detach()).exp()
                    ratios.append((len(losses), (ratio - 1).abs().max().item()))
                    loss = loss - torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean() / 8
            losses.append(loss.item())
            moved, at = descended(policy, loss) - weights(policy), 0
            with torch.no_grad():
                for _, p in policy.parameters():
                    p.add_(0.3 * moved[at : at + p.numel()].view_as(p))
                    at += p.numel()
    assert max(size for n, size in ratios if n == 0) == 0 and max(size for n, size in ratios if n == 1) > 1e-3
    assert same(weights(run.policy), weights(policy), before)
    assert found["loss"] == pytest.approx((losses[2] + losses[3]) / 2, abs=1e-5), "the mean over the last pass"
    assert found["logprob_gap"] < 1e-6, "measured before the first"


@pytest.mark.parametrize(("minibatches", "epochs", "groups", "taken"), [(3, 1, 3, 3), (1, 3, 3, 3), (3, 2, 3, 6), (3, 1, 2, 2)])
def test_every_minibatch_of_every_pass_is_a_step(minibatches, epochs, groups, taken):
    stage = {"prompts_per_step": 3, "minibatches": minibatches, "epochs": epochs, "max_success_rate": 0.5, "learning_rate": 0.01}
    run = begun(stage, {f"p{i}": EVERY if i < groups else "1 1 1 1" for i in range(3)})
    step(run)
    assert run.steps.learner.optimizer.steps == taken


def test_a_minibatch_has_the_same_rollouts_whatever_the_credit_looks_like():
    for algorithm in ("grpo", "ppo"):
        run = begun({"prompts_per_step": 3, "minibatches": 2, "algorithm": algorithm}, lambda p: EVERY.split(" "))
        groups = sampled(run)
        batches = batches_of(run, groups)
        assert [sorted({int(n) for m in b.micro for n in m.rollout_L}) for b in batches] == [
            [0, 1, 2, 3, 8, 9, 10, 11],
            [4, 5, 6, 7],
        ]
        assert [b.num_rollouts for b in batches] == [8, 4]
        assert all((m.values_L is not None) == (algorithm == "ppo") for b in batches for m in b.micro)


def test_minibatches_of_relabelled_rollouts_are_those_of_the_groups_that_were_sampled():
    condition = {"positive": "good", "negative": "bad", "top": 0.5, "drop": 0.5}
    run = begun({"prompts_per_step": 3, "minibatches": 2, "condition": condition}, lambda p: EVERY.split(" "))
    groups = sampled(run)
    batches = batches_of(run, groups)
    assert [sorted({int(n) for m in b.micro for n in m.rollout_L}) for b in batches] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7]]
    assert all((m.advantages_L == 1).all() for b in batches for m in b.micro)


@pytest.mark.parametrize(("kind", "expected"), [("off", (1, 1, 1)), ("truncate", (1.5, 2.0, 0.5)), ("mask", (1.5, 0.0, 0.5))])
def test_weights_of_importance_by_hand(kind, expected):
    """The sampler is off by these factors: 1.5, 3 and a half. A weight of 2 is the most."""
    off = tuple(-math.log(f) for f in (1.5, 3.0, 0.5))
    run = begun(
        {"importance_sampling": kind, "group_size": 3, "importance_sampling_cap": 2.0},
        {"p0": "1 0!! 0.25", "p1": "0 1! 0"},
        off=off,
    )
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    found = step(run)
    rollouts = run.steps.sampler.last.rollouts
    advantages = [*standardised([1, 0, 0.25]), *standardised([0, 1, 0])]
    loss = sum(-w * a * logprobs(policy, r).mean() for w, a, r in zip(2 * expected, advantages, rollouts, strict=True)) / 6
    assert same(weights(run.policy), descended(policy, loss), before)
    tokens = [r.length for r in rollouts]
    gap = sum(n * abs(o) for n, o in zip(tokens, 2 * off, strict=True)) / sum(tokens)
    assert found["logprob_gap"] == pytest.approx(gap, rel=1e-3)


def test_a_step_of_kdrl_is_what_it_is_by_hand():
    """GRPO's loss, and beside it k2, (log p - log q)^2 / 2 of each token with the teacher's q, of incorrect answers alone."""
    teacher = teacher_of(0.02)
    settings = {"teacher_weight": 0.5, "last_teacher_weight": 0.5, "masking": "response"}
    run = begun({"algorithm": "kdrl", "teacher": "x", "settings": settings}, lambda p: EVERY.split(" "), teacher=teacher)
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    step(run)
    rollouts, each = run.steps.sampler.last.rollouts, []
    for a, r, wrong in zip(2 * standardised([1, 0, 0.5, 0]), rollouts, 2 * (0, 1, 0, 1), strict=True):
        mine, theirs = logprobs(policy, r), logprobs(teacher, r).detach()
        each.append(-a * mine + 0.5 * wrong * (mine - theirs) ** 2 / 2)
    assert same(weights(run.policy), descended(policy, torch.cat(each).mean()), before)


def test_two_updates_of_rover_are_what_they_are_by_hand():
    """The second mini-batch has values: of each token its log-ratio, and of what may follow the mean over the vocabulary."""
    run = begun({"algorithm": "rover", "minibatches": 2, "learning_rate": 0.05}, MIXED)
    first, policy = copy.deepcopy(run.policy), copy.deepcopy(run.policy)
    step(run)
    rollouts = run.steps.sampler.last.rollouts

    def loss(now, members, rewards):
        each = []
        for r, reward in zip(members, rewards, strict=True):
            q = logprobs(now, r) - logprobs(first, r).detach()
            with torch.no_grad():
                following = (distributions(now, r) - distributions(first, r)).mean(-1)
            target = reward - sum(rewards) / len(rewards) + torch.cat([following[1:], torch.zeros(1)])
            each.append((q - target.detach()) ** 2)
        return torch.cat(each).mean()

    for members, rewards in ((rollouts[:4], (1, 0, 0.5, 0)), (rollouts[4:], (0, 1, 0, 0))):
        before = weights(policy)
        moved = before + 0.05 * (descended(policy, loss(policy, members, rewards)) - before)
        with torch.no_grad():
            at = 0
            for _, p in policy.parameters():
                p.copy_(moved[at : at + p.numel()].view_as(p))
                at += p.numel()
    assert same(weights(run.policy), weights(policy), weights(first))


@pytest.mark.parametrize("train", [{}, {"packing": "per-completion", "micro_batch_tokens": 1}])
def test_two_epochs_of_pacs_are_what_they_are_by_hand(train):
    """By autograd of the whole group's loss. The second update has scores, whose gradient reaches the baselines of the others,
    also where each rollout has a pass of its own."""
    stage = {"algorithm": "pacs", "epochs": 2, "learning_rate": 0.05, "settings": {"beta": 3.0}}
    run = begun(stage, MIXED, train=train)
    first, policy = copy.deepcopy(run.policy), copy.deepcopy(run.policy)
    step(run)
    rollouts, rewards = run.steps.sampler.last.rollouts, (1, 0, 0.5, 0, 0, 1, 0, 0)
    labels = torch.tensor([float(reward >= 0.5) for reward in rewards])
    weights_N = torch.tensor([1.0] * 4 + [2 / 3, 2.0, 2 / 3, 2 / 3])

    def loss(now):
        scores = torch.stack([3.0 * (logprobs(now, r) - logprobs(first, r).detach()).sum() for r in rollouts]).view(2, 4)
        logits = (scores - (scores.sum(1, keepdim=True) - scores) / 3).flatten()
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, weight=weights_N)

    for _ in range(2):
        before = weights(policy)
        moved = before + 0.05 * (descended(policy, loss(policy)) - before)
        with torch.no_grad():
            at = 0
            for _, p in policy.parameters():
                p.copy_(moved[at : at + p.numel()].view_as(p))
                at += p.numel()
    assert same(weights(run.policy), weights(policy), weights(first))


def test_a_step_of_d3s_trains_on_the_tokens_that_it_chose():
    settings = {"first_rollouts": 0.25, "first_tokens": 0.5}
    run = begun({"algorithm": "d3s", "settings": settings}, lambda p: EVERY.split(" "))
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    step(run)
    rollouts = run.steps.sampler.last.rollouts
    advantages = 2 * standardised([1, 0, 0.5, 0])
    chosen = [1, 4]  # the first of the worst and the last of the best: no two of the eight are further apart
    tokens = []
    for n in chosen:
        entropy = -(p := distributions(policy, rollouts[n])).exp().mul(p).sum(-1)
        tokens += [
            (abs(advantages[n]) * h.item(), advantages[n], x) for h, x in zip(entropy, logprobs(policy, rollouts[n]), strict=True)
        ]
    kept = sorted(tokens, key=lambda token: -token[0])[: math.ceil(len(tokens) / 2)]
    loss = sum(-a * x for _, a, x in kept) / len(kept)
    assert same(weights(run.policy), descended(policy, loss), before)


# -- distillation -------------------------------------------------------------------------------------------------------

DISTILL = {"kind": "distill", "teacher": MODEL, "prompts_per_step": 2, "group_size": 2}
ANSWERS = {"p0": "1 0!!", "p1": "0! 1"}


def teacher_of(size):
    teacher = VLM(PolicyConfig(model=MODEL))
    perturb(teacher, size)
    return teacher


def distributions(vlm, rollout, temperature=1.0):
    """[T, V] log-probabilities at each token, by transformers' own forward; banned ids left out."""
    shown = [{"role": m["role"], "content": list(m["content"])} for m in rollout.prompt.messages]
    options = dict(tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True)
    prompt = vlm.processor.apply_chat_template(shown, **options)["input_ids"]
    ids = torch.cat([prompt, torch.tensor([rollout.turns[0].token_ids])], 1)
    vlm.model.rope_deltas = None
    logits = vlm.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, prompt.shape[1] - 1 : -1]
    allowed = [i for i in range(logits.shape[1]) if i not in vlm.banned]
    return (logits[:, allowed] / temperature).log_softmax(-1)


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_divergence_over_the_vocabulary_by_hand(divergence, temperature):
    teacher = teacher_of(0.02)
    run = begun({**DISTILL, "divergence": divergence}, ANSWERS, teacher=teacher, temperature=temperature)
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    found = step(run)
    each = []
    for prompt in ("p0", "p1"):
        for text in ANSWERS[prompt].split(" "):
            ids = tuple(policy.encode_completion(text))
            turn = Turn(observed_ids=(), token_ids=ids, logprobs=(), text=text)
            r = Conversation(prompt=Prompt(messages=[user_message(prompt)]), group=0, turns=(turn,), status=Status.FINISHED)
            p, q = distributions(policy, r, temperature), distributions(teacher, r, temperature).detach()
            each.append((p.exp() * (p - q)).sum(-1) if divergence == "reverse" else (q.exp() * (q - p)).sum(-1))
    mean = torch.cat(each).mean()
    assert found["divergence"] == pytest.approx(mean.item(), rel=1e-3) and mean > 0.01
    assert same(weights(run.policy), descended(policy, mean), before)
    assert run.collector.calls[0][:2] == (2, 2) and "length/mean" in found


@pytest.mark.parametrize("divergence", ["reverse", "forward", "sampled"])
def test_a_teacher_that_is_the_student_teaches_nothing(divergence):
    run = begun({**DISTILL, "divergence": divergence}, ANSWERS, teacher=VLM(PolicyConfig(model=MODEL)))
    before = weights(run.policy)
    found = step(run)
    assert found["divergence"] == 0.0 and found["grad_norm"] < 1e-7
    assert (weights(run.policy) - before).abs().max() < 1e-7


def test_over_all_answers_the_sampled_divergence_has_the_gradient_of_the_reverse():
    """Every token of the vocabulary as a completion of its own, weighed by its probability."""
    teacher = teacher_of(0.02)
    run = begun({**DISTILL, "divergence": "sampled"}, teacher=teacher)
    learner, policy, before = run.steps.learner, copy.deepcopy(run.policy), weights(run.policy)
    prompt = Prompt(id="p0", messages=[user_message("p0")])
    inputs = run.policy.encode(prompt)
    allowed = [i for i in range(len(policy.bias_V)) if i not in policy.banned]
    rollouts = [
        Conversation(
            prompt=prompt,
            group=0,
            turns=(Turn(observed_ids=tuple(inputs.ids.tolist()), token_ids=(i,), logprobs=(math.nan,), text=""),),
            status=Status.FINISHED,
            inputs=inputs,
        )
        for i in allowed
    ]
    taught = run.steps.measure(rollouts, frozenset({"logprobs", "teacher"}))
    p, q = distributions(policy, rollouts[0])[0], distributions(teacher, rollouts[0])[0].detach()
    assert (taught["logprobs"][:, 0] - p).abs().max() < 1e-5 and (taught["teacher"][:, 0] - q).abs().max() < 1e-5
    advantages = load_algorithm("opd", {}).advantage(taught["teacher"], taught["logprobs"], torch.ones(len(allowed), 1).bool())
    weighed = Credit(advantages=advantages * p.detach().exp()[:, None] * len(allowed))
    learner.update(run.steps.pack(rollouts, weighed), 0)
    assert same(weights(run.policy), descended(policy, (p.exp() * (p - q)).sum()), before)


def test_the_sampled_divergence_by_hand():
    teacher = teacher_of(0.02)
    run = begun({**DISTILL, "divergence": "sampled", "group_size": 1}, ANSWERS, teacher=teacher)
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    rollouts = run.collector.collect(*prompts_of(policy), 1, run.sampling("", 0))
    found = step(run)
    pairs = [(logprobs(policy, r), logprobs(teacher, r).detach()) for r in rollouts]
    mine, theirs = (torch.cat(p) for p in zip(*pairs, strict=True))
    assert same(weights(run.policy), descended(policy, -((theirs - mine).detach() * mine).mean()), before)
    assert found["divergence"] == pytest.approx((mine - theirs).mean().item(), rel=1e-3)


def prompts_of(policy):
    prompts = [Prompt(id=i, task="a", messages=[user_message(i)]) for i in ("p0", "p1")]
    return prompts, [policy.encode(p) for p in prompts]


def test_hard_distillation_imitates_what_the_teacher_says():
    teacher = teacher_of(0.5)
    run = begun({**DISTILL, "divergence": "hard"}, teacher=teacher)
    assert run.steps.collector.policy is teacher and run.steps.collector.generator.policy is teacher
    answered = []
    collect = run.steps.collector.collect
    run.steps.collector.collect = lambda *a, **k: answered.append(collect(*a, **k)) or answered[-1]
    policy, before = copy.deepcopy(run.policy), weights(run.policy)
    found = step(run)
    rollouts = answered[0]
    with torch.no_grad():
        for r in rollouts:
            assert (logprobs(teacher, r) - torch.tensor(r.turns[0].logprobs)).abs().max() < 1e-4, "the teacher's own samples"
    mean = -torch.cat([logprobs(policy, r) for r in rollouts]).mean()
    assert same(weights(run.policy), descended(policy, mean), before) and found["loss"] == pytest.approx(mean.item(), rel=1e-4)


def test_distillation_heeds_what_tasks_say_of_their_completions():
    tasks = [{"id": "a", "max_tokens": 3, "verifiers": {"right": 1.0}}, {"id": "b", "verifiers": {"right": 1.0}, "group_size": 3}]
    run = begun({**DISTILL, "prompts_per_step": 6}, lambda p: [p.task] * 4, tasks=tasks, teacher=teacher_of(0.02))
    rollouts = []
    pack = run.steps.pack
    run.steps.pack = lambda found, *a, **k: rollouts.extend(found) or pack(found, *a, **k)
    step(run)
    assert sorted((size, s.max_tokens) for _, size, s in run.collector.calls) == [(2, 3), (3, 8)]
    groups = {r.group: (r.prompt.task, r.prompt.id) for r in rollouts}
    assert len(groups) == 6, "rollouts of different prompts are never packed behind one of them"
    assert all(groups[r.group] == (r.prompt.task, r.prompt.id) for r in rollouts)
    assert len(rollouts) == sum(2 if task == "a" else 3 for task, _ in groups.values())


# -- critics of turns ---------------------------------------------------------------------------------------------------

TURN_CRITIC = {"updates": 3, "batch_size": 8, "hidden": [8], "learning_rate": 0.1}


def turn_states(policy, rollout):
    """The states before and after the only answer, by hand."""
    states, (places,) = cases.naive_states(policy, rollout)
    return states[places[0]][None], states[-1][None]


def test_a_step_of_archer_is_what_it_is_by_hand():
    """The critics learn from the step's answers first; an answer is worth what they say, and they read the first policy."""
    run = begun({"algorithm": "archer", "turn_critic": TURN_CRITIC}, {**MIXED, "p2": "1 x 0 0.5", "p3": EVERY})
    first = copy.deepcopy(run.policy)
    for number, counted in enumerate((8, 15)):
        before, policy = weights(run.policy), copy.deepcopy(run.policy)
        found = step(run)
        rollouts, scores = run.steps.sampler.last.rollouts, run.steps.sampler.last.scores
        critics, total, loss = run.steps.critics, 0, 0.0
        for rollout, score in zip(rollouts, scores, strict=True):
            if score.value is not None:
                seen, said = turn_states(first, rollout)
                answers = critics.modules["answers"](seen, said).amin(0)
                worth = (answers - critics.modules["states"](seen, seen[:, :0]).amin(0)).item()
                loss, total = loss - worth * logprobs(policy, rollout).sum(), total + rollout.length
        assert same(weights(run.policy), descended(policy, loss / total, before), before), number
        assert found["turn_critic/remembered"] == counted, "one score of the second step failed"
    assert found["turn_critic/value_error"] > 0 and found["value_loss"] > 0


def test_only_the_critics_learn_while_they_warm_up():
    run = begun({"algorithm": "archer", "turn_critic": TURN_CRITIC | {"warmup_steps": 1}}, lambda p: EVERY.split(" "))
    before = weights(run.policy)
    found = step(run)
    assert torch.equal(weights(run.policy), before) and found["value_loss"] > 0 and "grad_norm" not in found
    assert "grad_norm" in step(run) and not torch.equal(weights(run.policy), before)


def test_ppo_takes_its_values_from_a_turn_critic():
    run = begun({"algorithm": "ppo", "credit": "turn", "turn_critic": TURN_CRITIC, "settings": {"whiten": False}}, MIXED)
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    step(run)
    rollouts, loss, total = run.steps.sampler.last.rollouts, 0.0, 0
    for rollout, reward in zip(rollouts, (1, 0, 0.5, 0, 0, 1, 0, 0), strict=True):
        seen, _ = turn_states(policy, rollout)
        worth = reward - run.steps.critics.values(seen).item()
        loss, total = loss - worth * logprobs(policy, rollout).sum(), total + rollout.length
    assert same(weights(run.policy), descended(policy, loss / total, before), before)


def test_digirl_imitates_remembered_episodes_that_the_prompt_did_not_promise():
    """The second step replays of both steps' answers; what is imitated are the right ones that came as a surprise."""
    keys = {"algorithm": "digirl", "turn_critic": TURN_CRITIC | {"rule": "success", "replay": 3, "top": 0.125}}
    run = begun(keys, {**MIXED, "p2": "0 0 0 1", "p3": "0 0 0 0"})
    first = copy.deepcopy(run.policy)
    step(run)
    earlier = run.steps.sampler.last
    before, policy = weights(run.policy), copy.deepcopy(run.policy)
    found = step(run)
    critics = run.steps.critics
    every = [*zip(earlier.rollouts, earlier.scores, strict=True)]
    every += zip(run.steps.sampler.last.rollouts, run.steps.sampler.last.scores, strict=True)
    above = torch.stack([torch.tensor(s.value) - critics.chances(turn_states(first, r)[0])[0] for r, s in every])
    chosen = (above >= above.double().quantile(0.875)).nonzero()[:, 0].tolist()
    drawn = random.Random(derive(critics.seed, "replay", 1)).sample(chosen, 2)
    assert found["turn_critic/replayed"] == 2.0
    loss, total, kept = 0.0, 0, []
    for n in drawn:
        rollout, score = every[n]
        value = critics.values(turn_states(first, rollout)[0]).item()
        kept.append(-value - 0.05 + 2 * score.value > 0)
        loss, total = loss - kept[-1] * logprobs(policy, rollout).sum(), total + rollout.length
    assert any(kept) and found["turn_critic/imitated_share"] == pytest.approx(sum(kept) / 2)
    assert same(weights(run.policy), descended(policy, loss / total, before), before)
