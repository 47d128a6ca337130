"""Writes tests/golden/aitw.jsonl: what the action matching of Android in the Wild says of answers to random steps, with
SeeClick's reading of both. Needs jax.

    git clone https://github.com/njucckevin/SeeClick && git -C SeeClick checkout 0ef37ac
    python tests/support/golden_aitw.py SeeClick

Steps are as in SeeClick's files; an answer is as its models give it. The parts are those of its aitw_test.py.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "golden" / "aitw.jsonl"
HOW = "ran njucckevin/SeeClick:agent_tasks/action_matching.py @0ef37ac"
IDS = {"type": 3, "press back": 5, "press home": 6, "press enter": 7, "status task complete": 10, "status task impossible": 11}
SCROLLS = {"scroll down": 0, "scroll up": 1, "scroll left": 8, "scroll right": 9}
TEXTS = ("coffee maker", "Coffee Maker", "coffee", "tea", "lowes.com")


def near(rng: random.Random, point: list[float], reach: float) -> list[float]:
    return [round(min(1.0, max(0.0, v + rng.uniform(-reach, reach))), 4) for v in point]


def step(rng: random.Random, number: int) -> dict[str, Any]:
    text = "click" if number % 2 else rng.choice((*SCROLLS, *IDS))
    touch = [round(rng.random(), 4), round(rng.random(), 4)]
    lift = near(rng, touch, rng.choice((0.0, 0.02, 0.02, 0.06)))
    boxes = []
    for _ in range(rng.randrange(1, 8)):
        x, y = near(rng, touch, 0.3)
        boxes += [y, x, *(round(rng.uniform(0.01, 0.3), 4) for _ in range(2))]
    own: dict[str, Any] = {"step": number, "img_filename": "general/a", "goal": "buy coffee", "annot_position": boxes}
    if text == "type":
        own["type_text"] = rng.choice(TEXTS)
    gesture = text == "click" or text in SCROLLS
    places = {"touch": touch, "lift": lift} if gesture else {"touch": [-1.0, -1.0], "lift": [-1.0, -1.0]}
    return own | places | {"action_type_text": text, "action_type_id": 4 if gesture else IDS[text]}


def answers(rng: random.Random, own: dict[str, Any]) -> list[dict[str, Any]]:
    """What may be answered: clicks at many distances, and each other kind."""
    at = own["touch"] if own["touch"][0] >= 0 else [0.5, 0.5]
    reaches = (0.02, 0.1, 0.15, 0.15, 0.2, 0.2, 0.3, 0.5) if own["action_type_text"] == "click" else (0.2,)
    found: list[dict[str, Any]] = [{"action_type": 4, "click_point": near(rng, at, reach)} for reach in reaches]
    found += [{"action_type": kind} for kind in rng.sample([*SCROLLS.values(), 5, 6, 7, 10, 11], 5)]
    return [*found, {"action_type": 3, "typed_text": rng.choice(TEXTS)}]


def main() -> None:
    sys.path.insert(0, str(Path(sys.argv[1]) / "agent_tasks"))
    import action_matching

    rng = random.Random(0)
    rows = []
    for number in range(80):
        own = step(rng, number)
        true = action_matching.action_2_format(own)
        boxes = np.array([own["annot_position"][n : n + 4] for n in range(0, len(own["annot_position"]), 4)])
        judged = []
        for said in answers(rng, own):
            found = action_matching.pred_2_format(said)
            both = [one[key] for one in (found, true) for key in ("touch_point", "lift_point", "action_type")]
            parts: dict[str, bool] = {"type": found["action_type"] == true["action_type"]}
            if true["action_type"] == IDS["type"]:
                a, b = found["typed_text"], true["typed_text"]
                parts["text"] = a == b or a in b or b in a
            right = bool(action_matching.check_actions_match(*both, boxes))
            judged.append({"said": said, "right": right, "parts": parts})
        rows.append(json.dumps({"step": own, "answers": judged, "how": HOW}))
    OUT.write_text("\n".join(rows) + "\n")
    print(f"{OUT}: {len(rows)} steps")


if __name__ == "__main__":
    main()
