"""What less of an image changes: the divergence of PAPO and the credit of VPPO, and how images are masked and made noisy."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.perception import visual_divergence, visually_perceptive
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Conversation
from mmrl.api.tasks.perturb import _signal_share, masked, noisy
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.config.sections import NoisyConfig, RlStage
from mmrl.train.sampling.noisy import noise_level

GOLDEN = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "perception.jsonl").read_text().splitlines()]


def of(kind):
    return [row for row in GOLDEN if row["of"] == kind]


@pytest.mark.parametrize("row", of("papo"))
def test_the_divergence_and_its_gradient_are_those_of_papos_code(row):
    seen = torch.tensor(row["seen"], requires_grad=True)
    found = visual_divergence(seen, torch.tensor(row["masked"]))
    found.sum().backward()
    torch.testing.assert_close(found, torch.tensor(row["kl"]))
    torch.testing.assert_close(seen.grad, torch.tensor(row["slope"]))


def test_what_is_maximised_ends_and_no_log_ratio_overflows():
    seen = torch.tensor([-200.0, -0.1, -3.0], requires_grad=True)
    found = visual_divergence(seen, torch.tensor([-0.1, -200.0, -3.0]))
    found.sum().backward()
    assert found.tolist() == [10.0, 10.0, 0.0] and seen.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("row", of("vppo"))
def test_the_credit_of_tokens_is_that_of_vppos_code(row):
    """Its advantages are one reward each for a group of two, whose credit is that of `group_relative`."""
    wanted = torch.tensor(row["advantages"], dtype=torch.float64)
    n, lengths_N = len(wanted), torch.tensor(row["lengths"])
    mask_NT = torch.arange(9)[None] < lengths_N[:, None]
    perception_NT = visual_divergence(torch.tensor(row["old"]), torch.tensor(row["masked"])).where(mask_NT, 0.0)
    rewards_N, groups_N = wanted.abs(), torch.zeros(n, dtype=torch.long)
    plain_N = group_relative(rewards_N, groups_N)
    found = visually_perceptive(rewards_N, groups_N, perception_NT, mask_NT, share=row["share"], least=row["least"])
    expected = torch.tensor(row["credit"]) / wanted[:, None] * plain_N[:, None]
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-6)


def slow(rewards, groups, perception, lengths, share, least):
    """`visually_perceptive`, token by token."""
    plain = group_relative(torch.tensor(rewards), torch.tensor(groups)).tolist()
    known = [n for n, a in enumerate(plain) if not math.isnan(a) and lengths[n]]
    means = {n: sum(perception[n][: lengths[n]]) / lengths[n] for n in known}
    low, high = min(means.values(), default=0), max(means.values(), default=0)
    heights = {n: (m - low) / (high - low) if high > low else None for n, m in means.items()}
    rows = []
    for n, credit in enumerate(plain):
        kept = sorted(range(lengths[n]), key=lambda t: (-perception[n][t], t))[: max(1, math.ceil(share * lengths[n]))]
        factor = 1.0
        if n in heights and high > low:
            top = least + (1 - least) / (sum(heights.values()) / len(heights))
            factor = least + heights[n] * (top - least)
        rows.append([credit if math.isnan(credit) else credit * factor * (t in kept) for t in range(len(perception[n]))])
    return torch.tensor(rows)


@pytest.mark.parametrize("share", [0.01, 0.4, 1.0])
def test_the_credit_of_tokens_token_by_token(share):
    chance = np.random.default_rng(0)
    rewards, groups = [1.0, 0.0, math.nan, 1.0, 0.0, 0.5, 1.0, 1.0], [0, 0, 0, 1, 1, 1, 2, 2]
    lengths = [4, 1, 3, 6, 0, 2, 5, 6]
    perception = chance.integers(0, 4, (8, 6)).astype(float)  # with ties
    for n, length in enumerate(lengths):
        perception[n, length:] = 0.0
    mask_NT = torch.arange(6)[None] < torch.tensor(lengths)[:, None]
    given = torch.tensor(rewards), torch.tensor(groups), torch.tensor(perception), mask_NT
    found = visually_perceptive(*given, share=share, least=0.7)
    torch.testing.assert_close(found, slow(rewards, groups, perception.tolist(), lengths, share, 0.7), equal_nan=True)


def test_where_every_completion_looks_alike_no_credit_is_scaled():
    rewards_N, groups_N, mask_NT = torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.ones(2, 3, dtype=torch.bool)
    found = visually_perceptive(rewards_N, groups_N, torch.zeros(2, 3), mask_NT, share=0.4)
    plain_N = group_relative(rewards_N, groups_N)
    assert torch.equal(found, plain_N[:, None] * torch.tensor([1.0, 1.0, 0.0])), "two of three tokens, the earlier ones"


def test_the_signal_asks_for_both_at_once_and_is_0_after_the_end():
    turns = [Turn(observed_ids=(1,), token_ids=(9,) * size, logprobs=(-1.0,) * size, text="") for size in (2, 3)]
    rollouts = [Conversation(prompt=Prompt(messages=[]), group=0, turns=(t,), status=Status.FINISHED) for t in turns]
    seen, asked = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, -0.5, -3.0]]), []
    made = {"logprobs": seen, "masked": torch.tensor([[-1.0, -1.0, -9.0], [-2.0, -0.5, -1.0]])}
    signals = Signals(rollouts, [Score(0.0)] * 2, RlStage(kind="rl", steps=1), measure=lambda names: asked.append(names) or made)
    signals.expect(frozenset({"perception_NT"}))
    found = signals.perception_NT
    assert asked == [frozenset({"logprobs", "masked"})] and found.dtype == torch.float64
    expected = [[0.0, math.e - 2, 0.0], [math.exp(-1), 0.0, math.exp(2) - 3]]
    assert found.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


# -- images -------------------------------------------------------------------------------------------------------------


def asked(*images, id="p"):
    return Prompt(id=id, task="t", messages=[user_message("What?", *images)])


@pytest.mark.parametrize("row", of("mask"))
def test_the_squares_are_those_that_papos_code_blacks(monkeypatch, row):
    """A square is black if its draw is below the share; squares are drawn row by row, and the last ones are cut."""

    class Drawn:
        def random(self, shape):
            return np.array(row["draws"]).reshape(shape)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Drawn())
    (found,) = masked(asked(Image.new("RGB", (66, 40), (255, 255, 255))), 0, 0.6, 14).images
    assert (np.asarray(found)[..., 0] == 0).sum(1).tolist() == row["black"]


def test_masks_and_noise_follow_the_seed_and_the_prompt_and_leave_the_rest():
    image, grey = Image.new("RGB", (50, 30), (200, 100, 50)), Image.new("L", (8, 8), 90)
    for change in (lambda prompt, seed: masked(prompt, seed, 0.5, 7), lambda prompt, seed: noisy(prompt, seed, 300)):
        one, same, seed, other = (
            [np.asarray(i) for i in change(asked(image, grey, image, id=id), seed).images]
            for id, seed in (("p", 0), ("p", 0), ("p", 1), ("q", 0))
        )
        assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
        assert not np.array_equal(one[0], seed[0]) and not np.array_equal(one[0], other[0])
        assert not np.array_equal(one[0], one[2]), "each image of a prompt has its own"
        assert [a.shape for a in one] == [(30, 50, 3), (8, 8, 3), (30, 50, 3)]
    prompt = masked(asked(image), 0, 1.0, 14)
    assert not np.asarray(prompt.images[0]).any() and prompt.text == "What?" and image.getpixel((0, 0)) == (200, 100, 50)
    told = Prompt(id="p", messages=[{"role": "user", "content": "What?"}])
    assert masked(told, 0).messages == told.messages


def test_a_level_of_noise_leaves_the_share_that_noisyrollouts_code_leaves():
    for row in of("kept"):
        assert _signal_share(row["level"]) == pytest.approx(row["kept"], rel=1e-5)
    (image,) = noisy(asked(Image.new("RGB", (200, 200), (128, 128, 128))), 0, 300).images
    kept, pixels = _signal_share(300), np.asarray(image).astype(float) / 255
    assert pixels.mean() == pytest.approx(math.sqrt(kept) * 128 / 255, abs=0.01) and pixels.std() > 0.15
    assert pixels.std() == pytest.approx(math.sqrt(1 - kept), rel=0.05), "few pixels are cut"


@pytest.mark.parametrize("row", of("level"))
def test_the_level_of_noise_falls_as_in_noisyrollouts_code(row):
    steps = len(row["levels"])
    schedule = "constant" if row["mode"] == "none" else row["mode"]
    config = NoisyConfig(level=500, schedule=schedule, steepness=row["steepness"], middle=row["middle"] / steps)
    assert [noise_level(config, step / steps) for step in range(1, steps + 1)] == row["levels"]


def test_no_steepness_overflows():
    config = NoisyConfig(steepness=1e30, middle=0.5)
    assert [noise_level(config, x) for x in (0.25, 0.75)] == [500, 0]
