"""V-IRL's navigation as a world of several turns, on drawn streets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmrl import Prompt, Reply, user_message
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import check_integer, check_type
from mmrl_vqa import streets, virl
from mmrl_vqa.drawn import Drawn

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(kw_only=True, eq=False)
class Navigation(Drawn):
    """Follow directions through drawn streets, spot by spot, as in V-IRL of Chu et al. 2025. The split `ood` has the other form
    of turns, as in the paper."""

    size: int = 224
    """Side of the square of four street views, in pixels."""
    fewest: int = 2
    """Minimum of streets of a route."""
    most: int = 4
    """Maximum of streets of a route, up to 12."""
    absolute: bool = True
    """Turns are named by where they lead to (north), and in `ood` by their side (left); false is the other way round."""
    style: str = "v-irl"
    """The requested form of the answer: v-irl, the paper's prompt."""
    styles: ClassVar[tuple[str, ...]] = ("v-irl",)
    splits: ClassVar[tuple[str, ...]] = ("train", "test", "ood")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("most", self.most, 1, 12)
        check_integer("fewest", self.fewest, 1, self.most)
        check_type("absolute", self.absolute, bool)

    def make(self, split: str, seed: int, number: int) -> Prompt:
        way, absolute = self._route(split, seed, number)
        name = f"{split}-{seed}-{number}"
        meta = {
            "spots": [[spot.action, spot.observation] for spot in way.spots],
            "place": (split, seed, number),
            "style": self.style,
        }
        asked = user_message(virl.prompt(way, 0, absolute), view(way, 0, name, self.size))
        return Prompt(id=name, messages=[asked], answer=way.spots[0].action, meta={**meta, "difficulty": len(way.spots)})

    def gold(self, prompt: Prompt) -> str:
        return virl.gold(self._route(*prompt.meta["place"])[0].spots[0])

    def environment(self, prompt: Prompt) -> Walk:
        return Walk(*self._route(*prompt.meta["place"]), prompt.id, self.size)

    def _route(self, split: str, seed: int, number: int) -> tuple[virl.Route, bool]:
        """(the route of an item, whether its turns are absolute)"""
        draw = chance(seed, "navigation", split, str(number))
        absolute = self.absolute != (split == "ood")
        return virl.route(draw, draw.randint(self.fewest, self.most), absolute), absolute


class Walk:
    """An episode: the right action leads to the next spot, a wrong one is told, and after two at a spot the walk is over. The
    released code judges two answers, and takes 1 for a third, which it doesn't read: here the second costs that."""

    def __init__(self, way: virl.Route, absolute: bool, name: str, size: int) -> None:
        self.way, self.absolute, self.name, self.size = way, absolute, name, size
        self.at, self.left = 0, virl.TRIES

    def step(self, completion: str) -> Reply:
        spot = self.way.spots[self.at]
        score = virl.judge(completion, spot.action, spot.observation)
        worth, arrives = score.value or 0.0, self.at == len(self.way.spots) - 1
        outcome = {"spot": float(self.at), "success": float(arrives and worth == virl.CORRECT)}
        if worth == virl.CORRECT:
            if arrives:
                return Reply(terminated=True, outcome=outcome)
            self.at, self.left = self.at + 1, virl.TRIES
            asked = user_message(virl.prompt(self.way, self.at, self.absolute), view(self.way, self.at, self.name, self.size))
            return Reply(messages=[asked], reward=worth, outcome=outcome)
        self.left -= 1
        if not self.left:
            return Reply(terminated=True, reward=virl.USED_UP, outcome=outcome)
        told = user_message(f"You failed this trial because {score.detail}")
        return Reply(messages=[told], reward=worth, outcome=outcome)

    def gold_turn(self) -> str:
        return virl.gold(self.way.spots[self.at])

    def close(self) -> None:
        pass


def view(way: virl.Route, at: int, name: str, size: int) -> Image:
    """The four street views at a spot: the way on and back, more streets at a crossing, and its landmark."""
    spot = way.spots[at]
    roads = {(spot.onward - spot.heading) % 8} | ({4} if at else set()) | ({0, 4} if spot.crossing else set())
    side = virl.SIDES.get(spot.side)
    return streets.grid(size, f"{name} {at}", roads, spot.sign, side)
