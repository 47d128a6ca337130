"""Two games on a grid in the form of VAGEN (https://github.com/mll-lab-nu/VAGEN, Wang et al. 2025): a turn is
`<think>...</think><answer>Left,Down</answer>`, pays 1 for solving the game and a little for the right format, and shows a
picture.

A map depends on the seed alone, and the maps of `test` (seeds below 10^9) are never those of `train`."""

from __future__ import annotations

import abc
import random
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

ANSWER = re.compile(r"\s*<think>.*?</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
HELD_OUT = 10**9
SHARE = 8
"""One of so many maps is held out."""
TRIES = 10_000
Place = tuple[int, int]
"""Row and column."""
MOVES: Mapping[str, Place] = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""In the order of Gymnasium's FrozenLake."""
CELL = 32
"""Pixels of a side of a tile."""


class GridGame(abc.ABC):
    """A game whose moves are the four directions."""

    rules = ""
    legend: Mapping[str, str]
    """Sign on the map -> what it means."""

    def __init__(self, picture: bool = True, max_actions: int = 3, format_reward: float = 0.1) -> None:
        self.shows_picture, self.max_actions, self.format_reward = picture, max_actions, format_reward

    @abc.abstractmethod
    def draw_map(self, rng: random.Random) -> list[str] | None:
        """A map, perhaps one that can't be solved; None for one that certainly can't."""

    @abc.abstractmethod
    def begin(self, rows: list[str], seed: int) -> None:
        """Start on a map."""

    @abc.abstractmethod
    def move(self, name: str) -> None:
        """One step."""

    @abc.abstractmethod
    def path(self) -> list[str]:
        """Moves that solve the game from here; empty if there are none, or it is solved."""

    @abc.abstractmethod
    def text(self) -> str:
        """The map as it is now, by the signs of the legend."""

    @abc.abstractmethod
    def image(self) -> Any:
        """A picture of it."""

    @property
    @abc.abstractmethod
    def solved(self) -> bool: ...

    @property
    def over(self) -> bool:
        return self.solved

    def system_prompt(self) -> dict[str, Any]:
        signs = "" if self.shows_picture else f" On the map, {', '.join(f'{s} is {what}' for s, what in self.legend.items())}."
        moves = "one move" if self.max_actions == 1 else f"at most {self.max_actions} moves, separated by commas"
        asked = f"The moves are Left, Down, Right and Up. Each turn, think first and then give {moves}:"
        return {"obs_str": f"{self.rules}{signs}\n{asked}\n<think>...</think><answer>Right,Up</answer>"}

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        rng, held_out = random.Random(seed), seed < HELD_OUT
        for _ in range(TRIES):
            rows = self.draw_map(rng)
            if rows is not None and (zlib.crc32("\n".join(rows).encode()) % SHARE == 0) == held_out:
                self.begin(rows, seed)
                if self.path():
                    return self._shown("The game begins."), {}
        raise ValueError(f"no map of this size was found in {TRIES} tries: change the options")

    def step(self, completion: str) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        found = ANSWER.fullmatch(completion)
        moves = [name.strip() for name in found[1].split(",")][: self.max_actions] if found else []
        done = []
        for name in moves:
            if name.lower() not in MOVES or self.over:
                break
            self.move(name.lower())
            done.append(name)
        reward = float(self.solved) + (self.format_reward if done else 0.0)
        said = f"You moved {', '.join(done)}." if done else "Your answer had no move in the right format, and nothing happened."
        return self._shown(said), reward, self.over, {"success": self.solved, "well_formed": bool(done)}

    def gold(self) -> str | None:
        moves = self.path()[: self.max_actions]
        return f"<think></think><answer>{','.join(name.capitalize() for name in moves)}</answer>" if moves else None

    def state_name(self) -> str:
        return self.text()

    def _shown(self, said: str) -> dict[str, Any]:
        if not self.shows_picture:
            return {"obs_str": f"{said}\n{self.text()}"}
        return {"obs_str": f"{said}\n<image>", "multi_modal_input": {"<image>": [self.image()]}}


class FrozenLake(GridGame):
    """Gymnasium's FrozenLake, with start and goal anywhere."""

    rules = "You walk over a frozen lake to the goal. Whoever steps into a hole has lost."
    legend = {"P": "you", "_": "ice", "O": "a hole", "G": "the goal", "X": "you in a hole", "V": "you at the goal"}

    def __init__(self, size: int = 4, frozen: float = 0.8, slippery: bool = False, **answers: Any) -> None:
        super().__init__(**answers)
        self.size, self.frozen, self.slippery = size, frozen, slippery
        self.env: Any = None
        if slippery:
            self.rules += " The ice is slippery: a move may take you to a side of where you wanted."

    def draw_map(self, rng: random.Random) -> list[str] | None:
        tiles = [["F" if rng.random() < self.frozen else "H" for _ in range(self.size)] for _ in range(self.size)]
        start, goal = divmod(rng.randrange(self.size**2), self.size), divmod(rng.randrange(self.size**2), self.size)
        tiles[start[0]][start[1]], tiles[goal[0]][goal[1]] = "S", "G"
        return ["".join(row) for row in tiles] if start != goal and _ways(tiles, start, goal) else None

    def begin(self, rows: list[str], seed: int) -> None:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        self.close()
        self.rows = rows
        self.env = FrozenLakeEnv(render_mode="rgb_array", desc=rows, is_slippery=self.slippery)
        self.env.reset(seed=seed)

    def move(self, name: str) -> None:
        self.env.step(list(MOVES).index(name))

    @property
    def place(self) -> Place:
        return divmod(int(self.env.s), self.size)

    @property
    def tile(self) -> str:
        return self.rows[self.place[0]][self.place[1]]

    @property
    def solved(self) -> bool:
        return self.tile == "G"

    @property
    def over(self) -> bool:
        return self.tile in "GH"

    def path(self) -> list[str]:
        [goal] = [(r, row.index("G")) for r, row in enumerate(self.rows) if "G" in row]
        return [] if self.over else _ways(self.rows, self.place, goal)

    def text(self) -> str:
        rows = [list(row.translate(str.maketrans("FSH", "__O"))) for row in self.rows]
        row, column = self.place
        rows[row][column] = {"H": "X", "G": "V"}.get(self.tile, "P")
        return "\n".join(" ".join(row) for row in rows)

    def image(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


class Sokoban(GridGame):
    """Boxes that can be pushed and not pulled."""

    rules = "You push each box onto a target. A box can't be pulled, nor pushed into a wall or another box."
    legend = {
        "P": "you",
        "S": "you on a target",
        "#": "a wall",
        "_": "floor",
        "X": "a box",
        "O": "a target",
        "*": "a box on a target",
    }
    colours = {
        "#": "saddlebrown",
        "_": "bisque",
        "O": "salmon",
        "P": "limegreen",
        "S": "limegreen",
        "X": "goldenrod",
        "*": "firebrick",
    }

    def __init__(self, size: int = 6, boxes: int = 1, **answers: Any) -> None:
        super().__init__(**answers)
        self.size, self.boxes_wanted = size, boxes

    def draw_map(self, rng: random.Random) -> list[str] | None:
        inner = [(r, c) for r in range(1, self.size - 1) for c in range(1, self.size - 1)]
        walls = set(rng.sample(inner, rng.randint(0, len(inner) // 4)))
        places = rng.sample([p for p in inner if p not in walls], 2 * self.boxes_wanted + 1)
        signs = dict.fromkeys(walls, "#") | dict.fromkeys(places, "X") | dict.fromkeys(places[self.boxes_wanted :], "O")
        signs[places[-1]] = "P"
        return ["".join(signs.get((r, c), "_" if (r, c) in inner else "#") for c in range(self.size)) for r in range(self.size)]

    def begin(self, rows: list[str], seed: int) -> None:
        at: dict[str, set[Place]] = {sign: set() for sign in "#_XOP"}
        for r, row in enumerate(rows):
            for c, sign in enumerate(row):
                at[sign].add((r, c))
        self.walls, self.targets, self.boxes, [self.player] = at["#"], frozenset(at["O"]), frozenset(at["X"]), at["P"]

    def move(self, name: str) -> None:
        found = self._after(self.player, self.boxes, MOVES[name])
        if found is not None:
            self.player, self.boxes = found

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    def path(self) -> list[str]:
        """Without the states with a box on a place from which no push leads it to a target: most of them on large maps."""
        alive = self._alive()

        def near(state: tuple[Place, frozenset[Place]]) -> Iterable[tuple[str, Any]]:
            for name, way in MOVES.items():
                new = self._after(*state, way)
                if new is not None and (new[1] is state[1] or new[1] <= alive):
                    yield name, new

        if not self.boxes <= alive:
            return []
        return _shortest((self.player, self.boxes), near, lambda state: state[1] == self.targets)

    def _alive(self) -> set[Place]:
        """The places from which a box alone can be pushed to a target, found by pulling one from each."""
        alive, edge = set(self.targets), list(self.targets)
        while edge:
            row, column = edge.pop()
            for down, right in MOVES.values():
                before, player = (row - down, column - right), (row - 2 * down, column - 2 * right)
                if before not in self.walls and player not in self.walls and before not in alive:
                    alive.add(before)
                    edge.append(before)
        return alive

    def text(self) -> str:
        cells = range(self.size)
        return "\n".join(" ".join(self._sign((r, c)) for c in cells) for r in cells)

    def image(self) -> Any:
        from PIL import Image, ImageDraw

        drawn = Image.new("RGB", (CELL * self.size,) * 2, self.colours["_"])
        draw = ImageDraw.Draw(drawn)
        for r in range(self.size):
            for c in range(self.size):
                sign, x, y = self._sign((r, c)), CELL * c, CELL * r
                if sign == "#":
                    draw.rectangle((x, y, x + CELL - 2, y + CELL - 2), self.colours[sign])
                elif sign != "_":
                    if sign in "OS*":
                        draw.rectangle((x + 4, y + 4, x + CELL - 5, y + CELL - 5), outline=self.colours["O"], width=4)
                    if sign in "PS":
                        draw.ellipse((x + 8, y + 8, x + CELL - 9, y + CELL - 9), self.colours["P"])
                    if sign in "X*":
                        draw.rectangle((x + 7, y + 7, x + CELL - 8, y + CELL - 8), self.colours[sign])
        return drawn

    def _sign(self, place: Place) -> str:
        if place in self.walls:
            return "#"
        target = place in self.targets
        return "SP"[not target] if place == self.player else "*X"[not target] if place in self.boxes else "O_"[not target]

    def _after(self, player: Place, boxes: frozenset[Place], way: Place) -> tuple[Place, frozenset[Place]] | None:
        """Player and boxes after a move; None if nothing moves."""
        to = (player[0] + way[0], player[1] + way[1])
        if to in self.walls:
            return None
        if to in boxes:
            beyond = (to[0] + way[0], to[1] + way[1])
            if beyond in self.walls or beyond in boxes:
                return None
            boxes = boxes - {to} | {beyond}
        return to, boxes


def _ways(tiles: Any, start: Place, goal: Place) -> list[str]:
    """The shortest moves from place to place around the holes; empty if there are none."""

    def near(place: Place) -> Iterable[tuple[str, Place]]:
        for name, (down, right) in MOVES.items():
            r, c = place[0] + down, place[1] + right
            if 0 <= r < len(tiles) and 0 <= c < len(tiles[0]) and tiles[r][c] != "H":
                yield name, (r, c)

    return _shortest(start, near, lambda place: place == goal)


def _shortest(start: Any, after: Callable[[Any], Iterable[tuple[str, Any]]], wanted: Callable[[Any], bool]) -> list[str]:
    """The fewest moves that lead to a wanted state; empty if none do. after: the moves from a state, and where they lead."""
    came: dict[Any, tuple[str, Any] | None] = {start: None}
    """State -> the move that led to it, and from where."""
    edge = [start]
    while edge:
        following = []
        for state in edge:
            if wanted(state):
                moves = []
                while (step := came[state]) is not None:
                    moves.append(step[0])
                    state = step[1]
                return moves[::-1]
            for name, new in after(state):
                if new not in came:
                    came[new] = (name, state)
                    following.append(new)
        edge = following
    return []
