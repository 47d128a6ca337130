"""Metrics of benchmarks: the values that their code gives."""

import base64
import io
import json
import os
from functools import partial
from pathlib import Path

import pytest
from mmrl_vqa import benchmarks
from mmrl_vqa.table import Table
from PIL import Image

from mmrl import Case, Prompt, UserError, user_message

ROOT = Path(__file__).parents[3] / "tests"


def picture():
    file = io.BytesIO()
    Image.new("RGB", (28, 28), "olive").save(file, "PNG")
    return file.getvalue()


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


GOLDEN = [json.loads(line) for line in (ROOT / "golden" / "benchmark-figures.jsonl").read_text(encoding="utf-8").splitlines()]


def summarised(path, rows, **options):
    """The figures of a table's task for what was answered, which the rows say."""
    task = Table(path=str(path), test_share=1, **options)
    prompts = task.prompts("test", 0)
    assert len({*task.prompt_sets("test", 0)}) < len(prompts) == len(rows)
    assert all(pictures_of(prompt) for prompt in prompts)
    wanted = zip(prompts, rows, strict=True)
    return task.summarise([(prompt, float(prompt.answer.casefold() == row["said"].casefold())) for prompt, row in wanted])


def pictures_of(prompt):
    return [part for part in prompt.messages[0]["content"] if part["type"] == "image"]


@pytest.mark.parametrize("golden", [one for one in GOLDEN if one["benchmark"] == "MMBench"])
def test_a_question_of_mmbench_is_right_if_it_is_with_its_options_in_every_order(golden, tmp_path):
    """In VLMEvalKit's form: of the rows that ask the same one has the picture, and the others its index."""
    rows = golden["rows"]
    columns = ["index", "question", "hint", *"ABCD", "answer", "category", "l2-category", "image"]
    shown = base64.b64encode(picture()).decode()
    cells = [{"hint": "", **row, "image": shown if row["index"] < 10**6 else str(row["index"] % 10**6)} for row in rows]
    lines = ["\t".join(str(row[name] if row[name] is not None else "") for name in columns) for row in cells]
    (tmp_path / "MMBench.tsv").write_text("\n".join(["\t".join(columns), *lines]) + "\n")
    sets = {"circular": ["index % 1000000"]}
    found = summarised(
        tmp_path / "MMBench.tsv",
        rows,
        kind="choice",
        question="{hint}\n{question}",
        groups=["category", "l2-category"],
        sets=sets,
    )
    wanted = {**golden["figures"]}
    assert found["circular"] == pytest.approx(wanted.pop("Overall")) != found["category_mean"]
    for name, value in wanted.items():
        group = "l2-category" if name in ("coarse", "fine") else "category"
        assert found[f"circular_{group}_{name}"] == pytest.approx(value)


@pytest.mark.parametrize("golden", [one for one in GOLDEN if one["benchmark"] == "MME"])
def test_scores_of_mme(golden, tmp_path):
    (tmp_path / "a.png").write_bytes(picture())
    rows = [{**row, "image": "a.png"} for row in golden["rows"]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    options = {"kind": "yes-no", "groups": ["category"], "sets": {"both": ["category", "question_id"]}, "figures": "mme"}
    found = summarised(tmp_path / "rows.json", rows, **options)
    wanted = golden["figures"]
    assert (found["perception"], found["cognition"]) == pytest.approx((wanted["perception"], wanted["reasoning"]))
    assert 100 * (found["category_OCR"] + found["both_category_OCR"]) == pytest.approx(wanted["OCR"])
    without = [row for row in rows if row["category"] != "scene"]
    (tmp_path / "rows.json").write_text(json.dumps(without))
    part = summarised(tmp_path / "rows.json", without, **options)
    assert "perception" not in part and part["cognition"] == found["cognition"]
    with pytest.raises(UserError, match='figures = "mme" needs groups'):
        Table(path=str(tmp_path / "rows.json"), figures="mme", groups=["category"])


def test_the_score_of_cv_bench(tmp_path):
    """lmms-eval's cv_bench_default_aggregate_results gives 0.4125 for these rows."""
    (tmp_path / "a.png").write_bytes(picture())
    sources = ("ADE20K", "COCO", "COCO", "Omni3D", "Omni3D", "Omni3D", "ADE20K", "COCO", "COCO", "Omni3D", "Omni3D")
    rows = [
        {"question": "How many?", "choices": ["1", "2"], "image": "a.png", "source": source, "answer": f"({right})"}
        for source, right in zip(sources, "BABBBAABBAB", strict=True)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    options = {"path": str(tmp_path / "rows.json"), "test_share": 1, "options_column": "choices", "figures": "cv-bench"}
    prompts = Table(**options, groups=["source"]).prompts("test", 0)
    results = [(p, float(p.answer == said)) for p, said in zip(prompts, "BBBBABAAABA", strict=True)]
    found = Table(**options, groups=["source"]).summarise(results)
    assert found["cv_bench"] == pytest.approx(0.4125) != sum(score for _, score in results) / len(rows)
    assert "cv_bench" not in Table(**options, groups=["source"]).summarise(results[:3])
    with pytest.raises(UserError, match='figures = "cv-bench" needs groups'):
        Table(**options)


def test_the_pairs_of_mmvp(tmp_path):
    """lmms-eval's mmvp_aggregate_results and mmvp_aggregate_pair_results give 6 / 8 and 2 / 4 for these rows."""
    (tmp_path / "a.png").write_bytes(picture())
    right = "abbaabab"
    rows = [
        {"Index": n, "Question": "Open?", "Options": "(a) Open (b) Closed", "Correct Answer": f"({answer})", "image": "a.png"}
        for n, answer in enumerate(right, 1)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    options = {"kind": "choice", "question": "{Question}\n{Options}", "answer_column": "Correct Answer"}
    task = Table(path=str(tmp_path / "rows.json"), test_share=1, sets={"pair": ["(Index + 1) // 2"]}, **options)
    prompts = task.prompts("test", 0)
    results = [(prompt, float(prompt.answer == said)) for prompt, said in zip(prompts, "ABBBABBB", strict=True)]
    assert sum(score for _, score in results) == 6 and task.summarise(results) == {"pair": 2 / 4}
    assert [len({*task.prompt_sets("test", 0)[a : a + 2]}) for a in (0, 1, 2)] == [1, 2, 1]


def test_pictures_stand_in_their_places(tmp_path):
    for name, size in (("a.png", 9), ("b.png", 10), ("c.png", 11)):
        Image.new("RGB", (size, size)).save(tmp_path / name)

    def shown(**row):
        (tmp_path / "rows.json").write_text(json.dumps([{"answer": "B", "image": ["a.png", "b.png", "c.png"], **row}]))
        content = (
            Table(path=str(tmp_path / "rows.json"), test_share=1, kind="choice").prompts("test", 0)[0].messages[0]["content"]
        )
        return [p["text"] if p["type"] == "text" else os.path.basename(str(p["image"]))[0] for p in content]

    how = "Answer with the letter of the right option in <answer> </answer> tags."
    found = shown(question="<image>\nWhich of them?", options=["<image>", "<image>"])
    assert found == ["a", "Which of them?\nA. ", "b", "\nB. ", "c", f"\n{how}"]
    found = shown(question="Is <image> more than <image> and <image>?", options=["no", "yes"])
    assert found == ["Is ", "a", " more than ", "b", " and ", "c", f"?\nA. no\nB. yes\n{how}"]
    found = shown(question="<image>Which is it?", options=["no", "yes"])
    assert found == ["a", "b", "c", f"Which is it?\nA. no\nB. yes\n{how}"], "with too few places"
    with pytest.raises(UserError, match="question and options have 2 <image>, and there are 3 pictures"):
        shown(question="Which?", options=["<image>", "<image>"])
    with pytest.raises(UserError, match="2 options, 1 of them different"):
        shown(question="Which?", options=["a", "a"])
    (tmp_path / "rows.json").write_text(
        json.dumps([{"question": "Which?", "options": ["<image>"] * 3, "answer": "B", "image": ["a.png", "b.png", "c.png"]}])
    )
    with pytest.raises(UserError, match="its options are pictures, which can't be shuffled"):
        Table(path=str(tmp_path / "rows.json"), test_share=1, shuffle=True).prompts("test", 0)[0]


def test_a_remainder_is_of_whole_numbers(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "answer": "1", "index": "a7"}\n')
    options = {"path": str(tmp_path / "rows.jsonl"), "text_only": True, "test_share": 1}
    with pytest.raises(UserError, match=r"'index % 10' divides whole numbers, and a row has 'a7'"):
        Table(**options, sets={"all": ["index % 10"]}).prompts("test", 0)[0]
    with pytest.raises(
        UserError, match=r"'indices % 10' of groups, sets or figures: .* no such column, but question, answer, index"
    ):
        Table(**options, sets={"all": ["indices % 10"]})


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
