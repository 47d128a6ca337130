"""The parity suite of vision-language models: every family passes it, and planted faults don't."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import guide
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.specs import FamilySpec
from mmrl.api.types import Prompt
from mmrl.config import parts
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import packed_rows, plugin_families, tiny
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.known_families import class_of
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.testing import check_plugin, check_policy, policies
from mmrl.testing.checks import CheckFailed

TINY = "tiny:qwen3_5:hidden=32,layers=2"


LONG = {"gemma3n", "phi4_multimodal"}
"""Families whose checks take half a minute."""
ALIKE = {"gemma4", "qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "glm46v", "minicpmv4_7", "internvl3_5", "cohere2_vision"}
ALIKE |= {"qwen3_omni_moe"}
"""Families of which another one is a near relative; all are probed each day for the page of verdicts."""
MARKS = dict.fromkeys({*ALIKE, *cases.LATER}, (pytest.mark.slow,))
MARKS |= dict.fromkeys(LONG, (pytest.mark.slow, pytest.mark.exhaustive))


@pytest.mark.parametrize("family", [pytest.param(f, marks=MARKS.get(f, ())) for f in tiny.FAMILIES])
def test_every_family_passes(family):
    report = check_policy(f"tiny:{family}:hidden=32,layers=2")
    assert report.ok, report
    notes = {r.name: r.note for r in report.results}
    assert "shares its prompt" in notes["a_group_shares_its_prompt"]
    checked = {name for name, note in notes.items() if "not checked" not in note}
    assert notes.keys() - checked <= {"videos_equal_a_fresh_pass", "later_turns_equal_a_fresh_pass"}
    assert "later_turns_equal_a_fresh_pass" in checked or family in ("paligemma", "openvla", "hunyuan_vl")


def failed(name=TINY):
    return {r.name for r in check_policy(name).results if not r.ok}


def test_completions_that_see_each_other_are_found(monkeypatch):
    assert not failed()
    monkeypatch.setattr(packed_rows.PackedRows, "allowed", lambda self, b, q, k: q >= k)
    assert {"packed_rows_equal_separate_ones", "later_turns_equal_a_fresh_pass", "videos_equal_a_fresh_pass"} <= failed()


@pytest.mark.parametrize("more", [2e-4, float("nan")])
def test_a_sampler_with_other_numbers_is_found(monkeypatch, more):
    choose = LocalGenerator._choose

    def shifted(self, logits, *rest):
        token, logprob = choose(self, logits, *rest)
        return token, logprob + more

    monkeypatch.setattr(LocalGenerator, "_choose", shifted)
    assert failed() == {"samples_have_the_logprobs_of_an_update"}


def test_a_projector_with_another_name_is_found(monkeypatch):
    """It would count as language. Chameleon and others that have none pass: tests/policies/test_unheard_families.py."""
    vlm = VLM(PolicyConfig(model="tiny:llava:hidden=32,layers=1"))
    subject = policies.PolicySubject("llava", vlm, lambda name: vlm, 1e-4)
    assert "projector" in policies.parts_can_be_named(subject)
    monkeypatch.setattr("mmrl.config.parts._PROJECTOR", re.compile("own_name"))
    monkeypatch.setattr("mmrl.config.parts.part_of", parts.part_of.__wrapped__)  # which knows the name by heart
    with pytest.raises(CheckFailed, match="no weight belongs to projector: its modules have names"):
        policies.parts_can_be_named(subject)


def test_a_model_that_sees_no_pictures_is_found(monkeypatch):
    build = tiny.build

    def blind(**options):
        model, processor = build(**options)
        torch.nn.init.zeros_(model.model.visual.merger.linear_fc2.weight)
        return model, processor

    monkeypatch.setattr(tiny, "build", blind)
    assert failed() == {"pictures_are_seen"}


def test_a_checkpoint_that_comes_back_changed_is_found(monkeypatch):
    save = VLM.save

    def changed(self, folder):
        next(p for _, p in self.parameters() if p.ndim > 1).data.add_(1e-3)
        save(self, folder)

    monkeypatch.setattr(VLM, "save", changed)
    assert failed() == {"a_saved_model_is_the_same"}


def test_what_can_not_be_found_by_trying_is_told(monkeypatch):
    spec = FamilySpec(
        id="own/x", target="m:f", model_type="llava", placeholders=("<answer>",), completion_type=7, has_turns=False,
        shares_prompt=False,
    )  # fmt: skip
    monkeypatch.setattr("mmrl.policies.vlm.known_families.plugin_family", lambda kind: spec)
    found = class_of("llava")
    assert issubclass(found, Family) and (found.completion_type, found.has_turns) == (7, False)
    vlm = VLM(PolicyConfig(model="tiny:llava:hidden=32"))
    assert vlm.tokenizer.convert_tokens_to_ids("<answer>") in vlm.banned
    assert not vlm.family.shares_prefix and "its family says" in vlm.family.capabilities.why_not


def test_a_model_whose_forward_keeps_all_logits_is_read_at_the_right_places():
    """MiniCPM-V 4.6 knows no `logits_to_keep`, as BLIP-2 and VideoLLaMA 3."""
    vlm = VLM(PolicyConfig(model="tiny:minicpmv4_6:hidden=32,layers=2"))
    subject = policies.PolicySubject("x", vlm, lambda name: vlm, 1e-4)
    with subject.own_way():
        prompt = cases.prompt(1)
        (rollout,) = cases.rollouts(vlm, [prompt], group=1)
        found, _ = policies._update(vlm, [rollout], shared=False)
    ids = torch.cat([rollout.inputs.ids, torch.tensor(rollout.turns[0].token_ids)])[None]
    with torch.no_grad():
        logits = vlm.model(input_ids=ids, **vlm.family.with_media(rollout.inputs.media)).logits[0, -len(found) - 1 : -1]
    wanted = vlm.distribution(logits, 1.0).gather(1, ids[0, -len(found) :, None])[:, 0]
    assert (found - wanted).abs().max() < 1e-5


@pytest.fixture
def squint(site):
    """The family of the guide, from its two files."""
    section = guide.section("`mmrl_families()")
    hook, model = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    site("mmrl-flags", {"mmrl_flags/__init__.py": hook, "mmrl_flags/squint.py": model}, {"flags": "mmrl_flags"})


def test_the_family_of_the_guide_keeps_all_rules(squint, tmp_path):
    (report,) = check_plugin("flags")
    assert report.ok and (report.kind, report.id) == ("policy", "tiny:squint_vl")
    assert {r.name: r.note for r in report.results}["coordinates_are_known"] == "unit: its card"
    tiny.save(str(tmp_path), "squint_vl", hidden=32)
    VLM.check(PolicyConfig(model=str(tmp_path)))
    vlm = VLM(PolicyConfig(model=str(tmp_path)))
    assert type(vlm.model).__name__ == "Squint" and vlm.image_processing.coordinate_format == "unit"
    with pytest.raises(UserError, match=r"a squint_vl model writes unit \(its card\), not pixels"):
        VLM(PolicyConfig(model=str(tmp_path), frame="pixels"))


def test_two_plugins_with_one_family_are_refused(monkeypatch):
    class Two:
        def specs(self, kind):
            return {id: FamilySpec(id=id, target="m:f", model_type="x") for id in ("a/x", "b/x")}

    monkeypatch.setattr(plugin_families.plugins, "registry", Two)
    with pytest.raises(UserError, match="'a/x' and 'b/x' are both for models of type 'x'"):
        plugin_families.plugin_family("x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "tiny:nothing"}, "no tiny 'nothing': choose one of qwen2_vl"),
        ({"name": "tiny:llava", "dtype": "int8"}, "dtype 'int8': choose float32 or bfloat16"),
        ({"name": "/no/such/folder"}, "is not a folder"),
    ],
)
def test_bad_input_is_one_line(options, message):
    with pytest.raises(UserError, match=message) as told:
        check_policy(**options)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("family", ["glm4v", "glm46v", "qwen3_vl", "minicpmv4_6"])
def test_pictures_and_videos_are_read_in_one_pass(family):
    """As each alone: of prompts beside each other, and in one prompt, whatever comes first."""
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=2"))
    frames = (torch.rand(4, 64, 64, 3, generator=torch.Generator().manual_seed(0)) * 255).byte().numpy()
    clip = {"type": "video", "video": VideoFrames(frames_THWC=frames, times_s=(0.0, 0.5, 1.0, 1.5), duration_s=2.0)}
    shown, text = {"type": "image", "image": cases.picture(1)}, {"type": "text", "text": "What?"}

    def found(*orders):
        prompts = [Prompt(id=str(n), messages=[{"role": "user", "content": parts}]) for n, parts in enumerate(orders)]
        made = [cases.rollouts(vlm, [prompt], group=2)[:2] for prompt in prompts]
        rollouts = [replace(r, group=g) for g, group in enumerate(made) for r in group]
        return policies._update(vlm, rollouts, shared=True)[0]

    alone = [found([clip, text]), found([shown, text]), found([clip, shown, text]), found([shown, clip, text])]
    together = found([clip, text], [shown, text], [clip, shown, text], [shown, clip, text])
    assert (together - torch.cat(alone)).abs().max() < 1e-5
    assert (alone[2] - alone[3]).abs().max() > 1e-5
