"""The gallery: each bundled task and simulator with a picture of what it shows, what it asks, what it pays for, its options, its
recipes and a command. All is read from the registry and made anew with each build, so none of it can be out of date."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections import defaultdict
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
from mmrl.ui.cli.options import Option, options_of

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = tomllib.loads((Path(__file__).parent / "gallery.toml").read_text("utf-8"))
STORED = ROOT / "docs" / "pictures" / "simulators"
PROMPT_CHARACTERS, ANSWER_CHARACTERS = 700, 300
"""Longest prompt and answer shown."""
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


def pages(folder: Path) -> dict[str, str]:
    """Path in the site -> Markdown; the pictures are written below `folder`."""
    registry = plugins.registry()
    if broken := [plugin for plugin in registry.plugins if plugin.error]:
        raise UserError(f"the gallery lists all plugins, and {broken[0].name!r} {broken[0].error}")
    own = bundled()
    used, entries = recipes(), defaultdict(list)
    tasks = {id: spec for id, spec in registry.specs("tasks").items() if id.partition("/")[0] in own}
    simulators = {id: spec for id, spec in registry.specs("simulators").items() if id.partition("/")[0] in own}
    faults = [fault for spec in tasks.values() if (fault := undocumented(spec, registry.target(spec)))]
    if faults:
        raise UserError("the gallery says of each task what it is:\n" + "\n".join(dict.fromkeys(faults)))
    made: dict[str, list[str]] = defaultdict(list)
    (folder / "gallery" / "pictures").mkdir(parents=True, exist_ok=True)
    for kind, specs, show in (("tasks", tasks, show_task), ("simulators", simulators, show_simulator)):
        for id, spec in specs.items():
            shown = show(registry, spec, used.get(id, []))
            picture = save(shown, folder / "gallery" / "pictures", id, kind)
            plugin = id.partition("/")[0]
            made[plugin].append(section(registry, kind, spec, shown, picture, used.get(id, [])))
            if "@" not in id or id.partition("@")[0] not in specs:
                systems = [other.partition("@")[2] for other in specs if other.startswith(f"{id}@")]
                entries[plugin].append(card(id, spec, shown, picture, plugin, systems))
    result = {"gallery/index.md": index(entries, own)}
    for plugin, sections in made.items():
        said = own[plugin]
        result[f"gallery/{plugin}.md"] = f"# {plugin}\n\n{said}\n\n" + "\n".join(sections)
    return result


def bundled() -> dict[str, str]:
    """Name -> one line, of the plugins and simulators of this repository."""
    found = {}
    for path in sorted([*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("sims/*/pyproject.toml")]):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        for name in project["entry-points"]["mmrl.plugins"]:
            found[name] = project["description"].rstrip(".") + "."
    return found


def recipes() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Task or simulator -> (run file of the repository, options of the task there)."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for path in sorted([*ROOT.glob("configs/demo/*.toml"), *ROOT.glob("configs/recipes/*.toml")]):
        for entry in tomllib.loads(path.read_text("utf-8"))["tasks"]:
            named = (path.relative_to(ROOT).as_posix(), entry.get("options", {}))
            for id in (entry["id"], named[1].get("simulator")):
                if id and named[0] not in [file for file, _ in found[id]]:
                    found[id].append(named)
    return found


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

        picture = prompt_picture(prompt, task.overlays(prompt, answer or "")) if prompt.images or prompt.videos else None
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
    try:
        if spec.screens:
            if "page" not in sample:
                return Shown(missing="needs pages of your own: the option `folder`")
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
        where = path.relative_to(ROOT)
        raise UserError(
            f"docs/site/gallery.toml:{line}: the picture {where} is missing: make simulators, then make docs-pictures"
        )
    with Image.open(path) as picture:
        return Shown(picture=picture.convert("RGB"), prompt=picture.info.get("instruction", ""))


def save(shown: Shown, folder: Path, id: str, kind: str) -> str:
    """Write the picture of a task or a simulator; its name, or one that says that there is none."""
    name = re.sub(r"\W", "-", id) + ("-simulator" if kind == "simulators" else "")
    if shown.picture is None:
        (folder / f"{name}.svg").write_text(_placeholder(shown), "utf-8")
        return f"pictures/{name}.svg"
    shown.picture.save(folder / f"{name}.png", optimize=True)
    return f"pictures/{name}.png"


def section(
    registry: plugins.Registry, kind: str, spec: Any, shown: Shown, picture: str, used: Iterable[tuple[str, Mapping[str, Any]]]
) -> str:
    """One task or simulator of a plugin's page."""
    about = " ".join(inspect.cleandoc(registry.target(spec).__doc__ or "").split("\n\n")[0].split())
    lines = [f"## `{spec.id}`", "", f"![What {spec.id} shows]({picture}){{ .shown }}", ""]
    lines += [f"{_sentence(spec.summary)} {_escaped(about) if _differs(about, spec.summary) else ''}".strip(), ""]
    if shown.missing:
        lines += [f"Not shown here: {_escaped(shown.missing)}.", ""]
    if shown.prompt:
        lines += ["**Asked**" if kind == "tasks" else "**Instruction**", "", *_block(_cut(shown.prompt, PROMPT_CHARACTERS)), ""]
    if shown.answer is not None:
        lines += ["**A right answer**", "", *_block(_cut(shown.answer, ANSWER_CHARACTERS)), ""]
    if isinstance(spec, TaskSpec):
        lines += rewards(registry, spec)
        command = " ".join([f"mmrl preview {spec.id}", *(f"--set {k}={_quoted(v)}" for k, v in shown.settings.items())])
    else:
        lines += simulator_facts(spec)
        command = " ".join([f"mmrl check {spec.id}", *(f"--set {k}={_quoted(v)}" for k, v in shown.settings.items())])
    lines += ["```sh", command, "```", ""]
    if files := [file for file, _ in used]:
        lines += [f"Used by {', '.join(f'[{Path(file).stem}](../../{file})' for file in files)}.", ""]
    return "\n".join([*lines, *option_table(options_of(kind, spec, registry.target(spec)))])


def rewards(registry: plugins.Registry, spec: TaskSpec) -> list[str]:
    """The verifiers of a task, their weights and what they say of themselves."""
    rows = []
    for id, weight in spec.verifiers.items():
        verifier = registry.get("verifiers", id)
        said = " ".join(inspect.cleandoc(registry.target(verifier).__doc__ or verifier.summary).split("\n\n")[0].split())
        rows.append(f"| `{id}` | {weight:g} | {verifier.low:g} to {verifier.high:g} | {_escaped(said or verifier.summary)} |")
    more = " Weight 0: the task or its simulator pays, and the verifier only measures." if 0 in spec.verifiers.values() else ""
    head = [f"**Rewarded**: the sum of these values times their weights.{more}", ""]
    return [*head, "| verifier | weight | values | what it checks |", "|---|---|---|---|", *rows, ""]


def simulator_facts(spec: SimulatorSpec) -> list[str]:
    """What a simulator's spec says of it."""
    facts = [("capabilities", sorted(spec.capabilities)), ("cameras", spec.cameras), ("parts", spec.parts)]
    facts += [("variants", spec.variants)]
    rows = [f"| {name} | {', '.join(f'`{one}`' for one in values)} |" for name, values in facts if values]
    if spec.action:
        rows.append(f"| action | {spec.action.dims} numbers, `{spec.action.control_mode}` |")
    rows += [f"| steps | {spec.max_steps} |"] if spec.max_steps else []
    return ["| | |", "|---|---|", *rows, ""] if rows else []


def option_table(options: list[Option]) -> list[str]:
    """The options of a target, folded away."""
    if not options:
        return []
    rows = [
        f"    | `{o.name}` | {'required' if o.required else f'`{_json(o.default)}`'} | {_escaped(' '.join(o.meaning.split()))} |"
        for o in options
    ]
    title = "1 option" if len(options) == 1 else f"{len(options)} options"
    return [f'??? note "{title}"', "    | option | default | meaning |", "    |---|---|---|", *rows, ""]


def card(id: str, spec: Spec, shown: Shown, picture: str, plugin: str, systems: Iterable[str]) -> str:
    """The entry of the first page; `systems` are published ones that it can behave as."""
    mark = re.sub(r"[^\w\- ]", "", id)
    also = f"<br>*also as {', '.join(systems)}*" if systems else ""
    return f'[![]({picture}){{ alt="" }} **{id}** <span>{_sentence(spec.summary)}{also}</span>]({plugin}.md#{mark}){{ .card }}'


def index(entries: Mapping[str, list[str]], said: Mapping[str, str]) -> str:
    """The first page of the gallery."""
    lines = [
        "---",
        "hide: [toc]",
        "---",
        "# Gallery",
        "",
        "All tasks and simulators of the bundled plugins, made from the code: what the model sees, what it is asked and what is",
        "paid. A name with `@` behaves as a published system does.",
        "[Plugins of others](../others.md) are listed on their own page.",
        "",
    ]
    for plugin, cards in entries.items():
        lines += [f"## [{plugin}]({plugin}.md)", "", said[plugin], "", '<div class="cards" markdown>', *cards, "</div>", ""]
    return "\n".join(lines)


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
    return _cut(str(error).replace(f"{ROOT}/", ""), 240).rstrip(".")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()} ..."


def _block(text: str) -> list[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{fence}text", text, fence]


def _escaped(text: str) -> str:
    """Text of a docstring inside a table or a paragraph: code stays code, and nothing else is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts).replace("|", "\\|")


def _sentence(text: str) -> str:
    return f"{_escaped(text[:1].upper() + text[1:].rstrip('.'))}." if text else ""


def _differs(about: str, summary: str) -> bool:
    return about.rstrip(".").lower() != summary.rstrip(".").lower()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str).replace("|", "\\|")


def _quoted(value: Any) -> str:
    """A TOML value for --set, quoted for a shell."""
    if isinstance(value, str) and re.fullmatch(r"[\w./-]+", value):
        return value
    return "'" + _toml(value) + "'"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _narrow(picture: Any) -> Any:
    height = round(picture.height * WIDTH / picture.width)
    return picture.convert("RGB").resize((WIDTH, height))


def _placeholder(shown: Shown) -> str:
    """A picture that says why there is none."""
    text = "text only" if shown.prompt else "your data" if shown.missing.startswith("needs ") else "not installed here"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 255" width="340" height="255">'
        '<rect width="340" height="255" fill="#e6e8ec"/><text x="170" y="134" font-family="sans-serif" font-size="18" '
        f'fill="#5b626d" text-anchor="middle">{text}</text></svg>'
    )
