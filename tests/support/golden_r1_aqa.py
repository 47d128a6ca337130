"""Writes tests/golden/rewards-r1-aqa.jsonl: what R1-AQA's released rewards give.

git clone https://github.com/xiaomi-research/r1-aqa && git -C r1-aqa checkout 5d24f31
python tests/support/golden_r1_aqa.py r1-aqa

It needs math-verify.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

OUT = Path(__file__).parents[1] / "golden" / "rewards-r1-aqa.jsonl"
AROUND = (
    *("<answer>{}</answer>", "<answer> {} </answer>", "<answer>\n{}\n</answer>", "{}", " {} ", "<answer>{}", "{}</answer>"),
    *("It barks. <answer>{}</answer>", "<answer>{}</answer>.", "<answer>{}</answer>\n", "<ANSWER>{}</ANSWER>"),
    *("<think>a</think><answer>{}</answer>", "<answer>cow</answer><answer>{}</answer>"),
    *(
        "<answer>{}</answer><answer>cow</answer>",
        "<answer><answer>{}</answer></answer>",
        "<answer>\ncow</answer> <answer>{}</answer>",
    ),
)
"""What stands around an answer."""
SAID = {  # truth -> answers, some right and some not
    "dog": ("dog", "Dog", "dog.", "a dog", "cat", ""),
    "motorboat engine": ("motorboat engine", "motorboat  engine", "motorboat"),
    "3": ("3", "3.0", "three", "4", "$3$", "6/2"),
    "1/2": ("1/2", "0.5", "50%", "2"),
    "": ("", "dog"),
}
BARE = (("<answer>dog</answer>", "dog"), ("dog", "dog"), ("3 of 4", "3"), ("", ""), ("<answer></answer>", ""), ("$x+1$", "$1+x$"))
"""Completions and truths that no tag surrounds, though the released data set always writes it."""

READ = (
    *(("it is 3 <answer>cow</answer>", "3"), ("<answer>$6/2$</answer>", "<answer>$3$</answer>")),
    *(("\\boxed{3}<answer>cow</answer>", "<answer>$3$</answer>"), ("$0.5$ <answer>cow</answer>", "<answer>$1/2$</answer>")),
    *(("<answer> 3.0 </answer>", "<answer> 3 </answer>"), ("<answer> 4 </answer>", "<answer> 3 </answer>")),
    *(("<answer>$3.0$</answer>", "<answer>3</answer>"), ("The answer is 3. <answer>cow</answer>", "<answer>3</answer>")),
)
"""Truths that math-verify reads, which it does not where a tag touches the number, and what it finds outside of the tags."""


def cases() -> list[tuple[str, str]]:
    """(completion, truth)"""
    pairs = [(said, truth) for truth, answers in SAID.items() for said in answers]
    found = [(form.replace("{}", said), f"<answer>{truth}</answer>") for said, truth in pairs for form in AROUND]
    return list(dict.fromkeys([*found, *BARE, *READ]))


def main() -> None:
    spec = importlib.util.spec_from_file_location("rewards", Path(sys.argv[1]) / "src" / "utils" / "rewards.py")
    assert spec is not None and spec.loader is not None
    rewards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rewards)
    how = f"ran xiaomi-research/r1-aqa @5d24f31: src/utils/rewards.py; math-verify {importlib.metadata.version('math-verify')}"
    rows = []
    for text, truth in cases():
        said = [[{"content": text}]]
        value = rewards.accuracy_reward(said, [truth])[0] + rewards.format_reward(said)[0]
        row = {"verifier": "vqa/reward@r1-aqa", "completion": text, "answer": truth, "meta": {}, "reward": value, "how": how}
        rows.append(json.dumps(row, ensure_ascii=False))
    OUT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(rows)} rows")


if __name__ == "__main__":
    main()
