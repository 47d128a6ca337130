"""The charts of a report on health and speed."""

from __future__ import annotations

from mmrl.run_folder.chart import Chart

HEALTH = (
    Chart(
        title="Sampler and learner disagree by",
        keys=("logprob_gap",),
        zero=True,
        spiky=True,
        hint="Mean difference of their log-probabilities of the same tokens, in nats. It should be near zero.",
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
        hint="Of the learner's process, and torch's peak so far on its GPU. Steady growth is a leak.",
    ),
    Chart(
        title="Seconds of asynchronous sampling",
        keys=("async/*",),
        unit="s",
        stacked=True,
        hint="Sampling for later steps, by part. The time that the learner waits for it is in Seconds per step.",
    ),
    Chart(
        title="Waiting for other learners",
        keys=("ranks/wait_s",),
        unit="s",
        zero=True,
        hint="Of the learner that waited most. Long waits mean that another has longer completions or a slower machine.",
    ),
    Chart(
        title="Versions behind",
        keys=("staleness/mean", "staleness/max"),
        zero=True,
        hint="Steps by which the sampling weights are behind the learner's; at most compute.staleness.",
    ),
    Chart(
        title="Interrupted answers",
        keys=("interrupted/share",),
        unit="%",
        zero=True,
        hint="Share of the episodes that new weights reached while they were sampled (compute.interrupt).",
    ),
    Chart(
        title="Versions in an answer",
        keys=("interrupted/versions",),
        hint="Mean number of versions of the weights that sampled the tokens of an episode; 1 without interruption.",
    ),
    Chart(
        title="Importance weights",
        keys=("importance/mean",),
        hint="Mean ratio of the tokens' probabilities under learner and sampler. Near 1 they are the same policy.",
    ),
    Chart(
        title="Capped importance weights, masked tokens",
        keys=("importance/capped_share", "importance/drifted_share", "importance/apart_share"),
        names=("capped", "left out as too old", "left out as too far apart"),
        unit="%",
        zero=True,
        hint="Share of tokens far likelier under the learner, or left out: the sampler is behind, or computes otherwise.",
    ),
    Chart(
        title="Simulator steps per second",
        keys=("simulator/steps_per_s",),
        zero=True,
        hint="Of all environments together, during episodes.",
    ),
    Chart(
        title="Simulator and policy",
        keys=("simulator/busy_share", "policy/idle_share"),
        names=("simulator busy", "policy waiting"),
        unit="%",
        zero=True,
        hint="Share of the sampling time in which a simulator was stepped, and in which the policy waited for one.",
    ),
    Chart(
        title="Environments lost",
        keys=("simulator/lost",),
        zero=True,
        hint="They failed, and their episodes began again. If it isn't 0, check the simulator.",
    ),
)
