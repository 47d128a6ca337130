"""Writes tests/golden/rewards-virl.jsonl: what the released V-IRL navigation pays for an answer, and says of it.

    git clone https://github.com/LeslieTrue/SFTvsRL && git -C SFTvsRL checkout 5a6ea55
    python tests/support/golden_virl.py SFTvsRL

It needs numpy, torch, tqdm, PyYAML.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import types
from pathlib import Path

OUT = Path(__file__).parents[1] / "golden" / "rewards-virl.jsonl"
HOW = "ran LeslieTrue/SFTvsRL @5a6ea55: utils_rl.step_rewards_virl"
TRUTHS = (
    ("forward()", "No landmarks nearby"),
    ("turn_direction(north)", "Red Star Cafe is on your left"),
    ("turn_direction(slightly left)", "the intersection of Main Street"),
    ("stop()", "Blue Square Bank is on your right"),
)
SEEN = ("No landmarks nearby", "You observe an intersection", "Red Star Cafe is on your left; You observe an intersection", "")
ACTIONS = ("forward()", "turn_direction(north)", "turn_direction(slightly left)", "stop()", "forward", "Forward()", "")
ODD = (
    "",
    "forward()",
    '"action": "forward()"',
    '"action": "stop()" "action": "forward()"',
    '"current observation": "intersection"',
)


def main() -> None:
    for name in ("box",):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name])["Box"] = dict
    sys.path.insert(0, sys.argv[1])
    step_rewards = importlib.import_module("utils_rl").step_rewards_virl
    rows = []
    for (action, observation), (seen, done) in itertools.product(TRUTHS, itertools.product(SEEN, ACTIONS)):
        fields = {"current observation": seen, "current instruction": "Turn left.", "action": done}
        published = "\n{\n" + "".join(f'  "{name}": "{value}",\n' for name, value in fields.items()) + "}\n"
        texts = [published, json.dumps(fields)] + (list(ODD) if (seen, done) == (SEEN[0], ACTIONS[0]) else [])
        for text in texts:
            reward, told = step_rewards(text, action, observation, "")
            row = {"verifier": "vqa/navigation@v-irl", "completion": text, "answer": action}
            row |= {"meta": {"spots": [[action, observation]]}, "reward": float(reward), "detail": told, "how": HOW}
            rows.append(json.dumps(row))
    OUT.write_text("\n".join(dict.fromkeys(rows)) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(dict.fromkeys(rows))} rows")


if __name__ == "__main__":
    main()
