"""Other trainers' tables as a task: those of TRL, verl, EasyR1, ms-swift, LLaVA, LLaMA-Factory and The Cauldron."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mmrl import Case, NoGold, Prompt, Task, UserError
from mmrl.api.errors import display_path, is_finite, shorten
from mmrl.api.media.clips import Clip
from mmrl.api.media.images import load_image
from mmrl.api.tasks.columns import check_columns
from mmrl.api.tasks.option_checks import check_choice, check_split, check_type
from mmrl.api.tasks.table_splits import open_splits
from mmrl.api.tasks.tables import DataTable, LazyItems, resolve_image
from mmrl.api.verifiers.parse import last_tag, nfc
from mmrl_interop.forms import FORMS, detect_form, read_form, renamed

FRAMES = {"<answer>": "<answer>{}</answer>", "\\boxed": "\\boxed{{}}"}
"""What a prompt that wants its answer framed contains -> the frame, with {} for the answer."""


@dataclass(kw_only=True, eq=False)
class TableTask(Task):
    """A table that was made for another trainer, with its images in their places.

    Rewards of that trainer score it as `interop/verl` or `interop/trl`, which get the row's other columns."""

    path: str
    """A .parquet, .jsonl, .json, .csv or .tsv file, what `datasets` saved, or a data set's name on the Hub, perhaps with its
    split: owner/name@train."""
    form: str = "auto"
    """trl, verl, easyr1, swift, llava, sharegpt, alpaca or cauldron; auto decides by the columns."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The form's name of a column -> the table's, such as {problem = "question", images = "pictures"}."""
    test_path: str | None = None
    """The table of the split `test`; by default a data set's own, or a share of the rows."""
    test_share: float = 0.1
    """Share of the rows in `test`, drawn by their numbers, of a table without a split of its own."""
    name: str | None = None
    """The data set's configuration."""
    revision: str | None = None
    """Commit or tag on the Hub."""
    folder: str | None = None
    """Folder of relative paths of media; by default the table's own."""
    format_prompt: str | None = None
    """EasyR1's `data.format_prompt`: the path of a Jinja template with `content`, for prompts that are a text."""
    needs_prompt: ClassVar[bool] = True
    """Whether a table must have a form's column of prompts."""

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("auto", *FORMS))
        check_type("path", self.path, str)
        for option in ("test_path", "name", "revision", "folder", "format_prompt"):
            if getattr(self, option) is not None:
                check_type(option, getattr(self, option), str)
        named = self.columns.items() if isinstance(self.columns, Mapping) else [(self.columns, "")]
        if not all(isinstance(name, str) for pair in named for name in pair):
            raise UserError(f'columns = {self.columns!r:.80} must be names of columns, such as {{problem = "question"}}')
        if not is_finite(self.test_share) or not 0 <= self.test_share < 1:
            raise UserError(f"test_share = {self.test_share!r:.60} must be a number from 0, below 1")
        self._template = _template(self.format_prompt) if self.format_prompt else None
        self._tables, self._chosen = open_splits(
            self.path, self.test_path, self.test_share, name=self.name, revision=self.revision
        )
        self.splits = tuple(self._chosen)  # type: ignore[misc]  # a table may be too short for two
        self._form = {split: self._detect(self._tables[split], self._chosen[split]) for split in self.splits}

    def prompts(self, split: str, seed: int) -> LazyItems[Prompt]:
        check_split(split, self.splits)
        form = self._form[split]
        return LazyItems(
            self._tables[split],
            lambda row, number: self._prompt(form, renamed(row, self.columns), f"{split}-{number}"),
            self._chosen[split],
        )

    def gold(self, prompt: Prompt) -> str:
        """The assistant's turn of a conversation; of other rows an answer that is a text, a number or a date, in the frame that
        the prompt names (`FRAMES`), or else bare. What other trainers' rewards want besides, such as thinking in tags, no table
        says."""
        target = prompt.meta.get("target")
        if target is not None and target == prompt.answer:
            return str(target)
        if prompt.answer is None:
            raise NoGold("the row has no ground truth, and only its reward function knows what completion it wants")
        if isinstance(prompt.answer, Mapping | list | tuple | bytes):
            raise NoGold("the ground truth is a table, and only its reward function knows what completion it wants")
        bare = str(prompt.answer)
        if any(mark in bare for mark in FRAMES):  # a ground truth may be written as a completion
            return bare
        return next((frame for mark, frame in FRAMES.items() if mark in prompt.text), "{}").replace("{}", bare)

    def _detect(self, table: DataTable, chosen: Sequence[int]) -> str:
        """The form of a table: by its columns, or by the first row that can be read."""
        check_columns(table, {column: (f"columns.{name}", "") for name, column in self.columns.items()})
        if self.form != "auto":
            return self.form
        columns, why = table.columns, UserError("no row")
        for number in () if columns else chosen:
            try:
                columns = tuple(table[number])
                break
            except UserError as error:
                why = error
        if not columns:
            raise UserError(f"{display_path(table.name)} has no row that can be read: {why}")
        try:
            return detect_form(tuple(renamed(dict.fromkeys(columns), self.columns)))
        except UserError as error:
            if not self.needs_prompt:
                return "trl"
            raise UserError(f"{display_path(table.name)}: {error}") from None

    def _prompt(self, form: str, row: Mapping[str, Any], id: str) -> Prompt:
        row = row if self.needs_prompt else {"prompt": [{"role": "user", "content": ""}], **row}
        example = read_form(form, row, self._template)
        messages = [{**message, "content": self._resolved(message["content"])} for message in example.messages]
        meta = example.meta if example.target is None else example.meta | {"target": example.target}
        return Prompt(id=str(row["id"]) if row.get("id") else id, messages=messages, answer=example.answer, meta=meta)

    def _resolved(self, content: Any) -> Any:
        """Content with full paths; an image that can't be read raises here, so that the error names its row."""
        if isinstance(content, str):
            return content
        parts = []
        for part in content:
            if part["type"] == "image":
                image = resolve_image(self.path, part["image"], self.folder)
                load_image(image, name=display_path(image) if isinstance(image, str) else "of the row")
                part = {"type": "image", "image": image}
            elif part["type"] == "video":
                clip: Clip = part["video"]
                part = {"type": "video", "video": replace(clip, path=str(resolve_image(self.path, clip.path, self.folder)))}
            parts.append(part)
        return parts


def answer(case: Case) -> float:
    r"""1 if the completion's answer equals the ground truth, as text without case and outer blanks or as mathematics; else 0.

    The answer is the text of the last <answer> tag, or else the whole completion, in which mathematics finds \boxed{...}. The
    ground truth may be written as a completion, too. Raises ValueError without a ground truth: verl's rows may leave it to their
    own reward function."""
    if case.answer is None or not str(case.answer).strip():
        raise ValueError("the row has no ground truth: score it with its own reward function")
    wanted, said = str(case.answer), case.completion
    wanted, said = (found if (found := last_tag(text)) is not None else text for text in (wanted, said))
    if nfc(wanted).strip().casefold() == nfc(said).strip().casefold():
        return 1.0
    from mmrl.api.verifiers.mathematics import answers_match

    return float(answers_match(said, wanted))


def _template(path: str) -> Callable[[str], str]:
    """EasyR1's template of prompts. Raises UserError for a file that is none."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import SandboxedEnvironment
    except ModuleNotFoundError:
        raise UserError('format_prompt needs jinja2: pip install "multimodal-rl[train]"') from None
    try:
        made = SandboxedEnvironment().from_string(Path(path).expanduser().read_text("utf-8").strip())
        made.render(content="")
    except (OSError, UnicodeDecodeError, TemplateError) as error:
        raise UserError(f"format_prompt: {display_path(path)} is no template ({shorten(error, 120)}): correct it") from error
    return lambda problem: str(made.render(content=problem))
