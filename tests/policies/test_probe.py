"""What a model can do is found by trying it; packed rows of recurrent models equal rows of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import other_families
import vlm_cases as cases
from mmrl.config.policy import PolicyConfig
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.vlm import packed_rows, probe, recurrent, tiny
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.capabilities import UNKNOWN
from mmrl.policies.vlm.families import decoder_of
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.pack_conversations import pack

CREDIT = cases.credit(1.0, -0.5, 0.25, 2.0, -1.0, 0.75, 0.5, -2.0)


@pytest.fixture
def qwen3_5():
    vlm = other_families.policy("qwen3_5")
    found = vlm.family.capabilities
    yield vlm
    vlm.family.use(found)


def update(vlm, shared, **options):
    rollouts = cases.rollouts(vlm, [cases.prompt(1, 1), cases.prompt(2, 2)])
    batch = pack(rollouts, CREDIT, vlm, shared_prefix=shared, **{"budget": 10_000, **options})
    return cases.logprobs_and_gradient(vlm, batch)


def same(one, two):
    return (one[0] - two[0]).abs().max() < 1e-5 and (one[1] - two[1]).norm() / two[1].norm() < 1e-5


@pytest.mark.parametrize("family", other_families.BUILDERS)
def test_the_verdict_of_each_family(family):
    vlm = other_families.policy(family)
    found = probe.probe(vlm.family, vlm.reader.encode)
    assert found.packs and found.pads and not found.why_not
    assert 0 < found.logprob_difference < 1e-5 and 0 < found.gradient_difference < 1e-5
    assert found.looks_ahead == (family == "gemma3")
    assert found.recurrent == (("Qwen3_5GatedDeltaNet",) if family == "qwen3_5" else ())


FAMILIES = [family for family in tiny.FAMILIES if family not in ("openvla", "qwen2_5_vl")]


@pytest.mark.parametrize("family", [pytest.param("qwen2_5_vl", marks=pytest.mark.always), *cases.with_later_slow(FAMILIES)])
def test_of_a_deep_model_the_first_layers_are_tried_with_the_same_verdict(family, monkeypatch):
    def verdict():
        monkeypatch.setattr(vlm_module, "_PROBED", {})
        vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=7"))
        assert len(decoder_of(vlm.model).layers) == decoder_of(vlm.model).config.num_hidden_layers == 7
        return replace(vlm.family.capabilities, logprob_difference=0.0, gradient_difference=0.0)

    tried, forward = [], probe._truth
    monkeypatch.setattr(
        probe, "_truth", lambda family, *a, **k: tried.append(len(decoder_of(family.model).layers)) or forward(family, *a, **k)
    )
    whole = verdict()
    monkeypatch.setattr(probe, "LAYERS", 4)
    assert verdict() == whole and whole.packs and whole.pads
    shared = family in ("gemma3n", "gemma4")
    assert tried[0] == 7 and (tried[-1] == 7) == shared


def test_a_prompt_that_a_model_can_not_share_is_not_packed():
    vlm = cases.policy("qwen2_5_vl")
    found = vlm.family.capabilities
    rollouts = cases.rollouts(vlm, [cases.prompt(1, 1)])
    vlm.family.use(replace(UNKNOWN, why_not="it was planted"))
    try:
        with pytest.raises(ValueError, match="can't share a prompt: it was planted"):
            pack(rollouts, CREDIT, vlm, shared_prefix=True, budget=100)
    finally:
        vlm.family.use(found)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_policy_may_be_made_where_nothing_has_gradients(mode):
    vlm = other_families.policy("mistral3")
    with mode():
        assert probe.probe(vlm.family, vlm.reader.encode).packs


@pytest.mark.parametrize("family", other_families.BUILDERS)
def test_packed_rows_equal_the_models_own_forward_of_separate_rows(family):
    vlm = other_families.policy(family)
    packed, found = update(vlm, True), vlm.family.capabilities
    vlm.family.use(UNKNOWN)
    try:
        own = update(vlm, False, budget=1)
    finally:
        vlm.family.use(found)
    assert same(packed, own)


def test_a_state_is_copied_or_the_prompt_computed_again(qwen3_5):
    found, copied = qwen3_5.family.capabilities, update(qwen3_5, True)
    assert found.continues
    qwen3_5.family.use(replace(found, continues=False))
    assert same(update(qwen3_5, True), copied) and "computed again in Qwen3_5" in qwen3_5.family.capabilities.described("x")


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_layers_that_are_computed_again_for_gradients_know_the_layout(family):
    vlm = other_families.policy(family)
    plain = update(vlm, True)
    with gradient_checkpointing(vlm.model):
        assert same(update(vlm, True), plain)


@pytest.mark.everyday
def test_planted_faults_are_seen(monkeypatch):
    """Of planted faults: the probe must see each of them."""
    vlm = other_families.policy("qwen3_5")
    found = vlm.family.capabilities

    def verdict():
        return probe.probe(vlm.family, vlm.reader.encode)

    try:
        with monkeypatch.context() as m:  # completions see each other
            m.setattr(packed_rows.PackedRows, "allowed", lambda self, b, q, k: q >= k)
            assert "log-probabilities of a packed row differ" in verdict().why_not
        with monkeypatch.context() as m:  # completions go on from no state; then the prompt is computed again
            m.setattr(recurrent.SharedState, "for_completions", lambda self, owner: self.__init__())
            assert verdict().packs and not vlm.family.capabilities.continues
        with monkeypatch.context() as m:  # nobody knows of the states
            m.setattr(probe, "recurrent_kinds", lambda *_: ())
            assert "log-probabilities of a packed row differ" in verdict().why_not
        with monkeypatch.context() as m:  # no gradient flows through the state
            keep = recurrent.SharedState.for_completions

            def cut(self, owner):
                keep(self, owner)
                self.recurrent_states[0] = self.recurrent_states[0].detach()

            m.setattr(recurrent.SharedState, "for_completions", cut)
            assert verdict().packs and not vlm.family.capabilities.continues
        with monkeypatch.context() as m:  # a step has other positions
            step = vlm.family.step
            m.setattr(vlm.family, "step", lambda ids, mask, places, *rest: step(ids, mask, places + 1, *rest))
            assert verdict().packs  # all by one: rotary positions are relative
            m.setattr(vlm.family, "step", lambda ids, mask, places, *rest: step(ids, mask, places * 2, *rest))
            assert "logits of a step with a cache" in verdict().why_not
        with monkeypatch.context() as m:
            m.setattr(vlm.family, "packed", lambda *_: 1 / 0)
            assert verdict().why_not == "ZeroDivisionError: division by zero"
            assert "every completion is computed with its own copy" in vlm.family.capabilities.described("qwen3_5")
    finally:
        vlm.family.use(found)


def test_sliding_windows_hold_in_packed_rows():
    """Prompts are longer than the window, so that a mask without it would show."""
    vlm = other_families.policy("gemma3")
    config = vlm.model.config.get_text_config()
    window = config.sliding_window
    wide = update(vlm, True)
    config.sliding_window = 4
    try:
        test_packed_rows_equal_the_models_own_forward_of_separate_rows("gemma3")
        assert (update(vlm, True)[0] - wide[0]).abs().max() > 1e-3
    finally:
        config.sliding_window = window


def test_the_index_of_a_token_in_a_row_of_its_own():
    rows = packed_rows.PackedRows(torch.tensor([[0, 0, 1, 1, 2, -1], [0, 1, 2, 2, 2, 3]]), type(None))
    assert rows.own_index_BS[:, :5].tolist() == [[0, 1, 2, 3, 2], [0, 1, 1, 2, 3]]
    g = rows.gathers
    assert g.prompt_BP.tolist() == [[0, 1], [6, 6]] and g.real_BP.tolist() == [[True, True], [False, True]]
    assert g.owner_N.tolist() == [0, 0, 1, 1, 1]
    assert [row[ok].tolist() for row, ok in zip(g.completion_NC, g.valid_NC, strict=True)] == [[2, 3], [4], [7], [8, 9, 10], [11]]
