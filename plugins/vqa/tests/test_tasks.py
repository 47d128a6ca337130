"""The drawn tasks: what is asked is true of the picture, splits share nothing, seeds draw other items, a tiny model trains."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from mmrl_vqa import cards, generalpoints, points24
from mmrl_vqa.asking import VLM_R1
from mmrl_vqa.drawn import Compare, Points24, Shapes
from mmrl_vqa.questions import SINGLE
from mmrl_vqa.scenes import COLOURS, SHAPES, Thing, picture
from PIL import ImageChops

from mmrl import Case, UserError
from mmrl.api.tasks.image_sources import chance
from mmrl.registry import plugins
from mmrl.testing import check_plugin


def first(task, split="train", n=60, seed=0):
    prompts = task.prompts(split, seed)
    return [prompts[i] for i in range(n)]


@pytest.fixture
def rows(tmp_path):
    """A table of each kind of question."""
    from PIL import Image

    lines = []
    for i in range(40):
        Image.new("RGB", (32, 32), (6 * i, 20, 200 - 5 * i)).save(tmp_path / f"{i}.png")
        row = {"image": f"{i}.png", "question": f"Question {i}?"}
        kinds = (
            {"options": ["a cat", "a dog", "a fox"], "answer": "ABC"[i % 3]},
            {"answer": i},
            {"answer": "yes" if i % 8 < 4 else "no"},
        )
        lines.append(row | {"opinions": [{"role": "reader", "answer": "yes"}]} | ({"answer": f"word {i}"}, *kinds)[i % 4])
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return str(tmp_path / "rows.jsonl")


@pytest.mark.slow
def test_conformance(rows):
    few = {f"vqa/{name}": {"items": 50} for name in ("shapes", "compare", "points24")}
    published = [f"vqa/table@{name}" for name in ("vlm-r1", "maye", "r1-v", "mm-eureka", "vl-rethinker", "vision-sr1")]
    published.append("vqa/points24@generalpoints")  # the same classes; their prompts and gold have tests of their own
    not_hard = "vqa/proposal"  # any words in its form are a question, also those that ask for one
    check_plugin(
        "vqa", n=8, options=few | {"vqa/table": {"path": rows}, "vqa/consult": {"path": rows}}, skip=[*published, not_hard]
    )


def test_questions_are_true_of_their_scene():
    scene = [Thing("circle", "red", 0.2, 0.2, 0.1), Thing("circle", "blue", 0.8, 0.25, 0.1), Thing("star", "red", 0.3, 0.8, 0.1)]
    known = {
        **{"How many shapes are there?": "3", "How many circles are there?": "2", "How many red shapes are there?": "2"},
        **{"How many red circles are there?": "1", "Is there a red star?": "yes", "Is there a green star?": "no"},
        **{"Is the red circle left of the blue circle?": "yes", "Is the red star above the red circle?": "no"},
        **{"Are there more circles than stars?": "yes", "Are there more stars than circles?": "no"},
        **{"What shape is blue?": "circle", "What colour is the star?": "red"},
        **{"What colour is the shape nearest to the right?": "blue", "What shape is the shape nearest to the bottom?": "star"},
    }
    asked = {}
    for number in range(400):
        draw = chance(number, "questions")
        for makers in SINGLE.values():
            for make in makers:
                question = make(scene, draw)
                if question and question.kind != "choice":
                    assert asked.setdefault(question.text, question.answer) == question.answer
                elif question:
                    right = question.options["ABCD".index(question.answer)]
                    assert len(set(question.options)) == 4
                    if "part of" in question.text:
                        assert (
                            right
                            == {"red circle": "top left", "blue circle": "top right", "red star": "bottom left"}[
                                question.text.split(" is the ")[1][:-1]
                            ]
                        )
                    elif question.text.startswith("Which"):
                        assert [o in {t.name for t in scene} for o in question.options].count(True) == 1 and right in {
                            t.name for t in scene
                        }
                    else:
                        assert question.text == "What colour is the star?" and right == "red"
    assert known.items() <= asked.items()


def test_a_scene_shows_each_thing_in_its_colour_where_it_says():
    things = [
        Thing(shape, colour, 0.2 + 0.2 * i, 0.25 + 0.15 * i, 0.09)
        for i, (shape, colour) in enumerate(zip(SHAPES, COLOURS, strict=False))
    ]
    drawn = picture("train", chance(0, "x"), things, 112)
    bare = picture("train", chance(0, "x"), [], 112)
    for thing in things:
        assert drawn.getpixel((round(thing.x * 112), round(thing.y * 112))) == COLOURS[thing.colour]
    boxes = [thing.box(112) for thing in things]
    x1, y1, x2, y2 = ImageChops.difference(drawn, bare).getbbox()
    assert (min(b[0] for b in boxes) - x1, min(b[1] for b in boxes) - y1) <= (2, 2)
    for thing, box in zip(things, boxes, strict=True):
        alone = ImageChops.difference(picture("train", chance(0, "x"), [thing], 112), bare).getbbox()
        assert all(abs(a - b) <= 2 for a, b in zip(alone, box, strict=True)), thing
    assert (x2, y2) <= (112, 112)


def test_no_hand_comes_again_before_all_have_been_shown():
    for split, options in (("test", {}), ("ood", {}), ("test", {"level": "hard"}), ("ood", {"suits": "red"})):
        made = Points24(size=56, items=2000, **options)
        hands = [tuple(sorted(p.meta["cards"])) for p in first(made, split, n=200)]
        counts = Counter(hands)
        whole = len(counts)
        assert 20 < whole < 200 and len(set(hands[:whole])) == whole, "each once"
        assert set(counts.values()) <= {200 // whole, 200 // whole + 1}, "and none more often than another"
        assert [tuple(sorted(p.meta["cards"])) for p in first(made, split, n=9, seed=1)] != hands[:9]
        numbers = [p.answer for p in first(made, split, n=whole)]
        assert max(Counter(numbers[: whole // 4]).values()) == 1, "hands of other numbers first"
    assert len({tuple(sorted(p.meta["cards"])) for p in first(Points24(size=56), n=400)}) == 400


@pytest.mark.slow
def test_kinds_take_turns_and_no_answer_rules():
    for task, kinds in ((Shapes(), ("choice", "number", "yes-no", "text")), (Compare(), ("choice", "number", "yes-no"))):
        prompts = first(task, n=240)
        assert [p.meta["kind"] for p in prompts[: len(kinds)]] == list(kinds)
        for kind in kinds:
            counts = Counter(p.answer for p in prompts if p.meta["kind"] == kind)
            assert max(counts.values()) <= 0.67 * counts.total(), (kind, counts)
        assert len({p.meta["difficulty"] for p in prompts}) >= 3
        assert all(image.size == (112, 112) for p in prompts for image in p.images)
    assert {len(p.images) for p in first(Compare(pictures=3), n=30)} == {3}
    assert {p.meta["kind"] for p in first(Shapes(kinds=["number"]), n=8)} == {"number"}
    hard, easy = Shapes(fewest=8, most=8), Shapes(fewest=1, most=1)
    assert min(p.meta["difficulty"] for p in first(hard, n=8)) > max(p.meta["difficulty"] for p in first(easy, n=8))


def test_compared_pictures_show_what_the_answer_says():
    """The answers are drawn again from the same numbers and compared with what the boxes count."""
    for prompt in first(Compare(kinds=["number"], fewest=3), n=40):
        if "together" not in prompt.text:
            assert len(prompt.meta["boxes"]) >= int(prompt.answer) > 0
    answers = Counter(p.answer for p in first(Compare(kinds=["yes-no"]), n=100))
    assert 30 <= answers["yes"] <= 70


def test_styles_word_for_word():
    def asked(**options):
        return first(Shapes(kinds=["yes-no"], **options), n=1)[0]

    question = asked().text.split("\n")[0]
    assert asked().text == f"{question}\nAnswer yes or no in <answer> </answer> tags."
    assert asked(style="plain").text == f"{question}\nAnswer yes or no, and nothing else."
    assert (
        asked(style="think").text
        == f"{question}\nThink in <think> </think> tags, then answer yes or no in <answer> </answer> tags."
    )
    assert (
        asked(style="vlm-r1").text
        == question + VLM_R1
        == (
            f"{question} First output the thinking process in <think> </think> tags and then output the final answer in <answer> "
            "</answer> tags."
        )
    )
    for style, gold in (
        ("short", "<answer>{}</answer>"),
        ("plain", "{}"),
        ("think", "<think>I look at the picture.</think>\n<answer>{}</answer>"),
    ):
        assert Shapes(style=style).gold(asked(style=style)) == gold.format(asked(style=style).answer)


@pytest.mark.parametrize("task", [Shapes, Compare, Points24])
@pytest.mark.parametrize("style", ["short", "think", "plain"])
def test_gold_is_right_in_every_style(task, style):
    made = task(style=style)
    verify = plugins.registry().make_verifier("vqa/points24" if task is Points24 else "vqa/answer")
    for split in made.splits:
        for prompt in first(made, split, n=12):
            assert verify(Case(completion=made.gold(prompt), answer=prompt.answer, meta=prompt.meta)).value == 1


def test_splits_share_no_picture_and_no_hand():
    seen = {}
    for task in (Shapes(), Compare()):
        for split in task.splits:
            for prompt in first(task, split, n=50):
                for image in prompt.images:
                    key = hashlib.sha256(image.tobytes()).hexdigest()
                    assert seen.setdefault(key, split) == split
    hands = {
        split: {
            tuple(sorted(points24.points(c, "10") for c in p.meta["cards"])) for p in first(Points24(items=2000), split, n=200)
        }
        for split in Points24.splits
    }
    assert not (hands["train"] & hands["test"] or hands["train"] & hands["ood"] or hands["test"] & hands["ood"])


def test_hands_are_as_hard_as_asked_and_the_other_rule_is_out_of_distribution():
    for level, (fewest, most) in (("easy", (4, 99)), ("medium", (2, 3)), ("hard", (1, 1))):
        for prompt in first(Points24(level=level), n=20):
            assert fewest <= prompt.meta["ways"] <= most and prompt.meta["difficulty"] == round(1 / prompt.meta["ways"], 4)
    for prompt in first(Points24(), "ood", n=30):
        assert prompt.meta["faces"] == "11-13" and {"J", "Q", "K"} & set(prompt.meta["cards"]) and "11, 12 and 13" in prompt.text
        assert points24.verdict(prompt.meta["cards"], prompt.answer, "11-13").kind == "right"
    for split, suits in (("train", cards.SUITS["black"]), ("test", cards.SUITS["black"]), ("ood", cards.SUITS["red"])):
        for prompt in first(Points24(suits="black"), split, n=10):
            assert set(prompt.meta["suits"]) <= set(suits) and prompt.meta["faces"] == "10" and "count 10." in prompt.text
    assert first(Points24(faces="11-13"), "ood", n=1)[0].meta["faces"] == "10"


def test_generalpoints_asks_word_for_word():
    task = plugins.registry().make_task("vqa/points24@generalpoints")
    prompt = task.prompts("train", 0)[0]
    assert prompt.text.startswith(
        "\n[Task Description]\nYou are an expert 24 points card game player. You are observing these four cards"
    )
    assert prompt.text.count("'J', 'Q', and 'K' count as '10'") == 2 and prompt.text.endswith("equals 24',\n}\n\n")
    assert "count as '11', '12', and '13' respectively, and each card" in generalpoints.prompt("11-13")
    gold = task.gold(prompt)
    assert gold.startswith('\n{\n  "cards": [\'') and gold.endswith('=24",\n}') and prompt.images[0].size == (224, 78)
    json_style = Points24(style="json")
    prompt = json_style.prompts("train", 0)[0]
    assert json.loads(json_style.gold(prompt)[8:-9])["cards"] == list(prompt.meta["cards"])


def test_every_rank_and_suit_looks_different():
    pictures = {(r, s): cards.hand([(r, s)] * 4, 112).tobytes() for r in points24.RANKS for s in cards.INK}
    assert len(set(pictures.values())) == 52
    assert cards.hand([("10", "hearts")] * 4, 56).size == (56, 56) and cards.hand([("10", "hearts")] * 4, 200, row=True).size == (
        200,
        70,
    )


def test_another_seed_draws_other_items():
    for task in (Shapes(), Compare(), Points24()):
        a, b = task.prompts("train", 0), task.prompts("train", 1)
        assert a[7].id == "train-0-7" and b[7].id == "train-1-7" and a[7].images[0].tobytes() != b[7].images[0].tobytes()
        assert [p.id for p in a[3:5]] == ["train-0-3", "train-0-4"] and len(a) == 2000 and len(task.prompts("test", 0)) == 200
        with pytest.raises(IndexError):
            a[2000]


@pytest.mark.parametrize(
    "task, options, message",
    [
        (Shapes, {"size": 10}, "size = 10 must be a whole number from 56 to 1024"),
        (Shapes, {"size": "112"}, "size = '112' must be a whole number"),
        (Shapes, {"items": 0}, "items = 0 must be"),
        (Shapes, {"style": "tags"}, "style = 'tags' is unknown: choose one of short, think, plain, vlm-r1"),
        (Shapes, {"kinds": ["colour"]}, r"kinds = \['colour'\] must be a list of some of choice, number, yes-no, text"),
        (Shapes, {"kinds": "number"}, "kinds = 'number' must be a list"),
        (Shapes, {"most": 9}, "most = 9 must be a whole number from 1 to 8"),
        (Shapes, {"fewest": 6}, "fewest = 6 must be a whole number from 1 to 5"),
        (Compare, {"pictures": 4}, "pictures = 4 must be a whole number from 2 to 3"),
        (Compare, {"kinds": ["text"]}, "must be a list of some of choice, number, yes-no"),
        (Points24, {"faces": "11"}, "faces = '11' is unknown: choose one of 10, 11-13"),
        (Points24, {"suits": "blue"}, "suits = 'blue' is unknown"),
        (Points24, {"level": "harder"}, "level = 'harder' is unknown"),
        (Points24, {"row": 1}, "row = 1 must be true or false"),
        (Points24, {"style": "vlm-r1"}, "choose one of short, think, plain, json, generalpoints"),
    ],
)
def test_bad_options_are_refused_in_one_line(task, options, message):
    with pytest.raises(UserError, match=message):
        task(**options)
    with pytest.raises(UserError, match="there is no split 'dev': choose one of train, test"):
        task().prompts("dev", 0)


@pytest.mark.parametrize("task", ["vqa/shapes", "vqa/points24"])
def test_a_tiny_model_trains_on_it(task, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tests" / "support"))
    runs = pytest.importorskip("runs")
    config = runs.toy_config(
        tmp_path,
        tasks=[{"id": task, "options": {"size": 56, "items": 40}}],
        stages=[
            {"kind": "sft", "steps": 2, "batch_size": 2, "learning_rate": 1e-3},
            {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
        ],
        generate={"max_tokens": 24},
        evaluate={"num_prompts": 2},
    )
    folder = runs.run(config)
    assert (folder.path / "summary.json").is_file() and any("eval" in row for row in runs.rows(folder))


def test_drawn_questions_are_asked_in_other_words():
    from mmrl_vqa.drawn import Compare, Points24, Shapes
    from mmrl_vqa.rephrasing import OTHERWISE

    used = set()
    for task in (Shapes(items=200), Compare(items=60), Compare(items=30, pictures=3)):
        prompts = task.prompts("train", 0)
        for prompt in (prompts[n] for n in range(len(prompts))):
            other = task.rephrase(prompt)
            (question, *rest), (anew, *same) = prompt.text.split("\n"), other.text.split("\n")
            assert anew != question and same == rest and "\\" not in anew
            assert (other.answer, other.meta, other.id) == (
                prompt.answer,
                prompt.meta,
                prompt.id,
            ) and other.images == prompt.images
            used |= {n for n, (form, _) in enumerate(OTHERWISE) if form.fullmatch(question)}
    assert len(used) == len(OTHERWISE)
    hands = Points24(items=1)
    assert hands.rephrase(hands.prompts("train", 0)[0]) is None
