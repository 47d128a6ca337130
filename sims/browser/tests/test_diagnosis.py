"""`mmrl doctor`'s check of the browser."""

import subprocess

from mmrl_browser import diagnosis


def test_a_browser_that_does_not_answer_in_time_is_not_broken(monkeypatch):
    """On a busy machine nothing is to be installed again."""

    def late(*command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(diagnosis, "executable", lambda: "/usr/bin/chromium")
    monkeypatch.setattr(diagnosis.subprocess, "run", late)
    found = diagnosis.chromium()
    assert (found["state"], found["detail"]) == ("note", "/usr/bin/chromium gave no answer within 20 s: the machine may be busy")
