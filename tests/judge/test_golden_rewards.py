"""Every row of the golden tables whose verifier exists: published rewards, reproduced. `tests/support/golden_*.py` wrote the
tables that are named after a system."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from mmrl import Case, Score
from mmrl.api.types import Status
from mmrl.registry import plugins

TOLERANCE = 2e-6
MUST_RUN = {
    **{"classification/answer@cls-rl": 22, "classification/exact@cls-rl": 18, "classification/open-answer@cls-rl": 22},
    **{"vqa/points24@generalpoints": 492, "vqa/reward@maye": 149, "vqa/navigation@v-irl": 244},
    **{"video/answer@video-r1": 42, "video/tiou@time-r1": 23, "video/gqa-iou@videochat-r1": 21, "video/counting@videossr": 46},
    **{"vqa/format@easyr1": 21, "grounding/iou@visual-rft": 72, "grounding/confidence@visual-rft": 72},
    **{"vqa/answer@r1-v": 90, "vqa/answer@mm-eureka": 90, "vqa/answer@vl-rethinker": 108, "vqa/format@vision-sr1": 17},
    **{"video/jigsaw@videossr": 100, "audio/accuracy@r1-aqa": 350, "audio/format@r1-aqa": 350, "audio/think-format@r1-aqa": 42},
}
"""Rows that must be there, so that a lost plugin or table can't pass for agreement."""


def rows() -> dict[str, list[dict]]:
    table = defaultdict(list)
    for path in sorted((Path(__file__).parents[1] / "golden").glob("rewards*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            table[row["verifier"]].append(row)
    return table


ROWS = rows()
KNOWN = sorted(ROWS.keys() & plugins.registry().specs("verifiers").keys())


def test_the_rows_that_must_run_do():
    assert {id: len(ROWS[id]) for id in KNOWN if id in MUST_RUN} == MUST_RUN


def test_the_page_of_recipes_has_these_numbers():
    page = " ".join((Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8").split())
    assert f"{len(KNOWN)} of them are compared with {sum(len(ROWS[id]) for id in KNOWN):,} values" in page


@pytest.mark.parametrize("id", KNOWN)
def test_rewards_equal_the_published_ones(id):
    verify = plugins.registry().make_verifier(id)
    wrong = []
    for row in ROWS[id]:
        status = Status(row.get("status", Status.FINISHED))
        got = verify(Case(completion=row["completion"], answer=row["answer"], meta=row["meta"], status=status))
        value = got.value if isinstance(got, Score) else got
        if value is None or abs(value - row["reward"]) > TOLERANCE:
            wrong.append(f"{row['completion']!r} for {row['answer']!r}: {value}, published {row['reward']} ({row['how']})")
    assert not wrong, "\n".join(wrong)
