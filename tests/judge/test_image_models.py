"""Models that embed pictures alone: saved and loaded alike, and refused in one line where they can't."""

import json

import pytest
import torch
from PIL import Image

from mmrl import UserError
from mmrl.judge import tiny_text
from mmrl.judge.image_models import build_tiny, check_image_encoder, image_encoder

PICTURES = [Image.effect_mandelbrot((40 + 9 * i, 50), (-2, -1.5, 1, 1.5), 20 + i).convert("RGB") for i in range(3)]


def test_features_have_length_one_and_are_the_same_in_any_batch_and_after_loading(tmp_path):
    model, processor = build_tiny()
    model.save_pretrained(tmp_path / "dino")
    processor.save_pretrained(tmp_path / "dino")
    check_image_encoder(str(tmp_path / "dino"))
    found = image_encoder("tiny", device="cpu", batch_size=2).encode(PICTURES)
    assert torch.allclose(found.norm(dim=-1), torch.ones(3)) and not torch.allclose(found[0], found[1], atol=1e-3)
    assert torch.allclose(image_encoder(str(tmp_path / "dino"), device="cpu").encode(PICTURES), found, atol=1e-5)


def test_what_is_refused(tmp_path):
    tiny_text.save(str(tmp_path / "text"))
    for name, text in (("torn", "{"), ("empty", None), ("plain", json.dumps({"model_type": "llama"}))):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "config.json").write_text(text)
    for model, wanted in [
        (str(tmp_path / "nowhere"), "is not a folder: give the folder or hub name of a DINO"),
        (str(tmp_path / "torn"), "config.json can't be read: "),
        (str(tmp_path / "empty"), "is a folder without config.json: give "),
        (str(tmp_path / "plain"), "is a llama, which has no patches of pictures: "),
        (str(tmp_path / "text"), "is a bert, which has no patches of pictures: "),
        ("", "is not a folder: "),
    ]:
        with pytest.raises(UserError) as error:
            check_image_encoder(model)
        assert wanted in str(error.value) and str(error.value).startswith("model: ") and "\n" not in str(error.value)
    check_image_encoder("facebook/dinov2-base")
