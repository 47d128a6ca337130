"""Games of users and of VAGEN in a process, see `child`: a class with `reset` and `step` whose actions are texts and whose
observations have text and pictures. Imports only the standard library."""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import Any

from mmrl_interop.worlds.child import loaded, message


class Worlds:
    """A game. Its methods may be async. `reset(seed=)` gives an observation, or an observation and a table; `step(text)` gives
    (observation, reward, done, info), or Gymnasium's five values. It may have `system_prompt()`, `close()`, `gold()`, the right
    next completion, and `state_name()`, a text that is the same wherever the game is in the same state.

    An observation is a text, or a table with `obs_str` and `multi_modal_input`, as in VAGEN, or with `text` and `images`."""

    def __init__(self, game: str, config: dict[str, Any]) -> None:
        """game: `path.py:Class` or `package.module:Class`. config: of the class, which gets it as one table if its parameter is
        called `env_config`."""
        self.make, self.config, self.facts = loaded(game), config, {"game": game}
        self.whole = "env_config" in inspect.signature(self.make).parameters
        self.loop = asyncio.new_event_loop()

    def open(self) -> Session:
        return Session(self)


class Session:
    """One episode of a game."""

    def __init__(self, worlds: Worlds) -> None:
        self.loop = worlds.loop
        self.game = worlds.make(worlds.config) if worlds.whole else worlds.make(**worlds.config)

    def start(self, seed: int) -> dict[str, Any]:
        shown = self._done(self.game.reset(seed=seed))
        shown = shown[0] if isinstance(shown, tuple) and len(shown) == 2 else shown
        rules = self._done(self.game.system_prompt()) if hasattr(self.game, "system_prompt") else None
        told = [] if rules is None else [observed(rules, "system")]
        return {"messages": [*told, observed(shown)], **self._known()}

    def step(self, completion: str) -> dict[str, Any]:
        found = self._done(self.game.step(completion))
        if not isinstance(found, tuple) or len(found) not in (4, 5):
            raise ValueError(f"step gave {type(found).__name__} and not (observation, reward, done, info)")
        shown, reward, *ends, info = found
        done = any(map(bool, ends))
        facts = info if isinstance(info, dict) else {}
        outcome = {name: float(value) for name, value in facts.items() if _is_number(value)}
        if len(ends) == 2:
            outcome["truncated"] = float(bool(ends[1]))
        reply = {"reward": reward, "terminated": done, "outcome": outcome}
        return reply if done else reply | {"messages": [observed(shown)], **self._known()}

    def close(self) -> None:
        if hasattr(self.game, "close"):
            self._done(self.game.close())

    def _known(self) -> dict[str, Any]:
        """What the game says of the state in which the next turn begins, besides the observation."""
        asked = {"gold": "gold", "state": "state_name"}
        return {name: self._done(getattr(self.game, of)()) if hasattr(self.game, of) else None for name, of in asked.items()}

    def _done(self, found: Any) -> Any:
        return self.loop.run_until_complete(found) if inspect.isawaitable(found) else found


def observed(shown: Any, role: str = "user") -> dict[str, Any]:
    """The message of an observation. Raises ValueError for what is none."""
    if isinstance(shown, str):
        return message(shown, role=role)
    if isinstance(shown, dict) and isinstance(shown.get("obs_str"), str):
        media = shown.get("multi_modal_input") or {}
        if len(media) > 1:
            raise ValueError(f"multi_modal_input has {len(media)} placeholders: give one")
        place, images = next(iter(media.items()), ("<image>", []))
        return message(shown["obs_str"], list(images), role, place)
    if isinstance(shown, dict) and isinstance(shown.get("text"), str):
        images = shown.get("images", [])
        return message(shown["text"], images if isinstance(images, (list, tuple)) else [images], role)
    what = f"{type(shown).__name__} of shape {list(shown.shape)}" if hasattr(shown, "shape") else f"{type(shown).__name__}"
    keys = f" with {', '.join(map(str, shown))[:60]}" if isinstance(shown, dict) else ""
    raise ValueError(f"an observation must be a text, or a table with text and images, not {what}{keys}")


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
