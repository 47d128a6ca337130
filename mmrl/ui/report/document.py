"""The frame of a self-contained page: one HTML file without external links, with only this folder's script."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from mmrl.ui.report.text import esc


def document(title: str, main: str, footer: str, styles: tuple[str, ...] = ("page.css",)) -> str:
    """The whole document. Its content security policy allows no requests and no script other than `page.js`.

    title: plain text. main, footer: HTML. styles: names of style sheets in this folder.
    """
    here = Path(__file__)
    style, script = ("".join(here.with_name(n).read_text(encoding="utf-8") for n in names) for names in (styles, ("page.js",)))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
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
