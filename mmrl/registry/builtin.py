"""The core's own specs, in the form of a plugin; their ids have no prefix."""

from __future__ import annotations

from mmrl.api.hooks import CONTRACT, hookimpl
from mmrl.api.specs import AlgorithmSpec, PolicySpec, TrackerSpec
from mmrl.registry import builtin_algorithms, builtin_losses

MMRL_CONTRACT = CONTRACT
ACTING = (
    ("pi0", "pi0.model:Pi0", "pi0: PaliGemma with an action expert, which turns noise into a chunk of actions by flow matching"),
    (
        "gr00t",
        "gr00t.policy:Gr00t",
        "GR00T N1.7 and N1.6: a backbone with a diffusion transformer, for robots that the checkpoint has statistics of",
    ),
    (
        "smolvla",
        "smolvla.model:SmolVLA",
        "SmolVLA: the first layers of a SmolVLM with an action expert; its checkpoints are LeRobot's",
    ),
    (
        "xvla",
        "xvla.model:XVLA",
        "X-VLA: Florence-2 with a soft-prompted transformer, for robots that are domains of the checkpoint",
    ),
    (
        "diffusion",
        "diffusion.model:Diffusion",
        "Diffusion Policy: a U-Net turns noise into a chunk of actions by denoising; its checkpoints are LeRobot's",
    ),
    (
        "act",
        "act.model:ACT",
        "ACT: a transformer foresees a chunk of actions at once, around which it explores; its checkpoints are LeRobot's",
    ),
    ("pi05", "pi0.pi05:Pi05", "pi0.5: pi0 with the robot's state in its prompt, and an expert that reads time in its norms"),
    ("pi0_fast", "pi0.pi0_fast:Pi0Fast", "pi0-FAST: PaliGemma says a chunk of actions in FAST's tokens, one after the other"),
)
"""Policies with a published network for actions: id, target within `mmrl.policies`, summary."""


@hookimpl
def mmrl_policies() -> list[PolicySpec]:
    return [
        PolicySpec(
            id="vlm",
            target="mmrl.policies.vlm.vlm:VLM",
            tiny="tiny:qwen2_5_vl",
            summary="Any image-text-to-text model of transformers",
        ),
        PolicySpec(
            id="reward",
            target="mmrl.policies.reward_model:RewardModel",
            rates=True,
            tiny="tiny:qwen2_5_vl",
            summary="A vision-language model with a scalar head that rates completions, trained on pairs",
        ),
        PolicySpec(
            id="openai",
            target="mmrl.policies.endpoint:EndpointPolicy",
            trainable=False,
            summary="A model behind an OpenAI-compatible endpoint, to be evaluated as a baseline",
        ),
        PolicySpec(
            id="vla",
            target="mmrl.policies.acting.vla:VLA",
            acts=True,
            tiny="tiny:qwen2_5_vl",
            summary="A Qwen vision-language model or OpenVLA as a robot policy: action tokens, or a head on its hidden states",
        ),
        PolicySpec(
            id="squashed",
            target="mmrl.policies.squashed:Squashed",
            acts=True,
            summary="A perceptron on the state or on a frozen policy's hidden states, for off-policy learning",
        ),
        PolicySpec(
            id="steered",
            target="mmrl.policies.steered:Steered",
            acts=True,
            summary="A perceptron that chooses the noise with which a frozen policy's flow begins, for off-policy learning",
        ),
        *(
            PolicySpec(id=id, target=f"mmrl.policies.{target}", acts=True, tiny=f"tiny:{id}", summary=summary)
            for id, target, summary in ACTING
        ),
    ]


@hookimpl
def mmrl_algorithms() -> list[AlgorithmSpec]:
    return [*builtin_algorithms.specs(), *builtin_losses.specs()]


@hookimpl
def mmrl_trackers() -> list[TrackerSpec]:
    return [
        TrackerSpec(
            id="tensorboard",
            target="mmrl.train.trackers.tensorboard:TensorBoard",
            requires=("tensorboard",),
            local=True,
            summary="Event files in the run folder's tensorboard/",
        ),
        TrackerSpec(id="wandb", target="mmrl.train.trackers.wandb:Wandb", requires=("wandb",), summary="Weights & Biases"),
        TrackerSpec(
            id="trackio", target="mmrl.train.trackers.trackio:Trackio", requires=("trackio",), summary="trackio, on this machine"
        ),
        TrackerSpec(
            id="mlflow", target="mmrl.train.trackers.mlflow:MLflow", requires=("mlflow",), summary="An MLflow server or store"
        ),
    ]
