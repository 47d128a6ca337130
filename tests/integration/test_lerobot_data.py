"""Data sets of demonstrations between mmrl and LeRobot itself: each reads what the other writes."""

import json

import pytest
import torch
from mmrl_robotics import record, record_files
from mmrl_robotics.demos import Demos
from safetensors.torch import load_file

from mmrl.api.services import expert_episodes
from peer_pythons import LEROBOT, MISSING, lerobot

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]
COUNT = 4


@pytest.fixture(scope="module")
def shown():
    episodes = expert_episodes("robotics/pick", {"dims": 4, "size": 64, "cameras": ["front", "wrist"]}, COUNT, environments=2)
    found = [demonstration for demonstration, _ in episodes]
    episodes.close()
    return found


@pytest.mark.always
@pytest.mark.parametrize(("video", "most_mb"), [(False, 100), (False, 0), (True, 200), (True, 0)])
def test_lerobot_reads_what_was_recorded(shown, tmp_path, monkeypatch, video, most_mb):
    """With all episodes in one file, and with a file for each."""
    monkeypatch.setattr(record_files.Tables.__init__, "__defaults__", (most_mb,))
    monkeypatch.setattr(record_files.Videos.__init__, "__defaults__", (most_mb,))
    record.write(tmp_path / "demos", shown, fps=5.0, video=video)
    tables, videos = (len(list((tmp_path / "demos").rglob(end))) for end in ("data/**/*.parquet", "*.mp4"))
    assert (tables, videos) == (COUNT if not most_mb else 1, 2 * (COUNT if not most_mb else 1) if video else 0)
    lerobot("lerobot_data", "read", tmp_path / "demos", tmp_path / "read.safetensors")
    found, said = load_file(tmp_path / "read.safetensors"), json.loads((tmp_path / "read.json").read_text())
    actions = torch.cat([d.actions_MA for d in shown])
    assert said["fps"] == 5 and said["tasks"] == [d.instruction for d in shown for _ in d.actions_MA]
    assert [row["length"] for row in said["episodes"]] == [len(d.actions_MA) for d in shown]
    assert torch.equal(found["action"][:, 0], actions) and torch.equal(
        found["observation.state"], torch.cat([d.state for d in shown])
    )
    ahead = torch.cat([torch.cat([d.actions_MA[1:], d.actions_MA[-1:]]) for d in shown])
    assert torch.equal(found["action"][:, 1], ahead) and found["action_is_pad"].sum() == COUNT
    for camera in ("front", "wrist"):
        wanted = torch.cat([d.images[camera] for d in shown]).permute(0, 3, 1, 2) / 255
        apart = (found[f"observation.images.{camera}"] - wanted).abs()
        assert apart.max() < 1e-6 or (video and apart.mean() < 6 / 255), apart.mean()
        assert found[f"stats/observation.images.{camera}/mean"].shape == (3, 1, 1)
    for name, of in (("mean", actions.mean(0)), ("max", actions.amax(0)), ("q50", actions.quantile(0.5, 0))):
        torch.testing.assert_close(found[f"stats/action/{name}"], of)


@pytest.mark.parametrize("video", [False, True])
def test_lerobot_goes_on_with_what_was_recorded(shown, tmp_path, video):
    """It writes its rows, of its types, beside ours, and sums the statistics up; here all are read again."""
    record.write(tmp_path / "demos", shown, fps=5.0, video=video)
    before = json.loads((tmp_path / "demos" / "meta" / "stats.json").read_text())["action"]
    lerobot("lerobot_data", "grow", tmp_path / "demos")
    task = Demos(folder=str(tmp_path / "demos"))
    prompts = task.prompts("demo", 0)
    assert len(prompts) == sum(len(d.actions_MA) for d in shown) + 2
    last = task.demonstration(prompts[-1])
    assert last.instruction == "stand still" and not last.actions_MA.any() and last.images["front"].float().mean() < 6
    again = task.demonstration(prompts[0])
    assert torch.equal(again.actions_MA, shown[0].actions_MA) and again.instruction == shown[0].instruction
    after = json.loads((tmp_path / "demos" / "meta" / "stats.json").read_text())["action"]
    assert after["count"][0] == before["count"][0] + 2 and after["max"] == pytest.approx(before["max"])


@pytest.mark.parametrize("kind", ["images", "video"])
def test_what_lerobot_wrote_is_read(tmp_path, kind):
    lerobot("lerobot_data", "write", tmp_path / "made", kind)
    held = load_file(tmp_path / "made" / "held.safetensors")
    task = Demos(folder=str(tmp_path / "made"))
    prompts = task.prompts("demo", 0)
    assert len(prompts) == len(held["action"]) == 15
    begins = {0: 0, 1: 4, 2: 9}
    for prompt in prompts:
        step, at = task.demonstration(prompt), begins[prompt.meta["episode"]] + prompt.meta["step"]
        assert torch.equal(step.actions_MA[0], held["action"][at]) and torch.equal(step.state[0], held["state"][at])
        assert step.instruction == f"do {prompt.meta['episode'] % 2}"
        apart = (step.images["front"][0].int() - held["pictures"][at].int()).abs().float()
        assert apart.mean() < (8 if kind == "video" else 1e-6), apart.mean()
