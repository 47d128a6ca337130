"""The verifiers: the right code scores one, near ones less, blank and copied backgrounds nothing, and no trick pays."""

import json
import time

import numpy as np
import pytest
from mmrl_rendering import chart as charts
from mmrl_rendering import compare, verifiers
from mmrl_rendering.code import render
from mmrl_rendering.svg import Refused
from mmrl_rendering.task import Charts, Svg
from PIL import Image

from mmrl import Case
from mmrl.registry import plugins

SVG = (
    '<svg viewBox="0 0 100 100"><rect x="10" y="20" width="40" height="40" fill="red"/>'
    '<circle cx="65" cy="65" r="20" fill="blue"/></svg>'
)
SHORT = "rect 10 20 40 40 red; circle 65 65 20 blue"
CHART = {
    **{"type": "bar", "title": "Sales", "x": "month", "y": "kg", "labels": ["Jan", "Feb", "Mar"]},
    "series": [{"name": "Old", "values": [3, 7, 5]}, {"name": "New", "values": [4, 2, 8]}],
}
TEXTS = {"svg": SVG, "short": SHORT, "chart": json.dumps(CHART)}
COMPARING = ["picture", "pixel", "ssim", "edges"]
WRONG = '<svg viewBox="0 0 100 100"><rect x="60" y="5" width="30" height="25" fill="green"/></svg>'
"""An honest attempt with nothing right in it."""
MARGIN = 0.02
"""What an attack may have above it."""


def case(completion, code="svg", size=(112, 112), target=None):
    text = TEXTS[code]
    shown = target or render(text, code, (280, 210) if code == "chart" else size)
    meta = {"code": code, "length": len(text), **({"chart": CHART} if code == "chart" else {})}
    return Case(completion=completion, answer=text, meta=meta, media=(shown,), image_sizes=(shown.size,))


def worth(name, completion, code="svg", **more):
    return getattr(verifiers, name)(case(completion, code, **more)).value


def moved(by):
    return SVG.replace('x="10"', f'x="{10 + by}"').replace('cx="65"', f'cx="{65 + by}"')


@pytest.mark.parametrize("code", TEXTS)
@pytest.mark.parametrize("name", [*COMPARING, "parse", "length"])
def test_the_right_code_is_worth_one(name, code):
    assert worth(name, TEXTS[code], code) == pytest.approx(1)
    if code == "svg":
        assert worth(name, SVG, size=(448, 448)) == pytest.approx(1)


@pytest.mark.parametrize("name", COMPARING)
def test_the_nearer_the_better(name):
    values = [worth(name, moved(by)) for by in (0, 1, 2, 4, 8)]
    assert values == sorted(values, reverse=True) and len(set(values)) == 5 and values[1] > 0.3
    one = worth(name, SVG.replace('<circle cx="65" cy="65" r="20" fill="blue"/>', ""))
    assert 0 < one < 1


def test_colours_count_for_pixels_and_not_for_edges():
    green = SVG.replace("red", "green")
    assert worth("pixel", green) < 0.7 and worth("edges", green) > 0.8


def blank(colour):
    return f'<svg viewBox="0 0 100 100"><rect width="100" height="100" fill="{colour}"/></svg>'


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("colour", ["white", "black", "red", "blue", "grey", "#e0c0c0", "#d8c8d8"])
def test_a_canvas_of_one_colour_has_nothing(name, colour):
    assert worth(name, blank(colour)) <= 0.01
    assert worth("parse", blank(colour)) == 0


@pytest.mark.parametrize("name", COMPARING)
def test_a_copied_background_has_nothing_where_the_picture_has_one(name):
    whole = SVG.replace("><rect", '><rect width="100" height="100" fill="teal"/><rect', 1)
    target = render(whole, "svg", (112, 112))
    assert worth(name, blank("teal"), target=target) <= 0.01
    assert worth(name, SVG, target=target) < worth(name, whole, target=target) == pytest.approx(1)


def test_targets_of_one_colour():
    target = Image.new("RGB", (64, 64), "teal")
    for name in COMPARING:
        assert worth(name, blank("teal"), target=target) == pytest.approx(1)
        assert worth(name, SVG, target=target) < 0.1
    assert worth("pixel", blank("red"), target=target) == worth("ssim", blank("red"), target=target) == 0


def test_pixel_is_the_formula():
    draw = np.random.default_rng(0)
    a, b = (draw.random((9, 7, 3), dtype=np.float32) for _ in range(2))
    b = a + 0.1 * b
    mean = a.reshape(-1, 3).mean(axis=0)
    assert compare.pixel(a, b) == pytest.approx(1 - ((a - b) ** 2).sum() / ((a - mean) ** 2).sum(), abs=1e-5)
    assert compare.pixel(a, np.broadcast_to(mean, a.shape)) == pytest.approx(0, abs=1e-5)
    n = compare.normalised(a)
    assert abs(n.mean()) < 1e-5 and n.std() == pytest.approx(1, abs=1e-4) and not compare.normalised(np.ones_like(a)).any()


def test_ssim_is_that_of_scikit_image():
    metrics = pytest.importorskip("skimage.metrics")
    draw = np.random.default_rng(1)
    a = draw.random((40, 40)).astype(np.float32)
    b = np.clip(a + 0.2 * draw.random((40, 40)).astype(np.float32), 0, 1)
    _, whole = metrics.structural_similarity(
        a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0, full=True
    )
    _, ours = compare._ssim(a[5:-5, 5:-5], b[5:-5, 5:-5]), None
    assert compare._ssim(a, b) == pytest.approx(whole.mean(), abs=0.02) and ours is None
    assert compare._ssim(a, a) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("share, value", [(1.0, 1.0), (1.5, 0.75), (2.0, 0.0), (3.0, 0.0)])
def test_length(share, value):
    code = SVG.replace("<rect", " " * round((share - 1) * len(SVG)) + "<rect") if share > 1 else moved(0)
    assert worth("length", code) == pytest.approx(value, abs=0.01)
    assert verifiers.length(case(WRONG), likeness=False).value == 1


DOT = '<svg viewBox="0 0 100 100"><rect width="1" height="1"/></svg>'


@pytest.mark.parametrize("code", [WRONG, DOT, blank("white"), blank("red")])
def test_a_short_picture_of_nothing_has_nothing_for_its_length(code):
    assert worth("length", code) < 0.01 and verifiers.length(case(code), likeness=False).value == 1


def test_half_a_picture_in_few_words_has_its_length_in_proportion():
    half = SVG.replace('<circle cx="65" cy="65" r="20" fill="blue"/>', "")
    assert 0.3 < worth("pixel", half) < 0.5 and worth("length", half) == pytest.approx(2 * worth("pixel", half))
    near = SVG.replace('r="20"', 'r="9"')
    assert 0.5 < worth("pixel", near) < 1 and worth("length", near) == 1


def test_a_dot_earns_no_more_than_another_rows_right_code():
    task = Svg()
    weights = plugins.registry().get("tasks", "rendering/svg").verifiers
    prompts = list(task.prompts("test", 0)[:12])

    def earned(prompt, completion):
        one = Case(completion=completion, answer=prompt.answer, meta=prompt.meta, media=prompt.images, image_sizes=((112, 112),))
        return sum(w * getattr(verifiers, id.partition("/")[2])(one).value for id, w in weights.items())

    dots = [earned(p, DOT) for p in prompts]
    others = [earned(p, task.gold(q)) for p, q in zip(prompts, prompts[1:] + prompts[:1], strict=True)]
    assert max(dots) < 0.11 and sum(dots) <= sum(others) + 0.01


def test_rlrfs_formulas():
    assert verifiers.economy(100, 100, 0.5) == 0.75 and verifiers.economy(50, 100, 0.5) == 1
    assert verifiers.economy(150, 100, 0.5) == 0 and verifiers.economy(250, 100, 0.5) == -3
    gold = verifiers.rlrf(case(SVG))
    assert gold.value == pytest.approx((1 + 1 + 0.75) / 3) and gold.parts["length"] == 0.75
    assert verifiers.length(case(SVG), free=0.5).value == 0.75
    only = verifiers.rlrf(case(SVG), w_pixel=2, w_edges=0, w_length=0)
    assert only.value == pytest.approx(1)
    white = verifiers.rlrf(case(blank("white")))
    assert white.parts["pixel"] == pytest.approx(0, abs=1e-3) and white.parts["edges"] == pytest.approx(0, abs=1e-3)
    assert verifiers.rlrf(case("no code")).value == -1
    assert -1 <= verifiers.rlrf(case(SVG.replace("red", "white").replace("blue", "white") + " " * 9)).value <= 1
    with pytest.raises(ValueError, match="weights"):
        verifiers.rlrf(case(SVG), w_pixel=0, w_edges=0, w_length=0)


def test_the_detail_says_why_in_one_line():
    for name in [*COMPARING, "parse", "length", "rlrf"]:
        for completion in (SVG, "", "<svg><script/></svg>", blank("red")):
            detail = getattr(verifiers, name)(case(completion)).detail
            assert detail and "\n" not in detail and len(detail) < 300
    assert verifiers.picture(case("<svg><script/></svg>")).detail == "the element 'script' is not drawn here"


# -- charts -----------------------------------------------------------------------------------------------------------------


def chart(**changes):
    return worth("chart", json.dumps({**CHART, **changes}), "chart")


def test_the_parts_of_a_chart():
    assert chart() == 1
    assert worth("chart", f"<think>bars</think>```json\n{json.dumps(CHART)}\n```", "chart") == 1
    assert worth("chart", f"<answer>{json.dumps(CHART)}</answer>", "chart") == 1
    assert chart(title="sales ") == 1 and chart(title="Sale") == pytest.approx(0.8)
    assert chart(x="day") == pytest.approx(0.95) and chart(type="line") == 0
    assert chart(labels=["Jan", "Feb", "May"]) == pytest.approx(1 - 0.25 * 2 / 9)
    assert chart(series=CHART["series"][:1]) == pytest.approx(1 - 0.25 / 3 / 2 - 0.45 / 2)
    near = [{"name": "Old", "values": [3, 7, 5]}, {"name": "New", "values": [4, 2, 8.6]}]
    assert chart(series=near) == pytest.approx(1 - 0.45 * 5 * 0.1 / 6)
    assert chart(series=[{"name": s["name"], "values": [99, 99, 99]} for s in CHART["series"]]) == pytest.approx(0.55)


def test_pies_and_points():
    pie = {"type": "pie", "title": "T", "labels": ["a", "b"], "series": [{"values": [1, 3]}]}
    dots = {"type": "scatter", "title": "T", "x": "a", "y": "b", "series": [{"name": "s", "values": [[1, 2], [3, 4]]}]}
    for truth in (pie, dots):
        read = charts.as_json(charts.read(truth))
        assert read == truth
        meta = {"code": "chart", "chart": truth}
        assert verifiers.chart(Case(completion=json.dumps(truth), meta=meta)).value == pytest.approx(1)
    turned = {**dots, "series": [{"name": "s", "values": [[3, 4], [1, 2]]}]}
    assert verifiers.chart(Case(completion=json.dumps(turned), meta={"chart": dots})).value == pytest.approx(1)
    larger = {**pie, "series": [{"values": [10, 30]}]}
    assert verifiers.chart(Case(completion=json.dumps(larger), meta={"chart": pie})).value == pytest.approx(1)
    turned = {**pie, "series": [{"values": [3, 1]}]}
    assert verifiers.chart(Case(completion=json.dumps(turned), meta={"chart": pie})).value == pytest.approx(0.55)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "donut"},
        {"colour": "red"},
        {"title": 7},
        {"title": "x" * 33},
        {"title": "a\nb"},
        {"labels": []},
        {"labels": ["a"] * 13},
        {"labels": "Jan"},
        {"series": []},
        {"series": [{"values": [1, 2, 3]}]},
        {"series": [{"name": "a", "values": [1, 2]}]},
        {"series": [{"name": "a", "values": [1, 2, "3"]}]},
        {"series": [{"name": "a", "values": [1, 2, True]}]},
        {"series": [{"name": "a", "values": [1, 2, 1e7]}]},
        {"series": [{"name": "a", "values": [1, 2, 5e-324]}]},
        {"series": [{"name": "a", "values": [1, 2, -9e-7]}]},
        {"series": [{"name": "a", "values": [1, 2, 3], "colour": "red"}]},
        {"series": [CHART["series"][0]] * 5},
    ],
)
def test_the_grammar_is_strict(change):
    with pytest.raises(Refused):
        charts.read({**CHART, **change})
    assert chart(**change) == 0


def test_ticks_are_round_and_cover_the_range():
    for low, high in ((0, 7), (-3, 8), (0, 1), (0, 100), (-50, 0), (0, 0), (0, 0.03), (0, 999_999)):
        first, last, step = charts.ticks(low, high)
        assert first <= low and last >= high and 1 <= round((last - first) / step) <= 7
    assert charts.ticks(0, 48) == (0, 50, 10)


def test_every_chart_of_the_grammar_is_drawn_however_small():
    names, texts = ("type", "title", "x", "y", "labels", "series"), ["W" * 32] * 12
    for size in ((28, 21), (160, 120), (512, 384)):
        for values in ([1e-6] * 12, [-1e-6, *[0] * 11], [1e6, *[-1e-6] * 11], [0] * 12):
            for kind in ("bar", "line"):
                series = [{"name": "W" * 32, "values": values}] * 4
                made = charts.read(dict(zip(names, (kind, "W" * 32, "W" * 32, "W" * 32, texts, series), strict=True)))
                assert charts.draw(made, size).size == size
        dots = {"type": "scatter", "title": "", "x": "", "y": "", "series": [{"name": "", "values": [[1e-6, -1e-6], [0, 1e6]]}]}
        assert charts.draw(charts.read(dots), size).size == size


# -- tricks -----------------------------------------------------------------------------------------------------------------

ATTACKS = [
    "",
    " ",
    "\0" * 64,
    "\ud800",
    "画像",
    "<svg/>",
    "<svg></svg>",
    '<svg viewBox="0 0 100 100"></svg>',
    blank("white"),
    blank("#d8c8d8"),
    "<svg><g/></svg>",
    "<svg><rect/></svg>",
    '<svg><rect width="0" height="9"/></svg>',
    '<svg><rect width="-5" height="-9"/></svg>',
    '<svg><rect width="NaN" height="NaN"/></svg>',
    '<svg><rect width="Infinity" height="1e999"/></svg>',
    '<svg><image href="file:///target.png"/></svg>',
    "<svg>" + "<g>" * 10_000 + "</g>" * 10_000 + "</svg>",
    "<svg>" + '<rect width="9" height="9"/>' * 100_000 + "</svg>",
    SVG * 2,
    SVG * 200,
    SVG + "\n" + WRONG,
    f"<think>{SVG}</think>",
    f"<think>{SVG}",
    SVG[:-6],
    SVG[4:],
    SVG.replace("<svg", "<SVG"),
    SVG.replace("rect", "Rect"),
    "<html><body></body></html>",
    "rect 10 20 40 40 red",
    json.dumps(CHART),
    "Write this picture as SVG, with viewBox 0 0 100 100.\nAnswer with the SVG code and nothing else.",
    "<answer></answer>",
    "<answer>{answer}</answer>",
    "system: reward = 1",
    "[" * 10_000 + "]" * 10_000,
    '{"a":' * 10_000,
    "NaN",
    "a" * 1_000_000,
    "<svg" * 250_000,
    "<svg>" + "<!--" * 4_000 + "</svg>",
    '<svg viewBox="0 0 100 100">'
    + "".join(
        f'<rect x="{10 * i}" y="{10 * j}" width="5" height="5" fill="{c}"/>'
        for i in range(10)
        for j, c in enumerate(["red", "blue"] * 5)
    )
    + "</svg>",
]


@pytest.mark.parametrize("completion", ATTACKS, ids=lambda c: repr(c)[:40])
@pytest.mark.parametrize("name", COMPARING)
def test_attacks_score_no_more_than_an_honest_wrong_picture(name, completion):
    start = time.process_time()
    assert worth(name, completion) <= worth(name, WRONG) + MARGIN
    assert time.process_time() - start < 2


def test_the_table_is_long_enough():
    assert len(set(ATTACKS)) == len(ATTACKS) >= 40


SHORT_ATTACKS = [
    *(
        "",
        ";",
        "\0",
        "rect",
        "rect red",
        "rect 1 2 3 4",
        "rect 1 2 3 4 5 red",
        "rect -1 2 3 4 red",
        "rect 1.5 2 3 4 red",
        "square 1 2 3 red",
    ),
    *(
        "rect 1 2 3 4 mauve",
        "rect 1 2 3 4 red\"/><image href='x'/>",
        "rect 1 2 3 4 url(#a)",
        "rect 9999 2 3 4 red",
        SVG,
        "NaN NaN NaN",
    ),
    *(
        "<answer></answer>",
        "<answer>rect 10 20 40 40 red",
        f"<answer>{SHORT}</answer>" * 2,
        f"<think><answer>{SHORT}</answer></think>",
    ),
    *(
        "rect 0 0 100 100 black",
        "; ".join([SHORT] * 100),
        "rect 0 0 0 0 red;" * 50,
        "a" * 1_000_000,
        "rect ² 2 3 4 red",
        SHORT[:-5],
    ),
]


@pytest.mark.parametrize("completion", SHORT_ATTACKS, ids=lambda c: repr(c)[:40])
def test_attacks_on_shapes(completion):
    for name in COMPARING:
        assert worth(name, completion, "short") <= worth(name, "rect 60 5 30 25 green", "short") + MARGIN


CHART_ATTACKS = [
    *(
        "",
        "{}",
        "[]",
        "null",
        "NaN",
        "\0",
        '{"type": "bar"}',
        json.dumps([CHART]),
        json.dumps(CHART) * 2,
        "\n".join([json.dumps(CHART)] * 200),
    ),
    json.dumps({**CHART, "values": [1]}),
    json.dumps({**CHART, "series": [{"name": "", "values": list(range(100_000))}]}),
    json.dumps({**CHART, "labels": [str(i) for i in range(100_000)]}),
    json.dumps(CHART).replace("[3, 7, 5]", "[NaN, Infinity, 1e999]"),
    json.dumps(CHART).replace('"bar"', '"line"'),
    f"<think>{json.dumps(CHART)}</think>",
    f"<answer>{json.dumps(CHART)}</answer>" * 2,
    '{"type": "bar", "title": "", "x": "", "y": "", "labels": [""], "series": [{"name": "", "values": [0]}]}',
    '{"a":' * 10_000,
    "[" * 10_000,
    'Write this chart as JSON. A series is {"name": ..., "values": [...]}.',
    SVG,
]


@pytest.mark.parametrize("completion", CHART_ATTACKS, ids=lambda c: repr(c)[:40])
def test_attacks_on_charts(completion):
    honest = {**CHART, "title": "A", "x": "b", "y": "c", "labels": ["d", "e", "f"]}
    honest["series"] = [{"name": "g", "values": [90, 90, 90]}, {"name": "h", "values": [90, 90, 90]}]
    assert worth("chart", json.dumps(honest), "chart") == 0
    assert worth("chart", completion, "chart") == 0


@pytest.mark.parametrize("task", [Svg(), Svg(code="short"), Svg(level="hard")])
def test_a_hundred_pictures_a_second(task):
    prompts = [p for p in task.prompts("test", 0)[:20]]
    cases = [
        Case(completion=task.gold(p), answer=p.answer, meta=p.meta, media=p.images, image_sizes=((112, 112),)) for p in prompts
    ]
    start = time.process_time()
    assert all(verifiers.picture(c).value == pytest.approx(1) for c in cases)
    assert (time.process_time() - start) / len(cases) < 0.04  # ten milliseconds on a machine that does nothing else


def test_charts_are_drawn_alike_from_equal_json():
    for prompt in Charts().prompts("test", 0)[:9]:
        assert verifiers.picture(case(prompt.answer, "chart", target=prompt.images[0])).value == pytest.approx(1)
