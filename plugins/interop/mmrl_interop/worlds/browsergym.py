"""BrowserGym's tasks in a process, see `child`. Imports only the standard library, and BrowserGym when it is used."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import os
import re
import shutil
from typing import Any

from mmrl_interop.worlds.child import Refused, message

CURE = "pip install browsergym-core browsergym-miniwob miniwob, or set the option python to an interpreter that has them"
VERSIONS = ((0, 13), (0, 15))
"""From the first, below the second."""
CHROMIUMS = ("chromium", "chromium-headless-shell", "google-chrome")
SERVED = {
    "webarena": ("WA_SHOPPING", "WA_SHOPPING_ADMIN", "WA_REDDIT", "WA_GITLAB", "WA_WIKIPEDIA", "WA_MAP", "WA_HOMEPAGE"),
    "visualwebarena": (
        *("VWA_CLASSIFIEDS", "VWA_CLASSIFIEDS_RESET_TOKEN", "VWA_SHOPPING", "VWA_REDDIT", "VWA_WIKIPEDIA", "VWA_HOMEPAGE"),
    ),
    "workarena": ("SNOW_INSTANCE_URL", "SNOW_INSTANCE_UNAME", "SNOW_INSTANCE_PWD"),
}
"""Benchmark -> the environment variables that say where its sites are. They are BrowserGym's."""
SAME_SITES = {"webarenalite": "webarena"}
"""Benchmark -> the one whose sites it uses."""
FENCED = re.compile(r"```(?:\w*\n)?(.*?)```", re.DOTALL)
ANSWERED = re.compile(r"<(action|answer)>(.*?)</\1>", re.DOTALL)


class Worlds:
    """BrowserGym's registered tasks. Its facts name the tasks of the benchmarks that are asked for."""

    def __init__(
        self,
        tasks: list[str],
        actions: list[str],
        observe: str,
        task_kwargs: dict[str, Any],
        slow_mo: int | None,
        delay_s: float,
        browser: str | None,
        longest: int,
    ) -> None:
        """tasks: such as miniwob.click-test, or miniwob for all of a benchmark. actions: BrowserGym's sets of actions. observe:
        picture, tree or both. task_kwargs: of the task's class. slow_mo: milliseconds that the browser waits after each of its
        operations, by default the task's. delay_s: seconds after an action until the page is looked at. browser: the path of a
        Chromium. longest: number of characters of a tree that is shown."""
        self.gymnasium = _imported(tasks)
        from browsergym.core.action.highlevel import HighLevelActionSet

        try:
            self.actions = HighLevelActionSet(subsets=actions, multiaction=False, strict=False)
        except ValueError as error:
            raise Refused(f"actions = {actions}: {error}") from error
        self.actions.action_set.pop("upload_file", None)  # it would read files of this machine
        known = sorted(id.removeprefix("browsergym/") for id in self.gymnasium.registry if id.startswith("browsergym/"))
        found = [name for task in tasks for name in known if name == task or name.startswith(f"{task}.")]
        for task in tasks:
            if not any(name == task or name.startswith(f"{task}.") for name in found):
                near = difflib.get_close_matches(task, known, 1)
                raise Refused(f"BrowserGym has no task {task!r}" + (f". Did you mean {near[0]!r}?" if near else ""))
        if any(name.startswith("miniwob.") for name in found) and "MINIWOB_URL" not in os.environ:
            os.environ["MINIWOB_URL"] = _miniwob_pages()
        self.observe, self.longest = observe, longest
        path = browser or os.environ.get("MMRL_BROWSER") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
        _launch_with(path)
        self.make = {"task_kwargs": task_kwargs, "slow_mo": slow_mo, "pre_observation_delay": delay_s, "headless": True}
        self.facts = {"tasks": found}

    def open(self) -> Session:
        return Session(self)


class Session:
    """One episode."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.read = worlds, 0
        self.env: Any = None

    def start(self, task: str, seed: int) -> dict[str, Any]:
        make = self.worlds.make | {"action_mapping": self.worlds.actions.to_python_code}
        self.env = self.worlds.gymnasium.make(f"browsergym/{task}", disable_env_checker=True, **make).unwrapped
        obs, _ = self.env.reset(seed=seed)
        goal, images = self._goal(obs)
        asked = self.worlds.actions.describe(with_long_description=False, with_examples=True)
        how = "Think, and end your turn with one action between <action> and </action>."
        parts = message(goal, images)["content"] + message(f"\n{asked}\n{how}\n")["content"] + self._seen(obs)
        return {"messages": [{"role": "user", "content": parts}]}

    def step(self, completion: str) -> dict[str, Any]:
        obs, reward, terminated, truncated, _ = self.env.step(acted(completion))
        failed = str(obs["last_action_error"])
        outcome = {"success": float(reward > 0), "refused": float(bool(failed)), "truncated": float(truncated)}
        done = bool(terminated or truncated)
        reply = {"reward": reward, "terminated": done, "outcome": outcome}
        if done:
            return reply
        told = message(f"The action failed: {' '.join(failed.split())[:300]}\n")["content"] if failed else []
        said = [m["message"] for m in obs["chat_messages"][self.read :] if m["role"] == "user"]
        self.read = len(obs["chat_messages"])
        heard = [part for text in said for part in message(f"{text}\n")["content"]]
        return reply | {"messages": [{"role": "user", "content": [*told, *heard, *self._seen(obs)]}]}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()

    def _goal(self, obs: Any) -> tuple[str, list[Any]]:
        """The goal's text and pictures, as the task's `setup` gave them."""
        self.read = len(obs["chat_messages"])
        texts = [part["text"] for part in obs["goal_object"] if part["type"] == "text"]
        urls = [part["image_url"] for part in obs["goal_object"] if part["type"] == "image_url"]
        return "\n".join(texts), [_decoded(url["url"] if isinstance(url, dict) else url) for url in urls]

    def _seen(self, obs: Any) -> list[dict[str, Any]]:
        """The page: its picture, the tree of its elements with their numbers, or both."""
        parts: list[dict[str, Any]] = []
        if self.worlds.observe != "tree":
            parts += message("<image>", [obs["screenshot"]])["content"]
        if self.worlds.observe != "picture":
            from browsergym.utils.obs import flatten_axtree_to_str

            tree = flatten_axtree_to_str(obs["axtree_object"], extra_properties=obs["extra_element_properties"])
            parts += message(tree[: self.worlds.longest])["content"]
        return parts


def acted(completion: str) -> str:
    """The action in a completion: in its last tag, else in its last fence, else all of it."""
    found = [text for _, text in ANSWERED.findall(completion)] or FENCED.findall(completion) or [completion]
    return str(found[-1]).strip()


def check_sites(tasks: list[str]) -> None:
    """Raises Refused for a benchmark whose sites are named nowhere, before a browser starts."""
    for benchmark in dict.fromkeys(task.partition(".")[0] for task in tasks):
        wanted = SERVED.get(SAME_SITES.get(benchmark, benchmark), ())
        if lacks := [name for name in wanted if not os.environ.get(name)]:
            raise Refused(
                f"{benchmark} is played on sites that you serve: set {', '.join(lacks)} in the option environment, as its "
                "installation says"
            )


def _imported(tasks: list[str]) -> Any:
    """gymnasium, with the benchmarks' tasks registered. Raises Refused for what is missing or of another version."""
    benchmarks = {task.partition(".")[0] for task in tasks} - {"openended"}
    for module in ("gymnasium", "browsergym", "browsergym.core", *(f"browsergym.{name}" for name in sorted(benchmarks))):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise Refused(f"no module named {module!r}: {CURE}")
        check_sites([module.removeprefix("browsergym.")])  # WebArena's package asserts them when it is imported
        loaded = importlib.import_module(module)
        if module == "browsergym.core":
            version = tuple(int(part) for part in loaded.__version__.split(".")[:2])
            if not VERSIONS[0] <= version < VERSIONS[1]:
                raise Refused(f"it works with browsergym-core >=0.13,<0.15, and {loaded.__version__} is installed: {CURE}")
    return importlib.import_module("gymnasium")


def _miniwob_pages() -> str:
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise Refused("MiniWoB++'s pages are missing: pip install miniwob, or set MINIWOB_URL in the option environment")
    return f"file://{os.path.join(spec.submodule_search_locations[0], 'html', 'miniwob')}/"


def _launch_with(path: str | None) -> None:
    """Start all browsers, the one that shows BrowserGym's chat too, from this Chromium; by default Playwright's own."""
    from browsergym.core import _get_global_playwright

    chromium = _get_global_playwright().chromium
    if path is not None and not os.access(path, os.X_OK):
        raise Refused(f"browser = {path!r} is no program: give the path of a Chromium")
    if path is None and not os.path.exists(chromium.executable_path):
        raise Refused("there is no Chromium: playwright install chromium, or give its path by the option browser or MMRL_BROWSER")
    launch = type(chromium).launch
    if path is not None:
        root = hasattr(os, "geteuid") and os.geteuid() == 0  # its sandbox doesn't work for root

        @functools.wraps(launch)
        def launched(self: Any, *, args: Any = (), **more: Any) -> Any:
            own = ["--no-sandbox"] if root else []
            return launch(self, executable_path=path, args=[*args, "--disable-gpu", *own], **more)

        type(chromium).launch = launched


def _decoded(url: str) -> Any:
    """A picture of a data URL, which is all that is read."""
    import base64
    import io

    from PIL import Image

    if not url.startswith("data:image/"):
        raise ValueError(f"the goal has a picture elsewhere, {url[:60]!r}, which is not fetched")
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
