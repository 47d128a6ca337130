from mmrl_example.task import exact

from mmrl import Case
from mmrl.testing import check_plugin


def test_conformance() -> None:
    check_plugin("example")


def test_exact() -> None:
    assert exact(Case(completion=" Red\n", answer="red")) == 1.0
    assert exact(Case(completion="red or blue", answer="red")) == 0.0
