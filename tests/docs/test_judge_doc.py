"""The run files of docs/judge.md are accepted, and its table of options is that of the code."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
from mmrl_judge.asking import AskingVerifier

from mmrl.config.load import parse_config
from mmrl.train.resolve import resolve

PAGE = (Path(__file__).parents[2] / "docs" / "judge.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_run_files(text):
    resolve(parse_config(tomllib.loads(text)))


def test_options():
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", PAGE, re.MULTILINE)
    told = {name for row in rows for name in re.findall("[a-z_]+", row)}
    assert told == set(inspect.signature(AskingVerifier).parameters)
