"""A tiny SmolVLA and plain loops that compute what it does, for the tests of policies; what it is shown is in `pi0_cases`."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import silu

from mmrl.config.sections import PolicyConfig
from mmrl.policies.smolvla.model import SmolVLA

MODEL = "tiny:smolvla:hidden=32,layers=3,chunk=5"


def smolvla(model=MODEL, attention="sdpa", dtype="float32", lora=None, source=None, **options):
    """Options that are None are those of the checkpoint."""
    config = PolicyConfig(model=model, kind="smolvla", attn_implementation=attention, dtype=dtype, lora=lora)
    return SmolVLA(config, seed=1, source=source, **{"dims": 3, "chunk": 2, "state": 6, **options})


@torch.no_grad()
def slow_velocity(policy, shown, n, x_CD, time):
    """One call at one time, written out from the weights' names: of the network's modules the vision tower alone is called."""
    weights = policy.model.state_dict()
    vlm, expert = "vlm_with_expert.vlm.model.text_model", "vlm_with_expert.lm_expert"
    text = policy.checkpoint.backbone.text_config
    heads, shared, size = text.num_attention_heads, text.num_key_value_heads, text.head_dim

    def linear(name, x):
        found = x @ weights[f"{name}.weight"].T
        return found + weights[f"{name}.bias"] if f"{name}.bias" in weights else found

    def norm(name, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + text.rms_norm_eps).sqrt() * weights[f"{name}.weight"]

    def turned(x, places):
        """[S, heads, d], as complex numbers of the first and the second half."""
        half = size // 2
        angles = torch.tensor([[place / 10_000 ** (i / half) for i in range(half)] for place in places])
        found = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([found.real, found.imag], -1)

    def split(x):
        return x.unflatten(-1, (-1, size))

    def attention(queries, keys, values, sees):
        rows = []
        for i in range(len(queries)):
            some = [j for j in range(len(keys)) if sees(i, j)]
            row = []
            for head in range(heads):
                of = head // (heads // shared)
                scores = torch.stack([queries[i, head] @ keys[j, of] for j in some]) / math.sqrt(size)
                row.append(sum(share * values[j, of] for share, j in zip(scores.softmax(0), some, strict=True)))
            rows.append(torch.cat(row))
        return torch.stack(rows)

    def after(name, x, attended):
        x = x + linear(f"{name}.self_attn.o_proj", attended)
        normed = norm(f"{name}.post_attention_layernorm", x)
        gated = silu(linear(f"{name}.mlp.gate_proj", normed)) * linear(f"{name}.mlp.up_proj", normed)
        return x + linear(f"{name}.mlp.down_proj", gated)

    inner = policy.model.vlm_with_expert["vlm"]["model"]
    looked = inner["connector"](inner["vision_model"](policy._pictures(shown)[n]).last_hidden_state).flatten(0, 1)
    words = policy.tokenizer(shown.instructions[n] + "\n")["input_ids"]
    read = torch.cat([looked, weights[f"{vlm}.embed_tokens.weight"][words]]) * math.sqrt(text.hidden_size)
    x = torch.cat([read, linear("state_proj", policy._state(shown)[n : n + 1])])
    last = len(x) - 1
    fraction = [
        i / (policy.model.action_in_proj.out_features // 2 - 1) for i in range(policy.model.action_in_proj.out_features // 2)
    ]
    waves = [2 * math.pi * time / (0.004 * 1000**share) for share in fraction]
    timed = torch.tensor([math.sin(w) for w in waves] + [math.cos(w) for w in waves]).expand(len(x_CD), -1)
    mixed = silu(linear("action_time_mlp_in", torch.cat([linear("action_in_proj", x_CD), timed], 1)))
    act = linear("action_time_mlp_out", mixed)
    for i in range(text.num_hidden_layers):
        name, own = f"{vlm}.layers.{i}", f"{expert}.layers.{i}"
        normed, here = norm(f"{name}.input_layernorm", x), list(range(len(x)))
        q, k, v = (split(linear(f"{name}.self_attn.{part}_proj", normed)) for part in "qkv")
        q, k = turned(q, here), turned(k, here)
        x = after(name, x, attention(q, k, v, lambda i, j: j < last or i == last))
        normed, ahead = norm(f"{own}.input_layernorm", act), len(act)
        queries = split(linear(f"{own}.self_attn.q_proj", normed))
        if i % 2:  # cross-attention to the prefix, whose keys and values are projected anew
            keys, values = (split(linear(f"{own}.self_attn.{part}_proj", one.flatten(1))) for part, one in (("k", k), ("v", v)))
            found = attention(turned(queries, range(ahead)), keys, values, lambda i, j: True)
        else:
            behind = range(last + 1, last + 1 + ahead)
            keys, values = (split(linear(f"{own}.self_attn.{part}_proj", normed)) for part in "kv")
            keys, values = torch.cat([k, turned(keys, behind)]), torch.cat([v, values])
            found = attention(turned(queries, behind), keys, values, lambda i, j: j <= last + 1 + i)
        act = after(own, act, found)
    return linear("action_out_proj", norm(f"{expert}.norm", act)), norm(f"{vlm}.norm", x[-1])
