"""Route planning on transit maps, from easy questions to plans; the rewards of RewardMap."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2

OURS = "mmrl_transit.verifiers:"


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="transit/question",
            target="mmrl_transit.task:Questions",
            verifiers={"transit/answer": 1.0, "transit/format": 0.1},
            summary="short questions about a drawn transit map: yes or no, counts, a line, a letter",
        ),
        TaskSpec(
            id="transit/plan",
            target="mmrl_transit.task:Plans",
            verifiers={"transit/route": 1.0, "transit/format": 0.1},
            summary="a trip on a drawn transit map, with the fewest transfers, then the fewest stops",
        ),
        TaskSpec(
            id="transit/rows",
            target="mmrl_transit.reasonmap:Rows",
            verifiers={"transit/score": 1.0, "transit/format": 0.1},
            summary="your own maps and questions, in the form of ReasonMap and ReasonMap-Plus",
        ),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="transit/answer", target=OURS + "answer", summary="the single answer tag contains the short answer"),
        VerifierSpec(id="transit/route", target=OURS + "route", graded=True, summary="the share of the plan that is right"),
        VerifierSpec(id="transit/arrives", target=OURS + "arrives", summary="the plan arrives with the fewest transfers"),
        VerifierSpec(id="transit/score", target=OURS + "score", graded=True, summary="route for plans, answer for questions"),
        VerifierSpec(id="transit/format", target=OURS + "form", summary="one answer block, perhaps after one think block"),
        VerifierSpec(
            id="transit/score@rewardmap",
            target="mmrl_transit.rewardmap:score",
            low=-500.0,
            high=30.0,
            graded=True,
            summary="RewardMap's reward: accuracy and detail, weighted by difficulty",
        ),
    ]
