"""Log-probabilities from hidden states by a few tokens at a time equal those of all logits at once, with their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vlm_cases as cases
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import linear_logprobs as module
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.linear_logprobs import linear_logprobs
from mmrl.policies.vlm.logits import Logits
from mmrl.policies.vlm.vlm import VLM, entropy_of
from mmrl.train.update.pack_conversations import pack

L, H, V = 23, 12, 40
KINDS = {"plain": (0.0,), "softcap": (1.5,), "softcap of a multiple": (1.5, 0.4), "scale": (0.25,), "multiply": (0.5,)}
KINDS["divide"] = (3.0,)


def setting(kind="plain", offset=False, dtype=torch.float32):
    """(hidden states, head, targets, bias): some ids are banned."""
    torch.manual_seed(0)
    out = torch.nn.Linear(H, V, bias=offset).to(dtype)
    hidden = torch.randn(L, H, dtype=dtype).mul_(3).requires_grad_()
    bias = torch.zeros(V)
    bias[[3, 17]] = -torch.inf
    return hidden, Logits(out, kind.partition(" ")[0], *KINDS[kind]), torch.randint(4, 17, (L,)), bias


def plain(hidden, head, target, bias, temperature):
    """All logits at once, by torch's own derivatives."""
    logprobs = (head(hidden).to(torch.promote_types(hidden.dtype, torch.float32)) / temperature + bias).log_softmax(-1)
    return logprobs.gather(-1, target[:, None])[:, 0], entropy_of(logprobs)


def gradients(found, hidden, head, entropy=True):
    weights = torch.linspace(-1, 2, L)
    total = (found[0] * weights).sum() + ((found[1] * weights.flip(0)).sum() if entropy else 0.0)
    return torch.autograd.grad(total, [hidden, *head.out.parameters()], retain_graph=True)


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind, temperature, entropy):
    hidden, head, target, bias = setting(kind, offset=temperature != 1)
    wanted = plain(hidden, head, target, bias, temperature)
    for at_once in (1, 7, L):
        found = linear_logprobs(hidden, head, target, bias, temperature=temperature, at_once=at_once, entropy_gradient=entropy)
        assert found[1].requires_grad == entropy
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == torch.float32 and (a - b).abs().max() < 1e-6 * (1 + b.abs().max())
        own, theirs = gradients(found, hidden, head, entropy), gradients(wanted, hidden, head, entropy)
        for a, b in zip(own, theirs, strict=True):
            assert (a - b).norm() < 1e-6 * b.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_small_differences(kind):
    hidden, head, target, bias = setting(kind, offset=True, dtype=torch.float64)

    def function(hidden, weight, offset):
        head.out.weight, head.out.bias = torch.nn.Parameter(weight), torch.nn.Parameter(offset)
        options = module._Options(head, 0.7, 5)
        return module._LinearLogprobs.apply(hidden, weight, offset, target[:6], bias.double(), options)

    given = (hidden[:6].detach().requires_grad_(), head.out.weight.data, head.out.bias.data)
    assert torch.autograd.gradcheck(function, [x.detach().requires_grad_() for x in given])


def test_bfloat16_is_as_near_to_float32_as_torchs_own():
    hidden, head, target, bias = setting(dtype=torch.bfloat16)
    exact_hidden = hidden.detach().float().requires_grad_()
    exact_head = Logits(torch.nn.Linear(H, V, bias=False), "plain", 0.0)
    exact_head.out.weight.data.copy_(head.out.weight)
    exact = plain(exact_hidden, exact_head, target, bias, 1.0)
    theirs = plain(hidden, head, target, bias, 1.0)
    ours = linear_logprobs(hidden, head, target, bias, temperature=1.0, at_once=7, entropy_gradient=True)
    assert torch.allclose(ours[0], theirs[0], atol=1e-5)
    wanted = gradients(exact, exact_hidden, exact_head)
    for a, b, c in zip(gradients(ours, hidden, head), gradients(theirs, hidden, head), wanted, strict=True):
        assert a.dtype == torch.bfloat16 and (a.float() - c).norm() < 1.2 * (b.float() - c).norm() + 1e-3 * c.norm()


def test_only_what_is_trained_gets_gradients():
    hidden, head, target, bias = setting()
    head.out.requires_grad_(False)
    found = linear_logprobs(hidden, head, target, bias, temperature=1.0, at_once=4)
    (slope,) = torch.autograd.grad(found[0].sum(), [hidden])
    (wanted,) = torch.autograd.grad(plain(hidden, head, target, bias, 1.0)[0].sum(), [hidden])
    assert (slope - wanted).norm() < 1e-6 * wanted.norm()
    head.out.requires_grad_(True)
    frozen = linear_logprobs(hidden.detach(), head, target, bias, temperature=1.0, at_once=4)[0]
    assert torch.autograd.grad(frozen.sum(), [head.out.weight])[0].norm() > 0


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that is made inside."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *(x.untyped_storage().nbytes() for x in tree_leaves(found) if isinstance(x, torch.Tensor))])
        return found


def test_the_logits_of_all_tokens_are_never_there():
    out = torch.nn.Linear(8, 1000, bias=False)
    hidden = torch.randn(500, 8, requires_grad=True)
    with Largest() as seen:
        found = linear_logprobs(
            hidden, Logits(out, "plain", 0.0), torch.zeros(500).long(), torch.zeros(1000), temperature=1.0, at_once=20,
            entropy_gradient=True,
        )  # fmt: skip
        (found[0] + found[1]).sum().backward()
    assert seen.bytes == 20 * 1000 * 4


def test_a_policy_uses_it_for_many_tokens_and_not_with_adapters(monkeypatch):
    seen = []
    monkeypatch.setattr(vlm_module, "linear_logprobs", lambda *a, **k: seen.append(k["at_once"]) or linear_logprobs(*a, **k))
    monkeypatch.setattr(vlm_module, "LOGIT_CHUNK", 3 * 512)
    for modules, wanted in ((None, [3]), (["language"], [3]), (["language", "lm_head"], [])):
        lora = {"target_modules": modules} if modules else None
        vlm = VLM(PolicyConfig(model="tiny:llava:hidden=64,layers=1", lora=lora))
        rollouts = cases.rollouts(vlm, [cases.prompt(1)])
        batch = pack(rollouts, cases.credit(1.0, -1.0, 2.0, 0.5), vlm, shared_prefix=True, budget=999)
        seen.clear()
        pieces = vlm.outputs(batch.micro[0], 0.8, entropy_gradient=True)
        assert seen == wanted and (modules is None or vlm.lora is not None)
        with monkeypatch.context() as patch:
            patch.setattr(vlm_module, "LOGIT_CHUNK", 2**25)
            whole = vlm.outputs(batch.micro[0], 0.8, entropy_gradient=True)
        parameters = [p for _, p in vlm.parameters()]
        slopes = [torch.autograd.grad((o.logprobs_L + o.entropy_L).sum(), parameters, allow_unused=True) for o in (pieces, whole)]
        for a, b in zip(*slopes, strict=True):
            assert (a is None) == (b is None) and (a is None or (a - b).norm() <= 1e-5 * (1e-3 + b.norm()))
