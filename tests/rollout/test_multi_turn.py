"""Episodes of several turns, packed: what was sampled is trained as if each episode were a sequence of its own."""

import functools
from dataclasses import replace

import pytest
import torch

import vlm_cases as cases
from mmrl.api.types import Turn
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.pack_conversations import pack

FAMILIES = (*cases.FAMILIES, "llava")
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """One policy of each family; llava stands for those that mmrl has no adapter for."""

    @functools.cache
    def make(family):
        if family != "llava":
            return cases.policy(family)
        return VLM(PolicyConfig(model=cases.llava(tmp_path_factory.mktemp("llava"))))

    return make


def episodes(vlm, images=1, group=4):
    """Two groups of ragged episodes of one to three turns; one ends with an observation, one begins without a token."""
    found = cases.rollouts(vlm, [cases.prompt(1, images), cases.prompt(2, images)], group=group, longest=5)

    def turn(first, observed, sampled):
        ids = tuple(range(first, first + sampled))
        return Turn(observed_ids=tuple(range(300, 300 + observed)), token_ids=ids, logprobs=(-2.0,) * sampled, text="")

    added = {
        0: [turn(110, 3, 2)],
        1: [turn(120, 1, 4), turn(130, 6, 1)],
        3: [turn(140, 2, 3), turn(0, 4, 0)],
        5: [turn(150, 0, 3), turn(160, 2, 2)],
        6: [turn(170, 5, 1)],
    }
    for n, turns in added.items():
        found[n] = replace(found[n], turns=(*found[n].turns, *turns))
    silent = replace(found[6].turns[0], token_ids=(), logprobs=())
    found[6] = replace(found[6], turns=(silent, *found[6].turns[1:]))
    return found


def sequence(rollout):
    """All ids of an episode after its prompt, and the places of those that were sampled."""
    ids, sampled = [], []
    for number, turn in enumerate(rollout.turns):
        ids += turn.observed_ids if number else ()
        sampled += range(len(ids), len(ids) + len(turn.token_ids))
        ids += turn.token_ids
    return ids, sampled


def directly(vlm, rollout):
    """transformers' own forward of the whole episode, nothing packed or padded: the logprobs of what was sampled."""
    encoded = vlm.processor.apply_chat_template(
        [{"role": m["role"], "content": list(m["content"])} for m in rollout.prompt.messages],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
    )
    start, (ids, sampled) = encoded["input_ids"].shape[1], sequence(rollout)
    added = torch.tensor([ids])
    encoded["input_ids"] = torch.cat([encoded["input_ids"], added], 1)
    encoded["attention_mask"] = torch.ones_like(encoded["input_ids"])
    for key in ("mm_token_type_ids", "token_type_ids"):
        if key in encoded:
            encoded[key] = torch.cat([encoded[key], torch.zeros_like(added)], 1)
    vlm.family.forget_positions()
    logits = vlm.model(**encoded).logits[0, start - 1 : -1] / TEMPERATURE
    logits[:, sorted(vlm.banned)] = -torch.inf
    return logits.log_softmax(-1).gather(1, added[0][:, None])[sampled, 0]


def weights(found):
    """Another one for each token, so that a gradient that lands on the wrong token is noticed."""
    longest = max(r.length for r in found)
    return torch.linspace(-1, 2, len(found) * longest).reshape(len(found), longest)


def packed(vlm, found, shared, budget, credit=None):
    credit = credit or Credit(advantages=weights(found))
    return pack(found, credit, vlm, shared_prefix=shared and vlm.family.shares_prefix, budget=budget, keep_zero=True)


def gradient_of(vlm, loss):
    vlm.model.zero_grad()
    loss.backward()
    found = torch.cat([p.grad.flatten() for _, p in vlm.parameters() if p.grad is not None]).clone()
    vlm.model.zero_grad()
    return found


@pytest.mark.parametrize("images", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_gradients_are_those_of_each_episode_alone(policy, family, images):
    vlm = policy(family)
    found = episodes(vlm, images)
    want = [directly(vlm, r) for r in found]
    credit = weights(found)
    expected = gradient_of(vlm, sum((w * credit[n, : len(w)]).sum() for n, w in enumerate(want)))
    assert [len(w) for w in want] == [r.length for r in found] and expected.norm() > 0.1
    for shared, budget in ((True, 10_000), (False, 10_000), (False, 1), (True, 70)):
        batch = packed(vlm, found, shared, budget)
        got = [vlm.outputs(m, TEMPERATURE).logprobs_L for m in batch.micro]
        for micro, logprobs_L in zip(batch.micro, got, strict=True):
            alone = torch.stack([want[n][t] for n, t in zip(micro.rollout_L, micro.place_L, strict=True)])
            assert (logprobs_L - alone).abs().max() < 2e-5
        loss = sum((g * m.advantages_L).sum() for g, m in zip(got, batch.micro, strict=True))
        assert ((gradient_of(vlm, loss) - expected).norm() / expected.norm()).item() < 2e-5


@pytest.mark.parametrize("budget", [1, 70, 10_000])
@pytest.mark.parametrize("shared", [True, False])
def test_how_an_episode_lies_in_its_row(shared, budget):
    """Ids, positions, what is predicted from where, and the state in which the episode was left."""
    vlm = cases.policy("qwen2_5_vl")
    found, seen = episodes(vlm), set()
    batch = packed(vlm, found, shared, budget)
    assert batch.lengths_N.tolist() == [r.length for r in found] and batch.num_tokens == sum(r.length for r in found)
    for micro in batch.micro:
        width = micro.ids_BS.shape[1]
        for n, last in zip(micro.final_rollout_R.tolist(), micro.final_R.tolist(), strict=True):
            rollout, (ids, sampled) = found[n], sequence(found[n])
            row, segment = last // width, micro.segment_BS.flatten()[last]
            places = (micro.segment_BS[row] == segment).nonzero()[:, 0].tolist()
            prompt = len(rollout.inputs.ids)
            assert micro.ids_BS[row, places].tolist() == list(ids) and micro.ids_BS[row, :prompt].equal(rollout.inputs.ids)
            assert last == row * width + places[-1], "the last token, observed or sampled"
            first = int(rollout.inputs.positions.max()) + 1
            assert micro.positions[:, row, places].tolist() == [list(range(first, first + len(ids)))] * 3, "they go on"
            own = micro.rollout_L == n
            before = [prompt - 1, *places]
            assert micro.source_L[own].tolist() == [row * width + before[k] for k in sampled]
            assert micro.target_L[own].tolist() == [ids[k] for k in sampled]
            assert micro.place_L[own].tolist() == list(range(rollout.length))
            assert torch.equal(micro.advantages_L[own], weights(found)[n, : rollout.length])
            said = [p for turn in rollout.turns for p in turn.logprobs]
            assert micro.sampler_logprobs_L[own].tolist() == said
            seen.add(n)
    assert seen == set(range(len(found)))


def test_what_was_observed_is_read_and_never_trained():
    """Other observations change what follows them, and none of them is a target."""
    vlm = cases.policy("qwen2_5_vl")
    found = episodes(vlm)[:1]
    first, second = found[0].turns
    other = replace(found[0], turns=(first, replace(second, observed_ids=(310, 311, 312))))
    size = len(first.token_ids)
    (one,), (two,) = packed(vlm, found, True, 10_000).micro, packed(vlm, [other], True, 10_000).micro
    assert one.target_L.tolist() == two.target_L.tolist() == [*first.token_ids, 110, 111]
    with torch.no_grad():
        a, b = (vlm.outputs(m, TEMPERATURE).logprobs_L for m in (one, two))
    assert torch.allclose(a[:size], b[:size], atol=1e-6) and (a[size:] - b[size:]).abs().min() > 1e-3


def test_an_episode_without_a_sampled_token_is_left_out():
    vlm = cases.policy("qwen2_5_vl")
    found = episodes(vlm)[:3]
    silent = replace(found[2].turns[0], token_ids=(), logprobs=())
    found[2] = replace(found[2], turns=(silent, replace(silent, observed_ids=(300, 301))))
    batch = packed(vlm, found, True, 10_000)
    assert {n for m in batch.micro for n in m.rollout_L.tolist()} == {0, 1} and batch.num_rollouts == 2
    assert batch.lengths_N.tolist()[2] == 0 and batch.micro[0].final_rollout_R.tolist() == [0, 1]


@pytest.mark.parametrize("shape", ["N", "NT"])
def test_failed_and_idle_episodes(shape):
    """NaN anywhere leaves the batch, its tokens with it; credit that is zero everywhere is counted and not computed."""
    vlm = cases.policy("qwen2_5_vl")
    found = episodes(vlm)
    credit = torch.ones(8) if shape == "N" else weights(found).where(weights(found) != 0, 1.0)
    credit[1], credit[3] = torch.nan, 0.0
    batch = pack(found, Credit(advantages=credit), vlm, shared_prefix=True, budget=10_000)
    assert {n for m in batch.micro for n in m.rollout_L.tolist()} == {0, 2, 4, 5, 6, 7}
    assert batch.num_rollouts == 7 and batch.num_tokens == sum(r.length for n, r in enumerate(found) if n != 1)
    assert batch.lengths_N.tolist() == [0 if n == 1 else r.length for n, r in enumerate(found)]


def test_values_and_targets_go_with_their_tokens():
    vlm = cases.policy("qwen2_5_vl")
    found = episodes(vlm)
    values, returns = weights(found) + 10, (weights(found) + 20).masked_fill(weights(found) < 0, torch.nan)
    credit = Credit(advantages=torch.arange(1.0, 9.0), values_NT=values, returns_NT=returns)
    for micro in packed(vlm, found, True, 70, credit).micro:
        at = (micro.rollout_L, micro.place_L)
        assert torch.equal(micro.values_L, values[at]) and torch.equal(micro.returns_L.nan_to_num(-1), returns[at].nan_to_num(-1))
        assert micro.advantages_L.tolist() == [n + 1.0 for n in micro.rollout_L.tolist()]


def test_a_picture_in_a_later_turn_that_nobody_kept_is_refused():
    vlm = cases.policy("qwen2_5_vl")
    found = episodes(vlm)[:2]
    image = vlm.model.config.image_token_id
    first, second = found[0].turns
    for bad in ((300, image), (vlm.model.config.vision_start_token_id,)):
        found[0] = replace(found[0], turns=(first, replace(second, observed_ids=bad)))
        with pytest.raises(
            ValueError, match="a rollout of prompt 'p1' observed an image in a later turn but has no final_inputs"
        ):
            packed(vlm, found, True, 10_000)
    found[0] = replace(found[0], turns=(first, replace(second, token_ids=(110, image))))
    with pytest.raises(ValueError, match="vision id"):
        packed(vlm, found, True, 10_000)


def test_a_single_turn_beside_longer_ones_is_what_it_is_alone():
    """Rollout 2 of the group has one turn: its numbers don't know of the others'."""
    vlm = cases.policy("qwen2_5_vl")
    found = episodes(vlm)
    assert len(found[2].turns) == 1
    (beside,), (alone,) = packed(vlm, found[:4], True, 10_000).micro, packed(vlm, found[2:3], False, 10_000).micro
    with torch.no_grad():
        a, b = (vlm.outputs(m, TEMPERATURE).logprobs_L for m in (beside, alone))
    assert (a[beside.rollout_L == 2] - b).abs().max() < 1e-5
    assert alone.ids_BS[0].tolist() == [*found[2].inputs.ids.tolist(), *found[2].turns[0].token_ids]
    assert alone.final_R.item() == alone.ids_BS.shape[1] - 1
