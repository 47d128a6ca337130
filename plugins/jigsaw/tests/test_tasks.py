"""The tasks: a puzzle is what its answer says, what is asked word for word, which items, one clear line for bad input."""

import json
from collections import Counter

import numpy
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_jigsaw import puzzle, words
from mmrl_jigsaw.puzzle import Size
from mmrl_jigsaw.task import Full, Pair, Single
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.media.images import load_image
from mmrl.registry import plugins
from mmrl.testing import check_plugin
from mmrl.testing.other_process import rows_in_subprocess
from mmrl.testing.sample import fingerprint, sample_rows
from mmrl.ui.cli import main

SIZES = st.builds(Size, st.integers(1, 4), st.integers(1, 4)).filter(lambda size: size.patches > 1)


def pixels(image):
    return numpy.asarray(image, dtype=int)


def reward(verifier, completion, prompt):
    got = plugins.registry().make_verifier(verifier)(Case(completion=completion, answer=prompt.answer, meta=prompt.meta))
    return getattr(got, "value", got)


# -- puzzles ----------------------------------------------------------------------------------------------------------------


def numbered(size: Size, side: int = 6) -> Image.Image:
    """A picture whose patch at position k has the colour (k, k, k)."""
    patches = [Image.new("RGB", (side, side), (k, k, k)) for k in range(1, size.patches + 1)]
    return puzzle.laid_out(patches, size)


@given(SIZES, st.randoms(use_true_random=False))
def test_the_forward_permutation_says_where_each_patch_belongs(size, draw):
    order = puzzle.shuffled(size.patches, draw, True)
    patches = puzzle.cut(numbered(size), size)
    shown = puzzle.cut(puzzle.laid_out([patches[place - 1] for place in order], size), size)
    assert [patch.getpixel((0, 0))[0] for patch in shown] == order
    inverse = puzzle.inverse_of(order)
    assert [shown[slot - 1].getpixel((0, 0))[0] for slot in inverse] == list(range(1, size.patches + 1))
    assert puzzle.inverse_of(inverse) == order


def test_all_permutations_are_as_likely_and_the_identity_can_be_left_out():
    import random

    draw = random.Random(0)
    seen = Counter(tuple(puzzle.shuffled(3, draw, True)) for _ in range(3000))
    assert len(seen) == 6 and min(seen.values()) > 400
    without = Counter(tuple(puzzle.shuffled(3, draw, False)) for _ in range(2500))
    assert len(without) == 5 and (1, 2, 3) not in without and min(without.values()) > 400


@given(SIZES, st.data())
def test_a_relation_is_that_of_rows_and_columns(size, data):
    first, second = data.draw(st.permutations(range(1, size.patches + 1)).map(lambda p: p[:2]))
    (row, column), (other_row, other_column) = divmod(first - 1, size.columns), divmod(second - 1, size.columns)
    said = puzzle.relation(first, second, size.columns)
    assert ("left" in said) == (column < other_column) and ("right" in said) == (column > other_column)
    assert ("above" in said or "upper" in said) == (row < other_row) and ("below" in said or "lower" in said) == (row > other_row)
    assert ("directly" in said) == (row == other_row or column == other_column)
    assert said in puzzle.relations(size)


def published_mask(image: numpy.ndarray, m: int, n: int, ratio: float) -> numpy.ndarray:
    """As Jigsaw-R1 blackens: whole rows and columns of the picture."""
    height, width = image.shape[0] // m, image.shape[1] // n
    down, across = int(height * ratio), int(width * ratio)
    image = image.copy()
    for i in range(m):
        image[i * height : i * height + (down if i == 0 else down // 2), :] = 0
        image[(i + 1) * height - (down if i == m - 1 else down // 2) : (i + 1) * height, :] = 0
    for j in range(n):
        image[:, j * width : j * width + (across if j == 0 else across // 2)] = 0
        image[:, (j + 1) * width - (across if j == n - 1 else across // 2) : (j + 1) * width] = 0
    return image


@settings(max_examples=40)
@given(SIZES, st.floats(0, 0.49), st.integers(14, 30), st.integers(14, 30))
def test_masks_blacken_the_published_borders(size, ratio, width, height):
    picture = Image.new("RGB", (width * size.columns, height * size.rows), "white")
    masked = pixels(puzzle.masked(picture, size, ratio))
    assert (masked == published_mask(pixels(picture), *size, ratio)).all() and (pixels(picture) == 255).all()


# -- what a prompt shows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"rows": 3, "columns": 2}, {"layout": "patches", "convention": "inverse"}])
def test_the_answer_puts_the_picture_together(options):
    task = Full(test=12, **options)
    for prompt in task.prompts("test", 0):
        size = Size(prompt.meta["m"], prompt.meta["n"])
        shown = puzzle.cut(prompt.images[0], size) if task.layout == "picture" else list(prompt.images)
        forward = prompt.answer if task.convention == "forward" else puzzle.inverse_of(prompt.answer)
        placed = [shown[slot - 1] for slot in puzzle.inverse_of(forward)]
        original = task.source.open("test", int(prompt.id[-5:]))
        whole = puzzle.laid_out(placed, size)
        assert (pixels(whole) == pixels(original.crop((0, 0, *whole.size)))).all()
        assert ("boxes" in prompt.meta) == (task.layout == "picture")


def test_single_and_pair_ask_about_the_patches_that_are_shown():
    for convention in ("forward", "inverse"):
        task = Single(test=30, convention=convention)
        for prompt in task.prompts("test", 0):
            shown, original = (
                puzzle.cut(prompt.images[0], Size(2, 2)),
                puzzle.cut(task.source.open("test", int(prompt.id[-5:])), Size(2, 2)),
            )
            place, answer = prompt.meta["place"], int(prompt.answer)
            slot, home = (place, answer) if convention == "forward" else (answer, place)
            assert (pixels(shown[slot - 1]) == pixels(original[home - 1])).all()
    for prompt in Pair(test=30, rows=3, columns=3, size=120, choices=3).prompts("test", 0):
        original = puzzle.cut(Pair(rows=3, columns=3, size=120).source.open("test", int(prompt.id[-5:])), Size(3, 3))
        shown = puzzle.cut(prompt.images[0], Size(3, 3))
        homes = [
            next(i for i, o in enumerate(original, 1) if (pixels(o) == pixels(shown[p - 1])).all()) for p in prompt.meta["pair"]
        ]
        first, second = prompt.meta["pair"]
        right = prompt.meta["choices"][ord(prompt.answer) - ord("A")]
        assert right == f"{first} is {puzzle.relation(*homes, 3)} {second}"
        assert len(set(prompt.meta["choices"])) == 3 and f"({prompt.answer}) {right}" in prompt.text


def test_right_letters_and_places_are_spread():
    letters = Counter(p.answer for p in Pair(test=400).prompts("test", 0))
    assert len(letters) == 8 and max(letters.values()) < 90
    answers = Counter(tuple(p.answer) for p in Full(test=600).prompts("test", 0))
    assert len(answers) == 24 and max(answers.values()) < 50
    assert all(p.answer != [1, 2, 3, 4] for p in Full(test=300, identity="excluded").prompts("test", 0))
    assert {len(p.meta["choices"]) for p in Pair(test=20, rows=1, columns=3).prompts("test", 0)} == {2}


# -- what is asked ----------------------------------------------------------------------------------------------------------

HEADER = (
    "The input image is divided into 2x3 patches that have been randomly permuted from their original "
    "positions. Your task is to solve "
    "this 2x3 jigsaw puzzle and reconstruct the original image.{0}\n\nConsider a 2x3 grid, where each "
    "number represents a position index "
    "ranging from 1 (top-left) to 6 (bottom-right):\n\n```\n1 2 3\n4 5 6\n```\n\n"
)
THINK = (
    "First, output the thinking process within <think> </think> tags. Then, provide the final answer "
    "within <answer> </answer> tags. "
)


def test_the_words_of_jigsaw_r1():
    def text(cls, **options):
        return cls(**{"rows": 2, "columns": 3, "style": "jigsaw-r1"} | options).prompts("train", 0)[0]

    assert text(Full).text == HEADER.format("") + (
        "For each patch, determine its correct position index in the original image. If a patch currently at "
        "position X should belong "
        f'at position Y, place "Y" at position X.\n\n{THINK}'
        "The final answer should be the position indexes arranged in a 2x3 grid."
    )
    assert text(Full, convention="inverse", style="jigsaw-r1-direct").text.endswith(
        "For each position, determine which patch should belong there. If a patch currently at position X "
        "should belong at position Y, "
        'place "X" at position Y.\n\nDirectly output the final answer. '
        "The final answer should be the position indexes arranged in a 2x3 grid."
    )
    masked = " To increase the task difficulty, the borders of each patch have been masked out."
    assert text(Full, mask=0.1).text.startswith(HEADER.format(masked))
    single = text(Single)
    assert single.text == HEADER.format("") + (
        f"For the patch currently at position {single.meta['place']}, determine its correct position index in "
        f"the original image.\n\n"
        f"{THINK}The final answer should be a single number."
    )
    pair = text(Pair, style="jigsaw-r1-direct")
    (first, second), choices = pair.meta["pair"], pair.meta["choices"]
    assert pair.text == HEADER.format("") + (
        f"For patches currently at positions {first} and {second}, determine their relative position in the original image.\n\n"
        "Select the correct answer from the following 8 choices:\n\n"
        + "\n".join(f"({letter}) {choice}" for letter, choice in zip("ABCDEFGH", choices, strict=True))
        + "\n\nDirectly output the final answer. The final answer should be a single letter."
    )
    assert f"{first} is on the upper left of {second}" in choices and f"{first} is directly to the left of {second}" in choices
    assert "ranging from 1 (top) to 3 (bottom):\n\n```\n1\n2\n3\n```" in text(Full, rows=3, columns=1).text
    assert "ranging from 1 (left) to 3 (right):\n\n```\n1 2 3\n```" in text(Full, rows=1, columns=3).text


def test_the_words_of_ssl4rl():
    task = plugins.registry().make_task("jigsaw/full@ssl4rl", {"rows": 3, "columns": 3})
    prompt = task.prompts("train", 0)[0]
    assert len(prompt.images) == 9 and sorted(prompt.answer.split(",")) == [str(k) for k in range(1, 10)]
    assert prompt.text.startswith(
        "\n\nThe provided images represent 9 parts of an original image, divided into a 3x3 grid.\n\nYour task"
    )
    assert 'For instance, "8,9,3,2,1,4,7,5,6" would indicate' in prompt.text
    assert prompt.text.endswith("<think>your step-by-step reasoning here</think> <answer>order</answer>")
    assert task.gold(prompt).endswith(f"</think> <answer>{prompt.answer}</answer>")
    for side, order in words.SSL4RL_ORDERS.items():
        assert sorted(map(int, order.split(","))) == list(range(1, side * side + 1))


def test_our_words_name_the_grid_and_the_form():
    prompt = Full(rows=2, columns=1).prompts("train", 0)[0]
    assert prompt.text == (
        "A picture was cut into 2 rows and 1 column, and its patches were shuffled. Positions are counted "
        "row by row, from 1 at the top "
        "to 2 at the bottom.\nFor each patch shown, in order: at which position of the original does it belong?\n"
        "Answer with the 2 numbers alone."
    )
    assert Full(style="tags").prompts("train", 0)[0].text.endswith("then give the answer in <answer> </answer> tags.")
    assert "These 4 pictures are the patches" in Full(layout="patches").prompts("train", 0)[0].text
    assert "The borders of the patches are black." in Full(mask=0.2).prompts("train", 0)[0].text


READ_BY = {
    Full: ("placement", "exact", "above-chance", "format", "grid@jigsaw-r1", "connections@jigsaw-r1", "grid-format@jigsaw-r1"),
    Pair: ("pair", "format", "pair@jigsaw-r1", "letter-format@jigsaw-r1"),
    Single: ("exact", "format", "digit@jigsaw-r1", "digit-format@jigsaw-r1"),
}


@pytest.mark.parametrize("cls, verifiers", READ_BY.items())
@pytest.mark.parametrize("style", ["plain", "tags", "jigsaw-r1", "jigsaw-r1-direct"])
def test_gold_earns_everything_in_every_style(cls, verifiers, style):
    task = cls(style=style, test=6, sizes=["2x2", "1x3", "3x2"], mask=0.1)
    for prompt in task.prompts("test", 0):
        for verifier in verifiers:
            if style == "plain" and verifier.endswith("@jigsaw-r1"):
                continue  # these want to be told whether there are tags: styles of their own
            assert reward(f"jigsaw/{verifier}", task.gold(prompt), prompt) == 1, (verifier, task.gold(prompt))


# -- which items ------------------------------------------------------------------------------------------------------------


def test_sizes_and_turns_make_a_curriculum():
    prompts = Full(sizes=["2x1", "3x1", "2x2"], test=120).prompts("test", 0)
    sizes = Counter((p.meta["m"], p.meta["n"], p.meta["difficulty"]) for p in prompts)
    assert sizes.keys() == {(2, 1, 2), (3, 1, 3), (2, 2, 4)} and min(sizes.values()) > 20
    turned = Counter((p.meta["m"], p.meta["n"]) for p in Full(rows=3, columns=1, turned=True, test=60).prompts("test", 0))
    assert turned.keys() == {(3, 1), (1, 3)} and min(turned.values()) > 15
    assert Full(mask=0.25).prompts("test", 0)[0].meta["difficulty"] == 5
    task = Full(sizes=["2x1", "2x2"], test=20)
    results = [(p, float(p.meta["n"] == 1)) for p in task.prompts("test", 0)]
    assert task.summarise(results) == {"2x1": 1.0, "2x2": 0.0} and Full().summarise(results[:1]) == {}


def test_items_are_the_same_whatever_the_runs_seed_and_differ_by_the_options():
    task = Full(test=5)
    first = [(p.id, p.answer, pixels(p.images[0]).tobytes()) for p in task.prompts("test", 0)]
    assert first == [(p.id, p.answer, pixels(p.images[0]).tobytes()) for p in task.prompts("test", 7)]
    assert [p.answer for p in Full(test=5, seed=1).prompts("test", 0)] != [answer for _, answer, _ in first]
    assert [p.id for p in task.prompts("test", 0)[1:3]] == ["test-00001", "test-00002"] and task.prompts("test", 0)[
        -1
    ].id == "test-00004"
    few = Full(photographs=["china"], test=3).prompts("test", 0)
    assert len({p.images[0].size for p in few}) == 1


def test_a_folder_is_split_by_name_and_gives_as_many_puzzles_as_asked(folder):
    root = folder(40)
    task = Full(path=str(root), each=2)
    ids = {split: [p.id for p in task.prompts(split, 0)] for split in task.splits}
    images = {split: {id.partition("#")[0] for id in found} for split, found in ids.items()}
    assert not images["train"] & images["test"] and len(images["train"] | images["test"]) == 40 and len(images["test"]) > 4
    assert all(len(set(found)) == len(found) == 2 * len(images[split]) for split, found in ids.items())
    prompt = task.prompts("train", 0)[0]
    assert prompt.images[0].size == (60, 44) and Full(path=str(root), size=45).prompts("train", 0)[0].images[0].size == (44, 32)
    (root / "inner" / "new.png").write_bytes((root / "00.png").read_bytes())
    after = {split: {p.id for p in Full(path=str(root), each=2).prompts(split, 0)} for split in task.splits}
    assert all(set(found) <= after[split] for split, found in ids.items())  # a new file moves no other one


def test_broken_and_small_pictures_are_named_when_asked_for(folder):
    root = folder(30)
    (root / "broken.png").write_bytes(b"no picture")
    Image.new("RGB", (20, 60)).save(root / "small.png")
    messages = {}
    task = Full(path=str(root))
    for split in task.splits:
        prompts = task.prompts(split, 0)
        for i, id in enumerate(task.source.ids[split]):
            try:
                prompts[i]
            except UserError as error:
                messages[id] = str(error)
    assert messages.keys() == {"broken.png", "small.png"}
    assert "broken.png is broken or of an unknown kind" in messages["broken.png"]
    assert "image small.png of 20 x 60 is too small to cut into 2x2" in messages["small.png"]
    assert f"take it out of {root}, or cut into fewer" in messages["small.png"]


def test_another_process_makes_the_same_of_a_folder(folder):
    root = str(folder(20))
    here = [fingerprint(p) for p in sample_rows(Pair(path=root), "test", 3)]
    assert rows_in_subprocess("jigsaw/pair", {"path": root}, ["test"], 3) == {"test": here} and here


# -- bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls, options, message",
    [
        (Full, {"style": "tag"}, "style = 'tag' is unknown: choose one of plain, tags, .* Did you mean 'tags'"),
        (Full, {"convention": "backward"}, "convention = 'backward' is unknown: choose one of forward, inverse"),
        (Single, {"convention": 3}, "convention = 3 is unknown"),
        (Full, {"layout": "apart"}, "layout = 'apart' is unknown"),
        (Full, {"identity": True}, "identity = True is unknown"),
        (Full, {"rows": 0}, "rows = 0 must be a whole number from 1"),
        (Full, {"rows": "2"}, "rows = '2' must be a whole number"),
        (Full, {"rows": 1, "columns": 1}, "size '1x1' is not valid: write rows x columns"),
        (Full, {"sizes": ["2*2"]}, r"size '2\*2' is not valid: write rows x columns, such as \"2x3\""),
        (Full, {"sizes": "2x2"}, "sizes = '2x2' must be a list"),
        (Full, {"sizes": 4}, "sizes = 4 must be a list"),
        (Full, {"sizes": ["30x30"]}, "2 to 400 patches"),
        (Full, {"mask": 0.5}, "mask = 0.5 must be a number from 0 to below 0.5"),
        (Full, {"mask": True}, "mask = True must be"),
        (Full, {"mask": float("nan")}, "mask = nan must be"),
        (Full, {"size": 20}, "size = 20 leaves patches of 10 pixels.*set size to 28 or more"),
        (Full, {"size": 112, "rows": 20}, "set size to 280 or more"),
        (Full, {"turned": "yes"}, "turned = 'yes' must be true or false"),
        (Full, {"train": 0}, "train = 0 must be a whole number from 1"),
        (Full, {"seed": 1.5}, "seed = 1.5 must be a whole number"),
        (Full, {"each": 0}, "each = 0 must be"),
        (Full, {"photographs": ["cat"]}, r"photographs = \['cat'\] must be a list of names out of astronaut, "),
        *((Full, {"photographs": wrong}, "photographs = .* must be a list") for wrong in (5, True, None, {}, [5])),
        (Full, {"path": True}, "path = True must be a text"),
        (Full, {"path": "x" * 3000}, r"folder \.\.\.x* can't be read: File name too long"),
        (Full, {"photographs": "china"}, "photographs = 'china' must be a list"),
        (Full, {"rows": 2, "columns": 1, "identity": "excluded"}, "leaves one answer to a puzzle of 2 patches"),
        (Full, {"style": "ssl4rl"}, 'set layout = "patches", convention = "inverse"'),
        (Full, {"style": "ssl4rl", "layout": "patches", "convention": "inverse", "rows": 3}, "is for 2x2 to 6x6, not 3x2"),
        (Full, {"style": "jigsaw-r1", "layout": "patches"}, "is for one picture"),
        (Pair, {"style": "ssl4rl"}, "is for jigsaw/full"),
        (Pair, {"choices": 1}, "choices = 1 must be a whole number from 2 to 8"),
        (Full, {"path": "/nowhere"}, "folder /nowhere does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_line(cls, options, message):
    with pytest.raises(UserError, match=message) as caught:
        cls(**options)
    assert "\n" not in str(caught.value)


def test_unknown_splits_and_folders_with_too_little_are_refused(folder):
    with pytest.raises(UserError, match="there is no split 'dev': choose one of train, test"):
        Full().prompts("dev", 0)
    with pytest.raises(
        UserError, match=r"has 1 image, and none of them is in split '(train|test)': add more, or set another seed"
    ):
        Full(path=str(folder(1)))


# -- the whole of it --------------------------------------------------------------------------------------------------------


def test_the_plugin_keeps_the_rules():
    few = {
        spec.id: {"train": 24, "test": 12} for spec in plugins.registry().specs("tasks").values() if spec.id.startswith("jigsaw/")
    }
    reports = check_plugin("jigsaw", n=4, options=few)
    assert len(few) == 7 and len(reports) == 7 + 16 and all(r.ok for r in reports)
    assert load_image(Full().prompts("train", 0)[0].images[0]).size == (112, 112)


def test_it_trains(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"""
name = "puzzles"
runs_dir = "{tmp_path}"
policy = {{model = "tiny:qwen2_5_vl:hidden=32,layers=1"}}
tasks = [{{id = "jigsaw/full", options = {{sizes = ["2x1", "2x2"], size = 56, train = 12, test = 4}}}}]
stages = [{{kind = "sft", steps = 2, batch_size = 4}},
          {{kind = "rl", steps = 2, prompts_per_step = 2, group_size = 4, order = "easy-first"}}]
generate = {{max_tokens = 8}}
evaluate = {{num_prompts = 4}}
train = {{threads = 1}}
""")
    done = CliRunner().invoke(main, ["train", str(path)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "puzzles" / "metrics.jsonl").read_text().splitlines()]
    assert sum("metrics" in row for row in rows) == 4 and any("jigsaw/full" in str(row.get("eval")) for row in rows)


# -- what people see --------------------------------------------------------------------------------------------------------


def seen(task, prompt, completion):
    return [(m.kind, m.source, tuple(m.coordinates), tuple(m.labels)) for m in task.overlays(prompt, completion)]


@pytest.mark.parametrize("convention", ["forward", "inverse"])
@pytest.mark.parametrize("style", ["plain", "tags", "jigsaw-r1"])
def test_the_grid_says_where_each_patch_belongs(convention, style):
    """In either convention: what stands on a patch is its place in the original."""
    task = Full(test=20, rows=2, columns=3, convention=convention, style=style)
    for prompt in task.prompts("test", 0):
        original = task.source.open("test", int(prompt.id[-5:]))
        size = Size(prompt.meta["m"], prompt.meta["n"])
        parts, shown = puzzle.cut(original, size), puzzle.cut(prompt.images[0], size)
        (true, said) = seen(task, prompt, task.gold(prompt))
        assert true == ("grid", "true", (2, 3), said[3]) and said[:3] == ("grid", "said", (2, 3))
        assert all((pixels(parts[int(label) - 1]) == pixels(patch)).all() for label, patch in zip(said[3], shown, strict=True))


def test_a_grid_that_is_no_permutation_is_not_drawn():
    task = Full(test=4)
    prompt = task.prompts("test", 0)[0]
    true = seen(task, prompt, task.gold(prompt))[:1]
    assert seen(task, prompt, "2 1 4 3")[1][3] == ("2", "1", "4", "3")
    for nothing in ("", "hm", "1 1 2 3", "1 2 3", "1 2 3 5"):
        assert seen(task, prompt, nothing) == true
    apart = Full(test=4, layout="patches", convention="inverse")
    assert seen(apart, apart.prompts("test", 0)[0], "1 2 3 4") == [], "patches that are pictures of their own have no grid"


@pytest.mark.parametrize("convention", ["forward", "inverse"])
def test_one_patch_has_its_place_on_it(convention):
    task = Single(test=20, convention=convention)
    for prompt in task.prompts("test", 0):
        place, answer = prompt.meta["place"], int(prompt.answer)
        slot, home = (place, answer) if convention == "forward" else (answer, place)
        (true, said) = seen(task, prompt, task.gold(prompt))
        assert true[3] == said[3] == tuple(str(home) if k == slot else "" for k in range(1, 5))
        wrong = answer % 4 + 1
        other = seen(task, prompt, str(wrong))[1][3]
        slot, home = (place, wrong) if convention == "forward" else (wrong, place)
        assert other == tuple(str(home) if k == slot else "" for k in range(1, 5))
        assert len(seen(task, prompt, "5")) == len(seen(task, prompt, "0")) == len(seen(task, prompt, "1 2")) == 1


def test_of_a_pair_the_two_patches_are_named():
    task = Pair(test=10, rows=2, columns=3)
    for prompt in task.prompts("test", 0):
        ((_, of, at, labels),) = seen(task, prompt, task.gold(prompt))
        assert of == "true" and at == (2, 3) and {int(n) for n in labels if n} == set(prompt.meta["pair"])
        assert all(label in ("", str(k)) for k, label in enumerate(labels, 1))
