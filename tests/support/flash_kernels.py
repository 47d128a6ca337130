"""Stand-ins for torch's kernels of attention within sequences, which a CPU doesn't have, with their documented semantics."""

from __future__ import annotations

import torch

from mmrl.policies.vlm import sequence_attention


def _flash_attention_forward(
    query, key, value, query_ends, key_starts, most_q, most_k, dropout, causal, debug, *, scale, seqused_k=None
):
    """`aten._flash_attention_forward` of sequences, as documented: causal ones are aligned at their ends."""
    assert not dropout and not debug and query.shape[1] % key.shape[1] == 0
    assert most_q > 1 or query.shape[1] == key.shape[1]  # else its kernel divides keys by the number of rows
    used = key_starts.diff() if seqused_k is None else seqused_k
    assert int(query_ends.diff().max()) <= most_q and int(used.max()) <= most_k and len(query_ends) == len(key_starts)
    layout = sequence_attention._Layout(query_ends, key_starts, used, (most_q, most_k), causal)
    return sequence_attention._exact(query, key, value, layout, scale), torch.zeros(1), torch.zeros(2), torch.zeros(1)


def _flash_attention_backward(
    slope, query, key, value, out, sums, query_ends, key_ends, most_q, most_k, dropout, causal, *_, scale
):
    given = [x.detach().requires_grad_() for x in (query, key, value)]
    with torch.enable_grad():
        output = _flash_attention_forward(*given, query_ends, key_ends, most_q, most_k, dropout, causal, False, scale=scale)[0]
    return torch.autograd.grad(output, given, slope)
