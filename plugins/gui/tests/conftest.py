"""Screens in every format, made on the spot: 24 pictures of 120 x 90 with a rectangle each, and episodes of them."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

SIZE = (120, 90)
WORDS = ("open the mail", "close the window", "search for a cat", "go to the settings")


def box_on(number):
    """The corners of the rectangle on picture `number`."""
    x, y = 5 + number % 6 * 18, 6 + number // 6 * 20
    return [x, y, x + 12 + number % 4, y + 9]


def action_of(number):
    """What is done on screen `number`, as AndroidControl writes it."""
    x1, y1, x2, y2 = box_on(number)
    return (
        {"action_type": "click", "x": (x1 + x2) // 2, "y": (y1 + y2) // 2},
        {"action_type": "input_text", "text": f"Hello {number}"},
        {"action_type": "scroll", "direction": ("up", "down", "left", "right")[number // 6 % 4]},
        {"action_type": "open_app", "app_name": f"App {number}"},
        {"action_type": "click", "x": x1 + 1, "y": y1 + 1},
        {"action_type": "navigate_back"},
    )[number % 6]


@pytest.fixture
def rectangle():
    """The corners of the rectangle on a picture, by its number."""
    return box_on


@pytest.fixture
def pictures(tmp_path):
    """A folder with screens under the names of ScreenSpot and of AndroidControl."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(24):
        picture = Image.new("RGB", SIZE, (number * 9, 80, 120))
        picture.paste((250, 200, number * 5), tuple(box_on(number)))
        picture.save(folder / f"{('mobile', 'pc', 'web')[number % 3]}_{number}.png")
        picture.save(folder / f"epi_{number // 6}_ss_{number % 6}.jpg")
    return folder


@pytest.fixture
def files(tmp_path, pictures):
    """The same in each format; name -> path."""
    kinds, sources = ("text", "icon"), ("ios", "windows", "shop")
    spot, pro, g1, steps, pairs, rows = [], [], [], [], [], []
    for n in range(24):
        name, (x1, y1, x2, y2) = f"{('mobile', 'pc', 'web')[n % 3]}_{n}.png", box_on(n)
        words = f"{WORDS[n % 4]} {n}"
        kind = {"instruction": words, "data_type": kinds[n % 2], "data_source": sources[n % 3]}
        spot.append({"img_filename": name, "bbox": [x1, y1, x2 - x1, y2 - y1], **kind})
        more = {"ui_type": kinds[n % 2], "application": "x", "platform": "windows", "group": ("Dev", "CAD")[n % 2], "id": f"p{n}"}
        pro.append({"img_filename": name, "bbox": [x1, y1, x2, y2], "instruction": words, "img_size": list(SIZE), **more})
        g1.append({"image": name, "problem": words, "solution": [x1 + 0.5, y1, x2, y2], "rate": 1 + n % 3})
        action, box = action_of(n), box_on(n) if n % 6 in (0, 4) else None
        own = {"episode_id": n // 6, "index": n % 6, "goal": f"goal {n // 6}", "step_instruction": f"step {n}"}
        steps.append({**own, "screenshot": f"epi_{n // 6}_ss_{n % 6}.jpg", "action": action, "bbox": box})
        rows.append(
            [n // 6, n % 6, own["goal"], own["step_instruction"], *SIZE, json.dumps(action), json.dumps(box) if box else ""]
        )
        said = [{"role": "user", "value": "<image>"}, {"role": "assistant", "value": action | ({"bbox": box} if box else {})}]
        pairs.append({"image": [name, f"epi_{n // 6}_ss_{(n + 1) % 6}.jpg"], "conversations": said})
    found = {name: tmp_path / f"{name}.json" for name in ("spot", "pro", "g1")}
    found |= {name: tmp_path / f"{name}.jsonl" for name in ("steps", "pairs")} | {"csv": tmp_path / "android.csv"}
    for name, listed in (("spot", spot), ("pro", pro), ("g1", g1)):
        found[name].write_text(json.dumps(listed))
    for name, listed in (("steps", steps), ("pairs", pairs)):
        found[name].write_text("".join(json.dumps(row) + "\n" for row in listed))
    with open(found["csv"], "w", newline="") as file:
        header = "episode_id index task_instruction step_instruction screenshot_width screenshot_height"
        csv.writer(file).writerows([[*header.split(), "action_groundtruth", "matched_bbox"], *rows])
    return {name: str(path) for name, path in found.items()}


@pytest.fixture
def recording(tmp_path):
    """A folder as `mmrl_gui.record` writes it: twelve episodes of three steps, every third of them in vain."""
    folder = tmp_path / "recording"
    folder.mkdir()
    lines = []
    for n in range(12):
        shown = []
        for step in range(4):
            picture = Image.new("RGB", SIZE, (n * 20, step * 60, 90))
            picture.paste((255, 255, 255), tuple(box_on(n + step)))
            shown.append(f"page-{n}-{step}.png")
            picture.save(folder / shown[-1])
        x1, y1, x2, y2 = box_on(n)
        acts = [
            {"action": {"kind": "click", "at": [(x1 + x2) / 2, y1 + 2]}, "box": [x1, y1, x2, y2]},
            {"action": {"kind": "type", "text": f"name {n}"}, "box": None},
            {"action": {"kind": "click", "at": [box_on(n + 2)[0] + 3, box_on(n + 2)[1] + 3]}, "box": box_on(n + 2)},
        ]
        steps = [{"picture": shown[i], **one} for i, one in enumerate(acts)]
        own = {
            "page": "page",
            "seed": n,
            "instruction": f"Do number {n}.",
            "success": bool(n % 3),
            "raw_reward": 1.0 if n % 3 else -1.0,
        }
        lines.append(json.dumps({**own, "steps": steps, "final": shown[3]}))
    (folder / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture
def change():
    """Rewrite one row of a JSONL or a JSON file."""

    def rewrite(path, number, how):
        file = Path(path)
        if file.suffix == ".json":
            listed = json.loads(file.read_text())
            listed[number] = how(listed[number])
            file.write_text(json.dumps(listed))
            return
        lines = file.read_text().splitlines()
        row = how(json.loads(lines[number]))
        lines[number] = row if isinstance(row, str) else json.dumps(row)
        file.write_text("\n".join(lines) + "\n")

    return rewrite
