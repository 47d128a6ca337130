"""A zoom that is learned, on drawn pictures whose answer can only be read at full resolution: held-out accuracy before and
after GRPO, over seeds, and with a tool that gives grey pictures back.

    python benchmarks/learn_zoom.py [--seeds 0 1 2] [--read 500] [--warm 15] [--steps 50] [--side-by-side 1] [--curve FILE.svg]

The task is `tools/fine-print` with two cards in nine places: the question names one, and the model answers which way its ring
is open. In the picture that it is shown all four answers are the same, byte for byte, so that 0.25 is the best without a zoom;
a zoom shows one of the nine places. The model is a `tiny:qwen3_vl` with random weights, made as in `learn_grounding.py`, with
one token for each place, answer and fixed text, so that a call has three tokens and its end. Supervised fine-tuning teaches it
first how to zoom and read, and then, on answers without a zoom, not to: the warm start answers at once, and zooms in a fifth of
what it samples. GRPO starts from that checkpoint, once for each seed, with the right answer as the only reward. Each run is
`mmrl train` in a separate process with one thread. Prints one JSON object; of `zooms`, `grey` and `without` (calls are refused)
the first number is that of the warm start.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import learning
from machine import machine

SHARP, BLANK, NONE = "zoom", "grey", "none"
"""Labels of the task, of the same with grey pictures in place of what the tool shows, and of the same without calls."""
SIZE, FACTOR, CELLS, CARDS, HELD_OUT = 12, 24, 3, 2, 200
RUN_FILE = """\
name = "{name}"
runs_dir = "{runs}"
seed = {seed}
policy = {{ model = "{model}", max_pixels = 65536 }}
stages = [{stages}]
generate = {{ max_tokens = 6, max_turns = 3 }}
evaluate = {{ num_prompts = {test}, every = {every} }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}

[[tasks]]
id = "tools/fine-print"
name = "{sharp}"
options = {{ {options} }}

[[tasks]]
id = "tools/fine-print"
name = "{blank}"
weight = 0
options = {{ {options}, blank = true }}

[[tasks]]
id = "tools/fine-print"
name = "{none}"
weight = 0
options = {{ {options}, max_calls = 0 }}
"""
OPTIONS = 'size = {size}, cells = {cells}, cards = {cards}, factor = {factor}, items = {items}, schemas = "none"'
WARM = """{{ kind = "sft", steps = {read}, batch_size = 64, optimizer = "muon", beta1 = 0.95, learning_rate = 3e-3, \
warmup_steps = 20 }}, {{ kind = "sft", tasks = {{ {none} = 0.8, {sharp} = 0.2 }}, steps = {warm}, batch_size = 64, \
optimizer = "muon", beta1 = 0.95, learning_rate = 1e-3 }}"""
RL = """{{ kind = "rl", steps = {steps}, prompts_per_step = 16, group_size = 8, optimizer = "muon", beta1 = 0.95, \
learning_rate = {rate}, schedule = "linear" }}"""


def write_start(folder: Path) -> int:
    """Writes the random checkpoint from which the warm start begins. Returns its number of weights."""
    from mmrl_tools.fine_print import COLOURS, SIDES, FinePrint

    from mmrl import ImageProcessing
    from mmrl.api.coordinates import CoordinateFormat

    task = FinePrint(size=SIZE, cells=CELLS, cards=CARDS, factor=FACTOR, schemas="none", items=2000)
    task.image_processing = ImageProcessing(CoordinateFormat.THOUSANDTHS)  # Qwen3-VL's
    said = [task.gold(prompt) for prompt in task.prompts("train", 0)[:500]]
    before, _, rest = said[0].partition("[")
    places = sorted({one.partition("[")[2].partition("]")[0] for one in said})
    asked = task.prompts("train", 0)[0].text
    colour = next(colour for colour in COLOURS if colour in asked)
    words = [before + "[", "]" + rest.partition("]")[2], *places, *SIDES, *COLOURS, *asked.split(colour)]
    return learning.write_start(folder, [*words, "<tool_response>\n", "Picture 2.\n</tool_response>"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--read", type=int, default=500, help="steps of supervised fine-tuning with zooms")
    parser.add_argument("--warm", type=int, default=15, help="further steps, most of them without")
    parser.add_argument("--steps", type=int, default=50, help="steps of GRPO")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate of GRPO")
    parser.add_argument("--every", type=int, default=0, help="steps between evaluations; 0: before and after alone")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=None, help="folder for the runs")
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out accuracy")
    args = parser.parse_args()
    started, runs = time.perf_counter(), args.runs or Path(tempfile.mkdtemp())
    weights = write_start(runs / "start")
    options = OPTIONS.format(size=SIZE, cells=CELLS, cards=CARDS, factor=FACTOR, items=10 * HELD_OUT)
    names = {"sharp": SHARP, "blank": BLANK, "none": NONE}
    own = {"runs": runs, "options": options, "test": HELD_OUT, "every": args.every, **names}

    def run(name: str, seed: int, model: Path, stages: str) -> learning.Run:
        return learning.train(runs, name, RUN_FILE.format(name=name, seed=seed, model=model, stages=stages, **own))

    warm = run("warm", 0, runs / "start", WARM.format(read=args.read, warm=args.warm, **names))
    model, stage = learning.checkpoint(runs, "warm"), RL.format(steps=args.steps, rate=args.rate)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda seed: run(f"seed-{seed}", seed, model, stage), args.seeds))
    if args.curve:
        learning.draw(args.curve, SHARP, after)
    found = {
        "benchmark": "learn_zoom",
        "weights": weights,
        "steps": [args.read, args.warm, args.steps],
        "side_by_side": args.side_by_side,
        **(learning.figures(SHARP, warm, after) if after else {"warm_start": warm.last(SHARP)["value"], "warm_s": warm.wall_s}),
        "zooms": [_zooms(one) for one in (warm, *after)],
        "grey": [one.last(BLANK)["value"] for one in (warm, *after)],
        "without": [one.last(NONE)["value"] for one in (warm, *after)],
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


def _zooms(run: learning.Run) -> float:
    """Zooms of a held-out episode at the end."""
    return float(run.last(SHARP)["extra"]["episode/zoom_calls"])


if __name__ == "__main__":
    main()
