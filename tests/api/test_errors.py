"""What an error knows besides its message."""

from __future__ import annotations

import pickle

from mmrl.api.errors import LimitReached, PluginError, UserError


def test_a_message_begins_with_the_key_that_it_is_about_and_can_be_said_of_another() -> None:
    error = UserError("'x' is not a folder", key="policy.model")
    assert str(error) == "policy.model: 'x' is not a folder"
    assert str(UserError(error.what, key="stages.0.teacher")) == "stages.0.teacher: 'x' is not a folder"
    assert (str(UserError("plain")), UserError("plain").key) == ("plain", "")


def test_what_an_error_knows_survives_a_place_and_another_process() -> None:
    """Ranks tell each other their errors, and a step says that it is its own."""
    for error in (UserError("no", key="a.b"), PluginError("no"), LimitReached("no", alarm="blind", task="t")):
        placed = error.at("step 3")
        assert (type(placed), str(placed), str(error)) == (type(error), f"step 3: {error}", str(error))
        again = pickle.loads(pickle.dumps(placed))
        assert (type(again), str(again), vars(again)) == (type(placed), str(placed), vars(placed))
    assert (placed.alarm, placed.task) == ("blind", "t")
