"""Writes tests/golden/vlac.jsonl, which pictures VLAC's released code shows its critic, in which order, with a reference episode.

    git clone https://github.com/InternRobotics/VLAC && git -C VLAC checkout 71acb22
    python tests/support/golden_vlac.py VLAC

`GAC_model.get_trajectory_critic` and `get_score_prompt` of evo_vlac/utils/model_utils.py and `trojectory_example_prompt` of
data_processing_vlm.py as they are, with a model that answers 0 and keeps what it is asked. Only the shares and the order of the
pictures are kept of a prompt, not its words.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from golden_rl_vlm_f import methods

OUT = Path(__file__).parents[1] / "golden" / "vlac.jsonl"
COMMIT = "71acb22"
TEMPLATES = re.compile(r"prompt_templete\['(v3(?:_think)?)'\]=(\".*\")")
CASES = ((7, 2, 11, 6), (4, 1, 6, 6), (9, 3, 58, 9), (5, 1, 3, 6), (6, 2, 41, 2), (3, 1, 100, 11))
"""(moments of the episode, moments between two that are compared, moments of the reference, pictures shown of it)."""


def main() -> None:
    folder = Path(sys.argv[1]) / "evo_vlac" / "utils"
    source = (folder / "model_utils.py").read_text()
    templates = {name: json.loads(text) for name, text in TEMPLATES.findall(source)}
    known: dict[str, Any] = {"List": list, "Image": SimpleNamespace(Image=object), "tqdm": SimpleNamespace(tqdm=lambda x, **_: x)}
    known |= methods(folder / "data_processing_vlm.py", "trojectory_example_prompt") | {"print": lambda *_: None}
    found = methods(folder / "model_utils.py", "get_trajectory_critic", "get_score_prompt", "critic_to_value_simple", **known)
    rows = []
    for count, skip, length, frames in CASES:
        asked: list[tuple[str, list[Any]]] = []

        def keep(prompt: list[str], images: list[Any], asked: list[tuple[str, list[Any]]] = asked) -> int:
            asked.extend(zip(prompt, images, strict=True))
            return len(prompt)

        model = SimpleNamespace(dataclient=SimpleNamespace(prompt_templete=templates), get_infer_requests=keep)
        model.chat = lambda count: (count, 0.0)
        model.results_format = lambda count, *_, **__: (["0"] * count, None)
        for name in ("get_score_prompt", "critic_to_value_simple"):
            setattr(model, name, found[name].__get__(model))
        own, reference = [["own", n] for n in range(count)], [["reference", n] for n in range(length)]
        options = {"ref_image_list": reference, "ref_num": frames, "skip": skip, "frame_skip": True}
        found["get_trajectory_critic"](model, "a task", own, **options)
        row = {"count": count, "skip": skip, "length": length, "frames": frames}
        row["shown"] = [images for _, images in asked]
        (row["shares"],) = {tuple(re.findall(r"(\d+%) <image>", prompt.partition("</trajectory>")[0])) for prompt, _ in asked}
        how = f"ran VLAC @{COMMIT}: evo_vlac/utils/model_utils.py, GAC_model.get_trajectory_critic"
        rows.append(json.dumps(row | {"how": how}))
    OUT.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
