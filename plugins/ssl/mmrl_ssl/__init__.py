"""Self-supervised vision: rotation, contrastive pairs, quadrant position, masked patch; the rewards of SSL4RL."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

TASK = "mmrl_ssl.task:"
EXACT = {"ssl/exact": 1.0}
PUBLISHED: tuple[tuple[str, dict[str, object], str], ...] = (
    ("rotation", {"pictures": 2}, "by how many degrees the second picture is rotated"),
    ("contrastive", {"strength": "simclr"}, "whether two views are of one picture"),
    ("position", {}, "from which quarter a piece is"),
)


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="ssl/rotation", target=TASK + "Rotation", verifiers=EXACT, summary="by how many degrees a picture was rotated"
        ),
        TaskSpec(
            id="ssl/contrastive", target=TASK + "Contrastive", verifiers=EXACT, summary="whether two views are of one picture"
        ),
        TaskSpec(
            id="ssl/position", target=TASK + "Position", verifiers=EXACT, summary="from which quarter of a picture a piece is"
        ),
        TaskSpec(id="ssl/masked", target=TASK + "Masked", verifiers=EXACT, summary="which patch fills the hole in a picture"),
        *(
            TaskSpec(
                id=f"ssl/{name}@ssl4rl",
                target=f"{TASK}{name.capitalize()}",
                options={"style": "ssl4rl", "size": 224, **options},
                verifiers={f"ssl/{name}@ssl4rl": 1.0},
                summary=f"{what}, as in SSL4RL (Guo et al. 2025)",
            )
            for name, options, what in PUBLISHED
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="ssl/exact", target="mmrl_ssl.verifiers:exact", summary="the answer is one of those allowed"),
        VerifierSpec(
            id="ssl/angle",
            target="mmrl_ssl.verifiers:angle",
            graded=True,
            summary="closeness of an angle: 0 if it is 90 degrees off or more",
        ),
        *(
            VerifierSpec(id=f"ssl/{name}@ssl4rl", target="mmrl_ssl.ssl4rl:answer", summary=f"SSL4RL's reward for {name}")
            for name, _, _ in PUBLISHED
        ),
    ]
