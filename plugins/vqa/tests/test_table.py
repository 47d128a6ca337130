"""People's own tables: every format, every kind of answer, and one clear line for a row that can't be used."""

import csv
import json
from functools import partial

import datasets
import pytest
from mmrl_vqa.cells import accepted_of
from mmrl_vqa.easyr1 import boxed
from mmrl_vqa.table import Table
from PIL import Image

from mmrl import Case, UserError
from mmrl.registry import plugins


def picture(folder, name="a.png", colour=(200, 30, 30)):
    Image.new("RGB", (8, 8), colour).save(folder / name)
    return name


MISSING = ("gone.png", "cut.png", "wide.png")


@pytest.fixture
def write(tmp_path):
    """Write rows as JSON lines; one may be a text that is put in as it is."""

    def written(*rows, name="rows.jsonl"):
        for file in {"a.png", *(r["image"] for r in rows if isinstance(r, dict) and str(r.get("image")).endswith("png"))}:
            if file not in MISSING and not (tmp_path / file).exists():
                picture(tmp_path, file)
        path = tmp_path / name
        path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
        return str(path)

    return written


ROW = {"image": "a.png", "question": "What is it?", "answer": "a dog"}


def one(path, **options):
    """The only row of a table, as a prompt."""
    task = Table(path=path, test_share=0, **options)
    assert task.splits == ("train",)
    (prompt,) = list(task.prompts("train", 0))
    assert (
        plugins.registry()
        .make_verifier("vqa/answer")(Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta))
        .value
        == 1
    )
    return prompt


KINDS = [  # what the row has, what is made of it
    ({"answer": "a dog"}, "text", "a dog"),
    ({"answer": "<think>I see.</think>\n<answer> 3 </answer>"}, "number", "3"),
    ({"answer": "B", "A": "cat", "B": "dog", "C": ""}, "choice", "B"),
    ({"answer": ["dog", "hound", "dog"]}, "text", "dog"),
    ({"answer": [{"answer": "dog"}, {"answer": "cat"}, {"answer": "dog"}]}, "text", "dog"),
    ({"answer": 12}, "number", "12"),
    ({"answer": "[0, 1.5]"}, "math", "[0, 1.5]"),  # an interval, or a list of MathVista's
    ({"answer": 0.5}, "number", "0.5"),
    ({"answer": "1,200"}, "number", "1,200"),
    ({"answer": "12 dogs"}, "text", "12 dogs"),
    ({"answer": "Yes"}, "yes-no", "Yes"),
    ({"answer": False}, "yes-no", "no"),
    ({"answer": "\\frac{1}{2}"}, "math", "\\frac{1}{2}"),
    ({"answer": "x^2+1"}, "math", "x^2+1"),
    ({"options": ["cat", "dog", "fox"], "answer": "B"}, "choice", "B"),
    ({"options": ["cat", "dog", "fox"], "answer": "(b)"}, "choice", "B"),
    ({"options": ["cat", "dog", "fox"], "answer": "fox"}, "choice", "C"),
    ({"options": ["cat", "dog", "fox"], "answer": 0}, "choice", "A"),
    ({"options": {"B": "dog", "A": "cat"}, "answer": "B"}, "choice", "B"),
    ({"options": '["cat", "dog"]', "answer": "dog"}, "choice", "B"),
    ({"options": """['$63,020', "the boy's", '<image 1>', '']""", "answer": "B"}, "choice", "B"),  # MMMU's form
    ({"options": "[]", "answer": "['1.06', '1.07']"}, "text", "1.06"),
    ({"options": "{1: 'cat', 2: 'dog'}", "answer": "dog"}, "choice", "B"),
    ({"options": "", "answer": "{1, 2}"}, "text", "{1, 2}"),
    ({"options": ["False", "True"], "answer": True}, "choice", "B"),
    ({"options": [True, False], "answer": False}, "choice", "B"),
    ({"options": ["Yes", "No"], "answer": False}, "choice", "B"),
    ({"options": ["3", "1", "2"], "answer": "2"}, "choice", "C"),
    ({"options": [], "answer": "a dog"}, "text", "a dog"),
]


@pytest.mark.parametrize("row, kind, answer", KINDS)
def test_the_kind_is_told_by_options_and_answer(write, row, kind, answer):
    prompt = one(write({**ROW, **row}))
    assert (prompt.meta["kind"], prompt.answer) == (kind, answer)


def test_a_choice_word_for_word(write):
    path = write({"image": "a.png", "question": "<image>Which animal is it?", "options": ["cat", "dog"], "answer": "B"})
    assert (
        one(path).text
        == "Which animal is it?\nA. cat\nB. dog\nAnswer with the letter of the right option in <answer> </answer> tags."
    )
    assert one(path, style="vlm-r1").text.startswith("Which animal is it?\nA. cat\nB. dog First output the thinking process")


def test_forms_of_a_right_option(write):
    row = {**ROW, "options": ["B", "A"], "answer": "B"}
    assert one(write(row)).answer == "B" and one(write(row), answer_form="text").answer == "A"
    assert one(write({**row, "answer": 1}), first_index=1).answer == "A"
    numbers = {**ROW, "options": ["1", "2", "3"], "answer": 1}
    assert one(write(numbers)).answer == "B", "a number is an index, whatever the options say"
    assert one(write({**numbers, "answer": "1"})).answer == one(write({**numbers, "options": [1, 2, 3]})).answer == "A"
    assert one(write({**ROW, "options": ["I", "II", "III"], "answer": "I"})).answer == "A", "there is no ninth option"
    assert one(write({**ROW, "options": ["None", "Some"], "answer": "None"})).answer == "A"
    for none in ({}, {"options": [None, ""]}):
        assert one(write({**ROW, **none, "answer": "C"}), kind="choice").answer == "C"
    columns = {**ROW, "A": "cat", "B": "dog", "C": "", "answer": "dog"}
    assert one(write(columns), options_column=["A", "B", "C"]).meta["options"] == ("cat", "dog")


@pytest.mark.parametrize(
    "options, answer",
    [
        ({"A": "cat", "B": None, "C": "dog", "D": "fox"}, "C"),
        ({"A": "cat", "C": "dog", "D": "fox"}, "C"),
        (["cat", "", "dog", "fox"], "C. dog"),
        (["cat", None, "dog", "fox"], 2),
        ({str(i): {2: "dog", 10: "ten"}.get(i, f"no {i}") for i in range(11)}, 2),
    ],
)
def test_a_letter_or_an_index_counts_empty_options_and_names_have_an_order(write, options, answer):
    prompt = one(write({**ROW, "options": options, "answer": answer}))
    assert prompt.meta["options"]["ABCDEFGHIJK".index(prompt.answer)] == "dog" and "" not in prompt.meta["options"]


def test_shuffled_options_keep_their_right_one(write):
    path = write(
        *({**ROW, "options": ["cat", "dog", "fox", "hen"], "answer": "A", "question": f"Which, {i}?"} for i in range(40))
    )
    task = Table(path=path, test_share=0, shuffle=True)
    prompts = list(task.prompts("train", 0))
    assert all(p.meta["options"]["ABCD".index(p.answer)] == "cat" for p in prompts)
    assert {p.answer for p in prompts} == set("ABCD")
    assert [p.text for p in prompts] == [p.text for p in task.prompts("train", 0)] != [p.text for p in task.prompts("train", 1)]


def test_several_pictures_tolerance_difficulty_and_ids(write, tmp_path):
    picture(tmp_path, "b.png", (0, 0, 255))
    row = {"images": ["a.png", "b.png"], "q": "How far?", "a": "100 km", "id": "x1", "hard": 3}
    names = {"question_column": "q", "answer_column": "a", "id_column": "id", "difficulty_column": "hard"}
    prompt = one(write(row), kind="number", relative=0.05, absolute=1, **names)
    assert [str(i).rpartition("/")[2] for i in prompt.images] == ["a.png", "b.png"] and prompt.id == "x1"
    assert prompt.meta == {"kind": "number", "style": "short", "difficulty": 3.0, "relative": 0.05, "absolute": 1}
    row = {"image_1": "a.png", "image_2": None, "image_3": "b.png", "question": "Same?", "answer": "no"}
    assert len(one(write(row), image_column=["image_1", "image_2", "image_3"]).images) == 2
    (tmp_path / "pictures").mkdir()
    picture(tmp_path / "pictures", "c.png")
    assert str(one(write({**ROW, "image": "c.png"}), folder=str(tmp_path / "pictures")).images[0]).endswith("pictures/c.png")


def test_rows_of_vlm_r1(write):
    turns = [{"from": "human", "value": "<image>Is it a dog?"}, {"from": "gpt", "value": "<answer>yes</answer>"}]
    path = write({"image": ["a.png"], "conversations": turns, "accu_reward_method": "yes_no"})
    task = plugins.registry().make_task("vqa/table@vlm-r1", {"path": path, "test_share": 0})
    prompt = task.prompts("train", 0)[0]
    assert prompt.text == (
        "Is it a dog? First output the thinking process in <think> </think> tags and then output the final answer in <answer> "
        "</answer> tags."
    )
    assert prompt.answer == "yes" and prompt.meta["accu_reward_method"] == "yes_no"


@pytest.mark.parametrize("id", [id for id in plugins.registry().specs("tasks") if id.startswith("vqa/table@")])
def test_gold_completions_earn_the_most_that_a_published_reward_pays(id, write):
    registry = plugins.registry()
    task = registry.make_task(id, {"path": write({**ROW, "options": ["a cat", "a dog"]}), "test_share": 0})
    (prompt,) = task.prompts("train", 0)
    for verifier in registry.get("tasks", id).verifiers:
        score = registry.make_verifier(verifier)(Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta))
        assert getattr(score, "value", score) == registry.get("verifiers", verifier).high


def test_csv_parquet_and_data_sets(tmp_path):
    picture(tmp_path)
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(
            [
                ["image", "question", "answer", "options"],
                ["a.png", "Which?", "dog", '["cat", "dog"]'],
                ["a.png", "Many?", "3", ""],
            ]
        )
    prompts = list(Table(path=str(tmp_path / "rows.csv"), test_share=0).prompts("train", 0))
    assert [(p.meta["kind"], p.answer) for p in prompts] == [("choice", "B"), ("number", "3")]
    pictures = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(20)]
    features = datasets.Features(
        {"image": datasets.Image(), "question": datasets.Value("string"), "answer": datasets.Value("string")}
    )
    table = datasets.Dataset.from_dict({"image": pictures, "question": ["What?"] * 20, "answer": ["red"] * 20}, features=features)
    table.to_parquet(str(tmp_path / "rows.parquet"))
    task = Table(path=str(tmp_path / "rows.parquet"))
    assert task.splits == ("train", "test") and sum(len(task.prompts(s, 0)) for s in task.splits) == 20
    assert isinstance(task.prompts("train", 0)[0].images[0], bytes)
    datasets.DatasetDict({"train": table, "validation": table.select(range(5))}).save_to_disk(str(tmp_path / "both"))
    task = Table(path=str(tmp_path / "both"))
    assert [len(task.prompts(s, 0)) for s in ("train", "test")] == [20, 5]
    table.save_to_disk(str(tmp_path / "single"))
    assert sum(len(Table(path=str(tmp_path / "single")).prompts(s, 0)) for s in ("train", "test")) == 20


def test_a_table_is_cut_in_two_by_rows_or_by_pictures(write):
    path = write(*({**ROW, "image": f"{i // 4}.png", "question": f"What, {i}?"} for i in range(400)))
    task = Table(path=path)
    ids = {split: {p.id for p in task.prompts(split, 0)} for split in task.splits}
    assert not ids["train"] & ids["test"] and len(ids["train"]) + len(ids["test"]) == 400 and 40 <= len(ids["test"]) <= 120
    pictures = {s: {str(p.images[0]) for p in Table(path=path, cut_by="image").prompts(s, 0)} for s in ("train", "test")}
    assert not pictures["train"] & pictures["test"] and len(pictures["train"] | pictures["test"]) == 100
    both = {s: {str(p.images[0]) for p in task.prompts(s, 0)} for s in ("train", "test")}
    assert both["train"] & both["test"]
    other = Table(path=path, test_path=write(ROW, name="test.jsonl"))
    assert len(other.prompts("train", 0)) == 400 and len(other.prompts("test", 0)) == 1


def test_no_set_is_in_two_splits_unless_rows_are_asked_for(write):
    path = write(*({**ROW, "image": f"{i // 2}.png", "question": f"What, {i}?", "of": i // 4} for i in range(400)))

    def test_rows(**options):
        task = Table(path=path, **options)
        assert len(task.prompts("train", 0)) + len(task.prompts("test", 0)) == 400
        return {int(p.id.removeprefix("test-")) for p in task.prompts("test", 0)}

    def cut(rows, size):
        """How many sets of so many rows are in both splits."""
        return sum(0 < len(rows & {*range(start, start + size)}) < size for start in range(0, 400, size))

    sets = {"pairs": ["of"]}
    by_set, by_image, by_row = (test_rows(sets=sets, cut_by=how) for how in ("set", "image", "row"))
    assert 40 <= len(by_set) <= 120 and cut(by_set, 4) == 0 and test_rows(sets=sets) == by_set
    assert 40 <= len(by_image) <= 120 and cut(by_image, 4) == 0 and cut(test_rows(cut_by="image"), 4) > 10
    assert cut(by_row, 4) > 40 and test_rows() == by_row, "as without sets"


def test_a_problem_of_we_math_is_in_one_split(write):
    rows = ({**ROW, "options": ["x", "y"], "answer": "A", "ID": i // 3, "key": f"2steps_{i % 3}"} for i in range(300))
    task = Table(path=write(*rows), figures="we-math")
    problems = [{p.meta["groups"]["ID"] for p in task.prompts(split, 0)} for split in ("train", "test")]
    assert not problems[0] & problems[1] and len(problems[0]) + len(problems[1]) == 100


BROKEN = [
    ("{broken", "line 2 is no JSON"),
    ("[1, 2]", "line 2 holds a list, not an object"),
    ({"image": "a.png", "answer": "x"}, "line 2 has no key 'question': it has image, answer"),
    (
        {"picture": "a.png", "question": "?", "answer": "x"},
        "line 2: it has no column image, images, image_path or image_paths, but picture, question, answer: set image_column",
    ),
    *(
        ({**ROW, "image": empty}, "line 2: there is no picture under image: mend or")
        for empty in (None, "", [], [None], [""], "[]")
    ),
    ({**ROW, "image": "gone.png"}, "line 2: image .*gone.png does not exist"),
    ({**ROW, "image": ["a.png", "cut.png"]}, "line 2: image .*cut.png is broken or cut off"),
    ({**ROW, "image": "wide.png"}, "line 2: image .*wide.png is too narrow"),
    ({**ROW, "image": 5}, "line 2: image 1 of 1 is no image"),
    ({**ROW, "image": "x" * 100_000}, "line 2: its path has 100,000 characters, 'xxx"),
    ({**ROW, "image": "a\nb"}, r"line 2: image .*a\?b does not exist"),
    ({**ROW, "answer": float("nan")}, "line 2: the answer is nan: there must be one"),
    ({**ROW, "answer": ["dog", float("inf")]}, r"line 2: the answer is \['dog', inf\]: there must be one"),
    ({**ROW, "image": "  "}, "line 2: the image has an empty path"),
    ({**ROW, "question": ""}, "line 2: the question is '', not a text"),
    ({**ROW, "question": 3}, "line 2: the question is 3, not a text"),
    ({**ROW, "answer": None}, "line 2: the answer is None: there must be one"),
    ({**ROW, "answer": []}, r"line 2: the answer is \[\]: there must be one"),
    ({**ROW, "options": ["cat"], "answer": "A"}, "line 2: 1 options, 1 of them different: give 2 to 26"),
    ({**ROW, "options": ["cat", "cat"], "answer": "A"}, "line 2: 2 options, 1 of them different"),
    ({**ROW, "options": "cat, dog", "answer": "A"}, "line 2: the options are 'cat, dog', not a list"),
    ({**ROW, "options": ["cat", "dog"], "answer": "C"}, "line 2: the answer 'C' is not one of the 2 options"),
    ({**ROW, "options": ["cat", "dog"], "answer": 2}, "line 2: the answer '2' is not one of the 2 options"),
    ({**ROW, "options": ["cat", "dog"], "answer": "hen"}, "line 2: the answer 'hen' is not one of the 2 options"),
    ({**ROW, "kind": "essay"}, "line 2: the kind 'essay' is unknown: choose one of choice, number"),
    ({**ROW, "kind": "number"}, "line 2: the answer 'a dog' is not a single number"),
    ({**ROW, "kind": "yes-no"}, "line 2: the answer 'a dog' is neither yes nor no"),
    ({**ROW, "kind": "choice"}, "line 2: the answer 'a dog' is not a letter, and the row has no options"),
    ({"image": "a.png", "conversations": [{"value": "x"}]}, "line 2: conversations must hold two turns"),
]


@pytest.mark.parametrize("row, message", BROKEN, ids=lambda v: repr(v)[:40])
def test_a_broken_row_is_named_by_file_and_line_when_it_is_asked_for(write, row, message, tmp_path):
    Image.effect_noise((64, 64), 90).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    Image.new("RGB", (500, 2)).save(tmp_path / "wide.png")
    whole = {**ROW, "kind": None}
    column = "kind" if "kind" in row else None
    task = Table(path=write(whole, row, whole), test_share=0, kind_column=column)
    prompts = task.prompts("train", 0)
    assert len(prompts) == 3 and prompts[0].answer == prompts[2].answer == "a dog"
    with pytest.raises(UserError, match=f"rows.jsonl {message}") as caught:
        prompts[1]
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_columns_that_are_not_there_are_told_before_a_run(write):
    """Otherwise each row is left out, one by one."""
    path = write({"image": "a.png", "problem": "What is it?", "solution": "a dog"})
    with pytest.raises(
        UserError, match=r"no such column, but image, problem, solution\..* Set question_column, or .*interop/table$"
    ):
        Table(path=path, test_share=0)
    with pytest.raises(UserError, match=r"answer_column = 'answer': .* Set answer_column, or"):
        Table(path=path, question="{problem}", test_share=0)
    assert one(path, question_column="problem", answer_column="solution").answer == "a dog"


def test_an_answer_is_a_completion_where_its_tag_ends_it():
    assert accepted_of("<think>2 <answer>1</answer></think><answer> 3 </answer>\n") == ["3"]
    assert accepted_of("write <answer>x</answer> here") == ["write <answer>x</answer> here"]


def test_a_column_of_options_that_is_not_there_is_told(write, tmp_path):
    """Where some rows of JSONL have it, the others have no options; `none` is no mistake."""
    rows = ({**ROW, "choices": ["a cat", "a dog"]}, ROW)
    prompts = Table(path=write(*rows), options_column="choices", test_share=0).prompts("train", 0)
    assert [p.meta.get("options") for p in prompts] == [("a cat", "a dog"), None]
    said = (
        r"^options_column = 'choises': .*rows\.jsonl has no such column, but image, question, answer, choices\. Did you mean 'cho"
    )
    with pytest.raises(UserError, match=said):
        Table(path=write(*rows), options_column="choises", test_share=0)
    (tmp_path / "rows.csv").write_text("image,question,answer,choices\na.png,?,A,\"['x', 'y']\"\n")
    with pytest.raises(UserError, match=r'rows\.csv has no such column, .* "none" asks without options$'):
        Table(path=str(tmp_path / "rows.csv"), options_column="choises", test_share=0)
    assert (
        "options" not in Table(path=str(tmp_path / "rows.csv"), options_column="none", test_share=0).prompts("train", 0)[0].meta
    )


def test_a_column_of_groups_or_sets_that_is_not_there_is_told(write):
    rows = ({**ROW, "scene": 1, "about": {"kind": "animal"}}, ROW)
    assert Table(path=write(*rows), groups=["about.kind"], sets={"all": ["scene"]}, test_share=0).prompts("train", 0)[0].meta
    said = r"^'scen' of groups, sets or figures: .*rows\.jsonl has no such column, but .*\. Did you mean 'scene'\?$"
    with pytest.raises(UserError, match=said):
        Table(path=write(*rows), sets={"all": ["scen"]}, test_share=0)


def test_a_column_of_kinds_that_is_not_there_is_told(write):
    with pytest.raises(UserError, match=r"line 1 has no key 'kinds': it has image, question"):
        Table(path=write(ROW), test_share=0, kind_column="kinds").prompts("train", 0)[0]


def test_each_row_has_the_column_that_is_filled(write, tmp_path):
    picture(tmp_path, "b.png", (0, 0, 255))
    rows = [
        {**ROW, "images": None},
        {**ROW, "image": None, "images": ["b.png", "a.png"]},
        {**ROW, "image": "", "images": "b.png"},
    ]
    header = ["image", "images", "question", "answer"]
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        listed = [[json.dumps(r.get(k)) if isinstance(r.get(k), list) else r.get(k) for k in header] for r in rows]
        csv.writer(file).writerows([header, *listed])
    tables = {
        "image": [r["image"] or None for r in rows],
        "images": [[v] if isinstance(v := r["images"], str) else v for r in rows],
    }
    same = {"question": [r["question"] for r in rows], "answer": [r["answer"] for r in rows]}
    datasets.Dataset.from_dict({**tables, **same}).to_parquet(str(tmp_path / "rows.parquet"))
    for path in (write(*rows), str(tmp_path / "rows.csv"), str(tmp_path / "rows.parquet")):
        prompts = Table(path=path, test_share=0).prompts("train", 0)
        names = [[str(i).rpartition("/")[2] for i in p.images] for p in prompts]
        assert names == [["a.png"], ["b.png", "a.png"], ["b.png"]], path


def test_questions_without_a_picture_are_an_option(write):
    rows = ({**ROW, "image": None}, {"question": "Two and two?", "answer": 4}, ROW)
    task = Table(path=write(*rows), test_share=0, text_only=True)
    assert [len(p.images) for p in task.prompts("train", 0)] == [0, 0, 1]
    cut = Table(path=write(*({**ROW, "image": None} for _ in range(40))), cut_by="image", text_only=True)
    assert min(len(cut.prompts(s, 0)) for s in ("train", "test")) > 0


def test_a_table_that_falls_to_one_split_says_so(write):
    with pytest.raises(UserError, match=r"all 1 rows of .*rows\.jsonl are in 'test': add more, or set test_share"):
        Table(path=write(ROW), test_share=0.999)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"style": "tags"}, "style = 'tags' is unknown: choose one of short, think, plain, vlm-r1"),
        ({"kind": "essay"}, "kind = 'essay' is unknown: choose one of auto, choice"),
        ({"answer_form": "number"}, "answer_form = 'number' is unknown"),
        ({"cut_by": "question"}, "cut_by = 'question' is unknown: choose one of set, image, row"),
        ({"first_index": 2}, "first_index = 2 must be 0 or 1"),
        ({"first_index": True}, "first_index = True must be 0 or 1"),
        ({"shuffle": float("nan")}, "shuffle = nan must be true or false"),
        ({"text_only": 1}, "text_only = 1 must be true or false"),
        ({"name": float("nan")}, "name = nan must be a text"),
        ({"image_column": {}}, "image_column = {} must be the name of a column, or a list of names"),
        ({"options_column": []}, r"options_column = \[\] must be the name of a column"),
        ({"question_column": None}, "question_column = None must be a text"),
        ({"relative": 2}, "relative = 2 must be a number from 0, below 1"),
        ({"absolute": "1"}, "absolute = '1' must be a number"),
        ({"test_share": -0.1}, "test_share = -0.1 must be a number"),
    ],
)
def test_bad_options_are_refused_in_one_line(write, options, message):
    with pytest.raises(UserError, match=message):
        Table(path=write(ROW), **options)


def test_a_table_that_is_not_there_or_empty_is_refused(tmp_path, write):
    with pytest.raises(UserError, match=r"nowhere.jsonl does not exist: check the path"):
        Table(path=str(tmp_path / "nowhere.jsonl"))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"empty.jsonl has no rows: add some, or correct the path"):
        Table(path=str(tmp_path / "empty.jsonl"))
    with pytest.raises(UserError, match="there is no split 'dev': choose one of train"):
        Table(path=write(ROW), test_share=0).prompts("dev", 0)


def test_a_column_has_the_question_in_other_words(tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = [{"image": "a.png", "question": "How many?", "other": other, "answer": "2"} for other in ("Count them.", " ")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Table(path=str(tmp_path / "rows.jsonl"), rephrased_column="other", test_path=str(tmp_path / "rows.jsonl"))
    prompts = task.prompts("train", 0)
    other = task.rephrase(prompts[0])
    assert other.text == prompts[0].text.replace("How many?", "Count them.") and other.images == prompts[0].images
    with pytest.raises(UserError, match="other is ' ', not a question in other words"):
        prompts[1]


# -- in a box -------------------------------------------------------------------------------------------------------------


def test_an_answer_in_a_box_is_asked_for_and_read(write):
    prompt = one(write({**ROW, "answer": "\\frac{1}{2}", "kind": "math"}), style="boxed", kind_column="kind")
    assert prompt.text.endswith("inside \\boxed{}.") and "<think>" in prompt.text
    judge = {name: plugins.registry().make_verifier(f"vqa/{name}") for name in ("answer", "format@easyr1")}
    for said, right, formed in [
        ("<think>a</think> \\boxed{0.5}", 1.0, 1.0),
        ("\\boxed{3}, no: \\boxed{\\frac{1}{2}}", 1.0, 0.0),
        ("<think>a</think> \\boxed{\\frac{1}{2}} and \\boxed{3}", 0.0, 1.0),
        ("<think>a</think> <answer>0.5</answer>", 0.0, 0.0),
        ("<think>a</think> \\boxed{\\frac{1}{2}", 0.0, 1.0),
    ]:
        case = Case(completion=said, answer=prompt.answer, meta=prompt.meta)
        assert (judge["answer"](case).value, judge["format@easyr1"](case)) == (right, formed), said
    with pytest.raises(UserError, match=r"style = 'box' is unknown: .* Did you mean 'boxed'"):
        one(write(ROW), style="box")


def test_the_form_that_r1_rewards_format_wants_is_asked_for_and_written(write):
    """Nothing may stand between its blocks: what is right in the style `think` earns no format there."""
    path = write({**ROW, "question": "Which answer is better?", "answer": 2})
    reward = plugins.registry().make_verifier("vqa/reward@r1-reward")
    for style, wanted in (("think", 1.0), ("r1-reward", 1.5)):
        (prompt,) = (task := Table(path=path, test_share=0, style=style)).prompts("train", 0)
        case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
        assert reward(case).value == wanted and ("</think><answer>" in prompt.text) == (style == "r1-reward")
    assert one(path, style="r1-reward").answer == "2", "our verifiers read it, too"


def test_the_form_in_which_mm_eureka_reads_an_answer_is_asked_for_and_written(write):
    """Its math-verify finds no number right beside a tag: a right answer in the style `think` earns the form alone."""
    reward = plugins.registry().make_verifier("vqa/reward@mm-eureka")
    make = partial(plugins.registry().make_task, "vqa/table@mm-eureka")
    for kind, answer, thought in (("number", "2", 0.5), ("math", "3\\sqrt{2}", 0.5), ("yes-no", "no", 0.5), ("choice", "B", 1.5)):
        path = write({**ROW, "question": "Which?", "answer": answer, "options": ["a", "b"] if kind == "choice" else None})
        for more, wanted in (({}, 1.5), ({"style": "think"}, thought)):
            (prompt,) = (task := make({"path": path, "test_share": 0, "kind": kind, **more})).prompts("train", 0)
            case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
            assert reward(case).value == wanted and ("<answer>$...$</answer>" in prompt.text) == (not more)


def test_what_is_in_the_last_box_is_what_mathruler_finds():
    """mathruler 0.1.0, `extract_boxed_content`; of a text without one it gives "None"."""
    for text, found in [
        (r"\boxed{1}", "1"),
        (r"a \boxed{ \frac{1}{2} } b", r"\frac{1}{2}"),
        (r"\boxed{1}\boxed{2", None),
        (r"\boxed{1} \boxed{}", ""),
        (r"\boxed{{a}}}", "{a}"),
        (r"\boxed{ x", None),
        ("none", None),
    ]:
        assert boxed(text) == found
