"""What X-VLA reads: pictures, texts, the files that LeRobot and X-VLA's authors write; and what of them is refused."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import interpolate, pad
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPImageProcessor

from flow_cases import calls
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.load import make_policy
from mmrl.policies.resizing import resize
from mmrl.policies.xvla import tiny
from mmrl.policies.xvla.config import florence_of, picture_tokens, read_config
from mmrl.policies.xvla.loading import check_model
from mmrl.policies.xvla.model import XVLA
from mmrl.train.plan.acting_passes import Passes
from pi0_cases import CALLS, SEEDS, moved, seen
from xvla_cases import MODEL, xvla
from xvla_parity import of_microsoft

MEAN, STD = (torch.tensor(of).view(3, 1, 1) for of in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
NAMED = {"image": "front", "image2": "wrist"}
"""LeRobot's names of LIBERO's cameras -> those of the test's."""


def as_lerobot_left_it(folder, **options):
    """A policy in a folder without mmrl's own files."""
    policy = moved(xvla(**options))
    policy.save(folder)
    for name in ("acting.json", "acting.safetensors"):
        (folder / name).unlink()
    return policy


def changed(folder, **fields):
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (table | fields).items() if v != "gone"}))


def steps(folder, change, name="policy_preprocessor.json"):
    file = folder / name
    table = json.loads(file.read_text())
    change(table["steps"])
    file.write_text(json.dumps(table))


# -- reading --------------------------------------------------------------------------------------------------------------


def test_pictures_are_framed_as_lerobot_does():
    """Normalised, scaled until they fit, and zeros at the left and above; the wrist's 40 x 64 fill the lower 40 of 64 rows."""
    policy, shown = xvla(), seen()
    pixels = policy._pictures(shown)
    front = (shown.images["front"].permute(0, 3, 1, 2).float() / 255 - MEAN) / STD
    wrist = (shown.images["wrist"].permute(0, 3, 1, 2).float() / 255 - MEAN) / STD
    torch.testing.assert_close(pixels[:, 0], front, atol=1e-6, rtol=0)
    torch.testing.assert_close(pixels[:, 1], pad(wrist, (0, 0, 24, 0)), atol=1e-6, rtol=0)
    middle = interpolate(front[:, :, 9:54, 9:54], (64, 64), mode="bilinear", align_corners=False)  # half of 64 x 64
    torch.testing.assert_close(xvla(crop=0.5)._pictures(shown)[:, 0], middle, atol=1e-5, rtol=0)
    assert torch.equal(xvla(cameras=["wrist"])._pictures(shown)[:, 0], pixels[:, 1])


def test_an_instruction_is_filled_up_or_cut():
    policy = xvla(prompt="do {instruction}")
    ids, tokenizer = policy._ids("x"), policy.tokenizer
    assert len(ids) == len(policy._ids("long " * 99)) == 24 and ids[-1] == tokenizer.pad_token_id
    assert tokenizer.decode([i for i in ids if i != tokenizer.pad_token_id]) == "do x"


@pytest.mark.slow
def test_the_layout_of_x_vlas_authors(tmp_path):
    """config.json of transformers', Microsoft's names of Florence-2's weights, three views, 50 words, 20 numbers of a state, and
    pictures as CLIP's processor makes them."""
    policy = moved(xvla(action_mode="ee6d", dims=7, state=8))
    policy.save(tmp_path / "saved")
    folder = shutil.copytree(tmp_path / "saved", tmp_path / "published")
    of_microsoft(folder)
    for file in (*folder.glob("policy_*"), *folder.glob("acting.*")):
        file.unlink()
    (folder / "tokenizer" / "tokenizer_config.json").rename(folder / "tokenizer_config.json")
    (folder / "tokenizer" / "tokenizer.json").rename(folder / "tokenizer.json")
    shutil.rmtree(folder / "tokenizer")
    table = json.loads((folder / "config.json").read_text())
    kept = {
        k: table[k] for k in ("hidden_size", "depth", "num_heads", "mlp_ratio", "num_domains", "len_soft_prompts", "dim_time")
    }
    kept |= {"model_type": "xvla", "num_actions": 5, "action_mode": "ee6d", "max_action_dim": 20, "real_action_dim": 20}
    (folder / "config.json").write_text(
        json.dumps(kept | {"florence_config": table["florence_config"], "architectures": ["XVLA"]})
    )
    weights = {name.removeprefix("model."): x for name, x in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")

    again = xvla(str(folder), dims=None, chunk=None, state=8, domain=1)
    assert (again.dims, again.chunk, again.chains.steps, again.resize) == (7, 5, 10, "published")
    assert again.statistics is not None and not any(again.statistics.action.mask), "its numbers are metres and turns"
    shown = seen()
    shown = Observation(images=shown.images, state=torch.randn(4, 8), instructions=shown.instructions)
    clip = CLIPImageProcessor(
        size={"height": 224, "width": 224},
        do_center_crop=False,
        image_mean=MEAN.flatten().tolist(),
        image_std=STD.flatten().tolist(),
    )
    wanted = clip([one.numpy() for one in shown.images["wrist"]], return_tensors="pt")["pixel_values"]
    pixels = again._pictures(shown)
    torch.testing.assert_close(pixels[:, 1], wanted, atol=0.036, rtol=0)  # two steps of 1 / 255
    ours = resize(shown.images["wrist"].permute(0, 3, 1, 2).contiguous(), 224, 224).float() / 255
    torch.testing.assert_close(pixels[:, 1], (ours - MEAN) / STD, atol=1e-6, rtol=0)
    assert again._state(shown).shape == (4, 20) and len(again._ids("x")) == 50 and again._views(2) == 3
    one, two = policy.model.state_dict(), again.model.state_dict()
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    again.save(tmp_path / "again")  # in LeRobot's layout
    third = xvla(
        str(tmp_path / "again"), dims=None, chunk=None, state=8, domain=1, resize="published", statistics=again.statistics.plain()
    )
    assert torch.equal(third.choose(shown, _draw(), 1.0)[0], again.choose(shown, _draw(), 1.0)[0])


def _draw():
    from mmrl.policies.acting.randomness import CallRandomness

    return CallRandomness(seeds_n=SEEDS, calls_n=CALLS)


@pytest.mark.slow
def test_what_the_processors_say_is_kept(tmp_path):
    policy = as_lerobot_left_it(tmp_path / "one", cameras=["wrist"], domain=2, chunk=3)
    again = xvla(str(tmp_path / "one"), dims=None, chunk=None, state=None)
    assert (again.dims, again.chunk, again.state, again.chains.steps, again.domain) == (3, 3, 6, 4, 2)
    assert again._names(seen()) == ["wrist"] and again.statistics is not None
    shown = seen()
    assert torch.equal(again.choose(shown, _draw(), 1.0)[0], policy.choose(shown, _draw(), 1.0)[0])
    turn = {"registry_name": "xvla_rotation_6d_to_axis_angle", "config": {"expected_action_dim": 10}}
    as_lerobot_left_it(tmp_path / "two", action_mode="ee6d", dims=20)
    steps(tmp_path / "two", lambda found: found.insert(1, turn), "policy_postprocessor.json")
    hands = xvla(str(tmp_path / "two"), dims=None, state=8)
    assert hands.dims == 7 and hands.robot.hands == 1
    hands.save(tmp_path / "three")
    names = [s["registry_name"] for s in json.loads((tmp_path / "three" / "policy_postprocessor.json").read_text())["steps"]]
    assert names == ["unnormalizer_processor", "xvla_rotation_6d_to_axis_angle", "device_processor"]


@pytest.mark.slow
def test_the_main_camera_must_be_there(tmp_path):
    as_lerobot_left_it(tmp_path, cameras=["front", "wrist"])
    shown = seen()
    assert xvla(str(tmp_path))._names(shown) == ["front", "wrist"]
    del shown.images["wrist"]
    policy = xvla(str(tmp_path))
    assert (
        policy._names(shown) == ["front"] and policy.look(shown).read_nPH.shape == xvla(str(tmp_path)).look(seen()).read_nPH.shape
    )
    for there, message in (
        (
            "wrist",
            "the policy's main camera is front, and the simulator has wrist: set policy.options.cameras to those in the order",
        ),
        ("top", "trained with the cameras front, wrist, and the simulator has top: set policy.options.cameras"),
    ):
        other = Observation(images={there: seen().images["front"]}, state=shown.state, instructions=shown.instructions)
        with pytest.raises(UserError, match=message):
            policy.look(other)


# -- what can't be --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"chunk": 6}, "policy.options.chunk = 6 is too many for this X-VLA: 5 actions are predicted"),
        ({"dims": 21}, "policy.options.dims = 21 doesn't fit the action space auto, which has at most 20 here"),
        (
            {"action_mode": "ee6d", "dims": 5},
            r"dims = 5 doesn't fit the action space ee6d, which has 7, 14, 10, 20 \(7 for each hand",
        ),
        ({"action_mode": "joint"}, "dims = 3 doesn't fit the action space joint, which has 7, 14"),
        ({"action_mode": "ee7d"}, "policy.options.action_mode = 'ee7d' must be one of '', 'ee6d', "),
        ({"state": 21}, "policy.options.state = 21 is too many for this X-VLA: 20 numbers a state has at most"),
        ({"action_mode": "ee6d", "dims": 14, "state": 9}, "state = 9 doesn't fit 2 hands with their turns as axis times angle"),
        ({"domain": 3}, "policy.options.domain = 3 is none of this X-VLA's domains: it has 3, from 0 on"),
        ({"domain": -1}, "policy.options.domain = -1 must be a whole number from 0"),
        ({"steps": 0}, "policy.options.steps = 0 must be a whole number from 1 to 256"),
        ({"rotation": "euler"}, "policy.options.rotation = 'euler' must be one of 'columns', 'rows'"),
        ({"rotation": "rows"}, 'rotation = "rows", and no turn of 3 numbers of the action space auto is converted: leave it out'),
        ({"tokenizer": 3}, "policy.options.tokenizer = 3 must be a text"),
        ({"prompt": "go"}, r"policy.options.prompt = 'go' must contain \{instruction\}"),
        ({"model": "tiny:xvla:depth=2"}, "'depth=2' is not understood: write tiny:xvla:hidden=64,layers=2,chunk=30"),
        ({"model": "tiny:pi0"}, "policy.model: 'tiny:pi0' is no X-VLA: write tiny:xvla"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message) as caught:
        xvla(**options)
    assert "\n" not in str(caught.value)


def test_statistics_that_cannot_be():
    def numbers(mask):
        return {"kind": "min-max", "action": {"min": [0.0] * 7, "max": [1.0] * 7, "mask": mask}}

    hands = {"action_mode": "ee6d", "dims": 7, "state": 8}
    with pytest.raises(UserError, match=r"statistics normalise places, turns or grippers of the action space ee6d"):
        xvla(**hands, statistics=numbers([True] * 7), gripper="close-high")
    with pytest.raises(UserError, match=r"gripper = 'close-positive', and a gripper of the action space ee6d is 0 or 1: set it"):
        xvla(**hands, statistics=numbers([False] * 7), gripper="close-positive")
    assert xvla(**hands, statistics=numbers([False] * 7), gripper="close-high").gripper == "close-high"


@pytest.mark.slow
def test_pictures_that_cannot_be(tmp_path):
    policy, shown = xvla(), seen()
    policy.save(tmp_path)
    changed(tmp_path, resize_imgs_with_padding=None)
    with pytest.raises(UserError, match=r"cameras front, wrist show pictures of several sizes, which this X-VLA doesn't scale"):
        xvla(str(tmp_path)).look(shown)
    changed(tmp_path, max_len_seq=30)
    with pytest.raises(UserError, match=r"pos_emb is \[1, 512, 32\], and \[1, 30, 32\] by its config.json"):
        xvla(str(tmp_path))
    names = [f"camera{i}" for i in range(120)]
    many = Observation(images=dict.fromkeys(names, shown.images["front"]), state=shown.state, instructions=shown.instructions)
    with pytest.raises(
        UserError, match=r"120 pictures of 5 tokens, 24 of the text and 5 actions are 629 tokens, and this X-VLA has"
    ):
        policy.look(many)
    with pytest.raises(UserError, match=r"the vision tower can't see pictures of 640 x 64 pixels: it has 16 places for patches"):
        picture_tokens(policy.checkpoint.florence, 64, 640)


@pytest.mark.slow
def test_folders_that_are_no_x_vla(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    xvla().save(whole)
    (whole / "acting.json").unlink()
    weights, config = load_file(whole / "model.safetensors"), json.loads((whole / "config.json").read_text())

    def told(kept):
        save_file(kept, whole / "model.safetensors")
        with pytest.raises(UserError) as caught:
            xvla(str(whole))
        save_file(weights, whole / "model.safetensors")
        return str(caught.value)

    assert "lacks 2 of an X-VLA's weights, such as action_head.action_decoder.bias.weight" in told(
        {k: v for k, v in weights.items() if "action_decoder" not in k}
    )
    assert "has 1 weights too many, such as x: give a folder or hub name of an X-VLA that LeRobot or its authors saved" in told(
        {**weights, "model.x": torch.zeros(1)}
    )
    assert "action_head.norm.weight is [2], and [32] by its config.json and the action space auto" in told(
        {**weights, "model.transformer.norm.weight": torch.zeros(2)}
    )
    with pytest.raises(UserError, match=r"action_encoder.fc.weight is \[3, 1536\], and \[3, 1344\] by .* the action space joint"):
        xvla(str(whole), action_mode="joint", dims=14)
    monkeypatch.setattr("mmrl.policies.xvla.model.load_network", lambda *a: pytest.fail("weights were read"))
    for change, message in (
        ({"type": "pi0"}, "is a pi0, not an X-VLA: give a folder or hub name of an X-VLA"),
        ({"action_mode": "ee7d"}, "config.json: action_mode = 'ee7d' is not one of ee6d, agibot_ee6d, joint"),
        ({"pad_language_to": "longest"}, "config.json: pad_language_to = 'longest', and only 'max_length' can be read"),
        ({"chunk_size": "5"}, "config.json: chunk_size = '5' is not what an X-VLA's must be"),
        ({"num_domains": 0}, "config.json: num_domains = 0 must be above 0"),
        ({"num_heads": 3}, "config.json: num_heads = 3 doesn't divide hidden_size = 32"),
        ({"florence_config": {}}, "config.json: florence_config has no vision_config and text_config"),
    ):
        (whole / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message) as caught:
            xvla(str(whole))
        with pytest.raises(UserError, match=re.escape(str(caught.value))):
            check_model(str(whole))
        assert "\n" not in str(caught.value) and str(caught.value).startswith("policy.model: ")
    (whole / "config.json").write_text(json.dumps(config))
    shutil.rmtree(whole / "tokenizer")
    with pytest.raises(UserError, match=r"no tokenizer in .*: set policy.options.tokenizer to a folder or hub name"):
        xvla(str(whole))
    with pytest.raises(UserError, match="is not a folder: give a folder or hub name of an X-VLA"):
        check_model("/nowhere/at/all")
    check_model("lerobot/xvla-libero")
    assert tiny.full_name("tiny:xvla", 7) == "tiny:xvla:hidden=64,layers=2,chunk=30,seed=7"


@pytest.mark.slow
def test_processors_that_cannot_be(tmp_path):
    as_lerobot_left_it(tmp_path / "whole")

    def told(name, change):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / name)
        change(folder)
        with pytest.raises(UserError) as caught:
            XVLA.check(PolicyConfig(model=str(folder), kind="xvla"))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "comes without statistics of its data" in told("bare", lambda folder: (folder / "policy_preprocessor.json").unlink())

    def step(at, **config):
        return lambda folder: steps(folder, lambda found: found[at]["config"].update(config))

    assert "has padding = 'longest' of texts, and only 'max_length' can be read" in told("longest", step(2, padding="longest"))
    assert "its max_length or its domain_id is none" in told("domain", step(5, domain_id=-1))
    assert "policy.options.domain = 7 is none of this X-VLA's domains: it has 3" in told("far", step(5, domain_id=7))
    scale = {"registry_name": "xvla_image_scale", "config": {}}
    assert "'xvla_image_scale' without 'xvla_image_to_float'" in told(
        "scaled", lambda folder: steps(folder, lambda found: found.__setitem__(3, scale))
    )
    odd = {"registry_name": "relative_actions_processor", "config": {}}
    assert "has the step 'relative_actions_processor', which can't be done here" in told(
        "odd", lambda folder: steps(folder, lambda found: found.append(odd))
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "siglip"}, "the vision tower is a siglip, not a DaViT"),
        ({"image_pos_embed": {"type": "sine"}}, "image_pos_embed = .* must be of the type learned_abs_2d"),
        ({"image_feature_source": ["last_frame"]}, "image_feature_source = .* can't be computed here"),
        ({"projection_dim": 7}, "projection_dim = 7 must be the language model's d_model = 32"),
    ],
)
def test_florences_that_cannot_be(change, message):
    table, _ = tiny.parts("tiny:xvla:hidden=32")
    table["florence_config"]["vision_config"] |= change
    with pytest.raises(UserError, match=message):
        florence_of(table)


@pytest.mark.slow
def test_the_published_sizes():
    """X-VLA-0.9B over Florence-2-large, of which half of the language model is left out: 0.88 billion weights, a tenth of a
    million of them a domain's own (arXiv 2510.10274, section 3)."""
    from mmrl.policies.xvla.network import Network
    from mmrl.policies.xvla.spaces import space_of

    vision = {"embed_dim": [256, 512, 1024, 2048], "num_heads": [8, 16, 32, 64], "num_groups": [8, 16, 32, 64]}
    text = {"d_model": 1024, "encoder_layers": 12, "vocab_size": 51289}
    table = {"type": "xvla", "chunk_size": 30, "florence_config": {"vision_config": vision, "text_config": text}}
    config = read_config(table | {"max_state_dim": 20})
    florence = florence_of(table)
    with torch.device("meta"):
        network = Network(config, florence, space_of("ee6d", 7, 20))
    sizes = {name: p.numel() / 1e6 for name, p in network.named_parameters()}
    assert 875 < sum(sizes.values()) < 885 and picture_tokens(florence, 224, 224) == 50
    own = ("soft_prompt_hub", "action_encoder", "action_decoder")
    assert abs(sum(size for name, size in sizes.items() if name.split(".")[1] in own) - 30 * 0.128) < 0.01


@pytest.mark.slow
def test_a_plan_knows_its_passes():
    """But for the attention of Florence-2's channels, which torch computes as products on a CPU, all operations are counted."""
    config = PolicyConfig(model=MODEL, kind="xvla", options={"dims": 3, "state": 6, "steps": 3, "cameras": ["front", "wrist"]})
    policy, shown, found = make_policy(config, device="cpu", seed=0), seen(), Passes(config)
    planned = found.planned
    assert dict(found.shapes.named()) == {name: tuple(p.shape) for name, p in policy.parameters()}
    assert (planned.chunk, planned.pictures, planned.width, planned.steps) == (policy.chunk, 2, policy.width, 3)
    with FlopCounterMode(display=False) as counter:
        sample = policy.act(shown, SEEDS, CALLS, 1.0)
    images = {name: each[:1] for name, each in shown.images.items()}
    for demonstrated, choices in ((False, sample.choices), (True, sample.choices[:, :1])):
        track = SimpleNamespace(instruction="x", images=images, choices=choices)
        assert planned.tokens(9, demonstrated) == policy.tokens_per_call([track])
    assert sum(flops for flops, _ in found.act(4, 9).products) == pytest.approx(counter.get_total_flops(), rel=0.01)
    with FlopCounterMode(display=False) as counter:
        policy.outputs(calls(shown, sample.choices, policy.chunk), 1.0)
    forward, backward = found.learn(4, 9, False, frozenset(), False)
    assert sum(flops for flops, _ in forward.products) == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert backward.peak >= forward.kept > 0
