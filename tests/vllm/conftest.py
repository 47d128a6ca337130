"""What the tests of vLLM share."""

import os

import pytest

import footages
import interpreted_triton

if os.environ.get(interpreted_triton.ASKED) == "interpreted":
    interpreted_triton.interpret()


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """Five seconds as a file."""
    return str(footages.write(tmp_path_factory.mktemp("clips") / "clip.mp4", footages.frames(50), fps=10))
