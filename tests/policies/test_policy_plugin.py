"""The guide's kind of policy, which brings a collector and a packer of its own and imports `mmrl` and `mmrl.api` alone."""

import ast
import re
import sys

import pytest
import torch

import guide
import runs
from mmrl.api.errors import PluginError, UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.load import make_policy, policy_class
from mmrl.registry import plugins


@pytest.fixture
def chooser(tmp_path, monkeypatch):
    """Its code, as module `mmrl_flags.policy` of the local plugin `flags`."""
    section = guide.section("`mmrl_policies()")
    hook, code = re.findall(r"```python\n(.*?)```", section, re.S)
    (tmp_path / "mmrl_flags").mkdir()
    (tmp_path / "mmrl_flags" / "policy.py").write_text(code)
    (tmp_path / "flags.py").write_text(hook)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{tmp_path / 'flags.py'}:{runs.TOY}")
    yield code
    for name in ("flags", "mmrl_flags", "mmrl_flags.policy"):
        sys.modules.pop(name, None)


def test_it_imports_nothing_of_the_engine(chooser):
    found = {node.module for node in ast.walk(ast.parse(chooser)) if isinstance(node, ast.ImportFrom)}
    assert {name for name in found if name.startswith("mmrl")} == {"mmrl", "mmrl.api.policies", "mmrl.api.seeds"}


def test_it_is_trained(chooser, tmp_path):
    """All pictures are red: two steps of Adam make that answer likelier, and its logit moves by the learning rate each time."""
    rate = 0.25
    stage = {"kind": "rl", "steps": 2, "prompts_per_step": 4, "group_size": 8, "learning_rate": rate, "minibatches": 1}
    config = runs.toy_config(
        tmp_path / "runs",
        policy={"kind": "flags/chooser", "model": "none", "options": {"answers": ["blue", "red", "green"]}},
        tasks=[{"id": "toy/colour", "options": {"colours": 1, "copies": 8}, "verifiers": {"toy/exact": 1.0}}],
        stages=[{**stage, "warmup_steps": 0, "weight_decay": 0.0}],
    )
    folder = runs.run(config)
    rows = [row["metrics"] for row in runs.rows(folder) if row.get("stage") == "rl" and "metrics" in row]
    assert len(rows) == 2 and all(row["logprob_gap"] < 1e-6 and row["grad_norm"] > 0 for row in rows)
    (saved,) = (folder.path / "checkpoints").glob("step-000002/policy/chooser.pt")
    blue, red, green = torch.load(saved)["weight"][:, 0].tolist()
    assert red > rate and blue < 0 and green < 0
    again = make_policy(config.policy, device="cpu", seed=1, source=saved.parent)
    assert again.logprobs_A(1.0)[1].exp() > 1 / 3


def test_one_that_lacks_a_member_is_refused_by_its_name(chooser):
    import mmrl_flags.policy as module

    config = PolicyConfig(kind="flags/chooser", model="none")
    for name in ("packer", "save"):
        kept = vars(module.Chooser)[name]
        delattr(module.Chooser, name)
        with pytest.raises(PluginError, match=rf"^policy 'flags/chooser' lacks {name}: define "):
            make_policy(config, device="cpu", seed=0, source=None)
        setattr(module.Chooser, name, kept)
    module.Chooser = type("Alone", (), {"collector": "x:y", "check": staticmethod(lambda config: None)})
    with pytest.raises(PluginError, match="lacks trained_whole, check_teacher, token_kind, skeleton, own_names: define them as "):
        policy_class(plugins.registry().get("policies", config.kind))


def test_the_old_name_of_a_policy_that_moved_leads_to_the_new_one():
    with pytest.raises(UserError, match=r"no policy 'small'\. Did you mean 'robotics/small'\?"):
        plugins.registry().get("policies", "small")
