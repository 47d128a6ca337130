"""The functions that shades.yaml names, as a benchmark of lmms-eval has them. Some answers make them misbehave."""

import time


def visual(doc):
    return [doc["image"].convert("RGB")]


def text(doc, lmms_eval_specific_kwargs):
    return doc["question"] + lmms_eval_specific_kwargs["after"]


def results(doc, results):
    said = results[0]
    if "raise" in said:
        raise ValueError("a bug")
    if "hang" in said:
        time.sleep(60)
    right = float(said == doc["answer"])
    found = {"exact": right, "macro": {"dark": int(doc["answer"]) < 2, "score": right}, "error": 1 - right}
    return {**found, "exact": float("nan")} if "nan" in said else {} if "nothing" in said else found


def macro(items):
    """The mean of the means of two kinds, in percent."""
    kinds = {}
    for item in items:
        kinds.setdefault(item["dark"], []).append(item["score"])
    return 100 * sum(sum(scores) / len(scores) for scores in kinds.values()) / len(kinds)
