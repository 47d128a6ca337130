"""What the gallery shows of a task or a simulator: its first prompt or observation."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mmrl.api.errors import NoGold, UserError
from mmrl.api.interfaces import Task
from mmrl.api.specs import SimulatorSpec, Spec, TaskSpec
from mmrl.api.types import Prompt
from mmrl.registry import plugins
from mmrl.ui.cli.options import options_of

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = tomllib.loads((Path(__file__).parent / "gallery.toml").read_text("utf-8"))
STORED = ROOT / "docs" / "pictures" / "simulators"
WIDTH = 360
"""Width of a simulator's picture in pixels."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the gallery shows of a task or a simulator."""

    picture: Any = None
    """A PIL image; None without one."""
    prompt: str = ""
    answer: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options that were given for it."""
    missing: str = ""
    """Why there is nothing to see here."""


def undocumented(spec: Spec, target: Any) -> str:
    """`file:line: what is wrong` for a task whose class has no docstring of its own; otherwise empty."""
    said = vars(target).get("__doc__") if inspect.isclass(target) else target.__doc__
    if said and not said.startswith(f"{target.__name__}("):
        return ""
    path = Path(inspect.getsourcefile(target) or "")
    line = inspect.getsourcelines(target)[1]
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{line}: {target.__name__}, the task {spec.id!r}, has no docstring: say in a line what it asks"


def show_task(registry: plugins.Registry, spec: TaskSpec, used: Iterable[tuple[str, dict[str, Any]]]) -> Shown:
    """The task's first training prompt, with its own options or else with those of the samples or of a recipe."""
    plain = spec.id.partition("@")[0]
    given = [SAMPLES["tasks"].get(plain, {}), *(options for _, options in used)]
    needs = [o.name for o in options_of("tasks", spec, registry.target(spec)) if o.required]
    settings: dict[str, Any] = {}
    if needs:
        settings = next((options for options in given if all(name in options for name in needs)), {})
        if not settings:
            return Shown(missing=f"needs data of your own: the option `{'`, `'.join(needs)}`")
    try:
        task = registry.build_task(spec, {k: _rooted(v) for k, v in settings.items()})
        prompt = first_prompt(task)
        answer = _gold(task, prompt)
        from mmrl.ui.report.contact_sheet import prompt_picture

        seen = prompt.images or prompt.videos or prompt.sounds
        picture = prompt_picture(prompt, task.overlays(prompt, answer or "")) if seen else None
    except UserError as error:
        return Shown(settings=settings, missing=_why(error))
    return Shown(picture=picture, prompt=_text(prompt), answer=answer, settings=settings)


def first_prompt(task: Task) -> Prompt:
    """The first prompt of a task, with the first observation of one that acts."""
    split = "train" if "train" in task.splits else task.splits[0]
    found = list(islice(iter(task.prompts(split, 0)), 1))
    if not found:
        raise UserError(f"there are no prompts in the split {split!r}")
    if task.simulation is not None:
        from mmrl.rollout.simulators.initial import initial_observations

        found = initial_observations(task, found)
    return found[0]


def show_simulator(registry: plugins.Registry, spec: SimulatorSpec, used: Iterable[tuple[str, dict[str, Any]]]) -> Shown:
    """The first observation of a simulator; of one that runs elsewhere the stored picture."""
    if spec.id in SAMPLES["elsewhere"]:
        return stored_simulator(spec)
    sample = SAMPLES["simulators"].get(spec.id, {})
    options = sample.get("options", {})
    needs = [o.name for o in options_of("simulators", spec, registry.target(spec)) if o.required and o.name not in options]
    if needs:
        return Shown(missing=f"needs a choice of yours: the option `{'`, `'.join(needs)}`")
    try:
        if spec.screens:
            if "page" not in sample:
                return Shown(missing="needs pages of your own, or servers that you start: the option `folder`, or `servers`")
            screen = registry.make_screens(spec.id, options).open()
            try:
                seen = screen.start(sample["page"], 0)
            finally:
                screen.close()
            return Shown(picture=_narrow(seen.screenshot), prompt=seen.instruction, settings=options)
        picture, instruction = first_observation(registry, spec.id, options)
        return Shown(picture=picture and _narrow(picture), prompt=instruction, settings=options)
    except UserError as error:
        return Shown(settings=options, missing=_why(error))


def first_observation(registry: plugins.Registry, id: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """(picture of the first camera, None without cameras; the instruction) of a simulator's first episode."""
    import torch
    from PIL import Image

    from mmrl.api.simulators.types import Simulation

    simulator = registry.make_simulator(Simulation(simulator=id, options=options), 1, "cpu")
    try:
        first = simulator.reset(torch.tensor([0]))
    finally:
        simulator.close()
    return next((Image.fromarray(rows[0].cpu().numpy()) for rows in first.images.values()), None), first.instructions[0]


def stored_simulator(spec: SimulatorSpec) -> Shown:
    """A simulator with the picture that `make docs-pictures` stored."""
    from PIL import Image

    path = STORED / f"{spec.id.replace('/', '-')}.png"
    if not path.exists():
        lines = (Path(__file__).parent / "gallery.toml").read_text("utf-8").splitlines()
        line = next(n for n, text in enumerate(lines, 1) if text.startswith(f'"{spec.id}" = {{environment'))
        why = f"the picture {path.name} is missing in docs/pictures/simulators: make simulators, then make docs-pictures"
        raise UserError(f"docs/site/gallery.toml:{line}: {why}")
    with Image.open(path) as picture:
        return Shown(picture=picture.convert("RGB"), prompt=picture.info.get("instruction", ""))


def _rooted(value: Any) -> Any:
    """A sample's path from the root of the repository, so that the build may run anywhere."""
    return str(ROOT / value) if isinstance(value, str) and value.startswith("assets/") else value


def _gold(task: Task, prompt: Prompt) -> str | None:
    try:
        return None if task.simulation is not None else task.gold(prompt)
    except NoGold:
        return None


def _text(prompt: Prompt) -> str:
    return prompt.text.strip()


def _why(error: UserError) -> str:
    return cut(str(error).replace(f"{ROOT}/", ""), 240).rstrip(".")


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()} ..."


def _narrow(picture: Any) -> Any:
    height = round(picture.height * WIDTH / picture.width)
    return picture.convert("RGB").resize((WIDTH, height))
