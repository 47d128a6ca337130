"""`mmrl doctor`'s checks of the browser and of Playwright."""

from __future__ import annotations

import subprocess
from importlib import metadata

from mmrl import UserError
from mmrl_browser.chromium import CURE, executable

PIP = 'pip install "multimodal-rl[browser]"'
PATIENCE_S = 20


def findings() -> dict[str, dict[str, str]]:
    """Name -> state, detail and cure."""
    return {
        "chromium": chromium(),
        "playwright": package("playwright", "browser"),
        "miniwob": package("miniwob", "browser/miniwob"),
    }


def package(name: str, adds: str) -> dict[str, str]:
    """adds: what the package adds."""
    try:
        return {"state": "ok", "detail": metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {"state": "missing", "detail": f"would add {adds}", "cure": PIP}


def chromium() -> dict[str, str]:
    try:
        path = executable()
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    except UserError as error:
        return {"state": "missing", "detail": str(error).partition(":")[0], "cure": CURE}
    except subprocess.TimeoutExpired:
        late = f"{path} gave no answer within {PATIENCE_S} s: the machine may be busy"
        return {"state": "note", "detail": late, "cure": "run mmrl doctor again when the machine is less busy"}
    except (subprocess.SubprocessError, OSError) as error:
        return {"state": "broken", "detail": f"{path} doesn't start: {error}", "cure": CURE}
    return {"state": "ok", "detail": f"{said.strip()} ({path})"}
