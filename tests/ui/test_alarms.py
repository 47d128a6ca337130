"""What a report and the board say of a run's alarms, and the rollouts that they show for them."""

from __future__ import annotations

import base64
import io
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrl.config.sections import LimitsConfig
from mmrl.run_folder import files
from mmrl.run_folder.writer import ENDED, RunFolder
from mmrl.ui.report import alarms
from mmrl.ui.report.alarms import ALARM_GUIDES, Alarm, witnesses
from mmrl.ui.report.report import write_report
from pages import Page, assert_self_contained, page_of

CONFIG = {"name": "a", "tasks": [{"id": "t"}]}


def told(name: str, step: int | None = 5, where: str = "rl") -> dict[str, Any]:
    return {"step": step, "where": where, "what": "12% of it: mend it", "alarm": name, "level": "warn"}


def row(group: int = 0, said: str = "a", tokens: int = 3, reward: float | None = 1.0, advantage: float | None = 0.5, **more: Any):
    status = "failed" if reward is None else "ok"
    return {
        "step": 5, "task": "t", "prompt_id": f"p{group}", "group": group, "messages": [], "answer": None, "completion": said,
        "source": "policy", "tokens": tokens, "status": "finished", "score": {"value": reward, "parts": {}, "status": status},
        "reward": reward, "advantage": advantage, **more,
    }  # fmt: skip


def shown(name: str, *rows: dict[str, Any]) -> list[int | None]:
    """The groups that show an alarm of this limit."""
    (alarm,) = alarms.alarms([told(name)])
    return [group for _, group in witnesses(alarm, [5], lambda step: rows)]


def test_what_is_alike_is_one_alarm_and_the_worst_comes_first() -> None:
    rows = [
        {"step": 1, "where": "t p1", "what": "it raised ValueError: 17"},
        {"step": 2, "where": "t p2", "what": "it raised ValueError: 18"},
        told("blind", 3),
        told("blind", 9),
        told("blind", 4, "sft"),
        {"step": None, "where": "before", "what": "a clip is broken"},
        {"step": 10, "where": ENDED, "what": "out of memory"},
    ]
    found = alarms.alarms(rows)
    kinds = [(one.kind, one.name, one.place, one.times, one.steps) for one in found]
    assert kinds == [
        ("fault", "", ENDED, 1, [10]),
        ("alarm", "blind", "rl", 2, [3, 9]),
        ("alarm", "blind", "sft", 1, [4]),
        ("warning", "", "before", 1, []),
        ("warning", "", "t p1", 2, [1, 2]),
    ]
    assert [one.title for one in found] == ["What ended the run", *[ALARM_GUIDES["blind"].title] * 2, "before", "t p1"]
    assert found[4].what.endswith("17")


def test_every_limit_that_can_alarm_has_a_title_and_a_way_to_show_it() -> None:
    assert set(ALARM_GUIDES) - {"failure_limit"} == LimitsConfig.model_fields.keys() - {"alarms"}


def test_an_alarm_of_a_plugin_has_its_summary_as_title_and_its_id_where_the_plugin_is_missing() -> None:
    def told(id: str) -> Alarm:
        (found,) = alarms.alarms([{"step": 3, "where": "rl", "what": "50% leave", "alarm": id}])
        return found

    found = told("robotics/leaves-goal")
    assert (found.kind, found.title) == ("alarm", "Episodes reach the goal and leave it again")
    assert told("gone/away").title == "gone/away"
    assert alarms.witnesses(found, [2, 5], lambda step: [row(0, "a"), row(0, "b"), row(1, "c")])
    page = alarms.card(found, ["<i></i>"], 2)
    assert "limits.alarms.&quot;robotics/leaves-goal&quot;" in page and "Step 2: rollouts of this step" in page


def test_rows_of_an_older_run_folder_are_plain_warnings_whatever_their_sentence_says() -> None:
    (found,) = alarms.alarms([{"step": 1, "where": "rl", "what": "12% of it: mend it (limits.blind.warn = 0.9)"}])
    assert (found.kind, found.name, found.title) == ("warning", "", "rl")


CASES: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "answer_collapse": ([row(0, "own"), row(1, "same"), row(2, "other"), row(3, "same"), row(3, "same"), row(4, "same")], [1, 3]),
    "entropy_fall": ([row(0, "a"), row(0, "b"), row(1, "a"), row(1, "a"), row(1, "a"), row(2, "a"), row(2, "a")], [1, 2]),
    "length_growth": ([row(0, tokens=2), row(0, tokens=30), row(1, tokens=17), row(2, tokens=20)], [2, 1]),
    "clip_share": ([row(0, advantage=0.1), row(1, advantage=None), row(2, advantage=-2.0)], [2, 0]),
    "kl": ([row(0, advantage=0.1), row(1, advantage=-2.0)], [1, 0]),
    "logprob_gap": ([row(0, advantage=0.1), row(1, advantage=-2.0)], [1, 0]),
    "zero_std": ([row(0), row(1, reward=0.0, advantage=0.0), row(2, reward=1.0, advantage=None)], [2, 1]),
    "blind": ([row(0, reward=0.5), row(1, reward=None), row(2, reward=1.0)], [2, 0]),
    "reward_hacking": ([row(0, reward=0.5), row(1, reward=None), row(2, reward=1.0)], [2, 0]),
    "failure_limit": ([row(0), row(1, reward=None), row(2, reward=None, score={"value": None, "status": "lost"})], [1, 2]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rollouts_that_show_an_alarm(name: str) -> None:
    rows, groups = CASES[name]
    assert shown(name, *rows) == groups
    assert set(CASES) == set(ALARM_GUIDES)


def test_of_the_steps_the_nearest_before_it_that_has_such_rollouts() -> None:
    asked: list[int] = []

    def rows_of(fit: set[int]) -> Callable[[int], list[dict[str, Any]]]:
        def found(step: int) -> list[dict[str, Any]]:
            asked.append(step)
            return [row(step, reward=1.0 if step in fit else None)]

        return found

    (alarm,) = alarms.alarms([told("blind", 50)])
    assert witnesses(alarm, range(0, 101, 10), rows_of({20, 40, 60})) == [("t", 40)] and asked == [50, 40]
    asked.clear()
    assert witnesses(alarm, [10, 60, 80], rows_of({60, 80})) == [("t", 60)] and asked == [10, 60]
    asked.clear()
    assert witnesses(alarm, range(10_000), rows_of(set())) == [] and len(asked) == alarms.NEAR
    (nowhere,) = alarms.alarms([told("blind", None)])
    assert witnesses(nowhere, [1], rows_of({1})) == []


def test_what_a_task_does_is_an_alarm_of_its_own_and_shown_by_its_rollouts() -> None:
    found = alarms.alarms([{**told("blind", where="evaluation"), "task": task} for task in ("t", "u", "t")])
    assert [(one.task, one.times) for one in found] == [("t", 2), ("u", 1)]
    rows = [row(0, reward=1.0), row(1, reward=0.5, task="u")]
    assert [witnesses(one, [5], lambda step: rows) for one in found] == [[("t", 0)], [("u", 1)]]


def test_what_stopped_a_run_is_shown_too() -> None:
    (fault,) = alarms.alarms([{**told("zero_std", where=ENDED), "level": "stop"}])
    assert (fault.kind, fault.name) == ("fault", "zero_std")
    assert witnesses(fault, [5], lambda step: [row(0, advantage=0.0), row(1)]) == [("t", 0)]


def test_rows_of_any_kind_are_ranked() -> None:
    odd = [{"completion": None}, {"tokens": "many", "reward": [], "advantage": {}, "score": None, "group": None}]
    found = {name: witnesses(Alarm(name, "", "alarm", "rl", "", "", 1, [1]), [1], lambda step: odd) for name in ALARM_GUIDES}
    unfit = {"blind", "reward_hacking", "failure_limit"}  # which look for more than odd rows have
    assert found == {name: [] if name in unfit else [("", None)] for name in ALARM_GUIDES}


# -- in a report --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", CONFIG, 1)
    made.metrics(5, "rl", {"reward/mean": 1.0})
    return made


def keep(run: RunFolder, rows: list[dict[str, Any]], pictures: dict[str, bytes] | None = None) -> None:
    folder = run.path / "rollouts"
    (folder / "media").mkdir(parents=True, exist_ok=True)
    for name, data in (pictures or {}).items():
        (folder / name).write_bytes(data)
    (folder / "step-000005.jsonl").write_bytes(b"".join(map(files.line, rows)))


def test_a_report_shows_an_alarm_with_its_rollouts_and_lists_the_rest(run: RunFolder) -> None:
    keep(run, [row(0, "<b>zebra</b>", reward=1.0), row(1, "giraffe", reward=0.2), row(2, "okapi", reward=0.9)])
    run.error(5, "rl", "12% of it: mend it", alarm="blind")
    run.error(5, "t p7", "it raised ValueError: <script>alert(1)</script>")
    page = page_of(run)
    text = " ".join(words for _, words in page.words)
    first, table = text.index(ALARM_GUIDES["blind"].title), text.index("Warnings")
    assert "Step 5: what earned most" in text[first:table]
    assert "zebra" in text[first:table] and "okapi" in text[first:table] and "giraffe" not in text[first:table]
    assert "<script>alert(1)</script>" in text[table:] and ALARM_GUIDES["blind"].title not in text[table:]
    html = (run.path / "report.html").read_text()
    assert "<b>zebra" not in html and '<a href="#errors">' in html and 'id="errors"' in html


def test_without_anything_to_tell_there_is_no_such_section(run: RunFolder) -> None:
    html = write_report(run.path).read_text()
    assert 'id="errors"' not in html and "Alarms" not in html and "Warnings" not in html


def test_no_place_of_a_page_is_there_twice_and_many_alarms_with_large_pictures_stay_small(run: RunFolder) -> None:
    from PIL import Image

    names = [f"media/{n:032x}.png" for n in range(8)]
    pictures = {}
    for n, name in enumerate(names):
        noise = Image.frombytes("RGB", (512, 512), random.Random(n).randbytes(512 * 512 * 3))
        noise.save(out := io.BytesIO(), "PNG")
        pictures[name] = out.getvalue()
    rows = []
    for g in range(8):
        asked = [{"role": "user", "content": [{"type": "image", "path": names[g]}, {"type": "text", "text": "?"}]}]
        marks = [
            {"kind": "box", "source": "true", "coordinates": [0, 0, 0.5, 0.5]},
            {"kind": "box", "source": "said", "coordinates": [0, 0, 0.4, 0.5]},
        ]
        rows += [row(g, f"{g} {m}", messages=asked, overlays=marks) for m in range(4)]
    keep(run, rows, pictures)
    for n in range(30):
        run.error(5, f"stage {n}", "12% of it: mend it", alarm="blind")
    html = write_report(run.path).read_text()
    assert len(html) < 10_000_000
    ids = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert not [id for id, times in ids.items() if times > 1]
    assert set(re.findall(r'<use href="#([^"]+)"', html)) <= set(ids) and "<use" in html
    shown = html[html.index('id="errors"') : html.index('class="rollouts"')]
    assert shown.count('class="alarm alarm"') == alarms.CARDS and base64.b64encode(b"\xff\xd8\xff").decode()[:4] in shown
    assert shown.count("<tr>") == 1 + 30 - alarms.CARDS
    assert_self_contained(Page(html))
