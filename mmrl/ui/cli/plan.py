"""`mmrl plan RUN.toml`: predict memory and seconds of a run without loading its model."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from mmrl.train.plan import Plan, Sizes, StagePlan


MOST = 10**9
"""Largest number of tokens, images or pixels that is planned for."""


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path), metavar="RUN.toml")
@click.option("--machine", metavar="NAME", help="A GPU such as h200 or rtx-4090, or cpu; default: policy.device here.")
@click.option("--gpus", type=click.IntRange(min=1), help="Number of devices; default: that of [compute].")
@click.option(
    "--prompt-tokens",
    "text",
    type=click.IntRange(min=0),
    help="Text tokens of a prompt; default: 128, or 24 for a policy that acts; of one that reads no text always 0.",
)
@click.option("--images", type=click.IntRange(min=0), default=1, show_default=True, help="Images of a prompt.")
@click.option(
    "--image-pixels", "pixels", type=click.IntRange(min=1), help="Pixels of an image; default: policy.max_pixels, or a megapixel."
)
@click.option(
    "--completion-tokens", "completion", type=click.IntRange(min=1), help="Tokens of a completion; default: generate.max_tokens."
)
@click.option(
    "--episode-steps", "steps", type=click.IntRange(min=1), help="Steps of an episode; default: the longest of the tasks."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the run file; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the plan, in bytes and seconds of one device.")
def command(
    run_file: Path,
    machine: str | None,
    gpus: int | None,
    text: int | None,
    images: int,
    pixels: int | None,
    completion: int | None,
    steps: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict whether a run fits in memory and how long a step takes.

    The prediction uses shapes alone: it loads no model and needs no GPU. The exit code is 1 when the run does not fit.
    """
    from mmrl.compute.devices import resolve_device
    from mmrl.config.load import load_config
    from mmrl.train.plan import machines, predict, sizes_of
    from mmrl.train.plan.sources import find_shapes
    from mmrl.train.resolve import with_algorithm_defaults
    from mmrl.ui.cli.options import option_names

    for option, size in (
        ("prompt-tokens", text),
        ("images", images),
        ("image-pixels", pixels),
        ("completion-tokens", completion),
        ("episode-steps", steps),
    ):
        if size is not None and size > MOST:
            raise UserError(f"--{option} is above {MOST:,}: give a smaller number")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every request
    config = with_algorithm_defaults(load_config(run_file, overrides, option_names))
    sizes = sizes_of(config, find_shapes(config.policy), text, images, pixels, completion, steps)
    if machine is None:
        device, count = machines.current_machine(resolve_device(config.policy))
        gpus = gpus if gpus is not None or config.compute.learners > 1 or config.compute.placement != "colocated" else count
    else:
        device = machines.machine_by_name(machine)
    plan = predict(config, device, gpus=gpus, sizes=sizes)
    if as_json:
        click.echo(json.dumps(plan.as_json()))
    else:
        _show(plan, config.policy.dtype)
    if not plan.fits:
        raise click.exceptions.Exit(1)


def _show(plan: Plan, dtype: str) -> None:
    """dtype: `policy.dtype`."""
    parts = ", ".join(f"{part or 'other'} {count / 1e6:,.1f} M" for part, count in plan.parameters.items())
    many = f"{plan.learners} x " if plan.learners > 1 else ""
    engines = f" to train, {plan.engines} to sample" if plan.engines else ""
    click.echo(f"model    {plan.model}: {plan.found.shapes.parameters:,} weights ({parts}), from {plan.found.source}")
    click.echo(f"machine  {many}{plan.machine.name}{engines} ({plan.machine.source})")
    if dtype == "float32" and plan.machine.kind == "gpu":
        rates = f"{plan.machine.flops32 / 1e12:.0f} TFLOP/s at most, in bfloat16 at {plan.machine.flops / 1e12:.0f}"
        click.echo(f'dtype    float32: products run at {rates} (policy.dtype = "bfloat16")')
    sizes = plan.sizes
    if sizes.steps:
        read = f"{sizes.text} text tokens and " if plan.found.shapes.reads_text else ""
        click.echo(
            f"assumed  {read}{sizes.images} x {sizes.pixels:,} pixels per call, "
            f"episodes of {sizes.steps} steps (all of full length); simulators take their own time"
        )
    else:
        _show_assumed(sizes, plan.found.shapes.hears)
    for stage in plan.stages:
        _show_stage(plan, stage)
    if not plan.engine_fits:
        click.echo("vLLM's share does not hold the model: raise compute.gpu_memory_utilization or compute.tensor_parallel")
    if plan.unknown_models:
        names = ", ".join(plan.unknown_models)
        click.echo(f"not counted, as their size isn't known here: the verifiers' models {names}; give folders with their weights")
    if plan.changes:
        click.echo(
            "\nEach of these makes it fit, the mildest first"
            if plan.changes[0].fits
            else "\nNone of the settings that are tried makes it fit; these save most"
        )
        from mmrl.train.plan import gib

        for change in plan.changes:
            click.echo(f"  {change.words:<60} {gib(change.bytes):>10}  {f'{change.step_s:,.1f} s a step':>18}  {change.cost}")


def _show_assumed(sizes: Sizes, hears: bool) -> None:
    from mmrl.train.plan.seen import SECONDS

    each = f"{SECONDS} seconds of sound" if hears else f"{sizes.pixels:,} pixels"
    click.echo(
        f"assumed  {sizes.text} text tokens and {sizes.images} x {each} per prompt, "
        f"{sizes.completion} tokens per completion (all of full length)"
    )


def _show_stage(plan: Plan, stage: StagePlan) -> None:
    from mmrl.train.plan import gib
    from mmrl.ui.cli.table import escape, print_table

    click.echo()
    work = stage.work
    rows = [
        [part.name, *(gib(part.bytes) if phase in part.phases else "" for phase in ("generate", "update")), escape(part.because)]
        for part in stage.parts
    ]
    peaks, limit = stage.peaks, "learning" if stage.phase == "update" else "sampling"
    rows.append(["[bold]total[/]", *(f"[bold]{gib(peaks[phase])}[/]" for phase in ("generate", "update")), ""])
    print_table(f"stages.{stage.number} ({stage.kind}): memory per device", ["part", "sampling", "learning", "reason"], rows)
    room = plan.usable - stage.peak
    click.echo(
        f"it fits: {gib(room)} of {gib(plan.usable)} stay free while {limit}, which takes most"
        if room >= 0
        else f"it does not fit: {limit} needs {gib(-room)} more than {gib(plan.usable)}"
    )
    click.echo()
    total = sum(part.seconds for part in stage.seconds) or 1.0
    timed = [[p.name, f"{p.seconds:.3f}", f"{p.seconds / total:.0%}", p.limit] for p in stage.seconds if p.seconds]
    print_table(f"stages.{stage.number} ({stage.kind}): seconds per step", ["part", "seconds", "share", "limited by"], timed)
    use = f", {stage.flop_use:.0%} of its peak FLOP/s" if plan.machine.kind == "gpu" else ""
    what = "episodes" if plan.sizes.steps else "completions"
    if not work.asked:
        click.echo(f"a step that plays nothing: {stage.step_s:.2f} s{use}")
        return
    click.echo(f"a step of {work.asked} x {work.group} {what}: {stage.step_s:.2f} s, {stage.tokens_per_s:,.0f} tokens/s{use}")
    sampled, trained, again = (sum(n * size for n, size in of) for of in (work.sampled, work.trained, work.perhaps))
    if sampled not in (0, trained) or trained != work.prompts * work.group:
        click.echo(f"of a learner, at most {sampled:,} {what} are sampled, and {trained:,} are trained on")
    if not plan.sizes.steps and work.completion > plan.sizes.completion:
        click.echo(f"a rule lets answers go on to {work.completion:,} tokens: all answers are counted with as many")
    if again:
        click.echo(f"where groups fail or are left out, up to {again:,} {what} more are sampled: {stage.perhaps_s:.2f} s")
    if work.asked < plan.learners:
        click.echo(f"{plan.learners - work.asked} of {plan.learners} learners have no prompt: take more prompts per step")
