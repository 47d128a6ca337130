"""Writes tests/golden/visplay.jsonl: what VisPlay's released code pays for proposed questions.

    git clone https://github.com/bruno686/VisPlay && git -C VisPlay checkout 3aa895b
    pip install nltk==3.10.4 scikit-learn scipy
    python tests/support/golden_visplay.py VisPlay

`compute_score` of its reward runs as it is, on drawn completions, and the service that answers is replaced by drawn answers,
which are compared as equal texts.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy

FILE = "train_examples/reward_function/cot_val.py"
OUT = Path(__file__).parents[1] / "golden" / "visplay.jsonl"
HOW = f"bruno686/VisPlay @3aa895b, {FILE}, with nltk 3.10.4 and scikit-learn; answers compared as equal texts"
WORDS = ("how", "many", "what", "is", "the", "red", "blue", "car", "dog", "left", "right", "in", "of", "there", "number", "half")
KEPT = ("_bleu_distance_matrix", "cluster_share_per_problem", "match", "compute_score")


def released(folder: Path) -> dict[str, Any]:
    """Its functions, without the imports that they don't need."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    from sklearn.cluster import AgglomerativeClustering

    tree = ast.parse((folder / FILE).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in KEPT]
    own: dict[str, Any] = {"re": re, "time": __import__("time"), "np": numpy, "Counter": Counter, "print": lambda *_: None}
    own |= {name: dict | list for name in ("Dict", "List", "Optional")}
    own |= {"sentence_bleu": sentence_bleu, "SmoothingFunction": SmoothingFunction}
    own["AgglomerativeClustering"] = AgglomerativeClustering
    exec(compile("from __future__ import annotations\n" + ast.unparse(tree), FILE, "exec"), own)
    return own


def share(answers: list[str]) -> float:
    """What the service says of the answers to a question: the share of the most frequent one."""
    return max(Counter(filter(None, answers)).values(), default=0) / len(answers)


def drawn(draw: random.Random) -> tuple[list[str], list[list[str]]]:
    """(completions, the answers to each): questions that are like each other, and completions that are none."""
    of = [" ".join(draw.choices(WORDS, k=draw.randint(2, 8))) for _ in range(3)]
    completions = []
    for _ in range(10):
        words = draw.choice(of).split()
        for _ in range(draw.randint(0, 2)):
            words[draw.randrange(len(words))] = draw.choice(WORDS)
        asked, kind = " ".join(words), draw.choice(["numerical", "regression", "multiple choice"])
        odd = [
            "",
            f"<type>{kind}</type> <question>{asked}</question>",
            f"sure! <type> {kind} </type>\n<question>\n{asked} a / b\n</question>\n\n<answer> 3 </answer> done",
            f"<question>{asked}</question><type>{kind}</type><answer>4</answer>",
            f"<type>{kind}</type><question> </question><answer>4</answer>",
            f"<type>{kind}</type><question>{asked}</question><answer></answer>",
            f"<type>{kind}</type><type>x</type><question>{asked} < type > </question> <question>no</question><answer>5</answer>",
        ]
        plain = f"<type>{kind}</type>\n<question>{asked}</question>\n<answer>2</answer>"
        completions.append(draw.choice([*odd, plain, plain, plain]))
    return completions, [draw.choices(["1", "1", "1", "2", "2", "3", ""], k=10) for _ in completions]


def main(folder: Path) -> None:
    own, draw, rows = released(folder), random.Random(7), []
    for _ in range(6):
        completions, answers = drawn(draw)
        replies = iter(answers)

        def generate(items: list[dict[str, str]], replies: Any = replies) -> list[dict[str, Any]]:
            both = [(item["question"], item.get("answer"), next(replies)) for item in items]
            return [{"question": q, "score": share(said) if q and a else -1} for q, a, said in both]

        own["generate_results"] = generate
        scores = own["compute_score"](completions, [""] * 10, [""] * 10, [""] * 10)
        found = [own["match"](re.sub(r"\s*(<|>|/)\s*", r"\1", one)) for one in completions]
        parsed = [[m["types"], m["question"], m["answer"]] if m and all(m.values()) else None for m in found]
        rewards = [score["overall"] for score in scores]
        rows.append({"how": HOW, "completions": completions, "answers": answers, "rewards": rewards, "parsed": parsed})
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(8)]
    texts += [texts[0], "", "a", "the the the the", "", *(f"{texts[1]} {word}" for word in WORDS[:4])]
    apart = own["_bleu_distance_matrix"](texts).round(12).tolist()
    rows.append({"how": HOW, "texts": texts, "distances": apart, "shares": own["cluster_share_per_problem"](texts)})
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
