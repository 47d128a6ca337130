"""A cluster of two machines on this one: two network namespaces, joined by a virtual cable, with a Ray node in each."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PORT, CLIENT_PORT = 6379, 10001
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def impossible() -> str:
    """Why there can't be such machines here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "network namespaces need `ip` (Debian's iproute2)"
    name = f"mmrl{os.getpid()}t"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces can't be made: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Machines:
    """Two of them, 0 and 1. Node 0 is the head. Use as a context manager."""

    def __init__(self, cpus: int = 1) -> None:
        """cpus: that each node says it has."""
        self.cpus = cpus
        self.names = [f"mmrl{os.getpid()}{letter}" for letter in "ab"]
        self.cables = [f"{name}v" for name in self.names]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self.client = f"ray://{self.addresses[0]}:{CLIENT_PORT}"
        self.folder = Path(tempfile.mkdtemp(prefix="mmrl-", dir="/tmp"))  # a short path: sockets have theirs from it
        self.environment = {
            **os.environ,
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # beside other tests
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }

    def __enter__(self) -> Machines:
        try:
            for name in self.names:
                ip("netns", "add", name)
            cables = [f"{name}v" for name in self.names]
            ip(
                "link",
                "add",
                cables[0],
                "netns",
                self.names[0],
                "type",
                "veth",
                "peer",
                "name",
                cables[1],
                "netns",
                self.names[1],
            )
            for name, cable, address in zip(self.names, cables, self.addresses, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
                for device in ("lo", cable):
                    ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for number, name in enumerate(self.names):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(number)
                ip("netns", "delete", name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, number: int, *, hidden: Path | None = None, cpus: int | None = None) -> None:
        """Start a node. hidden: a folder that it doesn't share with the others."""
        of_all = [f"--node-ip-address={self.addresses[number]}", f"--num-cpus={cpus or self.cpus}", "--disable-usage-stats"]
        own = [f"--address={self.addresses[0]}:{PORT}"]
        if number == 0:
            ports = [f"--port={PORT}", f"--ray-client-server-port={CLIENT_PORT}"]
            own = ["--head", *ports, "--include-dashboard=false", f"--temp-dir={self.folder}/ray"]
        command = [*RAY, "start", *own, *of_all]
        if hidden:  # `ip netns exec` has mounts of its own already
            command = ["sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh", *command]
        done = self.run(number, command, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, number: int, command: Sequence[str], timeout: float | None = None, **options: Any) -> Any:
        """A command on one of the machines, until it ends."""
        with self.going(number, command, **options) as process:
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    @contextlib.contextmanager
    def going(
        self, number: int, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> Iterator[subprocess.Popen[str]]:
        """A command on one of the machines while it goes on; it is killed at the end if it is still there."""
        own = {"GLOO_SOCKET_IFNAME": self.cables[number]}  # the name of the host is that of neither machine
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[number], *command],
            env={**self.environment, **own, **(environment or {})},
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def pids(self, number: int) -> list[int]:
        """Of all processes on a machine."""
        return [int(pid) for pid in ip("netns", "pids", self.names[number]).split()]

    def commands(self, number: int) -> list[str]:
        """Of the processes on a machine, each in one line."""
        found = []
        for pid in self.pids(number):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
        return found

    def kill(self, number: int) -> None:
        """As a power cut would."""
        deadline = time.monotonic() + 30
        while found := self.pids(number):
            assert time.monotonic() < deadline, f"{found} don't end"
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
