"""Tasks from pictures to code: random pictures, and your own."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.errors import display_path
from mmrl.api.media.images import load_image
from mmrl.api.tasks.image_sources import SPLIT_SHARES, chance, hash_rank, list_files, split_of
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl.api.tasks.table_splits import own_test
from mmrl.api.tasks.tables import DataTable, LazyItems, read_table, resolve_image
from mmrl.api.verifiers.parse import last_tag
from mmrl_rendering import chart, random_pictures, shapes, svg
from mmrl_rendering.code import CHART_SIZE, known, render, source
from mmrl_rendering.compare import rendered
from mmrl_rendering.pages import random_page
from mmrl_rendering.plot_code import as_program
from mmrl_rendering.revision import CALLS, GoldCalls, Redraw
from mmrl_rendering.svg import Refused
from mmrl_rendering.teacher import Teacher

LEVELS = ("easy", "middle", "hard")
ITEMS = {"warm": 200, "train": 2000, "test": 200}
ASK = {
    "svg": "Write this picture as SVG, with viewBox 0 0 100 100.",
    "short": "Write this picture as shapes, with x and y from 0 to 100.",
    "html": "Write this web page as HTML.",
    "matplotlib": "Write this figure as a Python program with matplotlib.",
    "chart": "Write this chart as JSON with the keys type (bar, line, scatter or pie), title, x, y, labels, series.",
}
FORM = {
    "svg": "Answer with the SVG code and nothing else.",
    "html": "Answer with the page, <html>...</html>, its style inside it, and nothing else.",
    "matplotlib": "Answer with the program and nothing else.",
    "short": f"Answer with {'; '.join(f'{k} {chr(32).join(v)} colour' for k, v in shapes.SHAPES.items())}.",
    "chart": 'A series is {"name": ..., "values": [...]}. Answer with the JSON and nothing else.',
}
ALONE = " and nothing else."
"""The end of what is said of an answer, which isn't true where the code can be tried."""


@dataclass(kw_only=True, eq=False)
class Rendered(Task):
    """Base class of tasks that request the code of a picture; the code's rendering can be shown to people and to the policy."""

    think: bool = False
    """Request a thought in think tags before the code."""
    turns: int = 1
    """Maximum of answers: after each the policy sees the rendering of its code, or the error, and writes it again. The last one
    counts."""
    calls: bool = False
    """Tries are calls of a tool, code in <tool_call> </tool_call>, and an answer in <answer> </answer> ends the episode before
    all turns are used."""
    teacher: Mapping[str, Any] = field(default_factory=dict)
    """A vision-language model behind an endpoint that tells the policy how the rendering differs, in the place of showing it: its
    model and base_url, and key_variable, max_pixels, max_tokens, temperature, concurrency, retries, request_timeout_s, cache,
    extra, as of a judge."""

    def __post_init__(self) -> None:
        check_integer("turns", self.turns, 1, 100)
        check_type("think", self.think, bool)
        check_type("calls", self.calls, bool)
        check_type("teacher", self.teacher, Mapping)
        if self.turns == 1 and (self.calls or self.teacher):
            raise UserError(f"{'calls' if self.calls else 'teacher'} has no effect with turns = 1: set turns = 2 or more")
        self._teacher = made_teacher(self.teacher) if self.teacher else None

    def draw_completion(self, prompt: Prompt, completion: str) -> Any:
        if self.calls and "<answer>" not in completion:
            completion = last_tag(completion, "tool_call") or completion
        try:
            return render(completion, prompt.meta["code"], rendered(load_image(prompt.images[0]).size))
        except Refused:
            return None

    def environment(self, prompt: Prompt) -> Redraw | None:
        if self.turns == 1:
            return None
        target = load_image(prompt.images[0])
        if not self.calls:
            return Redraw(prompt.meta["code"], self.turns, target, teacher=self._teacher)
        call, answer = (self._written(prompt, tag) for tag in ("tool_call", "answer"))
        return GoldCalls(prompt.meta["code"], self.turns, target, teacher=self._teacher, call=call, answer=answer)

    def posed(self, id: str, code: str, text: str, shown: Any, meta: Mapping[str, Any]) -> Prompt:
        """A prompt with a picture, instructions for the code, and the right code."""
        first = "Think in <think> </think> tags. " if self.think else ""
        form = FORM[code]
        if self.calls:
            seen = "are told how its picture differs" if self.teacher else "see its picture"
            form = f"{form.removesuffix(ALONE).rstrip('.,')}.\n{CALLS.format(tries=self.turns - 1, seen=seen)}"
        ask = ASK[code] if 'viewBox="0 0 100 100"' in text or code != "svg" else "Write this picture as SVG."
        return Prompt(
            id=id,
            messages=[user_message(f"{ask}\n{first}{form}", shown)],
            answer=text,
            meta={"code": code, "length": len(source(text, code)), **meta},
        )

    def gold(self, prompt: Prompt) -> str:
        """The right code; with `calls` it is tried first, and the episode goes on."""
        return self._written(prompt, "tool_call" if self.calls else "")

    def _written(self, prompt: Prompt, tag: str) -> str:
        said = f"<{tag}>\n{prompt.answer}\n</{tag}>" if tag else prompt.answer
        return f"<think>I write down what I see.</think>\n{said}" if self.think else str(said)


@dataclass(kw_only=True, eq=False)
class Drawn(Rendered):
    """Base class of the tasks on random pictures."""

    level: str = "mixed"
    """Difficulty: easy, middle, hard, or mixed, which alternates."""
    seed: int = 0
    """Seed of the pictures. The run's seed doesn't change them, so that all runs are tested on the same ones."""
    items: Mapping[str, int] = field(default_factory=lambda: dict(ITEMS))
    """Split -> number of items."""

    splits: ClassVar[tuple[str, ...]] = ("warm", "train", "test")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("seed", self.seed, int)
        check_choice("level", self.level, (*LEVELS, "mixed"))
        if (
            not isinstance(self.items, Mapping)
            or not self.items
            or not all(isinstance(k, str) and k and type(n) is int and n > 0 for k, n in self.items.items())
        ):
            raise UserError(
                f"items = {self.items!r:.200} must be a table of splits and numbers of items: {{train = 2000, test = 200}}"
            )
        self.splits = tuple(self.items)  # type: ignore[misc]  # the option names them

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(self.items[split]), lambda number: self._prompt(split, number))

    def _level(self, number: int) -> str:
        return LEVELS[number % len(LEVELS)] if self.level == "mixed" else self.level

    def _is_of(self, split: str, *parts: str) -> bool:
        """Whether a picture belongs to a split, decided by its content, so that splits share no picture."""
        return self.splits[hash_rank(0, "split", *parts) % len(self.splits)] == split

    def _prompt(self, split: str, number: int) -> Prompt:
        raise NotImplementedError(f"{type(self).__name__} must define _prompt(split, number)")


@dataclass(kw_only=True, eq=False)
class Svg(Drawn):
    """A picture of a few shapes; the code that draws it is the answer."""

    code: str = "svg"
    """Language of the code: svg, or short, `rect 10 20 30 40 red; circle 50 50 9 blue`, for tiny models."""
    size: int = 112
    """Side of the picture in pixels, 28 to 512."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("code", self.code, ("svg", "short"))
        check_integer("size", self.size, 28, 512)

    def _prompt(self, split: str, number: int) -> Prompt:
        level, draw = self._level(number), chance(self.seed, split, str(number), self.code)
        parts = random_pictures.parts_of(draw, level, self.code, lambda parts: self._is_of(split, *sorted(parts)))
        text = random_pictures.joined(parts, self.code)
        meta = {"difficulty": LEVELS.index(level) + len(parts) / 10}
        return self.posed(f"{split}-{number}", self.code, text, render(text, self.code, (self.size, self.size)), meta)


@dataclass(kw_only=True, eq=False)
class Charts(Drawn):
    """A chart, drawn from the JSON that is the answer."""

    size: int = 280
    """Width in pixels, 160 to 512; the height is three quarters of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("size", self.size, 160, 512)

    def _prompt(self, split: str, number: int) -> Prompt:
        level, draw = self._level(number), chance(self.seed, split, str(number), "chart")
        made = random_pictures.random_chart(draw, level)
        while not self._is_of(split, repr(made)):
            made = random_pictures.random_chart(draw, level)
        value = chart.as_json(made)
        count = sum(len(values) for _, values in made.series)
        meta = {"difficulty": LEVELS.index(level) + count / 100, "chart": value}
        shown = chart.draw(made, (self.size, round(self.size * 0.75)))
        return self.posed(f"{split}-{number}", "chart", json.dumps(value), shown, meta)


@dataclass(kw_only=True, eq=False)
class Pages(Drawn):
    """A web page as a browser shows it, with this machine's fonts: on another machine the same page may differ slightly."""

    size: int = 224
    """Width in pixels, 112 to 512; the height is three quarters of it."""
    items: Mapping[str, int] = field(default_factory=lambda: {"warm": 50, "train": 400, "test": 50})
    """Split -> number of items. The browser takes half a second for a page."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known("html")
        check_integer("size", self.size, 112, 512)

    def _prompt(self, split: str, number: int) -> Prompt:
        level, draw = self._level(number), chance(self.seed, split, str(number), "html")
        page = random_page(draw, level)
        while not self._is_of(split, page):
            page = random_page(draw, level)
        shown = render(page, "html", (self.size, round(self.size * 0.75)))
        return self.posed(f"{split}-{number}", "html", page, shown, {"difficulty": LEVELS.index(level) + len(page) / 1000})


@dataclass(kw_only=True, eq=False)
class Plots(Drawn):
    """A figure by matplotlib, drawn by the program that is the answer. The programs of the policy run in a sandbox, which needs
    bubblewrap, and matplotlib."""

    size: int = 320
    """Width in pixels, 160 to 640; the height is three quarters of it."""
    items: Mapping[str, int] = field(default_factory=lambda: {"warm": 50, "train": 400, "test": 50})
    """Split -> number of items. A figure takes a second."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known("matplotlib")
        check_integer("size", self.size, 160, 640)

    def _prompt(self, split: str, number: int) -> Prompt:
        level, draw = self._level(number), chance(self.seed, split, str(number), "matplotlib")
        made = random_pictures.random_chart(draw, level)
        while not self._is_of(split, repr(made)):
            made = random_pictures.random_chart(draw, level)
        program, count = as_program(made), sum(len(values) for _, values in made.series)
        shown = render(program, "matplotlib", (self.size, round(self.size * 0.75)))
        meta = {"difficulty": LEVELS.index(level) + count / 100}
        return self.posed(f"{split}-{number}", "matplotlib", program, shown, meta)


@dataclass(kw_only=True, eq=False)
class Own(Rendered):
    """Pictures with their code, from a folder or a table."""

    path: str
    """A folder of `.svg` files, or a table (`.jsonl`, `.json`, `.csv`, `.parquet`, a data set) with code in its rows."""
    test_path: str | None = None
    """Another folder or table for the split test; by default 30% of the items."""
    code: str = "svg"
    """The language of the code: svg, short, chart, html, which needs a browser, or matplotlib, which needs a sandbox."""
    code_column: str = "code"
    """The column of the code: text, or the path of a file relative to the table; for charts also an object."""
    image_column: str = "image"
    """The column of the picture. If a row has none, the code is rendered."""
    size: int = 224
    """Longer side of renderings in pixels, 28 to 512."""
    seed: int = 0
    """Seed of the splits of a single source."""

    splits = ("train", "test")

    def __post_init__(self) -> None:
        super().__post_init__()
        known(self.code)
        check_integer("size", self.size, 28, 512)
        check_type("seed", self.seed, int)
        for option in ("path", "code_column", "image_column", *(("test_path",) if self.test_path is not None else ())):
            check_type(option, getattr(self, option), str)
        rows, name = opened(self.path, "train")
        if self.test_path is not None:
            test = opened(self.test_path, "test")
        else:
            test = rows if isinstance(rows, _Files) else own_test(self.path, rows), name
        self._sources = {"train": (rows, name), "test": test}

    def prompts(self, split: str, seed: int) -> LazyItems[Prompt]:
        check_split(split, self.splits)
        rows, name = self._sources[split]
        one = self.test_path is None and self._sources["train"][0].name == self._sources["test"][0].name
        chosen: Sequence[int] = range(len(rows))
        if one:
            chosen = array("Q", (i for i in chosen if split_of(name(i), self.seed, SPLIT_SHARES) == split))
        if not chosen:
            raise UserError(f"split {split!r} of {display_path(self.path)} is empty: give more pictures, or a test_path")
        if Path(rows.name).suffix == "":
            chosen = sorted(chosen, key=lambda i: hash_rank(self.seed, "order", name(i)))
        path = self.test_path or self.path if split == "test" else self.path
        return LazyItems(rows, lambda row, number: self._prompt(f"{split}/{name(number)}", path, row), chosen)

    def _prompt(self, id: str, path: str, row: Mapping[str, Any]) -> Prompt:
        text = self._text(row[self.code_column], path)
        meta: dict[str, Any] = {}
        try:
            text = source(text, self.code) if self.code != "chart" else text
            if self.code == "chart":
                meta["chart"] = chart.as_json(chart.read(chart.find(text)))
            shown = render(text, self.code, self._size(text))
        except Refused as error:
            raise ValueError(f"its code can't be used: {error}") from None
        image = row.get(self.image_column)
        if image not in (None, ""):
            shown = load_image(resolve_image(path, image))
        meta["difficulty"] = len(text) / 1000
        return self.posed(id, self.code, text, shown, meta)

    def _text(self, value: Any, path: str) -> str:
        if self.code == "chart" and isinstance(value, Mapping):
            return json.dumps(dict(value))
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"the code must be a text, not {value!r:.40}")
        if "\n" in value or len(value) > 200 or not value.strip().endswith((".svg", ".json", ".txt")):
            return value
        try:
            return Path(str(resolve_image(path, value.strip()))).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ValueError(f"the file {display_path(value.strip())} can't be read: {error.strerror}") from None

    def _size(self, text: str) -> tuple[int, int]:
        """The size of a rendering: `size`, in the code's own proportions."""
        if self.code in ("chart", "html", "matplotlib"):
            return self.size, round(self.size * CHART_SIZE[1] / CHART_SIZE[0])
        if self.code == "short":
            return self.size, self.size
        width, height = svg.render(text).size
        scale = self.size / max(width, height)
        return max(1, round(width * scale)), max(1, round(height * scale))


# -- words and sources ------------------------------------------------------------------------------------------------------


def made_teacher(options: Mapping[str, Any]) -> Teacher:
    """The teacher of an option's table. Raises UserError for one that can't work."""
    try:
        return Teacher(**options)
    except TypeError as error:
        raise UserError(
            f"teacher = {dict(options)!r:.200} has a key too many, or no model ({str(error).partition('() ')[2]})"
        ) from None


def opened(path: str, split: str) -> tuple[DataTable, Callable[[int], str]]:
    """(rows, the name of each by its index) of a folder of SVG files or of a table."""
    folder = Path(path).expanduser()
    try:
        is_folder = folder.is_dir()
    except OSError:  # read_table reports it
        is_folder = False
    if not is_folder or any((folder / n).exists() for n in ("dataset_dict.json", "state.json")):
        rows = read_table(path, split=split)
        return rows, "row-{}".format
    listed = list_files(path, (".svg",), "picture")
    names, files = list(listed), list(listed.values())

    def read(index: int) -> dict[str, str]:
        return {"code": files[index].read_text(encoding="utf-8", errors="replace")}

    return _Files(str(path), len(files), read, names=tuple(names)), names.__getitem__


class _Files(DataTable):
    """A folder's files as rows, with their names as locations."""

    def __init__(self, name: str, size: int, read: Callable[[int], Any], names: tuple[str, ...]) -> None:
        super().__init__(name, size, read)
        object.__setattr__(self, "names", names)

    def location(self, index: int) -> str:
        return display_path(f"{self.name}/{self.names[index]}")  # type: ignore[attr-defined]  # the parent's fields are frozen
