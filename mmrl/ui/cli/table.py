"""Tables on stdout; rich is imported only when a table is printed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a title; cells may have rich markup. The first column is never wrapped."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for i, name in enumerate(columns):
        table.add_column(name, no_wrap=i == 0, overflow="fold", style="cyan" if i == 0 else None)
    for row in rows:
        table.add_row(*row)
    # a pipe has no width: keep long lines whole there
    Console(width=None if sys.stdout.isatty() else max(160, shutil.get_terminal_size().columns), highlight=False).print(table)


def escape(text: str) -> str:
    """Text as a cell: square brackets are no markup."""
    from rich.markup import escape

    return escape(text)
