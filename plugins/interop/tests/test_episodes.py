"""Tasks with environments, exported as rows whose episodes verl and ms-swift play."""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from mmrl_interop import scoring, stored_episodes, swift_env
from mmrl_interop.export import EPISODES
from mmrl_interop.swift_env import EpisodeEnv

from mmrl import UserError
from mmrl.ui.cli import main

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test begins without means of earlier scores."""
    monkeypatch.setattr(swift_env, "STAND_INS", scoring.StandIns())
    yield
    scoring.close()
    stored_episodes.close()


def exported(file, to, task="peers/quiz", *more):
    done = CliRunner().invoke(main, ["export", task, str(file), "--to", to, *more])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[1] == f"its run needs: {EPISODES[to]}"
    return parquet.read_table(file).to_pylist()


def played(row, turns, **config):
    """[(what follows, reward, done, info)] of the turns of an episode, as ms-swift's scheduler plays it."""

    async def play():
        env = EpisodeEnv(row["env_config"] | config)
        assert await env.reset(SimpleNamespace(messages=row["messages"])) == ("Guess a number.", {}, "")
        try:
            return [await env.step([*row["messages"], {"role": "assistant", "content": turn}]) for turn in turns]
        finally:
            await env.close()

    return asyncio.run(play())


def test_rewards_in_swift_sum_up_to_the_score(tmp_path):
    row = exported(tmp_path / "a.parquet", "swift")[3]
    assert row["env_config"]["name"] == "mmrl"
    wrong, right = played(row, ["4", "3"])
    assert wrong == ("No. Guess again.", 0.0, False, {})
    assert right[:3] == ("", 2.25, True) and right[3]["missing"] == 0.0, "2 by the verifier, 0.25 by the environment"
    assert [step[1:3] for step in played(row, ["0", "1"], max_turns=2)] == [(0.0, False), (0.0, True)]


def test_an_episode_that_is_lost_in_swift_gets_the_mean_of_its_group(tmp_path):
    rows = exported(tmp_path / "a.parquet", "swift")
    assert played(rows[3], ["3"])[0][1] == 2.25 and played(rows[3], ["0"], max_turns=1)[0][1] == 0.0
    [lost] = played(rows[3], ["die"])
    assert lost[1:3] == (1.125, True) and lost[3]["missing"] == 1.0 and "the page is gone" in lost[3]["detail"]
    [lost] = played(rows[9], ["9"])
    assert lost[1:3] == (1.125, True) and "no more pages" in lost[3]["detail"], "its environment never began: the task's mean"


def test_what_swift_can_not_show_is_one_line(tmp_path):
    row = exported(tmp_path / "a.parquet", "swift", "peers/guess")[3]
    with pytest.raises(UserError, match=r"the environment shows a part 'image', which ms-swift's gym environments can't take"):
        played(row, ["4"])
    for roles in (["user", "assistant", "user"], ["system"]):
        with pytest.raises(UserError, match="can't begin an episode in ms-swift"):
            swift_env.prompt_texts([{"role": role, "content": ""} for role in roles])
    with pytest.raises(UserError, match=r"no env_config\.mmrl: write it with mmrl export TASK --to swift"):
        EpisodeEnv({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "a row has no place of an mmrl episode"),
        ("[1]", "a row has no place of an mmrl episode"),
        ("[" * 100_000, "a row has no place of an mmrl episode"),
        ({"index": "3"}, "a row has no place of an mmrl episode"),
        ({"index": 10}, "task 'peers/quiz' has no prompt 10 of split 'train': export its rows again"),
        ({"index": -1}, "task 'peers/quiz' has no prompt -1 of split 'train'"),
        ({"split": "dev"}, "task 'peers/quiz' has no split 'dev'"),
        ({"task": "peers/none"}, "no task 'peers/none'"),
        ({"options": {"size": 3}}, "size"),
        ({"settings": {"frame": "cm"}}, "frame = 'cm' is unknown"),
    ],
)
def test_a_place_that_is_none_is_one_line(change, message):
    place = stored_episodes.place("peers/quiz", None, {}, "train", 0, 3)
    place = json.dumps(json.loads(place) | change) if isinstance(change, dict) else change
    with pytest.raises(UserError, match=message) as raised:
        stored_episodes.begin(place, 8)
    assert "\n" not in str(raised.value)


def test_options_that_are_no_plain_data_can_not_be_a_place():
    with pytest.raises(UserError, match="its options can't be written into a row"):
        stored_episodes.place("peers/quiz", {"a": object()}, {}, "train", 0, 0)


# -- by the peers' own code ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_verl_s_agent_loop_worker_plays_and_scores(tmp_path, folder, by_peer):
    exported(tmp_path / "a.parquet", "verl", "peers/guess", "--model", str(folder))
    loops = subprocess.run([sys.executable, "-m", "mmrl_interop.verl"], capture_output=True, text=True, check=True)
    turns = [[3, ["3"]], [3, ["4", "5", "3"]], [3, ["1"] * 9], [3, ["4", "die"]], [9, []]]
    found = by_peer("verl", "verl_episodes.py", tmp_path / "a.parquet", folder, loops.stdout.strip(), told=turns)
    assert [row["reward"] for row in found] == [2.25, 2.25, 0.0, 1.5, 1.5], "the lost ones get the mean of the others"
    assert [row["missing"] for row in found] == [0.0, 0.0, 0.0, 1.0, 1.0] and not any(row["elsewhere"] for row in found)
    reply = "\n<|im_start|>user\n<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>No. Guess again.<|im_end|>\n"
    assert found[1]["text"] == f"<|im_end|>{reply}<|im_start|>assistant\n".join("453") + "<|im_end|>"
    assert found[1]["sampled"] == "4<|im_end|>5<|im_end|>3<|im_end|>" and found[1]["logprobs"] == [-0.5] * 6
    assert found[1]["image_tokens"] == [12, 12], "those in the text, and those of the pictures that the model gets"
    assert found[1]["asked"] == [[22, 0, 96], [56, 1, 62], [90, 2, 28]], "tokens, pictures, and what is left of the response"
    assert [row["turns"] for row in found] == [2, 6, 6, 4, 1] and len(found[2]["asked"]) == 3, "the fourth has no room"
    assert found[4]["text"] == "<|im_end|>" and found[4]["sampled"] == "", "its environment never began: nothing is trained"


@pytest.mark.slow
def test_swift_s_scheduler_plays_and_scores(tmp_path, by_peer):
    exported(tmp_path / "a.parquet", "swift")
    external = subprocess.run([sys.executable, "-m", "mmrl_interop.swift"], capture_output=True, text=True, check=True)
    turns = [[3, ["3"]], [3, ["4", "3"]], [3, ["die"]]]
    found = by_peer("swift", "swift_episodes.py", tmp_path / "a.parquet", external.stdout.strip(), told=turns)
    assert [row["total_reward"] for row in found] == [2.25, 2.25, 2.25], "the lost one gets the mean of its group"
    assert [message["content"] for message in found[1]["messages"]] == ["Guess a number.", "4", "No. Guess again.", "3"]
    assert [row["gym_done"] for row in found] == [True] * 3
