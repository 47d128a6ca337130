"""docs/vqa.md is so: its run files are accepted and pay right answers in full, its rows are read, its code runs."""

import re
from pathlib import Path

import pytest
from PIL import Image

from mmrl import Case, Score
from mmrl.config.load import load_config
from mmrl.registry import plugins
from mmrl.train.resolve import resolve

PATH = Path(__file__).parents[3] / "docs" / "vqa.md"
PAGE = PATH.read_text() if PATH.exists() else ""
RUN_FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
pytestmark = pytest.mark.skipif(not PAGE, reason="the page is not part of this package")


def rows(mark):
    return re.search(rf"<!-- {mark} -->\n```\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name in ("dog.jpg", "board.png"):
        Image.new("RGB", (16, 16), "olive").save(tmp_path / name)
    (tmp_path / "questions.jsonl").write_text(rows("rows") * 4)
    (tmp_path / "vlm-r1.jsonl").write_text(rows("rows of vlm-r1"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", RUN_FILES, ids=lambda t: re.search('name = "(.*)"', t)[1])
def test_run_files_are_accepted_and_pay_right_answers_in_full(text, here):
    (here / "run.toml").write_text(text)
    setup = resolve(load_config(here / "run.toml", []))
    for id, task in setup.tasks.items():
        prompts = task.prompts("train", 0)
        for prompt in [prompts[i] for i in range(min(len(prompts), 12))]:
            for verifier in setup.weights[id]:
                got = plugins.registry().make_verifier(verifier)(
                    Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
                )
                assert (got.value if isinstance(got, Score) else got) == setup.verifiers[verifier].high


def test_the_rows_of_the_page_are_read(here):
    task = plugins.registry().make_task("vqa/table", {"path": "questions.jsonl", "test_share": 0})
    assert [p.meta["kind"] for p in task.prompts("train", 0)][:5] == ["choice", "number", "math", "yes-no", "text"]
    task = plugins.registry().make_task("vqa/table@vlm-r1", {"path": "vlm-r1.jsonl", "test_share": 0})
    assert task.prompts("train", 0)[0].answer == "yes"


def test_the_code_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})


def test_the_page_names_every_id():
    info = next(p for p in plugins.registry().plugins if p.name == "vqa")
    for id in (*info.specs["tasks"], *info.specs["verifiers"]):
        assert f"`{id}`" in PAGE, id
