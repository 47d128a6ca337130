"""Metrics of benchmarks of questions about pictures, where they aren't those of our verifiers.

The answer is read as by our verifiers: from its tag, or the whole completion in the style `plain`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence

import Levenshtein

from mmrl import Case, Prompt, Score
from mmrl.api.tasks.groups import KEY, PARTS
from mmrl_vqa.verifiers import ENOUGH, given, normalise

LEAST = 0.5
"""Least similarity that counts in ANLS."""
CHANGE = 0.05
"""Relative error that ChartQA allows."""
NO_BLANKS = "HME100k"
"""OCRBench's data set of formulas, where blanks aren't compared, but case is."""
ALL = "multi"
"""We-Math's question about all steps: its `key` is `2steps_multi`, those of the steps `2steps_1` and so on."""
MME = {
    "perception": (
        *("OCR", "artwork", "celebrity", "color", "count"),
        *("existence", "landmark", "position", "posters", "scene"),
    ),
    "cognition": ("code_reasoning", "commonsense_reasoning", "numerical_calculation", "text_translation"),
}
"""MME's figures -> the categories whose scores they are the sums of."""
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")


def relaxed(case: Case) -> Score:
    """1 for a number within 5% of the truth, else for a text that is equal without regard to case: the relaxed accuracy of
    ChartQA (Masry et al. 2022, section 5.1). `12%` is 0.12; years are numbers, too, so a year off by 50 is right. Units and
    thousands separators make a number a text.

    Known exploits: the tolerance.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    text, truth = found.strip(), _accepted(case)[0].strip()
    one, other = _number(text), _number(truth)
    right = abs(one - other) <= CHANGE * abs(other) if one is not None and other else text.casefold() == truth.casefold()
    return Score(float(right), detail=f"answered {text[:60]!r}")


def anls(case: Case) -> Score:
    """ANLS, the average normalised Levenshtein similarity of DocVQA and InfographicVQA (Biten et al. 2019, "Scene Text Visual
    Question Answering", section 4.1): 1 minus the edit distance over the length of the longer text, without regard to case and
    repeated blanks; of several accepted answers the best, and 0 below a half.

    Known exploits: an answer that is nearly right earns nearly all.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    best = max(_similarity(found, true) for true in _accepted(case))
    return Score(best if best >= LEAST else 0.0, detail=f"similarity {best:.3f}")


def _similarity(text: str, truth: str) -> float:
    longer = max(len(text), len(truth))  # with all blanks, as published
    one, other = (" ".join(t.casefold().split()) for t in (text, truth))
    return 1 - Levenshtein.distance(one, other) / longer


def contains(case: Case) -> Score:
    """1 if the answer contains an accepted text, without regard to case: OCRBench (Liu et al. 2023, section 3). Of its formulas
    (`meta["groups"]["dataset"]` is HME100k) blanks are left out and case counts.

    Known exploits: a long answer contains many texts; use it to evaluate, not to train.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    formulas = case.meta.get("groups", {}).get("dataset") == NO_BLANKS

    def form(text: str) -> str:
        plain = text.strip().replace("\n", " ")
        return plain.replace(" ", "") if formulas else plain.lower()

    right = any(form(true) in form(found) for true in _accepted(case))
    return Score(float(right), detail=f"answered {found.strip()[:60]!r}")


def votes(case: Case) -> Score:
    """The accuracy of VQA v2 and TextVQA as their code computes it: the mean over the annotators of min(n / 3, 1), where n is the
    number of the others who gave the answer, so three of ten votes are worth 0.9. Texts are compared as in `vqa/text`.

    Known exploits: those of `vqa/text`.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    said = [normalise(one) for one in _accepted(case)]
    plain = normalise(found) if len(found) <= 8 * max(map(len, said)) + 256 else ""
    hits = said.count(plain) if plain else 0
    values = [min((hits - (one == plain)) / ENOUGH, 1.0) for one in said] if hits else [0.0]
    return Score(sum(values) / len(values), detail=f"{hits} of {len(said)} votes")


YES_NO = ("precision", "recall", "f1", "yes_share")


def yes_no_figures(results: Sequence[tuple[Prompt, float]]) -> dict[str, float]:
    """`precision`, `recall`, `f1` and `yes_share`, with yes as the positive class; empty unless all questions are for yes or no
    and both occur. A wrong answer counts as the other word."""
    pairs = [(str(p.answer).casefold() == "yes", score >= 1) for p, score in results if p.meta.get("kind") == "yes-no"]
    if len(pairs) < len(results) or len({true for true, _ in pairs}) < 2:
        return {}
    hits, false = sum(t and right for t, right in pairs), sum(not t and not right for t, right in pairs)
    true = sum(t for t, _ in pairs)
    precision, recall = hits / (hits + false) if hits else 0.0, hits / true
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return dict(zip(YES_NO, (precision, recall, f1, (hits + false) / len(pairs)), strict=True))


def we_math_figures(results: Sequence[tuple[Prompt, float]]) -> dict[str, float]:
    """The score of We-Math (Qiao et al. 2024, section 3.3), strict and loose, and the shares of problems behind it. Only problems
    count whose questions are all in the results, as parts of them are right more often; empty if these are fewer than half.

    A problem has questions for its steps and one for all of them together. Where that is wrong, knowledge is insufficient if a
    step is wrong too, and else generalization is inadequate. Where it is right, it is mastered if all steps are right (loose: if
    one is), and else learned by rote, whose share is of both. The score counts what is mastered, and half of what is not
    generalized.
    """
    problems: dict[tuple[str, str], dict[str, bool]] = {}
    for prompt, score in results:
        steps, _, part = str(prompt.meta[KEY]["key"]).partition("_")
        problems.setdefault((steps, str(prompt.meta[KEY]["ID"])), {})[part] = score >= 1
    whole = [
        ([right for part, right in one.items() if part != ALL], one[ALL])
        for (steps, _), one in problems.items()
        if ALL in one and steps == f"{len(one) - 1}steps"
    ]
    if not whole or 2 * len(whole) < len(problems):
        if problems:
            told = f"{len(whole)} of the {len(problems)} problems of an evaluation are whole, {PARTS}"
            warnings.warn(f"figures: {told}: none of we-math", stacklevel=2)
        return {}
    count = len(whole)
    lacking = sum(not right and not all(steps) for steps, right in whole) / count
    narrow = sum(not right and all(steps) for steps, right in whole) / count
    figures = {"insufficient_knowledge": lacking, "inadequate_generalization": narrow}
    solved = sum(right for _, right in whole) / count
    for name, holds in (("strict", all), ("loose", any)):
        mastered = sum(right and holds(steps) for steps, right in whole) / count
        figures |= {f"complete_mastery_{name}": mastered, f"score_{name}": mastered + 0.5 * narrow}
        figures[f"rote_memorization_{name}"] = (solved - mastered) / solved if solved else 0.0
    return figures


def mme_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """`perception` and `cognition`, the scores of MME (Fu et al. 2023, section 2.2), at most 2,000 and 800: the sum over their
    categories of the accuracy, as a percentage, and the percentage of pictures whose two questions are both answered right. A
    score is left out if a category is. figures: those of the group `category` and of the set `both`."""
    scores = {}
    for name, categories in MME.items():
        parts = [figures.get(f"{kind}_{category}") for category in categories for kind in ("category", "both_category")]
        if None not in parts:
            scores[name] = 100 * sum(part for part in parts if part is not None)
    return scores


def cv_bench_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """`cv_bench`, the overall score of CV-Bench (Tong et al. 2024, section 3.2): the mean of the accuracy in 2D, which is the
    mean of its two sources, and in 3D. It is left out if a source is. figures: those of the group `source`."""
    ade, coco, omni = (figures.get(f"source_{source}") for source in ("ADE20K", "COCO", "Omni3D"))
    return {} if ade is None or coco is None or omni is None else {"cv_bench": ((ade + coco) / 2 + omni) / 2}


def _number(text: str) -> float | None:
    share = text.endswith("%")
    plain = text.rstrip("%").strip() if share else text
    return float(plain) / (100 if share else 1) if len(plain) <= 40 and _DECIMAL.fullmatch(plain) else None


def _accepted(case: Case) -> list[str]:
    """The accepted texts, one at least."""
    several = case.meta.get("answers") or (case.answer if isinstance(case.answer, list | tuple) else [case.answer])
    found = [str(one) for one in several if one is not None and str(one).strip()]
    if not found:
        raise ValueError("the question has no answer")
    return found
