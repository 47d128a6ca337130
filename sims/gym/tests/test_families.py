"""Families of Gymnasium's environments: what each shows, takes and repeats, and the README's table of it.

MMRL_UPDATE_DOCS=1 writes the table anew.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from mmrl_gym.simulator import Gym

from mmrl import UserError

README = Path(__file__).parents[1] / "README.md"


@dataclass(frozen=True)
class Family:
    env_id: str
    modules: tuple[str, ...]
    action: str
    dims: int
    state: int
    options: dict[str, Any] = field(default_factory=dict)
    cameras: tuple[str, ...] = ("camera",)
    says: bool = False
    """It says what is to be done."""
    start: str = "by seed"
    """Whether the seed changes what is seen at first."""
    picture: str = "repeats"
    note: str = ""
    steps: int = 6
    deaths: int = 0
    """Processes that may be lost and replaced."""

    @property
    def row(self) -> str:
        shown = ", ".join(f"`{camera}`" for camera in self.cameras)
        given = options_text(self.options)
        what = f"`{self.env_id}`" + (f" with `{given}`" if given else "")
        modules = ", ".join(f"`{name}`" for name in self.modules) or "–"
        cells = (what, modules, self.action, self.dims, shown, self.state or "–", self.start, self.note)
        return "| " + " | ".join(map(str, cells)) + " |"


def options_text(options: dict[str, Any]) -> str:
    made = options.get("make", {})
    rest = {key: value for key, value in options.items() if key not in ("make", "success_key")}
    return ", ".join(
        [*(f"make.{key} = {value!r}" for key, value in made.items()), *(f"{k} = {str(v).lower()}" for k, v in rest.items())]
    )


ROBOTS, GRID, PUSHT = ("gymnasium_robotics",), ("minigrid",), ("gym_pusht",)
PIXELS = {"make": {"obs_type": "pixels_agent_pos"}}
FAMILIES = [
    Family("BabyAI-GoToObj-v0", GRID, "choice", 7, 151, says=True, note="the instruction is its mission"),
    Family("MiniGrid-Empty-5x5-v0", GRID, "choice", 7, 151, says=True, start="always the same", note="the same"),
    Family("FetchReach-v4", ROBOTS, "box", 4, 16, {"success_key": "is_success"}),
    Family("FetchPickAndPlace-v4", ROBOTS, "box", 4, 31, {"success_key": "is_success"}, note="drawing a picture moves it"),
    Family("HandReach-v3", ROBOTS, "box", 20, 93, {"success_key": "is_success"}),
    Family("AdroitHandDoor-v1", ROBOTS, "box", 28, 39, {"success_key": "success"}),
    Family("PointMaze_UMaze-v3", ROBOTS, "box", 2, 8, {"success_key": "success"}),
    Family("FrankaKitchen-v1", ROBOTS, "box", 9, 93, note="0.8 s of the processor for a step with a picture", steps=2),
    Family("gym_pusht/PushT-v0", PUSHT, "box", 2, 5, picture="once", note="a first picture shows the action before"),
    Family("gym_pusht/PushT-v0", PUSHT, "box", 2, 5, {"success_key": "is_success", "remake": True}),
    Family("gym_pusht/PushT-v0", PUSHT, "box", 2, 2, PIXELS, cameras=("pixels",)),
    Family("gym_aloha/AlohaTransferCube-v0", ("gym_aloha",), "box", 14, 14, PIXELS, cameras=("top",), note="0.4 s for a step"),
    Family("ALE/Pong-v5", ("ale_py",), "choice", 6, 0, start="always the same"),
    Family("VizdoomBasic-v1", ("vizdoom.gymnasium_wrapper",), "choice", 4, 1, cameras=("camera", "screen"), deaths=1),
    Family("FrozenLake-v1", (), "choice", 4, 16, start="always the same", note="of Gymnasium itself"),
    Family("Blackjack-v1", (), "choice", 2, 45, note="of Gymnasium itself"),
    Family("Ant-v5", (), "box", 8, 105, note="of Gymnasium itself"),
]  # fmt: skip


def test_the_table_is_what_is_tested():
    begin, end = "<!-- families -->\n", "<!-- end -->"
    head = "| environment | `modules` | action | numbers | cameras | state | start | |\n|---|---|---|---|---|---|---|---|\n"
    table = head + "".join(f"{family.row}\n" for family in FAMILIES)
    text = README.read_text()
    before, rest = text.split(begin)
    old, after = rest.split(end)
    if os.environ.get("MMRL_UPDATE_DOCS"):
        README.write_text(before + begin + table + end + after)
    else:
        assert old == table, "MMRL_UPDATE_DOCS=1 pytest sims/gym/tests/test_families.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.exhaustive) if "Kitchen" in f.env_id else f for f in FAMILIES],  # it draws for a second
    ids=lambda family: f"{family.env_id}-{'-'.join(family.cameras)}",
)
@pytest.mark.filterwarnings("ignore:.*begin alike")
def test_a_family(family, families, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # VizDoom writes its settings where it is
    told = {} if family.says else {"instruction": "do it"}
    options = {"modules": family.modules, "size": 48, "cameras": family.cameras, **family.options, **told}
    simulator = Gym(
        num_envs=2, device="cpu", env_id=family.env_id, python=families, environment={"MUJOCO_GL": "osmesa"}, **options
    )
    try:
        check(simulator, family)
    finally:
        simulator.close()
    assert len(simulator.workers.why) <= family.deaths, simulator.workers.why


def check(simulator, family):
    actions = torch.rand(family.steps, 2, family.dims, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def play(*seeds):
        """The observations of an episode of each seed, and those that the environment ended early."""
        seen, active = [simulator.reset(torch.tensor(seeds))], torch.tensor([True, True])
        for each in actions:
            moved = simulator.step(each, active)
            active = active & ~moved.terminated_N & ~moved.truncated_N
            seen.append(moved.observation)
        return seen, active

    assert simulator.action.dims == family.dims
    once, active = play(1, 102)
    play(7, 8)
    again, _ = play(1, 102)
    first = once[0]
    assert set(first.images) == set(family.cameras) and all(rows.shape == (2, 48, 48, 3) for rows in first.images.values())
    assert all(rows.float().std() > 1 for rows in first.images.values()), "a picture shows something"
    assert (0 if first.state is None else first.state.shape[1]) == family.state
    assert (first.instructions[0] != "do it") == family.says and first.instructions == again[0].instructions
    pictures = [[torch.equal(a.images[c], b.images[c]) for c in family.cameras] for a, b in zip(once, again, strict=True)]
    assert all(a.state is None or torch.equal(a.state, b.state) for a, b in zip(once, again, strict=True))
    assert all(map(all, pictures)) if family.picture == "repeats" else not all(map(all, pictures))
    alike = all(
        torch.equal(rows[0], rows[1]) for rows in [*first.images.values(), *([] if first.state is None else [first.state])]
    )
    assert alike == (family.start == "always the same")
    last = again[-1]
    going = active.nonzero()[:, 0]
    kept = simulator.snapshot(going)
    simulator.reset(torch.tensor([5, 6]))
    back = simulator.restore(going, kept)
    assert back.state is None or torch.equal(back.state, last.state[going])
    assert family.picture == "once" or all(torch.equal(back.images[c], last.images[c][going]) for c in family.cameras)


def test_starts_that_are_alike_are_told_once(families):
    simulator = Gym(num_envs=2, device="cpu", env_id="FrozenLake-v1", instruction="cross it", size=16, python=families)
    try:
        with pytest.warns(UserWarning, match=r"FrozenLake-v1.: episodes of different seeds begin alike") as told:
            simulator.reset(torch.tensor([1, 2]))
            simulator.reset(torch.tensor([3, 4]))
        assert len(told) == 1
    finally:
        simulator.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"env_id": "MiniGrid-Empty-5x5-v0", "modules": GRID, "cameras": ("image",)}, "no camera 'image': choose among camera"),
        ({"env_id": "FetchReach-v4", "modules": ROBOTS}, "its observations have no text that says what to do: set instruction"),
        ({"env_id": "ALE/Pong-v5", "modules": ("ale_py",), "pictures": False, "instruction": "x"}, "have no numbers, so nothing"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_can_not_be_is_one_line(families, options, why):
    with pytest.raises(UserError, match=why) as error:
        Gym(num_envs=1, device="cpu", python=families, environment={"MUJOCO_GL": "osmesa"}, **options)
    assert "\n" not in str(error.value)
