"""Mixture search: the seed mixtures, a surrogate that recovers known quadratics, and the choice between it and the best pilot."""

import numpy as np
import pytest

from mmrl.api.errors import UserError
from mmrl.config.load import parse_config, to_dict
from mmrl.data.mixture import (
    Mixture,
    Surrogate,
    best_mixture,
    enough,
    fit,
    leave_one_out_scores,
    mixture_stage,
    percents,
    pilot_config,
    recommend,
    seed_mixtures,
    terms,
)


def shares(mixtures):
    return np.array([m.shares for m in mixtures])


def test_three_tasks_begin_with_uniform_each_alone_and_each_left_out():
    found = seed_mixtures(["a", "b", "c"], 7, seed=0)
    third = 1 / 3
    assert found == [
        Mixture("uniform", (third, third, third)),
        Mixture("only a", (1.0, 0.0, 0.0)),
        Mixture("only b", (0.0, 1.0, 0.0)),
        Mixture("only c", (0.0, 0.0, 1.0)),
        Mixture("without a", (0.0, 0.5, 0.5)),
        Mixture("without b", (0.5, 0.0, 0.5)),
        Mixture("without c", (0.5, 0.5, 0.0)),
    ]
    assert seed_mixtures(["a", "b", "c"], 3, seed=0) == found[:3]


def test_of_two_tasks_leaving_one_out_is_not_tried_twice():
    found = seed_mixtures(["a", "b"], 5, seed=0)
    assert [m.kind for m in found] == ["uniform", "only a", "only b", "random", "random"]
    assert len({m.shares for m in found}) == 5


def test_there_are_no_more_pilots_than_mixtures():
    assert len({m.shares for m in seed_mixtures(["a", "b"], 101, seed=0)}) == 101
    with pytest.raises(UserError, match="--pilots 102: 2 tasks have only 101 mixtures in whole percents: give fewer"):
        seed_mixtures(["a", "b"], 102, seed=0)


def test_random_mixtures_are_whole_percents_that_depend_on_the_seed_and_go_on_where_a_shorter_list_ended():
    long, short = (seed_mixtures("abcd", n, seed=3) for n in (400, 20))
    assert long[:20] == short and seed_mixtures("abcd", 20, seed=4) != short
    drawn = np.array([m.shares for m in long if m.kind == "random"])
    assert len(drawn) == 400 - 9 and len({tuple(d) for d in drawn}) == len(drawn)
    assert np.allclose(drawn.sum(1), 1) and np.allclose(drawn * 100, np.round(drawn * 100)) and drawn.min() >= 0
    # a flat Dirichlet of 4 has the mean 1/4 and the variance 3/80; four standard deviations of each
    assert drawn.mean(0) == pytest.approx(0.25, abs=0.04) and drawn.var(0) == pytest.approx(0.0375, abs=0.015)


@pytest.mark.parametrize(("tasks", "pilots"), [(2, 6), (3, 9), (4, 13), (5, 18)])
def test_pilots_outnumber_the_surrogates_coefficients(tasks, pilots):
    """M (M + 1) / 2 coefficients: 3, 6, 10, 15."""
    assert enough(tasks) == pilots


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1 / 3, 1 / 3, 1 / 3), (0.34, 0.33, 0.33)),
        ((0.125, 0.25, 0.625), (0.13, 0.25, 0.62)),
        ((0.999, 0.001), (1.0, 0.0)),
        ((0.29, 0.71), (0.29, 0.71)),
        ((1.0, 0.0), (1.0, 0.0)),
    ],
)
def test_percents_add_up(given, expected):
    assert percents(given) == expected


def test_the_terms_are_shares_and_products():
    assert terms(np.array([[0.5, 0.3, 0.2]])) == pytest.approx(np.array([[0.5, 0.3, 0.2, 0.6, 0.4, 0.24]]))


def bowl(w, top, height=0.7):
    """A quadratic that is highest at `top`."""
    return height - ((w - np.array(top)) ** 2).sum(1)


@pytest.mark.parametrize(
    "top",
    [(0.62, 0.38), (0.2, 0.5, 0.3), (0.0, 0.7, 0.3), (1.0, 0.0, 0.0), (0.1, 0.2, 0.3, 0.4), (0.3, 0.2, 0.2, 0.15, 0.1, 0.05)],
    ids=str,
)
def test_a_known_quadratics_optimum_is_recovered(top):
    w = shares(seed_mixtures("abcdef"[: len(top)], enough(len(top)), seed=1))
    surrogate = fit(w, bowl(w, top)[:, None])
    new = shares(seed_mixtures("abcdef"[: len(top)], 60, seed=2))
    assert surrogate(new)[:, 0] == pytest.approx(bowl(new, top), abs=1e-4)
    assert best_mixture(surrogate, w, seed=0) == pytest.approx(top, abs=0.0101)
    found = recommend(w, bowl(w, top)[:, None], seed=0)
    assert found.pilot is None and found.shares == pytest.approx(top, abs=0.0101)
    assert found.value == pytest.approx(0.7, abs=1e-3) and found.error < 0.01 < 0.1 < found.error_of_mean


def test_the_mean_over_tasks_decides():
    """Tasks that are highest at (0.9, 0.1) and (0.5, 0.5): their mean at (0.7, 0.3), 0.7 - 0.5 (2 x 0.04 + 2 x 0.04)."""
    w = shares(seed_mixtures("ab", 6, seed=1))
    scores = np.stack([bowl(w, (0.9, 0.1)), bowl(w, (0.5, 0.5))], axis=1)
    found = recommend(w, scores, seed=0)
    assert found.shares == pytest.approx((0.7, 0.3), abs=0.0101) and found.value == pytest.approx(0.62, abs=1e-3)


def test_a_ridge_by_hand():
    """Two pilots, each task alone, scores 0 and 1: terms (1, 0, 0) and (0, 1, 0), the mean 1/2, so b = (-+) 1/2 / (1 + ridge)."""
    w, scores = np.eye(2), np.array([[0.0], [1.0]])
    surrogate = fit(w, scores)
    ridge = surrogate.ridge_K[0]
    half = 0.5 / (1 + ridge)
    assert surrogate.mean_K == pytest.approx([0.5])
    assert surrogate.coefficients_FK[:, 0] == pytest.approx([-half, half, 0.0])
    assert surrogate(np.array([[0.25, 0.75]]))[0, 0] == pytest.approx(0.5 - 0.25 * half + 0.75 * half)


def test_a_surrogate_by_hand():
    """0.5 + 0.1 w1 - 0.2 w2 + 0.3 x 4 w1 w2 at (0.25, 0.75): 0.5 + 0.025 - 0.15 + 0.225."""
    surrogate = Surrogate(np.array([0.5]), np.array([[0.1], [-0.2], [0.3]]), np.array([0.0]))
    assert surrogate(np.array([[0.25, 0.75]])) == pytest.approx(np.array([[0.6]]))


def test_a_left_out_pilot_is_not_known_to_its_prediction():
    w = shares(seed_mixtures("ab", 6, seed=1))
    scores = bowl(w, (0.6, 0.4))[:, None]
    wrong = scores.copy()
    wrong[4] += 100.0
    assert leave_one_out_scores(w, wrong)[4] == pytest.approx(leave_one_out_scores(w, scores)[4], abs=1e-9)
    assert leave_one_out_scores(w, scores)[4] == pytest.approx(scores[4], abs=0.01)
    assert abs(leave_one_out_scores(w, wrong)[3] - leave_one_out_scores(w, scores)[3]) > 1


def test_where_the_surrogate_knows_nothing_the_best_pilot_is_recommended():
    w = shares(seed_mixtures("abc", 9, seed=1))
    noise = np.random.default_rng(0).normal(0.5, 0.1, size=(9, 1))
    found = recommend(w, noise, seed=0)
    assert found.error >= found.error_of_mean
    assert found.pilot == noise[:, 0].argmax() and found.shares == tuple(w[found.pilot])
    assert found.value == noise.max()


def test_the_error_of_the_mean_by_hand():
    """1, 2, 6: the others' means are 4, 3.5 and 1.5, the misses 3, 1.5 and 4.5."""
    found = recommend([(0.5, 0.5), (1, 0), (0, 1)], [[1.0], [2.0], [6.0]], seed=0)
    assert found.error_of_mean == pytest.approx(((9 + 2.25 + 20.25) / 3) ** 0.5)


def test_pilots_that_all_score_the_same_speak_for_the_first():
    w = shares(seed_mixtures("ab", 6, seed=1))
    found = recommend(w, np.full((6, 2), 0.25), seed=0)
    assert (found.pilot, found.shares, found.value, found.error_of_mean) == (0, (0.5, 0.5), 0.25, 0.0)


def test_the_same_scores_give_the_same_recommendation():
    w = shares(seed_mixtures("abc", 9, seed=1))
    scores = bowl(w, (0.2, 0.5, 0.3))[:, None] + np.random.default_rng(0).normal(0, 0.01, size=(9, 1))
    a, b = (recommend(w, scores, seed=5) for _ in "ab")
    assert (a.shares, a.value, a.predicted, a.error) == (b.shares, b.value, b.predicted, b.error)


# -- the pilots' run files ----------------------------------------------------------------------------------------------------


def config(**changes):
    return parse_config(
        {
            "name": "two",
            "policy": {"model": "tiny:qwen2_5_vl"},
            "tasks": [{"id": "t/a", "weight": 3}, {"id": "t/b", "name": "b"}, {"id": "t/c", "weight": 0}],
            "stages": [
                {"kind": "sft", "steps": 5},
                {"kind": "rl", "steps": 40, "learning_rate": 1e-5},
                {"kind": "sft", "steps": 2},
            ],
            "evaluate": {"every": 10, "num_prompts": 7},
        }
        | changes
    )


def test_the_tasks_that_the_last_rl_stage_draws_from_are_searched():
    assert mixture_stage(config()) == (1, ["t/a", "b"])
    stages = [{"kind": "rl", "steps": 1}, {"kind": "rl", "steps": 1, "tasks": {"t/c": 1, "b": 2}}]
    assert mixture_stage(config(stages=stages)) == (1, ["b", "t/c"])


def test_a_pilot_is_the_run_file_with_another_mixture_and_fewer_steps():
    base = config()
    found = pilot_config(base, 3, Mixture("random", (0.25, 0.75)), 8, "runs/two-mix")
    assert found.weights(found.stages[1]) == {"t/a": 0.25, "b": 0.75}
    assert found.weights(found.stages[0]) == {"t/a": 3.0, "b": 1.0}, "the other stages keep theirs"
    before, after = to_dict(base), to_dict(found)
    assert after["stages"][1] == before["stages"][1] | {"steps": 8, "tasks": {"t/a": 0.25, "b": 0.75}}
    assert (after["name"], after["runs_dir"]) == ("two-mix-03", "runs/two-mix")
    assert after["evaluate"] == before["evaluate"] | {"every": 0}
    after["stages"][1], after["evaluate"] = before["stages"][1], before["evaluate"]
    assert after | {"name": "two", "runs_dir": "runs"} == before


def test_a_key_that_the_run_file_leaves_to_the_algorithm_stays_unset():
    found = pilot_config(config(), 1, Mixture("uniform", (0.5, 0.5)), 8, "runs")
    assert found.stages[1].model_fields_set == {"kind", "steps", "learning_rate", "tasks"}
    assert pilot_config(config(evaluate={}), 1, Mixture("uniform", (0.5, 0.5)), 8, "runs").evaluate.model_fields_set == {"every"}


def test_a_task_of_weight_0_stays_to_be_evaluated():
    found = pilot_config(config(), 2, Mixture("only t/a", (1.0, 0.0)), 8, "runs")
    assert [t.label for t in found.tasks] == ["t/a", "b", "t/c"] and found.weights(found.stages[1]) == {"t/a": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tasks": [{"id": "t/a"}]},
            "^a mixture needs at least two tasks with a weight, but stages.1 of two draws from t/a: list",
        ),
        ({"tasks": [{"id": "t/a"}, {"id": "t/b", "weight": 0}]}, "at least two tasks with a weight"),
        ({"stages": [{"kind": "sft", "steps": 5}]}, "^two has no rl stage"),
        ({"evaluate": {"num_prompts": 0}}, r"^evaluate\.num_prompts = 0 gives no held-out scores"),
    ],
)
def test_a_run_file_with_nothing_to_search_is_refused(changes, message):
    with pytest.raises(UserError, match=message) as error:
        mixture_stage(config(**changes))
    assert "\n" not in str(error.value)
