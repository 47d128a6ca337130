"""benchmarks/same_figures.py: what it takes for a difference, and the names of version 0.1."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import same_figures

OLD = {"loss": 1.5, "zero_spread_share": 0.5, "task/boxes/zero_spread_share": 0.25, "kl_weight": 0.1, "ahead/process": 3.0}
NEW = {"loss": 1.5, "zero_std_share": 0.5, "task/boxes/zero_std_share": 0.25, "kl_coef": 0.1, "async/process": 4.0}


@pytest.fixture
def differences(tmp_path, capsys):
    """The differences between two rows of metrics."""

    def compare(old, new, renamed=None):
        files = [tmp_path / name for name in ("old.json", "new.json", "renamed.json")]
        for file, metrics in zip(files, (old, new), strict=False):
            file.write_text(json.dumps({"run.toml": [{"step": 1, "metrics": metrics}]}))
        files[2].write_text(json.dumps(renamed or {}))
        code = same_figures.compare(files[0], files[1], "", files[2])
        found = json.loads(capsys.readouterr().out)
        assert code == bool(found["different"])
        return found["different"]

    return compare


def test_a_recording_of_version_0_1_is_compared_by_its_new_names(differences):
    assert differences(OLD, NEW) == []
    assert differences(OLD, OLD) == [] and differences(NEW, NEW) == []


def test_what_differs_under_a_new_name_is_told(differences):
    (found,) = differences(OLD, NEW | {"task/boxes/zero_std_share": 0.5})
    assert found == {"run": "run.toml", "row": 0, "key": "metrics.task/boxes/zero_spread_share", "old": 0.25, "new": 0.5}
    (found,) = differences(OLD, {key: value for key, value in NEW.items() if key != "kl_coef"})
    assert found["key"] == "metrics.kl_weight" and found["new"] == same_figures.ABSENT


def test_further_names_can_be_given(differences):
    assert differences({"a": 1, "b": 2}, {"c": 1}, {"a": "c", "b": None}) == []
    assert [one["key"] for one in differences({"a": 1}, {"c": 1})] == ["metrics.a", "metrics.c"]
