"""mmrl trains vision-language and vision-language-action models by reinforcement learning.

These names are what a plugin imports; nothing heavy is imported with them.
"""

import sys
from typing import TYPE_CHECKING, NoReturn

from mmrl.api.alarms import AlarmReading
from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.errors import EnvironmentFailed, NoGold, UserError
from mmrl.api.hooks import CONTRACT, hookimpl
from mmrl.api.interfaces import Environment, Simulator, Task, Tracker, Verifier
from mmrl.api.moved import MovedFinder, no_attribute
from mmrl.api.operators import prepare_torchvision
from mmrl.api.sampling import SamplingRule
from mmrl.api.serving import Episode, OpenTask, Scoring, open_task, open_verifiers
from mmrl.api.specs import (
    AlarmSpec,
    AlgorithmSpec,
    FamilySpec,
    PolicySpec,
    SamplingRuleSpec,
    SimulatorSpec,
    StageSpec,
    TaskSpec,
    TrackerSpec,
    VerifierSpec,
)
from mmrl.api.tasks.overlays import Overlay
from mmrl.api.types import Case, Message, Prompt, Reply, Rollout, Score, Status, Turn, user_message

__version__ = "0.2.0"

if MovedFinder not in sys.meta_path:
    sys.meta_path.append(MovedFinder)
prepare_torchvision()  # here, as a plugin may import vision code at any time

__all__ = [
    "CONTRACT",
    "AlarmReading",
    "AlarmSpec",
    "AlgorithmSpec",
    "Case",
    "Conversation",
    "CoordinateFormat",
    "Environment",
    "EnvironmentFailed",
    "Episode",
    "FamilySpec",
    "ImageProcessing",
    "Message",
    "NoGold",
    "OpenTask",
    "Overlay",
    "PolicySpec",
    "Prompt",
    "Reply",
    "Rollout",
    "SamplingRule",
    "SamplingRuleSpec",
    "Score",
    "Scoring",
    "Simulator",
    "SimulatorSpec",
    "StageSpec",
    "Status",
    "Task",
    "TaskSpec",
    "Tracker",
    "TrackerSpec",
    "Trajectory",
    "Turn",
    "UserError",
    "Verifier",
    "VerifierSpec",
    "hookimpl",
    "open_task",
    "open_verifiers",
    "user_message",
]

if not TYPE_CHECKING:  # which would take every name for one of this module

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(no_attribute(name), name=name, obj=sys.modules[__name__])
