"""Whether two models read and write the same tokens, checked without loading weights."""

from __future__ import annotations

from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import PolicyConfig
from mmrl.policies.lora import adapter_chain


def check_teacher(config: PolicyConfig, teacher: str) -> None:
    """Raise UserError for a teacher with other tokens or another model family. Loads no weights."""
    kinds, vocabularies = zip(*(read_vocabulary(config, name) for name in (config.model, teacher)), strict=True)
    if kinds[0] != kinds[1]:
        raise UserError(f"teacher {teacher!r} is a {kinds[1]} model and the policy a {kinds[0]}: take one of the same family")
    if vocabularies[0] != vocabularies[1]:
        own, other = vocabularies
        token = min({t for t in own.keys() | other.keys() if own.get(t) != other.get(t)})
        there, here = other.get(token, "none"), own.get(token, "none")
        raise UserError(
            f"teacher {teacher!r} has another vocabulary than {config.model!r}: {token!r} is token {there} there and {here} "
            "here: take a teacher with the same tokenizer"
        )


def read_vocabulary(config: PolicyConfig, name: str) -> tuple[str, dict[str, int]]:
    """(family, vocabulary) of a `policy.model`."""
    _, name = adapter_chain(name)
    if name.startswith("tiny:"):
        from mmrl.policies.vlm import tiny

        family = str(tiny.parse(name, 0)["family"])
        return family, tiny.vocabulary(family)
    from transformers import AutoConfig, AutoTokenizer

    from mmrl.policies.openvla import model  # noqa: F401  registers OpenVLA with transformers

    options: dict[str, Any] = dict(trust_remote_code=config.trust_remote_code)
    try:
        return AutoConfig.from_pretrained(name, **options).model_type, AutoTokenizer.from_pretrained(name, **options).get_vocab()
    except Exception as error:
        raise UserError(
            f"{name!r} can't be read: {shorten(error, 300)}: give a folder with a checkpoint or a hub name"
        ) from error
