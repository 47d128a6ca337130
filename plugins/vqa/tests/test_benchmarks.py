"""Metrics of benchmarks: the values that their code gives."""

import json
from functools import partial

import pytest
from mmrl_vqa import benchmarks
from mmrl_vqa.table import Table

from mmrl import Case, Prompt, UserError, user_message


def value(verifier, text, answer, **meta):
    return verifier(Case(completion=f"<answer>{text}</answer>", answer=answer, meta=meta)).value


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        *(("104", "100", 1), ("105", "100", 1), ("105.1", "100", 0), ("95", "100", 1), ("2000", "2014", 1), ("-96", "-100", 1)),
        *(("12%", "12%", 1), ("0.12", "12%", 1), ("12", "12%", 0), ("1e2", "100", 1), ("0", "0", 1), ("0.0", "0", 0)),
        *(("inspired", "Inspired", 1), ("Inspire", "Inspired", 0), ("1,000", "1000", 0), ("100 m", "100", 0), ("nan", "100", 0)),
    ],
)
def test_chartqa(text, answer, right):
    assert value(benchmarks.relaxed, text, answer) == right


@pytest.mark.parametrize(
    ("text", "answers", "similarity"),
    [
        ("ITC Limited", ["itc  limited"], 1),
        ("itc limitd", ["ITC Limited"], 10 / 11),
        ("itc", ["ITC Limited", "I.T.C"], 0.6),
        ("abcd", ["abxy"], 0.5),
        ("abcd", ["axyz"], 0),
        ("a" * 10_000, ["a"], 0),
        ("", ["a"], 0),
    ],
)
def test_docvqa(text, answers, similarity):
    assert value(benchmarks.anls, text, answers[0], answers=tuple(answers)) == pytest.approx(similarity)


def test_ocrbench():
    assert value(benchmarks.contains, "It says Centre.", "CENTRE") == 1 == value(benchmarks.contains, "a\nb", "A B")
    assert value(benchmarks.contains, "cent", "CENTRE") == 0
    formula = {"groups": {"dataset": "HME100k"}}
    assert (
        value(benchmarks.contains, "x^{2}+1", "x ^ { 2 }", **formula)
        == 1
        > value(benchmarks.contains, "X^{2}", "x ^ { 2 }", **formula)
    )


@pytest.mark.parametrize(("said", "accuracy"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (10, 1)])
def test_textvqa(said, accuracy):
    """Each of the ten annotators is left out once: with three votes, 3 x 2/3 + 7 x 1, divided by ten."""
    votes = ["nokia"] * said + [f"other {n}" for n in range(10 - said)]
    assert value(benchmarks.votes, "The Nokia.", votes[0], answers=tuple(votes)) == pytest.approx(accuracy)


def test_pope():
    def asked(answer, score):
        return Prompt(id="p", messages=[user_message("?")], answer=answer, meta={"kind": "yes-no"}), score

    results = [asked("yes", 1.0)] * 3 + [asked("yes", 0.0)] + [asked("no", 1.0)] * 2 + [asked("no", 0.0)] * 2
    assert benchmarks.yes_no_figures(results) == {
        "precision": 0.6,
        "recall": 0.75,
        "f1": pytest.approx(2 / 3),
        "yes_share": 0.625,
    }
    assert benchmarks.yes_no_figures([asked("yes", 0.0), asked("no", 1.0)]) == {
        **dict.fromkeys(("precision", "recall", "f1", "yes_share"), 0)
    }
    assert benchmarks.yes_no_figures(results[:4]) == {} == benchmarks.yes_no_figures([])


def test_problems_of_we_math_are_drawn_whole(tmp_path):
    rows = [
        {"question": "?", "answer": "A", "image": "a.png", "ID": n, "key": f"2steps_{p}"} for p in (1, 2, "multi") for n in "ab"
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    table = partial(Table, path=str(tmp_path / "rows.json"), test_share=1)
    assert table(figures="we-math").prompt_sets("test", 0) == [0, 1] * 3
    assert table(sets={"all": ["key"]}).prompt_sets("test", 0) == [0, 0, 2, 2, 4, 4] and table().prompt_sets("test", 0) is None


def test_we_math():
    """Seven problems of two or three steps: mastered, by half, by rote, not generalized, not known, half known, one cut short."""
    problems = (("2", "110"), ("2", "111"), ("3", "1011"), ("2", "001"), ("3", "1110"), ("2", "000"), ("2", "100"), ("2", "11"))
    results = []
    for number, (steps, right) in enumerate(problems):
        parts = [*map(str, range(1, int(steps) + 1)), "multi"]
        for part, one in zip(parts, right, strict=False):
            meta = {"groups": {"ID": number, "key": f"{steps}steps_{part}"}}
            results.append((Prompt(id="p", messages=[user_message("?")], meta=meta), float(one)))
    found = benchmarks.we_math_figures(results)
    assert found == pytest.approx(
        {
            **{"insufficient_knowledge": 2 / 7, "inadequate_generalization": 2 / 7},
            **{"complete_mastery_strict": 1 / 7, "complete_mastery_loose": 2 / 7},
            **{"rote_memorization_strict": 2 / 3, "rote_memorization_loose": 1 / 3, "score_strict": 2 / 7, "score_loose": 3 / 7},
        }
    )
    parts = [one for one in results if one[0].meta["groups"]["key"] not in ("2steps_2", "3steps_1")]
    assert benchmarks.we_math_figures([]) == {}
    for few, count in ((results[-2:], 1), (parts, 8)):  # fewer prompts than there are, or failed verifiers
        with pytest.warns(UserWarning, match=f"figures: 0 of the {count} problems .* are whole, .* the table is split:"):
            assert benchmarks.we_math_figures(few) == {}


def test_a_benchmark_is_the_test_split_alone(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "answer": "1"}\n' * 5)
    options = {"path": str(tmp_path / "rows.jsonl"), "text_only": True}
    task = Table(**options, test_share=1)
    assert task.splits == ("test",) and len(task.prompts("test", 0)) == 5
    for share, why in ((1.5, "from 0, at most 1"), (-1, "from 0"), (True, "from 0")):
        with pytest.raises(UserError, match=why):
            Table(**options, test_share=share)


def test_a_number_is_compared_after_rounding(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"question": "?", "answer": "1.2", "precision": 1.0}\n{"question": "?", "answer": "3", "precision": null}\n'
    )
    task = Table(path=str(tmp_path / "rows.jsonl"), text_only=True, test_share=1, precision_column="precision")
    assert [p.meta.get("absolute") for p in task.prompts("test", 0)] == [pytest.approx(0.05), None]
