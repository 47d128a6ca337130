"""The rules for verifiers: gold scores highest, hostile or empty completions score low, nothing raises.

Published `@system` verifiers reproduce their system with its quirks: if they score too high, that is a note and no failure.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.episodes import Conversation
from mmrl.api.interfaces import Task
from mmrl.api.media.content import canonical_form
from mmrl.api.moved import moved_name
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Prompt, Score, Status, Turn
from mmrl.testing.checks import CheckFailed
from mmrl.testing.gold import gold_or_none, play_gold
from mmrl.testing.sample import TimeIsUp, other_random_states, random_states, sample_rows, time_limit

Verify = Callable[[Case], Any]

__getattr__ = partial(moved_name, __name__)

MEGABYTE = 1_000_000
FRAME_ROWS = 4
"""Number of rows of a task that are checked in each coordinate format."""
HUGE = tuple(unit * (MEGABYTE // len(unit)) for unit in ("a", "(", "<answer>", "1,", '{"a":', " \n"))
"""Long repetitions on which backtracking patterns, recursive parsers and quadratic loops fail."""
NON_ASCII = "答案是 ²³ ①½ \N{ROBOT FACE} naïve \N{RIGHT-TO-LEFT OVERRIDE}\N{ZERO WIDTH SPACE}\N{REPLACEMENT CHARACTER}"
"""It includes characters for which `str.isdigit` is true and `int` raises."""


@dataclass
class VerifierSubject:
    """A verifier under test, and rows of tasks that use it."""

    spec: VerifierSpec
    verify: Verify
    rows: Sequence[tuple[Task, Prompt]]
    is_metric: bool = True
    """It is the metric of a task, so it must tell right from wrong; a format reward need not."""
    cases: list[tuple[Case, str]] = field(default_factory=list)
    """(case without a completion, gold completion) per row, filled by the first check."""

    @property
    def published(self) -> bool:
        return "@" in self.spec.id


def check_gold(spec: VerifierSpec, verify: Verify, rows: Sequence[tuple[Task, Prompt]]) -> list[tuple[Case, str]]:
    """Raise CheckFailed unless gold gets `spec.high` on every row, or the upper of the target's own `bounds`. Returns (case, gold
    completion) per row."""
    cases, high = [], _full(spec, verify)
    for task, prompt in rows:
        gold, outcome = play_gold(task, prompt, task.gold(prompt))
        case = replace(case_of(spec, prompt), outcome=outcome)
        value = _score(spec, verify, case, gold, f"the gold completion of row {prompt.id!r}")
        if not math.isclose(value, high, rel_tol=1e-6, abs_tol=1e-9):
            raise CheckFailed(
                f"{spec.id} gives {value:g} to the gold completion {gold!r:.80} of row {prompt.id!r} and not "
                f"high={high:g}: the parser misses the form of the answer, gold(prompt) of the task is not what the "
                "verifier expects, or the spec's high is wrong"
            )
        cases.append((case, gold))
    return cases


def _full(spec: VerifierSpec, verify: Verify) -> float:
    """What a gold completion gets, see `VerifierSpec`."""
    bounds = getattr(verify, "bounds", None)
    return float(bounds()[1]) if bounds else spec.high


def gold_scores_highest(subject: VerifierSubject) -> None:
    """The gold completion gets the spec's `high`, on every row."""
    subject.cases = check_gold(subject.spec, subject.verify, subject.rows)


def gold_scores_highest_in_every_coordinate_format(subject: VerifierSubject) -> str | None:
    """Gold gets `high` for models of every coordinate format, and for any size in which a model sees images."""
    notes = [
        check_coordinate_formats(subject.spec, subject.verify, task) for task in {id(t): t for t, _ in subject.rows}.values()
    ]
    return next((note for note in notes if note), None)


def check_coordinate_formats(spec: VerifierSpec, verify: Verify, task: Task) -> str | None:
    """Raise CheckFailed unless gold of a task with coordinates gets `spec.high` in each format and at another image size.

    A task has coordinates if its gold completions depend on its `ImageProcessing`, which is restored at the end. Returns a note,
    or None.
    """
    before = task.image_processing
    gold_rows: dict[ImageProcessing, list[tuple[Prompt, str]]] = {}
    try:
        for processing in (before, *(ImageProcessing(format, _smaller_size) for format in CoordinateFormat)):
            task.image_processing = processing
            prompts = sample_rows(task, task.splits[0], FRAME_ROWS, broken=[])
            gold_rows[processing] = [(prompt, gold) for prompt in prompts if (gold := gold_or_none(task, prompt)) is not None]
        if len({tuple(gold for _, gold in rows) for rows in gold_rows.values()}) < 2:
            return None
        return _score_formats(spec, verify, task, gold_rows)
    finally:
        task.image_processing = before


def _score_formats(
    spec: VerifierSpec, verify: Verify, task: Task, gold_rows: Mapping[ImageProcessing, Sequence[tuple[Prompt, str]]]
) -> str | None:
    for processing, rows in gold_rows.items():
        task.image_processing = processing
        for prompt, first in rows:
            gold, outcome = play_gold(task, prompt, first)
            sizes = (case := case_of(spec, prompt)).image_sizes
            case = replace(
                case,
                coordinate_format=processing.coordinate_format,
                model_sizes=tuple(map(processing.model_size, sizes)),
                outcome=outcome,
            )
            value = _score(
                spec, verify, case, gold, f"the gold completion of row {prompt.id!r} in {processing.coordinate_format}"
            )
            if math.isclose(value, _full(spec, verify), rel_tol=1e-6, abs_tol=1e-9):
                continue
            message = (
                f"{spec.id} gives {value:g} to the gold completion {gold!r:.80} of row {prompt.id!r} and not "
                f"high={_full(spec, verify):g}, for a model that writes {processing.coordinate_format} and sees {sizes} as "
                f"{case.model_sizes}: convert between case.coordinate_format and the pixels of the answer with "
                "mmrl.api.coordinates.convert_coordinates"
            )
            if "@" in spec.id:
                return f"as published: {message}"
            raise CheckFailed(message)
    return None


def _smaller_size(size: tuple[int, int]) -> tuple[int, int]:
    """A model size for tests that differs from the image's size and aspect ratio."""
    return max(1, size[0] * 3 // 4), max(1, size[1] // 2)


def empty_scores_low(subject: VerifierSubject) -> str | None:
    """An empty completion, or only white space, scores low."""
    return _low(
        subject, "an empty completion", lambda i: ["", " \n\t"], "it has no answer; look for a test like `x in y` that '' passes"
    )


def wrong_answer_scores_low(subject: VerifierSubject) -> str | None:
    """The gold of rows with another answer scores below this row's gold; one in ten may score as high (tolerances, synonyms)."""
    common, accepted, example = list[set[str]](), list[set[str]](), ""
    draw = random.Random(0)
    for i, (case, gold) in enumerate(subject.cases):
        others = {g: c.answer for c, g in subject.cases if g != gold and canonical_form(c.answer) != canonical_form(case.answer)}
        for wrong in draw.sample(sorted(others), min(3, len(others))):
            common.append({name for name, _ in _parts(case.answer).items() & _parts(others[wrong]).items()})
            value = _score(subject.spec, subject.verify, case, wrong, "the gold completion of another row")
            if value >= _full(subject.spec, subject.verify) - 1e-9:
                accepted.append(common[-1])
                example = example or (
                    f"row {subject.rows[i][1].id!r}, whose answer is {str(case.answer)!r:.40}, accepts {wrong!r:.80}"
                )
    if not common:
        return "all rows have the same answer: check on more rows"
    found = f"{len(accepted)} of {len(common)} wrong answers score highest"
    if 10 * len(accepted) <= len(common):
        return f"{found}: {example}" if accepted else None
    part = ", ".join(sorted(accepted[0].intersection(*accepted) - common[0].intersection(*common)))
    if not subject.is_metric:
        reward = f"reward of a part of the answer ({part})" if part else "format reward"
        return f"{found}: fine for a {reward}, which is no task's metric"
    cure = f"it reads only {part} of the answer: let a verifier of the whole answer be the task's metric"
    return _fault(subject, f"{found}, such as {example}: {cure if part else 'compare the completion with case.answer'}")


def _parts(answer: Any) -> dict[str, Any]:
    """Name -> canonical form of each part of an answer that is a table or a list; nothing for another answer."""
    if isinstance(answer, Mapping):
        return {repr(key): canonical_form(value) for key, value in answer.items()}
    return {f"item {i}": canonical_form(v) for i, v in enumerate(answer)} if isinstance(answer, list | tuple) else {}


def prompt_echo_scores_low(subject: VerifierSubject) -> str | None:
    """Repeating the question scores low, even if it lists all labels."""
    return _low(
        subject,
        "the prompt's text repeated",
        lambda i: [subject.rows[i][1].text],
        "the label may be in the question; parse the answer at its place only",
    )


def repeated_gold_scores_low(subject: VerifierSubject) -> str | None:
    """The right answer repeated many times scores low."""
    return _low(
        subject,
        "the gold completion 200 times",
        lambda i: ["\n".join([subject.cases[i][1]] * 200)],
        "accept one answer; limit the text around it",
    )


def listing_every_answer_scores_low(subject: VerifierSubject) -> str | None:
    """A list of all answers scores low."""
    every = sorted({gold for _, gold in subject.cases})
    if len(every) < 2:
        return "all rows have the same gold: check on more rows"

    def listed(i: int) -> list[str]:  # the right one between others: taking the first or the last of several is fine
        gold = subject.cases[i][1]
        others = [g for g in every if g != gold]
        half = (len(others) + 1) // 2
        items = [*others[:half], gold, *(others[half:] or others)]
        return ["\n".join(items), " ".join(items)]

    return _low(subject, "a list of every row's gold", listed, "accept one answer only, not one of several")


def huge_scores_low(subject: VerifierSubject) -> str | None:
    """A megabyte of garbage scores low, within the timeout."""
    return _low(subject, "a megabyte of garbage", lambda i: list(HUGE), "limit the length before parsing", rows=2)


def nul_scores_low(subject: VerifierSubject) -> str | None:
    """NUL characters score low and raise nothing."""
    for case, gold in subject.cases[:4]:
        _score(subject.spec, subject.verify, case, f"\0{gold}\0", "gold between NUL characters")
    return _low(subject, "NUL characters", lambda i: ["\0" * 64], "they are no answer")


def non_ascii_scores_low(subject: VerifierSubject) -> str | None:
    """Non-ASCII text scores low and raises nothing."""
    return _low(subject, "non-ASCII text", lambda i: [NON_ASCII], "it is no answer")


def same_case_gives_same_score(subject: VerifierSubject) -> None:
    """A score depends on the case alone, for any state of the global random generators."""
    for completion, name in _some(subject):
        case = subject.cases[0][0]
        values = []
        for seed in range(3):
            with other_random_states(seed):
                values.append(_score(subject.spec, subject.verify, case, completion, name))
        if len(set(values)) > 1:
            raise CheckFailed(
                f"{name} scores {values} in three calls: use no random numbers, no clock and no state kept between calls"
            )


def global_random_state_is_untouched(subject: VerifierSubject) -> None:
    """Scoring neither draws from nor seeds the global random generators."""
    before = random_states()
    for completion, name in _some(subject):
        _score(subject.spec, subject.verify, subject.cases[0][0], completion, name)
    for library, state in random_states().items():
        if before.get(library, state) != state:
            raise CheckFailed(f"scoring changed the global generator of {library}: a verifier is a pure function")


def input_is_not_changed(subject: VerifierSubject) -> None:
    """Scoring doesn't change the case's answer and meta."""
    case = subject.cases[0][0]
    for completion, name in _some(subject):
        before = canonical_form((case.answer, case.meta))
        _score(subject.spec, subject.verify, case, completion, name)
        if canonical_form((case.answer, case.meta)) != before:
            raise CheckFailed(f"scoring {name} changed the case's answer or meta: copy what you sort, pop or extend")


def prints_nothing(subject: VerifierSubject) -> None:
    """Scoring prints nothing, since commands use stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        for completion, name in _some(subject):
            _score(subject.spec, subject.verify, subject.cases[0][0], completion, name)
    if out.getvalue():
        raise CheckFailed(f'it printed {out.getvalue()!r:.60}: return Score(value, detail="...") for what people should read')


CHECKS = (
    gold_scores_highest_in_every_coordinate_format,
    empty_scores_low,
    wrong_answer_scores_low,
    prompt_echo_scores_low,
    repeated_gold_scores_low,
    listing_every_answer_scores_low,
    huge_scores_low,
    nul_scores_low,
    non_ascii_scores_low,
    same_case_gives_same_score,
    global_random_state_is_untouched,
    input_is_not_changed,
    prints_nothing,
)


def case_of(spec: VerifierSpec, prompt: Prompt) -> Case:
    """The judge's case for a model that sees images in their original size."""
    from mmrl.api.media.images import load_image

    sizes = tuple(load_image(i).size for i in prompt.images)
    return Case(
        completion="",
        answer=prompt.answer,
        meta=prompt.meta,
        image_sizes=sizes,
        model_sizes=sizes,
        media=prompt.images if spec.images else (),
        rollout=_rollout(prompt, "") if spec.rollout else None,
    )


def _rollout(prompt: Prompt, text: str) -> Conversation:
    turn = Turn(observed_ids=(), token_ids=(), logprobs=(), text=text)
    return Conversation(prompt=prompt, group=0, turns=(turn,), status=Status.FINISHED)


def _score(spec: VerifierSpec, verify: Verify, case: Case, completion: str, name: str) -> float:
    """The value for a completion. Raises CheckFailed if the verifier raises, takes too long, or returns no number in its
    range."""
    rollout = case.rollout and _rollout(case.rollout.prompt, completion)
    start, process = time.monotonic(), os.getpid()
    try:
        with time_limit(spec.timeout_s):
            returned = verify(replace(case, completion=completion, rollout=rollout))
    except TimeIsUp:
        raise CheckFailed(
            f"{name} took longer than timeout_s={spec.timeout_s:g}: look for a backtracking pattern or a loop over "
            "pairs, and limit the length before parsing"
        ) from None
    except (Exception, SystemExit) as error:
        raise CheckFailed(
            f"{name} raised {type(error).__name__}: {error!s:.200}; what can't be parsed is a wrong answer: return {spec.low:g}"
        ) from error
    finally:
        if os.getpid() != process:  # the verifier forked, and this is the child: only the parent may run the checks
            os._exit(0)
    took = time.monotonic() - start
    if took > spec.timeout_s:
        raise CheckFailed(f"{name} took {took:.1f} s, longer than timeout_s={spec.timeout_s:g}: limit the length before parsing")
    value: Any = returned.value if isinstance(returned, Score) else returned
    parts: Mapping[str, Any] = returned.parts if isinstance(returned, Score) else {}
    for label, number in (("its value", value), *((f"its part {k!r}", v) for k, v in parts.items())):
        if isinstance(number, str) or not hasattr(number, "__float__") or not math.isfinite(float(number)):
            raise CheckFailed(f"{name} gives {number!r:.40} as {label}: return a finite float, or Score(value, parts, detail)")
    if not spec.low - 1e-9 <= float(value) <= spec.high + 1e-9:
        raise CheckFailed(
            f"{name} scores {float(value):g}, outside of the spec's low={spec.low:g} and high={spec.high:g}: clip it, or widen "
            "the spec's range"
        )
    if not spec.graded and spec.low + 1e-6 < float(value) < spec.high - 1e-6:
        raise CheckFailed(
            f"{name} scores {float(value):g}, between low={spec.low:g} and high={spec.high:g}: write graded=True in its spec, so "
            "that no evaluation calls the mean accuracy or success"
        )
    return float(value)


def _low(
    subject: VerifierSubject, name: str, completions: Callable[[int], list[str]], cure: str, rows: int | None = None
) -> str | None:
    """Check that the completions for row i score below `high`. rows: number of rows, by default all."""
    for i, (case, _) in enumerate(subject.cases[:rows]):
        for completion in completions(i):
            value = _score(subject.spec, subject.verify, case, completion, name)
            if value >= _full(subject.spec, subject.verify) - 1e-9:
                return _fault(subject, f"{name} scores {value:g}, as much as gold, on row {subject.rows[i][1].id!r}: {cure}")
    return None


def _fault(subject: VerifierSubject, message: str) -> str:
    """Raise CheckFailed, or return the message as a note for a published verifier."""
    if subject.published:
        return f"as published: {message}"
    raise CheckFailed(message)


def _some(subject: VerifierSubject) -> list[tuple[str, str]]:
    """(completion, its description) for the first row: right, wrong, empty."""
    gold = subject.cases[0][1]
    wrong = next((g for _, g in subject.cases if g != gold), "wrong")
    return [(gold, "a gold completion"), (wrong, "a wrong answer"), ("", "an empty completion")]
