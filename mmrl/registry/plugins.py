"""Find, load, check and list plugins. A broken plugin never hides the others.

The settings are environment variables, so that child processes load the same plugins:
`MMRL_PLUGINS=a,b` only these ('' for none), `MMRL_BLOCK=a,b` all but these (`-p no:a`),
`MMRL_PLUGIN_FILES` local files (`--plugin ./my_task.py`), `MMRL_STRICT=1` any failure is fatal.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pluggy

import mmrl
from mmrl.api import hooks as hookspecs
from mmrl.api.annotations import check_types
from mmrl.api.errors import PluginError, UserError, did_you_mean, plugin_errors, shorten
from mmrl.api.interfaces import Simulator, Task
from mmrl.api.sampling import SamplingRule
from mmrl.api.simulators.gui import Screens
from mmrl.api.simulators.rules import SEEN
from mmrl.api.simulators.types import Simulation, split_parts
from mmrl.api.specs import SimulatorSpec, Spec, TaskSpec, VerifierSpec
from mmrl.config.foreign_names import NAMES, POLICIES, misnamed
from mmrl.registry import builtin, contract
from mmrl.registry.contract import CORE, KINDS, SINGULAR
from mmrl.registry.distributions import DISTRIBUTION, distribution_of, installed, metadata_of
from mmrl.registry.importing import FILLED, build_errors, check_options, explain_import, import_file, load_target
from mmrl.registry.plugin_info import PluginInfo
from mmrl.registry.simulator_methods import missing_methods


def registry() -> Registry:
    """The registry for the environment variables of this process. It is cached; worker processes get the same plugins."""
    env = os.environ.get
    return _registry(env("MMRL_PLUGINS"), env("MMRL_BLOCK", ""), env("MMRL_PLUGIN_FILES", ""), env("MMRL_STRICT", ""))


@functools.lru_cache
def _registry(only: str | None, block: str, files: str, strict: str) -> Registry:
    return Registry(
        only=None if only is None else _names(only),
        block=_names(block),
        strict=strict not in ("", "0"),
        files=[Path(f) for f in files.split(os.pathsep) if f],
    )


def _names(text: str) -> list[str]:
    return [n.strip() for n in text.split(",") if n.strip()]


class Registry:
    """The plugins of one process, and their specs by kind and id.

    only: names of plugins to load, by default all. block: names to leave out. files: local plugins. strict: raise for a plugin
    that fails. entry_points: for tests; by default those of the installed distributions.
    """

    def __init__(
        self,
        *,
        only: Iterable[str] | None = None,
        block: Iterable[str] = (),
        files: Iterable[Path] = (),
        strict: bool = False,
        entry_points: Iterable[EntryPoint] | None = None,
    ) -> None:
        self.plugins: list[PluginInfo] = []
        """All plugins that were found, the core first; those that failed have an `error`."""
        self._manager = pluggy.PluginManager("mmrl")
        self._manager.add_hookspecs(hookspecs)
        self._hooks = [n for n in vars(hookspecs) if n.startswith("mmrl_")]
        self._specs: dict[str, dict[str, Spec]] = {kind: {} for kind in KINDS}
        self._off: set[str] = set()

        core = PluginInfo(name=CORE, dist=DISTRIBUTION, version=mmrl.__version__, target=builtin.__name__)
        self.plugins.append(self._commit(core, builtin))
        self._load_entry_points(installed() if entry_points is None else list(entry_points), only, set(block))
        for path in dict.fromkeys(Path(f).absolute() for f in files):
            self._load_file(path, set(block))
        self._list_missing(only or ())
        self._check_blocked(block)
        if strict:
            for failed in self._failed():
                raise PluginError(f"{failed.label} {failed.error} (MMRL_STRICT)") from failed.cause

    @property
    def hook(self) -> pluggy.HookRelay:
        """pluggy's relay, which calls a hook of all plugins."""
        return self._manager.hook

    def callers(self, hook: str) -> Iterator[tuple[str, pluggy.HookCaller]]:
        """(plugin, caller) for each plugin that implements a hook, so that an error can name its plugin."""
        for impl in getattr(self._manager.hook, hook).get_hookimpls():
            others = [p for p in self._manager.get_plugins() if p is not impl.plugin]
            yield impl.plugin_name, self._manager.subset_hook_caller(hook, remove_plugins=others)

    def specs(self, kind: str) -> dict[str, Any]:
        """Id -> spec of one of the `KINDS`, sorted by id."""
        return dict(sorted(self._specs[kind].items()))

    def get(self, kind: str, id: str) -> Any:
        """The spec of an id; an id without `-vN` means the highest version. Raises UserError with the reason for an unknown
        id."""
        known = self._specs[kind]
        if id in known:
            return known[id]
        wanted = contract.parse_id(id)
        if wanted and wanted.version is None:
            versions = {
                i.version: spec
                for spec_id, spec in known.items()
                if (i := contract.parse_id(spec_id)) and (i.name, i.system) == (wanted.name, wanted.system)
            }
            if versions:
                return versions[max(v for v in versions if v is not None)]
        raise self._unknown(kind, id)

    def plugin_of(self, spec: Spec) -> PluginInfo:
        """The plugin that brings a spec of this registry."""
        kind = next(kind for kind, known in self._specs.items() if known.get(spec.id) is spec)
        return next(plugin for plugin in self.plugins if spec.id in plugin.specs.get(kind, ()))

    def target(self, spec: Spec) -> Any:
        """Import the target of a spec. Raises PluginError that names a missing module and what to install."""
        return load_target(spec.target, f"{self._kind_of(spec)} {spec.id!r}")

    def make_task(self, id: str, options: Mapping[str, Any] | None = None) -> Task:
        """Make the task of an id with its spec's options, overridden by these."""
        return self.build_task(self.get("tasks", id), options)

    def build_task(self, spec: TaskSpec, options: Mapping[str, Any] | None = None) -> Task:
        """Make the task of a spec; see `make_task`."""
        task = self._built(spec, options or {})
        if not isinstance(task, Task):
            raise PluginError(
                f"task {spec.id!r}: its target {spec.target!r} is not a mmrl.Task but a {type(task).__name__}; subclass Task"
            )
        with plugin_errors(f"task {spec.id!r}: splits or simulation"):
            splits = task.splits
            simulation = task.simulation
        if not isinstance(simulation, Simulation | None):
            raise PluginError(
                f"task {spec.id!r}: simulation must be a mmrl.api.simulators.types.Simulation, not {simulation!r:.60}"
            )
        if not isinstance(splits, list | tuple) or not splits or not all(isinstance(name, str) for name in splits):
            raise PluginError(f"task {spec.id!r}: splits must be a tuple of names such as ('train', 'test'), not {splits!r:.60}")
        return task

    def make_sampling_rule(self, id: str, options: Mapping[str, Any]) -> SamplingRule:
        """Make the sampling rule of an id with its spec's options, overridden by these. Raises UserError for a wrong option."""
        spec = self.get("sampling_rules", id)
        rule = self._built(spec, options)
        if not isinstance(rule, SamplingRule):
            raise PluginError(
                f"sampling rule {spec.id!r}: its target {spec.target!r} gave a {type(rule).__name__}: subclass mmrl.SamplingRule"
            )
        if rule.phase not in ("score", "select"):
            raise PluginError(f'sampling rule {spec.id!r}: phase = {rule.phase!r} is unknown: choose "score" or "select"')
        return rule

    def _built(self, spec: Spec, options: Mapping[str, Any]) -> Any:
        """Call a spec's target with the spec's options, overridden by these; a UserError begins with the id."""
        target, merged, what = self.target(spec), {**spec.options, **options}, f"{self._kind_of(spec)} {spec.id!r}"
        check_options(what, target, merged)
        with build_errors(what, target, merged):
            try:
                return target(**merged)
            except PluginError:
                raise
            except UserError as error:
                raise UserError(f"{what}: {error}") from error

    def make_simulator(self, simulation: Simulation, num_envs: int, device: str) -> Simulator:
        """Make the simulator of a task with its spec's options, overridden by the task's. See `check_simulator`."""
        if not simulation.simulator:
            raise UserError("the task has no simulator, only demonstrations: train it with an sft stage")
        spec, kind, options = self.check_simulator(simulation)
        try:
            with build_errors(f"simulator {spec.id!r}", kind, options):
                simulator = kind(num_envs=num_envs, device=device, **options)
        except PluginError as error:  # of this machine, more often than of the plugin: no driver, no display, no assets
            raise UserError(f"{error}: see mmrl doctor, or where it is raised by mmrl check {spec.id}") from error.__cause__
        if lacks := missing_methods(spec, simulator):
            raise PluginError(f"simulator {spec.id!r}: {lacks}")
        return simulator  # type: ignore[no-any-return]

    def check_simulator(self, simulation: Simulation) -> tuple[SimulatorSpec, Any, dict[str, Any]]:
        """(spec, target, options) of a task's simulator. Raises UserError, without making one, if it is unknown, has screens, or
        lacks an option or a part that the task rewards."""
        spec = self.get("simulators", simulation.simulator)
        if spec.screens:
            raise UserError(f"simulator {spec.id!r} has screens, for policies that write text: name one that policies can act in")
        kind, options = self.target(spec), {**spec.options, **simulation.options}
        check_options(f"simulator {spec.id!r}", kind, options, filled=FILLED["simulators"])
        known = ("success", *spec.parts, *([SEEN] if simulation.sees_success else []))
        for part in (part for stage in simulation.stages for part in split_parts(stage)):
            if part not in known:
                raise UserError(f"simulator {spec.id!r} has no part {part!r} for the task's stages: it has {', '.join(known)}")
        check_types(f"simulator {spec.id!r}: ", kind, options)
        return spec, kind, options

    def make_screens(self, id: str, options: Mapping[str, Any] | None = None) -> Screens:
        """The screens of a simulator, built with its spec's options and then these."""
        spec = self.get("simulators", id)
        if not spec.screens:
            raise UserError(f"simulator {spec.id!r} has no screens: it is for policies that act, not for screens")
        kind, merged = self.target(spec), {**spec.options, **(options or {})}
        check_options(f"simulator {spec.id!r}", kind, merged)
        with build_errors(f"simulator {spec.id!r}", kind, merged):
            screens = kind(**merged)
        if not isinstance(screens, Screens):
            raise PluginError(
                f"simulator {spec.id!r}: its target gave a {type(screens).__name__}, which is no mmrl.api.simulators.gui.Screens"
            )
        return screens

    def make_verifier(self, id: str, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
        """The verifier of an id as a function of a case, with its spec's options, overridden by these, bound. It pickles. A
        verifier with a model is loaded now, and is a function of several cases."""
        spec = self.get("verifiers", id)
        function, merged = self.check_verifier(spec, options)
        if not spec.model:
            return functools.partial(function, **merged) if merged else function
        try:
            with plugin_errors(f"verifier {spec.id!r}, made with {merged},"):
                model = function(**merged)
        except PluginError:
            raise
        except UserError as error:
            raise UserError(f"verifier {spec.id!r}: {error}") from error
        if not callable(model):
            raise PluginError(
                f"verifier {spec.id!r}: objects of its target {spec.target!r} can't be called: define __call__(cases)"
            )
        return model  # type: ignore[no-any-return]

    def check_verifier(
        self, spec: VerifierSpec, options: Mapping[str, Any] | None = None, cameras: Mapping[str, Sequence[str]] | None = None
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Raise UserError for wrong options of a verifier, without loading a model. Returns (target, all options).

        cameras: label of a task that uses it -> names of its simulator's cameras."""
        function, merged = self.target(spec), {**spec.options, **(options or {})}
        if not callable(function):
            raise PluginError(f"verifier {spec.id!r}: its target {spec.target!r} is not a function of a case")
        cure = f'give {{name}} = ... under [verifiers."{spec.id}"] in a run file, or --set {{name}}=... to mmrl score'
        check_options(f"verifier {spec.id!r}", function, merged, skip=0 if spec.model else 1, cure=cure)
        if check := getattr(function, "check", None):
            try:
                with plugin_errors(f"verifier {spec.id!r}: check()"):
                    check(cameras or {}, **merged)
            except PluginError:
                raise
            except UserError as error:
                raise UserError(f"verifier {spec.id!r}: {error}") from error
        check_types(f"verifier {spec.id!r}: ", function, merged)
        return function, merged

    def bounded_verifier(
        self, spec: VerifierSpec, options: Mapping[str, Any] | None = None, cameras: Mapping[str, Sequence[str]] | None = None
    ) -> VerifierSpec:
        """The spec, with `low` and `high` for these options if its target has `bounds`; see `VerifierSpec`. Raises as
        `check_verifier` does."""
        function, merged = self.check_verifier(spec, options, cameras)
        if not (bounds := getattr(function, "bounds", None)):
            return spec
        with plugin_errors(f"verifier {spec.id!r}: bounds()"):
            low, high = bounds(**merged)
        return dataclasses.replace(spec, low=low, high=high)

    def _load_entry_points(self, found: list[EntryPoint], only: Iterable[str] | None, block: set[str]) -> None:
        wanted = None if only is None else set(only)
        seen: set[tuple[str, str]] = set()
        for ep in found:
            if ep.name in block or (wanted is not None and ep.name not in wanted):
                self._off.add(ep.name)
            elif (ep.name, ep.value) not in seen:  # a renamed distribution may be installed under both names
                seen.add((ep.name, ep.value))
                known = metadata_of(ep.dist) if ep.dist else {"Name": None, "Version": None}
                dist, version = known["Name"], known["Version"]
                self._add(PluginInfo(name=ep.name, dist=dist, version=version, target=ep.value), ep.load, ep)

    def _load_file(self, path: Path, block: set[str]) -> None:
        """Load a local file. The user named it, so a failure is fatal."""
        if path.stem in block:
            self._off.add(path.stem)
            return
        if not path.is_file():
            raise UserError(f"--plugin {path}: there is no such file: check the path")
        self._add(PluginInfo(name=path.stem, dist=None, version=None, target=str(path)), lambda: import_file(path))
        if self.plugins[-1].error:
            raise PluginError(f"{self.plugins[-1].label} {self.plugins[-1].error}") from self.plugins[-1].cause

    def _list_missing(self, only: Iterable[str]) -> None:
        """List names in MMRL_PLUGINS that are not installed, with an error."""
        for name in sorted(set(only) - self._off - {p.name for p in self.plugins}):
            error = "is not installed" + (f": pip install {distribution_of(name)}" if contract.is_name(name) else "")
            self.plugins.append(PluginInfo(name=name, dist=None, version=None, target="MMRL_PLUGINS", error=error))

    def _check_blocked(self, block: Iterable[str]) -> None:
        """Raise UserError for a name that blocks nothing. A misspelt one would let the plugin run that it was to leave out."""
        for name in sorted(set(block) - self._off):
            names = [*self._off, *(p.name for p in self.plugins if p.name != CORE)]
            why = "mmrl itself." if name == CORE else f"no plugin.{did_you_mean(name, names)}"
            raise UserError(f"-p no:{name}, or MMRL_BLOCK: {name!r} is {why} `mmrl plugins` lists all")

    def _add(self, info: PluginInfo, load: Callable[[], Any], ep: EntryPoint | None = None) -> None:
        """Add a plugin to the list, with all its specs or with an error."""
        try:
            contract.check_name(info.name)
            if taken := next((p for p in self.plugins if p.name == info.name), None):
                raise contract.contract_error(f"the name {info.name!r} is taken by {taken.dist or taken.target} ({taken.target})")
            if ep and ep.dist:
                contract.check_core_version(ep.dist)
            info = self._commit(info, load())
        except UserError as error:
            info = dataclasses.replace(info, error=str(error), cause=error.__cause__)
        except (Exception, SystemExit) as error:  # noqa: BLE001  an error of one plugin must not affect the others
            reason = explain_import(error, info.target.partition(":")[0], info.dist)
            info = dataclasses.replace(info, error=reason, cause=error)
        self.plugins.append(info)

    def _commit(self, info: PluginInfo, plugin: Any) -> PluginInfo:
        """Register a plugin and its specs, all or nothing."""
        try:
            self._manager.register(plugin, name=info.name)
        except (pluggy.PluginValidationError, ValueError) as error:
            if unknown := contract.unknown_parameter(plugin, self._hooks):
                raise contract.contract_error(unknown) from None  # no traceback: the message says it all
            raise contract.contract_error(shorten(error)) from error
        try:
            number = contract.declared_contract(plugin)
            implemented = [caller.name for caller in self._manager.get_hookcallers(plugin) or ()]
            contract.check_hooks(plugin, implemented, self._hooks)
            specs = {kind: self._ask(info.name, kind) for kind in KINDS if f"mmrl_{kind}" in implemented}
        except BaseException:
            self._manager.unregister(plugin)
            raise
        for kind, found in specs.items():
            self._specs[kind].update(found)
        ids = {kind: sorted(found) for kind, found in specs.items()}
        return dataclasses.replace(info, hooks=sorted(implemented), specs=ids, contract=number)

    def _ask(self, name: str, kind: str) -> dict[str, Spec]:
        """Id -> spec, for the specs of one kind of a plugin."""
        caller = dict(self.callers(f"mmrl_{kind}"))[name]
        try:
            returned = caller()
        except (Exception, SystemExit) as error:
            if misspelt := contract.misspelt_field(error):
                raise contract.contract_error(f"mmrl_{kind}(): {misspelt}") from None  # no traceback: the message says it all
            raise contract.contract_error(f"mmrl_{kind}() raised {type(error).__name__}: {shorten(error)}") from error
        return contract.check_specs(name, kind, returned[0] if returned else None)

    def _failed(self) -> list[PluginInfo]:
        return [p for p in self.plugins if p.error]

    def _kind_of(self, spec: Spec) -> str:
        return next(SINGULAR[kind] for kind, cls in KINDS.items() if isinstance(spec, cls))

    def _unknown(self, kind: str, id: str) -> UserError:
        """The error for an unknown id: its plugin failed, is switched off or isn't installed, or the id is misspelt."""
        what, plugin = f"no {SINGULAR[kind]} {id!r:.200}", id.partition("/")[0] if "/" in id else None
        for failed in self._failed():
            if failed.name == plugin:
                error = PluginError(f"{what}: {failed.label} {failed.error}")
                error.__cause__ = failed.cause
                return error
        for other, specs in self._specs.items():
            if id in specs:
                return UserError(f"{what}: that is one of the {other}")
        if plugin in self._off:
            return UserError(f"{what}: plugin {plugin!r} is switched off by MMRL_PLUGINS, MMRL_BLOCK or -p no:{plugin}")
        if kind == "tasks" and id.endswith(".toml"):
            return UserError(f"{what}: a run file is checked by mmrl train {id} --dry-run")
        names = [p.name for p in self.plugins]
        if plugin and plugin not in names and os.path.isfile(f"{plugin}.py"):
            return UserError(f"{what}: {plugin}.py is here and not loaded. Try: mmrl --plugin ./{plugin}.py ...")
        if plugin and contract.is_name(plugin) and not did_you_mean(plugin, names):
            return UserError(f"{what}: is the package for {plugin!r} installed? Try: pip install {distribution_of(plugin)}")
        theirs = {"algorithms": NAMES, "policies": POLICIES}.get(kind)
        if theirs and (said := misnamed(id, self._specs[kind], theirs)):
            return UserError(f"{what}{said}")
        of_a_plugin = [known for known in self._specs[kind] if known.endswith(f"/{id}")]
        hint = did_you_mean(id, self._specs[kind]) if not of_a_plugin else f" Did you mean {of_a_plugin[0]!r}?"
        return UserError(f"{what}.{hint}" if hint else f"{what}; `mmrl list {kind}` shows all")
