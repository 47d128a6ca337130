"""A layer that is computed again takes the ways that it took, whatever became known in between."""

import threading

import pytest
import torch

import vlm_cases as cases
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.choices import Choice, repeatable
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.vlm import attention, varlen, vision
from mmrl.policies.vlm.by_blocks import attention_by_blocks
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.pack_conversations import pack


def test_outside_of_a_layer_that_is_computed_again_each_call_decides():
    assert [Choice(now).faster for now in (True, False, True)] == [True, False, True]
    choice = Choice(True)
    choice.failed()
    assert not choice.faster and not choice.repeated and Choice(True).faster


def test_the_second_time_takes_what_the_first_took():
    known = {"a": True, "b": True}

    def layer():
        return [(choice.faster, choice.repeated) for choice in (Choice(known["a"]), Choice(known["b"]))]

    first, other = repeatable(layer), repeatable(layer)
    assert first() == [(True, False), (True, False)]
    known["b"] = False
    assert first() == [(True, True), (True, True)]
    assert other() == [(True, False), (False, False)] and other() == [(True, True), (False, True)]


def test_what_was_chosen_within_a_way_that_failed_does_not_count():
    def layer():
        outer = Choice(True)
        if outer.faster:
            Choice(True), Choice(True)
            outer.failed()
        return [outer.faster, Choice(False).faster]

    again = repeatable(layer)
    assert again() == again() == [False, False]


@pytest.fixture
def kernel(monkeypatch):
    """In the place of FlexAttention's, which needs a GPU: the same numbers, from other tensors saved for the backward pass."""

    def compiled(query, key, value, *, block_mask, scale, **_):
        found = attention_by_blocks(query, key, value, block_mask, scale, None)
        return found + 0 * found.square()

    made = attention.Kernel()
    made.__dict__["compiled"] = compiled
    monkeypatch.setattr(attention.Kernel, "usable", lambda self, query: not self.failure)
    monkeypatch.setattr(attention, "KERNEL", made)
    return made


def batch(vlm):
    rollouts = cases.rollouts(vlm, [cases.prompt(1)], longest=60)
    credit = Credit(advantages=torch.linspace(-1.0, 1.0, len(rollouts)))
    return pack(rollouts, credit, vlm, shared_prefix=True, budget=10_000)


@pytest.mark.parametrize("when", ["before the backward pass", "in the second layer"])
def test_a_kernel_that_fails_before_layers_are_computed_again_changes_no_gradient(kernel, when):
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=3", attn_implementation="flex_attention"))
    (micro,) = batch(vlm).micro
    real, calls = kernel.compiled, []

    def fails_once(*args, **kwargs):
        calls.append(1)
        if when == "in the second layer" and len(calls) == 2:
            raise RuntimeError("this mask doesn't compile")
        return real(*args, **kwargs)

    def forward(checkpointed):
        with gradient_checkpointing(vlm.model, checkpointed):
            return vlm.logprobs(micro, 0.8)[0]

    def gradient(logprobs):
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad((logprobs * micro.advantages_L).sum(), [*vlm.model.parameters()])]
        )

    wanted = gradient(forward(False))
    kernel.__dict__["compiled"] = fails_once
    logprobs = forward(True)
    if when == "before the backward pass":
        kernel.failure = "another thread found that it doesn't compile"
    assert kernel.failure
    forwards = len(calls)
    assert torch.allclose(gradient(logprobs), wanted, rtol=0, atol=1e-5)
    assert len(calls) == forwards + (3 if when == "before the backward pass" else 1), (
        "what the kernel computed, it computes again"
    )


def test_a_kernel_of_pictures_that_fails_does_so_too(monkeypatch):
    """The kernel itself needs a GPU; here another in its place saves other tensors than what it replaces."""
    kernel = varlen.Varlen()
    monkeypatch.setattr(vision, "VARLEN", kernel)
    monkeypatch.setattr(varlen.Varlen, "usable", lambda self, *_: not self.failure)
    monkeypatch.setattr(varlen, "_kernel", lambda: lambda q, k, v, *_: q * k * v)
    inputs = torch.randn(3, 1, 2, 6, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ends = torch.tensor([0, 4, 6])

    def layer(given):
        return vision.stacked_attention(None, *given, scaling=8**-0.5, cu_seq_lens_q=ends)[0]

    (wanted,) = torch.autograd.grad(layer(inputs).sum(), inputs)
    output = torch.utils.checkpoint.checkpoint(repeatable(layer), inputs, use_reentrant=False)
    kernel.failure = "another thread found that it can't be used"
    (found,) = torch.autograd.grad(output.sum(), inputs)
    assert torch.equal(found, wanted)


def test_a_thread_that_samples_may_compile_as_many_kinds_as_the_learner(kernel):
    """Since torch 2.12 each thread has a limit of its own, beyond which the kernel would be given up for all."""

    def small(query, key, value, **_):
        return query * 2

    kernel.__dict__["compiled"] = torch.compile(small, fullgraph=True, dynamic=True, backend="eager")
    kinds = [torch.ones(1, 2, *[3] * more, dtype=d) for more in (1, 2, 3) for d in (torch.float32, torch.float64, torch.bfloat16)]

    def compute():
        for query in (*kinds, torch.ones(1, 2, 3, 4, dtype=torch.float16)):
            kernel(query, query, query, None, 0.3, None)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert not kernel.failure
