"""Critics of turns: what they learn of walks whose values are known, and what resumes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

import vlm_cases as cases
from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.types import Prompt, Reply, Status, user_message
from mmrl.config.sections import RlStage
from mmrl.policies.batches import ones
from mmrl.policies.turn_states import TurnEyes, TurnStates
from mmrl.rollout.generate.sampling import Completion
from mmrl.rollout.ongoing import OngoingConversation, make_turn
from mmrl.train.update.conversations import Conversations, remembered
from mmrl.train.update.pack_conversations import pack
from mmrl.train.update.turn_critics import KINDS, ReturnCritics, SuccessCritics, TurnCritics

WIDE = 4
GAMMA = 0.9
AT, SAID = {"first": 0, "second": 1, "out": 2}, {"good": 1.0, "bad": -1.0}


def critics(rule: str = "returns", **keys: Any) -> Any:
    how = {"rule": rule, "gamma": GAMMA, "hidden": [32], "learning_rate": 5e-3, "updates": 150, "batch_size": 64} | keys
    stage = RlStage(kind="rl", steps=9, turn_critic=how)  # type: ignore[arg-type]
    weight = torch.nn.Parameter(torch.arange(3.0).bfloat16())  # as most policies are
    eyes = SimpleNamespace(width=WIDE, state=lambda: {"w": weight}, load=lambda x: weight.data.copy_(x["w"]))
    return KINDS[rule](eyes, stage, 5, torch.device("cpu"))  # type: ignore[arg-type]


def state(place: str) -> torch.Tensor:
    found = torch.zeros(WIDE)
    found[AT[place]] = 2.0
    return found


def walk(*answers: str) -> tuple[TurnStates, torch.Tensor]:
    """From the first state a good answer leads to the second, and there to a reward of 1; a bad one ends the walk."""
    said = torch.stack([torch.full((WIDE,), SAID[a]) for a in answers])
    seen = torch.stack([*(state(p) for p in ("first", "second")[: len(answers)]), state("out")])
    paid = torch.zeros(len(answers))
    paid[-1] = float(answers == ("good", "good"))
    return TurnStates(seen_TH=seen, said_TH=said), paid


def walked(owner: TurnCritics, chance: float, count: int, seed: int) -> int:
    """Add walks of a policy whose answers are good by this chance. Returns the number of turns."""
    noise, turns = torch.Generator().manual_seed(seed), 0
    for _ in range(count):
        first, second = (torch.rand(2, generator=noise) < chance).tolist()
        states, paid = walk(*(("good", "good" if second else "bad") if first else ("bad",)))
        owner.add(states, paid, terminated=True)
        turns += len(paid)
    return turns


def test_values_of_answers_and_states_are_those_of_the_newest_policy_though_most_of_the_memory_is_of_another() -> None:
    """The old policy's values are 0.3 and 0.08, the new one's 0.8 and 0.58."""
    owner: ReturnCritics = critics(updates=400)
    walked(owner, 0.3, 150, seed=1)
    newest = walked(owner, 0.8, 60, seed=2)
    owner.learn(newest, 0)
    good = len([1 for reward in owner.memory._kept["rewards"][: len(owner.memory)][-newest:] if reward > 0])
    seconds = sum(owner.memory._kept["seen"][: len(owner.memory)][-newest:, 1] > 0).item()
    at_second = good / seconds  # what these walks were paid on average
    assert 0.7 < at_second < 0.9
    states, _ = walk("good", "good")
    found = owner.answers(states)
    assert found[1].item() == pytest.approx(1.0, abs=0.06) and found[0].item() == pytest.approx(GAMMA * at_second, abs=0.08)
    assert owner.answers(walk("bad")[0])[0].item() == pytest.approx(0.0, abs=0.06)
    assert owner.answers(walk("good", "bad")[0])[1].item() == pytest.approx(0.0, abs=0.06)
    values = owner.values(torch.stack([state("first"), state("second")]))
    first = seconds / (newest - seconds)  # the share of walks that came to the second state
    assert values[1].item() == pytest.approx(at_second, abs=0.08)
    assert values[0].item() == pytest.approx(first * GAMMA * at_second, abs=0.08)


def test_values_of_states_learn_from_new_answers_to_what_is_remembered() -> None:
    """All turns in the memory are of a policy that hardly ever answers well, the newest too; its new answers are all good."""
    owner: ReturnCritics = critics(updates=400)
    newest = walked(owner, 0.3, 150, seed=1)
    anew = []
    for place in ("first", "second"):
        here = torch.stack([state(place), state("out")])  # what follows isn't read
        anew.append(TurnStates(seen_TH=here, said_TH=torch.full((1, WIDE), SAID["good"])))
    owner.learn(newest, 0, anew)
    found = owner.answers(walk("good", "good")[0])
    values = owner.values(torch.stack([state("first"), state("second")]))
    assert found[1].item() == pytest.approx(1.0, abs=0.06)
    assert values[1].item() == pytest.approx(1.0, abs=0.1), "a good answer's, though the memory's are worth 0.3"
    assert values[0].item() == pytest.approx(GAMMA, abs=0.15)


def test_a_walk_that_was_cut_off_is_worth_what_might_have_followed() -> None:
    owner: ReturnCritics = critics(updates=300)
    states, paid = walk("good", "good")
    cut = TurnStates(seen_TH=states.seen_TH[:2], said_TH=states.said_TH[:1])
    for _ in range(8):
        owner.add(states, paid, terminated=True)
        owner.add(cut, torch.zeros(1), terminated=False)
    owner.learn(24, 0)
    assert owner.answers(states)[0].item() == pytest.approx(GAMMA, abs=0.08)
    lost: ReturnCritics = critics(updates=300)
    for _ in range(8):
        lost.add(states, paid, terminated=True)
        lost.add(cut, torch.zeros(1), terminated=True)
    lost.learn(24, 0)
    assert lost.answers(states)[0].item() == pytest.approx(GAMMA / 2, abs=0.08)


def test_the_probability_of_success_is_learned_at_each_turn_and_from_the_prompt_alone() -> None:
    owner: SuccessCritics = critics("success")
    for answers, count in ((("good", "good"), 3), (("good", "bad"), 1), (("bad",), 4)):
        for _ in range(count):
            states, paid = walk(*answers)
            owner.add(states, paid * 0.5, terminated=True)  # anything above 0 is a success
    figures = owner.learn(0, 0)
    assert figures["turn_critic/remembered"] == 12.0
    values = owner.values(torch.stack([state("first"), state("second")]))
    # a state is what comes before a turn, and what comes after the one before: 3 of 8, and 3 of 4
    assert values.tolist() == pytest.approx([3 / 8, 3 / 4], abs=0.06)
    assert owner.chances(state("first")[None]).tolist() == pytest.approx([3 / 8], abs=0.06)
    assert owner.wanted(torch.tensor([0.0, 0.5, 0.0])).tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(UserError, match=r'rule = "success" has no values of answers'):
        owner.answers(walk("bad")[0])


@pytest.mark.parametrize("rule", ["returns", "success"])
def test_critics_that_were_saved_go_on_bit_for_bit(tmp_path: Path, rule: str) -> None:
    owner = critics(rule, updates=3)
    newest = walked(owner, 0.6, 9, seed=3)
    owner.learn(newest, 0)
    owner.save(tmp_path)
    again = critics(rule, updates=3)
    again.eyes.state()["w"].data.zero_()
    again.load(tmp_path)
    assert again.eyes.state()["w"].tolist() == [0.0, 1.0, 2.0]
    for each in (owner, again):
        walked(each, 0.6, 2, seed=4)
        assert each.learn(3, 1)
    for name, module in owner.modules.items():
        for key, x in module.state_dict().items():
            assert torch.equal(again.modules[name].state_dict()[key], x), (name, key)
    with pytest.raises(UserError, match=r"the saved turn critic's .* is .*: set equal keys"):
        critics(rule, hidden=[16]).load(tmp_path)
    with pytest.raises(UserError, match=r"capacity = 10000, and this run 7"):
        critics(rule, capacity=7).load(tmp_path)
    (tmp_path / "turn-critic.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"file of turn critics .* it is torn"):
        critics(rule).load(tmp_path)


def test_a_loss_that_is_not_finite_is_refused() -> None:
    owner = critics(learning_rate=1e20, max_grad_norm=float("inf"))
    newest = walked(owner, 0.6, 9, seed=3)
    with pytest.raises(UserError, match=r"turn critic is not finite: lower stages\.turn_critic\.learning_rate|gradient"):
        owner.learn(newest, 0)


# -- conversations ------------------------------------------------------------------------------------------------------


def test_a_conversation_that_was_saved_is_learned_from_as_before(tmp_path: Path) -> None:
    vlm = cases.policy("qwen2_5_vl", 32)
    rollouts = cases.in_turns(vlm)
    batch = pack(rollouts, ones(rollouts), vlm, shared_prefix=True, budget=10_000, keep_zero=True)
    states = TurnEyes(vlm).of(rollouts, batch)
    memory = Conversations(capacity=100)
    for n, rollout in enumerate(rollouts):
        memory.add(remembered(rollout, states[n], torch.arange(len(states[n].said_TH)) + 0.5))
    memory.save(tmp_path / "c.safetensors")
    again = Conversations(capacity=100)
    again.load(tmp_path / "c.safetensors")
    assert len(again) == len(memory) == 8
    for rollout, kept, mine in zip(rollouts, again.kept, memory.kept, strict=True):
        assert kept.rollout.status is rollout.status and kept.rollout.off_policy
        assert torch.equal(kept.rollout.rewards("token"), mine.rollout.rewards("token"))
        assert kept.rollout.environment_reward == sum(k + 0.5 for k in range(len(kept)))
        assert torch.equal(kept.states.seen_TH, mine.states.seen_TH) and torch.equal(kept.states.said_TH, mine.states.said_TH)
    found = [
        cases.logprobs_and_gradient(
            vlm, pack([e.rollout for e in m.kept], ones(rollouts), vlm, shared_prefix=False, budget=10_000, keep_zero=True)
        )
        for m in (memory, again)
    ]
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    with pytest.raises(UserError, match="capacity = 100, and this run 9"):
        Conversations(capacity=9).load(tmp_path / "c.safetensors")
    few = Conversations(capacity=4)
    for episode in memory.kept:
        few.add(episode)
    assert [len(e) for e in few.kept] == [2, 1, 1], "the oldest go first, as a whole"


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "internvl"])
def test_an_observation_is_remembered_as_it_was_read(tmp_path: Path, family: str) -> None:
    """Pictures before the first and the third answer, and one after it; a copy from a file is the same."""
    vlm = cases.policy(family, 32)
    pictures = [Image.new("RGB", (56, 56), (90 * k, 10, 10)) for k in range(3)]
    prompt = Prompt(id="a", task="t", messages=[user_message("Begin.", pictures[0])])
    inputs = vlm.encode(prompt)
    answer = Completion(token_ids=(120, 121), logprobs=(-1.0, -1.0), finished=True)
    turns = (make_turn(tuple(inputs.ids.tolist()), answer, "", 0),)
    begun = Conversation(prompt=prompt, group=0, turns=turns, status=Status.FINISHED, inputs=inputs)
    going, read = OngoingConversation(begun, None, lambda: None, 0), [inputs]  # type: ignore[arg-type]
    for shown in ((), (pictures[1],), (pictures[2],)):
        assert not going.add_reply(Reply(messages=[user_message("Go on.", *shown)]), vlm)
        read.append(going.inputs)
        going.add_turn(answer, "", 0)
    going.add_reply(Reply(terminated=True), vlm)
    rollout = going.ended()
    states = TurnStates(seen_TH=torch.zeros(5, 2), said_TH=torch.zeros(4, 2))
    memory, again = Conversations(capacity=9), Conversations(capacity=9)
    memory.add(remembered(rollout, states, torch.zeros(4)))
    memory.save(tmp_path / "c.safetensors")
    again.load(tmp_path / "c.safetensors")
    for number, whole in enumerate(read):
        for episode in (memory.kept[0], again.kept[0]):
            found = episode.observation(number)
            assert torch.equal(found.ids, whole.ids)
            assert (found.positions is None and whole.positions is None) or torch.equal(found.positions, whole.positions)
            for mine, other in ((found.media, whole.media), (found.token_types, whole.token_types), (found.clocks, whole.clocks)):
                assert mine.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in mine.items())
