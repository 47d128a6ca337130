"""docs/algorithms.md, docs/losses.md, docs/rl-options.md, docs/training.md: every run file is accepted, and the table is that
of the code.
The guide to plugins: the fields of what tasks, verifiers and simulators handle are those of the code.

MMRL_UPDATE_DOCS=1 writes the tables anew.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import guide
import runs
from mmrl.algorithms.presets import settings_of, signals_of
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl.api.specs import AlgorithmSpec
from mmrl.api.tasks.overlays import Overlay
from mmrl.api.types import Case, Prompt, Score
from mmrl.config import load as configs
from mmrl.config.sections import DistillStage, RlStage, RunConfig, Training
from mmrl.data.prompts import gold_completion, load_prompts, prompt_at
from mmrl.policies.vlm.tiny import build
from mmrl.registry import plugins
from mmrl.registry.importing import load_target
from mmrl.testing.cases import mostly_slow
from mmrl.train.remarks import remarks
from mmrl.train.resolve import resolve, with_algorithm_defaults
from mmrl.train.smoke import smoke

pytestmark = pytest.mark.forks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in ("algorithms", "losses", "rl-options", "training")}
SHOWN = {"algorithms": PAGES["algorithms"] + PAGES["rl-options"] + PAGES["losses"], "training": PAGES["training"]}
BLOCKS = {name: re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for name, text in SHOWN.items()}
EXAMPLES = [pytest.param(page, i, id=f"{page}-{i}") for page, blocks in BLOCKS.items() for i in range(len(blocks))]


@pytest.fixture
def my_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """The task of the page that rephrases, in the file that the page names."""
    (code,) = re.findall(r"file `my_digits\.py`:\n\n```python\n(.*?)^```$", PAGES["rl-options"], re.MULTILINE | re.DOTALL)
    (tmp_path / "my_digits.py").write_text(code, "utf-8")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "my_digits.py"))
    monkeypatch.setenv("MMRL_PLUGINS", "classification,video,my_digits")


def whole(page: str, i: int) -> RunConfig:
    """A block as a run file: the first is one, the others replace parts of it; of the algorithms' all but the warm start."""
    first, block = (tomllib.loads(BLOCKS[page][k]) for k in (0, i))
    if page == "algorithms" and i and "stages" in block:
        block["stages"] = [first["stages"][0], *block["stages"]]
    return configs.parse_config({**first, **block})


def rl_stages() -> list[RlStage]:
    found = [with_algorithm_defaults(whole("algorithms", i)).stages for i in range(len(BLOCKS["algorithms"]))]
    return [s for stages in found for s in stages if isinstance(s, RlStage)]


@pytest.mark.parametrize(("page", "i"), EXAMPLES)
def test_a_run_file_is_accepted(page: str, i: int, my_digits: None) -> None:
    resolve(whole(page, i))


@pytest.mark.parametrize(("page", "i"), mostly_slow(EXAMPLES, everyday=3))
def test_a_run_file_runs(page: str, i: int, my_digits: None, tmp_path: Path) -> None:
    config = smoke(whole(page, i))
    folder = runs.run(config.model_copy(update={"runs_dir": str(tmp_path)}))
    assert (folder.path / "summary.json").is_file()


def test_the_run_files_of_the_pages_on_robots_are_accepted_without_a_remark() -> None:
    text = "".join((DOCS / f"{name}.md").read_text("utf-8") for name in ("robots", "robot-demonstrations"))
    blocks = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    files = {block["name"]: configs.parse_config(block) for block in blocks if "name" in block}
    assert set(files) == {"pick", "dagger", "distilled", "corrected"}
    assert [remarks(resolve(config)) for config in files.values()] == [[], [], [], []]


def test_the_pages_show_what_they_speak_of(my_digits: None) -> None:
    stages = rl_stages()
    shown = {s.algorithm for s in stages}
    assert {"dapo", "cispo", "ppo", "kdrl", "nft", "d3s", "filtered-cloning", "awr", "digirl"} <= shown
    assert {s.hints for s in stages} == {"none", "guide", "ghpo"}
    assert {s.ground_truth for s in stages} == {"never", "always", "when-failed"}
    assert {"ttrv", "co-reward"} <= {s.labels for s in stages}
    assert {s.imitation.rule for s in stages if s.imitation} == {"mixed", "sasr", "hpt", "relift"}
    assert any(s.condition for s in stages) and any(s.kl_target for s in stages)
    dapo, changed = [s for s in stages if s.algorithm == "dapo"]
    assert (dapo.settings, dapo.dynamic_sampling, dapo.overlong_buffer) == ({}, 3, 0.2), "DAPO as it comes"
    assert changed.settings == {"clip_high": 0.3}
    assert (changed.dynamic_sampling, changed.overlong_buffer) == (5, 0.2), "the run file's, and the algorithm's"


def test_a_block_can_be_used_as_it_stands(my_digits: None) -> None:
    """With the first file's warm start; each rl stage says its learning rate, and answers have room for gold completions."""
    for i, text in enumerate(BLOCKS["algorithms"]):
        setup = resolve(whole("algorithms", i))
        config = setup.config
        assert [s.kind for s in config.stages].count("sft") == 1 and config.stages[0].kind == "sft"
        for stage in tomllib.loads(text)["stages"]:
            assert "learning_rate" in stage, text
        tokenizer = build(hidden=32, layers=1)[1].tokenizer
        for label, task in setup.tasks.items():
            gold = [gold_completion(task, prompt_at(load_prompts(label, task, "warm", 0), k, label)) for k in range(3)]
            need = max(len(tokenizer(completion).input_ids) for completion in gold) + 1  # the end of the turn too
            assert need <= config.generate.max_tokens, text


def test_metis_rise_is_two_stages() -> None:
    (found,) = [b for b in BLOCKS["algorithms"] if "filtered-cloning" in b]
    first, second = tomllib.loads(found)["stages"]
    assert first["kind"] == second["kind"] == "rl"
    assert (second["algorithm"], second["ground_truth"]) == ("filtered-cloning", "when-failed")


def test_every_key_of_a_stage_is_explained() -> None:
    """Somewhere in the guide, apart from the table in docs/run-files.md."""
    pages = "\n".join([*PAGES.values(), (DOCS / "mixtures.md").read_text("utf-8"), (DOCS / "diagnostics.md").read_text("utf-8")])
    own = (RlStage.model_fields.keys() | DistillStage.model_fields.keys()) - Training.model_fields.keys()
    assert [key for key in sorted(own) if not re.search(rf"\b{key}\b", pages)] == []
    common = Training.model_fields.keys() - {"kind"}
    assert [key for key in sorted(common) if not re.search(rf"\b{key}\b", pages)] == []


def table() -> str:
    rows = ["", "| id | what it is | advantage | loss | normalise | its stage | paper |", "|---|---|---|---|---|---|---|"]
    for spec in plugins.Registry(entry_points=[]).specs("algorithms").values():
        assert isinstance(spec, AlgorithmSpec)
        advantage, loss = load_target(spec.target, spec.id), load_target(spec.loss, spec.id)
        constant = f"constant {spec.constant:g}" if spec.constant else "constant"
        stage = [f"`{key} = {value(v)}`" for key, v in spec.stage_defaults.items()]
        stage += ["a critic"] * ("values_NT" in signals_of(advantage)) + ["a teacher"] * (
            "teacher_logprobs_NT" in signals_of(advantage)
        )
        cells = [
            f"`{spec.id}`",
            spec.summary,
            called(advantage, spec),
            called(loss, spec),
            constant if spec.normalise == "constant" else spec.normalise,
            ", ".join(stage),
            spec.paper,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def called(function: Any, spec: AlgorithmSpec) -> str:
    """A function with the settings that the spec gives it."""
    mine = ", ".join(f"{k} = {value(v)}" for k, v in spec.options.items() if k in settings_of(function))
    return f"`{function.__name__}`" + (f" with `{mine}`" if mine else "")


def value(v: Any) -> str:
    if isinstance(v, dict):
        return "{" + ", ".join(f"{key} = {value(one)}" for key, one in v.items()) + "}"
    return f'"{v}"' if isinstance(v, str) else str(v).lower() if isinstance(v, bool) else f"{v:g}"


def test_the_table_of_algorithms_is_that_of_the_code() -> None:
    path, page = DOCS / "algorithms.md", PAGES["algorithms"]
    begin, end = (re.search(rf"<!-- algorithms: {mark}.*-->\n?", page) for mark in ("begin", "end"))
    assert begin and end
    if os.environ.get("MMRL_UPDATE_DOCS"):
        page = page[: begin.end()] + table() + page[end.start() :]
        path.write_text(page, "utf-8")
        end = re.search(r"<!-- algorithms: end.*-->\n?", page)
    assert end and page[begin.end() : end.start()] == table()


def test_there_is_a_place_for_what_was_measured() -> None:
    assert re.search(r"<!-- measured: begin -->\n.*<!-- measured: end -->\n", PAGES["algorithms"], re.DOTALL)


def fields_table(noun: type) -> str:
    """The fields of a noun, each with its type, default and what the source says below it."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(noun)).body if isinstance(node, ast.ClassDef)]
    told: dict[str, str] = {}
    for node, following in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            told[ast.unparse(node.target)] = " ".join(str(following.value.value).split())
    rows = ["", "| field | type | default | what it is |", "|---|---|---|---|"]
    for field in dataclasses.fields(noun):
        given = f"`{default(field.default)}`" if field.default is not dataclasses.MISSING else "required"
        if field.default_factory is not dataclasses.MISSING:
            given = "empty"
        what = told[field.name]
        kind = str(field.type).replace("|", "\\|")
        rows.append(f"| `{field.name}` | `{kind}` | {given} | {what} |")
    return "\n".join([*rows, ""])


def default(given: Any) -> str:
    if isinstance(given, enum.Enum):
        return f"{type(given).__name__}.{given.name}"
    return f'"{given}"' if isinstance(given, str) else repr(given)


@pytest.mark.parametrize(
    "noun", [Prompt, Overlay, Case, Score, Observation, Transition, ActionSpec], ids=lambda noun: noun.__name__
)
def test_the_guide_has_every_field_of_a_noun(noun: type) -> None:
    path = guide.page_with(f"<!-- {noun.__name__}: begin")
    page = path.read_text("utf-8")
    begin, end = (re.search(rf"<!-- {noun.__name__}: {mark}.*-->\n?", page) for mark in ("begin", "end"))
    assert begin and end
    if os.environ.get("MMRL_UPDATE_DOCS"):
        page = page[: begin.end()] + fields_table(noun) + page[end.start() :]
        path.write_text(page, "utf-8")
        end = re.search(rf"<!-- {noun.__name__}: end.*-->\n?", page)
    assert end and page[begin.end() : end.start()] == fields_table(noun)
