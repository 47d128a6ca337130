"""Writes the clips in assets/samples/video, which the plugin `video` draws, with tables about them in the forms of data sets.

python assets/make_video.py
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl import Prompt
from mmrl.api.media.clips import Clip
from mmrl.api.media.decoding import cached_frames
from mmrl.registry import plugins

SAMPLES = Path(__file__).parent / "samples" / "video"
CLIPS, PICTURES = SAMPLES / "videos" / "drawn", SAMPLES / "images" / "drawn"
DRAWN = {"seconds": [7, 8], "backgrounds": ["plain"]}
EACH = {"temporal": 4, "choice": 4, "number": 1, "ocr": 1, "open": 1, "regression": 1, "grounded": 3, "tracking": 3}
KINDS = {"choice": "multiple choice", "number": "numerical", "ocr": "OCR", "open": "free-form", "regression": "regression"}
LETTERS = "ABCDEFGH"


def main() -> None:
    shutil.rmtree(SAMPLES, ignore_errors=True)
    CLIPS.mkdir(parents=True)
    PICTURES.mkdir(parents=True)
    drawn = {name: [clip_of(name, number) for number in range(count)] for name, count in EACH.items()}
    times(drawn)
    questions(drawn)
    boxes(drawn["tracking"])
    scores()
    print(f"{sum(p.stat().st_size for p in SAMPLES.rglob('*') if p.is_file()) / 1024:.0f} KB in {SAMPLES.name}")


def clip_of(name: str, number: int) -> tuple[str, Prompt]:
    """(the name of a clip that was drawn and copied, what was asked about it)."""
    task = plugins.registry().make_task(f"video/{name}", DRAWN)
    prompt = task.prompts("train", 0)[number]  # type: ignore[index]  # they are a sequence
    shutil.copyfile(prompt.videos[0].path, CLIPS / f"{name}-{number}.mp4")
    return f"{name}-{number}", prompt


def times(drawn: dict[str, list[tuple[str, Prompt]]]) -> None:
    """When something happens, in three forms; with an option, in one."""
    found = [(clip, p.meta["spans"][0], said(p), p.meta["duration"]) for clip, p in drawn["temporal"]]
    lines = [f"{clip} {start:.1f} {end:.1f}##{sentence}." for clip, (start, end), sentence, _ in found]
    (SAMPLES / "charades_sta.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    captions = {
        clip: {"duration": length, "timestamps": [list(span)], "sentences": [f"{sentence.capitalize()}."]}
        for clip, span, sentence, length in found
    }
    write("activitynet.json", captions)
    rows = [
        {
            "video": f"./videos/drawn/{clip}.mp4",
            "duration": length,
            "timestamp": list(span),
            "sentence": sentence,
            "difficulty": hard,
        }
        for (clip, span, sentence, length), hard in zip(found, (20.0, 50.0, 35.5, 80.0), strict=True)
    ]
    write("time_r1.json", rows)
    grounded = [
        {
            "video": f"{clip}.mp4",
            "question": p.text.partition("\n")[0],
            "options": p.meta["options"],
            "answer": p.answer["answer"],
            "glue": p.answer["glue"],
            "duration": p.meta["duration"],
        }
        for clip, p in drawn["grounded"]
    ]
    write("next_gqa.json", grounded)


def said(prompt: Prompt) -> str:
    """The event of a temporal prompt as a sentence: `the red circle blinks`."""
    return str(prompt.meta["thought"]).removeprefix("I look for the time in which ").removesuffix(".")


def questions(drawn: dict[str, list[tuple[str, Prompt]]]) -> None:
    """Video-R1's rows of all kinds, one of them about a picture; NExT-QA's table; the rows of SEED-Bench-R1 and Video-RTS."""
    rows: list[dict[str, Any]] = []
    for name, kind in KINDS.items():
        for clip, p in drawn[name]:
            listed = [f"{letter}. {option}" for letter, option in zip(LETTERS, p.meta.get("options", ()), strict=False)]
            about = {"problem_id": len(rows), "problem": asked(p), "data_type": "video", "problem_type": kind, "options": listed}
            rows.append(about | {"solution": f"<answer>{p.answer}</answer>", "path": f"./videos/drawn/{clip}.mp4"})
    Image.fromarray(cached_frames(Clip(path=str(CLIPS / "choice-0.mp4"))).frames_THWC[0]).save(PICTURES / "choice-0.png")
    more = {"data_type": "image", "problem_type": "numerical", "options": [], "path": "./images/drawn/choice-0.png"}
    story = plugins.registry().make_task("video/choice", DRAWN).story("train", 0)  # type: ignore[attr-defined]
    things = sum(story.seen(who, 0) is not None for who in range(len(story.actors)))
    asks = "How many things are in the picture?"
    rows.append({"problem_id": len(rows), "problem": asks, "solution": f"<answer>{things}</answer>", **more})
    write("video_r1.json", rows)
    chosen = drawn["choice"]
    with open(SAMPLES / "next_qa.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["video", "question", "answer", "qid", "type", *(f"a{i}" for i in range(5))])
        for clip, p in chosen:
            options = [*p.meta["options"], *[""] * 5][:5]
            table.writerow([clip, asked(p), LETTERS.index(p.answer), 0, "TN" if "first" in p.text else "DO", *options])
    seed = []
    for clip, p in chosen:
        options, right = p.meta["options"], p.meta["options"][LETTERS.index(p.answer)]
        Image.fromarray(cached_frames(Clip(path=str(CLIPS / f"{clip}.mp4"))).frames_THWC[-1]).save(PICTURES / f"{clip}-last.png")
        about = {"sample_id": len(seed), "video_source": "drawn", "video_basename": f"{clip}.mp4", "task_progress_metadata": [{}]}
        about |= {"current_observation_basename": f"{clip}-last.png", "question": asked(p), "answer": right}
        seed.append(about | {"negative_answers": [option for option in options if option != right]})
    write_lines("seed_bench_r1.jsonl", seed)
    letters = [
        {
            "problem": asked(p) + "\n" + "".join(f"{a}. {o}\n" for a, o in zip(LETTERS, p.meta["options"], strict=False)),
            "solution": f"<answer>{p.answer}.</answer>",
            "video": f"videos/drawn/{clip}.mp4",
            "duration": None,
        }
        for clip, p in chosen
    ]
    write_lines("video_rts.jsonl", letters)


def scores() -> None:
    """What an evaluation of the split `train` of configs/recipes/temporal-r1.toml would write; the scores are made up."""
    found = {
        "when": ("video/tiou@temporal-r1", {"train-0-0": (0.0, 0.5, 0.25, 1.0)}),
        "what": ("video/answer", {"train-0-0": (0.0, 1.0, 1.0, 0.0), "train-0-1": (1.0,) * 4, "train-0-3": (0.0, 0.0, 1.0, 0.0)}),
    }
    rows = [
        {"step": 0, "task": task, "split": "train", "verifier": verifier, "id": id, "value": sum(s) / len(s), "values": list(s)}
        for task, (verifier, prompts) in found.items()
        for id, s in prompts.items()
    ]
    write_lines("temporal_r1_scores.jsonl", rows)


def asked(prompt: Prompt) -> str:
    """The question without its options and without how to answer."""
    return prompt.text.partition("\n")[0].partition(" Answer with ")[0]


def boxes(drawn: list[tuple[str, Prompt]]) -> None:
    """Where a thing is, in parts of the picture at eight moments, as VideoChat-R1 has it; the same in pixels with times."""
    rows, plain = [], []
    for clip, p in drawn:
        thing = p.text.partition("Where is the ")[2].partition(" at ")[0]
        width, height = p.meta["size"]
        frames = cached_frames(Clip(path=str(CLIPS / f"{clip}.mp4")))
        folder = PICTURES / clip
        folder.mkdir()
        for number, t in enumerate(p.meta["times"]):
            Image.fromarray(frames.frames_THWC[frames.times_s.index(t)]).save(folder / f"{number + 1:08d}.png")
        unit = [[round(v / side, 3) for v, side in zip(box, (width, height) * 2, strict=True)] for box in p.answer]
        rows.append({"path": f"images/drawn/{clip}", "object": thing, "gt": unit})
        timed = [{"time": t, "bbox_2d": box} for t, box in zip(p.meta["times"], p.answer, strict=True)]
        plain.append({"video": f"{clip}.mp4", "object": thing, "boxes": timed})
    write("got_10k.json", rows)
    write_lines("tracking.jsonl", plain)


def write(name: str, found: Any) -> None:
    (SAMPLES / name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_lines(name: str, rows: list[Any]) -> None:
    (SAMPLES / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
