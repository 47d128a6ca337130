"""Options of policies that act which can't be meant: one line that names the option and what it may be."""

import pytest

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies import load
from mmrl.policies.load import make_policy
from mmrl.registry import plugins

SMALL = {"kind": "robotics/small", "model": "mlp"}
CNN = {"kind": "robotics/small", "model": "cnn"}
VLA = {"kind": "vla", "model": "tiny:qwen3_vl:hidden=32,layers=1"}
PI0 = {"kind": "pi0", "model": "tiny:pi0"}
GR00T = {"kind": "gr00t", "model": "tiny:gr00t"}
SMOLVLA = {"kind": "smolvla", "model": "tiny:smolvla"}


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        *(
            (SMALL, {"dims": value, "state": 2}, "dims = .* must be a whole number from 1 to 256")
            for value in ("x", -1, 4.5, True)
        ),
        *((SMALL, {"chunk": value, "state": 2}, "chunk = .* must be a whole number from 1 to 256") for value in (0, -2, 1.5)),
        (SMALL, {"state": 2, "hidden": 0}, "hidden = 0 must be a list of whole numbers from 1 to 100000"),
        (SMALL, {"state": 2, "hidden": "x"}, "hidden = 'x' must be a list of whole numbers"),
        (SMALL, {"state": 2, "hidden": [8, 0]}, r"hidden = \[8, 0\] must be a list of whole numbers"),
        (SMALL, {"state": 2, "spread": 0}, "spread = 0 must be a number above 0"),
        (SMALL, {"state": 2, "spread": -1.0}, "spread = -1.0 must be a number above 0"),
        (SMALL, {"state": "x"}, "state = 'x' must be a whole number"),
        (CNN, {"size": "40"}, "size = '40' must be a whole number"),
        (CNN, {"camera": 1}, "camera = 1 must be a text"),
        (SMALL, {"state": 2, "source": "x"}, "leave out source: device and seed have keys of their own"),
        (VLA, {"bins": 1}, "bins = 1 must be a whole number from 2 to 1024"),
        (VLA, {"bins": -4}, "bins = -4 must be a whole number from 2 to 1024"),
        (VLA, {"size": "x"}, "size = 'x' must be a whole number"),
        (VLA, {"crop": "x"}, "crop = 'x' must be a number from 0.1 to 1"),
        (VLA, {"prompt": 3}, "prompt = 3 must be a text"),
        (VLA, {"head": "flow", "flow_steps": 0}, "flow_steps = 0 must be a whole number"),
        (VLA, {"head": "normal", "spread": 0}, "spread = 0 must be a number above 0"),
        (VLA, {"head": "l1", "scale": 2}, "scale = 2 must be one of 'number', 'network'"),
        (VLA, {"head": "normal", "scale": "network"}, 'scale = "network" is of an l1 head'),
        (PI0, {"noise_level": 0}, "noise_level = 0 must be a number above 0"),
        (PI0, {"chunk": 0}, "chunk = 0 must be a whole number"),
        *((PI0, {"state": value}, "state = .* must be a whole number from 0") for value in (-1, "x", 2.5, True)),
        *((PI0, {"cameras": value}, "cameras = .* must be a list of texts") for value in ("front", [1], 3)),
        (PI0, {"tokenizer": 3}, "tokenizer = 3 must be a text"),
        (PI0, {"statistics": 3}, "statistics = 3 must be a text or a table"),
        (PI0, {"gripper": ["open-high"]}, r"gripper = \['open-high'\] must be one of '', 'open-high', "),
        *((GR00T, {"state": value}, "state = .* must be a whole number from 0") for value in (-1, "x", 2.5, True)),
        *(
            (GR00T, {name: 3}, f"{name} = 3 must be a text")
            for name in ("embodiment", "processor", "statistics", "statistics_key")
        ),
        (GR00T, {"statistics_kind": "quantile"}, "must be one of .*'mean-std'. Did you mean 'quantiles'[?]$"),
        (GR00T, {"cameras": "front"}, "cameras = .* must be a list of texts"),
        (
            GR00T,
            {"gripper": "open-high"},
            "gripper = 'open-high' says what statistics mean, and there are none of 'new_embodiment'",
        ),
        (GR00T, {"dims": 133}, "dims = 133 is too many for this GR00T: 132 numbers an action has at most"),
        *((SMOLVLA, {name: 0}, f"{name} = 0 must be a whole number from 1 to 256") for name in ("chunk", "dims", "steps")),
        *((SMOLVLA, {"state": value}, "state = .* must be a whole number from 0") for value in (-1, "x", 2.5, True)),
        (SMOLVLA, {"cameras": "front"}, "cameras = .* must be a list of texts"),
        (SMOLVLA, {"backbone": 3}, "backbone = 3 must be a text"),
        (SMOLVLA, {"gripper": ["open-high"]}, r"gripper = \['open-high'\] must be one of '', 'open-high', "),
        (VLA, {"statistics_key": 3}, "statistics_key = 3 must be a text"),
        (
            {"kind": "robotics/residual", "model": "cnn"},
            {"base": "somewhere", "scale": "x"},
            "scale = 'x' must be a number above 0",
        ),
        ({"kind": "robotics/residual", "model": "cnn"}, {"base": 3}, "base = 3 must be a text or a table"),
        *(
            (
                {"kind": "robotics/residual", "model": "mlp"},
                {"base": "somewhere", "state": value},
                "state = .* must be a whole number from 0",
            )
            for value in (-1, "x", 1.5)
        ),
    ],
)
def test_what_cannot_be_meant(policy, options, message):
    with pytest.raises(UserError, match=f"^policy.options.*{message}") as error:
        make_policy(PolicyConfig(**policy, options=options))
    assert error.value.__cause__ is None, "nothing was raised before"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("squashed", {"noise": -1, "state": 2}, r"^policy\.options\.noise = -1 must be a number from 0 to 2$"),
        (
            "squashed",
            {"residual": 0.2, "state": 2},
            r"^policy\.options\.residual = 0\.2 corrects a base: set policy\.options\.base$",
        ),
        ("squashed", {}, r"^policy\.options\.state = 0 and base is empty"),
        ("squashed", {"hidden": [], "state": 2}, r"^policy\.options\.hidden = \[\] must be a list of widths"),
        ("pi0", {"noise_range": [0.2, 0.1]}, r"^policy\.options\.noise_range = .* must be two numbers, the smaller first$"),
        ("pi0", {"noise_range": [0.2]}, r"^policy\.options\.noise_range = .* must be two numbers, the smaller first$"),
        ("pi05", {"layout": "transformers"}, r"^policy\.options\.layout = 'transformers' must be one of 'auto', 'lerobot'"),
        ("vla", {"chunk_sise": 2}, r"^policy 'vla' has no option 'chunk_sise'\. Did you mean 'chunk'\?"),
        (
            "robotics/residual",
            {"scale": 0.0, "base": "a"},
            r"^policy\.options\.scale = 0\.0 must be a number above 0 and at most 2$",
        ),
        ("robotics/residual", {}, r"^policy 'robotics/residual' needs the option 'base': set policy\.options\.base"),
    ],
)
def test_they_are_refused_without_making_a_policy(kind, options, message):
    """As `mmrl train --dry-run` does, for a model that can't be loaded."""
    spec = plugins.registry().get("policies", kind)
    with pytest.raises(UserError, match=message):
        load.checked_options(PolicyConfig(kind=kind, model="none", options=options), spec)


def test_a_policy_without_checks_of_its_own_takes_no_switch_for_a_number(monkeypatch):
    """Python's `True` is a whole number. The types are checked for every policy, before it is loaded and afterwards."""
    made = []

    def plain(config, *, width: int = 3, scale: float = 1.0, wide: bool = False, source=None, device="cpu", seed=0):
        made.append((width, scale, wide))
        return Whole()

    registry = plugins.registry()
    monkeypatch.setattr(type(registry), "target", lambda self, spec: plain)
    monkeypatch.setattr(load, "lacking", lambda *_: [])
    for options, message in (
        ({"width": True}, "policy.options.width = True must be a whole number"),
        ({"scale": False}, "policy.options.scale = False must be a number"),
        ({"wide": 1}, "policy.options.wide = 1 must be true or false"),
    ):
        with pytest.raises(UserError, match=f"^{message}$"):
            make_policy(PolicyConfig(**SMALL, options=options))
    made.clear()
    make_policy(PolicyConfig(**SMALL, options={"width": 5, "scale": 2, "wide": True}))
    assert made == [(5, 2, True)]


class Whole:
    """Stands for a policy."""
