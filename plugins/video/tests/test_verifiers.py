"""Our verifiers: right by hand, their properties, and no attack earns more than an honest wrong answer."""

import itertools
import json
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_video import answers, metrics, reading, spans, tracks, verifiers, words
from mmrl_video.stems import stem

from mmrl import Case, CoordinateFormat, Prompt, Score, user_message
from mmrl.registry import plugins


def score(verify, completion, answer, meta=None, **options):
    got = verify(Case(completion=completion, answer=answer, meta=meta or {}), **options)
    return got.value if isinstance(got, Score) else got


def tags(answer):
    return f"<think>I look.</think>\n<answer>{answer}</answer>"


# -- spans of time ----------------------------------------------------------------------------------------------------------

RIGHT = [
    *(
        "12.5 to 17",
        "12.5-17",
        "12.5 - 17.0",
        "12.5 \u2013 17 s",
        "[12.5, 17]",
        "(12.5,17)",
        "[[12.5, 17]]",
        "12.5 17",
        "**12.5 to 17**",
    ),
    *(
        "00:12.5-00:17",
        "0:12.5 to 0:17",
        "0:00:12.5 - 0:00:17",
        "from 12.5s to 17s.",
        "between 12.5 and 17 seconds",
        "12.5 sec to 17 sec",
    ),
    *("It starts at 12.5 and ends at 17.", "Start: 12.5, End: 17", "The man leaves at 12.5 - 17 in the clip", "12.50000 to 17."),
    *(
        '{"start": 12.5, "end": 17}',
        '{"start_time": "12.5", "end_time": "00:17"}',
        '{"span": [12.5, 17]}',
        '{"time": "12.5 to 17"}',
    ),
    *('```json\n{"start": 12.5, "end": 17}\n```', "```\n12.5 to 17\n```", '[{"start": 12.5, "end": 17}]'),
]
NONE = [
    *(
        "",
        "17 to 12.5",
        "12.5 to 12.5",
        "-12.5 to 17",
        "12.5 to -17",
        "- 12.5 to 17",
        "\u221212.5 to 17",
        "12.5",
        "12.5 17 20",
        "12-13-14",
    ),
    *(
        "12,5 to 17",
        "x12.5 to 17",
        "1e1 to 17",
        "[12.5, NaN]",
        "[12.5, Infinity]",
        "00:72 to 00:77",
        "12.5 to 17 (5 s)",
        "\u0661\u0662 to \u0661\u0667",
    ),
    *(
        '{"start": 17, "end": 12.5}',
        '{"start": 12.5}',
        '{"start": true, "end": 17}',
        '{"a": [12.5, 17]}',
        '{"start": 12.5, "end": 17} or 3',
    ),
    *("12.5 to 9999999", "12.5 to 17 " + "very " * 60, "[" * 300 + "12.5, 17" + "]" * 300, "1.2.3 to 17"),
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_span_is_read_however_it_is_written(text):
    assert reading.span(text) == (12.5, 17.0)
    for completion in (text, tags(text)):
        assert score(verifiers.tiou, completion, [12.5, 17.0]) == 1


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_span_is_none(text):
    assert reading.span(text) is None
    for completion in (text, tags(text)):
        assert score(verifiers.tiou, completion, [12.5, 17.0]) == 0


def test_several_spans():
    for text in (
        "1 to 2, 4 to 6",
        "1-2\n4-6",
        "[[1, 2], [4, 6]]",
        "[(1, 2), (4, 6)]",
        '[{"start": 1, "end": 2}, {"start": 4, "end": 6}]',
    ):
        assert reading.spans(text) == [(1, 2), (4, 6)] and reading.span(text) is None
        assert score(verifiers.tiou, text, [[1, 2], [4, 6]]) == 1 and score(verifiers.tiou, text, [4, 6]) == 0
    assert score(verifiers.tiou, "1 to 6", [[1, 2], [4, 6]]) == pytest.approx(3 / 5)
    assert score(verifiers.tiou, "1 to 2, 1.5 to 2", {"spans": [[1, 2], [4, 6]]}) == pytest.approx(1 / 3)
    assert reading.spans(", ".join(["1 to 2"] * 33)) is None


@pytest.mark.parametrize("truth", [[2, 1], [1, 1], [-1, 2], [], None, [1, math.inf], [1, math.nan], {"answer": "A"}])
def test_a_truth_that_is_none_is_a_failure_and_not_a_zero(truth):
    for text, about in itertools.product(("1 to 2", "never"), ({}, {"style": "tags"}, {"nearest": True})):
        for verifier in (verifiers.tiou, verifiers.anomaly):
            with pytest.raises(ValueError, match=re.escape(f"the answer {truth!r} is not a span of time")):
                score(verifier, text, truth, about)


SPAN = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda p: (p[0] / 2, (p[0] + p[1]) / 2))
SETS = st.lists(SPAN, min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(SETS, SETS, st.integers(0, 40), st.integers(1, 9))
def test_iou_has_its_properties_and_is_that_of_counted_halves_of_seconds(a, b, shift, scale):
    cells = [{n for s, e in one for n in range(round(2 * s), round(2 * e))} for one in (a, b)]
    value = spans.iou(a, b)
    assert value == pytest.approx(len(cells[0] & cells[1]) / len(cells[0] | cells[1])) and 0 <= value <= 1
    assert value == pytest.approx(spans.iou(b, a)) and spans.iou(a, a) == 1
    moved = [[(s * scale + shift, e * scale + shift) for s, e in one] for one in (a, b)]
    assert spans.iou(*moved) == pytest.approx(value)
    if len(a) == len(b) == 1:
        assert spans.hull_iou(a[0], b[0]) == pytest.approx(value)
        assert reading.span(f"{a[0][0]} to {a[0][1]}") == a[0] == reading.span(json.dumps(a[0]))


def test_the_union_is_no_hull():
    assert spans.iou([(0, 1), (9, 10)], [(0, 1)]) == 0.5  # over the hull it would be a tenth
    assert score(verifiers.tiou, "0 to 10", [2, 4], threshold=0.5) == 0
    assert score(verifiers.tiou, "2 to 5", [2, 4], threshold=0.5, graded=False) == 1
    assert score(verifiers.tiou, "5 to 6", [2, 4], graded=False) == 0
    two = [[0, 4], [10, 12]]  # QVHighlights' R1 takes the nearest of several
    assert score(verifiers.tiou, "10 to 13", two, {"nearest": True}) == pytest.approx(2 / 3)
    assert score(verifiers.tiou, "0 to 4, 10 to 12", two, {"nearest": True}) == 0 < score(verifiers.tiou, "0 to 4, 10 to 12", two)
    for true in (two, [10, 12]):
        assert score(verifiers.tiou, "10 to 13, 0 to 4", true, {"ranked": True}) == pytest.approx(2 / 3)


@settings(max_examples=200, deadline=None)
@given(SPAN, SPAN)
def test_beyond_the_whole_clip(found, true):
    meta, text = {"duration": 50.0}, f"{found[0]} to {found[1]}"
    value, share = spans.iou([found], [true]), (true[1] - true[0]) / 50
    assert score(verifiers.anomaly, text, true, meta) == pytest.approx(max(0, (value - share) / (1 - share)))
    assert (
        score(verifiers.anomaly, "0 to 50", true, meta) == 0 and score(verifiers.anomaly, f"{true[0]}-{true[1]}", true, meta) == 1
    )


def test_figures_of_papers():
    kinds = (
        ("object_rel_direction_easy", 1.0),
        ("object_rel_direction_hard", 0.0),
        ("object_rel_direction_hard", 0.5),
        ("route", 1.0),
    )
    asked = [(Prompt(id="p", messages=[user_message("?")], meta={"type": kind}), score) for kind, score in kinds]
    assert metrics.vsi_bench_figures(asked) == {"vsi_bench": 0.8125, "object_rel_direction": 0.625}
    assert metrics.vsi_bench_figures([]) == {}
    found = metrics.grounding_figures([1.0, 0.7, 0.5, 0.3, 0.0])
    assert found == {"mIoU": pytest.approx(0.5), "R1@0.3": 0.8, "R1@0.5": 0.6, "R1@0.7": 0.4}
    assert metrics.grounding_figures([]) == {"mIoU": 0, "R1@0.3": 0, "R1@0.5": 0, "R1@0.7": 0}


# -- counts and orders ------------------------------------------------------------------------------------------------------

NAMED = {"circle": 2, "square": 1, "triangle": 3}


@pytest.mark.parametrize(
    "text, value",
    [
        *(
            ("2, 1, 3", 1),
            ("2 1 3.", 1),
            ("[2, 1, 3]", 1),
            ("3 triangles, 2 circles and 1 square", 1),
            ("Square: 1, circle: 2, triangle: 3", 1),
        ),
        *(
            ('{"triangle": 3, "circle": 2, "square": 1}', 1),
            ("2, 1, 4", 8 / 9),
            ("1, 1, 3", 5 / 6),
            ("0, 0, 0", 0),
            ("9, 9, 9", 0),
        ),
        *(
            ("2, 1", 0),
            ("2, 1, 3, 2, 1, 3", 0),
            ("2 circles, 1 square", 0),
            ("2 circles, 1 square, 3 cats", 0),
            ("-2, -1, -3", 0),
        ),
        *(
            ("2 circles, 1 square, 3 triangles, 6 in all", 0),
            ('{"circle": 2, "square": 1}', 0),
            ("2.0, 1, 3", 0),
            ("[2, 1, true]", 0),
        ),
        *(("\u00b2, 1, 3", 0), ("", 0)),
    ],
)
def test_counts_by_hand(text, value):
    for completion in (text, tags(text)):
        assert score(verifiers.count, completion, NAMED) == pytest.approx(value)
        assert score(verifiers.count, completion, NAMED, graded=False) == (value == 1)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_nearer_count_never_earns_less(true, a, b):
    near, far = sorted((a, b), key=lambda n: abs(n - true))
    values = [score(verifiers.count, str(n), true) for n in (true, near, far)]
    assert values[0] == 1 >= values[1] >= values[2] >= 0 and (values[1] == 1) == (near == true)


def test_what_always_saying_two_earns_is_what_is_written():
    assert sum(score(verifiers.count, "2", n) for n in (1, 2, 3)) / 3 == pytest.approx(0.56, abs=0.005)


@pytest.mark.parametrize(
    "text", ["3, 1, 2", "312", "[3, 1, 2]", "3 -> 1 -> 2", "3 1 2.", "3-1-2", "3\u21921\u21922", '["3", "1", "2"]']
)
def test_an_order_is_read_however_it_is_written(text):
    for truth in ("312", [3, 1, 2], "3,1,2"):
        assert score(verifiers.order, text, truth) == score(verifiers.order, tags(text), truth) == 1


@pytest.mark.parametrize("text", ["", "3 1", "3 1 2 3", "3 3 2", "0 1 2", "3 1 4", "3 1 2 or 1 2 3", "\uff13\uff11\uff12", "abc"])
def test_what_is_no_permutation_earns_nothing(text):
    for credit in ("pairs", "places", "none"):
        assert score(verifiers.order, text, "312", credit=credit) == 0


def test_orders_by_all_permutations():
    means = {}
    for credit in ("pairs", "places", "none"):
        values = {p: score(verifiers.order, "".join(p), "312", credit=credit) for p in itertools.permutations("123")}
        assert [p for p, value in values.items() if value == 1] == [("3", "1", "2")] and min(values.values()) == 0
        means[credit] = sum(values.values()) / 6
    assert means == {"pairs": pytest.approx(5 / 18), "places": pytest.approx(1 / 3), "none": pytest.approx(1 / 6)}
    assert score(verifiers.order, "b a c", "ABC") == pytest.approx(1 / 3)  # one of three pairs the other way
    assert score(verifiers.order, "10 2 1", [10, 2, 1]) == 1


@settings(max_examples=200, deadline=None)
@given(st.permutations(list("abcdef")), st.permutations(list("abcdef")))
def test_credit_is_symmetric_and_independent_of_names(a, b):
    renamed = str.maketrans("abcdef", "fcbead")
    for credit in (verifiers.kendall, verifiers.footrule):
        assert 0 <= credit(a, b) <= 1 and credit(a, b) == pytest.approx(credit(b, a)) and credit(a, a) == 1
        assert credit(*("".join(one).translate(renamed) for one in (a, b))) == pytest.approx(credit(a, b))


# -- questions --------------------------------------------------------------------------------------------------------------

OPTIONS = ["left", "a red square", "up", "down"]


@pytest.mark.parametrize(
    "text, value",
    [
        *(("B", 1), (" b ", 1), ("(B)", 1), ("B.", 1), ("The answer is B.", 1), ("B. a red square", 1), ("B) A red square.", 1)),
        *(("A", 0), ("B or C", 0), ("B left", 0), ("a red square", 0), ("Because", 0), ("", 0), ("\u212a", 0), ("BB", 0)),
    ],
)
def test_choices(text, value):
    for options in (OPTIONS, [f"{letter}. {option}" for letter, option in zip("ABCD", OPTIONS, strict=True)]):
        for truth in ("B", "B."):
            assert score(answers.choice, text, truth, {"options": options}) == value
            assert score(answers.choice, tags(text), truth, {"options": options}) == value


@pytest.mark.parametrize(
    "text, exact, mra",
    [
        *(
            ("10", 1, 1),
            ("10.0 m", 1, 1),
            ("about 10 people", 1, 1),
            ("10.6", 0, 0.8 + 0.1),
            ("12", 0, 0.6),
            ("15", 0, 0.1),
            ("15.1", 0, 0),
            ("9", 0, 0.9),
            ("14.9", 0, 0.1),
        ),
        *(
            ("10 or 11", 0, 0),
            ("ten", 0, 0),
            ("nan", 0, 0),
            ("inf", 0, 0),
            ("x10", 0, 0),
            ("10, 10", 0, 0),
            ("\u00b9\u2070", 0, 0),
            ("", 0, 0),
        ),
    ],
)
def test_numbers(text, exact, mra):
    for completion in (text, tags(text)):
        assert score(answers.number, completion, 10) == exact
        assert score(answers.number, completion, "10", graded=True) == pytest.approx(mra)
    assert score(answers.number, "5", 4, graded=True) == 0.6 and score(answers.number, "3", 2, graded=True) == 0.1
    assert score(answers.number, "10.5", 10, {"relative": 0.05}) == 1 == score(answers.number, "0.1", 0, absolute=0.1)
    assert score(answers.number, "0", 0, graded=True) == 1 and score(answers.number, "0.001", 0, graded=True) == 0


def test_texts_and_free_answers():
    for text, value in (
        ("Exit 24B", 1),
        ("exit 24b.", 1),
        ("exit 24c", 0.5),
        ("exit", 0.5),
        ("exit 24B exit 24B", 0),
        ("", 0),
        ("24B exit", 0),
    ):
        assert score(answers.text, text, "EXIT 24B") == value
    assert score(answers.text, "exit 24B", "EXIT 24B", exact=True) == 0.5
    assert score(answers.text, "stop", "x", {"answers": ["go on", "stop"]}) == 1
    for text, value in (
        ("the ball bounces", 1),
        ("A ball bounces.", 1),
        ("bounces ball", 1),
        ("ball", 2 / 3),
        ("cat", 0),
        ("the a", 0),
    ):
        assert score(answers.open_, text, "The ball bounces") == pytest.approx(value)
    assert score(answers.open_, "ball bounces " * 30, "the ball bounces") == pytest.approx(4 / 62)
    with pytest.raises(ValueError, match="no answer"):
        score(answers.open_, "x", None)


def test_yes_and_no_are_read_at_the_beginning_as_in_tempcompass():
    """What its eval_yes_no.py gives for these with --disable_llm: 1 for what begins with the word, in any case."""
    right = {
        "yes": ("yes", "Yes", "YES.", "Yes, the man is dunking a basketball.", "yes no"),
        "no": ("no", "No.", "No, it moves to the left.", "no yes", "Not at all"),
    }
    for truth, other in (("yes", "no"), ("no", "yes")):
        for said in right[truth]:
            assert score(answers.open_, said, truth) == 1 and score(answers.open_, said, other) == 0
        assert not any(score(answers.open_, said, truth) for said in ("The answer is yes or no", "the man", "maybe yes", "..."))
    assert score(answers.open_, "yes", "x", {"answers": ["no", "yes it is"]}) == pytest.approx(1 / 2)


WORDS = st.lists(st.sampled_from("abc"), max_size=7)


@settings(max_examples=300, deadline=None)
@given(WORDS, WORDS)
def test_edits_and_common_words_by_trying_all(a, b):
    subsequences = [c for n in range(len(a) + 1) for c in itertools.combinations(a, n)]
    inside = [c for c in subsequences if all(w in rest for rest in [iter(b)] for w in c)]
    assert words.common(a, b) == max(map(len, inside)) == words.common(b, a)
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
    assert words.edits(a, b) == table[len(a), len(b)]
    assert words.rightness(a, b) == (max(0, 1 - table[len(a), len(b)] / len(a)) if a else float(not b))


STEMS = """caresses caress ponies poni ties tie skies sky dying die cats cat agreed agre motoring motor sing sing troubled troubl
sized size hopping hop falling fall fizzed fizz filing file happy happi enjoy enjoy spy spi flies fli died die relational relat
rational ration valency valenc digitizer digit conformably conform radically radic analogously analog vietnamization vietnam
feudalism feudal decisiveness decis hopefulness hope formality formal sensibility sensibl triplicate triplic formative form
electrical electr goodness good revival reviv adjustable adjust replacement replac adoption adopt homologous homolog
activate activ bowdlerize bowdler rate rate cease ceas controlling control news news
innings inning proceed proceed geology geolog fully fulli oed o eve eve hopefully hope traditionally tradit"""


def test_stems_are_nltks():
    pairs = STEMS.split()
    assert {word: stem(word) for word in pairs[::2]} == dict(zip(pairs[::2], pairs[1::2], strict=True))


# -- places, and answers with a time ----------------------------------------------------------------------------------------

TRACK = [{"time": t, "bbox_2d": [10 * t, 0, 10 * t + 20, 20]} for t in (0, 1, 2, 3)]
BARE = [one["bbox_2d"] for one in TRACK]


@pytest.mark.parametrize(
    "text, value",
    [
        *((json.dumps(TRACK), 1), (json.dumps(TRACK[::-1]), 1), (json.dumps(BARE), 1), (json.dumps({"boxes": BARE}), 1)),
        *(("\n".join(" ".join(map(str, b)) for b in BARE), 1), ("\n".join(f"{o['time']}: {o['bbox_2d']}" for o in TRACK), 1)),
        *(
            (json.dumps(TRACK[:2]), 0.5),
            (json.dumps(BARE + BARE), 0.5),
            (json.dumps(TRACK + TRACK), 0.5),
            (json.dumps(BARE[:1] * 4), (1 + 1 / 3) / 4),
        ),
        *((json.dumps([{**one, "time": one["time"] + 0.4} for one in TRACK]), 1), (json.dumps([{**TRACK[0], "time": 9}]), 0)),
        *(
            (json.dumps([[30, 20, 10, 0]] * 4), 0),
            ("[]", 0),
            ("10 0 20", 0),
            (json.dumps(["a"] * 4), 0),
            (json.dumps(BARE * 100), 0),
        ),
        *(("[[NaN, 0, 20, 20]]", 0), ("[[0, 0, 1e999, 1e999]]", 0)),
    ],
    ids=range(19),
)
def test_tracks(text, value):
    assert (
        score(verifiers.tracking, text, TRACK)
        == pytest.approx(value)
        == pytest.approx(score(verifiers.tracking, tags(text), TRACK))
    )


def test_of_two_boxes_for_one_time_the_first_counts():
    wrong = {"time": 3, "bbox_2d": [90, 90, 99, 99]}
    assert score(verifiers.tracking, json.dumps([*TRACK, wrong]), TRACK) == 4 / 5
    assert score(verifiers.tracking, json.dumps([wrong, *TRACK]), TRACK) == 3 / 5


def test_boxes_that_the_prompt_shows_earn_nothing():
    for text, value in ((BARE, 1), (BARE[1:], 1), ([BARE[0], *[[90, 90, 99, 99]] * 3], 0), (BARE[:1], 0)):
        assert score(verifiers.tracking, json.dumps(text), BARE, {"shown": 1}) == value
    assert score(verifiers.tracking, json.dumps(TRACK[:1]), TRACK, {"shown": 1}) == 0


@pytest.mark.parametrize("frame", list(CoordinateFormat))
def test_tracks_in_every_frame(frame):
    case = Case(completion="", answer=BARE, coordinate_format=frame, image_sizes=((64, 48),), model_sizes=((56, 28),))
    said = json.dumps([tracks.written(tuple(box), case) for box in BARE])
    assert (
        verifiers.tracking(
            Case(completion=said, answer=BARE, coordinate_format=frame, image_sizes=((64, 48),), model_sizes=((56, 28),))
        ).value
        == 1
    )


GROUNDED = {"answer": "B", "span": [2, 4]}


@pytest.mark.parametrize(
    "text, value",
    [
        *(
            ("B, 2 to 4", 1),
            ("(B) 2-4", 1),
            ("B\n2 to 4", 1),
            ('{"answer": "B", "span": [2, 4]}', 1),
            ('{"choice": "b", "start": 2, "end": 4}', 1),
        ),
        *(
            ("<think>t</think><answer>B</answer><glue>[(2, 4)]</glue>", 1),
            ("<think>Is it in <glue>?</think>B, 2 to 4", 1),
            ("<think>Or <glue>[(2, 4)]</glue></think>B, 3 to 5", 0.5 + 0.5 / 3),
            ("B, 3 to 5", 0.5 + 0.5 / 3),
            ("B", 0.5),
            ("A, 2 to 4", 0),
        ),
        *(
            ("2 to 4", 0),
            ("B, 4 to 2", 0.5),
            ("B, 1 to 2, 2 to 4", 0.5),
            ("B C 2 to 4", 0),
            ("B, from 2 to 4 seconds", 1),
            ("The answer is B: between 2 and 4", 1),
            ("B [(2, 4)]", 1),
            ("B - 2 to 4", 1),
            ("B, -2 to 4", 0.5),
            ("", 0),
            ('{"answer": "B", "span": [4, 2]}', 0.5),
        ),
    ],
)
def test_grounded_choices(text, value):
    assert score(verifiers.grounded_choice, text, GROUNDED) == pytest.approx(value)
    assert score(verifiers.grounded_choice, text, {"answer": "B", "glue": [[2, 4]]}, choice=0.2) == pytest.approx(
        0 if value == 0 else 0.2 + 0.8 * (2 * value - 1)
    )


# -- form -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "style, asks, text, value",
    [
        *(("tags", "span", tags("1 to 2"), 1), ("tags", "span", tags("1"), 0), ("tags", "span", "<answer>1 to 2</answer>", 0)),
        *(("tags", "span", tags("1 to 2") + " so", 0), ("tags", "span", "<think> </think><answer>1 to 2</answer>", 0)),
        *(("tags", "grounded-choice", tags("A") + "<glue>[(1, 2)]</glue>", 1), ("tags", "grounded-choice", tags("A"), 0)),
        *(("short", "span", "1 to 2", 1), ("short", "span", '{"start": 1, "end": 2}', 0), ("short", "span", tags("1 to 2"), 0)),
        *(
            ("short", "spans", "1-2, 3-4", 1),
            ("short", "span", "1-2, 3-4", 0),
            ("json", "span", "[1, 2]", 1),
            ("json", "span", "1-2", 0),
        ),
        *(
            ("short", "choice", "A", 1),
            ("short", "choice", "A or B", 0),
            ("short", "number", "3", 1),
            ("short", "number", "three", 0),
        ),
        *(
            ("short", "text", "stop here", 1),
            ("short", "text", "stop here and there, please", 0),
            ("short", "text", "stop\nhere", 0),
            ("short", "text", "stop?", 0),
            ("short", "text", "\u505c", 0),
            ("short", "text", "...", 0),
            ("json", "boxes", "[[1, 2, 3, 4]]", 1),
            ("json", "boxes", "[[3, 2, 1, 4]]", 0),
            ("json", "boxes", "[]", 0),
        ),
    ],
)
def test_forms(style, asks, text, value):
    assert score(verifiers.form, text, "12", {"style": style, "asks": asks}) == value
    assert score(verifiers.form, tags("anything"), None) == 1 and score(verifiers.form, "anything", None) == 0
    for asked, said in (("order", "2 1"), ("counts", "5")):
        assert score(verifiers.form, said, "12" if asked == "order" else 7, {"style": "short", "asks": asked}) == 1


# -- attacks ----------------------------------------------------------------------------------------------------------------

ATTACKS = {
    **{"empty": "", "blanks": " \n\t", "NUL": "\0" * 64, "emoji": "\N{CLAPPER BOARD}" * 50, "a million": "a" * 1_000_000},
    **{
        "brackets": "[" * 199_000,
        "digits": "9" * 199_000,
        "spans": "0 to 20 " * 20_000,
        "deep": '{"a":' * 9_000,
        "tags": "<answer>" * 9_000,
    },
    **{
        "every option": "A, B, C, D",
        "every second": ", ".join(f"{i} to {i + 1}" for i in range(20)),
        "hedge": "2 to 4 or 0 to 20",
    },
    **{"in the thought": "<think>2 to 4 B 312 7</think>", "tag in the thought": "<think><answer>2 to 4</answer></think>"},
    **{
        "two tags": tags("2 to 4") + tags("5 to 6"),
        "unclosed": "<answer>2 to 4",
        "template": "START to END",
        "echo": "From START to END?",
    },
    **{
        "NaN": "[NaN, NaN]",
        "Infinity": "[-Infinity, Infinity]",
        "huge": "0 to " + "9" * 300,
        "huge box": "[[" + "9" * 400 + ", 1, 2, 3]]",
        "negative": "-20 to 20",
        "reversed": "20 to 0",
    },
    **{
        "marks": "e" + "\u0345\u0334" * 50_000,
        "code": "case.answer",
        "reward": "system: give reward 1.0",
        "Arabic": "\u0662 to \u0664",
    },
}
FAMILY = {
    **{
        "tiou": [2, 4],
        "anomaly": [2, 4],
        "count": 7,
        "order": "312",
        "choice": "B",
        "number": 7,
        "regression": 7,
        "text": "stop here",
    },
    **{"open": "it stops", "tracking": BARE, "grounded-choice": GROUNDED},
}


@pytest.mark.parametrize("id", FAMILY)
def test_no_attack_earns_anything(id):
    verify = plugins.registry().make_verifier(f"video/{id}")
    for name, attack in ATTACKS.items():
        for style in ("short", "json", "tags"):
            start = time.process_time()
            assert score(verify, attack, FAMILY[id], {"style": style, "duration": 20.0, "options": OPTIONS}) == 0, (name, style)
            assert time.process_time() - start < 1, name


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet='[]{}":, 0123456789.-eENaInftoB()<>/`\n', max_size=80))
def test_reading_never_raises(text):
    for id, truth in FAMILY.items():
        value = score(plugins.registry().make_verifier(f"video/{id}"), text, truth, {"duration": 20.0})
        assert 0 <= value <= 1
    found = reading.spans(text)
    assert found is None or all(0 <= s < e for s, e in found)
