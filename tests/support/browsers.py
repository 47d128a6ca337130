"""Whether tests that need a browser can have one."""

import importlib.util

from mmrl import UserError


def no_browser():
    """Why none can be driven here, or None."""
    for package in ("playwright", "miniwob"):
        if importlib.util.find_spec(package) is None:
            return f'{package} is not installed: pip install "multimodal-rl[browser]"'
    from mmrl_browser.chromium import executable

    try:
        executable()
    except UserError as error:
        return str(error)
    return None
