"""Writes tests/golden/highway-env.jsonl: where highway-env's car is after a step.

    pip install highway-env==1.12.1
    python tests/support/golden_highway.py

`Vehicle.step` of highway_env/vehicle/kinematics.py, with our wheelbase in place of its length, and no road.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
from highway_env.vehicle.kinematics import Vehicle

OUT = Path(__file__).parents[1] / "golden" / "highway-env.jsonl"
BASE = 2.8


def main() -> None:
    rng, rows = random.Random(0), []
    for _ in range(30):
        before = [round(rng.uniform(-limit, limit), 4) for limit in (20, 20, 3)] + [round(rng.uniform(0, 30), 4)]
        slip = round(rng.uniform(-0.3, 0.3), 4)
        car = Vehicle.__new__(Vehicle)
        car.LENGTH, car.crashed, car.impact = BASE, False, None
        car.position, car.heading, car.speed = np.array(before[:2]), *before[2:]
        car.action = {"steering": math.atan(2 * math.tan(slip)), "acceleration": 0.0}
        car.on_state_update = lambda: None
        car.step(0.05)
        after = [*car.position.tolist(), float(car.heading)]
        rows.append({"before": before, "slip": slip, "dt": 0.05, "after": after, "how": "highway-env 1.12.1"})
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
