"""A linear probe on the vision towers of policies: how much of a digit can be read off what the tower sees.

    python benchmarks/tower.py POLICY [POLICY ...]

POLICY is a model's folder, such as the `policy` of a checkpoint of `benchmarks/preferences.py --folder FOLDER`, a hub name, or
`tiny:qwen2_5_vl`. Features are the mean over the patches of the tower's last states. A logistic regression is fitted to the 1,300
digits of `train`, standardised by them, with C = 1, and measured on the 397 of `test`, with Wilson's interval of 95%. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def probed(model: str) -> dict[str, Any]:
    """The probe's accuracy on the tower of a model."""
    from mmrl_classification.task import Digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from mmrl.api.statistics import wilson
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.vlm.tower import tower_features
    from mmrl.policies.vlm.vlm import VLM

    policy, task = VLM(PolicyConfig(model=model)), Digits()
    prompts = {split: list(task.prompts(split, 0)) for split in ("train", "test")}
    features = {split: tower_features(policy, own).numpy() for split, own in prompts.items()}
    labels = {split: [prompt.answer for prompt in own] for split, own in prompts.items()}
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=2000)).fit(features["train"], labels["train"])
    right, n = int((probe.predict(features["test"]) == labels["test"]).sum()), len(labels["test"])
    low, high = wilson(right, n)
    return {
        "value": round(right / n, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "n": n,
        "width": features["test"].shape[1],
    }


def main() -> None:
    from machine import machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", metavar="POLICY")
    args = parser.parse_args()
    started = time.perf_counter()
    found = {model: probed(model) for model in args.policies}
    print(
        json.dumps(
            {"benchmark": "tower", "probes": found, "wall_s": round(time.perf_counter() - started, 1), "machine": machine()}
        )
    )


if __name__ == "__main__":
    main()
