"""The gallery: each bundled task and simulator with a picture of what it shows, what it asks, what it pays for, its options, its
recipes and a command. All is read from the registry and made anew with each build, so none of it can be out of date."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs_shown import Shown, cut, show_simulator, show_task, undocumented
from mmrl.api.errors import UserError
from mmrl.api.specs import SimulatorSpec, Spec, TaskSpec
from mmrl.registry import plugins
from mmrl.ui.cli.options import Option, options_of

ROOT = Path(__file__).resolve().parents[2]
PROMPT_CHARACTERS, ANSWER_CHARACTERS = 700, 300
"""Longest prompt and answer shown."""


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
            kin = [one for other in used if other.partition("@")[0] == id.partition("@")[0] for one in used[other]]
            shown = show(registry, spec, [*used.get(id, []), *kin])
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


def save(shown: Shown, folder: Path, id: str, kind: str) -> str:
    """Write the picture of a task or a simulator; its name, or one that says that there is none."""
    name = re.sub(r"\W", "-", id) + ("-simulator" if kind == "simulators" else "")
    if shown.picture is None:
        (folder / f"{name}.svg").write_text(_placeholder(shown), "utf-8")
        return f"pictures/{name}.svg"
    shown.picture.save(folder / f"{name}.png")
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
        lines += ["**Asked**" if kind == "tasks" else "**Instruction**", "", *_block(cut(shown.prompt, PROMPT_CHARACTERS)), ""]
    if shown.answer is not None:
        lines += ["**A right answer**", "", *_block(cut(shown.answer, ANSWER_CHARACTERS)), ""]
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
    return ["| property | |", "|---|---|", *rows, ""] if rows else []


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


def _block(text: str) -> list[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{fence}text", text, fence]


def _escaped(text: str) -> str:
    """Text of a docstring inside a table or a paragraph: code stays code, and nothing else is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_<|\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _sentence(text: str) -> str:
    return f"{_escaped(text[:1].upper() + text[1:].rstrip('.'))}." if text else ""


def _differs(about: str, summary: str) -> bool:
    return about.rstrip(".").lower() != summary.rstrip(".").lower()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _quoted(value: Any) -> str:
    """A TOML value for --set, quoted for a shell."""
    if isinstance(value, str) and re.fullmatch(r"[\w./-]+", value):
        return value
    return "'" + _toml(value) + "'"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _placeholder(shown: Shown) -> str:
    """A picture that says why there is none."""
    text = "text only" if shown.prompt else "yours" if shown.missing.startswith("needs ") else "not installed here"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 255" width="340" height="255">'
        '<rect width="340" height="255" fill="#e6e8ec"/><text x="170" y="134" font-family="sans-serif" font-size="18" '
        f'fill="#5b626d" text-anchor="middle">{text}</text></svg>'
    )
