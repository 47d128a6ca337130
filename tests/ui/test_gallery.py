"""Cards of rollouts: overlays on images, collapsed thinking, and sources of images."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from mmrl import Overlay, user_message
from mmrl.api.media.clips import VideoFrames
from mmrl.api.tasks.overlays import to_json
from mmrl.run_folder import files
from mmrl.run_folder.reader import read_jsonl
from mmrl.run_folder.writer import RunFolder
from mmrl.ui.report import cards, gallery, overlay
from mmrl.ui.report.media_sources import EmbeddedMedia, LinkedMedia, Still
from mmrl.ui.report.report import write_report
from pages import Page, assert_self_contained, page_of

TRUE = Overlay(kind="box", coordinates=(0.25, 0.5, 0.75, 1), source="true", label="a cat")
SAID = Overlay(kind="box", coordinates=(0.25, 0.5, 0.5, 0.75), source="said", label="IoU 0.25")


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", {"seed": 1, "stages": []}, 1)


def row(completion="1", marks=(), picture=None, group=0, advantage=0.5, **more):
    shown = Image.new("RGB", (200, 100), (40, 90, 160)) if picture is None else picture
    plain = {"overlays": to_json(marks)} if marks else {}
    return {
        "task": "a/b",
        "prompt_id": "p1",
        "group": group,
        "messages": [user_message("Where is it?", shown)],
        "answer": "there",
        "completion": completion,
        "tokens": 3,
        "status": "finished",
        "score": {"value": 1.0, "parts": {}, "status": "ok", "detail": ""},
        "advantage": advantage,
        **plain,
        **more,
    }


def kept(run, *rows, step=1):
    """The rows as read from the run folder, and the folder of their images."""
    run.rollouts(step, rows)
    return read_jsonl(run.path / "rollouts" / f"step-{step:06d}.jsonl"), run.path / "rollouts"


def card(run, *rows, pictures=None):
    found, folder = kept(run, *rows)
    return cards.group_card(found, pictures or EmbeddedMedia(folder, 1_000_000))


def groups(html):
    """(true or said, its lines and labels) of each mark on a page."""
    return re.findall(r'<g class="mark (true|said)">(.*?)</g>', html)


# -- overlays on images -------------------------------------------------------------------------------------------------


def test_true_marks_are_on_the_prompts_picture_and_said_ones_on_a_copy_beside_their_completion(run):
    html = card(run, row("here", [TRUE, SAID]), row("nowhere", [TRUE]))
    page = Page(html)
    asked, answers = html.split('<div class="answers">')
    assert [of for of, _ in groups(asked)] == ["true"] and "a cat" in asked and "IoU" not in asked
    (here,) = [line for line in answers.split("<li>") if "here" in line and "nowhere" not in line]
    (nowhere,) = [line for line in answers.split("<li>") if "nowhere" in line]
    assert [of for of, _ in groups(here)] == ["true", "said"] and "<svg class" not in nowhere.replace('class="gauge"', "")
    assert "IoU 0.25" in here and ">a cat<" not in here, "what is true has its label on the prompt's picture"
    assert "M50.00 50.00H150.00V98.89H50.00Z" in groups(asked)[0][1], "in pixels of the picture"
    assert "M50.00 50.00H100.00V75.00H50.00Z" in groups(here)[1][1]
    assert html.count("data:image/") == 1, "the picture is on the page once, and drawn again"
    ids = [a["id"] for tag, a in page.elements if tag == "image"]
    assert [a["href"] for tag, a in page.elements if tag == "use"] == [f"#{ids[0]}"] and len(ids) == 1
    told = [a["aria-label"] for tag, a in page.elements if a.get("role") == "img"]
    assert told == [
        "image: prompt, 200 by 100 pixels; gold box, a cat",
        "image: with the completion's marks; completion box, IoU 0.25",
    ]


@pytest.mark.parametrize("gold", ["<think>a cat</think>\n<answer>[9, 7]</answer>", "<think>a cat</think>\n[9, 7]", "[9, 7]"])
def test_an_answer_with_places_is_shown_in_the_coordinates_that_the_prompt_asks_for(run, gold):
    """Not in the task's own, which may be pixels of the original picture."""
    assert "<span>Answer</span> <b>[9, 7]</b>" in card(run, row("1", answer=[90, 70], gold=gold))
    assert "<span>Answer</span> <b>[90, 70]</b>" in card(run, row("1", answer=[90, 70]))


@pytest.mark.parametrize(
    ("size", "widths"),  # without marks, with gold marks, and the copy beside a completion
    [((64, 64), (128, 128, 128)), ((28, 28), (140, 140, 140)), ((99, 99), (99, 99, 99)), ((200, 150), (200, 180, 173))],
)
def test_small_pictures_are_shown_at_whole_multiples_and_pixel_by_pixel(run, size, widths):
    picture = Image.new("RGB", size)
    html = card(run, row("a", picture=picture)) + card(run, row("a", [TRUE, SAID], picture))
    shown = [a for tag, a in Page(html).elements if tag == "img" or (tag == "svg" and "aria-label" in a)]
    assert [(int(a["width"]), a.get("class", "")) for a in shown] == [(w, "pixels" if size[0] < 100 else "") for w in widths]


def test_a_picture_that_nobody_marks_is_an_img(run):
    html = card(run, row("a"), row("b"))
    assert html.count("<img") == 1 and "<use" not in html and "<image" not in html


def test_marks_are_on_the_picture_that_they_name(run):
    pictures = [Image.new("RGB", (50, 50), (40 * k, 90, 160)) for k in range(3)]
    messages = [user_message("Which?", *pictures)]
    whole = [
        Overlay(kind="box", coordinates=(0, 0, 1, 1), source="true", image=1),
        Overlay(kind="box", coordinates=(0, 0, 1, 1), source="said", image=2),
    ]
    beyond = Overlay(kind="point", coordinates=(0.5, 0.5), source="said", image=7)
    html = card(run, row("a", [*whole, beyond], messages=messages))
    parts = re.findall(r"<img|<image|<use", html)
    assert parts == ["<img", "<image", "<image", "<use"], "the first has no marks; the copy is of the third"
    uses = [a["href"] for tag, a in Page(html).elements if tag == "use"]
    assert uses == ["#" + [a["id"] for tag, a in Page(html).elements if tag == "image"][1]]


@pytest.mark.parametrize(
    ("mark", "lines", "solid"),
    [
        (
            Overlay(kind="point", coordinates=(0.5, 0.5), source="said"),
            "M93.00 50.00a7.00 7.00 0 1 0 14.00 0",
            "M93.00 50.00h3.50",
        ),
        (Overlay(kind="path", coordinates=(0, 0, 0.5, 1), source="said"), "M0.00 0.00L100.00 100.00", "L100.00 100.00L"),
        (Overlay(kind="grid", coordinates=(1, 2), source="said", labels=("2", "1")), "M100.00 0V100", ""),
    ],
)
def test_every_kind_has_its_shape(mark, lines, solid):
    ((of, drawn),) = groups(overlay.overlay_svg([mark], (), (200, 100), 200))
    paths = re.findall(r'<path class="line([^"]*)" d="([^"]*)"', drawn)
    assert of == "said" and lines in paths[0][1]
    assert [css.split() for css, _ in paths[1:]] == ([[*["spot"] * (mark.kind == "point"), "solid"]] if solid else [])
    assert not solid or solid in paths[1][1]


def test_light_lines_lie_behind_all_marks_so_that_equal_ones_are_both_seen():
    html = overlay.overlay_svg([TRUE, Overlay(kind="box", coordinates=TRUE.coordinates, source="said")], (), (200, 100), 200)
    order = re.findall(r'class="(behind|mark true|mark said)"', html)
    assert order == ["behind", "behind", "mark true", "mark said"]


def test_a_grid_shades_what_is_said_otherwise_than_it_is():
    true = Overlay(kind="grid", coordinates=(1, 3), source="true", labels=("1", "3", "2"))
    said = Overlay(kind="grid", coordinates=(1, 3), source="said", labels=("1", "2", ""))
    other = Overlay(kind="grid", coordinates=(3, 1), source="true", labels=("x", "y", "z"))
    html = overlay.overlay_svg([said], [other, true], (300, 100), 300)
    assert re.findall(r'<rect class="other" x="([\d.]+)"', html) == ["100.00"]
    assert re.findall(r"<text [^>]*>(.*?)</text>", html) == ["1", "2"]
    assert "other" not in overlay.overlay_svg([true], [true], (300, 100), 300)


def test_labels_are_readable_and_stay_on_the_picture():
    for at in ((0, 0, 0.1, 0.1), (0.9, 0.9, 1, 1), (-3, -3, -2, -2), (5, 5, 6, 6)):
        mark = Overlay(kind="box", coordinates=at, source="said", label="a very long label that has no room at all on it" * 2)
        html = overlay.overlay_svg([mark], (), (1000, 500), 200)
        ((x, y, height),) = re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" font-size="([\d.]+)"', html)
        assert float(height) == 5 * overlay.LETTERS, "as many pixels as the page shows the picture in"
        (text,) = re.findall(r">([^<>]*)</text>", html)
        assert float(x) >= 0 and float(x) + 0.6 * float(height) * len(text) < 1000 and float(height) <= float(y) <= 500
        assert text.endswith("\u2026")


def test_what_is_off_the_picture_is_said(run):
    away = [
        Overlay(kind="box", coordinates=(2, 2, 3, 3), source="said"),
        Overlay(kind="point", coordinates=(0.5, -0.1), source="said"),
        SAID,
    ]
    html = card(run, row("a", away))
    outside = ("2 marks outside the image", "completion box, outside the image", "completion point, outside the image")
    assert all(text in html for text in outside)
    assert not overlay.is_off_picture(Overlay(kind="box", coordinates=(-1, -1, 2, 2), source="said"))


def test_many_marks_are_counted_in_words():
    few = [Overlay(kind="point", coordinates=(0, 0), source="said")] * overlay.TOLD
    assert overlay.describe_overlays(few) == "; completion point" * overlay.TOLD
    assert overlay.describe_overlays([*few, few[0], TRUE]) == "; gold box, a cat; 5 marks of the completion"
    assert (
        overlay.describe_overlays([Overlay(kind="grid", coordinates=(1, 2), source="true", labels=("2", ""))])
        == "; gold grid 2 -"
    )


def test_hostile_labels_are_text(run):
    evil = '"><script>alert(1)</script>'
    marks = [
        Overlay(kind=kind, coordinates=at, source="said", label=evil)
        for kind, at in (("box", (0, 0, 1, 1)), ("interval", (0, 1, 2)))
    ]
    grid = Overlay(kind="grid", coordinates=(1, 1), source="said", labels=(evil,))
    html = card(run, row("a", [*marks, grid]))
    assert "<script" not in html and html.count("&quot;&gt;&lt;script") >= 3
    Page(html)


@pytest.mark.parametrize(
    "damaged", ["x", 3, {"kind": "box"}, [1, None, {"kind": "box", "source": "said", "coordinates": ["a"] * 4}]]
)
def test_damaged_marks_leave_the_rest_of_a_card(run, damaged):
    found, folder = kept(run, row("a", [TRUE, SAID]), row("b", [TRUE]))
    whole, without = (
        cards.group_card([found[0], {**found[1], "overlays": m}], EmbeddedMedia(folder, 10**6)) for m in (damaged, [])
    )
    assert whole == without


def test_a_small_film_has_its_times_below_it(run):
    frames = np.zeros((4, 16, 16, 3), np.uint8)
    frames[2:] = 200
    clip = VideoFrames(frames_THWC=frames, times_s=(0.0, 1.0, 2.0, 3.0), duration_s=4.0)
    true = Overlay(kind="interval", coordinates=(1, 3, 4), source="true")
    said = Overlay(kind="interval", coordinates=(2, 90, 4), source="said", label="IoU 0.01")
    messages = [user_message("When?", clip)]
    html = card(run, row("2 to 90", [true, said], messages=messages), row("hm", [true], messages=messages))
    asked, answers = html.split('<div class="answers">')
    assert asked.index('class="moving') < asked.index("gold 1.0 to 3.0 s") and "said" not in re.sub('class="said"', "", asked)
    bars = re.findall(r'<div class="mark (\w+) time">.*?<rect class="line" x="([\d.]+)" y="1" width="([\d.]+)"', answers)
    assert bars == [("true", "25.0", "50.0"), ("said", "50.0", "50.0")], "it ends where the clip does"
    assert "completion 2.0 to 90.0 s, IoU 0.01" in answers
    late = overlay.interval_bars([Overlay(kind="interval", coordinates=(50, 60, 4), source="said")])
    assert re.findall(r'x="([\d.]+)" y="1" width="([\d.]+)"', late) == [("98.5", "1.5")]


def test_the_legend_names_the_lines_that_there_are():
    assert overlay.legend("nothing") == ""
    told = [overlay.legend(overlay.overlay_svg(marks, (), (9, 9), 9)) for marks in ([TRUE], [SAID], [TRUE, SAID])]
    assert ["gold answer" in t and "completion" not in t for t in told] == [True, False, False]
    assert [t.count("<li") for t in told] == [1, 1, 2]
    true, said = (
        Overlay(kind="grid", coordinates=(1, 1), source=of, labels=(label,)) for of, label in (("true", "1"), ("said", "2"))
    )
    assert "completion differs from the gold answer" in overlay.legend(overlay.overlay_svg([said], [true], (9, 9), 9))


def test_a_report_with_marks_stands_alone_and_has_one_legend(run):
    run.rollouts(1, [row("a", [TRUE, SAID])])
    run.rollouts(2, [row("a", [TRUE, SAID])])
    page = page_of(run)
    assert_self_contained(page)
    assert page.count("ul", "of-marks") == 1 and page.count("svg") > 4
    ids = [a["id"] for tag, a in page.elements if tag == "image"]
    assert len(ids) == len(set(ids)) == 2 and {a["href"][1:] for tag, a in page.elements if tag == "use"} == set(ids)
    run.rollouts(1, [row("a")])
    run.rollouts(2, [row("a")])
    assert page_of(run).count("ul", "of-marks") == 0


@pytest.mark.slow
def test_a_report_of_many_marks_keeps_its_budget(run):
    noise = np.random.default_rng(0)
    for step in range(1, 9):
        pictures = [Image.fromarray(noise.integers(0, 255, (512, 512, 3), np.uint8)) for _ in range(8)]
        rows = [row(f"{k}", [TRUE, *[SAID] * 40], p, group=g, advantage=k) for g, p in enumerate(pictures) for k in range(8)]
        run.rollouts(step, rows)
    size = write_report(run.path).stat().st_size
    assert 2_000_000 < size < gallery.BUDGET + 1_000_000


# -- cards --------------------------------------------------------------------------------------------------------------


def test_cards_need_no_style_of_their_own(run):
    found, folder = kept(run, row("a" * 500, [TRUE, SAID]), row("<think>hm</think>b", [TRUE, SAID], advantage=-1))
    pictures = EmbeddedMedia(folder, 10**6)
    for html in (cards.group_card(found, pictures), cards.rollout_card(found[0], found, pictures)):
        assert " style=" not in html and "<style" not in html and "<script" not in html


def test_bars_say_how_much(run):
    html = card(run, row("a", advantage=2.0), row("b", advantage=-1.0, reward=0.25))
    assert re.findall(r'<rect class="(\w*)" x="(\d+)" width="(\d+)"', html) == [
        ("", "0", "100"),
        ("up", "50", "50"),
        ("", "0", "25"),
        ("down", "25", "25"),
    ]


def test_thinking_is_folded(run):
    html = card(run, row("<think>First the sky.</think>It is 7."), row("<think>First the sea"), row("It is <b>."))
    page = Page(html)
    assert page.texts("pre") == ["First the sky.", "It is 7.", "First the sea", "It is <b>."]
    assert page.texts("summary") == ["thinking, 3 words", "thinking, 3 words"] and page.texts("em") == ["empty"]
    assert not [a for tag, a in page.elements if tag == "details" and "open" in a]


def turns(*said):
    messages = [user_message("Draw it.")]
    for text in said[:-1]:
        messages += [{"role": "assistant", "content": text}, user_message(f"That was {text[-2:]}.")]
    return row(said[-1], messages=messages)


def test_one_rollout_has_all_of_its_text_and_turns(run):
    long, question = "word " * 5000, "Which? " * 1000
    found, folder = kept(run, turns("<think>one</think>t1", "t2", f"<think>deep</think>{long}"), turns("x1", "the end"))
    found = [{**one, "messages": [user_message(question), *one["messages"][1:]]} for one in found]
    html = cards.rollout_card(found[0], found, EmbeddedMedia(folder, 10**6))
    page = Page(html)
    assert page.texts("pre") == ["one", "t1", "That was t1.", "t2", "That was t2.", "deep", long]
    assert "left out" not in html and question.strip() in html
    opened = [a["class"] for tag, a in page.elements if tag == "details" and "open" in a]
    assert opened == ["turns"], "the turns are open, the thinking is folded"
    assert "the end" not in html and html.count("<li>") == 1
    few = cards.group_card(found, EmbeddedMedia(folder, 10**6))
    assert "all 25,000 characters" in few and "characters left out" in few


def test_one_rollout_is_compared_with_its_group(run):
    found, folder = kept(run, row("a", [TRUE, SAID], advantage=1.0, reward=2.0), row("b", [TRUE], advantage=4.0, reward=4.0))
    html = cards.rollout_card(found[0], found, EmbeddedMedia(folder, 10**6))
    assert re.findall(r'<rect class="(\w*)" x="(\d+)" width="(\d+)"', html) == [("", "0", "50"), ("up", "50", "12")]
    alone = cards.rollout_card(found[0], [], EmbeddedMedia(folder, 10**6))
    assert re.findall(r'<rect class="(\w*)" x="(\d+)" width="(\d+)"', alone) == [("", "0", "100"), ("up", "50", "50")]
    group = cards.group_card(found, EmbeddedMedia(folder, 10**6))
    widths, in_group = ([int(w) for w in re.findall(r'viewBox="0 0 200 100" width="(\d+)"', one)] for one in (html, group))
    assert widths[0] == in_group[0] and widths[1] > 2 * in_group[1] - 5, "what is said is larger where it is alone"


def test_each_rollout_has_a_link_where_there_are_such(run):
    found, folder = kept(run, row("a", advantage=1.0), row("b", advantage=2.0), row("b", advantage=2.0))
    html = cards.group_card(found, EmbeddedMedia(folder, 10**6), links=["/r?a=1&b=2", "/r?b", "/r?c"])
    assert [a["href"] for tag, a in Page(html).elements if tag == "a"] == ["/r?b", "/r?a=1&b=2"], "of equal ones the first"
    with pytest.raises(ValueError):
        cards.group_card(found, EmbeddedMedia(folder, 10**6), links=["/r?a"])
    hostile = [{**one, "link": "javascript:alert(1)"} for one in found]
    assert "javascript" not in cards.group_card(hostile, EmbeddedMedia(folder, 10**6))


# -- sources of images --------------------------------------------------------------------------------------------------


def test_linked_pictures_are_the_same_cards_without_the_data(run):
    found, folder = kept(run, row("a", [TRUE, SAID]), row("b", [TRUE], messages=[user_message("?", Image.new("RGB", (9, 9)))]))
    linked = LinkedMedia(folder, lambda path: f"/media?path={path}&run=x", str)
    html = cards.group_card(found[:1], linked)
    (src,) = [a["href"] for tag, a in Page(html).elements if tag == "image"]
    path = found[0]["messages"][0]["content"][0]["path"]
    assert src == f"/media?path={path}&run=x" and "data:" not in html
    embedded = cards.group_card(found[:1], EmbeddedMedia(folder, 10**6))
    assert re.sub(r'href="data:[^"]*"', "", embedded) == re.sub(r'href="/media[^"]*"', "", html)
    assert linked.still(path) == Still(f"/media?path={path}&run=x", 200, 100)


@pytest.mark.parametrize("kind", [EmbeddedMedia, LinkedMedia])
def test_only_names_that_a_run_writes_are_followed(tmp_path, kind):
    (tmp_path / "media").mkdir()
    png = io.BytesIO()
    Image.new("RGB", (4, 3)).save(png, "PNG")
    for name in ("a.png", "media/b.png", "media/.c.png", "secret.txt", "media/d.webp"):
        (tmp_path / name).write_bytes(png.getvalue())
    (tmp_path.parent / "e.png").write_bytes(png.getvalue())
    (tmp_path / "media" / "f.png").write_bytes(b"GIF89a")
    (tmp_path / "media" / "g.png").write_bytes(png.getvalue()[:16] + bytes(8))
    made = kind(tmp_path, 10**6) if kind is EmbeddedMedia else kind(tmp_path, str, str)
    found = {name: made.still(name) for name in ("a.png", "media/b.png")}
    assert all(isinstance(one, Still) and (one.width, one.height) == (4, 3) for one in found.values())
    for name in ("media/.c.png", "secret.txt", "../e.png", str(tmp_path / "a.png"), "media/../a.png", "media/x.png", "media", ""):
        assert made.still(name) == "image is missing", name
    assert made.still("media/f.png") == made.still("media/g.png") == "not a PNG"
    assert made.still("media/d.webp") == "image is missing" and made.film("a.png") == "video is missing"
    assert made.film("media/d.webp") == "not a video: media/d.webp" and made.film("media/none.webp") == "video is missing"


def test_a_picture_that_is_cut_off_is_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(out := io.BytesIO(), "PNG")
    (tmp_path / "a.png").write_bytes(out.getvalue()[:100_000])
    assert EmbeddedMedia(tmp_path, 10**6).still("a.png") == "not an image: a.png"


def test_pictures_get_smaller_as_the_room_does_and_are_left_out_last(tmp_path):
    smooth = Image.effect_noise((600, 400), 60).resize((900, 600))
    smooth.convert("RGB").save(tmp_path / "a.png")

    def side(source, **asked):
        found = source.still("a.png", **asked)
        return found if isinstance(found, str) else Image.open(io.BytesIO(base64.b64decode(found.src.partition(",")[2]))).width

    assert [side(EmbeddedMedia(tmp_path, 10**7), large=large) for large in (True, False)] == [900, 448]
    assert side(EmbeddedMedia(tmp_path, 10**7), among=100) == 448 and side(EmbeddedMedia(tmp_path, 10**6), among=30) == 224
    source = EmbeddedMedia(tmp_path, 100_000)
    before = source.left
    assert isinstance(side(source), int) and source.left < before
    source.left = 100
    assert side(source) == "left out for size: a.png"


def test_rows_are_json_like_those_that_a_run_keeps(run):
    """A card depends on the rows alone."""
    found, folder = kept(run, row("a", [TRUE, SAID]))
    again = [json.loads(files.line(one)) for one in found]
    assert cards.group_card(again, EmbeddedMedia(folder, 10**6)) == cards.group_card(found, EmbeddedMedia(folder, 10**6))
