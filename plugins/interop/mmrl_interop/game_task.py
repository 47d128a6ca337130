"""Games with texts as actions and pictures as observations, as VAGEN's, and Gymnasium's toy games in that form."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl import Case, UserError
from mmrl.api.errors import is_finite
from mmrl.api.tasks.option_checks import check_integer, check_type
from mmrl_interop.functions import check_function
from mmrl_interop.worlds.processes import WorldProcesses
from mmrl_interop.worlds.task import WorldTask, check_worlds, seeds


class GameTask(WorldTask):
    """Episodes of a game: a class with `reset(seed=)` and `step(text)`, in processes of its own. Episodes start by their seeds,
    and no seed is in two splits. Turns are limited by `generate.max_turns`."""

    def __init__(
        self,
        game: str,
        config: Mapping[str, Any] | None = None,
        train: int = 10_000,
        test: int = 200,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        processes: int = 2,
        timeout_s: float = 60.0,
    ) -> None:
        """game: path.py:Class or package.module:Class; `mmrl_interop.worlds.games` says what the class must be. config: its
        arguments. train, test: numbers of episodes. python: another interpreter, without mmrl. environment: variables for it.
        processes: how many play at most; one of them plays many episodes. timeout_s: seconds of a move."""
        check_type("game", game, str, '"games.py:Maze"')
        if not game.rpartition(":")[0] or not game.rpartition(":")[2].isidentifier():
            raise UserError(f"game = {game!r:.100} names no class: write path.py:Class or package.module:Class")
        if game.rpartition(":")[0].endswith(".py"):
            check_function(game)
            place, _, name = game.rpartition(":")
            game = f"{Path(place).absolute()}:{name}"
        check_type("config", config or {}, Mapping, "{size = 4}")
        check_worlds(timeout_s, train=train, test=test)
        self.sizes = {"train": train, "test": test}
        try:
            options = {"game": game, "config": json.loads(json.dumps(dict(config or {})))}
        except (TypeError, ValueError) as error:
            raise UserError(f"config must be plain data: {error}") from error
        quiet = {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1", **(environment or {})}
        self.worlds = WorldProcesses(
            f"game {game.rpartition(':')[2]}",
            "mmrl_interop.worlds.games:Worlds",
            options,
            python=python,
            processes=processes,
            environment=quiet,
            timeout_s=timeout_s,
        )

    def starts(self, split: str) -> range:
        return seeds(split, self.sizes["train"], self.sizes["test"])

    def where(self, start: int) -> Mapping[str, Any]:
        return {"seed": start}


class FrozenLakeTask(GameTask):
    """A walk over a frozen lake around its holes: Gymnasium's FrozenLake, with VAGEN's maps, answers and rewards."""

    def __init__(
        self,
        size: int = 4,
        frozen: float = 0.8,
        slippery: bool = False,
        picture: bool = True,
        max_actions: int = 5,
        format_reward: float = 0.02,
        train: int = 10_000,
        test: int = 200,
        processes: int = 2,
    ) -> None:
        """size: tiles of a side. frozen: share of tiles that hold. slippery: a step may go sideways. picture: show a picture, or
        else the map as text. max_actions: moves of a turn. format_reward: of a turn in the right format. train, test: numbers of
        episodes. processes: how many play at most."""
        check_integer("size", size, 3, 20)
        if not is_finite(frozen) or not 0.5 <= frozen <= 1:
            raise UserError(f"frozen = {frozen!r:.40} must be a number from 0.5 to 1")
        check_type("slippery", slippery, bool)
        if importlib.util.find_spec("gymnasium") is None:
            raise UserError('FrozenLake needs gymnasium, which is not installed: pip install "multimodal-rl[gym]"')
        config = {"size": size, "frozen": frozen, "slippery": slippery}
        config |= _answers(picture, max_actions, format_reward)
        super().__init__("mmrl_interop.worlds.grid_games:FrozenLake", config, train, test, processes=processes)


class SokobanTask(GameTask):
    """Boxes that are pushed onto targets, with VAGEN's answers and rewards."""

    def __init__(
        self,
        size: int = 6,
        boxes: int = 1,
        picture: bool = True,
        max_actions: int = 3,
        format_reward: float = 0.1,
        train: int = 10_000,
        test: int = 200,
        processes: int = 2,
    ) -> None:
        """size: tiles of a side, with the wall. boxes: number of boxes, 1 to 3. picture, max_actions, format_reward, train, test,
        processes: as in `FrozenLakeTask`."""
        check_integer("size", size, 5, 10)
        check_integer("boxes", boxes, 1, 3)
        config = {"size": size, "boxes": boxes, **_answers(picture, max_actions, format_reward)}
        super().__init__("mmrl_interop.worlds.grid_games:Sokoban", config, train, test, processes=processes)


def _answers(picture: bool, max_actions: int, format_reward: float) -> dict[str, Any]:
    check_type("picture", picture, bool)
    check_integer("max_actions", max_actions, 1, 100)
    if not is_finite(format_reward):
        raise UserError(f"format_reward = {format_reward!r:.40} must be a number")
    return {"picture": picture, "max_actions": max_actions, "format_reward": format_reward}


def success(case: Case) -> float:
    """1 if the game was won."""
    return float(case.outcome.get("success", 0.0))
