"""docs/run-files.md names every key with its type, default and meaning, and its examples are valid.

MMRL_UPDATE_DOCS=1 writes the table anew.
"""

import ast
import json
import os
import re
import tomllib
import typing
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mmrl.config import load as configs
from mmrl.config import off_policy, sections

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "run-files.md"
SECTIONS: list[tuple[str, type[sections.Section]]] = [
    ("", sections.RunConfig),
    ("[policy]", sections.PolicyConfig),
    ("[policy.video]", sections.VideoConfig),
    ("[policy.lora]", sections.LoraConfig),
    ("[[tasks]]", sections.TaskConfig),
    ("[[stages]]", sections.Training),
    ('[[stages]] kind = "sft"', sections.SftStage),
    ('[[stages]] kind = "rl"', sections.RlStage),
    ('[[stages]] kind = "distill"', sections.DistillStage),
    ('[[stages]] kind = "preference"', sections.PreferenceStage),
    ('[[stages]] kind = "off-policy"', sections.OffPolicyStage),
    ('[[stages]] kind = "recap"', sections.RecapStage),
    ('[[stages]] kind = "hg-dagger"', sections.HgDaggerStage),
    ('[[stages]] kind = "PLUGIN/NAME"', sections.PluginStage),
    ("[stages.select]", sections.SelectConfig),
    ("[[stages.parts]]", sections.PartConfig),
    ("[stages.critic]", sections.CriticConfig),
    ("[stages.turn_critic]", sections.TurnCriticConfig),
    ("[stages.imitation]", sections.ImitationConfig),
    ("[stages.adaptive_entropy]", sections.AdaptiveEntropyConfig),
    ("[stages.entropy_control]", sections.EntropyConfig),
    ("[stages.perception]", sections.PerceptionConfig),
    ("[stages.noisy]", sections.NoisyConfig),
    ("[stages.consistency]", sections.ConsistencyConfig),
    ("[[stages.rules]]", sections.RuleConfig),
    ("[stages.length]", sections.LengthConfig),
    ("[stages.condition]", sections.ConditionConfig),
    ("[stages.curriculum]", sections.CurriculumConfig),
    ("[stages.epoch_filter]", sections.EpochFilterConfig),
    ("[stages.reweight]", sections.ReweightConfig),
    ("[stages.experts]", sections.ExpertsConfig),
    ("[stages.improve]", off_policy.ImproveConfig),
    ("[stages.td3]", off_policy.Td3Config),
    ("[stages.iql]", off_policy.IqlConfig),
    ("[stages.crossq]", off_policy.CrossqConfig),
    ("[stages.noise_aliasing]", off_policy.NoiseAliasingConfig),
    ("[stages.gripper]", off_policy.GripperConfig),
    ("[generate]", sections.GenerateConfig),
    ("[simulate]", sections.SimulateConfig),
    ("[evaluate]", sections.EvaluateConfig),
    ("[evaluate.steering]", sections.SteeringConfig),
    ("[judge]", sections.JudgeConfig),
    ("[train]", sections.TrainConfig),
    ("[compute]", sections.ComputeConfig),
    ("[checkpoint]", sections.CheckpointConfig),
    ("[record]", sections.RecordConfig),
    ("[limits]", sections.LimitsConfig),
    ("limits.NAME", sections.Alarm),
]
INTRODUCTIONS = {
    sections.Training: "Keys of every kind of stage. The kinds below list what they have besides, and where their default "
    "differs.",
    sections.PluginStage: "[A kind of stage that a plugin brings](plugins/algorithms.md#mmrl_stages---sequencestagespec).",
    sections.Alarm: "What each of `[limits]` may say, such as `blind = {warn = 0.8, stop = 1.0}`.",
}
GROUPS = {
    "prompts_per_step": "What is sampled, and how it is learned from",
    "kl_coef": "The KL penalty",
    "success_threshold": "Which completions are trained on",
    "adapt_task_weights": "Which prompts come",
    "critic": "Sections of their own",
}
"""The first key of each part of the long table -> the part's title."""
TOP = ("tasks", "stages", "policy")
"""Keys that are documented as sections."""


def keys(model: type[sections.Section]) -> dict[str, FieldInfo]:
    """The rows of a section: a stage has those that are not every stage's, or have a default of their own."""
    fields = dict(model.model_fields)
    if model is sections.RunConfig:
        return {k: f for k, f in fields.items() if k not in TOP and not isinstance(f.default, sections.Section)}
    if issubclass(model, sections.Training):
        del fields["kind"]
        if model is not sections.Training:
            common = sections.Training.model_fields
            return {k: f for k, f in fields.items() if k not in common or f.default != common[k].default}
    return fields


def table() -> str:
    lines: list[str] = []
    for title, model in SECTIONS:
        lines += ["", f"### `{title}`" if title else "### Top level"]
        if model in INTRODUCTIONS:
            lines += ["", INTRODUCTIONS[model]]
        head = ["", "| key | default | meaning |", "|---|---|---|"]
        for i, (name, field) in enumerate(keys(model).items()):
            if model is sections.RlStage and name in GROUPS:
                lines += ["", f"#### {GROUPS[name]}", *head]
            elif i == 0:
                lines += head
            lines.append(
                f"| `{name}` | {default(field)} | {' '.join((field.description or '').split()).replace('|', chr(92) + '|')} |"
            )
    return "\n".join([*lines, ""])


def default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "unset" if field.default is None else f"`{toml(field.default)}`"


def toml(value: typing.Any) -> str:
    if isinstance(value, sections.Section):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value if v is not None) + "}"
    return json.dumps(value) if isinstance(value, bool | str | list) else str(value)


def sections_in(annotation: typing.Any) -> set[type[sections.Section]]:
    """Every section that a type may hold, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, sections.Section):
        return {annotation}.union(*(sections_in(f.annotation) for f in annotation.model_fields.values()))
    return set[type[sections.Section]]().union(*(sections_in(a) for a in typing.get_args(annotation)))


def test_every_section_is_documented():
    assert sections_in(sections.RunConfig) | {sections.Training} == {model for _, model in SECTIONS}


def test_the_parts_of_the_long_table_begin_with_keys_of_the_schema():
    assert GROUPS.keys() <= keys(sections.RlStage).keys()


def test_the_table_of_keys_is_that_of_the_schema():
    text = PAGE.read_text()
    begin, end = (re.search(rf"<!-- keys: {mark}.*-->\n?", text) for mark in ("begin", "end"))
    if os.environ.get("MMRL_UPDATE_DOCS"):
        PAGE.write_text(text[: begin.end()] + table() + text[end.start() :])
        text = PAGE.read_text()
        end = re.search(r"<!-- keys: end.*-->\n?", text)
    assert text[begin.end() : end.start()] == table()


@pytest.mark.parametrize("title, model", SECTIONS, ids=lambda v: str(v)[:20])
def test_every_key_says_what_it_does(title, model):
    named = (
        {"generate", "simulate", "evaluate", "judge", "train", "compute", "checkpoint", "record", "limits"}
        if model is sections.RunConfig
        else set()
    )
    assert [n for n, f in model.model_fields.items() if not f.description and n not in named] == []


def test_the_examples_are_valid():
    blocks = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    whole = blocks[0]
    assert configs.parse_config(whole).stages[0].steps == 60
    for block in blocks[1:]:
        configs.parse_config({**whole, **block})
    (tasks,) = [configs.parse_config({**whole, **b}).tasks for b in blocks[1:] if "tasks" in b]
    assert [(t.label, t.weight) for t in tasks] == [("classification/digits", 3), ("birds", 1)]


def test_links_lead_somewhere():
    for page in ("run-files.md", "algorithms.md", "training.md", "plugins.md", "cli.md"):
        text = (ROOT / "docs" / page).read_text()
        for target, mark in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            path = ROOT / "docs" / (target or page)
            assert path.exists(), f"{page} links to {target}"
            if mark:
                headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                assert mark in {anchor(h) for h in headings}, f"{page} links to {target}#{mark}"


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda p: p.name)
def test_every_run_file_of_the_repository_is_valid(path):
    assert configs.load_config(path).name


def test_every_key_is_read_somewhere():
    """A key that nothing reads would be a setting without effect."""
    read = set()
    for path in (ROOT / "mmrl").rglob("*.py"):
        if path.parent != ROOT / "mmrl" / "config":
            read |= {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    names = {name for _, model in SECTIONS for name in model.model_fields}
    alarms = ast.walk(ast.parse((ROOT / "mmrl" / "train" / "alarms.py").read_text()))
    read |= {node.value for node in alarms if isinstance(node, ast.Constant) and node.value in sections.LimitsConfig.model_fields}
    assert names - read == set()
