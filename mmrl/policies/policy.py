"""The interface of policies: those that write (`VLM`), that act (`ActingPolicy`), and those of plugins."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from inspect import getattr_static
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from mmrl.api.coordinates import ImageProcessing
from mmrl.api.errors import UserError
from mmrl.api.tokens import TokenKind
from mmrl.api.types import Rollout
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import ForwardOutputs
from mmrl.policies.shard import Sharded


class Policy:
    """A model whose samples have known log-probabilities. Its class is called as `kind(config, device=, seed=, source=,
    **options)`, where `source` is the `policy` folder of a checkpoint that takes the place of `config.model`, or None.

    A subclass defines `collector`, `packer`, `device`, `model`, `outputs` and `save`; the other members have defaults here. A
    class that doesn't inherit defines all of them.

    A class that takes `**options` may name the dataclass of them as `options_class`, see `mmrl.policies.acting.options`: what is
    outside its ranges is refused before anything is loaded.
    """

    collector: str
    """`module:Name` of the class that makes its rollouts, called as `(config, tasks, policy)` with the whole run file; see
    `mmrl.rollout.collector.Collector`."""
    packer: str
    """`module:Name` of the class that makes batches of these rollouts, called as `(config, policy)`; see
    `mmrl.train.update.packer.Packer`."""
    device: torch.device
    model: Any
    """A `torch.nn.Module` with all weights that may be trained."""
    lora: Any = None
    """The adapters' configuration, if only adapters are trained."""
    root: Sharded | None = None
    """The root module of weights that are sharded over ranks; None if each rank holds all of them."""
    opening: Any = ""
    """The beginning of each answer's text that is written for the policy and not by it; see `PromptProcessor.opening`."""
    trained_whole: ClassVar[bool] = False
    """Whether it supports neither `policy.lora` nor `stages.parts`."""

    @property
    def width(self) -> int:
        """Width of the hidden states that a critic reads; 0 for a policy that can't have a critic."""
        return 0

    @property
    def chunk(self) -> int:
        """Number of actions chosen in a call; 1 for a policy that writes."""
        return 1

    @property
    def continuous_dims(self) -> int:
        """Number of normal distributions that an action is drawn from, one for each of its numbers; 0 if choices are discrete."""
        return 0

    @property
    def exact_sampler(self) -> bool:
        """Whether samples come from the same forward pass as updates, so that their log-probabilities are the learner's."""
        return False

    @property
    def image_processing(self) -> ImageProcessing:
        """How the policy processes images, for tasks."""
        return ImageProcessing()

    # -- called on the class, before anything is loaded ----------------------------------------------------------------------

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a `config.model` that can't be loaded. Not called if a checkpoint replaces the model."""

    @classmethod
    def check_teacher(cls, config: PolicyConfig, teacher: str) -> None:
        """Raise UserError for a teacher's model from which a policy of this configuration can't learn in a `distill` stage."""

    @classmethod
    def token_kind(cls, config: PolicyConfig) -> TokenKind:
        """What a token of a policy of this configuration is. Algorithms, `ratio` and `credit` that need others are refused."""
        return TokenKind.WORD

    @staticmethod
    def skeleton(config: PolicyConfig) -> Any:
        """The model without weights (on torch's meta device), whose names `stages.parts` and `policy.lora.target_modules` are
        compared with; None for a model of transformers, which is built from its config.json."""

    @staticmethod
    def own_names(config: PolicyConfig) -> Sequence[str]:
        """Names of its weights besides those of the skeleton, trained beside adapters too; `stages.parts` may name them."""
        return ()

    # -- learning -------------------------------------------------------------------------------------------------------------

    def outputs(self, micro: Any, temperature: float, *, states: bool = False, entropy_gradient: bool = False) -> ForwardOutputs:
        """One forward pass over a micro-batch of its packer. states: also what a critic reads. entropy_gradient: the entropy has
        a gradient."""
        raise NotImplementedError

    def logprobs(self, micro: Any, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_L with gradient, entropy_L without), float32."""
        found = self.outputs(micro, temperature)
        return found.logprobs_L, found.entropy_L

    def states(self, micro: Any) -> torch.Tensor:
        """Only the hidden states that a critic reads: float32 [Q, width]. Not called if `width` is 0."""
        raise NotImplementedError

    def divergence(
        self, micro: Any, teacher: Any, temperature: float, kind: Literal["reverse", "forward"]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(divergence_L with gradient, entropy_L without), in nats: KL(self || teacher) over all choices (`reverse`), or
        KL(teacher || self) (`forward`)."""
        raise UserError(f'{type(self).__name__} has no divergence over all its choices: set divergence = "sampled"')

    def mean_logprobs(self, micro: Any, temperature: float) -> torch.Tensor:
        """float32 [L]: the mean over the vocabulary of all tokens' log-probabilities in the state before each target."""
        raise UserError(f"{type(self).__name__} has no vocabulary over which a mean could be taken: use another algorithm")

    def slopes(self, micro: Any, temperature: float) -> torch.Tensor:
        """float32 [L]: the squared norm of the gradient of each target's log-probability with respect to the logits."""
        raise UserError(f"{type(self).__name__} has no logits of words: use another algorithm")

    def parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """The trainable parameters by name, in a fixed order."""
        found: Iterable[tuple[str, torch.nn.Parameter]] = self.model.named_parameters()
        return found

    def clone(self, frozen: bool = False) -> Policy:
        """A second policy with a copy of the weights as they are now."""
        other = copy.deepcopy(self)
        if frozen:
            other.model.requires_grad_(False)
        return other

    def spread(self) -> None:
        """Shard the weights over ranks. By default nothing is done, and each rank holds all of them."""

    def _through(self, work: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        """Call `work`, through the FSDP root if weights are sharded."""
        found: tuple[torch.Tensor, ...] = self.root(work) if self.root is not None else work()
        return found

    def refuse_teacher(self, teacher: Any, name: str) -> None:
        """Raise UserError if a loaded teacher of the same kind can't teach this policy. name: the teacher's name in errors."""

    def following(self, rollout: Any) -> Rollout:
        """One of its episodes as a demonstration with the expert's actions at each call."""
        raise UserError(f"{type(self).__name__} can't follow a simulator's expert: name a model as teacher")

    def save(self, folder: Path) -> None:
        """Write everything from which the class can load the policy again."""
        raise NotImplementedError


ABSTRACT = ("collector", "packer", "device", "model", "outputs", "save")
"""Members without a default."""
MEMBERS = tuple(dict.fromkeys((*ABSTRACT, *(name for name in vars(Policy) if not name.startswith("_")))))
ON_CLASS = ("trained_whole", "check", "check_teacher", "token_kind", "skeleton", "own_names")
"""Members that are called on the class, before a policy is made."""


def lacking(kind: Any, names: Iterable[str] = MEMBERS) -> list[str]:
    """The members of the protocol that a policy, or its class, doesn't define."""
    nothing = object()
    return [
        name
        for name in names
        if (found := getattr_static(kind, name, nothing)) is nothing or (name in ABSTRACT and found is vars(Policy).get(name))
    ]
