"""Finding, loading and refusing plugins: each kind of failure and each switch."""

from __future__ import annotations

import json
import pickle
import textwrap
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from mmrl import CONTRACT, Case, UserError
from mmrl.api.errors import PluginError
from mmrl.api.simulators.types import Simulation
from mmrl.registry.distributions import GROUP
from mmrl.registry.plugin_info import PluginInfo
from mmrl.registry.plugins import Registry, registry

FLAGS = """
    from mmrl import TaskSpec, VerifierSpec, hookimpl

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id="flags/country", target="mmrl_flags.task:Country", options={"size": 8},
                         verifiers={"flags/exact": 1.0})]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="flags/exact", target="mmrl_flags.task:exact")]
"""
TASK = """
    from mmrl import Case, Prompt, Task, user_message

    class Country(Task):
        def __init__(self, size, colour="red"):
            self.size, self.colour = size, colour

        def prompts(self, split, seed):
            return [Prompt(id="a", messages=[user_message("Which?")], answer="chad")]

    def exact(case: Case, *, lower: bool = False) -> float:
        return float((case.completion.lower() if lower else case.completion) == case.answer)
"""
GOOD = {"mmrl_flags/__init__.py": FLAGS, "mmrl_flags/task.py": TASK}


def specs(id: str, hook: str = "mmrl_tasks", cls: str = "TaskSpec", extra: str = "") -> str:
    """A plugin of one spec."""
    return f'from mmrl import {cls}, hookimpl\n@hookimpl\ndef {hook}(): return [{cls}(id="{id}", target="m:T"{extra})]\n'


def load(*names: str, **switches) -> Registry:
    """A registry of the test's own plugins, whatever else is installed."""
    return Registry(entry_points=[ep for name in names for ep in entry_points(group=GROUP, name=name)], **switches)


def info(found: Registry, name: str) -> PluginInfo:
    return next(p for p in found.plugins if p.name == name)


def test_a_good_plugin_is_listed_and_used(site) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"}, version="0.3")
    found = load("flags")
    assert info(found, "flags") == PluginInfo(
        name="flags",
        dist="mmrl-flags",
        version="0.3",
        target="mmrl_flags",
        hooks=["mmrl_tasks", "mmrl_verifiers"],
        specs={"tasks": ["flags/country"], "verifiers": ["flags/exact"]},
        error=None,
    )
    assert list(found.specs("tasks")) == ["flags/country"]
    assert found.get("tasks", "flags/country").metric == "flags/exact"
    assert found.make_task("flags/country").size == 8, "the spec's options are defaults"
    assert found.make_task("flags/country", {"size": 9}).size == 9
    exact, lenient = found.make_verifier("flags/exact"), found.make_verifier("flags/exact", {"lower": True})
    case = Case(completion="Chad", answer="chad")
    assert (exact(case), lenient(case)) == (0.0, 1.0)
    assert pickle.loads(pickle.dumps(lenient))(case) == 1.0


def test_the_core_brings_its_own_without_prefix() -> None:
    found = Registry(entry_points=[])
    assert [p.name for p in found.plugins] == ["mmrl"]
    assert "grpo" in found.specs("algorithms") and "vlm" in found.specs("policies")


BROKEN = {
    "a missing module": ("import no_such_sim", "failed to import: no module named 'no_such_sim': install its package"),
    "its own missing part": (
        "import mmrl_bad.tsk",
        "failed to import: no module named 'mmrl_bad.tsk': correct the name, or install the plugin again",
    ),
    "an extra of the core": ("import vllm.nothing", "no module named 'vllm': pip install \"multimodal-rl[vllm]\""),
    "an exception": ("1 / 0", "failed to import: ZeroDivisionError: division by zero"),
    "an exit": ("raise SystemExit(3)", "failed to import: SystemExit: 3"),
    "a squatted id": (specs("flags/country"), "id 'flags/country' must start with 'bad/', the name of the plugin's entry point"),
    "no prefix": (specs("country"), "id 'country' must start with 'bad/'"),
    "a malformed id": (specs("bad/a/b"), "id 'bad/a/b' is not plugin/name[-vN][@system]"),
    "an id with a space": (specs("bad/a b"), "id 'bad/a b' is not plugin/name[-vN][@system]"),
    "an id with a line break": (specs("bad/a\\n"), "is not plugin/name[-vN][@system]"),
    "a target that is none": (specs("bad/a").replace("m:T", "m.T"), "the target of 'bad/a' must be \"module:Name\", not 'm.T'"),
    "a misspelt hook": (specs("bad/a", "mmrl_task"), "there is no hook 'mmrl_task'. Did you mean 'mmrl_tasks'?"),
    "an unmarked hook": (specs("bad/a").replace("@hookimpl", ""), "mmrl_tasks lacks the decorator: put @hookimpl"),
    "an unknown argument": (
        "from mmrl import hookimpl\n@hookimpl\ndef mmrl_tasks(config): return []",
        "mmrl_tasks has no parameter 'config'. It has none",
    ),
    "a misspelt argument": (
        "from mmrl import hookimpl\n@hookimpl\ndef mmrl_step_finished(run, step, metric): pass",
        "mmrl_step_finished has no parameter 'metric'. Did you mean 'metrics'? It has run, step, metrics",
    ),
    "no return": (
        "from mmrl import hookimpl\n@hookimpl\ndef mmrl_tasks(): pass",
        "must return a list of TaskSpec, not NoneType; is the `return` missing?",
    ),
    "no list": (
        "from mmrl import hookimpl\n@hookimpl\ndef mmrl_tasks(): yield 1",
        "must return a list of TaskSpec, not generator",
    ),
    "another kind": (
        specs("bad/a", "mmrl_tasks", "VerifierSpec"),
        "mmrl_tasks() must return a list of TaskSpec; it holds a VerifierSpec",
    ),
    "a raising hook": (
        "from mmrl import hookimpl\n@hookimpl\ndef mmrl_tasks(): return {}['x']",
        "mmrl_tasks() raised KeyError: 'x'",
    ),
    "an id twice": (specs("bad/a").replace("return [", "return 2 * ["), "mmrl_tasks() returns the id 'bad/a' twice"),
    "a range upside down": (
        specs("bad/a", "mmrl_verifiers", "VerifierSpec", ", low=1.0, high=0.0"),
        "needs low < high, not 1.0 and 0.0",
    ),
    "a range without numbers": (
        specs("bad/a", "mmrl_verifiers", "VerifierSpec", ", low=None"),
        "low of 'bad/a' must be a finite number, not None",
    ),
    "a weight that is none": (
        specs("bad/a", extra=", verifiers={'bad/b': float('nan')}"),
        "'bad/a' needs a finite weight for 'bad/b', not nan",
    ),
    "a weight that is true": (
        specs("bad/a", extra=", verifiers={'bad/b': True}"),
        "'bad/a' needs a finite weight for 'bad/b', not True",
    ),
    "an alarm below 0": (
        specs("bad/a", "mmrl_alarms", "AlarmSpec", ", warn=-1.0"),
        "warn of 'bad/a' must be a number of at least 0, or None, not -1.0",
    ),
    "an alarm at a word": (
        specs("bad/a", "mmrl_alarms", "AlarmSpec", ", stop='high'"),
        "stop of 'bad/a' must be a number of at least 0, or None, not 'high'",
    ),
    "verifiers in a list": (specs("bad/a", extra=", verifiers=['bad/b']"), "verifiers of 'bad/a' must be a dict by names, not ["),
    "a metric that is no text": (specs("bad/a", extra=", metric=3"), "metric of 'bad/a' must be a text, not 3"),
    "a paper that is no text": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", paper=None"),
        "paper of 'bad/a' must be a text",
    ),
    "a stage that is none": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", stage_defaults=None"),
        "stage_defaults of 'bad/a' must be a dict",
    ),
    "a stage by numbers": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", stage_defaults={3: 4}"),
        "stage_defaults of 'bad/a' must be a dict",
    ),
    "a summary that is none": (specs("bad/a", extra=", summary=None"), "summary of 'bad/a' must be a text, not None"),
    "a simulator with one camera as a text": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", cameras='front'"),
        "cameras of 'bad/a' must be a tuple of texts such as ('front',), not 'front'",
    ),
    "parts in a list": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", parts=['grasped']"),
        "parts of 'bad/a' must be a tuple of texts such as ('grasped',), not ['grasped']",
    ),
    "a number of variants": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", variants=3"),
        "variants of 'bad/a' must be a tuple of texts such as ('vision.texture',), not 3",
    ),
    "an action that is none": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", action='x'"),
        "action of 'bad/a' must be an ActionSpec with dims of at least 1, or None, not 'x'",
    ),
    "a limit of steps in words": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", max_steps='9'"),
        "max_steps of 'bad/a' must be a whole number of at least 0, not '9'",
    ),
    "a frequency that is no number": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", control_hz=float('nan')"),
        "control_hz of 'bad/a' must be a finite number of at least 0, not nan",
    ),
    "screens in words": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", screens='no'"),
        "screens of 'bad/a' must be True or False, not 'no'",
    ),
    "capabilities in a list": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", capabilities=['expert']"),
        "capabilities of 'bad/a' must be a frozenset of some of batched-gpu, expert, ",
    ),
    "an unknown capability": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", capabilities=frozenset({'export'})"),
        "snapshot, not frozenset({'export'})",
    ),
    "a doctor that is a number": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", doctor=5"),
        "doctor of 'bad/a' must be a text \"module:function\", not 5",
    ),
    "a doctor without a function": (
        specs("bad/a", "mmrl_simulators", "SimulatorSpec", ", doctor='sim'"),
        "doctor of 'bad/a' must be a text \"module:function\", not 'sim'",
    ),
    "a policy that acts in words": (
        specs("bad/a", "mmrl_policies", "PolicySpec", ", acts='yes'"),
        "acts of 'bad/a' must be True or False, not 'yes'",
    ),
    "a tiny policy that is a flag": (
        specs("bad/a", "mmrl_policies", "PolicySpec", ", tiny=True"),
        "tiny of 'bad/a' must be a text or None, not True",
    ),
    "a verifier that is graded in words": (
        specs("bad/a", "mmrl_verifiers", "VerifierSpec", ", graded='yes'"),
        "graded of 'bad/a' must be True or False, not 'yes'",
    ),
    "a tracker that is local by number": (
        specs("bad/a", "mmrl_trackers", "TrackerSpec", ", local=1"),
        "local of 'bad/a' must be True or False, not 1",
    ),
    "verifiers by number": (specs("bad/a", extra=", verifiers=5"), "verifiers of 'bad/a' must be a dict by names, not 5"),
    "no bounds": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", bounds=None"),
        "bounds of 'bad/a' must be a dict by names, not None",
    ),
    "bounds in a tuple": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", bounds={'x': (0, 1)}"),
        "bounds of 'bad/a' must be Bounds(low=..., high=...) for 'x', not (0, 1)",
    ),
    "a normalisation that there is not": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", normalise='tokens'"),
        "normalise of 'bad/a' must be token, sequence or constant, not 'tokens'",
    ),
    "a constant that is none": (
        specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", ", constant='x'"),
        "constant of 'bad/a' must be a finite number above 0, or None, not 'x'",
    ),
    "an old field": (
        specs("bad/a", "mmrl_verifiers", "VerifierSpec", ", deadline_s=3"),
        "mmrl_verifiers(): VerifierSpec has no field 'deadline_s'. It is called 'timeout_s' since mmrl 0.2. It has id, target, ",
    ),
    "a misspelt field": (
        specs("bad/a", extra=", verifier={}"),
        "mmrl_tasks(): TaskSpec has no field 'verifier'. Did you mean 'verifiers'? It has id, target, options, ",
    ),
    "a field of another kind": (
        specs("bad/a", extra=", low=1"),
        "mmrl_tasks(): TaskSpec has no field 'low'. It has id, target, options, summary, verifiers, metric",
    ),
    "an id that is no text": (specs("5").replace('"5"', "5"), "the id of a TaskSpec must be a text such as 'bad/name', not 5"),
    **{
        f"bounds with {fault}": (
            "from mmrl.api.specs import Bounds\n" + specs("bad/a", "mmrl_algorithms", "AlgorithmSpec", f", {extra}"),
            f"bounds of 'bad/a'{message}",
        )
        for fault, extra, message in (
            ("a text as limit", "bounds={'x': Bounds(low='0')}", ": low of 'x' must be a finite number or None, not '0'"),
            ("a range upside down", "bounds={'x': Bounds(low=1, high=0)}", ": 'x' needs low <= high, not 1 and 0"),
            (
                "a text inside",
                "options={'x': 'a'}, bounds={'x': Bounds(low=0)}",
                " are for numbers: its option 'x' must be one, not 'a'",
            ),
        )
    },
    "no time": (specs("bad/a", "mmrl_verifiers", "VerifierSpec", ", timeout_s=0.0"), "needs a timeout_s above 0"),
    "a hidden old version": (
        specs("bad/a").replace("[", "[TaskSpec(id='bad/a-v2', target='m:T'), "),
        "'bad/a' stands for the highest version, 'bad/a-v2'",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_listed_with_its_fault_and_hides_no_other(site, fault: str) -> None:
    source, message = BROKEN[fault]
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    site("mmrl-bad", {"mmrl_bad/__init__.py": source}, {"bad": "mmrl_bad"})
    site("mmrl-zoo", {"mmrl_zoo.py": specs("zoo/animal")}, {"zoo": "mmrl_zoo"})
    found = load("bad", "flags", "zoo")
    assert list(found.specs("tasks")) == ["flags/country", "zoo/animal"] and "bad/a" not in found.specs("verifiers")
    bad = info(found, "bad")
    assert bad.error and message in bad.error and "\n" not in bad.error
    assert bad.specs == {} and bad.hooks == []
    with pytest.raises(PluginError, match=r"no task 'bad/x': plugin 'bad' \(mmrl-bad 0.1\) ") as raised:
        found.get("tasks", "bad/x")
    assert message in str(raised.value)
    with pytest.raises(PluginError, match=r"plugin 'bad' .*MMRL_STRICT"):
        load("bad", "flags", "zoo", strict=True)


def test_a_misspelt_field_of_a_spec_is_one_line_without_a_traceback(site) -> None:
    site("mmrl-bad", {"mmrl_bad.py": specs("bad/a", extra=", verifier={}")}, {"bad": "mmrl_bad"})
    assert info(load("bad"), "bad").cause is None


def test_a_plugin_is_committed_whole_or_not_at_all(site) -> None:
    source = specs("bad/fine") + specs("flags/squat", "mmrl_verifiers", "VerifierSpec")
    site("mmrl-bad", {"mmrl_bad.py": source + "\n@hookimpl\ndef mmrl_run_finished(run, status): 1 / 0"}, {"bad": "mmrl_bad"})
    found = load("bad")
    assert found.specs("tasks") == {} and found.specs("verifiers") == {}
    assert found.hook.mmrl_run_finished(run=None, status="finished") == []


def test_the_traceback_of_the_one_asked_for_is_chained(site) -> None:
    site("mmrl-bad", {"mmrl_bad.py": "import no_such_sim"}, {"bad": "mmrl_bad"})
    with pytest.raises(PluginError) as raised:
        load("bad").get("tasks", "bad/x")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError) and raised.value.__cause__.name == "no_such_sim"


@pytest.mark.parametrize(
    ("requires", "error"),
    [
        (["multimodal-rl>=0.2,<0.3"], None),
        (["Multimodal_RL"], None),
        (["multimodal-rl-flags>=9", "mmrl-flags>=9"], None),
        (["multimodal-rl>=9; extra == 'test'"], None),
        (
            ["multimodal-rl>=9.0"],
            'needs multimodal-rl>=9.0 and 0.2.0 is running: upgrade the core: pip install "multimodal-rl>=9.0"',
        ),
        (
            ["multimodal-rl[train]~=1.2"],
            'needs multimodal-rl~=1.2 and 0.2.0 is running: upgrade the core: pip install "multimodal-rl~=1.2"',
        ),
        (["multimodal-rl<0.1"], "needs multimodal-rl<0.1 and 0.2.0 is running: upgrade the plugin: pip install -U mmrl-zoo"),
        (
            ["multimodal-rl==0.0.*"],
            "needs multimodal-rl==0.0.* and 0.2.0 is running: upgrade the plugin: pip install -U mmrl-zoo",
        ),
        (
            ["mmrl>=0.1,<0.2"],
            "requires mmrl<0.2,>=0.1, which is another project on the package index: name multimodal-rl in its pyproject.toml, "
            "or upgrade the plugin: pip install -U mmrl-zoo",
        ),
    ],
)
def test_a_plugin_for_another_core_says_which_side_to_upgrade(site, requires: list[str], error: str | None) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": specs("zoo/animal")}, {"zoo": "mmrl_zoo"}, requires=requires)
    assert info(load("zoo"), "zoo").error == error


@pytest.mark.parametrize(
    ("declared", "number", "error"),
    [
        ("", None, None),
        (f"MMRL_CONTRACT = {CONTRACT}", CONTRACT, None),
        ("MMRL_CONTRACT = 1", None, f"was written for hook contract 1, and mmrl 0.2.0 has {CONTRACT}: upgrade the plugin"),
        (
            "MMRL_CONTRACT = 99",
            None,
            f"was written for hook contract 99, and mmrl 0.2.0 has {CONTRACT}: upgrade the core: pip install -U multimodal-rl",
        ),
        (
            "MMRL_CONTRACT = '2'",
            None,
            f"breaks the plugin contract: MMRL_CONTRACT = '2' must be a whole number such as {CONTRACT}",
        ),
    ],
)
def test_a_plugin_for_another_contract_is_refused_with_both_numbers(site, declared: str, number: int | None, error: str) -> None:
    """Before its hooks are looked at, which may be another contract's."""
    source = specs("zoo/animal") + declared + ("\n@hookimpl\ndef mmrl_gone(): pass\n" if error else "\n")
    site("mmrl-zoo", {"mmrl_zoo.py": source}, {"zoo": "mmrl_zoo"})
    found = info(load("zoo"), "zoo")
    assert (found.contract, found.error) == (number, error)


def test_one_plugin_through_two_distributions_is_listed_once(site) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    site("bundle", {}, {"flags": "mmrl_flags"})
    assert [(p.name, p.error) for p in load("flags").plugins[1:]] == [("flags", None)]


def test_a_name_that_is_taken_is_an_error_for_the_later_one(site) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    site("mmrl-other", {"other.py": specs("flags/mine")}, {"flags": "other"})
    first, second = sorted(entry_points(group=GROUP, name="flags"), key=lambda ep: ep.dist.name)
    for order in ([first, second], [second, first]):
        found = Registry(entry_points=order)
        assert [p.error is None for p in found.plugins] == [True, True, False]
        assert f"the name 'flags' is taken by {order[0].dist.name}" in found.plugins[2].error


def test_nobody_takes_the_name_of_a_plugin_whose_distribution_has_it(site) -> None:
    site("aaa", {"aaa.py": specs("classification/digits")}, {"classification": "aaa"})
    named = [p for p in Registry().plugins if p.name == "classification"]
    assert [p.dist for p in named] == [
        "multimodal-rl-classification",
        "aaa",
    ] and "is taken by multimodal-rl-classification" in named[1].error


@pytest.mark.parametrize("name", ["mmrl", "Flags", "fl ags", "fl/ags"])
def test_entry_points_have_plain_names_and_not_the_core_s(name: str) -> None:
    found = Registry(entry_points=[EntryPoint(name, "json", GROUP)])
    assert "breaks the plugin contract" in found.plugins[1].error


def test_mmrl_plugins_chooses(site) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    site("mmrl-zoo", {"mmrl_zoo.py": specs("zoo/animal")}, {"zoo": "mmrl_zoo"})
    assert list(load("flags", "zoo", only=["zoo"]).specs("tasks")) == ["zoo/animal"]
    none = load("flags", "zoo", only=[])
    assert [p.name for p in none.plugins] == ["mmrl"]
    with pytest.raises(UserError, match="plugin 'zoo' is switched off by MMRL_PLUGINS, MMRL_BLOCK or -p no:zoo"):
        none.get("tasks", "zoo/animal")
    missing = load("flags", "zoo", only=["zoo", "gone"])
    assert info(missing, "gone").error == "is not installed: pip install multimodal-rl-gone"


def test_block_leaves_one_out(site) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    site("mmrl-bad", {"mmrl_bad.py": "1 / 0"}, {"bad": "mmrl_bad"})
    found = load("flags", "bad", block=["bad"], strict=True)
    assert [p.name for p in found.plugins] == ["mmrl", "flags"]
    with pytest.raises(UserError, match=r"^-p no:flag, or MMRL_BLOCK: 'flag' is no plugin\. Did you mean 'flags'\?"):
        load("flags", "bad", block=["bad", "flag"])


def test_the_environment_decides_and_loading_is_idempotent(site, monkeypatch) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    site("mmrl-zoo", {"mmrl_zoo.py": specs("zoo/animal")}, {"zoo": "mmrl_zoo"})
    monkeypatch.setenv("MMRL_PLUGINS", "flags, zoo")
    assert registry() is registry()
    assert [p.name for p in registry().plugins] == ["mmrl", "flags", "zoo"]
    monkeypatch.setenv("MMRL_BLOCK", "flags")
    assert [p.name for p in registry().plugins] == ["mmrl", "zoo"]
    monkeypatch.setenv("MMRL_PLUGINS", "")
    assert [p.name for p in registry().plugins] == ["mmrl"]


LOCAL = """
    from mmrl import Case, Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id="my_task/one", target="my_task:One", verifiers={"my_task/exact": 1.0})]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="my_task/exact", target="my_task:exact")]

    class One(Task):
        def prompts(self, split, seed):
            return [Prompt(id=f"{split}-1", messages=[user_message("1 + 1?" + split)], answer="2")]

    def exact(case: Case) -> float:
        return float(case.completion == case.answer)
"""


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source), "utf-8")
    return path


def test_a_local_file_is_a_plugin(site, tmp_path) -> None:
    path = write(tmp_path / "my_task.py", LOCAL)
    for _ in range(2):
        found = Registry(files=[path], entry_points=[])
        assert info(found, "my_task").target == str(path) and info(found, "my_task").dist is None
        assert found.make_task("my_task/one").prompts("test", 0)[0].answer == "2"
    assert [p.name for p in Registry(files=[path, path], entry_points=[], only=["my_task"]).plugins] == ["mmrl", "my_task"]
    assert found.make_verifier("my_task/exact")(Case(completion="2", answer="2")) == 1.0


def test_a_local_file_reaches_child_processes(site, mmrl, tmp_path) -> None:
    write(tmp_path / "my_task.py", LOCAL)
    listed = mmrl("-p", "no:classification", "--plugin", "my_task.py", "list", "tasks", "--json")
    ids = [row["id"] for row in json.loads(listed.stdout)]
    assert "my_task/one" in ids and "vqa/table" in ids and not any(id.startswith("classification/") for id in ids), listed.stderr
    checked = mmrl("--plugin", "my_task.py", "check", "my_task/one", "--json")  # one check makes the rows in another process
    results = {c["name"]: c for c in json.loads(checked.stdout)[0]["checks"]}
    assert results["same_in_another_process"] == {"name": "same_in_another_process", "ok": True, "message": "", "note": ""}


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("my_task.py", "import no_such_sim", "failed to import: no module named 'no_such_sim'"),
        ("my_task.py", specs("other/one"), "must start with 'my_task/'"),
        ("json.py", LOCAL, "a module named 'json' exists already"),
        ("my-task.py", LOCAL, "must be a Python name"),
        ("My_task.py", LOCAL, "its name 'My_task' must be lower-case"),
    ],
)
def test_a_broken_local_file_is_fatal(site, tmp_path, name: str, source: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        Registry(files=[write(tmp_path / name, source)], entry_points=[])


def test_a_missing_local_file_is_fatal(tmp_path) -> None:
    with pytest.raises(UserError, match=r"gone\.py: there is no such file"):
        Registry(files=[tmp_path / "gone.py"], entry_points=[])


@pytest.mark.parametrize(
    ("kind", "id", "message"),
    [
        ("tasks", "flags/contry", "no task 'flags/contry'. Did you mean 'flags/country'?"),
        ("tasks", "flag/country", "no task 'flag/country'. Did you mean 'flags/country'?"),
        ("tasks", "gui/click", "no task 'gui/click': is the package for 'gui' installed? Try: pip install multimodal-rl-gui"),
        ("tasks", "flags/exact", "no task 'flags/exact': that is one of the verifiers"),
        ("tasks", "what; rm -rf /", "no task 'what; rm -rf /'; `mmrl list tasks` shows all"),
        ("tasks", "x" * 10_000, f"no task '{'x' * 199}; `mmrl list tasks` shows all"),
        ("tasks", f"{'X' * 10_000}/y", f"no task '{'X' * 199}; `mmrl list tasks` shows all"),
        ("algorithms", "grop", "no algorithm 'grop'. Did you mean 'grpo'?"),
        ("algorithms", "GRPO", "no algorithm 'GRPO'. Did you mean 'grpo'?"),
        (
            "algorithms",
            "geo_mean",
            "no algorithm 'geo_mean': what verl calls so is algorithm = \"gmpo\" here (docs/from-verl.md)",
        ),
    ],
)
def test_an_unknown_id_is_explained(site, kind: str, id: str, message: str) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    with pytest.raises(UserError) as raised:
        load("flags").get(kind, id)
    assert str(raised.value) == message


def test_an_unknown_id_of_a_local_file_names_the_file(site, mmrl, tmp_path) -> None:
    write(tmp_path / "my_task.py", LOCAL)
    done = mmrl("check", "my_task/one", MMRL_PLUGINS="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mmrl: no task 'my_task/one': my_task.py is here and not loaded. Try: mmrl --plugin ./my_task.py ...\n"
    assert "Did you mean 'my_task/one'?" in mmrl("--plugin", "my_task.py", "check", "my_task/on", MMRL_PLUGINS="").stderr


def test_a_bare_id_is_the_highest_version(site) -> None:
    names = ["e-v2", "e-v10", "e-v9", "e-v3@peer", "e-x-v11", "plain"]
    source = specs("zoo/{name}", "mmrl_verifiers", "VerifierSpec").replace("id=", "id=f").replace("]", f" for name in {names}]")
    site("mmrl-zoo", {"mmrl_zoo.py": source}, {"zoo": "mmrl_zoo"})
    found = load("zoo")
    for asked, got in {"e": "e-v10", "e-v2": "e-v2", "e@peer": "e-v3@peer", "e-x": "e-x-v11", "plain": "plain"}.items():
        assert found.get("verifiers", f"zoo/{asked}").id == f"zoo/{got}"
    with pytest.raises(UserError, match="Did you mean 'zoo/e-v"):
        found.get("verifiers", "zoo/e-v4")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        ("make_task", {"sise": 3}, "task 'flags/country' has no option 'sise'. Did you mean 'size'? It accepts: size, colour"),
        ("make_verifier", {"case": 3}, "verifier 'flags/exact' has no option 'case'. It accepts: lower"),
    ],
)
def test_unknown_options_are_refused(site, make: str, options: dict, message: str) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    with pytest.raises(UserError) as raised:
        getattr(load("flags"), make)("flags/country" if make == "make_task" else "flags/exact", options)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        (
            "mmrl_zoo:Animl",
            "class Animal: pass",
            "task 'zoo/animal': its target 'mmrl_zoo:Animl' does not exist, mmrl_zoo has no 'Animl'. Did you mean 'Animal'?",
        ),
        ("mmrl_zoo:Animal", "class Animal: pass", "is not a mmrl.Task but a Animal; subclass Task"),
        (
            "mmrl_zoo:Animal",
            "class Animal:\n    def __init__(self, root): pass",
            "task 'zoo/animal' needs the option 'root': give options = {root = ...} in a run file, or --set root=...; it accepts",
        ),
        ("mmrl_far:Animal", "", "task 'zoo/animal' failed to import: no module named 'mmrl_far'"),
        (
            "mmrl_zoo_heavy:Animal",
            "",
            "task 'zoo/animal' failed to import: no module named 'vllm': pip install \"multimodal-rl[vllm]\"",
        ),
        (
            "mmrl_zoo_crash:Animal",
            "",
            "task 'zoo/animal' failed to import: RuntimeError: operator torchvision::nms does not exist",
        ),
    ],
)
def test_a_target_that_is_not_what_it_says(site, target: str, source: str, message: str) -> None:
    crash = "raise RuntimeError('operator torchvision::nms\\n does not exist')"
    files = {"mmrl_zoo.py": specs("zoo/animal").replace("m:T", target) + source}
    site("mmrl-zoo", files | {"mmrl_zoo_heavy.py": "import vllm", "mmrl_zoo_crash.py": crash}, {"zoo": "mmrl_zoo"})
    with pytest.raises(UserError) as raised:
        load("zoo").make_task("zoo/animal")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("body", "message", "trace"),
    [
        ("raise UserError('size = 3 is too small: give 8')", "task 'zoo/animal': size = 3 is too small: give 8", False),
        ("'a' + 1", "task 'zoo/animal', made with {'n': 2}, raised TypeError: can only concatenate str", True),
    ],
)
def test_a_task_that_can_t_be_made_is_named(site, body: str, message: str, trace: bool) -> None:
    source = f"from mmrl import Task, UserError\nclass Animal(Task):\n    def __init__(self, n=1):\n        {body}\n"
    site("mmrl-zoo", {"mmrl_zoo.py": specs("zoo/animal").replace("m:T", "mmrl_zoo:Animal") + source}, {"zoo": "mmrl_zoo"})
    with pytest.raises(UserError) as raised:
        load("zoo").make_task("zoo/animal", {"n": 2})
    assert str(raised.value).startswith(message) and isinstance(raised.value, PluginError) == trace


def test_a_simulator_that_can_t_be_made_is_one_line_without_a_traceback(site) -> None:
    """It is mostly this machine that lacks something, such as a driver; `mmrl check` shows a plugin's author where."""
    source = """
        from mmrl import SimulatorSpec, hookimpl
        from mmrl.api.simulators.types import ActionSpec

        @hookimpl
        def mmrl_simulators():
            return [SimulatorSpec(id="zoo/cage", target="mmrl_zoo:Cage", cameras=("front",), action=ActionSpec(dims=2))]

        class Cage:
            def __init__(self, num_envs, device):
                raise RuntimeError("no Vulkan device")
    """
    site("mmrl-zoo", {"mmrl_zoo.py": source}, {"zoo": "mmrl_zoo"})
    with pytest.raises(UserError, match=r"RuntimeError: no Vulkan device: see mmrl doctor, .* mmrl check zoo/cage$") as e:
        load("zoo").make_simulator(Simulation(simulator="zoo/cage"), 1, "cpu")
    assert not isinstance(e.value, PluginError)


def test_specs_come_from_a_plugin_object_too(site) -> None:
    source = """
        from mmrl import TaskSpec, hookimpl

        class P:
            @hookimpl
            def mmrl_tasks(self):
                return [TaskSpec(id="zoo/a", target="m:T")]

        p = P()
    """
    site("mmrl-zoo", {"mmrl_zoo.py": source}, {"zoo": "mmrl_zoo:p", "ark": "mmrl_zoo:P"})
    found = load("zoo", "ark")
    assert list(found.specs("tasks")) == ["zoo/a"]
    assert "mmrl_tasks() raised TypeError" in info(found, "ark").error, "a class was given where an instance is needed"


def test_what_is_listed_is_plain_data(site) -> None:
    site("mmrl-flags", GOOD, {"flags": "mmrl_flags"})
    rows = json.loads(json.dumps([p.as_json() for p in load("flags").plugins]))
    assert rows[1]["specs"] == {"tasks": ["flags/country"], "verifiers": ["flags/exact"]} and rows[1]["error"] is None
