"""Pictures with boxes in every format, made on the spot."""

import json
from pathlib import Path

import pytest
from PIL import Image

LABELS = ("cat", "dog", "bird")


def objects_on(number: int) -> list[dict]:
    """What stands on picture `number`, of 64 x 48 pixels: 1 to 3 objects."""
    return [
        {"bbox_2d": [4 + 18 * i, 5 + number % 7, 16 + 18 * i + number % 3, 30], "label": LABELS[(number + i) % 3]}
        for i in range(1 + number % 3)
    ]


@pytest.fixture
def boxes_of():
    """The objects of a picture, by its number."""
    return objects_on


@pytest.fixture
def pictures(tmp_path):
    """A folder of 24 pictures."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(24):
        picture = Image.new("RGB", (64, 48), (number * 9, 80, 120))
        for i, one in enumerate(objects_on(number)):
            picture.paste((250, 60 * i, number * 5), tuple(one["bbox_2d"]))
        picture.save(folder / f"{number}.png")
    return folder


@pytest.fixture
def files(tmp_path, pictures):
    """Write the same pictures in each format; name -> path."""
    rec, refcoco, od = [], [], []
    coco = {"images": [], "annotations": [], "categories": [{"id": 10 + i, "name": name} for i, name in enumerate(LABELS)]}
    for number in range(24):
        objects = objects_on(number)
        x1, y1, x2, y2 = objects[0]["bbox_2d"]
        ask = "<image>Please provide the bounding box coordinate of the region this sentence describes: the left one."
        rec.append(_talk(number, ask, objects[0]["bbox_2d"] if number % 2 else f"<answer> {objects[0]['bbox_2d']} </answer>"))
        texts = ["the left one", f"number {number}"]
        refcoco.append({"image": f"{number}.png", "sentences": [{"sent": t} for t in texts], "bbox": [x1, y1, x2 - x1, y2 - y1]})
        od.append(_talk(number, "<image>Find cat, dog and bird.", "```json\n" + json.dumps(objects) + "\n```"))
        coco["images"].append({"id": 100 + number, "file_name": f"{number}.png", "width": 64, "height": 48})
        for one in objects:
            (x1, y1, x2, y2), kind = one["bbox_2d"], 10 + LABELS.index(one["label"])
            bare = {"id": len(coco["annotations"]), "image_id": 100 + number, "category_id": kind, "iscrowd": 0}
            coco["annotations"].append(bare | {"bbox": [x1, y1, x2 - x1, y2 - y1]})
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("rec", "refcoco", "od")} | {"coco": tmp_path / "coco.json"}
    for name, rows in (("rec", rec), ("refcoco", refcoco), ("od", od)):
        paths[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths["coco"].write_text(json.dumps(coco))
    return {name: str(path) for name, path in paths.items()}


def _talk(number: int, question: str, answer: object) -> dict:
    said = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": number, "image": f"{number}.png", "conversations": said}


@pytest.fixture
def change():
    """Rewrite one row of a JSONL file, or a whole JSON file."""

    def rewrite(path: str, number: int | None, how) -> None:
        file = Path(path)
        if number is None:
            file.write_text(json.dumps(how(json.loads(file.read_text()))))
            return
        lines = file.read_text().splitlines()
        row = how(json.loads(lines[number]))
        lines[number] = row if isinstance(row, str) else json.dumps(row)
        file.write_text("\n".join(lines) + "\n")

    return rewrite
