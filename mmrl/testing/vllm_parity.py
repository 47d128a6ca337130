"""vLLM beside the learner: what it says of the tokens that it samples, against what an update says of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.types import Prompt, Status, Turn, user_message

if TYPE_CHECKING:
    import torch

    from mmrl.policies.vlm.prompt_inputs import PromptInputs
    from mmrl.policies.vlm.vlm import VLM
    from mmrl.rollout.generate.sampling import Completion, Generator

MEAN_GAP = 5e-3
"""Greatest mean difference of log-probabilities, in nats a token."""
TEMPERATURE = 0.7


class Gap(NamedTuple):
    """Differences of log-probabilities, in nats."""

    mean: float
    largest: float


def shown() -> dict[str, list[Prompt]]:
    """Kind -> prompts: text, one and two pictures of several sizes, a video, a video beside a picture."""
    sizes = ((56, 56), (150, 84), (60, 200), (28, 140))
    found: dict[str, list[Prompt]] = {"text": [], "one picture": [], "two pictures": [], "video": [], "video and picture": []}
    for n, size in enumerate(sizes):
        text = "What is shown? " + "x" * n
        found["text"].append(_prompt(text))
        found["one picture"].append(_prompt(text, _picture(n, *size)))
        found["two pictures"].append(_prompt(text, _picture(n, *size), _picture(n + 9, *sizes[n - 1])))
    for n in (2, 4):
        found["video"].append(_prompt("What moves?", _video(n)))
        found["video and picture"].append(_prompt("What moves?", _video(n + 1), _picture(n, 84, 56)))
    return found


def gaps(policy: VLM, generator: Generator, prompts: Mapping[str, Sequence[Prompt]], tokens: int = 6) -> dict[str, Gap | str]:
    """Kind -> the gap of two completions of each prompt, or why such prompts can't be shown."""
    from mmrl.rollout.generate.sampling import SamplingParams

    found: dict[str, Gap | str] = {}
    generator.wake_up()
    for kind, some in prompts.items():
        try:
            inputs = [policy.encode(prompt) for prompt in some]
            groups = generator.generate(inputs, 2, SamplingParams(max_tokens=tokens, temperature=TEMPERATURE, seed=1))
        except UserError as error:
            found[kind] = str(error)
            continue
        every = differences(policy, inputs, groups, TEMPERATURE).abs()
        found[kind] = Gap(float(every.mean()), float(every.max()))
    return found


def differences(
    policy: VLM, inputs: Sequence[PromptInputs], groups: Sequence[Sequence[Completion]], temperature: float
) -> torch.Tensor:
    """Of each sampled token in turn: its log-probability in the sampler less that in an update."""
    import torch

    from mmrl.policies.batches import Credit
    from mmrl.train.update.pack_conversations import pack

    found = []
    for n, (encoded, samples) in enumerate(zip(inputs, groups, strict=True)):
        for sample in samples:
            observed = tuple(encoded.ids.tolist())
            turn = Turn(observed_ids=observed, token_ids=sample.token_ids, logprobs=sample.logprobs, text="")
            said = Conversation(prompt=Prompt(messages=[]), group=n, turns=(turn,), status=Status.FINISHED, inputs=encoded)
            (micro,) = pack([said], Credit(advantages=torch.ones(1)), policy, shared_prefix=False, budget=1).micro
            with torch.no_grad():
                learned = policy.logprobs(micro, temperature)[0].cpu()
            found.append(torch.tensor(sample.logprobs) - learned)
    return torch.cat(found)


def sharpen(policy: VLM) -> None:
    """Double all matrices: what a tiny model of random weights sees hardly shows in its log-probabilities."""
    import torch

    with torch.no_grad():
        for p in policy.model.parameters():
            if p.ndim > 1:
                p.mul_(2.0)


def move(policy: VLM, seed: int) -> None:
    """Add noise to the weights that are trained, as an update would change them."""
    import torch

    noise = torch.Generator(policy.device).manual_seed(seed)
    with torch.no_grad():
        for _, p in policy.parameters():
            least = 0.1 if p.ndim == 1 else 0.01  # adapters begin at zero, and biases; norms are all ones
            scale = 0.1 * p.std(correction=0).clamp(min=least)
            p.add_(scale * torch.randn(p.shape, generator=noise, device=p.device, dtype=p.dtype))


def _prompt(text: str, *media: Any) -> Prompt:
    return Prompt(id="p", messages=[user_message(text, *media)], answer="7")


def _picture(seed: int, width: int, height: int) -> Any:
    from PIL import Image

    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))


def _video(count: int) -> VideoFrames:
    import numpy as np

    frames = np.frombuffer(random.Random(count).randbytes(count * 64 * 96 * 3), np.uint8).reshape(count, 64, 96, 3)
    return VideoFrames(frames_THWC=frames, times_s=tuple(n / 2 for n in range(count)), duration_s=count / 2)
