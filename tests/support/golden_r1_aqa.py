"""Writes tests/golden/rewards-r1-aqa.jsonl, what R1-AQA's released rewards give, and tests/golden/prompts-r1-aqa.jsonl, what its
data handling makes of rows.

git clone https://github.com/xiaomi-research/r1-aqa && git -C r1-aqa checkout 5d24f31
python tests/support/golden_r1_aqa.py r1-aqa

It needs math-verify.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

OUT = Path(__file__).parents[1] / "golden"
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


THOUGHTS = (
    "<think>a</think>{}",
    "<think>a</think>\n {}",
    "<think></think>{}",
    "a<think>b</think>{}",
    "<think>a</think>b{}",
    "{}",
    "{}.",
)
FORMS = ("<answer>dog</answer>", "<answer></answer>", "<answer>a</answer><answer>b</answer>", "<answer>dog", "dog</answer>", "")
"""Thoughts and the answers behind them, for the pattern that the code names for answers with a thought."""
ROWS = (
    {
        "question_text": "What happened in the video?",
        "multi_choice": ["motorboat", "Yacht consignment", "Sailboat set sail"],
        "answer": 1,
    },
    {"question_text": "Which video of the two videos is loud?", "multi_choice": ["it's the first", 'the "second"'], "answer": 0},
    {"question_text": " How many? ", "multi_choice": ["1", "2", "\u00e9t\u00e9"], "answer": 2},
)
"""Rows of AVQA, as its data handling takes them."""


def cases() -> list[tuple[str, str]]:
    """(completion, truth)"""
    pairs = [(said, truth) for truth, answers in SAID.items() for said in answers]
    found = [(form.replace("{}", said), f"<answer>{truth}</answer>") for said, truth in pairs for form in AROUND]
    return list(dict.fromkeys([*found, *BARE, *READ]))


def loaded(folder: Path, name: str) -> Any:
    """A file of the released code as a module."""
    spec = importlib.util.spec_from_file_location("released", folder / "src" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(name: str, rows: list[dict[str, Any]]) -> None:
    (OUT / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{OUT / name}: {len(rows)} rows")


def main() -> None:
    folder = Path(sys.argv[1])
    rewards = loaded(folder, "utils/rewards.py")
    how = f"ran xiaomi-research/r1-aqa @5d24f31: src/utils/rewards.py; math-verify {importlib.metadata.version('math-verify')}"
    rows = []
    for text, truth in cases():
        said = [[{"content": text}]]
        for verifier, value in (
            ("accuracy", rewards.accuracy_reward(said, [truth])[0]),
            ("format", rewards.format_reward(said)[0]),
        ):
            row = {"verifier": f"audio/{verifier}@r1-aqa", "completion": text, "answer": truth, "meta": {}, "reward": value}
            rows.append(row | {"how": how})
    code = (folder / "src" / "utils" / "rewards.py").read_text()
    (pattern,) = re.findall(r'# pattern = r"(.*)"', code)
    for text in dict.fromkeys(thought.replace("{}", form) for thought in THOUGHTS for form in FORMS):
        value = float(re.fullmatch(pattern, text, re.DOTALL) is not None)
        row = {"verifier": "audio/think-format@r1-aqa", "completion": text, "answer": None, "meta": {}, "reward": value}
        rows.append(row | {"how": "the pattern in a comment of " + how.partition(";")[0].removeprefix("ran ")})
    write("rewards-r1-aqa.jsonl", rows)

    sys.modules["torchaudio"] = ModuleType("torchaudio")  # its data handling imports it for sounds, and its words need none
    released, thinking = loaded(folder, "dataset/dataset.py"), ModuleType("thinking")
    source = (folder / "src" / "dataset" / "dataset.py").read_text()
    assert source.count("# question_template") == 1
    exec(source.replace("# question_template", "question_template"), thinking.__dict__)
    prompts = []
    for style, module in (("r1-aqa", released), ("r1-aqa-think", thinking)):
        for row in ROWS:
            made = module._handle_avqa({**row, "audio_path": "a.wav"})
            told = {"text": made["prompt"][0]["content"][1]["text"], "solution": made["solution"]}
            prompts.append({"style": style, "row": row, **told})
    write("prompts-r1-aqa.jsonl", prompts)


if __name__ == "__main__":
    main()
