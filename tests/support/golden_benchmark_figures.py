"""Writes tests/golden/benchmark-figures.jsonl: the figures that VLMEvalKit's released code gives for made-up answers to MMBench,
whose questions are asked again with their options turned, and to MME. Needs pandas.

    git clone https://github.com/open-compass/VLMEvalKit && git -C VLMEvalKit checkout e8e78f0
    python tests/support/golden_benchmark_figures.py VLMEvalKit
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import string
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

OUT = Path(__file__).parents[1] / "golden" / "benchmark-figures.jsonl"
CATEGORIES = {"ocr": "fine", "action_recognition": "coarse", "image_scene": "coarse"}
PERCEPTION = ("OCR", "artwork", "celebrity", "color", "count", "existence", "landmark", "position", "posters", "scene")
REASONING = ("code_reasoning", "commonsense_reasoning", "numerical_calculation", "text_translation")
CHOICE, YES_NO, MATCHING = "dataset/utils/multiple_choice.py", "dataset/utils/yorn.py", "utils/matching_util.py"
NEEDED = {
    MATCHING: ("can_infer", "can_infer_option", "can_infer_text"),
    CHOICE: ("build_choices", "prefetch_answer", "prefetch_circular_group", "mcq_circular_eval", "report_acc"),
    YES_NO: ("MME_rating",),
}


class Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


def released(root: Path) -> dict[str, Any]:
    """The functions of `NEEDED`, alone: the package needs much that they don't call."""
    files: dict[str, Any] = {}
    found: dict[str, Any] = {
        **{
            "np": np,
            "pd": pd,
            "os": os,
            "osp": os.path,
            "string": string,
            "defaultdict": defaultdict,
            "MMB_abbrs": {},
            "cp": copy,
        },
        **{"logger": Silent(), "get_logger": lambda *name: Silent(), "timestr": lambda: "now"},
        **{"get_pred_file_format": lambda: "pkl", "istype": lambda value, kind: isinstance(value, int | np.integer)},
        **{"dump": lambda data, path: files.update({path: data.copy()}), "load": lambda path: files[path].copy()},
        **{"d2df": lambda table: pd.DataFrame({name: [value] for name, value in table.items()})},
    }
    for file, names in NEEDED.items():
        tree = ast.parse((root / "vlmeval" / file).read_text(encoding="utf-8"))
        chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
        exec(compile(ast.Module(body=chosen, type_ignores=[]), file, "exec"), found)
    return found


def circular(rng: random.Random, likely: float) -> list[dict[str, Any]]:
    """Rows of MMBench, with what was answered: each question as often as it has options."""
    rows = []
    for number in range(12):
        category, count = rng.choice([*CATEGORIES]), rng.choice([2, 3, 4])
        options, right = [f"option {letter}" for letter in "abcd"[:count]], rng.randrange(count)
        for turn in range(count):
            turned, answer = [*options[turn:], *options[:turn]], "ABCD"[(right - turn) % count]
            row = {"index": number * 7 + turn * 1_000_000, "question": f"Which, {number}?"}
            row |= {"category": category, "l2-category": CATEGORIES[category], "answer": answer}
            row |= {letter: turned[place] if place < count else None for place, letter in enumerate("ABCD")}
            rows.append(row | {"said": answer if rng.random() < likely else rng.choice("ABCD"[:count])})
    rng.shuffle(rows)
    return rows


def paired(rng: random.Random, likely: float) -> list[dict[str, Any]]:
    """Rows of MME, with what was answered: two questions about each picture."""
    pictures = [(category, f"{category}/{n}.png") for category in (*PERCEPTION, *REASONING) for n in range(rng.choice([2, 3, 4]))]
    other = {"Yes": "No", "No": "Yes"}
    return [
        {"category": category, "question_id": picture, "question": "Is it? Please answer yes or no.", "answer": answer}
        | {"said": answer if rng.random() < likely else other[answer]}
        for category, picture in pictures
        for answer in other
    ]


def main() -> None:
    root = Path(sys.argv[1])
    commit = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    theirs, rng, lines = released(root), random.Random(7), []
    for number, likely in enumerate((0.85, 0.6, 0.95)):
        rows = circular(rng, likely)
        data = pd.DataFrame(rows).rename(columns={"said": "prediction"})
        judged = theirs["mcq_circular_eval"](None, data, pd.DataFrame(rows), 1, f"{number}.pkl", "MMBench_DEV_EN")
        figures = {name: float(column.iloc[0]) for name, column in theirs["report_acc"](judged).items() if name != "split"}
        lines.append({"benchmark": "MMBench", "rows": rows, "figures": figures, "file": CHOICE})
    for likely in (0.8, 0.5, 1.0):
        rows = paired(rng, likely)
        data = pd.DataFrame(rows)
        theirs["dump"](data.assign(image_path=data["question_id"], score=(data["answer"] == data["said"]).astype(int)), "mme")
        figures = {name: float(value) for name, value in theirs["MME_rating"]("mme").iloc[0].items()}
        lines.append({"benchmark": "MME", "rows": rows, "figures": figures, "file": YES_NO})
    how = f"ran open-compass/VLMEvalKit@{commit.strip()[:12]}"
    OUT.write_text("".join(json.dumps({**line, "how": how}) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
