"""Writes tests/golden/rewards-visual-rft.jsonl: what Visual-RFT's released rewards of detection give.

    git clone https://github.com/Liuziyu77/Visual-RFT && git -C Visual-RFT checkout 9486633
    python tests/support/golden_visual_rft.py Visual-RFT

`accuracy_reward_iou` and `accuracy_reward_confidence` of `src/virft/src/open_r1/grpo.py` first ask math-verify, which compares
one number of each text and gives 1 if these are equal, whatever else is listed. Here it never says so.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from datetime import datetime
from pathlib import Path

OUT = Path(__file__).parents[1] / "golden" / "rewards-visual-rft.jsonl"
CAT, DOG = [100, 100, 300, 300], [500, 500, 700, 900]
NEAR, HALF, FAR = [110, 110, 310, 310], [100, 200, 300, 400], [0, 0, 50, 50]


def box(position: object, certainty: object) -> str:
    return f"{{'Position': {position}, 'Confidence': {certainty}}}"


def answers() -> list[str]:
    lists = [
        [box(CAT, 0.9), box(DOG, 0.8)],
        [box(NEAR, 0.9)],
        [box(NEAR, 0.9), box(DOG, 0.25)],
        [box(HALF, 0.9), box(CAT, 0.3)],
        [box(FAR, 0.0)],
        [box(FAR, 0.7), box(FAR, 0.1), box(NEAR, 0.5)],
        [box(NEAR, 0.6), box(CAT, 0.5)],
        [box(CAT, 0.5), box(NEAR, 0.5)],
        [box(NEAR, 0.5), box(CAT, 0.5), box(DOG, 0.5), box(FAR, 0.5)],
        [box(CAT, 3.0)],
        [box(FAR, -5)],
        [box(FAR, 4)],
        [box(CAT, "'high'")],
        [box([100, 100, 300], 0.5)],
        [box([300, 300, 100, 100], 0.5)],
        [box([100.5, 100.25, 300, 300], 1)],
        [box(CAT, "true")],
        ["{'Position': [100, 100, 300, 300]}"],
        ["{'Confidence': 0.5}"],
        ["[100, 100, 300, 300]"],
        [box(CAT, 0.9), "7"],
        [],
    ]
    plain = [f"<think>a</think><answer>[{', '.join(one)}]</answer>" for one in lists]
    good = f"[{box(CAT, 0.9)}, {box(DOG, 0.8)}]"
    return [
        *plain,
        f"<answer>{good}</answer>",
        good,
        f"<think>a</think>\n<answer>\n{good}\n</answer>",
        f"<answer>[{good}]</answer>",
        f"<answer> {good} </answer> and <answer>[]</answer>",
        f"<answer>[]</answer><answer>{good}</answer>",
        f"<answer>[{box(CAT, 0.9)}, {box(DOG, 0.8)[:-5]}</answer>",
        f"[{box(CAT, 0.9)}, {{'Position': [500,",
        f"<answer>[{box(CAT, 0.9)}, {box(DOG, 0.8)}",
        f"<answer>{box(CAT, 0.9)}</answer>",
        f"<answer>{good}.</answer>",
        "<answer>No Objects</answer>",
        "<answer></answer>",
        "",
    ]


def main() -> None:
    path = Path(sys.argv[1]) / "src" / "virft" / "src" / "open_r1" / "grpo.py"
    chosen = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef) and node.name != "main"]
    space = {"json": json, "os": os, "re": re, "datetime": datetime, "parse": str, "verify": lambda *_: 0.0}
    exec(compile(ast.Module(chosen, []), str(path), "exec"), space)
    rows = []
    for truth in ([CAT, DOG], [CAT]):
        solution = f"<answer>[{', '.join(box(one, 1.0) for one in truth)}]</answer>"
        true = [{"bbox_2d": one, "label": "pet"} for one in truth]
        for text in answers():
            for name in ("iou", "confidence"):
                (reward,) = space[f"accuracy_reward_{name}"]([[{"content": text}]], [solution])
                row = {
                    "verifier": f"grounding/{name}@visual-rft",
                    "completion": text,
                    "answer": true,
                    "meta": {},
                    "reward": reward,
                }
                rows.append(row | {"how": "ran Liuziyu77/Visual-RFT @9486633: src/virft/src/open_r1/grpo.py"})
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
