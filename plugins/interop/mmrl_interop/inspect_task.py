"""inspect-ai: any task as its task `mmrl_interop/mmrl`, which inspect finds by the entry point of this package.

`inspect eval mmrl_interop/mmrl -T task=grounding/refer --model openai/gpt-5-mini`.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, ContentImage, ContentText
from inspect_ai.scorer import Score, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver

from mmrl import EnvironmentFailed, OpenTask, UserError, open_task
from mmrl.api.cases import case_from_json, case_to_json
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.types import add_part
from mmrl.api.verifiers.parse import with_thinking
from mmrl_interop.rows import read_stored, rows
from mmrl_interop.scoring import scoring_of

ROLES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
TRUNCATED = ("max_tokens", "model_length")


@task
def mmrl(
    task: str,
    options: Mapping[str, Any] | None = None,
    split: str = "test",
    seed: int = 0,
    n: int | None = None,
    model: str | None = None,
    frame: str | None = None,
    max_pixels: int | None = None,
    max_turns: int = 8,
) -> Task:
    """An mmrl task.

    task, options: as in `[[tasks]]` of a run file. split, seed, n: the first n prompts of a split, or all.
    model, frame, max_pixels: how the model that answers sees pictures and writes coordinates, see `mmrl.open_task`.
    max_turns: turns of an episode, of a task with environments.

    Raises UserError for a task that acts in a simulator."""
    opened = open_task(task, options, model=model, frame=frame, max_pixels=max_pixels)
    atexit.register(opened.close)
    encode = ChatEncoder(max_pixels=max_pixels)
    samples = [
        Sample(
            input=_chat(encode, row.prompt.messages),
            target=row.prompt.answer if isinstance(row.prompt.answer, str) else repr(row.prompt.answer),
            id=row.prompt.id,
            metadata={"mmrl": row.stored, "place": row.index},
        )
        for row in rows(opened, split, seed, n)
    ]
    if not samples:
        raise UserError(f"task {task!r} gives no prompts of split {split!r}: check n and its data")
    played = episode(opened, encode, split, seed, max_turns) if opened.multi_turn else generate()
    return Task(dataset=MemoryDataset(samples, name=task), solver=played, scorer=reward(), name=task.replace("/", "-"))


@solver
def episode(opened: OpenTask, encode: ChatEncoder, split: str, seed: int, max_turns: int) -> Solver:
    """Play the task's environment: each answer is a turn."""
    prompts = opened.prompts(split, seed)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        try:
            playing = opened.episode(prompts[state.metadata["place"]], max_turns)
        except EnvironmentFailed as error:
            state.metadata["lost"] = str(error)
            return state
        with playing:
            while not playing.done:
                state = await generate(state)
                await playing.step_async(_said(state))
                if not playing.done:
                    state.messages += _chat(encode, playing.messages)
        if playing.failure:
            state.metadata["lost"] = playing.failure
        else:
            state.metadata |= {"case": case_to_json(playing.case(), opened.needs_images), "earned": playing.reward}
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def reward() -> Any:
    """The task's reward and what each verifier gave. A score that is missing is unscored, which inspect leaves out."""

    async def score(state: TaskState, target: Any) -> Score:
        if "lost" in state.metadata:
            return Score.unscored(reason="environment_failed", explanation=state.metadata["lost"])
        stored = state.metadata["mmrl"]
        names = [*read_stored(stored).verifiers]
        if "case" in state.metadata:
            case = case_from_json(state.metadata["case"], "an episode")
            found = add_part(await scoring_of(stored, {}).score_async(case), "environment", state.metadata["earned"])
            names.append("environment")
        else:
            case = read_stored(stored).completed(_said(state), truncated=state.output.stop_reason in TRUNCATED)
            found = await scoring_of(stored, {}).score_async(case)
        said = {"answer": _said(state), "explanation": found.detail or None}
        if found.value is None:
            return Score.unscored(reason="scoring_failed", **said)
        parts = {name: found.parts.get(name, math.nan) for name in names}  # all samples must have all of them
        return Score(value={"reward": found.value, **parts}, **said)

    return score


def _said(state: TaskState) -> str:
    """The model's last answer, with its thinking, which stands apart in inspect."""
    if state.output.empty:
        return ""
    message = state.output.message
    parts = [] if isinstance(message.content, str) else message.content
    thinking = "\n".join(part.summary or "" if part.redacted else part.reasoning for part in parts if part.type == "reasoning")
    return with_thinking(thinking, message.text, state.output.stop_reason not in TRUNCATED)


def _chat(encode: ChatEncoder, messages: Sequence[Any]) -> list[ChatMessage]:
    """Messages of a task as inspect's, with images as data URLs and videos as their frames."""
    encoded, _ = encode(messages)

    def part(of: Mapping[str, Any]) -> Any:
        return ContentText(text=of["text"]) if of["type"] == "text" else ContentImage(image=of["image_url"]["url"])

    return [
        ROLES[m["role"]](content=m["content"] if isinstance(m["content"], str) else [part(p) for p in m["content"]])
        for m in encoded
    ]
