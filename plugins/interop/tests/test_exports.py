"""A task's prompts in the files of verl, EasyR1 and ms-swift, read and scored by the code of each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mmrl_interop import easyr1, scoring, swift, verl
from mmrl_interop.export import FORMS, export
from mmrl_interop.rows import read_stored

import mmrl
from mmrl import Score, UserError
from mmrl.ui.cli import main

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test begins without means of earlier scores."""
    for module in (verl, easyr1, swift):
        monkeypatch.setattr(module, "STAND_INS", scoring.StandIns())
    yield
    scoring.close()


def rows_of(to, file, id="peers/shade", **more):
    export(id, file, to, **more)
    return parquet.read_table(file).to_pylist()


def pixel(row, k=0):
    from io import BytesIO

    from PIL import Image

    return Image.open(BytesIO(row["images"][k]["bytes"])).getpixel((0, 0))


def test_verl_s_rows(tmp_path):
    rows = rows_of("verl", tmp_path / "a.parquet", n=3, max_pixels=4096)
    assert list(rows[2]) == ["data_source", "prompt", "images", "ability", "reward_model", "extra_info"]
    assert rows[2]["data_source"] == "mmrl:peers/shade" and rows[2]["reward_model"] == {
        "style": "rule",
        "ground_truth": '[2, "dark"]',
    }
    assert rows[2]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<image>How dark so so?"},
    ]
    assert pixel(rows[2]) == (40, 40, 40) and set(rows[2]["images"][0]) == {"bytes", "max_pixels"}
    extra = rows[2]["extra_info"]
    assert (extra["index"], extra["split"], extra["id"]) == (2, "train", "train-2")
    stored = read_stored(extra["mmrl"])
    assert (stored.task, stored.metric, stored.case.answer) == ("peers/shade", "peers/exact", [2, "dark"])
    assert stored.verifiers == {"peers/exact": 1.0, "peers/long": 0.25} and stored.case.media == ()


def test_easyr1_s_and_swift_s_rows(tmp_path):
    row = rows_of("easyr1", tmp_path / "a.parquet", n=2)[1]
    assert row["prompt"] == "Be brief.\n\n<image>How dark so?" and read_stored(row["answer"]).case.answer == [1, "dark"]
    row = rows_of("swift", tmp_path / "b.parquet", n=2)[1]
    assert row["messages"][1] == {"role": "user", "content": "<image>How dark so?"} and pixel(row) == (20, 20, 20)
    assert read_stored(row["mmrl"]).case.answer == [1, "dark"]


def test_images_are_stored_for_verifiers_that_read_them(tmp_path):
    rows = rows_of("verl", tmp_path / "a.parquet", "peers/seen", n=2)
    assert [verl.compute_score("", "", "", row["extra_info"])["score"] for row in rows] == [1.0, 1.0]


def test_jpegs_keep_their_bytes_unless_they_lie_on_their_side(tmp_path):
    from mmrl_interop.rows import _image, image_bytes
    from PIL import Image

    straight, turned, grey = (tmp_path / f"{name}.jpg" for name in ("straight", "turned", "cmyk"))
    Image.new("RGB", (8, 4), "red").save(straight)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4), "red").save(turned, exif=exif)
    Image.new("CMYK", (8, 4)).save(grey)
    assert image_bytes(_image(straight)) == straight.read_bytes()
    assert _image(str(turned)).size == (4, 8) and _image(grey).mode == "RGB"


@pytest.mark.always
def test_verl_s_scores(tmp_path):
    row, other = rows_of("verl", tmp_path / "a.parquet", n=2)
    call = lambda text, of=row, **more: verl.compute_score("mmrl:peers/shade", text, "", of["extra_info"], **more)  # noqa: E731
    assert call("raise") == {"score": 13.0, "acc": 13.0, "missing": 1.0}, "nothing is known: the middle of 0 to 1 + 0.25 * 100"
    assert call("0") == {"score": 1.25, "acc": 1.0, "missing": 0.0} and call("7") == {"score": 0.25, "acc": 0.0, "missing": 0.0}
    assert call("raise")["score"] == (1.25 + 0.25) / 2 and call("raise", other)["missing"] == 1.0
    assert call("hang", timeout_s=0.2) == {"score": 0.75, "acc": 0.75, "missing": 1.0}
    with pytest.raises(UserError, match="'timeout' is no setting of mmrl's judge: use num_workers, timeout_s"):
        call("0", timeout=1)
    with pytest.raises(UserError, match=r"the row of 'x' has no extra_info\.mmrl: write it with mmrl export TASK --to verl"):
        verl.compute_score("x", "0", "0", {"index": 0})


def test_easyr1_s_scores(tmp_path):
    rows = rows_of("easyr1", tmp_path / "a.parquet", n=2)
    inputs = [
        {"response": text, "response_length": length, "ground_truth": rows[k]["answer"]}
        for k, text, length in ((0, "0", 4), (0, "raise", 1), (0, "1", 8), (1, "1", 2))
    ]
    assert easyr1.compute_score(inputs) == [
        {"overall": 2.0, "accuracy": 1.0, "missing": 0.0},
        {"overall": 2.0, "accuracy": 2.0, "missing": 1.0},
        {"overall": 2.0, "accuracy": 0.0, "missing": 0.0},
        {"overall": 1.5, "accuracy": 1.0, "missing": 0.0},
    ]


def test_swift_s_scores(tmp_path):
    rows = [row["mmrl"] for row in rows_of("swift", tmp_path / "a.parquet", n=2)]
    columns = {"response_token_ids": [[[1, 2]], [[1], [1, 2, 3]], [[1]]], "is_truncated": [False, True, False]}
    assert swift.reward(["0", "3", "raise"], mmrl=[rows[0]] * 3, messages=[], **columns) == [1.5, 1.0, 1.25]
    assert swift.reward(["0", "1"], mmrl=rows) == [1.25, 1.25], "without tokens"
    with pytest.raises(UserError, match="the data set has no column mmrl"):
        swift.reward(["0"], solution=["0"])


def test_a_cut_off_completion_says_so(tmp_path):
    row = rows_of("swift", tmp_path / "a.parquet", n=1)[0]["mmrl"]
    assert read_stored(row).completed("0", truncated=True).status is mmrl.Status.TRUNCATED_LENGTH
    assert read_stored(row).completed("0", tokens=5).rollout.length == 5


def test_stand_ins_are_means_of_what_is_known(tmp_path):
    here, there = (row["mmrl"] for row in rows_of("swift", tmp_path / "a.parquet", n=2))
    known, missing = (lambda value: Score(value)), Score(None, {}, "it hung")
    means = scoring.StandIns()
    assert means.fill([here, here, there], [missing, missing, missing]) == [13.0, 13.0, 13.0]
    assert means.fill([here, here, there], [known(1.0), missing, missing]) == [1.0, 1.0, 1.0]
    assert means.fill([there, here, there], [known(0.0), missing, missing]) == [0.0, 1.0, 0.0]
    assert means.fill([here], [known(0.5)]) == [0.5] and means.fill([here], [missing]) == [0.75]


def test_workers_are_shared_by_all_calls(tmp_path):
    rows = [row["mmrl"] for row in rows_of("swift", tmp_path / "a.parquet", n=3)]
    assert len({id(scoring.scoring_of(row, {})) for row in rows}) == 1
    assert scoring.scoring_of(rows[0], {"num_workers": 2}) is not scoring.scoring_of(rows[0], {})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["peers/shade", "a.parquet", "--to", "trlx"], "--to 'trlx' is unknown: choose one of easyr1, swift, verl"),
        (["peers/shade", "a.csv", "--to", "verl"], "a.csv: the file is written as Parquet: name it .parquet"),
        (["peers/shade", "there.parquet", "--to", "verl"], "there.parquet exists: name another file, or give --overwrite"),
        (
            ["peers/guess", "a.parquet", "--to", "easyr1"],
            "task 'peers/guess' has environments, which easyr1 can't play: give --first-turn",
        ),
        (
            ["robotics/pick", "a.parquet", "--to", "verl"],
            "task 'robotics/pick' acts in a simulator, and its prompts have no text",
        ),
        (
            ["peers/exam", "a.parquet", "--to", "swift", "--split", "test"],
            "task 'peers/exam': its split 'test' is only for evaluation: train on another",
        ),
        (["peers/shade", "a.parquet", "--to", "verl", "--split", "dev"], "task 'peers/shade' has no split 'dev'"),
        (["peers/shade", "a.parquet", "--to", "verl", "--frame", "cm"], "frame = 'cm' is unknown"),
        (
            ["peers/places", "a.parquet", "--to", "verl"],
            "prompt '0' of task 'peers/places': its text contains <image>, which stands for",
        ),
        (
            ["peers/talk", "a.parquet", "--to", "easyr1"],
            "prompt '0' of task 'peers/talk': its messages are a conversation, and EasyR1's",
        ),
        (
            ["peers/clip", "a.parquet", "--to", "swift"],
            "prompt 'a' of task 'peers/clip': its video is a selection of frames (fps)",
        ),
        (["peers/secret", "a.parquet", "--to", "verl"], "the answer or meta of a prompt can't be written as JSON"),
        (["peers/media", "a.parquet", "--to", "verl"], "prompt '1' of task 'peers/media' has other media than the first prompt"),
    ],
)
def test_what_a_file_can_not_hold_is_one_line_and_no_file(tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    Path("there.parquet").write_text("mine")
    done = CliRunner().invoke(main, ["export", *args])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mmrl: {message}") and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.parquet"] and Path("there.parquet").read_text() == "mine"


def test_the_command_says_what_it_wrote_and_how_to_score_it(tmp_path):
    file = tmp_path / "new" / "a.parquet"
    done = CliRunner().invoke(main, ["export", "peers/guess", str(file), "--to", "verl", "--first-turn", "-n", "4"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"{file}: 4 rows of peers/guess, split train, for verl\nits run needs: {FORMS['verl']}\n"
    assert CliRunner().invoke(main, ["export", "peers/shade", str(file), "--to", "swift", "--overwrite"]).exit_code == 0
    assert len(parquet.read_table(file)) == 10


def test_videos_in_files_keep_their_options(tmp_path):
    rows = rows_of("verl", tmp_path / "a.parquet", "peers/clip")
    assert rows[0]["videos"] == [{"video": "a.mp4", "fps": 2.0}] and "images" not in rows[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "what a row stores for mmrl is not JSON"),
        ('{"task": "a"}', "what a row stores for mmrl lacks one of task, metric, verifiers, verifier_options, case"),
        (
            '{"task": "a", "metric": "b", "verifiers": {}, "verifier_options": {}, "case": {"answer": 1}}',
            "a row of task 'a' has no 'completion'",
        ),
    ],
)
def test_damaged_rows_are_one_line(text, message):
    with pytest.raises(UserError, match=message):
        read_stored(text)


# -- by the peers' own code ------------------------------------------------------------------------------------------------


COMPLETIONS = [[0, "0"], [1, "1"], [1, "7"], [1, "raise"], [2, "2"]]


@pytest.mark.slow
def test_verl_reads_the_rows_and_its_manager_scores_them(tmp_path, folder, by_peer):
    file = tmp_path / "a.parquet"
    export("peers/wide", file, "verl", n=3, model=str(folder), max_pixels=6272)
    found = by_peer("verl", "verl_rewards.py", file, folder, told=COMPLETIONS)
    with mmrl.open_task("peers/wide", model=str(folder), max_pixels=6272) as task:
        seen = [list(map(list, task.case(prompt, "").model_sizes)) for prompt in task.prompts()][:3]
    assert [row["sizes"] for row in found["rows"]] == seen == [[[112, 56]]] * 3, "what cases say that the model sees"
    assert found["rows"][2]["parts"] == [["image", "text"]] and "How dark so so?" in found["rows"][2]["text"]
    values = [row["reward_score"] for row in found["rewards"]]
    assert [values[k] for k in (0, 1, 2, 4)] == [1.0, 1.0, 0.0, 1.0]
    assert values[3] in (0.0, 0.5, 1.0, pytest.approx(2 / 3), pytest.approx(0.75)), "scored beside the others, in any order"
    assert [row["reward_extra_info"]["missing"] for row in found["rewards"]] == [0.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.slow
def test_swift_reads_the_rows_and_scores_them(tmp_path, by_peer):
    file = tmp_path / "a.parquet"
    export("peers/shade", file, "swift", n=3)
    external = subprocess.run(
        [sys.executable, "-m", "mmrl_interop.swift"], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = by_peer("swift", "swift_rewards.py", file, external, told=COMPLETIONS)
    assert found["rows"][2]["messages"][1] == {"role": "user", "content": "<image>How dark so so?"}
    assert found["rows"][2]["sizes"] == [[56, 56]]
    assert found["rewards"] == [1.25, 1.25, 0.25, 0.75, 1.25], "the stand-in is the mean of its group"


@pytest.mark.slow
def test_easyr1_reads_the_rows_and_its_manager_scores_them(tmp_path, folder, by_peer):
    checkout = os.environ.get("EASYR1", "")
    if not Path(checkout, "verl", "workers", "reward", "function.py").exists():
        pytest.skip("EasyR1 is on no package index: set EASYR1 to a checkout of it")
    file = tmp_path / "a.parquet"
    export("peers/shade", file, "easyr1", n=3)
    reward = subprocess.run(
        [sys.executable, "-m", "mmrl_interop.easyr1"], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = by_peer("verl", "easyr1_rewards.py", file, folder, reward, told=COMPLETIONS, PYTHONPATH=checkout)
    assert found["rows"][2]["messages"][0]["content"] == [
        {"type": "text", "text": "Be brief.\n\n"},
        {"type": "image"},
        {"type": "text", "text": "How dark so so?"},
    ]
    assert found["metrics"]["missing"] == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert found["metrics"]["accuracy"][:3] == [1.0, 1.0, 0.0] and found["rewards"] == pytest.approx(found["metrics"]["overall"])
    assert found["rewards"][3] == pytest.approx((found["rewards"][1] + found["rewards"][2]) / 2)
