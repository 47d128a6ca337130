"""Other trainers' rewards as verifiers: functions in the signature of TRL's trainers, of verl's and of EasyR1's `compute_score`.

The run file names them: `verifiers."interop/trl" = {functions = ["rewards.py:accuracy"]}`. They run in the judge's workers like
any verifier: what raises, hangs, or returns None, NaN or another number of rewards is a failed score, and the run goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrl import Case, Score, UserError
from mmrl.api.episodes import Conversation
from mmrl.api.errors import is_finite
from mmrl_interop.functions import check_function, constant_beside, load_function


class ForeignRewards:
    """The weighted sum of functions in another trainer's signature, as it is in that trainer."""

    def score(self, case: Case, functions: str | list[str] | dict[str, float], call: Callable[[str, Case], Any]) -> Score:
        """The score of a case. call: calls the function of a name with it."""
        weights = _weights(functions)
        values = {name: _number(_told(name, call, case), name) for name in weights}
        total = sum(weights[name] * value for name, value in values.items())
        parts = {name.rpartition(":")[2] if _is_single(name, weights) else name: value for name, value in values.items()}
        return Score(total, parts)

    def check(
        self,
        cameras: Mapping[str, Sequence[str]],
        functions: str | list[str] | dict[str, float],
        range: list[float] | None = None,
        **others: Any,
    ) -> None:
        """Raises UserError for functions that aren't there, without running their files."""
        self.bounds(functions, range)
        for name in _weights(functions):
            check_function(name)

    def bounds(
        self, functions: str | list[str] | dict[str, float], range: list[float] | None = None, **others: Any
    ) -> tuple[float, float]:
        """The lowest and the highest sum that is expected. Raises UserError for a wrong `range`."""
        given = [] if range is None else range
        if not isinstance(given, list | tuple) or len(given) not in (0, 2) or not all(map(is_finite, given)):
            raise UserError(f"range = {given!r:.60} must be [lowest, highest], the sums that the functions can give")
        weights = _weights(functions).values()
        low, high = given or (sum(w for w in weights if w < 0), sum(w for w in weights if w > 0))
        if not low < high:
            raise UserError(f"range = [{low:g}, {high:g}] must go up: give the lowest sum and the highest")
        return float(low), float(high)

    def prepare(self, functions: str | list[str] | dict[str, float], **others: Any) -> None:
        """Run the files."""
        for name in _weights(functions):
            load_function(name)


class TrlRewards(ForeignRewards):
    """The weighted sum of reward functions in TRL's signature, `(completions, **columns) -> list[float | None]`, which are called
    with one completion at a time. Columns are what `Prompt.meta` holds, and the answer; `prompts` and `completion_ids` hold None,
    but for `interop/trl-whole`.

    functions: path.py:function or package.module:function; several as a list, or with weights as a table.
    range: [lowest, highest] sum that they are expected to give, for figures and for the check of right answers; by default that
        of functions which give 0 to 1. It changes no reward.
    answer: name of the column with the answer, such as "solution" or "ground_truth"; a column of the row that has this name
        is passed as it is.
    conversational: completions are messages, as for chat models, and not texts.
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole
        """They get the prompt, its images and the completion's tokens."""

    def __call__(
        self,
        case: Case,
        functions: str | list[str] | dict[str, float],
        range: list[float] | None = None,
        answer: str = "answer",
        conversational: bool = True,
    ) -> Score:
        said = [{"role": "assistant", "content": case.completion}] if conversational else case.completion
        columns: dict[str, Any] = {"completions": [], answer: [case.answer], **{k: [v] for k, v in _columns(case).items()}}
        columns |= {"completions": [said], "prompts": [None], "completion_ids": [None]}  # an empty list would have a length
        if self.whole and isinstance(case.rollout, Conversation):
            turns = case.rollout.turns
            columns["prompts"] = [[*case.rollout.prompt.messages]] if conversational else [case.rollout.prompt.text]
            columns["completion_ids"] = [[id for turn in turns for id in turn.token_ids]]
            columns["images"] = [case.images]
        columns |= {"trainer_state": None, "log_extra": _ignore, "log_metric": _ignore}

        def call(name: str, case: Case) -> Any:
            found = _done(_call(load_function(name), **columns))
            if not isinstance(found, str | bytes | Mapping) and hasattr(found, "__len__") and hasattr(found, "__getitem__"):
                if len(found) != 1:
                    raise ForeignError(f"returned {len(found)} rewards for one completion")
                return found[0]
            raise ForeignError(
                f"returned {found!r:.60} and no list of rewards: return one reward for each completion, such as [1.0]"
            )

        return self.score(case, functions, call)


class VerlRewards(ForeignRewards):
    """The weighted sum of functions in the signature of verl's `compute_score(data_source, solution_str, ground_truth,
    extra_info)`, which give a number or a table with `score`, whose other numbers are shown as parts. The ground truth is the
    answer, and the extra info `Prompt.meta`.

    functions: path.py:function or package.module:function; several as a list, or with weights as a table.
    range: [lowest, highest] sum that they are expected to give, for figures and for the check of right answers; by default that
        of functions which give 0 to 1. It changes no reward.
    data_source: by default what `Prompt.meta` has under this name.
    arguments: more keyword arguments, as verl's `reward_kwargs`.
    """

    def __call__(
        self,
        case: Case,
        functions: str | list[str] | dict[str, float],
        range: list[float] | None = None,
        data_source: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> Score:
        source, others = data_source or case.meta.get("data_source", ""), dict[str, float]()

        def call(name: str, case: Case) -> Any:
            found = _done(
                _call(
                    load_function(name),
                    data_source=source,
                    solution_str=case.completion,
                    ground_truth=case.answer,
                    extra_info=_columns(case),
                    **(arguments or {}),
                )
            )
            return _taken(found, "score", others) if isinstance(found, Mapping) else found

        score = self.score(case, functions, call)
        return score if score.failed else replace(score, parts={**others, **score.parts})


class EasyR1Rewards(ForeignRewards):
    """The weighted sum of functions in the form of EasyR1's `compute_score`: they get a list of tables with `response`,
    `response_length`, in tokens, and `ground_truth`, or one of these where their file says `REWARD_TYPE = "sequential"`, and give
    tables with `overall`, whose other numbers are shown as parts. They are called with one completion at a time.

    functions: path.py:function or package.module:function; several as a list, or with weights as a table.
    range: [lowest, highest] sum that they are expected to give, for figures and for the check of right answers; by default that
        of functions which give 0 to 1. It changes no reward.
    arguments: more keyword arguments, EasyR1's `reward_function_kwargs`.
    """

    def __call__(
        self,
        case: Case,
        functions: str | list[str] | dict[str, float],
        range: list[float] | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> Score:
        turns = case.rollout.turns if isinstance(case.rollout, Conversation) else ()
        length = len(turns[-1].token_ids) if turns else len(case.completion)  # a case from elsewhere may have no tokens
        said = {"response": case.completion, "response_length": length, "ground_truth": case.answer}
        others = dict[str, float]()

        def call(name: str, case: Case) -> Any:
            function = load_function(name)
            if constant_beside(name, "REWARD_TYPE", "batch") == "sequential":
                found = _done(function(dict(said), **(arguments or {})))
            else:
                found = _done(function([dict(said)], **(arguments or {})))
                if not isinstance(found, Sequence) or len(found) != 1:
                    raise ForeignError(f"returned {found!r:.60} and no list of one table for one completion")
                found = found[0]
            if not isinstance(found, Mapping):
                raise ForeignError(f"returned {found!r:.60} and no table with overall")
            return _taken(found, "overall", others)

        score = self.score(case, functions, call)
        return score if score.failed else replace(score, parts={**others, **score.parts})


def _columns(case: Case) -> dict[str, Any]:
    """The columns of a row; what begins with an underscore is the task's own."""
    return {str(name): value for name, value in case.meta.items() if not str(name).startswith("_")}


def _taken(found: Mapping[str, Any], key: str, others: dict[str, float]) -> Any:
    """What a table has under its key; its other numbers are added to `others`."""
    if key not in found:
        raise ForeignError(f"returned a table without {key}: {', '.join(map(str, found))[:100]}")
    others.update({str(k): float(v) for k, v in found.items() if k != key and (isinstance(v, bool) or is_finite(v))})
    return found[key]


def _told(name: str, call: Callable[[str, Case], Any], case: Case) -> Any:
    """What a function gives. Raises ForeignError with its name."""
    try:
        return call(name, case)
    except ForeignError as error:
        raise ForeignError(f"{name} {error}") from error.__cause__


def _call(function: Any, /, **arguments: Any) -> Any:
    """Call a function; a data set's column may have any name. Raises ForeignError for one with another signature."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ForeignError(f"can't be called: {error}; it is given {', '.join(arguments)}") from None
    except ValueError:  # a function without a signature, such as one in C
        pass
    return function(**arguments)


class ForeignError(Exception):
    """A function returned something that is no reward."""

    plain = True


trl = TrlRewards()
trl_whole = TrlRewards(whole=True)
verl = VerlRewards()
easyr1 = EasyR1Rewards()


def _weights(functions: str | list[str] | dict[str, float]) -> dict[str, float]:
    """Function -> weight."""
    found = {functions: 1.0} if isinstance(functions, str) else functions
    found = dict(found) if isinstance(found, Mapping) else dict.fromkeys(found, 1.0) if isinstance(found, list | tuple) else {}
    if not found or not all(isinstance(name, str) and is_finite(weight) for name, weight in found.items()):
        raise UserError(f'functions = {functions!r:.100} must be "path.py:function", a list of such, or a table of their weights')
    return {name: float(weight) for name, weight in found.items()}


def _is_single(name: str, weights: Mapping[str, float]) -> bool:
    """Whether no other function has the same name in another file."""
    return sum(other.rpartition(":")[2] == name.rpartition(":")[2] for other in weights) == 1


def _number(value: Any, name: str) -> float:
    if value is None:
        raise ForeignError(f"{name} returned None: there is no reward")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ForeignError(f"{name} returned {value!r:.60}, which is no number") from None
    if not is_finite(number):
        raise ForeignError(f"{name} returned {number}")
    return number


def _done(found: Any) -> Any:
    """What a function returned, after waiting for it if it is async."""
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(found: Any) -> Any:
    return await found


def _ignore(*args: Any, **columns: Any) -> None:
    """In the place of functions by which TRL's rewards log."""
