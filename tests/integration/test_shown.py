"""What a completion draws reaches the run folder and the report."""

import json

import pytest
from PIL import Image

import runs
from mmrl.api.errors import PluginError
from mmrl.ui.report.report import write_report

DRAWS = '''
from PIL import Image
from mmrl import Overlay, Prompt, Task, TaskSpec, TrackerSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="draws/it", target="draws:Draws", verifiers={"draws/length": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="draws/length", target="draws:length", graded=True)]

@hookimpl
def mmrl_trackers():
    return [TrackerSpec(id="draws/kept", target="draws:Kept")]

class Kept:
    """Writes down of each table the step, its rows and the size of its first picture."""
    def start(self, *, name, folder, config, project, step):
        self.file = folder / "tables"
    def log(self, step, metrics): ...
    def finish(self, status): ...
    def rollouts(self, step, rows):
        size = Image.open(rows[0]["image"]).size
        with open(self.file, "a") as file:
            file.write(f"{step} {len(rows)} {size[0]}\\n")

class Draws(Task):
    """Draws how long a completion is."""
    def __init__(self, fails: str = ""):
        self.fails = fails
    def prompts(self, split, seed):
        picture = Image.new("RGB", (60, 40), "black")
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"Say {i}.", picture)], answer=str(i)) for i in range(4)]
    def overlays(self, prompt, completion):
        if self.fails == "overlays":
            raise ValueError("no pen")
        said = Overlay(kind="box", coordinates=(0, 0, 1 / (1 + len(completion)), 1), source="said", label=completion)
        return [Overlay(kind="point", coordinates=(0.5, 0.5), source="true"), *([said] if completion else [])]
    def draw_completion(self, prompt, completion):
        if self.fails == "draw_completion":
            raise ValueError("no paper")
        return Image.new("RGB", (40, 20 + len(completion)), (200, 30, 30)) if len(completion) % 2 else None

def length(case):
    return min(1.0, len(case.completion) / 40)
'''


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "draws.py").write_text(DRAWS)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "draws.py"))
    monkeypatch.delitem(__import__("sys").modules, "draws", raising=False)
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-3}
    return lambda **options: runs.toy_config(
        tmp_path / "runs", tasks=[{"id": "draws/it", "options": options}], stages=[stage], evaluate={"num_prompts": 0}
    )


def test_trackers_get_the_completions_that_are_recorded(config):
    def recorded(every):
        sections = {"record": {"rollouts_every": every, "rollouts": 4, "trackers": ["draws/kept"]}, "name": f"every-{every}"}
        path = runs.run(config().model_validate({**config().model_dump(), **sections})).path
        return (path / "tables").read_text().splitlines() if (path / "tables").exists() else []

    (line,) = recorded(1)
    step, number, width = map(int, line.split())
    assert (step, number) == (1, 4) and width in (40, 60), "the drawing, or the prompt's picture where there is none"
    assert recorded(0) == []


def test_what_completions_draw_is_kept_and_shown(config):
    folder = runs.run(config())
    rows = [json.loads(line) for line in (folder.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    drawn = [row for row in rows if "drawing" in row]
    assert 0 < len(drawn) < len(rows)
    for row in rows:
        assert ("drawing" in row) == bool(len(row["completion"]) % 2)
    for row in drawn:
        with Image.open(folder.path / "rollouts" / row["drawing"]) as picture:
            assert picture.size == (40, 20 + len(row["completion"])) and picture.getpixel((5, 5)) == (200, 30, 30)
    page = write_report(folder.path).read_text()
    assert page.count('<div class="pictures">') >= 1 and "data:image/png;base64," in page


def test_overlays_of_completions_are_kept_and_drawn(config):
    folder = runs.run(config())
    rows = [json.loads(line) for line in (folder.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    spoke = [row for row in rows if row["completion"]]
    assert spoke and all(row["overlays"][0] == {"kind": "point", "source": "true", "coordinates": [0.5, 0.5]} for row in rows)
    for row in spoke:
        width = round(1 / (1 + len(row["completion"])), 5)
        assert row["overlays"][1:] == [
            {"kind": "box", "source": "said", "coordinates": [0.0, 0.0, width, 1.0], "label": row["completion"][:80]}
        ]
    page = write_report(folder.path).read_text()
    assert page.count("<use ") >= 1 and page.count('class="legend of-marks"') == 1


@pytest.mark.parametrize(("fails", "why"), [("draw_completion", "no paper"), ("overlays", "no pen")])
def test_a_task_that_can_not_draw_is_named(config, fails, why):
    with pytest.raises(PluginError, match=rf"task 'draws/it': {fails}\(\) raised ValueError: {why}"):
        runs.run(config(fails=fails))
