"""docs/examples.md and docs/examples/ have an example that runs for each public name."""

from __future__ import annotations

import ast
import importlib
import inspect

import docs_code
import docs_reference
import mmrl
import mmrl.testing

PAGES = [docs_code.ROOT / "docs" / "examples.md", *sorted((docs_code.ROOT / "docs" / "examples").glob("*.md"))]
PROCESS = "changes the process that calls it, so an example would change the tests' own"
CHANNEL = "a part of `EnvironmentProcesses` or `ChatEndpoint`, whose example runs it"
OPTIONS = "mmrl reads by it what a plugin only declares"
READ = ("choices_of", "describe_hint", "hints_of", "is_one_of", "options_class", "parameters_of", "type_mismatch")
WITHOUT = {
    "mmrl.api.endpoints.requests.LimitedStream": CHANNEL,
    "mmrl.api.endpoints.requests.LimitedTransport": CHANNEL,
    "mmrl.api.endpoints.requests.open_client": CHANNEL,
    "mmrl.api.endpoints.requests.send": CHANNEL,
    "mmrl.api.episodes.plain_instruction": "guidance calls it",
    "mmrl.api.errors.warns_of_loss": "the engine's warnings of lost episodes call it",
    "mmrl.api.errors.nearest_first": "errors for unknown options call it",
    "mmrl.api.operators.prepare_torchvision": "import mmrl calls it",
    "mmrl.api.simulators.layout.asked_until": "demonstrations in chunks call it",
    "mmrl.api.processes.answers.EndedEarly": PROCESS,
    "mmrl.api.processes.answers.TookTooLong": PROCESS,
    "mmrl.api.processes.answers.answer_to": PROCESS,
    "mmrl.api.processes.answers.exchange": PROCESS,
    "mmrl.api.processes.child.beside": PROCESS,
    "mmrl.api.processes.child.die_with": PROCESS,
    "mmrl.api.processes.child.limit": PROCESS,
    "mmrl.api.processes.child.main": PROCESS,
    "mmrl.api.processes.child.on_death_of_parent": PROCESS,
    "mmrl.api.processes.child.read_request": PROCESS,
    "mmrl.api.processes.child.take_pipes": PROCESS,
    "mmrl.api.processes.guard.adopt_orphans": PROCESS,
    "mmrl.api.processes.guard.guard": PROCESS,
    "mmrl.api.processes.system_calls.forbid": PROCESS,
    "mmrl.api.sampling.Continued": "`StepSampler.go_on` gives it, in a run",
    "mmrl.api.simulators.processes.probe.Empty": PROCESS,
    "mmrl.api.simulators.processes.probe.Probe": PROCESS,
    "mmrl.api.simulators.processes.child.receive": CHANNEL,
    "mmrl.api.simulators.processes.child.send": CHANNEL,
    **dict.fromkeys((f"mmrl.api.annotations.{name}" for name in READ), OPTIONS),
    "mmrl.api.simulators.processes.child.serve": CHANNEL,
    "mmrl.api.simulators.processes.process.Process": CHANNEL,
    "mmrl.api.tasks.data_sets.load_data_set": "`read_table` calls it",
    "mmrl.api.tasks.data_sets.load_parquet": "`read_table` calls it",
    **dict.fromkeys((f"mmrl.api.tasks.shards.{name}" for name in ("Shards", "column_name", "named")), "`read_table` calls it"),
    "mmrl.api.transfer.Pinned": "a part of `upload`, whose example runs it",
    "mmrl.api.transfer.stream_of": "a key of caches on a GPU",
}
"""Names of `mmrl.api` without an example, and why."""


def used(code: str) -> set[str]:
    """The public names that a piece of code uses, beyond importing them: `mmrl.Task`, `mmrl.api.seeds.derive`."""
    tree = ast.parse(code)
    home: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            home |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            home |= {alias.name: alias.name for alias in node.names}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in home:
            found.add(home[node.id])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in home:
            found.add(f"{home[node.value.id]}.{node.attr}")
    return found


def shown() -> set[str]:
    """What the examples of the pages use. tests/docs/test_blocks.py runs them."""
    blocks = [block for block in docs_code.blocks(PAGES) if block.language == "python" and not block.why]
    return set[str]().union(*(used(block.body) for block in blocks))


def test_a_name_that_is_only_imported_is_not_shown():
    code = "import mmrl\nfrom mmrl import Case, Score\nfrom mmrl.api import seeds\nmmrl.open_task(Score(1), seeds.derive(1))"
    assert used(code) == {"mmrl.open_task", "mmrl.Score", "mmrl.api.seeds.derive", "mmrl.api.seeds", "mmrl"}


def test_each_name_of_the_package_and_of_its_tests_has_an_example():
    public = {f"mmrl.{name}" for name in mmrl.__all__} | {f"mmrl.testing.{name}" for name in mmrl.testing.__all__}
    assert sorted(public - shown()) == []


def test_each_helper_has_an_example():
    """Those of `mmrl.api`, but for the few in `WITHOUT`."""
    helpers, there = set[str](), shown()
    for module in docs_reference.modules():
        if module.startswith("mmrl.api."):
            own = importlib.import_module(module)
            helpers |= {
                f"{module}.{name}"
                for name, value in vars(own).items()
                if name[0] != "_"
                and getattr(value, "__module__", "") == module
                and (inspect.isclass(value) or inspect.isfunction(value))
            }
    names = {name.rpartition(".")[2] for name in there}
    having = {helper for helper in helpers if helper in there or (helper.rpartition(".")[2] in names & {*mmrl.__all__})}
    print(f"{len(having)} of {len(helpers)} names of mmrl.api have an example")
    assert helpers - having == WITHOUT.keys()
