"""Tables of pairs in the forms that others write, what is refused of them, and the tasks of reward models on pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mmrl_judge.pair_rows import read_row
from mmrl_judge.pairs import Pairs, same
from mmrl_judge.reward_tasks import Better, Right, verdict
from PIL import Image

from mmrl.api.errors import UserError
from mmrl.api.types import Case, Prompt, user_message

ASK = {"role": "user", "content": "What is shown?"}
GOOD, BAD = {"role": "assistant", "content": "A cat."}, {"role": "assistant", "content": "A dog."}
PARTS = {"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "What is shown?"}]}
FORMS: dict[str, dict[str, Any]] = {
    "texts": {"prompt": "What is shown?", "chosen": "A cat.", "rejected": "A dog."},
    "RLAIF-V's": {"question": "What is shown?", "chosen": "A cat.", "rejected": "A dog."},
    "turns": {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
    "turns with their prompt": {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
    "turns with their prompt, and a prompt": {"prompt": [ASK], "chosen": [ASK, GOOD], "rejected": [BAD]},
    "parts": {"prompt": [PARTS], "chosen": [GOOD], "rejected": [BAD]},
    "JSON in a CSV": {"prompt": json.dumps([ASK]), "chosen": json.dumps([GOOD]), "rejected": json.dumps([BAD])},
    "LLaVA-RLHF's": {
        "conversations": [{"from": "human", "value": "<image>\nWhat is shown?"}],
        "output_1": {"from": "llava", "value": "A dog."} | {"from": "gpt"},
        "output_2": "A cat.",
        "preference": 2,
    },
}


@pytest.fixture
def table(tmp_path: Path):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")

    def write(*rows: Any, name: str = "pairs.jsonl") -> str:
        (tmp_path / name).write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(table, form: str) -> None:
    task = Pairs(path=table({**FORMS[form], "image": "red.png"}), test_share=0.0)
    (prompt,) = task.prompts("train", 0)
    assert task.pair(prompt) == ("A cat.", "A dog.") and task.gold(prompt) == prompt.answer == "A cat."
    (message,) = prompt.messages
    assert [part["type"] for part in message["content"]] == ["image", "text"] and prompt.text == "What is shown?"


def test_llava_rlhf_s_first_output_may_be_the_preferred() -> None:
    assert read_row({**FORMS["LLaVA-RLHF's"], "preference": 1}).preferred == "A dog."


def test_pictures_stand_where_the_prompt_says(table) -> None:
    row = {**FORMS["texts"], "prompt": "First <image>, then <image>?", "images": ["red.png", "red.png"]}
    (prompt,) = Pairs(path=table(row), test_share=0.0).prompts("train", 0)
    assert [part["type"] for part in prompt.messages[0]["content"]] == ["text", "image", "text", "image", "text"]


ANSWERS = ['{"bbox": [1, 2, 3, 4]}', "[0.1, 0.2]", "[]", '[{"bbox": [1, 2]}]', "[a, b", '{"a": {"role": "user"}}']


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("turns", [False, True])
def test_an_answer_in_json_is_a_text(answer: str, turns: bool) -> None:
    """Alone, and as what a turn says that a CSV holds as JSON."""
    said = json.dumps([{"role": "assistant", "content": answer}]) if turns else answer
    row = read_row({**FORMS["texts"], "prompt": "[1, 2] or {3}?", "chosen": said, "image": '["red.png"]'})
    assert row.preferred == answer and row.turns == [("user", "[1, 2] or {3}?")] and row.images == ["red.png"]
    assert read_row({**FORMS["LLaVA-RLHF's"], "output_2": said}).preferred == answer
    assert read_row({**FORMS["texts"], "prompt": '{"task": "point"}', "chosen": said}).turns == [("user", '{"task": "point"}')]


BROKEN = {
    "equal sides": ({"rejected": "A cat."}, "both sides are 'A cat.', so neither is preferred"),
    "an empty side": ({"rejected": "  "}, "its rejected side is empty"),
    "no picture": ({"image": None}, r'has no picture: add one, or set the option pictures = "optional"'),
    "a lost picture": ({"image": "gone.png"}, "gone.png"),
    "no rejected side": ({"rejected": ...}, "has no key 'rejected'"),
    "no prompt": ({"prompt": ...}, "no column prompt, question, problem holds the prompt"),
    "other turns on a side": ({"chosen": [{"role": "user", "content": "Else?"}, GOOD]}, "other turns before its answer"),
    "a side that asks": ({"chosen": [ASK]}, "chosen ends with a turn of the user, not of the assistant"),
    "a side that is a number": ({"chosen": 7}, "chosen is 7, not a text or a list of turns"),
    "an unknown role": ({"prompt": [{"role": "oracle", "content": "x"}]}, "it needs a role"),
    "more places than pictures": ({"prompt": "<image><image>?"}, "2 times <image>, and the row 1 pictures"),
    "a preference for neither": ({**FORMS["LLaVA-RLHF's"], "preference": 0}, "preference is 0, and must be 1 or 2"),
    "a conversation that is answered": (
        {**FORMS["LLaVA-RLHF's"], "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
        "conversations ends with an answer",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_pair_that_can_t_be_used_is_named_with_its_line(table, what: str) -> None:
    changes, why = BROKEN[what]
    row = {k: v for k, v in {**FORMS["texts"], "image": "red.png", **changes}.items() if v is not ...}
    task = Pairs(path=table({**FORMS["texts"], "image": "red.png"}, row), test_share=0.0)
    items = task.prompts("train", 0)
    assert items[0].answer == "A cat."
    with pytest.raises(UserError, match=rf"pairs\.jsonl line 2.*{why}"):
        items[1]


def test_a_torn_file_loses_its_last_row_alone(table) -> None:
    whole = json.dumps({**FORMS["texts"], "image": "red.png"})
    items = Pairs(path=table(whole, whole[:30]), test_share=0.0).prompts("train", 0)
    assert items[0].answer == "A cat."
    with pytest.raises(UserError, match=r"pairs\.jsonl line 2 is no JSON \(.*\): correct or remove it"):
        items[1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"path": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"pictures": "some"}, "pictures = 'some' is unknown"),
        ({"test_share": 1.0}, "test_share = 1.0 must be a number from 0, below 1"),
        ({"path": 3}, "path = 3"),
    ],
)
def test_options_that_can_t_work_are_refused(table, options: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Pairs(**{"path": table({**FORMS["texts"], "image": "red.png"}), **options})


def test_an_empty_table_is_refused(table) -> None:
    with pytest.raises(UserError, match="has no rows"):
        Pairs(path=table(""))


def test_words_alone_are_allowed_if_the_option_says_so(table) -> None:
    (prompt,) = Pairs(path=table(FORMS["texts"]), test_share=0.0, pictures="optional").prompts("train", 0)
    assert not prompt.images


def test_rows_are_in_one_split_each(table) -> None:
    rows = [{**FORMS["texts"], "image": "red.png", "id": f"r{n}"} for n in range(30)]
    task = Pairs(path=table(*rows), test_share=0.3)
    train, test = ({p.id for p in task.prompts(split, 0)} for split in ("train", "test"))
    assert not train & test and len(train | test) == 30 and test


# -- tasks of reward models ---------------------------------------------------------------------------------------------------


DIGITS = {"task": "classification/digits"}


def test_an_answer_is_asked_about_on_both_sides() -> None:
    task = Right(**DIGITS)
    items = task.prompts("test", 0)
    assert len(items) == 2 * len(task.of.prompts("test", 0))
    yes, no = items[0], items[1]
    preferred, rejected = task.of.pair(task.of.prompts("test", 0)[0])
    assert (yes.answer, no.answer) == ("yes", "no") and task.gold(yes) == "yes" and task.pair(no) == ("no", "yes")
    assert preferred in yes.text and rejected in no.text and preferred not in no.text
    assert yes.images and yes.text.startswith("What digit is shown?") and yes.id != no.id


def test_two_answers_are_compared_in_both_orders() -> None:
    task = Better(**DIGITS)
    items = [task.prompts("test", 0)[n] for n in range(80)]
    for one, two in zip(items[::2], items[1::2], strict=True):
        assert {one.answer, two.answer} == {"1", "2"}
        answers = [text.split("Answer 1:\n")[1].split("\n\n")[0] for text in (one.text, two.text)]
        assert answers[0] != answers[1]
        right = next(task.of.pair(p)[0] for p in task.of.prompts("test", 0) if one.id.startswith(f"{p.id}-"))
        assert answers[0 if one.answer == "1" else 1] == right
    firsts = [p.answer for p in items[::2]]
    assert 8 < firsts.count("1") < 32, "neither verdict always comes first"


def test_a_task_without_pairs_makes_no_reward_model() -> None:
    with pytest.raises(UserError, match=r"task = 'ssl/rotation' has no pairs|no task 'ssl/rotation'"):
        Right(task="ssl/rotation", options={"path": "assets/samples/photographs"})
    with pytest.raises(UserError, match="no task 'judge/nothing'"):
        Right(task="judge/nothing")


def test_an_answer_s_own_braces_fill_in_nothing() -> None:
    from mmrl_judge.wording import ask_better, ask_right

    asked = [user_message("What?", Image.new("RGB", (8, 8)))]
    (message,) = ask_better(asked, "{second}", "{first}")
    assert "Answer 1:\n{second}\n\nAnswer 2:\n{first}" in message["content"][-1]["text"] and len(asked[0]["content"]) == 2
    assert [m["content"] for m in ask_right(asked, "{answer}", "Right?")[1:]] == ["{answer}", "Right?"]


@pytest.mark.parametrize(
    ("kind", "question", "why"),
    [(Right, " ", "question is blank"), (Right, 3, "question = 3"), (Better, "Which? {first}", "must contain {second} once")],
)
def test_a_question_that_can_t_be_asked_is_refused(kind: type, question: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        kind(**DIGITS, question=question)


@pytest.mark.parametrize(("said", "value"), [("yes", 1.0), (" Yes. ", 1.0), ("no", 0.0), ("", 0.0), ("yes, and no", 0.0)])
def test_a_verdict_is_one_word(said: str, value: float) -> None:
    assert verdict(Case(completion=said, answer="yes")) == value


def test_the_preferred_answer_is_told_by_its_text() -> None:
    assert same(Case(completion=" a CAT.", answer="A cat.")) == 1 and same(Case(completion="A cat, yes", answer="A cat.")) == 0
    assert Prompt(messages=[]).answer is None
