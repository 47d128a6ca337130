"""A page has one subject: at most 2,500 words of prose, tables and code not counted."""

from __future__ import annotations

import re

import docs_check

MOST = 2500
LONG = {"CHANGELOG.md": "it only grows"}


def prose(text: str) -> int:
    """The words of a page outside its code blocks, tables and comments."""
    for left_out in (docs_check.FENCE, docs_check.COMMENT, re.compile(r"^\|.*$", re.MULTILINE)):
        text = left_out.sub("", text)
    return len(text.split())


def test_words_are_counted_outside_of_tables_and_code():
    assert prose("# Two words\n\n```sh\nmmrl list tasks\n```\n<!-- no -->\n| a | b |\n|---|---|\nthree more `words`\n") == 6


def test_no_page_is_longer_than_can_be_read_at_once():
    counted = {
        page.relative_to(docs_check.ROOT).as_posix(): prose(page.read_text("utf-8")) for page in docs_check.markdown_files()
    }
    assert {page: words for page, words in counted.items() if words > MOST}.keys() == LONG.keys()
