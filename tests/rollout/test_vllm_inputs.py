"""How the learner's tensors are divided into vLLM's items, and where their places are; vLLM itself is asked in `tests/vllm`."""

from types import SimpleNamespace

import pytest
import torch

import other_families
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.types import Prompt, user_message
from mmrl.rollout.generate import vllm_inputs
from mmrl.rollout.generate.vllm_inputs import VllmInputs, as_given, cut_to_size, tiles_of_all


def handed(policy, arrange=as_given, **limits):
    """As if vLLM's processor had been asked."""
    made = VllmInputs.__new__(VllmInputs)
    made.policy, made.arrange, made.added, made.limits, made.numbers = policy, arrange, {}, limits, {1, 2}
    return made


def item(**tensors):
    return {name: SimpleNamespace(data=value) for name, value in tensors.items()}


def places(made, ids, kind, items):
    return [(first, mask.tolist()) for first, mask in made.places(torch.tensor(ids), kind, items)]


@pytest.fixture
def llava():
    """A stand-in with a token 7 for pictures and 8 for videos."""
    config = SimpleNamespace(model_type="llava", image_token_id=7, video_token_id=8)
    return SimpleNamespace(model=SimpleNamespace(config=config), family=None)


def test_places_go_by_the_grids_of_pictures(llava):
    grids = [item(image_grid_thw=torch.tensor(grid)) for grid in ([1, 2, 4], [1, 2, 2])]
    assert places(handed(llava), [1, 7, 7, 7, 2], "image", grids) == [(1, [True, True]), (3, [True])]


def test_places_go_by_the_sizes_of_pictures_that_were_cut_and_leave_the_ends_of_rows_out(llava):
    pictures = [item(pixel_values=torch.ones(3, 2, 4)), item(pixel_values=torch.ones(3, 2, 2))]
    ids = [7, 7, 9, 7, 7, 9, 5, 7, 9, 7]
    assert places(handed(llava, cut_to_size), ids, "image", pictures) == [
        (0, [True, True, False, True, True]),
        (7, [True, False, True]),
    ]


def test_places_go_by_what_is_between_them_else_tiles_have_the_same_number(llava):
    tile = item(pixel_values=torch.ones(1, 3, 2, 2))
    assert places(handed(llava), [7, 7, 1, 7], "image", [tile, tile]) == [(0, [True, True]), (3, [True])]
    assert places(handed(llava), [7, 7, 7, 7, 1, 7, 7], "image", [tile] * 3) == [
        (0, [True] * 2),
        (2, [True] * 2),
        (5, [True] * 2),
    ]
    assert places(handed(llava), [1, 2], "video", []) == []


def test_pictures_that_can_not_be_told_apart_are_refused(llava):
    tiles = [item(pixel_values=torch.ones(count, 3, 2, 2)) for count in (1, 2)]
    for ids, items in (([7, 7, 7, 7], tiles), ([7, 7, 7], [tiles[0]] * 2), ([7] * 6, [tiles[0]] * 2)):
        with pytest.raises(
            UserError, match=r"can't serve a llava model: the pictures of a prompt can't be told apart: use \"local\""
        ):
            places(handed(llava), ids, "image", items)


def test_sounds_are_told_apart_by_what_is_between_them(llava):
    llava.model.config.audio_token_id = 6
    made, sounds = handed(llava), [item(audio_feature_lengths=torch.tensor([n])) for n in (8, 4)]
    assert places(made, [1, 6, 6, 2, 1, 6, 2], "audio", sounds) == [(1, [True, True]), (5, [True])]
    with pytest.raises(UserError, match="the sounds of a prompt can't be told apart: use"):
        places(made, [1, 6, 6, 6, 2], "audio", sounds)
    with pytest.raises(UserError, match="its class in vLLM can't be given a sound: use"):
        places(made, [1, 6, 2], "audio", [])


def test_what_vllm_has_no_room_for_is_refused(llava):
    tile = item(pixel_values=torch.ones(1, 3, 2, 2))
    with pytest.raises(UserError, match=r"its class in vLLM reads 1 picture a prompt, and here are 2: use"):
        places(handed(llava, image=1), [7, 1, 7], "image", [tile] * 2)
    with pytest.raises(UserError, match=r"its class in vLLM can't be given a video: use"):
        places(handed(llava), [8, 8], "video", [])
    with pytest.raises(UserError, match=r"its class in vLLM can't be given a video: use"):
        places(handed(llava), [8, 8], "video", [item(pixel_values_videos=torch.ones(2, 3, 2, 2))])


def test_tiles_of_pictures_are_told_from_padding():
    """Of LLaVA-OneVision, which keeps the tiles of a picture together, and of Idefics 3, which doesn't."""
    for family, arrange in (("llava_onevision", as_given), ("idefics3", tiles_of_all)):
        policy = other_families.policy(family)
        shown = [cases.picture(n, *size) for n, size in enumerate([(56, 56), (90, 28)])]
        turns = policy.encode(Prompt(messages=[user_message("x", shown[0])]))
        both, _ = policy.extend(turns, [5], [user_message("y", shown[1])])
        alone = [policy.encode(Prompt(messages=[user_message("x", one)])).media["pixel_values"][0] for one in shown]
        found = arrange(both.media)["pixel_values"]
        found = torch.cat(list(found)) if arrange is as_given else found
        assert torch.equal(found, torch.cat(alone)) and both.media["pixel_values"].shape[1] == max(map(len, alone))
        assert len({len(one) for one in alone}) == 2, "one of them was padded"


def test_pictures_are_cut_to_their_sizes():
    policy = other_families.policy("pixtral")
    shown = [cases.picture(n, *size) for n, size in enumerate([(56, 56), (28, 84)])]
    both = policy.encode(Prompt(messages=[user_message("x", *shown)]))
    alone = [policy.encode(Prompt(messages=[user_message("x", one)])).media["pixel_values"][0] for one in shown]
    found = cut_to_size(both.media)["pixel_values"]
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True)) and found[0].shape != found[1].shape


def test_equal_numbers_are_the_same_however_they_are_divided():
    whole, halves = torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3).split(2)
    same = vllm_inputs._same
    assert same([whole], halves) and same(halves, [whole])
    assert not same([whole], [whole + 1]) and not same([whole], [whole.view(3, 4)]) and not same([], [whole])


def test_pictures_of_other_numbers_have_other_hashes():
    ones = item(pixel_values=torch.ones(2, 3), image_grid_thw=torch.tensor([1, 1, 2]))
    digest = vllm_inputs.digest
    assert digest(ones) == digest(item(**{name: value.data.clone() for name, value in ones.items()}))
    others = [item(pixel_values=torch.ones(3, 2)), item(pixel_values=torch.ones(2, 3), image_grid_thw=torch.tensor([1, 2, 1]))]
    assert len({digest(one) for one in (ones, *others)}) == 3
