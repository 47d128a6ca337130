"""The run file of docs/video.md is one, and learns from somebody's own clips."""

import re
from pathlib import Path

import av
import numpy as np

import runs
from mmrl.config import load as configs

PAGE = (Path(__file__).parents[2] / "docs" / "video.md").read_text()
(RUN_FILE,) = re.findall(r"```toml\n(name = .*?)```", PAGE, re.DOTALL)


def clip(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for k in range(12):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), 20 * k, np.uint8), format="rgb24")))
        container.mux(stream.encode())


def test_the_run_file_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clips").mkdir()
    names = [f"clip{k}" for k in range(6)]
    for name in names:
        clip(tmp_path / "clips" / f"{name}.mp4")
    (tmp_path / "table.txt").write_text("".join(f"{name} 0.5 2.0##it gets lighter.\n" for name in names))
    (tmp_path / "run.toml").write_text(RUN_FILE)
    folder = runs.run(configs.load_config(tmp_path / "run.toml", ["stages.0.steps=1", "stages.1.steps=1"]))
    assert [row["step"] for row in runs.rows(folder) if "eval" in row] == [1, 2]
