"""mmrl trains vision-language and vision-language-action models by reinforcement learning.

These names are what a plugin imports; nothing heavy is imported with them.
"""

from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.errors import NoGold, UserError, WorldLost
from mmrl.api.frames import Eyes, Frame
from mmrl.api.hooks import hookimpl
from mmrl.api.interfaces import Simulator, Task, Tracker, Verifier, World
from mmrl.api.sampling import SamplingRule
from mmrl.api.specs import AlgorithmSpec, PolicySpec, SamplingRuleSpec, SimulatorSpec, TaskSpec, TrackerSpec, VerifierSpec
from mmrl.api.tasks.marks import Mark
from mmrl.api.types import Case, Message, Prompt, Reply, Rollout, Score, Status, Turn, user

__version__ = "0.1.0"

__all__ = [
    "AlgorithmSpec",
    "Case",
    "Conversation",
    "Eyes",
    "Frame",
    "Mark",
    "Message",
    "NoGold",
    "PolicySpec",
    "Prompt",
    "Reply",
    "Rollout",
    "SamplingRule",
    "SamplingRuleSpec",
    "Score",
    "Simulator",
    "SimulatorSpec",
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
    "World",
    "WorldLost",
    "hookimpl",
    "user",
]
