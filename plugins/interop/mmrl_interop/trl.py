"""TRL: a task as the data set, reward function and environments of `GRPOTrainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from mmrl import EnvironmentFailed, Episode, OpenTask, Score, UserError, open_task
from mmrl.api.errors import PluginError
from mmrl.api.verifiers.parse import with_thinking, without_thinking
from mmrl_interop.peers import peer
from mmrl_interop.rows import read_stored, refuse_held_out, rows

VERSIONS = ">=1.16,<1.17"
COLUMN = "mmrl"
"""Column of the data set with each row's case."""
THINKING = ("reasoning_content", "thinking")
"""Keys of a message with what the model thought, by the family of its template."""


def to_trl(
    id: str,
    options: Mapping[str, Any] | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    n: int | None = None,
    environments: bool | None = None,
    max_turns: int = 8,
    opening: str | None = None,
    **settings: Any,
) -> TrlTask:
    """A task for `trl.GRPOTrainer`.

    id, options, settings: of `mmrl.open_task`; give `model`, the model that is trained, if the task has coordinates.
    split, seed, n: the first n prompts of a split, or all.
    environments: play the task's environments, by default if it has any: the model then takes its turns by calling the tool
        `step`, so its chat template must support tools. False: the first answer is scored.
    max_turns: turns after which an episode is truncated.
    opening: what the chat template writes of each answer, which TRL's completions lack, such as "<think>"; by default what that
        of `model` writes unless it is told otherwise. Empty where `chat_template_kwargs` switch thinking off.

    Raises UserError if TRL is missing or of another version, and for tasks that act in a simulator or show videos, which TRL
    can't train on.
    """
    peer("trl", VERSIONS, "mmrl_interop.trl")
    task = open_task(id, options, **settings)
    try:
        refuse_held_out(task, split)
        plays = task.multi_turn if environments is None else environments
        return TrlTask(task, split, seed, n, plays, max_turns, task.opening if opening is None else opening)
    except BaseException:
        task.close()
        raise


class TrlTask:
    """`GRPOTrainer(..., **made.arguments)` trains on the task. Close it after training, or use it as a context manager."""

    def __init__(
        self, task: OpenTask, split: str, seed: int, n: int | None, environments: bool, max_turns: int, opening: str = ""
    ) -> None:
        self.task = task
        self.train_dataset = _dataset(task, split, seed, n, opening)
        """A `datasets.Dataset` with the columns prompt, images, id and mmrl."""
        self.reward_funcs = [self._named(task.id)]
        self.environment_factory = self._factory(split, seed, max_turns) if environments else None

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `GRPOTrainer`."""
        made = {"train_dataset": self.train_dataset, "reward_funcs": self.reward_funcs}
        return made | ({"environment_factory": self.environment_factory} if self.environment_factory else {})

    def reward(
        self,
        completions: Sequence[Any],
        mmrl: Sequence[str],
        completion_ids: Sequence[Sequence[int]] = (),
        images: Sequence[Sequence[Any]] = (),
        environments: Sequence[Any] = (),
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """The task's reward of each completion, as TRL calls it. None, which TRL leaves out, where the score is missing."""
        if environments:
            scores = self._played([e._finished(said_last(c)) for c, e in zip(completions, environments, strict=True)])
        else:
            pictures = images if self.task.needs_images else ()
            cases = [
                read_stored(row).completed(
                    said_last(completion),
                    len(completion_ids[k]) if self.task.needs_turns and completion_ids else None,
                    pictures[k] if pictures else (),
                )
                for k, (row, completion) in enumerate(zip(mmrl, completions, strict=True))
            ]
            scores = self.task.score(cases)
        if log_metric:
            for name in self.task.verifiers:
                if values := [score.parts[name] for score in scores if name in score.parts]:
                    log_metric(name, sum(values) / len(values))
            log_metric("missing", sum(score.failed for score in scores) / len(scores))
        if log_extra:
            log_extra("detail", [score.detail for score in scores])
        return [score.value for score in scores]

    def close(self) -> None:
        """Stop the judge's worker processes."""
        self.task.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _named(self, name: str) -> Callable[..., list[float | None]]:
        """`reward` as a function of this name, which TRL's metrics show."""

        def reward(**columns: Any) -> list[float | None]:
            return self.reward(**columns)

        reward.__name__ = name
        return reward

    def _played(self, played: Sequence[Episode | str]) -> list[Score]:
        """The scores of episodes, of which some are the reason why there is none."""
        scores = iter(self.task.score_episodes([episode for episode in played if not isinstance(episode, str)]))
        return [Score(None, {}, one, lost=True) if isinstance(one, str) else next(scores) for one in played]

    def _factory(self, split: str, seed: int, max_turns: int) -> Callable[[], Any]:
        task, prompts = self.task, self.task.prompts(split, seed)

        class MmrlEnvironment:
            """One episode at a time; TRL calls its public methods as tools."""

            def __init__(self) -> None:
                self._episode: Episode | None = None
                self._lost = ""

            def reset(self, place: int, **columns: Any) -> None:
                if self._episode:
                    self._episode.close()
                self._episode, self._lost = None, ""
                try:
                    self._episode = task.episode(prompts[place], max_turns)
                except EnvironmentFailed as error:
                    self._lost = str(error)

            def step(self, text: str) -> list[dict[str, Any]]:
                """Take your next turn and see what follows.

                Args:
                    text: Your turn, in the form that the task asks for.

                Returns:
                    What follows your turn.
                """
                if self._episode is None or self._episode.done:
                    raise ValueError("the episode is over")
                self._episode.step(text)
                if self._episode.done:
                    return [{"type": "text", "text": "The episode is over."}]
                return [part for m in self._episode.messages for part in _filled(m)]

            def _finished(self, said: str) -> Episode | str:
                """The episode, or why it is lost. said: what the model wrote last, outside a call of the tool: a turn, too."""
                if self._episode is None:
                    return self._lost
                try:
                    if not self._episode.done and without_thinking(said):
                        self._episode.step(said)
                except PluginError as error:
                    return str(error)
                self._episode.close()
                return self._episode

        return MmrlEnvironment


def said_last(completion: Any) -> str:
    """The text of a completion as TRL gives it: a text, or messages of which the last is the model's. Where TRL reads calls of
    tools, the thinking stands apart."""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    content = last.get("content") if last.get("role") == "assistant" else ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    thinking = next((last[name] for name in THINKING if last.get(name)), "")
    return with_thinking(thinking, content or "", ended=False)


def _filled(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of an environment's message, with decoded images."""
    from mmrl.api.media.images import load_image

    if isinstance(message["content"], str):
        return [{"type": "text", "text": message["content"]}]
    return [{"type": "image", "image": load_image(p["image"])} if p["type"] == "image" else dict(p) for p in message["content"]]


def _dataset(task: OpenTask, split: str, seed: int, n: int | None, opening: str) -> Any:
    """prompt: the chat with places for images; images; id; place: its index in the split; mmrl: the case."""
    from datasets import Dataset, Features, Image, List, Value

    made: list[dict[str, Any]] = []
    for row in rows(task, split, seed, n, images=False, opening=opening):
        if row.videos:
            raise UserError(f"task {task.id!r} shows videos, and TRL's GRPO trainer takes images: choose another trainer")
        made.append(
            {"prompt": row.messages, "images": list(row.images), "id": row.prompt.id, "place": row.index, COLUMN: row.stored}
        )
    if not made:
        raise UserError(f"task {task.id!r} gives no rows of split {split!r}: check n and its data")
    part = {"type": Value("string"), "text": Value("string")}
    features = {"prompt": List({"role": Value("string"), "content": List(part)}), "id": Value("string"), "place": Value("int64")}
    features[COLUMN] = Value("string")
    if any(row["images"] for row in made):
        features["images"] = List(Image(mode="RGB"))
    return Dataset.from_list([{k: v for k, v in row.items() if k in features} for row in made], features=Features(features))
