"""Image classification as a task: a picture, a question, perhaps labels to choose from; the class's name is the answer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.errors import NoPair
from mmrl.api.media.images import load_image
from mmrl.api.statistics import wilson
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type, did_you_mean
from mmrl_classification import sources
from mmrl_classification.sampling import Item, base_and_new, few_shot, harmonic_mean, hash_rank, offer, split
from mmrl_classification.verifiers import normalise


class Style(NamedTuple):
    """The requested form of an answer."""

    suffix: str
    """Text after the question."""
    gold: str
    """The gold completion. A verifier that reads another form gives 0 to everything."""


THOUGHT = "<think>The picture shows: {0}.</think>\n<answer>{0}</answer>"
STYLES = {
    "question": Style("", "<answer>{0}</answer>"),  # requests no form: a warm start teaches it
    "tags": Style("\nThink in <think> </think> tags, then give the answer in <answer> </answer> tags.", THOUGHT),
    "confidence": Style(
        "\nGive the answer in <answer> </answer> tags, then how sure you are, from 0 to 1, in <confidence> </confidence> tags.",
        "<answer>{0}</answer><confidence>1</confidence>",
    ),
    "direct": Style("\nGive the answer and nothing else.", "{0}"),
    # the next two are the prompts of CLS-RL and No-Thinking-RL, with their blank after the line break
    "cls-rl": Style(
        "\n Please output the thinking process in <think> </think> and final answer in <answer> </answer> tags.", THOUGHT
    ),
    "no-thinking": Style("\n Please directly output the answer.", "{0}"),
}


class Digits(Task):
    """Which handwritten digit is shown: 1,797 real ones, without a download."""

    splits = ("warm", "train", "test")
    question, otherwise = "What digit is shown?", "Which number from 0 to 9 did somebody write here?"

    def __init__(self, size: int = 56, style: str = "question") -> None:
        """size: pixels of a side, from 8. style: the requested form of the answer, see `Classification.style`."""
        check_integer("size", size, 8, 4096, of="pixels")
        self.style = style_named(style)
        self.pictures = sources.digits(size)

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        return LazyPrompts(self.pictures.items[check_split(split, self.splits)], self._pose)

    def gold(self, prompt: Prompt) -> str:
        return self.style.gold.format(prompt.answer)

    def pair(self, prompt: Prompt) -> tuple[str, str]:
        """The right digit, and another one that depends on the picture alone."""
        return pair_of_labels(prompt, self.style)

    def rephrase(self, prompt: Prompt) -> Prompt:
        """The same picture with the question in other words."""
        return asked_anew(prompt, self.question, self.otherwise)

    def _pose(self, item: Item) -> Prompt:
        return Prompt(
            id=item.id,
            messages=[user_message(self.question + self.style.suffix, self.pictures.open(item))],
            answer=item.label,
            meta={"labels": self.pictures.classes},
        )


@dataclass(kw_only=True, eq=False)
class Classification(Task):
    """Base class of tasks on a source of pictures; a subclass reads the source."""

    style: str = "tags"
    """The requested form of the answer. A verifier must read that form, or every reward is 0:

    - tags, a thought and the answer in tags: `classification/answer` and `classification/format`, the defaults
    - question, which requests no form (a warm start teaches an answer tag): `classification/answer`
    - confidence, the answer and how sure the model is of it, in tags: `classification/answer` and `classification/calibration`
    - direct, the answer and nothing else: `classification/exact`
    - cls-rl and no-thinking, the published prompts: the verifiers of the tasks `@cls-rl` and `@no-thinking-rl`
    """
    question: str = "What type of object is in the photo?"
    """The first text of the prompt."""
    rephrased: str = "Which kind of object does the picture show?"
    """The question in other words, for `labels = "co-reward"`."""
    open_ended: bool = False
    """List no labels in the prompt. By default it lists as many to choose from as CLS-RL does."""
    labels: Sequence[str] | None = None
    """The labels to choose from; by default the classes. Every class must be among them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Class -> its name in prompts and answers, for classes with names like n01440764."""
    classes: str = "all"
    """all, base or new (the first or second half of the classes), or base-to-new: test on both, everything else on base only."""
    shots: int | None = None
    """Images per class in `train`; by default all."""
    fractions: Mapping[str, float] | None = None
    """Split -> share of each class, for sources without splits; by default train 0.8, test 0.2."""
    seed: int = 0
    """Seed of the splits and the shots. The run's seed doesn't change them, so that no test image is ever trained on."""
    quarantine: bool = False
    """Decode all images at the start and leave out broken ones, with a warning. By default each is left out when it is used, and
    the run stops if more than a tenth are broken."""

    def __post_init__(self) -> None:
        for option, kind in (("question", str), ("rephrased", str), ("open_ended", bool), ("seed", int), ("quarantine", bool)):
            check_type(option, getattr(self, option), kind)
        check_type("names", self.names, Mapping, "{n01440764 = 'tench'}")
        self._style = style_named(self.style)
        check_choice("classes", self.classes, ("all", "base", "new", "base-to-new"))
        if self.shots is not None:
            check_integer("shots", self.shots, 1)
        self.pictures = self.read()
        called = self._called()
        classes = tuple(dict.fromkeys(called.values()))
        if len(classes) < 2:
            raise UserError(
                f"{self.pictures.name} has only the class {''.join(classes)!r}, and classification needs two: "
                "add a class, or correct path"
            )
        self._groups = {} if self.classes == "all" else self._halves(classes)
        self._vocabulary = self._checked_labels(classes)
        self.quarantined: tuple[tuple[str, str], ...] = ()
        """(id, cause) of every image that was left out."""
        self._items = self._select(
            {name: [item._replace(label=called[item.label]) for item in items] for name, items in self.pictures.items.items()}
        )
        self.splits = tuple(self._items)  # type: ignore[misc]  # the source decides which there are

    def read(self) -> sources.Pictures:
        """List the source. Raises UserError when there is nothing to use."""
        raise NotImplementedError(f"{type(self).__name__} must define read()")

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        """The seed changes only the labels that are offered with each picture, and their order."""
        return LazyPrompts(self._items[check_split(split, self.splits)], lambda item: self._pose(item, seed))

    def gold(self, prompt: Prompt) -> str:
        return self._style.gold.format(prompt.answer)

    def pair(self, prompt: Prompt) -> tuple[str, str]:
        """The right label, and another one that depends on the picture alone."""
        return pair_of_labels(prompt, self._style)

    def rephrase(self, prompt: Prompt) -> Prompt:
        """The same picture and labels with the question in other words."""
        return asked_anew(prompt, self.question, self.rephrased)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Metrics of base and new classes, if both were evaluated: means, their 95% intervals if all scores are 0 or 1, and the
        harmonic mean of the two."""
        figures: dict[str, float] = {}
        for group in ("base", "new"):
            values = [value for prompt, value in results if prompt.meta.get("group") == group]
            if not values:
                return {}
            figures[group] = sum(values) / len(values)
            if set(values) <= {0.0, 1.0}:
                figures[f"{group}_low"], figures[f"{group}_high"] = wilson(sum(values), len(values))
        return {**figures, "harmonic_mean": harmonic_mean(figures["base"], figures["new"])}

    def _pose(self, item: Item, seed: int) -> Prompt:
        group = self._groups.get(item.label, "")
        rivals = [label for label in self._vocabulary if self._groups.get(label, group) == group]
        text, labels = self.question, tuple(rivals)
        if not self.open_ended:
            labels = offer(item.label, rivals, seed, item.id)
            text += f"\n Please choose one from list [ {', '.join(labels)}]."
        meta = {"labels": labels, "group": group} if group else {"labels": labels}
        question = user_message(text + self._style.suffix, self.pictures.open(item))
        return Prompt(id=item.id, messages=[question], answer=item.label, meta=meta)

    def _called(self) -> dict[str, str]:
        """Class -> its label. Raises UserError for names of unknown classes and labels that read the same."""
        known = self.pictures.classes
        for name in self.names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise UserError(f"names has {name!r}, which is not a class of {self.pictures.name}: correct or remove it.{hint}")
        called = {c: str(self.names.get(c, c)).strip() for c in known}
        seen: dict[str, str] = {}
        for label in called.values():
            if not label:
                raise UserError(f"{self.pictures.name} has a class with an empty name: give it one with names")
            other = seen.setdefault(normalise(label), label)
            if other != label:
                raise UserError(f"classes {other!r} and {label!r} of {self.pictures.name} read the same: rename one with names")
        return called

    def _halves(self, classes: tuple[str, ...]) -> dict[str, str]:
        """Class -> base or new."""
        halves = dict(zip(("base", "new"), base_and_new(classes), strict=True))
        for half in self.classes.split("-to-"):
            if len(halves[half]) < 2:
                raise UserError(
                    f"classes = {self.classes!r} halves the {len(classes)} classes of {self.pictures.name}, and one {half} class "
                    "is too few: use 4 classes or more, or set classes = 'all'"
                )
        return {label: half for half, part in halves.items() for label in part}

    def _checked_labels(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        if self.labels is None:
            return classes
        if not isinstance(self.labels, list | tuple) or not all(isinstance(label, str) for label in self.labels):
            raise UserError(
                f"labels = {self.labels!r:.60} must be a list such as ['cat', 'dog']: "
                "leave it out to offer the classes, or set open_ended = true to offer none"
            )
        for label in classes:
            if label not in self.labels:
                raise UserError(
                    f"labels does not contain {label!r}, the answer for some images of {self.pictures.name}: "
                    f"add it, or leave labels out.{did_you_mean(label, self.labels)}"
                )
        return tuple(dict.fromkeys(self.labels))

    def _select(self, items: Mapping[str, list[Item]]) -> dict[str, list[Item]]:
        """The items of every split, in an order that mixes the classes."""
        parts = split(items[""], self._checked_fractions(), self.seed) if "" in items else dict(items)
        if "" not in items and self.fractions is not None:
            raise UserError(f"{self.pictures.name} has its own splits, {', '.join(items)}: leave fractions out")
        if self.quarantine:
            parts = self._sound(parts)
        for name, part in parts.items():
            group = "base" if self.classes == "base-to-new" and name != "test" else self.classes
            if group in ("base", "new"):
                part = [item for item in part if self._groups[item.label] == group]
            if name == "train" and self.shots:
                part = few_shot(part, self.shots, self.seed, self.pictures.name)
            if not part:
                raise UserError(f"split {name!r} of {self.pictures.name} is empty: add images, or change fractions or classes")
            parts[name] = sorted(part, key=lambda item: hash_rank(self.seed, "order", item.id))
        for needed, option, value in (("train", "shots", self.shots), ("test", "classes", self.classes == "base-to-new")):
            if value and needed not in parts:
                raise UserError(
                    f"{option} = {getattr(self, option)!r} needs a split named {needed!r}, and {self.pictures.name} is cut into "
                    f"{', '.join(parts)}: name it in fractions, or in split_names of a data set"
                )
        return parts

    def _checked_fractions(self) -> Mapping[str, float]:
        fractions = {"train": 0.8, "test": 0.2} if self.fractions is None else self.fractions
        if (
            not isinstance(fractions, Mapping)
            or not fractions
            or not all(isinstance(f, int | float) and f > 0 for f in fractions.values())
            or sum(fractions.values()) > 1 + 1e-9
        ):
            raise UserError(
                f"fractions = {fractions!r} must name splits and shares above 0 that sum to 1 at most, "
                "such as {train = 0.8, test = 0.2}"
            )
        return fractions

    def _sound(self, parts: Mapping[str, list[Item]]) -> dict[str, list[Item]]:
        """The items that decode; the others are listed in one warning."""
        sound: dict[str, list[Item]] = {name: [] for name in parts}
        broken = []
        for name, part in parts.items():
            for item in part:
                try:
                    load_image(self.pictures.open(item))
                    sound[name].append(item)
                except UserError as error:
                    broken.append((item.id, str(error)))
        self.quarantined = tuple(sorted(broken))
        if broken:
            warnings.warn(
                f"{len(broken)} of {sum(map(len, parts.values()))} images of {self.pictures.name} are left out: "
                + "; ".join(cause for _, cause in self.quarantined),
                stacklevel=2,
            )
        return sound


@dataclass(kw_only=True, eq=False)
class Folder(Classification):
    """Local images, one folder per class."""

    path: str
    """The folder of class folders, or of `train` and `test` with class folders in each."""

    def read(self) -> sources.Pictures:
        return sources.folder(self.path)


@dataclass(kw_only=True, eq=False)
class Dataset(Classification):
    """Any image classification data set that `datasets` loads."""

    path: str
    """A Hub name, a local folder, a `.parquet` file, or what `save_to_disk` wrote."""
    name: str | None = None
    """The data set's configuration."""
    revision: str | None = None
    """Commit or tag on the Hub; set it, so that the data can't change."""
    image_column: str = "image"
    label_column: str = "label"
    split_names: Mapping[str, str] = field(default_factory=dict)
    """Our split -> the data set's; by default its train, and its test or validation."""

    def read(self) -> sources.Pictures:
        check_type("split_names", self.split_names, Mapping, "{train = 'training'}")
        return sources.dataset(self.path, self.name, self.revision, self.image_column, self.label_column, self.split_names)


def pair_of_labels(prompt: Prompt, style: Style) -> tuple[str, str]:
    """(gold completion, that of a wrong label of those that the prompt offers). Raises NoPair if it offers no other."""
    wrong = [label for label in prompt.meta["labels"] if label != prompt.answer]
    if not wrong:
        raise NoPair("its picture has no second label: offer more than one")
    return style.gold.format(prompt.answer), style.gold.format(wrong[hash_rank(0, "pair", prompt.id) % len(wrong)])


def asked_anew(prompt: Prompt, question: str, other: str) -> Prompt:
    """The prompt with another question before its labels and instructions."""
    (message,) = prompt.messages
    *shown, text = message["content"]
    anew = {**text, "text": other + text["text"][len(question) :]}
    return replace(prompt, messages=[{**message, "content": [*shown, anew]}])


def style_named(name: str) -> Style:
    check_choice("style", name, tuple(STYLES))
    return STYLES[name]
