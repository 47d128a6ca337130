"""The numbers of a step in a plan, against the rules that sample and the passes that an update makes."""

from dataclasses import replace

import pytest
import torch

import runs
from mmrl import SamplingRule
from mmrl.api.errors import PluginError, UserError
from mmrl.api.sampling import StepLoad
from mmrl.config.load import parse_config
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.published import PUBLISHED
from mmrl.train.plan.step import step_of
from mmrl.train.plan.workload import Sizes, workload
from mmrl.train.resolve import with_algorithm_defaults
from mmrl.train.sampling.numbers import step_load


def run_file(*, tasks=({"id": "classification/digits"},), **stage):
    data = {"name": "x", "policy": {"model": "tiny:qwen2_5_vl"}, "tasks": list(tasks)}
    return parse_config(data | {"stages": [{"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 4} | stage]})


def step(**given):
    config = run_file(**given)
    return step_of(config, config.stages[0])


SELF_PLAY = [{"id": "vqa/propose"}, {"id": "vqa/table", "weight": 0, "group_size": 3, "options": {"path": "a.jsonl"}}]
SPARK = [{"id": "classification/digits"}, {"id": "judge/recycled", "weight": 0, "group_size": 2}]


@pytest.mark.parametrize(
    "given, sampled, trained",
    [
        ({}, ((4, 4),), ((4, 4),)),
        ({"oversample": 1.5}, ((6, 4),), ((4, 4),)),
        ({"noisy": {"share": 0.5}}, ((4, 4), (4, 2)), ((4, 6),)),
        ({"rules": [{"id": "vqa/self-play"}], "tasks": SELF_PLAY}, ((4, 4), (16, 3)), ((4, 4), (4, 3))),
        ({"rules": [{"id": "vqa/self-play", "options": {"train": "solver", "questions": 3}}], "tasks": SELF_PLAY},
         ((4, 4), (16, 3)), ((12, 3),)),
        ({"rules": [{"id": "vqa/self-reward"}]}, ((4, 4), (16, 1)), ((4, 4),)),
        ({"rules": [{"id": "vqa/forced-rethinking"}]}, ((4, 4), (4, 4)), ((4, 4),)),
        ({"rules": [{"id": "judge/recycle"}], "tasks": SPARK}, ((4, 4), (2, 2), (2, 4)), ((4, 4), (2, 2), (2, 4))),
        ({"algorithm": "remax"}, ((4, 1), (4, 1)), ((4, 1),)),
        ({"entropy_control": {"prompts": 0.3}}, ((4, 4), (2, 4)), ((4, 4),)),
        ({"tasks": [{"id": "classification/digits", "group_size": 6}, {"id": "vqa/table", "weight": 0, "group_size": 9,
                     "options": {"path": "a.jsonl"}}]}, ((4, 6),), ((4, 6),)),
    ],
)  # fmt: skip
def test_rules_and_algorithms_say_what_they_add(given, sampled, trained):
    if given.get("algorithm") == "remax":
        given = given | {"group_size": 1}
    found = step(**given)
    assert (found.sampled, found.trained) == (sampled, trained)


@pytest.mark.parametrize("limit, given, counted", [(300, 300, 1100), (300, 200, 200), (2000, 2000, 2000)])
def test_answers_that_go_on_are_counted_at_their_longest(limit, given, counted):
    """Beyond the limit of an answer, and if answers are not said to be shorter."""
    rules = [{"id": "vqa/forced-rethinking", "options": {"longest": 500, "most": 600}}]
    config = run_file(rules=rules)
    config = config.model_copy(update={"generate": config.generate.model_copy(update={"max_tokens": limit})})
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    work = workload(config, config.stages[0], shapes, Sizes(text=100, images=0, completion=given))
    assert work.completion == counted and sum(m.targets * n for m, n in work.micro.items()) == 16 * counted


def test_imitated_completions_come_beside():
    mixed, later = (step(imitation={"rule": rule, "batch_size": 5}) for rule in ("mixed", "relift"))
    assert (mixed.shown, mixed.shown_once) == (5, False) and (later.shown, later.shown_once) == (5, True)
    assert step(imitation={"rule": "hpt", "batch_size": 5}).shown == 0, "gold in the place of what was sampled"
    assert step(entropy_control={"prompts": 0.5}).shown == 2 * 4


def test_a_rule_that_says_nonsense_is_named():
    class Odd(SamplingRule):
        def adds(self, load):
            return None

    class Fails(SamplingRule):
        def adds(self, load):
            return load.groups / 0

    with pytest.raises(PluginError, match=r"^sampling rule Odd: adds\(\) must give a StepLoad, not a NoneType$"):
        step_load(2, 2, [Odd()])
    with pytest.raises(PluginError, match=r"^sampling rule Fails: adds\(\) raised ZeroDivisionError"):
        step_load(2, 2, [Fails()])
    load = StepLoad(wanted=2, groups=2, size=2)
    assert SamplingRule().adds(load) == load


@pytest.mark.parametrize(
    "changed",
    [
        *({"groups": -3}, {"groups": 2.5}, {"groups": True}, {"size": float("inf")}, {"extra": -1}, {"groups": 10**30}),
        *({"sampled": None}, {"sampled": ((1,),)}, {"perhaps": ((-5, 8),)}, {"added": ((1, "a"),)}),
        *({"joined": (float("nan"),)}, {"joined": "ab"}, {"beside": (1e30,)}),
    ],
    ids=str,
)
def test_a_rule_whose_numbers_no_step_can_have_is_named(changed):
    class Odd(SamplingRule):
        def adds(self, load):
            return replace(load, **changed)

    (field,) = changed
    with pytest.raises(
        PluginError, match=rf"^sampling rule Odd: adds\(\) gives a StepLoad with {field} = .*: give numbers from 0"
    ):
        step_load(2, 2, [Odd()])


@pytest.mark.parametrize(("prompts", "size"), [(2, 2**31 - 1), (2**31 - 1, 2)])
def test_no_rule_is_blamed_for_numbers_of_the_run_file(prompts, size):
    with pytest.raises(UserError, match=f"{prompts:,} prompts of {size:,} completions .*lower its prompts_per_step"):
        step_load(prompts, size, [SamplingRule()])


# -- passes ------------------------------------------------------------------------------------------------------------------

PASSES = {
    "two mini-batches twice": ({"minibatches": 2, "epochs": 2}, ""),
    "masked images": ({"perception": {"coef": 0.01}}, ""),
    "masked images that learn": ({"perception": {"coef": 0.01, "gradient": "both"}, "minibatches": 2}, ""),
    "vppo": ({"algorithm": "vppo"}, ""),
    "sdar": ({"algorithm": "sdar"}, ""),
    "consistency": ({"consistency": {}}, ""),
    "consistency without a penalty": ({"consistency": {}, "kl_coef": 0.0, "entropy_coef": 1e-9}, ""),
    "a loss that measures": ({"algorithm": "pacs", "epochs": 2}, ""),
    "experts": ({"experts": {"aux_loss_coef": 0.01}, "minibatches": 2}, "tiny:qwen3_vl_moe:hidden=32,layers=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_an_update_makes_the_passes_that_are_planned(name, tmp_path, monkeypatch):
    """Counted in targets, so that it doesn't matter how they are divided."""
    given, model = PASSES[name]
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 2, "learning_rate": 1e-4, "kl_coef": 1e-9}
    data = {
        "name": "x",
        "runs_dir": str(tmp_path),
        "policy": {"model": model or "tiny:qwen2_5_vl:hidden=32,layers=1"},
        "tasks": [{"id": "classification/digits"}],
        "stages": [stage | given],
        "generate": {"max_tokens": 4},
        "evaluate": {"num_prompts": 0},
        "train": {"threads": 1},
    }
    config = with_algorithm_defaults(parse_config(data))
    seen = {"learned": 0, "outputs": 0, "states": 0, "means": 0}

    def counting(own, name):
        def call(self, micro, *args, **kwargs):
            kind = "learned" if name == "outputs" and torch.is_grad_enabled() else name
            seen[kind] += len(micro.source_L)
            return own(self, micro, *args, **kwargs)

        return call

    for method, kind in (("outputs", "outputs"), ("states", "states"), ("mean_logprobs", "means")):
        monkeypatch.setattr(VLM, method, counting(getattr(VLM, method), kind))
    runs.run(config)
    planned = step_of(config, config.stages[0])
    whole = seen["learned"] / (planned.epochs * planned.twins)
    assert whole > 0
    looks = planned.looked_at + planned.epochs * planned.reference
    assert (seen["outputs"] + seen["means"]) / whole == pytest.approx(looks)
    assert seen["states"] / whole == pytest.approx(planned.states)
