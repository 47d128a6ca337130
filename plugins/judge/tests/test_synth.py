"""`mmrl synth`: SynthRL's rules against its released code, and the command against an endpoint on loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from mmrl_judge.commands import consult, synth
from mmrl_judge.synth import rules
from mmrl_judge.synth.rules import Evolution, Limits
from PIL import Image

from mmrl.api.errors import UserError

stub_module = pytest.importorskip("stub_endpoint", reason="tests/support of mmrl's repository")
GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "synthrl.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def of(kind):
    found = [row for row in ROWS if row["of"] == kind]
    assert len(found) >= 15 and all("SynthRL @b4a6aab" in row["how"] for row in found)
    return found


def test_replies_are_read_as_the_released_code_reads_them():
    for row in of("question"):
        assert rules.new_question(row["reply"]) == row["gives"], row
    for row in of("quality"):
        assert [rules.quality(row["reply"]), rules.explanation(row["reply"])] == row["gives"], row
    for row in of("answer"):
        assert rules.final_answer(row["reply"]) == row["gives"], row
    for row in of("agrees"):
        assert rules.agrees(row["reply"]) == row["gives"], row


def test_questions_are_accepted_as_the_released_code_accepts_them():
    chosen, refused = 0, 0
    for row in of("evolve"):
        own, asked, unread = Evolution(question="q0", passes=row["passes"], limits=Limits()), [], 0
        for number, step in enumerate(row["script"] if own.is_seed else [], 1):
            asked.append(own.question)
            if not step["question"]:
                unread += 1
                continue
            own.take(number, step["question"], step["quality"], step["passes"] if step["quality"] >= 8 else None)
        given, verdicts = row["gives"], [a.verdict for a in own.attempts]
        assert asked == given["asked"] and unread == given["unread"]
        assert [None if v == "low-quality" else v == "harder" for v in verdicts] == given["harder"]
        assert (own.best and own.best.question) == given["best"]
        chosen, refused = chosen + bool(own.best), refused + (own.is_seed and not own.best)
    assert chosen > 10 and refused > 3  # the table shows both


def said(body):
    """Three models: the rewriting adds `deeper`; of a question with k times deeper the solver gets k more of 4 wrong."""
    text = body["messages"][-1]["content"]
    text = text if isinstance(text, str) else text[-1]["text"]
    if "New Question: [" in text:
        question = re.search(r"this question:\n(.*)\n", text)[1]
        return f"**New Question:** deeper {question}\n\nThat is harder."
    if "SCORE:" in text:
        return "EXPLANATION: more steps\nSCORE: 9" if "nonsense" not in text else "SCORE: 3"
    if "First: " in text:
        truth, answer = re.search(r"First: (.*)\nSecond: (.*)", text).groups()
        return "TRUE" if truth == answer else "FALSE"
    right = 4 - text.count("deeper") - 2 * text.count("hard")
    return f"<think>.</think> \\boxed{{{'7' if body['seed'] < right else '8'}}}"


def call(stub, *arguments):
    ends = ["--writer", "w", "--writer-url", stub.url, "--solver", "s", "--solver-url", stub.url, "--concurrency", "4"]
    return CliRunner().invoke(synth, [*map(str, arguments), *ends], catch_exceptions=True)


@pytest.fixture
def table(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    questions = ("How many?", "How hard?", "nonsense?")
    rows = [{"id": f"r{n}", "image": "red.png", "question": q, "answer": "7"} for n, q in enumerate(questions)]
    rows.append({"id": "r3", "image": "red.png", "question": "Which?", "answer": "A", "options": ["a", "b"]})
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_writes_the_hardest_question_that_can_be_solved_and_where_it_comes_from(table, tmp_path):
    out = tmp_path / "new" / "harder.jsonl"
    with stub_module.stub_endpoint(answer=said) as stub:
        done = call(stub, table, out, "--attempts", 2, "--rollouts", 4, "--seed-passes", 3, "--least", 2, "--harder-by", 1)
    assert done.exit_code == 0, done.output
    *old, new = (json.loads(line) for line in out.read_text().splitlines())
    assert [row["id"] for row in old] == ["r0", "r1", "r2", "r3"] and "5 rows, 1 of them new" in done.output
    assert new["question"] == "deeper deeper How many?" and (new["id"], new["answer"]) == ("r0-harder", "7")
    assert new["synth"] == {
        **{"from": "r0", "question": "How many?", "passes": 4, "harder_passes": 2, "rollouts": 4},
        **{"quality": 9, "attempt": 2, "writer": "w", "solver": "s"},
    }
    assert (out.parent / new["image"]).resolve() == (tmp_path / "red.png").resolve()
    for line in ("rows: not easy enough: 1", "rows: with options: 1", "attempts: low-quality: 2", "attempts: harder: 2"):
        assert line in done.output
    task = pytest.importorskip("mmrl_vqa.table").Table(path=str(out), test_share=0.5)
    assert sum(len(task.prompts(split, 0)) for split in task.splits) == 5


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--seed-passes", "5"), "must be from --least"),
        (("--rollouts", "8"), "--rollouts = 8"),
        (("--question-column", "text"), "must have a question in 'text'"),
    ],
)
def test_what_cannot_work_is_refused(table, tmp_path, more, why):
    with stub_module.stub_endpoint(answer=said) as stub:
        done = call(stub, table, tmp_path / "out.jsonl", *more)
    assert isinstance(done.exception, UserError) and why in str(done.exception)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_solver_that_fails_is_no_hard_question(table, tmp_path):
    out = tmp_path / "out.jsonl"
    with stub_module.stub_endpoint(always=stub_module.status(400, "no such model")) as stub:
        done = call(stub, table, out)
        assert isinstance(done.exception, UserError) and "the solver answered no question" in str(done.exception)
        assert "no such model" in str(done.exception) and not out.exists()
    with stub_module.stub_endpoint(answer=said) as stub:
        out.write_text("")
        assert "exists" in str(call(stub, table, out).exception) and not stub.bodies


def test_specialists_are_asked_with_the_options_of_a_row(table, tmp_path):
    csv = tmp_path / "questions.csv"
    csv.write_text('image,question,options\nred.png,Which?,"[""a cat"", ""a dog""]"\n')
    asked = []
    for path, name in ((table, "a.jsonl"), (csv, "b.jsonl")):
        with stub_module.stub_endpoint(answer=lambda body: "<answer>A</answer>") as stub:
            ask = [*map(str, (path, tmp_path / name)), "--model", "m", "--url", stub.url, "--each", "1", "--role", "nurse"]
            assert CliRunner().invoke(consult, ask).exit_code == 0
            asked += [str(body["messages"][-1]["content"]) for body in stub.bodies]
    assert "Which?\\nA. a\\nB. b\\n" in "".join(asked) and "Which?\\nA. a cat\\nB. a dog\\n" in asked[-1]
    csv.write_text("image,question,options\nred.png,Which?,cat or dog\n")
    ask = [str(csv), str(tmp_path / "c.jsonl"), "--model", "m", "--url", stub.url, "--role", "nurse"]
    done = CliRunner().invoke(consult, ask)
    assert isinstance(done.exception, UserError) and "the options 'cat or dog' are no list" in str(done.exception)


def test_specialists_write_their_opinions_into_the_table(table, tmp_path):
    def reply(body):
        role = body["messages"][0]["content"]
        if "surgeon" in role and "hard" in str(body["messages"][1]):
            return "I don't know"
        return f"<answer>{'7' if 'surgeon' in role else '8'}</answer>"

    out = tmp_path / "new" / "opinions.jsonl"
    with stub_module.stub_endpoint(answer=reply) as stub:
        ask = [*map(str, (table, out)), "--model", "m", "--url", stub.url, "--each", "1"]
        done = CliRunner().invoke(consult, [*ask, "--role", "surgeon", "--role", "nurse"])
        assert done.exit_code == 0 and "4 rows of 4, 7 opinions, 1 failed" in done.output, done.output
        nobody = CliRunner().invoke(consult, [*ask, "--overwrite"])
        assert isinstance(nobody.exception, UserError) and "no specialist is named" in str(nobody.exception)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0]["opinions"] == [{"role": "surgeon", "answer": "7"}, {"role": "nurse", "answer": "8"}]
    assert [len(row["opinions"]) for row in rows] == [2, 1, 2, 2] and (out.parent / rows[0]["image"]).exists()
    task = pytest.importorskip("mmrl_vqa.consult").Consult(path=str(out), test_path=str(out), agreement="medium")
    assert len(task.prompts("test", 0)) == 2
