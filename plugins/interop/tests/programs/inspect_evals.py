"""Runs in inspect-ai's own environment: evaluates a task with inspect's mock model. NAME is the task's registered name, or empty
for the function itself. Prints what the log says."""

import json
import re
import sys
from types import SimpleNamespace

import tiktoken
from inspect_ai import eval
from inspect_ai.model import ContentReasoning, ContentText, ModelOutput, get_model

NAME, TASK, ARGS, LOGS = sys.argv[1:]
# inspect counts tokens by a table that tiktoken would download
tiktoken.get_encoding = lambda name: SimpleNamespace(encode=lambda text, **_: text.split())


def said(messages, tools, choice, config):
    """Of a shade the first right, the second wrong and the third a fault; of guesses each number in turn."""
    text = "".join(message.text for message in messages if message.role == "user")
    if "Guess" in text:
        return str(sum(message.role == "assistant" for message in messages))
    return {0: "0", 1: "7", 2: "raise this"}[len(re.findall(" so", text))]


def answer(*args):
    """Behind a thought where the task is asked for with it."""
    thought = [ContentReasoning(reasoning="\nHm.")] if "think" in ARGS else []
    return ModelOutput.from_content("mockllm/model", [*thought, ContentText(text=said(*args))])


if NAME:
    made, options = NAME, {"task_args": {"task": TASK, **json.loads(ARGS)}}
else:
    from mmrl_interop.inspect_task import mmrl

    made, options = mmrl(TASK, **json.loads(ARGS)), {}
[log] = eval(made, model=get_model("mockllm/model", custom_outputs=answer), log_dir=LOGS, display="none", **options)
samples, figures = log.samples or [], log.results.scores if log.results else []
scores = [next(iter(sample.scores.values())) if sample.scores else None for sample in samples]


def pictures(sample):
    return sum(part.type == "image" for m in sample.messages if not isinstance(m.content, str) for part in m.content)


print(
    json.dumps(
        {
            "status": log.status,
            "errors": [sample.error.message for sample in samples if sample.error],
            "ids": [sample.id for sample in samples],
            "values": [score.value if score and isinstance(score.value, dict) else None for score in scores],
            "explanations": [score and score.explanation for score in scores],
            "turns": [sum(m.role == "assistant" for m in sample.messages) for sample in samples],
            "images": [pictures(sample) for sample in samples],
            "means": {figure.name: figure.metrics["mean"].value for figure in figures},
            "unscored": max((figure.unscored_samples or 0 for figure in figures), default=0),
        }
    )
)
