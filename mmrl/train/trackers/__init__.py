"""The trackers of a run. A tracker's failure doesn't end the run. See `docs/trackers.md`."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mmrl.api.errors import PluginError, plugin_errors, shorten
from mmrl.api.interfaces import RolloutTracker, Tracker
from mmrl.config.load import to_dict
from mmrl.config.sections import RecordConfig, RunConfig
from mmrl.registry import plugins
from mmrl.registry.importing import explain_import
from mmrl.run_folder.writer import RunFolder
from mmrl.train.trackers.tables import rollout_rows

if TYPE_CHECKING:
    from mmrl.evaluation.results import Evaluation

PATIENCE = 3
"""After so many failures in a row a tracker isn't called again, as each call may wait for a broken network."""


class Trackers:
    """The trackers that a run file names. The methods catch all exceptions of trackers."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, note: Callable[[str], None], ids: Sequence[str] | None = None
    ) -> None:
        """note: called with one sentence when a tracker fails for the first time. ids: trackers instead of the run file's."""
        self.config, self.folder, self.note = config, folder, note
        self.ids = config.record.trackers if ids is None else ids
        self._trackers: dict[str, Tracker] = {}
        self._failures: dict[str, int] = {}
        """Id -> failures in a row, for trackers that have failed before."""
        self._step = 0

    def start(self, step: int) -> None:
        """Start the trackers, or resume them after `step`. Call it once, after the run folder has been rewound to that step."""
        self._step = step
        config = to_dict(self.config)
        for id in dict.fromkeys(self.ids):
            with self._surviving(id, "start"):
                tracker = make_tracker(id)
                tracker.start(
                    name=self.config.name, folder=self.folder.path, config=config, project=self.config.record.project, step=step
                )
                self._trackers[id] = tracker

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step's metrics; those that are not finite are left out, as in `metrics.jsonl`."""
        self._step = step
        metrics = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for id, tracker in list(self._trackers.items()):
            with self._surviving(id, "log"):
                tracker.log(step, metrics)
            if self._failures.get(id, 0) >= PATIENCE:  # more if `rollouts` failed in between
                del self._trackers[id]
                self.folder.error(step, f"tracker {id}", f"failed {PATIENCE} times in a row: it gets no more metrics of this run")

    def evaluation(self, step: int, figure: Evaluation) -> None:
        """Log one task's figure with its interval and extras: `eval/<task>/<metric>`, `eval/<task>/<metric>/low`, `.../high`."""
        name = f"eval/{figure.task}/"
        metric = name + figure.metric
        extra = {name + key: value for key, value in figure.extra.items()}
        self.log(step, extra | {metric: figure.value, f"{metric}/low": figure.low, f"{metric}/high": figure.high})

    def rollouts(self, step: int) -> None:
        """Show the rollouts of a step, which the run folder holds already, in the trackers that can."""
        showing = {id: tracker for id, tracker in self._trackers.items() if isinstance(tracker, RolloutTracker)}
        if not showing:
            return
        rows = rollout_rows(self.folder.path, step)
        for id, tracker in showing.items():
            with self._surviving(id, "rollouts"):
                tracker.rollouts(step, rows)

    def finish(self, status: str) -> None:
        """Finish the trackers. status: `finished`, `stopped` or `failed`."""
        for id, tracker in self._trackers.items():
            with self._surviving(id, "finish"):
                tracker.finish(status)
        self._trackers = {}

    @contextlib.contextmanager
    def _surviving(self, id: str, method: str) -> Iterator[None]:
        """Write a tracker's exception to `errors.jsonl`; show only the first of a tracker."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker must not end a run
            first = id not in self._failures
            self._failures[id] = self._failures.get(id, 0) + 1
            what = f"{method} raised {type(error).__name__}: {shorten(error, 300)}"
            self.folder.error(self._step, f"tracker {id}", what)
            if first:
                self.note(f"tracker {id}: {what}; the run goes on, and metrics.jsonl holds every figure")
        else:
            if id in self._failures:
                self._failures[id] = 0


def check_trackers(record: RecordConfig) -> None:
    """Raise UserError unless each of `record.trackers` is known and its requirements are installed. Imports nothing heavy."""
    for id in record.trackers:
        make_tracker(id)


def make_tracker(id: str) -> Tracker:
    """Make a tracker, not started. Raises PluginError that names a missing module and what to install."""
    registry = plugins.registry()
    spec = registry.get("trackers", id)
    what = f"tracker {spec.id!r}"
    dist = next(p.dist for p in registry.plugins if spec.id in p.specs.get("trackers", ()))
    for module in spec.requires:
        if not _is_there(module.partition(".")[0]):
            missing = ModuleNotFoundError(f"No module named {module!r}", name=module)
            reason = explain_import(missing, spec.target.partition(":")[0], dist)
            raise PluginError(f"{what} {reason}, or remove it from record.trackers") from missing
    target = registry.target(spec)
    with plugin_errors(f"{what} with options {dict(spec.options)}"):
        tracker = target(**spec.options)
    if not isinstance(tracker, Tracker):
        lacking = [name for name in ("start", "log", "finish") if not hasattr(tracker, name)]
        raise PluginError(f"{what}: its target {spec.target!r} has no method {', '.join(lacking)}; see mmrl.Tracker")
    return tracker


def _is_there(module: str) -> bool:
    return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None
