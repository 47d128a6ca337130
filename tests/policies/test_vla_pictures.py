"""What acts sees pictures as the same model does that answers, of every family, of any size and however many tiles they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import DynamicCache

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.vla import VLA
from mmrl.policies.vlm import processing, tiny
from mmrl.policies.vlm.prompt_rows import read_prompts
from vla_cases import calls

SEEDS, CALLS = torch.arange(50, 56), torch.arange(6)
TEXTS = ["pick up the red cube", "push it", "pick up the red cube", "stack the ball on the yellow box", "push it", "x"]
REFUSED = (
    "qwen3_5", "qwen3_5_moe", "gemma3", "gemma4", "paligemma", "aya_vision", "cohere2_vision", "lfm2_vl", "minicpmv4_6",
    "minicpmv4_7", "llama4", "gemma3n", "gemma4_unified", "exaone4_5", "muse_glimmer", "step3p7",
)  # fmt: skip
"""Families that can't act yet."""
ACTING = [family for family in tiny.FAMILIES if family not in (*REFUSED, "qwen2_audio")]
SHOWN = [[(64, 64)], [(30, 250)], [(200, 120)], [(40, 90), (40, 90)], [(130, 300), (64, 64)]]
"""(width, height) of each camera's pictures."""


def vla(family, decoding="parallel", state=0, **config):
    asked = PolicyConfig(model=f"tiny:{family}:hidden=32,layers=2", kind="vla", **config)
    return VLA(asked, seed=1, dims=3, bins=16, decoding=decoding, state=state)


def seen(sizes):
    images = {
        f"camera{c}": torch.randint(0, 256, (6, high, wide, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(c))
        for c, (wide, high) in enumerate(sizes)
    }
    return Observation(images=images, state=None, instructions=TEXTS)


def joins(family, sizes):
    """PerceptionLM's processor can't join pictures that are cut into several numbers of tiles."""
    return family != "perception_lm" or len({*sizes}) == 1


def check(policy, sizes):
    """Tokens, positions and pictures of a pass are those of its prompts, and so is what the model makes of them; samples have the
    learner's probabilities."""
    shown, names = seen(sizes), [f"camera{c}" for c in range(len(sizes))]
    policy.seeing.cameras = names
    read, texts = policy.seeing.read(shown, None), [policy.seeing.text.replace("{instruction}", text) for text in TEXTS]
    wanted = []
    for n, text in enumerate(texts):
        pictures = [Image.fromarray(shown.images[name][n].numpy()) for name in names]
        wanted.append(policy.vlm.encode(Prompt(messages=[user_message(text, *pictures)])))
        end = len(wanted[n].ids)
        assert torch.equal(read.ids_nS[n, :end], wanted[n].ids) and torch.equal(read.positions[:, n, :end], wanted[n].positions)
    assert read.media.keys() == wanted[0].media.keys()
    for name, found in read.media.items():
        torch.testing.assert_close(found, torch.cat([one.media[name] for one in wanted]), atol=1e-6, rtol=0)
    with torch.no_grad():
        hidden, cache = policy._read_prompts(shown).hidden_nH, DynamicCache(config=policy.vlm.model.config)
        logits = read_prompts(policy.family, wanted, policy.device, cache)[0][:, policy.action_ids]
        torch.testing.assert_close(policy._logits(hidden), logits, atol=3e-5, rtol=1e-4)
    found = policy.act(shown, SEEDS, CALLS, 0.7)
    learned = policy.outputs(calls(policy, shown, found.choices, found.logprobs_nKC), 0.7)
    torch.testing.assert_close(learned.logprobs_L, found.logprobs_nKC.flatten(), atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("family", cases.with_later_slow(ACTING))
def test_what_acts_sees_what_the_model_sees(family):
    policy = vla(family)
    for sizes in SHOWN:
        if joins(family, sizes):
            check(policy, sizes)
    check(vla(family, "one-by-one"), SHOWN[3])


@pytest.mark.parametrize("options", [{"decoding": "parallel"}, {"decoding": "one-by-one", "state": 2}], ids=str)
def test_types_of_tokens_are_given_to_the_model(options, monkeypatch):
    """By which ERNIE gives pictures to experts of their own."""
    policy, given = vla("ernie4_5_vl_moe", **options), []
    run, marks = policy.family.hidden, [f"<|IMAGE_{end}|>" for end in ("START", "PLACEHOLDER", "END")]

    def hidden(ids, mask, positions, media, *cache):
        given.append((ids, media))
        return run(ids, mask, positions, media, *cache)

    monkeypatch.setattr(policy.family, "hidden", hidden)
    policy.act(replace(seen([(64, 64)]), state=torch.rand(6, 2)), SEEDS, CALLS, 1.0)
    ids, media = given[0]
    shown = torch.isin(ids, torch.tensor(policy.vlm.tokenizer.convert_tokens_to_ids(marks)))
    assert (shown.sum(1) > 3).all() and (~shown).any(1).all()
    assert torch.equal(media["moe_mm_token_type_ids"], shown.long())


def test_an_image_processor_that_makes_other_pictures_alone_is_refused(monkeypatch):
    """InternVL's cuts a picture into tiles only where the whole processor asks it to."""
    policy = vla("internvl")
    monkeypatch.setattr(processing, "part_defaults", lambda processor, kind: {})
    with pytest.raises(UserError, match=r"a internvl model's image processor makes .* of a call's pictures, and in a prompt"):
        policy.act(seen([(64, 64)]), SEEDS, CALLS, 1.0)


def test_pictures_have_tiles_within_the_limits():
    """So that the case above has pictures of several tiles, and limits hold for what acts."""
    policy, limited = vla("internvl"), vla("internvl", max_pixels=2 * 28 * 28)
    tiles = [len(one.seeing.read(seen([(64, 64)]), None).media["pixel_values"]) for one in (policy, limited)]
    assert tiles[0] > tiles[1] >= 6
    check(limited, SHOWN[2])


@pytest.mark.parametrize("family", cases.with_later_slow(REFUSED))
def test_the_other_families_are_refused(family):
    with pytest.raises(UserError, match=rf"policy.kind = 'vla': models of type {tiny.model_type(f'tiny:{family}')} can't act"):
        vla(family)
