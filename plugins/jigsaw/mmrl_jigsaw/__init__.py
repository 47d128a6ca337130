"""Jigsaw puzzles of pictures: full, pair, single; the rewards of Jigsaw-R1 and SSL4RL."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

TASK = "mmrl_jigsaw.task:"
OURS = "mmrl_jigsaw.verifiers:"
JIGSAW_R1 = "mmrl_jigsaw.jigsaw_r1:"
SSL4RL = "mmrl_jigsaw.ssl4rl:"
PLACED = {"jigsaw/placement": 1.0}


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="jigsaw/full",
            target=TASK + "Full",
            verifiers=PLACED,
            metric="jigsaw/exact",
            summary="where every patch of a shuffled picture belongs",
        ),
        TaskSpec(
            id="jigsaw/pair",
            target=TASK + "Pair",
            verifiers={"jigsaw/pair": 1.0},
            summary="relative position of two patches of a shuffled picture",
        ),
        TaskSpec(
            id="jigsaw/single",
            target=TASK + "Single",
            verifiers={"jigsaw/exact": 1.0},
            summary="where one patch of a shuffled picture belongs",
        ),
        *(_jigsaw_r1(name, cls, accuracy, form) for name, cls, accuracy, form in PUBLISHED),
        TaskSpec(
            id="jigsaw/full@ssl4rl",
            target=TASK + "Full",
            options={"style": "ssl4rl", "layout": "patches", "convention": "inverse", "size": 224},
            verifiers={"jigsaw/inverse@ssl4rl": 1.0},
            summary="the patches as separate pictures, as in SSL4RL (Guo et al. 2025)",
        ),
    ]


PUBLISHED = (
    ("full", "Full", "grid", "grid-format"),
    ("pair", "Pair", "pair", "letter-format"),
    ("single", "Single", "digit", "digit-format"),
)


def _jigsaw_r1(name: str, cls: str, accuracy: str, form: str) -> TaskSpec:
    return TaskSpec(
        id=f"jigsaw/{name}@jigsaw-r1",
        target=TASK + cls,
        options={"style": "jigsaw-r1", "rows": 3, "columns": 1, "turned": True, "size": 224},
        verifiers={f"jigsaw/{accuracy}@jigsaw-r1": 1.0, f"jigsaw/{form}@jigsaw-r1": 0.5},
        summary=f"the {name} question with the prompt of Jigsaw-R1 (Wang et al. 2025)",
    )


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(
            id="jigsaw/placement",
            target=OURS + "placement",
            graded=True,
            summary="share of the patches that are placed correctly",
        ),
        VerifierSpec(
            id="jigsaw/above-chance",
            target=OURS + "placement",
            options={"chance": "subtract"},
            graded=True,
            summary="the same, less the score of the identity or a lucky guess",
        ),
        VerifierSpec(id="jigsaw/exact", target=OURS + "exact", summary="every number of the answer is right"),
        VerifierSpec(id="jigsaw/pair", target=OURS + "pair", summary="the right choice of the relations offered"),
        VerifierSpec(id="jigsaw/format", target=OURS + "form", summary="an answer of the requested kind, and nothing else"),
        VerifierSpec(
            id="jigsaw/grid@jigsaw-r1", target=JIGSAW_R1 + "grid", graded=True, summary="Jigsaw-R1: share of right positions"
        ),
        VerifierSpec(
            id="jigsaw/connections@jigsaw-r1",
            target=JIGSAW_R1 + "connections",
            graded=True,
            summary="Jigsaw-R1: share of right neighbours",
        ),
        VerifierSpec(id="jigsaw/grid-format@jigsaw-r1", target=JIGSAW_R1 + "grid_format", summary="Jigsaw-R1: a grid of numbers"),
        VerifierSpec(id="jigsaw/pair@jigsaw-r1", target=JIGSAW_R1 + "letter", summary="Jigsaw-R1: the last capital"),
        VerifierSpec(id="jigsaw/letter-format@jigsaw-r1", target=JIGSAW_R1 + "letter_format", summary="Jigsaw-R1: a capital"),
        VerifierSpec(id="jigsaw/digit@jigsaw-r1", target=JIGSAW_R1 + "digit", summary="Jigsaw-R1: the first number"),
        VerifierSpec(id="jigsaw/digit-format@jigsaw-r1", target=JIGSAW_R1 + "digit_format", summary="Jigsaw-R1: a number"),
        VerifierSpec(id="jigsaw/box@jigsaw-r1", target=JIGSAW_R1 + "box", graded=True, summary="Jigsaw-R1: IoU by VLM-R1's rule"),
        VerifierSpec(id="jigsaw/point@jigsaw-r1", target=JIGSAW_R1 + "point", summary="Jigsaw-R1: the box's centre hits"),
        VerifierSpec(id="jigsaw/box-format@jigsaw-r1", target=JIGSAW_R1 + "box_format", summary="Jigsaw-R1: four numbers"),
        VerifierSpec(id="jigsaw/inverse@ssl4rl", target=SSL4RL + "inverse", graded=True, summary="SSL4RL: share of right places"),
    ]
