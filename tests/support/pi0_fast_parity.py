"""pi0-FAST against LeRobot's own class, in both directions: what one saves, the other loads and acts with alike."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.pi0.tiny_fast import fast_actions, fast_words
from peer_pythons import Pairs, lerobot
from pi0_cases import moved
from pi0_fast_cases import calls, pi0_fast
from pi_parity import prepare, shown

CASES = {"means": ("MEAN_STD", "MEAN_STD"), "ranges": ("QUANTILES", "MIN_MAX")}
"""How LeRobot normalises states and actions."""
SIZE = 848
"""Tokens of the words' tokenizer; the action's are 400 to 719, from the last."""


def sequences():
    """Tokens to be understood, int64 [n, 20]: any; of actions alone, broken characters among them; with the words before an
    action, in other places too; with an end; with ids that stand for nothing."""
    draw = torch.Generator().manual_seed(7)
    rows = torch.randint(400, 720, (12, 20), generator=draw)
    rows[:2] = torch.randint(0, SIZE, (2, 20), generator=draw)
    words = fast_words()
    before, end = words("Action: ", add_special_tokens=False)["input_ids"], words.convert_tokens_to_ids("|")
    rows[3:8, : len(before)] = torch.tensor(before)
    rows[5, 8 : 8 + len(before)] = torch.tensor(before)
    rows[6:9, 11] = end
    rows[9, 0] = end
    rows[10, 4] = SIZE - 1
    rows[11, 3:6] = torch.tensor([5, 77, 399])
    return rows


def demonstrated():
    """float32 [3, 5, 3], in the robot's units."""
    return 2 * torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(8))


def tokenizers(folder, modes):
    prepare(folder, modes, fast_words(), {"sequences": sequences(), "demonstrated": demonstrated()})
    fast_actions().save(folder / "action_tokenizer")


def computed(what, folder):
    lerobot("pi0_fast_of_lerobot", "main", what, folder)
    return load_file(folder / "computed.safetensors")


@torch.no_grad()
def pairs(policy, theirs) -> Pairs:
    rows = policy._rows(shown())
    assert all(row[:-1] == theirs_n[: len(row) - 1] for row, theirs_n in zip(rows, theirs["words"].tolist(), strict=True))
    assert len(set(map(len, rows))) > 1, "there is padding"
    _, choices, *_ = policy.choose(shown(), None, 0.0)  # nothing is drawn
    there = choices >= 0
    ids = choices.clamp_min(0)
    steps = theirs["logits"].shape[1]
    normalised = policy.head.actions_of(choices)
    assert normalised.std(0).max() > 1e-2, "the actions of calls differ"
    logprobs, *_ = policy.scored(calls(policy, shown(), choices), 1.0)
    given = theirs["logits"].log_softmax(-1).gather(-1, ids[:, :steps, None])[..., 0].where(there[:, :steps], 0.0)
    own = policy.in_own_terms(demonstrated(), physical=True)
    said = policy.head.choices_of(own)
    wanted = theirs["demonstrated"][:, 1:][:, : policy.head.room]  # without the BOS token, which is the prompt's here
    ours = {
        "state": (policy.normalised_state(shown(), 6), theirs["state"]),
        "tokens": (ids, theirs["tokens"].where(there, 0)),
        "logprobs": (logprobs[:, 0, :steps], given),
        "normalised": (normalised, theirs["normalised"]),
        "actions": (policy.statistics.action.unnormalize(normalised), theirs["actions"]),
        "demonstrations": (said.clamp_min(0), wanted.where(said >= 0, 0)),
        "understood": (policy.head.actions_of(sequences()), theirs["understood"]),
    }
    last = theirs["demonstrated"].gather(1, (said >= 0).sum(1, keepdim=True) + 1)
    assert (last == policy.tokenizer.eos_token_id).all(), "LeRobot's demonstrations go one token further"
    return ours


def both_ways(case: str, folder: Path) -> dict[str, Pairs]:
    """By who saved the checkpoint, and of mmrl's loaded again."""
    modes = CASES[case]
    theirs, back = folder / "theirs", folder / "back"
    tokenizers(theirs, modes)
    first = computed("save", theirs)
    options = {"action_tokens": 0, "chunk": 5}
    policy = pi0_fast(str(theirs), action_tokenizer=str(theirs / "action_tokenizer"), **options)
    found = {"saved by LeRobot": pairs(policy, first)}
    moved(policy)
    policy.save(back)
    tokenizers(back, modes)  # with the tokenizers of these cases
    again = computed("act", back)
    assert (again["logits"] - first["logits"]).abs().max() > 1e-2, "the weights are others"
    found["saved by mmrl"] = pairs(policy, again)
    kept = {name: value for name, value in saved_options(back).items() if name != "kind"}
    return found | {"loaded again": pairs(pi0_fast(str(back), **kept), again)}
