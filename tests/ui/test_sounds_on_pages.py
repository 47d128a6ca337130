"""Sounds on reports, the board and contact sheets: stored once, drawn, played, and left out in a line if they can't be."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import recordings
import runs
from mmrl import Prompt, user_message
from mmrl.api.media.sounds import SoundClip, Waveform
from mmrl.api.media.wav import decode_wav
from mmrl.run_folder.rollouts import store_media, view_medium
from mmrl.train.trackers.tables import _pictures
from mmrl.ui.board.run_paths import MEDIA
from mmrl.ui.report.contact_sheet import prompt_picture
from mmrl.ui.report.media_sources import EmbeddedMedia, LinkedMedia
from mmrl.ui.report.report import write_report
from mmrl.ui.report.sounds import sound_html

PLUGIN = """
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message
from mmrl.api.media.sounds import SoundClip
from pathlib import Path

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="heard/what", target="heard:What", verifiers={"heard/any": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="heard/any", target="heard:any_")]

def any_(case):
    return float(len(case.completion) % 2)

class What(Task):
    def prompts(self, split, seed):
        files = sorted(Path(__file__).parent.glob("*.wav"))
        return [Prompt(id=f.stem, messages=[user_message("What?", SoundClip(path=str(f)))], answer="x") for f in files]
"""


@pytest.fixture
def stored(tmp_path):
    """(folder, name of a stored sound: loud in its first half alone)."""
    samples = np.concatenate([recordings.tone(0.5), np.zeros(8000)]).astype(np.float32)
    (tmp_path / "media").mkdir()
    name, data = view_medium(Waveform(samples_T=samples, rate=16_000), "audio")
    (tmp_path / name).write_bytes(data)
    return tmp_path, name


def test_a_message_keeps_the_path_of_its_sound():
    kept = []
    message = user_message("What?", Waveform(samples_T=np.zeros(800, np.float32), rate=8000))
    found = store_media(message, lambda medium, kind: kept.append((medium, kind)) or "media/a.wav")
    assert found["content"][0] == {"type": "audio", "path": "media/a.wav"} and kept[0][1] == "audio"


def test_equal_sounds_are_one_file(tmp_path):
    (tmp_path / "a.wav").write_bytes(recordings.wav(recordings.tone()[None]))
    (tmp_path / "b.wav").write_bytes(recordings.wav(recordings.tone()[None]))
    names = [view_medium(SoundClip(path=str(tmp_path / n)), "audio")[0] for n in ("a.wav", "b.wav")]
    other, _ = view_medium(SoundClip(path=str(tmp_path / "a.wav"), end_s=0.2), "audio")
    assert names[0] == names[1] != other and MEDIA.fullmatch(f"rollouts/{other}")


def test_a_sound_is_drawn_and_embedded(stored):
    folder, name = stored
    media = EmbeddedMedia(folder, 10**6)
    html = sound_html(media, name, "the <prompt>")
    tall = [float(h) for h in re.findall(r"h1v([\d.]+)h-1z", html)]
    assert len(tall) == 192 and min(tall[:90]) > 35 and max(tall[100:]) == 1.0
    assert '<audio controls preload="none" src="data:audio/wav;base64,' in html and "the &lt;prompt&gt;, 1.0 s" in html
    assert "style=" not in html and media.left < 10**6 - 40_000


def test_a_sound_without_room_is_drawn_alone(stored):
    folder, name = stored
    html = sound_html(EmbeddedMedia(folder, 50_000), name, "prompt")
    assert "<svg" in html and "<audio" not in html and "1.0 s, left out for size" in html


@pytest.mark.parametrize("kind", ["embedded", "linked"])
def test_what_is_no_sound_of_a_run_is_told(stored, kind):
    folder, _ = stored
    media = EmbeddedMedia(folder, 10**6) if kind == "embedded" else LinkedMedia(folder, lambda p: p, lambda p: p)
    (folder / "media" / "bad.wav").write_bytes(b"RIFF")
    (folder / "media" / "large.wav").write_bytes(bytes(2**20 + 1))
    (folder / "media" / "link.wav").symlink_to("/etc/hostname")
    for path in ("media/none.wav", "../x.wav", "/etc/passwd", "media/link.wav"):
        assert "sound is missing" in sound_html(media, path, "x"), path
    assert "not a sound: media/bad.wav" in sound_html(media, "media/bad.wav", "x")
    assert "left out for size" in sound_html(media, "media/large.wav", "x")


def test_the_board_links_to_a_sound(stored):
    folder, name = stored
    html = sound_html(LinkedMedia(folder, lambda path: f"/media?path={path}", lambda path: path), name, "prompt")
    assert f'src="/media?path={name}"' in html and "<svg" in html


def test_the_pages_may_play_sounds_of_their_own_and_no_other():
    from mmrl.ui.board.access import HEADERS
    from mmrl.ui.report.document import document

    assert "media-src 'self';" in HEADERS["content-security-policy"]
    assert "media-src data:;" in document("x", "", "")


def test_a_contact_sheet_shows_a_sound():
    loud = Waveform(samples_T=recordings.tone(0.5).astype(np.float32), rate=16_000)
    picture = np.asarray(prompt_picture(Prompt(id="p", messages=[user_message("What?", loud, loud)])))
    empty = np.asarray(prompt_picture(Prompt(id="p", messages=[user_message("What?")])))
    assert (picture != empty).any(-1).mean() > 0.4


def test_tables_of_trackers_show_no_sound_as_a_picture(tmp_path):
    row = {"messages": [{"content": [{"type": "audio", "path": "media/a.wav"}, {"type": "image", "path": "media/b.png"}]}]}
    assert [p.name for p in _pictures(row, tmp_path)] == ["b.png"]


def test_a_run_on_sounds_leaves_a_broken_one_out_and_reports_the_others(tmp_path, monkeypatch):
    for n in range(6):
        (tmp_path / f"{n}.wav").write_bytes(recordings.wav(recordings.tone(0.3, hertz=300 + 100 * n)[None]))
    (tmp_path / "5.wav").write_bytes((tmp_path / "5.wav").read_bytes()[:-100])
    (tmp_path / "heard.py").write_text(PLUGIN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "heard.py"))
    config = runs.toy_config(
        tmp_path / "runs",
        tasks=[{"id": "heard/what"}],
        policy={"model": "tiny:qwen2_audio:hidden=32,layers=1"},
        stages=[{"kind": "rl", "steps": 2, "prompts_per_step": 3, "group_size": 4, "learning_rate": 1e-3}],
        evaluate={"num_prompts": 0},
        record={"rollouts_every": 1, "rollouts": 99, "trackers": []},
    )
    folder = runs.run(config)
    errors = [json.loads(line) for line in (folder.path / "errors.jsonl").read_text().splitlines()]
    assert [e["what"].count("5.wav was cut off") for e in errors] == [1]
    rows = [r for f in sorted((folder.path / "rollouts").glob("*.jsonl")) for r in map(json.loads, f.read_text().splitlines())]
    files = {part["path"] for r in rows for m in r["messages"] for part in m["content"] if part["type"] == "audio"}
    assert files and all(decode_wav((folder.path / "rollouts" / f).read_bytes()).duration_s == 0.3 for f in files)
    page = write_report(folder.path).read_text()
    assert page.count("<audio controls") >= 2 and "sound is missing" not in page
