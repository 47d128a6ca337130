"""The published rewards: equal to the published patterns and formulas, beyond the rows of the golden table."""

import itertools
import json
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_video import seed_bench_r1, temporal_r1, time_r1, timezero, video_r1, video_rts, videochat_r1, videossr

from mmrl import Case, Score
from mmrl.registry import plugins
from mmrl.testing.cases import mostly_slow


def texts(*pieces, most=10):
    return st.lists(st.sampled_from(pieces), max_size=most).map("".join)


# -- TimeZero, Time-R1, VideoChat-R1's temporal grounding -------------------------------------------------------------------

PAIR = re.compile(r"(\d+\.?\d*) (to|and) (\d+\.?\d*)", re.IGNORECASE)
PIECES = ("1", "2.5", ".", " to ", " and ", " TO ", " ", "-", "12", "\u0663", "\n", "</answer>", "<answer>")


def slow_times(text):
    blocks = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    found = PAIR.findall(blocks[-1]) if blocks else []
    return (float(found[-1][0]), float(found[-1][2])) if found else None


@settings(max_examples=600, deadline=None)
@given(texts(*PIECES, most=12))
def test_spans_are_read_as_the_published_pattern_reads_them(text):
    assert timezero.times(f"<answer>{text}</answer>") == slow_times(f"<answer>{text}</answer>")


def test_they_are_so_in_every_short_text():
    hits = 0
    for length in range(7):
        for tokens in itertools.product(("1", ".", " to ", "2 and 3", " "), repeat=length):
            text = f"<answer>{''.join(tokens)}</answer>"
            hits += slow_times(text) is not None
            assert timezero.times(text) == slow_times(text), text
    assert hits > 5000


TIMES = [
    ("10 to 20", (1, 1, 1)),
    ("between 10 and 20", (1, 1, 1)),
    ("-10 to 20", (1, 1, 1)),
    ("5 to 15", (1 / 3, 1 / 3 * 0.95 * 0.95, 1 / 3)),
    ("0 to 100", (0.1, 0.1 * 0.9 * 0.2, 0.1)),
    ("0 to 1000", (0.01, 0.01 * 0.9 * (1 - 9.8), 0.01)),
    ("1 to 2 to 3", (0, 0, 0)),
    ("10 to 20 and 15 to 20", (0.5, 0.5 * 0.95, 0.5)),
    ("20 to 10", (0, 0, 0)),
    ("10 to  20", (0, 0, 0)),
    ("10s to 20s", (0, 0, 0)),
    ("[10, 20]", (0, 0, 0)),
    ("9" * 400 + " to " + "9" * 400, (0, 0, 0)),
    ("0 to " + "9" * 400, (0, 0, 0)),
]


@pytest.mark.parametrize("said, values", TIMES, ids=[t[0][:30] for t in TIMES])
def test_temporal_ious_by_hand(said, values):
    case = Case(completion=f"<answer>1 to 2</answer><answer>{said}</answer>", answer=[10.0, 20.0], meta={"duration": 100.0})
    assert [f(case) for f in (timezero.tiou, time_r1.tiou, videochat_r1.tiou)] == pytest.approx(values)


def test_two_points_of_time():
    case = Case(completion="<answer>5 to 5</answer>", answer=[5.0, 5.0], meta={"duration": 20.0})
    assert (timezero.tiou(case), time_r1.tiou(case), videochat_r1.tiou(case)) == (0, 0, 1)
    case = Case(completion="<answer>6 to 6</answer>", answer=[5.0, 5.0], meta={"duration": 20.0})
    assert videochat_r1.tiou(case) == 0
    # ran OpenGVLab/VideoChat-R1:src/open_r1/grpo_tg.py @73b2ea9: of a reversed truth, too, the hull can be empty
    case = Case(completion="<answer>30 to 30</answer>", answer=[40.16, 26.81], meta={"duration": 150.0})
    assert videochat_r1.tiou(case) == 1


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=4, max_size=4), st.integers(1, 50))
def test_time_r1_stays_in_its_range(numbers, length):
    a, b, s, e = (n / 10 for n in numbers)
    truth = [min(s, e) % length, max(s, e) % length + 0.1]
    case = Case(completion=f"<answer>{a} to {b * 100}</answer>", answer=sorted(truth), meta={"duration": float(length) + 0.1})
    assert -1 <= time_r1.tiou(case) <= 1


# -- formats ----------------------------------------------------------------------------------------------------------------

TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<glue>", "</glue>", "[(1,2)]", "[]", " ", "\n", "a")
BLOCKS = r"<think>.*?</think>\s*<answer>.*?</answer>"
TEMPORAL = r'<think>.*?</think>\s*<answer>\s*{\s*"start_time"\s*:\s*"([\d.]+)"\s*,\s*"end_time"\s*:\s*"([\d.]+)"\s*}\s*</answer>'
GLUE = r"^\[(\(\d+(\.\d+)?,\s*\d+(\.\d+)?\)(,\s*\(\d+(\.\d+)?,\s*\d+(\.\d+)?\))*(,)?|)\]$"


@settings(max_examples=600, deadline=None)
@given(texts(*TAGS), st.booleans())
def test_formats_are_the_published_patterns(text, whole):
    if whole:
        text = f"<think>{text}</think><answer>a</answer>{text[:3]}<glue>[(1,2)]</glue>"
    case = Case(completion=text)
    assert video_r1.form(case) == bool(re.fullmatch(BLOCKS, text, re.DOTALL))
    assert timezero.form(case) == videochat_r1.form(case) == bool(re.fullmatch(BLOCKS, text.strip(), re.DOTALL))
    assert video_rts.form(case) == bool(re.match(BLOCKS, text, re.DOTALL))
    glue = re.search(r"<glue>(.*?)</glue>", text, re.DOTALL)
    shaped = re.fullmatch(BLOCKS + r"\s*<glue>.*?</glue>", text.strip(), re.DOTALL)
    assert videochat_r1.gqa_form(case) == bool(shaped and re.match(GLUE, glue[1]))


@settings(max_examples=500, deadline=None)
@given(
    texts("<think>", "</think>", "<answer>", "</answer>", "a", " ", most=5),
    texts("{", '"start_time"', '"end_time"', ":", '"1.5"', '"2"', "3", ",", "}", " ", "\n", most=12),
    st.booleans(),
)
def test_temporal_r1s_format_is_its_pattern(before, inside, right):
    inside = '{ "start_time": "1.5","end_time":"2" }' if right else inside
    for text in (f"<think>{before}</think> <answer>{inside}</answer>", f"{before}<answer>{inside}</answer>{before}"):
        assert temporal_r1.form(Case(completion=text)) == bool(re.fullmatch(TEMPORAL, text, re.DOTALL)), text


TEMPORALS = [
    ('{"start_time": "10", "end_time": "20"}', 1),
    ('{"start_time": 10, "end_time": 20.0, "x": 1}', 1),
    (' {"start_time": "1e1", "end_time": " 20 "} ', 1),
    ('{"start_time": 5, "end_time": 15}', 1 / 3),
    ('{"end_time": 20, "start_time": 1, "start_time": 10}', 1),
    ('{"start_time": 20, "end_time": 10}', 0),
    ('{"start_time": NaN, "end_time": 20}', 0),
    ('{"start_time": -Infinity, "end_time": Infinity}', 0),
    ('{"start_time": "ten", "end_time": 20}', 0),
    ('{"start": 10, "end": 20}', 0),
    ("[10, 20]", 0),
    ("[" * 5000, 0),
    ('{"start_time": ' + "9" * 5000 + ', "end_time": 20}', 0),
    ('```json\n{"start_time": 10, "end_time": 20}\n```', 0),
]


@pytest.mark.parametrize("said, value", TEMPORALS, ids=[t[0][:40] for t in TEMPORALS])
def test_temporal_r1_by_hand_in_parts_of_the_clip_and_in_seconds(said, value):
    text = f"<answer>{said}</answer><answer>1</answer>"
    parts = Case(completion=text, answer=[0.1, 0.2], meta={"video_length": 100.0})
    in_seconds = Case(completion=text, answer=[10, 20], meta={"duration": 100.0})
    assert temporal_r1.tiou(parts) == pytest.approx(value) and temporal_r1.tiou(in_seconds) == pytest.approx(value)


# -- Video-R1 ---------------------------------------------------------------------------------------------------------------

ANSWERS = [
    ("regression", "nan", "5", 1),  # as published: max(0, NaN) is 0
    ("regression", "inf", "5", 0),
    ("regression", "1,005", "1000", 0.995),
    ("regression", "five", "5", 0),
    ("numerical", "nan", "5", 0),
    ("numerical", "1e3", "1000", 1),
    ("numerical", "1,000", "1.000", 0),
    ("numerical", "1,000", "1000", 0),
    ("numerical", "-6.0", "-6", 0),
    ("numerical", "1,000.004", "1000.00", 1),
    ("numerical", "0.125", "0.12", 1),  # round half to even, of binary fractions
    ("OCR", "a b c d", "a b", 0),
    ("OCR", "b a", "a b", 0),
    ("OCR", "a x b", "a b", 0.5),
    ("free-form", "x", "x", 2 / 3),  # it has no pair of words
    ("free-form", "c b a", "a b c", 4 / 9),
    ("free-form", "sky die", "The skies are dying", 4 / 9),
    (
        "free-form",
        "the man walked into a kitchen, opening the door",
        "a man opens the door and walks into the kitchen",
        0.57378741,
    ),
    ("free-form", "relate happily related", "relational happiness", 4 / 15),
    ("multiple choice", "B", "<answer>B</answer>", 1),
    ("true or false", "B", "B", 0),
]


@pytest.mark.parametrize("kind, said, true, value", ANSWERS)
def test_video_r1_by_hand(kind, said, true, value):
    case = Case(completion=f"<answer>\n{said} </answer><answer>?</answer>", answer=true, meta={"problem_type": kind})
    assert video_r1.answer(case) == pytest.approx(value, abs=1e-8)


# -- letters ----------------------------------------------------------------------------------------------------------------


def slow_letter(text):
    def first(t):
        found = re.match(r"\s*([A-Za-z])", t)
        return found[1].upper() if found else t.strip().upper()

    if found := re.search(r"<answer>(.*?)</answer>", text, re.DOTALL):
        return first(found[1].strip())
    for phrase in (r"(?i)final answer.*?:\s*([A-Za-z])", r"(?i)correct answer.*?:\s*([A-Za-z])"):
        if found := re.search(phrase, text):
            return first(found[1].strip())
    return first(first(text))


LETTERS = ("final answer", "Correct Answer", ":", " ", "\n", "b", "C", "1", "(", "<answer>", "</answer>", "\u017f")


@settings(max_examples=600, deadline=None)
@given(texts(*LETTERS, most=12))
def test_video_rts_reads_the_letter_that_its_patterns_read(text):
    found = slow_letter(text)
    assert video_rts._letter(video_rts._said(text)) == found
    if len(found) == 1 and found.isalpha() and found.isascii():
        assert video_rts.letter(Case(completion=text, answer=f"{found}. so")) == 1
    assert video_rts.letter(Case(completion=text, answer="Z")) == 0


def test_letters_by_hand():
    for text, answer, seed, rts in (
        ("<answer>Apple</answer>", "A", 1, 1),
        ("<answer></answer>", "A", 0, 0),
        ("<answer>b</answer>", "B", 0, 1),
        ("A person walks", "A", 0, 1),
        ("The final answer is\nnot: B", "B", 0, 0),
        ("so final answer (sure): B", "B", 0, 1),
        ("<answer>7</answer>", "7", 1, 1),
    ):
        case = Case(completion=text, answer=answer)
        assert (seed_bench_r1.letter(case), video_rts.letter(case)) == (seed, rts), text


# -- VideoChat-R1's grounded questions and tracking -------------------------------------------------------------------------


def gqa(said, true, **more):
    case = Case(completion=f"<answer>A</answer><glue>{said}</glue>", answer={"answer": "A", "glue": true})
    return videochat_r1.gqa_iou(case)


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=4)


@settings(max_examples=300, deadline=None)
@given(SPANS, SPANS)
def test_spans_of_grounded_questions_by_counting_seconds(found, true):
    a, b = ({second for s, e in spans for second in range(s, e)} for spans in (found, true))
    assert gqa(repr(found), [list(p) for p in true]) == pytest.approx(len(a & b) / len(a | b) if a | b else 1)


@pytest.mark.parametrize(
    "said, value",
    [
        ("[(1, 3),]", 1),
        ("[(1, 3)]\n", 1),
        ("[(01.0, 3)]", 1),
        ("[(01, 3)]", 0),  # no number to Python
        (" [(1, 3)]", 0),
        ("[[1, 3]]", 0),
        ("[(3, 1)]", 0),
        ("[(1, 3), (3, 2)]", 0),
        ("[(1, \u0663)]", 0),
        ("[]", 0),
        (f"[({'9' * 5000}, {'9' * 5001})]", 0),
        (f"[(1, {'9' * 400})]", 0),
        (f"[(1, {'9' * 400}.0)]", 0),
    ],
    ids=lambda v: str(v)[:20],
)
def test_lists_of_spans_are_those_that_python_reads(said, value):
    assert gqa(said, [[1, 3]]) == value


@pytest.mark.parametrize(
    "said, true, right",
    [
        ("Not B, so C", "B", 1),
        ("The correct option is C", "C", 1),
        ("Best answer:Best option: C", "C", 1),  # a missing comma makes these two one prefix
        ("Best answer: C", "C", 0),
        ("nothing", "none", 1),
        ("a", "A", 0),
    ],
)
def test_letters_of_grounded_questions(said, true, right):
    answer = {"answer": true, "glue": []}
    assert videochat_r1.gqa_answer(Case(completion=f"<answer>{said}</answer>", answer=answer)) == right
    assert videochat_r1.gqa_answer(Case(completion=said, answer=answer)) == 0


def test_tracks_by_hand():
    true = [[0, 0, 2, 2]] * 8
    for said, value, formed in (
        ([[0, 0, 2, 2]] * 8, 1, 1),
        ([[1, 0, 3, 2]] * 8, 1 / 3, 1),
        ([[0, 0, 2, 2]] * 4 + [[5, 5, 6, 6]] * 4, 0.5, 1),
        ([[2, 2, 0, 0]] * 8, 0, 1),
        ([[0, 0, 2, 2]] * 7, 0, 0),
        ([[0, 0, 2, 2]] * 9, 0, 0),
        ([["a", 0, 2, 2]] * 8, 0, 1),
        ([[0, 0, 2]] * 8, 0, 0),
        (tuple([[0, 0, 2, 2]] * 8), 0, 0),
        ("[[0, 0, 1e999, 1e999]]" + " * 8", 0, 0),
        (("[" + "[-1e999, -1e999, 1e999, 1e999], " * 8 + "]"), 0, 1),
        ("[" * 300, 0, 0),
        ("(" * 40_000, 0, 0),
        ("\0", 0, 0),
    ):
        text = said if isinstance(said, str) else json.dumps(said) if isinstance(said, list) else repr(said)
        case = Case(completion=f"<think>t</think>\n<answer>{text}</answer> ", answer=true)
        assert videochat_r1.tracking_iou(case) == pytest.approx(value), text[:50]
        assert videochat_r1.tracking_form(case) == formed, text[:50]
    assert videochat_r1.tracking_iou(Case(completion=f"<answer>\n{[[0, 0, 2, 2]] * 8}\n</answer>", answer=true[:7])) == 0


# -- VideoSSR ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, value",
    [
        ("2-4", 1),
        (" 2.0 - 4 \n", 1),
        ("3-5", 1 / 3),
        ("4-2", 0),
        ("2 to 4", 0),
        ("2-4s", 0),
        ("2-4-5", 0),
        ("-2-4", 0),
        (".-4", 0),
    ],
)
def test_anomalies_by_hand(said, value):
    for true in ("2-4", [2, 4]):
        assert videossr.anomaly(Case(completion=said, answer=true)) == pytest.approx(value)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=3, max_size=3), st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_counts_are_the_formula(found, true):
    value = sum(max(0, 1 - abs(p - g) / (g + 1e-9)) for p, g in zip(found, true, strict=True)) / 3
    said = "{} circles, {} squares, {} triangles".format(*found)
    assert videossr.counting(Case(completion=said, answer=",".join(map(str, true)))) == pytest.approx(value)
    assert videossr.counting(Case(completion=said + " 1", answer=true)) == 0
    named = dict(zip("abcdefgh", true, strict=False))  # as `video/counting` has them
    assert videossr.counting(Case(completion=said, answer=named)) == pytest.approx(value)


@pytest.mark.parametrize(
    "said, true, value",
    [  # ran lcqysl/VideoSSR:verl/verl/utils/reward_score/counting.py @b0d2acb
        ("6 6 2 9", "4, 8, 11,3.0", 0.357954545512203),
        ("7,2,11,12", "3.0,10,12,6", 0.2791666667300694),
        ("12 11", "7, 10,x", 0.0),
        ("3 1 4", "3 1 4", 0.0),
        ("2", "-2", 0.0),
        ("0", "", 0.0),
    ],
)
def test_true_counts_are_numbers_between_commas(said, true, value):
    assert videossr.counting(Case(completion=said, answer=true)) == pytest.approx(value)


def test_orders_are_the_formula_for_all_permutations_of_four():
    total = 0.0
    for found in itertools.permutations("1234"):
        off = sum(abs(found.index(s) - "2413".index(s)) for s in "1234")
        value = videossr.jigsaw(Case(completion="".join(found), answer="2413"))
        assert value == pytest.approx(1 - off / 8) and 0 <= value <= 1
        total += value
    assert total / 24 == pytest.approx(1 - 5 / 8)  # the footrule's mean is (n * n - 1) / 3
    for text in ("2,4,1,3", "24 13", "2414", "241", "24135", "\uff12\uff14\uff11\uff13", ""):
        assert videossr.jigsaw(Case(completion=text, answer="2413")) == 0


def published_order(said, true):
    if not said:
        return 0.0
    said, true = said.strip(), true.strip()
    if sorted(said) != sorted(true):
        return 0.0
    most = len(true) ** 2 // 2
    return 1.0 - sum(abs(said.find(sign) - true.find(sign)) for sign in true) / most if most else 1.0


@pytest.mark.parametrize("true", ["3142", "1", "1213", "21\n", ""])
def test_orders_are_read_as_published_blanks_around_them_included(true):
    """The published code strips both sides, and looks for the first of equal signs in each."""
    signs, found = sorted(set(true.strip())), set()
    for length in range(5):
        for text in map("".join, itertools.product([*signs, "7"], repeat=length)):
            for said in (text, f"{text}\n", f" \t{text}\u3000", f"{text[:1]} {text[1:]}"):
                value = videossr.jigsaw(Case(completion=said, answer=true))
                assert value == pytest.approx(published_order(said, true)), (said, true)
                found.add(value)
    assert {0.0, 1.0} <= found


# -- all of them ------------------------------------------------------------------------------------------------------------

PUBLISHED = sorted(id for id in plugins.registry().specs("verifiers") if id.startswith("video/") and "@" in id)
TRUTHS = {"gqa": {"answer": "A", "glue": [[1, 2]]}, "tracking": [[0, 0, 1, 1]] * 8, "letter": "B", "answer": "the cat sat"}
TRUTHS |= {"ap": [[1.0, 2.0], [5.0, 9.0]], "hit": {"0": 4, "3": 2}}
HUGE = ("a", "(", "[", "1", " ", "\n", "1 to 2 ", "final answer ", "final answer: ", ": ", "<answer>", "</think><answer>")
HUGE += ("</answer> <glue>", "9-", "[[1,2,3,4],", "(1,2),", '{"a":', "\u0345\u0334", "<answer>1</answer>", "nan ", "Aa. ")


@pytest.mark.parametrize("id", mostly_slow(PUBLISHED, everyday=8))
def test_a_megabyte_of_anything_is_read_in_time(id):
    verify, spec = plugins.registry().make_verifier(id), plugins.registry().get("verifiers", id)
    name = id.partition("/")[2].split("@")[0].split("-")[0]
    truth = TRUTHS.get(name, {"anomaly": "1.0-2.0", "counting": "3,1,4", "jigsaw": "123"}.get(name, [1.0, 2.0]))
    for unit in HUGE:
        body, start = unit * (1_000_000 // len(unit)), time.process_time()
        for text in (body, f"<think>t</think><answer>{body}</answer>", f"<think>t</think><answer>A</answer><glue>{body}</glue>"):
            found = verify(Case(completion=text, answer=truth, meta={"problem_type": "free-form", "duration": 20.0}))
            value = found.value if isinstance(found, Score) else found
            assert spec.low <= value <= spec.high and math.isfinite(value)
        assert time.process_time() - start < 2, unit


def test_every_published_verifier_is_there():
    named = {
        "video-r1": "answer format",
        "temporal-r1": "tiou format",
        "timezero": "tiou format",
        "time-r1": "tiou format",
        "videochat-r1": "tiou format gqa-answer gqa-iou gqa-format tracking-iou tracking-format",
        "seed-bench-r1": "letter",
        "video-rts": "letter format",
        "videossr": "anomaly counting jigsaw",
        "qvhighlights": "ap hit saliency",
    }
    assert sorted(f"video/{name}@{system}" for system, names in named.items() for name in names.split()) == PUBLISHED
