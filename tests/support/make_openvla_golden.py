"""Writes tests/golden/openvla/: what the published code of OpenVLA and OpenVLA-OFT computes on small random weights.

Run it in an environment with torch, transformers 4.40.1, tokenizers 0.19.1, timm 0.9.10 and numpy below 2, on checkouts of your
own; README.md beside the results names the repositories and commits:

    python tests/support/make_openvla_golden.py --openvla DIR --oft DIR --transformers-oft DIR [--ours FOLDER]
    python tests/support/make_openvla_golden.py --oft DIR --crop

--ours: a folder that mmrl saved with the same weights; it must give the same numbers, which is printed and not kept. --crop: only
the crop of a picture, in an environment with tensorflow-cpu 2.15.1, Pillow, numpy, torch and tokenizers.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import openvla_parity as given

OUT = Path(__file__).parents[1] / "golden" / "openvla"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("openvla", "oft", "transformers-oft"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--ours", type=Path)
    parser.add_argument("--crop", action="store_true")
    options = parser.parse_args()
    if options.crop:
        crop(options.oft)
        return
    for name in ("nms", "qnms"):  # torchvision beside a CPU build of torch
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    OUT.mkdir(exist_ok=True)
    hub(options.openvla)
    found = openvla(options.ours)
    for name in [name for name in sys.modules if name.startswith("prismatic")]:
        del sys.modules[name]
    bidirectional(options.transformers_oft)
    hub(options.oft)
    found |= oft(options.ours)
    np.savez_compressed(OUT / "arrays.npz", **found)
    print(f"{OUT / 'arrays.npz'}: {(OUT / 'arrays.npz').stat().st_size} bytes")


def hub(checkout: Path) -> None:
    """Make `prismatic` of a checkout importable without its `__init__`, which loads the training code."""
    package = types.ModuleType("prismatic")
    package.__path__ = [str(checkout / "prismatic")]
    sys.modules["prismatic"] = package
    for name in ("vla", "models", "training"):
        part = types.ModuleType(f"prismatic.{name}")
        part.__path__ = [str(checkout / "prismatic" / name)]
        sys.modules[f"prismatic.{name}"] = part


def bidirectional(checkout: Path) -> None:
    """Llama as in the fork of transformers that OpenVLA-OFT requires: its attention is not causal."""
    name = "transformers.models.llama.modeling_llama"
    importlib.import_module(name)
    file = checkout / "src/transformers/models/llama/modeling_llama.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    fork = importlib.util.module_from_spec(spec)
    sys.modules[name] = fork
    spec.loader.exec_module(fork)
    from transformers import AutoModelForCausalLM, LlamaConfig

    AutoModelForCausalLM.register(LlamaConfig, fork.LlamaForCausalLM, exist_ok=True)


def small_towers():
    """timm's own towers, with the widths and depths of `given.TOWERS`."""
    import timm

    make = timm.create_model
    shapes = dict(zip(("vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"), given.TOWERS, strict=True))

    def create_model(name, **options):
        shape = shapes[name]
        sizes = {"embed_dim": shape["width"], "depth": shape["depth"], "num_heads": shape["heads"]}
        return make(name, **options, **sizes, mlp_ratio=shape["inner"] / shape["width"])

    return mock.patch("timm.create_model", create_model)


def published(ours: Path | None = None):
    """The published model, with the weights of `given` or those of a folder."""
    configuration = importlib.import_module("prismatic.extern.hf.configuration_prismatic")
    modeling = importlib.import_module("prismatic.extern.hf.modeling_prismatic")
    with small_towers():
        if ours is not None:
            return modeling.OpenVLAForActionPrediction.from_pretrained(ours, torch_dtype=torch.float32).eval()
        model = modeling.OpenVLAForActionPrediction(configuration.OpenVLAConfig(**given.config())).eval()
    for name, tensor in model.state_dict().items():
        given.fill(name, tensor)
    return model


def processor():
    from transformers import PreTrainedTokenizerFast

    processing = importlib.import_module("prismatic.extern.hf.processing_prismatic")
    special: dict = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<PAD>"}
    special["model_input_names"] = ["input_ids", "attention_mask"]  # Llama's
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=given.tokenizer(), **special, padding_side="right")
    pictures = processing.PrismaticImageProcessor(
        use_fused_vision_backbone=True,
        image_resize_strategy="resize-naive",
        input_sizes=[(3, given.SIZE, given.SIZE)] * 2,
        interpolations=["bicubic"] * 2,
        means=[tuple(m) for m in given.MEANS],
        stds=[tuple(s) for s in given.STDS],
    )
    return processing.PrismaticProcessor(pictures, tokenizer)


def columns(logits: torch.Tensor) -> np.ndarray:
    return logits[..., torch.from_numpy(given.COLUMNS)].numpy()


@torch.no_grad()
def openvla(ours: Path | None) -> dict[str, np.ndarray]:
    model, reader = published(), processor()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        reader.image_processor.save_pretrained(folder)
        for name in ("config.json", "preprocessor_config.json"):
            (OUT / name).write_text(json.dumps(json.loads(Path(folder, name).read_text()), indent=1) + "\n")
    names = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    (OUT / "weights.json").write_text(json.dumps(names, indent=0) + "\n")
    inputs = reader(given.TEXT, given.picture(0))
    found = {"ids": inputs["input_ids"].numpy(), "pixels": inputs["pixel_values"][..., ::5, ::5].numpy()}
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([[given.EMPTY]])], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])

    def numbers(one):
        logits = columns(one(**inputs).logits)
        tokens = one.generate(**inputs, max_new_tokens=given.DIMS, do_sample=False)[:, -given.DIMS :].numpy()
        return logits, tokens, one.predict_action(**inputs, unnorm_key=given.KEY, do_sample=False)

    found["logits"], found["tokens"], found["action"] = numbers(model)
    compare(ours, found, ("logits", "tokens", "action"), numbers)
    return found


@torch.no_grad()
def oft(ours: Path | None) -> dict[str, np.ndarray]:
    scheduler = types.ModuleType("diffusers.schedulers.scheduling_ddim")
    scheduler.DDIMScheduler = None  # type: ignore[attr-defined]  # the diffusion head is not made
    sys.modules[scheduler.__name__] = scheduler
    heads = importlib.import_module("prismatic.models.action_heads")
    projectors = importlib.import_module("prismatic.models.projectors")
    hidden = given.LLAMA["hidden_size"]
    head = heads.L1RegressionActionHead(input_dim=hidden, hidden_dim=hidden, action_dim=given.DIMS).eval()
    state = projectors.ProprioProjector(llm_dim=hidden, proprio_dim=given.STATE).eval()
    for kind, module in (("action_head", head), ("proprio_projector", state)):
        for name, tensor in module.state_dict().items():
            given.fill(f"{kind}.{name}", tensor)
    names = {
        "action_head": {name: list(tensor.shape) for name, tensor in head.state_dict().items()},
        "proprio_projector": {name: list(tensor.shape) for name, tensor in state.state_dict().items()},
    }
    (OUT / "components.json").write_text(json.dumps(names, indent=1) + "\n")
    reader = processor()
    inputs = reader(given.TEXT, given.picture(0))
    both = torch.cat([inputs["pixel_values"], reader(given.TEXT, given.picture(1))["pixel_values"]], 1)
    ends = given.statistics()[given.KEY]["proprio"]
    low, high = np.array(ends["q01"]), np.array(ends["q99"])
    normal = np.clip(2 * (given.state() - low) / (high - low + 1e-8) - 1, -1, 1)  # its normalize_proprio

    def numbers(model):
        seen = {}
        model.language_model.register_forward_hook(lambda module, args, output: seen.update(logits=output.logits))
        found = []
        for pictures, extras, regress in (
            (1, {}, False),
            (2, {"proprio": normal, "proprio_projector": state}, False),
            (2, {"proprio": normal, "proprio_projector": state}, True),
        ):
            model.vision_backbone.set_num_images_in_input(pictures)
            more = {**extras, "action_head": head} if regress else extras
            inputs["pixel_values"] = both[:, : 6 * pictures]
            actions, states = model.predict_action(**inputs, unnorm_key=given.KEY, **more)
            slots = given.DIMS * given.CHUNK
            if not regress:
                found.append(columns(seen["logits"][:, -slots - 2 : -2]))
            found.append(actions)
            if regress:
                found += [states.numpy(), head.predict_action(states).numpy()]
        return found

    order = ("oft_logits", "oft_actions", "oft_logits_two", "oft_actions_two", "l1_actions", "l1_states", "l1_normal")
    found = dict(zip(order, numbers(published()), strict=True))
    for kind, module in (("action_head", head), ("proprio_projector", state)):
        for file in ours.glob(f"{kind}--*_checkpoint.pt") if ours else ():
            module.load_state_dict(torch.load(file, weights_only=True))
            print(f"read {file}")
    compare(ours, found, order, numbers)
    return found


def crop(checkout: Path) -> None:
    """The picture that OFT's evaluation crops, by its own function; what the module imports besides is not used."""
    absent = ["json_numpy", "requests", "huggingface_hub", "transformers"]
    absent += [f"prismatic.{name}" for name in ("extern.hf.configuration_prismatic", "extern.hf.modeling_prismatic")]
    absent += [f"prismatic.{name}" for name in ("extern.hf.processing_prismatic", "models.action_heads", "vla.constants")]
    absent += [
        f"prismatic.{name}" for name in ("models.film_vit_wrapper", "models.projectors", "vla.datasets.rlds.utils.data_utils")
    ]
    parents = {name.rsplit(".", n)[0] for name in absent for n in range(1, name.count(".") + 1)}
    sys.modules |= {name: mock.MagicMock() for name in (*parents, *absent)}
    sys.path.insert(0, str(checkout))
    utils = importlib.import_module("experiments.robot.openvla_utils")
    cropped = np.asarray(utils.center_crop_image(given.picture(0, 224, 224)))
    np.savez_compressed(OUT / "crop.npz", cropped=cropped[1::4, 2::4])


def compare(ours, found, order, numbers) -> None:
    """Print how far the numbers of a folder that mmrl saved are from those of the same weights."""
    if ours is None:
        return
    for name, value in zip(order, numbers(published(ours)), strict=True):
        print(f"read from {ours}: {name} differs by {np.abs(value - found[name]).max():.1e}")


if __name__ == "__main__":
    main()
