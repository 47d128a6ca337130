"""The board's scripts, run in node, and the contrast of its colours; no browser needed."""

import hashlib
import itertools
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import mmrl.ui.board
from mmrl.run_folder import figures
from mmrl.ui.report import svg

STATIC = Path(mmrl.ui.board.__file__).with_name("static")
PAGE = Path(svg.__file__).with_name("page.css")
SCRIPTS = sorted(STATIC.glob("*.js"))

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def run(code: str, **given: object) -> object:
    """The value of an expression in node. given: names that it uses; modules are imported from the board."""
    names = "".join(f"const {name} = {json.dumps(value)};" for name, value in given.items())
    modules = ("series", "numbers", "evaluations")
    imports = "".join(f'import * as {name} from "{(STATIC / name).as_uri()}.js";' for name in modules)
    script = f"{imports}{names}console.log(JSON.stringify({code}))"
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@needs_node
def test_numbers_read_as_in_the_report():
    values = [0, 1, 0.5, 0.12345, 99.44, 123.44, 999.4, 1000, 12345.6, 2e6, -3.2e-5, 1e-3, -0.25, 123456]
    wanted = [[svg.number(v, unit) for unit in ("", "%", "s")] for v in values]
    assert run('values.map((v) => ["", "%", "s"].map((unit) => numbers.number(v, unit)))', values=values) == wanted
    assert run("numbers.number(null)") == svg.number(None)


@needs_node
@pytest.mark.parametrize(
    ("metrics", "unit"), [(("accuracy",), "%"), (("success",), "%"), (("accuracy", "success"), "%"), (("success", "a/b"), "")]
)
def test_shares_are_drawn_as_shares_also_beside_those_of_older_runs(metrics, unit):
    rows = {name: [{"step": 1, "task": "t", "split": "test", "metric": name, "value": 0.5}] for name in metrics}
    store = "{put() {}, place: () => 0}"
    code = f"evaluations.evaluations(new Map(Object.entries(rows)), {store}, shares)"
    (chart,) = run(code, rows=rows, shares=[*figures.SHARES])
    assert chart["unit"] == unit == figures.unit_of(*metrics)
    apart = len({figures.line_of(row) for of_run in rows.values() for row in of_run}) > 1
    assert chart["names"] == ([f"t {name} (test)" for name in metrics] if apart else ["t"]), "runs of one task share a line"


@needs_node
def test_outcomes_with_intervals_have_charts_with_these():
    """Of a task that acts: its success is its metric, its last step has no interval of the success at the end, and nobody knows
    that of `near`."""
    rows = [
        {
            **{"step": step, "task": "t", "split": "test", "metric": "success", "value": at, "low": at - 0.1, "high": at + 0.1},
            "extra": {"episode/success": at, "episode/success_at_end": at / 2, "episode/near": 3.0, "episode/steps": 7.0},
            "intervals": {"episode/success": [0, 1], "episode/success_at_end": ends, "episode/near": [None, None]}
            | {"episode/steps": [6.0, 8.0], "episode/gone": [0, 1]},
        }
        for (step, at), ends in zip(((1, 0.2), (2, 0.5)), ([0.05, 0.2], [None, None]), strict=True)
    ]
    code = """(() => { const kept = {};
        const store = { put: (run, key, { step, value, low, high }) => { kept[key] = [step, value, low, high] }, place: () => 0 };
        return [evaluations.evaluations(new Map([["r", rows]]), store, shares), kept] })()"""
    charts, kept = run(code, rows=rows, shares=[*figures.SHARES])
    titles = [(chart["title"], chart["unit"], chart.get("tall", False)) for chart in charts]
    outcomes = [("Evaluation: success at end", "%", False), ("Evaluation: steps", "", False)]
    assert titles == [("Evaluation", "%", True), *outcomes]
    assert [chart["names"] for chart in charts] == [["t"]] * 3 and len({key for chart in charts for key in chart["keys"]}) == 3
    assert kept[charts[1]["keys"][0]] == [[1, 2], [0.1, 0.25], [0.05, 0.25], [0.2, 0.25]]
    assert kept[charts[2]["keys"][0]] == [[1, 2], [7, 7], [6, 6], [8, 8]]
    damaged = [{**rows[0], "extra": None, "intervals": []}, {**rows[1], "extra": {"a": "b"}, "intervals": {"a": [1, 2]}}]
    assert [chart["title"] for chart in run(code, rows=damaged, shares=[])[0]] == ["Evaluation"]


@needs_node
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("spiky", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [0.2, 0.4, 0.9],
        [5.0],
        [0.0, 0.0],
        [-1.0, -3.0, 0.0],
        [1e-6, 2e-6],
        [math.sin(i) for i in range(100)] + [90.0],
        [0.01 * (i % 7) for i in range(80)] + [-40.0, 7.0],
    ],
)
def test_axes_reach_as_far_as_in_the_report(values, zero, spiky):
    scale = svg._y_scale(*svg.limits(values, zero, spiky), svg.HEIGHT)
    assert run(
        f"series.range(values, {{ zero: {json.dumps(zero)}, spiky: {json.dumps(spiky)} }})", values=values
    ) == pytest.approx([scale.low, scale.high])


@needs_node
def test_a_logarithmic_axis_begins_and_ends_at_a_figure_of_one_digit():
    assert run("series.powers([0, -1, 0.0234, 7.1])") == pytest.approx([0.02, 8])
    assert run("series.powers([3, 3])") == pytest.approx([1.5, 6])
    assert run("series.powers([-1, 0])") is None


@needs_node
def test_smoothing_does_not_lean_to_zero_at_the_start():
    assert run("series.smooth([4, 4, 4], 0.9)") == pytest.approx([4, 4, 4])
    assert run("series.smooth([1, 3], 0.5)") == pytest.approx([1, (0.25 * 1 + 0.5 * 3) / 0.75])


ROWS = "const s = new series.Series({ step: [1, 2], time: [1, 2], value: [5, 6] }, 3); "


@needs_node
def test_live_rows_are_added_once_and_behind_what_is_known():
    added = "[2, 3, 4, 4, 5].forEach((step) => s.append(step, step, step === 5 ? null : 7))"
    assert run(f"(() => {{ {ROWS}{added}; return [s.step, s.value, s.last, s.latest] }})()") == [
        [1, 2, 4, 5],
        [5, 6, 7, None],
        5,
        7,
    ]


@needs_node
def test_rows_behind_points_that_stand_for_several_fill_points_as_wide():
    given = {"step": [10, 20, 30], "time": [10, 20, 30], "value": [1, 2, 3], "low": [0, 1, 2], "high": [2, 3, 4]}
    code = """(() => { const s = new series.Series(given, 30);
        for (let i = 31; i <= 45; i++) s.append(i, i, i === 35 ? null : i);
        return [s.step, s.value, s.low, s.high] })()"""
    step, value, low, high = run(code, given=given)
    assert step == [10, 20, 30, 40, 45]
    assert value == pytest.approx([1, 2, 3, sum(i for i in range(31, 41) if i != 35) / 9, 43])
    assert (low, high) == ([0, 1, 2, 31, 41], [2, 3, 4, 40, 45])


@needs_node
def test_a_growing_curve_keeps_its_extremes_and_its_mean_in_few_points():
    code = """(() => { const s = new series.Series(); let sum = 0;
        for (let i = 1; i <= 50000; i++) { const v = i === 777 ? 1e6 : Math.sin(i / 900); sum += v; s.append(i, i, v); }
        const mean = s.value.reduce((a, b) => a + b) / s.value.length;
        return [s.step.length, series.MOST, Math.max(...s.high), s.step.at(-1), mean, sum / 50000] })()"""
    length, most, highest, last, mean, wanted = run(code)
    assert most / 3 < length <= most
    assert (highest, last) == (1e6, 50000)
    assert mean == pytest.approx(wanted, rel=0.05)


@needs_node
def test_a_curve_leaves_out_steps_without_a_value_and_follows_either_axis():
    given = {"step": [1, 2, 3], "time": [10, 25, 40], "value": [5, None, 7]}
    assert run('new series.Series(given).curve("time")', given=given) == {"x": [10, 40], "y": [5, 7], "low": None, "high": None}
    places = '[[2, "step", "time"], [2.5, "step", "time"], [32.5, "time", "step"], [99, "time", "step"], [0, "step", "time"]]'
    found = run(f"{places}.map(([x, from, to]) => new series.Series(given).place(x, from, to))", given=given)
    assert found == pytest.approx([25, 32.5, 2.5, 3, 10])


@needs_node
def test_a_value_that_is_no_number_is_a_gap():
    """Of the server, of a live row, and in points that stand for several rows, unless one of these has a number."""
    given = {"step": [1, 2, 3, 4], "time": [1, 2, 3, 4], "value": [5, None, None, 7], "gaps": [2]}
    code = """(() => { const s = new series.Series(given); s.append(5, 5, null);
        const { x, y } = s.curve("step");
        return [x, y, s.latest, series.total([s]).value, series.smooth(y, 0), series.ends(y)] })()"""
    x, y, latest, total, smoothed, ends = run(code, given=given)
    assert (x, y, smoothed) == ([1, 3, 4, 5], [5, None, 7, None], [5, None, 7, None])
    assert (latest, total, ends) == (7, [5, None, None, 7, None], [5, 7])
    assert run("series.range([null, 2, 4])") == run("series.range([2, 4])")
    wide = """(() => { const s = new series.Series();
        for (let i = 1; i <= 2 * series.MOST; i++) s.append(i, i, i <= 8 ? null : i % 2 ? null : 3);
        const { y, low } = s.curve("step"); return [y.slice(0, 6), low.slice(0, 6)] })()"""
    y, low = run(wide)
    assert y == low and y[0] is None and y[-1] == 3 and set(y) == {None, 3}


@needs_node
def test_series_are_summed_by_step_and_stacked_over_gaps():
    parts = [{"step": [1, 2], "time": [1, 2], "value": [1, None]}, {"step": [2, 3], "time": [2, 3], "value": [4, 5]}]
    assert run("series.total(parts.map((part) => new series.Series(part))).value", parts=parts) == [1, 4, 5]
    assert run("series.stacked([[1, null], [2, 3]])") == [[1, 0], [3, 3]]


@needs_node
def test_an_axis_of_seconds_is_in_words():
    ticks = [[30, 60], [600, 3600], [5400, 20000], [7200, 20000], [86400, 300000]]
    words = ["30 s", "10 min", "1:30 h", "2 h", "1 d"]
    assert run("ticks.map(([seconds, most]) => numbers.clock(seconds, most))", ticks=ticks) == words
    assert run("[0.25, 42, 185, 7800, 180000].map(numbers.duration)") == ["0.3 s", "42 s", "3 min 05 s", "2 h 10 min", "2 d 2 h"]


@needs_node
def test_scripts_are_modules_that_parse():
    """One process for all: each takes a tenth of a second to start."""
    code = (
        "for (const path of process.argv.slice(1)) {"
        "  try { new vm.SourceTextModule(fs.readFileSync(path, 'utf8')); } catch (error) { console.log(`${path}: ${error}`); }"
        "}"
    )
    command = ["node", "--experimental-vm-modules", "--no-warnings", "-e", code, *SCRIPTS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert len(SCRIPTS) > 10 and (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_every_file_that_is_imported_is_there():
    served = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*")} | {"page.js"}
    for script in SCRIPTS:
        for name in re.findall(r'(?:from|import\()\s*"\./([^"]+)"', script.read_text()):
            assert name in served, f"{script.name} imports {name}"


def test_nothing_comes_from_elsewhere_and_text_stays_text():
    for path in [*SCRIPTS, STATIC / "board.css"]:
        text = path.read_text()
        assert re.findall(r"https?://(?!www\.w3\.org/)", text) == [], path.name
        assert (
            re.findall(r"outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"style", text) == []
        ), path.name
        assert text.count("innerHTML") == (path.name == "dom.js"), path.name


def test_uplot_is_as_it_was_published():
    said = (STATIC / "uplot" / "README.md").read_text()
    for name in ("uPlot.esm.js", "uPlot.min.css"):
        assert hashlib.sha256((STATIC / "uplot" / name).read_bytes()).hexdigest() in said


# -- colours ------------------------------------------------------------------------------------------------------------

SEEN = {
    "by most people": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "without green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "without blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Matrices that map linear RGB to its appearance in colour blindness: Machado, Oliveira, Fernandes 2009, severity 1."""
XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
CARDS = {"light": "#ffffff", "dark": "#181b21"}


def linear(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def oklab(rgb):
    """OKLab, a space of roughly perceptual distances (Ottosson 2020)."""
    cones = (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    lab = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    return times(lab, [max(c, 0.0) ** (1 / 3) for c in times(cones, [min(max(c, 0.0), 1.0) for c in rgb])])


def palette(theme):
    light, dark = PAGE.read_text().split("prefers-color-scheme: dark", 1)
    return re.findall(r"--c\d: (#[0-9a-f]{6})", light if theme == "light" else dark)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("theme", CARDS)
def test_colours_of_lines_can_be_told_apart(theme, sight):
    seen = {f"c{i}": oklab(times(SEEN[sight], linear(colour))) for i, colour in enumerate(palette(theme), 1)}
    assert len(seen) == 8
    apart = {pair: math.dist(seen[pair[0]], seen[pair[1]]) for pair in itertools.combinations(seen, 2)}
    nearest = min(apart, key=apart.__getitem__)
    assert apart[nearest] > (0.1 if sight == "by most people" else 0.045), (nearest, apart[nearest])


@pytest.mark.parametrize("theme", CARDS)
def test_colours_of_lines_stand_out_from_their_card(theme):
    card = times(XYZ, linear(CARDS[theme]))[1]
    for colour in palette(theme):
        low, high = sorted((card, times(XYZ, linear(colour))[1]))
        assert (high + 0.05) / (low + 0.05) >= 3, colour
