"""One run logged by a real tracker without a network, and read back by the tracker's own means. Runs by a Python that has it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from pathlib import Path

from mmrl.config.load import parse_config
from mmrl.run_folder.writer import RunFolder
from mmrl.train.trackers import Trackers

RUN = {
    "name": "digits",
    "policy": {"model": "tiny:qwen2_5_vl"},
    "tasks": [{"id": "zoo/animal"}],
    "stages": [{"kind": "rl", "steps": 4}],
}


def rows() -> list[dict]:
    """Two rollouts with pictures of one and of two colours, and a failed one without."""
    from PIL import Image

    def row(answer, completion, colours, value):
        images = [{"type": "image", "image": Image.new("RGB", (6, 4), colour)} for colour in colours]
        content = [*images, {"type": "text", "text": "Which?"}]
        score = {"value": value, "parts": {} if value is None else {"zoo/exact": value}, "status": "ok", "detail": ""}
        return {
            "task": "zoo/animal",
            "prompt_id": "a",
            "group": 0,
            "messages": [{"role": "user", "content": content}],
            "answer": answer,
            "completion": completion,
            "source": "policy",
            "status": "finished",
            "score": score,
            "reward": value,
            "advantage": None if value is None else value - 0.5,
        }

    return [row("cat", "a cat", ["red"], 1.0), row([1, 2], "<b>3</b> | x", ["lime", "blue"], 0.0), row("dog", "", [], None)]


def main(id: str, folder: str) -> None:
    path = Path(folder, "runs", "digits")
    (path / "rollouts" / "media").mkdir(parents=True)
    run = RunFolder(path)
    notes: list[str] = []
    trackers = Trackers(parse_config({**RUN, "record": {"trackers": [id], "project": "mine"}}), run, notes.append)
    trackers.start(0)
    for step in (1, 2):
        run.rollouts(step, rows())
        trackers.log(step, {"loss": 1 / step})
        trackers.rollouts(step)
    trackers.finish("finished")
    assert notes == [], notes
    print(json.dumps(globals()[f"read_{id}"](path)))


def read_wandb(path: Path) -> dict:
    """From the artifacts of an offline run, which are found by their hashes."""
    staged = [file.read_bytes() for file in sorted(Path(os.environ["WANDB_DATA_DIR"]).rglob("staging/*"))]
    found = {hashlib.sha256(content).hexdigest(): content for content in staged}
    tables = [json.loads(content) for content in staged if content.startswith(b'{"')]
    plain = [_plain(t["columns"], t["data"], lambda cell: io.BytesIO(found[cell["sha256"]])) for t in tables]
    return {"tables": plain[::2]}  # wandb stages each twice


def read_trackio(path: Path) -> dict:
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import MEDIA_DIR

    logs = [row["rollouts"]["_value"] for row in SQLiteStorage.get_logs("mine", "digits") if "rollouts" in row]
    tables = [(list(rows[0]), [list(row.values()) for row in rows]) for rows in logs]
    return {"tables": [_plain(columns, data, lambda cell: Path(MEDIA_DIR) / cell["file_path"]) for columns, data in tables]}


def read_mlflow(path: Path) -> dict:
    import mlflow

    id = (path / "mlflow" / "run-id").read_text()
    root = Path(mlflow.artifacts.download_artifacts(run_id=id, artifact_path=""))
    tables = [json.loads(table.read_text()) for table in sorted(root.glob("rollouts/step-*.json"))]
    return {"tables": [_plain(t["columns"], t["data"], lambda cell: root / cell["filepath"]) for t in tables]}


def _plain(columns, data, place) -> list[dict]:
    """The rows, with the colour in the middle of each picture."""
    from PIL import Image

    def cell(value):
        if not isinstance(value, dict):
            return value
        image = Image.open(place(value)).convert("RGB")
        return list(image.getpixel((image.width // 2, image.height // 2)))

    return [dict(zip(columns, map(cell, row), strict=True)) for row in data]


if __name__ == "__main__":
    os.environ |= {"WANDB_DATA_DIR": f"{sys.argv[2]}/wandb"}
    os.environ |= {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": f"{sys.argv[2]}/trackio",
        "HF_HUB_OFFLINE": "1",
    }
    os.environ |= {"MLFLOW_TRACKING_URI": f"sqlite:///{sys.argv[2]}/mlflow.db", "HOME": sys.argv[2]}
    os.chdir(sys.argv[2])
    main(*sys.argv[1:])
