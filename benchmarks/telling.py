"""Cost of sending a completion to other ranks: its pickled bytes, and the seconds to read it.

    python benchmarks/telling.py [--tokens 50 200 500] [--ranks 256] [--characters 4.5]

A rank's prompts with their groups, as from `group_stub`; all texts differ. The bytes are fitted as a number per token plus a
number per completion, which includes its share of the prompt. Reading works as in torch's `all_gather_object`, for `--ranks`
shares that stay in memory, in CPU seconds, the median of `--rounds`: with Python's garbage collector, which scans the objects
read so far again and again, and (`uncollected`) with one collection at the end. `columns` has the same data as one array or list
per field. Prints one JSON object, from which the numbers in `pipeline_costs.py` are taken.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import pickle
import random
import statistics
import string
import time
from typing import Any

import numpy as np

from machine import machine
from mmrl.api.episodes import Conversation
from mmrl.api.sampling import Group
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.train.sampling.groups import group_stub

QUESTION = "Where is the blue cup that stands behind the plate? Think about it first, then answer with a box of four numbers."


def share(prompts: int, group: int, tokens: int, characters: float, seed: int = 0) -> dict[int, Group]:
    """A rank's scored groups by prompt number. characters: per token."""
    rng, made = random.Random(seed), {}
    for number in range(prompts):
        prompt = Prompt(messages=[user_message(QUESTION)], answer=[24, 31, 190, 220], id=f"scene-{number}", task="bench/telling")
        rollouts, scores = [], []
        for _ in range(group):
            text = "".join(rng.choices(string.ascii_letters + " ", k=round(tokens * characters)))
            turn = Turn(observed_ids=tuple(range(1000)), token_ids=tuple(range(tokens)), logprobs=(-0.5,) * tokens, text=text)
            rollouts.append(Conversation(prompt=prompt, group=number, turns=(turn,), status=Status.FINISHED))
            value = rng.random()
            scores.append(Score(value, {"grounding/iou": value}, f"an overlap of {value:.2f} with the box"))
        made[number] = Group(number=number, place=("boxes", number), prompt=prompt, inputs=None, rollouts=rollouts, scores=scores)
    return made


def columns(groups: dict[int, Group]) -> dict[str, Any]:
    """The same data without an object per completion."""
    light = [group_stub(group) for group in groups.values()]
    rollouts, scores = [r for g in light for r in g.rollouts], [s for g in light for s in g.scores]
    turns = [t for r in rollouts for t in r.turns]
    flags = [(t.terminated, t.truncated, r.off_policy, r.is_demonstration) for r in rollouts for t in r.turns]
    return {
        "prompts": [(g.place, g.prompt.id, g.prompt.text, g.prompt.answer, len(g.rollouts)) for g in light],
        "texts": [t.text for t in turns],
        "details": [s.detail for s in scores],
        "statuses": np.array([list(Status).index(r.status) for r in rollouts], np.int8),
        "turns": np.array([len(r.turns) for r in rollouts], np.int32),
        "lengths": np.array([len(t.token_ids) for t in turns], np.int32),
        "versions": np.array([t.policy_version for t in turns], np.int32),
        "rewards": np.array([t.reward for t in turns]),
        "flags": np.array(flags),
        "values": np.array([s.value for s in scores], float),
        "parts": {name: np.array([s.parts[name] for s in scores]) for name in scores[0].parts},
    }


def read(told: bytes, ranks: int, collecting: bool = True) -> float:
    """CPU seconds to read the data of `ranks` ranks. collecting: with Python's garbage collector, as by default; otherwise one
    collection at the end."""
    kept: list[Any] = []
    gc.collect()
    started = time.process_time()
    if not collecting:
        gc.disable()
    for _ in range(ranks):
        kept.append(pickle.Unpickler(io.BytesIO(told)).load())
    if not collecting:
        gc.enable()
        gc.collect(0)
    return time.process_time() - started


def measured(made: Any, completions: int, ranks: int, rounds: int) -> dict[str, float]:
    """Bytes and seconds of one completion."""
    told = pickle.dumps(made)
    found = {"bytes": len(told) / completions}
    for name, collecting in (("read_us", True), ("read_uncollected_us", False)):
        seconds = statistics.median(read(told, ranks, collecting) for _ in range(rounds))
        found[name] = seconds / ranks / completions * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[50, 200, 500], help="tokens of a completion")
    parser.add_argument("--characters", type=float, default=4.5, help="characters of a token")
    for name, default in dict(prompts=64, group=5, ranks=256, rounds=3).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    count, rows = args.prompts * args.group, []
    for tokens in args.tokens:
        groups = share(args.prompts, args.group, tokens, args.characters)
        objects = {number: group_stub(group) for number, group in groups.items()}
        row = {"tokens": tokens, **measured(objects, count, args.ranks, args.rounds)}
        row |= {f"columns_{k}": v for k, v in measured(columns(groups), count, args.ranks, args.rounds).items()}
        rows.append({name: round(value, 2) for name, value in row.items()})
    found: dict[str, Any] = {}
    for kind in ("", "columns_"):
        line = np.polyfit(args.tokens, [row[f"{kind}bytes"] for row in rows], 1)
        found |= {f"{kind}told_bytes": round(float(line[0]), 3), f"{kind}told_completion_bytes": round(float(line[1]), 1)}
        for name in ("read", "read_uncollected"):
            found[f"{kind}told_{name}_s"] = round(statistics.median(row[f"{kind}{name}_us"] for row in rows) * 1e-6, 8)
    settings = {name: getattr(args, name) for name in ("prompts", "group", "ranks", "rounds", "characters")}
    print(json.dumps({"benchmark": "telling", **found, "lengths": rows, **settings, "machine": machine()}))


if __name__ == "__main__":
    main()
