"""Image classification: digits, a folder of pictures, any data set; closed-set and open-ended; base-to-new."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

TASK = "mmrl_classification.task:"
OURS = "mmrl_classification.verifiers:"
CLS_RL = "mmrl_classification.cls_rl:"
TAGGED = {"classification/answer": 1.0, "classification/format": 0.1}
THINKING = {"classification/answer@cls-rl": 1.0, "classification/format@cls-rl": 1.0}
DIRECT = {"classification/exact@cls-rl": 1.0}


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    tasks = [
        TaskSpec(
            id="classification/digits",
            target=TASK + "Digits",
            verifiers={"classification/answer": 1.0},
            summary="1,797 handwritten digits, part of scikit-learn",
        )
    ]
    for name, target, what in (
        ("folder", TASK + "Folder", "your own images, one folder per class"),
        ("dataset", TASK + "Dataset", "a Hugging Face data set, local or from the Hub"),
    ):
        tasks += [
            TaskSpec(id=f"classification/{name}", target=target, verifiers=TAGGED, summary=what),
            TaskSpec(
                id=f"classification/{name}@cls-rl",
                target=target,
                options={"style": "cls-rl"},
                verifiers=THINKING,
                summary=f"{what}, as in CLS-RL (Li et al. 2025): think, then answer",
            ),
            TaskSpec(
                id=f"classification/{name}@no-thinking-rl",
                target=target,
                options={"style": "no-thinking"},
                verifiers=DIRECT,
                summary=f"{what}, as in No-Thinking-RL (Li et al. 2025): answer at once",
            ),
        ]
    return tasks


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="classification/exact", target=OURS + "exact", summary="the completion is the answer"),
        VerifierSpec(id="classification/answer", target=OURS + "answer", summary="the single answer tag contains the answer"),
        VerifierSpec(
            id="classification/calibration",
            target=OURS + "calibration",
            graded=True,
            summary="the stated confidence is that of being right (RLCR)",
        ),
        VerifierSpec(id="classification/contains", target=OURS + "contains", summary="the answer occurs and no other label does"),
        VerifierSpec(id="classification/format", target=OURS + "form", summary="one think block, then one answer block"),
        VerifierSpec(id="classification/answer@cls-rl", target=CLS_RL + "answer", summary="CLS-RL's accuracy reward"),
        VerifierSpec(
            id="classification/open-answer@cls-rl",
            target=CLS_RL + "answer",
            options={"underscores": "either"},
            summary="CLS-RL's accuracy reward for pets and food, open-ended",
        ),
        VerifierSpec(id="classification/exact@cls-rl", target=CLS_RL + "exact", summary="No-Thinking-RL's reward"),
        VerifierSpec(id="classification/format@cls-rl", target=CLS_RL + "form", summary="CLS-RL's format reward"),
    ]
