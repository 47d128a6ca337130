"""What a plan says of a frozen vision tower, which looks at each picture of a step once."""

import pytest

from mmrl.train.plan import predict
from plan_cases import MACHINE, run_file, seconds

LORA = {"lora": {"target_modules": ["language"]}}
KL = {"kind": "rl", "steps": 1, "prompts_per_step": 8, "group_size": 4, "kl_coef": 0.1}


def planned(mb=1024, model="Qwen/Qwen2.5-VL-3B", stage=KL, **sections):
    config = run_file(train={"vision_cache_mb": mb}, stages=[stage], **{"policy": {**LORA, "model": model}, **sections})
    return predict(config, MACHINE, advise=False)


def update(plan):
    return sum(part.seconds for part in plan.stages[0].seconds if part.name.startswith("update"))


def sight(plan):
    return sum(part.bytes for part in plan.stages[0].parts if part.name == "vision cache")


def test_passes_of_an_update_look_at_nothing():
    """With a reference each of the two passes forward looked before."""
    again, once = planned(0), planned()
    work = once.stages[0].work
    patches = sum(m.patches * n for m, n in work.micro.items())
    assert sight(again) == 0 and sight(once) == 8 * (patches // 8 // 4) * 2048 * 2
    both = [seconds(again, name) - seconds(once, name) for name in ("update: forward", "update: passes without gradients")]
    assert both[0] == pytest.approx(both[1]) and both[0] > 0
    assert seconds(again, "update: backward") == pytest.approx(seconds(once, "update: backward"))
    assert seconds(again, "generate: prefill") == seconds(once, "generate: prefill")


def test_what_vllm_saw_is_looked_at_once():
    again, once = (planned(mb, compute={"sampler": "vllm"}) for mb in (0, 1024))
    saved = update(again) - update(once)
    assert saved == pytest.approx(seconds(once, "update: pictures"), rel=1e-6)


def test_of_more_pictures_than_there_is_room_for_some_are_looked_at_again():
    needed = sight(planned())
    half = planned(mb=needed // 2**20 // 2)
    assert sight(half) <= needed / 2
    assert update(planned()) < update(half) < update(planned(0))


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": {"lora": {"target_modules": ["vision", "language"]}}},
        {"policy": {"lora": None}, "stage": {**KL, "kl_coef": 0.0}},
        {"policy": {"model": "tiny:gemma3", **LORA}},
        {"compute": {"weights": "replicated", "sequence_parallel": 2, "learners": 2}},
    ],
)
def test_nothing_is_kept_of(changed):
    """A trained tower, models whose pictures have no grids, and rows that are divided."""
    assert sight(planned(**changed)) == 0 and update(planned(**changed)) == update(planned(0, **changed))


@pytest.mark.parametrize("weights", ["replicated", "sharded"])
def test_learners_keep_what_they_look_at(weights):
    assert sight(planned(compute={"weights": weights, "learners": 2})) == sight(planned()) / 2


def test_a_reference_with_a_tower_of_its_own_keeps_as_much():
    """Beside a tower that is trained, whose looks stay, and beside a frozen one, with which it shares the room."""
    full = {"policy": {"lora": None}}
    assert sight(planned(**full)) == sight(planned()) and update(planned(**full)) == update(planned(0, **full))
    frozen = {**KL, "reference": "frozen"}
    assert sight(planned(stage=frozen)) == 2 * sight(planned())
    room = sight(planned()) // 2**20
    assert sight(planned(room, stage=frozen)) <= room * 2**20 and update(planned(room, stage=frozen)) > update(
        planned(stage=frozen)
    )


def test_qwen3_vl_hands_on_three_layers_more():
    model = {"policy": {**LORA, "model": "Qwen/Qwen3-VL-4B"}}
    plan = planned(**model)
    tokens = sum(m.patches * n for m, n in plan.stages[0].work.micro.items()) // 4
    assert sight(plan) == pytest.approx(tokens * 4 * 2560 * 2, rel=0.01)
