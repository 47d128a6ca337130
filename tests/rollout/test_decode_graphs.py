"""Decoding by CUDA graphs, with a stand-in that records a step's operations on the CPU, samples what decoding without samples."""

import itertools
import warnings
from dataclasses import replace

import pytest
import torch

import other_families
import vlm_cases as cases
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.lora import disable_adapters
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs, graphs_for
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.processor import LogitsProcessor
from mmrl.rollout.generate.rooms import ROUND, tokens_of
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.snapshot import SnapshotGenerator
from mmrl.testing.cases import some_of
from planned_exchange import Planned, nothing
from recorded_graph import RecordedCapture

SAMPLING = SamplingParams(max_tokens=12, temperature=1.0, seed=3)


def graphed(vlm, batch_size=8, kind=LocalGenerator, **options):
    made = kind(vlm, batch_size, **options)
    made.graphs = DecodeGraphs(made.policy, batch_size, RecordedCapture)
    return made


def inputs_of(vlm):
    return [vlm.encode(p) for p in (cases.prompt(1), cases.prompt(4, 2), cases.prompt(2, 0))]


def flat(groups):
    return list(itertools.chain(*groups))


def check_equal(groups, wanted, within=1e-6):
    for one, other in zip(flat(groups), flat(wanted), strict=True):
        assert one.token_ids == other.token_ids and one.finished == other.finished
        assert (torch.tensor(one.logprobs) - torch.tensor(other.logprobs)).abs().max() <= within


@pytest.mark.everyday
@pytest.mark.parametrize("family", [*cases.FAMILIES, "gemma3"])
def test_tokens_are_those_of_decoding_without_graphs(family):
    """Of prompts of several lengths with and without pictures, while rows end, at any number of rows; see also
    `test_every_family`."""
    vlm = cases.policy(family) if family in cases.FAMILIES else other_families.policy(family)
    inputs = inputs_of(vlm)
    for batch_size, temperature in ((3, 0.0), (16, 1.0)):
        sampling = replace(SAMPLING, temperature=temperature)
        sampler = graphed(vlm, batch_size)
        found = sampler.generate(inputs, 3, sampling)
        check_equal(found, LocalGenerator(vlm, batch_size).generate(inputs, 3, sampling), 2e-6)
        assert sampler.graphs.captured == len(sampler.graphs.rooms) > 0


def test_rooms_grow_and_are_used_again(monkeypatch):
    """Rows are decoded by halves of the batch, and a room grows while they go on."""
    monkeypatch.setattr("mmrl.rollout.generate.rooms.ROUND", 16)
    monkeypatch.setattr("mmrl.rollout.generate.rooms.ROOM", 8)
    vlm = cases.policy("qwen2_5_vl").clone()
    vlm.eos = frozenset(range(100, 110))  # so that completions end often
    inputs, sampler, sampling = inputs_of(vlm)[:1], graphed(vlm), replace(SAMPLING, max_tokens=60)
    wanted = LocalGenerator(vlm, 8).generate(inputs, 8, sampling)
    assert len({len(s.token_ids) for s in flat(wanted)}) > 3, "rows end at different times"
    check_equal(sampler.generate(inputs, 8, sampling), wanted, 2e-6)
    assert len({rows for rows, _ in sampler.graphs.rooms}) > 1 < len({tokens for _, tokens in sampler.graphs.rooms})
    assert {rows for rows, _ in sampler.graphs.rooms} <= {8, 4, 2, 1}
    check_equal(sampler.generate(inputs, 8, sampling), wanted, 2e-6)
    captured = sampler.graphs.captured
    check_equal(sampler.generate(inputs, 8, sampling), wanted, 2e-6)
    assert sampler.graphs.captured == captured, "rooms that had their place are used again"


@pytest.mark.parametrize("family", [pytest.param("qwen3_5", marks=pytest.mark.slow), "lfm2_vl"])
def test_states_of_recurrent_layers_move_with_their_rows(family, monkeypatch):
    """From room to room, and nothing is left in them of the steps that a capture takes."""
    monkeypatch.setattr("mmrl.rollout.generate.rooms.ROUND", 16)
    monkeypatch.setattr("mmrl.rollout.generate.rooms.ROOM", 8)
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=64,layers=4"))
    vlm.eos = frozenset(range(100, 110))
    inputs, sampler, sampling = inputs_of(vlm)[:2], graphed(vlm, 4), replace(SAMPLING, max_tokens=28)
    wanted = LocalGenerator(vlm, 4).generate(inputs, 2, sampling)
    for _ in range(2):  # the second time in the rooms of the first
        check_equal(sampler.generate(inputs, 2, sampling), wanted, 2e-6)
    assert sampler.graphs.captured >= len(sampler.graphs.rooms) > 2 and sampler.graphs.unfit == ""
    assert any(room.states() for room in sampler.graphs.rooms.values())


def test_states_that_move_are_decoded_without_graphs(monkeypatch):
    """A graph would go on from the state of its capture."""

    def moving(self, recurrent_states, state_idx=0, **_):
        self.is_recurrent_states_initialized[state_idx] = True
        self.recurrent_states[state_idx] = recurrent_states.clone()
        return self.recurrent_states[state_idx]

    vlm = VLM(PolicyConfig(model="tiny:qwen3_5:hidden=64,layers=4"))
    monkeypatch.setattr("mmrl.rollout.generate.rooms.LinearAttentionLayer.update_recurrent_state", moving)
    with pytest.warns(match=r"is decoded without them, as exactly \(its states move\)"):
        sampler = graphed(vlm)
        sampler.generate([vlm.blank], 2, SAMPLING)
    assert not sampler.graphs.captured


def test_a_memory_that_was_too_small_is_forgotten(monkeypatch):
    """A longer prompt needs a larger one; the next short one isn't answered from the old."""
    monkeypatch.setattr("mmrl.rollout.generate.rooms.ROUND", 16)
    vlm = cases.policy("qwen2_5_vl")
    sampler, long = graphed(vlm), cases.prompt(4, 2)
    short, other = (Prompt(messages=[user_message(f"What digit is shown? {end}")]) for end in "12")
    lengths = [len(vlm.encode(prompt).ids) for prompt in (short, long, other)]
    assert lengths[0] == lengths[2] and tokens_of(lengths[0], 12) < tokens_of(lengths[1], 12)
    for prompt in (short, long, other):
        inputs = [vlm.encode(prompt)]
        check_equal(sampler.generate(inputs, 8, SAMPLING), LocalGenerator(vlm, 8).generate(inputs, 8, SAMPLING), 2e-6)


@pytest.mark.parametrize(("length", "more", "tokens"), [(10, 5, 128), (100, 900, 256), (1000, 200, 1280), (1000, 4000, 1536)])
def test_a_room_has_place_for_half_as_many_tokens_again(length, more, tokens):
    assert tokens_of(length, more) == tokens and tokens % ROUND == 0


@pytest.mark.parametrize(("batch_size", "rows", "fitting"), [(256, 256, 256), (256, 129, 256), (256, 128, 128), (255, 64, 64)])
def test_rows_are_a_half_of_a_half_of_the_batch(batch_size, rows, fitting):
    graphs = DecodeGraphs(cases.policy("qwen2_5_vl"), batch_size)
    assert graphs.rows_of(rows) == fitting
    assert graphs.rows_of(1) == 1 and graphs.rows_of(999) == 999, "a group is never split"


# -- weights --------------------------------------------------------------------------------------------------------------------


def head(vlm):
    return vlm.model.get_output_embeddings().weight


def test_weights_that_change_in_place_are_seen_by_a_replay():
    vlm = cases.policy("qwen2_5_vl").clone()
    inputs, sampler = inputs_of(vlm), graphed(vlm)
    before = sampler.generate(inputs, 3, SAMPLING)
    captured = sampler.graphs.captured
    with torch.no_grad():
        head(vlm).mul_(1.5)
    found = sampler.generate(inputs, 3, SAMPLING)
    check_equal(found, LocalGenerator(vlm, 8).generate(inputs, 3, SAMPLING), 2e-6)
    assert flat(found) != flat(before) and sampler.graphs.captured == captured


def test_weights_that_lie_elsewhere_are_captured_anew():
    vlm = cases.policy("qwen2_5_vl").clone()
    inputs, sampler = inputs_of(vlm), graphed(vlm)
    before = sampler.generate(inputs, 3, SAMPLING)
    layer = vlm.model.model.language_model.layers[0].mlp.down_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 3)
    found = sampler.generate(inputs, 3, SAMPLING)
    check_equal(found, LocalGenerator(vlm, 8).generate(inputs, 3, SAMPLING), 2e-6)
    assert flat(found) != flat(before)


def test_adapters_that_are_switched_off_are_captured_anew():
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2", lora=LoraConfig(rank=4)))
    with torch.no_grad():
        for _, weight in vlm.parameters():
            weight.normal_(std=0.3, generator=torch.Generator().manual_seed(weight.numel()))
    inputs, sampler = inputs_of(vlm), graphed(vlm)
    adapted = sampler.generate(inputs, 3, SAMPLING)
    with disable_adapters(vlm.model):
        found = sampler.generate(inputs, 3, SAMPLING)
        check_equal(found, LocalGenerator(vlm, 8).generate(inputs, 3, SAMPLING), 2e-6)
    assert flat(found) != flat(adapted)


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("replaced", [False, True])
def test_new_weights_between_two_tokens(replaced, first):
    """The learner changes them in place, or puts others in their place; the answers go on with them, also behind the first
    token, when they aren't in a room yet."""
    vlm = cases.policy("qwen2_5_vl")
    inputs, found = inputs_of(vlm), []
    for kind in ("plain", "graphs"):
        made = (
            graphed(vlm, kind=SnapshotGenerator, interrupt=True)
            if kind == "graphs"
            else SnapshotGenerator(vlm, 8, interrupt=True)
        )

        def new(made=made):
            weight = head(made.policy)
            with torch.no_grad():
                weight.mul_(2)
            if replaced:
                made.policy.model.get_output_embeddings().weight = torch.nn.Parameter(weight.detach().clone())

        made.exchange = Planned({first: new, 6: nothing, 40: new})
        made.exchange.version = 100
        found.append(made.generate(inputs, 3, SAMPLING))
    assert any(len(s.versions) > 1 for s in flat(found[0]))
    check_equal(found[1], found[0], 2e-5)
    assert [s.versions for s in flat(found[1])] == [s.versions for s in flat(found[0])]


# -- what it can't do -----------------------------------------------------------------------------------------------------------


def test_a_cpu_says_that_it_has_none():
    with pytest.warns(match=r"generate\.cuda_graphs needs a GPU, and the sampler is on cpu: nothing changes"):
        assert graphs_for(cases.policy("qwen2_5_vl"), 8) is None


def test_a_capture_that_fails_is_told_once_and_nothing_else_changes():
    vlm = cases.policy("qwen2_5_vl")
    inputs, sampler = inputs_of(vlm), graphed(vlm)
    calls = []

    def refusing(step, rewind):
        calls.append(step())
        raise RuntimeError("operation not permitted when stream is capturing")

    sampler.graphs.make_capture = lambda: refusing
    with pytest.warns(
        match=r"generate\.cuda_graphs: a step can't be captured: .* \(RuntimeError: operation not permitted"
    ) as told:
        found = sampler.generate(inputs, 3, SAMPLING)
    check_equal(found, LocalGenerator(vlm, 8).generate(inputs, 3, SAMPLING), 2e-6)
    assert len(calls) == len([w for w in told if "cuda_graphs" in str(w.message)]) == 1


def test_a_model_that_differs_in_rooms_goes_on_without(monkeypatch):
    vlm = cases.policy("qwen2_5_vl")
    inputs, sampler = inputs_of(vlm), graphed(vlm)
    monkeypatch.setattr("mmrl.rollout.generate.rooms.Room.positions", lambda self, axes: self.shift_N.expand(axes, 1, -1).mT)
    with pytest.warns(match=r"a Qwen2_5_VL\w+ is decoded without them, as exactly \(log-probabilities differ by"):
        found = sampler.generate(inputs, 3, SAMPLING)
    check_equal(found, LocalGenerator(vlm, 8).generate(inputs, 3, SAMPLING), 0)
    assert not sampler.graphs.rooms and not sampler.graphs.captured


def test_a_logits_processor_sees_the_cache_as_it_was():
    vlm, seen = cases.policy("qwen2_5_vl"), []

    class Watching(LogitsProcessor):
        def begin(self, policy, cache, inputs, group_size):
            seen.append(cache.layers[0].keys.shape[0])

    sampler = graphed(vlm, 16)
    sampler.generate(inputs_of(vlm), 3, replace(SAMPLING, logits_processor=Watching()))
    assert seen == [9] and not sampler.graphs.rooms


def test_memory_is_released_while_the_sampler_sleeps():
    vlm = cases.policy("qwen2_5_vl")
    sampler = graphed(vlm)
    first = sampler.generate(inputs_of(vlm), 3, SAMPLING)
    graphs = sampler.graphs
    assert graphs.rooms and graphs.replays and graphs.memory.flat
    sampler.sleep()
    assert not graphs.rooms and not graphs.replays and not graphs.memory.flat and graphs._capture is None
    check_equal(sampler.generate(inputs_of(vlm), 3, SAMPLING), first, 0)


def test_what_was_never_written_is_never_read():
    """Also if the memory holds numbers that aren't finite, as those of a model that diverged."""
    vlm = cases.policy("qwen2_5_vl")
    inputs, sampler = inputs_of(vlm), graphed(vlm)
    first = sampler.generate(inputs, 3, SAMPLING)
    with torch.inference_mode():
        for flat_memory in sampler.graphs.memory.flat.values():
            flat_memory.fill_(float("nan"))
    check_equal(sampler.generate(inputs, 3, SAMPLING), first, 0)


ROOMS = {
    **dict.fromkeys(("openvla", "qwen3_vl_moe", "internvl", "internvl3_5", "glm4v", "glm4v_moe", "glm46v", "smolvlm"), ""),
    **dict.fromkeys(("idefics3", "llava_onevision", "mistral3", "gemma3n", "gemma4", "paligemma", "llava", "pixtral"), ""),
    **dict.fromkeys(("deepseek_vl", "aya_vision", "cohere2_vision", "ovis2", "kimi_k25", "ernie4_5_vl_moe", "llama4"), ""),
    **dict.fromkeys(("phi4_multimodal", "perception_lm", "qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe"), ""),
    **dict.fromkeys(cases.LATER, ""),
    **dict.fromkeys(("qwen3_5", "minicpmv4_6", "minicpmv4_7", "qwen3_5_moe", "lfm2_vl"), ""),
}
"""Family -> why it isn't decoded in rooms; empty if it is."""


BLANK = ("qwen2_audio",)
"""Families that are given a short sound."""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("family", some_of(ROOMS, ("llama4", "gemma4", "glm4v", "qwen3_5")))
def test_every_family(family):
    """In rooms, without a graph, tokens are equal and log-probabilities too: those of Gemma 4 to within its own rounding."""
    vlm = VLM(PolicyConfig(model=f"tiny:{family}"))
    inputs = [vlm.blank] * 2 if family in BLANK else [vlm.encode(cases.prompt(seed)) for seed in (1, 2, 3)]
    sampler = graphed(vlm)
    sampler.graphs.failure = "not asked for"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore" if ROOMS[family] else "error", message=".*cuda_graphs")
        found = sampler.generate(inputs, 3, SAMPLING)
    check_equal(found, LocalGenerator(vlm, 8).generate(inputs, 3, SAMPLING), 2e-6)
    assert sampler.graphs.unfit == ROOMS[family] and bool(sampler.graphs.rooms) != bool(ROOMS[family])
