"""In which numbers a model writes coordinates is known by its family, or said; nothing is guessed."""

import pytest

import other_families
import vlm_cases as cases
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.coordinate_formats import COORDINATE_FORMATS, format_of
from mmrl.policies.vlm.vlm import VLM


@pytest.mark.parametrize("family", ["qwen3_5", "glm4v"])
def test_a_family_that_is_known_writes_its_own(family):
    vlm = other_families.policy(family)
    assert vlm.image_processing.coordinate_format is CoordinateFormat.THOUSANDTHS
    assert vlm.encode(cases.prompt(1)).coordinate_format is CoordinateFormat.THOUSANDTHS


def test_a_task_with_coordinates_asks_for_the_format_of_an_unknown_family():
    processing = other_families.policy("gemma3").image_processing
    assert processing.model_size((30, 40)) == (30, 40)
    with pytest.raises(
        UserError, match=r"^policy\.frame: in which numbers a gemma3 model writes coordinates isn't known"
    ) as told:
        _ = processing.coordinate_format
    assert "thousandths" in str(told.value) and "\n" not in str(told.value)


def test_the_run_file_says_it(tmp_path):
    model = cases.llava(tmp_path)
    vlm = VLM(PolicyConfig(model=model, frame="unit"))
    assert vlm.image_processing.coordinate_format is CoordinateFormat.UNIT
    assert vlm.encode(cases.prompt(1)).coordinate_format is CoordinateFormat.UNIT


def test_a_format_that_contradicts_the_family_is_refused_before_there_is_a_model(tmp_path, monkeypatch):
    assert format_of("qwen2_5_vl", "model-pixels") is CoordinateFormat.MODEL_PIXELS
    for name in ("build", "skeleton"):
        monkeypatch.setattr(tiny, name, None)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    for model in ("tiny:qwen3_vl", str(tmp_path)):
        for use in (VLM.check, VLM):
            with pytest.raises(UserError, match=r"^policy\.frame: a qwen3_vl model writes thousandths \(") as told:
                use(PolicyConfig(model=model, frame="unit"))
            assert "\n" not in str(told.value)
    with pytest.raises(UserError, match=r"^policy\.frame: a internvl model writes thousandths"):
        VLM.check(PolicyConfig(model="tiny:internvl3_5", frame="location-tokens"))


def test_every_family_with_a_tiny_checkpoint_has_a_row_with_a_source():
    later = {"molmo2"}  # transformers 5.24 has its class, and not all accepted versions do
    built = {tiny.model_type(f"tiny:{f}:layers=2") for f in tiny.FAMILIES} - {"openvla"}
    assert sorted(COORDINATE_FORMATS) == sorted(built | later)
    assert all(source and "\n" not in source for _, source in COORDINATE_FORMATS.values())
    assert all(known is None or source != "nothing found" for known, source in COORDINATE_FORMATS.values())


def test_formats():
    thousandths = ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "internvl", "glm4v", "glm46v")
    thousandths += ("qwen3_omni_moe_thinker", "lighton_ocr", "hunyuan_vl")
    assert {format_of(kind, None) for kind in thousandths} == {CoordinateFormat.THOUSANDTHS}
    assert format_of("qwen2_5_vl", None) is CoordinateFormat.MODEL_PIXELS
    assert format_of("kimi_k25", None) is CoordinateFormat.UNIT
    assert format_of("gemma4", None) is CoordinateFormat.THOUSANDTHS_YX
    assert format_of("paligemma", None) is CoordinateFormat.LOCATION_TOKENS
    assert format_of("bert", None) is None


def test_location_tokens_are_one_token_each_and_are_kept_in_answers():
    """What the tiny PaliGemma writes is what a verifier reads."""
    policy = other_families.policy("paligemma")
    written = policy.image_processing.coordinate_format
    said = written.text((0, 17, 512, 1023))
    ids = policy.encode_completion(said)[:-1]
    assert len(ids) == 4 and not policy.banned & set(ids) and policy.decode(ids) == said
    assert written.without_tokens(said).split() == ["0", "17", "512", "1023"]
