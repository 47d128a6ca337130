"""Overlays for pictures: the true boxes, and those of a completion with their IoU."""

from __future__ import annotations

from mmrl import Case, Overlay
from mmrl.api.tasks.overlays import box_overlay, point_overlay
from mmrl_grounding import geometry, reading, verifiers
from mmrl_grounding.coordinates import format_of, in_pixels, truth_as_written


def true_overlays(case: Case) -> list[Overlay]:
    """The true boxes with their labels, if the question is about several kinds of objects."""
    size = case.image_sizes[0]
    if case.meta["asks"] == "boxes":
        return [box_overlay(one["bbox_2d"], size, "true", str(one.get("label", ""))) for one in case.answer]
    return [box_overlay(corners, size, "true") for corners in case.meta["boxes"]]


def said_overlays(case: Case) -> list[Overlay]:
    """The boxes or points that our verifiers read in a completion; empty if they read none, and for counts."""
    return {"box": _box, "boxes": _boxes, "point": _point, "count": lambda case: []}[case.meta["asks"]](case)


def _box(case: Case) -> list[Overlay]:
    found, _ = verifiers.one_box(case)
    if found is None:
        return []
    value = geometry.iou(found, truth_as_written(case.answer, case))
    return [box_overlay(in_pixels(found, case), case.image_sizes[0], "said", f"IoU {value:.2f}")]


def _boxes(case: Case) -> list[Overlay]:
    """Each with the IoU of the true box of its label that it fits best."""
    found, _ = verifiers.listed(case)
    truth, overlays = verifiers.truth_of(case), []
    for one in found or ():
        if one.box is not None:
            value = max((geometry.iou(one.box, true) for true, label in truth if label == one.label), default=0.0)
            overlays.append(
                box_overlay(in_pixels(one.box, case), case.image_sizes[0], "said", f"{one.label} {value:.2f}".strip())
            )
    return overlays


def _point(case: Case) -> list[Overlay]:
    text, _ = reading.said(case)
    at = None if text is None else reading.point(text, format_of(case).y_first)
    if at is None:
        return []
    hit = verifiers.point(case).value == 1.0
    return [point_overlay(in_pixels(at, case), case.image_sizes[0], "said", "inside" if hit else "outside")]
