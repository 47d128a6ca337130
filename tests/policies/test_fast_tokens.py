"""FAST: chunks of actions as tokens, against scipy's transform, and what becomes of tokens that say no chunk."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.fft import dct, idct

from mmrl.api.errors import UserError
from mmrl.policies.pi0.fast_tokens import FastTokenizer, load_fast
from mmrl.policies.pi0.tiny_fast import ACTIONS, fast_actions

FAST = fast_actions()
LOWEST = -100


def characters(tokens):
    return [ord(c) + LOWEST for c in FAST.bpe.decode(tokens)]


def tokens_of(*coefficients):
    return FAST.bpe.encode("".join(chr(one - LOWEST) for one in coefficients)).ids


def test_a_constant_is_its_lowest_frequency():
    """Of 4 actions of two numbers: 0.5 sqrt(4) 10 = 10 and -0.25 sqrt(4) 10 = -5, and no other frequency. The numbers of one
    frequency stand next to each other."""
    chunk = np.tile(np.float32([0.5, -0.25]), (4, 1))
    assert characters(FAST.encode(chunk)) == [10, -5, 0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(FAST.decode(FAST.encode(chunk), 4, 2), chunk, atol=1e-12)


def test_pairs_are_merged():
    smooth = np.sin(np.linspace(0, 2, 8))[:, None] * np.float32([1, 0.9, 0.5, -0.3])
    assert len(FAST.encode(smooth)) < 0.8 * smooth.size and max(FAST.encode(smooth)) >= 256
    assert FAST.size == ACTIONS


@pytest.mark.parametrize(("count", "dims"), [(1, 1), (5, 3), (50, 7)])
def test_it_is_the_transform_of_scipy(count, dims):
    chunks = np.random.default_rng(count).uniform(-1.2, 1.2, (20, count, dims)).astype(np.float32)
    for chunk in chunks:
        wanted = np.maximum(np.around(dct(chunk, axis=0, norm="ortho") * 10).flatten() - LOWEST, 0).astype(int) + LOWEST
        assert characters(FAST.encode(chunk)) == wanted.tolist()
        found = FAST.decode(FAST.encode(chunk), count, dims)
        np.testing.assert_allclose(found, idct(wanted.reshape(count, dims) / 10, axis=0, norm="ortho"), atol=1e-12)
        assert np.abs(dct(found - chunk, axis=0, norm="ortho")).max() <= 0.05 + 1e-6, "half a step"


@pytest.mark.parametrize(
    ("tokens", "coefficients"),
    [
        ([], [0, 0, 0, 0]),
        (tokens_of(8, 4), [8, 4, 0, 0]),
        (tokens_of(8, 4, 2, 1, 7, 7), [8, 4, 2, 1]),
        ([*tokens_of(8, 4), ACTIONS, 5000], [8, 4, 0, 0]),
        ([*tokens_of(8, 4), -1], [0, 0, 0, 0]),
        ([FAST.bpe.token_to_id("Ã"), *tokens_of(3)], [0xFFFD + LOWEST, 3, 0, 0]),
    ],
    ids=["none", "too few", "too many", "beyond the last", "below the first", "half a character"],
)
def test_what_says_no_chunk_is_decoded_as_lerobot_does(tokens, coefficients):
    """Two actions of two numbers: the first frequency's numbers, then the second's."""
    (a, b), (c, d) = np.array(coefficients).reshape(2, 2) / 10
    half = np.sqrt(0.5)
    np.testing.assert_allclose(FAST.decode(tokens, 2, 2), np.array([[a + c, b + d], [a - c, b - d]]) * half, rtol=1e-9)


def test_what_is_below_the_lowest_becomes_it():
    assert characters(FAST.encode(np.float32([[-12.0]]))) == [LOWEST]


@pytest.mark.parametrize("value", [6000.0, np.inf, np.nan])
def test_actions_that_are_no_characters_are_refused(value):
    with pytest.raises(UserError, match=r"which FAST can't say: check policy\.options\.statistics$"):
        FAST.encode(np.float32([[value]]))


def test_a_folder_is_the_same_tokenizer(tmp_path):
    FAST.save(tmp_path)
    again, chunk = load_fast(str(tmp_path)), np.random.default_rng(0).uniform(-1, 1, (5, 3))
    assert again.digest == FAST.digest and again.encode(chunk) == FAST.encode(chunk)
    assert FastTokenizer(bpe=FAST.bpe, scale=5.0, lowest=LOWEST).digest != FAST.digest


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "tokenizer.json",
            None,
            r"has no tokenizer\.json of a FAST tokenizer that can be read: set policy\.options\.action_token",
        ),
        ("processor_config.json", None, r"has no processor_config\.json of a FAST tokenizer that can be read: set policy"),
        ("tokenizer.json", "{}", r"is no FAST tokenizer: .*: set policy\.options\.action_tokenizer to a folder or hub name with"),
        ("processor_config.json", json.dumps({"scale": 0}), r"is no FAST tokenizer: scale = 0: set policy\.options"),
        (
            "processor_config.json",
            json.dumps({"min_token": "x"}),
            r"is no FAST tokenizer: invalid literal .*: set policy\.options",
        ),
        ("processor_config.json", "[]", r"is no FAST tokenizer: .*: set policy\.options"),
    ],
)
def test_damaged_files_are_one_line(file, text, message, tmp_path):
    FAST.save(tmp_path)
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=message) as told:
        load_fast(str(tmp_path))
    assert "\n" not in str(told.value) and told.value.key == "policy.model"
