"""Writes tests/golden/spark.jsonl: the prompts that SPARK's released code makes of rollouts.

    git clone https://github.com/InternLM/Spark && git -C Spark checkout bc47b93
    python tests/support/golden_spark.py Spark

`new_data_gen` runs as it is, on drawn rollouts, with the words of `mmrl_judge.spark.words` in place of its own, so that its
choices are what is compared. Every question has an answer that can be read: without any, the code uses a number of the question
before.
"""

from __future__ import annotations

import ast
import datetime
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmrl_judge.spark import words

OUT = Path(__file__).parents[1] / "golden" / "spark.jsonl"
QUESTIONS, ROLLOUTS = 64, 8
"""Numbers that stand in the code."""


class Rewards(list[int]):
    def int(self) -> Rewards:
        return self

    def tolist(self) -> list[int]:
        return list(self)


class Sequence(str):
    def unsqueeze(self, _: int) -> Sequence:
        return self


def released(path: Path) -> dict[str, Any]:
    """The functions of the file, without its imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    single = [{"template": w.text, "label_type": {"Yes": "yesno", "A": "ab"}[w.right]} for w in words.POINTWISE]
    noon = SimpleNamespace(now=lambda: datetime.datetime(2025, 1, 1, 12, 30))  # at other minutes it writes its own files
    space: dict[str, Any] = {"random": random, "json": json, "datetime": SimpleNamespace(datetime=noon)}
    space |= {"PROMPT_TEMPLATES_SINGLE": single, "PROMPT_TEMPLATES_DOUBLE": [{"template": t} for t in words.PAIRWISE]}
    space |= {"PROMPT_TEMPLATES_SELF_REFLECTION": list(words.REFLECT_REASONING)}
    space |= {"PROMPT_TEMPLATES_SELF_REFLECTION_ANS": list(words.REFLECT_ANSWER)}
    exec(compile(ast.Module(chosen, []), str(path), "exec"), space)
    return space


def main() -> None:
    code = released(Path(sys.argv[1]) / "Lmm_XC/openrlhf/trainer/ppo_utils/new_data_gen.py")
    rows = []
    for seed in range(4):
        draw, asked = random.Random(seed), []
        for number in range(QUESTIONS):
            skill = draw.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            right = [int(draw.random() < skill) for _ in range(ROLLOUTS)]
            said = [f"\\boxed{{{number if r else -draw.randrange(1, 9)}}}" for r in right]
            said = [
                s if n == 0 or r or draw.random() < 0.7 else "I don't know"
                for n, (s, r) in enumerate(zip(said, right, strict=True))
            ]
            asked.append((f"q{number}?", [f"t{n}: {s}" for n, s in enumerate(said)], right))
        experiences = [
            SimpleNamespace(sequences=[Sequence(f"user\n{q}\nassistant\n{t}") for t in said], info={"reward": Rewards(right)})
            for q, said, right in asked
        ]
        random.seed(seed)
        tokenizer = SimpleNamespace(batch_decode=lambda one, **_: [str(one)])
        messages, answers = code["new_data_gen"](
            experiences,
            [f"gold{n}" for n in range(QUESTIONS)],
            [None] * QUESTIONS,
            tokenizer,
            SimpleNamespace(info=lambda _: None),
        )
        made = [[json.loads(m)[0]["content"][0]["text"], a] for m, a in zip(messages, answers, strict=True)]
        answers_of = [[code["extract_boxed_answer"](t) for t in said] for _, said, _ in asked]
        given = [
            {"question": q, "said": said, "answers": found, "right": right}
            for (q, said, right), found in zip(asked, answers_of, strict=True)
        ]
        rows.append({"seed": seed, "asked": given, "made": made, "how": "ran InternLM/Spark @bc47b93: new_data_gen.py"})
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(sum(len(row["made"]) for row in rows), "prompts")


if __name__ == "__main__":
    main()
