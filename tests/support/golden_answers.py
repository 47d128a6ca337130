"""Writes tests/golden/rewards-answers.jsonl: what the released rewards of four systems give for answers to questions.

    mkdir systems && cd systems
    git clone https://github.com/ModalMinds/MM-EUREKA && git -C MM-EUREKA checkout bccddd7
    git clone https://github.com/Deep-Agent/R1-V && git -C R1-V checkout bbbbe3d
    git clone https://github.com/TIGER-AI-Lab/VL-Rethinker && git -C VL-Rethinker checkout dd2c17d
    git clone https://github.com/zli12321/Vision-SR1 && git -C Vision-SR1 checkout 4480e08
    cd .. && python tests/support/golden_answers.py systems

It needs math-verify. Only the functions of the rewards are run, of VL-Rethinker also the loop that shapes them; its answers end
with `<|im_end|>` there, unless they were cut off.
"""

from __future__ import annotations

import ast
import datetime
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import math_verify

OUT = Path(__file__).parents[1] / "golden" / "rewards-answers.jsonl"
MM_EUREKA = "ModalMinds/MM-EUREKA @bccddd7", "examples/scripts/reward_func_qwen_instruct.py"
R1_V = "Deep-Agent/R1-V @bbbbe3d", "src/r1-v/src/open_r1/grpo.py"
VL_RETHINKER = "TIGER-AI-Lab/VL-Rethinker @dd2c17d", "openrlhf/trainer/ppo_utils/experience_maker.py"
VISION_SR1 = "zli12321/Vision-SR1 @4480e08", "train_examples/reward_function/see_think_selfReward.py"
END = "<|im_end|>"
SAID = {  # truth -> what is said, some right and some not
    "12": "12 | 12.0 | 13 | \\frac{24}{2} | twelve | 12minutes",
    "\\frac{1}{2}": "\\dfrac{1}{2} | 0.5 | 2",
    "3\\sqrt{2}": "\\sqrt{18} | 4.24",
    "B": "B | b | (B) | B. a dog | A | A or B | Bob | \\text{B} | D | able",
    "A": "A | Apple | Option A is wrong | Maybe | AB | bad",
    "yes": "yes | no",
    "": "nothing | 7",
}
FORMS = (
    "{}",
    "\\boxed{{{}}}",
    "<answer>{}</answer>",
    "<think>a</think><answer>{}</answer>",
    "<think>b\nc</think>\n<answer>{}</answer>",
    "<think>a</think>\\boxed{{{}}}",
    "Answer: {}",
)
TEXTS = (  # for the truth 12
    "<answer>13</answer><answer>12</answer>",
    "<answer>12</answer> no, <answer>13</answer>",
    "<answer>\n12\n</answer>",
    "so it is <answer>12",
    "\\boxed{13} and \\boxed{12}",
    "\\boxed{12} and \\boxed{13}",
    "<think>12</think><answer>13</answer>",
    "\\boxed{12",
    "First 13. Answer: 13. Answer: 12",
    "Now everything looks fine. Solution finished. \\boxed{12}",
    "\\boxed{12} Now everything looks fine. Solution finished.",
    "",
    " ",
)
WAITS = (
    "",
    "Wait, let me look. ",
    "Wait a moment. Alternatively, ",
    "wait, wait, wait, ",
    "Alternatively " * 5,
    "wait, " * 6,
    "wait " * 6,
    "WAIT, " * 12,
)
TAGS = (
    "<think>a</think><answer>1</answer>",
    " <think>a</think>\n\n<answer>1</answer> and more",
    "before <think>a</think> <answer>1</answer>",
    "<think></think><answer>1</answer>",
    "<think>a</think><answer></answer>",
    "<think>a</think>b<answer>1</answer>",
    "<think>a<think>b</think><answer>1</answer>",
    "<think>a</think></think><answer>1</answer>",
    "<think>a</think><answer>1</answer><answer>2</answer>",
    "<answer>1</answer><think>a</think>",
    "<think>a<answer>1</answer></think>",
    "</answer><think>a</think><answer>1",
    "<think>a\n</think>\t<answer>\n1\n</answer>",
    "<think>a</think>",
)
DESCRIBED = (
    "<description>a</description><think>b</think>\\boxed{1}",
    "  <description>a</description>\n<think>b</think>\n\\boxed{1} ",
    "< description > a < /description > < think >b< / think > \\boxed{1}",
    "<description></description><think></think>\\boxed{}",
    "x<description>a</description><think>b</think>\\boxed{1}",
    "<description>a</description><think>b</think>\\boxed{1}.",
    "<description>a</description>x<think>b</think>\\boxed{1}",
    "<description>a</description><think>b</think>so \\boxed{1}",
    "<description>a</description><think>b</think>\\boxed{1} and \\boxed{2}",
    "<description>a</description><think>b</think><answer>\\boxed{1}</answer>",
    "<description>a</description><think>b</think>\\boxed{1",
    "<description>a<think>b</think>\\boxed{1}",
    "<think>b</think>\\boxed{1}",
    "<description>a</description><description>c</description><think>b</think>\\boxed{\\frac{1}{2}}",
    "<description></description><think></think>\\boxed}",
    "<description>a</description><think>b</description><think>c</think>d</think>\\boxed{1}}",
    "",
)


def answers() -> Iterator[tuple[str, str]]:
    for truth, said in SAID.items():  # each in one form, and letters of options in three
        more = 3 if truth in ("A", "B") else 1
        for number, one in enumerate(said.split(" | ")):
            yield from ((truth, FORMS[(number + k) % len(FORMS)].format(one)) for k in range(more))
    yield from (("12", text) for text in TEXTS)


def functions(path: Path, **known: Any) -> dict[str, Any]:
    """A file's functions and constants, without what it imports."""
    kept = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef | ast.Assign)]
    kept = [n for n in kept if not (isinstance(n, ast.FunctionDef) and n.name == "main")]
    space: dict[str, Any] = {"re": re, "os": os, "datetime": datetime.datetime, **known}
    space |= {"Dict": dict, "List": list, "Optional": Any, "__builtins__": {**vars(__builtins__), "print": lambda *_: None}}
    exec(compile(ast.Module(kept, []), str(path), "exec"), space)
    return space


def shaped(path: Path, valid: bool, right: float, times: int, forced: bool = False) -> float:
    """What VL-Rethinker's loop makes of an answer. forced: to rethink."""
    target = "(valid, final_correct, r0nw, r1nw, r1c)"
    loop = next(
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.For) and ast.unparse(node.target) == target
    )
    space: dict[str, Any] = {"validity": [float(valid)], "raw_rewards": [float(right > 0)], "rewards": [], "is_eval": False}
    space |= {
        "round0_nwait": [times],
        "round1_nwait": [times],
        "round1_correctness": [(right,) if forced else None],
        "print": lambda *_: None,
    }
    exec(compile(ast.Module([loop], []), str(path), "exec"), space)
    return float(space["rewards"][0])


def row(verifier: str, completion: str, answer: str, reward: float, source: tuple[str, str], **more: Any) -> dict[str, Any]:
    how = f"ran {source[0]}: {source[1]}, math-verify {importlib.metadata.version('math-verify')}"
    return {
        "verifier": f"vqa/{verifier}",
        "completion": completion,
        "answer": answer,
        "meta": {},
        "reward": reward,
        **more,
        "how": how,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    names = ("parse", "verify", "ExprExtractionConfig", "LatexExtractionConfig", "StringExtractionConfig")
    known = {name: getattr(math_verify, name) for name in names}
    eureka = functions(folder / "MM-EUREKA" / MM_EUREKA[1], **known)
    v = functions(folder / "R1-V" / R1_V[1], **known)
    path = folder / "VL-Rethinker" / VL_RETHINKER[1]
    rethinker = functions(path, **known, init_logger=lambda _: None, Union=Any, __name__="rethinker")
    sr1 = functions(folder / "Vision-SR1" / VISION_SR1[1], extract_boxed_content=lambda _: "", grade_answer=lambda *_: False)
    rows = []
    for truth, text in [*answers(), *(("1", text) for text in TAGS)]:
        said = eureka["get_response_from_query"](f"<|im_start|>assistant\n{text}{END}")
        right = eureka["accuracy_reward_func"](said, truth)[0] if said else 0.0
        both = right + eureka["format_reward_func"](said) if said else 0.0
        rows.append(row("answer@mm-eureka", text, truth, right, MM_EUREKA))
        if text in TAGS:
            rows.append(row("reward@mm-eureka", text, truth, both, MM_EUREKA))
        (right,) = v["accuracy_reward"]([[{"content": text}]], [truth])
        rows.append(row("answer@r1-v", text, truth, right, R1_V))
    waits = [("12", f"{wait}{said}") for wait in WAITS for said in ("\\boxed{12}", "\\boxed{13}")]
    for truth, text in [*answers(), *waits]:
        for status in ("finished", "truncated-length")[: 2 if (truth, text) in waits else 1]:
            full = text + END * (status == "finished")
            ((valid, _, _, _, right),) = rethinker["batch_rule_reward"]([full], [truth], END, "none", None, True)
            lower = text.lower()
            times = lower.count("wait,") + lower.count("wait a") + lower.count("alternatively")
            reward = shaped(path, valid, right, times)
            rows.append(row("answer@vl-rethinker", text, truth, float(right > 0), VL_RETHINKER, status=status))
            if (truth, text) in waits:
                rows.append(row("reward@vl-rethinker", text, truth, reward, VL_RETHINKER, status=status))
                forced = shaped(path, valid, right, times, forced=True)
                marked = {"status": status, "meta": {"rethought": True}}
                rows.append(row("reward@vl-rethinker", text, truth, forced, VL_RETHINKER, **marked))
    for text in DESCRIBED:
        (score,) = sr1["compute_score"]([text], ["1"], ["?"], [""])
        rows.append(row("format@vision-sr1", text, "1", score["format"], VISION_SR1))
    OUT.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
