"""Our verifiers. Completions may be hostile: every function here is linear in their length, or bounds it first.

Two texts are the same answer when they are equal in Unicode NFC and without regard to case, with `_`, blanks and hyphens inside
words alike, blanks around removed and one full stop at the end ignored. An empty answer is never right.
"""

from __future__ import annotations

import re
import unicodedata

from mmrl import Case, Score
from mmrl.api.verifiers.calibration import brier
from mmrl.api.verifiers.parse import nfc, only_answer, without_thinking

MAX_LENGTH = 50_000
"""Characters of a completion that `contains` reads."""
MAX_MENTIONS = 8
"""Maximum of occurrences of the answer in `contains`: more is a loop."""
DASHES = {ord(c): "-" for c in "\u2010\u2011\u2012\u2013\u2014\u2212"}


def exact(case: Case) -> float:
    """1 when the completion, without its thinking, is the answer and nothing else.

    Known exploits: none; a model that explains itself gets 0 however right it is.
    """
    return float(same(without_thinking(case.completion), answer_of(case)))


def answer(case: Case) -> Score:
    """1 when the one `<answer>...</answer>` of the completion holds the answer; it may follow a `<think>...</think>`.

    Known exploits: the text around the tag is not read, so a guess at the end of any reasoning counts as much as knowledge.
    Two answer tags, a tag inside the think block and a list of labels inside the tag give 0.
    """
    text, why = only_answer(case.completion)
    if text is None:
        return Score(0.0, detail=why)
    return Score(float(same(text, answer_of(case))), detail=f"answered {text.strip()[:60]!r}")


def calibration(case: Case) -> Score:
    """RLCR's calibration reward, 1 - (confidence - correct)^2, for `<answer>` followed by `<confidence>`; see `brier`.

    Known exploits: a wrong answer with confidence 0 gets 1, so it is for use beside `answer`, with no more than its weight.
    """
    return brier(case.completion, answer(case).value == 1.0)


def contains(case: Case) -> Score:
    """1 when the answer occurs behind the thinking as whole words and no other label of `meta["labels"]` does.

    The longest label counts, so "boston terrier" does not also mention "terrier". Languages written without spaces between
    words need `exact` or `answer`.
    Known exploits: "not a cat" mentions a cat; without `meta["labels"]` a list of everything contains the answer.
    """
    if len(case.completion) > MAX_LENGTH:
        return Score(0.0, detail=f"longer than {MAX_LENGTH:,} characters")
    target = tuple(words(answer_of(case)))
    if not target:
        return Score(0.0, detail="the answer has no words")
    found = mentions(
        words(without_thinking(case.completion)), {target, *(tuple(words(str(label))) for label in case.meta.get("labels", ()))}
    )
    seen = {" ".join(m) for m in found}
    right = set(found) == {target} and len(found) <= MAX_MENTIONS
    return Score(float(right), detail=f"mentions {', '.join(sorted(seen)[:5]) or 'no label'}")


def form(case: Case) -> float:
    """1 when the completion is one `<think>...</think>` and one `<answer>...</answer>`, neither empty, and blanks at most.

    Known exploits: the text in the tags is not read; combine it with a reward for the answer.
    """
    text = case.completion.strip()
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return 0.0
    head, _, rest = text.partition("</think>")
    return float(
        head.startswith("<think>")
        and rest.lstrip().startswith("<answer>")
        and rest.endswith("</answer>")
        and bool(head[7:].strip())
        and bool(rest.strip()[8:-9].strip())
    )


def answer_of(case: Case) -> str:
    return "" if case.answer is None else str(case.answer)


def same(text: str, answer: str) -> bool:
    """Both are the same answer; see the top of this file."""
    if len(text) > 8 * len(answer) + 256 or not answer.strip():  # no longer text can be folded into this answer
        return False
    return normalise(text) == normalise(answer)


def normalise(text: str) -> str:
    """The form in which answers are compared."""
    spaced = re.sub(r"(?<=\w)-(?=\w)", " ", fold(text).replace("_", " "))
    plain = " ".join(spaced.split())
    return plain.removesuffix(".").rstrip() or plain


def fold(text: str) -> str:
    return nfc(nfc(text).casefold()).translate(DASHES)


def words(text: str) -> list[str]:
    """Runs of letters, marks and digits; a minus sign and a decimal point belong to their number."""
    text = fold(text)
    return "".join(c if unicodedata.category(c)[0] in "LMN" or _in_number(text, i) else " " for i, c in enumerate(text)).split()


def _in_number(text: str, i: int) -> bool:
    before, after = text[max(i - 1, 0) : i], text[i + 1 : i + 2]
    return after.isdigit() and (before.isdigit() if text[i] in ".," else text[i] == "-" and not before.isalnum())


def mentions(text: list[str], labels: set[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The labels that occur in a text, as often as they do, but for those inside the mention of a longer one."""
    lengths = sorted({len(label) for label in labels} - {0}, reverse=True)
    found, reach = [], 0
    for i in range(len(text)):
        longest = next((run for n in lengths if len(run := tuple(text[i : i + n])) == n and run in labels), ())
        if i + len(longest) > reach and longest:
            found.append(longest)
            reach = i + len(longest)
    return found
