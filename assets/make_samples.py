"""Writes assets/samples: small data in the forms that published systems have, so that every recipe runs as it stands.

    python assets/make_samples.py

The pictures are pieces of scikit-image's and scikit-learn's photographs and scenes drawn by the bundled tasks; the same are
written on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mmrl_grounding import scenes
from PIL import Image

from mmrl import Prompt
from mmrl.api.tasks.image_sources import chance, random_crop
from mmrl.registry import plugins

SAMPLES = Path(__file__).parent / "samples"
COUNT = 16


def main() -> None:
    expressions()
    regions()
    detections()
    open_questions()
    classes()
    questions()
    fine_print()
    photographs()
    print(f"{sum(p.stat().st_size for p in SAMPLES.rglob('*') if p.is_file()) / 1024:.0f} KB in {SAMPLES}")


def expressions() -> None:
    """VLM-R1's rows: a question and the box that answers it."""
    rows = []
    for n, prompt in enumerate(prompts("grounding/refer", {"size": 112, "objects": 3})):
        name = save(prompt.images[0], "scenes", f"refer-{n:02d}")
        what = prompt.text.partition(" is ")[2].partition("?")[0]
        asked = f"<image>Please provide the bounding box coordinate of the region this sentence describes: {what}."
        rows.append(conversation(n, name, asked, [round(c) for c in prompt.answer]))
    write("refer.jsonl", rows)


def regions() -> None:
    """The pictures of `expressions`, with a mask of what each describes."""
    rows = []
    for line in (SAMPLES / "refer.jsonl").read_text().splitlines():
        row = json.loads(line)
        what, (x1, y1, x2, y2) = row["conversations"][0]["value"].rpartition("describes: ")[2], row["conversations"][1]["value"]
        shape = what.rstrip(".").rpartition(" ")[2]
        mask = Image.new("1", Image.open(SAMPLES / row["image"]).size)
        covered = scenes.mask(shape, x2 - x1, y2 - y1) if shape in scenes.SHAPES else Image.new("L", (x2 - x1, y2 - y1), 255)
        mask.paste(covered.convert("1", dither=Image.Dither.NONE), (x1, y1))
        name = f"scenes/region-{row['id']:02d}.png"
        mask.save(SAMPLES / name, optimize=True)
        rows.append({"id": row["id"], "image": row["image"], "mask": name, "question": f"Point at {what}"})
    write("regions.jsonl", rows)


def detections() -> None:
    """VLM-R1's rows for open-vocabulary detection, and COCO's JSON of the same pictures."""
    rows, images, annotations, labels = [], [], [], {}
    for n, prompt in enumerate(prompts("grounding/detect", {"size": 112, "objects": 4, "style": "json"})):
        name = save(prompt.images[0], "scenes", f"detect-{n:02d}")
        found = [{"bbox_2d": [round(c) for c in one["bbox_2d"]], "label": one["label"]} for one in prompt.answer]
        wanted = ", ".join(dict.fromkeys(one["label"] for one in found)) or "red circle"
        asked = f"<image>Please carefully check the image and detect the following objects: {wanted}."
        rows.append(conversation(n, name, asked, f"```json\n{json.dumps(found)}\n```" if found else "None"))
        images.append({"id": n, "file_name": name, "width": prompt.images[0].width, "height": prompt.images[0].height})
        for one in found:
            x1, y1, x2, y2 = one["bbox_2d"]
            label = labels.setdefault(one["label"], len(labels) + 1)
            box = [x1, y1, x2 - x1, y2 - y1]
            number = len(annotations) + 1
            annotations.append({"id": number, "image_id": n, "category_id": label, "bbox": box, "area": box[2] * box[3]})
    write("detect.jsonl", rows)
    categories = [{"id": number, "name": name} for name, number in labels.items()]
    (SAMPLES / "coco.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def open_questions() -> None:
    """A question about each picture with objects, whose answer is a sentence."""
    rows = []
    for line in (SAMPLES / "detect.jsonl").read_text().splitlines():
        row = json.loads(line)
        labels = row["conversations"][0]["value"].partition("objects: ")[2].rstrip(".").split(", ")
        said = f"There is {' and '.join(f'a {label}' for label in labels)}."
        rows.append({"id": row["id"], "image": row["image"], "question": "What is in the picture?", "answer": said})
    write("open.jsonl", rows)


def classes() -> None:
    """One folder per class: pieces of four photographs."""
    for name, photograph in (("cat", "chelsea"), ("coffee", "coffee"), ("dahlia", "flower"), ("pagoda", "china")):
        for n in range(6):
            picture = random_crop("train", chance(0, "classes", name, str(n)), 84, 84, (photograph,))
            save(picture, f"classes/{name}", f"{n}")


def questions() -> None:
    """Questions of every kind that a table may hold."""
    rows = []
    for n, prompt in enumerate(prompts("vqa/shapes", {"size": 112, "style": "plain"})):
        meta = prompt.meta
        row = {
            "id": f"q{n:02d}",
            "image": save(prompt.images[0], "questions", f"{n:02d}"),
            "question": prompt.text.partition("\n")[0],
        }
        options = meta.get("options")
        rows.append(row | {"answer": prompt.answer} | ({"options": list(options)} if options else {}))
    write("questions.jsonl", rows)
    write("opinions.jsonl", [with_opinions(row, n) for n, row in enumerate(rows)])


def with_opinions(row: dict[str, Any], n: int) -> dict[str, Any]:
    """The row with three opinions, of which three, two or none are right, and the specialty that it belongs to."""
    truth, options = row["answer"], row.get("options")
    other = {"yes": "no", "no": "yes", "circle": "star"}.get(truth, "circle")
    wrong = ("B" if truth == "A" else "A") if options else str(int(truth) + 1) if truth.isdecimal() else other
    roles = ["expert in shapes", "expert in colours", "expert in counting"]
    said = [{"role": role, "answer": truth if i < (3, 2, 0)[n % 3] else wrong} for i, role in enumerate(roles)]
    asked = f"Who should be asked this? {row['question']}"
    return {**row, "opinions": said, "triage": asked, "specialties": roles, "specialty": roles[n % 3]}


def fine_print() -> None:
    """Questions that take a zoom, with the box where the answer is."""
    task = plugins.registry().make_task("tools/fine-print", {"size": 48, "factor": 12, "schemas": "none", "style": "plain"})
    rows = []
    for n in range(COUNT):
        prompt = task.prompts("train", 0)[n]  # type: ignore[index]  # a sequence
        full = task.workspace(prompt).pictures[0].image  # type: ignore[attr-defined]  # of this task alone
        name = f"tools/{n:02d}.png"
        (SAMPLES / "tools").mkdir(exist_ok=True)
        full.save(SAMPLES / name)
        box = [12 * v for v in prompt.meta["boxes"][0]]
        rows.append({"id": f"t{n:02d}", "image": name, "question": prompt.text, "answer": prompt.answer, "boxes": [box]})
    write("tools.jsonl", rows)


def photographs() -> None:
    """A folder of pictures for puzzles and self-supervision."""
    for n in range(24):
        picture = random_crop(
            "train", chance(0, "photographs", str(n)), 112, 112, ("astronaut", "chelsea", "china", "coffee", "rocket")
        )
        save(picture, "photographs", f"{n:02d}")


def prompts(task: str, options: Mapping[str, Any]) -> list[Prompt]:
    made = plugins.registry().make_task(task, options)
    rows = made.prompts("train", 0)
    return [rows[i] for i in range(COUNT)]  # type: ignore[index]  # every bundled task's prompts are a sequence


def conversation(n: int, image: str, asked: str, said: Any) -> dict[str, Any]:
    return {"id": n, "image": image, "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}


def save(picture: Image.Image, folder: str, name: str) -> str:
    path = SAMPLES / folder / f"{name}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.convert("RGB").save(path, quality=85)
    return f"{folder}/{name}.jpg"


def write(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    (SAMPLES / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
