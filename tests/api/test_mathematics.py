"""math-verify within bounds: what it calls equal, what it is not given, and that deciding this takes no time."""

import subprocess
import sys
import time

import pytest

from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.mathematics import MAX_MATH, answers_match, is_too_expensive, parse_math, verify_parsed

EQUAL = [  # completion, answer
    ("so it is **747**", "747"),
    ("$\\frac{1}{2}$", "0.5"),
    ("$(x+1)^2$", "$x^2+2x+1$"),
    ("$2^2+3^2$", "13"),
    ("$2^{10}$", "1024"),
    ("$3\\cdot 10^{-2}$", "0.03"),
    ("$10^{0.6989}$", "$10^{0.6989}$"),
    ("$\\binom{10}{3}$", "120"),
    ("$5!$", "120"),
    ("2**5", "32"),
    ("it is 90, more or less (really)!", "90"),
    # what stands before the answer would take long, and isn't read
    ("We have $A = 1000(1+0.05)^{10}$, so the answer is \\boxed{1628.89}.", "1628.89"),
    ("$2^{10}, 2^{11}, 2^{12}, 2^{13}$ and $2^{14}$ make \\boxed{5}", "5"),
    ("There are $100!$ orders, $e^{-x^2/2}$ and $x^{2^n}$. The answer is $\\frac{1}{2}$", "0.5"),
]
UNEQUAL = [
    ("747", "748"),
    ("no number", "747"),
    ("747", "no number"),
    ("", ""),
    ("$x$", "$y$"),
    ("so **747** it is, **not** 1", "747"),
]
HARMLESS = [
    *("$x^{2n+1}$", "$e^{i\\pi}+1$", "$f^{-1}(x) = 12345$", "$90^\\circ$ (about 12345 m)", "$\\frac{1}{2}$ (done)!", "$a^{b}$"),
    *("**12345**", "It is **12345**, not **54321**.", "$x^{\\frac{1}{2}}$", "$\\sqrt{2}^2$", "$A^T$", "x^2 + y^2 = 25", "a ^ b"),
    *(
        "$\\Gamma(\\frac{1}{2})$",
        "$\\gamma(t^2)$",
        "$\\{1,2,3\\}$",
        "$(0,1)\\cup(2,3)$",
        "|a|-|b|, " * 200,
        "It costs $5. " + "a, b and c " * 200,
        "It costs $5\nand " + "more words " * 90 + "$x$ " + "more words " * 90 + "$y$",
        "One of 5$ " + "more words " * 90 + "and $x$",
        "\\boxed{\\text{" + "words " * 200 + "}} " + "words " * 200,
        "$x$ " * 500 + "[" + "words " * 200,
    ),
]
HOURS = [
    # a power in an exponent, however it is bracketed
    *("$9^{9^{9}}$", "9**9**9**9", "9 ** 9 ** 9", "$9^{((9)^9)}$", "$2^{(99)^{9}}$", "$7^{\\left(9\\right)^{9}}$", "2^((9)^9)"),
    *("$7^{\\sqrt{81}^9}$", "$7^\\sqrt{81}^9$", "$9^{|9|^9}$", "$e^{e^{e^{99}}}$", "$\\exp(\\exp(\\exp(100)))$", "$x^x^x^x$"),
    # a large exponent, written out, added, multiplied, divided
    *("2^99999", "2**99999", "2 ** 99999", "$x^{99999999}$", "$7^{+999999999}$", "$7^{1+99999999}$", "2**(1+9999999999)"),
    *("$7^{1\\cdot 9999999999}$", "$7^{99\\cdot99\\cdot99\\cdot99}$", "$7^{\\frac{9999999999}{1}}$", "$7^\\frac{9999999999}{1}$"),
    *("$7^\\left(99999999\\right)$", "$7^{9!}$", "$7^{\\binom{99}{9}}$", "$(x+y+z+1)^{999}$", "$(x+y+z+w+a+b+c+d)^{20}$"),
    # factorials and binomials
    *("$99999!$", "$(99999)!$", "$9!!$", "$99^{99}!$", "$(99\\cdot99\\cdot99)!$", "$\\binom{99999999}{4999999}$"),
    *("$\\binom{9^{99}}{9^{9}}$", "${99999999 \\choose 4999999}$", "(" * 140 + "x" + ")" * 140),
    *(
        "$\\Gamma(10^9)$",
        "$\\Gamma{99999999}$",
        "$\\gamma\\left(99\\cdot99\\right)$",
        "$\\Gamma(\\Gamma(20))$",
        "$\\lfloor 10^{9}\\rfloor !$",
    ),
    # long sets, sums and unions
    *("$\\{" + ",".join(map(str, range(2000))) + "\\}$", "\\(" + "|x|+" * 300 + "1\\)", "\\boxed{" + "x^2+" * 600 + "1}"),
    # long products, numbers, many boxes and integrals
    *(begin + "xyz" * 150 + end for begin, end in (("\\boxed{", "}"), ("$", "$"), ("$$\n", "$$"), ("\\(", "\\)"), ("5$ $", "$"))),
    *("\\[" + "x7" * 250 + "\\]", " [" + "x y" * 250 + "] ", "$5\n$" + "\\pi" * 500 + "$", "$a \\boxed{" + "x" * 500 + "}$"),
    *("0." + "7" * 9000, "\\boxed{7}" * 150, "$" + "\\int_0^1 x dx" * 6 + "$"),
    "$" + "\\cup".join(f"({i},{i + 1})" for i in range(60)) + "$",
]


@pytest.mark.parametrize("completion, answer", EQUAL)
def test_equal(completion, answer):
    assert answers_match(completion, answer)


@pytest.mark.parametrize("completion, answer", UNEQUAL)
def test_unequal(completion, answer):
    assert not answers_match(completion, answer)


def test_nothing_equals_nothing():
    found = parse_math("$7$")
    assert found and verify_parsed(found, found)
    assert not verify_parsed([], found) and not verify_parsed(found, []) and not verify_parsed([], [])


def test_what_can_not_be_compared_is_unequal_and_what_needs_too_much_memory_fails(monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(mathematics.math_verify, "verify", fails)
    error = RecursionError
    assert answers_match("7", "7") is False
    error = MemoryError
    with pytest.raises(MemoryError):
        answers_match("7", "7")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_takes_no_time_is_compared(text):
    assert not is_too_expensive(text)


FOUND = [
    *("$1$ and $2$ or $x$", "\\boxed{1} and \\boxed{2}", "\\boxed{1} then \\boxed{2}", "the final answer is $3$. I hope 4"),
    *("answer: 7, or $8$", "$\\foo{$ 9", "$\\foo{$", "\\boxed{\\foo{}", "[1, 2]", "so 50% or \\$5", "", "B", "(A) 5", "$x=1=2$"),
    *("1/2 1/3", "$$a$$", "**10^3**", "it is **10^{3}** in all", "answer: $(1+x)^{10}$", "$a \\boxed{3}$ and {}"),
    "\\boxed{9^{9^9}} and " + "many words " * 10 + "\\boxed{2} and {more}",
]


@pytest.mark.parametrize("text", [*FOUND, *(text for pair in EQUAL for text in pair)])
@pytest.mark.parametrize("letters", [False, True])
def test_the_same_is_found_as_by_math_verify(text, letters):
    config = {"extraction_config": mathematics._LETTERS} if letters else {}
    assert parse_math(text, letters) == mathematics.math_verify.parse(text, parsing_timeout=0, **config)


def test_a_formula_that_takes_hours_is_not_read_where_it_is_the_answer():
    assert parse_math("$1$ and then $9^{9^{9}}$") == parse_math("\\boxed{9^{9^{9}}} or $1$") == []
    assert parse_math("so [" + "|x|+" * 300 + "1] ") == parse_math("so [" + "|x|+" * 300 + "1\\)] ") == []
    for first in ("\\boxed{9^{9^{9}}}", "\\boxed{1}, \\fbox{9^{9^{9}}}", "\\boxed{1} and \\boxed{9^{9^{9}}}"):
        assert parse_math(f"{first} and \\boxed{{2}} }}") == []
    assert parse_math("$9^{9^{9}}$, and then $1$") != []


@pytest.mark.parametrize("text", HOURS, ids=lambda t: t[:30])
def test_what_would_take_hours_is_nothing(text):
    assert is_too_expensive(text) and parse_math(text) == []
    assert not answers_match(f"The answer is {text}.", "7")


def test_the_length_is_bounded():
    assert is_too_expensive("7 " * (MAX_MATH // 2 + 1)) and not is_too_expensive("7 " * (MAX_MATH // 2))


STEP = "So $x_1 = 3$ and (see above) \\boxed{3}? But this is more than seventy characters, I would say, and not yet the end.\n"
LONG = STEP * (2 * MAX_MATH // len(STEP))


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\n{LONG}</think>\n\nThe answer is \\boxed{{\\frac{{1}}{{2}}}}.",
        f"<think>\n{LONG}</think>\n<answer>$0.5$</answer>",
        f"{LONG}</think>1/2",  # in other trainers the prompt has the sign that begins the thinking
        f"{LONG}Therefore \\boxed{{1/2}}",
        f"<think>{'(note ' * 60}</think>$\\frac{{1}}{{2}}$",  # short, with brackets that don't close
    ],
)
def test_the_answer_behind_a_long_thought_is_compared(text):
    """Of texts of more than 20,000 characters nothing was read, so that whoever thought for long was never right."""
    assert answers_match(text, "0.5") and not answers_match(text, "3")


@pytest.mark.parametrize("text", [f"<think>\n{LONG}", f"<think>\n{LONG}</think>", "\\boxed{3}" + " 7" * MAX_MATH])
def test_a_long_thought_without_an_answer_is_none(text):
    assert parse_math(text) == []


def test_what_is_read_of_a_long_text_begins_with_a_line():
    """Else the words between two formulas could stand between dollars."""
    line = "$1$ is 2 and $3$ is 4"
    assert parse_math(f"{line} " * 2000) == [] and parse_math(f"{line}\n" * 2000) == parse_math(line) != []


def test_the_formulas_that_can_not_be_read_are_bounded():
    assert parse_math("$x_$ " * mathematics.MAX_TRIED) == ["x_"] and parse_math("$x_$ " * (mathematics.MAX_TRIED + 1)) == []


UNITS = [
    *(
        "^",
        "^{",
        "^(",
        "x^",
        "^ ",
        "^+",
        "^- ",
        "{",
        "(",
        "7 ",
        "9",
        "9*",
        "9! ",
        "a",
        "\\",
        "\\a ",
        "^\\a ",
        "^\\frac",
        "** ",
        "7 **",
    ),
    *(
        "exp",
        "exp(",
        "!",
        "binom{",
        "^{1}",
        " ",
        "\\left(",
        "9*9+",
        ")",
        "^9",
        "\\Gamma(",
        "\\Gamma(9",
        "\\cup",
        "$",
        "1,",
        "\\(",
        "\\boxed{",
        " [",
        "\\int",
    ),
]


@pytest.mark.parametrize("unit", UNITS)
def test_deciding_takes_no_time_itself(unit):
    for before in ("", "$", "^{", "$^", "$9", "exp("):
        start = time.process_time()
        is_too_expensive(before + unit * ((MAX_MATH - len(before)) // len(unit)))
        assert time.process_time() - start < 0.5


@pytest.mark.parametrize("unit", ["\\[", "\\(", "final answer is \\[", "$$ "])
@pytest.mark.parametrize("before", ["", "<think>" + "\\boxed{" * 9000 + "</think>\n", "x\n" * MAX_MATH])
def test_no_text_takes_long_to_look_through(unit, before):
    start = time.process_time()
    parse_math(before + unit * ((MAX_MATH - 1) // len(unit)))
    assert time.process_time() - start < 3


def test_without_math_verify_it_says_what_to_install():
    code = """
import sys
sys.modules["math_verify"] = None
from mmrl import UserError
try:
    import mmrl.api.verifiers.mathematics
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == 'comparing formulas needs math_verify: pip install "multimodal-rl[mathematics]"'
