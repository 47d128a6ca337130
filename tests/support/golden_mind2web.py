"""Writes tests/golden/mind2web.jsonl: what SeeClick's evaluation on Mind2Web says of answers to random steps, and its figures of
all of them.

    git clone https://github.com/njucckevin/SeeClick && git -C SeeClick checkout 0ef37ac
    python tests/support/golden_mind2web.py SeeClick

The evaluation is one script: its functions, the lines that score an answer and those that make figures are run on their own.
"""

from __future__ import annotations

import ast
import json
import logging
import random
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "golden" / "mind2web.jsonl"
HOW = "ran njucckevin/SeeClick:agent_tasks/mind2web_test.py @0ef37ac"
SIZE = (1000, 500)
KINDS = {"CLICK": 4, "HOVER": 4, "ENTER": 4, "SELECT": 2, "TYPE": 3}
TEXTS = ("New York", "new york city", "Two", "two rooms", "12")
FIGURES = ("marco_op_f1", "macro_ele_acc", "macro_step_acc", "macro_action_f1")


def step(rng: random.Random) -> dict[str, Any]:
    """A step as in SeeClick's files, the element in pixels."""
    kind = rng.choice(("CLICK", "CLICK", "CLICK", "HOVER", "ENTER", "SELECT", "TYPE", "TYPE"))
    place = {"x": rng.randrange(0, 900), "y": rng.randrange(0, 400)}
    box = place | {"width": rng.randrange(10, 100), "height": rng.randrange(10, 100)}
    return {"operation": {"original_op": kind, "value": rng.choice(TEXTS) if kind in ("SELECT", "TYPE") else ""}, "bbox": box}


def answer(rng: random.Random, own: dict[str, Any]) -> str:
    """What a model may answer: the action, right in part, or nothing that can be read."""
    box, operation = own["bbox"], own["operation"]
    x, y = box["x"] + rng.uniform(-0.4, 1.4) * box["width"], box["y"] + rng.uniform(-0.2, 1.2) * box["height"]
    kind = rng.choice((KINDS[operation["original_op"]],) * 4 + (2, 3, 4))
    said: dict[str, Any] = {"action_type": kind, "click_point": (round(x / SIZE[0], 3), round(y / SIZE[1], 3))}
    if kind != 4:
        said["value"] = rng.choice((operation["value"] or "Two", rng.choice(TEXTS)))
    return "click there" if rng.random() < 0.06 else str(said)


def main() -> None:
    text = (Path(sys.argv[1]) / "agent_tasks" / "mind2web_test.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    known: dict[str, Any] = {"ast": ast, "np": np, "logging": SimpleNamespace(info=lambda _: None)}
    exec(compile(ast.Module(functions, []), "mind2web_test.py", "exec"), known)
    start = text.index("        step_result = {")
    lines = textwrap.dedent(text[start : text.index("        results_actions.append(", start)])
    judge = compile(lines, "mind2web_test.py", "exec")
    figures = compile(text[text.index("# calculate metrics") :], "mind2web_test.py", "exec")

    rng = random.Random(0)
    rows, results = [], []
    for episode in range(30):
        judged = []
        for _ in range(rng.randrange(1, 8)):
            own = step(rng)
            said = answer(rng, own)
            reference, box = known["action2step"](own, SIZE, return_bbox=True)
            given = {"action_step_ref": ast.literal_eval(reference), "bbox_ref": box, "response": said}
            scope = {**known, **given, "annot_id": str(episode), "img_path": "", "goal": ""}
            exec(judge, scope)
            found = scope["step_result"]
            judged.append(found)
            row = {"episode": str(episode), "step": own, "said": said, "element": found["Ele_match"], "f1": found["Op_F1"][0]}
            rows.append(json.dumps(row))
        results.append(judged)
    scope = {**known, "results": results}
    exec(figures, scope)
    rows.append(json.dumps({"figures": {name: float(scope[name]) for name in FIGURES}, "how": HOW}))
    OUT.write_text("\n".join(rows) + "\n")
    print(f"{OUT}: {len(rows) - 1} steps, {rows[-1]}")


if __name__ == "__main__":
    logging.disable()
    main()
