"""The functions of `torch.cuda` for a device that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from pretended_device.streams import STREAMS, Event, Stream
from pretended_device.waits import Ledger

PROPERTIES = SimpleNamespace(name="pretended", total_memory=80 * 2**30, major=9, minor=0, multi_processor_count=132)


@contextmanager
def functions(ledger: Ledger) -> Iterator[None]:
    """Inside the block `torch.cuda` has one device, whose random state is the CPU's."""

    def synchronize(device: Any = None) -> None:
        ledger.wait("synchronize", "torch.cuda.synchronize")
        STREAMS.synchronize()

    STREAMS.begin(ledger)
    found = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": nullcontext,
        "set_device": lambda device: None,
        "synchronize": synchronize,
        "Stream": Stream,
        "Event": Event,
        "stream": STREAMS.on,
        "current_stream": STREAMS.current,
        "default_stream": STREAMS.default,
        "empty_cache": lambda: None,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (PROPERTIES.total_memory, PROPERTIES.total_memory),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "is_current_stream_capturing": lambda: False,
    }
    with mock.patch.multiple(torch.cuda, **found):
        yield
