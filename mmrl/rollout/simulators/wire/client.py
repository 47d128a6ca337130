"""The learner's side: a simulator in a process of its own on this machine, or served on another one."""

from __future__ import annotations

import contextlib
import itertools
import queue
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.processes import ChildProcess
from mmrl.api.simulators.types import Simulation
from mmrl.config.addresses import parse_address
from mmrl.config.sections import RunConfig
from mmrl.rollout.simulators.replaced import START_S, Died, ReplacedSimulator
from mmrl.rollout.simulators.wire import handshake, server
from mmrl.rollout.simulators.wire.frames import Broken, Late, receive_frame, send_frame
from mmrl.rollout.simulators.wire.shared import SharedReader
from mmrl.rollout.simulators.wire.values import decode, encode
from mmrl.rollout.simulators.wire.worker import raised

CONNECT_S = 15.0
"""Seconds for a server to listen again after it was restarted."""
CLOSING_S = 5.0
KEY = secrets.token_hex(32)
"""By it the processes that this one starts know each other's snapshots."""


class WireSimulators:
    """Makes the simulators of a learner's lanes: in processes of this machine (`compute.simulators = "processes"`), or at
    `simulate.address`, whose servers take turns."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._turn = itertools.cycle(config.simulate.address or [""])
        self.token = handshake.token_of_environment() if config.simulate.address else ""

    def make(self, simulation: Simulation, num_envs: int) -> WireSimulator:
        """A simulator in a process of its own. Raises the errors of `Registry.make_simulator`, and UserError without a server."""
        compute, simulate = self.config.compute, self.config.simulate
        return WireSimulator(
            simulation, num_envs, compute.retries, simulate.timeout_s, address=next(self._turn), token=self.token
        )

    def close(self) -> None:
        """Nothing to do: the simulators are closed before."""


class WireSimulator(ReplacedSimulator):
    """A simulator over a wire; see `ReplacedSimulator` for what happens when its process dies or hangs."""

    advice = "see its message, give it more memory or time (simulate.timeout_s)"

    def __init__(
        self,
        simulation: Simulation,
        num_envs: int,
        retries: int,
        timeout_s: float,
        *,
        address: str = "",
        token: str = "",
        shared: bool = True,
    ) -> None:
        """timeout_s: deadline of each call in seconds. address: `host:port` of a server, whose token is given; empty for a
        process of this machine. shared: use shared memory where both ends are on one machine."""
        self.address, self.token, self.timeout_s, self.shared = address, token, timeout_s, shared
        self.where = f"the simulator at {address}" if address else "the simulator's process"
        self._channel: socket.socket | None = None
        self._process: ChildProcess | None = None
        self._reader: SharedReader | None = None
        super().__init__(simulation, num_envs, retries)

    # -- see ReplacedSimulator ------------------------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        wants = {
            "simulator": self.simulation.simulator,
            "options": dict(self.simulation.options),
            "num_envs": self.num_envs,
            "shared": self.shared,
        }
        self._channel = self._connected(wants) if self.address else self._spawned(wants)
        facts, offer = self._received(max(START_S, self.timeout_s), "its start")
        reader = SharedReader()
        self._reader = reader if offer and reader.finds(offer) else None
        if not isinstance(facts, dict) or not isinstance(facts.get("said"), dict):
            raise Died("it doesn't say what it is")
        return facts

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        if self._channel is None:
            raise UserError(f"{self.who} was closed: make another one")
        arrays: list[Any] = []
        header = {"call": name, "with": encode(list(arguments), arrays), "shared": self._reader is not None}
        with contextlib.suppress(Broken):  # why it can't be sent to is in what can still be read
            send_frame(self._channel, header, arrays, time.monotonic() + self.timeout_s)
        return self._received(self.timeout_s, name)[0]

    def stop(self, patiently: bool) -> None:
        channel, process, self._reader = self._channel, self._process, None
        self._channel = self._process = None
        if channel is not None:
            channel.close()
        if process is not None:
            if patiently:
                process.exit_code(CLOSING_S)
            process.kill()

    # -- the wire -------------------------------------------------------------------------------------------------------------

    def _received(self, seconds: float, what: str) -> tuple[Any, Any]:
        """(result, offer of shared memory) of an answer. Raises Died, and the UserError of the other end."""
        assert self._channel is not None
        try:
            header, arrays = receive_frame(self._channel, time.monotonic() + seconds)
            if not isinstance(header, dict) or "died" in header:
                raise Died(str(header.get("died") if isinstance(header, dict) else header)[:500])
            if place := header.get("shared"):
                arrays = (self._reader or SharedReader()).read(place)
            self.repeat([str(text)[:1000] for text in header["warned"]])
            if "fault" in header:
                raise raised(header["fault"], self.where)
            return decode(header["result"], arrays), header.get("offer")
        except Late:
            raise Died(f"{what} took longer than {seconds:g} s") from None
        except (Broken, KeyError, TypeError) as error:
            raise Died(self._why(error)) from None

    def _why(self, error: Exception) -> str:
        """The reason of a broken connection: how its process ended, if that is known here."""
        if self._process is not None and self._process.exit_code(1.0) is not None:
            return f"its process {self._process.how_it_ended()}"
        return f"{error}" if isinstance(error, Broken) else "its answer can't be read"

    def _spawned(self, wants: dict[str, Any]) -> socket.socket:
        import torch

        own, theirs = socket.socketpair()
        wants = {**wants, "threads": torch.get_num_threads()}
        started: queue.SimpleQueue[ChildProcess | OSError] = queue.SimpleQueue()

        def run() -> None:
            with theirs:
                try:
                    process = server.start_worker(theirs, wants, KEY)
                except OSError as error:
                    started.put(error)
                    return
            started.put(process)
            server.watch(process)  # a full stderr would stop it

        # the process dies with the thread that started it, so this one stays
        threading.Thread(target=run, name="simulator-process", daemon=True).start()
        found = started.get()
        if isinstance(found, OSError):
            raise UserError(f"{self.who}: no process can be started: {found.strerror}")
        self._process = found
        return own

    def _connected(self, wants: dict[str, Any]) -> socket.socket:
        host, port = parse_address(self.address)
        end = time.monotonic() + (CONNECT_S if self.deaths else 0)
        while True:
            try:
                channel = socket.create_connection((host, port), handshake.PATIENCE_S)
                break
            except OSError as error:
                if time.monotonic() >= end:
                    raise UserError(
                        f"simulate.address {self.address}: no server answers ({error.strerror or error}): start "
                        f"`mmrl simulator serve {self.simulation.simulator}` there, or correct the address"
                    ) from None
                time.sleep(0.2)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            handshake.greet(channel, self.token, wants)
        except handshake.Refused as error:
            channel.close()
            raise UserError(f"simulate.address {self.address}: {error}") from None
        except Broken as error:
            channel.close()
            raise UserError(f"simulate.address {self.address} is no server of simulators of this mmrl: {error}") from None
        return channel
