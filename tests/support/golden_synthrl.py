"""Writes tests/golden/synthrl.jsonl: what SynthRL's released code reads in replies, and which questions it accepts.

    git clone https://github.com/NUS-TRAIL/SynthRL && git -C SynthRL checkout b4a6aab
    python tests/support/golden_synthrl.py SynthRL

Its functions run as they are; `call_gemini_api`, `judge_evolved_question_quality` and `solver_rollout` say what a script has
them say in the rows `evolve`.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
import sys
import types
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "golden" / "synthrl.jsonl"
HOW = "ran NUS-TRAIL/SynthRL @b4a6aab"
REPLIES = (
    "New Question: How many?",
    "**New Question:** How *many*?",
    "Sure!\nNew question: a\nb\n\nIt is harder.",
    "new question:\r\n\r\nWhat?",
    "NEW QUESTION: x New Question: y",
    "New question: first\nNew Question: second",
    "Question: none",
    "",
    "New Question:",
    "New Question: \n\n\n",
    "New Question: [What is 2 * 3?]",
    "New  Question: two blanks",
    "New Question: a\r\n\r\nb",
    "New Question:a\n \nb",
    "the New Question: is this. New Question: again",
)
GRADES = (
    "EXPLANATION: good\nSCORE: 9",
    "SCORE: [10]",
    "SCORE: 7.9",
    "SCORE: 12",
    "SCORE: -3",
    "score: 8",
    "SCORE:8 SCORE: 2",
    "EXPLANATION: SCORE: 3\nSCORE: 9",
    "SCORE: ten",
    "",
    "EXPLANATION: a\nb\nc",
    "SCORE: [ 6]",
    "SCORE: 0.99",
    "**SCORE:** 8",
    "EXPLANATION:\nSCORE:\n10/10",
)
SOLVED = (
    "<think>a</think> \\boxed{12}",
    "\\boxed{\\frac{1}{2}} and \\boxed{3}",
    "\\boxed{unclosed",
    "\\boxed{a{b}",
    "The answer is 5",
    "a\n\n b \n\n",
    "",
    "\n \n",
    "\\boxed{}",
    "\\boxed{ x }y",
    "boxed{3}",
    "\\boxed{{}}",
    "\\boxed{1}}\\boxed{2}",
    "line\r\nlast\r\n",
    "\\boxed {4}",
)
COMPARED = (
    "TRUE",
    "FALSE",
    "true.",
    "It is TRUE",
    "TRUE FALSE",
    "FALSE then TRUE",
    "**TRUE**",
    "",
    "true",
    "Not false: TRUE !",
    "TRUE\n",
    "untrue",
    '"TRUE"',
    "FALSE, TRUE",
    "true false true",
)


def stubbed(*names: str) -> None:
    """Packages that the code imports and doesn't need here."""
    for name in names:
        module: Any = types.ModuleType(name)
        module.load_dotenv = module.tqdm = module.Dataset = module.OpenAI = module.load_from_disk = module.load_dataset = None
        module.configure = lambda **_: None
        sys.modules[name] = module
    sys.modules["dotenv"].load_dotenv = lambda: None  # type: ignore[attr-defined]
    sys.modules["google"].generativeai = sys.modules["google.generativeai"]  # type: ignore[attr-defined]


def evolved(evolve: Any, script: list[dict[str, Any]], passes: int) -> dict[str, Any]:
    """What the code makes of a script of attempts."""
    asked: list[str] = []
    turn = iter(script)
    now: dict[str, Any] = {}

    def rewrite(content: list[Any], **_: Any) -> str:
        asked.append(content[2])
        now.clear()
        now.update(next(turn))
        return f"New Question: {now['question']}" if now["question"] else "no"

    evolve.call_gemini_api = rewrite
    evolve.get_evolve_prompt = lambda question: question
    evolve.judge_evolved_question_quality = lambda **_: {"score": now["quality"], "explanation": ""}
    evolve.solver_rollout = lambda **_: ([], now["passes"], 0.0)
    sample = {"question": "q0", "answer": "1", "image": None, "id": "x", "original_pass": passes}
    questions, stats, best = evolve.evolve_question_with_same_answer(
        sample, judge_threshold=8, max_attempts=len(script), rollout=16, difficulty_level=12
    )
    return {
        "asked": asked,
        "harder": [q["is_harder"] for q in questions[1:]],
        "best": best and best["question"],
        "accepted": stats["successful_evolutions"],
        "low_quality": stats["quality_failures"],
        "unread": stats["extraction_errors"],
    }


def main() -> None:
    logging.disable()
    stubbed("google", "google.generativeai", "openai", "dotenv", "tqdm", "datasets")
    sys.path.insert(0, str(Path(sys.argv[1]) / "synthrl_framework"))
    utils, evolve = (importlib.import_module(name) for name in ("verify_utils", "evolve_instruction_verifiable"))

    def says(text: str) -> None:
        utils.call_gemini_api = lambda **_: text

    rows: list[dict[str, Any]] = [
        {"of": "question", "reply": text, "gives": utils.extract_evolved_question(text)} for text in REPLIES
    ]
    for text in GRADES:
        says(text)
        found = utils.judge_evolved_question_quality("a", "b", None)
        rows.append({"of": "quality", "reply": text, "gives": [found["score"], found["explanation"]]})
    rows += [{"of": "answer", "reply": text, "gives": utils.extract_final_answer(text)} for text in SOLVED]
    for text in COMPARED:
        says(text)
        rows.append({"of": "agrees", "reply": text, "gives": utils.verify_answers_match("a", "b")})
    draw = random.Random(0)
    for _ in range(40):
        script = [
            {
                "question": draw.choice(("", *(f"q{n}-{draw.randrange(99)}" for _ in range(5)))),
                "quality": draw.choice((5, 7, 8, 9, 10)),
                "passes": draw.randrange(17),
            }
            for n in range(1, 9)
        ]
        passes = draw.choice((3, 11, 12, 13, 14, 15, 16, 16))
        rows.append({"of": "evolve", "script": script, "passes": passes, "gives": evolved(evolve, script, passes)})
    OUT.write_text("".join(json.dumps({**row, "how": HOW}, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} rows")


if __name__ == "__main__":
    main()
