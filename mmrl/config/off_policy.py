"""The keys of `[[stages]] kind = "off-policy"`, besides those of `mmrl.config.training`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.rl_sections import RuleConfig
from mmrl.config.training import Training
from mmrl.config.values import Count, Limit, Positive, Rate, Real, Section, Share, Weight

EXPERT_EPISODES = "expert"
"""The `offline` of a stage that stands for episodes of the simulator's own expert."""
RECORDED_EPISODES = "recorded"
"""The one that stands for the recorded episodes of a task with data of its own, such as `robotics/demos`."""
WAYS = ("improve", "td3", "iql", "crossq", "noise_aliasing")
"""Keys of what makes a stage learn otherwise than by a soft actor-critic of the policy's own actions."""
WITHOUT_DENSITY = ("td3", "noise_aliasing")
"""Those by which nobody learns how likely an action is."""
OF_ENTROPY = ("backup_entropy", "target_entropy", "start_temperature")
"""Keys of the soft actor-critic alone."""


class ImproveConfig(Section):
    """`[stages.improve]`: the critics choose among actions that the policy samples and move the best of them up, and the policy
    imitates what they found (Mark et al., Policy Agnostic RL, arXiv 2412.06685). For every policy that acts: its actions need
    neither a gradient by its weights nor a density."""

    candidates: Annotated[int, Field(ge=1, le=1000)] = 32
    """Actions that the policy samples for an observation."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 10
    """Candidates with the highest Q that are moved up its gradient."""
    steps: Count = 10
    """Steps of a candidate up the gradient of its Q, at most: it stops where Q no longer rises."""
    step_size: Rate = 3e-4
    """Factor of the gradient in a step."""
    updates: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Updates of the policy for each step of a simulator."""
    batch_size: Positive = 64
    """Observations of an update of the policy."""
    warmup_steps: Count = 0
    """Steps at the beginning of the stage in which only the critics learn, and the policy plays without them."""
    acts: bool = True
    """Play with the best candidate; false: with a sample of the policy."""
    acting_temperature: Weight = 0.0
    """Play with one of the kept candidates, drawn with the chances softmax(Q / acting_temperature); 0: with the best."""
    imitation_temperature: Weight = 0.0
    """The same of the action that the policy imitates."""
    data_action: bool = False
    """The memory's own action takes the place of the worst kept candidate where the policy imitates."""
    expectile: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """IQL in place of the best candidate in the critics' target: a network learns this expectile of Q over the memory's actions,
    such as 0.7, and is the value of what follows (Kostrikov et al., arXiv 2110.06169); 0: the best candidate."""
    state: Count = 0
    """Length of the simulator's state, if the critics read it too; 0: they don't. Not for `squashed`."""

    @model_validator(mode="after")
    def _keeps_what_there_is(self) -> ImproveConfig:
        if self.keep > self.candidates:
            raise ValueError(f"improve.keep = {self.keep} of candidates = {self.candidates}: give at most as many as there are")
        if self.data_action and self.keep == 1:
            raise ValueError("improve.data_action takes the place of a kept candidate, and keep = 1 would leave none: raise keep")
        if self.acting_temperature and not self.acts:
            raise ValueError("improve.acting_temperature has no effect without acts = true: set that, or drop it")
        return self


class Td3Config(Section):
    """`[stages.td3]`: a deterministic policy and noise of a fixed size, `policy.options.noise`, in place of the soft
    actor-critic (Fujimoto et al., TD3, arXiv 1802.09477; with a residual policy ResFiT, arXiv 2509.19301)."""

    target_noise: Weight = 0.2
    """Standard deviation of the noise of target actions, in units of an action."""
    noise_clip: Rate = 0.5
    """Largest noise of a target action."""
    warmup_updates: Count = 0
    """Updates of the critics alone before the first of the policy."""

    @model_validator(mode="after")
    def _what_is_set_has_an_effect(self) -> Td3Config:
        if not self.target_noise and self.noise_clip != type(self).model_fields["noise_clip"].default:
            raise ValueError("td3.noise_clip has no effect without target_noise: set that, or drop it")
        return self


class IqlConfig(Section):
    """`[stages.iql]`: IQL in place of the soft actor-critic. A network of values learns an expectile of Q over the memory's
    actions and is the value of what follows, and the policy imitates these actions, the more the better they are. No action is
    asked for that the memory doesn't have, so that offline data alone are enough (Kostrikov et al., arXiv 2110.06169)."""

    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Of Q over the memory's actions: 0.5 is their mean, near 1 their best."""
    inverse_temperature: Weight = 3.0
    """An action is imitated with the weight exp(inverse_temperature * (Q - value)); 0: all alike."""
    max_weight: Rate = 100.0
    """Largest weight of an action."""


class CrossqConfig(Section):
    """`[stages.crossq]`: CrossQ in place of a soft actor-critic with target critics. The critics have batch renormalisation in
    place of layer normalisation, and value a transition and what follows it in one pass (Bhatt et al., arXiv 1902.05605)."""

    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Share of the running moments that stays with each update."""
    warmup_updates: Count = 100_000
    """Updates of the critics, at the beginning, in which a batch is normalised by its own moments alone."""


class NoiseAliasingConfig(Section):
    """`[stages.noise_aliasing]`: DSRL-NA, for `policy.kind = "steered"`. The critics learn the value of the simulator's actions,
    so that the memory takes what others do, too; critics of noise learn from them what the base's actions are worth, for
    any noise, and the policy learns from those (Wagenmaker et al., DSRL, section 4.2, arXiv 2506.15799)."""

    updates: Annotated[int, Field(ge=1, le=1000)] = 10
    """Updates of the critics of noise for each call of the policy."""
    base_steps: Count = 0
    """Steps at the beginning of the stage that the base plays alone, with noise of its own."""


class GripperConfig(Section):
    """`[stages.gripper]`: a penalty for each action that closes an open gripper or opens a closed one, which only the gripper's
    own critic pays (Luo et al., HIL-SERL, arXiv 2410.21845). For a policy with `policy.options.gripper_choices`."""

    state: Count
    """Index of the number of the simulator's state that says how far the gripper is open or closed, from 0."""
    penalty: Rate = 0.02
    """What is taken off the reward of such an action."""
    threshold: Real = 0.9
    """The gripper is in one of its two positions where that number is above this, and in the other where it is below."""
    above: Literal["open", "closed"] = "open"
    """What the gripper is above the threshold."""


class OffPolicyStage(Training):
    """`[[stages]] kind = "off-policy"`: keep every step of the simulators, and learn from each many times, by a soft actor-critic
    with an ensemble of critics (Ball et al., RLPD, algorithm 1, arXiv 2302.02948). For policies whose actions have a gradient by
    their weights, such as `policy.kind = "squashed"`; with `improve` for every policy that acts."""

    kind: Literal["off-policy"]
    """Kind of the stage."""
    prompts_per_step: Positive = 16
    """Starts per step, each of which is played."""
    group_size: Positive = 1
    """Episodes from each start."""
    updates: Annotated[int, Field(ge=1, le=1000)] = 20
    """Updates of the critics for each step of a simulator; the policy is updated once."""
    starts_after: Count = 0
    """Steps of the simulators before the first update."""
    offline_steps: Count = 0
    """Steps at the beginning of the stage that play nothing: each makes `offline_updates` updates from the offline data. With as
    many as `steps` the stage learns offline alone."""
    offline_updates: Positive = 1000
    """Updates of the policy in such a step, and `updates` of the critics for each."""
    explore_steps: Count = 0
    """Steps at the beginning of the stage in which what is paid is the distance of a state to its fifth neighbour in the memory,
    in standard deviations; the critics then begin anew (Lee et al., PEBBLE, arXiv 2106.05091)."""
    learning_rate: Rate = 3e-4
    """Learning rate after the warm-up, of the policy and of its temperature."""
    critic_learning_rate: Rate | None = None
    """That of the critics; by default the same."""
    max_grad_norm: Limit = math.inf
    """Gradients with a larger norm are scaled down to this; inf: never."""
    batch_size: Positive = 256
    """Transitions of an update."""
    interventions: Share = 0.0
    """Share of the episodes in which the simulator's expert takes over at some step, as a person would. What another carries out,
    this expert or a person in the environment, is also kept with the offline data (HIL-SERL, arXiv 2410.21845)."""
    # the memory
    capacity: Annotated[int, Field(ge=1, le=10**8)] = 100_000
    """Transitions that are remembered, the newest."""
    gamma: Share = 0.99
    """Discount of a step."""
    n_step: Annotated[int, Field(ge=1, le=1000)] = 1
    """Rewards of a return before the critic's value."""
    priority: Share = 0.0
    """Draw transitions by their error to the power of this, such as 0.6; 0: all alike (Schaul et al., Prioritized Experience
    Replay, arXiv 1511.05952)."""
    priority_correction: Share = 0.4
    """Power of the importance weights that correct `priority`."""
    offline: str = ""
    """What is learned from besides: the memory of another run, such as `runs/NAME/checkpoints/step-.../memory.safetensors`; or
    `expert`: episodes of the simulator's own expert; or `recorded`: those of a task's data, such as `robotics/demos` with its
    option `paid`. Empty: nothing."""
    offline_episodes: Positive = 100
    """Number of episodes, with `offline = "expert"` or `"recorded"`; of those that were recorded at most."""
    offline_share: Share = 0.5
    """Share of a batch that is offline, if `offline` is set."""
    # the critics
    critics: Annotated[int, Field(ge=1, le=100)] = 10
    """Number of critics."""
    subset: Annotated[int, Field(ge=1, le=100)] = 2
    """Critics whose lowest value is the target, drawn anew in each update (Chen et al., REDQ, arXiv 2101.05982)."""
    hidden: Annotated[list[Positive], Field(min_length=1)] = [256, 256]
    """Widths of a critic's hidden layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a critic's hidden numbers that are dropped where it learns and is learned from, such as 0.01 with two critics
    (Hiraoka et al., DroQ, arXiv 2110.02034); 0: none."""
    bins: Annotated[int, Field(ge=0, le=4096)] = 0
    """Predict a distribution over this many bins of returns by cross-entropy instead of a number, such as 51; 0: a number."""
    low: Real = -1.0
    """Lowest return of the bins."""
    high: Real = 1.0
    """Highest return of the bins."""
    smoothing: Rate = 0.75
    """Standard deviation of the Gaussian around a return that the bins learn, in bins."""
    target_rate: Annotated[float, Field(gt=0, le=1)] = 5e-3
    """Share by which the target critics move towards the critics in each update."""
    conservative: Weight = 0.0
    """Weight of Cal-QL's penalty of actions that the data don't have, such as 5 (Nakamoto et al., arXiv 2303.05479)."""
    conservative_calibrated: bool = True
    """Push no Q below the return of the data's action; false: CQL's penalty (Kumar et al., CQL, arXiv 2006.04779)."""
    conservative_samples: Annotated[int, Field(ge=1, le=1000)] = 4
    """Actions sampled for it, of the policy and at random each."""
    # the entropy
    backup_entropy: bool = False
    """Add the policy's entropy to the target's value."""
    target_entropy: Real | None = None
    """Entropy of an action that the temperature aims at, in nats; by default minus half the numbers of an action."""
    start_temperature: Rate = 1.0
    """Weight of the entropy at the beginning."""
    # sections
    rules: list[RuleConfig] = []
    """Sampling rules of plugins that pay, in the order in which they are applied. What one that learns pays is corrected in the
    whole memory whenever it has learned (RL-VLM-F, arXiv 2402.03681)."""
    improve: ImproveConfig | None = None
    """PA-RL in place of the soft actor-critic: imitate the best actions that the critics find."""
    td3: Td3Config | None = None
    """TD3 in place of the soft actor-critic."""
    iql: IqlConfig | None = None
    """IQL in place of the soft actor-critic."""
    crossq: CrossqConfig | None = None
    """CrossQ: critics with batch normalisation and without target critics."""
    noise_aliasing: NoiseAliasingConfig | None = None
    """DSRL-NA: critics of the simulator's actions, and critics of noise that learn from them. For `steered`."""
    gripper: GripperConfig | None = None
    """What the gripper's own critic pays for each change of the gripper."""

    @property
    def expectile(self) -> float:
        """That of IQL's values; 0 where the critics aren't IQL's."""
        if self.iql:
            return self.iql.expectile
        return self.improve.expectile if self.improve else 0.0

    @property
    def way(self) -> str:
        """The key of how the policy learns, if it isn't a soft actor-critic."""
        return next((key for key in WAYS if getattr(self, key)), "")

    def smaller(self) -> OffPolicyStage:
        small = super().smaller().at_most(updates=2, starts_after=0, explore_steps=1, critics=4, subset=2)
        if small.offline_steps:
            small = small.at_most(offline_steps=1, offline_updates=2)
        if small.improve:
            few = small.improve.at_most(candidates=4, keep=2, steps=2, batch_size=4, warmup_steps=0)
            small = small.model_copy(update={"improve": few.model_copy(update={"updates": min(few.updates, 0.5)})})
        if small.td3:
            small = small.model_copy(update={"td3": small.td3.at_most(warmup_updates=2)})
        if small.noise_aliasing:
            small = small.model_copy(update={"noise_aliasing": small.noise_aliasing.at_most(updates=2, base_steps=1)})
        if self.interventions:  # or by chance nobody takes over in so few episodes
            small = small.model_copy(update={"interventions": 1.0})
        return small.at_most(offline_episodes=2) if self.offline in (EXPERT_EPISODES, RECORDED_EPISODES) else small

    @model_validator(mode="after")
    def _sizes_fit_each_other(self) -> OffPolicyStage:
        if self.subset > self.critics:
            raise ValueError(f"subset = {self.subset} of critics = {self.critics}: give at most as many as there are")
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}: give the range of returns")
        if self.bins == 1:
            raise ValueError("bins = 1 can't tell returns apart: give at least 2, such as 51, or 0 for a number")
        if self.explore_steps >= self.steps:
            raise ValueError(f"explore_steps = {self.explore_steps} of steps = {self.steps} leaves none for the reward: lower it")
        if self.explore_steps and (self.n_step > 1 or self.conservative):
            raise ValueError("explore_steps replaces the reward of single steps: set n_step = 1 and conservative = 0")
        if self.noise_aliasing and self.noise_aliasing.base_steps >= self.steps:
            raise ValueError(
                f"noise_aliasing.base_steps = {self.noise_aliasing.base_steps} of steps = {self.steps} leaves none for the "
                "policy: lower it"
            )
        if self.gripper and self.n_step > 1:
            raise ValueError("gripper.penalty is of single steps: set n_step = 1")
        if self.starts_after >= self.capacity:
            raise ValueError(f"starts_after = {self.starts_after} is above capacity = {self.capacity}: lower it")
        return self

    @model_validator(mode="after")
    def _what_is_set_has_an_effect(self) -> OffPolicyStage:
        if self.interventions and self.improve and self.improve.acts:
            raise ValueError(
                "interventions: with improve.acts the critics choose in place of the policy: set improve.acts = false"
            )
        if len(ways := [key for key in WAYS if getattr(self, key)]) > 1:
            raise ValueError(f"{ways[0]} and {ways[1]} are two ways in which a policy learns: drop one of them")
        way = self.way
        soft = way in ("", "crossq", "noise_aliasing")
        needs = {
            "offline_episodes": (
                self.offline in (EXPERT_EPISODES, RECORDED_EPISODES),
                f'offline = "{EXPERT_EPISODES}" or "{RECORDED_EPISODES}"',
            ),
            "offline_share": (bool(self.offline or self.interventions), "offline"),
            "priority_correction": (bool(self.priority), "priority"),
            **{key: (bool(self.conservative), "conservative") for key in ("conservative_samples", "conservative_calibrated")},
            "dropout": (not way, f"a soft actor-critic with layer normalisation, and {way} is another way"),
            **{key: (bool(self.bins), "bins") for key in ("low", "high", "smoothing")},
            "offline_updates": (bool(self.offline_steps), "offline_steps"),
            **{key: (soft, f"a soft actor-critic, and {way} is another way") for key in OF_ENTROPY},
            **{key: (not self.expectile, f"other critics than IQL's ({way})") for key in ("subset", "conservative")},
            **({"conservative": (False, f"a density of actions, and {way} has none")} if way in WITHOUT_DENSITY else {}),
            "target_rate": (way != "crossq", "target critics, and crossq has none"),
        }
        for key, (read, of) in needs.items():
            if not read and getattr(self, key) != type(self).model_fields[key].default:  # a run folder's file has all keys
                raise ValueError(f"{key} has no effect without {of}: set that, or drop it")
        if self.conservative and self.crossq:
            raise ValueError(
                "conservative asks critics for actions that no batch has, and crossq needs its moments: drop one of them"
            )
        if self.offline_steps and not self.offline:
            raise ValueError("offline_steps learn from offline data: set offline, or drop them")
        if self.offline_steps and self.explore_steps:
            raise ValueError("explore_steps are paid for what is new among played states, and offline_steps play none: drop one")
        if self.offline_steps > self.steps:
            raise ValueError(f"offline_steps = {self.offline_steps} of steps = {self.steps}: give at most as many as there are")
        if self.offline and not self.offline_share:
            raise ValueError("offline_share = 0 reads nothing of offline: raise it, or drop offline")
        return self
