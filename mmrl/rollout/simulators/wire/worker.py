"""The process that has a simulator: it answers calls over a socket until the other end closes it.

Each connection has a process of its own, so that a simulator that crashes, hangs or leaks costs its own episodes alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pickle
import secrets
import socket
import warnings
from collections.abc import Mapping
from typing import Any

import numpy

from mmrl.api.errors import PluginError, UserError, plugin_errors
from mmrl.api.simulators.types import Simulation
from mmrl.compute.crossing import Fault
from mmrl.registry import plugins
from mmrl.rollout.simulators.replaced import facts_of
from mmrl.rollout.simulators.wire.frames import Broken, receive_frame, send_frame
from mmrl.rollout.simulators.wire.shared import SharedWriter
from mmrl.rollout.simulators.wire.values import decode, encode

KEY = "MMRL_SNAPSHOT_KEY"
"""Environment variable with the secret by which workers know their own snapshots again."""
METHODS = ("reset", "step", "snapshot", "restore", "render", "expert")
DIGEST = hashlib.sha256().digest_size


def serve(channel_fd: int, wants: Mapping[str, Any]) -> None:
    """Make the simulator that a client wants and answer its calls. wants: `simulator`, `options`, `num_envs`, `threads`, of which
    a client was allowed to choose."""
    import torch

    torch.set_num_threads(max(1, wants.get("threads", 1)))
    channel = socket.socket(fileno=channel_fd)
    key = os.environ.pop(KEY, "") or secrets.token_hex(32)
    with contextlib.suppress(Broken), contextlib.closing(_Worker(channel, wants, key.encode())) as worker:
        while True:
            worker.answer()


class _Worker:
    def __init__(self, channel: socket.socket, wants: Mapping[str, Any], key: bytes) -> None:
        self.channel, self.key, self.simulator, self.shared = channel, key, None, SharedWriter()
        who = f"simulator {wants['simulator']!r}"
        self.who = who

        def made() -> dict[str, Any]:
            simulation = Simulation(simulator=wants["simulator"], options=wants["options"])
            self.simulator = plugins.registry().make_simulator(simulation, wants["num_envs"], "cpu")
            return facts_of(self.simulator)

        header, arrays = self._attempted(made)
        header["offer"] = self.shared.offer() if wants.get("shared", True) else None
        send_frame(channel, header, arrays)

    def answer(self) -> None:
        """Answer one call. Raises Broken if the other end is gone."""
        asked, arrays = receive_frame(self.channel)
        try:
            name, arguments = asked["call"], decode(asked["with"], arrays)
            self.shared.agreed = bool(asked.get("shared"))
            if name not in METHODS:
                raise ValueError(name)
        except (KeyError, TypeError, ValueError) as error:
            raise Broken(f"a call can't be read: {error}") from None
        header, answered = self._attempted(lambda: self._called(name, arguments))
        place = self.shared.write(answered)
        send_frame(self.channel, {**header, "shared": place}, [] if place else answered)

    def close(self) -> None:
        self.shared.close()
        if self.simulator is not None:
            self.simulator.close()
        self.channel.close()

    def _called(self, name: str, arguments: Any) -> Any:
        with plugin_errors(self.who):
            if name == "restore":
                arguments = [arguments[0], self._own(arguments[1])]
            found = getattr(self.simulator, name)(*arguments)
        if name != "snapshot":
            return found
        state = pickle.dumps(found)
        return hmac.digest(self.key, state, "sha256") + state

    def _own(self, state: Any) -> Any:
        """The state of a snapshot, which is unpickled only if this worker, or one that it replaces, pickled it."""
        if not isinstance(state, bytes) or not hmac.compare_digest(
            hmac.digest(self.key, state[DIGEST:], "sha256"), state[:DIGEST]
        ):
            raise UserError(f"{self.who}: a state to restore is not one of this server's snapshots: go on with --resume")
        return pickle.loads(state[DIGEST:])

    def _attempted(self, work: Any) -> tuple[dict[str, Any], list[numpy.ndarray]]:
        """(header of an answer, its arrays): the result of a function or its UserError, and what it warned of."""
        arrays: list[numpy.ndarray] = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                with plugin_errors(self.who):
                    header = {"result": encode(work(), arrays)}
            except UserError as error:
                fault = Fault.of(error)
                header, arrays = {"fault": [fault.kind, fault.line, fault.trace]}, []
        return {**header, "warned": [str(warning.message) for warning in warned]}, arrays


def raised(fault: Any, where: str) -> UserError:
    """The UserError of an answer. Raises Broken if the answer names another class."""
    kinds = {kind.__name__ for kind in (UserError, PluginError)}
    if not isinstance(fault, list) or len(fault) != 3 or not all(isinstance(one, str) for one in fault) or fault[0] not in kinds:
        raise Broken("an answer's error can't be read")
    return Fault(*fault).error(where)
