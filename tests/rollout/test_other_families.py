"""Conversations with pictures in later turns, on models that no adapter names: what was sampled is what is trained, and
what the model computes of the whole conversation. The pictures differ in number and size."""

from __future__ import annotations

import pytest
import torch

import other_families
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, Reply, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm import prompt_inputs
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.known_families import FAMILIES
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.pack_conversations import pack

TEMPERATURE = 0.9
TYPED = {"gemma3": "token_type_ids", "glm4v": "mm_token_type_ids", "qwen3_5": "mm_token_type_ids"}
"""Family -> the argument that tells it which tokens are pictures."""
SIZES = {
    "like": ([(56, 56)], [(56, 56)]),
    "more": ([(56, 56)], [(112, 56), (56, 28)]),
    "fewer": ([(28, 56), (56, 56)], [(84, 56)]),
    "first in words": ([], [(56, 28)]),
    "then in words": ([(84, 56)], []),
}
"""Prompt -> sizes of the pictures that it shows, and of those shown after the first answer."""


def pictures(sizes, seed):
    return [cases.picture(seed + k, *size) for k, size in enumerate(sizes)]


class Show:
    """Shows pictures after the first answer and ends after the second."""

    def __init__(self, shown):
        self.left = [shown]

    def step(self, completion):
        return Reply(messages=[user_message("And now?", *self.left.pop())]) if self.left else Reply(terminated=True)

    def close(self):
        pass


class Showing(Task):
    def environment(self, prompt):
        return Show(pictures(SIZES[prompt.id][1], 50))


def collected(vlm, names=tuple(SIZES)):
    prompts = [Prompt(id=n, task="show", messages=[user_message("What is it?", *pictures(SIZES[n][0], 10))]) for n in names]
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"show": Showing()})
    sampling = SamplingParams(max_tokens=4, temperature=TEMPERATURE, seed=3)
    return collector.collect(prompts, collector.encode(prompts), 2, sampling)


def media(vlm, rollout):
    """All pictures of a conversation at once, by the family's own image processor."""
    images, kind = vlm.processor.image_processor, vlm.model.config.model_type
    turns = [group for group in (pictures(SIZES[rollout.prompt.id][0], 10), pictures(SIZES[rollout.prompt.id][1], 50)) if group]
    if kind == "llava_onevision":  # a message's only picture is cut into tiles, several are not
        found = [images(images=[turn], return_tensors="pt") for turn in turns]
        most = max(f["pixel_values"].shape[1] for f in found)
        tiles = [torch.nn.functional.pad(f["pixel_values"], (0, 0) * 3 + (0, most - f["pixel_values"].shape[1])) for f in found]
        rest = {k: torch.cat([torch.as_tensor(f[k]) for f in found]) for k in ("image_sizes", "batch_num_images")}
        return {"pixel_values": torch.cat(tiles), **rest}
    flat = [picture for turn in turns for picture in turn]
    found = images(images=[flat] if kind in ("idefics3", "smolvlm", "gemma3") else flat, return_tensors="pt")
    return {k: v for k, v in found.items() if k != "num_crops"}


@torch.no_grad()
def directly(vlm, rollout):
    """The model's own forward of the whole conversation: the log-probabilities of what was sampled."""
    ids, places = [*rollout.inputs.ids.tolist()], []
    for number, turn in enumerate(rollout.turns):
        ids += turn.observed_ids if number else ()
        places += range(len(ids), len(ids) + len(turn.token_ids))
        ids += turn.token_ids
    ids, config = torch.tensor([ids]), vlm.model.config
    typed = TYPED.get(config.model_type)
    types = {typed: (ids == config.image_token_id).int()} if typed else {}
    vlm.family.forget_positions()
    logits = vlm.model(input_ids=ids, attention_mask=torch.ones_like(ids), **media(vlm, rollout), **types).logits[0]
    logits = logits / TEMPERATURE
    logits[:, sorted(vlm.banned)] = -torch.inf
    at = torch.tensor(places)
    return logits[at - 1].log_softmax(-1).gather(1, ids[0][at][:, None])[:, 0]


def packed(vlm, rollouts, budget):
    credit = Credit(advantages=torch.ones(len(rollouts)))
    return pack(rollouts, credit, vlm, shared_prefix=vlm.family.shares_prefix, budget=budget, keep_zero=True)


@pytest.mark.parametrize("family", other_families.BUILDERS)
def test_what_was_sampled_is_what_is_trained(family):
    vlm = other_families.policy(family)
    assert vlm.family.shares_prefix and vlm.family.pads_prompts
    rollouts = collected(vlm)
    assert [len(r.turns) for r in rollouts] == [2] * len(rollouts)
    wanted = [directly(vlm, r) for r in rollouts]
    for rollout, expected in zip(rollouts, wanted, strict=True):
        sampled = torch.tensor([p for turn in rollout.turns for p in turn.logprobs])
        assert (sampled - expected).abs().max() < 1e-5, rollout.prompt.id
    for budget in (100_000, 1):
        batch = packed(vlm, rollouts, budget)
        rows = sum(len(m.ids_BS) for m in batch.micro)
        assert batch.looks and (rows == len(rollouts) if budget == 1 else rows < len(rollouts))
        for micro in batch.micro:
            with torch.no_grad():
                found = vlm.logprobs(micro, TEMPERATURE)[0]
            for n, k, value in zip(micro.rollout_L.tolist(), micro.place_L.tolist(), found.tolist(), strict=True):
                assert abs(value - wanted[n][k].item()) < 1e-5, (rollouts[n].prompt.id, k)


def test_pictures_of_later_turns_are_no_words():
    """Of a planted fault: typed as text, they would be seen in another order, and the probabilities be others."""
    family = "gemma3"
    vlm = other_families.policy(family)
    (rollout, *_) = collected(vlm, ["more"])
    (micro,) = packed(vlm, [rollout], 100_000).micro
    types, prompt = micro.media[TYPED[family]], len(rollout.inputs.ids)
    assert types[0, prompt:].sum() == (micro.ids_BS[0, prompt:] == vlm.model.config.image_token_id).sum() > 0
    with torch.no_grad():
        right = vlm.logprobs(micro, TEMPERATURE)[0]
        types[0, prompt:] = 0
        wrong = vlm.logprobs(micro, TEMPERATURE)[0]
    assert (right - wrong).abs().max() > 1e-3


def test_pictures_that_come_first_in_a_later_turn_count_as_seen():
    """The vision tower's gradient of such a batch is one, and is kept."""
    vlm = other_families.policy("gemma3")
    assert packed(vlm, collected(vlm, ["first in words"]), 100_000).looks
    assert not packed(vlm, cases.rollouts(vlm, [cases.prompt(1, images=0)]), 100_000).looks


@pytest.mark.parametrize("family", ["idefics3", "mistral3"])
def test_rollouts_whose_pictures_differ_are_computed_apart(family):
    vlm = other_families.policy(family)
    rollouts = collected(vlm, ["like", "more"])
    batch = packed(vlm, rollouts, 100_000)
    assert [sorted({*m.rollout_L.tolist()}) for m in batch.micro] == [[0, 1], [2, 3]]


def test_a_family_that_is_not_told_sizes_refuses_other_ones_in_one_line(monkeypatch):
    monkeypatch.setattr(prompt_inputs, "TRUE_SIZES", ())
    vlm = other_families.policy("mistral3")
    assert all(len(r.turns) == 2 for r in collected(vlm, ["like", "then in words"]))
    with pytest.raises(UserError, match=r"^an environment's reply: its pictures are processed into .* a mistral3 model") as told:
        collected(vlm, ["more"])
    assert "\n" not in str(told.value)


def test_padding_is_at_the_ends_and_the_first_axis_is_joined():
    one, two = torch.ones(1, 2, 3), 2 * torch.ones(2, 3, 1)
    joined = prompt_inputs.concatenate([{"a": one}, {}, {"a": two}])["a"]
    assert joined.shape == (3, 3, 3) and joined.sum() == one.sum() + two.sum()
    assert torch.equal(joined[:1, :2], one) and torch.equal(joined[1:, :, :1], two)
    assert prompt_inputs.can_join([{"a": one}, {"b": two}]) and not prompt_inputs.can_join([{"a": one}, {"a": two}])
    assert prompt_inputs.can_join([{"a": one, "image_sizes": two}, {"a": two}])


class Silent(Task):
    """Its environment is none."""

    def environment(self, prompt):
        return None


def test_a_family_of_one_turn_is_refused_for_environments(tmp_path, monkeypatch):
    assert not FAMILIES["paligemma"].has_turns
    vlm = VLM(PolicyConfig(model=cases.llava(tmp_path)))
    monkeypatch.setattr(Family, "has_turns", False)
    prompts = [Prompt(id="like", task="show", messages=[user_message("x", cases.picture(1))])]
    sampling = SamplingParams(max_tokens=2, temperature=1.0, seed=0)

    def collect(task):
        collector = ConversationCollector(vlm, LocalGenerator(vlm), {"show": task})
        return collector.collect(prompts, collector.encode(prompts), 2, sampling)

    with pytest.raises(UserError, match=r"policy\.model: task 'show' has an environment, but a llava model gives one answer"):
        collect(Showing())
    assert all(len(r.turns) == 1 for r in collect(Silent()))
    with pytest.raises(UserError, match="a llava model gives one answer to a prompt and can't go on"):
        vlm.extend(vlm.encode(prompts[0]), (5,), [user_message("And now?")])
