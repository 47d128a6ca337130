"""Messages and library settings that commands share in a terminal."""

from __future__ import annotations

import os
import sys


def status_line(text: str) -> None:
    """Print a progress line on stderr, only if stderr is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def silence_libraries() -> None:
    """Make torch share the cores and silence transformers, whose output breaks the live panel. Call before importing them."""
    import logging

    # torch's threads spin while they wait; on shared cores long spinning makes a step several times slower
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
