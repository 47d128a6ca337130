"""Verifiers that ask a model behind an OpenAI-compatible endpoint: a rating, a rubric, a comparison with a reference."""

from typing import Any

from mmrl import VerifierSpec, hookimpl

MMRL_CONTRACT = 2

KEYS = ("OPENAI_API_KEY", "MMRL_JUDGE_KEY")
"""Environment variables from which a verifier may read the endpoint's key."""


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str) -> VerifierSpec:
        given: dict[str, Any] = dict(model=True, batch_size=64, rollout=True, images=True, graded=True, environment=KEYS)
        return VerifierSpec(id=f"judge/{id}", target=f"mmrl_judge.{target}", summary=summary, timeout_s=120.0, **given)

    return [
        spec("openai", "rating:Rating", "a model's rating of the answer"),
        spec("rubric", "rubric:Rubric", "share of a rubric's criteria that a model finds met"),
        spec("pairwise", "pairwise:Pairwise", "whether a model prefers the answer to a reference, asked in both orders"),
    ]
