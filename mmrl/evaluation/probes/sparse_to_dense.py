"""The sparse-to-dense probe: answer from few frames if the answers agree, from more if they don't. It is the test-time scaling of
Video-RTS (Wang et al., section 3.3)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmrl.api.seeds import derive
from mmrl.api.tasks.perturb import subsample_frames
from mmrl.api.types import Case, Prompt
from mmrl.api.votes import majority
from mmrl.compute import ranks
from mmrl.config.sections import RunConfig
from mmrl.evaluation.answers import Answering, Answers
from mmrl.evaluation.probes.probe import Probe, Probed
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.steering import Steering

TEMPERATURE, WARMER = 0.8, 0.15
"""Temperature of the first answer, and its increase for each further one."""
TOP_P = (0.7, 0.95)
"""`top_p` of the first and of the last answer."""


class SparseToDense(Probe):
    """`evaluate.sparse_frames`: `sparse_to_dense`, the mean score of the answers of `answer_by_rungs`, and the figures of
    `frame_metrics`."""

    def __init__(self, rungs: Sequence[int], agree: int) -> None:
        self.rungs, self.agree = rungs, agree

    @classmethod
    def of(cls, config: RunConfig) -> SparseToDense | None:
        return cls(config.evaluate.sparse_frames, config.evaluate.sparse_agreement) if config.evaluate.sparse_frames else None

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        if not plain.have_videos:
            return Probed()

        def ask(prompts: Sequence[Prompt], frames: int, number: int) -> list[Case]:
            return ranks.gather_sharded(lambda: self._answered(asking, label, prompts, frames, number))

        posed = asking.heldout.prompts(asking.setup.entries[label])
        decided = answer_by_rungs(posed, self.rungs, self.agree, ask, lambda case: asking.read(label, case.completion))
        scores = asking.judge.run(asking.setup.metrics[label], [one.case for one in decided])
        asking.check_failures(scores, f"evaluation of {label!r} from sparse to dense")
        value = statistics.fmean(s.value for s in scores if s.value is not None)
        return Probed({"sparse_to_dense": value} | frame_metrics(decided, self.rungs))

    def _answered(self, asking: Answering, label: str, prompts: Sequence[Prompt], frames: int, number: int) -> dict[int, Case]:
        """The answer with this number to each of this rank's prompts, from `frames` frames."""
        seed = derive(asking.config.seed, "sparse", label, frames, number)
        how = rung_sampling(number, self.agree, asking.max_tokens(label), seed)
        cases: dict[int, Case] = {}
        own, at_once = [n for n in range(len(prompts)) if ranks.owns(n)], asking.collector.batch_size
        for start in range(0, len(own), at_once):
            batch = own[start : start + at_once]
            shown = [subsample_frames(asking.shown(prompts[n]), frames) for n in batch]
            rollouts = asking.collector.collect(shown, asking.collector.encode(shown), 1, how, numbers=batch)
            answered = [replace(r, prompt=prompts[n]) for n, r in zip(batch, rollouts, strict=True)]
            cases |= zip(batch, asking.cases_for(label, answered), strict=True)
        return cases


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseAnswer:
    """The final answer to a prompt, and its number of frames."""

    case: Case
    frames: int


def answer_by_rungs(
    prompts: Sequence[Prompt],
    rungs: Sequence[int],
    agree: int,
    ask: Callable[[Sequence[Prompt], int, int], Sequence[Case]],
    read: Callable[[Case], str],
) -> list[SparseAnswer]:
    """Each prompt's final answer: from the first number of frames for which all answers agree, else the majority's from the last.

    rungs: rising numbers of frames. agree: number of answers to a prompt from each rung. ask: (prompts, frames, number of the
    answer) -> an answer to each prompt. read: extracts an answer; blank if there is none, which agrees with no other.
    """
    found: dict[int, SparseAnswer] = {}
    for frames in rungs:
        left = [i for i in range(len(prompts)) if i not in found]
        given = [ask([prompts[i] for i in left], frames, number) for number in range(agree)] if left else []
        for i, cases in zip(left, zip(*given, strict=True), strict=True):
            answers = [read(case) for case in cases]
            winner = majority(answers)
            if frames == rungs[-1] or (winner and set(answers) == {winner}):
                chosen = answers.index(winner) if winner else 0  # what is blank isn't always ""
                found[i] = SparseAnswer(case=cases[chosen], frames=frames)
    return [found[i] for i in range(len(prompts))]


def rung_sampling(number: int, agree: int, max_tokens: int, seed: int) -> SamplingParams:
    """The sampling parameters of the answer with this number, of `agree` answers."""
    low, high = TOP_P
    top_p = low + (high - low) * number / max(agree - 1, 1)
    return SamplingParams(max_tokens=max_tokens, temperature=TEMPERATURE + WARMER * number, top_p=top_p, seed=seed)


def frame_metrics(decided: Sequence[SparseAnswer], rungs: Sequence[int]) -> dict[str, float]:
    """`frames/mean`: frames of the final answers; `frames/all`: frames of all rungs tried, as a multiple of the last rung's;
    `frames/agreed_share`: share of prompts answered from the fewest frames."""
    looked_at = [sum(r for r in rungs if r <= one.frames) for one in decided]
    return {
        "frames/mean": statistics.fmean(one.frames for one in decided),
        "frames/all": statistics.fmean(looked_at) / rungs[-1],
        "frames/agreed_share": statistics.fmean(one.frames == rungs[0] for one in decided),
    }
