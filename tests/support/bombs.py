"""Run folders that nobody's training wrote: each bomb makes a sound run (`damage.whole`) hostile in one way, within seconds.

A bomb takes the folder of the run and a size: 1 for what was found to bring pages down, less for an everyday test.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from damage import whole

Bomb = Callable[[Path, float], None]
BOMBS: dict[str, Bomb] = {}
"""Name -> bomb."""
FILES = (
    *("config.toml", "manifest.json", "metrics.jsonl", "errors.jsonl", "summary.json", "rollouts/step-000010.jsonl"),
    *("evaluations/step-000010.jsonl", "episodes/step-000010/episodes.jsonl", "episodes/step-000010/pick-0.webp"),
)
ROLLOUTS = "rollouts/step-000010.jsonl"


def bombed(runs: Path, name: str, size: float = 1.0) -> Path:
    """A folder of runs with a sound one and a bomb; returns the bomb's."""
    whole(runs / "sound")
    run = whole(runs / "bomb")
    BOMBS[name](run, size)
    return run


def all_bombed(runs: Path) -> list[Path]:
    """A folder of runs with a sound one and every bomb but those of many runs and of files in the place of others; returns
    theirs."""
    whole(runs / "sound")
    found = []
    for n, (name, make) in enumerate(BOMBS.items()):
        if not name.startswith(("pipe ", "link ", "folder ", "many runs")):
            found.append(whole(runs / f"{n:02d}-{name.partition('.')[0].replace('/', '-')}"))
            make(found[-1], 1.0)
    return found


def bomb(make: Bomb) -> Bomb:
    BOMBS[make.__name__.replace("_", " ").strip()] = make
    return make


def _row(run: Path, name: str = ROLLOUTS) -> dict[str, Any]:
    """The first row of a file."""
    with open(run / name) as file:
        row: dict[str, Any] = json.loads(file.readline())
    return row


def _write(file: Path, rows: Iterable[Any]) -> None:
    with open(file, "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def _line(file: Path, before: str, part: str, times: int, after: str) -> None:
    """Append a line: a part of it many times over."""
    with open(file, "a") as out:
        out.write(before)
        step = max(1, (1 << 22) // len(part))
        for start in range(0, times, step):
            out.write(part * min(step, times - start))
        out.write(after + "\n")


def _sparse(file: Path, size: int) -> None:
    with open(file, "r+b") as out:
        out.truncate(size)


def _step(step: int, metrics: dict[str, float], stage: str = "rl") -> dict[str, Any]:
    return {"step": step, "stage": stage, "time": 4.0 * step, "metrics": metrics}


# -- sizes of files -------------------------------------------------------------------------------------------------------


def _of_a_sparse_file(name: str) -> Bomb:
    return lambda run, size: _sparse(run / name, int(size * (8 << 30)))


BOMBS |= {f"sparse {name}": _of_a_sparse_file(name) for name in FILES}


def _of_a_file_in_place(name: str, kind: str) -> Bomb:
    def make(run: Path, size: float) -> None:
        (run / name).unlink()
        if kind == "pipe":
            os.mkfifo(run / name)
        elif kind == "link":
            (run / name).symlink_to("/dev/zero")
        else:
            (run / name).mkdir()

    return make


BOMBS |= {f"{kind} {name}": _of_a_file_in_place(name, kind) for kind in ("pipe", "link", "folder") for name in FILES[2:]}


@bomb
def long_line(run: Path, size: float) -> None:
    _line(run / "metrics.jsonl", '{"step": 11, "stage": "rl", "time": 44.0, "metrics": {"x": "', "a", int(size * 400e6), '"}}')


@bomb
def line_of_lists(run: Path, size: float) -> None:
    for name in ("metrics.jsonl", ROLLOUTS):
        _line(run / name, '{"step": 10, "stage": "rl", "time": 44.0, "x": [', "[],", int(size * 5e6), "[]]}")


@bomb
def many_lines_of_lists(run: Path, size: float) -> None:
    for _ in range(int(size * 100)):
        _line(run / ROLLOUTS, '{"step": 10, "task": "t", "group": 1, "x": [', "[],", 200_000, "[]]}")


@bomb
def line_of_wide_letters(run: Path, size: float) -> None:
    text = "\U0001f600" + "a" * int(size * 15e6)
    row = _row(run)
    with open(run / ROLLOUTS, "w") as out:
        out.writelines(json.dumps({**row, "group": n, "completion": text}, ensure_ascii=False) + "\n" for n in range(12))


@bomb
def deep_lines(run: Path, size: float) -> None:
    deep = "[" * 900 + "]" * 900
    for name in ("metrics.jsonl", ROLLOUTS, "errors.jsonl"):
        row = json.dumps(_row(run, name))[:-1]
        with open(run / name, "a") as out:
            out.write(f'{row}, "answer": {deep}}}\n{row}, "answer": {deep * 100}}}\n')
    (run / "manifest.json").write_text(f'{{"mmrl": {deep}}}')


@bomb
def long_key_of_the_run_file(run: Path, size: float) -> None:
    (run / "config.toml").write_text(f"{'.'.join(['a'] * int(size * 250_000))} = 1\n")


@bomb
def deep_run_file(run: Path, size: float) -> None:
    (run / "config.toml").write_text("".join(f"[{'.'.join('a' * n)}]\n" for n in range(1, 41)) + f"b = {'[' * 300}{']' * 300}\n")


# -- numbers of things ----------------------------------------------------------------------------------------------------


@bomb
def many_metrics(run: Path, size: float) -> None:
    metrics = {f"m/{n}": n / 7 for n in range(int(size * 20_000))}
    _write(run / "metrics.jsonl", (_step(n, metrics) for n in range(1, 101)))


@bomb
def ever_new_metrics(run: Path, size: float) -> None:
    _write(run / "metrics.jsonl", (_step(n, {f"m/{n}/{k}": 1.0 for k in range(100)}) for n in range(int(size * 20_000))))


@bomb
def many_steps(run: Path, size: float) -> None:
    with open(run / "metrics.jsonl", "w") as out:
        for n in range(int(size * 3e6)):
            out.write(f'{{"step":{n},"time":1,"metrics":{{"a":{n}}}}}\n')


@bomb
def many_stages(run: Path, size: float) -> None:
    _write(run / "metrics.jsonl", (_step(n, {"loss": 1.0, "kl": 0.1}, f"s{n}" * 50) for n in range(1, int(size * 50_000))))


@bomb
def many_evaluations(run: Path, size: float) -> None:
    figure = {"split": "test", "metric": "accuracy", "value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "extra": {"blank": 0.4}}
    rows = (
        {"step": n // 1000, "stage": "rl", "time": 1.0, "eval": {**figure, "task": f"t{n}"}} for n in range(int(size * 200_000))
    )
    _write(run / "metrics.jsonl", rows)


@bomb
def many_alarms(run: Path, size: float) -> None:
    alarm = {"where": "rl", "what": "odd", "alarm": "entropy_fall", "level": "warn"}
    _write(run / "errors.jsonl", ({"step": 10, **alarm, "task": f"t{n}"} for n in range(int(size * 200_000))))
    row = _row(run)
    for step in range(1, 51):
        _write(run / "rollouts" / f"step-{step:06d}.jsonl", ({**row, "step": step, "group": n} for n in range(int(size * 4000))))


@bomb
def many_rollouts(run: Path, size: float) -> None:
    line = json.dumps({**_row(run), "messages": [], "group": 0}) + "\n"
    with open(run / ROLLOUTS, "w") as out:
        for _ in range(int(size * 100)):
            out.write(line * 10_000)


@bomb
def rollouts_in_a_line(run: Path, size: float) -> None:
    _line(run / ROLLOUTS, '{"step": 10, "rows": [', '{"task": "t", "reward": 1.0},', int(size * 1e6), "{}]}")


@bomb
def large_group(run: Path, size: float) -> None:
    row = _row(run)
    _write(run / ROLLOUTS, ({**row, "group": 0, "completion": f"{n} <&" * int(size * 250_000)} for n in range(200)))


@bomb
def many_parts(run: Path, size: float) -> None:
    row = _row(run)
    part = [{"type": "image", "path": f"media/{0:064x}.png"}, {"type": "text", "text": "x" * 1000}] * int(size * 5000)
    messages = [{"role": role, "content": part} for role in ("user", "assistant", "user")]
    score = {"value": 1.0, "parts": {f"p{n}": 1.0 for n in range(int(size * 50_000))}, "status": "ok", "detail": "a; p1: b; " * 9}
    _write(run / ROLLOUTS, ({**row, "group": n // 8, "messages": messages, "score": score} for n in range(40)))


@bomb
def many_files(run: Path, size: float) -> None:
    line = (run / ROLLOUTS).read_text()
    for step in range(100, 100 + int(size * 20_000)):
        (run / "rollouts" / f"step-{step:06d}.jsonl").write_text(line[:200] if step % 100 else line)
        if step % 50 == 0:
            (run / "episodes" / f"step-{step:06d}").mkdir()
            (run / "episodes" / f"step-{step:06d}" / "episodes.jsonl").write_text("{}\n")


@bomb
def many_items(run: Path, size: float) -> None:
    row = _row(run, "evaluations/step-000010.jsonl")
    rows = ({**row, "task": f"t{n % 50_000}", "id": f"i{n}"} for n in range(int(size * 400_000)))
    _write(run / "evaluations" / "step-000010.jsonl", rows)


# -- pictures -------------------------------------------------------------------------------------------------------------


def _animation(frames: int, side: int) -> bytes:
    from PIL import Image

    pictures = [Image.new("RGB", (side, side), (n % 256, 0, 0)) for n in range(2)]
    one, other = (_still(picture) for picture in pictures)
    head = b"VP8X" + (10).to_bytes(4, "little") + b"\x02\0\0\0" + 2 * (side - 1).to_bytes(3, "little")
    body = b"ANIM" + (6).to_bytes(4, "little") + b"\0" * 6
    for n in range(frames):
        data = bytes(6) + 2 * (side - 1).to_bytes(3, "little") + (100).to_bytes(3, "little") + b"\x02" + (other if n % 2 else one)
        body += b"ANMF" + len(data).to_bytes(4, "little") + data
    return b"RIFF" + (4 + len(head) + len(body)).to_bytes(4, "little") + b"WEBP" + head + body


def _still(picture: Any) -> bytes:
    """The chunk with the pixels of a WebP file."""
    picture.save(out := io.BytesIO(), "WEBP", lossless=True)
    return out.getvalue()[12:]


@bomb
def animation(run: Path, size: float) -> None:
    _films(run, [_animation(int(size * 256), 4096)])


@bomb
def many_animations(run: Path, size: float) -> None:
    """Each is within the limits of one."""
    _films(run, [_animation(60, 1000)] * int(size * 200))


def _films(run: Path, films: list[bytes]) -> None:
    folder = run / "episodes" / "step-000010"
    row, rollout = _row(run, "episodes/step-000010/episodes.jsonl"), _row(run)
    for n, film in enumerate(films):
        (folder / f"f{n}.webp").write_bytes(film)
        (run / "rollouts" / "media" / f"f{n}.webp").write_bytes(film)
    _write(folder / "episodes.jsonl", ({**row, "video": f"f{n}.webp"} for n in range(len(films))))
    messages = [
        [{"role": "user", "content": [{"type": "video", "path": f"media/f{n}.webp"}, {"type": "text", "text": "?"}]}]
        for n in range(len(films))
    ]
    _write(run / ROLLOUTS, ({**rollout, "group": n // 8, "messages": seen} for n, seen in enumerate(messages)))


@bomb
def picture(run: Path, size: float) -> None:
    pictures(run, 1, int(8128 * size**0.5))


@bomb
def many_pictures(run: Path, size: float) -> None:
    """Each is within the limits of one."""
    pictures(run, int(size * 100), 4400)


def pictures(run: Path, count: int, side: int) -> None:
    """Rollouts with a picture of noise each, of so many pixels a side."""
    from PIL import Image

    Image.effect_noise((64, 64), 90).resize((side, side)).convert("RGB").save(data := io.BytesIO(), "PNG", compress_level=1)
    row = _row(run)
    rows = []
    for n in range(count):
        (run / "rollouts" / "media" / f"p{n}.png").write_bytes(data.getvalue()) if n == 0 else os.link(
            run / "rollouts" / "media" / "p0.png", run / "rollouts" / "media" / f"p{n}.png"
        )
        asked = [{"role": "user", "content": [{"type": "image", "path": f"media/p{n}.png"}, {"type": "text", "text": "?"}]}]
        rows.append({**row, "group": n, "messages": asked, "drawing": f"media/p{n}.png"})
    _write(run / ROLLOUTS, rows)


# -- other things ---------------------------------------------------------------------------------------------------------


@bomb
def odd_start(run: Path, size: float) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "started": "0001-01-01T00:00:00+14:00"}))


@bomb
def odd_settings(run: Path, size: float) -> None:
    with open(run / "config.toml", "a") as out:
        out.write('\n[evaluate]\nnum_samples = "many"\ntemperature = "hot"\n')


@bomb
def linked_folder(run: Path, size: float) -> None:
    for name in ("rollouts", "episodes"):
        (run / name).rename(run.parent.parent / f"elsewhere-{name}")
        (run / name).symlink_to(run.parent.parent / f"elsewhere-{name}")


@bomb
def link_in_place_of_the_new_report(run: Path, size: float) -> None:
    precious = run.parent.parent / "precious.txt"
    precious.write_text("precious")
    (run / ".report.html.tmp").symlink_to(precious)


@bomb
def pipe_in_place_of_the_new_report(run: Path, size: float) -> None:
    os.mkfifo(run / ".report.html.tmp")


@bomb
def many_runs(run: Path, size: float) -> None:
    """Each has a run file that takes as long as one may."""
    config = "".join(f"[t{n}]\na = {n}\n" for n in range(200))
    for n in range(int(size * 10_000)):
        other = run.parent / f"many-{n:05d}"
        other.mkdir()
        (other / "config.toml").write_text(config)
        (other / "manifest.json").write_text("{}")
        os.link(run / "metrics.jsonl", other / "metrics.jsonl")
    os.utime(run / "metrics.jsonl", (0, 0))
    os.utime(run.parent / "sound" / "metrics.jsonl")
