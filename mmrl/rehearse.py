"""Before the first step: would a right answer fit, and would it be rewarded?

A verifier that reads another format than the task asks for, or a limit that cuts every answer off, looks like a model that does
not learn; the gold completions tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mmrl import plugins
from mmrl.collect.turns import TurnCollector
from mmrl.data.source import Indexable, gold_of, prompt_at
from mmrl.errors import UserError
from mmrl.interfaces import Task
from mmrl.judge import Judge, cases_of
from mmrl.schema import TaskConfig
from mmrl.targets import PluginError
from mmrl.types import Rollout

PROMPTS = 4
"""How many of each task are tried, spread over the split."""


def doubts(
    tasks: Mapping[str, Task],
    prompts: Mapping[str, Indexable],
    verifiers: Mapping[str, Sequence[str]],
    collector: TurnCollector,
    judge: Judge,
    max_tokens: Mapping[str, int],
    entries: Mapping[str, TaskConfig],
) -> Iterator[str]:
    """What speaks against a run, a sentence each. All by task."""
    for task, items in prompts.items():
        rollouts = list(_gold(tasks[task], task, items, collector, entries[task].prompt))
        shortest = min((r.length for r in rollouts), default=0)
        if shortest > max_tokens[task]:
            key = f"tasks {task!r} max_tokens" if entries[task].max_tokens else "generate.max_tokens"
            yield f"{task}: {key} = {max_tokens[task]} cuts off even gold completions, of {shortest} tokens: raise it"
        for name in verifiers[task]:
            high = plugins.registry().get("verifiers", name).high
            scored = zip(judge.run(name, cases_of(rollouts)), rollouts, strict=True)
            low = [(s.value, r.completion) for s, r in scored if s.value is not None and s.value < high]
            if low:
                value, completion = low[0]
                yield (
                    f"{task}: {name} gives {value:g}, not {high:g}, to the gold completion {completion!r:.80} "
                    f"(and to {len(low)} of {len(rollouts)} tried): "
                    f"does it read what the task asks for, see `mmrl list tasks {entries[task].id}`?"
                )


def _gold(task: Task, name: str, items: Indexable, collector: TurnCollector, template: str) -> Iterator[Rollout]:
    """The gold completions of a few prompts as finished episodes; broken pictures are the run's business."""
    for i in range(0, len(items), -(-len(items) // PROMPTS)):
        try:
            prompt = prompt_at(items, i, name, template)
            inputs = collector.encode([prompt])
        except PluginError:
            raise
        except UserError:
            continue
        yield from collector.demonstrate([prompt], inputs, [gold_of(task, prompt)])
