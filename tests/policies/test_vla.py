"""A vision-language model that acts: what is sampled is what is learned, whatever the decoding, the head and the company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import CriticConfig, LoraConfig, PolicyConfig
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.vla import VLA
from mmrl.policies.critic import Critic
from mmrl.policies.lora import disable_adapters, merge
from vla_cases import calls

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SEEDS, CALLS = torch.arange(50, 56), torch.arange(6)
TEXTS = ["pick up the red cube", "push it", "pick up the red cube", "stack the ball on the yellow box", "push it", "x"]


def seen(size=64, n=6, seed=0):
    images = torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Observation(images={"front": images}, state=None, instructions=TEXTS[:n])


def vla(family="qwen2_5_vl", lora=None, **options):
    options = {"dims": 3, "bins": 16, **options}
    return VLA(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=2", kind="vla", lora=lora), seed=1, **options)


def test_a_mask_of_padding_holds_numbers_already(monkeypatch):
    """torch would make them of a boolean one in each layer."""
    masks, attend = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **kwargs):
        masks.append(attn_mask)
        return attend(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    vla(decoding="one-by-one").act(seen(), SEEDS, CALLS, 1.0)
    made = [mask for mask in masks if mask is not None]
    assert len(made) >= 6 and all(mask.dtype == torch.float32 for mask in made), "two layers, three tokens"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [
        {"decoding": "parallel"},
        {"decoding": "one-by-one"},
        {"decoding": "parallel", "chunk": 2},
        {"decoding": "one-by-one", "chunk": 2},
        {"head": "normal", "chunk": 2},
        {"head": "flow"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_what_is_sampled_is_what_is_learned(family, options):
    policy = vla(family, **options)
    shown = seen()
    for temperature in (1.0, 0.7):
        found = policy.act(shown, SEEDS, CALLS, temperature)
        outputs = policy.outputs(calls(policy, shown, found.choices, found.logprobs_nKC), temperature)
        torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=3e-5, rtol=1e-4)
        assert outputs.logprobs_L.requires_grad and found.actions_nKA.shape == (6, options.get("chunk", 1), 3)
    some = torch.tensor([4, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 1.0)
    whole = policy.act(shown, SEEDS, CALLS, 1.0)
    torch.testing.assert_close(alone.actions_nKA, whole.actions_nKA[some], atol=1e-5, rtol=1e-5)
    calm = policy.act(shown, SEEDS, CALLS, 0.0).actions_nKA
    assert torch.equal(calm, policy.act(shown, SEEDS + 9, CALLS, 0.0).actions_nKA) or options.get("head") == "flow"


@pytest.mark.parametrize("decoding", ["parallel", "one-by-one"])
def test_guided_tokens_are_drawn_by_logits_that_are_moved_further(decoding):
    """By the full distributions of what was drawn, with the instruction and without its end; a weight of 1 is no guidance."""
    policy, shown = vla(decoding=decoding), seen()
    plain = replace(shown, instructions=[text.split()[0] for text in TEXTS])
    weights = torch.tensor([300.0, 1.0, 0.0, 300.0, 200.0, 300.0])  # this model hardly heeds the text
    found = policy.act(shown, SEEDS, CALLS, 0.7, guidance=Guidance(plain=plain, weights_n=weights))
    unguided = policy.act(shown, SEEDS, CALLS, 0.7)
    assert torch.equal(found.choices[1], unguided.choices[1]) and not torch.equal(found.choices, unguided.choices)

    def logits(observation):
        if decoding == "parallel":
            return policy.features(observation)[0]
        at = torch.arange(3).expand(6, -1)
        return policy._logits(policy._hidden(observation, policy.action_ids[found.choices.flatten(1)], at, "before"))[:, None]

    with torch.no_grad():
        told, without = logits(shown), logits(plain)
    for n in range(6):
        for a in range(3):
            by = (without[n, 0, a] + weights[n] * (told[n, 0, a] - without[n, 0, a])) / 0.7
            expected = by.log_softmax(0)[found.choices[n, 0, a]]
            torch.testing.assert_close(found.logprobs_nKC[n, 0, a], expected, atol=3e-5, rtol=1e-4)


def test_a_guided_flow_head_follows_the_mixed_velocity():
    policy, shown = vla(head="flow"), seen()
    plain = replace(shown, instructions=[text.split()[0] for text in TEXTS])
    found = policy.act(shown, SEEDS, CALLS, 0.0, guidance=Guidance(plain=plain, weights_n=torch.full((6,), 2.0)))
    with torch.no_grad():
        told, without = (policy.head.seeing(policy.features(one)[0]) for one in (shown, plain))
        x, steps = found.choices[:, :, 0], policy.head.steps
        for i in range(steps):
            at = torch.full((6, 1), 1 - i / steps)
            v, w = told(x[:, None], at)[:, 0], without(x[:, None], at)[:, 0]
            x = x - (2 * v - w) / steps
    torch.testing.assert_close(found.actions_nKA, x.clamp(-1, 1), atol=1e-5, rtol=1e-5)
    assert not vla(head="normal").guides


@pytest.mark.parametrize("decoding", ["parallel", "one-by-one"])
def test_it_sees_the_picture_and_reads_the_instruction(decoding):
    policy = vla(decoding=decoding)
    shown = seen()
    first = policy.act(shown, SEEDS, CALLS, 1.0).logprobs_nKC
    other = Observation(images={"front": 255 - shown.images["front"]}, state=None, instructions=shown.instructions)
    assert (policy.act(other, SEEDS, CALLS, 1.0).logprobs_nKC - first).abs().max() > 1e-3
    said = Observation(images=shown.images, state=None, instructions=["push it"] * 6)
    changed = (policy.act(said, SEEDS, CALLS, 1.0).logprobs_nKC - first).abs().amax((1, 2))
    assert (changed[[1, 4]] < 1e-5).all() and (changed[[0, 2, 3, 5]] > 1e-4).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_and_prompts_are_those_of_the_processor(family):
    """What stands before the actions is what transformers' own chat layout and image processor give."""
    policy = vla(family, prompt="Do this: {instruction}.")
    shown = seen()
    read = policy.seeing.read(shown, None)
    ids, segment, positions, media, last = read.ids_nS, read.segment_nS, read.positions, read.media, read.last_n
    from PIL import Image

    for n in range(6):
        picture = Image.fromarray(shown.images["front"][n].numpy())
        wanted = policy.vlm.encode(Prompt(messages=[user_message(f"Do this: {TEXTS[n]}.", picture)]))
        end = len(wanted.ids)
        assert int(last[n]) + 1 == end and torch.equal(ids[n, :end], wanted.ids)
        assert (
            torch.equal(positions[:, n, :end], wanted.positions)
            and (segment[n, :end] == 0).all()
            and (segment[n, end:] == -1).all()
        )
        own = wanted.media["pixel_values"]
        torch.testing.assert_close(media["pixel_values"][n * len(own) : (n + 1) * len(own)], own, atol=1e-6, rtol=0)


def test_one_by_one_is_the_models_own_next_token_over_the_action_ids():
    """Against transformers' forward of prompt and actions, the logits cut to the bins."""
    policy = vla(decoding="one-by-one", chunk=2)
    shown = seen()
    found = policy.act(shown, SEEDS, CALLS, 0.8)
    from PIL import Image

    for n in range(6):
        picture = Image.fromarray(shown.images["front"][n].numpy())
        encoded = policy.vlm.processor.apply_chat_template(
            [
                [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "image": picture},
                            {"type": "text", "text": policy.seeing.text.replace("{instruction}", TEXTS[n])},
                        ],
                    }
                ]
            ],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
        )
        tokens = policy.action_ids[found.choices[n].flatten()][None]
        own = dict(encoded)
        own["input_ids"] = torch.cat([own["input_ids"], tokens], 1)
        own["attention_mask"] = torch.ones_like(own["input_ids"])
        own["mm_token_type_ids"] = torch.nn.functional.pad(own["mm_token_type_ids"], (0, tokens.shape[1]))
        logits = policy.vlm.model(**own).logits[0, -tokens.shape[1] - 1 : -1]
        wanted = (logits[:, policy.action_ids] / 0.8).log_softmax(-1).gather(1, found.choices[n].flatten()[:, None])[:, 0]
        torch.testing.assert_close(found.logprobs_nKC[n].flatten(), wanted, atol=3e-5, rtol=1e-4)


def test_slots_see_each_other_and_the_whole_prompt():
    """Each number of a chunk depends on the slots of the others: a mask that hid later ones would show."""
    policy = vla(chunk=2)
    shown = seen(n=1)
    before = policy.features(shown)[0]
    with torch.no_grad():
        weight = policy.vlm.model.get_input_embeddings().weight
        weight[policy.slot_ids[-1]] += 1.0
    after = policy.features(shown)[0]
    assert ((after - before).abs().amax(-1) > 1e-5).all()


def test_ratios_are_sums_and_dropped_actions_are_left_out():
    policy = vla(chunk=3)
    shown = seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    valid = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    each = found.logprobs_nKC
    from mmrl.api.simulators.layout import per_target

    assert torch.equal(per_target(each, valid, "token"), each[valid].flatten())
    wanted = [float(each[n, k].sum()) for n in range(6) for k in range(3) if valid[n, k]]
    assert per_target(each, valid, "action").tolist() == pytest.approx(wanted, abs=1e-5)
    wanted = [sum(float(each[n, k].sum()) for k in range(3) if valid[n, k]) for n in range(6)]
    assert per_target(each, valid, "chunk").tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("options", [{"decoding": "parallel"}, {"decoding": "one-by-one"}, {"head": "normal"}, {"head": "flow"}])
def test_a_checkpoint_is_the_same_policy(options, tmp_path):
    policy = vla(**options)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    policy.save(tmp_path / "saved")
    for again in (
        VLA(PolicyConfig(model=str(tmp_path / "saved"), kind="vla"), seed=9, dims=3, bins=16, **options),
        VLA(
            PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=2"),
            seed=9,
            source=tmp_path / "saved",
            dims=3,
            bins=16,
            **options,
        ),
    ):
        one, two = (p.act(seen(), SEEDS, CALLS, 1.0) for p in (policy, again))
        assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
    with pytest.raises(UserError, match=r"holds a policy with dims = 3, and the run file says 4: set policy.options.dims = 3"):
        VLA(PolicyConfig(model=str(tmp_path / "saved"), kind="vla"), **{"dims": 4, "bins": 16, **options})


def test_adapters_train_alone_and_are_saved(tmp_path):
    policy = vla(lora=LoraConfig(rank=2), head="normal")
    names = [name for name, _ in policy.parameters()]
    assert all("lora_" in n or n.startswith("own.head") for n in names) and any("lora_" in n for n in names)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.1)
    policy.save(tmp_path / "saved")
    config = PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=2", kind="vla", lora=LoraConfig(rank=2))
    again = VLA(config, seed=1, source=tmp_path / "saved", dims=3, head="normal")
    one, two = (p.act(seen(), SEEDS, CALLS, 1.0).choices for p in (again, policy))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("decoding", ["parallel", "one-by-one"])
def test_adapters_of_the_head_count_and_are_merged_into_a_whole_policy(decoding, tmp_path):
    config = PolicyConfig(model="tiny:openvla:hidden=32,layers=1", kind="vla", lora=LoraConfig(rank=2, target_modules=["head"]))
    policy = VLA(config, seed=1, dims=3, decoding=decoding)
    before = policy.act(seen(), SEEDS, CALLS, 1.0).logprobs_nKC
    with torch.no_grad():
        for name, p in policy.parameters():
            if "lora_B" in name:
                p.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    drawn = policy.act(seen(), SEEDS, CALLS, 1.0)
    assert (drawn.logprobs_nKC - before).abs().max() > 0.01
    policy.logprobs(calls(policy, seen(), drawn.choices, drawn.logprobs_nKC), 1.0)[0].sum().backward()
    assert all(p.grad is not None for name, p in policy.parameters() if "lora_" in name)
    with disable_adapters(policy.model):
        torch.testing.assert_close(policy.act(seen(), SEEDS, CALLS, 1.0).logprobs_nKC, before)

    merge(policy.model)
    policy.lora = None
    policy.save(tmp_path / "whole")
    whole = VLA(PolicyConfig(model=str(tmp_path / "whole"), kind="vla"), dims=3, decoding=decoding)
    found = whole.act(seen(), SEEDS, CALLS, 1.0)
    torch.testing.assert_close((found.choices, found.logprobs_nKC), (drawn.choices, drawn.logprobs_nKC), atol=1e-4, rtol=1e-4)


def test_a_critic_reads_the_hidden_states_before_the_actions():
    for options in ({"decoding": "parallel"}, {"decoding": "one-by-one"}, {"head": "normal"}):
        policy = vla(**options)
        critic = Critic(policy, CriticConfig(hidden_sizes=[4]), 0)
        with torch.no_grad():
            for p in critic.head.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        found = policy.act(seen(), SEEDS, CALLS, 1.0, critic)
        torch.testing.assert_close(policy.values(seen(), SEEDS, CALLS, critic), found.values_nU, atol=2e-5, rtol=1e-4)
        assert found.values_nU.std() > 0


def test_a_clone_has_weights_of_its_own():
    policy = vla(head="normal")
    other = policy.clone(frozen=True)
    before = other.act(seen(), SEEDS, CALLS, 1.0).choices
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.3)
    assert torch.equal(other.act(seen(), SEEDS, CALLS, 1.0).choices, before)
    assert not any(p.requires_grad for _, p in other.parameters())


def test_cropping_and_scaling():
    shown = seen(size=80)
    policy = vla(size=56, crop=0.81)
    pictures = policy.seeing.pictures(shown)
    assert {tuple(p.shape) for [p] in pictures} == {(3, 56, 56)} and pictures[0][0].dtype == torch.uint8
    inner = shown.images["front"][:, 4:76, 4:76]
    from PIL import Image

    wanted = Image.fromarray(inner[0].numpy()).resize((56, 56), Image.Resampling.BICUBIC)
    import numpy as np

    assert np.array_equal(pictures[0][0].permute(1, 2, 0).numpy(), np.asarray(wanted))
    same = vla(crop=0.81).seeing.pictures(shown)
    assert {tuple(p.shape) for [p] in same} == {(3, 80, 80)}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head": "rnn"}, "policy.options.head = 'rnn' must be one of 'tokens', 'normal', 'l1', 'flow'"),
        ({"decoding": "beam"}, "policy.options.decoding = 'beam' must be one of 'parallel', "),
        ({"binning": "log"}, "policy.options.binning = 'log' must be one of 'uniform', "),
        ({"prompt": "go"}, r"policy.options.prompt = 'go' must contain \{instruction\}"),
        ({"crop": 0.0}, "policy.options.crop = 0.0 must be a number from 0.1 to 1"),
        ({"dims": 0}, "policy.options.dims = 0 must be a whole number from 1 to 256"),
        ({"chunk": "two"}, "policy.options.chunk = 'two' must be a whole number"),
        ({"bins": 1000}, "policy.options.bins = 1000: the vocabulary has 512 ids: give fewer bins"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        vla(**options)
