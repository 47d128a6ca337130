"""What is said of pages that can't be closed, without a browser."""

import asyncio
import warnings
from types import SimpleNamespace

import pytest
from mmrl_browser.driver import Driver


def closed(error, connected=True):
    """The warnings of closing a page whose context says this."""

    async def close():
        raise error

    page = SimpleNamespace(context=SimpleNamespace(close=close), browser=SimpleNamespace(is_connected=lambda: connected))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(Driver._closed(SimpleNamespace(), page))
    return [str(one.message) for one in found]


@pytest.mark.parametrize(
    ("error", "connected", "said"),
    [
        (RuntimeError("Target.disposeBrowserContext: Failed to find context with id 5"), True, []),
        (RuntimeError("it is stuck"), False, []),
        (RuntimeError("it is stuck\nfor good"), True, ["a page of the browser could not be closed: it is stuck"]),
    ],
)
def test_a_context_that_is_gone_already_is_nothing_to_warn_of(error, connected, said):
    assert closed(error, connected) == said
