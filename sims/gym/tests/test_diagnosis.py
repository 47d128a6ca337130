"""What `mmrl doctor` says of Gymnasium and Meta-World, of planted machines."""

import json

import pytest
from mmrl_gym import diagnosis

HAVE = {"gymnasium": "1.4.0", "pygame": "2.6.1", "metaworld": "3.1.1", "mujoco": "3.3.0"}


@pytest.mark.parametrize(
    ("absent", "state", "words", "cure"),
    [
        ((), "ok", "1.4.0, pygame 2.6.1", ""),
        (("pygame",), "note", "1.4.0; without pygame", 'pip install "multimodal-rl[gym]"'),
        (("gymnasium", "pygame"), "missing", "would add gym/env", 'pip install "multimodal-rl[gym]"'),
    ],
)
def test_gymnasium(absent, state, words, cure):
    found = diagnosis.gymnasium({name: version for name, version in HAVE.items() if name not in absent})
    assert found["state"] == state and words in found["detail"] and found.get("cure", "") == cure


@pytest.mark.parametrize(
    ("have", "library", "sound", "state", "words", "cure"),
    [
        (HAVE, "libOSMesa.so.8", True, "ok", "3.1.1, MuJoCo 3.3.0; renders with libOSMesa.so.8", ""),
        (HAVE, None, False, "missing", "3.1.1, MuJoCo 3.3.0; can't render: libOSMesa is missing", "apt-get install libosmesa6"),
        (HAVE, "libOSMesa.so.8", False, "missing", "can't render: libOSMesa.so.8 doesn't load", "apt-get install libosmesa6"),
        ({}, None, False, "missing", "not installed here", "apt-get install libosmesa6"),
        ({}, "libOSMesa.so.8", True, "missing", "it can render: libOSMesa.so.8", "python -m venv"),
    ],
)
def test_metaworld(have, library, sound, state, words, cure):
    found = diagnosis.metaworld(have, library, sound)
    assert found["state"] == state and words in found["detail"] and found.get("cure", "").startswith(cure)


def test_this_machine_is_looked_at(tmp_path, monkeypatch):
    """Whatever it has, there are two findings, as JSON. A library is planted that is a file without code."""
    found = json.loads(json.dumps(diagnosis.findings()))
    assert set(found) == {"gymnasium", "metaworld"} and found["gymnasium"]["state"] in ("ok", "note", "missing")
    (tmp_path / "libOSMesa.so.8").touch()
    assert not diagnosis.loads(str(tmp_path / "libOSMesa.so.8")) and diagnosis.loads("libc.so.6")
    monkeypatch.setattr(diagnosis.ctypes.util, "find_library", lambda name: str(tmp_path / "libOSMesa.so.8"))
    assert "doesn't load" in diagnosis.findings()["metaworld"]["detail"]
