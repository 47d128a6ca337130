"""Writes tests/golden/rewards-videossr.jsonl: what VideoSSR's released rewards give.

git clone https://github.com/lcqysl/VideoSSR && git -C VideoSSR checkout b0d2acb
python tests/support/golden_videossr.py VideoSSR
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "golden" / "rewards-videossr.jsonl"
FOLDER = "verl/verl/utils/reward_score"
AROUND = ("{}", "{}\n", "\n\n{}  ", "\t{}", "Answer: {}", "{}.", "<answer>{}</answer>", "{} {}")
"""What stands around an answer; blanks alone are stripped."""
SPANS = ("14.5-26.2", "14.5 - 26.2", "26.2-14.5", "0-100", "14.5-14.5", "20-30", "1.4.5-3", "-1-5", "14.5", "", "a-b")
COUNTS = ("3,1,4", "3, 1, 4", "3 1 4", "4,1,3", "3,1", "3,1,4,1", "0,0,0", "-3,-1,-4", "3.0,1,4", "three", "", "30,10,40")


def cases() -> list[tuple[str, str, str]]:
    """(reward, completion, truth)"""
    rng = random.Random(0)
    found = [("jigsaw", form.replace("{}", said), "341562") for form in AROUND for said in ("341562", "341526", "123456")]
    found += [("jigsaw", "".join(said), "2413") for said in itertools.permutations("1234")]
    found += [("jigsaw", "".join(rng.sample("123456", 6)), "".join(rng.sample("123456", 6))) for _ in range(24)]
    found += [("jigsaw", said, "341562") for said in ("", "  ", "34156", "3415622", "341566", "3 4 1 5 6 2", "3,4,1,5,6,2")]
    found += [("grounding", form.replace("{}", said), "14.5-26.2") for form in AROUND[:5] for said in SPANS[:3]]
    found += [("grounding", said, truth) for said in SPANS for truth in ("14.5-26.2", "0.0-2.0")]
    found += [("counting", said, truth) for said in COUNTS for truth in ("3,1,4", "0,2,1")]
    return list(dict.fromkeys(found))


def main() -> None:
    rewards: dict[str, Any] = {}
    for name in ("jigsaw", "grounding", "counting"):
        spec = importlib.util.spec_from_file_location(name, Path(sys.argv[1]) / FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        rewards[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(rewards[name])
    rows = []
    for name, text, truth in cases():
        with contextlib.redirect_stdout(None):
            value = rewards[name].compute_score(text, truth, {"perturbation_type": ""})
        how = f"ran lcqysl/VideoSSR:{FOLDER}/{name}.py @b0d2acb"
        row = {"verifier": f"video/{'anomaly' if name == 'grounding' else name}@videossr", "completion": text, "answer": truth}
        rows.append(json.dumps({**row, "meta": {}, "reward": value, "how": how}, ensure_ascii=False))
    OUT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(rows)} rows")


if __name__ == "__main__":
    main()
