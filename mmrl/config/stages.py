"""The kinds of stages: the keys of `[[stages]]` of each, besides those of `mmrl.config.training`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mmrl.config.condition import ConditionConfig
from mmrl.config.experts import ExpertsConfig
from mmrl.config.hg_dagger import HgDaggerStage
from mmrl.config.off_policy import OffPolicyStage
from mmrl.config.preferences import PreferenceStage
from mmrl.config.recap import RecapStage
from mmrl.config.rl_sections import (
    AdaptiveEntropyConfig,
    ConsistencyConfig,
    CriticConfig,
    CurriculumConfig,
    EntropyConfig,
    EpochFilterConfig,
    ImitationConfig,
    LengthConfig,
    NoisyConfig,
    PerceptionConfig,
    ReweightConfig,
    RuleConfig,
)
from mmrl.config.training import ComparedTraining, SampledTraining, Training
from mmrl.config.turn_critic import TurnCriticConfig
from mmrl.config.values import Count, Free, Place, Positive, Rate, Real, Share, Source, Weight


class SftStage(Training):
    """`[[stages]] kind = "sft"`: imitate the tasks' gold completions."""

    kind: Literal["sft"]
    """Kind of the stage."""
    batch_size: Positive = 32
    """Examples per step."""
    learning_rate: Rate = 1e-5
    """Learning rate after the warm-up."""
    token_weights: Literal["equal", "probability"] = "equal"
    """`probability`: weight each gold token by its own probability, without a gradient through it, so that very unlikely tokens
    don't dominate the gradient (Wu et al., DFT, arXiv 2508.05629)."""
    experts: ExpertsConfig | None = None
    """The routers of a mixture of experts."""


class RlStage(ComparedTraining):
    """`[[stages]] kind = "rl"`: reinforcement learning from sampled and scored completions."""

    kind: Literal["rl"]
    """Kind of the stage."""
    prompts_per_step: Positive = 16
    """Prompts per step; with `labels = "co-reward"`, their rephrased forms are sampled in addition."""
    group_size: Positive = 8
    """Number of completions per prompt."""
    algorithm: str = "grpo"
    """Id of the algorithm, see `mmrl list algorithms`."""
    settings: Free = {}
    """Settings of the algorithm's advantage and loss, and `normalise` and `constant`; see `mmrl list algorithms ID`."""
    teacher: Place = ""
    """A folder or hub name of a checkpoint with the same vocabulary, for an algorithm that also learns from a teacher, such as
    `kdrl`."""
    epochs: Positive = 1
    """Number of passes over each step's completions; from the second on, the ratio is clipped."""
    minibatches: Positive = 1
    """Number of mini-batches, and so of optimiser steps, per pass. Each has its share of the prompts, whose groups stay whole,
    or, with a policy that acts, of its calls."""
    stop_kl: Rate | None = None
    """Skip the update of a mini-batch, and the step's later ones, if it shows a larger KL to the sampling policy than this, in
    nats per unit of `ratio`."""
    credit: Literal["token", "action", "chunk", "turn"] = "token"
    """Unit of a critic's values and of advantages. A turn of a conversation and a chunk of actions are one call of the policy
    each."""
    ratio: Literal["token", "action", "chunk"] = "token"
    """Unit of the probability ratio in simulators: each token of an action, the action, or the whole chunk, whose
    log-probabilities are summed. For conversations it is always `token`."""
    state_similarity: Annotated[Real, Field(gt=0, le=1)] = 1.0
    """For `gigpo`: turns of a group began in the same state if all pictures are equal and the texts at least so similar, by the
    ratio of Python's `difflib.SequenceMatcher`; 1: equal."""
    entropy_coef: Weight = 0.0
    """Weight of an entropy bonus per token."""
    entropy_penalty: Weight = 0.0
    """Weight of -log p of each sampled token, which the loss makes smaller: an estimate of the entropy (PAPO, VPPO)."""
    importance_sampling: Literal["off", "truncate", "mask"] = "off"
    """Correct for differences between the sampler's and the learner's probabilities: weight tokens by their ratio, truncated at
    `importance_sampling_cap`, or mask tokens above the cap."""
    importance_sampling_cap: Annotated[Real, Field(ge=1)] = 2.0
    """See `importance_sampling`."""
    importance_sampling_floor: Share = 0.0
    """The least weight of `importance_sampling = "truncate"`; with `"mask"` tokens below it are left out as well."""
    importance_sampling_level: Literal["token", "sequence", "geometric"] = "token"
    """`sequence`: the ratio is that of the whole completion, the product of its tokens', and so is what is masked; `geometric`:
    it is the geometric mean of its tokens', which doesn't grow with the length; both for policies that write."""
    importance_sampling_normalise: bool = False
    """Divide the weights of `importance_sampling` by their mean over the step, so that truncating or masking them doesn't change
    the size of the update: self-normalised importance sampling (verl, `rollout_is_batch_normalize`)."""
    off_policy_mask: Rate | None = None
    """Leave out completions with a negative advantage that the policy has left: the mean over their tokens of the sampler's
    log-probability less the current one is above this, in nats (DeepSeek-V3.2, arXiv 2512.02556); for policies that write."""
    gap_mask: Rate | None = None
    """Leave out completions whose probabilities before the update differ from the sampler's by more than this, in either
    direction: the mean of their tokens' log-ratios, in nats; for policies that write."""
    gap_estimator: Literal["k1", "k2", "k3"] = "k1"
    """What `gap_mask` compares: the estimator of the KL of the sampler from the learner. The log-ratios of k1 may cancel out,
    the other two are never negative (verl's `rollout_rs`)."""
    gap_level: Literal["mean", "sum", "max", "token"] = "mean"
    """Of what `gap_mask` takes it: the mean, the sum or the largest of a completion's tokens, or each token, which is then left
    out alone."""
    ratio_to: Literal["learner", "sampler"] = "learner"
    """What the probability ratio of the loss divides by: the policy's probability before the step's first update, or that with
    which the token was sampled, so that the ratio also corrects for another sampler and for older weights."""
    # the KL penalty
    kl_coef: Weight = 0.0
    """Weight of the KL penalty against the reference model; 0: no penalty."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL from the sampled tokens (Schulman, Approximating KL). In the loss, k1 has no gradient on average."""
    kl_bias_correction: bool = False
    """Multiply the KL in the loss by the probability ratio, gradient included: with k3 the gradient is then that of KL(policy ||
    reference), also off-policy (DeepSeek-V3.2, arXiv 2512.02556). TRL's default."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss, or subtract it from the reward of each token."""
    kl_target: Rate | None = None
    """Adapt `kl_coef` to keep the KL near this, in nats per token (Ziegler et al. 2019); by default it is fixed."""
    kl_horizon: Rate = 10.0
    """How slowly `kl_coef` adapts: per step by at most 0.2 / kl_horizon of its value."""
    reference: Literal["auto", "frozen", "adapter", "none"] = "auto"
    """The reference model of the KL penalty: `frozen`, a copy from the beginning of the stage; `adapter`, the model with its
    adapters off; `auto`, the latter if there are adapters."""
    # which completions are trained on
    success_threshold: Real = 0.5
    """A completion succeeds if its reward is at least this; used by the keys below and for pass@k."""
    dynamic_sampling: Count = 0
    """Largest number of rounds in which groups that are left out (equal rewards, or by the keys below) are replaced by groups of
    other prompts (DAPO)."""
    min_success_rate: Share = 0.0
    """Leave out groups with a smaller share of successes."""
    max_success_rate: Share = 1.0
    """Leave out groups with a larger share of successes."""
    oversample: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Sample this many times the prompts, and keep the groups whose rewards vary most."""
    overlong: Literal["keep", "mask"] = "keep"
    """Truncated completions: train on them, or mask them (their rewards still count in their group)."""
    overlong_buffer: Share = 0.0
    """The last share of `max_tokens`, over which the reward falls linearly by `overlong_penalty` (DAPO)."""
    overlong_penalty: Weight = 1.0
    """See `overlong_buffer`."""
    hints: Literal["none", "guide", "ghpo"] = "none"
    """If a whole group fails, sample it again with a part of the gold completion in the prompt, and train on the answers without
    the hint, with importance weights (`guide`), or with the hint (`ghpo`)."""
    hint_shares: list[Annotated[Real, Field(gt=0, le=1)]] = [0.25, 0.5, 0.75]
    """Shares of the gold completion in a hint, tried in turn until a completion succeeds."""
    ground_truth: Literal["never", "when-failed", "always"] = "never"
    """Add the gold completion to the group as a further rollout; if a sampled one is as good, it is not trained on (ViSurf)."""
    ground_truth_without: list[str] = []
    """Verifiers that don't score the gold completion, such as one for a thinking format that labels lack (ViSurf)."""
    labels: Literal["task", "majority", "ttrv", "co-reward"] = "task"
    """Source of the reward: `task`, the task's answers; or without answers: `majority`, the group's majority; `ttrv`, an answer's
    frequency minus the entropy of answers (TTRV); `co-reward`, the majority on a rephrased prompt (Co-Reward)."""
    voters: Annotated[float, Field(ge=1, le=64)] = 1.0
    """Completions that vote with `labels = "majority"` or `"ttrv"`, as a multiple of those that are trained on: 2 samples as many
    again, which only vote (TTRL, TTRV)."""
    # which prompts are sampled
    adapt_task_weights: Literal["none", "variance"] = "none"
    """`variance`: during the stage, weight tasks by the share of their recent groups with different rewards."""
    replay_share: Share = 0.0
    """Share of the prompts that are taken from prompts that failed before."""
    replay_buffer_size: Positive = 256
    """Number of failed prompts that are remembered, the newest."""
    curriculum: CurriculumConfig | None = None
    """Draw prompts by their angle concentration."""
    epoch_filter: EpochFilterConfig | None = None
    """Leave prompts out of later epochs that are easy by then."""
    critic: CriticConfig | None = None
    """The value function; an algorithm that needs one gets the defaults."""
    turn_critic: TurnCriticConfig | None = None
    """Critics of whole turns in place of it, which learn from a memory. With `archer`, `critic` beside them is a baseline for
    tokens (Zhou et al., ArCHer, arXiv 2402.19446)."""
    imitation: ImitationConfig | None = None
    """Also train on gold completions."""
    adaptive_entropy: AdaptiveEntropyConfig | None = None
    """Adapt `entropy_coef`, so that the entropy doesn't fall below a target."""
    entropy_control: EntropyConfig | None = None
    """Hold the entropy at a target."""
    condition: ConditionConfig | None = None
    """Train with the quality of the completion in the prompt."""
    perception: PerceptionConfig | None = None
    """Compare with a policy that sees less of the images."""
    noisy: NoisyConfig | None = None
    """Add completions that were sampled from noisy images."""
    consistency: ConsistencyConfig | None = None
    """A bonus for right answers that follow from their thoughts, as a reference model sees them."""
    rules: list[RuleConfig] = []
    """Sampling rules of plugins, in the order in which they are applied."""
    length: LengthConfig | None = None
    """A bonus for correct answers of a certain length."""
    reweight: ReweightConfig | None = None
    """Weigh the verifiers anew in each step."""
    experts: ExpertsConfig | None = None
    """The routers of a mixture of experts, and the routes of tokens through it."""

    @property
    def refers(self) -> bool:
        """Whether a reference model is compared with."""
        return bool(self.kl_coef or self.consistency)

    @property
    def asks_routes(self) -> bool:
        """Whether the sampler tells which experts it chose."""
        return self.experts is not None and self.experts.asks_sampler

    def smaller(self) -> RlStage:
        smaller = super().smaller()
        if self.minibatches > self.prompts_per_step:  # which policies that act may have, and others not
            smaller = smaller.model_copy(update={"minibatches": smaller.prompts_per_step + 1})
        sections = {key: found.smaller() for key in ("critic", "turn_critic", "length") if (found := getattr(self, key))}
        return smaller.model_copy(update=sections)

    @model_validator(mode="after")
    def _rules_leave_something(self) -> RlStage:
        low, high = self.min_success_rate, self.max_success_rate
        if low > high:
            raise ValueError(f"min_success_rate = {low:g} is above max_success_rate = {high:g}, so no group is left: swap them")
        if low == high and low in (0.0, 1.0):
            raise ValueError(
                f"min_success_rate = max_success_rate = {low:g} leaves only groups of equal success, no gradient: widen the range"
            )
        if self.hints != "none" and not self.hint_shares:
            raise ValueError(f'hints = "{self.hints}" and hint_shares = [], so there is no hint: give shares, such as [0.5]')
        if self.labels != "task":
            for key, off in (("hints", "none"), ("ground_truth", "never")):
                if (found := getattr(self, key)) != off:
                    raise ValueError(
                        f'{key} = "{found}" needs gold completions and labels = "{self.labels}" trains without them: drop one'
                    )
            if self.length and self.length.verifier:
                raise ValueError(f'length.verifier is never called with labels = "{self.labels}": drop one of them')
            if self.epoch_filter and self.epoch_filter.verifier:
                raise ValueError(f'epoch_filter.verifier is never called with labels = "{self.labels}": drop one of them')
            if self.reweight:
                raise ValueError(f'reweight weighs verifiers, which labels = "{self.labels}" never calls: drop one of them')
        if self.voters > 1 and self.labels not in ("majority", "ttrv"):
            raise ValueError(
                f'voters = {self.voters:g} vote only with labels = "majority" or "ttrv", not "{self.labels}": drop it'
            )
        for key, changed in (("hints", self.hints == "ghpo"), ("labels", self.labels == "co-reward")):
            if self.condition and changed:
                raise ValueError(
                    f'condition and {key} = "{getattr(self, key)}" both change the prompts that are trained on: drop one'
                )
        return self

    @model_validator(mode="after")
    def _the_sampler_is_corrected_for_once(self) -> RlStage:
        if self.ratio_to == "sampler" and self.importance_sampling != "off":
            raise ValueError(
                f'ratio_to = "sampler" and importance_sampling = "{self.importance_sampling}" correct for the same: drop one'
            )
        return self

    @model_validator(mode="after")
    def _turn_critics_say_what_is_learned_from(self) -> RlStage:
        for key in ("imitation", "entropy_control", "condition", "perception", "noisy", "consistency"):
            if self.turn_critic and getattr(self, key):
                raise ValueError(f"{key} changes what the policy learns from, and so does turn_critic: drop one of them")
        return self

    @model_validator(mode="after")
    def _images_are_changed_for_what_is_trained(self) -> RlStage:
        if self.perception and self.condition:
            raise ValueError("perception is a part of the algorithm's loss, and condition only imitates: drop one of them")
        if self.noisy and self.labels != "task":
            raise ValueError(f'noisy answers would vote too with labels = "{self.labels}": drop one of them')
        if self.noisy and self.noisy.ratio == "clean" and self.hints == "guide":
            raise ValueError(
                'noisy.ratio = "clean" would count hinted answers as if sampled without a hint: set ratio = "sampled", or drop '
                'hints = "guide"'
            )
        if self.entropy_penalty and self.entropy_coef:
            raise ValueError("entropy_penalty makes the entropy smaller and entropy_coef larger: drop one of them")
        return self

    @model_validator(mode="after")
    def _the_entropy_has_one_rule(self) -> RlStage:
        rule = self.adaptive_entropy
        for key in ("entropy_control", "entropy_penalty", "condition"):
            if rule and getattr(self, key):
                why = "only imitates" if key == "condition" else "steers the entropy too"
                raise ValueError(f"adaptive_entropy is a bonus in the algorithm's loss, and {key} {why}: drop one of them")
        if rule and not rule.least <= self.entropy_coef <= rule.most:
            raise ValueError(
                f"entropy_coef = {self.entropy_coef:g} is where adaptive_entropy begins, and not in adaptive_entropy.least = "
                f"{rule.least:g} to adaptive_entropy.most = {rule.most:g}: change one of them"
            )
        return self

    @model_validator(mode="after")
    def _curriculum_is_the_order(self) -> RlStage:
        if self.curriculum and self.order != "shuffled":
            raise ValueError(f'order = "{self.order}" and curriculum are two orders of the prompts: drop one')
        if self.curriculum and self.replay_share:
            raise ValueError(
                f"replay_share = {self.replay_share:g} draws prompts again that curriculum has left behind: drop one"
            )
        if self.epoch_filter and self.curriculum:
            raise ValueError("curriculum has no epochs whose prompts epoch_filter could leave out: drop one")
        if self.epoch_filter and self.replay_share:
            raise ValueError(f"replay_share = {self.replay_share:g} draws prompts again that epoch_filter leaves out: drop one")
        return self

    @model_validator(mode="after")
    def _kl_has_what_it_needs(self) -> RlStage:
        if self.kl_coef and self.reference == "none":
            raise ValueError(f'kl_coef = {self.kl_coef:g} needs a reference model: drop reference = "none" or set kl_coef = 0')
        if self.consistency and self.reference == "none":
            raise ValueError('consistency asks a reference model: drop reference = "none" or consistency')
        if self.consistency and self.labels != "task" and self.consistency.verifier:
            raise ValueError(f'consistency.verifier is never called with labels = "{self.labels}": drop one of them')
        if self.imitation and self.entropy_control:
            raise ValueError("imitation and entropy_control both add completions to the loss: drop one of them")
        return self


EXPERT = "expert"
"""The `teacher` of a `distill` stage that stands for a simulator's own expert."""


class DistillStage(SampledTraining):
    """`[[stages]] kind = "distill"`: learn from a teacher on the policy's own completions."""

    kind: Literal["distill"]
    """Kind of the stage."""
    teacher: Source
    """A folder or hub name of a checkpoint with the same vocabulary, such as `runs/NAME/checkpoints/step-.../policy` of a run. Or
    `expert`: the simulator's own expert, for a policy that acts."""
    divergence: Literal["reverse", "forward", "hard", "sampled"] = "reverse"
    """`reverse`, `forward`: KL(policy || teacher) or KL(teacher || policy) over the vocabulary at each token of the policy's
    completions; `sampled`: the reverse KL, estimated from the sampled tokens; `hard`: imitate the teacher's completions."""
    prompts_per_step: Positive = 16
    """Prompts per step."""
    group_size: Positive = 1
    """Number of completions per prompt."""
    learning_rate: Rate = 1e-5
    """Learning rate after the warm-up."""


class PluginStage(SampledTraining):
    """`[[stages]]` of a kind that a plugin brings."""

    kind: Annotated[str, Field(pattern="/")]
    """Id of the stage, see `mmrl list stages`."""
    prompts_per_step: Positive = 16
    """Prompts per step."""
    group_size: Positive = 1
    """Number of completions per prompt, in a stage that samples."""
    options: Free = {}
    """Options of the stage, see `mmrl list stages ID`."""


def teacher_of(stage: Training) -> str:
    """The model that teaches in a stage; empty if there is none, or if it is a simulator's expert."""
    teacher = stage.teacher if isinstance(stage, RlStage | DistillStage) else ""
    return "" if teacher == EXPERT else teacher


STAGES: dict[str, type[Training]] = {"sft": SftStage, "rl": RlStage, "distill": DistillStage}
STAGES |= {"preference": PreferenceStage, "off-policy": OffPolicyStage, "recap": RecapStage, "hg-dagger": HgDaggerStage}
"""The built-in kinds."""
OF_PLUGINS = "plugin"  # the tag under which pydantic finds `PluginStage`


def _tag(stage: Any) -> str | None:
    kind = stage.get("kind") if isinstance(stage, dict) else getattr(stage, "kind", None)
    return OF_PLUGINS if isinstance(kind, str) and "/" in kind else kind


Stage = Annotated[
    Annotated[SftStage, Tag("sft")]
    | Annotated[RlStage, Tag("rl")]
    | Annotated[DistillStage, Tag("distill")]
    | Annotated[PreferenceStage, Tag("preference")]
    | Annotated[OffPolicyStage, Tag("off-policy")]
    | Annotated[RecapStage, Tag("recap")]
    | Annotated[HgDaggerStage, Tag("hg-dagger")]
    | Annotated[PluginStage, Tag(OF_PLUGINS)],
    Discriminator(_tag),
]
