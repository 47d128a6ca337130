"""Make the sounds in assets/samples/audio and the tables about them, in the forms of R1-AQA (AVQA) and MMAU.

python assets/make_sounds.py

The sounds are made by `mmrl_audio.synth`, so nobody has rights in them.
"""

from __future__ import annotations

import json
import random
import wave
from pathlib import Path

from mmrl_audio.synth import SOUNDS, placed, sound

from mmrl.api.media.hearing import resampled

OUT = Path(__file__).parent / "samples" / "audio"
RATE, SECONDS = 8000, 1.2
PAIRS = (("a bell", "a drum"), ("a hiss", "a beep"))


def write(name: str, parts: list[tuple[float, str]]) -> None:
    draw = random.Random(name)
    made = placed([(start, sound(what, 0.45, draw)) for start, what in parts], SECONDS, draw, 0.005)
    with wave.open(str(OUT / f"{name}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((resampled(made, RATE).samples_T * 32767).round().astype("<i2").tobytes())


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    rows, questions = [], []
    for number, name in enumerate(SOUNDS):
        write(f"one-{number}", [(0.3, name)])
        options = random.Random(name).sample([name, *[s for s in SOUNDS if s != name][:3]], 4)
        about = {"question_text": "What is heard in the video?", "question_relation": "Sound", "question_type": "Which"}
        rows.append((f"one-{number}", about, options, name))
        questions.append((f"one-{number}", "Which of these is heard?", options, name))
    for number, (first, last) in enumerate(PAIRS):
        write(f"two-{number}", [(0.05, first), (0.65, last)])
        about = {
            "question_text": "What sounds first in the video?",
            "question_relation": "Sound",
            "question_type": "Before/After",
        }
        rows.append((f"two-{number}", about, [last, first], first))
        questions.append((f"two-{number}", "Which of these comes last?", [first, last], last))
    lines = [
        {"id": n, "video_name": name, "video_id": n, **about, "multi_choice": options, "answer": options.index(right)}
        | {"dataset_name": "AVQA", "audio_path": f"{name}.wav"}
        for n, (name, about, options, right) in enumerate(rows)
    ]
    (OUT / "avqa.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = [
        {"id": f"made-{n}", "audio_id": f"./{name}.wav", "question": text, "choices": options, "answer": right}
        | {"dataset": "made", "task": "sound", "split": "test-mini", "category": "Reasoning", "difficulty": "easy"}
        | {"sub-category": "Order" if len(options) == 2 else "Source"}
        for n, (name, text, options, right) in enumerate(questions)
    ]
    (OUT / "mmau.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
