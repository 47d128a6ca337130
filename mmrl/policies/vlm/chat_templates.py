"""A model's chat template: messages -> text."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, check_path, display_path, shorten

FILE, KEY = "policy.chat_template", "policy.chat_template_kwargs"
OPEN, CLOSE = "<think>", "</think>"
ROLES = ("system", "user", "assistant", "tool")
QUESTION = {"role": "user", "content": [{"type": "text", "text": "?"}]}
_PARTS = re.compile(r"""['"]type['"]: ?['"]text['"]""")
"""What a template writes of a list of parts that it takes for a text."""

Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """The template of a processor, with the variables of the run file."""

    def __init__(self, processor: Any, variables: Mapping[str, Any]) -> None:
        """variables: `policy.chat_template_kwargs`. Raises UserError for one that the template doesn't read."""
        self.processor, self.variables = processor, variables
        check_variables(processor, variables)

    def text(self, messages: Messages, **more: Any) -> str:
        """A conversation as text, with the head of the next answer."""
        told = {"add_generation_prompt": True, **self.variables, **more}
        return str(self.processor.apply_chat_template(self.fitted(messages), tokenize=False, **told))

    def encoded(self, messages: Messages, options: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
        """The processor's tensors of a conversation, with the head of the next answer. options: arguments of the processor."""
        found: Mapping[str, Any] = self.processor.apply_chat_template(
            [self.fitted(messages)],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
            processor_kwargs=options,
            **self.variables,
            **more,
        )
        return found

    def fitted(self, messages: Messages) -> list[Mapping[str, Any]]:
        """The messages, with their content as one text where the template takes no parts in a message of that role."""

        def content(message: Mapping[str, Any]) -> Any:
            parts = message["content"]
            if message["role"] not in self.roles_of_text or any(part["type"] != "text" for part in parts):
                return parts
            return "".join(part["text"] for part in parts)

        return [{**message, "content": content(message)} for message in messages]

    @functools.cached_property
    def roles_of_text(self) -> frozenset[str]:
        """Roles whose messages the template shows if they are a text, and not if they are a list of parts: it writes the list as
        Python does, or can't join it with a text."""
        return frozenset(
            role for role in ROLES if not self._shows(role, [{"type": "text", "text": "!"}]) and self._shows(role, "!")
        )

    def _shows(self, role: str, content: Any) -> bool:
        around = [{"role": role, "content": content}]
        around = [*around, QUESTION] if role == "system" else around if role == "user" else [QUESTION, *around]
        try:
            shown = str(self.processor.apply_chat_template(around, tokenize=False, **self.variables))
        except Exception:  # noqa: BLE001  templates fail in many ways at what they don't take; what is used is tried again
            return False
        return "!" in shown and not _PARTS.search(shown)

    @functools.cached_property
    def opening(self) -> str:
        """What the template writes of each answer itself: a `<think>` and what follows it, as of Qwen3.5 and Qwen3-VL-Thinking;
        empty for most models. It is a part of the answer's text, and not of its tokens."""
        from jinja2 import TemplateError

        try:
            return opened_thinking(self.text([QUESTION], add_generation_prompt=False), self.text([QUESTION]))
        except TemplateError:  # the template can't show words alone
            return ""


def read_template(path: str) -> str:
    """The text of a file of `policy.chat_template`. Raises UserError if it can't be read, or is no template."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{display_path(path)} does not exist: {check_path(path)}", key=FILE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{display_path(path)} can't be read: {shorten(error, 200)}: name a text file", key=FILE) from error
    try:
        _compile_jinja_template(text)
    except TemplateSyntaxError as error:
        what = f"{display_path(path)} line {error.lineno}: {shorten(error.message or error, 200)}"
        raise UserError(f"{what}: it must be a template of Jinja", key=FILE) from error
    return text


def check_variables(processor: Any, given: Mapping[str, Any]) -> None:
    """Raise UserError for a variable of `policy.chat_template_kwargs` that the chat template doesn't read, or that isn't the
    user's to set."""
    found = getattr(processor, "chat_template", None) or ""
    template = found if isinstance(found, str) else "\n".join(map(str, found.values()))
    for name in given:
        if name == "messages" or name in inspect.signature(processor.apply_chat_template).parameters:
            raise UserError(f"{name} is set for each prompt by mmrl: leave it out", key=f"{KEY}.{name}")
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise UserError(f"the model's chat template doesn't read {name}: leave it out", key=f"{KEY}.{name}")


def opened_thinking(without_head: str, with_head: str) -> str:
    """The end of an answer's head, from a `<think>` that the head leaves open; empty if there is none.

    without_head, with_head: the text of a conversation after the chat template, without and with the head of the next answer.
    """
    _, sign, rest = with_head.removeprefix(without_head).rpartition(OPEN)
    return sign + rest if sign and CLOSE not in rest else ""


def without_opening(text: str, opening: str) -> str:
    """An answer's text without what the chat template has written of it, with or without the blanks around that."""
    written = next((part for part in (opening, opening.strip()) if part and text.startswith(part)), "")
    return text.removeprefix(written)
