"""Connect to a Ray cluster, or start one on this machine."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.compute.cluster.resources import ResourceRequest
from mmrl.compute.ray import import_ray, start_local_ray

FORMS = "ray://HOST:PORT, auto (the cluster that this machine is part of) or local (a new one)"
TRIES = 3
PATIENCE_S = 10.0
"""Timeout in seconds for an address to answer."""


@contextlib.contextmanager
def connect_to_cluster(address: str, wanted: ResourceRequest) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster; see `mmrl.compute.cluster.train_on_cluster`. Raises UserError if it can't
    connect."""
    where = re.fullmatch(r"ray://\[?([^/]+?)\]?:([0-9]{1,5})/?", address)
    if address not in ("auto", "local") and not where:
        raise UserError(f"--cluster {address!r} is no address of a cluster: give {FORMS}")
    ray = import_ray("--cluster")
    if where:
        check_answers(address, where[1], int(where[2]))
    if ray.is_initialized():  # by the caller, who also has to end it
        yield ray
        return
    if address == "local":
        start_local_ray("--cluster local", wanted.most_cpus)
    else:
        connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def connect(ray: Any, address: str) -> None:
    """Connect to a running cluster. Raises UserError if it can't."""
    for left in reversed(range(TRIES)):
        try:
            with quiet_client():
                ray.init(address, log_to_driver=False, logging_level="ERROR")
            return
        except Exception as error:
            if left and "Initialization failure from server" in str(error):  # a timeout of the server on a busy machine
                continue
            raise UserError(describe_ray_error(address, error)) from error


def check_answers(address: str, host: str, port: int) -> None:
    """Raise UserError unless a server listens at the address. Ray's own client would try for half a minute."""
    try:
        socket.create_connection((host, port), PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--cluster {address}: no server answers there ({shorten(error)}): start the cluster (ray start --head "
            "--ray-client-server-port=10001), or correct the address"
        ) from None


@contextlib.contextmanager
def quiet_client() -> Iterator[None]:
    """Switch off the log of Ray's client, which has a traceback for each attempt; its final exception is enough."""
    import logging

    logger = logging.getLogger("ray.util.client.worker")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def describe_ray_error(address: str, error: Exception) -> str:
    """One line for an error of Ray, which may have many."""
    message = shorten(error)
    if "ersion" in message and ("mismatch" in message or "does not match" in message):
        return (
            f"--cluster {address} runs other versions than this machine: {message[:300]}: install the same Python and Ray on both"
        )
    if address == "auto":
        return (
            "--cluster auto: this machine is part of no cluster: start one (ray start --head), or give ray://HOST:PORT or local"
        )
    last = (str(error).strip() or repr(error)).splitlines()[-1]  # the lines above are a traceback of the server
    return f"--cluster {address}: no Ray cluster can be reached there: {last[:300]}: give the port of its client server (10001)"
