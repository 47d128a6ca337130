"""`mmrl mix RUN.toml`: train short pilots on several task mixtures and recommend one."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from mmrl.config.sections import RunConfig
    from mmrl.data.mixture import Mixture, Recommendation


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path), metavar="RUN.toml")
@click.option("--pilots", type=click.IntRange(min=3), help="Number of mixtures to try; default: enough to fit the surrogate.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of a pilot's last rl stage; default: a quarter of the run's.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder of the pilots; default: runs/NAME-mix.")
@click.option("--seed", type=int, help="Seed of the random mixtures; default: the run file's.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the run file; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the content of mix.json.")
def command(
    run_file: Path,
    pilots: int | None,
    steps: int | None,
    out: Path | None,
    seed: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Search for the best mixture of training tasks.

    Trains a short pilot on each of several mixtures, fits a quadratic surrogate to the held-out figures and recommends the
    mixture at its maximum (MoDoMoDo, Liang et al. 2025). The same command resumes an interrupted search.
    """
    from mmrl.config.load import load_config
    from mmrl.data.mixture import enough, mixture_stage, pilot_config, recommend, seed_mixtures
    from mmrl.run_folder.reader import is_run
    from mmrl.ui.cli.options import option_names
    from mmrl.ui.cli.terminal import silence_libraries

    config = load_config(run_file, overrides, option_names)
    at, labels = mixture_stage(config)
    seed = config.seed if seed is None else seed
    steps = steps or -(-config.stages[at].steps // 4)
    out = out or Path(config.runs_dir) / f"{config.name}-mix"
    if is_run(out):
        raise UserError(f"{out} is itself a run folder: give another --out for the pilots")
    _check_ours(out / "mix.json")
    mixtures = seed_mixtures(labels, pilots or enough(len(labels)), seed)
    configs = [pilot_config(config, i, mixture, steps, str(out)) for i, mixture in enumerate(mixtures, 1)]
    silence_libraries()
    finished = [_finished(config) for config in configs]
    figures = list(_train(configs, mixtures, labels, finished))
    tasks = list(figures[0])
    values = [[by_task[task]["value"] for task in tasks] for by_task in figures]
    best = recommend([m.shares for m in mixtures], values, seed)
    data = _as_json(config, at, steps, seed, configs, mixtures, labels, figures, best)
    _write(out / "mix.json", data)
    if as_json:
        click.echo(json.dumps(data))
    else:
        _show(data, run_file, overrides, out)


def _check_ours(path: Path) -> None:
    """Raise UserError if a file in the place of `mix.json` was not written by an earlier search."""
    try:
        ours = not path.exists() or "pilots" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        ours = False
    if not ours:
        raise UserError(f"{path} is there already, and no search of mmrl mix wrote it: give another --out")


# -- the pilots -------------------------------------------------------------------------------------------------------------


def _finished(pilot: RunConfig) -> bool:
    """Whether an earlier call finished this pilot. Raises UserError when its folder holds something else or other settings."""
    from mmrl.config.load import to_dict
    from mmrl.run_folder.reader import is_run
    from mmrl.run_folder.writer import RunFolder

    path = Path(pilot.runs_dir) / pilot.name
    if not path.exists():
        return False
    if not is_run(path):
        raise UserError(f"{path} is not a run folder, and a pilot needs its place: remove it, or give another --out")
    from mmrl.train.resolve import with_algorithm_defaults

    settings = to_dict(with_algorithm_defaults(pilot))
    try:
        RunFolder.open(path, settings)
    except UserError as error:
        raise UserError(f"{error}, or give another --out") from error
    return (path / "summary.json").exists()


def _train(
    configs: Sequence[RunConfig], mixtures: Sequence[Mixture], labels: Sequence[str], finished: Sequence[bool]
) -> Iterator[dict[str, Any]]:
    """Train the unfinished pilots; yields each pilot's last held-out figures by task and prints a line for each on stderr."""
    import gc

    with PilotProgress(len(configs)) as watch, interrupts() as interrupted:
        for number, (config, mixture, done) in enumerate(zip(configs, mixtures, finished, strict=True), 1):
            path, started = Path(config.runs_dir) / config.name, time.monotonic()
            if interrupted():
                raise KeyboardInterrupt
            if not done:
                from mmrl.train.start import train

                watch.begin(number, mixture.kind)
                try:
                    train(config, watch, resume=path.exists())
                except UserError as error:
                    raise UserError(f"pilot {config.name}: {error}") from error
                except KeyboardInterrupt:
                    watch.say(f"stopped in pilot {number} of {len(configs)}; the same command resumes here")
                    raise
                gc.collect()  # free one pilot's policy before the next is loaded
            figures = _figures(path)
            mean = sum(f["value"] for f in figures.values()) / len(figures)
            took = "reused" if done else f"{time.monotonic() - started:.0f} s"
            watch.say(f"pilot {number} of {len(configs)}  {mean:.3f}  {took:>6}  {_kind(mixture, labels)}")
            yield figures


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C was pressed: Python drops a KeyboardInterrupt that is raised in a finalizer,
    which may run between two pilots."""
    received: list[int] = []

    def remember(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, before)


def _figures(path: Path) -> dict[str, Any]:
    """Task -> its last held-out figure, from the summary.json of a run folder."""
    from mmrl.api.errors import is_finite

    try:
        figures = json.loads((path / "summary.json").read_bytes())["last"]
        numbers = [f[key] for f in figures.values() for key in ("value", "n")]
        bounds = [b for f in figures.values() for b in (f["low"], f["high"]) if b is not None]  # unknown ones are
        if numbers and all(map(is_finite, [*numbers, *bounds])):
            return figures
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{path / 'summary.json'} has no held-out figures: remove that folder, and the pilot is trained again")


class PilotProgress:
    """Progress of the pilots on stderr: a live line in a terminal, a line for each finished pilot, and each note once."""

    def __init__(self, count: int) -> None:
        from rich.console import Console
        from rich.live import Live

        from mmrl.ui.report.progress import tell_stopping

        self.console, self.count = Console(stderr=True), count
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.pilot, self.stage, self.done, self.steps, self.drawn = "", "", 0, 1, 0.0
        self.notes: set[str] = set()
        self.stopping = tell_stopping

    def __enter__(self) -> PilotProgress:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        if self.live:
            self.live.update("", refresh=True)
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, number: int, kind: str) -> None:
        self.pilot, self.stage = f"pilot {number} of {self.count} ({kind})", "loading"
        self._draw("")

    def stage_started(self, number: int, count: int, stage: Any, done: int) -> None:
        self.stage, self.done, self.steps = f"stage {number + 1} of {count}: {stage.kind}", done, stage.steps
        self._draw("")

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self.done += 1
        if time.monotonic() - self.drawn > 0.1:
            reward = metrics.get("reward/mean")
            self._draw(f"  step {self.done}/{self.steps}" + ("" if reward is None else f"  reward {reward:.3g}"))

    def evaluated(self, step: int, figures: Sequence[Any]) -> None:
        pass  # the finished line has the figure

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.add(text)
            self.console.print(f"  note: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _draw(self, rest: str) -> None:
        if self.live:
            from rich.text import Text

            self.live.update(Text(f"{self.pilot}  {self.stage}{rest}", style="dim", no_wrap=True), refresh=True)
            self.drawn = time.monotonic()


# -- output -----------------------------------------------------------------------------------------------------------------


def _as_json(
    config: RunConfig,
    at: int,
    steps: int,
    seed: int,
    configs: Sequence[RunConfig],
    mixtures: Sequence[Mixture],
    labels: Sequence[str],
    figures: Sequence[Mapping[str, Any]],
    best: Recommendation,
) -> dict[str, Any]:
    """The content of `mix.json`; docs/mixtures.md describes its keys."""
    rows = [
        {
            "name": pilot.name,
            "kind": mixture.kind,
            "shares": dict(zip(labels, mixture.shares, strict=True)),
            "value": sum(f["value"] for f in by_task.values()) / len(by_task),
            "left_out": predicted,
            "tasks": {task: {k: f.get(k) for k in ("metric", "value", "low", "high", "n")} for task, f in by_task.items()},
        }
        for pilot, mixture, by_task, predicted in zip(configs, mixtures, figures, best.predicted, strict=True)
    ]
    shares = dict(zip(labels, best.shares, strict=True))
    recommended = {
        "shares": shares,
        "value": best.value,
        "pilot": None if best.pilot is None else configs[best.pilot].name,
        "toml": f"tasks = {_inline(shares)}",
    }
    surrogate = {"used": best.pilot is None, "error": best.error, "error_of_mean": best.error_of_mean}
    return {
        "run": config.name,
        "stage": at,
        "steps": steps,
        "seed": seed,
        "pilots": rows,
        "surrogate": surrogate,
        "recommended": recommended,
    }


def _write(path: Path, data: Mapping[str, Any]) -> None:
    from mmrl.run_folder import files

    files.replace_file(path, files.pretty(data))


def _inline(shares: Mapping[str, float]) -> str:
    """The shares as a TOML inline table."""
    keys = [key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False) for key in shares]
    return "{ " + ", ".join(f"{key} = {share:.6g}" for key, share in zip(keys, shares.values(), strict=True)) + " }"


def _kind(mixture: Mixture, labels: Sequence[str]) -> str:
    """`uniform` or `only a`; the shares of a random mixture."""
    return mixture.kind if mixture.kind != "random" else _words(dict(zip(labels, mixture.shares, strict=True)))


def _percent(share: float | None) -> str:
    """The share in percent; a dash for a task that is only evaluated."""
    return "–" if share is None else f"{share:.0%}"


def _words(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {share:.0%}" for label, share in shares.items())


def _show(data: Mapping[str, Any], run_file: Path, overrides: Sequence[str], out: Path) -> None:
    """Print the table of pilots, the recommendation and the command that trains with it."""
    from mmrl.ui.cli.table import escape, print_table

    pilots, best, surrogate = data["pilots"], data["recommended"], data["surrogate"]
    tasks, uniform, top = list(pilots[0]["tasks"]), pilots[0], max(pilots, key=lambda p: p["value"])
    rows = []
    for number, p in enumerate(pilots, 1):
        cells = [f"{_percent(p['shares'].get(task)):>4}  {figure['value']:.3f}" for task, figure in p["tasks"].items()]
        mean = f"{p['value']:.3f}" if p is not top else f"[bold]{p['value']:.3f}[/]"
        rows.append([f"{number:>2}  {escape(p['kind'])}", *cells, mean, f"{p['left_out']:.3f}"])
    click.echo()
    print_table(
        f"Share of prompts and held-out value after {data['steps']} steps",
        ["pilot", *(escape(task) for task in tasks), "mean", "predicted"],
        rows,
    )
    measured = [f for f in top["tasks"].values() if None not in (f["low"], f["high"])]
    noise = sum(((f["high"] - f["low"]) / 2) ** 2 for f in measured) ** 0.5 / len(tasks)
    accurate = f"is accurate to about ±{noise:.3f}" if len(measured) == len(tasks) else "has an unknown interval"
    misses = f"off by {surrogate['error']:.3f} on pilots left out of its fit"
    plain = f"the mean of the others is off by {surrogate['error_of_mean']:.3f}"
    highest = f"{top['value']:.3f} (pilot {pilots.index(top) + 1}, {top['kind']})"
    if surrogate["used"]:
        click.echo(f"surrogate    {misses}; {plain}")
        value = f"predicted: {best['value']:.3f}; best measured: {highest}"
    elif surrogate["error_of_mean"]:
        click.echo(f"surrogate    {misses}; {plain}: the fit is no better, so the best pilot is recommended")
        value = f"measured: {highest}"
    else:
        click.echo("surrogate    all pilots scored the same, so there is nothing to fit: the first is recommended")
        value = f"measured: {highest}"
    beside = "" if top is uniform else f"; uniform: {uniform['value']:.3f}"
    click.echo(f"noise        a mean {accurate} (95%, {sum(f['n'] for f in top['tasks'].values())} prompts)")
    click.echo(f"recommended  {_words(best['shares'])}\n             {value}{beside}")
    if not surrogate["used"]:
        click.echo(
            "             more or longer pilots (--pilots, --steps) or more held-out prompts (evaluate.num_prompts) may help"
        )
    where = f"stages.{data['stage']}"
    switches = sys.argv[1 : sys.argv.index("mix")] if "mix" in sys.argv else []  # such as --plugin ./my_task.py
    sets = [*overrides, f"{where}.{best['toml'].replace(' = ', '=', 1)}"]
    again = shlex.join(["mmrl", *switches, "train", str(run_file), *(word for text in sets for word in ("--set", text))])
    click.echo(f"\nPaste into {where} of {run_file}, its last rl stage:\n\n    {best['toml']}")
    click.echo(f"\nor train with it directly:\n\n    {again}")
    click.echo(f"\nAll figures are in {out / 'mix.json'}; the pilots beside it are run folders.")
