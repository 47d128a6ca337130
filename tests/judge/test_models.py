"""Models that verifiers look with, against the models themselves; what can't be one is refused in one line."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from mmrl import UserError, user_message
from mmrl.api.types import Prompt
from mmrl.judge import tiny_clip
from mmrl.judge.image_models import image_encoder
from mmrl.judge.models import (
    NUMBER,
    NumberSampler,
    check_contrastive,
    check_vision_language,
    contrastive,
    dtype_of,
    resolve_device,
    vision_language,
)
from mmrl.judge.reward_models import reward_model
from mmrl.judge.text_models import pair_classifier
from mmrl.policies.vlm import tiny
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.processor import LogitsProcessor
from mmrl.rollout.generate.sampling import SamplingParams

FAMILY = "tiny:qwen3_vl:hidden=32,layers=1"


@pytest.fixture(scope="module")
def asked():
    return vision_language(FAMILY, device="cpu")


@pytest.fixture(scope="module")
def clip():
    return contrastive("tiny:clip", device="cpu")


def picture(i, size=(64, 64)):
    return Image.effect_mandelbrot(size, (-2 + i / 9, -1.5, 1, 1.5), 20 + i).convert("RGB")


QUESTIONS = [[user_message(f"Is it done{' now' * (i % 3)}?", *(picture(j) for j in range(1 + i % 2)))] for i in range(5)]


def test_chances_are_those_of_the_models_next_token(asked):
    """Slowly: one forward pass of the model for each question, the probabilities of all spellings added up."""
    found = asked.answer_probabilities(QUESTIONS, ("yes", "no"))
    policy = asked.policy
    for question, row in zip(QUESTIONS, found, strict=True):
        inputs = policy.processor.apply_chat_template(
            [question], tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        )
        with torch.inference_mode():
            chances = policy.model(**inputs).logits[0, -1].double().softmax(-1)
        spellings = {
            w: {policy.tokenizer.encode(b + f)[0] for b in ("", " ") for f in (w, w.capitalize())} for w in ("yes", "no")
        }
        common = spellings["yes"] & spellings["no"]
        assert not common & {policy.tokenizer.encode("yes")[0], policy.tokenizer.encode("no")[0]}
        yes, no = (float(sum(chances[i] for i in spellings[w] - common)) for w in ("yes", "no"))
        assert row.tolist() == pytest.approx([yes / (yes + no), no / (yes + no)], abs=1e-5)
    assert len({round(float(v), 6) for v in found[:, 0]}) > 1, "they depend on what is shown"


def test_a_question_has_one_answer_whatever_is_asked_beside_it(asked):
    together = asked.answer_probabilities(QUESTIONS, ("yes", "no"))
    alone = torch.cat([asked.answer_probabilities([q], ("yes", "no")) for q in QUESTIONS])
    assert torch.allclose(together, alone, atol=1e-5)
    small = vision_language(FAMILY, device="cpu", batch_size=2)
    assert small.policy is asked.policy, "loaded once"
    assert torch.allclose(small.answer_probabilities(QUESTIONS, ("yes", "no")), together, atol=1e-5)


def test_words_that_the_tokens_cannot_tell_apart(asked):
    with pytest.raises(UserError, match="don't distinguish 'yes' in 'yes', 'yes'"):
        asked.answer_probabilities(QUESTIONS[:1], ("yes", "yes"))


def test_every_answer_is_a_number(asked):
    found = asked.numbers(QUESTIONS, max_tokens=3)
    assert found == [asked.numbers([q], max_tokens=3)[0] for q in QUESTIONS] and all(isinstance(n, float) for n in found)


class Wanting(LogitsProcessor):
    """A model that wants to say this and nothing else, as another processor lets it."""

    def __init__(self, policy, text, then):
        self.ids, self.end_id = policy.tokenizer.encode(text, add_special_tokens=False), policy.end_id
        self.then = then

    def __call__(self, step, ids, logits):
        pushed = torch.full_like(logits, -50.0)
        pushed[:, self.ids[step] if step < len(self.ids) else self.end_id] = 50.0
        return self.then(step, ids, logits + pushed)


def said(policy, text, then):
    inputs = [policy.encode(Prompt(messages=QUESTIONS[0]))]
    sampling = SamplingParams(max_tokens=8, temperature=0.0, logits_processor=Wanting(policy, text, then))
    return LocalGenerator(policy).generate(inputs, 1, sampling)[0][0]


@pytest.mark.parametrize("text", ["-30", "+7", "100%", "12.5%", "0", "-8%"])
def test_a_number_that_the_model_wants_to_say_is_left_as_it_is(asked, text):
    sample = said(asked.policy, text, NumberSampler(asked.policy))
    assert asked.policy.decode(sample.token_ids) == text and sample.finished
    assert float(NUMBER.search(text).group()) == float(text.strip("%"))


@pytest.mark.parametrize("text", ["-", "+", "", "well", "%", ".", "no 7"])
def test_what_is_no_number_becomes_one(asked, text):
    sample = said(asked.policy, text, NumberSampler(asked.policy))
    plain = said(asked.policy, text, LogitsProcessor())
    assert asked.policy.decode(plain.token_ids) == text, "without the constraint it would say so"
    assert NUMBER.search(asked.policy.decode(sample.token_ids))


def test_a_contrastive_model_gives_its_own_embeddings_at_length_one(clip):
    pictures = [picture(i, (60 + i, 40)) for i in range(5)]
    inputs = clip.processor(images=pictures, return_tensors="pt")
    with torch.inference_mode():
        wanted = clip.model.get_image_features(**inputs).pooler_output
    found = clip.encode_images(pictures)
    assert torch.allclose(found, wanted / wanted.norm(dim=-1, keepdim=True), atol=1e-5)
    assert torch.allclose(contrastive("tiny:clip", device="cpu", batch_size=2).encode_images(pictures), found, atol=1e-5)
    both = clip.encode_texts(["a cup", "a much longer text about a cup"])
    assert torch.allclose(both[0], clip.encode_texts(["a cup"])[0], atol=1e-5) and torch.allclose(
        both.norm(dim=-1), torch.ones(2)
    )
    with pytest.raises(UserError, match="has 102 tokens, and the model reads 77"):
        clip.encode_texts(["x" * 100])


def test_checkpoints_in_folders(tmp_path):
    tiny_clip.save(str(tmp_path / "clip"))
    tiny.save(str(tmp_path / "vlm"), "qwen3_vl", hidden=32, layers=1)
    check_contrastive(str(tmp_path / "clip"))
    check_vision_language(str(tmp_path / "vlm"))
    ours, loaded = contrastive("tiny", device="cpu"), contrastive(str(tmp_path / "clip"), device="cpu")
    assert torch.allclose(ours.encode_images([picture(0)]), loaded.encode_images([picture(0)]), atol=1e-6)
    assert torch.allclose(ours.encode_texts(["a cup"]), loaded.encode_texts(["a cup"]), atol=1e-6)
    vlm = vision_language(str(tmp_path / "vlm"), device="cpu")
    wanted = vision_language(FAMILY, device="cpu").answer_probabilities(QUESTIONS, ("yes", "no"))
    assert torch.allclose(vlm.answer_probabilities(QUESTIONS, ("yes", "no")), wanted, atol=1e-5)
    with pytest.raises(UserError, match=r"which doesn't compare pictures with texts|can't be loaded"):
        contrastive(str(tmp_path / "vlm"), device="cpu")


def test_what_is_refused_without_loading(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, config in (("text", {"model_type": "llama"}), ("torn", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{" if config is None else json.dumps(config))
    for check, blind, torn in (
        (
            check_vision_language,
            "it is a llama model, which reads text alone: choose a vision-language model",
            "config.json is damaged",
        ),
        (check_contrastive, "is a llama, which takes no images: give a vision-language model", "config.json can't be read: "),
    ):
        for model, wanted in [
            (str(tmp_path / "nowhere"), f"model: '{tmp_path / 'nowhere'}' is not a folder: give "),
            (str(tmp_path / "empty"), "is a folder without config.json: give "),
            (str(tmp_path / "text"), blind),
            (str(tmp_path / "torn"), torn),
            ("tiny:nothing", "tiny"),
        ]:
            with pytest.raises(UserError) as error:
                check(model)
            assert wanted in str(error.value) and "\n" not in str(error.value) and "policy" not in str(error.value)
        check("some/hub-name")
        check("tiny")


@pytest.mark.parametrize(
    ("device", "capability", "wanted"), [("cpu", (9, 0), "float32"), ("cuda", (8, 0), "bfloat16"), ("cuda:0", (7, 5), "float32")]
)
def test_a_judge_computes_in_bfloat16_where_the_gpu_has_it(device, capability, wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert dtype_of("auto", device) == wanted
    assert dtype_of("float16", device) == "float16"


def test_a_judge_in_float16_answers_nearly_the_same(asked):
    half = vision_language(FAMILY, device="cpu", dtype="float16")
    assert half.policy.model.dtype == torch.float16
    torch.testing.assert_close(
        half.answer_probabilities(QUESTIONS, ("yes", "no")),
        asked.answer_probabilities(QUESTIONS, ("yes", "no")),
        atol=3e-3,
        rtol=0,
    )


def test_the_device_is_prepared_for_every_kind_of_model(monkeypatch):
    """On a GPU torch would round what convolutions read, and sum in 16 bits."""
    prepared = []
    monkeypatch.setattr("mmrl.judge.models.prepare_device", lambda device, dtype: prepared.append(device))
    for load in (vision_language, contrastive, image_encoder, pair_classifier, reward_model):
        prepared.clear()
        load("tiny", device="cpu")
        assert prepared == ["cpu"], load.__name__


def test_devices():
    assert resolve_device("cpu") == "cpu" and resolve_device("auto") in ("cpu", "cuda")
    with pytest.raises(UserError, match="device = 'tpu' is unknown"):
        resolve_device("tpu")
    with pytest.raises(UserError, match="device = 'cuda:99', but torch sees"):
        resolve_device("cuda:99")
