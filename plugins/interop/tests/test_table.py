"""Tables that were made for other trainers: their prompts, their own rewards, and one line for what can't be used."""

import datetime
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mmrl_interop.forms import read_form
from mmrl_interop.table_task import TableTask, answer
from PIL import Image

import mmrl
from mmrl import Case, NoGold, UserError
from mmrl.api.media.clips import Clip


def png(colour):
    Image.new("RGB", (8, 8), colour).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


RED, BLUE = png((200, 30, 30)), png((30, 30, 200))
TURNS = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "a dog"}]
CHAT = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "a dog"}]
VERL = {
    "data_source": "hiyouga/geometry3k",
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Before <image> between <image>?"}],
    "images": [{"bytes": RED, "path": None}, {"bytes": BLUE, "path": None}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "48"},
    "extra_info": {"index": 3, "split": "train"},
}


@pytest.fixture
def write(tmp_path):
    """Write rows as Parquet or as JSON lines; the folder has two pictures."""
    for name, data in (("red.png", RED), ("blue.png", BLUE)):
        (tmp_path / name).write_bytes(data)

    def written(*rows, name="rows.jsonl"):
        path = tmp_path / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(list(rows)), path)
        else:
            path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
        return str(path)

    return written


def one(path, **options):
    task = TableTask(path=path, test_share=0, **options)
    (prompt,) = list(task.prompts("train", 0))
    return task, prompt


def shown(prompt):
    """(role, content) of each message: texts as they are, images and videos as what they hold."""
    return [
        (m["role"], m["content"] if isinstance(m["content"], str) else [p[p["type"]] for p in m["content"]])
        for m in prompt.messages
    ]


def test_verl_s_rows(write):
    task, prompt = one(write(VERL, name="train.parquet"))
    assert shown(prompt) == [("system", "Think."), ("user", ["Before ", RED, " between ", BLUE, "?"])]
    assert (prompt.answer, task.gold(prompt)) == ("48", "48")
    assert prompt.meta == {"index": 3, "split": "train", "data_source": "hiyouga/geometry3k", "ability": "math"}


def test_easyr1_s_rows_and_its_template(write, tmp_path):
    (tmp_path / "math.jinja").write_text("{{ content | trim }} Think first.\n")
    row = {"problem": " <image>How long? ", "answer": "12", "images": [{"bytes": RED}]}
    _, prompt = one(write(row, name="train.parquet"), format_prompt=str(tmp_path / "math.jinja"))
    assert shown(prompt) == [("user", [RED, "How long? Think first."])] and prompt.answer == "12"


@pytest.mark.parametrize("column", ["image", "images"])
def test_trl_s_rows(write, tmp_path, column):
    """Pictures come before the first turn of the user, as its `prepare_multimodal_messages` puts them."""
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "What?"}]
    red = str(tmp_path / "red.png")
    _, prompt = one(write({"prompt": chat, column: "red.png" if column == "image" else ["red.png"], "solution": "dog"}))
    assert shown(prompt) == [("system", "S"), ("user", [red, "What?"])]
    assert prompt.answer == "dog" and prompt.meta == {"solution": "dog"}


def test_a_prompt_that_is_a_text_is_easyr1_s(write, tmp_path):
    """Its `data.prompt_key` is `prompt` by default."""
    (tmp_path / "math.jinja").write_text("{{ content }} Think first.")
    row = {"prompt": "<image>How long?", "answer": "12", "images": [{"bytes": RED}]}
    _, prompt = one(write(row, name="train.parquet"), format_prompt=str(tmp_path / "math.jinja"))
    assert shown(prompt) == [("user", [RED, "How long? Think first."])] and prompt.answer == "12"


ASKED = [
    ("Answer alone.", "1 right", "1 right"),
    ("Answer in <answer></answer>.", "1 right", "<answer>1 right</answer>"),
    ("Put it into \\boxed{}.", 48, "\\boxed{48}"),
    ("Think in tags, then <answer>\\boxed{}</answer>.", "<answer>B</answer>", "<answer>B</answer>"),
]


@pytest.mark.parametrize(("asked", "truth", "gold"), ASKED)
@pytest.mark.parametrize("place", ["format_prompt", "system"])
def test_gold_is_framed_only_where_the_prompt_asks_for_it(write, tmp_path, asked, truth, gold, place):
    """Most rewards of TRL compare the whole completion, so gold in tags that nobody asked for would be warned of."""
    if place == "system":
        row, options = {"prompt": [{"role": "system", "content": asked}, {"role": "user", "content": "How many?"}]}, {}
    else:
        (tmp_path / "form.jinja").write_text("{{ content }} " + asked)
        row, options = {"prompt": "How many?"}, {"format_prompt": str(tmp_path / "form.jinja")}
    task, prompt = one(write({**row, "answer": truth}), **options)
    assert task.gold(prompt) == gold and answer(Case(completion=gold, answer=prompt.answer)) == 1.0


def test_swift_s_rows(write, tmp_path):
    row = {
        "messages": [{"role": "system", "content": "S"}, *CHAT],
        "images": ["red.png", "blue.png"],
        "solution": "dog",
        "level": 2,
    }
    task, prompt = one(write(row))
    red, blue = str(tmp_path / "red.png"), str(tmp_path / "blue.png")
    assert shown(prompt) == [("system", "S"), ("user", [red, blue, "What?"])], "the image without a place comes first"
    assert prompt.answer == "dog" and prompt.meta == {"solution": "dog", "level": 2, "target": "a dog"}
    assert task.gold(prompt) == "dog"
    task, prompt = one(write({"messages": CHAT, "images": ["red.png"]}))
    assert (prompt.answer, task.gold(prompt)) == ("a dog", "a dog")


@pytest.mark.parametrize("column", ["image", "images"])
def test_llava_s_and_sharegpt_s_rows(write, tmp_path, column):
    turns = [*TURNS, {"from": "human", "value": "And <image> this?"}, {"from": "gpt", "value": "a <image> cat"}]
    row = {"id": "000123", column: ["red.png", "blue.png"], "conversations": turns}
    task, prompt = one(write(row))
    red, blue = str(tmp_path / "red.png"), str(tmp_path / "blue.png")
    assert shown(prompt) == [("user", [red, "\nWhat?"]), ("assistant", "a dog"), ("user", ["And ", blue, " this?"])]
    assert (prompt.id, prompt.answer, task.gold(prompt)) == ("000123", "a <image> cat", "a <image> cat")


def test_media_without_places_stand_as_ms_swift_puts_them():
    """By its `_add_default_tags`: <video><image>what?"""
    chat = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "this"}]
    [message] = read_form("swift", {"messages": chat, "images": ["a.png"], "videos": ["b.mp4"]}).messages
    assert [part["type"] for part in message["content"]] == ["video", "image", "text"]


def test_content_in_parts_videos_and_other_ways_to_name_a_file(write, tmp_path):
    parts = [{"type": "video"}, {"type": "text", "text": "then"}, {"type": "image"}]
    row = {
        "messages": [{"role": "user", "content": parts}],
        "answer": 3,
        "videos": ["a.mp4"],
        "images": [{"image": "file://red.png"}],
    }
    _, prompt = one(write(row))
    assert shown(prompt) == [("user", [Clip(path=str(tmp_path / "a.mp4")), "then", str(tmp_path / "red.png")])]
    assert prompt.answer == 3
    cell = {"video": "a.mp4", "fps": None, "nframes": 4.0, "video_start": 1.5, "video_end": 3.0}
    _, prompt = one(write({**VERL, "prompt": [{"role": "user", "content": "<video>"}], "images": [], "videos": [cell]}))
    assert prompt.videos == (Clip(path=str(tmp_path / "a.mp4"), count=4, start_s=1.5, end_s=3.0),), "as verl selects frames"
    row = {"prompt": json.dumps([{"role": "user", "content": "Hm?"}]), "reward_model": '{"ground_truth": ["a", "b"]}'}
    task, prompt = one(write(row))
    assert shown(prompt) == [("user", "Hm?")] and prompt.answer == ["a", "b"]
    with pytest.raises(NoGold):
        task.gold(prompt)


def test_dates_and_decimals_are_answers(tmp_path):
    datasets = pytest.importorskip("datasets")
    for right, gold in ((datetime.date(2026, 2, 28), "2026-02-28"), (Decimal("1.50"), "1.50")):
        datasets.Dataset.from_dict({"problem": ["When?"], "answer": [right]}).to_parquet(str(tmp_path / f"{gold}.parquet"))
        task = TableTask(path=str(tmp_path / f"{gold}.parquet"), test_share=0)
        assert task.gold(task.prompts("train", 0)[0]) == gold


def test_rows_are_divided_or_have_a_table_of_their_own(write):
    rows = [{"problem": f"{i}?", "answer": str(i)} for i in range(60)]
    task = TableTask(path=write(*rows), test_share=0.3)
    train, test = ([p.answer for p in task.prompts(split, 0)] for split in ("train", "test"))
    assert not set(train) & set(test) and len(train) + len(test) == 60 and 8 < len(test) < 28
    other = write(VERL, name="test.parquet")
    task = TableTask(path=write(*rows), test_path=other)
    assert len(task.prompts("train", 0)) == 60 and task.prompts("test", 0)[0].answer == "48", "each table has a form of its own"


def test_verl_s_own_reward_scores_it(write, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert data_source == 'hiyouga/geometry3k' and extra_info['index'] == 3\n"
        "    return float(solution_str == ground_truth)\n"
    )
    options = {"path": write(VERL, name="train.parquet"), "test_share": 0.0}
    reward = {"interop/verl": {"functions": f"{tmp_path}/reward.py:compute_score"}}
    with mmrl.open_task("interop/table", options=options, verifiers={"interop/verl": 1.0}, verifier_options=reward) as task:
        (prompt,) = task.prompts("train", 0)
        scores = task.score([task.case(prompt, "48"), task.case(prompt, "49")])
    assert [score.value for score in scores] == [1.0, 0.0], scores


ANSWERS = [
    ("48", "<answer>48</answer>", 1),
    ("48", "<answer>49</answer>", 0),
    ("48", "so it is \\boxed{48}", 1),
    ("\\frac{1}{2}", "<answer>0.5</answer>", 1),
    ("a dog", "A dog ", 1),
    ("a dog", "a cat", 0),
    ("<answer>B</answer>", "<think>b</think><answer>b</answer>", 1),
    (["a"], "a", 0),
    ("48", "", 0),
]


@pytest.mark.parametrize(("truth", "completion", "value"), ANSWERS)
def test_the_answer(truth, completion, value):
    assert answer(Case(completion=completion, answer=truth)) == value


@pytest.mark.parametrize("truth", [None, "", " "])
def test_without_a_ground_truth_there_is_no_score(truth):
    with pytest.raises(ValueError, match="no ground truth"):
        answer(Case(completion="", answer=truth))


JUNK = (
    None,
    7,
    "",
    "[[[",
    [],
    {},
    [[["red.png"]]],
    {"bytes": {"bytes": [1]}},
    [None],
    [{"role": None}],
    "\0",
    10**400,
    "<image>" * 9,
)
WHOLE = {
    "verl": {**VERL, "images": ["red.png", "blue.png"]},
    "trl": {"prompt": CHAT[:1], "images": ["red.png"], "solution": "1"},
    "easyr1": {"problem": "<image>a?", "answer": "1", "images": ["red.png"]},
    "swift": {"messages": CHAT, "images": ["red.png"], "solution": "1"},
    "llava": {"conversations": TURNS, "image": "red.png"},
    "alpaca": {"instruction": "<image>a?", "history": [["b?", "c"]], "output": "1", "images": ["red.png"], "system": "S"},
    "cauldron": {"texts": [{"user": "a?", "assistant": "1"}], "images": ["red.png"]},
}


def with_junk(cell):
    """The cell with junk in the place of each of its parts."""
    yield from JUNK
    for key in cell if isinstance(cell, dict) else range(len(cell)) if isinstance(cell, list) else ():
        for spoilt in with_junk(cell[key]):
            changed = cell.copy()
            changed[key] = spoilt
            yield changed


@pytest.mark.parametrize("form", WHOLE)
def test_nested_junk_is_one_line_or_read(write, form):
    rows = [row for row in with_junk(WHOLE[form]) if isinstance(row, dict) and row]
    prompts = TableTask(path=write(*rows), form=form, test_share=0).prompts("train", 0)
    refused = 0
    for number in range(len(rows)):
        try:
            assert prompts[number].messages
        except UserError as error:
            refused += 1
            assert f"rows.jsonl line {number + 1}" in str(error) and "\n" not in str(error)
    assert len(rows) > 50 and refused > len(rows) / 3


def spared(row):
    """A row that JSON can hold."""
    return {key: value for key, value in row.items() if key != "images" or "prompt" not in row}


SPOILT = [
    ({**VERL, "images": VERL["images"][:1]}, "its text has 2 times <image>, and the row 1 under images"),
    ({**VERL, "images": None}, "its text has 2 times <image>, and the row 0 under images"),
    ({**VERL, "images": [{"bytes": RED}, {"bytes": b"no picture"}]}, "image of the row is broken"),
    ({**VERL, "reward_model": {"style": "rule"}}, "has no ground_truth"),
    ({**VERL, "prompt": "What?"}, "prompt is 'What?', not a list of turns"),
    ({**VERL, "prompt": []}, "not a list of turns"),
    ({**VERL, "extra_info": "x"}, "extra_info is 'x', not a table"),
    ({"messages": CHAT, "images": ["gone.png"]}, "gone.png"),
    ({"messages": CHAT, "images": [7]}, "images holds 7, not a path or bytes"),
    ({"messages": CHAT, "images": ["https://example.org/a.png"]}, "save it as a file first"),
    ({"messages": CHAT}, "its text has 1 times <image>, and the row 0"),
    (
        {"messages": [CHAT[0], {"role": "assistant", "content": " "}], "images": ["red.png"]},
        "there is no answer: messages ends with an empty",
    ),
    ({"messages": CHAT[1:]}, "no turn of the user before the answer"),
    ({"messages": [{"role": "robot", "content": "x"}], "answer": 1}, "it needs a role"),
    ({"messages": [{"role": "user", "content": [{"type": "smell"}]}], "answer": 1}, "must be a text, an image or a video"),
    ({"messages": [{"role": "user", "content": "<audio>"}], "answer": 1}, "no policy hears"),
    ({"conversations": [{"from": "human", "value": None}]}, "it needs a role"),
    ({"problem": "", "answer": "1"}, "problem is '', not a text"),
    ({"problem": "a?"}, "has no key 'answer'"),
    ({"problem": "a?", "answer": ""}, "answer is ''"),
]


@pytest.mark.parametrize(("row", "message"), SPOILT)
def test_a_row_that_cannot_be_used_is_one_line_and_the_others_stay(write, row, message):
    sound = {"messages": CHAT, "images": ["red.png"]} | ({"answer": 1} if "answer" in row else {})
    if "problem" in row:
        sound = {"problem": "b?", "answer": "2"}
    elif "conversations" in row:
        sound = {"conversations": TURNS, "image": "red.png"}
    path = write(row, name="rows.parquet") if "prompt" in row and isinstance(row["prompt"], list) else write(spared(row), sound)
    prompts = TableTask(path=path, test_share=0).prompts("train", 0)
    with pytest.raises(UserError) as refused:
        prompts[0]
    assert message in str(refused.value) and "\n" not in str(refused.value) and "rows." in str(refused.value)
    assert "prompt" in row or prompts[1].messages


TABLES = [
    (
        [{"question": "a?", "answer": "b"}],
        {},
        "no form of trl, verl, easyr1, swift, llava, sharegpt, alpaca, cauldron has the columns question, answer: set form",
    ),
    (["{"], {}, "no row that can be read"),
    ([], {}, "has no rows"),
    ([{"problem": "a", "answer": "b"}], {"form": "trlx"}, "form = 'trlx' is unknown"),
    ([{"problem": "a", "answer": "b"}], {"test_share": 1.0}, "test_share = 1.0"),
    ([{"problem": "a", "answer": "b"}], {"format_prompt": "none.jinja"}, "none.jinja is no template"),
    ([{"problem": "a", "answer": "b"}], {"folder": 3}, "folder = 3"),
]


@pytest.mark.parametrize(("rows", "options", "message"), TABLES)
def test_a_table_that_cannot_be_used_is_refused_when_it_is_opened(write, rows, options, message):
    with pytest.raises(UserError) as refused:
        TableTask(path=write(*rows), **{"test_share": 0.0, **options})
    assert message in str(refused.value) and "\n" not in str(refused.value)
