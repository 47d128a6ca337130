"""Episodes with tools through a real policy: the pictures that come back are seen, every turn that was written is trained, and
marks reach the run folder."""

import itertools
from dataclasses import replace

import pytest

from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry import plugins
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import Completion, SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.run_folder.rollouts import overlays_of

ID = "tools/fine-print"
SMALL = {"size": 12, "factor": 24, "cells": 3, "cards": 2, "schemas": "none"}


@pytest.fixture(scope="module")
def collector():
    policy = VLM(PolicyConfig(model="tiny:qwen3_vl:hidden=32,layers=1", max_pixels=65536))
    task = plugins.registry().make_task(ID, SMALL)
    task.image_processing = policy.image_processing
    return ConversationCollector(policy, LocalGenerator(policy), {ID: task}, max_turns=3)


@pytest.fixture(scope="module")
def prompts(collector):
    return [replace(p, task=ID) for p in itertools.islice(collector.tasks[ID].prompts("train", 0), 2)]


def test_a_gold_episode_has_two_turns_two_pictures_and_a_mark(collector, prompts):
    task, policy = collector.tasks[ID], collector.policy
    inputs = collector.encode(prompts)
    for rollout in collector.demonstrate(prompts, inputs, [task.gold(p) for p in prompts]):
        call, answer = rollout.turns
        assert "<tool_call>" in call.text and answer.text == f"<answer>{rollout.prompt.answer}</answer>"
        assert rollout.length == len(call.token_ids) + len(answer.token_ids), "both turns are trained"
        assert rollout.final_inputs.image_sizes == ((12, 12), (96, 96)) and rollout.outcome["zoom_calls"] == 1
        assert "Picture 2." in policy.decode(answer.observed_ids)
        marks = overlays_of(collector.tasks, rollout)
        assert [mark["source"] for mark in marks] == ["true", "said"] and marks[1]["label"] == "turn 1"
        assert marks[0]["coordinates"] == pytest.approx(marks[1]["coordinates"], abs=0.02)


def test_a_sampled_turn_that_stops_at_its_call_goes_on_with_the_picture(collector, prompts, monkeypatch):
    """The random policy writes no call: its first turn is replaced by a gold call without an end token."""
    policy, task = collector.policy, collector.tasks[ID]
    said = policy.encode_completion(task.gold(prompts[0]))[:-1]
    sample = LocalGenerator.generate

    def called(self, inputs, group_size, sampling, numbers=()):
        groups = sample(self, inputs, group_size, sampling, numbers)
        if len(inputs[0].image_sizes) > 1:
            return groups
        return [[Completion(token_ids=tuple(said), logprobs=(0.0,) * len(said), finished=True)] for _ in groups]

    monkeypatch.setattr(LocalGenerator, "generate", called)
    sampling = SamplingParams(max_tokens=4, temperature=1.0, stop=("</tool_call>",))
    (rollout,) = collector.collect(prompts[:1], collector.encode(prompts[:1]), 1, sampling)
    assert len(rollout.turns) == 2 and rollout.turns[1].observed_ids[0] in policy.eos, "the end of the turn is observed"
    assert rollout.final_inputs.image_sizes == ((12, 12), (96, 96)) and rollout.outcome["calls"] == 1
