"""Observations that remember what a policy read of them."""

from dataclasses import replace

import torch

from mmrl.api.simulators.types import Observation
from mmrl.policies.acting.look import Look, read_once


class Reader:
    def __init__(self) -> None:
        self.times = 0

    @read_once
    def look(self, seen: Observation) -> float:
        self.times += 1
        return float(seen.state.sum())


class Twice(Reader):
    """Reads with the class above, and more."""

    @read_once
    def look(self, seen: Observation) -> float:
        self.times += 10
        return 2 * super().look(seen)


def seen() -> Observation:
    return Observation(images={}, state=torch.tensor([[1.0], [2.0]]), instructions=["go", "stay"])


def test_what_was_read_of_a_look_is_not_read_again() -> None:
    reader, look = Reader(), Look.at(seen())
    assert [reader.look(look), reader.look(look), reader.times] == [3.0, 3.0, 1]
    assert len(look) == 2, "it is the observations"


def test_other_observations_are_read_each_time() -> None:
    reader, plain = Reader(), seen()
    assert [reader.look(plain), reader.look(plain), reader.times] == [3.0, 3.0, 2]


def test_each_policy_reads_for_itself() -> None:
    one, other, look = Reader(), Reader(), Look.at(seen())
    one.look(look), other.look(look)
    assert one.times == other.times == 1


def test_each_method_has_its_own_result() -> None:
    """One that asks that of the class above doesn't get its own, nor the other way round."""
    reader, look = Twice(), Look.at(seen())
    assert [reader.look(look), reader.look(look), reader.times] == [6.0, 6.0, 11]
    assert Reader.look(reader, look) == 3.0 and reader.times == 11


def test_what_is_made_of_a_look_is_read_anew() -> None:
    reader, look = Reader(), Look.at(seen())
    reader.look(look)
    assert reader.look(replace(look, state=torch.tensor([[5.0], [2.0]]))) == 7.0
    assert reader.look(look.rows(torch.tensor([1]))) == 2.0 and reader.look(look.on("cpu")) == 3.0 and reader.times == 4
    assert reader.look(Look.at(look)) == 3.0 and reader.times == 5
