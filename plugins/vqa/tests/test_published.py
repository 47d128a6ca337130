"""The published rewards: the patterns that they were written with, their faults, and no input that takes long."""

import itertools
import json
import math
import re
import time
from pathlib import Path

import pytest
from mmrl_vqa import maye_rewards, mm_eureka, r1_reward, r1_v, seed_bench, vision_sr1, vl_rethinker, vlm_r1

from mmrl import Case, Score
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Status, Turn
from mmrl.registry import plugins

VERIFIERS = {
    **{"answer": vlm_r1.answer, "choice": vlm_r1.choice, "yes-no": vlm_r1.yes_no, "match": vlm_r1.match, "form": vlm_r1.form},
    **{"length": vlm_r1.length, "repetition": vlm_r1.repetition, "r1-form": r1_reward.form, "r1-reward": r1_reward.reward},
    **{"seed-letter": seed_bench.letter, "eureka": mm_eureka.reward, "r1-v": r1_v.accuracy},
    **{"rethinker": vl_rethinker.reward, "sr1-form": vision_sr1.form},
}


def value(verify, completion, answer=None, **meta):
    got = verify(Case(completion=completion, answer=answer, meta=meta))
    return got.value if isinstance(got, Score) else got


def test_the_golden_rows_are_all_matched():
    path = Path(__file__).parents[3] / "tests" / "golden" / "rewards.jsonl"
    if not path.exists():
        pytest.skip("the golden table is not part of this package")
    rows = [row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if row["verifier"].startswith("vqa/")]
    assert len(rows) == 132
    for row in rows:
        verify = plugins.registry().make_verifier(row["verifier"])
        assert value(verify, row["completion"], row["answer"], **row["meta"]) == pytest.approx(row["reward"], abs=2e-6), row


def strings(tokens, most):
    return ("".join(parts) for n in range(most + 1) for parts in itertools.product(tokens, repeat=n))


def test_forms_equal_the_published_patterns_on_all_short_texts():
    f1 = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
    f6 = re.compile(r"^<think>.*?</think><answer>.*?</answer>$", re.DOTALL)
    for text in strings(["<think>", "</think>", "<answer>", "</answer>", "a", "\n"], 6):
        assert value(vlm_r1.form, text) == bool(f1.fullmatch(text)), text
        once = text.count("<think>") == 1 and text.count("<answer>") == 1
        assert value(r1_reward.form, text) == (bool(f6.match(text)) and once), text


def test_the_form_of_mm_eureka_equals_its_pattern_on_all_short_texts():
    once = "".join(rf"(?!.*{tag}.*{tag})" for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    published = re.compile(rf"^{once}.*<think>(.+?)</think>\s*<answer>.+?</answer>.*$", re.DOTALL)
    for text in strings(["<think>", "</think>", "<answer>", "</answer>", "a", "\n"], 6):
        assert mm_eureka.has_form(text) == bool(published.search(text)), text


@pytest.mark.parametrize("end", ["<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|endoftext|>"])
def test_mm_eureka_reads_no_tokens_that_end_an_answer(end):
    """As ModalMinds/MM-EUREKA @bccddd7 does in `get_response_from_query`, wherever they stand."""
    assert value(mm_eureka.reward, f"<think>a</think><answer> 1{end}2 </answer>{end}", "12") == 1.5
    assert value(mm_eureka.accuracy, f"\\boxed{{{end}50%}}", "50%") == 1
    assert value(mm_eureka.reward, f" {end} ", "") == 0


ANSWERED = [  # ran the released code at the commits of tests/support/golden_answers.py and golden_maye.py, with math-verify 0.9.0
    ("r1-v", "<think>We have $A = 1000(1+0.05)^{10}$.</think><answer>\\boxed{1628.89}</answer>", "$1628.89$", 1.0),
    ("eureka", "<think>There are $100!$ orders.</think><answer> $(1+0.05)^{10}$ </answer>", "(1+0.05)^{10}", 1.5),
    ("rethinker", "Since $(a+b+c)^{4} = 81$ and $e^{-x^2/2} > 0$, the answer is $3$", "3", 1.0),
    ("seed-letter", "With $x^{2^n}$ and $(x+y+z)^5$ we have 12. <answer>\\boxed{12}</answer>", "$12$", 1.0),
    ("maye", "<think>So $2^{2^3}$ is 256</think> and (3)^4 makes \\boxed{81}", "\\boxed{81}", 2.0),
]


@pytest.mark.parametrize("name, text, truth, reward", ANSWERED)
def test_formulas_before_the_answer_do_not_matter(name, text, truth, reward):
    """They would take long, or hours, but math-verify doesn't read them."""
    assert value({**VERIFIERS, "maye": maye_rewards.reward}[name], text, truth) == pytest.approx(reward)


def test_the_form_of_vision_sr1_equals_its_pattern_on_all_short_texts():
    blanks = r"<description>.*?</description>\s*<think>.*?</think>\s*\\boxed\{.*?\}\s*$"
    published = re.compile(rf"^\s*{blanks}", re.DOTALL)
    tokens = ["<description>", "</description>", "<think>", "</think>", "\\boxed{", "}", "<description>a</description><think>"]
    for text in strings(tokens, 5):
        assert value(vision_sr1.form, text) == bool(published.fullmatch(text)), text


def test_boxes_equal_the_published_patterns_on_all_short_texts():
    bare = re.compile(r'\[\s*{.*?"bbox_2d".*?"label".*?}\s*\]', re.DOTALL)
    for text in strings(["[", "{", '"bbox_2d"', '"label"', "}", "]", " "], 6):
        found = bare.search(text)
        assert vlm_r1._bare(text) == (found.group(0) if found else None), text
    for text in strings(["```", "json", "a", "\n", "`"], 6):
        for pattern, opening in ((r"```json(.*?)```", "```json"), (r"```(.*?)```", "```")):
            found = re.search(pattern, text, re.DOTALL)
            assert vlm_r1._fenced(text, opening) == (found.group(1).strip() if found else None), text


def published_letter(text):
    """Written after the published description, one occurrence after the other."""
    text = re.sub(r"\s+", " ", text.upper())
    choices = re.findall(r"(?<![A-Z])([A-Z])(?=[\.\,\?\!\:\;]|$)", text)
    if len(choices) < 2:
        return choices[0] if choices else None
    scores = dict.fromkeys(choices, 0)
    for one in choices:
        at = text.find(one)
        scores[one] += sum(hint in text[max(0, at - 20) : at + 20] for hint in vlm_r1._HINTS)
        scores[one] += 2 * (at > len(text) * 0.7) + (at < len(text) - 1 and text[at + 1] in "。.!！,，")
    return max(scores.items(), key=lambda pair: pair[1])[0]


def test_letters_equal_the_published_rule_on_all_short_texts():
    for text in strings(["A", "b", ".", " ", ", ", "so ", "answer ", "C:"], 5):
        assert vlm_r1.letter(text) == published_letter(text), text


def test_cleaning_equals_the_published_substitutions_on_all_short_texts():
    for text in strings(["a", "B", " ", "\n", "\r", ".", "<answer>", "</answer>"], 5):
        inside = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        wanted = inside[-1] if inside else text
        for end in ("\n", "\r"):
            wanted = re.sub(r"(?<!\s)" + end, " ", re.sub(r"(?<=\s)" + end, "", wanted))
        assert vlm_r1.clean(text) == wanted.strip().rstrip(".").lower(), text


def test_yes_or_no_is_the_first_among_the_letters():
    for text in strings(["yes", "no", "n", "o", "ye", "s", " "], 5):
        found = re.search("(yes|no)", text)
        assert vlm_r1._yes_or_no(text) == (found[1] if found else ""), text


ANSWERS = [  # completion, answer, default accuracy of VLM-R1
    ("<answer>12 window</answer>", "12 apples", 1),
    ("<answer>golden</answer>", "golden retriever", 2 * 6 / 22),
    ("golden retriever", "<answer> golden retriever </answer>", 1),
    ("<answer>4</answer><answer>3</answer>", "3", 1),
    ("<answer>nan</answer>", "7", 0),
    ("<answer>1_0</answer>", "10", 1),
    ("<answer>\\frac{1}{2}</answer>", "0.25", 2 * 1 / 15),
    ("<answer>$\\frac{1}{2}$</answer>", "0.5", 1),
    ("", "cat", 0),
    ("", "", 1),
    ("<answer>(A)</answer>", "A", 0),
    ("<answer>A.</answer>", "A", 1),
]


@pytest.mark.parametrize("completion, answer, wanted", ANSWERS)
def test_default_accuracy(completion, answer, wanted):
    assert value(vlm_r1.answer, completion, answer) == pytest.approx(wanted)


def test_the_rows_method_is_obeyed():
    assert value(vlm_r1.answer, "<answer>I know</answer>", "no", accu_reward_method="yes_no") == 1
    assert value(vlm_r1.answer, "<answer>Both A. and E.</answer>", "E", accu_reward_method="mcq") == 1
    assert value(vlm_r1.answer, "<answer>catt</answer>", "cat", accu_reward_method="all_match") == 0
    assert 0 < value(vlm_r1.answer, "<answer>catt</answer>", "cat", accu_reward_method="default") < 1


REPETITIONS = [
    ('```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "a"}, {"bbox_2d": [1, 2, 3, 4], "label": "a"},]\n```', -0.5),
    ('```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "a"}, {"bbox_2d": [1, 2, 3, 4], "label": "a"}, {"bbox_2d": [1, 2\n```', -0.5),
    ("```json\n[{'bbox_2d': [1, 2, 3, 4], 'label': 'a'}, {'bbox_2d': [1, 2, 3, 4], 'label': 'a'}]\n```", -0.5),
    # what json_repair makes of lists that are no JSON
    ("```\n[{'bbox_2d': [1, 2, 3, 4], 'label': \"it's\"}, {'bbox_2d': [1, 2, 3, 4], 'label': \"it's\"},]\n```", -0.5),
    ('```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "a"}\n{"bbox_2d": [1, 2, 3, 4], "label": "a"}]\n```', -0.5),
    ('[{"bbox_2d": [1, 2, 3, 4,], "label": "a",}, {"bbox_2d": [1, 2, 3, 4], "label": a}]', -0.5),
    ("```json\n[" + '{"bbox_2d": [1, 2, 3, 4], "label": "ab"}, ' * 2 + '{"bbox_2d": [1, 2, 3, 4], "label": "a\n```', -1 / 3),
    ("```json\n[" + '{"bbox_2d": [1, 2, 3, 4], "label": "a"} ' * 300 + "\n```", -1 + 10 / 2097),  # too long: 2102 words
    ("```json\n[" + "{'bbox_2d': [1, 2, 3, 4], 'label': \"it's\"}, " * 300 + "]\n```", -1 + 1 / 300),
    ("```json\n[" + "{" * 100_000 + "\n```", 0),
    ('[{"bbox_2d": [1, 2, 3, 4], "label": "a"}, {"bbox_2d": [1, 2, 3, 4.0], "label": "a"}]', 0),
    ("```json\n[]\n``` " + "a " * 12, -0.6),  # 15 words: 10 runs, 4 of them different
    ("```json\n[1, 2]\n```", 0),
    ('```json\n{"bbox_2d": 1, "label": 2}\n```', 0),
    ('```json\n["bbox_2d label"]\n``` ' + "a " * 12, 0),
    ("", 0),
]


@pytest.mark.parametrize("completion, wanted", REPETITIONS, ids=lambda v: repr(v)[:40])
def test_repetition(completion, wanted):
    assert value(vlm_r1.repetition, completion) == pytest.approx(wanted)


def episode(tokens, status=Status.FINISHED):
    turn = Turn(observed_ids=(1,), token_ids=tuple(range(tokens)), logprobs=(0.0,) * tokens, text="x")
    rollout = Conversation(prompt=Prompt(messages=[]), group=0, turns=(turn,), status=status)
    return Case(completion="x", status=status, rollout=rollout)


@pytest.mark.parametrize(
    "tokens, wanted", [(0, 1.0), (512, 0.75), (1024, 0.5), (2048, 1.0), (256, 0.5 + 0.5 * (1 + math.sqrt(0.5)) / 2)]
)
def test_the_length_reward_falls_and_climbs_again_right_or_wrong(tokens, wanted):
    assert vlm_r1.length(episode(tokens + 1)) == pytest.approx(wanted)  # and the end token
    assert vlm_r1.length(episode(tokens, Status.TRUNCATED_LENGTH)) == pytest.approx(wanted)
    assert vlm_r1.length(Case(completion="word " * tokens, answer="wrong")) == pytest.approx(wanted)


R1 = [  # completion, accepted answers, reward
    ("<think>a</think><answer>1</answer>", ["1"], 1.5),
    ("<think>a</think><answer>2</answer>", ["1"], 0.5),
    ("<think>a</think> <answer>1</answer>", ["1"], 1.0),
    ("<answer>The best answer is 1</answer>", ["2", "1"], 1.0),
    ("the answer is 1.", "1", 1.0),
    ("x = 3/4", ["0.75"], 1.0),
    ("<think></think><answer></answer>", ["1"], 0.5),
    ("nothing", ["1"], 0.0),
    ("nothing", [1], 1.0),  # a number where a text should be: the published fault
    ("", ["1"], 0.0),
]


@pytest.mark.parametrize("completion, answer, wanted", R1)
def test_r1_rewards_combination(completion, answer, wanted):
    assert value(r1_reward.reward, completion, answer) == wanted


@pytest.mark.parametrize(
    "completion, answer, wanted",
    [
        ("<answer>Apple</answer>", "A", 1),
        ("<answer>(C)</answer>", "C", 0),
        ("A", "A", 0),
        ("it is 7", "7", 1),
        ("<answer> </answer>", "A", 0),
    ],
)
def test_seed_bench_compares_the_first_sign(completion, answer, wanted):
    assert value(seed_bench.letter, completion, answer) == wanted


SLOW_FORMULAS = (
    "$\\Gamma(10^9)$",
    "$\\{" + ",".join(map(str, range(2000))) + "\\}$",
    "$" + "\\cup".join(f"({i},{i + 1})" for i in range(60)) + "$",
)


@pytest.mark.parametrize("formula", SLOW_FORMULAS, ids=lambda f: f[:8])
def test_seed_bench_goes_on_after_a_formula_that_takes_long(formula):
    """As after the published timeout: the first sign decides. The judge would end a verifier that compared them."""
    start = time.process_time()
    assert value(seed_bench.letter, f"{formula} <answer>7 cups</answer>", "7") == 1
    assert value(seed_bench.letter, formula, "7") == 0
    assert time.process_time() - start < 2


UNITS = [
    "a",
    "A. ",
    "<answer>",
    "<answer>a</answer>",
    "</think> ",
    "<think>",
    "(",
    "7 ",
    "\n",
    "\r\n ",
    "\u0316\u0301",
    "$",
    "{",
    "[{",
]
UNITS += ["```", "```json[", '"bbox_2d"', "\\frac{1}{", "} ]", '[ {"bbox_2d""label"', " is ", "no"]


@pytest.mark.slow
@pytest.mark.parametrize("name", VERIFIERS)
def test_no_input_takes_long(name):
    for i, unit in enumerate(UNITS):
        for form, size in (("{}", 1_000_000 if i < 6 else 200_000), ("{}", 19_000), ("<answer>{}</answer>", 19_000)):
            start = time.process_time()
            got = value(VERIFIERS[name], form.replace("{}", unit * (size // len(unit))), "A 7")
            assert -1 <= got <= 1.5 and time.process_time() - start < 4, (unit, size, form)


@pytest.mark.parametrize(
    ("status", "text", "reward"),
    [
        (Status.FINISHED, "<think>a</think> \\boxed{12}", 2.0),
        (Status.TRUNCATED_LENGTH, "<think>a</think> \\boxed{12}", -0.1),
        (Status.FINISHED, "<think>a</think> \\boxed{13}", 1.0),
        (Status.FINISHED, "\\boxed{12}", 1.0),
        (Status.FINISHED, "", -0.1),
        (Status.FINISHED, "\u60f3\u60f3ab", -0.05),
    ],
)
def test_mayes_reward_with_its_penalty_for_answers_without_an_end(status, text, reward):
    prompt = Prompt(id="a", messages=[])
    turn = Turn(text=text, observed_ids=(1,), token_ids=(1,), logprobs=(0.0,))
    rollout = Conversation(prompt=prompt, group="a", turns=(turn,), status=status)
    assert maye_rewards.reward(Case(completion=text, answer="12", rollout=rollout)).value == pytest.approx(reward)


def test_mayes_reward_takes_no_longer_for_hostile_text():
    for text in ("<think>" * 30_000, "boxed," * 30_000, "\\pm," * 50_000, "boxed.\u60f3" * 20_000, "\\boxed{" + "9," * 90_000):
        start = time.process_time()
        maye_rewards.reward(Case(completion=text, answer="12"))
        assert time.process_time() - start < 3
