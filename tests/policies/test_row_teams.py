"""Rows that ranks share: log-probabilities, entropies, values and gradients are those of one process."""

import json
from types import SimpleNamespace

import pytest
import torch

import learners
import other_families
import row_teams
import runs
from mmrl.api.errors import UserError
from mmrl.compute.teams import Team
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import sharable, slices
from mmrl.policies.vlm.sharable import OMNI, QWEN, SHARABLE, check_sharable
from mmrl.registry import plugins
from mmrl.train.checks.compute import check_sequence_parallel
from mmrl.train.checks.run_file import check_model

TWO = [
    # a text, pictures of several sizes, and passes in which a rank looks at none
    {"family": "qwen2_5_vl", "team": 2, "sharded": True, "checkpointed": True, "budget": 100},
    {"family": "qwen3_vl", "team": 2, "small": True, "pictures": [4]},  # what is added to pictures; attention by blocks
]
MORE = [
    *[
        {"family": f, "team": 2, "sharded": s}
        for f in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
        for s in (False, True)
    ],
    {"family": "qwen2_vl", "team": 2, "shared": False, "chunk": 3},  # rows of one completion, logits of three tokens at a time
    {"family": "qwen2_5_vl", "team": 2, "way": "dense", "sharded": True},
    {"family": "qwen2_5_vl", "team": 2, "pictures": [3], "sharded": True},  # a rank without a prompt
    {"family": "qwen3_vl", "team": 2, "pictures": [0, 0]},
    {"family": "qwen3_vl", "team": 2, "budget": 10_000, "pictures": [1, 2, 0, 1]},  # several rows in a pass
]
OTHERS = [
    {"family": family, "team": 2, "sharded": bool(number % 2)}
    for number, family in enumerate((*sorted(set(SHARABLE) - set(QWEN) - set(OMNI)), "internvl3_5", "pixtral"))
]
HEARING = [
    {"family": family.removesuffix("_thinker"), "team": 2, "sharded": sharded, "sounds": [0.4, 1.3, 0], "budget": 500}
    for family in OMNI
    for sharded in (False, True)
]
FOUR = [
    {"family": "qwen2_5_vl", "team": 4, "sharded": True},  # two heads of keys
    {"family": "qwen3_vl", "team": 4, "small": True, "checkpointed": True},
    {"family": "qwen2_vl", "team": 2, "sharded": True},  # two teams
    {"family": "qwen3_vl", "team": 2, "pictures": [1, 0, 2, 1, 1]},
]


def compared(tmp_path, count, cases):
    """What differs, for each case and rank."""
    processes = learners.start(count, tmp_path, cases, row_teams.__file__)
    alone = []
    try:
        for case in cases:
            alone.append(row_teams.figures(**{k: v for k, v in case.items() if k not in ("team", "sharded")}))
            other_families.policy.cache_clear()
    finally:
        together = learners.ended(processes, tmp_path, 900)
    for case, one, shares in zip(cases, alone, together, strict=True):
        assert torch.equal(shares[0]["times"], one["times"]), f"{case}: each token once"
        if len(case.get("pictures", ())) == 1 and not case.get("sharded"):
            assert (shares[0]["kept"] < 0.6 * one["kept"]).all(), f"{case}: each keeps about half"
        passes = shares[0]["passes"]
        assert len({int(n) for n in passes[: case["team"], 0]}) == 1, f"{case}: a team's passes are the same"
    found = {
        str(case): [row_teams.apart(one, s) for s in shares] for case, one, shares in zip(cases, alone, together, strict=True)
    }
    return {name: apart for name, apart in found.items() if any(apart)}


@pytest.mark.timeout(400)
def test_two_ranks_do_what_one_does(tmp_path):
    assert compared(tmp_path, 2, TWO) == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_ranks_in_all_ways(tmp_path):
    assert compared(tmp_path, 2, MORE) == {}


@pytest.mark.slow
@pytest.mark.exhaustive  # minutes; other ways are among CI's tests
@pytest.mark.timeout(1200)
def test_two_ranks_with_other_families(tmp_path):
    assert compared(tmp_path, 2, OTHERS) == {}


@pytest.mark.slow
@pytest.mark.exhaustive  # minutes; other ways are among CI's tests
@pytest.mark.timeout(1200)
def test_two_ranks_that_see_and_hear(tmp_path):
    """Each rank hears all sounds, and a short one is beside a longer one."""
    assert compared(tmp_path, 2, HEARING) == {}


@pytest.mark.slow
@pytest.mark.exhaustive  # minutes; other ways are among CI's tests
@pytest.mark.timeout(1200)
def test_four_ranks(tmp_path):
    assert compared(tmp_path, 4, FOUR) == {}


# -- parts of it, in one process ------------------------------------------------------------------------------------------


def team(place, size=2):
    return Team(size=size, place=place, group=None, host=None)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([4, 4, 4, 4], 2, [[0, 1], [2, 3]]),
        ([4], 2, [[], [0]]),
        ([12, 2, 2], 2, [[0], [1, 2]]),
        ([2, 2, 12], 4, [[0, 1], [], [2], []]),
        ([], 2, [[], []]),
    ],
)
def test_frames_are_divided_by_their_patches(sizes, count, expected):
    assert [list(one) for one in slices.shares(sizes, count)] == expected


def test_vectors_of_pictures_go_to_their_tokens():
    mask_BS = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 0, 0, 0, 0, 1]], dtype=torch.bool)
    vectors_NH = torch.arange(1.0, 6)[:, None].repeat(1, 3)
    whole = torch.zeros(2, 6, 3)
    whole[mask_BS] = vectors_NH
    found = [slices.vectors_of_slice(team(place), mask_BS, vectors_NH) for place in (0, 1)]
    assert torch.equal(torch.cat(found, 1), whole)
    assert torch.equal(slices.vectors_of_slice(team(1, 3), mask_BS, vectors_NH), whole[:, 2:4])


@pytest.mark.parametrize(
    ("size", "heads", "keys", "why"),
    [
        (2, 4, 2, ""),
        (4, 4, 2, ""),
        (4, 4, 1, ""),
        (4, 6, 2, "6 heads of attention"),
        (4, 12, 6, "6 heads of keys"),
        (2, 3, 1, "3 heads"),
    ],
)
def test_which_heads_can_be_divided(size, heads, keys, why):
    found = slices.indivisible(size, heads, keys)
    assert why in found if why else not found


class Local(Team):
    """A team of which only this rank is there: it keeps its own piece."""

    def swap(self, x, split, join):
        return x.chunk(self.size, split)[self.place]


@pytest.mark.parametrize(("size", "heads", "keys"), [(2, 4, 2), (4, 4, 2), (4, 8, 1), (2, 8, 4)])
def test_each_rank_gets_the_keys_of_its_queries(size, heads, keys):
    query, key = (torch.arange(n, dtype=torch.float32).view(1, n, 1, 1) for n in (heads, keys))
    for place in range(size):
        q, k, v = slices.by_heads(Local(size=size, place=place, group=None, host=None), query, key, -key)
        each = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        assert torch.equal(each, torch.div(q, heads // keys, rounding_mode="floor"))
        assert torch.equal(v, -k) and slices.share_of(None, q, k).num_key_value_groups == q.shape[1] // k.shape[1]


def test_a_language_model_gets_its_slice_and_whole_masks():
    mask = torch.zeros(1, 1, 4, 4)
    given = {"inputs_embeds": torch.arange(8.0).view(1, 4, 2), "position_ids": torch.arange(12).view(3, 1, 4), "use_cache": False}
    found = slices.sliced(team(1), {**given, "attention_mask": mask})
    assert torch.equal(found["inputs_embeds"], given["inputs_embeds"][:, 2:])
    assert torch.equal(found["position_ids"], given["position_ids"][..., 2:])
    assert found["attention_mask"] is mask
    with pytest.raises(NotImplementedError, match="whose language model takes per_layer_inputs"):
        slices.sliced(team(0), {"per_layer_inputs": torch.zeros(1, 4, 2, 2)})


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "size", "why"),
    [
        ("tiny:qwen2_5_vl:hidden=64", 8, r"a qwen2_5_vl model \(it has 4 heads of attention\): leave it out"),
        ("tiny:qwen3_5", 2, r"a qwen3_5 model \(its layers with linear attention have a state"),
        ("tiny:llama4", 2, r"a llama4 model \(its layers of llama4_text were not tried so; these were: qwen2_vl, qwen2_5_vl"),
    ],
)
def test_models_that_can_not_be_divided(model, size, why):
    with pytest.raises(UserError, match=rf"compute\.sequence_parallel = {size} can't divide the rows of '{model}', {why}"):
        check_sharable(PolicyConfig(model=model), size)


def test_models_that_can_be(tmp_path):
    check_sharable(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64"), 4)
    check_sharable(PolicyConfig(model="some/hub-name"), 4)
    text = {"num_attention_heads": 6, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "text_config": text}))
    check_sharable(PolicyConfig(model=str(tmp_path)), 2)
    with pytest.raises(UserError, match="it has 6 heads of attention"):
        check_sharable(PolicyConfig(model=str(tmp_path)), 4)


def test_a_loaded_model_says_what_its_configuration_does_not():
    from mmrl.policies.vlm.capabilities import Capabilities
    from mmrl.policies.vlm.families import Family

    text = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, _attn_implementation="eager")
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text, model_type="x"))
    for capabilities, why in (
        (Capabilities(packs=False, why_not="it was not tried"), "every completion needs a row of its own: it was not tried"),
        (Capabilities(packs=True, recurrent=("Mixer",)), "Mixer have a state"),
        (Capabilities(packs=True), 'its attention is computed by "eager"'),
    ):
        family = object.__new__(Family)
        family.model, family.capabilities = model, capabilities
        with pytest.raises(UserError, match=rf"compute\.sequence_parallel = 2 can't divide the rows of a x model \({why}\)"):
            family.share_rows(2)


def test_the_models_of_a_run_file_are_checked(tmp_path, monkeypatch):
    compute, spec = {"learners": 2, "sequence_parallel": 2}, plugins.registry().get("policies", "vlm")
    with pytest.raises(UserError, match=r"can't divide the rows of 'tiny:llama4'"):
        check_model(runs.toy_config(tmp_path, policy={"model": "tiny:llama4"}, compute=compute), spec)
    asked = []
    monkeypatch.setattr(sharable, "check_sharable", lambda policy, *given: asked.append((policy.model, *given)))
    policy, teacher = "tiny:qwen2_5_vl:hidden=64", "tiny:qwen2_5_vl:hidden=32"
    stages = [{"kind": "distill", "steps": 1, "teacher": teacher}]
    check_model(runs.toy_config(tmp_path, policy={"model": policy}, compute=compute, stages=stages), spec, online=True)
    assert asked == [(policy, 2, True), (teacher, 2, True)]


@pytest.mark.parametrize(
    ("compute", "policy", "why"),
    [
        ({"learners": 3}, {}, r"compute\.sequence_parallel = 2 doesn't divide compute\.learners = 3: change one of them"),
        ({"learners": 2}, {"kind": "vla"}, r'2 divides rows of text, but policy\.kind = "vla": leave it out, or use "vlm"'),
        ({"learners": 2}, {"attn_implementation": "eager"}, r'policy\.attn_implementation = "eager": use "auto"'),
    ],
)
def test_what_teams_do_not_support(tmp_path, compute, policy, why):
    compute, model = {**compute, "sequence_parallel": 2}, {"model": "tiny:qwen2_5_vl"}
    with pytest.raises(UserError, match=why):
        check_sequence_parallel(runs.toy_config(tmp_path, policy={**model, **policy}, compute=compute))
    check_sequence_parallel(runs.toy_config(tmp_path, policy=model, compute={"learners": 4, "sequence_parallel": 2}))
