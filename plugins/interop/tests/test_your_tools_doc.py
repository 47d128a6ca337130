"""docs/your-tools.md: its files train as they are."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mmrl.ui.cli import main

PAGE = Path(__file__).parents[3] / "docs" / "your-tools.md"
FILES = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    rows = [{"prompt": f"What do {n} apples cost?", "answer": 3 * n} for n in range(2, 40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pays"), [("tools", "interop/return"), ("game", "interop/return"), ("shop", "accuracy")])
def test_the_run_files_train(here, monkeypatch, name, pays):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    done = CliRunner().invoke(main, ["train", f"{name}.toml", "--smoke"])
    assert done.exit_code == 0, done.output[-2000:]
    assert "episode/calls" in done.output and pays in done.output


def test_the_functions_do_what_the_page_says(here):
    names = {}
    exec(FILES["tools.py"], names)
    exec(FILES["game.py"], names)
    said = [{"role": "assistant", "content": ""}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 6."}]
    assert names["price"]("apple") == 3 and names["frugal"](completions=[said], answer=[6]) == [0.9]
    game = names["Guess"]()
    game.reset()
    assert game.get_reward() == 0.0
    assert (game.guess(game.number - 1), game.guess(game.number + 1), game.guess(game.number)) == ("Higher.", "Lower.", "Right.")
    assert game.get_reward() == 1 / 3
