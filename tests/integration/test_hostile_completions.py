"""No completion makes a verifier raise, slower than its deadline or larger than a judge's worker may grow, whatever it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.types import Case
from mmrl.config.load import load_config
from mmrl.judge import local_judge
from mmrl.registry import plugins
from mmrl.testing.verifiers import Verify, case_of

ROOT = Path(__file__).parents[2]
FAMILIES = {"audio", "classification", "grounding", "gui", "jigsaw", "ssl", "vqa", "rendering", "transit", "video", "tools"}
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.toml"))
GOLDEN = ROOT / "tests" / "golden" / "rewards.jsonl"
HOSTILE = {
    "a list of two million numbers": "[" + "0," * 2_000_000 + "0]",
    "boxes without end": "[" + '{"bbox_2d": [1, 2, 30, 40], "label": "a"},' * 100_000,
    "a million boxes": "[" + "[1, 2, 30, 40]," * 300_000 + "[1, 2, 30, 40]]",
    "lists in lists": "[" * 10_000 + "]" * 10_000,
    "objects in objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "tags that open": "<answer>" * 200_000,
    "tags that close": "<think>" + "</think><answer>" * 100_000 + "</answer>",
    "a number of a million digits": "9" * 1_000_000,
    "a power": "9**9**9**9**9",
    "a factorial by another name": "$\\Gamma(10^9)$",
    "a set of two thousand numbers": "$\\{" + ",".join(map(str, range(2000))) + "\\}$",
    "intervals": "$" + "\\cup".join(f"({i},{i + 1})" for i in range(60)) + "$",
    "boxes without an area": "0, 0, 0, 0 [0, 0, 0, 0] (5, 5), (5, 5)",
    "a box beyond all numbers": ", ".join(["9" * 400] * 4),
    "blanks": " \n\t\u3000" * 50_000,
    "exponents": "1e999999999 -1e999999999 nan inf",
    "a fraction of fractions": "\\boxed{" + "\\frac{1}{" * 5_000 + "2" + "}" * 5_000 + "}",
    "boxed without end": "\\boxed{" * 200_000,
    "words": "red square " * 300_000,
    "fences": "```json\n" * 100_000,
    "paths": '<svg xmlns="http://www.w3.org/2000/svg">' + '<path d="M0 0L9 9z"/>' * 200_000 + "</svg>",
    "an entity that grows": '<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10 if i else "&a;" * 10}">' for i in range(12))
    + ']><svg xmlns="http://www.w3.org/2000/svg"><text>&a11;</text></svg>',
    "arcs of a hundred thousand pixels": '<svg viewBox="0 0 56 56"><path stroke="red" stroke-width="2" fill="none" d="M0 0'
    + "a1e5 1e5 0 1 1 1 1" * 570
    + '"/></svg>',
    "a picture on which the renderer panics": '<svg viewBox="-1 1 100 100"><path d="M0 .5S3 .5 3 1e-7zA.5 1e5 .5 1 1 1e5 1H1A-1 '
    '0 1e5 0 1 1e-7 -0Z" fill="none" stroke="red" stroke-linejoin="round" stroke-linecap="square" stroke-miterlimit="3"/></svg>',
    "a bar that is hardly there": '{"type": "bar", "title": "", "x": "", "y": "", "labels": ["a"], "series": [{"name": "", '
    '"values": [5e-324]}]}',
    "marks to be sorted": "e" + "".join(chr(c) * 24_950 for c in (0x345, 0x334)),
    "an enormous canvas": '<svg xmlns="http://www.w3.org/2000/svg" width="9999999" height="9999999"><circle r="9"/></svg>',
    "a chart of a million bars": '{"type": "bar", "values": [' + "1," * 500_000 + "1]}",
}
NOTHING = ("arcs of a hundred thousand pixels", "a picture on which the renderer panics", "a bar that is hardly there")
"""What draws nothing, and is worth nothing."""
WRAPS = {"bare": "{}", "tagged": "<think>x</think><answer>{}</answer>", "fenced": "```json\n{}\n```"}


PROBES = ("", "B", "7", "[1, 2, 30, 40]", "(10, 20)", "<think>t</think><answer>[1, 2, 30, 40]</answer>", "<answer>B</answer>")
PROBES += ("<think>t</think>\\boxed{7}",)
"""Short completions: a case is fit for a verifier that scores them all."""
ANSWERS = ("7", "yes", [1, 2, 30, 40])
"""Answers for verifiers whose plugin has no case that is fit for them."""


def used() -> Iterator[tuple[str, Case]]:
    """(a verifier, a case that it scores) for each of the bundled tasks' and the recipes' verifiers."""
    registry, seen = plugins.registry(), set[str]()
    asked = [(t.id, t.options, t.verifiers) for path in RECIPES for t in load_config(path).tasks]
    asked += [(id, {}, {}) for id, spec in registry.specs("tasks").items() if id.partition("/")[0] in FAMILIES]
    for id, options, verifiers in asked:
        new = set(verifiers or registry.get("tasks", id).verifiers) - seen
        if not new or id == "rendering/plot":  # whose programs start in a second each, and have tests of their own
            continue
        try:
            task = registry.make_task(id, options)
        except UserError as error:
            assert "path" in str(error), error  # it reads people's own data
            continue
        if task.simulation is not None:  # nobody writes a completion
            continue
        if (prompt := first(task)) is None:
            continue
        for verifier in sorted(new):
            seen.add(verifier)
            spec = registry.get("verifiers", verifier)
            if not spec.model:  # which would be loaded
                yield verifier, case_of(spec, prompt)


def others(cases: Mapping[str, Case]) -> Iterator[tuple[str, Case]]:
    """(a verifier, a case) for those that no task names: a row of the golden table, or the first of its plugin's cases that are
    fit."""
    golden = {row["verifier"]: row for row in map(json.loads, GOLDEN.read_text("utf-8").splitlines())}
    for id, spec in plugins.registry().specs("verifiers").items():
        family = id.partition("/")[0]
        if id in cases or spec.model or spec.rollout or family not in FAMILIES:
            continue
        if row := golden.get(id):
            yield id, Case(completion="", answer=row["answer"], meta=row["meta"])
            continue
        verify = plugins.registry().make_verifier(id)
        near = [case for name, case in cases.items() if name.startswith(f"{family}/")]
        near += [replace(near[0], answer=answer) for answer in ANSWERS]
        yield id, next(case for case in near if scores(verify, case))


def scores(verify: Verify, case: Case) -> bool:
    """Whether the case has an answer of the kind that the verifier reads."""
    try:
        for probe in PROBES:
            verify(replace(case, completion=probe))
    except Exception:  # an answer of another kind
        return False
    return True


def first(task: Task) -> Any:
    """A task's first prompt that can be made: rows may be broken. None where there is no browser to make it with."""
    try:
        prompts = task.prompts("train", 0)
    except UserError as error:
        assert "browser" in str(error), error
        return None
    for number in range(20):
        try:
            return prompts[number]
        except UserError:
            continue
    raise AssertionError(f"{type(task).__name__}: none of its first twenty prompts can be made")


@pytest.mark.slow
def test_no_completion_is_too_much_for_a_verifier(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = dict(used())
    assert len(found) >= 40 and {v.partition("/")[0] for v in found} >= FAMILIES
    found |= dict(others(found))
    names = [(name, wrap) for name in HOSTILE for wrap in WRAPS]
    with local_judge({verifier: {} for verifier in found}, num_workers=2) as judge:  # of 512 MB each
        for verifier, honest in found.items():
            scores = judge.run(verifier, [replace(honest, completion=WRAPS[w].format(HOSTILE[n])) for n, w in names])
            for name, score in zip(names, scores, strict=True):
                assert score.value is not None, f"{verifier}, {' '.join(name)}: {score.detail}"
                if verifier.startswith("rendering/") and name[0] in NOTHING:
                    assert score.value <= 0, f"{verifier}, {' '.join(name)}: {score}"
