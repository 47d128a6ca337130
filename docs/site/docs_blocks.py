"""The steps of a page that is to be followed: files to write, commands to run, pictures of what is seen.

```toml title="run.toml"      a file
```sh                         commands, in order, in one folder
<!-- illustration: why -->    before a block that a test can't run
<!-- picture: KIND WHAT -->   before a picture: `terminal COMMAND`, `file NAME` or `page NAME` (of a browser)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mmrl.api.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "docs" / "start"
_STEP = re.compile(
    r"(?:<!-- illustration: (?P<why>[^>]*) -->\n)?^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$"
    r"|<!-- picture: (?P<kind>terminal|file|page) (?P<what>[^\n]*?) -->\n!\[(?P<alt>[^\]]*)\]\((?P<target>[^)]*)\)",
    re.MULTILINE | re.DOTALL,
)
PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE", "LD_LIBRARY_PATH")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A block or a picture of a page."""

    line: int
    kind: str
    """`file`, `commands`, `illustration`, `output` or `picture`."""
    name: str = ""
    """The file that is written, or the picture's path from docs/."""
    body: str = ""
    """The text of the file, the commands, or what the picture is of."""
    of: str = ""
    """What a picture shows: `terminal`, `file` or `page`."""
    digest: str = ""
    """Of all steps up to a picture: it is older than what it shows if this is another."""


def steps(page: Path) -> list[Step]:
    """The steps of a page, in order."""
    text = page.read_text("utf-8")
    found, before = [], hashlib.sha256()
    for match in _STEP.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["kind"]:
            before.update(f"{match['kind']} {match['what']}".encode())
            name = os.path.relpath((page.parent / match["target"]).resolve(), ROOT / "docs")
            digest = before.hexdigest()[:16]
            found.append(Step(line=line + 1, kind="picture", name=name, body=match["what"], of=match["kind"], digest=digest))
            continue
        body = match["body"]
        if match["why"]:
            found.append(Step(line=line, kind="illustration", body=body, name=match["why"]))
            continue
        if match["title"]:
            found.append(Step(line=line, kind="file", name=match["title"], body=body))
        elif match["language"] == "sh":
            found.append(Step(line=line, kind="commands", body=body))
        else:
            found.append(Step(line=line, kind="output", body=body))
            continue
        before.update(body.encode())
    return found


def outdated(folder: Path = START, made: dict[str, str] | None = None) -> list[str]:
    """`file:line: what is wrong`, for pictures that are missing or older than what they show."""
    made = record() if made is None else made
    found = []
    for page in sorted(folder.glob("*.md")):
        name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
        for step in steps(page):
            if step.kind != "picture":
                continue
            if not (ROOT / "docs" / step.name).exists():
                found.append(f"{name}:{step.line}: the picture {step.name} is missing: make docs-pictures")
            elif made.get(step.name) != step.digest:
                found.append(f"{name}:{step.line}: the picture {step.name} is older than the steps before it: make docs-pictures")
    return found


def record() -> dict[str, str]:
    """Picture -> digest of the steps that it was made after."""
    path = ROOT / "docs" / "pictures" / "start" / "made.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def prepare(folder: Path) -> dict[str, str]:
    """Make a folder look like a checkout to a reader's commands; the environment to run them in."""
    for name in ("assets", "configs"):
        (folder / name).symlink_to(ROOT / name)
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    return env | {"PYTHONPATH": str(folder / "site-packages"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}


def run(page: Path, folder: Path, added: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[Step, str]]:
    """Do what a page says, in a folder: (step, what its commands printed), pictures too, for whoever wants to take them. added:
    command -> arguments that it gets besides.

    `pip install -e FOLDER` goes into a folder of its own, so that the environment stays as it is. Raises CalledProcessError, its
    `cmd` with file and line."""
    env = prepare(folder)
    printed: dict[str, str] = {}
    for step in steps(page):
        if step.kind == "file":
            path = folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.body, "utf-8")
        elif step.kind == "commands":
            for command in commands(step.body):
                printed[command] = _run(f"{command} {added.get(command, '')}".rstrip(), folder, env, f"{page.name}:{step.line}")
        command = shown_command(step.body, printed)
        if step.of == "terminal" and command is None:
            raise UserError(
                f"{page.name}:{step.line}: the picture is of a command that the page does not run before it: {step.body}"
            )
        if step.of == "terminal" and command is not None:
            yield replace(step, body=command), printed[command]
        else:
            yield step, ""


def shown_command(begin: str, printed: Iterable[str]) -> str | None:
    """The last command that was run and begins with these words."""
    return next((command for command in reversed([*printed]) if f"{command} ".startswith(f"{begin} ")), None)


def commands(body: str) -> list[str]:
    """The commands of a block, without what is remarked on them; a line may go on after a backslash or inside quotes."""
    found: list[str] = []
    for line in body.splitlines():
        if found and (found[-1].endswith("\\") or found[-1].count("'") % 2):
            found[-1] += f"\n{line}"
        elif line.strip() and not line.startswith("#"):
            found.append(re.sub(r"\s{2,}# .*$", "", line).rstrip())
    return found


def _run(command: str, folder: Path, env: dict[str, str], at: str) -> str:
    actual = re.sub(
        r"^pip install -e (\S+)$",
        rf"{sys.executable} -m pip install -q --no-deps --no-index --no-build-isolation --target site-packages ./\1",
        command,
    )
    done = subprocess.run(
        ["bash", "-e", "-c", actual],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"{at}: {command}", done.stdout)
    return done.stdout
