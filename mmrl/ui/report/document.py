"""A page on its own: one file without any link to elsewhere, which runs no script but ours."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from mmrl.ui.report.text import esc


def document(title: str, main: str, footer: str, styles: tuple[str, ...] = ("page.css",)) -> str:
    """The whole document. Its policy allows no request and no script but `page.js`, whatever it holds.

    title: any text. main, footer: HTML. styles: files beside this one.
    """
    here = Path(__file__)
    style, script = ("".join(here.with_name(n).read_text(encoding="utf-8") for n in names) for names in (styles, ("page.js",)))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{esc(title)} - mmrl</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
{main}
</main>
<footer>{footer}</footer>
<div id="tip" role="status" hidden></div>
<script>{script}</script>
</body>
</html>
"""
