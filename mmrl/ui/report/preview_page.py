"""The HTML page of a preview: prompts as a model sees them, their scored completions, and figures of the surveyed prompts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl import __version__
from mmrl.api.media.images import load_image
from mmrl.api.tasks import overlays
from mmrl.api.tasks.overlays import Overlay
from mmrl.run_folder.rollouts import DRAWN_PIXELS, VIEW_PIXELS, has_places, store_media, view_medium
from mmrl.ui.report import overlay, videos
from mmrl.ui.report.cards import group_card, prompt_card
from mmrl.ui.report.document import document
from mmrl.ui.report.gallery import BUDGET
from mmrl.ui.report.media_sources import EmbeddedMedia
from mmrl.ui.report.survey_charts import Figure, cards
from mmrl.ui.report.text import esc
from mmrl.ui.task_statistics import SampledPrompt, ScoredCompletion

if TYPE_CHECKING:
    from mmrl.ui.report.contact_sheet import See

Drawn = Callable[[SampledPrompt, str], tuple[Any, Sequence[Overlay]]]
"""(prompt, completion) -> (image that the completion draws, or None; marks of the gold answer and of the completion)."""


def page(
    title: str,
    subtitle: str,
    shown: Sequence[SampledPrompt],
    drawn: Drawn,
    sections: Sequence[tuple[str, str, Sequence[Figure]]],
    odd: Sequence[str] = (),
    see: See | None = None,
) -> str:
    """The whole page, without external links.

    sections: (heading, hint, figures). odd: warnings about the task, not escaped. see: resizes an image as the model's processor
    does; by default images are shown unchanged.
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
    items = "".join(f'<li class="card"><b>Warning:</b> {esc(warning, 600)}</li>' for warning in odd)
    return f'<section><ul class="odd">{items}</ul></section>' if odd else ""


def _prompts(shown: Sequence[SampledPrompt], drawn: Drawn, folder: Path, see: See | None) -> str:
    """A card for each prompt. folder: a temporary folder for media."""
    (folder / "media").mkdir()
    prompts: list[str] = []
    for number, looked in enumerate(shown):
        asked = _asked(looked, number, folder, see)
        rated = [(tried, *drawn(looked, tried.completion)) for tried in looked.tried if tried.score is not None]
        if looked.gold and any(has_places(looked.prompt.answer, marks) for _, _, marks in rated):
            asked = {**asked, "gold": looked.gold}
        rows = [_row(asked, *one, folder) for one in rated]
        pictures = EmbeddedMedia(folder, BUDGET // len(shown))
        if rows:
            prompts.append(group_card(rows, pictures))
        else:
            gold = looked.gold or ""
            row = _row(asked, ScoredCompletion(source="gold", completion=gold), *drawn(looked, gold), folder)
            prompts.append(prompt_card({**row, "answer": looked.gold}, pictures))
    html, scored = "".join(prompts), any(tried.score is not None for looked in shown for tried in looked.tried)
    answered = (
        " and of the policy's answer" if any(tried.source == "answer" for looked in shown for tried in looked.tried) else ""
    )
    hint = f"Each with the scores of a gold, an empty and a wrong completion{answered}. " if scored else ""
    width = "narrow" if not scored else "broad" if 'class="card group wide"' in html else ""
    pause = videos.PAUSE if 'class="moving' in html else ""
    return (
        f'<section class="rollouts"><h2>Prompts</h2><p class="hint">{hint}Click an image to enlarge it.</p>{pause}'
        f'<div class="groups {width}">{html}</div>{overlay.legend(html)}</section>'
    )


def _asked(looked: SampledPrompt, number: int, folder: Path, see: See | None) -> Mapping[str, Any]:
    """The keys that all rows of a prompt's completions share; the prompt's media are written to `folder`."""
    prompt = looked.prompt

    def keep(medium: Any, kind: str) -> str:
        return _kept(folder, see(load_image(medium)) if see and kind == "image" else medium, kind)

    messages = [store_media(message, keep) for message in prompt.messages]
    return {"task": prompt.task, "prompt_id": prompt.id, "group": number, "messages": messages, "answer": prompt.answer}


def _row(
    asked: Mapping[str, Any], tried: ScoredCompletion, picture: Any, drawn: Sequence[Overlay], folder: Path
) -> Mapping[str, Any]:
    """A completion in the format of a run folder's rows. picture: the image that it draws, or None. drawn: its marks."""
    return {
        **asked,
        "completion": tried.completion,
        "source": tried.source,
        "score": tried.score.as_json() if tried.score else {},
        "overlays": overlays.to_json(drawn),
        **({} if picture is None else {"drawing": _kept(folder, picture, most=DRAWN_PIXELS)}),
    }


def _kept(folder: Path, medium: Any, kind: str = "image", most: int = VIEW_PIXELS) -> str:
    """Write an image, a video or a sound to the folder and return its name. most: maximal pixels of an image."""
    name, data = view_medium(medium, kind, most)
    (folder / name).write_bytes(data)
    return name
