"""The rules for vision-language models, and models that hear: what a model reads, samples and learns is the same however it is
run."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Prompt, Status, Turn, user_message
from mmrl.config.sections import PARTS, LoraConfig, PolicyConfig
from mmrl.testing.checks import CheckFailed, Report, run_checks

if TYPE_CHECKING:
    import torch

    from mmrl.policies.vlm.vlm import VLM

BOUNDS = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""Greatest difference of log-probabilities in nats, and of gradients relative to their norm, by the weights' dtype."""
GROUP, LONGEST = 4, 7


@dataclass(frozen=True, slots=True)
class PolicySubject:
    """A model to check."""

    name: str
    """As `policy.model`."""
    policy: VLM
    load: Callable[[str], VLM]
    """Loads another folder like this model."""
    bound: float

    @contextlib.contextmanager
    def own_way(self) -> Iterator[None]:
        """Inside, the model's own forward runs a completion a row and counts its own positions."""
        from mmrl.policies.vlm.capabilities import UNKNOWN

        found = self.policy.family.capabilities
        self.policy.family.use(UNKNOWN)
        try:
            yield
        finally:
            self.policy.family.use(found)


def check_policy(name: str, dtype: str = "float32", trust_remote_code: bool = False) -> Report:
    """Check a vision-language model: a folder, a hub name or `tiny:FAMILY`. Raises UserError if it can't be loaded."""
    from mmrl.policies.vlm.vlm import VLM

    if dtype not in BOUNDS:
        raise UserError(f"dtype {dtype!r}: choose {' or '.join(BOUNDS)}")

    def load(model: str) -> VLM:
        config = PolicyConfig(model=model, dtype=dtype, trust_remote_code=trust_remote_code)  # type: ignore[arg-type]
        VLM.check(config)
        return VLM(config)

    subject = PolicySubject(name, load(name), load, BOUNDS[dtype])
    return Report(name, "policy", run_checks(subject, GATES, CHECKS))


def pictures_have_tokens(subject: PolicySubject) -> str:
    """Each picture of a prompt, or sound for a model that hears, stands for at least one token, which is never sampled. Loading
    has refused a model that leaves them out."""
    counts = []
    for images in (1, 2):
        ids = subject.policy.encode(_prompt(subject.policy, images, images)).ids.tolist()
        counts.append(sum(i in subject.policy.banned for i in ids))
    shown = " and ".join(f"{what}s" for what in _kinds(subject.policy))
    if counts[0] < 1 or counts[1] < 2:
        raise CheckFailed(f"prompts with one and two {shown} have {counts[0]} and {counts[1]} tokens of {shown}")
    return f"{counts[0]} and {counts[1]} tokens for one and two {shown}"


def a_group_shares_its_prompt(subject: PolicySubject) -> str:
    """The fastest exact way to run the model is known; a model that can't share a prompt is right, and slower."""
    return subject.policy.family.capabilities.described(subject.policy.model.config.model_type)


def packed_rows_equal_separate_ones(subject: PolicySubject) -> str:
    """Log-probabilities and gradients of a group with one and one with two pictures (or sounds) are those of the model's own
    forward pass."""
    rollouts = _rollouts(subject.policy, [_prompt(subject.policy, 1, 1), _prompt(subject.policy, 2, 2)])
    return _same_both_ways(subject, rollouts)


def later_turns_equal_a_fresh_pass(subject: PolicySubject) -> str:
    """A second turn, with a picture or sound of its own, is read as if the conversation had been one prompt."""
    policy = subject.policy
    prompt, reply = _prompt(policy, 1, 1), user_message("And now?", *_media(policy, 5))
    try:
        rollouts = _conversations(policy, prompt, reply)
    except UserError as error:
        return f"not checked: {error}"
    with subject.own_way():
        own = _update(policy, _conversations(policy, prompt, reply), shared=False)
    return _same(subject, _update(policy, rollouts, shared=True), own)


def videos_equal_a_fresh_pass(subject: PolicySubject) -> str:
    """The same for a prompt with a video."""
    import numpy as np

    frames = np.frombuffer(random.Random(0).randbytes(4 * 64 * 64 * 3), np.uint8).reshape(4, 64, 64, 3)
    video = {"type": "video", "video": VideoFrames(frames_THWC=frames, times_s=(0.0, 0.5, 1.0, 1.5), duration_s=2.0)}
    prompt = Prompt(id="v", messages=[{"role": "user", "content": [video, {"type": "text", "text": "What moves?"}]}], answer="7")
    try:
        rollouts = _rollouts(subject.policy, [prompt])
    except UserError as error:
        return f"not checked: {error}"
    if _counts_videos_itself(subject.policy, rollouts):
        own = _update(subject.policy, rollouts, shared=False)
        how = _same(subject, _update(subject.policy, rollouts, shared=True), own)
        return f"{how}; text continues behind the last frame, which transformers' own count of positions doesn't do"
    return _same_both_ways(subject, rollouts)


def _counts_videos_itself(policy: VLM, rollouts: Sequence[Conversation]) -> bool:
    """Whether transformers' own positions of a video are others, see `Family.after_media`."""
    inputs = rollouts[0].inputs
    policy.family.forget_positions()
    if inputs.positions is None or not policy.family.has_axes:
        return False
    with _replaced(policy.family, "after_media", lambda positions, types: positions):
        own = policy.encode(rollouts[0].prompt).positions
    return own is not None and not own.equal(inputs.positions)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)


def samples_have_the_logprobs_of_an_update(subject: PolicySubject) -> str:
    """Log-probabilities that the sampler finds with its cache are those of an update's forward pass, for prompts of two lengths
    that are decoded together."""
    import torch

    from mmrl.rollout.generate.local import LocalGenerator
    from mmrl.rollout.generate.sampling import SamplingParams

    policy = subject.policy
    prompts = [_prompt(policy, 1, 1), _prompt(policy, 2, 2)]
    inputs = [policy.encode(p) for p in prompts]
    groups = LocalGenerator(policy).generate(inputs, GROUP, SamplingParams(max_tokens=LONGEST, temperature=1.0))
    rollouts = [
        _conversation(p, g, i, (Turn(observed_ids=tuple(i.ids.tolist()), token_ids=s.token_ids, logprobs=s.logprobs, text=""),))
        for g, (p, i, samples) in enumerate(zip(prompts, inputs, groups, strict=True))
        for s in samples
    ]
    sampled = torch.tensor([value for r in rollouts for value in r.turns[0].logprobs])
    gap = (_update(policy, rollouts, shared=True)[0].cpu() - sampled).abs().max().item()
    if not gap <= subject.bound:  # it may be NaN
        raise CheckFailed(f"they differ by {gap:.1e}, more than {subject.bound:g}")
    return f"difference {gap:.1e}"


def pictures_are_seen(subject: PolicySubject) -> str:
    """Other pictures of the same size, or other sounds of the same length, give other log-probabilities."""
    policy, gaps = subject.policy, []
    for what, does in _kinds(policy).items():
        found = []
        for seed in (1, 2):
            prompt = Prompt(id="p", messages=[user_message("What is it?", _medium(policy, what, seed))], answer="7")
            inputs = policy.encode(prompt)
            found.append(_update(policy, _group(policy, prompt, inputs, 0, random.Random(0)), shared=True)[0])
        gaps.append((found[0] - found[1]).abs().max().item())
        if not gaps[-1] > 0:
            told = "gives the same log-probabilities to the last bit"
            raise CheckFailed(f"another {what} {told}: the model doesn't {does} {what}s")
    return f"difference {', '.join(f'{gap:.1e}' for gap in gaps)}"


def parts_can_be_named(subject: PolicySubject) -> str:
    """Vision tower, projector and language model are found by their names, so that run files can freeze or adapt them. The tower
    of a model that hears is no part: patterns of names reach it. A model has no projector if nothing lies between its tower and
    its language model, as where pictures become ids."""
    from mmrl.config.parts import part_of
    from mmrl.policies.vlm.families import decoder_of

    counts, between = {part: 0 for part in PARTS}, False
    decoder = {id(weights) for weights in decoder_of(subject.policy.model).parameters()}
    for name, weights in subject.policy.model.named_parameters():
        part = part_of(name)
        between |= part == "language" and id(weights) not in decoder  # what has no known name counts as language
        if part in counts:
            counts[part] += weights.numel()
    lacking = [part for part in _parts(subject.policy) if not counts[part]]
    if lacking and (lacking != ["projector"] or between):
        raise CheckFailed(f"no weight belongs to {', '.join(lacking)}: its modules have names that mmrl doesn't know")
    return ", ".join(f"{part} {count:,}" for part, count in counts.items() if count) + " weights"


def adapters_can_be_trained(subject: PolicySubject) -> str:
    """Low-rank adapters of each part that has linear layers get a gradient, and change nothing before it is applied. Layers that
    make ids of pictures or sounds don't count."""
    from mmrl.policies.lora import is_adapter, makes_ids, target_modules

    layers = {part: target_modules(subject.policy.model, [part]) for part in _parts(subject.policy)}
    there = [part for part, names in layers.items() if not all(map(makes_ids, names))]
    without = [part for part in layers if part not in there]
    plain = _update(subject.policy, _rollouts(subject.policy, [_prompt(subject.policy, 1, 1)]), shared=True)[0]
    adapted = subject.policy.clone()
    adapted.lora = LoraConfig(rank=2, target_modules=there)
    from mmrl.policies.lora import add_adapters

    add_adapters(adapted.model, adapted.lora, 0)
    with_adapters, gradient = _update(adapted, _rollouts(adapted, [_prompt(adapted, 1, 1)]), shared=True)
    if not (gap := (with_adapters - plain).abs().max().item()) <= subject.bound:
        raise CheckFailed(f"new adapters change log-probabilities by {gap:.1e}")
    if not gradient.any() or not all(is_adapter(name) for name, _ in adapted.parameters()):
        raise CheckFailed("the adapters get no gradient")
    note = f"adapters in {', '.join(there)}"
    return f"{note}; no linear layer with a gradient in {', '.join(without)}" if without else note


def a_saved_model_is_the_same(subject: PolicySubject) -> None:
    """Log-probabilities are the same to the last bit after the model was saved and loaded."""
    before = _update(subject.policy, _rollouts(subject.policy, [_prompt(subject.policy, 1, 1)]), shared=True)[0]
    with tempfile.TemporaryDirectory() as folder:
        subject.policy.save(Path(folder))
        again = subject.load(folder)
        after = _update(again, _rollouts(again, [_prompt(again, 1, 1)]), shared=True)[0]
    if not before.equal(after):
        raise CheckFailed(f"they differ by {(before - after).abs().max().item():.1e}")


def coordinates_are_known(subject: PolicySubject) -> str:
    """The numbers in which the model writes points and boxes are known, or tasks with coordinates are refused until a run file
    says them."""
    from mmrl.policies.vlm.coordinate_formats import known_format

    found, source = known_format(subject.policy.model.config.model_type)
    if found and not source:
        raise CheckFailed(f"it is said to write {found.value}, and not by whom: set FamilySpec.source")
    return f"{found.value}: {source}" if found else f"not known, policy.frame must say it{f' ({source})' if source else ''}"


GATES = [pictures_have_tokens]
CHECKS: list[Callable[[PolicySubject], str | None]] = [
    a_group_shares_its_prompt,
    packed_rows_equal_separate_ones,
    later_turns_equal_a_fresh_pass,
    videos_equal_a_fresh_pass,
    samples_have_the_logprobs_of_an_update,
    pictures_are_seen,
    parts_can_be_named,
    adapters_can_be_trained,
    a_saved_model_is_the_same,
    coordinates_are_known,
]


def _parts(policy: VLM) -> tuple[str, ...]:
    """The parts that a model of the family has."""
    return ("vision", "projector", "language") if policy.family.sees else ("projector", "language")


def _kinds(policy: VLM) -> dict[str, str]:
    """What the model takes -> what it does with it."""
    kinds = {"picture": "see"} if policy.family.sees else {}
    return kinds | ({"sound": "hear"} if policy.family.hears else {})


def _media(policy: VLM, seed: int) -> list[Any]:
    """A picture if the model sees, and a sound if it hears."""
    return [_medium(policy, what, seed) for what in _kinds(policy)]


def _medium(policy: VLM, what: str, seed: int) -> Any:
    """A picture or a sound."""
    if what == "sound":
        import numpy as np

        rate = policy.reader.sound_limits.rate
        samples_T = np.frombuffer(random.Random(seed).randbytes(rate // 2), np.int16).astype(np.float32) / 2**15
        return Waveform(samples_T=samples_T, rate=rate)
    from PIL import Image

    return Image.frombytes("RGB", (56, 56), random.Random(seed).randbytes(3 * 56 * 56))


def _prompt(policy: VLM, seed: int, count: int) -> Prompt:
    """A prompt whose length depends on the seed, with `count` pictures or sounds; pictures have one size, as not all families
    take several."""
    shown = [medium for k in range(count) for medium in _media(policy, 10 * seed + k)]
    return Prompt(id=f"p{seed}", messages=[user_message("What digit is shown? " + "x" * seed, *shown)], answer="7")


def _conversation(prompt: Prompt, group: int, inputs: Any, turns: tuple[Turn, ...], final: Any = None) -> Conversation:
    return Conversation(prompt=prompt, group=group, turns=turns, status=Status.FINISHED, inputs=inputs, final_inputs=final)


def _ids(policy: VLM, rng: random.Random) -> tuple[int, ...]:
    allowed = [i for i in range(len(policy.bias_V)) if i not in policy.banned and i not in policy.eos]
    return tuple(rng.choices(allowed, k=rng.randint(1, LONGEST)))


def _turn(observed: Sequence[int], ids: tuple[int, ...]) -> Turn:
    return Turn(observed_ids=tuple(observed), token_ids=ids, logprobs=(-1.0,) * len(ids), text="")


def _group(policy: VLM, prompt: Prompt, inputs: Any, number: int, rng: random.Random) -> list[Conversation]:
    """Completions of random ids, of several lengths."""
    return [_conversation(prompt, number, inputs, (_turn(inputs.ids.tolist(), _ids(policy, rng)),)) for _ in range(GROUP)]


def _rollouts(policy: VLM, prompts: Sequence[Prompt]) -> list[Conversation]:
    rng = random.Random(0)
    return [r for g, prompt in enumerate(prompts) for r in _group(policy, prompt, policy.encode(prompt), g, rng)]


def _conversations(policy: VLM, prompt: Prompt, reply: Any) -> list[Conversation]:
    """A group whose members get the same reply to what they said, and say something again."""
    rng, inputs, found = random.Random(0), policy.encode(prompt), []
    for _ in range(GROUP):
        said, later = _ids(policy, rng), _ids(policy, rng)
        extended, observed = policy.extend(inputs, said, [reply])
        found.append(_conversation(prompt, 0, inputs, (_turn(inputs.ids.tolist(), said), _turn(observed, later)), extended))
    return found


def _update(policy: VLM, rollouts: Sequence[Conversation], shared: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities of all trained tokens by rollout and place, the flat gradient of a weighted sum of them)."""
    import torch

    from mmrl.policies.batches import Credit
    from mmrl.train.update.pack_conversations import pack

    credit = Credit(advantages=torch.linspace(-1, 1.5, len(rollouts)))
    shared = shared and policy.family.shares_prefix
    batch = pack(rollouts, credit, policy, shared_prefix=shared, budget=10_000 if shared else 1)
    parameters = [p for _, p in policy.parameters()]
    for p in parameters:
        p.grad = None
    found: list[tuple[int, int, torch.Tensor]] = []
    for micro in batch.micro:
        logprobs = policy.outputs(micro, 1.0).logprobs_L
        (logprobs * micro.advantages_L).sum().backward()
        rollout_of = micro.rollout_L.tolist()
        found += [(n, place, value) for place, (n, value) in enumerate(zip(rollout_of, logprobs.detach(), strict=True))]
    gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).float()
    for p in parameters:
        p.grad = None
    return torch.stack([value for _, _, value in sorted(found, key=lambda f: f[:2])]), gradient


def _same_both_ways(subject: PolicySubject, rollouts: Sequence[Conversation]) -> str:
    """Compare packed rows with the model's own way. Rollouts are read again for it, as it counts its positions itself."""
    packed = _update(subject.policy, rollouts, shared=True)
    with subject.own_way():
        inputs = {id(r.inputs): subject.policy.encode(r.prompt) for r in rollouts}
        own = _update(
            subject.policy, [_conversation(r.prompt, r.group, inputs[id(r.inputs)], r.turns) for r in rollouts], shared=False
        )
    return _same(subject, packed, own)


def _same(subject: PolicySubject, one: tuple[torch.Tensor, torch.Tensor], two: tuple[torch.Tensor, torch.Tensor]) -> str:
    gap = (one[0] - two[0]).abs().max().item()
    slope = ((one[1] - two[1]).norm() / two[1].norm()).item()
    if not (gap <= subject.bound and slope <= subject.bound):
        raise CheckFailed(f"log-probabilities differ by {gap:.1e}, gradients by {slope:.1e}: more than {subject.bound:g}")
    return f"log-probabilities differ by {gap:.1e}, gradients by {slope:.1e}"
