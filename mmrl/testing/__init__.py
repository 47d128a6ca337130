"""The conformance kit: the rules for tasks, verifiers, simulators and models as small named checks. `mmrl check ID` and
`mmrl check policy MODEL` run it.

A plugin's test file::

    from mmrl.testing import check_plugin

    def test_conformance():
        check_plugin("flags")
"""

from mmrl.testing.checks import CheckResult, Report
from mmrl.testing.kit import check_id, check_plugin, check_policy, check_task, check_verifier

__all__ = ["CheckResult", "Report", "check_id", "check_plugin", "check_policy", "check_task", "check_verifier"]
