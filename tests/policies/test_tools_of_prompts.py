"""Schemas of tools go through the model's chat template, or are refused where it leaves them out."""

import dataclasses

import pytest

import vlm_cases as cases
from mmrl import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.endpoint import EndpointPolicy
from mmrl.policies.vlm.vlm import VLM

SCHEMA = {"type": "function", "function": {"name": "zoom", "description": "Look closer.", "parameters": {"type": "object"}}}
SHOWING = "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"


@pytest.fixture
def policy():
    return VLM(PolicyConfig(model="tiny:qwen3_vl:hidden=32,layers=1"))


def test_the_template_shows_them_before_the_question(policy):
    policy.processor.chat_template = SHOWING + policy.processor.chat_template
    prompt = cases.prompt(1)
    plain, shown = policy.encode(prompt), policy.encode(dataclasses.replace(prompt, tools=(SCHEMA,)))
    text = policy.tokenizer.decode(shown.ids)
    assert '"name": "zoom"' in text and text.endswith(policy.tokenizer.decode(plain.ids))
    assert (shown.media["pixel_values"] == plain.media["pixel_values"]).all()


def test_a_template_that_leaves_them_out_is_refused(policy):
    with pytest.raises(UserError, match=r'chat template shows no tools: .*schemas = "text"'):
        policy.encode(dataclasses.replace(cases.prompt(1), tools=(SCHEMA,)))


def test_an_endpoint_refuses_them():
    with pytest.raises(UserError, match="in messages alone"):
        EndpointPolicy.encode(None, dataclasses.replace(cases.prompt(1), tools=(SCHEMA,)))  # type: ignore[arg-type]
