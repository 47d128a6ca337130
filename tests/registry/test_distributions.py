"""Other distributions that own what is ours are named, by the registry and by `mmrl plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrl.registry.distributions import canonical, distribution_with, foreign_owners
from mmrl.registry.plugins import registry


def plant(site, dist: str, record: str, scripts: str) -> Path:
    """A distribution as pip leaves it; gives the folder."""
    folder = site(dist, {}, {}, version="0.1.7")
    info = folder / f"{dist.replace('-', '_')}-0.1.7.dist-info"
    (info / "RECORD").write_text(record)
    (info / "entry_points.txt").write_text(scripts)
    return folder


OWNS_BOTH = ("mmrl/__init__.py,sha256=x,1\nmmrl/book.py,,\n", "[console_scripts]\nmmrl = mmrl.cli:run\n")


@pytest.mark.parametrize(
    ("record", "scripts", "owned"),
    [
        (*OWNS_BOTH, "the package mmrl and the command mmrl"),
        ("a.py,,\nmmrl/__init__.py,,\n", "", "the package mmrl"),
        ("", "[console_scripts]\nmmrl=x:run\n", "the command mmrl"),
        ("mmrl/other.py,,\nzoo/mmrl/__init__.py,,\n", "[gui_scripts]\nmmrl = x:run\n[console_scripts]\nmmrl2 = x:run\n", ""),
    ],
)
def test_another_distribution_that_owns_what_is_ours_is_named(site, record: str, scripts: str, owned: str) -> None:
    folder = plant(site, "mmrl", record, scripts)
    (folder / "mmrl").mkdir()
    (folder / "mmrl" / "__init__.py").touch()
    told = list(foreign_owners())
    assert told == [
        f"the distribution mmrl 0.1.7 in {folder} is not multimodal-rl and owns {owned} too: "
        "pip uninstall -y mmrl, then install multimodal-rl again"
    ] * bool(owned)


def test_mmrl_plugins_names_it(mmrl, site) -> None:
    plant(site, "market-maker", "", OWNS_BOTH[1])
    shown = mmrl("plugins", "--json", MMRL_PLUGINS="")
    assert shown.returncode == 0 and shown.stdout.startswith("[")
    assert shown.stderr.startswith("mmrl: warning: the distribution market-maker 0.1.7 in ") and shown.stderr.count("\n") == 1


def test_an_interrupted_installation_leaves_the_other_plugins(site) -> None:
    source = "from mmrl import VerifierSpec, hookimpl\n@hookimpl\ndef mmrl_verifiers():\n    return []\n"
    folder = site("mmrl-odd", {"mmrl_odd.py": source}, {"odd": "mmrl_odd"})
    (folder / "mmrl_odd-0.1.dist-info" / "METADATA").unlink()
    found = {plugin.name: plugin for plugin in registry().plugins}
    assert (found["odd"].error, found["odd"].dist) == (None, None) and "mmrl" in found
    (folder / "mmrl").mkdir()
    (folder / "mmrl" / "__init__.py").touch()
    (folder / "mmrl_odd-0.1.dist-info" / "RECORD").write_text("mmrl/__init__.py,,\n")
    assert list(foreign_owners()) == [], "what it owns is not told where nothing can be uninstalled"


def test_names_of_distributions(site) -> None:
    assert canonical("Multimodal__RL.x") == "multimodal-rl-x"
    site("mmrl-zoo", {}, {"zoo": "mmrl_zoo.hooks:plugin"})
    assert (distribution_with("mmrl_zoo.task"), distribution_with("mmrl_zo")) == ("mmrl-zoo", None)
