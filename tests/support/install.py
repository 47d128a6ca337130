"""Installs as `pip install` does, by uv where it is there: what a dozen environments share is fetched and unpacked once.

`python tests/support/install.py PYTHON ARGUMENTS...`: into the environment of PYTHON, with pip's arguments. What a person has
set for pip (an index, a folder of wheels, constraints, a certificate) holds for uv too. What uv can't do, pip is asked to.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

SETTINGS = {
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""What uv calls a setting of pip's."""


def settings(listed: str) -> dict[str, str]:
    """uv's variables for what `pip config list` printed, such as `global.find-links='wheels'`; variables hold, as in pip."""
    found = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        if variable := SETTINGS.get(name.removeprefix(":env:").rpartition(".")[2]):
            found[variable] = ast.literal_eval(value)
    indexes = [url for url in found.pop("UV_INDEX", "").split() if not _absent(url)]
    if indexes:
        found |= {
            "UV_INDEX": " ".join(indexes),
            "UV_INDEX_STRATEGY": "unsafe-best-match",
        }  # of all indexes the newest, as pip does
    return found


def _absent(url: str) -> bool:
    """Whether it is a folder that isn't there, which pip passes over."""
    parts = urlparse(url)
    return parts.scheme == "file" and not Path(url2pathname(parts.path)).is_dir()


def main(python: str, *arguments: str) -> int:
    pip = [sys.executable, "-m", "pip", "--python", python]
    if importlib.util.find_spec("uv") is not None:
        listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
        environment: Mapping[str, str] = {"UV_LINK_MODE": "hardlink"} | settings(listed) | os.environ
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python]
        done = subprocess.run([*uv, *arguments], env=environment)
        if done.returncode == 0:
            return 0
        print("uv could not install this, pip tries", file=sys.stderr)
    return subprocess.run([*pip, "install", "-q", "--retries", "2", "--timeout", "60", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
