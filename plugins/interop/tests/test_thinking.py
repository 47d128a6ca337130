"""Answers of models that think: what mmrl's verifiers get of them in other programs."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from mmrl_interop import easyr1, scoring, swift, verl
from mmrl_interop.export import export
from mmrl_interop.rows import read_stored
from mmrl_interop.trl import said_last, to_trl

from mmrl import open_task
from mmrl.ui.cli import main

parquet = pytest.importorskip("pyarrow.parquet")

SAMPLED = "A loop.\n</think>\n\n<answer>9</answer>"
FORM = {"verifiers": {"vqa/format": 1.0}}
"""1 for one thought and one answer."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for module in (easyr1, swift, verl):
        monkeypatch.setattr(module, "STAND_INS", scoring.StandIns())
    yield
    scoring.close()


@pytest.fixture
def unchecked(monkeypatch):
    """TRL need not be there: what it is given and gives is known."""
    monkeypatch.setattr("mmrl_interop.trl.peer", lambda *args: None)


def row_of(tmp_path, to, **given):
    export("peers/shade", tmp_path / "a.parquet", to, n=1, overwrite=True, **FORM, **given)
    return parquet.read_table(tmp_path / "a.parquet").to_pylist()[0]


def scored(to, row, text):
    if to == "verl":
        info = row["extra_info"]
        return verl.compute_score(row["data_source"], text, row["reward_model"]["ground_truth"], info)["score"]
    if to == "easyr1":
        [found] = easyr1.compute_score([{"response": text, "response_length": 9, "ground_truth": row["answer"]}])
        return found["overall"]
    return swift.reward([text], mmrl=[row["mmrl"]])[0]


@pytest.mark.parametrize("to", ["verl", "easyr1"])
def test_completions_begin_with_what_the_model_s_template_writes(tmp_path, thinker, folder, to):
    """A format reward was 0 for each of them, and what an answer that was cut off had thought was taken for its answer."""
    row = row_of(tmp_path, to, model=str(thinker))
    assert scored(to, row, SAMPLED) == 1.0 and scored(to, row, "<answer>9</answer>") == 0.0
    assert scored(to, row, f"<think>{SAMPLED}") == 1.0, "it is not written twice"
    for given in ({"model": str(thinker), "opening": ""}, {"model": str(folder)}, {}):
        assert scored(to, row_of(tmp_path, to, **given), SAMPLED) == 0.0
    assert scored(to, row_of(tmp_path, to, opening="<think>"), SAMPLED) == 1.0


def test_those_of_ms_swift_have_it_already(tmp_path, thinker):
    """Its `Template.decode_generate_ids` writes the prefix of the answer before what was sampled."""
    row = row_of(tmp_path, "swift", model=str(thinker))
    assert scored("swift", row, SAMPLED) == 0.0 and scored("swift", row, f"<think>\n{SAMPLED}") == 1.0


def test_the_command_takes_it(tmp_path):
    file = tmp_path / "a.parquet"
    done = CliRunner().invoke(main, ["export", "peers/shade", str(file), "--to", "verl", "-n", "1", "--opening", "<think>"])
    assert done.exit_code == 0, done.stderr
    stored = parquet.read_table(file).to_pylist()[0]["extra_info"]["mmrl"]
    assert read_stored(stored).completed("A</think>9").completion == "<think>A</think>9"
    earlier = {key: value for key, value in json.loads(stored).items() if key != "opening"}
    assert read_stored(json.dumps(earlier)).completed("A</think>9").completion == "A</think>9"


@pytest.mark.parametrize(("opening", "value"), [(None, 1.0), ("", 0.0)])
def test_trl_s_completions(unchecked, thinker, opening, value):
    pytest.importorskip("datasets")
    with to_trl("peers/shade", n=1, model=str(thinker), opening=opening, **FORM) as made:
        assert made.reward([[{"role": "assistant", "content": SAMPLED}]], made.train_dataset["mmrl"]) == [value]


def test_thinking_that_trl_split_off_is_joined_again():
    """It reads calls of tools by a template of the response, by which thinking stands apart, and verifiers didn't get it."""
    for key in ("reasoning_content", "thinking"):
        told = {"role": "assistant", key: "A loop.", "content": "<answer>9</answer>"}
        assert said_last([told]) == "<think>A loop.</think><answer>9</answer>"
        assert said_last([{**told, "content": ""}]) == "<think>A loop.", "it was cut off"
    assert said_last([{"role": "assistant", "reasoning_content": None, "content": "9"}]) == "9"


def test_a_thought_alone_is_no_turn_of_trl_s_episode(unchecked):
    pytest.importorskip("datasets")
    with to_trl("peers/guess", max_turns=3) as made:
        environment = made.environment_factory()
        environment.reset(**made.train_dataset[3])
        environment.step("3")
        other = made.environment_factory()
        other.reset(**made.train_dataset[3])
        cut = [[{"role": "assistant", "reasoning_content": "Hm", "content": ""}]] * 2
        assert made.reward(cut, made.train_dataset["mmrl"], environments=[environment, other]) == [2.25, 0.0]
        assert other._episode.turns == []


def test_a_model_s_template_says_what_it_opens(thinker, folder):
    for model, opening in ((str(thinker), "<think>\n"), (str(folder), ""), (None, ""), ("tiny:openvla", "")):
        with open_task("peers/shade", model=model) as task:
            assert task.opening == opening


@pytest.mark.slow
def test_verl_s_agent_loop_gives_environments_the_opened_thinking(tmp_path, thinker, by_peer):
    export("peers/guess", tmp_path / "a.parquet", "verl", {"think": "Hm."}, model=str(thinker))
    made = subprocess.run([sys.executable, "-m", "mmrl_interop.verl"], capture_output=True, text=True, check=True)
    turns = [[3, ["Hm.</think>3"]], [3, ["Hm.</think>4", "Hm.</think>3"]], [3, ["Hm."] * 9]]
    found = by_peer("verl", "verl_episodes.py", tmp_path / "a.parquet", thinker, made.stdout.strip(), told=turns)
    assert [row["reward"] for row in found] == [2.25, 2.25, 0.0]
    assert "<think>" not in found[1]["sampled"], "the policy didn't sample it"
