"""The tables of docs/models.md are what the models do. MMRL_UPDATE_DOCS=1 writes them anew."""

from __future__ import annotations

import functools
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.names import LIMITED
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.coordinate_formats import COORDINATE_FORMATS
from mmrl.policies.vlm.limits import pixel_limits
from mmrl.policies.vlm.suitability import refuse_config, refuse_kind
from mmrl.policies.vlm.thinkers import WHOLE
from mmrl.policies.vlm.vlm import VLM

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
KINDS = {"full_attention": "full", "sliding_attention": "windows", "linear_attention": "linear", "conv": "convolution"}
KINDS["chunked_attention"] = "chunks"
LATER = ("gemma4", "gemma4_unified", "kimi_k25")
"""Families whose videos earlier versions of transformers don't read rightly."""


@functools.cache
def policy(family: str) -> VLM:
    return VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=2"))


def row(family: str) -> str:
    vlm = policy(family)
    found = vlm.family.capabilities
    assert found.packs and found.pads, f"{family}: {found.why_not}"
    shares = "its prompt" + (f", and a copy of the state of `{', '.join(found.recurrent)}`" if found.recurrent else "")
    attention = ", ".join(KINDS[kind] for kind in found.attention)
    cells = [f"`{family}`", shares, attention, "yes" if found.looks_ahead else "", videos(vlm), turns(vlm), limits(vlm, family)]
    return f"| {' | '.join(cells)} |"


def videos(vlm: VLM) -> str:
    if vlm.family.model.config.model_type in LATER:
        assert bool(vlm.family.no_videos) == (Version(version("transformers")) < Version("5.24"))
        return "from transformers 5.24 on"
    try:
        factor = vlm.reader.video_limits.factor
    except UserError as error:
        return f"no: {vlm.family.no_videos}" if vlm.family.no_videos else "no: " + _reason(error)
    return "yes" if factor > 1 else "frames of one size"


def turns(vlm: VLM) -> str:
    return "yes" if vlm.family.goes_on else "one answer"


def limits(vlm: VLM, family: str) -> str:
    if family in LIMITED:
        return "any number of pixels"
    try:
        pixel_limits(vlm.processor, None, 5)
    except UserError as error:
        said = str(error).partition(": ")[2].partition(": give")[0].partition(": leave")[0].partition(": allow")[0]
        return "any number of pixels" if said.startswith("a picture's token") else said
    raise AssertionError(f"{family} takes five pixels")


def _reason(error: UserError) -> str:
    assert "takes no videos" in str(error)
    return "its processor takes none"


def verdicts() -> str:
    head = "| model_type | a group shares | attention | sees ahead | videos | turns | limits on pixels |\n"
    return head + "|---|---|---|---|---|---|---|\n" + "\n".join(row(family) for family in tiny.FAMILIES)


def coordinates() -> str:
    rows = (f"| `{kind}` | {known.value if known else 'ask'} | {said} |" for kind, (known, said) in COORDINATE_FORMATS.items())
    return "| model_type | `policy.frame` | source |\n|---|---|---|\n" + "\n".join(rows).replace("<", "&lt;")


@pytest.mark.parametrize("table", [verdicts, coordinates])
def test_the_tables_are_what_the_models_do(table):
    name = table.__name__
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    text = PAGE.read_text("utf-8")
    wanted = between.sub(lambda m: m[1] + table() + "\n" + m[2], text)
    if os.environ.get("MMRL_UPDATE_DOCS"):
        PAGE.write_text(wanted, "utf-8")
    assert text == wanted or os.environ.get("MMRL_UPDATE_DOCS"), "MMRL_UPDATE_DOCS=1 pytest tests/docs/test_models_doc.py"


def test_of_each_model_that_transformers_loads_the_page_or_a_refusal_tells():
    """Those of a version that is let in later, too: whoever lets it in tries the new ones, or says why they are refused."""
    page = PAGE.read_text("utf-8")
    tried = {*re.findall(r"`([\w.-]+)`", page.partition("\n## Other families")[2])}
    tried |= {tiny.model_type(f"tiny:{family}:layers=4") for family in tiny.FAMILIES} | {*WHOLE}
    untold = []
    for kind, name in {**MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}.items():
        try:
            refuse_kind("x", {"model_type": kind, "architectures": [name]}, trusted=False)
            refuse_config("x", AutoConfig.for_model(kind))
        except UserError as error:
            assert "\n" not in str(error)
        else:
            untold += [] if kind in tried else [kind]
    assert not untold
