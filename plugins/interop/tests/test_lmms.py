"""Benchmarks of lmms-eval as tasks: lmms-eval itself shows and scores them, and gives the same figures by its own command."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mmrl_interop.lmms_task import LmmsTask
from PIL import Image

import mmrl
from mmrl import EnvironmentFailed, UserError
from mmrl.ui.cli import main

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".peers" / "lmms" / "bin" / "python"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
needs_lmms = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"lmms-eval is not installed in {PYTHON.parents[1]}: make peers"),
]
SAID = ["1", "1", " 2 ", "<think>4?</think>3", "9", "5"]
"""Answers to the six documents, of which 1 to 3 and 5 are right."""


def parquet(path, rows):
    datasets = pytest.importorskip("datasets")
    kinds = {name: datasets.Value("int64" if isinstance(value, int) else "string") for name, value in rows[0].items()}
    datasets.Dataset.from_list(rows, features=datasets.Features({**kinds, "image": datasets.Image()})).to_parquet(path)


def shade(number):
    return Image.new("RGB", (56, 28), (20 * number,) * 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The benchmark with its data."""
    made = tmp_path_factory.mktemp("lmms") / "benchmark"
    shutil.copytree(HERE / "benchmark", made)
    rows = [{"image": shade(i), "question": f"How dark{' so' * i}?", "answer": str(i)} for i in range(6)]
    parquet(made / "rows.parquet", rows)
    parquet(made / "practice.parquet", [{**rows[0], "question": "How light?"}])
    return made


def there(folder, **options):
    given = {"python": str(PYTHON), "environment": {**OFFLINE, "HF_HOME": str(folder / "cache")}, "timeout_s": 20.0}
    return {"task": str(folder / "shades.yaml"), "metric": "macro", **given, **options}


@pytest.fixture(scope="module")
def shades(folder):
    task = LmmsTask(**there(folder))
    yield task
    task.worlds.close()


def answered(task, prompt, said):
    environment = task.environment(prompt)
    try:
        return environment.step(said)
    finally:
        environment.close()


class TestOneBenchmark:
    pytestmark = needs_lmms

    def test_prompts_are_lmms_eval_s(self, shades, folder):
        prompts = shades.prompts("test", 0)
        assert shades.splits == ("test", "train") and (len(prompts), len(shades.prompts("train", 0))) == (6, 1)
        [message] = prompts[2].messages
        assert [part["type"] for part in message["content"]] == ["image", "text"]
        assert prompts[2].images[0].getpixel((0, 0)) == (40,) * 3
        assert prompts[2].text == "How dark so so? Answer with a number." and shades.gold(prompts[2]) == "2"
        other = LmmsTask(**there(folder, model_name="qwen3_vl"))
        assert other.prompts("test", 0)[0].text == "How dark? One digit."
        other.worlds.close()

    def test_an_answer_has_the_metric_of_it_alone(self, shades):
        prompts = shades.prompts("test", 0)
        replies = [answered(shades, prompt, said) for prompt, said in zip(prompts, SAID, strict=True)]
        assert [reply.reward for reply in replies] == [0.0, 100.0, 100.0, 100.0, 0.0, 100.0]
        whole = {"exact": 1.0, "macro": 100.0, "error": 0.0, "return": 100.0, "steps": 1.0}
        assert replies[1].terminated and replies[1].outcome == whole
        assert shades.summarise([(prompt, 0.0) for prompt in prompts]) == {
            "lmms-eval/exact": 4 / 6,
            "lmms-eval/macro": 62.5,  # half of the dark ones, three quarters of the others
            "lmms-eval/error": pytest.approx(2 / 6),
        }
        assert shades.summarise([(mmrl.Prompt(id="another", messages=[]), 0.0)]) == {}

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ("raise", "lmms-eval: ValueError: a bug (rules.py:"),
            ("nothing", "its results have no macro"),
            ("hang", "lmms-eval: TimeoutError: took longer than 20 s"),
        ],
    )
    def test_a_score_that_is_missing_loses_its_answer_alone(self, shades, said, message):
        prompt = shades.prompts("test", 0)[3]
        with pytest.raises(EnvironmentFailed, match=re.escape(message)) as error:
            answered(shades, prompt, said)
        assert "\n" not in str(error.value) and answered(shades, prompt, "3").reward == 100.0

    def test_less_is_better_and_a_number_that_is_none(self, folder):
        task = LmmsTask(**there(folder, metric="error"))
        prompt = task.prompts("test", 0)[3]
        assert [answered(task, prompt, said).reward for said in ("3", "4")] == [0.0, -1.0]
        task.worlds.close()
        task = LmmsTask(**there(folder, metric="exact"))
        with pytest.raises(EnvironmentFailed, match="its reward is nan and no number"):
            answered(task, prompt, "nan")
        task.worlds.close()


class TestItsOwnCommand:
    pytestmark = needs_lmms

    def evaluated(self, folder, model, arguments):
        """The figures of lmms-eval's own command."""
        command = [str(PYTHON), "-m", "lmms_eval", "--model", model, "--model_args", arguments, "--tasks", "shades"]
        more = ["--include_path", str(folder), "--output_path", str(folder / model), "--batch_size", "1"]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **OFFLINE, "HF_HOME": str(folder / "cache")}
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=280, env=environment, cwd=folder)
        assert done.returncode == 0, done.stderr[-3000:]
        [file] = (folder / model).rglob("*_results.json")
        return json.loads(file.read_text())["results"]["shades"]

    def test_the_figures_are_the_same(self, shades, folder):
        theirs = self.evaluated(folder, "dummy", "response=3")
        prompts = list(shades.prompts("test", 0))
        for prompt in prompts:
            answered(shades, prompt, "3")
        ours = shades.summarise([(prompt, 0.0) for prompt in prompts])
        assert {f"lmms-eval/{name}": theirs[f"{name},none"] for name in ("exact", "macro", "error")} == ours
        assert ours["lmms-eval/macro"] == 12.5, "a quarter of the light ones"

    @pytest.mark.exhaustive
    def test_a_run_s_exported_folder_has_the_figures_of_the_run(self, folder, tmp_path, monkeypatch):
        pytest.importorskip("torch")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MMRL_PLUGINS", "interop")
        monkeypatch.delenv("MMRL_PLUGIN_FILES")
        options = there(folder, metric="exact", timeout_s=60.0)
        environment = ", ".join(f'{name} = "{value}"' for name, value in options.pop("environment").items())
        given = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
        (tmp_path / "run.toml").write_text(
            f'name = "zero"\npolicy = {{model = "tiny:qwen2_5_vl:hidden=32,layers=1"}}\n'
            f'tasks = [{{id = "interop/lmms-eval", options = {{{given}, environment = {{{environment}}}}}}}]\n'
            'stages = [{kind = "sft", steps = 40, batch_size = 1, learning_rate = 0.02}]\n'
            "generate = {max_tokens = 4}\nevaluate = {num_prompts = 6}\n"
        )
        for command in (["train", "run.toml"], ["export", "runs/zero", "made"]):
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 0, done.output
        [figure] = json.loads(Path("runs/zero/summary.json").read_text())["last"].values()
        theirs = self.evaluated(folder, "qwen2_5_vl", f"pretrained={tmp_path / 'made'},device=cpu,device_map=cpu")
        assert theirs["exact,none"] == figure["extra"]["lmms-eval/exact"] == pytest.approx(1 / 6), "it learned to say 0"


class TestABundledBenchmark:
    pytestmark = needs_lmms

    @pytest.mark.exhaustive  # a minute
    def test_mmstar_s_rules_on_rows_in_its_form(self, folder):
        kinds = {"category": "math", "l2_category": "geometry", "meta_info": ""}
        asked = "Which is it? Options: A: one, B: two, C: three, D: four"
        rows = [{"index": i, "question": asked, "image": shade(i), "answer": "ABC"[i], **kinds} for i in range(3)]
        parquet(folder / "mmstar.parquet", rows)
        own = {"dataset_path": "parquet", "dataset_kwargs": {"data_files": {"val": str(folder / "mmstar.parquet")}}}
        with pytest.raises(UserError, match="'mmstar' has several metrics: set metric to one of coarse perception, "):
            LmmsTask(**there(folder, task="mmstar", config=own, metric=None))
        options = there(folder, task="mmstar", config=own, metric="average")
        with mmrl.open_task("interop/lmms-eval", options) as task:
            prompts = task.prompts("test")
            assert prompts[0].text.endswith("directly") and task.splits == ("test",)
            episodes = [task.episode(prompt) for prompt in prompts]
            for episode, said in zip(episodes, ("A", "The answer is (B).", "D"), strict=True):
                episode.step(said)
            assert [score.value for score in task.score_episodes(episodes)] == [1.0, 1.0, 0.0]


RUN = """
name = "benchmark"
policy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}
generate = {max_tokens = 4}
evaluate = {num_prompts = 6}
"""


class TestRuns:
    pytestmark = needs_lmms

    def write(self, folder, stage, **options):
        table = re.sub(r'"(\w+)": ', r"\1 = ", json.dumps(there(folder, **options)))
        text = f'{RUN}tasks = [{{id = "interop/lmms-eval", options = {table}}}]\nstages = [{{{stage}}}]\n'
        (folder / "run.toml").write_text(text)
        return str(folder / "run.toml")

    def test_it_is_evaluated(self, folder):
        pytest.importorskip("torch")
        file = self.write(folder, 'kind = "rl", steps = 1')
        done = CliRunner().invoke(main, ["eval", file, "--json"])
        assert done.exit_code == 0, done.stderr
        figure = json.loads(done.stdout)["interop/lmms-eval"]
        assert figure["n"] == 6 and figure["metric"] == "interop/return"
        assert 0 <= figure["extra"]["lmms-eval/macro"] <= 100 and figure["extra"]["failed"] == 0

    @pytest.mark.parametrize("kind", ["rl", "sft"])
    def test_training_refuses_it(self, folder, kind):
        pytest.importorskip("torch")
        done = CliRunner().invoke(main, ["train", self.write(folder, f'kind = "{kind}", steps = 1, split = "test"'), "--dry-run"])
        assert done.exit_code == 2 and done.stderr.count("\n") == 1
        assert "task 'interop/lmms-eval': its split 'test' is only for evaluation: train on train" in done.stderr
        done = CliRunner().invoke(main, ["train", self.write(folder, f'kind = "{kind}", steps = 1'), "--dry-run"])
        assert done.exit_code == 0, "its own training split may be trained on"


BAD = [
    ({"task": "shadse"}, "lmms-eval has no task 'shadse'"),
    ({"task": "mmmu"}, "'mmmu' is a group of lmms-eval's: name one of its tasks"),
    ({"metric": None}, "has several metrics: set metric to one of exact, macro, error"),
    ({"metric": "recall"}, "has no metric 'recall': set metric to one of exact, macro, error"),
    ({"config": {"output_type": "multiple_choice", "doc_to_choice": ["a", "b"]}}, "is of the type 'multiple_choice'"),
    ({"config": {"test_split": "absent"}}, "can't be opened (KeyError: 'absent')"),
    ({"config": {"test_split": None, "validation_split": None}}, "must have valid or test docs"),
    ({"config": {"nonsense": 1}}, "can't be opened (TypeError: "),
    ({"config": {"doc_to_text": "{{ absent }}"}}, "can't be opened (UndefinedError: 'absent' is undefined)"),
    ({"yaml": "task: ["}, "can't be opened (ParserError: "),
    ({"yaml": "task: a\ndoc_to_text: !function absent.text\n"}, "can't be opened ("),
]


class TestBadInput:
    pytestmark = needs_lmms

    @pytest.mark.parametrize(("options", "message"), BAD[:4] + [pytest.param(*b, marks=pytest.mark.exhaustive) for b in BAD[4:]])
    def test_what_can_not_be_opened_is_one_line(self, folder, options, message):
        if text := options.get("yaml"):
            (folder / "bad.yaml").write_text(text)
            options = {"task": str(folder / "bad.yaml")}
        with pytest.raises(UserError) as error:
            LmmsTask(**there(folder, **options))
        assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'lmms-eval is not installed: pip install "lmms-eval>=0.7,<0.8", or set the option python'),
        ({"task": 3}, "task = 3 must be"),
        ({"task": "absent.yaml"}, "task = 'absent.yaml' does not exist: check the path"),
        ({"include": "absent"}, "include = 'absent' does not exist: check the path"),
        ({"config": [1]}, "config = [1] must be"),
        ({"python": "absent"}, "python = 'absent' is no program"),
        ({"timeout_s": 0}, "timeout_s = 0 must be"),
        ({"start_s": "long"}, "start_s = 'long' must be"),
    ],
)
def test_options_that_can_not_be(options, message):
    if not options and subprocess.run([sys.executable, "-c", "import lmms_eval"], capture_output=True).returncode == 0:
        pytest.skip("lmms-eval is installed here")
    with pytest.raises(UserError) as error:
        LmmsTask(**{"task": "mmstar", **options})
    assert message in str(error.value) and "\n" not in str(error.value)
