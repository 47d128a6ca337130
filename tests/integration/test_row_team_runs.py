"""Whole runs of two learners that share each row are those of one learner, and go on as such."""

import pytest

import learners

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FEW = ("plain", "ppo", "clips", "frozen tower")
"""Of `learners.CASES`: what an update may ask of a row, and who has rows to give."""
REST = (
    *("plain", "checkpointed", "replicated", "kl", "lora", "ppo apart", "reverse", "one", "pairs", "ratings"),
    *("texts now and then", "imitation"),
)
"""Those that CI leaves out, and one that all tests know."""


def together(name, **settings):
    """A case whose learners share rows."""
    compute = learners.CASES[name].get("compute", {})
    return {"sections": {"compute": {**compute, "sequence_parallel": 2}}, "name": name, **settings}


@pytest.fixture(scope="module", params=[FEW, pytest.param(REST, marks=pytest.mark.exhaustive)], ids=["few", "rest"])
def both(request, tmp_path_factory):
    """Of each case the run of one learner, and that of two."""
    folder = tmp_path_factory.mktemp("teams")
    plays = {name: together(name, folder=str(folder / "two" / name)) for name in request.param}
    plays["stopped"] = together("resumed", folder=str(folder / "two" / "resumed"), stop=learners.STOP)
    plays["resumed"] = together("resumed", folder=str(folder / "two" / "resumed"), stop=learners.STOP_AGAIN, resume=True)
    plays["resumed otherwise"] = {"name": "resumed", "folder": str(folder / "two" / "resumed"), "resume": True}
    processes = learners.start(2, folder / "first", list(plays.values()))
    alone = {}
    try:
        with learners.prepared():
            for name in (*request.param, "resumed"):
                (folder / "one" / name).mkdir(parents=True)
                alone[name] = learners.play(name, folder / "one" / name)
    finally:
        found = learners.ended(processes, folder / "first", 900)
    return alone, dict(zip(plays, found, strict=True))


def test_two_learners_that_share_rows_do_what_one_does(both):
    alone, played = both
    cases = alone.keys() - {"resumed"}
    assert {name: played[name][0]["error"] for name in cases if played[name][0]["error"]} == {}
    found = {name: learners.differences(alone[name], *played[name]) for name in cases}
    assert not {name: apart[:5] for name, apart in found.items() if apart}


def test_both_compute_all_rows_and_each_its_own_targets(both):
    """A pass of a team has targets of both, where its prompt has several completions."""
    _, played = both
    first, second = (share["own"] for share in played["plain"])
    assert [len(targets) for targets in first] == [len(targets) for targets in second]
    assert all(a and b for targets in zip(first, second, strict=True) for a, b in zip(*targets, strict=True))


def test_nothing_that_was_seen_is_kept_for_teams_which_look_together(both):
    for share in both[1].get("frozen tower", ()):  # one of FEW
        assert share["shown"] > share["sight"] == 0


def test_a_run_goes_on_as_a_team_and_without_one(both):
    alone, played = both
    assert [share["error"] for share in (*played["stopped"], *played["resumed"])] == ["stopped"] * 4
    assert learners.differences(alone["resumed"], *played["resumed otherwise"], sampled=False) == []
