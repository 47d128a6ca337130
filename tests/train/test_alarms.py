"""Each alarm: silent below its threshold, told at it, once; stop stops; a replay leaves the monitor as the run had it."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl import AlarmReading
from mmrl.api.errors import PluginError, UserError
from mmrl.config.sections import Alarm, JudgeConfig, LimitsConfig
from mmrl.run_folder.files import line
from mmrl.train.alarms import AlarmEvent, AlarmMonitor, AlarmStop, PluginAlarm

OFF = dict.fromkeys(LimitsConfig.model_fields.keys() - {"alarms"}, Alarm())


def only(alarm: str, **levels: float) -> LimitsConfig:
    """One alarm, all others off."""
    return LimitsConfig(**{**OFF, alarm: Alarm(**levels)})


def feed(
    monitor: AlarmMonitor, key: str, *values: float | None, stage: int = 0, start: int = 1, **others: float
) -> list[tuple[int, str]]:
    """(step, sentence) of what steps with these values said; None is a step without that metric."""
    told = []
    for step, value in enumerate(values, start):
        metrics = others if value is None else {key: value, **others}
        told += [(step, found.text) for found in monitor.step(stage, step, metrics)]
    return told


def figures(*given: tuple[str, float] | tuple[str, float, float]) -> list[Any]:
    """Evaluations from (task, value) or (task, value, value on blank pictures)."""
    return [interval(g[0], g[1], g[1], g[1], {"blank": g[2]} if len(g) == 3 else {}) for g in given]


def interval(task: str, low: float, value: float, high: float, extra: Any = ()) -> Any:
    return SimpleNamespace(task=task, low=low, value=value, high=high, extra=dict(extra))


# -- steps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alarm", "key"), [("answer_collapse", "answers/most_common_share"), ("clip_share", "clip_share"), ("kl", "kl")]
)
def test_a_share_is_compared_as_the_mean_of_five_steps(alarm: str, key: str) -> None:
    monitor = AlarmMonitor(only(alarm, warn=0.5))
    assert feed(monitor, key, 1.0, 1.0, 1.0, 1.0) == [], "four are too few"
    assert [step for step, _ in feed(AlarmMonitor(only(alarm, warn=0.5)), key, 0, 0, 0, 1, 1, 1 / 4, 1 / 4)] == [7], "2.5 of 5"
    assert feed(AlarmMonitor(only(alarm, warn=0.5)), key, 0, 0, 0, 1, 1, 1 / 4, 0.24) == []
    assert feed(AlarmMonitor(only(alarm, warn=0.25)), key, 0, 0, 0, 0, 1, 0, 0, 0, 0) == [], "one odd step"


def test_clipping_and_collapse_say_what_where_and_what_to_do() -> None:
    ((_, clipped),) = feed(AlarmMonitor(only("clip_share", warn=0.5)), "clip_share", *[0.75] * 5)
    assert clipped.startswith(
        "the loss clips the probability ratio of 75% of the tokens, which then have no gradient: lower learning_rate"
    )
    assert clipped.endswith("(limits.clip_share.warn = 0.5)")
    ((_, far),) = feed(AlarmMonitor(LimitsConfig(**{**OFF, "kl": LimitsConfig().kl})), "kl", 0.5, 0.5, 0.5, 0.5, *[1.25] * 4)
    assert far.startswith("the policy is 1.1 nats a token from its reference") and far.endswith("(limits.kl.warn = 1)")
    ((_, same),) = feed(AlarmMonitor(only("answer_collapse", warn=0.9)), "answers/most_common_share", *[0.95] * 5)
    assert same.startswith("95% of the prompts get the same completion although their answers differ: ")
    assert same.endswith("(limits.answer_collapse.warn = 0.9)")


def test_length_is_compared_with_the_first_five_steps() -> None:
    monitor = AlarmMonitor(only("length_growth", warn=4.0))
    first = [8, 12, 10, 10, 10]
    assert feed(monitor, "length/mean", *first, 40, 40, 40, 40, 39.9) == []
    ((step, text),) = feed(monitor, "length/mean", 41, 40, 500, start=11)  # (40 + 40 + 40 + 39.9 + 41) / 5 = 40.18
    assert step == 11
    assert text.startswith("completions are 4.02 times as long as in the stage's first steps (40 tokens, then 10): ")
    exactly = feed(AlarmMonitor(only("length_growth", warn=4.0)), "length/mean", *first, 40, 40, 40, 40, 40)
    assert [step for step, _ in exactly] == [10]


def test_a_stage_is_not_compared_with_its_own_first_steps() -> None:
    assert feed(AlarmMonitor(only("length_growth", warn=1.0)), "length/mean", 10, 10, 10, 10, 10) == []
    assert [s for s, _ in feed(AlarmMonitor(only("length_growth", warn=1.0)), "length/mean", *[10] * 6)] == [6]
    assert feed(AlarmMonitor(only("length_growth", warn=1.0)), "length/mean", *[0.0] * 9) == [], "nothing grows from nothing"


def test_entropy_that_is_gone_skips_steps_that_measured_none() -> None:
    monitor = AlarmMonitor(only("entropy_fall", warn=0.75))
    values = [1.0, None, 1.0, 1.0, 1.0, 1.0, 0.25, 0.25, None, 0.25, 0.25, 0.26]
    assert feed(monitor, "entropy", *values) == [], "(0.25 + 0.25 + 0.25 + 0.25 + 0.26) / 5 is more than a quarter"
    ((step, text),) = feed(monitor, "entropy", 0.24, 0.1, start=13)
    assert step == 13
    assert text.startswith("the entropy fell by 75% since the first steps (0.25 nats a token, then 1): ")


def test_long_episodes_in_a_simulator_are_no_alarm() -> None:
    """To stay upright for longer is what is rewarded."""
    lengths = [10.0] * 5 + [500.0] * 5
    assert feed(AlarmMonitor(only("length_growth", warn=4.0), acts=True), "length/mean", *lengths) == []
    assert len(feed(AlarmMonitor(only("length_growth", warn=4.0)), "length/mean", *lengths)) == 1


def gaussian(std: float, dims: int) -> float:
    """Entropy of so many independent normal distributions, in nats."""
    return dims * (0.5 * math.log(2 * math.pi * math.e) + math.log(std))


@pytest.mark.parametrize("dims", [1, 2, 14])
def test_of_normally_distributed_actions_the_standard_deviation_falls(dims: int) -> None:
    """A differential entropy passes through 0: of std 0.24 it is nearly nothing and of less it is negative."""

    def told(first: float, now: float, stage: int = 1, entropy_dims: tuple[int, ...] = (0, dims)) -> list[tuple[int, str]]:
        monitor = AlarmMonitor(only("entropy_fall", warn=0.98), entropy_dims=entropy_dims)
        return feed(monitor, "entropy", *[gaussian(first, dims)] * 5, *[gaussian(now, dims)] * 5, stage=stage)

    assert told(1.0, 0.4) == told(1.0, 0.021) == told(0.1, 0.05) == told(0.1, 10.0) == []
    ((step, text),) = told(1.0, 0.01)
    assert step == 10 and text.startswith("the standard deviation of the actions fell by 99% since the first steps: ")
    assert len(told(0.1, 0.001)) == 1, "although the entropy was negative from the start"
    assert len(told(1.0, 0.2, stage=0)) == 1, "the share of an entropy that is no differential one"


def test_the_gap_is_told_from_the_first_step_and_left_to_the_learner_to_stop() -> None:
    limits = only("logprob_gap", warn=0.02, stop=0.1)
    assert feed(AlarmMonitor(limits), "logprob_gap", 0.019) == []
    ((step, text),) = feed(AlarmMonitor(limits), "logprob_gap", 0.02, 0.5)
    assert step == 1 and text.startswith("sampler and learner disagree by 0.02 nats a token: check policy.dtype")
    assert text.endswith("(limits.logprob_gap.warn = 0.02)")
    assert feed(AlarmMonitor(limits), "logprob_gap", *[0.01] * 4, 0.059) == [], "the mean of five is below"
    assert [s for s, _ in feed(AlarmMonitor(limits), "logprob_gap", *[0.01] * 5, 0.06)] == [6]
    assert feed(AlarmMonitor(only("logprob_gap", stop=0.1)), "logprob_gap", 5.0) == []


def test_failed_scores_are_told_from_half_the_limit_on() -> None:
    def told(*shares: float, limit: float = 0.1) -> list[tuple[int, str]]:
        return feed(AlarmMonitor(LimitsConfig(**OFF), JudgeConfig(failure_limit=limit)), "judge/failed_share", *shares)

    assert told(0.0, 0.049) == [] and told(0.0, 0.0, limit=0.0) == []
    ((step, text),) = told(0.05, 0.09)
    assert step == 1
    assert text == (
        "5% of the scores failed; the run stops above judge.failure_limit = 0.1 of a step's scores: "
        "see errors.jsonl, then fix the verifier or raise judge.timeout_s"
    )
    assert [s for s, _ in told(0.1, limit=0.2)] == [1]


def test_ten_steps_that_taught_nothing_say_why() -> None:
    monitor = AlarmMonitor(LimitsConfig())
    cause = {"reward/mean": 0.25, "length/truncated_share": 0.75}
    assert feed(monitor, "zero_std_share", *[1.0] * 9, **cause) == []
    ((step, text),) = feed(monitor, "zero_std_share", 1.0, 1.0, start=10, **cause)
    assert step == 10
    assert text == (
        "10 steps in a row taught nothing: every completion of a prompt scored the same (reward 0.25 on average), and 75% were "
        "cut off at their longest length (max_tokens): read the rollouts in the report; if the reward is low, more tokens, a "
        "warm start (an sft stage), an easier task or other verifiers may help, if it is high, harder prompts or "
        "dynamic_sampling (limits.zero_std.warn = 0.95)"
    )
    ((_, short),) = feed(AlarmMonitor(LimitsConfig()), "zero_std_share", *[1.0] * 10, **{"length/truncated_share": 0.5})
    assert ": every completion of a prompt scored the same: read" in short, "no reward and few cut off: neither is mentioned"
    assert "if the reward is low, a warm start" in short


def test_an_algorithm_that_credits_none_is_not_told_as_equal_rewards() -> None:
    ((_, text),) = feed(AlarmMonitor(LimitsConfig()), "zero_std_share", *[1.0] * 10, uncredited_share=0.75)
    assert "10 steps in a row taught nothing: rewards differed, but the algorithm gave no completion credit" in text
    assert "grpo-passk" in text and "scored the same" not in text
    ((_, text),) = feed(AlarmMonitor(LimitsConfig()), "zero_std_share", *[1.0] * 10, uncredited_share=0.25)
    assert "scored the same" in text


def test_nearly_nothing_taught_is_told_at_its_threshold() -> None:
    limits = only("zero_std", warn=0.95)
    assert feed(AlarmMonitor(limits), "zero_std_share", *[1.0] * 9, 0.49) == []
    ((step, text),) = feed(AlarmMonitor(limits), "zero_std_share", *[1.0] * 9, 0.5)
    assert step == 10 and text.startswith("95% of 10 steps' groups taught nothing: every completion")
    assert feed(AlarmMonitor(limits), "zero_std_share", *([1.0] * 8 + [0.0]) * 3) == [], "a step with spread begins it again"


def test_an_alarm_is_told_once_a_stage() -> None:
    monitor = AlarmMonitor(only("clip_share", warn=0.5))
    assert [s for s, _ in feed(monitor, "clip_share", *[1.0] * 20)] == [5]
    assert [s for s, _ in feed(monitor, "clip_share", *[1.0] * 20, stage=1, start=21)] == [25]


def test_a_new_stage_has_first_steps_of_its_own() -> None:
    monitor = AlarmMonitor(only("length_growth", warn=2.0))
    assert feed(monitor, "length/mean", *[10] * 6) == []
    assert feed(monitor, "length/mean", *[30] * 9, stage=1, start=7) == []
    assert [s for s, _ in feed(monitor, "length/mean", *[60] * 5, stage=1, start=16)] == [20]


def test_other_stages_and_numbers_that_are_not_finite_raise_no_alarm() -> None:
    monitor = AlarmMonitor(LimitsConfig())
    assert feed(monitor, "loss", *[1e9] * 30, grad_norm=1e9) == []
    assert feed(monitor, "clip_share", *[math.nan] * 9, math.inf, stage=1) == []


@pytest.mark.parametrize(
    ("alarm", "key", "values", "stop"),
    [
        ("answer_collapse", "answers/most_common_share", [0.5] * 5, 0.5),
        ("clip_share", "clip_share", [0.5] * 5, 0.5),
        ("length_growth", "length/mean", [1.0] * 5 + [2.0] * 5, 2.0),
        ("entropy_fall", "entropy", [1.0] * 5 + [0.5] * 5, 0.5),
        ("zero_std", "zero_std_share", [0.5] * 10, 0.5),
    ],
)
def test_a_stop_ends_the_run_at_its_threshold(alarm: str, key: str, values: list[float], stop: float) -> None:
    assert feed(AlarmMonitor(only(alarm, stop=stop + 0.001)), key, *values) == []
    monitor = AlarmMonitor(only(alarm, warn=stop, stop=stop))
    assert feed(monitor, key, *values[:-1]) == []
    with pytest.raises(UserError) as stopped:
        monitor.step(0, len(values), {key: values[-1]})
    message = str(stopped.value)
    assert message.startswith(f"step {len(values)}: ") and "\n" not in message
    assert message.endswith(f"; or raise limits.{alarm}.stop = {stop:g}, and go on with --resume")


def test_a_stop_has_the_warnings_of_its_step() -> None:
    """In either order: a resumed run takes both as told."""
    for warned, stops in (("clip_share", "answer_collapse"), ("answer_collapse", "clip_share")):
        monitor = AlarmMonitor(LimitsConfig(**{**OFF, warned: Alarm(warn=0.5), stops: Alarm(stop=0.5)}))
        figures = {"clip_share": 0.6, "answers/most_common_share": 0.6}
        assert [monitor.step(0, step, figures) for step in range(1, 5)] == [[]] * 4
        with pytest.raises(AlarmStop, match=rf"limits\.{stops}\.stop") as stopped:
            monitor.step(0, 5, figures)
        assert [event.alarm for event in stopped.value.warnings] == [warned]


# -- evaluations ----------------------------------------------------------------------------------------------------------


def test_a_figure_that_needs_no_picture_is_told() -> None:
    monitor = AlarmMonitor(only("blind", warn=0.75))
    assert monitor.evaluated(0, figures(("a", 0.8, 0.59), ("b", 0.0, 0.0), ("c", 0.8), ("d", -1.0, -1.0))) == []
    (found,) = monitor.evaluated(10, figures(("a", 0.8, 0.6), ("b", 0.0, 0.5)))
    text = found.text
    assert text.startswith("a: with blank images the figure is 0.6, 75% of the 0.8 with the real ones: ")
    assert text.endswith("(limits.blind.warn = 0.75)")
    assert monitor.evaluated(20, figures(("a", 0.8, 0.8))) == [], "told once"
    assert len(monitor.evaluated(30, figures(("b", 0.5, 0.5)))) == 1, "but of each task"
    with pytest.raises(UserError, match=r"^step 7: a: with blank images .* limits\.blind\.stop = 0\.75"):
        AlarmMonitor(only("blind", stop=0.75)).evaluated(7, figures(("a", 0.8, 0.6)))


def hacked(fall: float, part: float, **levels: float) -> list[str]:
    """Ten steps that pay 0.5, the best figure, ten steps that pay `part`, and the figure `fall` lower."""
    monitor = AlarmMonitor(only("reward_hacking", **levels))
    feed(monitor, "reward/a/exact", *[0.5] * 10)
    assert monitor.evaluated(10, figures(("a", 0.8))) == []
    feed(monitor, "reward/a/exact", *[part] * 10, start=11)
    return [found.text for found in monitor.evaluated(20, figures(("a", 0.8 - fall)))]


def test_a_reward_that_rises_while_the_figure_falls_is_told() -> None:
    (text,) = hacked(0.05, 0.75, warn=0.05)
    assert text.startswith("a: the held-out figure fell from 0.8 (step 10) to 0.75 while a/exact rose from 0.5 to 0.75: ")
    assert text.endswith("(limits.reward_hacking.warn = 0.05)")
    assert hacked(0.049, 0.75, warn=0.05) == []
    assert hacked(0.3, 0.5, warn=0.05) == [] and hacked(0.3, 0.25, warn=0.05) == [], "nothing pays more than it did"
    assert hacked(-0.1, 0.75, warn=0.05) == [], "both rise: that is learning"
    with pytest.raises(UserError, match=r"^step 20: a: the held-out figure fell .* limits\.reward_hacking\.stop = 0\.05"):
        hacked(0.05, 0.75, stop=0.05)


@pytest.mark.parametrize(
    ("best", "now", "told"),
    [
        ((0.037, 0.133, 0.379), (0.0, 0.0, 0.204), False),  # 2 and 0 of 15, Wilson
        ((0.7, 0.8, 0.9), (0.6, 0.72, 0.79), False),
        ((0.79, 0.8, 0.81), (0.5, 0.6, 0.85), False),
        ((0.7, 0.8, 0.9), (0.5, 0.6, 0.7), True),
    ],
)
def test_a_fall_within_an_interval_is_no_alarm(best: Any, now: Any, told: bool) -> None:
    monitor, again = AlarmMonitor(only("reward_hacking", warn=0.05)), AlarmMonitor(only("reward_hacking", warn=0.05))
    for each in (monitor, again):
        feed(each, "reward/v", *[0.25] * 10)
    monitor.evaluated(10, [interval("a", *best)])
    low, value, high = best
    again.replay([{"step": 10, "eval": {"task": "a", "low": low, "value": value, "high": high}}], [99])
    for each in (monitor, again):
        feed(each, "reward/v", *[0.75] * 10, start=11)
        assert bool(each.evaluated(20, [interval("a", *now)])) is told


def test_the_mean_of_a_part_is_over_ten_steps() -> None:
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    feed(monitor, "reward/v", *[9.0] * 5, *[0.5] * 10)
    monitor.evaluated(15, figures(("a", 0.8)))
    feed(monitor, "reward/v", *[0.6] * 4, start=16)
    assert monitor.evaluated(19, figures(("a", 0.5))) == [], "0.54, where 0.046 may be noise"
    feed(monitor, "reward/v", 0.6, start=20)
    (found,) = monitor.evaluated(20, figures(("a", 0.5)))
    text = found.text
    assert "v rose from 0.5 to 0.55: " in text


@pytest.mark.parametrize(
    ("now", "told"), [([0.9, 0.3] * 5, False), ([0.62, 0.58] * 5, True), ([0.508] * 10, False), ([0.512] * 10, True)]
)
def test_a_rise_that_may_be_noise_or_is_none_to_speak_of_is_not_blamed(now: list[float], told: bool) -> None:
    """Two standard errors of the difference from 0.5 are 0.28 where rewards go up and down by 0.6, and 2% of it are 0.01."""
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    feed(monitor, "reward/v", *[0.5] * 10)
    monitor.evaluated(10, figures(("a", 0.8)))
    feed(monitor, "reward/v", *now, start=11)
    assert bool(monitor.evaluated(20, figures(("a", 0.5)))) is told


def test_a_figure_that_was_best_before_the_first_step_is_compared_with_the_first_steps() -> None:
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    monitor.evaluated(0, figures(("a", 0.8)))
    feed(monitor, "reward/v", *[0.25] * 5, *[0.75] * 10)
    (found,) = monitor.evaluated(15, figures(("a", 0.5)))
    text = found.text
    assert "fell from 0.8 (step 0) to 0.5 while v rose from 0.25 to 0.75: " in text


def test_of_equal_figures_the_first_is_the_best_as_in_the_summary() -> None:
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    for start, part in ((1, 0.25), (11, 0.5)):
        feed(monitor, "reward/v", *[part] * 10, start=start)
        monitor.evaluated(start + 9, figures(("a", 0.8)))
    feed(monitor, "reward/v", *[0.5] * 10, start=21)
    (found,) = monitor.evaluated(30, figures(("a", 0.5)))
    text = found.text
    assert "fell from 0.8 (step 10) to 0.5 while v rose from 0.25 to 0.5: " in text


def test_tasks_are_held_against_their_own_rewards() -> None:
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    low = {"task/a/reward/v": 0.1, "task/b/reward/v": 0.1, "reward/v": 0.1, "reward/mean": 0.1}
    for step in range(1, 11):
        monitor.step(0, step, low)
    monitor.evaluated(10, figures(("a", 0.8), ("b", 0.8)))
    for step in range(11, 21):
        monitor.step(0, step, {**low, "task/b/reward/v": 0.9, "reward/v": 0.5, "reward/mean": 0.9})
    (found,) = monitor.evaluated(20, figures(("a", 0.5), ("b", 0.5)))
    text = found.text
    assert text.startswith("b: ") and "v rose from 0.1 to 0.9" in text


def test_the_mean_reward_is_no_part() -> None:
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    feed(monitor, "reward/mean", *[0.1] * 10, **{"reward/std": 0.1})
    monitor.evaluated(10, figures(("a", 0.8)))
    feed(monitor, "reward/mean", *[0.9] * 10, start=11, **{"reward/std": 0.9})
    assert monitor.evaluated(20, figures(("a", 0.5))) == []


def test_a_stage_is_held_against_the_figure_it_began_with() -> None:
    monitor = AlarmMonitor(only("reward_hacking", warn=0.1))
    feed(monitor, "reward/v", *[0.5] * 10)
    monitor.evaluated(10, figures(("a", 0.9)))
    monitor.evaluated(10, figures(("a", 0.6)))
    feed(monitor, "reward/v", *[0.25] * 5, *[0.75] * 10, stage=1, start=11)
    assert monitor.evaluated(25, figures(("a", 0.55))) == [], "0.9 was another stage's"
    (found,) = monitor.evaluated(26, figures(("a", 0.5)))
    text = found.text
    assert "fell from 0.6 (step 10) to 0.5 while v rose from 0.25 to 0.75" in text


# -- resume ---------------------------------------------------------------------------------------------------------------

STAGES = [4, 30, 26]
"""Steps of each stage."""


def events() -> list[tuple[int, dict[str, float] | list[Any]]]:
    """(step, metrics or figures) of a run in which everything goes wrong, twice."""
    found: list[tuple[int, dict[str, float] | list[Any]]] = [(step, {"loss": 1.0}) for step in range(1, 5)]
    found.append((4, figures(("a", 0.9, 0.1), ("b", 0.5, 0.1))))
    for step in range(5, 61):
        since = (step - 5) % 30
        bad = since > 12
        metrics = {
            "length/mean": 90.0 + since if bad else 9.0,
            "clip_share": 0.9 if bad else 0.1,
            "kl": 1.5 if bad else 0.01,
            "answers/most_common_share": math.nan if step % 7 == 0 else 1.0 if bad else 0.2,
            "zero_std_share": 1.0 if since > 8 else 0.1,
            "reward/mean": 0.5,
            "task/a/reward/v": 0.3 + since / 100,
            "reward/v": 0.1,
            "logprob_gap": 0.03 if bad else 0.001,
            "judge/failed_share": 0.06 if since == 20 else 0.0,
        }
        found.append((step, metrics | ({} if step % 5 == 0 else {"entropy": 0.001 if bad else 0.5})))
        if step % 10 == 0:
            found.append((step, figures(("a", 0.9 - since / 60, 0.2 + since / 60), ("b", 0.5, 0.1))))
    return found


def stage_of(step: int) -> int:
    return 0 if step <= 4 else 1 if step <= 34 else 2


def go(monitor: AlarmMonitor, given: list[tuple[int, Any]]) -> list[tuple[int, AlarmEvent]]:
    told = []
    for step, what in given:
        found = monitor.evaluated(step, what) if isinstance(what, list) else monitor.step(stage_of(step), step, what)
        told += [(step, each) for each in found]
    return told


def rows(given: list[tuple[int, Any]]) -> list[dict[str, Any]]:
    """What `metrics.jsonl` holds of it, read back."""
    found: list[dict[str, Any]] = []
    for step, what in given:
        if isinstance(what, list):
            found += [{"step": step, "stage": "rl", "time": 1.0, "eval": dict(vars(f))} for f in what]
        else:
            found.append({"step": step, "stage": "rl", "time": 1.0, "metrics": what})
    return [json.loads(line(row)) for row in found]


def test_a_resumed_run_is_told_exactly_what_it_would_have_been() -> None:
    given = events()
    whole = go(AlarmMonitor(LimitsConfig()), given)
    alarms = [(stage_of(step), found.alarm) for step, found in whole]
    names = {
        "logprob_gap",
        "answer_collapse",
        "length_growth",
        "entropy_fall",
        "clip_share",
        "kl",
        "zero_std",
        "blind",
        "reward_hacking",
    }
    assert {name for stage, name in alarms if stage == 1} >= names, "every alarm goes off"
    assert [stage for stage, name in alarms if name == "zero_std"] == [1, 2]
    for cut in range(len(given)):
        monitor = AlarmMonitor(LimitsConfig())
        monitor.replay(rows(given[:cut]), STAGES)
        told = go(AlarmMonitor(LimitsConfig()), given[:cut]) + go(monitor, given[cut:])
        assert told == whole, f"resumed before {given[cut]}"


def test_a_replay_stops_nothing() -> None:
    limits = only("clip_share", stop=0.5)
    monitor = AlarmMonitor(limits)
    monitor.replay(rows([(step, {"clip_share": 0.9}) for step in range(5, 15)]), STAGES)
    with pytest.raises(UserError, match=r"limits\.clip_share\.stop = 0\.5"):
        monitor.step(1, 15, {"clip_share": 0.9})
    higher = AlarmMonitor(only("clip_share", stop=0.95))
    higher.replay(rows([(step, {"clip_share": 0.9}) for step in range(5, 15)]), STAGES)
    assert higher.step(1, 15, {"clip_share": 0.9}) == []


# -- alarms of plugins ----------------------------------------------------------------------------------------------------


def plugged(function: Any, **levels: float) -> AlarmMonitor:
    return AlarmMonitor(LimitsConfig(**OFF), of_plugins=[PluginAlarm("odd/one", function, Alarm(**levels))])


def test_an_alarm_of_a_plugin_is_given_once_and_stops() -> None:
    def high(history: Any) -> AlarmReading | None:
        return AlarmReading(mean, f"it is {mean:g}", "lower it") if (mean := history.recent("x", 2)) is not None else None

    assert feed(plugged(high, warn=2.0), "x", 9.0) == [], "one step is too few for a mean of two"
    monitor = plugged(high, warn=2.0, stop=4.0)
    given = [event for step, x in enumerate((1.0, 2.0, 2.0, 3.0), 1) for event in monitor.step(0, step, {"x": x})]
    (event,) = given
    assert (event.alarm, event.text) == ("odd/one", 'it is 2: lower it (limits.alarms."odd/one".warn = 2)')
    with pytest.raises(UserError, match=r'step 5: it is 5: lower it; or raise limits\.alarms\."odd/one"\.stop = 4, and go on'):
        monitor.step(0, 5, {"x": 7.0})
    assert feed(plugged(high), "x", *[9.0] * 5) == [], "without a threshold"


def test_it_sees_the_stage_and_nothing_before() -> None:
    seen = []
    monitor = plugged(lambda history: seen.append((history.recent("x", 1), history.change("x"))), warn=1.0)
    for step in range(1, 12):
        monitor.step(int(step > 5), step, {"x": float(step)})
    assert seen[4] == (5.0, None) and seen[5] == (6.0, None)
    assert seen[10] == (11.0, (8.0, 9.0)), "the means of 6 to 10 and of 7 to 11"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda history: 1 / 0, "alarm 'odd/one' raised ZeroDivisionError"),
        (lambda history: 0.5, "alarm 'odd/one' must return an AlarmReading or None, not float"),
        (lambda history: AlarmReading(math.nan, "a", "b"), "alarm 'odd/one' must return a finite value and two texts"),
        (lambda history: AlarmReading(1.0, "a", None), "alarm 'odd/one' must return a finite value and two texts"),  # type: ignore[arg-type]
    ],
)
def test_a_broken_one_is_named(function: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        plugged(function, warn=1.0).step(0, 1, {"x": 1.0})


def test_the_robots_alarm_compares_reaching_the_goal_with_staying() -> None:
    from mmrl_robotics.alarms import leaves_goal

    def fed(once: float, at_end: float) -> list[AlarmEvent]:
        monitor = plugged(leaves_goal, warn=0.5)
        return [e for n in range(1, 7) for e in monitor.step(0, n, {"episode/success": once, "episode/success_at_end": at_end})]

    assert fed(0.8, 0.5) == [] and fed(0.04, 0.0) == [] and fed(0.0, 0.0) == []
    (event,) = fed(0.8, 0.4)
    said = "50% of the episodes that reach the goal leave it again (80% reach it, 40% are there at the end):"
    assert event.text.startswith(said)
