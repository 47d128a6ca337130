"""Images, videos and tables that are broken, lie about themselves, or are no such files."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bad_images import COSTLIEST, cost, lying_images, odd_images, odd_paths, whole_images
from bad_tables import READERS, SAMPLES, WHOLE, broken_tables, odd_table_paths, parquet_tables, question_tables, whole_table
from bad_videos import odd_video_paths, video_files
from broken_bytes import broken
from mmrl.api.errors import NoGold, UserError
from mmrl.api.interfaces import Task
from mmrl.api.media.clips import Clip, as_clip
from mmrl.api.media.decoding import cached_frames, clear_cache
from mmrl.api.media.images import load_frames, load_image
from mmrl.api.media.video_files import probe
from mmrl.api.types import Prompt
from mmrl.registry import plugins
from mmrl.testing.attack import Attempt
from mmrl.testing.attack.campaign import attempt, refusal_fault
from offline import offline

MOST_S = 4.0
"""Processor time that reading one file may take."""
WAIT_S = 60.0
"""Time on the clock that it may take; a busy machine is slow."""
MOST_BYTES = 512e6
"""Memory that reading one image may take."""
HEAVIEST = (
    "pixels of 1 GB.png",
    "a compressed text of 256 MiB.png",
    "a profile of 256 MiB.png",
    "large.tif",
    "many scans, large.jpg",
    "many frames of a large screen.gif",
    "large frames.webp",
    "written out, long.ppm",
)
"""Those of `lying_images` whose memory is measured."""


def images(every: int = 1) -> Iterator[Attempt]:
    """It held if it is an RGB image, or is refused in one line that names the file, in little time and memory. every: attempt
    only one of so many, without those that lie about themselves, which take seconds to make."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in itertools.islice(_image_files(), 0, None, every):
            yield from _image(_written(Path(folder), name, data))
        for name, ref in itertools.islice(odd_paths(Path(folder)), 0, None, every):
            yield from _image(ref, name)
        for name, ref in itertools.islice(odd_images(), 0, None, every):
            yield _reading(name, "", load_image, _is_image, ref)
        if every == 1:
            lies = dict(lying_images())
            for name, data in lies.items():
                yield from _image(_written(Path(folder), name, data))
            for name, make in [*COSTLIEST.items(), *((name, lambda name=name: lies[name]) for name in HEAVIEST)]:
                yield _costing(name, _written(Path(folder), "costly", make()))


def videos(every: int = 1) -> Iterator[Attempt]:
    """It held if it has frames, or is refused in one line that names the file, in little time. every: see `images`."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as work:
        for name, data in itertools.islice(video_files(Path(work)), 0, None, every):
            path = _written(Path(folder), name, data)
            yield _reading(f"{name}, facts", path.name, probe, _are_facts, path)
            yield _reading(f"{name}, frames", path.name, _frames, _is_footage, path)
            yield _reading(f"{name}, a part", path.name, _frames, _is_footage, Clip(path=str(path), start_s=0.3, count=3))
        for name, ref in itertools.islice(odd_video_paths(Path(folder)), 0, None, every):
            yield _reading(name, "", _frames, _is_footage, ref)
    clear_cache()


def _frames(ref: Any) -> Any:
    return cached_frames(as_clip(ref))


def _are_facts(facts: Any) -> None:
    if not facts.frames or not 0 < facts.fps < float("inf") or list(facts.times_s) != sorted(facts.times_s):
        raise ValueError(f"odd facts: {facts!r:.200}")


def _is_footage(footage: Any) -> None:
    shape, times = footage.frames_THWC.shape, footage.times_s
    if not 0 < len(times) == shape[0] or not min(shape) or shape[3] != 3 or not footage.duration_s > 0:
        raise ValueError(f"frames of {shape} at {times!r:.200}, {footage.duration_s} s")


def tables(every: int = 1) -> Iterator[Attempt]:
    """It held if a task gives prompts from it, or refuses it or a row in one line, in little time. every: see `images`."""
    with tempfile.TemporaryDirectory() as made, offline(Path(made) / "caches"):
        folder = Path(made)
        for table, (id, options) in READERS.items():
            place = folder / table.replace("/", " ")
            for what, data in itertools.islice(broken_tables(table, whole_table(table, place)), 0, None, every):
                ref = (id, _written(place, Path(table).name, data), options)
                yield _reading(f"{id}, {table}, {what}", "", partial(_prompts, least=what == WHOLE), _are_prompts, ref)
        place = folder / "asked"
        place.mkdir()
        (place / "a.jpg").write_bytes((SAMPLES / "photographs" / "00.jpg").read_bytes())
        files = itertools.chain(question_tables(), parquet_tables(folder))
        for name, data in itertools.islice(files, 0, None, every):
            path = _written(place, name, data)
            yield _reading(f"vqa/table, {name}", "", _prompts, _are_prompts, ("vqa/table", path, {"test_share": 0.5}))
            if path.suffix == ".parquet":
                named = {"label_column": "answer"}
                yield _reading(f"a data set, {name}", "", _prompts, _are_prompts, ("classification/dataset", path, named))
        for what, path in itertools.islice(odd_table_paths(place), 0, None, every):
            for id in dict.fromkeys(id for id, _ in READERS.values()):
                yield _reading(f"{id}, {what}", "", _prompts, _are_prompts, (id, path, {}))


def _prompts(ref: tuple[str, Any, dict[str, Any]], least: int = 0) -> Iterator[tuple[Task, Prompt]]:
    """The first prompts of each split that can be used. ref: a task, its table, and its other options. least: so many must be."""
    id, path, options = ref
    spec = plugins.registry().get("tasks", id)
    task = plugins.registry().build_task(spec, {**options, "path": str(path) if isinstance(path, Path) else path})
    usable = 0
    for split in task.splits:
        prompts = task.prompts(split, 0)
        for number in range(min(len(prompts), 8)):
            try:
                prompt = prompts[number]
            except UserError as error:
                if fault := refusal_fault(error):
                    raise ValueError(fault) from error
            else:
                usable += 1
                yield task, prompt
    if usable < least:
        raise ValueError("no row can be used")


def _are_prompts(found: Iterator[tuple[Task, Prompt]]) -> None:
    for task, prompt in found:
        if not isinstance(prompt, Prompt) or not prompt.messages:
            raise ValueError(f"a prompt {prompt!r:.200}")
        with contextlib.suppress(NoGold):
            task.gold(prompt)


def _image_files() -> Iterator[tuple[str, bytes]]:
    whole = whole_images()
    for number, (name, data) in enumerate(whole.items()):
        yield f"another suffix, {name}{Path(list(whole)[number - 3]).suffix}", data
        for what, changed in broken(data, 20, name):
            yield f"{what}, {name}", changed


def _image(ref: Any, name: str = "") -> Iterator[Attempt]:
    """Read the first frame and all. name: of what has no file name that a refusal could give."""
    file = "" if name else ref.name
    yield _reading(f"{name or file}, first", file, load_image, _is_image, ref)
    yield _reading(f"{name or file}, all", file, partial(load_frames, max_frames=256), _are_frames, ref)


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name.replace("/", " ")
    path.write_bytes(data)
    return path


def _is_image(image: Any) -> None:
    if image.mode != "RGB" or not min(image.size):
        raise ValueError(f"an image {image.size} of mode {image.mode}")


def _are_frames(frames: Any) -> None:
    if not frames:
        raise ValueError("no frames")
    for image, _ in frames:
        _is_image(image)


def _reading(name: str, file: str, read: Callable[[Any], Any], check: Callable[[Any], None], ref: Any) -> Attempt:
    """file: the name that a refusal must have."""

    def act() -> None:
        start = time.process_time()
        try:
            check(read(ref))
        except UserError as error:
            if file not in str(error):
                raise ValueError(f"the message doesn't name {file}: {error}") from error
            raise
        finally:
            if (took := time.process_time() - start) > MOST_S:
                raise TimeoutError(f"it took {took:.1f} s of processor time")

    return attempt(name, WAIT_S, act)


def _costing(name: str, path: Path) -> Attempt:
    if not os.path.exists("/proc/self/clear_refs"):  # not Linux
        return Attempt(name)
    memory, seconds = cost(path)
    fault = f"it took {memory / 1e6:.0f} MB and {seconds:.1f} s" if memory > MOST_BYTES or seconds > MOST_S else ""
    return Attempt(f"{name}, alone", fault)
