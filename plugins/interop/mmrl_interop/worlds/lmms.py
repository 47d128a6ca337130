"""A task of lmms-eval 0.7 in a process, see `child`: what it shows, and its own scores, filters and aggregation. Imports only the
standard library, and lmms-eval when it is used."""

from __future__ import annotations

import base64
import contextlib
import importlib
import inspect
import math
import pickle
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mmrl_interop.worlds.child import Refused, picture

CURE = 'pip install "lmms-eval>=0.7,<0.8", or set the option python to an interpreter that has it'
TAGS = '[["<think>", "</think>"], ["<analysis>", "</analysis>"]]'
"""What `python -m lmms_eval` cuts out of answers unless a task says otherwise."""
LONGEST = 2**20
"""Largest number of bytes of what a metric keeps of an answer."""


class Worlds:
    """The documents of a task. Its facts are the number of each split, and the metric that scores."""

    def __init__(
        self, task: str, config: dict[str, Any], include: str | None, model_name: str | None, metric: str | None
    ) -> None:
        """task: a name, or the path of a YAML file. config: what differs from the YAML, such as dataset_path. include: a folder
        of more tasks. model_name: whose prompts, of lmms_eval_specific_kwargs. metric: one of metric_list."""
        lmms = _imported()
        self.task = _opened(lmms, task, config, include, model_name)
        if self.task.OUTPUT_TYPE != "generate_until" or not hasattr(self.task, "doc_to_messages"):
            raise Refused(f"task {task!r} is of the type {self.task.OUTPUT_TYPE!r}: answers are scored of generate_until alone")
        self.metrics = list(self.task.aggregation())
        if metric is None and len(self.metrics) > 1:
            raise Refused(f"task {task!r} has several metrics: set metric to one of {', '.join(self.metrics)}")
        self.metric = self.metrics[0] if metric is None else metric
        if self.metric not in self.metrics:
            raise Refused(f"task {task!r} has no metric {metric!r}: set metric to one of {', '.join(self.metrics)}")
        self.filters, self.tags = _filters(self.task)
        own = self.task.config
        places = {"test": own.test_split or own.validation_split, "train": own.training_split}
        if places["train"] in (None, own.test_split, own.validation_split):
            del places["train"]
        self.shown = {split: self.task.dataset[place] for split, place in places.items()}
        self.kept = {split: self.task.dataset_no_image[place] for split, place in places.items()}
        self.facts = {"metric": self.metric, "splits": {split: len(docs) for split, docs in self.shown.items()}}

    def open(self) -> Session:
        return Session(self)

    def aggregated(self, metric: str, items: list[Any]) -> float:
        """The metric of some answers, as lmms-eval works it out."""
        combine = self.task.aggregation()[metric]
        more = {"args": getattr(self.task, "args", None)} if "args" in inspect.signature(combine).parameters else {}
        return float(combine(items, **more))


class Session:
    """One answer."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.split, self.index = worlds, "test", 0

    def start(self, split: str, index: int) -> dict[str, Any]:
        self.split, self.index = split, index
        doc = self.worlds.shown[split][index]
        found = self.worlds.task.doc_to_messages(doc)
        return {"messages": [_message(message) for message in found], "gold": self._gold(doc)}

    def step(self, completion: str) -> dict[str, Any]:
        """The score: the metric of this answer alone, with its sign changed where less is better. Outcomes are the metrics that
        are numbers."""
        worlds, doc = self.worlds, self.worlds.kept[self.split][self.index]
        score = type(worlds.task).process_results
        score = getattr(score, "__wrapped__", score)  # without the five tries, with pauses, of what raises
        found = score(worlds.task, doc, [self._filtered(completion, doc)])
        if worlds.metric not in found:
            raise ValueError(f"its results have no {worlds.metric}, but {', '.join(map(str, found))[:200]}: set metric")
        value = worlds.aggregated(worlds.metric, [found[worlds.metric]])
        outcome = {name: value for name, value in found.items() if name in worlds.metrics and _is_number(value)}
        better = worlds.task.higher_is_better().get(worlds.metric, True)
        kept = base64.b64encode(pickle.dumps({name: found[name] for name in found if name in worlds.metrics})).decode()
        return {
            "reward": value if better else -value,
            "terminated": True,
            "outcome": {**outcome, worlds.metric: value},
            "kept": kept if len(kept) <= LONGEST else None,
        }

    def aggregate(self, kept: list[str]) -> dict[str, float]:
        """The metrics of answers. kept: of each, what `step` gave."""
        answers = [pickle.loads(base64.b64decode(one)) for one in kept]  # this class pickled them
        figures = {}
        for metric in self.worlds.metrics:
            if items := [answer[metric] for answer in answers if metric in answer]:
                with contextlib.suppress(Exception):  # metrics that only write a file for a benchmark's server
                    figures[metric] = self.worlds.aggregated(metric, items)
        return {metric: value for metric, value in figures.items() if math.isfinite(value)}

    def close(self) -> None:
        pass

    def _filtered(self, completion: str, doc: Any) -> Any:
        """The answer as lmms-eval's evaluator gives it to the task's rules, by the first of its filters."""
        from lmms_eval.api.instance import Instance
        from lmms_eval.api.reasoning import strip_reasoning_tags

        about = {"task": str(self.worlds.task.config.task), "doc_id": self.index, "repeats": 1}
        instance = Instance(request_type="generate_until", arguments=(), idx=0, metadata=about, resps=[completion])
        self.worlds.filters.apply([instance], [doc])
        [answer] = instance.filtered_resps.values()
        tags = self.worlds.tags
        return strip_reasoning_tags(answer, tags) if tags is not None and isinstance(answer, str) else answer

    def _gold(self, doc: Any) -> str | None:
        """The target as an answer; None if it is no text and no number."""
        target = self.worlds.task.doc_to_target(doc)
        if self.worlds.task.config.doc_to_choice is not None and isinstance(target, int):
            target = self.worlds.task.doc_to_choice(doc)[target]
        if isinstance(target, list) and target:
            target = target[0]
        return str(target) if isinstance(target, str | int | float) else None


def _imported() -> Any:
    """The module of lmms-eval's tasks."""
    try:
        found = version("lmms-eval")
    except PackageNotFoundError:
        raise Refused(f"lmms-eval is not installed: {CURE}") from None
    if not found.startswith("0.7."):
        raise Refused(f"lmms-eval {found} is installed: {CURE}")
    try:
        return importlib.import_module("lmms_eval.tasks")
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise Refused(f"lmms-eval {found} can't be imported ({type(error).__name__}: {why}): {CURE}") from error


def _opened(lmms: Any, task: str, config: dict[str, Any], include: str | None, model_name: str | None) -> Any:
    """lmms-eval's task object, with its data."""
    try:
        if task.endswith(".yaml"):
            own = {**lmms.utils.load_yaml_config(task, mode="full"), **config}
            found = (
                own["class"](config=own) if "class" in own else lmms.ConfigurableMessagesTask(config=own, model_name=model_name)
            )
        else:
            manager = lmms.TaskManager("ERROR", include, model_name=model_name)
            if task not in manager.all_subtasks and task not in manager.all_tasks:
                raise Refused(f"lmms-eval has no task {task!r}: python -m lmms_eval --tasks list names all of them")
            if manager.task_index[task]["type"] in ("group", "tag"):
                raise Refused(f"{task!r} is a group of lmms-eval's: name one of its tasks")
            [found] = manager.load_task_or_group([{"task": task, **config} if config else task], "chat").values()
        return found
    except Refused:
        raise
    except BaseException as error:
        if hasattr(error, "last_attempt"):  # of what lmms-eval tries several times
            error = error.last_attempt.exception() or error
        why = " ".join(str(error).split())[:300]
        raise Refused(f"task {task!r} can't be opened ({type(error).__name__}: {why})") from error


def _filters(task: Any) -> tuple[Any, Any]:
    """The filters of answers, and the tags around what is cut out of them, as lmms-eval's evaluator puts them together."""
    from lmms_eval.api.reasoning import parse_reasoning_tags_config
    from lmms_eval.filters.transformation import StripThinkingFilter

    ensemble, tags = task._filters[0], parse_reasoning_tags_config(cli_value=TAGS, task_value=task.config.reasoning_tags)
    if getattr(task.config, "auto_strip_thinking", False) and tags is None:
        ensemble.filters.insert(0, StripThinkingFilter())
    return ensemble, tags


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else [_part(part) for part in content]
    return {"role": message["role"], "content": parts}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": str(part["text"])}
    if part["type"] != "image":
        raise Refused(
            f"it shows {'an audio' if part['type'] == 'audio' else 'a ' + str(part['type'])}: only images are shown here"
        )
    image = part["url"]
    if isinstance(image, str):
        from PIL import Image

        with Image.open(image) as opened:
            image = opened.convert("RGB")
    return {"type": "image_url", "image_url": {"url": picture(image)}}


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)
