"""The rules for tasks. Every check uses rows of every split; its docstring is the rule."""

from __future__ import annotations

import numbers
import pickle
import re
import time
import warnings
from collections.abc import Mapping

from mmrl.api.errors import NoGold, UserError
from mmrl.api.tasks.groups import PARTS
from mmrl.api.tasks.overlays import overlay_error
from mmrl.api.types import Prompt
from mmrl.data.prompts import Splits
from mmrl.testing.checks import CheckFailed
from mmrl.testing.gold import gold_or_none, with_gold
from mmrl.testing.sample import fingerprint, sample_rows
from mmrl.testing.task_repeats import global_random_state_is_untouched, same_in_another_process, same_seed_gives_same_rows
from mmrl.testing.task_subject import TaskSubject
from mmrl.testing.verifiers import check_coordinate_formats, check_gold

TOLD = 5
"""Number of broken rows whose messages are reported."""


def every_split_has_rows(subject: TaskSubject) -> None:
    """Each name in `splits` gives at least one Prompt."""
    task = subject.make()
    if not task.splits:
        raise CheckFailed('the class names no splits: set splits = ("train", "test")')
    start = time.monotonic()
    for split in task.splits:
        broken: list[str] = []
        rows = sample_rows(task, split, subject.n, broken=broken)
        subject.broken += broken
        if not rows and broken:
            raise CheckFailed(
                f"none of the {len(broken)} sampled rows of split {split!r} can be used: correct them; the first: {broken[0]}"
            )
        if not rows:
            raise CheckFailed(f"split {split!r} is empty: return rows for it, or take it out of `splits`")
        for row in rows:
            if not isinstance(row, Prompt):
                raise CheckFailed(f"split {split!r} holds a {type(row).__name__}: yield mmrl.Prompt objects")
        subject.rows[split] = rows
    subject.seconds = (time.monotonic() - start) / (sum(map(len, subject.rows.values())) + len(subject.broken))


def rows_can_be_used(subject: TaskSubject) -> None:
    """Every row can be made; the other checks leave out rows that can't."""
    if subject.broken:
        total, bad = len(subject.broken) + len(subject.all_rows()), len(subject.broken)
        more = f" ... and {bad - TOLD} more" if bad > TOLD else ""
        raise CheckFailed(f"{bad} of the {total} sampled rows can't be used: {'; '.join(subject.broken[:TOLD])}{more}")


def messages_are_well_formed(subject: TaskSubject) -> None:
    """Messages have a role and text, image, video or audio parts, and the last one is the user's."""
    for split, row in subject.all_rows():
        where = f"row {row.id!r} of {split!r}"
        if not row.messages:
            raise CheckFailed(f'{where} has no messages: use messages=[user_message("...", image)]')
        for message in row.messages:
            if message.get("role") not in ("system", "user", "assistant"):
                raise CheckFailed(f"{where} has the role {message.get('role')!r}: use system, user or assistant")
            content = message.get("content")
            if isinstance(content, str):
                continue
            for part in content if isinstance(content, list | tuple) else [content]:
                if (
                    not isinstance(part, Mapping)
                    or part.get("type") not in ("text", "image", "video", "audio")
                    or part["type"] not in part
                ):
                    raise CheckFailed(
                        f"{where} has the part {part!r:.80}: write {{'type': 'text', 'text': ...}}, "
                        "{'type': 'image', 'image': ...}, {'type': 'video', 'video': mmrl.api.media.clips.Clip} or "
                        "{'type': 'audio', 'audio': mmrl.api.media.sounds.SoundClip}"
                    )
        if row.messages[-1]["role"] != "user":
            raise CheckFailed(f"{where} ends with a message of {row.messages[-1]['role']!r}: the last one must be the user's")


def ids_are_unique(subject: TaskSubject) -> str | None:
    """Every row has an id, and no two rows of a split have the same."""
    for split, rows in subject.seen().items():
        seen: set[str] = set()
        for id, *_ in rows:
            if not isinstance(id, str) or not id:
                raise CheckFailed(f"a row of {split!r} has the id {id!r}: give each row an id that is the same on every machine")
            if id in seen:
                raise CheckFailed(
                    f"two rows of {split!r} have the id {id!r}: make it unique, such as a running number or the file's name"
                )
            seen.add(id)
    return subject.few()


def splits_do_not_overlap(subject: TaskSubject) -> str | None:
    """No row of one split is in another, by its id or by its messages; where environments begin by a row's seed, rows with other
    seeds may begin with the same messages."""
    seen: dict[str, tuple[str, str]] = {}
    for split, rows in subject.seen().items():
        for id, picture_and_text, seed in rows:
            for key, what in ((f"id {id}", "the id"), (f"{picture_and_text} {seed}", "image and text")):
                other, other_id = seen.setdefault(key, (split, id))
                if other != split and (id or what != "the id"):
                    raise CheckFailed(
                        f"row {id!r} of {split!r} has {what} of row {other_id!r} of {other!r}: "
                        "an evaluation on it would measure memory; split the items before making prompts, and name "
                        "the split in the id"
                    )
    return subject.few()


def images_decode(subject: TaskSubject) -> str | None:
    """Every image, every video and every sound loads."""
    from mmrl.api.media.clips import GLIMPSE
    from mmrl.api.media.decoding import cached_frames
    from mmrl.api.media.hearing import heard
    from mmrl.api.media.images import load_image

    count = 0
    for split, row in subject.all_rows():
        for image in row.images:
            try:
                load_image(image)
            except UserError as error:
                raise CheckFailed(f"an image of row {row.id!r} of {split!r} does not load: {error}") from error
            count += 1
        for video in row.videos:
            try:
                cached_frames(video, GLIMPSE)
            except UserError as error:
                raise CheckFailed(f"a video of row {row.id!r} of {split!r} does not load: {error}") from error
            count += 1
        for sound in row.sounds:
            try:
                heard(sound)
            except UserError as error:
                raise CheckFailed(f"a sound of row {row.id!r} of {split!r} does not load: {error}") from error
            count += 1
    return None if count else "no row has an image, a video or a sound"


def prompts_pickle(subject: TaskSubject) -> None:
    """A prompt is the same after pickling."""
    for split, row in subject.all_rows():
        where = f"row {row.id!r} of {split!r}"
        try:
            arrived = pickle.loads(pickle.dumps(row))
        except Exception as error:
            raise CheckFailed(
                f"{where} can't be pickled ({type(error).__name__}: {error}): keep plain data in meta and answer, "
                "no open files, lambdas or generators"
            ) from error
        if fingerprint(arrived) != fingerprint(row):
            raise CheckFailed(f"{where} differs after pickling: keep plain data in meta and answer")


def gold_is_text(subject: TaskSubject) -> str | None:
    """`gold` gives a completion for every row that has one."""
    task, without = subject.make(), 0
    for split, row in subject.all_rows():
        try:
            gold = task.gold(row)
        except NoGold:
            without += 1
            continue
        if not isinstance(gold, str) or not gold.strip():
            raise CheckFailed(
                f"gold of row {row.id!r} of {split!r} is {gold!r:.60}: define gold(prompt) to return the text that scores highest"
            )
    return _no_gold_note(without, len(subject.all_rows()))


def _no_gold_note(without: int, total: int) -> str | None:
    """The note about rows without a gold completion."""
    return f"{without} of {total} rows have no gold completion: gold() raises NoGold" if without else None


def answer_is_not_shown(subject: TaskSubject) -> str | None:
    """The messages don't contain the answer. A list of all possible answers is fine: a label list, or choices in meta."""
    task = subject.make()
    answers = {_words(str(p.answer)) for _, p in subject.all_rows()} - {""}
    shown_in = []
    for split, p in subject.all_rows():
        gold = gold_or_none(task, p) or ""
        if _gives_away(p, _words(str(p.answer)), answers) or (len(gold) > 20 and _words(gold) in _words(p.text)):
            shown_in.append((split, p))
    if not shown_in:
        return None
    if 2 * len(shown_in) > len(subject.all_rows()):
        split, p = shown_in[0]
        raise CheckFailed(
            f"the answer {str(p.answer)!r:.60} is in the text of row {p.id!r} of {split!r}, and {len(shown_in)} of "
            f"{len(subject.all_rows())} rows are like this: take it out; if it is one of the choices offered, put their list "
            "into meta"
        )
    return f"the text of {len(shown_in)} rows contains their answer, such as {shown_in[0][1].id!r}"


def boxes_are_in_their_image(subject: TaskSubject) -> str | None:
    """Boxes in meta are (x1, y1, x2, y2) in pixels of the image, and survive conversion to every coordinate format and back."""
    from mmrl.api.coordinates import CoordinateFormat, convert_coordinates
    from mmrl.api.media.images import load_image

    count = 0
    for split, row in subject.all_rows():
        boxes = row.meta.get("boxes", [row.meta["box"]] if "box" in row.meta else [])
        if not len(boxes) or not row.images:
            continue
        width, height = size = load_image(row.images[0]).size
        model_size = (width // 2 + 1, height // 3 + 1)
        for box in boxes:
            box = box["bbox_2d"] if isinstance(box, Mapping) else box
            x1, y1, x2, y2 = (float(v) for v in box)
            if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
                raise CheckFailed(
                    f"row {row.id!r} of {split!r} has the box {tuple(box)} in an image of {width} x {height}: "
                    "boxes in meta must be (x1, y1, x2, y2) in pixels of the image as the task gives it"
                )
            for format in CoordinateFormat:
                back = convert_coordinates(
                    convert_coordinates(box, CoordinateFormat.PIXELS, format, size, model_size),
                    format,
                    CoordinateFormat.PIXELS,
                    size,
                    model_size,
                )
                if max(abs(a - b) for a, b in zip(back, (x1, y1, x2, y2), strict=True)) >= 1:
                    raise CheckFailed(
                        f"the box {tuple(box)} of row {row.id!r} becomes {back} by conversion to {format} and back: report it"
                    )
            count += 1
    return None if count else "no row has boxes in meta"


def overlays_can_be_drawn(subject: TaskSubject) -> None:
    """`overlays` gives valid overlays on the prompt's images and videos; for an empty completion only the ground truth."""
    task = subject.make()
    for split, row in subject.all_rows():
        where = f"row {row.id!r} of {split!r}"
        of_gold, of_empty = (task.overlays(row, completion) for completion in (gold_or_none(task, row) or "", ""))
        for overlay in (*of_gold, *of_empty):
            if why := overlay_error(overlay):
                raise CheckFailed(f"{where}: overlays() gives an overlay that can't be drawn: {why}")
            count = len(row.videos if overlay.kind == "interval" else row.images)
            if overlay.image >= count:
                what = "videos" if overlay.kind == "interval" else "images"
                raise CheckFailed(f"{where} has {count} {what}, and an overlay for number {overlay.image}: count from 0")
        if any(overlay.source == "said" for overlay in of_empty):
            raise CheckFailed(
                f'{where}: overlays() gives source="said" for an empty completion: give it only for what a completion says'
            )
        if [overlay for overlay in of_gold if overlay.source == "true"] != list(of_empty):
            raise CheckFailed(
                f'{where}: the overlays with source="true" depend on the completion: make them from the prompt\'s answer'
            )


def verifiers_score_gold_highest(subject: TaskSubject) -> str | None:
    """Every verifier that the spec names exists, and gives its highest value to gold."""
    from mmrl.registry import plugins

    if not subject.spec.verifiers:
        return "the spec names no verifiers, so a run file must"
    named = dict.fromkeys((*subject.spec.verifiers, subject.spec.metric))
    every = [(subject.make(), p) for _, p in subject.all_rows()]
    rows = with_gold(every)
    notes: list[str | None] = []
    for verifier in named:
        try:
            spec, verify = plugins.registry().get("verifiers", verifier), plugins.registry().make_verifier(verifier)
        except UserError as error:
            raise CheckFailed(str(error)) from error
        check_gold(spec, verify, rows)
        notes.append(check_coordinate_formats(spec, verify, subject.make()))
    return next(filter(None, [*notes, _no_gold_note(len(every) - len(rows), len(every))]), None)


def summary_is_numbers(subject: TaskSubject) -> None:
    """`summarise` and `summarise_parts` return name -> finite number, `prompt_sets` None or a set for each prompt."""
    rows, task = [(p, float(i % 2)) for i, (_, p) in enumerate(subject.all_rows())], subject.make()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{PARTS}")  # these rows are no evaluation, which draws whole sets
        found = {"summarise": task.summarise(rows), "summarise_parts": task.summarise_parts({"part": rows})}
    for method, name, value in ((m, *figure) for m, figures in found.items() for figure in figures.items()):
        if not isinstance(name, str) or not isinstance(value, numbers.Real) or not abs(value) < float("inf"):
            raise CheckFailed(f"{method} gives {name!r}: {value!r}: return a dict of finite floats, and guard divisions by zero")
    for split in task.splits:
        Splits({subject.spec.id: task}, 0).sets(subject.spec.id, split)


GATES = (every_split_has_rows, messages_are_well_formed, images_decode, gold_is_text)
CHECKS = (
    rows_can_be_used,
    ids_are_unique,
    same_seed_gives_same_rows,
    same_in_another_process,
    global_random_state_is_untouched,
    splits_do_not_overlap,
    prompts_pickle,
    answer_is_not_shown,
    boxes_are_in_their_image,
    overlays_can_be_drawn,
    verifiers_score_gold_highest,
    summary_is_numbers,
)


def _words(text: str) -> str:
    """Lower-case words between single spaces, so that whole words can be found."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} " if words else ""


def _gives_away(prompt: Prompt, answer: str, answers: set[str]) -> bool:
    """Whether the text contains the answer but no other answer of the sample, and not as one of the choices listed in meta."""
    text = _words(prompt.text)
    if not answer or answer not in text or len(answers) < 2 or any(a in text for a in answers - {answer}):
        return False
    lists = [v for v in prompt.meta.values() if isinstance(v, list | tuple) and len(v) > 1]
    return not any(answer in (words := [_words(str(v)) for v in choices]) and all(w in text for w in words) for choices in lists)
