"""The visible elements of an OSWorld machine, from its accessibility tree (`/accessibility`, AT-SPI on Ubuntu)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from mmrl.api.simulators.gui import Element
from mmrl_gui.hosted.servers import Server

NAMESPACE = "https://accessibility.ubuntu.example.org/ns/"
STATE, COMPONENT = f"{{{NAMESPACE}state}}", f"{{{NAMESPACE}component}}"
MOST = 2000
"""Elements that are listed at most."""
INTERACTIVE = frozenset(
    (
        *("push-button", "toggle-button", "radio-button", "check-box", "combo-box", "entry", "link", "list-item", "menu"),
        *("menu-item", "page-tab", "slider", "spin-button", "text", "tree-item", "table-cell", "icon"),
    )
)
PAIR = re.compile(r"\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\)")


def elements_of(server: Server, size: tuple[int, int]) -> tuple[Element, ...]:
    """From top to bottom; those that are shown, with a name or a text, on a screen of this size. Raises EnvironmentFailed."""
    text = server.field("/accessibility", "AT")
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, TypeError, ValueError):
        raise server.failed("/accessibility", f"answers no tree: {str(text)[:40]!r}") from None
    found = [element for node in root.iter() if (element := _element(node, size))]
    return tuple(sorted(found[:MOST], key=lambda e: (round(e.box[1]), e.box[0])))


def _element(node: ET.Element, size: tuple[int, int]) -> Element | None:
    place, extent = (PAIR.fullmatch(node.get(COMPONENT + name) or "") for name in ("screencoord", "size"))
    said, name = (node.text or "").strip(), (node.get("name") or "").strip()
    if not place or not extent or not (said or name) or any(node.get(STATE + s) != "true" for s in ("visible", "showing")):
        return None
    x, y = int(place[1]), int(place[2])
    box = (max(x, 0), max(y, 0), min(x + int(extent[1]), size[0]), min(y + int(extent[2]), size[1]))
    if box[0] >= box[2] or box[1] >= box[3]:
        return None
    return Element(
        box=box,
        role=node.tag.rpartition("}")[2],
        text=name or said,
        value=said if name else "",
        interactive=node.tag.rpartition("}")[2] in INTERACTIVE,
        click_point=((box[0] + box[2]) / 2, (box[1] + box[3]) / 2),
    )
