"""Names, shapes and counts of weights, and the sizes that a plan reads of a config."""

import json
import math
from dataclasses import replace

import pytest

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.thinkers import whole_config
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.published import PUBLISHED, published
from mmrl.train.plan.shapes import Experts
from mmrl.train.plan.skeletons import weights_in
from mmrl.train.plan.sources import find_shapes

COUNTED = {  # parameters in the checkpoints on the hub
    "Qwen/Qwen2-VL-2B": 2_208_985_600,
    "Qwen/Qwen2-VL-7B": 8_291_375_616,
    "Qwen/Qwen2-VL-72B": 73_405_560_320,
    "Qwen/Qwen3-VL-30B-A3B": 31_070_754_032,
    "Qwen/Qwen3-VL-235B-A22B": 235_670_022_896,
    "Qwen/Qwen2.5-VL-3B": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B": 8_292_166_656,
    "Qwen/Qwen2.5-VL-32B": 33_452_718_336,
    "Qwen/Qwen2.5-VL-72B": 73_410_777_344,
    "Qwen/Qwen3-VL-2B": 2_127_532_032,
    "Qwen/Qwen3-VL-4B": 4_437_815_808,
    "Qwen/Qwen3-VL-8B": 8_767_123_696,
    "Qwen/Qwen3-VL-32B": 33_357_390_064,
    "Qwen/Qwen3.5-35B-A3B": 35_107_181_936,  # these as transformers builds them: checkpoints also have layers that it leaves out
    "Qwen/Qwen3.5-122B-A10B": 122_562_817_776,
    "Qwen/Qwen3.5-397B-A17B": 396_802_360_816,
}
DAILY = ("Qwen/Qwen2.5-VL-3B", "Qwen/Qwen3-VL-2B")
FEW = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "decoder_sparse_step": 2, "mlp_only_layers": [1],
}  # fmt: skip


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("family, alike", [("qwen2_5_omni", "qwen2_5_vl"), ("qwen3_omni_moe", "qwen3_vl_moe")])
def test_a_thinker_is_counted_without_what_speaks(family, alike, whole):
    """Its tower and language model are as those of the family that sees; its weights are all of it, those that hear too."""
    model = tiny.skeleton(family)
    config = whole_config(model.config) if whole else model.config
    shapes, like = shapes_of(config.to_dict(), "x"), shapes_of(tiny.skeleton(alike).config.to_dict(), "y")
    assert dict(shapes.named()) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert (shapes.seen.patches, shapes.seen.pixels, shapes.taps) == (like.seen.patches, like.seen.pixels, like.taps)
    assert shapes.text == replace(like.text, vocabulary=shapes.text.vocabulary)


def test_experts_of_a_layer_are_all_counted_and_those_of_a_token_told_apart():
    model = tiny.skeleton("glm4v_moe", hidden=64, layers=3)
    text = shapes_of(model.config.to_dict(), "x").text
    assert text.experts == Experts(count=4, chosen=2)
    assert text.where == {1, 2}, "the first layer has one MLP"
    sparse = shapes_of(tiny.skeleton("qwen3_vl_moe").config.to_dict() | {"text_config": FEW}, "x").text
    assert (sparse.where, sparse.sparse) == ({3}, 1), "every second layer, but not the second"


def test_a_published_thinker_has_as_many_as_its_checkpoint():
    """Qwen2.5-Omni-7B's sizes; the hub counts so many in yaolily/TimeChat-Captioner-GRPO-7B, a thinker alone."""
    text = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    text |= {"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False}
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
    ears = {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120, "num_mel_bins": 128, "output_dim": 3584}
    inner = {"text_config": text, "vision_config": vision, "audio_config": ears}
    assert weights_in({"model_type": "qwen2_5_omni_thinker", **inner}) == 8_931_813_888


@pytest.mark.parametrize("name", [n if n in DAILY else pytest.param(n, marks=pytest.mark.slow) for n in COUNTED])
def test_published_models_have_as_many_as_their_checkpoints(name):
    assert weights_in(PUBLISHED[name]) == COUNTED[name]


def test_what_a_model_was_tuned_for_does_not_matter():
    assert published("Qwen/Qwen2.5-VL-7B-Instruct") is PUBLISHED["Qwen/Qwen2.5-VL-7B"]
    assert published("Qwen/Qwen3-VL-8B-Thinking") is PUBLISHED["Qwen/Qwen3-VL-8B"]
    assert published("someone/Qwen2.5-VL-7B-Instruct") is None


def test_a_picture_becomes_so_many_tokens():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    assert (shapes.tokens_of(448 * 448), shapes.patches_of(448 * 448)) == (256, 1024)
    assert shapes_of(PUBLISHED["Qwen/Qwen3-VL-4B"], "").tokens_of(512 * 512) == 256


def test_a_folder_says_what_it_holds(tmp_path):
    text = {"hidden_size": 512, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    text["num_key_value_heads"] = 4
    config = {"model_type": "qwen2_5_vl", **text, "vision_config": {"hidden_size": 32, "depth": 1, "intermediate_size": 48}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 50_176}))
    there = find_shapes(PolicyConfig(model=str(tmp_path)))
    assert there.shapes.text.layers == 2 and there.shapes.text.hidden == 512, "older files have the text model's keys at the top"
    assert there.most_pixels == 50_176
    named = dict(there.shapes.named())
    assert named["model.language_model.layers.1.self_attn.k_proj.weight"] == (512, 512) and "lm_head.weight" in named
    assert there.shapes.parameters == sum(math.prod(shape) for shape in named.values())


@pytest.mark.parametrize(
    "config, words",
    [
        ({"model_type": "mllama"}, "is a mllama, which mmrl plan can't count: it counts qwen2_vl, "),
        ({"model_type": "llava"}, "its processor can't be loaded, .* has: give a folder with its files beside"),
        (
            {"model_type": "qwen3_vl_moe", "text_config": FEW | {"num_experts": None}},
            "is a qwen3_vl_moe, whose passes mmrl plan c",
        ),
        (
            {"model_type": "glm4v_moe", "text_config": {"num_hidden_layers": "many"}},
            "is a glm4v_moe, whose passes mmrl plan can't",
        ),
        ([1], "is not a JSON object"),
    ],
)
def test_a_folder_that_is_none_is_refused(tmp_path, config, words):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=words):
        find_shapes(PolicyConfig(model=str(tmp_path)))


def test_what_is_nowhere_is_refused():
    with pytest.raises(UserError, match=r"can't be fetched from the hub \(.*\w … \w.*\): give a folder .*Qwen/Qwen2.5-VL-3B"):
        find_shapes(PolicyConfig(model="nobody/has-this"), online=False)
