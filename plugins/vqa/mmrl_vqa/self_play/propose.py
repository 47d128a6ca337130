"""The task `vqa/propose`: write a question about a picture, with its answer. It needs pictures alone, and no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl import Prompt, Task, user_message
from mmrl.api.media.images import load_image
from mmrl.api.tasks.image_sources import ImageFolder, ImageSource, PhotographCrops
from mmrl.api.tasks.option_checks import LazyPrompts, check_integer, check_split, check_type
from mmrl_vqa.self_play.proposals import Proposal, written

if TYPE_CHECKING:
    from PIL.Image import Image

ASK = (
    "Look at the picture closely and write one question about it that takes thought to answer and that somebody else can answer "
    "from the picture alone. It is of one type: multiple choice (yes or no, or four options A, B, C, D of which one is right), "
    "numerical (the answer is a number), or regression (the answer is measured or estimated). Give its answer too: a letter, "
    "yes, no or a number, without a unit. Write these three lines and nothing else:\n"
    "<type>the type</type>\n<question>the question, with its options</question>\n<answer>the answer</answer>"
)
BRIGHTER = "Which half of the picture is brighter on average? A. the left B. the right C. the upper D. the lower"


@dataclass(kw_only=True, eq=False)
class Propose(Task):
    """Write a question about a picture. The rule `vqa/self-play` pays for questions that the policy itself finds hard."""

    path: str | None = None
    """A folder of images, with or without subfolders; by default, square pieces of the installed photographs."""
    size: int = 112
    """The picture's longer side in pixels; larger images of a folder are reduced to it, and 0 leaves them unchanged."""
    train: int = 4096
    """Pieces of photographs to train on."""
    test: int = 512
    """Pieces of photographs to test on."""
    seed: int = 0
    """Seed of the pieces, and of the splits of a folder's images."""

    def __post_init__(self) -> None:
        check_integer("size", self.size, 0 if self.path is not None else 28, 8192, "pixels")
        for name in ("train", "test"):
            check_integer(name, getattr(self, name), 1, 10**7)
        check_integer("seed", self.seed, -(2**63), 2**63)
        if self.path is not None:
            check_type("path", self.path, str)
            self.source: ImageSource = ImageFolder(self.path, self.size, 1, self.seed)
        else:
            self.source = PhotographCrops(self.size, {"train": self.train, "test": self.test}, self.seed)

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        """One prompt for each picture; the run's seed changes nothing."""
        ids = self.source.ids[check_split(split, self.source.ids)]
        return LazyPrompts(range(len(ids)), lambda n: self._prompt(ids[n], self.source.open(split, n)))

    def gold(self, prompt: Prompt) -> str:
        """A question with a right answer, though no hard one: which half is brighter."""
        (picture,) = prompt.images
        return written(Proposal("multiple choice", BRIGHTER, "ABCD"[_brightest(load_image(picture))]))

    def _prompt(self, id: str, picture: Image) -> Prompt:
        return Prompt(id=id, messages=[user_message(ASK, picture)])


def _brightest(picture: Image) -> int:
    """Which half has the highest mean of grey: 0 the left, 1 the right, 2 the upper, 3 the lower."""
    import numpy

    grey = numpy.asarray(picture.convert("L"), dtype=numpy.float64)
    high, wide = (max(1, side // 2) for side in grey.shape)
    halves = (grey[:, :wide], grey[:, -wide:], grey[:high], grey[-high:])
    return int(numpy.argmax([half.mean() for half in halves]))
