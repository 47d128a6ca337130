"""The page of a preview: prompts as a model sees them, what was tried on them, and what the others are like."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl import __version__
from mmrl.api.media.images import load_image
from mmrl.api.tasks import marks
from mmrl.api.tasks.marks import Mark
from mmrl.run_folder.rollouts import DRAWN_PIXELS, VIEW_PIXELS, placed, view_png, view_webp
from mmrl.run_folder.webp import of_clip
from mmrl.ui.report import films, overlay
from mmrl.ui.report.cards import group_card, prompt_card
from mmrl.ui.report.document import document
from mmrl.ui.report.figures import Figure, cards
from mmrl.ui.report.gallery import BUDGET
from mmrl.ui.report.sources import Embedded
from mmrl.ui.report.text import esc
from mmrl.ui.survey import Looked, Tried

if TYPE_CHECKING:
    from mmrl.ui.report.contact_sheet import See

Drawn = Callable[[Looked, str], tuple[Any, Sequence[Mark]]]
"""A prompt and a completion -> (the picture that the completion draws, or None; the marks of both)."""


def page(
    title: str,
    subtitle: str,
    shown: Sequence[Looked],
    drawn: Drawn,
    sections: Sequence[tuple[str, str, Sequence[Figure]]],
    odd: Sequence[str] = (),
    see: See | None = None,
) -> str:
    """The whole document, from which nothing leads elsewhere.

    sections: of figures, each with a heading and a hint. odd: what speaks against the task, any texts. see: makes of a picture
    what the model sees of it; by default it is shown as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        prompts = _prompts(shown, drawn, Path(folder), see)
    facts = "".join(
        f'<section><h2>{esc(name)}</h2><p class="hint">{esc(hint)}</p>{cards(figures)}</section>'
        for name, hint, figures in sections
        if figures
    )
    header = f'<header><p class="brand">mmrl preview</p><h1>{esc(title)}</h1><p class="hint">{esc(subtitle)}</p></header>'
    return document(
        f"preview of {title}",
        f"{header}{_odd(odd)}{prompts}{facts}",
        f"Written by mmrl {esc(__version__)}.",
        styles=("page.css", "preview.css"),
    )


def _odd(odd: Sequence[str]) -> str:
    said = "".join(f'<li class="card"><b>Odd:</b> {esc(one, 600)}</li>' for one in odd)
    return f'<section><ul class="odd">{said}</ul></section>' if odd else ""


def _prompts(shown: Sequence[Looked], drawn: Drawn, folder: Path, see: See | None) -> str:
    """A card for each, as far as there is room for pictures."""
    (folder / "media").mkdir()
    found: list[str] = []
    for number, one in enumerate(shown):
        asked = _asked(one, number, folder, see)
        rows = [_row(asked, tried, *drawn(one, tried.completion), folder) for tried in one.tried if tried.score is not None]
        pictures = Embedded(folder, BUDGET // len(shown))
        if rows:
            found.append(group_card(rows, pictures))
        else:
            alone = _row(asked, Tried(source="gold", completion=one.gold or ""), *drawn(one, one.gold or ""), folder)
            found.append(prompt_card({**alone, "answer": one.gold}, pictures))
    said, scored = "".join(found), any(tried.score is not None for one in shown for tried in one.tried)
    tried = "What a right, an empty and a wrong completion get. " if scored else ""
    width = "narrow" if not scored else "broad" if 'class="card group wide"' in said else ""
    pause = films.PAUSE if 'class="moving' in said else ""
    return (
        f'<section class="rollouts"><h2>Prompts</h2><p class="hint">{tried}A click enlarges a picture.</p>{pause}'
        f'<div class="groups {width}">{said}</div>{overlay.legend(said)}</section>'
    )


def _asked(one: Looked, number: int, folder: Path, see: See | None) -> Mapping[str, Any]:
    """What the rows of a prompt's completions have in common, its pictures in `folder`."""
    prompt = one.prompt

    def keep(image: Any, video: bool) -> str:
        return _kept(folder, see(load_image(image)) if see and not video else image, video)

    messages = [placed(message, keep) for message in prompt.messages]
    return {"task": prompt.task, "prompt_id": prompt.id, "group": number, "messages": messages, "answer": prompt.answer}


def _row(asked: Mapping[str, Any], tried: Tried, picture: Any, own: Sequence[Mark], folder: Path) -> Mapping[str, Any]:
    """A completion as a row of a run folder is. picture: that it draws, or None."""
    return {
        **asked,
        "completion": tried.completion,
        "source": tried.source,
        "score": tried.score.as_json() if tried.score else {},
        "marks": marks.as_json(own),
        **({} if picture is None else {"shows": _kept(folder, picture, most=DRAWN_PIXELS)}),
    }


def _kept(folder: Path, image: Any, video: bool = False, most: int = VIEW_PIXELS) -> str:
    """Where in the folder a picture or a video was put."""
    name, data = view_webp(of_clip(image)) if video else view_png(image, most)
    (folder / name).write_bytes(data)
    return name
