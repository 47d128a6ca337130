"""Thinking with images: questions whose answers take tools, such as a zoom or a sandboxed program; the rewards of DeepEyes and
Pixel Reasoner."""

from mmrl import SamplingRuleSpec, TaskSpec, VerifierSpec, hookimpl
from mmrl.api.endpoints import JUDGE_KEYS

MMRL_CONTRACT = 2

TABLE = "mmrl_tools.table:Answer"
DEEPEYES = "mmrl_tools.deepeyes:"
SLOW = 10.0
"""Timeout of the verifier that uses math-verify, in seconds."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="tools/fine-print",
            target="mmrl_tools.fine_print:FinePrint",
            verifiers={"tools/answer": 1.0},
            summary="drawn cards whose small print can only be read by a zoom",
        ),
        TaskSpec(id="tools/answer", target=TABLE, verifiers={"tools/answer": 1.0}, summary="your own questions, with tools"),
        TaskSpec(
            id="tools/answer@deepeyes",
            target=TABLE,
            options={"system": "deepeyes", "tools": ["image_zoom_in_tool"], "style": "think"},
            verifiers={"tools/reward@deepeyes": 1.0},
            metric="tools/answer",
            summary="your own questions, with the tools and the reward of DeepEyes (Zheng et al. 2025)",
        ),
        TaskSpec(
            id="tools/answer@pixel-reasoner",
            target=TABLE,
            options={"system": "pixel-reasoner", "tools": ["crop_image_normalized", "select_frames"]},
            verifiers={"tools/reward@pixel-reasoner": 1.0},
            metric="tools/answer",
            summary="your own questions, with the tools and the reward of Pixel Reasoner (Su et al. 2025)",
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="tools/answer", target="mmrl_tools.verifiers:answer", summary="the answer of the last turn"),
        VerifierSpec(
            id="tools/reward@deepeyes",
            target=DEEPEYES + "reward",
            low=-0.2,
            high=2.0,
            graded=True,
            rollout=True,
            summary="DeepEyes' accuracy, format, and bonus for tools where the answer is right",
        ),
        VerifierSpec(
            id="tools/judged-reward@deepeyes",
            target="mmrl_tools.deepeyes_judge:JudgedReward",
            low=-0.2,
            high=2.0,
            graded=True,
            rollout=True,
            timeout_s=120.0,
            model=True,
            batch_size=64,
            environment=JUDGE_KEYS,
            summary="the same, where a model behind an endpoint judges the answer",
        ),
        VerifierSpec(
            id="tools/reasoning-reward@deepeyes",
            target=DEEPEYES + "reasoning_reward",
            low=-0.2,
            high=2.0,
            graded=True,
            rollout=True,
            summary="the same for its data of reasoning, where the answer must be between tags",
        ),
        VerifierSpec(
            id="tools/math-reward@deepeyes",
            target=DEEPEYES + "math_reward",
            low=-0.4,
            high=1.2,
            graded=True,
            rollout=True,
            timeout_s=SLOW,
            summary="DeepEyes' reward of mathematics, without tools",
        ),
        VerifierSpec(
            id="tools/reward@pixel-reasoner",
            target="mmrl_tools.pixel_reasoner:reward",
            summary="Pixel Reasoner's accuracy, 0 where the last call failed",
        ),
    ]


@hookimpl
def mmrl_sampling_rules() -> list[SamplingRuleSpec]:
    return [
        SamplingRuleSpec(
            id="tools/curiosity@pixel-reasoner",
            target="mmrl_tools.pixel_reasoner:Curiosity",
            summary="pays for tools where few of a group use them",
        ),
        SamplingRuleSpec(
            id="tools/refill@pixel-reasoner",
            target="mmrl_tools.pixel_reasoner:Refill",
            summary="repeats groups whose rewards differ in the place of those that are all the same",
        ),
    ]
