"""The installer of the project's environments: uv with pip's settings, and pip where uv can't."""

import subprocess
import sys
from pathlib import Path

import pytest

import install


def test_what_is_set_for_pip_holds_for_uv(tmp_path):
    there = (tmp_path / "more").as_uri()
    (tmp_path / "more").mkdir()
    listed = f"""global.extra-index-url='{there} {(tmp_path / "gone").as_uri()} https://packages.example/simple'
:env:.find-links='/mine'
global.find-links='/all'
:env:.cert='/certificates.pem'
global.index-url='https://packages.example/only'
global.no-cache-dir='true'
"""
    assert install.settings(listed) == {
        "UV_FIND_LINKS": "/mine",
        "SSL_CERT_FILE": "/certificates.pem",
        "UV_DEFAULT_INDEX": "https://packages.example/only",
        "UV_INDEX": f"{there} https://packages.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert install.settings("") == {}


@pytest.fixture
def called(monkeypatch):
    """What was called; uv ends as `called.uv` says."""

    class Calls(list):
        uv = 0

    calls = Calls()

    def run(command, **_):
        calls.append([str(part) for part in command[1:]])
        return subprocess.CompletedProcess(command, calls.uv if "uv" in command else 0, stdout="global.find-links='/all'\n")

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: calls.found)
    calls.found = object()
    return calls


PIP = ["-m", "pip", "--python", "there/python"]


def test_pip_is_asked_where_uv_is_missing_or_fails(called, capsys):
    assert install.main("there/python", "-e", ".") == 0
    assert called == [[*PIP, "config", "list"], ["-m", "uv", "pip", "install", "-q", "--python", "there/python", "-e", "."]]
    called.clear()
    called.uv = 1
    assert install.main("there/python", "-e", ".") == 0
    assert called[2] == [*PIP, "install", "-q", "--retries", "2", "--timeout", "60", "-e", "."]
    assert "uv could not install this" in capsys.readouterr().err
    called.clear()
    called.found = None
    assert install.main("there/python", "-e", ".") == 0 and called == [
        [*PIP, "install", "-q", "--retries", "2", "--timeout", "60", "-e", "."]
    ]


def test_a_package_is_installed_into_the_other_environment(tmp_path):
    """Without a network: a project whose build needs nothing."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "made_here.py").write_text("x = 1\n")
    (tmp_path / "made" / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "made-here"\nversion = "1"\n'
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    script = Path(install.__file__)
    command = [sys.executable, script, python, "--no-deps", "--no-build-isolation", tmp_path / "made"]
    (tmp_path / "venv" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "host.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "pip tries" not in done.stderr, done.stderr
    found = subprocess.run([python, "-c", "import made_here; print(made_here.__file__)"], capture_output=True, text=True)
    assert str(tmp_path / "venv") in found.stdout, found.stderr
