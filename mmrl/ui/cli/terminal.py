"""How commands behave in a terminal."""

from __future__ import annotations

import os
import sys


def tell(text: str) -> None:
    """A line for the person who waits: on stderr, and only where that is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def quiet() -> None:
    """Before torch and transformers are imported: they share the machine, and don't write into the live panel."""
    import logging

    # torch's threads wait by spinning; where others use the cores too, a step takes several times as long if they do so for long
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
