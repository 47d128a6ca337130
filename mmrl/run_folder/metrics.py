"""The catalogue of metrics: the charts of a report with their titles and hints, and the reductions of metrics over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.run_folder.chart import Chart
from mmrl.run_folder.health_charts import HEALTH
from mmrl.run_folder.optimisation_charts import CRITIC, EXPERTS, OPTIMISATION

if TYPE_CHECKING:  # torch would make a report slow to start
    from mmrl.compute.ranks import Reduction


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
                hint="Mean score of each verifier, before weighting. If only one part rises, the policy may exploit it.",
            ),
            Chart(
                title="Reward by part, of each task",
                keys=("task/*/reward/*",),
                zero=True,
                several=True,
                hint="The same for each task: a part may be easy in one task and out of reach in another.",
            ),
            Chart(
                title="Reward by task",
                keys=("task/*/reward",),
                zero=True,
                several=True,
                hint="If one task falls while others rise, training on them harms it.",
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
                hint="In tokens. If it rises steadily and the reward doesn't, the policy is padding.",
            ),
            Chart(title="Completion length by task", keys=("task/*/length",), zero=True, several=True, hint="Mean, in tokens."),
            Chart(
                title="Cut off",
                keys=("length/truncated_share",),
                unit="%",
                zero=True,
                hint="Share of episodes that were truncated by a limit of length, turns or time. If it is high, raise the limit.",
            ),
            Chart(
                title="Entropy",
                keys=("entropy",),
                zero=True,
                hint="In nats per token. Near zero the policy has stopped exploring.",
            ),
            Chart(
                title="Same answer to different prompts",
                keys=("answers/most_common_share",),
                unit="%",
                zero=True,
                hint="Share of groups with the same most common completion. Near 100% the policy ignores the images.",
            ),
            Chart(
                title="Success of episodes",
                keys=("episode/success", "episode/success_at_end"),
                names=("at any time", "at the end"),
                unit="%",
                zero=True,
                hint="Of sampled actions, so lower than evaluations with greedy actions. At the end: in the last state.",
            ),
            Chart(
                title="Steps of an episode",
                keys=("episode/steps", "policy/calls"),
                names=("steps", "calls of the policy"),
                zero=True,
                hint="Mean numbers, and of calls of the policy, fewer with chunks. Fewer steps for the same success are better.",
            ),
            Chart(
                title="Return",
                keys=("episode/return", "episode/reward", "episode/raw_reward"),
                names=("return", "reward", "without the decay"),
                hint="Sum of the rewards of the simulator or page in an episode; raw: without the decay over time.",
            ),
            Chart(
                title="Turns that were refused",
                keys=("episode/refused",),
                zero=True,
                hint="Mean number per episode: the answer was no action, or an action that is impossible in the state.",
            ),
            Chart(
                title="Episodes in which another took over",
                keys=("episode/intervened", "episode/intervened_share"),
                names=("episodes", "steps"),
                unit="%",
                zero=True,
                hint="Their share, and that of the steps of an episode. It should fall as the policy gets better.",
            ),
            Chart(
                title="Success without help",
                keys=("episode/success_alone",),
                unit="%",
                zero=True,
                hint="Of the episodes in which nobody took over.",
            ),
            Chart(
                title="Episodes lost",
                keys=("environment/lost",),
                zero=True,
                hint="Their environment failed, so they are left out. If it isn't 0, read the warnings of the run.",
            ),
            Chart(
                title="Parts of the task",
                keys=("episode/*",),
                zero=True,
                hint="Best value of each part within an episode, on average.",
            ),
            Chart(
                title="Turns",
                keys=("turns/mean",),
                zero=True,
                hint="Mean number per episode. Fewer turns for the same reward are better.",
            ),
            Chart(
                title="Turns whose state was met again",
                keys=("turns/met_again_share",),
                unit="%",
                zero=True,
                hint="By another turn of the group. At 0% gigpo is GRPO: let the environment name its states.",
            ),
        ),
    ),
    ("Optimisation", OPTIMISATION),
    ("Critic", CRITIC),
    (
        "Off-policy learning",
        (
            Chart(title="Remembered transitions", keys=("off_policy/transitions",), zero=True, hint="At most stages.capacity."),
            Chart(title="Offline transitions", keys=("off_policy/offline",), zero=True, hint="With those of who took over."),
            Chart(title="Updates of the critics", keys=("off_policy/updates",), zero=True, hint="In a step of the stage."),
            Chart(title="Temperature", keys=("off_policy/temperature",), zero=True, hint="Weight of the entropy."),
            Chart(
                title="Size of actions",
                keys=("off_policy/action_size",),
                zero=True,
                hint="Or of a residual policy's corrections.",
            ),
            Chart(title="Cal-QL's penalty", keys=("off_policy/conservative",), hint="Of actions that the data don't have."),
            Chart(title="Gain of what is imitated", keys=("off_policy/gain",), hint="In Q, over the policy's samples."),
            Chart(title="Novelty", keys=("off_policy/novelty",), zero=True, hint="Of states, while the policy explores."),
            Chart(title="Loss of IQL's values", keys=("off_policy/expectile_loss",), zero=True, hint="Of an expectile of Q."),
            Chart(title="Actions above the value", keys=("off_policy/above_value",), zero=True, hint="Of the memory's, by Q."),
            Chart(title="Weight of imitated actions", keys=("off_policy/imitated_weight",), zero=True, hint="IQL's, on average."),
            Chart(title="Loss of the critics of noise", keys=("off_policy/noise_value_loss",), zero=True, hint="DSRL-NA's."),
            Chart(title="Updates of the policy", keys=("off_policy/imitations",), zero=True, hint="In a step of the stage."),
            Chart(title="Loss of the gripper's critic", keys=("off_policy/gripper_loss",), zero=True, hint="Of its own Qs."),
            Chart(
                title="Changes of the gripper",
                keys=("off_policy/gripper_changes",),
                unit="%",
                zero=True,
                hint="Share of what was learned from that closes an open gripper or opens a closed one.",
            ),
        ),
    ),
    (
        "Critics of turns",
        (
            Chart(title="Remembered turns", keys=("turn_critic/remembered",), zero=True, hint="At most turn_critic.capacity."),
            Chart(
                title="Error of the turns' values",
                keys=("turn_critic/value_error",),
                zero=True,
                hint="On episodes not yet learned from. While it is as large as the rewards differ, advantages are mostly noise.",
            ),
            Chart(title="New answers", keys=("turn_critic/answered",), zero=True, hint="To remembered observations."),
            Chart(
                title="Loss of the tokens' baseline",
                keys=("turn_critic/baseline_loss",),
                zero=True,
                hint="It should fall below half the variance of the answers' advantages.",
            ),
            Chart(title="Tokens' baseline", keys=("turn_critic/baseline",), hint="The mean advantage that it foresees, near 0."),
            Chart(
                title="Gradient of the baseline",
                keys=("turn_critic/baseline_grad_norm",),
                zero=True,
                hint="Its norm, before it is clipped to critic.max_grad_norm.",
            ),
            Chart(title="Replayed episodes", keys=("turn_critic/replayed",), zero=True, hint="At most turn_critic.replay."),
            Chart(
                title="Imitated tokens of them",
                keys=("turn_critic/imitated_share",),
                unit="%",
                zero=True,
                hint="Those of turns that the step filter keeps.",
            ),
        ),
    ),
    (
        "HG-DAgger",
        (Chart(title="Calls that are imitated", keys=("hg_dagger/calls",), zero=True, hint="Others carried them out."),),
    ),
    (
        "RECAP",
        (
            Chart(title="Error of the values", keys=("recap/value_error",), zero=True, hint="On episodes not yet learned from."),
            Chart(title="Order of the values", keys=("recap/value_order",), unit="%", hint="50%: they know nothing."),
            Chart(title="Calls that are learned from", keys=("recap/calls",), zero=True, hint="Of all episodes."),
            Chart(
                title="Positive and corrected",
                keys=("recap/above_share", "recap/corrected_share"),
                names=("positive", "corrected"),
                unit="%",
                zero=True,
                hint="Of the policy's own calls, and of all.",
            ),
        ),
    ),
    (
        "Preferences",
        (
            Chart(
                title="Pairs the right way round",
                keys=("preference/accuracy",),
                unit="%",
                zero=True,
                hint="Share of the step's pairs whose preferred side has the larger reward. It should rise above 50%.",
            ),
            Chart(
                title="Margin of pairs",
                keys=("preference/margin",),
                hint="Mean reward of the preferred sides minus that of the rejected ones, in the units of the loss.",
            ),
            Chart(
                title="Rewards of both sides",
                keys=("preference/reward_*",),
                hint="By the loss: of a policy from its log-probabilities, of a reward model its rating. They should part.",
            ),
            Chart(
                title="Log-probability of both sides",
                keys=("preference/logprob_*",),
                hint="Of a whole completion, in nats. If that of the preferred side falls, set nll_weight.",
            ),
            Chart(
                title="Weight of pairs",
                keys=("preference/weight",),
                zero=True,
                hint="By how likely the policy is to write both sides (WPO). Near 0 nothing is learned.",
            ),
            Chart(title="KL of KTO", keys=("preference/kl",), zero=True, hint="KTO's reference point, in nats a completion."),
            Chart(
                title="Pairs", keys=("preference/pairs",), zero=True, hint="Pairs in the step: groups with spread, if sampled."
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
                hint="Weight of their loss; the algorithm's loss has the rest.",
            ),
            Chart(
                title="Loss of gold completions",
                keys=("imitation/loss",),
                zero=True,
                spiky=True,
                hint="Their part of the loss, with its weight.",
            ),
        ),
    ),
    (
        "Images seen, masked and noisy",
        (
            Chart(
                title="Divergence from what it says of masked images",
                keys=("perception/kl",),
                zero=True,
                spiky=True,
                hint="In nats a token. It should rise slowly; a jump to values near 10 is a collapse: lower perception.coef.",
            ),
            Chart(
                title="Reward by image",
                keys=("noisy/clean_reward", "noisy/reward"),
                names=("clean", "noisy"),
                hint="Of completions of clean and of noisy images.",
            ),
            Chart(title="Level of noise", keys=("noisy/level",), zero=True, hint="Steps of diffusion, of 1,000."),
        ),
    ),
    ("Experts", EXPERTS),
    ("Health and speed", HEALTH),
)
REDUCTIONS: dict[str, Reduction] = {
    "environment/lost": "sum",
    "simulator/steps": "sum",
    "simulator/lost": "sum",
    "simulator/steps_per_s": "sum",
    "simulator/busy_share": "mean",
    "policy/idle_share": "mean",
}
"""Metric -> its reduction over learners; other metrics are averaged."""
PARTS = ("generate", "update", "judge", "process", "other", "evaluate", "wait")
"""Parts of a step's time, in the order of their colours."""
HIDDEN = ("time/step", "simulator/steps")  # the sum of the stacked chart; steps_per_s is derived from steps
