"""Classifiers of pairs of texts, against the model itself, one pair at a time; what can't be one is refused in one line."""

from __future__ import annotations

import json

import pytest
import torch

from mmrl import UserError
from mmrl.judge import tiny_text
from mmrl.judge.text_models import check_pair_classifier, pair_classifier, token_decoder
from mmrl.policies.vlm import tiny

PAIRS = [("A cup is red.", "There is a cup."), ("Two.", "It has a much longer reason, in words and words."), ("", "no")]
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


def slow_logits(classifier, texts):
    """One forward pass for each, without padding."""
    with torch.inference_mode():
        return [classifier.model(**classifier.tokenizer(*t, return_tensors="pt")).logits[0].double() for t in texts]


def test_a_reranker_is_read_by_the_sigmoid_of_its_output():
    ranker = pair_classifier("tiny", device="cpu", batch_size=2)
    wanted = [float(logits.sigmoid()) for logits in slow_logits(ranker, PAIRS)]
    assert ranker.agreement(PAIRS) == pytest.approx(wanted, abs=1e-6) and len({round(v, 4) for v in wanted}) == len(PAIRS)
    assert ranker.agreement([]) == []
    assert ranker.ratings(PAIRS) == pytest.approx([float(v) for v in slow_logits(ranker, PAIRS)], abs=1e-5)


def test_an_entailment_model_is_read_by_the_probability_of_its_class(tmp_path):
    tiny_text.save(str(tmp_path / "nli"), ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"))
    check_pair_classifier(str(tmp_path / "nli"))
    model = pair_classifier(str(tmp_path / "nli"), device="cpu")
    wanted = [float(logits.softmax(-1)[2]) for logits in slow_logits(model, PAIRS)]
    assert model.agreement(PAIRS) == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(UserError, match="a reward model has one output, and this one has classes"):
        model.ratings(PAIRS)


def test_classes_without_entailment_are_refused(tmp_path):
    tiny_text.save(str(tmp_path / "mood"), ("sad", "glad"))
    with pytest.raises(UserError, match="its classes are sad, glad: a model has one output, or a class named entailment"):
        pair_classifier(str(tmp_path / "mood"), device="cpu")


def test_a_reward_model_reads_turns_as_its_template_writes_them():
    rater = pair_classifier("tiny", device="cpu")
    rater.tokenizer.chat_template = TEMPLATE
    ids = rater.tokenizer("user: How many?\nassistant: Two.\n", add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        wanted = float(rater.model(input_ids=ids).logits)
    assert rater.ratings([("How many?", "Two."), ("x" * 40, "y")])[0] == pytest.approx(wanted, abs=1e-5)


def test_a_long_pair_is_cut_at_its_longer_text():
    ranker = pair_classifier("tiny", device="cpu")
    long = "x" * 2000
    kept = tiny_text.LENGTH - 3 - len("short")
    assert ranker.agreement([(long, "short")]) == pytest.approx(ranker.agreement([("x" * kept, "short")]), abs=1e-6)


def test_tokens_are_read_as_the_policy_writes_them():
    tokenizer = tiny.build("qwen2_5_vl")[1].tokenizer
    ids = [*tokenizer.encode("<think>é</think> 7"), tokenizer.eos_token_id]
    assert token_decoder("tiny")(ids) == "<think>é</think> 7"
    with pytest.raises(UserError) as error:
        token_decoder("./nowhere")
    assert "nowhere" in str(error.value) and "policy" not in str(error.value).partition(":")[0] and "\n" not in str(error.value)


def test_what_is_refused_without_loading(tmp_path):
    for name, text in (("torn", "{"), ("writer", json.dumps({"architectures": ["LlamaForCausalLM"]}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    for model, wanted in [
        (str(tmp_path / "nowhere"), "is not a folder: give "),
        (str(tmp_path), "is a folder without config.json: give "),
        (str(tmp_path / "torn"), "config.json can't be read: "),
        (str(tmp_path / "writer"), "is a LlamaForCausalLM: give the folder or hub name of a sequence classification model"),
        ("tiny:nothing", "is not a folder: "),
        ("", "is not a folder: "),
    ]:
        with pytest.raises(UserError) as error:
            check_pair_classifier(model)
        assert wanted in str(error.value) and str(error.value).startswith("model: ") and "\n" not in str(error.value)
    check_pair_classifier("some/hub-name")
    with pytest.raises(UserError, match="batch_size"):
        check_pair_classifier("tiny", batch_size=0)
