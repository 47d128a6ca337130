"""Writes tests/golden/rewards-deepeyes.jsonl and tests/golden/tools-deepeyes.jsonl: what the released DeepEyes pays for an
episode, and what its tools do with a turn.

    git clone https://github.com/Visual-Agent/DeepEyes && git -C DeepEyes checkout 6c5e796
    python tests/support/golden_deepeyes.py DeepEyes

It needs math-verify and Pillow. The model that judges answers there is replaced by a rule, the same words whatever their case;
the rest of the code runs as it is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

from PIL import Image

GOLDEN = Path(__file__).parents[1] / "golden"
HOW = "ran Visual-Agent/DeepEyes @6c5e796: "
QUESTION = "What colour is it?"
SIZE = (640, 480)
PICTURE = "\n<|im_start|>user\n<tool_response><|vision_start|><|image_pad|><|vision_end|></tool_response><|im_end|>\n"
CALL = '<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [10, 20, 200, 200]}}</tool_call>'
ENDS = (
    "<think>It is red.</think><answer>red</answer>",
    "<think>It is red.</think> <answer> RED </answer>",
    "<answer>red</answer>",
    "<answer>blue</answer>",
    "<think>a</think><answer>red</answer><answer>blue</answer>",
    "<think>a</think><answer>blue</answer><answer>red</answer>",
    "<think>a<answer>red</answer>",
    "a</think><answer>red</answer>",
    "<think>a</think><answer>red",
    "<think>a</think>red</answer>",
    "<think>a</think>red",
    "red",
    "",
    "<answer></answer>",
    "<answer>" + "red " * 400 + "</answer>",
    "<answer>" + "r" * 999 + "</answer>",
    "<think>a</think><think>b</think><answer>red</answer>",
)
STARTS = (
    "",
    f"<think>Closer.</think>{CALL}{PICTURE}",
    f"<think>Closer.</think>{CALL}{PICTURE}<think>Closer.</think>{CALL}{PICTURE}",
    f"<think>Closer.</think>{CALL}\n<|im_start|>user\nError: it failed<|im_end|>\n",
    f"{CALL}<|vision_start|><|image_pad|>",
    f"<think>Closer.{CALL}{PICTURE}",
)
FORMULAS = (
    "\\boxed{3}",
    "so \\boxed{3.0}",
    "\\boxed{4}",
    "\\boxed{4} no \\boxed{3}",
    "3",
    "",
    "<think>\\boxed{3}</think>x",
    "\\boxed{}",
)
TRUE_FORMULAS = ("3", "\\frac{6}{2}")
BOXES = (
    *(
        [10, 20, 200, 200],
        [0, 0, 640, 480],
        [-50, -50, 100, 100],
        [600, 400, 900, 900],
        [700, 100, 900, 300],
        [100, 100, 100, 300],
    ),
    *([200, 200, 100, 100], [10, 10, 40, 40], [10, 10, 41, 41], [10, 10, 40.5, 300], [0, 0, 640, 6], [0.4, 0.6, 99.5, 99.5]),
    *([0, 0, 31, 480], [1e-6, 1e-6, 2e-6, 2e-6], [1e6, 1e6, 2e6, 2e6], [-1e9, -1e9, 1e9, 1e9], [300, 200, 331, 231]),
)
TURNS = (
    *("", "red", "<answer>red</answer>", "<answer></answer>", "<tool_call></tool_call>", "<tool_call>{</tool_call>"),
    *('<tool_call>{"name": "image_zoom_in_tool"}</tool_call>', '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'),
    *('<tool_call>{"name": "image_zoom_in_tool", "arguments": {}}</tool_call>', "<tool_call>[1]</tool_call>"),
    *('<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [1, 2]}}</tool_call>', f"<answer>red</answer>{CALL}"),
    *(f"{CALL}<answer>red</answer>", '<tool_call>{"name": "image_rotate_tool", "arguments": {"angle": 90}}</tool_call>'),
    *('<tool_call>{"name": "image_rotate_tool", "arguments": {"angle": 30}}</tool_call>', f"<think>{CALL}</think>"),
    *("<tool_call><tool_call>{}</tool_call></tool_call>", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
)


def judge(prompt: str) -> str:
    """The answer of the rule in the form that each of the three prompts asks for."""
    if "Equivalence Judgement" in prompt:
        truth = prompt.split("**Reference Answer**\n")[1].split("\n\n## Student Final Answer")[0]
        said = prompt.split("## Student Final Answer\n")[1]
        return f"## Equivalence Judgement\n{str(said.strip().lower() == truth.strip().lower()).upper()}"
    asked = prompt[prompt.rindex(f"[Question]: {QUESTION}") :]  # before it stand examples in the same form
    truth, said = re.findall(r"\[Standard Answer\]: (.*)\n\[Model_answer\] : (.*)\nJudgement:$", asked, re.DOTALL)[0]
    return str(int(said.strip().lower() == truth.strip().lower()))


class Client:
    def __init__(self, **_: Any) -> None:
        self.chat = types.SimpleNamespace(completions=self)

    def create(self, messages: list[dict[str, str]], **_: Any) -> Any:
        said = types.SimpleNamespace(content=judge(messages[-1]["content"]))
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=said)])


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def rewards(root: Path) -> list[dict[str, Any]]:
    sys.modules["openai"] = types.ModuleType("openai")
    vars(sys.modules["openai"])["OpenAI"] = Client
    reply = types.SimpleNamespace(json=lambda: {"data": [{"id": "rule"}]})
    sys.modules["requests"] = types.ModuleType("requests")
    vars(sys.modules["requests"])["get"] = lambda _: reply
    code = module(root / "verl" / "utils" / "reward_score" / "vl_agent.py")
    extra = {"question": QUESTION}
    rows = []
    for start, end in itertools.product(STARTS, ENDS):
        for name, function in (("reward", code.compute_score), ("reasoning-reward", code.compute_common_reasoning)):
            rows.append(row(name, start + end, "red", function(start + end, "red", extra), function.__name__))
    for formula, truth in itertools.product(FORMULAS, TRUE_FORMULAS):
        for text in (formula, f"<think>a</think>{formula}", f"<think>a{formula}"):
            paid = code.compute_score_math(text, truth, extra)
            rows.append(row("math-reward", text, truth, paid, "compute_score_math"))
    return rows


def row(name: str, text: str, answer: str, reward: float, function: str) -> dict[str, Any]:
    own = {"verifier": f"tools/{name}@deepeyes", "completion": text, "answer": answer, "meta": {}}
    return own | {"reward": float(reward), "how": HOW + f"vl_agent.{function}"}


def tools(root: Path) -> list[dict[str, Any]]:
    for parts in itertools.accumulate(("verl", "workers", "agent", "envs", "mm_process_engine"), "{}.{}".format):
        sys.modules[parts] = types.ModuleType(parts)
    folder = root / "verl" / "workers" / "agent"
    base = types.ModuleType("verl.workers.agent.tool_envs")
    vars(base)["ToolBase"] = type("ToolBase", (), {"__init__": lambda self, name: None})
    sys.modules[base.__name__] = base
    prompt = module(folder / "envs" / "mm_process_engine" / "prompt.py")
    sys.modules["verl.workers.agent.envs.mm_process_engine.prompt"] = prompt
    box = module(folder / "envs" / "mm_process_engine" / "visual_toolbox_v2.py").VisualToolBoxV2("", "", {})
    data = {"image": [Image.new("RGB", SIZE, (9, 9, 9))]}
    zooms = [CALL.replace("[10, 20, 200, 200]", json.dumps(corners)) for corners in BOXES]
    rows = []
    for text in (*TURNS, *zooms, zooms[3] + zooms[0]):
        box.reset(None, data, data)
        seen, _, done, _ = box.execute(text)
        shown = list(seen["multi_modal_data"]["image"][0].size) if isinstance(seen, dict) else None
        own = {"turn": text, "done": done, "failed": shown is None and not done, "shown": shown}
        rows.append(own | {"how": HOW + "visual_toolbox_v2.VisualToolBoxV2"})
    return rows


def main() -> None:
    root = Path(sys.argv[1])
    with contextlib.redirect_stdout(io.StringIO()):
        found = {"rewards-deepeyes": rewards(root), "tools-deepeyes": tools(root)}
    for name, rows in found.items():
        out = GOLDEN / f"{name}.jsonl"
        lines = list(dict.fromkeys(map(json.dumps, rows)))
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{out}: {len(lines)} rows")


if __name__ == "__main__":
    main()
