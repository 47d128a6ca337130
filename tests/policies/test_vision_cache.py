"""A frozen vision tower looks at each picture of a step once, and nothing else changes."""

import functools
import threading

import pytest
import torch

import adapted
import vlm_cases as cases
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.types import user_message
from mmrl.config.sections import RlStage
from mmrl.policies.batches import Credit
from mmrl.policies.reference import Reference
from mmrl.policies.vlm import vision_cache
from mmrl.policies.vlm.prompt_inputs import concatenate
from mmrl.policies.vlm.vision_cache import VisionCache, showing
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

ROOM = 1 << 30
PROMPTS = [cases.prompt(1), cases.prompt(2, 2), cases.prompt(3, 0)]
"""With three pictures of three sizes."""


@functools.cache
def policy(family, part="language"):
    """With adapters in one part."""
    return adapted.policy(family, rank=2, target_modules=[part])


class Counted:
    """Counts the pictures that a policy's tower is shown."""

    def __init__(self, vlm):
        tower = vlm.family.base.visual
        self.kind, self.forward, self.looked = type(tower), type(tower).forward, 0

    def __enter__(self):
        def forward(tower, hidden_states, grid_thw, **kwargs):
            self.looked += len(grid_thw)
            return self.forward(tower, hidden_states, grid_thw, **kwargs)

        self.kind.forward = forward
        return self

    def __exit__(self, *_):
        self.kind.forward = self.forward


def step(vlm, most, **stage):
    """A step of GRPO with a KL penalty: (pictures that the tower looked at, completions, figures of the update, weights after
    it)."""
    before = {name: p.detach().clone() for name, p in vlm.parameters()}
    told = RlStage(kind="rl", steps=9, learning_rate=1e-3, optimizer="sgd", kl_coef=0.1, **stage)
    learner = Learner(vlm, told, load_algorithm("grpo", {}), reference=Reference(vlm, adapters=True))
    with vision_cache.vision_cache(most), Counted(vlm) as counted:
        inputs = [vlm.encode(p) for p in PROMPTS]
        groups = LocalGenerator(vlm).generate(inputs, 3, SamplingParams(max_tokens=5, temperature=1.0, seed=1))
        rollouts = cases.as_rollouts(PROMPTS, inputs, groups)
        given = {"policy": vlm, "shared_prefix": True, "budget": 10_000}
        batches = [pack(rollouts, Credit(advantages=torch.linspace(-1, 1, 9)), **given)] * told.minibatches
        metrics = learner.update(batches, 0, kl=0.1)
    learner.close()
    after = torch.cat([p.detach().flatten() for _, p in vlm.parameters()])
    with torch.no_grad():
        for name, p in vlm.parameters():
            p.copy_(before[name])
    told_of = [turn.token_ids for r in rollouts for turn in r.turns]
    return counted.looked, told_of, torch.tensor([metrics["grad_norm"], metrics["loss"], metrics["kl"]]), after


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v", pytest.param("glm_ocr", marks=pytest.mark.slow)])
def test_a_frozen_tower_looks_at_each_picture_once(family):
    """Qwen3-VL's hands on several layers. The update passes over the pictures for the policy and the reference in each epoch, and
    before it for each of two mini-batches."""
    vlm = policy(family)
    again, once = (step(vlm, most, epochs=2, minibatches=2) for most in (0, ROOM))
    assert (again[0], once[0]) == (3 + 2 * 3 + 2 * 2 * 2 * 3, 3)
    assert again[1] == once[1]
    torch.testing.assert_close(again[2], once[2], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(again[3], once[3], rtol=0, atol=1e-6)
    assert again[2][0] > 1e-3


def test_a_tower_that_is_trained_looks_at_each_pass():
    vlm = policy("qwen2_5_vl", "vision")
    assert step(vlm, ROOM)[0] == step(vlm, 0)[0] == 3 + 2 * 3


def test_a_reference_without_adapters_does_not_read_what_frozen_adapters_saw():
    """Adapters of the tower that an earlier stage trained, and this one freezes."""
    vlm = adapted.policy(rank=2, target_modules=["vision", "language"])
    with torch.no_grad():
        for name, p in vlm.family.base.visual.named_parameters():
            p.requires_grad_(False)
            if ".lora_B." in name:
                p.fill_(0.1)
    reference, (micro,) = Reference(vlm, adapters=True), adapted.batch(vlm).micro

    def both():
        with torch.no_grad():
            return vlm.logprobs(micro, 1.0)[0], reference.logprobs(micro, 1.0)

    expected = both()
    with vision_cache.vision_cache(ROOM):
        torch.testing.assert_close(both(), expected)
    assert (expected[0] - expected[1]).abs().max() > 0.01


def test_what_has_no_room_is_looked_at_again():
    """What the sampler's pass sees doesn't fit, as it is one piece; nor is it kept in part."""
    vlm = policy("qwen2_5_vl")
    again, none = step(vlm, 0), step(vlm, 1000)
    assert none[0] == again[0] and torch.equal(none[3], again[3])


def features(vlm, inputs):
    """What the tower says of the pictures of several prompts, in one pass."""
    media = concatenate([one.media for one in inputs])
    with torch.no_grad(), showing(media, [number for one in inputs for number in one.pictures]):
        output = vlm.family.base.visual(media["pixel_values"], grid_thw=media["image_grid_thw"])
    return [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_pictures_that_were_seen_and_others_come_in_any_order(family):
    vlm = policy(family)
    one, two, three = (vlm.encode(cases.prompt(seed, count)) for seed, count in ((1, 1), (2, 2), (3, 1)))
    plain = features(vlm, [three, two, one])
    with vision_cache.vision_cache(ROOM) as cache, Counted(vlm) as counted:
        features(vlm, [two])
        mixed = features(vlm, [three, two, one])
        assert counted.looked == 4
        repeated = features(vlm, [three, two, one, two])
        assert counted.looked == 4
    for expected, found, twice in zip(plain, mixed, repeated, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        rows = 2 * len(found) - sum(len(x) for x in (features(vlm, [three])[0], features(vlm, [one])[0]))
        assert len(twice) == rows and torch.equal(twice[: len(found)], found)
    assert cache.bytes == sum(x.nbytes for x in plain)


def test_pictures_of_equal_content_are_told_apart_by_their_numbers():
    vlm = policy("qwen2_5_vl")
    one, other = vlm.encode(cases.prompt(1)), vlm.encode(cases.prompt(1))
    assert len({*one.pictures, *other.pictures}) == 2
    with vision_cache.vision_cache(ROOM), Counted(vlm) as counted:
        features(vlm, [one]), features(vlm, [other]), features(vlm, [one])
    assert counted.looked == 2


def test_what_is_not_numbered_is_looked_at_each_time():
    """Grids of other media than those that are shown, too few numbers, no cache, and another thread."""
    vlm, seen = policy("qwen2_5_vl"), []
    one = vlm.encode(cases.prompt(1, 2))
    grids, pixels = one.media["image_grid_thw"], one.media["pixel_values"]

    def look(cache, given, numbers):
        with torch.no_grad(), showing(one.media, numbers):
            vlm.family.base.visual(pixels, grid_thw=given)
        seen.append(cache.bytes)

    with vision_cache.vision_cache(ROOM) as cache:
        look(cache, grids.clone(), one.pictures)
        look(cache, grids, one.pictures[:1])
        thread = threading.Thread(target=look, args=(cache, grids, one.pictures))
        thread.start(), thread.join()
        assert seen == [0, 0, 0]
        look(cache, grids, one.pictures)
        assert cache.bytes > 0
    with Counted(vlm) as counted:
        features(vlm, [one]), features(vlm, [one])
    assert counted.looked == 4


def test_pixels_that_want_a_gradient_get_one():
    vlm = policy("qwen2_5_vl")
    one = vlm.encode(cases.prompt(1))
    pixels = one.media["pixel_values"].clone().requires_grad_()
    with vision_cache.vision_cache(ROOM):
        features(vlm, [one])
        with showing(one.media, one.pictures):
            vlm.family.base.visual(pixels, grid_thw=one.media["image_grid_thw"]).pooler_output.sum().backward()
    assert pixels.grad is not None and pixels.grad.abs().sum() > 0


@pytest.mark.parametrize("members", [1, 2])
def test_numbers_of_conversations_follow_their_pictures(members):
    """Those of pictures in replies stand where their pixels do, whether a row holds one conversation or several."""
    vlm = policy("qwen2_5_vl")
    told = cases.two_turns(vlm, "what", 2)
    assert told.final_inputs.pictures[:2] == told.inputs.pictures and len({*told.final_inputs.pictures}) == 3
    (micro,) = pack([told] * members, cases.credit(*[1.0] * members), vlm, shared_prefix=True, budget=10_000).micro
    third = told.final_inputs.pictures[2:]
    assert micro.pictures == told.inputs.pictures + third * members
    assert len(micro.media["image_grid_thw"]) == len(micro.pictures)


def test_a_conversation_under_another_prompt_shows_that_prompts_pictures():
    vlm = policy("qwen2_5_vl")
    told, other = cases.two_turns(vlm, "what", 2), cases.two_turns(vlm, "who", 1)
    found = told.answering(other.prompt, other.inputs).final_inputs
    assert found.pictures == (*other.inputs.pictures, told.final_inputs.pictures[2])
    assert len(found.media["image_grid_thw"]) == 2


def test_prompts_without_grids_have_no_numbers():
    assert policy("gemma3").encode(cases.prompt(1)).pictures == ()
    assert policy("qwen2_5_vl").encode(cases.prompt(1, 0)).pictures == ()
    reply = policy("qwen2_5_vl").extend(policy("qwen2_5_vl").encode(cases.prompt(1)), (5,), [user_message("go on")])
    assert len(reply[0].pictures) == 1


def test_what_is_kept_never_exceeds_its_bound():
    cache = VisionCache(10)
    cache._keep({("tower", False, 0, 1): (torch.zeros(2),)}, 8)
    cache._keep({("tower", False, 0, 2): (torch.zeros(1),)}, 4)
    assert cache.bytes == 8 and len(cache._kept) == 1


def test_a_picture_that_a_pass_shows_twice_takes_its_room_twice():
    vlm = policy("qwen2_5_vl")
    one = vlm.encode(cases.prompt(1))
    with vision_cache.vision_cache(ROOM) as cache:
        (both,) = features(vlm, [one, one])
    assert cache.bytes == both.nbytes
