"""Export the policy of a run as a folder that other programs load, with a model card, and upload it to the hub."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, check_writing
from mmrl.api.seeds import derive
from mmrl.config.load import load_config
from mmrl.config.sections import RunConfig
from mmrl.policies.acting.saved_policy import read_settings
from mmrl.policies.load import make_policy
from mmrl.policies.lora import CONFIG, adapter_chain, merge
from mmrl.policies.names import refuse_path
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.chat_templates import ChatTemplate
from mmrl.policies.vlm.thinkers import PREFIX, thinker_class, thinker_settings
from mmrl.policies.vlm.weights import weight_files
from mmrl.run_folder.reader import read_run, step_of
from mmrl.run_folder.writer import RunFolder
from mmrl.train import checkpoint
from mmrl.train.export.card import LOADER, Card, Layout, origin
from mmrl.train.export.hub import Hub
from mmrl.train.resume import find_checkpoint, newest_state

RUN_FILE, TEMPLATE = "run.toml", "chat_template.jinja"
LEROBOT = "lerobot"
"""The layout that a kind of policy may have beside its own, see `layouts` of its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote."""

    step: int
    """The step of the checkpoint."""
    layout: Layout
    url: str
    """Of its repository on the hub; empty if it wasn't uploaded."""


def export_run(
    run: Path,
    out: Path,
    *,
    which: str = "best",
    merged: bool = False,
    hub: str = "",
    public: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write the policy of a run's checkpoint to the new folder `out`, with its processor, run file and model card.

    which: checkpoint, `best`, `last` or a step. merged: adapters are worked into the weights. hub: a repository on the hub to
    upload the folder to, private unless `public`. say: is told what takes long.

    Raises UserError for a run without that checkpoint, adapters that nobody else could load, a folder that isn't empty, a full
    disk, and a repository that may not be written to. The folder is complete or not there.
    """
    refuse_used(out)
    config = load_config(run_file(run))
    found = checkpoint_of(RunFolder.open(run), which, config)
    source, step = found / checkpoint.POLICY, step_of(found)
    apart = (source / CONFIG).is_file() and not merged
    if apart:
        _refuse_base(source, on_hub=bool(hub))
    elif not (source / CONFIG).is_file() and not read_settings(source) and config.policy.kind == "vlm":
        weight_files(source)
    uploader = Hub(hub, private=not public) if hub else None  # may the user write there? asked before the work
    with complete_or_gone(out):
        if read_settings(source) or ((source / CONFIG).is_file() and merged):
            say(f"loading {source}")
            _save(config, source, out, merged)
        else:
            shutil.copytree(source, out, dirs_exist_ok=True)
        write_run_file(run / "config.toml", out)
        named = hub or out.resolve().name
        layout, loader, opening = layout_of(out), loader_of(out), opening_in(out, config)
        card = Card(read_run(run), config, step, layout, named, origin(config.policy.model), loader, opening)
        (out / "README.md").write_text(card.text(), encoding="utf-8")
    if uploader:
        say(f"uploading {out} to {hub}")
    return Exported(step=step, layout=card.layout, url=uploader.upload(out) if uploader else "")


def write_run_file(source: Path, out: Path) -> None:
    """The run file of a run, beside its exported policy. A chat template of its own is named as it lies there."""
    import tomli_w

    text = source.read_text(encoding="utf-8")
    told = tomllib.loads(text)
    if told["policy"].get("chat_template") and (out / TEMPLATE).is_file():
        told["policy"]["chat_template"] = TEMPLATE
        text = tomli_w.dumps(told)
    (out / RUN_FILE).write_text(text, encoding="utf-8")


def layout_of(folder: Path) -> Layout:
    """Whose layout a saved policy has: adapters of `peft`, a model of `transformers` or `lerobot`, or one that `mmrl` alone
    loads."""
    acts, adapters = bool(read_settings(folder)), (folder / CONFIG).is_file()
    if adapters:
        return "mmrl" if acts else "peft"
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "mmrl"
    if acts:
        return "lerobot" if "type" in settings and "model_type" not in settings else "mmrl"
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = thinker_settings(settings).get("model_type") in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES or "auto_map" in settings
    return "transformers" if known else "mmrl"


def loader_of(folder: Path) -> str:
    """The class of transformers that loads a saved policy, or the model of its adapters; empty for adapters of a thinker, which
    have the names of the whole model."""
    if (folder / CONFIG).is_file():
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if any(name.startswith(PREFIX) for name in settings.get("target_modules") or ()):
            return ""
    file = Path(adapter_chain(str(folder))[1]) / "config.json"
    kind = json.loads(file.read_text(encoding="utf-8")).get("model_type", "") if file.is_file() else ""
    return getattr(thinker_class(kind), "__name__", LOADER)


def opening_in(folder: Path, config: RunConfig) -> str:
    """What the chat template of an exported policy writes of each answer, see `ChatTemplate.opening`; empty without one."""
    if not (folder / TEMPLATE).is_file():
        return ""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=config.policy.trust_remote_code)
    try:
        return ChatTemplate(processor, config.policy.chat_template_kwargs).opening
    except UserError:  # a variable that it doesn't read: the card shows it, and training refuses it
        return ""


def _save(config: RunConfig, source: Path, out: Path, merged: bool) -> None:
    """Load a checkpoint's policy and save it, in LeRobot's layout if its kind has that."""
    settings = config.policy.model_copy(update={"device": "cpu"})
    policy = load_saved(settings, config.seed, source)
    if getattr(policy, "layout", None) and LEROBOT in getattr(policy, "layouts", ()):
        policy.layout = LEROBOT  # type: ignore[attr-defined]
    if merged and policy.lora:
        merge(policy.model)
        policy.lora = None
    policy.save(out)


def load_saved(settings: Any, seed: int, source: Path) -> Policy:
    """A checkpoint's policy, on the CPU. settings: of `[policy]`."""
    return make_policy(settings, device="cpu", seed=derive(seed, "weights"), source=source)


def run_file(run: Path) -> Path:
    """The run file of a run. Raises UserError for a folder that is none."""
    if not (run / "config.toml").is_file():
        what = "it has no config.toml" if run.is_dir() else "there is no such folder"
        raise UserError(f"{run} is no run: {what}: give a run folder, such as runs/demo; a task is exported with --to TRAINER")
    return run / "config.toml"


def refuse_used(out: Path) -> None:
    """Raise UserError for a folder that holds something, or is none."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists: name a new folder")


def checkpoint_of(run: RunFolder, which: str, config: RunConfig) -> Path:
    """The folder of a run's checkpoint. which: `best`, `last` or a step. Raises UserError if there is none."""
    found = find_checkpoint(run, which, newest_state(run))
    if found is None:
        raise UserError(
            f"{run.path}: no checkpoint was better than the initial weights, {config.policy.model}: give --checkpoint last, or "
            "a step"
        )
    return found


def _refuse_base(source: Path, on_hub: bool) -> None:
    """Raise UserError for adapters apart whose model other programs can't load."""
    [folder, *chain], base = adapter_chain(str(source))
    if chain:
        raise UserError(f"{folder}: its adapters belong to other adapters, {chain[0]}: give --merge")
    if base.startswith("tiny:"):
        raise UserError(f"{folder}: its adapters belong to {base}, which mmrl alone can make: give --merge")
    if Path(base).is_dir():
        if on_hub:
            raise UserError(f"{folder}: its adapters belong to {base}, a folder of this machine: give --merge for --hub")
    else:
        refuse_path(base, f"put the model of the adapters there, or correct {folder / CONFIG}")


@contextmanager
def complete_or_gone(out: Path) -> Iterator[None]:
    """Inside, a folder is written; on an error it is removed, and an error of the disk becomes one line."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        number = checkpoint.system_error(error)
        if number is None:
            raise
        raise UserError(f"{out} could not be written: {os.strerror(number)}: {check_writing(number)}") from error
