"""The conformance kit, on a task of a suite with pictures; it takes minutes."""

import mmrl_libero
import pytest
from mmrl_libero.simulator import Libero

from mmrl.testing.simulators import check_simulator

(SPEC,) = [spec for spec in mmrl_libero.mmrl_simulators() if spec.id == "libero/object"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("pictures")
def test_it_conforms(python: str | None) -> None:
    report = check_simulator(SPEC, Libero, n=2, options={"python": python, "size": 32, "task": 0, "settling": 2})
    assert report.ok, str(report)
    assert not {r.name for r in report.results if r.note.startswith("skipped")}
