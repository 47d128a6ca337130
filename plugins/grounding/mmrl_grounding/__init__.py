"""Referring expressions, detection, counting, pointing on pictures; the rewards of VLM-R1, Vision-R1 and VisionReasoner."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

TASK = "mmrl_grounding.task:"
DATA = "mmrl_grounding.data_task:"
OURS = "mmrl_grounding.verifiers:"
VLM_R1 = "mmrl_grounding.vlm_r1:"
VISION_R1 = "mmrl_grounding.vision_r1:"
VISUAL_RFT = "mmrl_grounding.visual_rft:"
VISION_REASONER = "mmrl_grounding.vision_reasoner:"
REASON = "mmrl_grounding.reason_task:ReasonData"
REGION = "mmrl_grounding.region_task:RegionData"
MASKS = "mmrl_grounding.masks:"


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [*_scenes(), *_data()]


def _scenes() -> list[TaskSpec]:
    def scene(name: str, target: str, verifiers: dict[str, float], summary: str) -> TaskSpec:
        named = {f"grounding/{verifier}": weight for verifier, weight in verifiers.items()}
        return TaskSpec(id=f"grounding/{name}", target=TASK + target, verifiers=named, summary=summary)

    return [
        scene(
            "refer", "Refer", {"iou": 1.0, "format": 0.1}, "one box for a description such as the red oval, on composed scenes"
        ),
        scene("detect", "Detect", {"hungarian": 1.0}, "all objects of some labels, on composed scenes"),
        scene("count", "Count", {"count": 1.0, "format": 0.1}, "how many objects there are, on composed scenes"),
        scene("point", "Point", {"point": 1.0, "format": 0.1}, "a point on the described object, on composed scenes"),
    ]


def _data() -> list[TaskSpec]:
    def data(name: str, target: str, verifiers: dict[str, float], summary: str, **options: object) -> TaskSpec:
        named = {f"grounding/{verifier}": weight for verifier, weight in verifiers.items()}
        return TaskSpec(id=f"grounding/{name}", target=DATA + target, verifiers=named, options=options, summary=summary)

    refer, detect = "your own referring expressions", "your own pictures with boxes, such as COCO's JSON"
    vision_r1 = {"precision@vision-r1": 1.0, "recall@vision-r1": 1.0, "format@vision-r1": 1.0}
    return [
        data("refer-data", "ReferData", {"iou": 1.0, "format": 0.1}, f"{refer}: one box"),
        data("detect-data", "DetectData", {"hungarian": 1.0}, f"{detect}: all objects"),
        data("count-data", "CountData", {"count": 1.0, "format": 0.1}, "your own pictures with boxes or numbers: how many"),
        data("point-data", "PointData", {"point": 1.0, "format": 0.1}, "your own pictures with boxes: a point on one thing"),
        TaskSpec(
            id="grounding/region-data",
            target=REGION,
            verifiers={"grounding/region": 1.0, "grounding/format": 0.1},
            summary="your own pictures with masks: a point in the region that is asked for",
        ),
        data("refer@vlm-r1", "ReferData", {"iou@vlm-r1": 1.0, "format@vlm-r1": 1.0}, f"{refer}, as VLM-R1", style="vlm-r1"),
        data(
            "detect@vlm-r1",
            "DetectData",
            {"od-length@vlm-r1": 1.0, "format-od@vlm-r1": 1.0},
            f"{detect}, as VLM-R1",
            style="vlm-r1",
        ),
        TaskSpec(
            id="grounding/refer@vision-reasoner",
            target=REASON,
            verifiers={f"grounding/{name}@vision-reasoner": 1.0 for name in ("accuracy", "format", "non-repeat")},
            summary=f"{refer}, one or several boxes with points, as VisionReasoner",
        ),
        data(
            "detect@visual-rft",
            "DetectData",
            {"iou@visual-rft": 1.0, "confidence@visual-rft": 1.0, "format-od@vlm-r1": 1.0},
            f"{detect}, one kind at a time, as Visual-RFT",
            style="visual-rft",
            labels="present",
        ),
        data("detect@vision-r1", "DetectData", vision_r1, f"{detect}, as Vision-R1", style="vision-r1", most=30),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [*_ours(), *_published()]


def _ours() -> list[VerifierSpec]:
    def graded(id: str, target: str, summary: str, low: float = 0.0, **options: object) -> VerifierSpec:
        target = OURS + target
        return VerifierSpec(id=f"grounding/{id}", target=target, graded=True, low=low, options=options, summary=summary)

    def strict(id: str, target: str, summary: str, **options: object) -> VerifierSpec:
        return VerifierSpec(id=f"grounding/{id}", target=OURS + target, options=options, summary=summary)

    return [
        graded("iou", "iou", "IoU of the one box answered"),
        strict(
            "iou50", "iou", "1 if the IoU is at least 0.5: the accuracy of referring expressions", threshold=0.5, graded=False
        ),
        graded("giou", "giou", "generalised IoU of the one box answered, -1 to 1", low=-1.0),
        graded("ap", "ap", "COCO's average precision of the boxes listed"),
        graded("ap50", "ap", "COCO's average precision at IoU 0.5", only_50=True),
        graded("ap-length", "ap", "COCO's average precision, less for superfluous boxes", length=True),
        graded("hungarian", "hungarian", "IoUs of the best matching by label, over the larger number of boxes"),
        strict("count", "count", "the exact number of objects"),
        strict("point", "point", "the point is inside the box"),
        VerifierSpec(id="grounding/region", target=MASKS + "region", summary="the point is on the mask"),
        graded("point-near", "point", "1 inside the box, outside less with the distance", graded=True),
        strict("format", "form", "the answer's format is the one that the task requests"),
    ]


def _published() -> list[VerifierSpec]:
    raw = {"rescale": False}

    def graded(id: str, target: str, summary: str, high: float = 1.0, **options: object) -> VerifierSpec:
        return VerifierSpec(id=f"grounding/{id}", target=target, graded=True, high=high, options=options, summary=summary)

    def strict(id: str, target: str, summary: str, **options: object) -> VerifierSpec:
        return VerifierSpec(id=f"grounding/{id}", target=target, options=options, summary=summary)

    return [
        graded("iou@vlm-r1", VLM_R1 + "iou", "VLM-R1's IoU of one box, Qwen module"),
        graded("iou@vlm-r1-internvl", VLM_R1 + "iou", "VLM-R1's IoU of one box, InternVL module", **raw),
        graded("iou@vlm-r1-glm", VLM_R1 + "iou", "VLM-R1's IoU of one box, GLM module", **raw, convention="continuous"),
        strict("format@vlm-r1", VLM_R1 + "form", "VLM-R1's format of one box, Qwen module"),
        strict("format@vlm-r1-internvl", VLM_R1 + "form", "VLM-R1's format of one box, InternVL module", box="list"),
        strict("format@vlm-r1-glm", VLM_R1 + "form", "VLM-R1's format of one box, GLM module", box="none"),
        graded("ap@vlm-r1", VLM_R1 + "ap", "VLM-R1's od_ap: COCO's AP of listed boxes"),
        graded("ap50@vlm-r1", VLM_R1 + "ap", "VLM-R1's od_ap50: COCO's AP at IoU 0.5", only_50=True),
        graded("od-length@vlm-r1", VLM_R1 + "ap", "VLM-R1's odLength: AP, less for superfluous boxes", length=True),
        graded("weighted-sum@vlm-r1", VLM_R1 + "weighted_sum", "VLM-R1's weighted_sum: position and completeness"),
        strict("format-od@vlm-r1", VLM_R1 + "turns", "VLM-R1's format of detection: think, then answer, nothing else"),
        graded("precision@vision-r1", VISION_R1 + "precision", "Vision-R1's precision: GIoU of the matched boxes"),
        graded("recall@vision-r1", VISION_R1 + "recall", "Vision-R1's recall: share of the true boxes that are found"),
        strict("format@vision-r1", VISION_R1 + "form", "Vision-R1's dual format: the completion is JSON of boxes"),
        graded("iou@visual-rft", VISUAL_RFT + "iou", "Visual-RFT's IoU reward of detection"),
        graded("confidence@visual-rft", VISUAL_RFT + "confidence", "Visual-RFT's confidence reward of detection"),
        graded("accuracy@vision-reasoner", VISION_REASONER + "accuracy", "VisionReasoner's boxes and points, 0 to 3", high=3.0),
        graded("format@vision-reasoner", VISION_REASONER + "form", "VisionReasoner's format, 0 to 3", high=3.0),
        strict("thought@vision-reasoner", VISION_REASONER + "form", "the tags' part of VisionReasoner's format", entries=False),
        graded(
            "entries@vision-reasoner",
            VISION_REASONER + "form",
            "the boxes' and points' part of VisionReasoner's format, 0 to 2",
            high=2.0,
            thought=False,
        ),
        strict("non-repeat@vision-reasoner", VISION_REASONER + "non_repeat", "VisionReasoner's penalty of repeated sentences"),
    ]
