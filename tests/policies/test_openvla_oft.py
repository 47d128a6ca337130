"""OpenVLA-OFT's way of acting, several cameras and the robot's state: what is sampled is what is learned, what is read, the
files, what is refused. That the numbers are the published ones is in test_openvla_published.py."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.load import parse_config
from mmrl.config.sections import CriticConfig, LoraConfig, PolicyConfig
from mmrl.policies.acting.heads import Laplace
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.vla import VLA
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.critic import Critic
from mmrl.policies.openvla import components
from mmrl.policies.vlm import tiny
from mmrl.train.checks.run_file import check_model
from mmrl.train.resolve import resolve

OPENVLA, QWEN, QWEN3 = (f"tiny:{family}:hidden=32,layers=2" for family in ("openvla", "qwen2_5_vl", "qwen3_vl"))
SEEDS, CALLS = torch.arange(50, 54), torch.arange(4)
TEXTS = ["pick up the red cube", "push it", "stack the ball on the yellow box", "push it"]
BOTH = ["front", "wrist"]
STATISTICS = {
    "mine": {
        "action": {"q01": [-0.03, -0.04, 0.0], "q99": [0.03, 0.05, 1.0], "mask": [True, True, False]},
        "proprio": {"q01": [-1.0, -2.0, 0.5, 0.0, 0.0], "q99": [1.0, 2.0, 0.5, 1.0, 3.0]},
    }
}


def seen(n=4, seed=0):
    draws = torch.Generator().manual_seed(seed)
    images = {
        name: torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8, generator=draws)
        for name, side in (("front", 64), ("wrist", 48), ("top", 40))
    }
    return Observation(images=images, state=torch.randn(n, 5, generator=draws), instructions=TEXTS[:n])


def with_state(shown, state):
    return Observation(images=shown.images, state=state, instructions=shown.instructions)


def without(shown, camera):
    return Observation(
        images={**shown.images, camera: 255 - shown.images[camera]}, state=shown.state, instructions=shown.instructions
    )


def vla(model=OPENVLA, lora=None, **options):
    options = {"dims": 3, "bins": 32, "chunk": 2, "decoding": "oft", **options}
    return VLA(PolicyConfig(model=str(model), kind="vla", lora=lora), seed=1, **options)


def calls(shown, found):
    length = found.logprobs_nKC.numel()
    some = torch.zeros(length)
    return ActionMicroBatch(
        observation=shown,
        choices=found.choices,
        slots=found.logprobs_nKC.shape[-1],
        valid_SK=torch.ones(found.choices.shape[:2] if found.choices.dim() > 2 else (len(found.choices), 2), dtype=torch.bool),
        ratio="token",
        sampler_logprobs_L=found.logprobs_nKC.flatten(),
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


# -- sampling and learning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [OPENVLA, QWEN], ids=["openvla", "qwen"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": "l1"},
        {"head": "l1", "scale": "network"},
        {"head": "normal"},
        {"decoding": "parallel"},
        {"decoding": "one-by-one"},
    ],
    ids=lambda o: "-".join(o.values()) or "tokens",
)
def test_what_is_sampled_is_what_is_learned(model, options):
    """With two cameras and the robot's state, in a batch whose prompts have several lengths, and alone."""
    policy, shown = vla(model, cameras=BOTH, state=5, **options), seen()
    for temperature in (1.0, 0.6):
        found = policy.act(shown, SEEDS, CALLS, temperature)
        outputs = policy.outputs(calls(shown, found), temperature)
        torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-5, rtol=1e-5)
    some = torch.tensor([3, 2])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 1.0)
    torch.testing.assert_close(alone.actions_nKA, policy.act(shown, SEEDS, CALLS, 1.0).actions_nKA[some], atol=1e-5, rtol=1e-5)
    outputs.logprobs_L.sum().backward()
    still = [name for name, p in policy.parameters() if p.grad is None or not p.grad.any()]
    assert not [name for name in still if name.startswith("own.") or "embed" in name or "layers.1" in name], still


@pytest.mark.parametrize("model", [OPENVLA, QWEN, QWEN3], ids=["openvla", "qwen", "qwen3"])
@pytest.mark.parametrize("decoding", ["oft", "parallel", "one-by-one"])
@torch.no_grad()
def test_each_row_sees_its_cameras_and_its_state(model, decoding):
    policy, shown = vla(model, cameras=BOTH, state=5, decoding=decoding), seen()

    def change(other):
        found = policy.act(shown, SEEDS, CALLS, 0.0), policy.act(other, SEEDS, CALLS, 0.0)
        return (found[0].logprobs_nKC - found[1].logprobs_nKC).abs().amax((1, 2))

    assert change(without(shown, "front")).min() > 1e-4 and change(without(shown, "wrist")).min() > 1e-4
    assert not change(without(shown, "top")).any(), "which it doesn't look through"
    moved = shown.state.clone()
    moved[2, 4] += 1.0
    moved = change(with_state(shown, moved))
    assert moved[2] > 1e-5 and not moved[[0, 1, 3]].any(), "a row reads its own state"
    swapped = vla(model, cameras=BOTH[::-1], state=5, decoding=decoding)
    assert (swapped.act(shown, SEEDS, CALLS, 0.0).logprobs_nKC - policy.act(shown, SEEDS, CALLS, 0.0).logprobs_nKC).any()


@torch.no_grad()
def test_everything_sees_everything_and_slots_are_empty():
    """Against transformers' Llama without a mask, fed with embeddings that are put together by hand."""
    policy, shown = vla(cameras=BOTH, state=5), seen()
    model, llama = policy.vlm.model, policy.vlm.model.language_model
    words = llama.model.embed_tokens
    for n in range(4):
        row = shown.rows(torch.tensor([n]))
        ids = policy.seeing.prompt(TEXTS[n], ((56, 56),) * 2).ids
        pixels = policy.seeing.media(policy.seeing.pictures(row))["pixel_values"]
        patches = model.projector(model.vision_backbone(pixels)).flatten(0, 1)
        assert len(patches) == 32 and ids[:34].tolist() == [1] + [model.config.image_id] * 32 + [1]
        parts = [words(ids[:1]), patches, policy.own["state"](row.state), words(ids[34:]), torch.zeros(6, 32)]
        whole = torch.cat([*parts, words(torch.tensor([policy.vlm.tokenizer.eos_token_id]))])[None]
        size = whole.shape[1]
        hidden = llama.model(inputs_embeds=whole, attention_mask=torch.zeros(1, 1, size, size)).last_hidden_state
        wanted = llama.lm_head(hidden)[0, -8:-2][:, policy.action_ids].view(2, 3, -1)
        torch.testing.assert_close(policy.features(shown)[0][n], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", ["tokens", "l1"])
def test_bfloat16_scores_what_it_samples(head):
    config = PolicyConfig(model=OPENVLA, kind="vla", dtype="bfloat16")
    policy, shown = VLA(config, seed=1, dims=3, chunk=2, decoding="oft", head=head, cameras=BOTH, state=5), seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    outputs = policy.outputs(calls(shown, found), 1.0)
    assert found.logprobs_nKC.dtype == outputs.logprobs_L.dtype == torch.float32
    torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-5, rtol=1e-5)


def test_the_laplace_head_has_the_likelihood_of_its_samples():
    head = Laplace(4, 2, 8, spread=0.3)
    features = torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(0)).expand(20000, 3, -1)
    draw = CallRandomness(seeds_n=torch.arange(20000), calls_n=torch.zeros(20000, dtype=torch.long))
    with torch.no_grad():
        chosen, _, logprobs = head.sample(features, draw, 1.0)
        middle = head.model(features[:1, :1])[0, 0]
        wanted = torch.distributions.Laplace(middle, 0.3).log_prob(chosen).sum(-1, keepdim=True)
        torch.testing.assert_close(logprobs, wanted, atol=1e-5, rtol=1e-5)
        away = (chosen - middle).flatten(0, 1)
        assert torch.allclose(away.abs().mean(0), torch.tensor(0.3), atol=0.006) and away.mean(0).abs().max() < 0.006
        assert torch.allclose((away.abs() > 0.3).float().mean(0), torch.tensor(math.exp(-1)), atol=0.01), "its tails"
        score, entropy = head.score(features, chosen, 0.5)
        half = torch.distributions.Laplace(middle, 0.15)
        torch.testing.assert_close(score, half.log_prob(chosen).sum(-1, keepdim=True), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(entropy[0, 0, 0], half.entropy().sum() * torch.ones(()), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(head.sample(features[:2], draw_of(2), 0.0)[0], middle.expand(2, 3, -1))
    loss = -head.score(features[:5], torch.zeros(5, 3, 2), 1.0)[0].mean()
    own = ((head.model(features[:5]).abs() / 0.3).sum(-1)).mean()
    one, two = (torch.autograd.grad(x, head.model.fc2.bias)[0] for x in (loss, own))
    torch.testing.assert_close(one, two)  # the gradient of the L1 error over the scale


def draw_of(n):
    return CallRandomness(seeds_n=torch.arange(n), calls_n=torch.zeros(n, dtype=torch.long))


def test_a_critic_adapters_and_a_clone(tmp_path):
    lora = LoraConfig(rank=2, target_modules=["vision", "projector", "language"])
    policy, shown = vla(lora=lora, cameras=BOTH, state=5, head="l1", scale="network"), seen()
    critic = Critic(policy, CriticConfig(hidden_sizes=[4]), 0)
    assert policy.width == 3 * 32
    with torch.no_grad():
        for _, p in [*policy.parameters(), *critic.parameters()]:
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
    found = policy.act(shown, SEEDS, CALLS, 1.0, critic)
    torch.testing.assert_close(policy.values(shown, SEEDS, CALLS, critic), found.values_nU, atol=1e-5, rtol=1e-5)
    policy.save(tmp_path / "saved")
    options = {
        "dims": 3,
        "bins": 32,
        "chunk": 2,
        "decoding": "oft",
        "head": "l1",
        "scale": "network",
        "state": 5,
        "cameras": BOTH,
    }
    again = VLA(PolicyConfig(model=OPENVLA, kind="vla", lora=lora), seed=1, source=tmp_path / "saved", **options)
    assert torch.equal(again.act(shown, SEEDS, CALLS, 1.0).choices, found.choices)
    other = policy.clone(frozen=True)
    with torch.no_grad():
        policy.own["state"].fc2.bias.add_(1.0)
    assert torch.equal(other.act(shown, SEEDS, CALLS, 1.0).choices, found.choices)
    assert not torch.equal(policy.act(shown, SEEDS, CALLS, 1.0).choices, found.choices)


# -- files ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A checkpoint before fine-tuning: statistics of two data sets in its config.json."""
    folder = tmp_path_factory.mktemp("base")
    model, processor = tiny.build("openvla", hidden=32, layers=1, seed=5)
    model.config.norm_stats = {"mine": STATISTICS["mine"], "other": STATISTICS["mine"]}
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tuned(base, tmp_path_factory):
    """A fine-tuned checkpoint: what this class saves, without what only mmrl reads."""
    folder = tmp_path_factory.mktemp("tuned")
    policy = vla(base, head="l1", state=5, statistics_key="mine", gripper="open-high", bins=None)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    policy.save(folder)
    for name in ("acting.json", "acting.safetensors"):
        (folder / name).unlink()
    return folder


def test_a_saved_folder_has_ofts_files_and_is_the_same_policy(base, tuned, tmp_path):
    assert {file.name for file in tuned.glob("*.pt")} == {
        "action_head--latest_checkpoint.pt",
        "proprio_projector--latest_checkpoint.pt",
    }
    assert json.loads((tuned / "dataset_statistics.json").read_text()).keys() == {"mine"}
    policy = vla(tuned, decoding=None, bins=None, gripper="open-high", spread=0.2)
    assert (policy.head_kind, policy.decoding, policy.state) == ("l1", "oft", 5), "what its files say"
    assert policy.statistics.state.second[2] == 2.5, "a number that never changes becomes -1"
    with torch.no_grad():
        policy.head.log_spread.sub_(0.4)
    policy.save(tmp_path / "saved")
    assert load_file(tmp_path / "saved" / "acting.safetensors").keys() == {"head.log_spread"}, "nothing is kept twice"
    options = {k: v for k, v in json.loads((tmp_path / "saved" / "acting.json").read_text()).items() if k != "kind"}
    again = VLA(PolicyConfig(model=str(tmp_path / "saved"), kind="vla"), seed=7, **options)
    mine, theirs = policy.model.state_dict(), again.model.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(p, theirs[name]) for name, p in mine.items())
    assert again.statistics == policy.statistics
    (tmp_path / "saved" / "action_head--latest_checkpoint.pt").unlink()
    with pytest.raises(UserError, match=r'has no action_head--\*_checkpoint.pt, and policy.options.head = "l1" needs one'):
        VLA(PolicyConfig(model=str(tmp_path / "saved"), kind="vla"), seed=7, **options)


def copied(folder, to, **files):
    shutil.copytree(folder, to)
    for name, content in files.items():
        if content is None:
            next(to.glob(f"{name}*")).unlink()
        else:
            torch.save(content, to / f"{name}--1_checkpoint.pt")
    return to


def small(weights):
    return {name: w[:1] for name, w in weights.items()}


class Hostile:
    def __reduce__(self):
        return (print, ("run",))


BAD = {
    "no-statistics": ({"dataset_statistics": None}, {}, {"norm_stats": None}, r"comes without statistics of its data"),
    "key": (
        {},
        {"statistics_key": "fractal"},
        {},
        r"statistics_key = 'fractal' is not in .*dataset_statistics.json: it has mine",
    ),
    "state": ({}, {"state": 8}, {}, r"policy.options.statistics are of states of 5 numbers, and policy.options.state = 8"),
    "projector": (
        {},
        {"state": 8, "statistics": "none", "gripper": ""},
        {},
        r"policy.options.state = 8, and proprio_projector--latest_checkpoint.pt of the checkpoint is for 5 numbers: make them",
    ),
    "dims": (
        {},
        {"dims": 4, "statistics": "none", "gripper": ""},
        {},
        r"policy.options.dims = 4, and action_head--latest_checkpoint.pt of the checkpoint is for 3 numbers: make them equal",
    ),
    "head": (
        {"action_head": None},
        {"head": "l1"},
        {},
        r'has no action_head--\*_checkpoint.pt, and policy.options.head = "l1" needs',
    ),
    "head-alone": (
        {"action_head": None, "dataset_statistics": None},
        {"head": "l1", "statistics_key": "mine"},
        {},
        r'has no action_head--\*_checkpoint.pt, and policy.options.head = "l1" needs',
    ),
    "no-projector": (
        {"proprio_projector": None},
        {"state": 5},
        {},
        r"has no proprio_projector--\*_checkpoint.pt, and .*state = 5",
    ),
    "two": (
        {"action_head": {}},
        {},
        {},
        r"has 2 files of its action_head: leave one of action_head--1_checkpoint.pt, action_head--l",
    ),
    "diffusion": (
        {"noisy_action_projector": {}},
        {},
        {},
        r"has noisy_action_projector--1_checkpoint.pt, which means a diffusion head",
    ),
    "film": ({"vision_backbone": {}}, {}, {}, r"has vision_backbone--1_checkpoint.pt, which means FiLM in its towers: choose a"),
}


@pytest.mark.parametrize("case", BAD)
def test_published_checkpoints_that_cannot_be_used(case, tuned, tmp_path, monkeypatch):
    """One line, before a weight of the model is loaded; and a run file is refused before anything is."""
    files, options, sections, message = BAD[case]
    folder = copied(tuned, tmp_path / "other", **files)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **sections}))
    loaded = []
    monkeypatch.setattr("mmrl.policies.vlm.vlm.load", lambda *_: loaded.append(1))
    options = {"dims": 3, "gripper": "open-high", **options}
    with pytest.raises(UserError, match=message) as error:
        VLA(PolicyConfig(model=str(folder), kind="vla"), **options)
    assert "\n" not in str(error.value) and not loaded
    if case != "state":  # its statistics and its projector differ, and the file of statistics is not the first to be looked at
        with pytest.raises(UserError, match=message):
            VLA.check(PolicyConfig(model=str(folder), kind="vla", options=options))


def test_component_files_that_cannot_be_read(tuned, tmp_path):
    file = tuned / "action_head--latest_checkpoint.pt"
    weights = components.read(file)
    for number, (content, message) in enumerate(
        (
            ({"module.x": Hostile()}, "can't be read as weights"),
            ([1, 2], "holds something else than weights by name"),
            ({k: w for k, w in weights.items() if k != "model.fc1.bias"}, "lacks model.fc1.bias, unlike what OpenVLA-OFT saves"),
            ({**weights, "model.odd": weights["model.fc1.bias"]}, "has model.odd, unlike what"),
            ({**weights, "model.fc1.bias": torch.zeros(3)}, r"model.fc1.bias is \[3\], and \[32\] beside this model"),
        )
    ):
        folder = copied(tuned, tmp_path / str(number), action_head=None)
        torch.save(content, folder / "action_head--1_checkpoint.pt")
        with pytest.raises(UserError, match=message) as error:
            vla(folder, decoding=None, bins=None, gripper="open-high")
        assert "\n" not in str(error.value)
    (copied(tuned, tmp_path / "torn", action_head=None) / "action_head--1_checkpoint.pt").write_bytes(file.read_bytes()[:999])
    with pytest.raises(UserError, match="can't be read as weights"):
        vla(tmp_path / "torn", decoding=None, bins=None, gripper="open-high")


def test_a_run_file_with_a_camera_that_is_not_there(tuned):
    def refused(options, cameras=("front", "wrist")):
        data = {
            "name": "x",
            "policy": {"kind": "vla", "model": OPENVLA, "options": {"dims": 7, **options}},
            "tasks": [{"id": "robotics/pick", "options": {"cameras": list(cameras)}}],
            "stages": [{"kind": "rl", "algorithm": "trajectory-grpo", "steps": 1, "ratio": "token"}],
        }
        setup = resolve(parse_config(data))
        check_model(setup.config, setup.policy)

    refused({"cameras": ["front", "wrist"]})
    with pytest.raises(
        UserError, match=r"cameras names 'behind', which simulator 'tabletop/table' of task .* doesn't show: it shows"
    ):
        refused({"cameras": ["front", "behind"]})
    with pytest.raises(UserError, match=r"cameras names 'top', .* doesn't show: it shows front, wrist$"):
        refused({"cameras": ["top"]})
    with pytest.raises(UserError, match=r"cameras has 'side', which the simulator doesn't have: it has front, wrist, top"):
        vla(cameras=["side"]).act(seen(), SEEDS, CALLS, 1.0)
    with pytest.raises(UserError, match=r"policy.options.state = 6, and the simulator shows a state of 5: make them equal"):
        vla(state=6).act(seen(), SEEDS, CALLS, 1.0)


def test_statistics_without_the_state_are_refused(tmp_path):
    file = tmp_path / "stats.json"
    file.write_text(json.dumps({"mine": {"action": STATISTICS["mine"]["action"]}}))
    with pytest.raises(UserError, match=r"has no statistics of the state, and policy.options.state = 5 is read: name a file"):
        vla(state=5, statistics=str(file), gripper="open-high")
