"""What a policy wrote, as plain text in a later prompt: a placeholder of a picture in it would be taken for a picture, and the
text of a control token for that token."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence


def quoted(text: str, kept: Sequence[str] = ()) -> str:
    """The text with a blank behind the first letter of whatever may be a token of its own: `<|image_pad|>`, `<image>`, `[IMG]`,
    `TILE`. Half a character, such as JSON's `\\ud83d`, which no tokenizer reads, becomes `?`. kept: names of tags that stay."""
    return _signs(tuple(kept)).sub(r"\g<0> ", text.encode(errors="replace").decode())


@functools.cache
def _signs(kept: Sequence[str]) -> re.Pattern[str]:
    spared = f"(?!/?(?:{'|'.join(map(re.escape, kept))})>)" if kept else ""
    return re.compile(rf"<(?=[|\uff5c])|<{spared}(?=/?[\w-]+>)|\[(?=/?[A-Z][A-Z_]+\])|T(?=ILE)")
