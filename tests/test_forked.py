"""Commands of tests are forks, which start at once; where they would differ from a new interpreter, one is started."""

import os
import subprocess
from pathlib import Path

import pytest

import fork_server
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


def test_a_fork_starts_no_server_whose_end_it_would_wait_for(monkeypatch, tmp_path) -> None:
    """A command's judge asks for children; a server that the command had started would hold its pipes, for as long as others use
    it."""
    with forked.start(["--version"], stdout=subprocess.DEVNULL):
        assert Path(os.environ[fork_server.ADDRESS], fork_server.CHILDREN).exists()
    monkeypatch.setenv(fork_server.ADDRESS, str(tmp_path))
    monkeypatch.setitem(fork_server.PROCESS, "command", [])
    with pytest.raises(RuntimeError, match="a forked process can't start the server of children"):
        fork_server.connection.__wrapped__(fork_server.CHILDREN)


def test_a_script_is_a_program_of_its_own(tmp_path) -> None:
    script = tmp_path / "own" / "script.py"
    script.parent.mkdir()
    (script.parent / "beside.py").write_text("SAID = 'here'")
    script.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.SAID)\nraise SystemExit(3)")
    with forked.start(["a", "b"], script=str(script), cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert isinstance(process, forked.Forked)
        assert process.communicate()[0] == "__main__ ['a', 'b'] here\n"
    assert process.returncode == 3
