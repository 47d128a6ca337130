"""Whole runs with each kind of stage and sampling rule: that they go on bit for bit, and what they leave behind."""

import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.api.seeds import derive
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow

pytestmark = pytest.mark.forks

MODEL = "tiny:qwen2_5_vl:hidden=32,layers=1"
WORDS = '''
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message


@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="words/first", target="words:First", verifiers={"words/letters": 1.0})]


@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id=f"words/{n}", target=f"words:{n}") for n in ("letters", "gold")]


class First(Task):
    """Text alone, and in other words."""

    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"first {i}")], answer=f"a{i} b c d") for i in range(8)]

    def extract_answer(self, completion):
        return completion[:1].lower()

    def rephrase(self, prompt):
        return Prompt(id=prompt.id + "'", messages=[user_message(prompt.text.replace("first", "second"))], answer=prompt.answer)


def letters(case):
    return sum(case.completion.encode()) % 101 / 100


def gold(case):
    return float(case.completion == case.answer)
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    file = tmp_path_factory.mktemp("plugin") / "words.py"
    file.write_text(WORDS)
    return file


@pytest.fixture(autouse=True)
def words(plugin, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}{os.pathsep}{plugin}")


def config(folder, *stages, overrides=(), **sections):
    """One stage or several, on text alone; nothing is evaluated."""
    usual = {"kind": "rl", "steps": 4, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2}
    return runs.toy_config(
        folder,
        overrides=overrides,
        **{
            "policy": {"model": MODEL},
            "tasks": [{"id": "words/first"}],
            "stages": [{**(usual if s.get("kind", "rl") == "rl" else {}), **s} for s in stages],
            "evaluate": {"num_prompts": 0},
            "record": {"rollouts_every": 1, "rollouts": 99, "trackers": []},
            **sections,
        },
    )


def metrics(folder):
    return [r["metrics"] for r in runs.rows(folder) if "metrics" in r]


def rollouts(folder):
    """Step -> the rows that were recorded of it."""
    found = {}
    for file in sorted((folder.path / "rollouts").glob("step-*.jsonl")):
        found[int(file.stem[5:])] = [json.loads(line) for line in file.read_text().splitlines()]
    return found


def texts(row):
    return [p["text"] for m in row["messages"] for p in m["content"] if p["type"] == "text"]


def last(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint."""
    newest = max((folder / "checkpoints").glob("step-*"))
    return {f"{f.relative_to(newest)}:{k}": v for f in sorted(newest.rglob("*.safetensors")) for k, v in load_file(f).items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


# -- a resumed run ------------------------------------------------------------------------------------------------------

RESUMED = {
    "kl-target": ({"kl_coef": 0.1, "kl_target": 1e-3, "kl_horizon": 2.0, "learning_rate": 1e-3}, {}),
    "replay": ({"replay_share": 0.5, "steps": 6, "success_threshold": 0.7}, {}),
    "variance": ({"adapt_task_weights": "variance", "steps": 6}, {"tasks": [{"id": "words/first"}, {"id": "toy/colour"}]}),
    "ppo": ({"algorithm": "ppo", "critic": {"hidden_sizes": [8], "warmup_steps": 1}}, {}),
    "bins": ({"algorithm": "ppo", "critic": {"bins": 11, "hidden_sizes": [8]}}, {}),
    "ema": ({"ema_decay": 0.5}, {}),
    "guide": ({"hints": "guide", "success_threshold": 0.8}, {}),
    "distill": ({"kind": "distill", "steps": 4, "teacher": "tiny:qwen2_5_vl:hidden=64,layers=1", "prompts_per_step": 3}, {}),
    "kl-in-reward": ({"kl_coef": 0.1, "kl_in": "reward", "reference_every": 3}, {}),
    "dynamic-sampling": (
        {"dynamic_sampling": 2, "success_threshold": 0.6, "min_success_rate": 0.25, "max_success_rate": 0.5},
        {},
    ),
    "oversample": ({"oversample": 1.5, "overlong": "mask", "overlong_buffer": 0.5}, {}),
    "sasr": ({"imitation": {"rule": "sasr", "batch_size": 3}, "steps": 8}, {}),
    "mixed": ({"imitation": {"batch_size": 3, "decay_steps": 3, "uncertainty_weighting": True}}, {}),
    "hpt": ({"imitation": {"rule": "hpt", "up_to": 0.5}, "success_threshold": 0.6}, {}),
    "relift": ({"imitation": {"rule": "relift", "batch_size": 3}, "success_threshold": 0.99, "steps": 6}, {}),
    "d3s": ({"algorithm": "d3s"}, {}),
    "kdrl": ({"algorithm": "kdrl", "teacher": "tiny:qwen2_5_vl:hidden=64,layers=1"}, {}),
    "resets": ({"optimizer_every": 1, "max_tokens": 3}, {}),
    "entropy": ({"entropy_control": {"target": 100.0}, "success_threshold": 0.5, "steps": 6}, {}),
    "curriculum": ({"curriculum": {"width": 2.0, "step": 1.0}, "success_threshold": 0.5, "steps": 6}, {}),
    "epoch-filter": ({"epoch_filter": {"up_to": 0.5}, "prompts_per_step": 5, "steps": 6}, {}),
    "reweight": (
        {"reweight": {"window": 2, "temperature": 0.1}, "algorithm": "dr-grpo", "steps": 6},
        {"tasks": [{"id": "words/first", "verifiers": {"words/letters": 1, "words/gold": 1}}]},
    ),
    "dcpo": ({"algorithm": "dcpo", "prompts_per_step": 6}, {}),
    "ppo-separate": ({"algorithm": "ppo", "critic": {"backbone": "separate"}}, {}),
    "lora": ({"kl_coef": 0.1}, {"policy": {"model": MODEL, "lora": {"rank": 2}}}),
    "ghpo": ({"hints": "ghpo", "success_threshold": 0.8, "ground_truth": "when-failed"}, {}),
    "co-reward": ({"labels": "co-reward", "minibatches": 2, "epochs": 2, "learning_rate": 1e-3}, {}),
    "condition": ({"condition": {}}, {}),
    "curves": (
        {"optimizer": "sgd"},
        {"tasks": [{"id": "words/first", "verifiers": {"words/letters": [1, 0], "words/gold": [0, 1]}}]},
    ),
}


@pytest.mark.parametrize("what", mostly_slow(RESUMED, everyday=4))
def test_a_stopped_run_goes_on_bit_for_bit(what, tmp_path):
    stage, sections = RESUMED[what]
    whole = runs.run(config(tmp_path / "a", stage, **sections))
    again = config(tmp_path / "b", stage, **sections)
    half = again.stages[0].steps // 2
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(half))
    folder = runs.run(again, resume=True)
    assert runs.trajectory(folder) == runs.trajectory(whole)
    assert same(last(folder.path), last(whole.path)) and len(metrics(folder)) == again.stages[0].steps
    found = metrics(whole)
    assert all(math.isfinite(v) for m in found for v in m.values())
    happened = {  # what the run must have had, or its memory was never asked
        "kl-target": lambda: len({m["kl_coef"] for m in found}) == 4,
        "kl-in-reward": lambda: found[1]["kl"] > 0 and found[3]["kl"] == 0,
        "dynamic-sampling": lambda: any(m["sampling/groups"] > 2 for m in found),
        "sasr": lambda: {"imitation/loss" in m for m in found[half:]} == {True, False},
        "ppo": lambda: found[-1]["value"] != 0,
        "guide": lambda: any(m["sampling/hinted"] for m in found),
        "ghpo": lambda: any(m["sampling/hinted"] for m in found),
        **dict.fromkeys(("hpt", "relift", "entropy"), lambda: any("imitation/loss" in m for m in found[half:])),
    }
    assert happened.get(what, lambda: True)()


# -- what runs leave behind ---------------------------------------------------------------------------------------------


def test_a_run_that_never_has_anything_to_learn_ends_with_the_weights_it_began_with(tmp_path):
    tasks = [{"id": "words/first", "verifiers": {"words/gold": 1.0}}]
    stage = {"dynamic_sampling": 1, "kl_coef": 0.5, "entropy_coef": 0.1, "weight_decay": 0.1, "steps": 3}
    folder = runs.run(config(tmp_path / "a", stage, tasks=tasks))
    VLM(PolicyConfig(model=MODEL), seed=derive(0, "weights")).save(tmp_path / "fresh")
    fresh = load_file(tmp_path / "fresh" / "model.safetensors")
    assert same(load_file(folder.checkpoint_dir(3) / "policy" / "model.safetensors"), fresh)
    for m in metrics(folder):
        assert m["grad_norm"] == 0 and m["sampling/filtered_share"] == 1 and m["sampling/groups"] == 4
        assert all(math.isfinite(v) for v in m.values())
    drawn = [r["prompt_id"] for rows in rollouts(folder).values() for r in rows][::4]
    assert len(drawn) == 12 and len(set(drawn[:8])) == 8, "each step has other prompts"
    assert all(r["advantage"] is None for rows in rollouts(folder).values() for r in rows)


def test_tasks_have_their_own_templates_group_sizes_and_limits(tmp_path):
    tasks = [
        {"id": "words/first", "name": "plain"},
        {"id": "words/first", "name": "asked", "prompt_template": "{text}? Say so.", "group_size": 3, "max_tokens": 2},
        {"id": "toy/colour", "name": "seen", "prompt_template": "Look: {text}", "group_size": 2},
    ]
    folder = runs.run(config(tmp_path / "a", {"prompts_per_step": 6, "steps": 2, "learning_rate": 1e-4}, tasks=tasks))
    sizes: dict[tuple[int, int], int] = {}
    seen = set()
    for step, rows in rollouts(folder).items():
        for row in rows:
            sizes[step, row["group"]] = sizes.get((step, row["group"]), 0) + 1
            seen.add(row["task"])
            (text,) = texts(row)
            if row["task"] == "plain":
                assert text.startswith("first ") and "Say" not in text and 1 <= row["tokens"] <= 6
            elif row["task"] == "asked":
                assert text.startswith("first ") and text.endswith("? Say so.") and 1 <= row["tokens"] <= 2
            else:
                assert text == "Look: The colour is" and row["messages"][0]["content"][0]["type"] == "image"
    assert seen == {"plain", "asked", "seen"}
    by_task = {(s, r["group"]): r["task"] for s, rows in rollouts(folder).items() for r in rows}
    assert {(by_task[k], n) for k, n in sizes.items()} == {("plain", 4), ("asked", 3), ("seen", 2)}
    assert sorted(g for s, g in sizes if s == 1) == list(range(6))


def test_what_a_run_with_hints_records(tmp_path):
    stage = {"hints": "ghpo", "success_threshold": 0.8, "prompts_per_step": 4, "learning_rate": 1e-4}
    folder = runs.run(config(tmp_path / "a", stage))
    hints = [t for rows in rollouts(folder).values() for r in rows for t in texts(r)[1:]]
    assert hints and all(t.startswith("\n\nHint: a") for t in hints)
    assert sum(m["sampling/hinted"] for m in metrics(folder)) == len(hints) / 4
    guided = runs.run(config(tmp_path / "b", {**stage, "hints": "guide"}))
    rows = rollouts(guided)[1]
    assert all(len(texts(r)) == 1 for r in rows), "trained as answers to the prompt itself"
    assert len(rows) == 16 + 4 * metrics(guided)[0]["sampling/hinted"]
    assert metrics(guided)[0]["logprob_gap"] < 1e-4 and metrics(guided)[0]["sampling/hinted"] > 0


def test_a_gold_completion_that_no_group_needs_is_asked_of_nobody(tmp_path):
    folder = runs.run(config(tmp_path / "a", {"ground_truth": "when-failed", "success_threshold": 0.0, "steps": 2}))
    assert [len(rows) for rows in rollouts(folder).values()] == [8, 8]
    always = runs.run(config(tmp_path / "b", {"ground_truth": "always", "success_threshold": 0.0, "steps": 2}))
    rows = rollouts(always)[1]
    gold = [r for r in rows if r["completion"] == r["answer"]]
    assert len(rows) == 10 and len(gold) == 2 and all(r["status"] == "finished" for r in gold)
    assert all(m["logprob_gap"] < 1e-4 for m in metrics(always)), "what nobody sampled has no gap"


def test_recap_samples_and_evaluates_as_if_the_answer_were_going_to_be_good(tmp_path):
    stage = {"condition": {"positive": "good", "negative": "bad"}, "learning_rate": 1e-3}
    folder = runs.run(config(tmp_path / "a", stage, evaluate={"num_prompts": 2}))
    assert all(texts(r)[1:] == ["\ngood"] for rows in rollouts(folder).values() for r in rows)
    assert all(m["clip_share"] == 0 and 5 < m["loss"] < 7 for m in metrics(folder)), "minus a log-likelihood"


def test_co_reward_trains_prompts_in_both_words(tmp_path):
    folder = runs.run(config(tmp_path / "a", {"labels": "co-reward", "steps": 2}))
    for rows in rollouts(folder).values():
        starts = {g: {texts(r)[0].split()[0] for r in rows if r["group"] == g} for g in range(4)}
        assert starts == {0: {"first"}, 1: {"first"}, 2: {"second"}, 3: {"second"}} and sorted({r["group"] for r in rows}) == [
            0,
            1,
            2,
            3,
        ]
        assert all(r["score"]["parts"].keys() == {"co-reward"} for r in rows)


# -- distillation -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(plugin, tmp_path_factory):
    """A folder with a model that knows the answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}{os.pathsep}{plugin}")
        stage = {"kind": "sft", "steps": 25, "batch_size": 8, "learning_rate": 1e-2}
        folder = runs.run(config(tmp_path_factory.mktemp("taught"), stage))
    return str(folder.checkpoint_dir(25) / "policy")


@pytest.mark.parametrize(
    ("divergence", "size"), mostly_slow([("reverse", 4), ("forward", 4), ("hard", 4), ("sampled", 64)], everyday=2)
)
def test_distillation_brings_the_policy_nearer_to_its_teacher(taught, tmp_path, divergence, size):
    """One token each, so that where they are compared doesn't move with the policy; `hard` has the teacher's own."""
    stage = {"kind": "distill", "teacher": taught, "divergence": divergence, "group_size": size, "prompts_per_step": 4}
    folder = runs.run(config(tmp_path / "a", {**stage, "steps": 30, "learning_rate": 1e-2}, generate={"max_tokens": 1}))
    found = [m["loss" if divergence == "hard" else "divergence"] for m in metrics(folder)]
    assert found[0] > 4 and sum(found[-3:]) / 3 < 0.4 * found[0]


def test_a_teacher_that_is_the_policy_itself_teaches_nothing(tmp_path):
    stage = {"kind": "distill", "teacher": MODEL, "steps": 2, "prompts_per_step": 2, "learning_rate": 1.0, "optimizer": "sgd"}
    found = metrics(runs.run(config(tmp_path / "a", stage)))
    assert found[0]["divergence"] == 0 and all(m["divergence"] < 1e-6 and m["grad_norm"] < 1e-5 for m in found)
