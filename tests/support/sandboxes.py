"""Whether this machine can run programs of matplotlib."""

import importlib.util

from mmrl.api.processes import sandbox


def no_plots():
    """Why none can be run here, or an empty text."""
    if problem := sandbox.problem():
        return f"no sandbox here: {problem}"
    return "" if importlib.util.find_spec("matplotlib") else "matplotlib is not installed: make peers"
