"""`mmrl compare`, and the rows of `evaluations/` that it reads."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mmrl import UserError, user_message
from mmrl.api.statistics import mean_interval, wilson
from mmrl.config.load import parse_config, to_dict
from mmrl.evaluation.results import confidence_interval
from mmrl.run_folder import files
from mmrl.run_folder.reader import read_items, read_run
from mmrl.run_folder.writer import RunFolder
from mmrl.ui.board import sections
from mmrl.ui.cli import main
from mmrl.ui.report.svg import number
from runs import figure


def item(id: str, value: float | None, task: str = "t/a", **more: object) -> dict[str, object]:
    return {"task": task, "split": "test", "verifier": "t/exact", "id": id, "value": value, "values": [value], **more}


def make(path: Path, values: str, seed: int = 0, algorithm: str = "grpo", step: int = 4, **more: object) -> RunFolder:
    """A run whose prompts 0, 1, 2 ... scored these digits at its last step."""
    config = {"name": path.name, "seed": seed, "runs_dir": "runs", "stages": [{"kind": "rl", "algorithm": algorithm}]}
    run = RunFolder.create(path, config, seed)
    run.items(step, [item(str(i), float(v), **more) for i, v in enumerate(values)])
    return run


@pytest.fixture
def mmrl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_PLUGINS", "")

    def call(*arguments: str):
        done = CliRunner().invoke(main, ["compare", *arguments])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture
def refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_PLUGINS", "")

    def call(*arguments: str):
        done = CliRunner().invoke(main, ["compare", *arguments])
        assert done.exit_code == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
        return done.stderr.strip().removeprefix("mmrl: ")

    return call


# -- the rows -----------------------------------------------------------------------------------------------------------


def test_items_are_written_whole_and_replaced(tmp_path):
    run = RunFolder.create(tmp_path / "run", {}, 0)
    assert not (run.path / "evaluations").exists() and read_run(run.path).item_files == []
    run.items(12, [item("a", 1.0), item("b", None)])
    run.items(0, [item("a", 0.5)])
    run.items(12, [item("a", 0.0), item("b", None)])
    assert read_run(run.path).item_files == [run.path / "evaluations" / f"step-{n}.jsonl" for n in ("000000", "000012")]
    assert read_items(run.path / "evaluations" / "step-000012.jsonl") == [
        {"step": 12, **item("a", 0.0)},
        {"step": 12, **item("b", None)},
    ]
    assert sorted(p.name for p in (run.path / "evaluations").iterdir()) == ["step-000000.jsonl", "step-000012.jsonl"]
    run.items(20, [{**item("a", 1.0), "task": task, "messages": [user_message(f"of {task}")]} for task in ("t", "u")])
    texts = [row["messages"][0]["content"][0]["text"] for row in read_items(run.path / "evaluations" / "step-000020.jsonl")]
    assert texts == ["of t", "of u"], "two tasks may have prompts of the same id"


def test_rewind_forgets_later_evaluations(tmp_path):
    run = RunFolder.create(tmp_path / "run", {}, 0)
    for step in (0, 5, 10):
        run.items(step, [item("a", 1.0)])
    run.rewind(5)
    assert [path.name for path in read_run(run.path).item_files] == ["step-000000.jsonl", "step-000005.jsonl"]
    run.rewind(-1)
    assert read_run(run.path).item_files == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    run = RunFolder.create(tmp_path / "run", {}, 0)
    (run.path / "evaluations").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*evaluations.*: File exists; correct the path"):
        run.items(1, [item("a", 1.0)])


@pytest.mark.parametrize("damage", [{"id": None}, {"task": 3}, {"value": "1"}, {"values": 1.0}, {"split": None}, {"set": "x"}])
def test_a_damaged_item_is_named(tmp_path, damage):
    path = tmp_path / "step-000001.jsonl"
    path.write_bytes(b"".join(files.line({"step": 1, **row}) for row in (item("a", 1.0), {**item("b", 0.0), **damage})))
    with pytest.raises(UserError, match=r"step-000001\.jsonl line 2 is not an item of an evaluation"):
        read_items(path)


# -- two runs -----------------------------------------------------------------------------------------------------------


def test_equal_graded_values_are_not_certain(mmrl, tmp_path):
    """How much they differ elsewhere is unknown; what is a share of answers that are right or wrong has a range."""
    for name, values in (("a", "0.5"), ("b", "0.6"), ("c", "0.5")):
        run = RunFolder.create(tmp_path / "runs" / name, {"name": name, "seed": ord(name)}, 0)
        graded = [item(str(i), float(values)) for i in range(10)]
        answers = [{**item(str(i), 0.5, task="t/b"), "values": [0.0, 1.0]} for i in range(10)]
        run.items(4, graded + answers)
    found = {task["task"]: task for task in json.loads(mmrl("runs/a", "runs/b", "--json"))["tasks"]}
    assert json.dumps(found["t/a"]).count("null") == 6, found
    low, high = wilson(5, 10)
    lines = mmrl("runs/a", "runs/b").splitlines()
    assert [line.partition("  p ")[0].split("(")[-1] for line in lines if line[:3] in ("  A", "  B") and "(" in line] == [
        *["unknown)"] * 3,
        *[f"{low:.3f} to {high:.3f})"] * 2,
        "unknown)",
    ]
    assert "0.500" in mmrl("runs/a", "runs/b", "runs/c")
    a, b = tmp_path / "runs" / "a", tmp_path / "runs" / "b"
    page = sections.compare("a", a, "b", b, ("last", "last"), ["a", "b"])
    assert page.count("<small>interval unknown</small>") == 4 and "inf" not in page


def test_intervals_keep_within_the_range_of_an_installed_verifier(tmp_path, monkeypatch):
    (tmp_path / "ranged.py").write_text(
        "from mmrl import VerifierSpec, hookimpl\n\n\n@hookimpl\ndef mmrl_verifiers():\n"
        '    return [VerifierSpec(id="ranged/iou", target="ranged:iou", graded=True)]\n'
    )
    # the mean 0.1, 3 degrees of freedom: 0.1 -+ 3.182 * 0.1; with the spread of a mean at the bound b, as far as that
    # sqrt(b (1 - b) / 0.09) times: 0.312 -+ 0.304
    values = {"a": [0.0, 0.0, 0.0, 0.0], "b": [0.0, 0.0, 0.0, 0.4]}
    for name, of_run in values.items():
        run = RunFolder.create(tmp_path / name, {"name": name, "seed": 0}, 0)
        run.items(4, [item(str(i), v, verifier="ranged/iou") for i, v in enumerate(of_run)])
    monkeypatch.chdir(tmp_path)

    def intervals(plugin_files: str) -> list[str]:
        monkeypatch.setenv("MMRL_PLUGIN_FILES", plugin_files)
        done = CliRunner().invoke(main, ["compare", "a", "b"])
        assert done.exit_code == 0, done.output
        assert "no significant difference: 1 prompt better, 0 worse, 3 equal" in done.output
        return [line.split("(")[1] for line in done.output.splitlines() if line.startswith(("  A", "  B  "))]

    low, high = wilson(0, 4)
    assert intervals("ranged.py") == [f"{low:.3f} to {high:.3f})", "0.008 to 0.616)"]
    assert intervals("") == ["unknown)", "-0.218 to 0.418)"]


def test_the_interval_of_a_verifier_that_is_no_share_is_that_of_its_evaluation(tmp_path, monkeypatch):
    """Its scores may all be 0 or 1 without being all that it can give."""
    (tmp_path / "sums.py").write_text(
        "from mmrl import VerifierSpec, hookimpl\n\n\n@hookimpl\ndef mmrl_verifiers():\n"
        '    return [VerifierSpec(id="sums/all", target="sums:all", low=0.0, high=9.0, graded=True)]\n'
    )
    values = [0.0, 1.0, 0.0, 0.0, 1.0]
    for name in "ab":
        run = RunFolder.create(tmp_path / name, {"name": name, "seed": 0}, 0)
        run.items(4, [item(str(i), v, verifier="sums/all") for i, v in enumerate(values)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", "sums.py")
    done = CliRunner().invoke(main, ["compare", "a", "b"])
    low, high = confidence_interval(values, 0.0, 9.0, counted=False)
    assert f"({low:.3f} to {high:.3f})" in done.output and (low, high) != wilson(2, 5), done.output


CHAINS = {"a": (2, 1, 0, 0, 5), "b": (3, 3, 0, 2, 5)}
"""Instructions that were carried out in a row, of each episode of two runs."""


def chained(tmp_path, *names: str) -> list[RunFolder]:
    made = []
    for name in names:
        run = RunFolder.create(tmp_path / name, {"name": name, "seed": 0}, 0)
        done = CHAINS[name[0]]
        outcomes = [
            {"success": float(n == 5), "return": float(n), "chain_1": float(n > 0), "chain_3": float(n > 2)} for n in done
        ]
        run.items(4, [item(str(i), o["success"], set=i // 2, outcome=o) for i, o in enumerate(outcomes)])
        made.append(run)
    return made


def test_parts_of_episodes_are_compared_with_intervals(mmrl, tmp_path):
    sets = [0, 0, 1, 1, 2]
    chained(tmp_path, "a", "b")
    found = json.loads(mmrl("a", "b", "--json"))["tasks"][0]
    outcomes = {outcome["name"]: outcome for outcome in found["outcomes"]}
    assert list(outcomes) == ["chain_1", "chain_3", "return"], "success is the figure itself"
    for name, least in (("chain_1", 1), ("chain_3", 3)):
        for name_of_run, own in zip("ab", outcomes[name]["values"], strict=True):
            values = [float(n >= least) for n in CHAINS[name_of_run]]
            low, high = confidence_interval(values, sets=sets)
            assert own == pytest.approx({"value": sum(values) / 5, "low": low, "high": high})
    assert outcomes["return"]["values"][1]["value"] == pytest.approx(13 / 5)
    differences = [b - a for a, b in zip(CHAINS["a"], CHAINS["b"], strict=True)]
    low, high = mean_interval(differences, sets)
    paired = outcomes["return"]["paired"]
    assert [paired[key] for key in ("n", "difference", "low", "high")] == pytest.approx([5, 1.0, low, high])
    text = mmrl("a", "b")
    assert "  return: A 1.600 (" in text and f"B - A +1.000 ({low:+.3f} to {high:+.3f})" in text


def test_parts_of_episodes_are_on_the_boards_page_and_in_a_table_of_runs(mmrl, tmp_path):
    a, b, more = (run.path for run in chained(tmp_path, "a", "b", "b-more"))
    page = sections.compare("a", a, "b", b, ("last", "last"), ["a", "b"])
    low, high = confidence_interval([1.0, 1.0, 0.0, 1.0, 1.0], sets=[0, 0, 1, 1, 2])
    assert "<small>chain 1, n = 5</small>" in page and f"<b>0.8</b><small>{number(low)} to {number(high)}</small>" in page
    text = mmrl(str(a), str(b), str(more))
    row = next(line for line in text.splitlines() if line.strip().startswith("chain_1"))
    assert row.count(f"0.800 ({low:.3f} to {high:.3f})") == 2


def test_an_outcome_that_only_one_run_has_is_left_out(mmrl, tmp_path):
    """As of a run of an older version."""
    chained(tmp_path, "a")
    run = RunFolder.create(tmp_path / "old", {"name": "old", "seed": 0}, 0)
    run.items(4, [item(str(i), 0.0) for i in range(5)])
    assert json.loads(mmrl("a", "old", "--json"))["tasks"][0]["outcomes"] == []
    assert json.loads(mmrl("old", "a", "--json"))["tasks"][0]["outcomes"] == []


def test_a_damaged_outcome_is_refused(refused, tmp_path):
    a, b = (run.path for run in chained(tmp_path, "a", "b"))
    path = b / "evaluations/step-000004.jsonl"
    path.write_text(path.read_text().replace('"chain_1":1.0', '"chain_1":"yes"'))
    assert '"yes"' in path.read_text()
    assert "line 1: its outcome must have a number for each name: remove that line" in refused(str(a), str(b))


def test_two_runs_are_compared_prompt_by_prompt(mmrl, tmp_path):
    make(tmp_path / "runs" / "a", "0000011111")
    make(tmp_path / "runs" / "b", "1111101111", algorithm="dapo")
    # 5 wins, 1 loss: p = 2 (1 + 6) / 64; Wilson's of 5 and 9 of 10; Agresti and Min: 4/12 -+ 1.96 sqrt(7 - 16/12) / 12
    assert mmrl("runs/a", "runs/b").splitlines() == [
        "A  runs/a  step 4, seed 0",
        "B  runs/b  step 4, seed 0",
        "",
        "t/a  test  t/exact, 10 prompts in common",
        "  A        0.500  (0.237 to 0.763)",
        "  B        0.900  (0.596 to 0.982)",
        "  B - A   +0.400  (-0.055 to +0.722)  p = 0.219, McNemar's exact test",
        "  no significant difference: 5 prompts better, 1 worse, 4 equal",
        "",
        "note: the runs differ in stages.0.algorithm (grpo, dapo)",
    ]


@pytest.mark.parametrize(
    ("values", "verdict"), [("1" * 8, "B is better: 8 prompts better, 0 worse, 0 equal"), ("0" * 8, "no significant difference")]
)
def test_the_verdict(mmrl, tmp_path, values, verdict):
    make(tmp_path / "a", "0" * 8)
    make(tmp_path / "b", values)
    assert f"\n  {verdict}" in mmrl("a", "b")
    assert ("B is worse: 0 prompts better, 8 worse, 0 equal" in mmrl("b", "a")) == (values == "1" * 8)


def test_json_of_two(mmrl, tmp_path):
    for name, last in (("a", 0.25), ("b", 0.75)):
        run = make(tmp_path / name, "", seed=3)
        run.items(4, [item("x", 0.5), item("y", last), item("z", None), item(name, 1.0)])
    found = json.loads(mmrl("a", "b", "--json"))
    assert found["runs"] == [{"path": name, "name": name, "seed": 3, "step": 4} for name in "ab"]
    (task,) = found["tasks"]
    assert {key: task[key] for key in ("task", "split", "verifier", "n", "groups")} == {
        "task": "t/a",
        "split": "test",
        "verifier": "t/exact",
        "n": 2,
        "groups": [],
    }
    assert [v["value"] for v in task["values"]] == [0.375, 0.625]
    assert (task["values"][0]["low"], task["values"][0]["high"]) == mean_interval([0.5, 0.25])
    pair = task["paired"]
    assert (pair["difference"], pair["wins"], pair["losses"], pair["ties"], pair["p"]) == (0.25, 1, 0, 1, 1.0)
    assert pair["test"] == "exact sign-flip test" and pair["n"] == 2


def test_one_graded_prompt_has_no_interval(mmrl, tmp_path):
    for name in "ab":
        make(tmp_path / name, "").items(4, [item("x", 0.5)])
    assert "  A        0.500  (unknown)" in mmrl("a", "b").splitlines()
    assert json.loads(mmrl("a", "b", "--json"))["tasks"][0]["paired"]["low"] is None


def test_which_evaluation(mmrl, refused, tmp_path):
    for name in "ab":
        run = make(tmp_path / name, "1100", step=8)
        for step, values in ((0, "0000"), (4, "1110"), (6, "1110")):
            run.items(step, [item(str(i), float(v)) for i, v in enumerate(values)])
        for step, value in ((0, 0.0), (4, 0.75), (6, 0.75), (8, 0.5)):
            run.evaluation(step, "rl", figure("t/a", value))
            run.evaluation(step, "rl", figure("t/b", 0.5))

    def measured(*arguments: str) -> list[tuple[int, float]]:
        found = json.loads(mmrl("a", "b", "--json", *arguments))
        return [(run["step"], value["value"]) for run, value in zip(found["runs"], found["tasks"][0]["values"], strict=True)]

    assert measured() == measured("--step", "last") == [(8, 0.5)] * 2
    assert measured("--step", "best") == [(4, 0.75)] * 2, "the first of the two that are equally good"
    assert measured("--step", "0") == [(0, 0.0)] * 2
    RunFolder(tmp_path / "b").summary({"best_step": 6})
    assert measured("--step", "best") == [(4, 0.75), (6, 0.75)], "what the run kept"
    best = mmrl("a", "b", "--step", "best")
    assert "note: the best evaluation was chosen on these same prompts, so its value is too high on average" in best
    assert refused("a", "b", "--step", "5") == "a has no evaluation '5' to compare: give last, best or one of 0, 4, 6, 8"
    assert refused("a", "b", "--step", "first").startswith("a has no evaluation 'first'")
    assert refused("a", "b", "--step", "²").startswith("a has no evaluation '²'")
    RunFolder(tmp_path / "b").summary({"best_step": [4]})
    assert refused("a", "b", "--step", "best").startswith("b has no best evaluation to compare")
    RunFolder(tmp_path / "b").summary({"best_step": None})
    assert refused("a", "b", "--step", "best").startswith("b has no best evaluation to compare: give last, best or one of")


def test_what_a_reader_must_know(mmrl, tmp_path):
    make(tmp_path / "a", "110").items(
        4, [item("0", 1.0), item("1", 0.0), item("2", 0.0), item("0", 1.0, "t/b"), item("0", 1.0, "t/c")]
    )
    make(tmp_path / "b", "", seed=1, step=6).items(
        6, [item("1", 0.0), item("2", 0.0), item("0", 1.0, "t/b"), item("0", 1.0, "t/d")]
    )
    assert [line for line in mmrl("a", "b").splitlines() if line.startswith("note")] == [
        "note: the seeds differ: a task that draws its held-out prompts from the seed has others under the same ids",
        "note: the runs are at different steps: a at 4, b at 6",
        "note: left out, as not every run has it: t/c, t/d",
        "note: t/a: 2 of up to 3 scored prompts are in all runs; only these are compared",
        "note: each p is for one task alone: of twenty tasks without a difference, one has p < 0.05 on average",
    ]


def configured(path, **config):
    config = {"name": path.name, "seed": 0, "runs": "runs", **config}
    RunFolder.create(path, config, 0).items(4, [item("0", 1.0)])


SFT, RL = {"kind": "sft", "steps": 5}, {"kind": "rl", "steps": 9, "algorithm": "grpo"}
DIFFERENCES = [
    ({"stages": [RL]}, {"stages": [SFT, RL]}, "stages.0 (rl, sft), stages.1 (unset, rl)"),
    ({"stages": [RL]}, {"stages": [SFT]}, "stages.0 (rl, sft)"),
    ({"stages": [RL]}, {"stages": [{**RL, "kl_coef": 0.5}]}, "stages.0.kl_coef (unset, 0.5)"),
    ({}, {"stages": [RL]}, "stages.0 (unset, rl)"),
    ({"stages": []}, {"stages": [RL]}, "stages ([], [rl])"),
    ({"policy": {"model": "a"}}, {"policy": {"model": "a", "lora": {"rank": 8, "all": True}}},
     "policy.lora.all (unset, true), policy.lora.rank (unset, 8)"),
    ({"policy": {}}, {}, "policy (an empty table, unset)"),
    ({"tasks": [{"id": "a", "verifiers": {"v": [0.0, 1.0]}}]}, {"tasks": [{"id": "a", "verifiers": {"v": [0.5]}}]},
     "tasks.0.verifiers.v ([0.0, 1.0], [0.5])"),
    ({"policy": dict.fromkeys("abcde", 1)}, {"policy": dict.fromkeys("abcde", 2)},
     "policy.a (1, 2), policy.b (1, 2), policy.c (1, 2) and 2 more"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "told"), DIFFERENCES, ids=[told for *_, told in DIFFERENCES])
def test_differences_are_named_by_dotted_keys_and_values(mmrl, tmp_path, one, other, told):
    configured(tmp_path / "a", **one)
    configured(tmp_path / "b", **other)
    assert mmrl("a", "b").splitlines()[-1] == f"note: the runs differ in {told}"


def test_differences_among_several_runs_name_each_value_once(mmrl, tmp_path):
    for name, rate in zip("abcdefg", (1, 2, 2, 3, 1, 4, 5), strict=True):
        configured(tmp_path / name, policy={"rate": rate})
    assert mmrl(*"abcde").splitlines()[-1] == "note: the runs differ in policy.rate (1, 2, 3)"
    assert mmrl(*"abcdefg").splitlines()[-1] == "note: the runs differ in policy.rate (1, 2, 3, 4, ...)"


def test_a_key_that_an_older_run_lacks_counts_as_its_default(mmrl, tmp_path):
    """Else every key that a new version brings would part the runs of the old one from those of the new one."""
    tasks, stage = [{"id": "t/a"}], {"kind": "rl", "algorithm": "grpo", "steps": 2}
    old = {"name": "x", "seed": 0, "policy": {"model": "m"}, "tasks": tasks, "stages": [stage]}
    new = to_dict(parse_config(old))
    other = {**new, "stages": [{**new["stages"][0], "learning_rate": 0.5}]}
    for name, config in (("a", old), ("b", new), ("c", other)):
        RunFolder.create(tmp_path / name, config, 0).items(4, [item("0", 1.0)])
    assert "differ in" not in mmrl("a", "b")
    assert "None: both runs have the same settings" in sections.settings("a", tmp_path / "a", "b", tmp_path / "b", [])
    assert "the runs differ in stages.0.learning_rate (" in mmrl("a", "c")


# -- what is refused ----------------------------------------------------------------------------------------------------


def test_runs_that_can_not_be_compared(refused, tmp_path):
    for name, more in {"a": {}, "b": {"task": "t/b"}, "v": {"verifier": "t/other"}, "s": {"split": "dev"}}.items():
        make(tmp_path / name, "110", **more)
    make(tmp_path / "i", "").items(4, [item("other", 1.0)])
    make(tmp_path / "twice", "").items(4, [item("", 1.0), item("", 0.0)])
    make(tmp_path / "failed", "").items(4, [item("0", None)])
    RunFolder.create(tmp_path / "none", {}, 0)
    assert refused("a") == "mmrl compare a: give two or more different run folders"
    assert refused("a", "./a") == "mmrl compare a a: give two or more different run folders"
    assert refused("a", "nowhere").startswith("nowhere is not a folder")
    (tmp_path / "other").mkdir()
    lacking = "it has no config.toml and no manifest.json"
    assert refused("a", "other") == f"other is not a run folder: {lacking}: give one, such as runs/demo"
    assert refused("a", "b") == "the runs have no task in common: a has t/a; b has t/b: compare runs of the same tasks"
    assert refused("a", "v") == (
        "task 't/a' was evaluated with verifier 't/exact' by a and 't/other' by v: figures of different verifiers can't be "
        "compared; evaluate both with the same"
    )
    assert refused("a", "a/../s").startswith("task 't/a' was evaluated with split 'test' by a and 'dev' by")
    assert refused("a", "i").startswith("task 't/a': the runs have no prompt in common: compare runs with the same task options")
    assert refused("a", "none").startswith("none has no evaluations/: evaluate.num_prompts was 0")
    assert refused("a", "failed") == "failed: nothing was scored at step 4: choose another --step"
    assert refused("a", "b", "--split", "dev") == "a was not evaluated on split 'dev', only on test: leave --split out"
    assert refused("twice", "a").startswith("twice: several prompts of task 't/a' have the id ''")


def test_one_split_of_several(mmrl, tmp_path):
    for name in "ab":
        make(tmp_path / name, "").items(4, [item("0", 1.0, "t/a"), item("0", 0.0, "t/a", split="dev")])
    found = json.loads(mmrl("a", "b", "--split", "dev", "--json"))["tasks"]
    assert [(t["split"], t["n"], t["values"][0]["value"]) for t in found] == [("dev", 1, 0.0)]


# -- more runs ----------------------------------------------------------------------------------------------------------


def test_seeds_are_put_together(mmrl, tmp_path):
    for seed, values in enumerate(("1100000000", "1111000000", "1111110000")):
        make(tmp_path / f"grpo-s{seed}", values, seed)
    make(tmp_path / "dapo", "1111111100", 0, "dapo")
    found = json.loads(mmrl("grpo-s0", "dapo", "grpo-s1", "grpo-s2", "--json"))["tasks"][0]
    assert [v["value"] for v in found["values"]] == [0.2, 0.8, 0.4, 0.6] and found["paired"] is None
    assert (found["values"][1]["low"], found["values"][1]["high"]) == wilson(8, 10)
    (group,) = found["groups"]
    # mean 0.4, standard deviation 0.2, t of 2 degrees of freedom: the bounds b are 4.302653 * 0.2 / sqrt(3) = 0.496828 away,
    # times sqrt(b (1 - b) / 0.24), the spread of means there
    assert [abs(0.4 - b) / math.sqrt(b * (1 - b) / 0.24) for b in (group["low"], group["high"])] == pytest.approx([0.496828] * 2)
    assert (group["name"], group["runs"], group["seeds"]) == ("grpo", [0, 2, 3], [0, 1, 2])
    assert (group["mean"], group["lowest"], group["highest"]) == (pytest.approx(0.4), 0.2, 0.6)

    shown = mmrl("grpo-s0", "dapo", "grpo-s1", "grpo-s2")
    lines = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    assert lines[0] == "t/a test t/exact, 10 prompts in common"
    assert lines[3] == "grpo-s0 0 4 0.200 0.057 to 0.510"
    assert lines[7] == "grpo 3 seeds 0.400 0.098 to 0.803 0.200 to 0.600"
    assert lines[-1] == "note: the runs differ in stages.0.algorithm (grpo, dapo)"
    assert max(map(len, shown.splitlines())) <= 100


def test_only_shares_of_right_answers_stay_between_0_and_1(mmrl, tmp_path):
    for name in "abc":
        rows = [
            item("x", 0.0, values=[0.0, 0.0]),
            item("y", 0.5, values=[0.0, 1.0]),
            item("x", 0.0, "t/b"),
            item("y", 0.5, "t/b"),
        ]
        make(tmp_path / name, "").items(4, rows)
    shares, grades = (task["values"][0] for task in json.loads(mmrl("a", "b", "c", "--json"))["tasks"])
    # mean 0.25, t of 1 degree of freedom times the standard error 0.25: 0.25 -+ 3.176551
    assert 0 < shares["low"] < 0.01 and 0.98 < shares["high"] < 1
    assert (grades["low"], grades["high"]) == pytest.approx((0.25 - 3.176551, 0.25 + 3.176551), abs=1e-6)


def test_a_mean_that_is_none_of_right_answers_has_no_range(mmrl, tmp_path):
    for name in "abc":
        make(tmp_path / name, "").items(4, [item(id, 1e21, values=[1.0]) for id in "xyz"])
    (mean,) = {(v["value"], v["low"], v["high"]) for v in json.loads(mmrl("a", "b", "c", "--json"))["tasks"][0]["values"]}
    assert mean == (1e21, None, None)


def test_only_prompts_that_every_run_answered_count(mmrl, tmp_path):
    for i, name in enumerate("abc"):
        make(tmp_path / name, "").items(4, [item("x", 1.0), item("y", 0.0), item(name, 1.0), *([item("z", 1.0)] if i else [])])
    found = json.loads(mmrl("a", "b", "c", "--json"))["tasks"][0]
    assert found["n"] == 2 and [v["value"] for v in found["values"]] == [0.5, 0.5, 0.5]


def test_a_seed_counts_once_and_settings_that_teach_nothing_do_not_part(mmrl, tmp_path):
    for name, seed in (("a", 0), ("again", 0), ("b", 1)):
        make(tmp_path / name, "10", seed)
    config = tmp_path / "b" / "config.toml"
    config.write_text(config.read_text().replace('"runs"', '"elsewhere"') + "\n[record]\nrollouts = 3\n")
    (group,) = json.loads(mmrl("a", "again", "b", "--json"))["tasks"][0]["groups"]
    assert (group["runs"], group["seeds"], group["name"]) == ([0, 2], [0, 1], "a")
    assert "note: the runs differ" not in mmrl("a", "again", "b")


def test_prompts_of_a_set_are_compared_as_one(mmrl, tmp_path):
    for name, values in (("a", (0.0,) * 6), ("b", (1.0,) * 6)):
        rows = [item(str(i), value, **({"set": i // 3} if name == "b" else {})) for i, value in enumerate(values)]
        make(tmp_path / name, "0").items(4, rows)
    (task,) = json.loads(mmrl("a", "b", "--json"))["tasks"]
    assert task["paired"]["p"] == 0.5 and task["paired"]["test"] == "exact sign-flip test of 2 sets"
    assert (task["values"][1]["low"], task["values"][1]["high"]) == pytest.approx(wilson(2, 2))


# -- what it costs ------------------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported(tmp_path):
    make(tmp_path / "a", "0110")
    for name in "bc":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    program = "from mmrl.ui.cli import main; import sys; main(sys.argv[1:], standalone_mode=False); print(*sorted(sys.modules))"
    for runs in ("ab", "abc"):
        command = [sys.executable, "-c", program, "compare", *(str(tmp_path / name) for name in runs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not {"torch", "numpy", "scipy", "transformers", "pydantic", "PIL"} & set(done.stdout.splitlines()[-1].split())
