"""Which coordinates a family writes."""

from __future__ import annotations

from mmrl.api.coordinates import CoordinateFormat
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.coordinate_formats import COORDINATE_FORMATS, coordinate_format
from mmrl.policies.vlm.families import FAMILIES


def test_every_family_with_a_tiny_checkpoint_has_a_row_with_a_source():
    assert sorted(COORDINATE_FORMATS) == sorted({*tiny.FAMILIES} - {"openvla", "pixtral"})
    assert all(source and "\n" not in source for _, source in COORDINATE_FORMATS.values())
    assert all(known is None or source != "nothing found" for known, source in COORDINATE_FORMATS.values())


def test_formats_are_those_of_the_adapters():
    """Of the families whose adapters were checked against published boxes."""
    for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl"):
        assert coordinate_format(kind) is FAMILIES[kind].frame, kind


def test_what_is_unknown_or_no_scale_of_x_and_y_is_none():
    assert coordinate_format("kimi_k25") is CoordinateFormat.UNIT
    for kind in ("paligemma", "gemma4", "bert"):
        assert coordinate_format(kind) is None
