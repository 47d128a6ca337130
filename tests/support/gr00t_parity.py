"""GR00T against LeRobot's own classes: the network alone, and the policy through LeRobot's processors."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from gr00t_cases import absolute, ends, gr00t, looked, published, relative
from mmrl.policies.gr00t.network import load_network
from peer_pythons import Pairs, lerobot
from pi0_cases import moved

AREA = {"use_albumentations": True, "shortest_image_edge": 64, "crop_fraction": 0.95}


def joints():
    """Without a pose, of which LeRobot can't make demonstrations."""
    config, tables = relative()
    for part in (config["state"]["modality_keys"], config["action"]["modality_keys"], config["action"]["action_configs"]):
        del part[0]
    return config, {kind: {name: one for name, one in groups.items() if name != "eef_9d"} for kind, groups in tables.items()}


CASES = {
    "absolute": (absolute(), {}, ("image", "wrist_image"), 8, 4),
    "whole-range": (absolute(), {"use_percentiles": False, "letter_box_transform": True}, ("image", "wrist_image"), 8, 4),
    "area": (absolute(), AREA, ("image", "wrist_image"), 8, 4),
    "relative": (relative(), AREA, ("image",), 13, 13),
    "joints": (joints(), {}, ("image",), 4, 4),
}


TUNED = {"tuned": "absolute", "area": "area", "joints": "joints", "new": "absolute"}


@dataclass
class Noise:
    """Draws that LeRobot made."""

    start: torch.Tensor

    @property
    def calls_n(self):
        return torch.zeros(len(self.start), dtype=torch.int64)

    def normal(self, use, *shape):
        assert shape == self.start.shape[1:]
        return self.start if use == 0 else torch.full_like(self.start, torch.nan)  # the noise of steps, of which there is none


def network(folder: Path) -> Pairs:
    """In float64, of a network that LeRobot made."""
    lerobot("gr00t_of_lerobot", "main", folder)
    made, theirs = load_network(folder, torch.float64), load_file(folder / "computed.safetensors")
    inputs, head = load_file(folder / "inputs.safetensors"), made.action_head
    with torch.no_grad():
        ours = {"features": made.features(inputs)}
        context = made.encode(inputs, theirs["state"][:, 0], theirs["embodiment"])
        ours |= {"read": context.read_nPF, "velocity": head.velocity(context, theirs["noise"], theirs["times"])}
        ours["actions"] = head.denoise(context, theirs["start"])
    return {name: (value, theirs[name]) for name, value in ours.items()}


def calls_of(shown) -> list[dict]:
    return [
        {
            "images": {camera: pictures[i : i + 1].permute(0, 3, 1, 2) for camera, pictures in shown.images.items()},
            "state": shown.state[i : i + 1],
            "instruction": shown.instructions[i],
        }
        for i in range(len(shown))
    ]


def pairs(policy, shown, folder: Path) -> Pairs:
    chosen = torch.load(folder / "chosen.pt", weights_only=True)
    actions = policy.choose(shown, Noise(torch.cat([one["start"] for one in chosen])), 0.0)[0]
    assert actions.std() > 0.3 and actions.abs().max() > 1, "some are cut"
    assert (actions[0] - actions[1]).abs().max() > 0.1, "the actions of calls differ"
    theirs = {key: torch.cat([one[key][:, : policy.chunk] for one in chosen]) for key in ("normalised", "actions")}
    ours = {"normalised": actions, "actions": policy.embodiment.physical(actions, shown.state)}
    found = {key: (value, theirs[key]) for key, value in ours.items()}
    for i, one in enumerate(chosen):
        alone = shown.rows(torch.tensor([i]))
        inputs = policy.reader.inputs(alone, policy.device)
        assert torch.equal(inputs["input_ids"], one["input_ids"]) and int(one["embodiment_id"]) == policy.embodiment.number
        assert torch.equal(inputs["image_grid_thw"], one["image_grid_thw"])
        found[f"pixels {i}"] = (inputs["pixel_values"], one["pixel_values"])
        found[f"state {i}"] = (policy._state(alone), one["state"][:, 0])
    return found


def acting(case: str, folder: Path) -> Pairs:
    """Of a checkpoint as NVIDIA publishes it, which mmrl wrote."""
    tables, settings, cameras, state, dims = CASES[case]
    name = published(folder / "model", {"arm": tables}, settings)
    shown = looked(3, cameras=cameras, size=(96, 128), state=state)
    calls, ahead = calls_of(shown), len(tables[0]["action"]["delta_indices"])
    policy = gr00t(name, dims=dims, state=state, chunk=ahead)
    noise = torch.Generator().manual_seed(8)
    demonstrated = policy.embodiment.physical(torch.rand(3, ahead, dims, generator=noise) * 2 - 1, shown.state)
    demonstrated = demonstrated + 0.3 * torch.randn(demonstrated.shape, generator=noise)
    if case != "relative":
        for call, shown_by_expert in zip(calls, demonstrated, strict=True):
            call["shown"] = shown_by_expert[None]
    torch.save({"calls": calls, "dims": dims}, folder / "seen.pt")
    lerobot("gr00t_acts_of_lerobot", "main", name, "arm", folder)
    found = pairs(policy, shown, folder)
    if case != "relative":
        learned = policy.head.choices_of(policy.embodiment.normalised(demonstrated, shown.state))
        theirs = torch.stack([one["learned"] for one in torch.load(folder / "chosen.pt", weights_only=True)])
        found["learned"] = (learned, theirs)
        within = learned[:, 0, :ahead, :dims].abs() < 1
        assert all(0 < row.sum() < row.numel() for row in within), "some are cut"
    return found


def both_ways(case: str, folder: Path) -> dict[str, Pairs]:
    """Of what LeRobot saves after fine-tuning, by who saved it, and of mmrl's loaded again without the model that it was tuned
    from. "new": a robot that this has no statistics of, so that LeRobot takes the data set's, for all numbers."""
    tables, settings, cameras, state, dims = CASES[TUNED[case]]
    name = published(folder / "model", {"arm": tables}, settings)
    shown = looked(3, cameras=cameras, size=(96, 128), state=state)
    given = {"calls": calls_of(shown), "dims": dims}
    if case == "new":
        sizes = {"observation.state": state, "action": dims}
        given["statistics"] = {key: {end: torch.tensor(x) for end, x in ends(n, n).items()} for key, n in sizes.items()}
    torch.save(given, folder / "seen.pt")
    theirs, ours = folder / "theirs", folder / "ours"
    lerobot("gr00t_acts_of_lerobot", "tune", name, "arm" if case != "new" else "new_embodiment", folder, theirs)
    options = {"dims": dims, "state": None, "chunk": 4}
    policy = gr00t(str(theirs), **options)
    found = {"saved by LeRobot": pairs(policy, shown, folder)}
    moved(policy).save(ours)
    lerobot("gr00t_acts_of_lerobot", "act", ours, folder)
    found["saved by mmrl"] = pairs(policy, shown, folder)
    changed = (found["saved by mmrl"]["normalised"][1] - found["saved by LeRobot"]["normalised"][1]).abs().max()
    assert changed > 1e-2, "the weights are others"
    shutil.rmtree(name)
    return found | {"loaded again": pairs(gr00t(str(ours), **options), shown, folder)}
