"""A run file is resolved once: each id is looked up once, each split is asked for once, and later stages use what was found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mmrl.data.prompts
import mmrl.train.resolve
import runs
from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.types import Prompt, user_message
from mmrl.config.load import load_config
from mmrl.data.prompts import Splits
from mmrl.registry.plugins import Registry
from mmrl.train.smoke import smoke

DIGITS = Path(__file__).parents[2] / "configs" / "demo" / "digits.toml"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, found: Counter[Any], key: Any = None) -> None:
    """Count the calls of a function, by its name or by what `key` makes of the arguments."""
    original = getattr(owner, name)

    def counting(*args: Any, **options: Any) -> Any:
        found[key(*args) if key else name] += 1
        return original(*args, **options)

    monkeypatch.setattr(owner, name, counting)


def test_a_whole_run_looks_up_and_computes_each_thing_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: Counter[Any] = Counter()
    made: Counter[Any] = Counter()
    counted(monkeypatch, Registry, "get", looked_up, lambda self, kind, id: (kind, id))
    for name in ("resolve_device", "weights_of", "task_metric", "check_verifiers", "compose"):
        counted(monkeypatch, mmrl.train.resolve, name, made)
    counted(monkeypatch, mmrl.data.prompts, "load_prompts", made, lambda label, task, split, seed: f"prompts of {split}")
    config = smoke(load_config(DIGITS, [f"runs_dir={tmp_path}", "record.trackers=[]"]))
    looked_up.clear()
    runs.run(config)
    splits = ("prompts of warm", "prompts of train", "prompts of test")
    assert made == dict.fromkeys(("resolve_device", "weights_of", "task_metric", "check_verifiers", "compose", *splits), 1)
    engines = {("policies", "vlm"): 2, ("verifiers", "classification/answer"): 2}  # the loader and the judge look up their own
    assert {asked: n for asked, n in looked_up.items() if n > 1} == engines


class Framed(Task):
    """Prompts that say in which frame the policy sees: made at once, or one by one."""

    lazy = False

    def prompts(self, split: str, seed: int) -> Any:
        if self.lazy:
            return LazyPrompts(range(2), self.prompt)
        return [self.prompt(i) for i in range(2)]

    def prompt(self, i: int) -> Prompt:
        return Prompt(id=str(i), messages=[user_message(str(self.image_processing.coordinate_format))])

    def gold(self, prompt: Prompt) -> str:
        return ""


@pytest.mark.parametrize("lazy", [True, False])
def test_prompts_follow_the_image_processing_of_the_policy(lazy: bool, tmp_path: Any) -> None:
    task = Framed()
    task.lazy = lazy
    setup = runs.setup(runs.toy_config(tmp_path), {"a": task})
    before = setup.splits("a", "train")
    assert before[0].text == str(CoordinateFormat.PIXELS) and setup.splits("a", "train") is before
    setup.set_image_processing(ImageProcessing(coordinate_format=CoordinateFormat.THOUSANDTHS))
    after = setup.splits("a", "train")
    assert after[1].text == str(CoordinateFormat.THOUSANDTHS) and (after is before) == lazy


def test_a_split_that_is_not_there_is_refused_as_before() -> None:
    with pytest.raises(UserError, match="task 'a' has no split 'val': choose one of"):
        Splits({"a": Framed()}, 0)("a", "val")
