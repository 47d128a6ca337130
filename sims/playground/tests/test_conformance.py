"""The conformance kit, with pictures; it takes a minute or two."""

import mmrl_playground
import pytest
from mmrl_playground.simulator import Playground

from mmrl.testing.simulators import check_simulator

SPECS = {spec.id.partition("/")[2]: spec for spec in mmrl_playground.mmrl_simulators()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("drawing")
def test_it_conforms(python: str | None) -> None:
    report = check_simulator(SPECS["cartpole-balance"], Playground, n=2, options={"python": python, "size": 16})
    assert report.ok, str(report)
    assert {r.name for r in report.results if r.note.startswith("skipped")} == {
        "expert_is_in_range",
        "the_time_limit_is_the_engines",
    }
