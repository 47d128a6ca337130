"""pi0-FAST: its samples have the log-probabilities that plain passes and updates compute; its words, its demonstrations, its
folders. That LeRobot computes the same is tested in `test_pi0_fast_of_lerobot`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import LoraConfig
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.pi0 import pi0_fast as module
from mmrl.policies.pi0.action_words import NOTHING
from pi0_cases import CALLS, DRAW, SEEDS, moved, seen
from pi0_fast_cases import calls, pi0_fast

BOTH = pytest.mark.parametrize("vocabulary", ["all", "actions"])


def ending(policy):
    """With calls of several lengths: the end is likelier."""
    with torch.no_grad():
        embeds, real_nP = policy._read(seen())
        said = policy.model.embed(torch.randint(400, 720, (4, 9), generator=torch.Generator().manual_seed(1)))
        behind = policy._hidden(torch.cat([embeds, said], 1), *policy._places(real_nP, policy._given + 9))[:, -9:].mean((0, 1))
        policy.model.lm_head.weight[policy.head.end] = 5.5 * behind / behind.square().sum()
    return policy


def slow_logprobs(policy, shown, row, tokens, temperature):
    """One call, without padding or cache: a pass for each token, whose mask is written out."""
    alone = shown.rows(torch.tensor([row]))
    words = [*policy._rows(alone)[0], *(policy.head.before if policy.head.given else ())]
    embeds = [policy.model.embed_pictures(policy._pictures(alone)), policy.model.embed(torch.tensor([words]))]
    read = embeds[0].shape[1] + len(policy._rows(alone)[0])
    found = []
    for m in range(len(tokens)):
        whole = torch.cat([*embeds, policy.model.embed(torch.tensor([tokens[:m]], dtype=torch.long))], 1)
        size = whole.shape[1]
        sees = torch.tensor([[k < read or (q >= read and k <= q) for k in range(size)] for q in range(size)])
        mask = torch.zeros(1, 1, size, size).masked_fill(~sees, torch.finfo(torch.float32).min)
        hidden = policy.model.model.vlm.language_model(
            inputs_embeds=whole, attention_mask=mask, position_ids=torch.arange(size)[None], use_cache=False
        ).last_hidden_state[0, -1]
        logits = policy.model.lm_head.weight @ hidden / temperature
        if policy.head.given:
            inside = torch.full_like(logits, -torch.inf)
            inside[policy.head.ids] = logits[policy.head.ids]
            logits = inside
        found.append(logits.log_softmax(-1)[tokens[m]])
    return torch.stack(found)


@BOTH
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_sample_has_the_likelihood_of_plain_passes_and_of_an_update(vocabulary, attention):
    policy, shown = ending(moved(pi0_fast(vocabulary=vocabulary, attention=attention, action_tokens=10))), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.8)
    lengths = found.tokens_n.tolist()
    assert len(set(lengths)) > 1 and found.logprobs_nKC.shape == (4, 1, 10)
    with torch.no_grad():
        again, entropy, states = policy.scored(calls(policy, shown, found.choices), 0.8)
        torch.testing.assert_close(again, found.logprobs_nKC, atol=1e-5, rtol=0)
        for n, length in enumerate(lengths):
            tokens = found.choices[n, :length].tolist()
            assert policy.head.end not in tokens[:-1] and (found.choices[n, length:] == NOTHING).all()
            assert length == 10 or tokens[-1] == policy.head.end
            wanted = slow_logprobs(policy, shown, n, tokens, 0.8)
            torch.testing.assert_close(found.logprobs_nKC[n, 0, :length], wanted, atol=1e-5, rtol=0)
            assert (found.logprobs_nKC[n, 0, length:] == 0).all() and (entropy[n, 0, length:] == 0).all()
        torch.testing.assert_close(policy.states_of(shown), states, atol=1e-5, rtol=0)
        alone = policy.act(shown.rows(torch.tensor([2])), SEEDS[2:3], CALLS[2:3], 0.8)
        assert torch.equal(alone.choices[0], found.choices[2]), "a call doesn't depend on the rest of its batch"
    if policy.head.given:
        assert set(found.choices.unique().tolist()) <= {NOTHING, *policy.head.ids}


def test_targets_are_tokens_or_the_chunk():
    policy, shown = ending(moved(pi0_fast(action_tokens=10))), seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    there = found.choices != NOTHING
    tokens = policy.outputs(calls(policy, shown, found.choices), 1.0)
    torch.testing.assert_close(tokens.logprobs_L, found.logprobs_nKC[:, 0][there], atol=1e-5, rtol=0)
    assert tokens.entropy_L.shape == (int(found.tokens_n.sum()),) and not tokens.entropy_L.requires_grad
    chunk = policy.outputs(calls(policy, shown, found.choices, "chunk"), 1.0)
    torch.testing.assert_close(chunk.logprobs_L, found.logprobs_nKC.sum((1, 2)), atol=5e-5, rtol=0)
    chunk.logprobs_L.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.model.parameters() if p.requires_grad)


def test_temperature_0_takes_the_likeliest():
    policy, shown = moved(pi0_fast(action_tokens=3)), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.0)
    assert torch.equal(found.choices, policy.act(shown, SEEDS + 7, CALLS, 0.0).choices)
    logits = next(policy._following(shown))[0]
    assert torch.equal(found.choices[:, 0], logits.argmax(-1))


def test_a_large_vocabulary_is_scored_in_pieces(monkeypatch):
    policy, shown = moved(pi0_fast()), seen()
    batch = calls(policy, shown, policy.act(shown, SEEDS, CALLS, 1.0).choices)
    results = []
    for at_once in (2**25, 848 * 5):
        monkeypatch.setattr(module, "LOGIT_CHUNK", at_once)
        found = policy.outputs(batch, 0.7, entropy_gradient=True)
        (found.logprobs_L.sum() + found.entropy_L.sum()).backward()
        results.append((found.logprobs_L.detach(), found.entropy_L.detach(), policy.model.lm_head.weight.grad.clone()))
        policy.model.zero_grad()
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-4)


@BOTH
def test_guidance(vocabulary):
    policy, shown = moved(pi0_fast(vocabulary=vocabulary, action_tokens=6)), seen()
    plain = replace(shown, instructions=["wait"] * 4)
    free, other = (policy.choose(one, DRAW, 1.0)[1:3] for one in (shown, plain))
    for weight, (choices, logprobs) in ((1.0, free), (0.0, other)):
        guided = policy.choose(shown, DRAW, 1.0, Guidance(plain=plain, weights_n=torch.full((4,), weight)))
        assert torch.equal(guided[1], choices)
        torch.testing.assert_close(guided[2], logprobs, atol=1e-5, rtol=0)
    assert not torch.equal(free[1], other[1])


def test_what_it_reads():
    policy = pi0_fast(prompt="do {instruction}")
    shown = Observation(
        images=seen(1).images, state=torch.tensor([[0.0, -1.0, 1.0, -3.0, 0.999, 0.00785]]), instructions=["pick_up the\ncube "]
    )
    (ids,) = policy._rows(shown)
    assert ids[0] == ids[-1] == policy.tokenizer.bos_token_id
    assert policy.tokenizer.decode(ids[1:-1]) == "Task: do pick up the cube, State: 128 0 255 -1 255 129;\n"
    assert pi0_fast(text_tokens=9)._rows(shown)[0] == [*pi0_fast()._rows(shown)[0][:9], ids[-1]]
    assert policy.tokenizer.decode(pi0_fast(state=0)._rows(shown)[0][1:-1]) == "Task: pick up the cube;\n"


def test_what_is_not_an_action_is_nothing():
    """The words before an action are needed where the checkpoint says so, and left out wherever they stand."""
    policy = pi0_fast()
    head, chunk = policy.head, torch.rand(1, 5, 3) - 0.5
    (row,) = head.choices_of(chunk).tolist()
    assert [policy.tokenizer.decode(list(head.before)), row[len(head.before) + 2 :].count(head.end)] == ["Action: ", 1]
    told = [one for one in row if one != NOTHING]
    wanted = head.actions_of(torch.tensor([told]))
    assert (wanted - chunk).abs().max() < 0.1
    bare, twice = told[len(head.before) :], [*head.before, *told, 500, 501]
    for other in (bare, twice):
        assert torch.equal(head.actions_of(torch.tensor([other])), wanted)
    strict = replace(head, checked=True)
    assert not strict.actions_of(torch.tensor([bare])).any() and torch.equal(strict.actions_of(torch.tensor([told])), wanted)
    assert not head.actions_of(torch.tensor([[*told[:-1], 847]])).any(), "an id that stands for nothing"


def demonstration(count=3):
    images = {name: shown[: count + 1] for name, shown in seen().images.items()}
    return TrajectoryData(
        instruction="push it",
        images=images,
        state=seen().state[: count + 1],
        choices=torch.linspace(-1, 1, count * 3).view(count, 1, 3),
        logprobs_TKC=torch.full((count, 1, 1), torch.nan),
        valid_TK=torch.ones(count, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(count, 1),
    )


@BOTH
def test_a_demonstration_is_said(vocabulary):
    """At each step the five actions that follow, the last one repeated; its loss is the mean over all its tokens."""
    policy, track = pi0_fast(vocabulary=vocabulary), demonstration()
    told = policy.chunked(track)
    assert (
        told.logprobs_TKC.shape == (3, 1, 24) and told.logprobs_TKC.isnan().all() and told.valid_TK.tolist()[-1] == [True, False]
    )
    assert torch.equal(told.tokens_T, (told.choices != NOTHING).sum(1)) and told.length == int(told.tokens_T.sum())
    actions = track.choices[[0, 1, 2, 2, 2], 0]
    assert (policy.head.actions_of(told.choices[:1])[0] - actions).abs().max() < 0.1
    first = () if vocabulary == "actions" else policy.head.before
    assert tuple(told.choices[0, : len(first)].tolist()) == first
    rows = policy._rows(Observation(images={}, state=track.state[:3], instructions=["push it"] * 3))
    given = len(policy.head.before) if vocabulary == "actions" else 0
    assert policy.tokens_per_call([told]) == 32 + max(map(len, rows)) + given + int(told.tokens_T.max())


def test_a_demonstration_that_takes_too_many_tokens_is_refused():
    with pytest.raises(
        UserError, match=r"takes \d+ tokens, and a call has 4: set policy\.options\.action_tokens = \d+, or give"
    ) as e:
        pi0_fast(action_tokens=4).chunked(demonstration())
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_the_same_policy(dtype, tmp_path):
    policy = moved(pi0_fast(dtype=dtype, cameras=["wrist"], vocabulary="actions"))
    policy.save(tmp_path / "saved")
    options = {name: value for name, value in saved_options(tmp_path / "saved").items() if name != "kind"}
    one, saved = policy.act(seen(), SEEDS, CALLS, 1.0), str(tmp_path / "saved")
    for again in (pi0_fast(saved, dtype=dtype, **options), pi0_fast(dtype=dtype, source=tmp_path / "saved", **options)):
        two = again.act(seen(), SEEDS, CALLS, 1.0)
        assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
        assert again.choice_terms() == policy.choice_terms()
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["type"], config["n_action_steps"], config["chunk_size"], config["max_decoding_steps"]) == (
        "pi0_fast",
        5,
        5,
        24,
    )
    steps = json.loads((tmp_path / "saved" / "policy_preprocessor.json").read_text())["steps"]
    assert [step["registry_name"] for step in steps][-4:] == [
        *("pi0_fast_prepare_state_tokenizer_processor_step", "tokenizer_processor"),
        *("action_tokenizer_processor", "device_processor"),
    ]


def test_adapters_are_loaded_again(tmp_path):
    lora = LoraConfig(rank=2, target_modules=["language", "head"])
    policy = moved(pi0_fast(lora=lora))
    assert any("lm_head" in name for name, _ in policy.parameters())
    policy.save(tmp_path)
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    batch = calls(policy, seen(), one.choices)
    with torch.no_grad():
        torch.testing.assert_close(policy.scored(batch, 1.0)[0], one.logprobs_nKC, atol=1e-5, rtol=0)
    again = pi0_fast(lora=lora, source=tmp_path)
    assert torch.equal(one.choices, again.act(seen(), SEEDS, CALLS, 1.0).choices)


def test_an_embedding_that_was_tied_to_the_head_is_read(tmp_path):
    policy = moved(pi0_fast())
    policy.save(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    weights = load_file(file)
    embedding = next(name for name in weights if name.endswith("embed_tokens.weight"))
    head = next(name for name in weights if name.endswith("lm_head.weight"))
    assert not torch.equal(weights[embedding], weights[head])
    save_file({name: weight for name, weight in weights.items() if name != embedding}, file, metadata={"format": "pt"})
    again = pi0_fast(str(tmp_path / "saved"))
    assert torch.equal(again.model.model.vlm.get_input_embeddings().weight, weights[head])
    save_file({name: weight for name, weight in weights.items() if name != head}, file, metadata={"format": "pt"})
    with pytest.raises(
        UserError, match=r"lacks 1 of pi0_fast's weights, such as lm_head\.weight: give a folder or hub name of a pi0_"
    ):
        pi0_fast(str(tmp_path / "saved"))


def broken(folder, file, change):
    place = folder / file
    place.write_text(json.dumps(change(json.loads(place.read_text()))))


def normalised(table):
    for step in table["steps"]:
        if step["registry_name"] == "unnormalizer_processor":
            step["config"]["norm_map"]["ACTION"] = "QUANTILES"
    return table


def added(table):
    return {**table, "steps": [*table["steps"], {"registry_name": "delta", "config": {}}]}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda f: None,
            {"tokenizer": "/nowhere"},
            r"no tokenizer in '/nowhere': set policy\.options\.tokenizer to that of PaliGemma",
        ),
        (
            lambda f: (f / "action_tokenizer" / "tokenizer.json").unlink(),
            {},
            r"has no tokenizer\.json of a FAST tokenizer that can",
        ),
        (
            lambda f: None,
            {"action_tokenizer": "/nowhere"},
            r"'/nowhere' has no tokenizer\.json of a FAST tokenizer that can be read",
        ),
        (
            lambda f: broken(f, "policy_postprocessor.json", normalised),
            {},
            r"its action is normalised by QUANTILES, and its processors lack action\.q01 and action\.q99: they have no stat",
        ),
        (lambda f: broken(f, "policy_preprocessor.json", added), {}, r"has the step 'delta', which mmrl doesn't compute$"),
        (
            lambda f: broken(f, "config.json", lambda t: {**t, "use_relative_actions": True}),
            {},
            r"its actions are relative to the s",
        ),
        (lambda f: broken(f, "config.json", lambda t: {**t, "type": "pi05"}), {}, r"is a pi05, not a pi0_fast: give a folder"),
        (
            lambda f: broken(f, "config.json", lambda t: {**t, "fast_skip_tokens": 500}),
            {},
            r"has 848 tokens, and no room at their end for the 320 of the FAST tokenizer: set policy\.options\.tokenizer and act",
        ),
        (lambda f: None, {"chunk": 6}, r"policy\.options\.chunk = 6 is too many for this pi0_fast: 5 actions are predicted"),
        (
            lambda f: None,
            {"dims": 33},
            r"policy\.options\.dims = 33 is too many for this pi0_fast: 32 numbers an action has at most",
        ),
        (lambda f: None, {"vocabulary": "words"}, r"policy\.options\.vocabulary = 'words' must be one of 'all', 'actions'$"),
        (lambda f: None, {"action_tokens": -1}, r"policy\.options\.action_tokens = -1 must be a whole number from 0 to 4096$"),
        (lambda f: None, {"statistics": {"action": 3}}, r"policy\.options\.statistics is not a table that a policy saved"),
    ],
)
def test_what_can_not_be_used_is_one_line(change, options, message, tmp_path):
    pi0_fast().save(tmp_path / "saved")
    for name in ("acting.json", "acting.safetensors"):  # as LeRobot saves it
        (tmp_path / "saved" / name).unlink(missing_ok=True)
    change(tmp_path / "saved")
    with pytest.raises(UserError, match=message) as told:
        pi0_fast(str(tmp_path / "saved"), **options)
    assert "\n" not in str(told.value)
