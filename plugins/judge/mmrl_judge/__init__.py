"""Models and people as judges: verifiers that ask an endpoint or a reward model, tasks on pairs of answers, and harder
questions by a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmrl import SamplingRuleSpec, TaskSpec, VerifierSpec, hookimpl
from mmrl.api.endpoints import JUDGE_KEYS

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="judge/pairs",
            target="mmrl_judge.pairs:Pairs",
            verifiers={"judge/same": 1.0},
            summary="your own pairs of answers, of which one is preferred, in TRL's or LLaVA-RLHF's form",
        ),
        TaskSpec(
            id="judge/right",
            target="mmrl_judge.reward_tasks:Right",
            verifiers={"judge/verdict": 1.0},
            summary="is an answer right, yes or no: a generative reward model from the pairs of another task",
        ),
        TaskSpec(
            id="judge/better",
            target="mmrl_judge.reward_tasks:Better",
            verifiers={"judge/verdict": 1.0},
            summary="which of two answers is better: a pairwise reward model from the pairs of another task",
        ),
        TaskSpec(
            id="judge/recycled",
            target="mmrl_judge.spark.task:RecycledJudging",
            verifiers={"judge/boxed": 1.0},
            summary="is an answer of another task right, which of two is: the policy as its own judge (SPARK)",
        ),
    ]


@hookimpl
def mmrl_sampling_rules() -> list[SamplingRuleSpec]:
    return [
        SamplingRuleSpec(
            id="judge/recycle",
            target="mmrl_judge.spark.rule:Recycle",
            summary="also train on judgements and reflections about the step's own rollouts (SPARK)",
        ),
        SamplingRuleSpec(
            id="judge/preferred",
            target="mmrl_judge.preferred.rule:Preferred",
            smoke={"after": 0, "every": 1, "pairs": 8, "epochs": 1},
            summary="pay episodes by a reward that is learned from a model's preferences between pictures (RL-VLM-F)",
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str) -> VerifierSpec:
        given: dict[str, Any] = dict(model=True, batch_size=64, rollout=True, images=True, graded=True, environment=JUDGE_KEYS)
        return VerifierSpec(id=f"judge/{id}", target=f"mmrl_judge.{target}", summary=summary, timeout_s=120.0, **given)

    def local(id: str, target: str, summary: str) -> VerifierSpec:
        given: dict[str, Any] = dict(model=True, batch_size=32, rollout=True, images=True, graded=True, timeout_s=120.0)
        return VerifierSpec(id=f"judge/{id}", target=f"mmrl_judge.reward_models:{target}", summary=summary, **given)

    def dimension(id: str, target: str, summary: str, **bounds: float) -> VerifierSpec:
        given: dict[str, Any] = dict(model=True, batch_size=32, rollout=True, graded=True, timeout_s=120.0) | bounds
        return VerifierSpec(id=f"judge/{id}", target=f"mmrl_judge.dimensions:{target}", summary=summary, **given)

    return [
        spec("openai", "rating:Rating", "a model's rating of the answer"),
        spec("rubric", "rubric:Rubric", "share of a rubric's criteria that a model finds met"),
        spec("pairwise", "pairwise:Pairwise", "whether a model prefers the answer to a reference, asked in both orders"),
        local("right", "Right", "probability that a reward model calls the answer right"),
        local("better", "Better", "probability that a reward model prefers the answer to a reference, in both orders"),
        local("reward", "Rating", "rating of a reward model with a scalar head, brought to 0..1"),
        dimension("confidence", "Confidence", "how sure the policy was of its reasoning and answer (DRM)", low=-20.0, high=0.0),
        dimension(
            "relevance", "Relevance", "whether question, reasoning and answer support each other, by a model of texts (DRM)"
        ),
        dimension("coherence", "Coherence", "rating of the reasoning by a reward model of texts (DRM)"),
        VerifierSpec(id="judge/same", target="mmrl_judge.pairs:same", summary="the completion is the preferred answer"),
        VerifierSpec(id="judge/verdict", target="mmrl_judge.reward_tasks:verdict", summary="the verdict on an answer is right"),
        VerifierSpec(id="judge/boxed", target="mmrl_judge.spark.task:boxed", summary="the verdict in the last box is right"),
    ]


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    from mmrl_judge.commands import consult, synth

    cli.add_command(synth)
    cli.add_command(consult)
