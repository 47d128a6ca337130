"""What a smoke run leaves out of a run file where a library is missing."""

import pytest

from mmrl.config import load as configs
from mmrl.train.smoke import smoke, without_vllm

RUN = {
    "name": "x",
    "policy": {"model": "m"},
    "tasks": [{"id": "a/b"}],
    "stages": [{"kind": "rl", "steps": 2}],
    "compute": {"sampler": "vllm", "vllm": {"enable_prefix_caching": True}, "sleep_level": 1, "learners": 2},
}


@pytest.mark.parametrize("installed", [True, False])
def test_it_samples_itself_where_vllm_is_not_installed(monkeypatch, installed):
    monkeypatch.setattr("mmrl.rollout.generate.vllm_engine.is_installed", lambda: installed)
    config = configs.parse_config(RUN)
    small = smoke(config).compute
    assert (small.sampler, small.learners) == ("vllm" if installed else "local", 2)
    assert without_vllm(config) is not installed and (small.vllm == {}) is not installed
