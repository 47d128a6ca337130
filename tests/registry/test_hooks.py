"""Every hook is documented with its exact signature, and called; the examples of the documentation work."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest
import torch

import guide
import runs
from mmrl.algorithms.loss import LossInputs
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import SIGNALS
from mmrl.api import hooks
from mmrl.api.interfaces import Simulator, Tracker
from mmrl.api.simulators import noise
from mmrl.api.specs import CAPABILITIES, AlgorithmSpec
from mmrl.config.load import parse_config
from mmrl.registry.distributions import GROUP
from mmrl.registry.plugins import Registry
from mmrl.run_folder.writer import RunFolder
from mmrl.testing import check_plugin
from mmrl.testing import simulators as simulator_checks
from mmrl.testing import tasks as task_checks
from mmrl.testing import verifiers as verifier_checks
from mmrl.train.resolve import resolve, with_algorithm_defaults
from mmrl.train.trackers import Trackers

ROOT = Path(__file__).parents[2]
HOOKS = {name: spec for name, spec in vars(hooks).items() if name.startswith("mmrl_")}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_a_heading_with_its_signature(name: str) -> None:
    signature = str(inspect.signature(HOOKS[name])).replace("'", "")
    assert f"\n## `{name}{signature}`\n" in guide.TEXT


def test_the_guide_has_no_other_hooks() -> None:
    assert set(re.findall(r"^#+ `(mmrl_\w+)\(", guide.TEXT, re.MULTILINE)) == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_says_what_it_is(name: str) -> None:
    assert HOOKS[name].__doc__ and HOOKS[name].__doc__.strip().endswith(".")


ALL = """
    from mmrl import AlarmSpec, AlgorithmSpec, FamilySpec, PolicySpec, SamplingRuleSpec, SimulatorSpec, StageSpec
    from mmrl import TaskSpec, TrackerSpec, VerifierSpec, hookimpl

    seen = []

    @hookimpl
    def mmrl_tasks(): return [TaskSpec(id="all/task", target="m:T")]

    @hookimpl
    def mmrl_verifiers(): return [VerifierSpec(id="all/verifier", target="m:T")]

    @hookimpl
    def mmrl_simulators(): return [SimulatorSpec(id="all/simulator", target="m:T")]

    @hookimpl
    def mmrl_policies(): return [PolicySpec(id="all/policy", target="m:T")]

    @hookimpl
    def mmrl_families(): return [FamilySpec(id="all/family", target="m:f", model_type="all")]

    @hookimpl
    def mmrl_algorithms(): return [AlgorithmSpec(id="all/algorithm", target="m:T", loss="m:loss")]

    @hookimpl
    def mmrl_sampling_rules(): return [SamplingRuleSpec(id="all/rule", target="m:T")]

    @hookimpl
    def mmrl_stages(): return [StageSpec(id="all/stage", target="m:T")]

    @hookimpl
    def mmrl_alarms(): return [AlarmSpec(id="all/alarm", target="m:f")]

    @hookimpl
    def mmrl_trackers(): return [TrackerSpec(id="all/tracker", target="m:T")]

    @hookimpl
    def mmrl_commands(cli): seen.append(("commands", cli))

    @hookimpl
    def mmrl_run_started(run, config): seen.append(("started", run, config["name"]))

    @hookimpl
    def mmrl_step_finished(run, step, metrics): seen.append(("step", run, step, metrics["loss"]))

    @hookimpl
    def mmrl_run_finished(status): seen.append(("finished", status))
"""


def test_every_hook_is_called(site) -> None:
    site("mmrl-all", {"mmrl_all.py": ALL}, {"all": "mmrl_all"})
    found = Registry(entry_points=entry_points(group=GROUP, name="all"))
    assert found.plugins[1].hooks == sorted(HOOKS), "this plugin implements every hook there is"
    for kind in ("task", "verifier", "simulator", "algorithm", "stage", "alarm", "tracker"):
        assert f"all/{kind}" in found.specs(f"{kind}s")
    assert (
        "all/family" in found.specs("families")
        and "all/policy" in found.specs("policies")
        and "all/rule" in found.specs("sampling_rules")
    )
    import mmrl_all

    for name, arguments in {
        "mmrl_commands": {"cli": "group"},
        "mmrl_run_started": {"run": "folder", "config": {"name": "n"}},
        "mmrl_step_finished": {"run": "folder", "step": 3, "metrics": {"loss": 0.5}},
        "mmrl_run_finished": {"run": "folder", "status": "stopped"},
    }.items():
        ((plugin, caller),) = found.callers(name)
        assert plugin == "all"
        caller(**arguments)
    assert mmrl_all.seen == [
        ("commands", "group"),
        ("started", "folder", "n"),
        ("step", "folder", 3, 0.5),
        ("finished", "stopped"),
    ]
    found.hook.mmrl_run_finished(run="folder", status="failed")
    assert mmrl_all.seen[-1] == ("finished", "failed"), "the relay calls it too"


def files_in(page: str) -> dict[str, str]:
    """File name -> content, of the python blocks whose paragraph begins with a file's name."""
    return {
        name: code
        for name, _, code in re.findall(
            r"^`(mmrl_\w+/\w+\.py)` [^\n]*\n(.*?)^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
        )
    }


@pytest.mark.parametrize("page", ["docs/plugins.md", "README.md"])
def test_the_first_plugin_keeps_all_rules(site, page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    files = files_in(text)
    assert set(files) == {"mmrl_flags/__init__.py", "mmrl_flags/task.py"}
    assert 'flags = "mmrl_flags"' in text
    site("mmrl-flags", files, {"flags": "mmrl_flags"})
    task, verifier = check_plugin("flags")
    assert (task.id, verifier.id) == ("flags/country", "flags/exact")


def test_the_example_of_each_hook_loads(site) -> None:
    blocks = [code for language, code in BLOCK.findall(guide.TEXT) if language == "python" and "@hookimpl" in code]
    shown: set[str] = set()
    for i, code in enumerate(blocks):
        site(f"example-{i}", {f"mmrl_example_{i}.py": code}, {f"flags{i}": f"mmrl_example_{i}"})
        (ep,) = entry_points(group=GROUP, name=f"flags{i}")
        name = next(iter(re.findall(r'id="(\w+)/', code)), "flags")
        found = Registry(entry_points=[type(ep)(name, ep.value, GROUP)])
        assert found.plugins[1].error is None, f"{found.plugins[1].error}\n{code}"
        shown |= set(found.plugins[1].hooks)
    assert shown == set(HOOKS)


def test_the_examples_of_observers_run(site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = next(c for language, c in BLOCK.findall(guide.TEXT) if "mmrl_run_started" in c)
    site("mmrl-watch", {"mmrl_watch.py": code}, {"watch": "mmrl_watch"})
    hook = Registry(entry_points=entry_points(group=GROUP, name="watch")).hook

    class Folder:
        path = "runs/x"

    hook.mmrl_run_started(run=Folder, config={"name": "x"})
    hook.mmrl_step_finished(run=Folder, step=7, metrics={"reward/mean": 0.95})
    hook.mmrl_step_finished(run=Folder, step=8, metrics={"reward/mean": 0.85})
    hook.mmrl_run_finished(run=Folder, status="finished")
    assert capsys.readouterr().out == "x begins in runs/x\nstep 7 is good\nruns/x finished\n"


def test_the_guide_has_the_table_of_signals() -> None:
    """MMRL_UPDATE_DOCS=1 writes it anew."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in SIGNALS.items()]
    table = "\n".join(["", "| signal | what it is |", "|---|---|", *rows, ""])
    path = guide.page_with("<!-- signals: begin")
    page = path.read_text("utf-8")
    begin, end = (re.search(rf"<!-- signals: {mark}.*-->\n?", page) for mark in ("begin", "end"))
    assert begin and end
    if os.environ.get("MMRL_UPDATE_DOCS"):
        page = page[: begin.end()] + table + page[end.start() :]
        path.write_text(page, "utf-8")
        end = re.search(r"<!-- signals: end.*-->\n?", page)
    assert end and page[begin.end() : end.start()] == table


def test_the_guide_has_every_field_of_an_algorithm() -> None:
    section = guide.section("`mmrl_algorithms()")
    for field in dataclasses.fields(AlgorithmSpec):
        assert f"`{field.name}`" in section or f"`{field.name}=`" in section or f"{field.name}=" in section
    assert str(AlgorithmSpec(id="a/b", target="c:d").loss) in section, "the guide names the loss that is the default"


def test_the_guide_shows_what_a_loss_sees_and_what_a_simulator_does() -> None:
    for field in dataclasses.fields(LossInputs):
        assert f"\n| `{field.name}` | " in guide.TEXT
    for name, method in inspect.getmembers(Simulator, inspect.isfunction):
        if not name.startswith("_"):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            call = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters)
            assert f"`{name}({call})`" in guide.TEXT


def test_the_simulator_of_the_guide_keeps_all_rules(site) -> None:
    """Whole: no check of it is skipped, and its task and its verifier pass too."""
    (code,) = re.findall(r"in the file `hoist\.py`:\n\n```python\n(.*?)^```$", guide.TEXT, re.MULTILINE | re.DOTALL)
    site("mmrl-hoist", {"hoist.py": code}, {"hoist": "hoist"})
    reports = check_plugin("hoist", n=8)
    assert [(r.kind, r.id) for r in reports] == [
        ("task", "hoist/flag"),
        ("simulator", "hoist/pole"),
        ("verifier", "hoist/success"),
    ]
    (run_file,) = (text for language, text in BLOCK.findall(guide.TEXT) if language == "toml" and "hoist/flag" in text)
    resolve(parse_config(tomllib.loads(run_file)))
    simulator = reports[1]
    assert {r.name for r in simulator.results} == checks(simulator_checks) and not any(r.note for r in simulator.results)


@pytest.mark.slow
def test_the_gymnasium_environment_of_the_guide_keeps_all_rules_and_is_trained_on(site, tmp_path) -> None:
    pytest.importorskip("mmrl_gym")
    section = guide.section("A Gymnasium environment")
    (code,), (run_file,) = (re.findall(rf"```{language}\n(.*?)^```$", section, re.M | re.S) for language in ("python", "toml"))
    site("mmrl-ferry", {"ferry.py": code}, {"ferry": "ferry"})
    [simulator] = check_plugin("ferry")
    skipped = {r.name for r in simulator.results if r.note}
    assert simulator.ok and skipped == {"variants_reset", "expert_is_in_range"}
    folder = runs.run(parse_config({**tomllib.loads(run_file), "runs_dir": str(tmp_path)}))
    last = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["step"] == 2


def test_the_guide_has_what_a_simulator_is_written_with() -> None:
    table = guide.TEXT.partition("| capability |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`(?=[^|]* \| )", table)) == CAPABILITIES
    for function in (noise.uniform, noise.normal):
        parameters = inspect.signature(function).parameters.values()
        call = ", ".join(
            f"{'*' * (p.kind is p.VAR_POSITIONAL)}{p.name}" + ("" if p.default is p.empty else f"={p.default}")
            for p in parameters
        )
        assert f"\n| `{function.__name__}({call})` | " in guide.TEXT


@pytest.fixture
def rloo(tmp_path: Path) -> Path:
    """The guide's algorithm, in the file that the guide names."""
    (code,) = re.findall(r"in the file `rloo\.py`:\n\n```python\n(.*?)^```$", guide.TEXT, re.MULTILINE | re.DOTALL)
    path = tmp_path / "rloo.py"
    path.write_text(code, "utf-8")
    return path


def test_the_example_of_an_algorithm_computes_what_it_says(rloo: Path, site) -> None:
    Registry(files=[rloo], entry_points=[])
    import rloo as example

    nan = torch.nan
    rewards_N = torch.tensor([1.0, 0.0, 0.5, nan, 0.1, 0.1, 0.1, 1.0, nan], dtype=torch.float64)
    groups_N = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 3])
    lengths_N = torch.tensor([10, 20, 30, 40, 5, 5, 10, 7, 7])
    expected_N = [0.75, -0.75, 0.0, nan, 0.0, 0.0, 0.0, 0.0, nan]  # of 1: 1 - (0 + 0.5) / 2; one alone is compared with nobody
    advantages_N = example.leave_one_out(rewards_N, groups_N, lengths_N)
    assert advantages_N.dtype == torch.float32
    assert advantages_N.tolist() == pytest.approx(expected_N, abs=0, nan_ok=True)
    # 0.9, -0.2 and 0.2 after the price of 1 for a hundred tokens; then 0.05, 0.05 and 0
    priced_N = [0.9, -0.75, -0.15, nan, 0.025, 0.025, -0.05, 0.0, nan]
    assert example.leave_one_out(rewards_N, groups_N, lengths_N, price=1.0).tolist() == pytest.approx(priced_N, nan_ok=True)

    ratio_L = torch.tensor([1.0, 2.0, 0.5, 1.25])
    logprobs_L = torch.tensor([-1.0, -2.0, -0.5, -4.0], requires_grad=True)
    inputs = LossInputs(
        logprobs_L=logprobs_L,
        old_logprobs_L=(logprobs_L - ratio_L.log()).detach(),
        advantages_L=torch.tensor([1.0, 1.0, -2.0, 3.0]),
        rollout_L=torch.zeros(4, dtype=torch.int64),
        lengths_N=torch.tensor([4]),
    )
    loss_L, clipped_L = example.cispo(inputs, clip_low=0.25, clip_high=0.5)  # weights 1, 1.5 for 2, 0.75 for 0.5, 1.25
    loss_L.sum().backward()
    assert loss_L.tolist() == pytest.approx([1.0, 3.0, -0.75, 15.0])
    assert clipped_L.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert logprobs_L.grad is not None and logprobs_L.grad.tolist() == pytest.approx([-1.0, -1.5, 1.5, -3.75])


def test_the_example_of_an_algorithm_trains(rloo: Path, site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stage that the guide shows, but for its length."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, str(rloo)]))
    run_file = next(code for language, code in BLOCK.findall(guide.TEXT) if language == "toml" and "rloo/cispo" in code)
    (stage,) = tomllib.loads(run_file)["stages"]
    algorithm = load_algorithm("rloo/cispo", stage["settings"])
    assert algorithm.needs == ("rewards_N", "groups_N", "lengths_N") and algorithm.normalise == "token"
    assert with_algorithm_defaults(runs.toy_config(tmp_path, stages=[stage])).stages[0].dynamic_sampling == 2, (
        "its stage's default"
    )
    stage |= {"steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2}
    folder = runs.run(runs.toy_config(tmp_path, stages=[stage], evaluate={"num_prompts": 0}))
    shares = [row["metrics"]["clip_share"] for row in runs.rows(folder)]
    assert len(shares) == 2 and all(share > 0 for share in shares), "the example's own bounds took effect in the second epoch"


def test_the_example_of_a_tracker_writes_what_it_says(site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"in the file `lines\.py`:\n\n```python\n(.*?)^```$", guide.TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "lines.py").write_text(code, "utf-8")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "lines.py"))
    values = {
        "name": "x",
        "policy": {"model": "tiny:qwen2_5_vl"},
        "tasks": [{"id": "a/b"}],
        "stages": [{"kind": "rl", "steps": 2}],
    }
    (command,) = (code for language, code in BLOCK.findall(guide.TEXT) if language == "sh" and "lines.py" in code)
    config = parse_config(values, [re.search(r"--set '(.+)'", command)[1]])
    (tmp_path / "run").mkdir()
    notes: list[str] = []
    for after, status in ((0, "stopped"), (1, "finished")):
        trackers = Trackers(config, RunFolder(tmp_path / "run"), notes.append)
        trackers.start(after)
        trackers.log(after + 1, {"loss": 0.5, "reward/mean": 1 / 3})
        trackers.finish(status)
    assert notes == []
    assert (tmp_path / "run" / "lines.txt").read_text().splitlines() == [
        "x begins",
        "1 loss=0.5 reward/mean=0.3333",
        "stopped",
        "x goes on after step 1",
        "2 loss=0.5 reward/mean=0.3333",
        "finished",
    ]


def test_the_guide_shows_the_methods_of_a_tracker() -> None:
    for name, method in inspect.getmembers(Tracker, inspect.isfunction):
        if not name.startswith("_"):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            keywords = ["*"] if parameters[0].kind is parameters[0].KEYWORD_ONLY else []
            assert f"\n| `{name}({', '.join(keywords + [p.name for p in parameters])})` | " in guide.TEXT


def checks(module: ModuleType) -> set[str]:
    return {c.__name__ for c in (*getattr(module, "GATES", ()), *module.CHECKS)}


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("check of a task", checks(task_checks)),
        ("check of a verifier", checks(verifier_checks) | {"gold_scores_highest"}),
        ("check of a simulator", checks(simulator_checks)),
    ],
)
def test_the_guide_lists_every_check(heading: str, expected: set[str]) -> None:
    table = guide.TEXT.partition(f"| {heading} |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == expected
