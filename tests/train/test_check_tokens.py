"""Every bundled algorithm either learns on a policy's tokens or is refused in one line, before a model is loaded."""

from __future__ import annotations

import itertools

import pytest

import runs
from mmrl import PolicySpec
from mmrl.algorithms.presets import load_algorithm, with_defaults
from mmrl.api.errors import PluginError, UserError
from mmrl.api.policies import ActingPolicy, Policy
from mmrl.api.tokens import DISCRETE, TokenKind, for_tokens
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig, RlStage
from mmrl.policies import load
from mmrl.registry import plugins
from mmrl.train.checks.run_file import check_stage, check_tokens
from mmrl.train.resolve import resolve

W, N, A, C, S = TokenKind
OF_KIND = {"vlm": W, "reward": W, "openai": W, "vla": N, "pi0_fast": C, "diffusion": S, "steered": S}
"""The kinds of policy whose tokens aren't actions."""
ALONE = {
    **{id: {W} for id in ("gspo", "gmpo", "vespo", "fipo", "topr")},  # all tokens of an answer in one pass
    **{id: {W} for id in ("pacs", "gvpo")},
    **{id: {W} for id in ("rover", "otb")},  # the whole vocabulary
    **{id: {W} for id in ("rlsd", "sdar", "sdpo")},  # answers in prompts
    "archer": {W},  # turns of a conversation
    "real": {W},
    "dcpo": {W, N, C},  # probabilities
    "divergence-ppo": {W, N, C},
    "clip-cov": {W, N, C},
    "kl-cov": {W, N, C},
    **{id: {W, N, C} for id in ("m2po", "bapo")},
    "advantage-reweighting": {W, N, C},
    "d3s": {W, N, C},  # entropies that aren't negative
    "dppo": {S},
}
"""Algorithm -> tokens on which alone it learns."""
KEYS = {"opd": {"teacher": "somewhere"}, "kdrl": {"teacher": "somewhere"}, "digirl": {"credit": "chunk"}}


def token_of(kind, **options):
    spec = plugins.registry().get("policies", kind)
    return load.token_kind(PolicyConfig(kind=kind, model=spec.tiny or "mlp", options=options), spec)


def bundled(what):
    return [id for id in plugins.registry().specs(what) if "/" not in id or what == "policies"]


def test_each_kind_of_policy_says_what_its_tokens_are():
    assert {kind: token_of(kind) for kind in bundled("policies")} == {kind: OF_KIND.get(kind, A) for kind in bundled("policies")}


def test_a_head_on_hidden_states_gives_whole_actions(tmp_path):
    assert {head: token_of("vla", head=head) for head in ("tokens", "normal", "l1", "flow")} == {
        "tokens": N,
        **dict.fromkeys(("normal", "l1", "flow"), A),
    }
    (tmp_path / "action_head--1_checkpoint.pt").touch()
    spec = plugins.registry().get("policies", "vla")
    assert load.token_kind(PolicyConfig(kind="vla", model=str(tmp_path)), spec) is A, "as what lies beside the model says"


@pytest.mark.parametrize("algorithm", bundled("algorithms"))
def test_each_algorithm_learns_on_a_policys_tokens_or_is_refused_in_one_line(algorithm):
    stage = with_defaults(RlStage(kind="rl", steps=1, algorithm=algorithm, **KEYS.get(algorithm, {})))
    loaded = load_algorithm(algorithm, {})
    for kind in bundled("policies"):
        config, token = (
            parse_config(
                {"name": "a", "policy": {"kind": kind, "model": "x"}, "tasks": [{"id": "a/b"}], "stages": [stage.model_dump()]}
            ),
            None,
        )
        try:
            token = token_of(kind)
            check_tokens("stages.0", kind, token, stage, loaded)
            check_stage(config, 0, stage, loaded, {}, {})
        except UserError as error:
            assert token not in ALONE.get(algorithm, set(TokenKind)), f"{kind}: {error}"
            assert "\n" not in str(error) and str(error).startswith("stages.0") and kind in str(error) and algorithm
        else:
            assert token in ALONE.get(algorithm, set(TokenKind)), kind


@pytest.mark.parametrize(
    "keys",
    [
        *({"off_policy_mask": 0.1}, {"gap_mask": 0.1}, {"gap_mask": 0.1, "gap_level": "max"}),
        *({"importance_sampling_level": level} for level in ("sequence", "geometric")),
    ],
    ids=str,
)
def test_what_weighs_whole_answers_is_for_words(keys):
    stage = RlStage(kind="rl", steps=1, importance_sampling="mask", **keys)
    check_tokens("stages.3", "some", W, stage, None)
    for token in set(TokenKind) - {W}:
        with pytest.raises(UserError, match=rf"^stages\.3\.{next(iter(keys))}.*is about whole completions[^\n]*{token.value}"):
            check_tokens("stages.3", "some", token, stage, None)


def test_a_gap_of_tokens_is_for_all():
    for token in TokenKind:
        check_tokens("stages.3", "some", token, RlStage(kind="rl", steps=1, gap_mask=0.1, gap_level="token"), None)


@pytest.mark.parametrize(
    ("key", "unit", "token"), itertools.product(("ratio", "credit"), ("token", "action", "chunk"), TokenKind)
)
def test_an_action_without_tokens_of_its_own_is_no_unit(key, unit, token):
    stage, refused = RlStage(kind="rl", steps=1, **{key: unit}), unit == "action" and token in (C, S)
    refused |= key == "ratio" and unit != "token" and token is W
    if not refused:
        return check_tokens("stages.3", "some", token, stage, None)
    with pytest.raises(UserError, match=rf'^stages\.3\.{key} = "{unit}"[^\n]* policy\.kind = \'some\' are {token.value}[^\n]*$'):
        check_tokens("stages.3", "some", token, stage, None)


def test_the_step_of_denoising_that_an_algorithm_needs_is_no_word(tmp_path, monkeypatch):
    """A run file is refused when it is read, as by `mmrl train --dry-run`."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    data = {
        "name": "it",
        "policy": {"kind": "pi0_fast", "model": "tiny:pi0_fast", "options": {"dims": 4}},
        "tasks": [{"id": "robotics/reach", "options": {"dims": 4}}],
        "stages": [{"kind": "rl", "steps": 1, "algorithm": "dppo"}],
    }
    message = (
        r"^stages\.0: dppo learns on steps that denoise a chunk of actions, and the tokens of policy\.kind = 'pi0_fast' are "
        "words that say a chunk of actions: use another algorithm, such as grpo or ppo$"
    )
    with pytest.raises(UserError, match=message):
        resolve(parse_config(data))
    data["policy"]["kind"], data["policy"]["model"] = "pi0", "tiny:pi0"
    data["stages"] = [{"kind": "sft", "split": "demo", "steps": 1, "token_weights": "probability"}]
    with pytest.raises(UserError, match=r'^stages\.0\.token_weights = "probability": the tokens of [^\n]*, which have densities'):
        resolve(parse_config(data))


def test_a_function_says_for_which_tokens_it_is():
    @for_tokens(*DISCRETE)
    def advantage(rewards_N):
        return rewards_N

    assert advantage.tokens == {W, N, C} and load_algorithm("grpo", {}).tokens == set(TokenKind)


class Silent(Policy):
    """It acts, and doesn't say so."""


def test_a_policy_of_a_plugin_that_contradicts_its_spec_is_refused(monkeypatch):
    found = {"is": Silent}
    monkeypatch.setattr(type(plugins.registry()), "target", lambda self, spec: found["is"])
    spec, config = PolicySpec(id="mine/it", target="mine:It", acts=True), PolicyConfig(kind="mine/it", model="mlp")
    with pytest.raises(PluginError, match=r"^policy 'mine/it': its spec has acts=True, and its token_kind\(\) says WORD: make"):
        load.token_kind(config, spec)
    found["is"] = ActingPolicy
    assert load.token_kind(config, spec) is A
    found["is"] = lambda config: None
    assert load.token_kind(config, spec) is A, "a function says nothing: the spec does"
