"""The run files of docs/judge.md are accepted. Its tables of options are those of `test_options_doc`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mmrl.config.load import parse_config
from mmrl.train.resolve import resolve

PAGE = (Path(__file__).parents[2] / "docs" / "judge.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_run_files(text):
    resolve(parse_config(tomllib.loads(text)))
