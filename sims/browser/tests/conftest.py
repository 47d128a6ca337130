"""The plugin, where it isn't installed, and a browser; tests that need one are skipped where there is none, with the reason."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


def missing() -> str | None:
    """Why no browser can be driven here."""
    from mmrl_browser.chromium import executable

    from mmrl import UserError

    if importlib.util.find_spec("playwright") is None:
        return 'playwright is not installed: pip install "multimodal-rl[browser]"'
    try:
        executable()
    except UserError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def browser():
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="session")
def html(browser):
    """Makes screens that show HTML, 320 x 240."""
    from mmrl_browser.html import Html

    return Html(size=[320, 240])


@pytest.fixture
def shown(html):
    """Starts a page: (screen, what it shows). Screens are given back."""
    opened = []

    def show(text, seed=0, elements=True):
        screen = html.open(elements=elements)
        opened.append(screen)
        return screen, screen.start(text, seed)

    yield show
    for screen in opened:
        screen.close()
