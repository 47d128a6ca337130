"""Commands of tests are forks, which start at once; where they would differ from a new interpreter, one is started."""

import os
import subprocess

import forked


def test_what_libraries_set_in_this_process_changes_nothing() -> None:
    """Or all tests that follow in this process would wait six seconds for each command."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == cache_dir()
    with forked.start(["--version"], stdout=subprocess.DEVNULL) as process:
        assert isinstance(process, forked.Forked)
    assert process.returncode == 0


def test_what_is_read_at_the_start_starts_an_interpreter() -> None:
    with forked.start(["--version"], stdout=subprocess.DEVNULL, env=os.environ | {"HF_HOME": "/elsewhere"}) as process:
        assert isinstance(process, subprocess.Popen)
    assert process.returncode == 0
