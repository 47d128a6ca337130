"""From sparse to dense: answers from few frames where they agree, and from more where they don't."""

import pytest

from mmrl.api.types import Case, Prompt
from mmrl.evaluation.probes.sparse_to_dense import SparseAnswer, answer_by_rungs, frame_metrics, rung_sampling

SAYS = {
    "a": {2: "xxx", 4: "???", 8: "???"},  # agree at once
    "b": {2: "xyx", 4: "yyy", 8: "???"},  # from four frames
    "c": {2: "xyz", 4: "xxy", 8: "zyy"},  # never: the majority of the last
    "d": {2: "   ", 4: " x ", 8: "   "},  # what says nothing agrees with nothing
}


def test_each_prompt_climbs_until_its_answers_agree():
    asked = []

    def ask(prompts, frames, number):
        asked.append(("".join(p.id for p in prompts), frames, number))
        return [Case(completion=f"{frames} {number} {SAYS[p.id][frames][number]}") for p in prompts]

    prompts = [Prompt(id=i, messages=[]) for i in "abcd"]
    found = answer_by_rungs(prompts, (2, 4, 8), 3, ask, lambda c: c.completion[-1])  # blank, and not stripped
    assert asked == [(left, n, k) for left, n in (("abcd", 2), ("bcd", 4), ("cd", 8)) for k in range(3)], "and no further"
    assert [(one.frames, one.case.completion) for one in found] == [(2, "2 0 x"), (4, "4 0 y"), (8, "8 1 y"), (8, "8 0  ")]
    assert frame_metrics(found, (2, 4, 8)) == {
        "frames/mean": (2 + 4 + 8 + 8) / 4,
        "frames/all": (2 + 6 + 14 + 14) / (4 * 8),
        "frames/agreed_share": 1 / 4,
    }


def test_the_answers_are_sampled_as_video_rts_does():
    """Temperatures from 0.8 in steps of 0.15, top_p from 0.7 to 0.95."""
    found = [rung_sampling(k, 5, 30, seed=k) for k in range(5)]
    assert [s.temperature for s in found] == pytest.approx([0.8, 0.95, 1.1, 1.25, 1.4])
    assert [s.top_p for s in found] == pytest.approx([0.7, 0.7625, 0.825, 0.8875, 0.95]) and found[3].max_tokens == 30
    assert rung_sampling(0, 1, 30, seed=0).top_p == 0.7


def test_nothing_is_asked_of_nobody():
    assert answer_by_rungs([], (2, 4), 3, lambda *_: pytest.fail("asked"), str) == []
    assert frame_metrics([SparseAnswer(case=Case(completion=""), frames=4)], (4,)) == {
        "frames/mean": 4.0,
        "frames/all": 1.0,
        "frames/agreed_share": 1.0,
    }
