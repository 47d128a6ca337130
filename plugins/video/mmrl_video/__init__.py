"""Clips: when something happens, questions, order, tracking; the rewards of Video-R1, Temporal-R1, TimeZero, Time-R1,
VideoChat-R1, SEED-Bench-R1, Video-RTS and VideoSSR."""

from typing import Any

from mmrl import AlgorithmSpec, SamplingRuleSpec, TaskSpec, VerifierSpec, hookimpl
from mmrl.api.specs import Bounds

MMRL_CONTRACT = 2

OURS = "mmrl_video.verifiers:"
ANSWERS = "mmrl_video.answers:"
SLOW = 10.0
"""Seconds for what asks math-verify; the worst formula that it is given takes 2."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [*_drawn(), *_data()]


def _drawn() -> list[TaskSpec]:
    """Clips drawn here, and what any clip asks about itself."""

    def task(id: str, target: str, verifiers: dict[str, float], summary: str, **more: Any) -> TaskSpec:
        paid = {f"video/{name}": weight for name, weight in verifiers.items()}
        return TaskSpec(id=f"video/{id}", target=f"mmrl_video.{target}", verifiers=paid, summary=summary, **more)

    form, anomaly, counting, jigsaw = {"format": 0.1}, "anomaly:Anomaly", "counting:Counting", "jigsaw:Jigsaw"
    large = {"size": "large", "frames": 48}
    return [
        task("choice", "drawn.choice:Choice", {"choice": 1.0} | form, "what happens in a drawn clip, of lettered options"),
        task("number", "drawn.number:Number", {"number": 1.0} | form, "how often something happens, how many go by"),
        task("ocr", "drawn.ocr:Reading", {"text": 1.0}, "which text appears in a drawn clip"),
        task("open", "drawn.open:Telling", {"open": 1.0}, "what happens in a drawn clip, in words"),
        task("regression", "drawn.regression:Measure", {"regression": 1.0} | form, "how long something lasts, how far it goes"),
        task("temporal", "drawn.temporal:Grounding", {"tiou": 1.0} | form, "when something happens in a drawn clip"),
        task("grounded", "drawn.grounded:GroundedChoice", {"grounded-choice": 1.0} | form, "what happens, and when"),
        task("tracking", "drawn.tracking:Tracking", {"tracking": 1.0} | form, "where a thing is at some moments"),
        task(
            "anomaly",
            f"pretext.{anomaly}",
            {"anomaly": 1.0} | form,
            "when a clip, drawn or yours, is disturbed",
            metric="video/tiou",
        ),
        task("counting", f"pretext.{counting}", {"count": 1.0} | form, "how many shapes were put into a clip, drawn or yours"),
        task("jigsaw", f"pretext.{jigsaw}", {"order": 1.0} | form, "in which order the parts of a clip, drawn or yours, belong"),
        *(
            task(
                f"{name}@videossr",
                f"pretext.{target}",
                {f"{name}@videossr": 1.0},
                "the same, of as many frames as VideoSSR shows, and paid as it pays",
                options={**large, **more},
            )
            for name, target, more in (("anomaly", anomaly, {}), ("counting", counting, {}), ("jigsaw", jigsaw, {"parts": 6}))
        ),
    ]


def _data() -> list[TaskSpec]:
    """Clips that people bring."""

    def task(id: str, target: str, verifiers: dict[str, float], summary: str, **options: Any) -> TaskSpec:
        metric = options.pop("metric", "")
        paid = {f"video/{name}": weight for name, weight in verifiers.items()}
        where = f"mmrl_video.data.{target}"
        return TaskSpec(id=f"video/{id}", target=where, verifiers=paid, options=options, summary=summary, metric=metric)

    when, ask, both, where = "temporal:TemporalData", "qa:QuestionData", "grounded:GroundedData", "tracking:TrackingData"
    form, span, letter = {"format": 0.1}, "video/tiou", "video/choice"

    def pays(system: str, *names: str, weight: float = 1.0) -> dict[str, float]:
        return {f"{name}@{system}": weight for name in names}

    found = [
        task("temporal-data", when, {"tiou": 1.0} | form, "Charades-STA, ActivityNet, Time-R1's, your own: when it happens"),
        task("qa-data", ask, {"answer": 1.0} | form, "Video-R1, NExT-QA, SEED-Bench-R1, your own: questions of all kinds"),
        task("grounded-data", both, {"grounded-choice": 1.0} | form, "NExT-GQA, your own: which option, and when it is seen"),
        task("tracking-data", where, {"tracking": 1.0} | form, "GOT-10k, your own: where a thing is at some moments"),
    ]
    for system, weight in (("temporal-r1", 0.5), ("timezero", 1.0), ("time-r1", 1.0), ("videochat-r1", 1.0)):
        paid = pays(system, "tiou", "format", weight=weight)
        found.append(
            task(f"temporal-data@{system}", when, paid, f"the same, as {system} asks and pays", style=system, metric=span)
        )
    r1, rts, seed, chat = "video-r1", "video-rts", "seed-bench-r1", "videochat-r1"
    gqa, track = pays(chat, "gqa-answer", "gqa-iou", "gqa-format"), pays(chat, "tracking-iou", "tracking-format")
    return [
        *found,
        task(f"qa-data@{r1}", ask, pays(r1, "answer", "format"), "the same, as Video-R1 asks and pays", style=r1),
        task(
            f"qa-data@{rts}", ask, pays(rts, "letter", "format"), "options, as Video-RTS asks and pays", style=rts, metric=letter
        ),
        task(f"qa-data@{seed}", ask, pays(seed, "letter"), "options, as SEED-Bench-R1 asks and pays", style=seed, metric=letter),
        task(f"grounded-data@{chat}", both, gqa, "the same, as VideoChat-R1 asks and pays", style=chat),
        task(f"tracking-data@{chat}", where, track, "the same, as VideoChat-R1 asks and pays", style=chat),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [*_verifiers(), *_published()]


def _verifiers() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, **more: Any) -> VerifierSpec:
        return VerifierSpec(id=f"video/{id}", target=OURS + target, summary=summary, **more)

    def answer(id: str, target: str, summary: str, **more: Any) -> VerifierSpec:
        return VerifierSpec(id=f"video/{id}", target=ANSWERS + target, summary=summary, **more)

    return [
        spec("tiou", "tiou", "temporal IoU of the span that is answered", graded=True),
        spec("anomaly", "anomaly", "temporal IoU beyond what the whole clip would earn", graded=True),
        spec("count", "count", "counts, by how far they are off for their size", graded=True),
        spec("order", "order", "the order of the parts; of another permutation the pairs that are right", graded=True),
        spec("tracking", "tracking", "mean IoU of the boxes of a thing over time", graded=True),
        spec("grounded-choice", "grounded_choice", "the letter of an option, and the span that shows it", graded=True),
        answer("choice", "choice", "the letter of the right option"),
        answer("number", "number", "the number, within a tolerance"),
        answer("regression", "number", "the number, by its relative error, as VSI-Bench", graded=True, options={"graded": True}),
        answer("text", "text", "a text that was read: 1 less its word error rate", graded=True),
        answer("open", "open_", "a free answer: the F1 of its words", graded=True),
        VerifierSpec(
            id="video/answer", target="mmrl_video.kinds:answer", summary="one of these, by the kind of question", graded=True
        ),
        spec("format", "form", "the form of answer that the task asks for"),
    ]


def _published() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, **more: Any) -> VerifierSpec:
        return VerifierSpec(id=f"video/{id}", target=f"mmrl_video.{target}", summary=summary, **more)

    regular = "1 for the exact option or number, or by how near texts and numbers are"
    return [
        spec("answer@video-r1", "video_r1:answer", f"Video-R1: {regular}", graded=True),
        spec("format@video-r1", "video_r1:form", "Video-R1: think, then answer, nothing else"),
        spec("tiou@temporal-r1", "temporal_r1:tiou", "Temporal-R1: temporal IoU of JSON in seconds", graded=True),
        spec("format@temporal-r1", "temporal_r1:form", "Temporal-R1: think, then JSON with quoted times"),
        spec("tiou@timezero", "timezero:tiou", "TimeZero: temporal IoU of the last span", graded=True),
        spec("format@timezero", "timezero:form", "TimeZero: think, then answer, blanks around"),
        spec("tiou@time-r1", "time_r1:tiou", "Time-R1: temporal IoU, less for edges that are off", graded=True, low=-1.0),
        spec("format@time-r1", "timezero:form", "Time-R1: think, then answer, blanks around"),
        spec("tiou@videochat-r1", "videochat_r1:tiou", "VideoChat-R1: temporal IoU of the last span", graded=True),
        spec("format@videochat-r1", "videochat_r1:form", "VideoChat-R1: think, then answer, blanks around"),
        spec("gqa-answer@videochat-r1", "videochat_r1:gqa_answer", "VideoChat-R1: the letter of a grounded question"),
        spec("gqa-iou@videochat-r1", "videochat_r1:gqa_iou", "VideoChat-R1: IoU of its spans of time", graded=True),
        spec("gqa-format@videochat-r1", "videochat_r1:gqa_form", "VideoChat-R1: think, answer, then spans in their tag"),
        spec("tracking-iou@videochat-r1", "videochat_r1:tracking_iou", "VideoChat-R1: mean IoU of eight boxes", graded=True),
        spec("tracking-format@videochat-r1", "videochat_r1:tracking_form", "VideoChat-R1: think, then eight boxes"),
        spec("letter@seed-bench-r1", "seed_bench_r1:letter", "SEED-Bench-R1: the first sign of the answer", timeout_s=SLOW),
        spec("letter@video-rts", "video_rts:letter", "Video-RTS: the first letter of the answer", timeout_s=SLOW),
        spec("format@video-rts", "video_rts:form", "Video-RTS: begins with think, then answer"),
        spec("anomaly@videossr", "videossr:anomaly", "VideoSSR: temporal IoU of the disturbed frames", graded=True),
        spec("counting@videossr", "videossr:counting", "VideoSSR: counts, by their relative errors", graded=True),
        spec("jigsaw@videossr", "videossr:jigsaw", "VideoSSR: the order of parts, by how far they are off", graded=True),
    ]


@hookimpl
def mmrl_sampling_rules() -> list[SamplingRuleSpec]:
    return [
        SamplingRuleSpec(
            id="video/temporal-contrast",
            target="mmrl_video.temporal_contrast:TemporalContrast",
            summary="Pay right answers to videos that are answered better than with their frames shuffled",
        )
    ]


@hookimpl
def mmrl_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec(
            id="video/t-grpo",
            target="mmrl.algorithms.advantage:group_relative",
            normalise="sequence",
            stage_defaults={"rules": [{"id": "video/temporal-contrast"}]},
            bounds={"epsilon": Bounds(low=0)},
            summary="GRPO that pays for answers to videos which are worse when the frames are shuffled",
            paper="Feng et al., Video-R1, section 3.2",
        )
    ]
