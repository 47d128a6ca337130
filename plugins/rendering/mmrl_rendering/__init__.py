"""Pictures as SVG, charts, web pages and plots: code is rendered and compared; rewards similar to RLRF and RRVF."""

from mmrl import TaskSpec, VerifierSpec, hookimpl
from mmrl.api.endpoints import JUDGE_KEYS

MMRL_CONTRACT = 2

OURS = "mmrl_rendering.verifiers:"
RENDER_S = 30.0
"""Deadline of a verifier that renders: a browser and a program of matplotlib may take 8 s, the latter three times as long where
others keep the processors busy."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="rendering/svg",
            target="mmrl_rendering.task:Svg",
            verifiers={"rendering/picture": 1.0, "rendering/parse": 0.1, "rendering/length": 0.1},
            summary="write a picture of a few shapes as SVG or as short code",
        ),
        TaskSpec(
            id="rendering/chart",
            target="mmrl_rendering.task:Charts",
            verifiers={"rendering/chart": 1.0, "rendering/parse": 0.1},
            summary="write a bar, line, pie or scatter chart as JSON",
        ),
        TaskSpec(
            id="rendering/page",
            target="mmrl_rendering.task:Pages",
            verifiers={"rendering/picture": 1.0},
            summary="write a web page as HTML; needs Chromium",
        ),
        TaskSpec(
            id="rendering/plot",
            target="mmrl_rendering.task:Plots",
            verifiers={"rendering/picture": 1.0, "rendering/parse": 0.1},
            summary="write a figure as a program with matplotlib; needs bubblewrap",
        ),
        TaskSpec(
            id="rendering/rows",
            target="mmrl_rendering.task:Own",
            verifiers={"rendering/picture": 1.0, "rendering/parse": 0.1, "rendering/length": 0.1},
            summary="your own SVG files, or pictures with their code",
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        _spec("picture", "picture", "half pixel, a quarter each of ssim and edges"),
        _spec("pixel", "pixel", "1 - normalised L2 of the pictures; a blank canvas has 0"),
        _spec("ssim", "ssim", "structural similarity above that of a blank canvas"),
        _spec("edges", "edges", "similarity of the edges (Canny)"),
        VerifierSpec(
            id="rendering/parse",
            target=OURS + "parse",
            timeout_s=RENDER_S,
            summary="the code parses, renders and shows something",
        ),
        _spec("length", "length", "the code is not longer than the right one, and shows some of the picture"),
        VerifierSpec(
            id="rendering/chart", target=OURS + "chart", graded=True, summary="the share of a chart's fields that is right"
        ),
        VerifierSpec(
            id="rendering/length@rlrf",
            target=OURS + "length",
            options={"free": 0.5, "likeness": False},
            graded=True,
            summary="RLRF's efficiency: code beyond half the right code's length costs",
        ),
        VerifierSpec(
            id="rendering/svg@rlrf",
            target=OURS + "rlrf",
            low=-1.0,
            timeout_s=RENDER_S,
            graded=True,
            images=True,
            summary="RLRF's pixel, edge and length rewards, without those that need models",
        ),
        _likeness("clip", "ClipLikeness", "CLIP"),
        _likeness("dino", "DinoLikeness", "DINOv2"),
        VerifierSpec(
            id="rendering/calls@rrvf",
            target="mmrl_rendering.revision:successful_calls",
            graded=True,
            summary="RRVF's reward for its tool: the share of two calls whose code drew a picture",
        ),
        VerifierSpec(
            id="rendering/format@rrvf",
            target="mmrl_rendering.revision:thinks_answers_and_draws",
            timeout_s=RENDER_S,
            summary="RRVF's format: one thought and one answer, whose code draws a picture",
        ),
        VerifierSpec(
            id="rendering/judge@rrvf",
            target="mmrl_rendering.likeness:VisualJudge",
            timeout_s=120.0,
            graded=True,
            images=True,
            model=True,
            batch_size=64,
            environment=JUDGE_KEYS,
            summary="RRVF's visual judge: a model behind an endpoint rates how alike the pictures are",
        ),
    ]


def _spec(name: str, function: str, summary: str) -> VerifierSpec:
    return VerifierSpec(
        id=f"rendering/{name}", target=OURS + function, graded=True, images=True, timeout_s=RENDER_S, summary=summary
    )


def _likeness(name: str, kind: str, model: str) -> VerifierSpec:
    return VerifierSpec(
        id=f"rendering/{name}@rlrf",
        target=f"mmrl_rendering.likeness:{kind}",
        low=-1.0,
        timeout_s=60.0,
        graded=True,
        images=True,
        model=True,
        batch_size=32,
        summary=f"RLRF's semantic reward: likeness of the pictures by {model}",
    )
