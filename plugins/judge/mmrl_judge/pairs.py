"""A table of pairs as a task: prompts with two answers, of which a person or a model preferred one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, Task, UserError
from mmrl.api.errors import display_path, is_finite
from mmrl.api.media.images import load_image
from mmrl.api.tasks.option_checks import check_choice, check_split, check_type
from mmrl.api.tasks.table_splits import open_splits
from mmrl.api.tasks.tables import LazyItems, resolve_image
from mmrl.api.types import Case
from mmrl.api.verifiers.parse import without_thinking
from mmrl_judge.pair_rows import PLACE, read_row


@dataclass(kw_only=True, eq=False)
class Pairs(Task):
    """Prompts with two answers, of which one is preferred, from a table in TRL's form or LLaVA-RLHF's."""

    path: str
    """A .jsonl, .json, .csv, .tsv or .parquet file, what `datasets` saved, or a data set's name on the Hub."""
    test_path: str | None = None
    """The table of the split `test`; by default a share of the rows."""
    test_share: float = 0.1
    """Share of the rows in `test`, drawn by their numbers."""
    name: str | None = None
    """The data set's configuration."""
    revision: str | None = None
    """Commit or tag on the Hub; set it, so that the data can't change."""
    folder: str | None = None
    """Folder of relative paths of pictures; by default the table's own."""
    pictures: str = "required"
    """required: a row without a picture is an error; optional: it is a prompt in words."""

    def __post_init__(self) -> None:
        check_type("path", self.path, str)
        check_choice("pictures", self.pictures, ("required", "optional"))
        for option in ("test_path", "name", "revision", "folder"):
            if getattr(self, option) is not None:
                check_type(option, getattr(self, option), str)
        if not is_finite(self.test_share) or not 0 <= self.test_share < 1:
            raise UserError(f"test_share = {self.test_share!r:.60} must be a number from 0, below 1")
        self._tables, self._chosen = open_splits(
            self.path, self.test_path, self.test_share, name=self.name, revision=self.revision
        )
        self.splits = tuple(self._chosen)  # type: ignore[misc]  # a table may be too short for two

    def prompts(self, split: str, seed: int) -> LazyItems[Prompt]:
        check_split(split, self.splits)
        return LazyItems(self._tables[split], lambda row, number: self._prompt(row, f"{split}-{number}"), self._chosen[split])

    def gold(self, prompt: Prompt) -> str:
        """The preferred answer."""
        return str(prompt.answer)

    def pair(self, prompt: Prompt) -> tuple[str, str]:
        return str(prompt.answer), str(prompt.meta["rejected"])

    def _prompt(self, row: Mapping[str, Any], id: str) -> Prompt:
        found = read_row(row)
        if not found.images and self.pictures == "required":
            raise UserError('has no picture: add one, or set the option pictures = "optional"')
        images = [self._image(image) for image in found.images]
        messages = filled(found.turns, images)
        own = row.get("id", row.get("idx"))
        return Prompt(
            id=str(own) if own not in (None, "") else id,
            messages=messages,
            answer=found.preferred,
            meta={"rejected": found.rejected},
        )

    def _image(self, image: Any) -> Any:
        """The image with its full path. One that can't be read raises here, so that the error names its row."""
        image = resolve_image(self.path, image, self.folder)
        load_image(image, name=display_path(image) if isinstance(image, str) else "an image")
        return image


def filled(turns: Sequence[tuple[str, str]], images: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages with pictures in the place of `<image>` in the user's turns; without places they stand before the first of these.
    Raises ValueError if there are other numbers of places and pictures."""
    places = sum(len(PLACE.findall(text)) for role, text in turns if role == "user")
    if places not in (0, len(images)):
        raise ValueError(f"its prompt has {places} times <image>, and the row {len(images)} pictures")
    left, messages = iter(images), []
    front = [] if places else list(images)
    for role, text in turns:
        parts: list[dict[str, Any]] = []
        if role == "user":
            parts, front = [{"type": "image", "image": image} for image in front], []
            pieces = PLACE.split(text)
            for number, piece in enumerate(pieces):
                parts += [{"type": "text", "text": piece}] if piece else []
                parts += [{"type": "image", "image": next(left)}] if number + 1 < len(pieces) else []
        messages.append({"role": role, "content": parts or text})
    return messages


def same(case: Case) -> float:
    """1 if the completion is the preferred answer, but for case and outer blanks; else 0. For short answers."""
    return float(without_thinking(case.completion).strip().casefold() == str(case.answer).strip().casefold())
