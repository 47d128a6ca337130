"""VisionReasoner's task on your own pictures: the boxes of what an expression means, each with a point in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl import Prompt
from mmrl_grounding import asking, sources
from mmrl_grounding.data_task import Data
from mmrl_grounding.geometry import middle

PROMPT = (
    'Please find "{0}" with bboxs and points.'
    "Compare the difference between object(s) and find the most closely matched object(s)."
    "Output the thinking process in <think> </think> and final answer in <answer> </answer> tags."
    "Output the bbox(es) and point(s) inside the interested object(s) in JSON format."
    "i.e., <think> thinking process here </think>"
    "<answer>{1}</answer>"
)
"""Word for word, and without blanks between sentences, as in github.com/dvlab-research/VisionReasoner, commit a455092,
`vision_reasoner/models/vision_reasoner_model.py`."""
EXAMPLE = '[{"bbox_2d": [10,100,200,210], "point_2d": [30,110]}, {"bbox_2d": [225,296,706,786], "point_2d": [302,410]}]'
THOUGHT = "I compare the objects and look for what is described."


@dataclass(kw_only=True, eq=False)
class ReasonData(Data):
    """The boxes of what an expression means, each with a point in it, as in VisionReasoner (Liu et al. 2025). The true point is
    the middle of its box; published ones are the deepest of a mask."""

    style: str = "vision-reasoner"
    """The requested form of the answer: vision-reasoner, a thought and a JSON list in tags."""

    styles: ClassVar[tuple[str, ...]] = ("vision-reasoner",)
    asks = "boxes"

    def pose(self, row: dict[str, Any], size: tuple[int, int]) -> Any:
        words = row.get("expression") or row.get("question") or ""
        if isinstance(words, str):
            words = words.partition("describes:")[2] or words  # VLM-R1's question, which asks for the box alone
        if not isinstance(words, str) or not words.strip():
            raise ValueError(f"it has no expression under any of {', '.join(sources.TEXT_KEYS)}")
        if not row["objects"]:
            raise ValueError("it has no box: the published reward is 0 for every answer then")
        objects = [{**one, "point_2d": list(middle(*one["bbox_2d"]))} for one in row["objects"]]
        text = PROMPT.replace("{0}", words.strip().lower().strip('."?!')).replace("{1}", EXAMPLE)
        return text, objects, objects, {"expression": words, "thought": THOUGHT}

    def meta(self, asks: str, size: tuple[int, int], boxes: Sequence[Sequence[float]], **more: Any) -> dict[str, Any]:
        return {**super().meta(asks, size, boxes, **more), "style": "tags"}

    def gold(self, prompt: Prompt) -> str:
        size = prompt.meta["size"]
        items = [{key: list(self.as_written(one[key], size)) for key in ("bbox_2d", "point_2d")} for one in prompt.answer]
        return asking.thought(prompt.meta["thought"], json.dumps(items))
