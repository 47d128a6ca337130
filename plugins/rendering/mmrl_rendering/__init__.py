"""Pictures as SVG, charts and web pages: code that is rendered and compared; rewards after RLRF and RRVF."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

OURS = "mmrl_rendering.verifiers:"


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="rendering/svg",
            target="mmrl_rendering.task:Svg",
            verifiers={"rendering/picture": 1.0, "rendering/parse": 0.1, "rendering/length": 0.1},
            summary="a picture of a few shapes, to be written as SVG or in few words",
        ),
        TaskSpec(
            id="rendering/chart",
            target="mmrl_rendering.task:Charts",
            verifiers={"rendering/chart": 1.0, "rendering/parse": 0.1},
            summary="a bar, line, pie or scatter chart, to be written as JSON",
        ),
        TaskSpec(
            id="rendering/page",
            target="mmrl_rendering.task:Pages",
            verifiers={"rendering/picture": 1.0},
            summary="a web page, to be written as HTML; needs Chromium",
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
        _spec("picture", "picture", "half pixel, a quarter each of ssim and edges, rendered once"),
        _spec("pixel", "pixel", "1 - normalised L2 of the pictures; a blank canvas has 0"),
        _spec("ssim", "ssim", "structural similarity above that of a blank canvas"),
        _spec("edges", "edges", "how well the edges are met (Canny)"),
        VerifierSpec(id="rendering/parse", target=OURS + "parse", summary="the code parses, renders and shows something"),
        _spec("length", "length", "the code is no longer than the right one, and shows something of the picture"),
        VerifierSpec(id="rendering/chart", target=OURS + "chart", graded=True, summary="what share of a chart's fields is right"),
        VerifierSpec(
            id="rendering/length@rlrf",
            target=OURS + "length",
            options={"free": 0.5, "likeness": False},
            graded=True,
            summary="RLRF's efficiency: what is beyond half the right code's length costs",
        ),
        VerifierSpec(
            id="rendering/svg@rlrf",
            target=OURS + "rlrf",
            low=-1.0,
            timeout_s=10.0,
            graded=True,
            images=True,
            summary="RLRF's pixel, edge and length rewards, without those that need models",
        ),
    ]


def _spec(name: str, function: str, summary: str) -> VerifierSpec:
    return VerifierSpec(id=f"rendering/{name}", target=OURS + function, graded=True, images=True, timeout_s=10.0, summary=summary)
