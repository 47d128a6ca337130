"""A reward from pictures of success and of failure: a small classifier on a frozen model that sees, as HIL-SERL's on a frozen
ResNet-10 (Luo et al., arXiv 2410.21845; rail-berkeley/hil-serl @5d02aed, `BinaryClassifier` and train_reward_classifier.py).

M pictures, D numbers of an embedding.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from mmrl import Case, Score, UserError
from mmrl.api.errors import check_path, display_path
from mmrl.api.media.images import load_image
from mmrl.api.media.picture_folders import SUFFIXES
from mmrl.api.services import Dtype, check_image_encoder, image_encoder
from mmrl.api.simulators.types import Observation
from mmrl.api.tasks.option_checks import check_type
from mmrl_robotics.looking import check_cameras, pictures

LOADED: WeakValueDictionary[str, Succeeded] = WeakValueDictionary()
"""Option -> its classifier, as long as a task has it: tasks with the same option share one, and its encoder."""
SIDES = ("success", "failure")
"""Folders with the pictures of each."""
HIDDEN, STEPS, BATCH, RATE = 256, 300, 256, 1e-3
"""Of the classifier: width, updates, pictures of an update, of which half are of success, and learning rate."""
LOADING = Lock()
"""Lanes are threads that ask at the same time, and what is drawn while a classifier learns comes from a generator of them all."""


class Succeeded:
    """1 for the call of the policy that leads to the first picture which the classifier takes for success, and 0 for all others;
    the value is the sum."""

    def __init__(
        self,
        *,
        model: str,
        folder: str,
        threshold: float = 0.75,
        camera: str = "",
        device: str = "auto",
        dtype: Dtype = "auto",
        batch_size: int = 64,
    ) -> None:
        """model: the folder or hub name of a vision transformer such as a DINOv2, which is frozen, or tiny. folder: has the
        folders `success` and `failure` with pictures of the camera, from which the classifier learns when it is loaded.
        threshold: probability above which a picture shows success. camera: its name; the first when empty. device: auto, cpu,
        cuda. dtype: auto, float32, bfloat16 or float16. batch_size: pictures encoded at once."""
        self.check({}, model=model, folder=folder, threshold=threshold, camera=camera, device=device, batch_size=batch_size)
        self.threshold, self.camera = threshold, camera
        self.model = image_encoder(model, device=device, dtype=dtype, batch_size=batch_size)
        success_MD, failure_MD = (self.model.encode([load_image(str(path)) for path in files]).cpu() for files in _files(folder))
        self.classifier = fitted(success_MD, failure_MD)
        known, count = int((self.probabilities(success_MD) > threshold).sum()), len(success_MD)
        if 2 * known < count:
            raise UserError(
                f"folder = {folder!r:.100}: the classifier takes {known} of {count} of its pictures of success for one "
                f"at threshold = {threshold:g}: lower it, or give pictures or a model that tell both apart"
            )

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        folder: str,
        threshold: float = 0.75,
        camera: str = "",
        device: str = "auto",
        batch_size: int = 64,
        **others: Any,
    ) -> None:
        check_image_encoder(model, device=device, batch_size=batch_size)
        check_cameras(cameras, camera)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold < 1:
            raise UserError(f"threshold = {threshold!r} must be a number between 0 and 1")
        _files(folder)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        seen = [pictures(case, self.camera)[1:] for case in cases]
        found_M = self.shows([picture for shown in seen for picture in shown])
        scores = []
        for own_T in found_M.split([len(shown) for shown in seen]):
            above = own_T.long()
            first = above * (above.cumsum(0) == 1)
            scores.append(Score(float(first.sum()), steps=tuple(first.float().tolist())))
        return scores

    def shows(self, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """bool [M], on the host: which pictures it takes for success."""
        return self.probabilities(self.model.encode(pictures)) > self.threshold

    @torch.no_grad()
    def probabilities(self, features_MD: torch.Tensor) -> torch.Tensor:
        """float32 [M], on the host: of success."""
        found: torch.Tensor = self.classifier(features_MD.float().cpu())[:, 0].sigmoid()
        return found


class Sight:
    """What ends an episode, as in HIL-SERL, by a classifier that is loaded on first use: the option `classifier` of the tasks."""

    def __init__(self, option: Mapping[str, Any]) -> None:
        """option: a table with the options of `Succeeded`. Raises UserError for others."""
        check_type("classifier", option, Mapping, '{ model = "facebook/dinov2-small", folder = "pictures" }')
        known = inspect.signature(Succeeded).parameters
        for name in option.keys() - known.keys():
            raise UserError(f"classifier.{name} is unknown: choose of {', '.join(known)}")
        for name in (name for name in ("model", "folder") if not isinstance(option.get(name), str)):
            raise UserError(f"classifier needs a {name}, a text: the options are those of the verifier robotics/classifier")
        try:
            Succeeded.check({}, **option)
        except UserError as error:
            raise UserError(f"classifier: {error}") from None
        self.option = dict(option)
        self._loaded: Succeeded | None = None

    def __call__(self, seen: Observation) -> torch.Tensor:
        """bool [n]: which observations show success."""
        with LOADING:
            if self._loaded is None:
                key = json.dumps(self.option, sort_keys=True)
                self._loaded = LOADED.get(key) or Succeeded(**self.option)
                LOADED[key] = self._loaded
        camera = self._loaded.camera or next(iter(seen.images), "")
        if camera not in seen.images:
            known = ", ".join(seen.images) or "none"
            raise UserError(f"classifier.camera = {camera!r} is not a camera of the simulator, which has {known}")
        pictures = [Image.fromarray(picture) for picture in seen.images[camera].cpu().numpy()]
        return self._loaded.shows(pictures)

    def __getstate__(self) -> dict[str, Any]:
        """Other processes load their own."""
        return {"option": self.option, "_loaded": None}


class _Classifier(nn.Module):
    """A layer of `HIDDEN` numbers, layer normalisation and ReLU, on standardised features."""

    def __init__(self, mean_D: torch.Tensor, std_D: torch.Tensor) -> None:
        super().__init__()
        self.mean_D, self.std_D = mean_D, std_D
        self.layers = nn.Sequential(nn.Linear(len(mean_D), HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, features_MD: torch.Tensor) -> torch.Tensor:
        """Logits [M, 1]."""
        found: torch.Tensor = self.layers((features_MD - self.mean_D) / self.std_D)
        return found


def fitted(success_MD: torch.Tensor, failure_MD: torch.Tensor, seed: int = 0) -> nn.Module:
    """A classifier of features, by binary cross-entropy and batches of which half are of success. The same features and seed
    give the same."""
    both = torch.cat([success_MD, failure_MD]).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = _Classifier(both.mean(0), both.std(0, correction=0).clamp_min(1e-6))
    optimizer = torch.optim.Adam(classifier.parameters(), lr=RATE)
    half = BATCH // 2
    labels = torch.cat([torch.ones(half), torch.zeros(half)])
    with torch.enable_grad():
        for _ in range(STEPS):
            drawn = [side[torch.randint(len(side), (half,), generator=generator)] for side in (success_MD, failure_MD)]
            logits = classifier(torch.cat(drawn).float())[:, 0]
            loss = functional.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return classifier.eval()


def _files(folder: str) -> list[list[Path]]:
    """The pictures of `SIDES`, in the order of their names. Raises UserError if one has none."""
    found = []
    for side in SIDES:
        place = Path(folder) / side
        if not place.is_dir():
            raise UserError(f"folder = {folder!r:.100}: {display_path(place)} is no folder: {check_path(place)}")
        files = sorted(path for path in place.iterdir() if path.suffix.lower() in SUFFIXES)
        if not files:
            raise UserError(f"folder = {folder!r:.100}: there is no picture in {display_path(place)}: give some of {side}")
        found.append(files)
    return found
