"""Sounds: what is heard of a file, at which rate, within which bounds, and what is said of those that can't be heard."""

from __future__ import annotations

import math
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recordings
from mmrl import Prompt, user_message
from mmrl.api.errors import UserError
from mmrl.api.media import hearing, sound_files
from mmrl.api.media.hearing import Count, clear_cache, heard, resampled
from mmrl.api.media.sounds import SoundClip, Waveform, as_sound, silence
from mmrl.api.media.spectrogram import sound_picture
from mmrl.api.media.wav import decode_wav, encode_wav
from mmrl.api.tasks.perturb import blanked
from mmrl.testing.sample import prompt_hash


@pytest.fixture(autouse=True)
def empty_cache():
    clear_cache()


def wave(samples, rate=16_000):
    return Waveform(samples_T=np.asarray(samples, np.float32), rate=rate)


@pytest.mark.parametrize(
    ("bits", "kind", "error"), [(8, 1, 1 / 100), (16, 1, 2e-4), (24, 1, 1e-6), (32, 1, 1e-7), (32, 3, 1e-7), (64, 3, 1e-7)]
)
def test_every_form_of_wav_gives_its_samples(tmp_path, bits, kind, error):
    left, right = recordings.tone(0.1), recordings.tone(0.1, hertz=700)
    (path := tmp_path / "a.wav").write_bytes(recordings.wav(np.stack([left, right]), bits=bits, kind=kind))
    assert np.abs(heard(SoundClip(path=str(path), channel=1)).samples_T - right).max() < error
    mean = heard(str(path))
    assert np.abs(mean.samples_T - (left + right) / 2).max() < error and mean.rate == 16_000
    assert mean.samples_T.dtype == np.float32 and not mean.samples_T.flags.writeable


def test_chunks_before_the_samples_and_an_extended_form_are_read(tmp_path):
    """A chunk of an odd length is followed by a byte that doesn't count."""
    samples = np.round(recordings.tone(0.05) * 32767).astype("<i2")
    guid = (22).to_bytes(2, "little") + (16).to_bytes(2, "little") + bytes(4) + (1).to_bytes(2, "little") + bytes(14)
    head = recordings.header(0xFFFE, 1, 8000, 16, samples.nbytes, extra=guid, before=b"LIST\x03\0\0\0abc\0")
    (path := tmp_path / "a.wav").write_bytes(head + samples.tobytes())
    found = heard(str(path))
    assert found.rate == 8000 and np.array_equal(found.samples_T, (samples / 32768).astype(np.float32))


@pytest.mark.parametrize("length", [0, 2**32 - 1])
def test_a_file_whose_header_was_written_before_its_end_is_read_to_the_end(tmp_path, length):
    samples = np.arange(1, 101, dtype="<i2")
    (path := tmp_path / "a.wav").write_bytes(recordings.header(1, 1, 16_000, 16, length) + samples.tobytes())
    assert np.array_equal(heard(str(path)).samples_T * 32768, samples)


@pytest.mark.parametrize(("suffix", "codec", "error"), [("flac", "flac", 1e-4), ("mp3", "mp3", 0.1)])
def test_other_files_are_decoded(tmp_path, suffix, codec, error):
    samples = recordings.tone(0.6)
    path = recordings.encoded(tmp_path / f"a.{suffix}", samples, codec)
    whole, part = heard(str(path)), heard(SoundClip(path=str(path), start_s=0.2, end_s=0.4))
    assert whole.rate == 16_000 and 0 <= len(whole.samples_T) - len(samples) < 2048, "whole frames"
    inside = slice(1600, 8000)  # the ends of a lossy file are softened
    assert np.abs(whole.samples_T[inside] - samples[inside]).max() < error
    assert np.array_equal(part.samples_T, whole.samples_T[3200:6400])


def test_the_sound_of_a_video_is_heard(tmp_path):
    """AAC in MP4, whose encoder puts some samples before the sound."""
    whole = heard(str(recordings.encoded(tmp_path / "a.mp4", recordings.tone(0.6), "aac")))
    loudest = np.abs(np.fft.rfft(whole.samples_T[2000:8400])).argmax() * 16_000 / 6400
    assert whole.rate == 16_000 and 9600 <= len(whole.samples_T) < 9600 + 2048 and abs(loudest - 440) < 5


def test_a_clip_is_the_part_of_its_times(tmp_path):
    samples = np.arange(16_000) / 16_000
    (path := tmp_path / "a.wav").write_bytes(recordings.wav(samples[None]))
    part = heard(SoundClip(path=str(path), start_s=0.25, end_s=0.5))
    assert len(part.samples_T) == 4000 and np.abs(part.samples_T - samples[4000:8000]).max() < 1e-4
    assert len(heard(SoundClip(path=str(path), start_s=0.9)).samples_T) == 1600
    assert len(heard(SoundClip(path=str(path), end_s=1.05)).samples_T) == 16_000, "times of data sets are rounded"
    assert len(heard(str(path), most_s=0.3).samples_T) == 4800
    quiet = heard(silence(SoundClip(path=str(path))))
    assert len(quiet.samples_T) == 16_000 and not quiet.samples_T.any()
    for more, why in (({"start_s": 1.0}, "there is no part from 1 s to its end"), ({"end_s": 2}, "no part from 0 s to 2 s")):
        with pytest.raises(UserError, match=why):
            heard(SoundClip(path=str(path), **more))
    with pytest.raises(UserError, match="has 1 channels: there is no channel 1"):
        heard(SoundClip(path=str(path), channel=1))


def test_an_end_behind_a_decoded_file_is_told_too(tmp_path):
    path = recordings.encoded(tmp_path / "a.flac", recordings.tone(0.5), "flac")
    with pytest.raises(UserError, match=r"a\.flac has 0\.50 s: there is no part from 0 s to 3 s"):
        heard(SoundClip(path=str(path), end_s=3))
    with pytest.raises(UserError, match=r"has 0\.50 s: there is no part from 2 s to its end"):
        heard(SoundClip(path=str(path), start_s=2))


def test_what_can_not_be_heard_is_told_in_one_line(tmp_path):
    for name, (path, why) in recordings.bad(tmp_path).items():
        start = time.thread_time()
        with pytest.raises(UserError, match=why) as told:
            heard(str(path))
        assert f"{name}.wav" in str(told.value) and "\n" not in str(told.value) and len(str(told.value)) < 400, name
        assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    ("sound", "why"),
    [
        ("nothing.wav", "does not exist: check the path"),
        ("/", "is no file"),
        ("https://a.b/c.wav", "is a URL: download it first"),
        ("a" * 5000, "can't be looked up"),
        ("a\0b", "can't be looked up|does not exist"),
        (3, "is no sound: give a path"),
        (Waveform(samples_T=np.zeros(9), rate=16_000), r"its samples are float64 \[9\], not float32 \[T\]"),
        (Waveform(samples_T=np.zeros((2, 9), np.float32), rate=16_000), r"float32 \[2, 9\], not float32 \[T\]"),
        (Waveform(samples_T=[0.0], rate=16_000), "its samples are list, not float32"),
        (wave([]), "has no samples, 0 s"),
        (wave([0.0, math.nan]), "its loudest sample is nan"),
        (wave([0.0, 32767.0]), r"its loudest sample is 3\.277e\+04, and samples are numbers from -1 to 1"),
        (wave([0.0], rate=0), "rate = 0 must be 1,000 to 192,000"),
        (wave([0.0], rate=16_000.0), r"rate = 16000\.0 must be 1,000"),
        (wave(np.zeros(601_000), rate=1000), "is too long, 601 s: cut it to at most 600 s"),
    ],
)
def test_what_is_no_sound_is_told_in_one_line(sound, why):
    with pytest.raises(UserError, match=why) as told:
        heard(sound)
    assert "\n" not in str(told.value) and len(str(told.value)) < 400


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"path": 3}, "path must be a text"),
        ({"start_s": -1}, "give 0 <= start_s < end_s"),
        ({"start_s": 2.0, "end_s": 1.0}, "give 0 <= start_s < end_s"),
        ({"end_s": math.nan}, "give 0 <= start_s < end_s"),
        ({"end_s": "1"}, "end_s = '1' must be a number"),
        ({"channel": 0.5}, "channel = 0.5 must be a whole number"),
        ({"channel": -1}, "channel = -1 must be 0 to 31"),
    ],
)
def test_options_of_a_clip_are_checked(options, why):
    with pytest.raises(UserError, match=why):
        SoundClip(**{"path": "a.wav", **options})


def test_a_part_that_takes_too_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sound_files, "MAX_READ", 4 * 2 * 8000)
    (path := tmp_path / "a.wav").write_bytes(recordings.wav(np.zeros((2, 8001))))
    with pytest.raises(UserError, match="is too much memory, 16,002 samples of all channels: cut it"):
        heard(str(path))
    assert len(heard(str(path), most_s=0.5).samples_T) == 8000
    flac = recordings.encoded(tmp_path / "a.flac", recordings.tone(2.0), "flac")
    with pytest.raises(UserError, match="is too much memory"):
        heard(str(flac))


def slowly_resampled(samples, old, new):
    """By the definition: each new sample is a sum over all old ones, in seconds and hertz."""
    edge = hearing.ROLLOFF * min(old, new) / 2
    made = []
    for n in range(math.ceil(len(samples) * new / old)):
        total = 0.0
        for k, sample in enumerate(samples):
            crossings = 2 * edge * (k / old - n / new)
            if abs(crossings) < 6:
                total += float(sample) * np.sinc(crossings) * math.cos(math.pi * crossings / 12) ** 2 * 2 * edge / old
        made.append(total)
    return np.array(made)


@pytest.mark.parametrize(("old", "new"), [(44_100, 16_000), (8000, 16_000), (48_000, 16_000), (16_001, 16_000), (22_050, 1000)])
def test_another_rate_is_that_of_the_definition(old, new):
    samples = np.random.default_rng(0).standard_normal(150).astype(np.float32)
    found = resampled(wave(samples, old), new)
    wanted = slowly_resampled(samples, old, new)
    assert found.rate == new and len(found.samples_T) == len(wanted)
    assert np.abs(found.samples_T - wanted).max() < 2e-6


def test_blocks_of_samples_join_without_a_seam(monkeypatch):
    samples = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    whole = resampled(wave(samples, 44_100), 16_000).samples_T
    monkeypatch.setattr(hearing, "BLOCK", 100)
    assert np.array_equal(resampled(wave(samples, 44_100), 16_000).samples_T, whole)


@settings(max_examples=30, deadline=None)
@given(st.integers(1000, 192_000), st.integers(1000, 192_000), st.integers(1, 500))
def test_a_constant_stays_one_and_the_length_fits(old, new, count):
    made = resampled(wave(np.full(count, 0.5), old), new).samples_T
    assert len(made) == math.ceil(count * new / old)
    middle = made[len(made) // 2]
    reach = 6 / 0.99 * max(old, new) / new  # old samples on either side, if the new rate is lower
    if count > 4 * max(reach, 6 / 0.99 * old / min(old, new)) + 4:
        assert abs(middle - 0.5) < 0.01


def test_a_file_is_decoded_once_and_again_when_it_changes(tmp_path):
    (path := tmp_path / "a.wav").write_bytes(recordings.wav(recordings.tone()[None]))
    before = Count.files
    assert heard(str(path), 8000) is heard(SoundClip(path=str(path)), 8000) and Count.files == before + 1
    path.write_bytes(recordings.wav(recordings.tone(0.3)[None]))
    assert len(heard(str(path), 8000).samples_T) == 2400 and Count.files == before + 2


def test_the_cache_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(hearing, "KEPT_BYTES", 40_000)
    for n in range(5):
        (tmp_path / f"{n}.wav").write_bytes(recordings.wav(recordings.tone()[None]))
        heard(str(tmp_path / f"{n}.wav"))
    assert sum(w.samples_T.nbytes for w in hearing._KEPT.values()) <= 40_000


def test_prompts_hold_sounds_as_other_media(tmp_path):
    (path := tmp_path / "a.wav").write_bytes(recordings.wav(recordings.tone()[None]))
    clip, made = SoundClip(path=str(path), end_s=0.2), wave(recordings.tone(0.1))
    message = user_message("What?", clip, made)
    assert [part["type"] for part in message["content"]] == ["audio", "audio", "text"]
    prompt = Prompt(id="p", messages=[message])
    assert prompt.sounds == (clip, made) and not prompt.images and prompt.without_media().sounds == ()
    assert pickle.loads(pickle.dumps(prompt)).sounds[0] == clip
    (tmp_path / "b.wav").write_bytes(path.read_bytes())
    moved = Prompt(id="p", messages=[user_message("What?", SoundClip(path=str(tmp_path / "b.wav"), end_s=0.2), made)])
    later = Prompt(id="p", messages=[user_message("What?", SoundClip(path=str(path), end_s=0.3), made)])
    assert prompt_hash(prompt) == prompt_hash(moved) != prompt_hash(later), "a file counts by its content, and its part too"
    quiet = blanked(prompt)
    assert all(not heard(sound).samples_T.any() for sound in quiet.sounds)
    assert [heard(s).duration_s for s in quiet.sounds] == [heard(s).duration_s for s in prompt.sounds]
    assert as_sound(path) == SoundClip(path=str(path))


def test_a_file_for_people_has_the_samples_and_is_bounded():
    samples = recordings.tone(1.0, 44_100)
    found = decode_wav(encode_wav(wave(samples, 44_100)))
    assert found.rate == 16_000 and found.duration_s == 1.0
    assert np.abs(found.samples_T - recordings.tone(1.0))[100:-100].max() < 1e-3, "silence follows the ends"
    assert decode_wav(encode_wav(wave(np.zeros(40 * 8000), 8000))).duration_s == 30
    assert decode_wav(encode_wav(wave([2.0, -2.0]))).samples_T.tolist() == [32767 / 32768, -32767 / 32768]
    peaks = decode_wav(encode_wav(wave([0.25, -0.5, 0.5, 0.0]))).peaks(2)
    assert peaks == [pytest.approx((-0.5, 0.25), abs=1e-4), pytest.approx((0.0, 0.5), abs=1e-4)]
    stereo = recordings.wav(np.zeros((2, 10)))
    for data in (b"", b"RIFF", stereo, recordings.wav(np.zeros((1, 10)), rate=44_100), recordings.wav(np.zeros((1, 0)))):
        with pytest.raises(UserError, match="is no sound of a run"):
            decode_wav(data)


def test_a_picture_shows_when_and_how_high():
    """A low tone, then a high one: the dark row of the spectrogram rises, and silence has the colour of paper."""
    samples = np.concatenate([recordings.tone(0.5, hertz=200), recordings.tone(0.5, hertz=3000), np.zeros(8000)])
    picture = np.asarray(sound_picture(wave(samples), 300, 200)).astype(int)
    loud = picture[60:].sum(-1)
    low, high = loud[:, 50].argmin(), loud[:, 150].argmin()
    assert picture.shape == (200, 300, 3) and high < low - 30
    assert loud[:, 50].min() < 200 and loud[:, 250].min() > 700
    assert (picture[5, :190] != 255).any() and (picture[5, 210:] == 255).all()
    assert sound_picture(wave([0.1]), 40, 30).size == (40, 30)
