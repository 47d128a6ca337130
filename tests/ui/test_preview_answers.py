"""`mmrl preview TASK --policy RUN.toml`: a policy's answers and their scores beside the gold ones, on both files."""

import json
import re

import pytest
from click.testing import CliRunner

from mmrl.ui.cli import main
from mmrl.ui.report import contact_sheet as sheets
from stub_endpoint import status, stub_endpoint

DIGITS = "classification/digits"
REST = f"""
name = "answers"
tasks = [{{id = "{DIGITS}"}}]
stages = [{{kind = "rl", steps = 1}}]
generate = {{max_tokens = 8}}
evaluate = {{num_prompts = 4}}
"""


def endpoint(url):
    return f'policy = {{kind = "openai", model = "stub-vl", options = {{base_url = {json.dumps(url)}, retries = 0}}}}{REST}'


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def preview(*args):
    return CliRunner().invoke(main, ["preview", *map(str, args)])


def test_an_endpoint_s_answers_stand_beside_the_gold_ones(here, monkeypatch):
    shown, draw = [], sheets.contact_sheet
    monkeypatch.setattr(sheets, "contact_sheet", lambda prompts, *rest: shown.extend(prompts) or draw(prompts, *rest))
    with stub_endpoint(answer=lambda asked: "<answer>7</answer>") as stub:
        (here / "api.toml").write_text(endpoint(stub.url))
        done = preview(DIGITS, "-n", 20, "--sample", 20, "--split", "test", "--policy", "api.toml")
    assert done.exit_code == 0, done.stderr
    assert len(stub.bodies) == 20, "those that are shown are asked, once each"
    digits = [re.search(r"\d", prompt.answer.splitlines()[0])[0] for prompt in shown]
    assert all(prompt.answer.endswith("answered: <answer>7</answer>") for prompt in shown)
    right = digits.count("7") / 20
    assert 0 < right < 1
    assert re.search(rf"gold 1\b.*answer {right:.2g} \(0 to 1\)", done.stdout), done.stdout
    page = (here / "preview-classification-digits.html").read_text()
    assert page.count("the policy&#x27;s answer</") + page.count("the policy's answer</") == 20
    assert "and of the policy's answer" in page.replace("&#x27;", "'") and "as stub-vl sees it" in page


def test_a_model_here_answers_too(here):
    (here / "tiny.toml").write_text(f'policy = {{model = "tiny:qwen2_5_vl:hidden=32,layers=1"}}{REST}')
    done = preview(DIGITS, "-n", 2, "--sample", 2, "--policy", "tiny.toml", "--out", "page.html")
    assert done.exit_code == 0, done.stderr
    assert "answer 0" in done.stdout and "Length of prompts, in tokens" in (here / "page.html").read_text()


REFUSED = [
    ([DIGITS, "--policy", "none.toml"], "none.toml"),
    ([DIGITS, "--policy", "api.toml", "--model", "tiny:qwen2_vl"], "leave out --model"),
    (["robotics/reach", "--policy", "api.toml"], "acts in a simulator"),
    ([DIGITS, "--policy", "acts.toml"], "writes no answers: mmrl eval acts.toml"),
    ([DIGITS, "--policy", "rates.toml"], "a reward model, which writes no answers: mmrl eval rates.toml"),
    ([DIGITS, "--policy", "api.toml"], "status 401: wrong key"),
]


@pytest.mark.parametrize(("args", "message"), REFUSED)
def test_what_can_not_answer_is_one_line(here, args, message):
    (here / "acts.toml").write_text(f'policy = {{kind = "vla", model = "tiny:openvla:hidden=32,layers=1"}}{REST}')
    (here / "rates.toml").write_text(f'policy = {{kind = "reward", model = "tiny:qwen2_5_vl:hidden=32,layers=1"}}{REST}')
    with stub_endpoint(always=status(401, "wrong key")) as stub:
        (here / "api.toml").write_text(endpoint(stub.url))
        done = preview(*args, "-n", 2, "--sample", 2)
    said = [line for line in done.stderr.splitlines() if line.startswith("mmrl: ") and not line.endswith("...")]
    assert done.exit_code == 2 and len(said) == 1 and message in said[0], done.stderr
    assert not list(here.glob("preview-*")), "nothing is written"
