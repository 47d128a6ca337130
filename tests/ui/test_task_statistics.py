"""Statistics of a preview: figures computed by hand, warnings, and hostile texts that must not break a page."""

import json
import re
from collections import Counter

import pytest
from click.testing import CliRunner
from PIL import Image

from mmrl import TaskSpec, VerifierSpec
from mmrl.ui.cli import main
from mmrl.ui.cli import preview as command
from mmrl.ui.report.survey_charts import cards, figures, payments
from mmrl.ui.report.text import esc
from mmrl.ui.task_statistics import TaskStatistics, _number

ODD = """
from mmrl import Overlay, NoGold, Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message
from mmrl.api.tasks.option_checks import LazyPrompts
from PIL import Image

@hookimpl
def mmrl_tasks():
    paid = {"odd/exact": 1.0, "odd/form": 0.5}
    return [
        TaskSpec(id="odd/sound", target="odd:Rows", verifiers=paid),
        TaskSpec(id="odd/low", target="odd:Rows", verifiers={"odd/low": 1.0, "odd/any": 0.0}, metric="odd/any"),
        TaskSpec(id="odd/paid", target="odd:Rows", verifiers={"odd/form": 1.0}, metric="odd/exact"),
        TaskSpec(id="odd/breaks", target="odd:Rows", verifiers={"odd/raises": 1.0}),
        TaskSpec(id="odd/missing", target="odd:Rows", verifiers={"odd/missing": 1.0}),
        TaskSpec(id="odd/nameless", target="odd:Rows", verifiers={"odd/exactly": 1.0}),
        TaskSpec(id="odd/same", target="odd:Same", verifiers=paid),
        TaskSpec(id="odd/unknown", target="odd:Unknown", verifiers=paid),
        TaskSpec(id="odd/hostile", target="odd:Hostile", verifiers=paid),
        TaskSpec(id="odd/wide", target="odd:Wide", verifiers=paid),
        TaskSpec(id="odd/marked", target="odd:Marked"),
        TaskSpec(id="odd/slow", target="odd:Slow"),
        TaskSpec(id="odd/empty", target="odd:Empty"),
    ]

@hookimpl
def mmrl_verifiers():
    specs = [VerifierSpec(id=f"odd/{name}", target=f"odd:{name}") for name in ("exact", "form", "low", "any", "raises")]
    return [*specs, VerifierSpec(id="odd/missing", target="nowhere_at_all:f")]

def exact(case): return float(case.completion == case.answer)
def form(case): return float(bool(case.completion))
def low(case): return 0.5 * (case.completion == case.answer)
def any(case): return 1.0
def raises(case): raise ValueError("it broke")

def prompt(i, text="What?", answer=None, **meta):
    message = user_message(text, Image.new("RGB", (40, 20)))
    return Prompt(id=f"row {i}", messages=[message], answer=answer or f"word {i % 5}", meta=meta)

class Rows(Task):
    def prompts(self, split, seed):
        return LazyPrompts(range(50), lambda i: prompt(i, difficulty=i // 25), difficulty=lambda i: i // 10)

class Same(Task):
    def prompts(self, split, seed):
        return [prompt(i, answer="yes", difficulty=i % 3, boxes=[(0, 0, 20, 10)]) for i in range(9)]

class Unknown(Same):
    def gold(self, prompt):
        raise NoGold("nobody knows")

BAD = '<script>alert(1)</script><img src=x onerror="alert(2)">\\u202e\\x00 &'

class Hostile(Task):
    def prompts(self, split, seed):
        made = [Prompt(id=BAD, messages=[user_message(BAD + str(i))], answer=BAD + str(i % 2)) for i in range(4)]
        return [*made, Prompt(id="long", messages=[user_message("word " * 2_000_000)], answer="<b>" * 100_000)]

class Wide(Task):
    def prompts(self, split, seed):
        return [Prompt(id=str(i), messages=[user_message("?")], answer=float(i)) for i in range(100)]

    def gold(self, prompt):
        return str(prompt.answer)

class Slow(Rows):
    def prompts(self, split, seed):
        import time
        return LazyPrompts(range(500), lambda i: (time.sleep(0.002), prompt(i))[1])

class Marked(Same):
    def overlays(self, prompt, completion):
        three, half = (Overlay(kind="box", coordinates=(0, 0, *rest), source="true") for rest in ((1,), (1, 0.5)))
        return [three, half, "no overlay"]

class Empty(Task):
    def prompts(self, split, seed):
        return []
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(ODD)
    return str(path)


@pytest.fixture
def odd(plugin, tmp_path, monkeypatch):
    """Preview a task of the plugin above: (exit code, lines of stdout, or of stderr after an error)."""
    monkeypatch.chdir(tmp_path)

    def preview(task, *args):
        done = CliRunner().invoke(main, ["--plugin", plugin, "preview", task, *map(str, args)])
        assert done.exit_code in (0, 2), done.exception
        return done.exit_code, done.stdout.splitlines() or done.stderr.splitlines()

    return preview


def page_of(tmp_path, task):
    return (tmp_path / f"preview-{task.replace('/', '-')}.html").read_text("utf-8")


def test_a_sound_task_has_nothing_odd(odd, tmp_path):
    _, lines = odd("odd/sound", "-n", 3, "--sample", 20)
    assert lines == [
        "preview-odd-sound.png, preview-odd-sound.html: 3 of 50 prompts of odd/sound, split train",
        "Sample of 20 prompts:",
        "  Difficulty: 0 to 4, median 2",  # of all 50 items, not from the prompts' meta
        lines[3],
        "  Length of prompts, in characters: 5 for all",
        "  Images: 1 per prompt, 40 x 20 for all",
        "  odd/exact: gold 1, empty 0, wrong 0",
        "  odd/form: gold 1, empty 0, wrong 1",
    ]
    assert re.fullmatch(r"  Answers: 5 different values among 20, most often word [0-4] \([4-9]\)", lines[3])
    page = page_of(tmp_path, "odd/sound")
    assert page.count('<article class="card group') == 3 and page.count("gold completion") == 3
    assert page.count("<b>empty completion</b>") == page.count("wrong completion (of another prompt)") == 3
    assert "Weight 0.5 in the reward; values from 0 to 1." in page and 'class="odd"' not in page
    assert 'aria-label="Histogram of Difficulty. 0: 10; 1: 10; 2: 10; 3: 10; 4: 10"' in page


def test_what_is_odd_is_told(odd, tmp_path):
    _, lines = odd("odd/low")
    told = [line.removeprefix("  warning: ") for line in lines if line.startswith("  warning: ")]
    assert told == [
        "odd/low gives 0.5, not 1, to the gold completion 'word 0' (50 of 50 tried get less): does it read what the task asks "
        "for, see `mmrl list tasks odd/low`?",
        "odd/any scores empty completions as high as gold ones, 50 of 50 times",
        "odd/any scores wrong answers as high as right ones, 50 of 50 times",
    ]
    assert page_of(tmp_path, "odd/low").count("<b>Warning:</b>") == 3
    plain, marked = (Image.open(tmp_path / f"preview-odd-{name}.png") for name in ("sound", "low") if odd(f"odd/{name}"))
    brown = (0x8A, 0x3C, 0x00)
    assert [brown in {colour for _, colour in sheet.getcolors(2**24)} for sheet in (plain, marked)] == [False, True]


def test_a_reward_that_wrong_answers_earn_is_told(odd):
    """Only the format verifier scores them alike, which alone gives no warning."""
    _, lines = odd("odd/paid")
    assert [line for line in lines if "warning:" in line] == [
        "  warning: the reward scores wrong answers as high as right ones, 50 of 50 times"
    ]


def test_verifiers_that_break_or_are_missing_cost_no_preview(odd, tmp_path):
    code, lines = odd("odd/breaks", "-n", 2, "--sample", 4)
    assert code == 0 and re.fullmatch(
        r"  warning: odd/raises failed on 12 of 12 completions, first with: .*ValueError: it broke.*", lines[-1]
    )
    code, lines = odd("odd/missing", "-n", 2)
    assert code == 0 and lines[-1].startswith("  warning: ") and "nowhere_at_all" in lines[-1]
    assert page_of(tmp_path, "odd/missing").count('<article class="card"><div class="prompt">') == 2


def test_a_verifier_that_nobody_has_is_told(odd):
    code, lines = odd("odd/nameless", "-n", 2)
    assert code == 0 and lines[-1].startswith("  warning: ") and "Did you mean 'odd/exact'" in lines[-1]


def test_one_answer_for_all_leaves_nothing_wrong_to_try(odd):
    _, lines = odd("odd/same", "-n", 1)
    assert lines[2:] == [
        "  Difficulty: 0 to 2, median 1",
        "  Area of gold boxes, share of the image: 25.0% for all",
        "  Length of prompts, in characters: 5 for all",
        "  Answers: yes for all",
        "  Images: 1 per prompt, 40 x 20 for all",
        "  odd/exact: gold 1, empty 0",
        "  odd/form: gold 1, empty 0",
    ]


def test_without_gold_only_nothing_is_tried(odd):
    code, lines = odd("odd/unknown")
    assert code == 0 and lines[-2:] == ["  odd/exact: empty 0", "  odd/form: empty 0"]


def test_hostile_text_stays_text(odd, tmp_path):
    code, lines = odd("odd/hostile", "--split", "test")
    page = page_of(tmp_path, "odd/hostile")
    assert code == 0 and "<script>alert" not in page and "<img src=x" not in page and "\u202e" not in page
    assert page.count("<script>") == 1 and "&lt;script&gt;alert(1)" in page and "default-src 'none'" in page
    assert len(page) < 500_000, "of 10 MB the middle is left out"
    assert not any("\x00" in line or "\u202e" in line for line in lines) and max(map(len, lines)) < 400
    assert not re.search(r'(?:src|href)="(?!data:)', page), "nothing leads elsewhere"


def test_sums_of_rewards_are_drawn_by_what_was_scored():
    """-1e6 to 1e6 is no scale: every bar would be half as long as the card."""
    spec = VerifierSpec(id="a/sum", target="-:-", low=-1e6, high=1e6, graded=True)
    for paid, lengths in (({"gold": [2.0], "empty": [0.0, 1.0]}, [1.0, 0.25]), ({"gold": [0.0]}, [0.0])):
        [figure] = payments(
            TaskStatistics(paid={"a/sum": paid}), TaskSpec(id="t/a", target="-:-", verifiers={"a/sum": 1.0}), {"a/sum": spec}
        )
        assert [bar.length for bar in figure.bars] == lengths
        assert figure.hint == "Weight 1 in the reward; the evaluation metric."


def test_answers_too_large_to_subtract_are_texts():
    assert [_number(text) for text in ("1e308", "-1e308", "1e300", "2")] == [None, None, 1e300, 2.0]


def test_numbers_are_binned(odd, tmp_path):
    _, lines = odd("odd/wide", "--out", "a.html")
    assert "  Answers: 0 to 99, median 49.5" in lines
    page = (tmp_path / "a.html").read_text("utf-8")
    (spoken,) = re.findall(r'aria-label="Histogram of Answers. ([^"]*)"', page)
    counts = [int(part.rpartition(": ")[2]) for part in spoken.split("; ")]
    # 99 / 16 wide: seven numbers from 0 to 6 lie below the first edge, 6.19, and six or seven in each of the others
    assert counts == [7, 6, 6, 6, 6, 7, 6, 6, 6, 6, 7, 6, 6, 6, 6, 7]


def test_time_bounds_the_sample_and_not_what_is_shown(odd, monkeypatch):
    monkeypatch.setattr(command, "LOOK_S", 0.0)
    _, lines = odd("odd/slow", "-n", 3)
    assert lines[0].endswith("3 of 500 prompts of odd/slow, split train")
    assert lines[1] == f"Sample of {command.AT_ONCE} prompts (stopped after 0 s):"


def test_one_prompt_is_shown_with_a_wrong_answer_of_another(odd, tmp_path):
    odd("odd/sound", "-n", 1, "--sample", 9)
    page = page_of(tmp_path, "odd/sound")
    wrote = re.findall(r"<pre>(word \d|<em>empty</em>)</pre>", page)
    assert wrote[0] == "word 0" and wrote[1] != "word 0" and wrote[2] == "<em>empty</em>", "by what they earn"


def test_overlays_that_can_not_be_drawn_are_left_out(odd, tmp_path):
    code, lines = odd("odd/marked")
    assert code == 0 and "  Area of gold boxes, share of the image: 50.0% for all" in lines


def test_an_empty_split_is_refused(odd):
    code, lines = odd("odd/empty")
    assert (code, lines) == (2, ["mmrl: task 'odd/empty' has no prompts in split 'train': check its options and data"])


def test_tokens_are_counted_where_a_model_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        main, ["preview", "classification/digits", "-n", "2", "--sample", "5", "--model", "tiny:qwen2_5_vl", "--set", "size=50"]
    )
    assert done.exit_code == 0, done.output
    found = dict(line.strip().split(": ", 1) for line in done.stdout.splitlines()[2:])
    page = page_of(tmp_path, "classification/digits")
    assert found["Images"] == "1 per prompt, 50 x 50 for all" and "56 by 56 pixels" in page and "50 by 50" not in page
    # 56 x 56 pixels in patches of 14, four of which are one token, between a beginning and an end
    assert found["Tokens of images"] == "6 for all" and int(found["Length of prompts, in tokens"].split()[0]) > 12
    assert "in characters" not in done.stdout


def test_an_acting_task_shows_its_instructions_and_what_an_outcome_gets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["preview", "robotics/reach", "-n", "2"])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and lines[1] == "Sample of 2 prompts:" and lines[-1] == "  robotics/success: success 1, failure 0"
    assert any(line.startswith("  Instructions: ") for line in lines)
    assert page_of(tmp_path, "robotics/reach").count('<article class="card"><div class="prompt">') == 2


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        ("aabbccddeeffgh", "; the 6 most frequent are shown, 2 more are not"),
        ("aaabbcd" + "efghij", "; the 2 most frequent are shown, 8 more are not"),  # nothing is said by a bar of one
        ("aabbccddeeff", ""),
        ("abcdefgh", ""),  # all differ, so that there are no bars
    ],
)
def test_a_chart_says_how_many_answers_it_leaves_out(answers, more):
    [figure] = figures(TaskStatistics(answers=Counter(answers)))
    assert figure.above == figure.said + more and f"<p>{esc(figure.above)}</p>" in cards([figure])
    assert "shown" not in figure.said


def test_a_survey_without_anything_has_no_figures():
    assert figures(TaskStatistics()) == [] and cards([]) == ""


def test_boxes_and_spans_are_measured_on_their_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (100, 50)).save(tmp_path / "a.png")
    rows = [{"image": "a.png", "sent": f"thing {i}", "bbox_2d": [0, 0, 10 * i, 50]} for i in (1, 5)]
    (tmp_path / "refs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    args = ["grounding/refer-data", "--set", "path=refs.jsonl", "--set", "shares={train = 1.0}"]
    done = CliRunner().invoke(main, ["preview", *args])
    assert "  Area of gold boxes, share of the image: 10.0% to 50.0%, median 30.0%" in done.stdout.splitlines(), done.output
