"""Rows as people have them: media in parts of turns, columns of other names, LLaMA-Factory's, ms-swift's and R1-V's habits."""

import base64
import io
import json

import pytest
from mmrl_interop.forms import detect_form, read_form
from mmrl_interop.table_task import TableTask
from PIL import Image

import mmrl
from mmrl import NoGold, UserError
from mmrl.api.media.clips import Clip


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    return tmp_path


def shown(example):
    """The content of each message: texts as they are, images and videos as what they hold."""
    return [m["content"] if isinstance(m["content"], str) else [p[p["type"]] for p in m["content"]] for m in example.messages]


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


QUESTION = {"type": "text", "text": "What?"}
PARTS = [
    ({"type": "image", "image": "a.png"}, "a.png"),  # qwen_vl_utils
    ({"type": "image", "image": "file://a.png"}, "a.png"),
    ({"type": "image", "url": "a.png"}, "a.png"),  # transformers
    ({"type": "image", "path": "a.png", "text": None, "image": None}, "a.png"),  # a part as Parquet fills it up
    ({"type": "image", "image": {"bytes": None, "path": "a.png"}}, "a.png"),
    ({"type": "image_url", "image_url": {"url": "a.png"}}, "a.png"),  # OpenAI
    ({"type": "image_url", "image_url": "data:image/png;base64,AAAA"}, "data:image/png;base64,AAAA"),
    ({"type": "video", "video": "a.mp4", "fps": 2.0, "nframes": None}, Clip(path="a.mp4", fps=2.0)),
    ({"type": "video_url", "video_url": {"url": "file://a.mp4"}}, Clip(path="a.mp4")),
]


@pytest.mark.parametrize(("part", "medium"), PARTS)
@pytest.mark.parametrize("form", ["swift", "trl", "verl"])
def test_a_part_of_a_turn_may_hold_its_own_media(part, medium, form):
    row = {"messages": [{"role": "user", "content": [QUESTION, part]}], "answer": "dog", "reward_model": {"ground_truth": "dog"}}
    if form != "swift":
        row["prompt"] = row.pop("messages")
    example = read_form(form, row)
    assert shown(example) == [["What?", medium]] and example.answer == "dog"


def test_an_image_in_base64_is_decoded_and_one_on_the_web_is_refused(folder):
    coded = "data:image/png;base64," + base64.b64encode((folder / "red.png").read_bytes()).decode()
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, QUESTION]}], "answer": "x"}
        for url in (coded, "https://example.org/a.png")
    ]
    prompts = TableTask(path=written(folder / "rows.jsonl", *rows), test_share=0).prompts("train", 0)
    [image] = prompts[0].images
    assert Image.open(io.BytesIO(image)).size == (8, 8)
    with pytest.raises(UserError, match=r"line 2: 'https://example.org/a.png' is a URL: save it as a file first"):
        prompts[1]


CHAT = [{"role": "user", "content": "What?"}]
FORMS = [
    ("trl", {"prompt": CHAT, "problem": "What?", "solution": "dog"}, ["What?"], "dog", {"problem": "What?", "solution": "dog"}),
    ("easyr1", {"problem": "What?", "solution": "dog"}, ["What?"], "dog", {"solution": "dog"}),
    ("easyr1", {"problem": "What?", "answer": "dog", "solution": "long"}, ["What?"], "dog", {"solution": "long"}),
    ("alpaca", {"instruction": "What", "input": "is it?", "output": "dog"}, ["What\nis it?"], "dog", {"target": "dog"}),
    ("alpaca", {"instruction": "What?", "input": "", "output": "dog"}, ["What?"], "dog", {"target": "dog"}),
    (
        "alpaca",
        {"query": "And?", "response": "dog", "history": [["What?", "cat"]], "system": "S"},
        ["S", "What?", "cat", "And?"],
        "dog",
        {"target": "dog"},
    ),
    (
        "cauldron",
        {"texts": [{"user": "What?", "assistant": "cat", "source": "a"}, {"user": "And?", "assistant": "dog", "source": "a"}]},
        ["What?", "cat", "And?"],
        "dog",
        {"target": "dog"},
    ),
    (
        "llava",
        {"conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "dog"}], "system": "S"},
        ["S", "What?"],
        "dog",
        {"target": "dog"},
    ),
    ("trl", {"prompt": CHAT, "system": "S", "answer": "dog"}, ["What?"], "dog", {"system": "S", "answer": "dog"}),
    ("swift", {"messages": CHAT, "gt": 3}, ["What?"], None, {"gt": 3}),
]


@pytest.mark.parametrize(("form", "row", "turns", "answer", "meta"), FORMS)
def test_a_row_is_recognised_and_read(folder, form, row, turns, answer, meta):
    assert detect_form([*row]) == form
    [prompt] = TableTask(path=written(folder / "rows.jsonl", row), test_share=0).prompts("train", 0)
    assert [m["content"] for m in prompt.messages] == turns and prompt.answer == answer and dict(prompt.meta) == meta


def test_a_row_without_a_ground_truth_has_no_gold_completion(folder):
    task = TableTask(path=written(folder / "rows.jsonl", {"prompt": CHAT, "gt": "a"}), test_share=0)
    with pytest.raises(NoGold, match="has no ground truth"):
        task.gold(task.prompts("train", 0)[0])


GROUNDED = {"messages": [{"role": "user", "content": "Is <ref-object> left of <ref-object>?"}], "objects": {"ref": ["a", "b"]}}
BOXED = [*GROUNDED["messages"], {"role": "assistant", "content": "<ref-object>: <bbox>"}]


@pytest.mark.parametrize("before", ["<image>", "It is <image>."])
def test_a_place_in_what_the_assistant_said_is_text(before):
    """A turn of nothing but a place took a picture, which is counted for the user's turns alone: StopIteration ended the run."""
    turns = [("user", "<image>What?"), ("assistant", before), ("user", "Sure?"), ("assistant", "yes")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns], "images": ["a.png"]}
    assert shown(read_form("swift", row)) == [["a.png", "What?"], before, "Sure?"]


@pytest.mark.parametrize("history", ["ab", ["ab"], [["a"]], [["a", "b", "c"]], {"a": 1}, 5])
def test_a_history_is_pairs_of_texts(history):
    """Of two letters each was a turn."""
    with pytest.raises(ValueError, match=r"history is .*, not a list of pairs of texts"):
        read_form("alpaca", {"instruction": "do", "output": "done", "history": history})


def test_a_number_that_is_missing_is_no_answer():
    """As tables of numbers hold it."""
    with pytest.raises(ValueError, match="answer is nan"):
        read_form("easyr1", {"problem": "x", "answer": float("nan")})
    both = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "solution": float("nan")}
    assert read_form("swift", both).answer == "y"


def test_names_stand_in_ms_swift_s_places_and_boxes_are_grounding_s():
    assert shown(read_form("swift", {**GROUNDED, "solution": "yes"})) == ["Is a left of b?"]
    example = read_form("swift", {**GROUNDED, "messages": BOXED, "solution": "yes"})
    assert (example.answer, example.target) == ("yes", None), "the turn that a reward doesn't need may hold boxes"
    named = [*CHAT, {"role": "assistant", "content": "<ref-object>"}]
    assert read_form("swift", {**GROUNDED, "messages": named}).answer == "a"
    with pytest.raises(UserError, match=r"messages contains <bbox>, .* grounding/refer-data reads boxes"):
        read_form("swift", {**GROUNDED, "messages": BOXED})
    with pytest.raises(UserError, match=r"contains <ref-object> more often than objects\.ref has names"):
        read_form("swift", {**GROUNDED, "objects": None, "answer": 1})
    assert shown(read_form("trl", {"prompt": [{"role": "user", "content": "in <bbox> tags"}], "answer": 1})) == ["in <bbox> tags"]


def test_columns_may_have_other_names(folder):
    path = written(
        folder / "rows.jsonl", {"frage": "<image>What?", "label": "dog", "picture": "red.png", "answer": "no", "id": "7"}
    )
    columns = {"problem": "frage", "answer": "label", "image": "picture"}
    [prompt] = TableTask(path=path, columns=columns, test_share=0).prompts("train", 0)
    assert (prompt.answer, prompt.id, prompt.meta) == ("dog", "7", {"id": "7"}) and len(prompt.images) == 1
    with pytest.raises(UserError, match=r"columns\.problem: .*rows\.jsonl has no such column, .* Did you mean 'frage'\?"):
        TableTask(path=path, columns={**columns, "problem": "frag"}, test_share=0)
    with pytest.raises(UserError, match=r"must be names of columns, such as \{problem = "):
        TableTask(path=path, columns={"problem": 3}, test_share=0)
    with pytest.raises(
        UserError, match=r'say which column is which, such as columns = \{problem = "question"\}, or use vqa/table'
    ):
        TableTask(path=path, test_share=0)


def test_the_own_splits_of_a_data_set_are_used_and_may_be_named(folder):
    datasets = pytest.importorskip("datasets")
    parts = {
        split: datasets.Dataset.from_list([{"problem": f"{split} {n}?", "answer": "1"} for n in range(rows)])
        for split, rows in (("train", 9), ("test", 4), ("hard", 2))
    }
    datasets.DatasetDict(parts).save_to_disk(folder / "data")
    task = TableTask(path=str(folder / "data"))
    assert [len(task.prompts(split, 0)) for split in ("train", "test")] == [9, 4]
    task = TableTask(path=f"{folder}/data@hard", test_path=f"{folder}/data@train")
    assert [len(task.prompts(split, 0)) for split in ("train", "test")] == [2, 9]
    with pytest.raises(UserError, match="has no split 'harder': it has train, test, hard"):
        TableTask(path=f"{folder}/data@harder")


def test_a_column_of_the_row_is_not_replaced_by_the_answer(folder):
    """Data sets such as NuminaMath have both: a long solution, and the answer, which a reward may read."""
    path = written(folder / "rows.jsonl", {"prompt": CHAT, "solution": "so it is \\boxed{4}", "answer": "4"})
    (folder / "r.py").write_text("def right(completions, answer, **others):\n    return [float(answer == ['4'])]\n")
    reward = {"interop/trl": {"functions": f"{folder}/r.py:right"}}
    options = {"path": path, "test_share": 0.0}
    with mmrl.open_task("interop/table", options=options, verifiers={"interop/trl": 1.0}, verifier_options=reward) as task:
        [prompt] = task.prompts("train", 0)
        assert task.score(task.case(prompt, "4")).value == 1.0
