"""Four families of tasks in one run: each has its own prompts, rewards, curve and row of the report."""

import json

import runs
from mmrl.ui.report.report import write_report

TASKS = {
    "boxes": {"id": "grounding/refer", "options": {"size": 56, "objects": 1}},
    "puzzle": {"id": "jigsaw/full", "options": {"rows": 2, "columns": 1, "size": 56}},
    "turned": {"id": "ssl/rotation", "options": {"size": 56}},
    "shapes": {"id": "vqa/shapes", "options": {"size": 56}},
}


def test_a_mixture_of_four_families_has_a_curve_and_a_table_for_each(tmp_path):
    stage = {"kind": "rl", "steps": 3, "prompts_per_step": 12, "group_size": 2, "learning_rate": 1e-3}
    config = runs.toy_config(
        tmp_path,
        tasks=[{"name": name, **task} for name, task in TASKS.items()],
        stages=[{"kind": "sft", "steps": 2, "batch_size": 8, "learning_rate": 1e-3}, stage],
        generate={"max_tokens": 8},
    )
    folder = runs.run(config)
    rows = [row["metrics"] for row in runs.rows(folder) if row.get("stage") == "rl" and "metrics" in row]
    for name in TASKS:
        assert any(f"task/{name}/reward" in row for row in rows), name
    summary = json.loads((folder.path / "summary.json").read_text())
    assert {name: figure["n"] for name, figure in summary["last"].items()} == dict.fromkeys(TASKS, 4)
    assert summary["last"]["boxes"]["metric"] == "grounding/iou" and summary["last"]["puzzle"]["metric"] == "accuracy"
    page = write_report(folder.path).read_text()
    assert all(page.count(name) > 2 for name in TASKS)
