"""Writes the screens in assets/samples: pages drawn here with a table of boxes, walks over some, and episodes of MiniWoB++.

    python assets/make_screens.py

It needs the browser (`pip install "multimodal-rl[browser]"`). A machine with other fonts draws the same pages a little otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path

from mmrl.registry import plugins

SAMPLES = Path(__file__).parent / "samples"
COUNT = 8
SIZE = [168, 224]
PAGES = ["settings", "shop", "player", "chat", "calendar"]


def main() -> None:
    table()
    record("walks", "browser/html", "--set", f"size={SIZE}", "--pages", ",".join(PAGES), "--level", "middle")
    pages = "click-test-2,click-button-sequence"
    record("clicks", "browser/miniwob", "--pages", pages, "--policy", "expert", "--won", episodes=COUNT)
    for name in ("screens", "walks", "clicks"):
        print(f"{sum(p.stat().st_size for p in (SAMPLES / name).iterdir()) / 1024:.0f} KB in {name}")


def table() -> None:
    """GUI-G1's rows, one for each screen: a picture, an instruction, a box, and how much the row counts."""
    task = plugins.registry().make_task("gui/grounding", {"size": SIZE, "level": "mixed"})
    prompts = [task.prompts("train", 0)[n] for n in range(COUNT)]  # type: ignore[index]  # they are a sequence
    shares = [share(prompt.meta["boxes"][0]) for prompt in prompts]
    (SAMPLES / "screens").mkdir(exist_ok=True)
    rows = []
    for n, (prompt, own) in enumerate(zip(prompts, shares, strict=True)):
        prompt.images[0].convert("RGB").save(SAMPLES / "screens" / f"{n}.png")
        known = {"ui_type": prompt.meta["type"], "platform": prompt.meta["platform"], "img_size": SIZE}
        box = [round(c, 1) for c in prompt.meta["boxes"][0]]
        rate = round(min(2.0, max(0.5, sum(shares) / COUNT / own)), 2)  # what is smaller than the mean counts more
        rows.append({"image": f"{n}.png", "problem": prompt.meta["instruction"], "solution": box, "rate": rate, **known})
    (SAMPLES / "screens" / "screens.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def share(box: tuple[float, float, float, float]) -> float:
    """The root of the share of the screen that a box takes."""
    x1, y1, x2, y2 = box
    return float(((x2 - x1) * (y2 - y1) / (SIZE[0] * SIZE[1])) ** 0.5)


def record(name: str, screens: str, *arguments: str, episodes: int = 5) -> None:
    from mmrl.ui.cli import main as mmrl

    given = [screens, str(SAMPLES / name), *arguments, "--steps", "3", "-n", str(episodes), "--overwrite"]
    mmrl(["record", "screens", *given], standalone_mode=False)


if __name__ == "__main__":
    main()
