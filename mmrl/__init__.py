"""mmrl trains vision-language and vision-language-action models by reinforcement learning.

These names are what a plugin imports; nothing heavy is imported with them.
"""

from mmrl.errors import NoGold, UserError, WorldLost
from mmrl.hookspecs import hookimpl
from mmrl.interfaces import Simulator, Task, Tracker, Verifier, World
from mmrl.marks import Mark
from mmrl.specs import AlgorithmSpec, PolicySpec, SimulatorSpec, TaskSpec, TrackerSpec, VerifierSpec
from mmrl.types import Case, Eyes, Frame, Message, Prompt, Reply, Rollout, Score, Status, Turn, user

__version__ = "0.1.0"

__all__ = [
    "AlgorithmSpec",
    "Case",
    "Eyes",
    "Frame",
    "Mark",
    "Message",
    "NoGold",
    "PolicySpec",
    "Prompt",
    "Reply",
    "Rollout",
    "Score",
    "Simulator",
    "SimulatorSpec",
    "Status",
    "Task",
    "TaskSpec",
    "Tracker",
    "TrackerSpec",
    "Turn",
    "UserError",
    "Verifier",
    "VerifierSpec",
    "World",
    "WorldLost",
    "hookimpl",
    "user",
]
