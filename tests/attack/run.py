"""The campaign: bad input of all kinds against the whole project.

    python tests/attack/run.py [--only completions,kills] [--minutes 30] [--json FILE] [--log FILE]

Prints what was tried, held and fell; exit code 1 if anything fell. Everything stays on this machine: servers listen on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from mmrl.testing.attack import Attempt, run, show  # noqa: E402
from mmrl.testing.attack.campaign import Attack, Outcome  # noqa: E402

KINDS = {
    "hostile verifiers": ("hostile_workers", "hostile_verifiers"),
    "forged replies": ("hostile_workers", "forged_replies"),
    "images": ("files", "images"),
    "videos": ("files", "videos"),
    "tables": ("files", "tables"),
    "run files": ("run_files", "run_files"),
    "run folders": ("run_folders", "run_folders"),
    "board requests": ("board_requests", "board_requests"),
    "simulator deaths": ("simulator_deaths", "simulator_deaths"),
    "browser deaths": ("browser_deaths", "browser_deaths"),
    "kills": ("kills", "kills"),
}
"""Kind -> the module in this folder and its function, an attack. The kinds of `installed` come first."""


def campaign(only: list[str]) -> dict[str, Attack]:
    """Kind -> attack, of these kinds or of all."""
    import installed

    attacks = installed.attacks() | {kind: partial(_call, *place) for kind, place in KINDS.items()}
    if unknown := [kind for kind in only if kind not in attacks]:
        sys.exit(f"no kind {unknown[0]!r}: choose from {', '.join(attacks)}")
    return {kind: attack for kind, attack in attacks.items() if not only or kind in only}


def _call(module: str, function: str) -> Iterator[Attempt]:
    yield from getattr(importlib.import_module(module), function)()


@contextlib.contextmanager
def stderr_in(path: Path) -> Iterator[TextIO]:
    """What this process, its libraries and its children say of broken files goes into a file. Yields the stderr of before."""
    with open(path, "wb") as log, os.fdopen(os.dup(2), "w") as shown:
        os.dup2(log.fileno(), 2)
        try:
            yield shown
        finally:
            sys.stderr.flush()
            os.dup2(shown.fileno(), 2)


def told(shown: TextIO, outcome: Outcome) -> None:
    print(f"{outcome.kind}: {outcome.tried} tried, {len(outcome.fell)} fell, {outcome.seconds:.0f} s", file=shown, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--minutes", type=float, default=30.0, help="at most, in equal parts for the kinds")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    parser.add_argument("--log", type=Path, default=os.devnull, help="write what the attacked says on stderr to this file")
    args = parser.parse_args()
    os.chdir(HERE.parents[1])
    attacks = campaign([kind.strip() for kind in args.only.split(",") if kind.strip()])
    with stderr_in(args.log) as shown:
        outcomes = run(attacks, seconds=60 * args.minutes / len(attacks), told=partial(told, shown))
    if args.json:
        args.json.write_text(json.dumps([o.as_json() for o in outcomes], indent=2))
    print(show(outcomes))
    sys.exit(any(o.fell for o in outcomes))


if __name__ == "__main__":
    main()
