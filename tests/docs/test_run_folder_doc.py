"""docs/run-folder.md names the files and keys that a real run writes, all of them and no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

import forked
from mmrl.algorithms.preference import PairSums, Settings, Term, credit
from mmrl.api.tasks.overlays import Overlay, OverlayKind, to_json
from mmrl.config.load import load_config
from mmrl.config.preferences import PreferenceStage
from mmrl.run_folder.reader import read_jsonl, read_run
from mmrl.train.stages.preference import pair_figures

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")

PLUGIN = '''
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="shades/name", target="shades:Shades", verifiers={"shades/exact": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="shades/exact", target="shades:exact")]

class Shades(Task):
    """Is it dark or light?"""

    def prompts(self, split, seed):
        from PIL import Image
        shades = [Image.new("RGB", (32, 32), (60 * i,) * 3) for i in range(4)]
        return [Prompt(id=f"{i}", messages=[user_message("Dark or light?", shades[i])], answer="dl"[i // 2]) for i in range(4)]

def exact(case):
    if case.answer == "d":
        raise ValueError("one prompt in two fails")
    return float(case.completion == case.answer or sum(case.completion.encode()) % 2)  # a group has spread
'''
RUN_FILE = """
name = "shades"
seed = 5
[policy]
model = "tiny:qwen2_5_vl:hidden=32,layers=1"
[[tasks]]
id = "shades/name"
[[stages]]
kind = "sft"
steps = 1
batch_size = 2
[[stages]]
kind = "rl"
steps = 1
prompts_per_step = 4
group_size = 2
[generate]
max_tokens = 2
[evaluate]
num_prompts = 4
[judge]
failure_limit = 1.0
"""
FULL = """
[[stages]]
kind = "rl"
steps = 1
prompts_per_step = 4
group_size = 2
algorithm = "ppo"
kl_coef = 0.1
adaptive_entropy = {}
stop_kl = 1.0
off_policy_mask = 9.0
gap_mask = 9.0
dynamic_sampling = 1
hints = "guide"
imitation = {batch_size = 2}
replay_share = 0.5
adapt_task_weights = "variance"
ground_truth = "when-failed"
[[stages]]
kind = "rl"
steps = 1
prompts_per_step = 4
group_size = 2
condition = {}
[[stages]]
kind = "distill"
steps = 1
prompts_per_step = 2
teacher = "tiny:qwen2_5_vl:hidden=32,layers=1,seed=9"
"""
"""What RUN_FILE has no use for."""
ACTS = """
name = "dial"
policy = {kind = "robotics/small", model = "mlp", options = {dims = 2, state = 2, hidden = [4]}}
tasks = [{id = "dial/turn", options = {reward = "own"}, verifiers = {"dial/success" = 1.0}}]
stages = [{kind = "rl", steps = 1, prompts_per_step = 2, group_size = 2}]
evaluate = {num_prompts = 4}
"""
IMPROVES = """
name = "dial"
policy = {kind = "vla", model = "tiny:qwen2_5_vl:hidden=32,layers=1", options = {dims = 2, bins = 8, chunk = 1}}
tasks = [{id = "dial/turn", options = {reward = "own"}, verifiers = {"dial/success" = 1.0}}]
evaluate = {num_prompts = 4}
checkpoint = {every = 1, keep = 3}

[[stages]]
kind = "off-policy"
steps = 1
prompts_per_step = 4
updates = 1
batch_size = 4
critics = 2
hidden = [4]
improve = {candidates = 2, keep = 1, steps = 1, batch_size = 4, expectile = 0.7}

[[stages]]
kind = "recap"
steps = 1
prompts_per_step = 16
updates = 1
batch_size = 4
hidden = [4]
bins = 5
value_updates = 1

[[stages]]
kind = "hg-dagger"
steps = 1
prompts_per_step = 4
updates = 1
batch_size = 4
interventions = 1.0
"""
OF_TURNS = {f"{name}.safetensors" for name in ("turn-critic", "turns", "prompts", "conversations")}
"""What a stage with a turn critic keeps, see tests/integration/test_turn_critic_runs.py."""
REMEMBERS = """
name = "dial"
policy = {kind = "squashed", model = "mlp", options = {dims = 2, state = 2, hidden = [4]}}
tasks = [{id = "dial/turn", options = {reward = "own"}, verifiers = {"dial/success" = 1.0}}]
evaluate = {num_prompts = 4}

[[stages]]
kind = "off-policy"
steps = 1
prompts_per_step = 4
updates = 1
batch_size = 4
critics = 2
hidden = [4]
conservative = 0.5
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("docs"), RUN_FILE)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    head, _, rest = RUN_FILE.partition("[[stages]]")
    return trained(
        tmp_path_factory.mktemp("full"), head + FULL + rest[rest.index("[generate]") :] + "[checkpoint]\nevery = 1\nkeep = 3"
    )


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("acts"), ACTS, Path(__file__).parents[1] / "support" / "dial.py")


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("remembers"), REMEMBERS, Path(__file__).parents[1] / "support" / "dial.py")


@pytest.fixture(scope="module")
def improved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("remembers"), IMPROVES, Path(__file__).parents[1] / "support" / "dial.py")


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    halves = RUN_FILE.replace("[policy]", '[policy]\ndtype = "float16"')
    return trained(tmp_path_factory.mktemp("ahead"), f"{halves}[compute]\nstaleness = 1\n")


def trained(folder: Path, run_file: str, plugin: Path | None = None) -> Path:
    (folder / "shades.py").write_text(PLUGIN)
    (folder / "run.toml").write_text(run_file)
    done = forked.run(["--plugin", str(plugin or "shades.py"), "train", "run.toml"], cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / ("dial" if plugin else "shades")


def documented(heading: str) -> set[str]:
    """The keys in the tables below a heading, up to the next one."""
    section = re.split(rf"^##+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1]
    return set(re.findall(r"^\| `([^`]+)` \|", re.split(r"^##", section, flags=re.MULTILINE)[0], re.MULTILINE))


def keys(value: Mapping[str, Any], *opened: str) -> set[str]:
    """The keys of a row; those of the objects named in `opened` as `object.key`."""
    return {key for name in value for key in ([f"{name}.{inner}" for inner in value[name]] if name in opened else [name])}


def test_the_tree_is_what_is_there(run: Path, acted: Path) -> None:
    tree = re.search(r"runs/digits/\n(.*?)```", PAGE, re.DOTALL)
    assert tree
    told = {re.sub(r"\d{6}", "NNN", name).rstrip("/") for name in re.findall(r"^  (\S+)", tree[1], re.MULTILINE)}
    there = {str(path.relative_to(run)) for path in run.glob("*")} | {str(path.relative_to(run)) for path in run.glob("*/*")}
    there |= {str(path.relative_to(acted)) for path in acted.glob("episodes/*")}
    there = {re.sub(r"\d{6}", "NNN", name) for name in there} - {"rollouts", "checkpoints", "evaluations"}
    assert told == {re.sub(r"/events\..*", "", name) for name in there}


def test_manifest(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_bytes())
    assert keys(manifest, "git", "machine") == documented("manifest.json")
    assert all(set(plugin) == {"name", "dist", "version"} for plugin in manifest["plugins"])
    assert "shades" in [plugin["name"] for plugin in manifest["plugins"]]


def test_rows_of_metrics(run: Path) -> None:
    rows = read_jsonl(run / "metrics.jsonl")
    assert set().union(*(keys(row, "eval") for row in rows)) == documented("metrics.jsonl")
    assert {row["stage"] for row in rows} == {"sft", "rl"}


def general(metrics: Mapping[str, float]) -> set[str]:
    """A step's keys, with the page's words for names."""
    return {key.replace("task/shades/name/", "task/<task>/").replace("shades/exact", "<verifier id>") for key in metrics}


@pytest.mark.always
def test_metrics(run: Path, full: Path, acted: Path, ahead: Path, remembered: Path, improved: Path) -> None:
    beside = general(read_run(ahead).steps[1]["metrics"])
    sft, rl = (general(row["metrics"]) for row in read_run(run).steps)
    (played,) = ({re.sub(r"^episode/.*", "episode/<name>", key) for key in row["metrics"]} for row in read_run(acted).steps)
    played = {key for key in played if key.startswith(("episode/", "simulator/", "policy/"))}
    rows = [row["metrics"] for folder in (remembered, improved) for row in read_run(folder).steps]
    kept = {key for row in rows for key in row if key.startswith(("off_policy/", "recap/", "hg_dagger/"))}
    more, conditioned, distill = (general(row["metrics"]) for row in read_run(full).steps)
    always, _, asked_for = re.split(r"^### Metrics$", PAGE, flags=re.MULTILINE)[1].partition("\nAn `sft` stage has ")
    assert rl == set(re.findall(r"^\| `([^`]+)` \|", always, re.MULTILINE)), "what every such step has"
    assert rl - {"answers/most_common_share"} < more, "its groups with spread have one answer"
    several = {"turns/mean", "turns/met_again_share", "reward/environment", "environment/lost", "ranks/wait_s", "memory/gpu"}
    several |= {
        "off_policy/offline",
        "off_policy/novelty",
        "off_policy/action_size",
        *("off_policy/imitated_weight", "off_policy/noise_value_loss"),
        *("off_policy/gripper_loss", "off_policy/gripper_changes"),
        "interrupted/share",
        "interrupted/versions",
    }  # see their tests
    several |= {"perception/kl", "noisy/clean_reward", "noisy/reward", "noisy/level"}  # likewise
    several |= {"votes/agreement", "votes/voters", "chosen_share", "consistency/paid_share", "consistency/confidence"}
    routed = ("changed", "mismatch", "busiest", "unused_share", "router_entropy", "aux_loss", "z_loss")
    several |= {f"experts/{name}" for name in routed}
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    sums = PairSums(logprobs_P2=zeros, reference_P2=zeros, lengths_P2=zeros + 1, weights_P=torch.ones(1))
    stage = PreferenceStage(kind="preference", steps=1, loss="kto")
    pairs = pair_figures(credit([Term(loss="kto", settings=Settings())], sums), sums, stage).keys()
    baseline = ("answered", "baseline", "baseline_loss", "baseline_grad_norm")
    of_turns = ("remembered", "value_error", "replayed", "imitated_share", *baseline)  # see their runs' test
    valued = {f"turn_critic/{name}" for name in of_turns}
    assert several | valued | rl | beside | played | kept | more | conditioned | distill | pairs == documented("Metrics")
    times = {key for key in rl if key.startswith(("time/", "memory/"))}
    told, _, more_told = asked_for.partition(", the memory and the times. A `distill` stage also has ")
    assert sft == {*re.findall("`(.+?)`", told), *times}
    assert distill == sft | set(re.findall("`(.+?)`", more_told.partition(";")[0]))


def test_rollouts(run: Path) -> None:
    rows = [row for path in read_run(run).rollout_files for row in read_jsonl(path)]
    assert len(rows) == 8
    for row in rows:
        assert keys(row, "score") == documented("rollouts/")
        picture, text = row["messages"][0]["content"]
        assert set(picture) == {"type", "path"}
        assert set(text) == {"type", "text"}
        assert (run / "rollouts" / picture["path"]).is_file()
    assert [row["score"]["value"] is None for row in rows] == [row["advantage"] is None for row in rows]
    assert {row["score"]["status"] for row in rows} == {"ok", "failed"}


def test_overlays() -> None:
    coordinates = {"box": [0, 0, 1, 1], "point": [0, 0], "path": [0, 0, 1, 1], "grid": [1, 1], "interval": [0, 1, 2]}
    full = to_json(
        Overlay(kind=kind, coordinates=coordinates[kind], source="true", label="a", image=1, labels=["b"])
        for kind in get_args(OverlayKind)
    )
    assert len(full) == len(coordinates) and {key for overlay in full for key in overlay} == documented("overlays")
    told = re.split("^### overlays$", PAGE, flags=re.MULTILINE)[1].partition("##")[0]
    assert all(f"`{kind}`" in told for kind in get_args(OverlayKind))


def test_items_of_evaluations(run: Path) -> None:
    files = read_run(run).item_files
    assert [path.name for path in files] == ["step-000001.jsonl", "step-000002.jsonl"]
    for path in files:
        rows = read_jsonl(path)
        assert len(rows) == 4 and all(set(row) == documented("evaluations/") - {"gold", "set", "outcome"} for row in rows)
        assert {len(row["values"]) for row in rows} == {1} and None in [row["value"] for row in rows]


def test_items_of_a_task_that_acts_say_what_came_of_its_episodes(acted: Path) -> None:
    rows = [row for path in read_run(acted).item_files for row in read_jsonl(path)]
    assert rows and all(row["outcome"].keys() >= {"success", "return", "steps"} for row in rows)


def test_episodes_of_evaluations(acted: Path, run: Path) -> None:
    folders = read_run(acted).episode_folders
    assert [path.name for path in folders] == ["step-000000", "step-000001"] and read_run(run).episode_folders == []
    for folder in folders:
        rows = read_jsonl(folder / "episodes.jsonl")
        assert rows and all(set(row) == documented("episodes/") for row in rows)
        assert {row["video"] for row in rows} | {"episodes.jsonl"} == {path.name for path in folder.iterdir()}


def test_errors(run: Path) -> None:
    rows = read_jsonl(run / "errors.jsonl")
    alarms = [row for row in rows if "alarm" in row]
    assert len(rows) > len(alarms)
    assert all(set(row) == documented("errors.jsonl") - {"alarm", "level", "task"} for row in rows if row not in alarms)
    assert all(set(row) | {"task"} == documented("errors.jsonl") for row in alarms)


def test_checkpoints(run: Path, full: Path, remembered: Path, improved: Path) -> None:
    ends = run / "checkpoints" / "step-000002", remembered / "checkpoints" / "step-000001"
    ends = *ends, improved / "checkpoints" / "step-000001", improved / "checkpoints" / "step-000002"
    held = {path.name for end in ends for path in end.iterdir()}
    assert held == {name.rstrip("/") for name in documented("checkpoints/") - {"learner/", *OF_TURNS}}  # there is one learner
    parts = set(re.findall(r"`(\w+)/\.\.\.`", PAGE.split("## checkpoints/")[1].split("## ")[0]))
    tensors = load_file(full / "checkpoints" / "step-000001" / "learner.safetensors")
    assert {name.partition("/")[0] for name in tensors} == parts


def test_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_bytes())
    assert keys(summary, "seconds") == documented("summary.json") - {"peak_gpu_memory_mb"}
    for when in ("before", "best", "last"):
        assert set(summary[when]["shades/name"]) == {"metric", "value", "low", "high", "n", "extra", "intervals"}


def test_config_is_a_run_file_that_gives_the_same_run(run: Path) -> None:
    assert load_config(run / "config.toml") == load_config(run.parents[1] / "run.toml")
    assert load_config(run / "config.toml", ["name=again"]).name == "again"


def test_the_standard_library_is_enough(run: Path, tmp_path: Path) -> None:
    """The page's own program, under a Python that sees no installed package."""
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program
    (tmp_path / "read.py").write_text(program[1])
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"step":3,"st')
    command = [sys.executable, "-I", "-S", str(tmp_path / "read.py"), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, *evals = done.stdout.splitlines()
    reward = read_run(run).steps[-1]["metrics"]["reward/mean"]
    assert first == f"shades 2 steps, last reward {reward}"
    assert [line.rsplit(" ", 1)[0] for line in evals] == ["step 1 shades/name accuracy", "step 2 shades/name accuracy"]
