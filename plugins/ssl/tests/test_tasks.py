"""The tasks: the pictures are what the answer says, what is asked, which items, one clear line for bad input."""

import json
import math
import random
from collections import Counter

import numpy
import pytest
from click.testing import CliRunner
from mmrl_ssl import patches
from mmrl_ssl.augment import STRENGTHS, recoloured, view
from mmrl_ssl.task import QUADRANTS, UPRIGHT, Contrastive, Masked, Position, Rotation, turned
from PIL import Image, ImageDraw

from mmrl import Case, UserError
from mmrl.registry import plugins
from mmrl.testing import check_plugin
from mmrl.ui.cli import main

EVERY = (Rotation, Contrastive, Position, Masked)


def pixels(image):
    return numpy.asarray(image, dtype=int)


def arrow(side: int = 60) -> Image.Image:
    """A red spot in the middle of the upper edge of a grey square."""
    image = Image.new("RGB", (side, side), "grey")
    ImageDraw.Draw(image).rectangle((side // 2 - 5, 0, side // 2 + 5, side // 3), fill="red")
    return image


def spot(image: Image.Image) -> tuple[float, float]:
    """The middle of what is red, from -1 to 1, y upwards."""
    rgb = pixels(image)
    ys, xs = numpy.nonzero((rgb[..., 0] > 200) & (rgb[..., 1] < 60))
    return 2 * xs.mean() / image.width - 1, 1 - 2 * ys.mean() / image.height


# -- rotation ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [0, 30, 90, 135, 180, 270, 345])
def test_a_picture_is_turned_counter_clockwise(angle):
    image = turned(arrow(), angle, angle % 90 != 0)
    x, y = spot(image)
    direction = math.degrees(math.atan2(y, x))  # the spot starts at 90 degrees
    assert abs((direction - 90 - angle + 180) % 360 - 180) < 8
    assert image.size == ((60, 60) if angle % 90 == 0 else (42, 42))


@pytest.mark.parametrize("count", [1, 2])
def test_rotation_shows_the_turned_picture_last(count):
    task = Rotation(test=24, size=60, pictures=count)
    for prompt in task.prompts("test", 0):
        original = task.source.open("test", int(prompt.id[-5:]))
        assert len(prompt.images) == count and prompt.images[-1].size == (60, 60)
        assert (pixels(prompt.images[-1]) == numpy.rot90(pixels(original), int(prompt.answer) // 90)).all()
        assert count == 1 or (pixels(prompt.images[0]) == pixels(original)).all()
    assert set(Counter(p.answer for p in Rotation(test=80).prompts("test", 0))) == {"0", "90", "180", "270"}


def test_oblique_angles_fill_the_picture_and_show_nothing_of_the_corners():
    task = Rotation(angles=[0, 45, 90, 200], size=56, test=20)
    sizes = {p.images[0].size for p in task.prompts("test", 0)}
    assert len(sizes) == 1 and abs(sizes.pop()[0] - 56) <= 1 and Rotation().grown == 1
    white = Image.new("RGB", (80, 80), "white")
    for angle in range(0, 360, 15):
        assert pixels(turned(white, angle, True)).min() == 255


def test_the_shape_of_a_folders_picture_does_not_give_a_quarter_turn_away(folder):
    task = Rotation(path=str(folder(30)))
    assert {p.images[0].size for p in task.prompts("train", 0)} == {(44, 44)}


# -- contrastive ------------------------------------------------------------------------------------------------------------


def test_two_views_are_of_the_same_picture_or_of_different_ones(folder):
    root = folder(0)
    for i in range(30):  # each of one colour, so that a view tells which it is of
        Image.new("RGB", (60, 44), (8 * i, 255 - 8 * i, 128)).save(root / f"{i:02d}.png")
    task = Contrastive(path=str(root), each=6, style="ssl4rl")
    mild, STRENGTHS["mild"] = STRENGTHS["mild"], STRENGTHS["mild"]._replace(jitter_chance=0)
    try:
        prompts = list(task.prompts("train", 0))
    finally:
        STRENGTHS["mild"] = mild
    for prompt in prompts:
        first, second = (tuple(pixels(i).reshape(-1, 3).mean(0).round()) for i in prompt.images)
        assert (prompt.answer == "positive") == (first == second)
    counts = Counter(p.answer for p in prompts)
    assert set(counts) == {"positive", "negative"} and 0.3 < counts["positive"] / len(prompts) < 0.7
    assert {p.answer for p in Contrastive(test=20).prompts("test", 0)} == {"same", "different"}


def test_different_views_of_photographs_are_of_different_photographs():
    task = Contrastive(test=12, photographs=["china", "coffee"])
    names = [task.source.name("test", i) for i in range(12)]
    assert set(names) == {"china", "coffee"}
    alone = Contrastive(test=8, photographs=["china"]).prompts("test", 0)
    with pytest.raises(UserError, match=r"image test-0000.: there is no other picture in test to compare it with: add images"):
        list(alone)


@pytest.mark.parametrize("strength", STRENGTHS.values(), ids=STRENGTHS)
def test_views_have_the_size_that_is_asked_for_and_depend_on_the_draw_alone(strength):
    picture = Image.frombytes("RGB", (90, 50), random.Random(0).randbytes(90 * 50 * 3))
    before = pixels(picture)
    views = [view(picture, strength, 32, random.Random(i)) for i in (1, 1, 2)]
    assert all(v.size == (32, 32) and v.mode == "RGB" for v in views)
    assert (pixels(views[0]) == pixels(views[1])).all() and not (pixels(views[0]) == pixels(views[2])).all()
    assert recoloured(picture, strength, random.Random(3)).size == picture.size and (pixels(picture) == before).all()


def test_the_strengths_are_the_published_ones():
    """As in SSL4RL: build_benchmarks/augcfg_strong.yaml, and SimCLR's."""
    strong, simclr = STRENGTHS["strong"], STRENGTHS["simclr"]
    assert tuple(strong) == ((0.08, 0.3), (0.8, 0.8, 0.8, 0.2), 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)
    assert tuple(simclr) == ((0.08, 1.0), (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 0.0, 0.0, 0.5)


def test_each_change_changes_what_it_says():
    flat = Image.new("RGB", (40, 40), (200, 80, 40))
    none = STRENGTHS["mild"]._replace(area=(1, 1), jitter_chance=0, blur=0, flip=0)
    assert pixels(view(flat, none, 40, random.Random(0))).reshape(-1, 3).tolist()[0] == [200, 80, 40]
    grey = pixels(recoloured(flat, none._replace(grey=1), random.Random(0)))[0, 0]
    assert grey[0] == grey[1] == grey[2]
    assert pixels(recoloured(flat, none._replace(solarise=1), random.Random(0)))[0, 0].tolist() == [55, 80, 40]
    hue = pixels(recoloured(flat, none._replace(jitter_chance=1, jitter=(0, 0, 0, 0.5)), random.Random(4)))[0, 0]
    assert sorted(hue)[2] == pytest.approx(200, abs=3) and hue.tolist() != [200, 80, 40]
    mirrored = view(arrow().transpose(Image.Transpose.ROTATE_90), none._replace(flip=1), 60, random.Random(0))
    assert spot(mirrored)[0] > 0.3


# -- position and masked ----------------------------------------------------------------------------------------------------


def test_a_piece_lies_in_the_quarter_that_is_the_answer():
    for prompt in Position(test=60).prompts("test", 0):
        ((x1, y1, x2, y2),) = prompt.meta["boxes"]
        whole, piece = prompt.images
        assert (pixels(whole.crop((x1, y1, x2, y2))) == pixels(piece)).all()
        assert min(x2 - x1, y2 - y1) >= 28 and max(x2 - x1, y2 - y1) <= 0.8 * 56
        row, column = divmod(QUADRANTS.index(prompt.answer), 2)
        assert column * 56 <= x1 < x2 <= column * 56 + 56 and row * 56 <= y1 < y2 <= row * 56 + 56
        assert 0 < prompt.meta["difficulty"] < 1
    assert len(Counter(p.answer for p in Position(test=60).prompts("test", 0))) == 4
    recolour = Position(test=10, strength="strong").prompts("test", 0)
    assert any((pixels(p.images[1]) != pixels(p.images[0].crop(p.meta["boxes"][0]))).any() for p in recolour)


@pytest.mark.parametrize("layout", ["picture", "patches"])
def test_the_right_patch_fills_the_hole_and_no_other_does(layout):
    task, answers = Masked(test=40, layout=layout, choices=5), Counter()
    for prompt in task.prompts("test", 0):
        original = task.source.open("test", int(prompt.id[-5:]))
        hole, *boxes = prompt.meta["boxes"]
        offered = [prompt.images[0].crop(b) for b in boxes] if layout == "picture" else list(prompt.images[1:])
        assert len(offered) == 5
        filled = [p for p, patch in enumerate(offered, 1) if (pixels(patch) == pixels(original.crop(hole))).all()]
        assert filled == [int(prompt.answer)] and (pixels(prompt.images[0].crop(hole)) == 127).all()
        answers[prompt.answer] += 1
    assert set(answers) == {"1", "2", "3", "4", "5"}


def test_wrong_patches_do_not_overlap_the_hole_and_differ():
    picture = Image.frombytes("RGB", (100, 80), random.Random(1).randbytes(100 * 80 * 3))
    box = (40, 30, 60, 50)
    found = patches.others(picture, box, 5, random.Random(2))
    every = [picture.crop(box), *found]
    assert all(patches.difference(a, b) > 0 for i, a in enumerate(every) for b in every[:i])
    with pytest.raises(UserError, match="it doesn't have 3 patches that differ"):
        patches.others(Image.new("RGB", (100, 80), "red"), box, 3, random.Random(2))


# -- what is asked ----------------------------------------------------------------------------------------------------------


def test_the_words_of_ssl4rl():
    registry = plugins.registry()
    rotation = registry.make_task("ssl/rotation@ssl4rl").prompts("train", 0)[0]
    assert rotation.text.startswith(
        "\n\nThese are two images. The second image is a rotated version of the first image. \n"
        "Please determine how many degrees the second image has been rotated **counter-clockwise** relative to the first image.\n"
        "The granuality of rotation is 90 degrees, meaning the second image could have been rotated by 0, 90, 180, ..., 270 "
        "degrees.\n"
    )
    assert rotation.text.endswith("<think> your reasoning here </think> <answer>number_of_degrees</answer>")
    assert "is 45 degrees" in Rotation(style="ssl4rl", pictures=2, angles=range(0, 360, 45)).prompts("train", 0)[0].text
    contrastive = registry.make_task("ssl/contrastive@ssl4rl").prompts("train", 0)[0]
    assert 'if they correspond to different original images, respond with "negative".\n\nYour answer' in contrastive.text
    assert contrastive.text.endswith("</think> <answer>positive/negative</answer>")
    position = registry.make_task("ssl/position@ssl4rl").prompts("train", 0)[0]
    assert "The second image in an augmented version of a crop in the first image. The augmentations" in position.text
    assert "strictly limited to four cases: top-left, top-right, bottom-left and bottom-right.\n\n" in position.text
    assert all(len(p.images) == 2 for p in (rotation, contrastive, position))


@pytest.mark.parametrize("cls", EVERY)
def test_gold_earns_everything_in_every_style(cls):
    for style in ("plain", "tags"):
        task = cls(test=8, style=style)
        for prompt in task.prompts("test", 0):
            got = plugins.registry().make_verifier("ssl/exact")(
                Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
            )
            assert got.value == 1 and str(prompt.answer) in prompt.meta["choices"]
        assert prompt.text.endswith("alone." if style == "plain" else "<answer> </answer> tags.")


# -- which items ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", EVERY)
def test_items_are_the_same_whatever_the_runs_seed_and_differ_by_the_options(cls):
    def shown(run=0, **options):
        return [(p.id, p.answer, [pixels(i).tobytes() for i in p.images]) for p in cls(test=4, **options).prompts("test", run)]

    assert shown() == shown(run=9)
    assert all(a[0] == b[0] and a[2] != b[2] for a, b in zip(shown(), shown(seed=1), strict=True))


@pytest.mark.parametrize("cls", EVERY)
def test_a_folder_is_split_by_name_and_broken_pictures_are_named(cls, folder):
    root = folder(24, (90, 80))
    (root / "broken.png").write_bytes(b"no picture")
    Image.new("RGB", (20, 60)).save(root / "small.png")
    task = cls(path=str(root), each=2)
    messages, ids = {}, {}
    for split in task.splits:
        prompts = task.prompts(split, 0)
        ids[split] = set(task.source.ids[split])
        for i, id in enumerate(task.source.ids[split]):
            try:
                assert prompts[i].id == id
            except UserError as error:
                messages[id] = str(error)
    assert not ids["train"] & ids["test"] and len(ids["train"] | ids["test"]) == 52
    assert {id.partition("#")[0] for id in messages if "compare" not in messages[id]} >= {"broken.png", "small.png"}
    assert "broken.png is broken or of an unknown kind" in messages["broken.png"]
    assert "image small.png of 20 x 60 has a side below 28 pixels" in messages["small.png"]
    assert messages["small.png"].endswith(f": remove it from {root}")


# -- bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls, options, message",
    [
        (Rotation, {"style": "tag"}, "style = 'tag' is unknown: choose one of plain, tags, ssl4rl. Did you mean 'tags'"),
        (Rotation, {"angles": [90]}, r"angles = \[90\] must be a list of two or more whole numbers from 0 to 359, each once"),
        (Rotation, {"angles": [0, 360]}, "angles = "),
        (Rotation, {"angles": [0, 90.0]}, "angles = "),
        (Rotation, {"angles": [90, 90]}, "each once"),
        (Rotation, {"angles": "90"}, "angles = '90'"),
        (Rotation, {"pictures": 3}, "pictures = 3 is unknown: choose one of 1, 2"),
        (Rotation, {"style": "ssl4rl"}, "is for pictures = 2"),
        (Rotation, {"style": "ssl4rl", "pictures": 2, "angles": [0, 90]}, "in equal steps from 0"),
        (Rotation, {"size": 20}, "size = 20 must be a whole number from 28"),
        (Rotation, {"size": 56.0}, "size = 56.0 must be"),
        (Rotation, {"train": True}, "train = True must be"),
        (Rotation, {"photographs": ["cat"]}, r"photographs = \['cat'\] must be a list of names out of"),
        *(
            (Rotation, {"photographs": wrong}, "photographs = .* must be a list")
            for wrong in (5, True, None, {}, [5], [["china"]])
        ),
        (Rotation, {"path": 5}, "path = 5 must be a text"),
        (Rotation, {"path": "x" * 3000}, r"folder \.\.\.x* can't be read: File name too long"),
        (Rotation, {"path": "no\nwhere"}, r"folder .*no\?where does not exist"),
        (Position, {"largest": True}, "largest = True must be shares"),
        (Rotation, {"photographs": "china"}, "photographs = 'china' must be a list"),
        (Contrastive, {"strength": "weak"}, "strength = 'weak' is unknown: choose one of mild, simclr, strong"),
        (Position, {"strength": "weak"}, "choose one of none, mild, simclr, strong"),
        (Position, {"smallest": 0.9}, "0 < smallest <= largest <= 1"),
        (Position, {"smallest": "a"}, "must be shares"),
        (Position, {"size": 56}, "size = 56 leaves pieces below 28 pixels: set size to 72"),
        (Masked, {"choices": 1}, "choices = 1 must be a whole number from 2 to 9"),
        (Masked, {"hole": 0.5}, "hole = 0.5 must be a share from 0.1 to 0.4"),
        (Masked, {"layout": "row"}, "layout = 'row' is unknown"),
        (Masked, {"style": "ssl4rl"}, "has no prompt for this question"),
        (Masked, {"path": "/nowhere"}, "folder /nowhere does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_line(cls, options, message):
    with pytest.raises(UserError, match=message) as caught:
        cls(**options)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="there is no split 'dev': choose one of train, test"):
        cls().prompts("dev", 0)


# -- the whole of it --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_plugin_keeps_the_rules():
    few = {
        spec.id: {"train": 24, "test": 12} for spec in plugins.registry().specs("tasks").values() if spec.id.startswith("ssl/")
    }
    reports = check_plugin("ssl", n=4, options=few)
    assert len(few) == 7 and len(reports) == 7 + 5 and all(r.ok for r in reports)
    assert set(Rotation().source.names) == set(UPRIGHT)


def test_it_trains(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"""
name = "turned"
runs_dir = "{tmp_path}"
policy = {{model = "tiny:qwen2_5_vl:hidden=32,layers=1"}}
tasks = [{{id = "ssl/rotation", options = {{size = 56, train = 12, test = 4}}}},
         {{id = "ssl/masked", options = {{size = 84, train = 12, test = 4}}}}]
stages = [{{kind = "sft", steps = 2, batch_size = 4}}, {{kind = "rl", steps = 2, prompts_per_step = 2, group_size = 4}}]
generate = {{max_tokens = 6}}
evaluate = {{num_prompts = 4}}
train = {{threads = 1}}
""")
    done = CliRunner().invoke(main, ["train", str(path)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "turned" / "metrics.jsonl").read_text().splitlines()]
    assert sum("metrics" in row for row in rows) == 4 and any("ssl/masked" in str(row.get("eval")) for row in rows)


# -- what people see --------------------------------------------------------------------------------------------------------


def seen(task, prompt, completion):
    return [(m.kind, m.source, tuple(m.coordinates), m.image) for m in task.overlays(prompt, completion)]


@pytest.mark.parametrize("style", ["plain", "tags", "ssl4rl"])
def test_the_piece_and_the_quarter_that_is_said_are_marked(style):
    task = Position(test=12, style=style)
    for prompt in task.prompts("test", 0):
        (true, said) = seen(task, prompt, task.gold(prompt))
        assert true[:2] == ("box", "true") and [112 * v for v in true[2]] == pytest.approx(prompt.meta["boxes"][0])
        row, column = divmod(QUADRANTS.index(prompt.answer), 2)
        assert said[2] == (column / 2, row / 2, (column + 1) / 2, (row + 1) / 2)
        assert said[2][0] <= true[2][0] and true[2][3] <= said[2][3], "where gold is said, the piece lies in it"
        assert seen(task, prompt, "in the middle") == seen(task, prompt, "") == [true]


def test_the_patch_that_is_said_is_marked_in_either_layout():
    for layout in ("picture", "patches"):
        task = Masked(test=12, layout=layout, choices=4)
        for prompt in task.prompts("test", 0):
            other = str(int(prompt.answer) % 4 + 1)
            (true, said), (same, wrong) = (seen(task, prompt, answer) for answer in (prompt.answer, other))
            assert true[1] == same[1] == "true" and true[2:] == same[2:] == said[2:] and wrong[1:] != said[1:]
            if layout == "patches":
                assert wrong == ("box", "said", (0, 0, 1, 1), int(other))
            else:
                width, height = prompt.images[0].size
                corners = [v * side for v, side in zip(wrong[2], (width, height) * 2, strict=True)]
                assert corners == pytest.approx(prompt.meta["boxes"][int(other)])
            assert seen(task, prompt, "5") == [true]


def test_questions_without_a_place_have_no_marks():
    for task in (Rotation(test=2), Contrastive(test=2)):
        prompt = task.prompts("test", 0)[0]
        assert task.overlays(prompt, task.gold(prompt)) == []
