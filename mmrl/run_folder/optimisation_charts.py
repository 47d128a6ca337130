"""The charts of a report on optimisation and critics."""

from __future__ import annotations

from mmrl.run_folder.chart import Chart

OPTIMISATION = (
    Chart(
        title="KL",
        keys=("kl",),
        zero=True,
        spiky=True,
        hint="To the reference model; without one, to the weights before the update, which is 0 with one epoch.",
    ),
    Chart(
        title="Weight of the KL penalty",
        keys=("kl_coef",),
        zero=True,
        hint="With kl_target it rises while the KL is above the target, and falls while it is below.",
    ),
    Chart(
        title="Optimiser steps",
        keys=("optimizer_steps",),
        zero=True,
        hint="Per step. stop_kl ends a step early, with fewer optimiser steps than mini-batches.",
    ),
    Chart(
        title="Clipped tokens",
        keys=("clip_share",),
        unit="%",
        zero=True,
        hint="Share of tokens whose ratio was clipped. Above about 20%, steps are too large.",
    ),
    Chart(
        title="Tokens chosen",
        keys=("credit/token_share", "chosen_share"),
        unit="%",
        zero=True,
        hint="Share of the trained tokens with credit, as by vppo, d3s or entropy_share, or that clip-cov and kl-cov single out.",
    ),
    Chart(
        title="Groups without spread",
        keys=("zero_std_share", "uncredited_share"),
        unit="%",
        zero=True,
        hint="All completions of the group have the same score, so it teaches nothing. Harder or easier prompts help. "
        "Uncredited: scores differ, but the algorithm has no use for them.",
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
        hint="All sampled groups; of these, those helped by a hint, with the gold completion, and of replayed prompts.",
    ),
    Chart(
        title="Groups that a smoke run changed",
        keys=("sampling/smoke_gold", "sampling/smoke_drawn"),
        zero=True,
        hint="Those that got gold completions, and those that were paid by turns, so that rewards differ.",
    ),
    Chart(
        title="Agreement of votes",
        keys=("votes/agreement",),
        unit="%",
        zero=True,
        hint="Share of a group's votes for its most frequent answer. It may rise towards a wrong one: watch evaluations.",
    ),
    Chart(
        title="Consistency",
        keys=("consistency/paid_share", "consistency/confidence"),
        unit="%",
        zero=True,
        hint="Completions with the bonus; the reference's mean probability of right answers after their thoughts.",
    ),
    Chart(title="Voters", keys=("votes/voters",), zero=True, hint="Answers of a group that could be read, and so voted."),
    Chart(
        title="Share of the prompts, by task",
        keys=("task/*/share",),
        unit="%",
        zero=True,
        several=True,
        hint="The task weights, adapted to the spread of their groups; replayed prompts come on top.",
    ),
    Chart(
        title="Place of the curriculum",
        keys=("task/*/curriculum",),
        zero=True,
        hint="Centre of the Gaussian over the task's prompts, the highest angle concentration at 0. It moves as they are solved.",
    ),
    Chart(
        title="Prompts of the epoch",
        keys=("task/*/prompts",),
        zero=True,
        hint="By epoch_filter: those that earlier epochs left in.",
    ),
    Chart(
        title="Factors of the verifiers' weights",
        keys=("task/*/weight/*",),
        zero=True,
        hint="By reweight; 1 is the weight of the run file. What no longer gets better falls below 1.",
    ),
    Chart(
        title="Labelled positive",
        keys=("condition/positive_share",),
        unit="%",
        zero=True,
        hint="Share of completions trained on with the positive condition. 0%: all of a step had the same advantage.",
    ),
    Chart(
        title="Loss",
        keys=("loss",),
        spiky=True,
        per_stage=True,
        hint="In SFT the cross-entropy, in distillation the divergence: both should fall. In RL it stays around zero.",
    ),
    Chart(
        title="Gradient norm",
        keys=("grad_norm",),
        zero=True,
        spiky=True,
        per_stage=True,
        hint="Before clipping. Rare spikes are normal, a rising baseline is not.",
    ),
    Chart(title="Learning rate", keys=("learning_rate",), zero=True, per_stage=True, hint="According to the schedule."),
    Chart(
        title="Loss scale",
        keys=("loss_scale",),
        hint="In float16, what the loss is multiplied by. Gradients that overflow halve it; at 1 the next ones end the run.",
    ),
)
CRITIC = (
    Chart(title="Values", keys=("value",), hint="Mean value that the critic predicts. It should learn to follow the reward."),
    Chart(
        title="Value loss",
        keys=("value_loss",),
        zero=True,
        spiky=True,
        hint="Error of the critic. It should fall at first; while it is large, advantages are mostly noise.",
    ),
    Chart(
        title="Clipped values",
        keys=("value_clip_share",),
        unit="%",
        zero=True,
        hint="Share of values whose update was clipped. If it is high, the critic can't keep up.",
    ),
    Chart(
        title="Gradient norm of the critic",
        keys=("grad_norm/critic",),
        zero=True,
        spiky=True,
        hint="Of the critic's own weights, before clipping.",
    ),
)
EXPERTS = (
    Chart(
        title="Routes that differ",
        keys=("experts/mismatch", "experts/changed"),
        unit="%",
        zero=True,
        hint="Experts that the learner chooses otherwise: than the sampler (mismatch), than before the step's updates (changed).",
    ),
    Chart(
        title="Busiest expert",
        keys=("experts/busiest",),
        hint="Its tokens, as a multiple of an equal share, the mean over layers. If it rises, set experts.aux_loss_coef.",
    ),
    Chart(
        title="Experts without a token",
        keys=("experts/unused_share",),
        unit="%",
        zero=True,
        hint="Of the step's trained tokens. Few tokens leave some out; many that stay out learn nothing.",
    ),
    Chart(
        title="Entropy of routers",
        keys=("experts/router_entropy",),
        zero=True,
        hint="In nats per token and layer. Near 0 a router gives all of a token's weight to one expert.",
    ),
    Chart(
        title="Losses of routers",
        keys=("experts/aux_loss", "experts/z_loss"),
        zero=True,
        hint="Without their weights. The load-balancing loss of an even load is the number of experts of a token.",
    ),
)
