"""reasoning-gym's generated data sets as tasks, scored by its own `score_answer`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Case, NoGold, Prompt, Task, UserError, user_message
from mmrl.api.errors import shorten
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type, did_you_mean
from mmrl.api.verifiers.parse import only_answer, without_thinking
from mmrl_interop.peers import peer

VERSIONS = ">=0.1.25,<0.2"
HELD_OUT = 10**9
"""Seeds of the split `test` are below, those of `train` are not. Item i of a data set has the seed of the set plus i."""
TRIES = 50
"""Attempts to generate a question of the split train that the split test doesn't ask."""
LONGEST = 20_000
"""Number of characters of an answer that is scored: some scorers take time with the square of it."""


class ReasoningGym(Task):
    """Questions in text of one data set or of several in turn. No question of `test` is in `train`; small data sets repeat theirs
    within a split."""

    def __init__(
        self,
        datasets: Sequence[str] | str = "leg_counting",
        config: Mapping[str, Any] | None = None,
        train: int = 10_000,
        test: int = 200,
        system_prompt: str = "simple",
    ) -> None:
        """datasets: names of reasoning-gym's, such as chain_sum; all is every one. config: options of the data set, or of several
        by their names. train, test: numbers of questions. system_prompt: the name of one of reasoning-gym's, or a text; how an
        answer is to be given is up to it."""
        gym = _gym()
        check_type("system_prompt", system_prompt, str)
        check_integer("train", train, 1, HELD_OUT)
        check_integer("test", test, 1, 100_000)
        known = [name for name in gym.factory.DATASETS if name != "composite"]
        names = known if datasets == "all" else [datasets] if isinstance(datasets, str) else list(datasets)
        if not names:
            raise UserError('datasets = [] is empty: name some, or "all"')
        for name in names:
            if name not in known:
                raise UserError(f"reasoning-gym has no data set {name!r:.60}.{did_you_mean(str(name), known)}")
        prompts = peer("reasoning_gym.utils", VERSIONS, "interop/reasoning-gym", "reasoning-gym").SYSTEM_PROMPTS
        if system_prompt and " " not in system_prompt:
            check_choice("system_prompt", system_prompt, prompts)
        self.asks = prompts.get(system_prompt, system_prompt)
        check_type("config", config or {}, Mapping, "{max_animals = 5}")
        given = dict(config or {}) if len(names) > 1 else {names[0]: dict(config or {})}
        if unknown := [name for name in given if name not in names]:
            raise UserError(f"config has options of {unknown[0]!r:.60}, which is none of datasets: {', '.join(names)[:100]}")
        self.names, self.sizes = names, {"train": train, "test": test}
        self.configs = {name: json.dumps(given.get(name, {}), sort_keys=True, default=repr) for name in names}
        for name in names:
            _dataset(name, self.configs[name], 0)
        self._test_questions: frozenset[str] | None = None

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        """The same for every seed."""
        check_split(split, self.splits)
        return LazyPrompts(range(self.sizes[split]), lambda index: self._prompt(split, index))

    def gold(self, prompt: Prompt) -> str:
        if prompt.answer is None:
            raise NoGold(f"{prompt.meta['dataset']} has many right answers, and no one of them is known")
        return f"<answer>{prompt.answer}</answer>"

    def _prompt(self, split: str, index: int) -> Prompt:
        name = self.names[index % len(self.names)]
        entry = self._entry(split, name, index)
        system = [{"role": "system", "content": [{"type": "text", "text": self.asks}]}] if self.asks else []
        meta = {"dataset": name, "config": self.configs[name], "entry": entry}
        return Prompt(
            id=f"{split}-{index}", messages=[*system, user_message(entry["question"])], answer=entry["answer"], meta=meta
        )

    def _entry(self, split: str, name: str, index: int) -> dict[str, Any]:
        if split == "test":
            return _generated(name, self.configs[name], index)
        for number in range(TRIES):
            entry = _generated(name, self.configs[name], HELD_OUT + index + number * self.sizes["train"])
            if entry["question"] not in self.test_questions:
                return entry
        raise UserError(f"{name} has too few different questions: all of {TRIES} were those of the split test; lower test")

    @property
    def test_questions(self) -> frozenset[str]:
        """The questions of the split `test`."""
        if self._test_questions is None:
            entries = (self._entry("test", self.names[i % len(self.names)], i) for i in range(self.sizes["test"]))
            self._test_questions = frozenset(entry["question"] for entry in entries)
        return self._test_questions


def score(case: Case) -> float:
    """reasoning-gym's score of the answer, 0 to 1: of the text in the only <answer> tag, or of all that stands behind the
    thinking if it has none; 0 for several answers."""
    said: str | None = without_thinking(case.completion)
    if "<answer>" in (said or ""):
        said, _ = only_answer(case.completion)
    if said is None:
        return 0.0
    answer = said.strip()[:LONGEST]
    found = _dataset(case.meta["dataset"], case.meta["config"], 0).score_answer(answer, case.meta["entry"])
    return float(found)


def _gym() -> Any:
    return peer("reasoning_gym", VERSIONS, "interop/reasoning-gym", "reasoning-gym")


def _generated(name: str, config: str, seed: int) -> dict[str, Any]:
    """The question of a seed: its `question`, `answer` and `metadata`."""
    try:
        entry: dict[str, Any] = _dataset(name, config, 0)[seed]  # making a set may take a second
    except IndexError:  # those few that draw all their items at first
        entry = _dataset(name, config, seed)[0]
    return entry


@functools.lru_cache(256)
def _dataset(name: str, config: str, seed: int) -> Any:
    """A data set of one item. config: as JSON. Raises UserError for options that it doesn't have."""
    try:
        return _gym().create_dataset(name, size=1, seed=seed, **json.loads(config))
    except Exception as error:
        raise UserError(f"reasoning-gym's {name} refuses its options ({type(error).__name__}: {shorten(error, 160)})") from error
