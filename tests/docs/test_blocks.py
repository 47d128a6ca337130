"""Every code block of every page runs in a test, is checked by what would read it, or is marked as an illustration."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import docs_code
import docs_commands
from mmrl.ui.cli import main

pytestmark = pytest.mark.forks

ROOT = docs_code.ROOT
BLOCKS = docs_code.blocks()
WRITTEN = docs_code.plugins_of(BLOCKS)
PYTHON = [b for b in BLOCKS if b.language == "python" and not b.why and not b.run_by]
BROWSER = "sims/browser/README.md"


def test_the_blocks_of_all_pages_are_right():
    assert docs_code.faults(BLOCKS) == []


def test_nine_of_ten_blocks_run_or_are_checked():
    run, checked, shown = docs_code.share(BLOCKS)
    share = (run + checked) / len(BLOCKS)
    print(f"of {len(BLOCKS)} code blocks {run} run, {checked} are checked, {shown} are illustrations: {share:.3f}")
    assert share >= 0.9
    assert [block.at for block in BLOCKS if block.why and len(block.why.split()) < 3] == [], "an illustration says why"


def test_the_test_that_is_named_reads_the_page():
    for (page, language), test in docs_code.RUN_BY.items():
        assert any((block.page, block.language) == (page, language) for block in BLOCKS), f"{page} has no {language}"
        text = (ROOT / test).read_text("utf-8")
        guided = page.startswith("docs/plugins/") and "import guide\n" in text
        assert guided or Path(page).name in text or f'"{Path(page).stem}"' in text, f"{test} does not read {page}"
    assert {block.page for block in BLOCKS if block.page.startswith(docs_code.START)} <= {
        path.relative_to(ROOT).as_posix() for path in docs_code.docs_commands.docs_blocks.START.glob("*.md")
    }


LONG = ("check_policy(", "vision_language(", "expert_episodes(")
"""What a block that takes a quarter of a minute or more calls."""


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.at, marks=[pytest.mark.slow] if any(call in b.body for call in LONG) else []) for b in PYTHON]
)
def test_python_runs(block, tmp_path, monkeypatch):
    if block.page == BROWSER:
        pytest.importorskip("mmrl_browser")
        pytest.skip("plays in a browser: sims/browser/tests does the same")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.body, block.at, "exec", dont_inherit=True), {"__name__": "page"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('```toml\nname = "x"\nstages = [{kind = "rl", steps = 3, gruop_size = 3}]\n```', "did you mean 'group_size'?"),
        ('```toml\ntasks = [{id = "classification/digitz"}]\n```', "no task 'classification/digitz'"),
        ('```toml\nstages = [{kind = "rl", steps = 1, algorithm = "gppo"}]\n```', "no algorithm 'gppo'"),
        ('```toml\ntasks = [{id = "jigsaw/full", options = {rowz = 2}}]\n```', "task 'jigsaw/full' has no option 'rowz'"),
        ("```toml\nname = \n```", "Invalid value"),
        ("```sh\nmmrl trane run.toml\n```", "no such command"),
        ("```sh\nmmrl train run.toml --smokey\n```", "No such option"),
        ("```sh\nmmrl train run.toml --set stages.1.learning_rat=1e-4\n```", "did you mean 'learning_rate'?"),
        ("```sh\nmmrl train\n```", "is missing"),
        ("```sh\nmmrl check a b c\n```", "one argument too many: c"),
        ("```sh\nmmrl preview grounding/refre\n```", "no task 'grounding/refre'"),
        ("```sh\nmmrl preview grounding/refer --set size=big --set sizes=3\n```", "has no option"),
        ("```sh\nmmrl list tusks\n```", "no kind 'tusks'"),
        ("```sh\nmmrl plan run.toml --gpus many\n```", "'many' is not a valid integer"),
        ("```sh\nmmrl export grounding/refer x.parquet --to verl --modle x\n```", "No such option"),
        ("```sh\ntorchrun --nnodes 2 -m mmrl train run.toml --smokey\n```", "No such option"),
        ("```sh\nmake tset\n```", "the Makefile has no target tset"),
        ('```sh\npip install "multimodal-rl[trian]"\n```', "there is no extra 'trian'"),
        ("```sh\npip install multimodal-rl-nothing\n```", "there is no distribution multimodal-rl-nothing"),
        ("```sh\nfrobnicate --hard\n```", "nobody checks the program frobnicate"),
        ("```sh\nvllm serve x\n```", "nobody checks the programs of others: mark it <!-- illustration: why -->"),
        ("```python\ndef f(:\n```", "invalid syntax"),
        ("```json\n{'a': 1}\n```", "Expecting property name"),
        ("```rust\nfn main() {}\n```", "nobody checks a block in 'rust'"),
    ],
)
def test_a_fault_is_named_with_file_and_line(tmp_path, text, said):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    [found] = docs_code.faults(docs_code.blocks([page]))
    assert found.startswith("page.md:3: ") and said in found


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nmmrl train run.toml --set stages.1.learning_rate=1e-4   # a remark\n```",
        "```sh\nfor seed in 0 1; do\n  mmrl train run.toml --set seed=$seed\ndone\n```",
        '```toml\noptions = {size = 3}\nid = "classification/digits"\n```',
        '```toml\n[policy]\nmodel = "x"\n```',
        "```\nmmrl frobnicate\n```",
        "<!-- illustration: it needs a server -->\n```sh\nfrobnicate\n```",
        '```json\n{"a": 1}\n{"a": 2}\n```',
    ],
)
def test_what_is_right_is_no_fault(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    assert docs_code.faults(docs_code.blocks([page])) == []


def looks() -> list[str]:
    """Commands of the pages that only look at what comes with mmrl, but for those that take half a minute."""
    found = [c for b in BLOCKS if b.language == "sh" and not b.why and not b.run_by for c in docs_commands.commands(b.body)]
    quick = [
        c for c in found if re.match(r"mmrl (list|preview) (?!gui/g|gui/t|video)", c) and "path=" not in c and "--model" not in c
    ]
    return sorted({c for c in quick if "--policy" not in c and not any(f" {name}/" in c for name in WRITTEN)})


@pytest.mark.slow
@pytest.mark.parametrize("command", looks())
def test_a_command_that_looks_runs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "assets", tmp_path / "assets")
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output[-1500:]
