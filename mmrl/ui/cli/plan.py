"""`mmrl plan RUN.toml`"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mmrl.train.plan import Plan, StagePlan


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path), metavar="RUN.toml")
@click.option("--machine", metavar="NAME", help="A GPU such as h200 or rtx-4090, or cpu; by default what policy.device is here.")
@click.option("--gpus", type=click.IntRange(min=1), help="Devices in all, instead of what [compute] says.")
@click.option("--text", type=click.IntRange(min=0), default=128, show_default=True, help="Tokens of a prompt that are words.")
@click.option("--images", type=click.IntRange(min=0), default=1, show_default=True, help="Pictures of a prompt.")
@click.option("--pixels", type=click.IntRange(min=1), help="Of a picture; by default policy.max_pixels, or a megapixel.")
@click.option("--completion", type=click.IntRange(min=1), help="Tokens of a completion; by default generate.max_tokens.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one value of the run file; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON: bytes and seconds of one device.")
def command(
    run_file: Path,
    machine: str | None,
    gpus: int | None,
    text: int,
    images: int,
    pixels: int | None,
    completion: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict whether a run fits, and how long a step takes.

    From shapes alone: nothing is loaded, and the machine need not be at hand. Exits with 1 when it does not fit.
    """
    from mmrl.compute.devices import device_of
    from mmrl.config.load import load_config
    from mmrl.train.plan import machines, predict, sizes_of
    from mmrl.train.plan.sources import found
    from mmrl.train.resolve import with_algorithm_defaults

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of each attempt
    config = with_algorithm_defaults(load_config(run_file, overrides))
    sizes = sizes_of(config, found(config.policy), text, images, pixels, completion)
    if machine is None:
        one, count = machines.at_hand(device_of(config.policy))
        gpus = gpus if gpus is not None or config.compute.learners > 1 or config.compute.placement != "colocated" else count
    else:
        one = machines.named(machine)
    made = predict(config, one, gpus=gpus, sizes=sizes)
    if as_json:
        click.echo(json.dumps(made.as_json()))
    else:
        _show(made)
    if not made.fits:
        raise click.exceptions.Exit(1)


def _show(made: Plan) -> None:
    parts = ", ".join(f"{part} {count / 1e6:,.1f} M" for part, count in made.parameters.items())
    many = f"{made.learners} x " if made.learners > 1 else ""
    engines = f", and {made.engines} that sample" if made.engines else ""
    click.echo(f"model    {made.model}: {made.found.shapes.parameters:,} weights ({parts}), from {made.found.source}")
    click.echo(f"machine  {many}{made.machine.name}{engines} ({made.machine.source})")
    sizes = made.sizes
    click.echo(
        f"supposed {sizes.text} tokens of words and {sizes.images} x {sizes.pixels:,} pixels a prompt, "
        f"{sizes.completion} tokens a completion, none shorter"
    )
    for stage in made.stages:
        _show_stage(made, stage)
    if not made.engine_fits:
        click.echo("vLLM's share does not hold the model: raise compute.memory or compute.tensor_parallel")
    if made.changes:
        click.echo("\nTo need less" if not made.changes[0].fits else "\nTo make it fit, one of")
        from mmrl.train.plan import gib

        for change in made.changes:
            click.echo(f"  {change.words:<60} {gib(change.bytes):>10}  {change.cost}")
    if made.offload:
        click.echo(f"\n{made.offload.words}")


def _show_stage(made: Plan, stage: StagePlan) -> None:
    from mmrl.train.plan import gib
    from mmrl.ui.cli.table import escape, print_table

    click.echo()
    work = stage.work
    rows = [
        [part.name, *(gib(part.bytes) if phase in part.phases else "" for phase in ("generate", "update")), escape(part.because)]
        for part in stage.parts
    ]
    peaks = stage.peaks
    rows.append(["[bold]together[/]", *(f"[bold]{gib(peaks[phase])}[/]" for phase in ("generate", "update")), ""])
    print_table(f"stages.{stage.number} ({stage.kind}): memory of a device", ["part", "sampling", "learning", "because"], rows)
    room = made.usable - stage.peak
    limit = "learning" if peaks["update"] >= peaks["generate"] else "sampling"
    click.echo(
        f"it fits: {gib(room)} of {gib(made.usable)} are left, while {limit}"
        if room >= 0
        else f"it does not fit: {limit} lacks {gib(-room)} of {gib(made.usable)}"
    )
    click.echo()
    total = sum(part.seconds for part in stage.seconds) or 1.0
    timed = [[p.name, f"{p.seconds:.3f}", f"{p.seconds / total:.0%}", p.limit] for p in stage.seconds if p.seconds]
    print_table(f"stages.{stage.number} ({stage.kind}): seconds of a step", ["part", "seconds", "share", "limited by"], timed)
    use = f", {stage.flop_use:.0%} of its floating-point rate" if made.machine.kind == "gpu" else ""
    click.echo(
        f"a step of {work.asked} x {work.group} completions: {stage.step_s:.2f} s, {stage.tokens_per_s:,.0f} tokens a second{use}"
    )
    if work.asked < made.learners:
        click.echo(f"{made.learners - work.asked} of {made.learners} learners have no prompt: ask for more in a step")
