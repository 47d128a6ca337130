"""Attacks with bad input on a plugin's tasks, verifiers and simulators; `mmrl check --attack ID` runs them.

Each kind of attack is an iterator of attempts. An attempt has *held* if what was attacked refused the input in one line, or gave
a result that is in order, within its time; otherwise it *fell*.
"""

from mmrl.testing.attack.campaign import Attempt, Outcome, run, show
from mmrl.testing.attack.ids import attacks_on

__all__ = ["Attempt", "Outcome", "attacks_on", "run", "show"]
"""`run(attacks_on(id))` attacks what has this id."""
