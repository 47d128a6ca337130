"""docs/examples.md has an example that runs for each public name of `mmrl` and `mmrl.testing`."""

from __future__ import annotations

import ast
import importlib
import inspect

import docs_code
import docs_reference
import mmrl
import mmrl.testing

PAGE = docs_code.ROOT / "docs" / "examples.md"


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
    """What the examples of the page use. tests/docs/test_blocks.py runs them."""
    blocks = [block for block in docs_code.blocks([PAGE]) if block.language == "python" and not block.why]
    return set[str]().union(*(used(block.body) for block in blocks))


def test_a_name_that_is_only_imported_is_not_shown():
    code = "import mmrl\nfrom mmrl import Case, Score\nfrom mmrl.api import seeds\nmmrl.open_task(Score(1), seeds.derive(1))"
    assert used(code) == {"mmrl.open_task", "mmrl.Score", "mmrl.api.seeds.derive", "mmrl.api.seeds", "mmrl"}


def test_each_name_of_the_package_and_of_its_tests_has_an_example():
    public = {f"mmrl.{name}" for name in mmrl.__all__} | {f"mmrl.testing.{name}" for name in mmrl.testing.__all__}
    assert sorted(public - shown()) == []


def test_how_many_helpers_have_an_example():
    """Those of `mmrl.api`, which are many: no failure, but said."""
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
    assert len(having) >= 45
