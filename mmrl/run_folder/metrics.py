"""The catalogue of metrics: which curves a report shows, in which order and with which words, and how they add up over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch would make a report slow to start
    from mmrl.compute.ranks import Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture of the catalogue: the metrics that belong in it and how to read it."""

    title: str
    keys: tuple[str, ...]
    """Patterns of metric keys; a metric is drawn by the first chart that names it."""
    hint: str
    unit: str = ""
    zero: bool = False
    spiky: bool = False
    """Rare wild values may leave the picture, with a note."""
    stacked: bool = False
    per_stage: bool = False
    """One chart for each stage, because the values can't be compared between stages."""
    several: bool = False
    """Say nothing when there is only one line: another chart shows it already."""


SECTIONS: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    (
        "Learning",
        (
            Chart(
                title="Reward",
                keys=("reward/mean",),
                zero=True,
                hint="Mean over the sampled completions. It should rise; the bold line is smoothed.",
            ),
            Chart(
                title="Spread of rewards",
                keys=("reward/std",),
                zero=True,
                hint="Standard deviation. Groups learn from their differences; near zero there is little left to learn.",
            ),
            Chart(
                title="Reward by part",
                keys=("reward/*",),
                zero=True,
                several=True,
                hint="What each verifier gave, before weighting. One part rising alone can mean that it is being gamed.",
            ),
            Chart(
                title="Reward by part, of each task",
                keys=("task/*/reward/*",),
                zero=True,
                several=True,
                hint="The same for each task: a part may be easy in one and out of reach in another.",
            ),
            Chart(
                title="Reward by task",
                keys=("task/*/reward",),
                zero=True,
                several=True,
                hint="A task that falls while others rise is paying for them.",
            ),
        ),
    ),
    (
        "Behaviour",
        (
            Chart(
                title="Completion length",
                keys=("length/mean", "length/max"),
                zero=True,
                hint="Tokens. A steady climb without more reward is padding.",
            ),
            Chart(
                title="Completion length by task", keys=("task/*/length",), zero=True, several=True, hint="Tokens, on average."
            ),
            Chart(
                title="Cut off",
                keys=("length/truncated_share",),
                unit="%",
                zero=True,
                hint="Share of episodes that met a limit, of length or turns. If it is high, raise it.",
            ),
            Chart(
                title="Entropy",
                keys=("entropy",),
                zero=True,
                hint="How undecided the policy is, in nats per token. Near zero it has stopped exploring.",
            ),
            Chart(
                title="Same answer to different prompts",
                keys=("answers/most_common_share",),
                unit="%",
                zero=True,
                hint="Share of groups whose commonest text is the commonest of all. Near 100% the picture no longer matters.",
            ),
            Chart(
                title="Success of episodes",
                keys=("episode/success", "episode/success_at_end"),
                unit="%",
                zero=True,
                hint="Sampled, so below what evaluations say of the likeliest actions. At the end: in the last state.",
            ),
            Chart(
                title="Steps of an episode",
                keys=("episode/steps",),
                zero=True,
                hint="Fewer for the same success is a shorter way.",
            ),
            Chart(
                title="Return",
                keys=("episode/return", "episode/reward", "episode/raw_reward"),
                hint="What the simulator or the page paid in an episode; raw: without regard to time.",
            ),
            Chart(
                title="Turns that were refused",
                keys=("episode/refused",),
                zero=True,
                hint="In an episode: an answer that was no action, or an action that made no sense there.",
            ),
            Chart(
                title="Episodes lost",
                keys=("environment/lost",),
                zero=True,
                hint="Their world broke; they are left out. Anything but 0 needs a look at the warnings of the run.",
            ),
            Chart(
                title="Parts of the task",
                keys=("episode/*",),
                zero=True,
                hint="How far each part was reached, at its best in an episode.",
            ),
            Chart(
                title="Turns",
                keys=("turns/mean",),
                zero=True,
                hint="Turns per episode. Fewer for the same reward is a shorter way.",
            ),
        ),
    ),
    (
        "Optimisation",
        (
            Chart(
                title="KL",
                keys=("kl",),
                zero=True,
                spiky=True,
                hint="From the reference; without one, from the weights that sampled, which is 0 with one epoch.",
            ),
            Chart(
                title="Weight of the KL penalty",
                keys=("kl_coef",),
                zero=True,
                hint="With kl_target it rises while the KL is above the target, and falls below.",
            ),
            Chart(
                title="Optimiser steps",
                keys=("optimizer_steps",),
                zero=True,
                hint="Of each step. Fewer than there are mini-batches where stop_kl ended it.",
            ),
            Chart(
                title="Clipped tokens",
                keys=("clip_share",),
                unit="%",
                zero=True,
                hint="Share whose update was clipped. Above a fifth or so, steps are too large.",
            ),
            Chart(
                title="Groups without spread",
                keys=("zero_std_share",),
                unit="%",
                zero=True,
                hint="All completions scored alike: nothing to learn from. Harder or easier prompts help.",
            ),
            Chart(
                title="Groups without spread, by task",
                keys=("task/*/zero_std_share",),
                unit="%",
                zero=True,
                several=True,
                hint="A task near 100% costs time and teaches nothing.",
            ),
            Chart(
                title="Groups left out",
                keys=("sampling/filtered_share",),
                unit="%",
                zero=True,
                hint="Share of the sampled groups that the sampling rules dropped. At 100% the step trained on nothing.",
            ),
            Chart(
                title="Groups sampled",
                keys=("sampling/groups", "sampling/hinted", "sampling/ground_truth", "sampling/replayed"),
                zero=True,
                hint="In all, for those that are trained on; of them saved by a hint, with the gold completion, failed before.",
            ),
            Chart(
                title="Share of the prompts, by task",
                keys=("task/*/share",),
                unit="%",
                zero=True,
                several=True,
                hint="As the spread of their groups has weighted them; those that had failed before come on top.",
            ),
            Chart(
                title="Called positive",
                keys=("condition/positive_share",),
                unit="%",
                zero=True,
                hint="Share of the completions that were trained on as good ones. 0% means that all of a step were alike.",
            ),
            Chart(
                title="Loss",
                keys=("loss",),
                spiky=True,
                per_stage=True,
                hint="In SFT the cross-entropy, in distillation the divergence: it falls. In RL it hovers about zero.",
            ),
            Chart(
                title="Gradient norm",
                keys=("grad_norm",),
                zero=True,
                spiky=True,
                per_stage=True,
                hint="Before clipping. Rare spikes are normal, a rising floor is not.",
            ),
            Chart(title="Learning rate", keys=("learning_rate",), zero=True, per_stage=True, hint="As scheduled."),
        ),
    ),
    (
        "Critic",
        (
            Chart(
                title="Values", keys=("value",), hint="What the critic expects, on average. It should come to follow the reward."
            ),
            Chart(
                title="Value loss",
                keys=("value_loss",),
                zero=True,
                spiky=True,
                hint="Its error. It falls at first; while it is large, advantages are mostly noise.",
            ),
            Chart(
                title="Clipped values",
                keys=("value_clip_share",),
                unit="%",
                zero=True,
                hint="Share whose update was clipped. If it is high, the critic can't keep up.",
            ),
            Chart(
                title="Gradient norm of the critic",
                keys=("grad_norm/critic",),
                zero=True,
                spiky=True,
                hint="Of its own weights, before clipping.",
            ),
        ),
    ),
    (
        "Teacher and gold completions",
        (
            Chart(
                title="Divergence from the teacher",
                keys=("divergence",),
                zero=True,
                spiky=True,
                hint="Over the whole vocabulary, in nats per token. It should fall.",
            ),
            Chart(
                title="Weight of gold completions",
                keys=("imitation/weight",),
                zero=True,
                hint="Beside the sampled ones; the rest of the loss is the algorithm's.",
            ),
            Chart(
                title="Loss of gold completions",
                keys=("imitation/loss",),
                zero=True,
                spiky=True,
                hint="What they add to the loss, weighted.",
            ),
        ),
    ),
    (
        "Health and speed",
        (
            Chart(
                title="Sampler and learner disagree by",
                keys=("logprob_gap",),
                zero=True,
                spiky=True,
                hint="Difference of their log-probabilities for the same tokens. It belongs near zero.",
            ),
            Chart(
                title="Failed scores",
                keys=("judge/failed_share",),
                unit="%",
                zero=True,
                hint="A verifier raised or ran out of time. Those rollouts are left out, not counted as zero.",
            ),
            Chart(title="Seconds per step", keys=("time/*",), unit="s", stacked=True, hint="By part of the step."),
            Chart(
                title="Memory",
                keys=("memory/process", "memory/gpu"),
                unit="MB",
                zero=True,
                hint="Of the learner's process, and the most so far that torch held on its GPU. What grows all along is a leak.",
            ),
            Chart(
                title="Seconds beside the learner",
                keys=("async/*",),
                unit="s",
                stacked=True,
                hint="Sampling for later steps, by part. What the learner waits for it is in the chart before.",
            ),
            Chart(
                title="Waiting for other learners",
                keys=("ranks/wait_s",),
                unit="s",
                zero=True,
                hint="Of the learner that waited most. Much says that another has longer completions or a slower machine.",
            ),
            Chart(
                title="Versions behind",
                keys=("staleness/mean", "staleness/max"),
                zero=True,
                hint="Steps that the sampling weights were behind the learner's; at most compute.staleness.",
            ),
            Chart(
                title="Weight of samples",
                keys=("importance/mean",),
                hint="How likely they are under the learner, against the sampler. Near 1 both are the same policy.",
            ),
            Chart(
                title="Weights cut by their cap",
                keys=("importance/capped_share",),
                unit="%",
                zero=True,
                hint="Samples that the learner finds much likelier. Where they are many, the sampler is too far behind.",
            ),
            Chart(
                title="Simulator steps a second",
                keys=("simulator/steps_per_s",),
                zero=True,
                hint="Of all environments together, while episodes are played.",
            ),
            Chart(
                title="Simulator and policy",
                keys=("simulator/busy_share", "policy/idle_share"),
                unit="%",
                zero=True,
                hint="Share of playing in which a simulator was stepped, and in which the policy waited for one.",
            ),
            Chart(
                title="Environments lost",
                keys=("simulator/lost",),
                zero=True,
                hint="They broke; their episodes were begun again. Anything but 0 needs a look at the simulator.",
            ),
        ),
    ),
)
REDUCTIONS: dict[str, Reduction] = {
    "environment/lost": "sum",
    "simulator/steps": "sum",
    "simulator/lost": "sum",
    "simulator/steps_per_s": "sum",
    "simulator/busy_share": "mean",
    "policy/idle_share": "mean",
}
"""How a metric that each of several learners measures for itself becomes the run's; one that isn't here is averaged."""
PARTS = ("generate", "update", "judge", "process", "other", "evaluate", "wait")
"""Parts of the time, in the order of their colours."""
HIDDEN = ("time/step", "simulator/steps")  # the sum of what the stacked chart shows; what the speed is made of
