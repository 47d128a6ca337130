"""`mmrl mix`: reused and resumed pilots, the table, the recommendation and mix.json, with a stand-in for training."""

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mmrl.api.errors import UserError
from mmrl.config.load import load_config, to_dict
from mmrl.run_folder.writer import RunFolder
from mmrl.ui.cli import main

FILE = """
name = "two"
runs_dir = "RUNS"
policy = { model = "tiny:qwen2_5_vl" }
tasks = [{ id = "t/a" }, { id = "t/b", name = "b c" }, { id = "t/d", weight = 0 }]
stages = [{ kind = "sft", steps = 3 }, { kind = "rl", steps = 10, learning_rate = 1e-5 }]
evaluate = { num_prompts = 10 }
"""


class Stub:
    """A stand-in for training: each task's held-out value is a function of the shares; it records the trained pilots."""

    def __init__(self):
        self.trained = []
        self.value = lambda a, b: 0.7 - (a - 0.62) ** 2  # highest at 62% of the first
        self.stop_at = None

    def train(self, config, progress, *, resume=False, overwrite=False):
        path = Path(config.runs_dir) / config.name
        self.trained.append((config.name, resume))
        assert not overwrite and resume == path.exists()
        folder = RunFolder.open(path, to_dict(config)) if resume else RunFolder.create(path, to_dict(config), config.seed)
        progress.stage_started(1, 2, config.stages[1], 0)
        progress.note("told by every pilot")
        if len(self.trained) == self.stop_at:
            raise KeyboardInterrupt
        progress.step_finished(1, {"reward/mean": 0.5})
        progress.evaluated(1, [])
        a, b = (config.stages[1].tasks[label] for label in ("t/a", "b c"))
        figures = {}
        for task, extra in (("t/a", 0.1), ("b c", -0.1), ("t/d", 0.0)):
            value = self.value(a, b) + extra
            figures[task] = {
                "metric": "accuracy",
                "value": value,
                "low": value - 0.06,
                "high": value + 0.06,
                "n": 40,
                "extra": {},
            }
        folder.summary({"before": {}, "last": figures})
        return folder


@pytest.fixture
def stub(monkeypatch):
    found = Stub()
    monkeypatch.setitem(sys.modules, "mmrl.train.start", SimpleNamespace(train=found.train))
    monkeypatch.setitem(sys.modules, "mmrl.train.resolve", SimpleNamespace(with_algorithm_defaults=lambda config: config))
    monkeypatch.setattr("mmrl.ui.cli.terminal.silence_libraries", lambda: None)
    monkeypatch.setattr("mmrl.run_folder.manifest.manifest", lambda seed: {})
    return found


@pytest.fixture
def mix(stub, tmp_path, monkeypatch):
    """Run the command in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("MMRL_PLUGINS", "")
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "run.toml").write_text(FILE.replace("RUNS", str(tmp_path / "runs")))

    def mix(*args):
        done = CliRunner().invoke(main, ["mix", str(tmp_path / "run.toml"), *args])
        return done.exit_code, done.stdout, done.stderr

    return mix


def test_the_optimum_is_recommended_and_can_be_pasted(mix, stub, tmp_path):
    code, out, err = mix()
    assert code == 0 and stub.trained == [(f"two-mix-{i:02d}", False) for i in range(1, 7)]
    assert "\nrecommended  t/a 62%, b c 38%\n             predicted: 0.700; best measured: " in out
    uniform = 0.7 - 0.12**2
    assert f"; uniform: {uniform:.3f}\n" in out
    assert '\n\n    tasks = { "t/a" = 0.62, "b c" = 0.38 }\n' in out
    table = out.partition("surrogate ")[0].splitlines()
    assert next(line for line in table if " 2  only t/a" in line).split()[3:9] == ["100%", "0.656", "0%", "0.456", "–", "0.556"]
    # each task's half width is 0.06: 0.06 x sqrt(3) / 3
    assert "a mean is accurate to about ±0.035 (95%, 120 prompts)" in out
    config = load_config(tmp_path / "run.toml", ["stages.1." + 'tasks={ "t/a" = 0.62, "b c" = 0.38 }'])
    assert config.weights(config.stages[1]) == {"t/a": 0.62, "b c": 0.38}
    assert f'mmrl train {tmp_path}/run.toml --set \'stages.1.tasks={{ "t/a" = 0.62, "b c" = 0.38 }}\'' in out
    assert err.count("note: told by every pilot") == 1 and err.count("\npilot ") == 5 + (not err.startswith("pilot"))


def test_mix_json_holds_all_of_it(mix, tmp_path):
    code, out, _ = mix("--json", "--steps", "4", "--set", "seed=5")
    data = json.loads(out)
    assert code == 0 and json.loads((tmp_path / "runs" / "two-mix" / "mix.json").read_text()) == data
    assert (data["run"], data["stage"], data["steps"], data["seed"]) == ("two", 1, 4, 5)
    assert len(data["pilots"]) == 6 and data["pilots"][1] == {
        "name": "two-mix-02",
        "kind": "only t/a",
        "shares": {"t/a": 1.0, "b c": 0.0},
        "value": pytest.approx(0.5556),
        "left_out": pytest.approx(0.5556, abs=0.01),
        "tasks": {
            "t/a": {"metric": "accuracy", "value": pytest.approx(0.6556), "low": pytest.approx(0.5956)}
            | {"high": pytest.approx(0.7156), "n": 40},
            "b c": {"metric": "accuracy", "value": pytest.approx(0.4556), "low": pytest.approx(0.3956)}
            | {"high": pytest.approx(0.5156), "n": 40},
            "t/d": {"metric": "accuracy", "value": pytest.approx(0.5556), "low": pytest.approx(0.4956)}
            | {"high": pytest.approx(0.6156), "n": 40},
        },
    }
    assert data["surrogate"]["used"] and data["surrogate"]["error"] < 0.01 < data["surrogate"]["error_of_mean"]
    assert data["recommended"] == {
        "shares": {"t/a": pytest.approx(0.62, abs=0.0101), "b c": pytest.approx(0.38, abs=0.0101)},
        "value": pytest.approx(0.7, abs=1e-3),
        "pilot": None,
        "toml": data["recommended"]["toml"],
    }
    assert tomllib.loads(data["recommended"]["toml"])["tasks"] == data["recommended"]["shares"]


def test_the_noise_of_an_unknown_interval_is_unknown(mix, tmp_path):
    assert "a mean is accurate to about ±0.035 (95%, 120 prompts)" in mix("--pilots", "3")[1]
    for path in (tmp_path / "runs" / "two-mix").glob("*/summary.json"):
        summary = json.loads(path.read_text())
        summary["last"]["t/d"] |= {"low": None, "high": None}
        path.write_text(json.dumps(summary))
    assert "a mean has an unknown interval (95%, 120 prompts)" in mix("--pilots", "3")[1]


def test_pilots_are_short_runs_in_a_folder_of_their_own(mix, tmp_path):
    mix("--pilots", "3", "--out", str(tmp_path / "else where"), "--set", "stages.1.group_size=4")
    assert sorted(p.name for p in (tmp_path / "else where").iterdir()) == ["mix.json", *(f"two-mix-0{i}" for i in (1, 2, 3))]
    found = load_config(tmp_path / "else where" / "two-mix-03" / "config.toml")
    assert (found.stages[0].steps, found.stages[1].steps, found.stages[1].group_size) == (3, 3, 4), "a quarter of 10, rounded up"
    assert found.stages[1].tasks == {"t/a": 0.0, "b c": 1.0} and [t.label for t in found.tasks] == ["t/a", "b c", "t/d"]
    assert not (tmp_path / "runs").exists()


def test_finished_pilots_are_used_again_and_more_are_added(mix, stub):
    _, first, _ = mix("--pilots", "4")
    stub.trained.clear()
    _, again, err = mix("--pilots", "4")
    assert stub.trained == [] and again == first and err.count(" reused ") == 4
    mix("--pilots", "6")
    assert stub.trained == [("two-mix-05", False), ("two-mix-06", False)]


def test_an_interrupted_search_goes_on_with_the_pilot_it_stopped_in(mix, stub):
    stub.stop_at = 3
    code, out, err = mix("--pilots", "4")
    assert code == 130 and not out and "stopped in pilot 3 of 4; the same command resumes here" in err
    code, out, _ = mix("--pilots", "4")
    assert code == 0 and "recommended" in out
    assert stub.trained == [
        ("two-mix-01", False),
        ("two-mix-02", False),
        ("two-mix-03", False),
        ("two-mix-03", True),
        ("two-mix-04", False),
    ]


def test_the_best_pilot_is_recommended_where_the_surrogate_knows_nothing(mix, stub):
    """Scores that depend on the shares' last digit, which no quadratic fits."""
    jump = [0.3, 0.5, 0.45, 0.9, 0.2, 0.55]
    stub.value = lambda a, b: jump[len(stub.trained) - 1]
    code, out, _ = mix()
    assert code == 0 and ": the fit is no better, so the best pilot is recommended\n" in out
    shares = json.loads(mix("--json")[1])["pilots"][3]["shares"]
    assert f"\nrecommended  t/a {shares['t/a']:.0%}, b c {shares['b c']:.0%}\n" in out
    assert "             measured: 0.900 (pilot 4, random); uniform: 0.300\n" in out and "predicted:" not in out
    assert json.loads(mix("--json")[1])["recommended"]["pilot"] == "two-mix-04"


def test_equal_pilots_are_said_to_be_equal(mix, stub):
    stub.value = lambda a, b: 0.25
    _, out, _ = mix()
    assert "all pilots scored the same, so there is nothing to fit: the first is recommended" in out
    assert "\nrecommended  t/a 50%, b c 50%\n             measured: 0.250 (pilot 1, uniform)\n" in out


@pytest.mark.slow
def test_the_seed_decides_the_random_mixtures_only(mix, tmp_path):
    def shares(out, *args):
        return [list(p["shares"].values()) for p in json.loads(mix("--json", "--out", str(tmp_path / out), *args)[1])["pilots"]]

    a, b, c = shares("a"), shares("b", "--seed", "0"), shares("c", "--seed", "1")
    assert shares("d", "--set", "seed=1") == c and shares("e", "--set", "seed=1", "--seed", "0") == a
    assert a == b and a[:3] == c[:3] and a[3:] != c[3:]


def lines(err):
    return [line for line in err.splitlines() if line.startswith("mmrl: ")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--set", "tasks.1.weight=0"],
            "mmrl: a mixture needs at least two tasks with a weight, but stages.1 of two draws from t/a",
        ),
        (["--set", "evaluate.num_prompts=0"], "mmrl: evaluate.num_prompts = 0 gives no held-out scores"),
        (["--set", 'stages=[{kind="sft", steps=1}]'], "mmrl: two has no rl stage"),
        (["--pilots", "2"], "mmrl: Invalid value for '--pilots': 2 is not in the range x>=3."),
        (["--set", "task=1"], "unknown key 'task': did you mean 'tasks'?"),
    ],
)
def test_what_can_not_be_searched_is_refused_in_one_line(mix, stub, args, message):
    code, out, err = mix(*args)
    assert code == 2 and not out and stub.trained == []
    assert len(err.splitlines()) == 1 and message in err


def test_pilots_with_other_settings_are_neither_used_nor_removed(mix, stub, tmp_path):
    mix("--pilots", "3")
    stub.trained.clear()
    code, _, err = mix("--pilots", "3", "--set", "stages.1.learning_rate=1e-4")
    assert code == 2 and stub.trained == [] and len(err.splitlines()) == 1
    path = tmp_path / "runs" / "two-mix" / "two-mix-01"
    assert f"mmrl: {path} was made with other settings: stages.1.learning_rate = 1e-05, now 0.0001; set them back" in err
    assert err.endswith("or give another --out\n")
    assert (path / "summary.json").exists()
    code, out, _ = mix("--pilots", "3", "--set", "judge.num_workers=2")
    assert code == 0 and stub.trained == [] and "recommended" in out, "what doesn't change what was learned may differ"


def test_other_things_in_the_way_are_named(mix, stub, tmp_path):
    blocked = tmp_path / "runs" / "two-mix" / "two-mix-02"
    blocked.mkdir(parents=True)
    code, _, err = mix()
    assert code == 2 and f"{blocked} is not a run folder, and a pilot needs its place" in err and stub.trained == []
    mix("--out", str(tmp_path / "other"))
    code, _, err = mix("--out", str(tmp_path / "other" / "two-mix-01"))
    assert code == 2 and "is itself a run folder" in err
    mine = tmp_path / "mine"
    mine.mkdir()
    for text in ("3", "{}", "not JSON"):
        (mine / "mix.json").write_text(text)
        code, _, err = mix("--out", str(mine))
        assert code == 2 and f"{mine / 'mix.json'} is there already, and no search of mmrl mix wrote it" in err
        assert (mine / "mix.json").read_text() == text


def test_a_pilot_without_figures_is_named(mix, tmp_path):
    mix("--pilots", "3")
    path = tmp_path / "runs" / "two-mix" / "two-mix-02" / "summary.json"
    for damaged in ("{", "{}", '{"last": {}}', '{"last": {"t/a": {"value": null}}}', "[]"):
        path.write_text(damaged)
        code, _, err = mix("--pilots", "3")
        assert code == 2 and lines(err) == [
            f"mmrl: {path} has no held-out figures: remove that folder, and the pilot is trained again"
        ]


def test_a_pilot_that_fails_is_named(mix, stub):
    def broken(*args, **options):
        raise UserError("the judge is out")

    sys.modules["mmrl.train.start"].train = broken
    code, _, err = mix()
    assert code == 2 and lines(err) == ["mmrl: pilot two-mix-01: the judge is out"]


@pytest.mark.slow
def test_a_search_for_real(tmp_path, monkeypatch):
    """Three pilots of two steps of an algorithm with settings; a second call reuses all of them."""
    from runs import TOY, rows

    monkeypatch.setenv("MMRL_PLUGINS", "")
    (tmp_path / "run.toml").write_text(f"""
name = "colours"
runs_dir = "{tmp_path}"
policy = {{ model = "tiny:qwen2_5_vl:hidden=32,layers=1" }}
tasks = [{{ id = "toy/colour" }}, {{ id = "toy/colour", name = "two", options = {{ colours = 2 }} }}]
stages = [{{ kind = "rl", steps = 2, algorithm = "dapo", prompts_per_step = 2, group_size = 2 }}]
generate = {{ max_tokens = 4 }}
evaluate = {{ num_prompts = 2 }}
train = {{ threads = 1 }}
""")
    outputs = []
    for _ in "ab":
        args = ["--plugin", TOY, "mix", str(tmp_path / "run.toml"), "--pilots", "3", "--steps", "2", "--json"]
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 0, done.output
        outputs.append(json.loads(done.stdout))
    assert outputs[0] == outputs[1] and done.stderr.count(" reused ") == 3
    for pilot, expected in zip(outputs[0]["pilots"], ({"toy/colour", "two"}, {"toy/colour"}, {"two"}), strict=True):
        folder = tmp_path / "colours-mix" / pilot["name"]
        found = load_config(folder / "config.toml")
        assert found.stages[0].dynamic_sampling == 3, "dapo's own"
        assert set(found.weights(found.stages[0])) == expected and set(pilot["tasks"]) == {"toy/colour", "two"}
        assert len([row for row in rows(folder) if "metrics" in row]) == 2
        last = json.loads((folder / "summary.json").read_text())["last"]
        assert pilot["value"] == sum(f["value"] for f in last.values()) / 2
