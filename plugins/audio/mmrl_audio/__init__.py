"""Questions about sounds: your own with options, and beeps, tones and rhythms made by code; the prompts and rewards of R1-AQA."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

R1_AQA = "mmrl_audio.r1_aqa:"
SLOW = 10.0
"""Timeout of verifiers that use math-verify, in seconds; the worst formula takes 2."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    ours = {"audio/choice": 1.0}
    published = {"audio/accuracy@r1-aqa": 1.0, "audio/format@r1-aqa": 1.0}
    return [
        TaskSpec(
            id="audio/sounds",
            target="mmrl_audio.made:Sounds",
            verifiers=ours,
            summary="sounds made by code: which one, which first, how many beeps, higher or lower, the same rhythm",
        ),
        TaskSpec(
            id="audio/sounds@r1-aqa",
            target="mmrl_audio.made:Sounds",
            options={"style": "r1-aqa"},
            verifiers=published,
            metric="audio/accuracy@r1-aqa",
            summary="sounds made by code, with prompt and rewards of R1-AQA (Li et al. 2025)",
        ),
        TaskSpec(
            id="audio/choice-data",
            target="mmrl_audio.data:ChoiceData",
            verifiers=ours,
            summary="your own questions with options about sounds: AVQA, MMAU, folders of sounds by class",
        ),
        TaskSpec(
            id="audio/choice-data@r1-aqa",
            target="mmrl_audio.data:ChoiceData",
            options={"style": "r1-aqa"},
            verifiers=published,
            metric="audio/accuracy@r1-aqa",
            summary="your own questions with options about sounds, with prompt and rewards of R1-AQA (Li et al. 2025)",
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="audio/choice", target="mmrl_audio.verifiers:choice", summary="the right option in its own words"),
        VerifierSpec(id="audio/accuracy@r1-aqa", timeout_s=SLOW, target=R1_AQA + "accuracy", summary="R1-AQA's accuracy"),
        VerifierSpec(id="audio/format@r1-aqa", target=R1_AQA + "form", summary="R1-AQA's format reward"),
        VerifierSpec(
            id="audio/think-format@r1-aqa",
            target=R1_AQA + "form",
            options={"think": True},
            summary="R1-AQA's format reward for a thought and an answer",
        ),
    ]
