"""What plugins bring besides tasks and verifiers: kinds of stages, and alarms."""

from __future__ import annotations

import functools

from mmrl.api.annotations import check_types
from mmrl.api.errors import UserError
from mmrl.config.sections import Alarm, PluginStage, RunConfig
from mmrl.registry import plugins
from mmrl.registry.importing import check_options
from mmrl.train.alarms import PluginAlarm


def plugin_alarms(config: RunConfig) -> list[PluginAlarm]:
    """The alarms of the plugins that the tasks come from, and those that `[limits.alarms]` names. Raises UserError for one that
    no plugin has, and PluginError for a function that can't be called."""
    registry, named = plugins.registry(), config.limits.alarms
    for id in named:
        try:
            registry.get("alarms", id)
        except UserError as error:
            raise type(error)(f"limits.alarms: {error}") from error
    used = {entry.id.partition("/")[0] for entry in config.tasks if "/" in entry.id}
    found = []
    for id, spec in registry.specs("alarms").items():
        own = named.get(id, Alarm())
        given = own.model_fields_set
        if id not in named and id.partition("/")[0] not in used:
            continue
        limit = own.model_copy(update={key: getattr(spec, key) for key in ("warn", "stop") if key not in given})
        function = registry.target(spec)
        check_options(f"alarm {id!r}", function, spec.options, skip=1)
        found.append(PluginAlarm(id, functools.partial(function, **spec.options), limit))
    return found


def check_plugin_stage(where: str, stage: PluginStage) -> None:
    """Raise UserError for a kind that no plugin brings, or for wrong options. where: the stage's key."""
    registry = plugins.registry()
    try:
        spec = registry.get("stages", stage.kind)
        target, options = registry.target(spec), {**spec.options, **stage.options}
        check_options(f"stage {spec.id!r}", target, options, skip=2)
        check_types(f"stage {spec.id!r}: ", target, options)
    except UserError as error:
        raise type(error)(f"{where}: {error}") from error
