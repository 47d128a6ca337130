"""Runs functions of the scripts beside it, each in a fork of a process that has imported LeRobot, which takes many seconds.

LeRobot's Python runs this file. A line of stdin is a JSON list: a script's name, a function's, its arguments. A line of stdout
answers it with a JSON string: the traceback, empty where nothing went wrong. What the functions print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

USED = ("factory", "groot.modeling_groot", "pi0.modeling_pi0", "pi05.modeling_pi05")
USED += ("pi0_fast.modeling_pi0_fast", "smolvla.modeling_smolvla", "act.modeling_act", "diffusion.modeling_diffusion")
USED += ("xvla.modeling_xvla",)


def call(script: str, function: str, *arguments: str) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as told:
            try:
                getattr(importlib.import_module(script), function)(*arguments)
            except BaseException:
                told.write(traceback.format_exc())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        said = told.read()
    status = os.waitpid(child, 0)[1]
    return said or (f"{script}.{function} ended with status {status}" if status else "")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in USED:
        importlib.import_module(f"lerobot.policies.{name}")
    for line in sys.stdin:
        print(json.dumps(call(*json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
