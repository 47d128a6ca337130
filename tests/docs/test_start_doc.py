"""The path of docs/start: its run files are valid, its commands run, its pictures are of what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import docs_blocks
from mmrl.api.errors import UserError
from mmrl.config.load import load_config
from mmrl.testing.cases import some_of
from mmrl.ui.cli import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
START = sorted(docs_blocks.START.glob("*.md"))
FEW = "--set stages.0.steps=10 --set evaluate.num_prompts=32 --set evaluate.every=0"
TINY = "--set stages.0.batch_size=8 --set stages.1.steps=4 --set stages.1.prompts_per_step=4"
SHORTER = {
    "mmrl train configs/demo/digits.toml": f"{FEW} {TINY}",
    "mmrl train configs/demo/digits.toml --set stages.1.steps=20": FEW,
    "mmrl train configs/demo/robot.toml": f"{FEW} --set stages.0.prompts_per_step=32",
    "mmrl train reward.toml": f"{FEW} --set stages.1.steps=4",
}
"""Command -> what makes it shorter than the page says. `make demo` and `make demo-robot` run all of theirs."""


def test_a_picture_that_is_missing_or_older_is_named_with_file_and_line(tmp_path):
    page = tmp_path / "1-page.md"
    body = (
        "# Page\n\n```sh\nmmrl list tasks\n```\n\n<!-- picture: terminal mmrl list tasks -->\n![what](../pictures/start/{}.svg)\n"
    )
    page.write_text(body.format("no-such"))
    [missing] = docs_blocks.outdated(tmp_path, {})
    assert missing.startswith("1-page.md:8: the picture ") and missing.endswith("no-such.svg is missing: make docs-pictures")
    page.write_text(
        f"{body.format('x')}".replace("../pictures/start", str(DOCS / "pictures/start")).replace("x.svg", "first-run.svg")
    )
    [step] = [step for step in docs_blocks.steps(page) if step.kind == "picture"]
    assert step.name == "pictures/start/first-run.svg"
    assert docs_blocks.outdated(tmp_path, {step.name: step.digest}) == []
    page.write_text(page.read_text().replace("mmrl list tasks\n```", "mmrl list stages\n```"))
    assert docs_blocks.outdated(tmp_path, {step.name: step.digest}) == [
        "1-page.md:8: the picture pictures/start/first-run.svg is older than the steps before it: make docs-pictures"
    ]


def test_the_pictures_are_those_of_the_steps():
    assert docs_blocks.outdated() == []


def test_an_example_that_fails_is_named_with_file_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('# Page\n\n```toml title="a.toml"\nx = 1\n```\n\n```sh\ncat a.toml\n\nfalse\n```\n')
    with pytest.raises(subprocess.CalledProcessError) as raised:
        list(docs_blocks.run(page, tmp_path))
    assert raised.value.cmd == "page.md:7: false"


def test_a_picture_of_a_command_that_is_not_run_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- picture: terminal mmrl list -->\n![x](x.svg)\n")
    with pytest.raises(UserError, match=r"page.md:3: the picture is of a command that the page does not run"):
        list(docs_blocks.run(page, tmp_path))


def test_commands_are_read_as_a_shell_would():
    text = "# a remark\na --b   # why\nc 'd\ne' \\\n  f\n"
    assert docs_blocks.commands(text) == ["a --b", "c 'd\ne' \\\n  f"]


@pytest.mark.parametrize("page", START, ids=lambda p: p.stem)
def test_the_run_files_and_commands_of_the_path_are_valid(page, tmp_path):
    steps = docs_blocks.steps(page)
    for step in steps:
        if step.kind == "file" and step.name.endswith(".toml"):
            (tmp_path / step.name).write_text(step.body)
            assert load_config(tmp_path / step.name).name
        if step.kind in ("commands", "illustration"):
            for command in re.findall(r"^mmrl ([a-z]+)", step.body, re.MULTILINE):
                assert command in COMMANDS or command in ("record", "serve"), f"{page.name}:{step.line}"
    blocks = [step for step in steps if step.kind in ("file", "commands", "illustration")]
    assert len(page.read_text().split()) < 900, "ten minutes"
    assert sum(step.kind == "illustration" for step in blocks) <= 1 and len(blocks) > 1


def test_nine_of_ten_blocks_of_the_path_run():
    blocks = [s for page in START for s in docs_blocks.steps(page) if s.kind in ("file", "commands", "illustration")]
    run = sum(step.kind != "illustration" for step in blocks)
    print(f"{run} of {len(blocks)} blocks run")
    assert run / len(blocks) > 0.85


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", some_of(START, START[1:2]), ids=lambda p: p.stem)
def test_what_a_page_of_the_path_says_runs(page, tmp_path):
    try:
        for step, printed in docs_blocks.run(page, tmp_path, SHORTER):
            if step.of == "terminal":
                assert printed.strip(), f"{page.name}:{step.line}: the command prints nothing"
            elif step.of:
                assert (tmp_path / step.body.split()[0]).exists(), f"{page.name}:{step.line}: there is no {step.body}"
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error.cmd}: exit code {error.returncode}\n{error.stdout[-2000:]}")
