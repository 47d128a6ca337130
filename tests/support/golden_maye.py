"""Writes tests/golden/rewards-maye.jsonl: what MAYE's released rewards give.

    git clone https://github.com/GAIR-NLP/MAYE && git -C MAYE checkout af35b9a
    python tests/support/golden_maye.py MAYE

It needs math-verify, sympy, TexSoup, torch and Pillow. The sum of the three rewards is that of `generate_trajectory_vllm`; its
penalty for answers without an end is tested by hand, because it depends on tokens.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import re
import sys
import types
from pathlib import Path

OUT = Path(__file__).parents[1] / "golden" / "rewards-maye.jsonl"
BODIES = {  # truth -> what is said, some right and some not
    r"\boxed{12}": r"""
        \boxed{12} | The answer is \boxed{12}. | \boxed{12.0} | \boxed{13} | \boxed{12^\circ} | \boxed{12^{2}} | x = \boxed{12}
        First \boxed{13}. Then \boxed{12}. | First \boxed{12}. Then \boxed{13}. | \boxed{x=12} | $12$ | 12 | \boxed{12} cm
        \boxed{12\text{ cm}} | \boxed{\frac{24}{2}} | \boxed{12 | boxed 12 | \boxed{ 12 } | \boxed{1200} | 答案是\boxed{12}
        \boxed{12}。 | It is 3.5 or \boxed{12}! | \boxed{12}, \boxed{12} | \boxed{11.995}""",
    r"\boxed{45^\circ}": r"""
        \boxed{45^\circ} | \boxed{45} | \boxed{45^{\circ}} | \boxed{45\text{degree}} | \boxed{45^\text{o}} | \boxed{46^\circ}
        \boxed{45°} | \boxed{45^\bullet} | \boxed{45 degrees} | \boxed{\frac{\pi}{4}}""",
    r"\boxed{\frac{1}{2}}": r"""
        \boxed{\frac{1}{2}} | \boxed{0.5} | \boxed{\dfrac12} | \boxed{1/2} | \boxed{50\%} | \boxed{2} | $\frac{1}{2}$""",
    r"\boxed{3\sqrt{2}}": r"\boxed{3\sqrt{2}} | \boxed{\sqrt{18}} | \boxed{3{sqrt}{2}} | \boxed{4.24} | \boxed{3\sqrt{3}}",
    r"\boxed{1, 2, 3}": r"""
        \boxed{1, 2, 3} | \boxed{1,2,3} | \boxed{1, 2.005, 3} | \boxed{1, 200, 3} | \boxed{3, 2, 1} | \boxed{1, 2}""",
    r"\boxed{x+1}": r"\boxed{x+1} | \boxed{1+x} | \boxed{x-1} | \boxed{y+1}",
    r"\boxed{A}": r"\boxed{A} | \boxed{\text{A}} | \boxed{a} | \boxed{B} | (A)",
    "So we find that it is \\boxed{7}.": r"\boxed{7} | So we find that it is \boxed{7} | \boxed{8} | seven",
}
THOUGHTS = ("{}", "<think>a</think>{}")
ODD = ("<think>a</think>\n<think>b</think>{}", "<think>{}", "<think>想一想，答案很简单</think>{}")
SHORT = ("<think></think>", "<think>\n</think>", "<think><think>a</think>", "</think><think>", "想", "想a", r"想想 \boxed{12}")


def main() -> None:
    checkout = Path(sys.argv[1])
    sys.path.insert(0, str(checkout))
    for name in ("maye", "maye.rlhf", "maye.datasets", "maye.utils"):  # without what their __init__ import
        package = types.ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    files = types.ModuleType("maye.utils.file")
    vars(files)["open_jsonl"] = None
    sys.modules["maye.utils.file"] = files
    rewards = importlib.import_module("maye.rlhf.rewards")
    dataset = importlib.import_module("maye.datasets.math").MathGenerationDataset
    judge = dataset.__new__(dataset)
    judge.scorer = importlib.import_module("maye.datasets.math_utils").AutoScoringJudge()
    version = importlib.metadata.version("math-verify")
    how = f"ran GAIR-NLP/MAYE @af35b9a: maye/rlhf/rewards.py, maye/datasets/math.py; math-verify {version}"
    said = {truth: re.split(r" \| |\n", inspect.cleandoc(bodies)) for truth, bodies in BODIES.items()}
    cases = [(form.replace("{}", body), truth) for truth, bodies in said.items() for body in bodies for form in THOUGHTS]
    few = next(iter(BODIES))
    cases += [(form.replace("{}", body), few) for form in ODD for body in said[few][:4]] + [(text, few) for text in SHORT]
    rows = []
    for text, truth in cases:
        parts = [rewards.accuracy_reward_fn([text], [truth], judge_fn=judge.judge)]
        parts += [rewards.format_reward_fn([text]), rewards.language_reward_fn([text])]
        reward = round(sum(float(part.double()[0]) for part in parts), 9)
        row = {"verifier": "vqa/reward@maye", "completion": text, "answer": truth, "meta": {}, "reward": reward, "how": how}
        rows.append(json.dumps(row, ensure_ascii=False))
    OUT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(rows)} rows")


if __name__ == "__main__":
    main()
