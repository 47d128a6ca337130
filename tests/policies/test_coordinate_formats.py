"""Which coordinates a family writes."""

from __future__ import annotations

from mmrl.api.coordinates import CoordinateFormat
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.coordinate_formats import COORDINATE_FORMATS, coordinate_format


def test_every_family_with_a_tiny_checkpoint_has_a_row_with_a_source():
    assert sorted(COORDINATE_FORMATS) == sorted({*tiny.FAMILIES} - {"openvla", "pixtral"})
    assert all(source and "\n" not in source for _, source in COORDINATE_FORMATS.values())
    assert all(known is None or source != "nothing found" for known, source in COORDINATE_FORMATS.values())


def test_formats():
    thousandths = ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "internvl", "glm4v", "glm46v")
    assert {coordinate_format(kind) for kind in thousandths} == {CoordinateFormat.THOUSANDTHS}
    assert coordinate_format("qwen2_5_vl") is CoordinateFormat.MODEL_PIXELS
    assert coordinate_format("kimi_k25") is CoordinateFormat.UNIT


def test_what_is_unknown_or_no_scale_of_x_and_y_is_none():
    for kind in ("paligemma", "gemma4", "bert"):
        assert coordinate_format(kind) is None
