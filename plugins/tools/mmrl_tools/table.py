"""Your own questions with tools: rows of a table with a picture or a clip, a question and an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from PIL import Image

from mmrl import Prompt, UserError
from mmrl.api.errors import is_finite
from mmrl.api.media.clips import Clip
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.images import load_image
from mmrl.api.tasks.option_checks import check_integer, check_split, check_type
from mmrl.api.tasks.table_splits import open_splits
from mmrl.api.tasks.tables import LazyItems, resolve_image
from mmrl_tools.pictures import original
from mmrl_tools.task import WithTools
from mmrl_tools.tool import Workspace
from mmrl_tools.verifiers import letter_of, plain

COLUMNS = {"question": ("question", "problem"), "answer": ("answer", "solution", "ground_truth"), "image": ("image", "images")}
"""What is read -> the columns in which it may stand, the first that a row has."""
FRAMES, WORDS, BOXES = 64, 2000, 16


class Frames(Sequence[Image.Image]):
    """The frames of a clip, each made when a tool asks for it: uint8 [T, H, W, 3]."""

    def __init__(self, frames_THWC: Any) -> None:
        self.frames_THWC = frames_THWC

    def __len__(self) -> int:
        return len(self.frames_THWC)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...

    @overload
    def __getitem__(self, index: slice) -> Frames: ...

    def __getitem__(self, index: int | slice) -> Image.Image | Frames:
        found = self.frames_THWC[index]
        return Frames(found) if isinstance(index, slice) else Image.fromarray(found)


@dataclass(kw_only=True, eq=False)
class Answer(WithTools):
    """Your own questions about pictures or clips, which tools help to answer.

    Columns: question or problem; answer or solution, or a list of accepted ones; image or images, or video; and, where there
    are, options, boxes ([x1, y1, x2, y2] in pixels of the first picture, where the answer can be seen) and words ({"text",
    "box"} each, which `read_text` reads).
    """

    path: str
    """A .jsonl, .json, .csv, .tsv or .parquet file, what `datasets` saved, or a data set's name on the Hub."""
    test_path: str | None = None
    """The table of the split `test`; by default rows are divided."""
    test_share: float = 0.2
    """Share of the rows in `test`, without a `test_path`; 1 for a benchmark, which has no split `train`."""
    folder: str | None = None
    """Folder of relative paths of pictures and clips; by default the table's own."""
    largest: int = 0
    """The prompt shows pictures shrunk to this longer side in pixels, while tools work on the full ones; 0 shrinks none."""
    frames: int = 16
    """Frames of a clip that the prompt shows, evenly spaced. `select_frames` numbers as many, so the policy's
    `video.max_frames` must be as large."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("path", self.path, str)
        for option in ("test_path", "folder"):
            if getattr(self, option) is not None:
                check_type(option, getattr(self, option), str)
        check_integer("largest", self.largest, 0, 16384)
        check_integer("frames", self.frames, 1, FRAMES)
        if not is_finite(self.test_share) or isinstance(self.test_share, bool) or not 0 <= self.test_share <= 1:
            raise UserError(f"test_share = {self.test_share!r:.60} must be a number from 0 to 1")
        self._rows, self._chosen = open_splits(self.path, self.test_path, self.test_share)
        self.splits = tuple(self._rows)  # type: ignore[misc]  # the data decide which there are

    def prompts(self, split: str, seed: int) -> LazyItems[Prompt]:
        check_split(split, self.splits)
        return LazyItems(self._rows[split], lambda row, number: self._prompt(row, split, number), self._chosen[split])

    def workspace(self, prompt: Prompt) -> Workspace:
        path, meta = str(self._rows[prompt.meta["split"]].name), prompt.meta
        pictures = [
            original(self._load(path, ref), number, size)
            for number, (ref, size) in enumerate(zip(meta["files"], meta["sizes"], strict=True))
        ]
        frames = Frames(cached_frames(prompt.videos[0]).frames_THWC) if prompt.videos else ()
        words = tuple((text, box) for text, box in meta.get("words", ()))
        return Workspace(pictures=pictures, frames=frames, words=words, processing=self.image_processing, blank=self.blank)

    def _prompt(self, row: Mapping[str, Any], split: str, number: int) -> Prompt:
        path = str(self._rows[split].name)
        question = _cell(row, "question")
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"the question is {question!r:.60}, not a text")
        options, answer = _options(row), _accepted(_cell(row, "answer"))
        meta: dict[str, Any] = {"split": split}
        if options:
            answer = letter_of(answer, options)
            meta["options"] = options
            listed = "\n".join(f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(options))
            question = f"{question}\n{listed}\n"
        clip = self._clip(path, row)
        refs = [] if clip else _pictures(row)
        full = [self._load(path, ref) for ref in refs]
        shown = [_shrunk(image, self.largest) for image in full]
        meta |= {"files": refs, "sizes": [image.size for image in shown]}
        if full:
            meta["shown"] = shown[0].size
            scales = [side / whole for side, whole in zip(shown[0].size, full[0].size, strict=True)] * 2
            if boxes := _boxes(row, full[0].size):
                meta["boxes"] = [tuple(v * scale for v, scale in zip(box, scales, strict=True)) for box in boxes]
            if words := _words(row):
                meta["words"] = words
        media = [clip] if clip else shown
        id = str(row["id"]) if row.get("id") not in (None, "") else f"{split}-{number}"
        return self.posed(id, question.replace("<image>", "").strip(), media, answer, meta)

    def _load(self, path: str, ref: Any) -> Image.Image:
        return load_image(resolve_image(path, ref, self.folder))

    def _clip(self, path: str, row: Mapping[str, Any]) -> Clip | None:
        video = row.get("video")
        if video in (None, ""):
            return None
        if not isinstance(video, str):
            raise ValueError(f"the video is {video!r:.60}, not the path of a file")
        return Clip(path=str(resolve_image(path, video, self.folder)), count=self.frames)


def _cell(row: Mapping[str, Any], what: str) -> Any:
    """What stands in the first of the columns that a row has. Raises KeyError without one."""
    return row[next((column for column in COLUMNS[what] if column in row), COLUMNS[what][0])]


def _listed(cell: Any) -> Any:
    """A list from JSON in a cell of CSV; anything else unchanged."""
    if isinstance(cell, str) and cell.lstrip()[:1] == "[":
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell


def _accepted(cell: Any) -> Any:
    """The answer, or the list of accepted ones, as texts."""
    cell = _listed(cell)
    texts = [str(one).strip() for one in (cell if isinstance(cell, list | tuple) else [cell]) if one is not None]
    if not texts or not all(texts):
        raise ValueError(f"the answer is {cell!r:.60}: there must be one")
    return texts if len(texts) > 1 else texts[0]


def _options(row: Mapping[str, Any]) -> list[str]:
    cell = _listed(row.get("options"))
    if cell is None or (isinstance(cell, str | list | tuple) and len(cell) == 0):
        return []
    if not isinstance(cell, list | tuple) or not 2 <= len(cell) <= 26 or len({str(one) for one in cell}) < len(cell):
        raise ValueError(f"the options are {cell!r:.60}, not a list of 2 to 26 different ones")
    forms = [plain(str(one)) for one in cell]
    if not all(forms) or len(set(forms)) < len(forms):
        raise ValueError(f"the options are {cell!r:.60}: two read the same, or one is empty, without case and punctuation")
    return [str(one).strip() for one in cell]


def _pictures(row: Mapping[str, Any]) -> list[Any]:
    cell = _listed(_cell(row, "image"))
    refs = [one for one in (cell if isinstance(cell, list | tuple) else [cell]) if one is not None and one != ""]
    if not 1 <= len(refs) <= 16:
        raise ValueError(f"a row needs 1 to 16 pictures, or a video, not {len(refs)} pictures")
    return refs


def _shrunk(image: Image.Image, largest: int) -> Image.Image:
    if not largest or max(image.size) <= largest:
        return image
    scale = largest / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)


def _boxes(row: Mapping[str, Any], size: tuple[int, int]) -> list[tuple[float, ...]]:
    cell = _listed(row.get("boxes"))
    if cell in (None, "", [], ()):
        return []
    if not isinstance(cell, list | tuple) or len(cell) > BOXES:
        raise ValueError(f"boxes are {cell!r:.60}, not a list of at most {BOXES}")
    return [_box(box, size) for box in cell]


def _box(box: Any, size: tuple[int, int]) -> tuple[float, ...]:
    numbers = isinstance(box, list | tuple) and len(box) == 4 and all(is_finite(v) and not isinstance(v, bool) for v in box)
    if not numbers or not (0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]):
        raise ValueError(f"the box {box!r:.80} is not [x1, y1, x2, y2] in a picture of {size[0]} x {size[1]} pixels")
    return tuple(float(v) for v in box)


def _words(row: Mapping[str, Any]) -> list[tuple[str, tuple[float, ...]]]:
    cell = _listed(row.get("words"))
    if cell in (None, "", [], ()):
        return []
    if not isinstance(cell, list | tuple) or len(cell) > WORDS:
        raise ValueError(f"words are {cell!r:.60}, not a list of at most {WORDS}")
    found = []
    for one in cell:
        if not isinstance(one, Mapping) or not isinstance(one.get("text"), str):
            raise ValueError(f'a word is {one!r:.60}, not {{"text": ..., "box": [x1, y1, x2, y2]}}')
        found.append((one["text"], _box(one.get("box"), (2**31, 2**31))))
    return found
