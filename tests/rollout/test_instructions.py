"""Instructions that change within an episode: what a policy is told, when its chunk is dropped, and what an update reads."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmrl_robotics.small import Small

from mmrl.api.episodes import SAID
from mmrl.api.errors import PluginError
from mmrl.api.simulators.layout import states_of_calls
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.policies.act.model import ACT
from mmrl.policies.acting.vla import VLA
from mmrl.policies.batches import Credit
from mmrl.policies.diffusion.model import Diffusion
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.demonstrations import observation_at, task_demonstration, to_trajectory
from mmrl.rollout.simulators.experts import _shown
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.run_folder.episodes import episode_row
from mmrl.train.update.experience import Experience, lived
from mmrl.train.update.pack_trajectories import pack_trajectories
from mmrl.train.update.packer import PackOptions
from mmrl.train.update.scenes import Scenes, observations

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
FIRST, THEN = "turn to the mark", "stay there"


def change(patch):
    """The plugin `dial`, whose instruction changes after 2 steps, or 3 of odd seeds, and whose inactive rows are rubbish."""
    patch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([DIAL]))
    plugins.registry()
    from dial_simulator import Dial

    observe, step = Dial.observe, Dial.step

    def asked(self, ids):
        texts = [FIRST if self.state["steps"][i] < 2 + self.state["seed"][i] % 2 else THEN for i in ids.tolist()]
        return replace(observe(self, ids), instructions=texts)

    def stepped(self, actions_NA, active_N):
        found = step(self, actions_NA, active_N)
        seen = found.observation
        state = torch.where(active_N[:, None], seen.state, 7.0)
        texts = [text if active else "rubbish" for text, active in zip(seen.instructions, active_N.tolist(), strict=True)]
        return replace(found, observation=replace(seen, state=state, instructions=texts))

    patch.setattr(Dial, "observe", asked)
    patch.setattr(Dial, "step", stepped)


class Listening(Small):
    """Notes what it is told."""

    reads_text = True

    heard: frozenset[str] = frozenset()

    def act(self, seen, *args, **kwargs):
        self.heard |= set(seen.instructions)
        return super().act(seen, *args, **kwargs)


@pytest.fixture(scope="module")
def played():
    """(the policy, four episodes that end at their limit of 6 steps), in chunks of 4 and two at a time."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        config = PolicyConfig(model="mlp", kind="robotics/small")
        policy = Listening(config, dims=2, state=2, hidden=[8], chunk=4, seed=3)
        task = plugins.registry().make_task("dial/turn", {"never": True})
        prompts = [replace(p, task="dial/turn", meta={SAID: "now"}) for p in task.prompts("train", 0)[:4]]
        collector = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=2))
        found = collector.collect(prompts, collector.encode(prompts), 1, SamplingParams(max_tokens=1, temperature=1.0, seed=5))
        collector.close()
    return policy, found


def test_a_chunk_ends_where_the_instruction_changes(played):
    policy, found = played
    whole = [r for r in found if int(r.data.valid_TK.sum()) == 6]
    assert whole, "no episode came to its limit"
    for rollout in found:
        track, first = rollout.data, 2 + rollout.prompt.seed % 2
        steps = track.valid_TK.sum(1).tolist()
        assert steps[0] == min(first, sum(steps)) and (sum(steps) <= first or steps[1] == min(4, sum(steps) - first))
        assert not (track.state == 7.0).any(), "an environment that waits keeps what was seen"
        assert not track.rewards_TK[~track.valid_TK].any()
    assert policy.heard >= {f"{FIRST} now", f"{THEN} now"} and "rubbish now" not in policy.heard


def test_what_was_seen_earlier_does_not_depend_on_who_plays_beside(monkeypatch):
    """While the rest of its chunk is dropped, an environment's history stays."""
    change(monkeypatch)
    options = {"dims": 2, "state": 2, "chunk": 4, "steps": 2}
    config = PolicyConfig(model="tiny:diffusion:width=8,horizon=8,moments=2,times=2,pictures=0", kind="diffusion")
    policy = Diffusion(config, **options)
    task = plugins.registry().make_task("dial/turn", {"never": True})
    prompts = [replace(p, task="dial/turn") for p in task.prompts("train", 0)[:4]]
    seen = []
    for num_envs in (1, 2):
        collector = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=num_envs))
        found = collector.collect(prompts, collector.encode(prompts), 1, SamplingParams(max_tokens=1, temperature=1.0, seed=5))
        collector.close()
        seen.append([rollout.data for rollout in found])
    assert any(len(track.choices) > 1 for track in seen[0])
    for alone, beside in zip(*seen, strict=True):
        torch.testing.assert_close(beside.choices, alone.choices, atol=1e-5, rtol=0)


def test_an_update_reads_what_the_policy_was_told(played):
    _, found = played
    whole = next(r for r in found if int(r.data.valid_TK.sum()) == 6)
    track, calls = whole.data, len(whole.data.valid_TK)
    assert track.instruction == f"{FIRST} now" and track.told == track.instructions
    assert list(track.told) == [f"{FIRST} now"] + [f"{THEN} now"] * calls
    credit = Credit(advantages=torch.ones(1), values_NT=None, returns_NT=None)
    (batch,) = pack_trajectories([whole], credit, PackOptions(ratio="chunk"), budget=10)
    assert list(batch.micro[0].observation.instructions) == list(track.told[:-1])
    assert [text for text, _ in states_of_calls(track)] == list(track.told[:-1])
    assert [observation_at(track, call).told[0] for call in range(calls)] == list(track.told[:-1])
    assert observations(track).instructions == track.told
    again = whole.answering(Prompt(messages=[], meta={SAID: "then"}), None).data
    assert list(again.told) == [f"{FIRST} then"] + [f"{THEN} then"] * calls and again.instruction == f"{FIRST} then"
    row = episode_row(whole, 1.0)
    first = int(track.valid_TK[0].sum()) * track.step_s
    script = f"0.00 s: {FIRST} now\n{first:.2f} s: {THEN} now"
    assert row is not None and row["instruction"] == script
    assert whole.messages[0]["content"] == [{"type": "text", "text": script}], "the pages show it, beside the video"


def test_the_parts_of_an_episode_are_its_calls_by_what_was_asked(played):
    track = played[1][0].data
    asked = replace(track, instructions=("a", "a", "b", "a", "c"), valid_TK=torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]).bool())
    assert asked.stretches == [("a", 0, 2), ("b", 2, 3), ("a", 3, 4)], "no call was made for the last state's"
    assert asked.script == "0.00 s: a\n0.30 s: b\n0.50 s: a"
    plain = replace(asked, instruction="a", instructions=())
    assert plain.stretches == [("a", 0, 4)] and plain.script == "a"


def test_a_chunk_to_imitate_ends_where_the_instruction_changes():
    """As one that is played. Behind that its last action is repeated, as at the end of an episode."""
    config = PolicyConfig(model="mlp", kind="robotics/small")
    policy = Listening(config, dims=1, state=2, hidden=[8], chunk=3, seed=3)
    track = TrajectoryData(
        instruction="a",
        instructions=("a", "a", "b", "b", "b", "b"),
        images={},
        state=torch.zeros(6, 2),
        choices=torch.arange(5).view(5, 1, 1) / 10,
        logprobs_TKC=torch.full((5, 1, 1), torch.nan),
        valid_TK=torch.ones(5, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(5, 1),
    )
    found = policy.chunked(track)
    assert (10 * found.choices).round().view(5, 3).tolist() == [[0, 1, 1], [1, 1, 1], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert found.valid_TK.sum(1).tolist() == [2, 1, 3, 2, 1]
    act = ACT(PolicyConfig(model="tiny:act:width=16,chunk=4,latent=0,pictures=0", kind="act"), dims=1, state=2)
    real = act.chunked(track).choices[..., -1]
    assert real.sum(1).tolist() == [min(act.ahead, n) for n in (2, 1, 3, 2, 1)]


def test_a_demonstration_keeps_the_instruction_of_each_moment(played):
    policy, found = played
    track = next(r for r in found if int(r.data.valid_TK.sum()) == 6).data
    shown = _shown(track)
    assert shown.instruction == f"{FIRST} now" and shown.instructions == track.told[:-1]
    again = to_trajectory(shown, Prompt(messages=[], task="dial"), policy)
    assert list(again.told) == [*shown.instructions, shown.instructions[-1]]
    wrong = replace(shown, instructions=shown.instructions[:1])
    with pytest.raises(PluginError, match="instructions must be 2 texts, of which the first is its instruction"):
        task_demonstration(SimpleNamespace(demonstration=lambda prompt: wrong), Prompt(messages=[], task="dial"))


def test_memories_keep_what_was_told(played, tmp_path):
    _, found = played
    tracks = [r.data for r in found]
    scenes, loaded = Scenes(100), Scenes(100)
    for track in tracks:
        scenes.add(track)
    scenes.save(tmp_path / "scenes")
    loaded.load(tmp_path / "scenes")
    every = range(len(scenes))
    texts = [text for track in tracks for text in track.told]
    assert list(scenes.shown(every).instructions) == list(loaded.shown(every).instructions) == texts
    experience, again = Experience(100), Experience(100)
    for track in tracks:
        experience.add(lived(track, torch.zeros(len(track.valid_TK) + 1, 3), task="dial", longest=6, success=False))
    experience.save(tmp_path / "experience")
    again.load(tmp_path / "experience")
    wanted = [text for track in tracks for text in track.told[:-1]]
    assert [episode.told(call) for episode, call in again.calls()] == wanted


def test_room_is_made_for_the_longest_instruction(played):
    _, found = played
    track = next(r.data for r in found if r.data.instructions)
    seeing = SimpleNamespace(sizes=lambda track: (), prompt=lambda text, sizes: SimpleNamespace(ids=range(len(text))))
    policy = SimpleNamespace(seeing=seeing, slot_ids=[0, 0])
    longer = replace(track, instructions=(track.instruction, "a" * 50, "a"))
    assert VLA.tokens_per_call(policy, [longer]) == 52


def test_an_instruction_that_stays_is_said_once(played):
    _, found = played
    track = replace(found[0].data, instructions=())
    assert list(track.told) == [track.instruction] * (len(track.valid_TK) + 1)
    assert track.retold(str.upper).instruction == track.instruction.upper() and not track.retold(str.upper).instructions
