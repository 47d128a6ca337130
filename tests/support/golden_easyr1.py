"""Writes tests/golden/rewards-easyr1.jsonl: what PAPO's copy of EasyR1's format reward gives.

    git clone https://github.com/MikeWangWZHL/PAPO && git -C PAPO checkout fb63bf4
    python tests/support/golden_easyr1.py PAPO

It needs mathruler 0.1.0, which the file imports: `format_reward`, after the change of the response in `compute_score`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

OUT = Path(__file__).parents[1] / "golden" / "rewards-easyr1.jsonl"
TEXTS = (
    r"<think>a</think>\boxed{1}",
    "<think>a</think>\n\\boxed{\\frac{1}{2}} and more",
    r"<think></think>\boxed{}",
    r" <think>a</think>\boxed{1}",
    r"a<think>a</think>\boxed{1}",
    r"< think >a< / think > \boxed{1}",
    "<think>a\nb</think>\n\nSo it is\n\\boxed{x\ny}",
    r"<think>a</think><answer>\boxed{1}</answer>",
    r"<think>a</think>\boxed{1",
    r"<think>a</think>\boxed 1}",
    r"<think>\boxed{1}</think>",
    r"<think>\boxed{1}</think>}",
    r"<think>a</think><think>b</think>\boxed{1}",
    r"<think>a\boxed{1}",
    r"<think>a</thinking>\boxed{1}",
    r"<think><think>a</think>\boxed{1}</think>",
    r"\boxed{1}<think>a</think>",
    r"<thin k>a</think>\boxed{1}",
    r"<think>a</think>\boxed{1}\boxed{2}",
    r"<think></think",
    "",
)


def main() -> None:
    spec = importlib.util.spec_from_file_location("math_reward", Path(sys.argv[1]) / "examples" / "reward_function" / "math.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = []
    for text in TEXTS:
        (score,) = module.compute_score([{"response": text, "ground_truth": "0"}])
        row = {"verifier": "vqa/format@easyr1", "completion": text, "answer": "1", "meta": {}, "reward": score["format"]}
        rows.append(row | {"how": "ran MikeWangWZHL/PAPO @fb63bf4: examples/reward_function/math.py"})
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
