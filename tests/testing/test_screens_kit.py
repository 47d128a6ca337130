"""Every rule for screens against a planted fault, on the doors of the guide; and the guide's run file, played."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import guide
from mmrl import SimulatorSpec, UserError
from mmrl.api.simulators.gui import Action, Element
from mmrl.config.load import parse_config
from mmrl.registry import plugins
from mmrl.testing import check_id, check_plugin
from mmrl.testing import screens as rules
from mmrl.testing.simulators import check_simulator
from mmrl.train.resolve import resolve

(CODE,) = re.findall(r"in the file `doors\.py`:\n\n```python\n(.*?)^```$", guide.TEXT, re.MULTILINE | re.DOTALL)
SPEC = SimulatorSpec(id="doors/hall", target="-:-", screens=True)
GUIDED: dict[str, Any] = {}
exec(CODE, GUIDED)
Hall, Doors = GUIDED["Hall"], GUIDED["Doors"]
KEPT: list[Any] = []


def hall(**members: Any) -> type:
    """The good screens with other members."""
    return type("Edited", (Hall,), members)


def doors(**members: Any) -> type:
    """The good screens, whose screens have other members."""
    kind = type("Doors", (Doors,), members)
    return hall(open=lambda self, elements=False: kind(self, elements))


def shown(change: Callable[[Any, Any], Any]) -> type:
    """What the good screens show, changed."""
    return doors(shown=lambda self, *notes: change(self, Doors.shown(self, *notes)))


def start(change: Callable[[Any], None]) -> type:
    """Something done at each start."""

    def begun(self: Any, page: str, seed: int, picture: bool = True) -> Any:
        first = Doors.start(self, page, seed, picture)
        change(self)
        return self.shown() if self.opened == [] else first

    return doors(start=begun)


def raising(self: Any, action: Action) -> Any:
    if action.at and not 0 <= action.at[0] <= 200:
        raise ValueError("off the screen")
    return Doors.act(self, action)


def advised(action: Any) -> type:
    return doors(expert_action=lambda self: action)


def advising(self: Any) -> Any:
    self.opened.append("none")
    return Action(kind="wait")


def keeping(self: Any) -> None:
    """The doors change with every start."""
    KEPT.append(1)
    self.doors = [*self.doors[len(KEPT) % 4 :], *self.doors[: len(KEPT) % 4]]


def shared(self: Any, action: Action) -> Any:
    """Waiting shows what was opened on whichever screen was used last."""
    if action.kind == "click":
        KEPT.append(self)
    elif KEPT and KEPT[-1] is not self:
        self.doors = self.doors[::-1]
    return Doors.act(self, action)


def taken(self: Any, page: str, seed: int, picture: bool = True) -> Any:
    return Doors.start(self, page if page in self.hall.pages else "one", seed, picture)


def element(box: Any, **more: Any) -> Callable[[Any, Any], Any]:
    return lambda self, one: replace(one, elements=(Element(box=box, role="button", text="x", **more),) if self.elements else ())


FAULTS: dict[str, tuple[str, type, str]] = {
    "size": ("screens_are_as_declared", hall(__init__=lambda self: setattr(self, "size", [160, 80])), "size is \\[160, 80\\]"),
    "pages": ("screens_are_as_declared", hall(pages="one"), "pages is 'one'"),
    "actions": (
        "screens_are_as_declared",
        hall(actions=frozenset({"click", "tap"})),
        "actions are \\['click', 'tap'\\]: name some of click",
    ),
    "none": ("screens_are_as_declared", hall(actions=frozenset()), "actions are \\[\\]"),
    "no picture": ("a_start_shows_a_page", shown(lambda self, one: replace(one, screenshot=None)), "has no screenshot"),
    "another size": (
        "a_start_shows_a_page",
        shown(lambda self, one: replace(one, screenshot=one.screenshot and one.screenshot.resize((9, 9)))),
        r"has a screenshot of RGB \(9, 9\)",
    ),
    "over": ("a_start_shows_a_page", shown(lambda self, one: replace(one, terminated=True)), "is over before the first action"),
    "pay": (
        "a_start_shows_a_page",
        shown(lambda self, one: replace(one, reward=2.0)),
        "has reward = 2.0: give a number from -1 to 1",
    ),
    "won": ("a_start_shows_a_page", shown(lambda self, one: replace(one, success=True)), "succeeded, and the episode isn't over"),
    "box": ("a_start_shows_a_page", shown(element((0, 0, 999, 10))), "boxes must be on the screen of 160 x 80"),
    "spot": ("a_start_shows_a_page", shown(element((0, 0, 9, 9), click_point=(20, 5))), "it must be in its box"),
    "unasked": (
        "a_start_shows_a_page",
        hall(open=lambda self, elements=False: Doors(self, True)),
        r"lists elements with open\(elements=False\)",
    ),
    "any page": ("an_unknown_page_is_refused", doors(start=taken), "an unknown page was shown"),
    "kept": ("same_seed_gives_same_page", start(keeping), "differs at step 0"),
    "shared": ("screens_stand_apart", doors(act=shared), "while another screen was used"),
    "raises": ("every_action_leaves_it_usable", doors(act=raising), "raised ValueError: off the screen"),
    "silent": ("every_action_leaves_it_usable", shown(lambda self, one: replace(one, notes=())), "leaves no note"),
    "advice": ("advice_is_an_action", advised("click"), "give an Action of a kind in `actions`"),
    "far": ("advice_is_an_action", advised(Action(kind="click", at=(900.0, 1.0))), "must be on the screen of 160 x 80"),
    "meddles": ("advice_is_an_action", doors(expert_action=advising), r"after expert_action\(\) was called"),
    "global": ("global_random_state_is_untouched", start(lambda self: random.random()), "changed the global generator of random"),
}


def failed(kind: type) -> dict[str, str]:
    KEPT.clear()
    return {r.name: r.message for r in check_simulator(SPEC, kind).results if not r.ok}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_its_rule_alone(fault: str) -> None:
    name, kind, message = FAULTS[fault]
    found = failed(kind)
    also = {"same_seed_gives_same_page": {"screens_stand_apart", "advice_is_an_action"}}  # which compare starts, too
    assert set(found) - also.get(name, set()) == {name}, found
    assert re.search(message, found[name]), found


def test_every_rule_has_a_planted_fault_and_a_row_in_the_guide() -> None:
    every = {c.__name__ for c in (*rules.GATES, *rules.CHECKS)}
    assert {name for name, _, _ in FAULTS.values()} | {"seeds_make_a_difference"} == every  # below: it is a note
    table = guide.TEXT.partition("| check of a simulator with screens |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == every


def test_pages_that_begin_alike_and_pages_without_names_are_told() -> None:
    report = check_simulator(SPEC, doors(start=lambda self, page, seed, picture=True: Doors.start(self, page, 1, picture)))
    assert report.ok, str(report)
    notes = {r.name: r.note for r in report.results}
    assert notes["seeds_make_a_difference"] == "3 seeds show the same on 'one', 'two': its episodes begin alike, in every split"
    report = check_simulator(SPEC, hall(pages=()))
    notes = {r.name: r.note for r in report.results}
    assert report.ok and notes.pop("screens_are_as_declared").startswith("it names no pages")
    assert set(notes.values()) == {"skipped: it names no pages"}
    assert check_simulator(SPEC, doors(expert_action=lambda self: None)).ok


def test_the_doors_of_the_guide_keep_all_rules_and_are_played(site: Callable[..., Any]) -> None:
    """By their id, with the task and the run file of the guide; an expert's way succeeds, and another one fails."""
    site("mmrl-doors", {"doors.py": CODE}, {"doors": "doors"})
    (report,) = check_plugin("doors")
    assert report.ok and not any(r.note for r in report.results)
    (again,) = check_id("doors/hall", options={"door": 20})
    assert again.ok
    with pytest.raises(UserError, match=r"has no option 'dor'\. Did you mean 'door'"):
        check_id("doors/hall", options={"dor": 20})
    (text,) = re.findall(r"^```toml\n(name = \"doors\".*?)^```$", guide.TEXT, re.MULTILINE | re.DOTALL)
    resolve(parse_config(tomllib.loads(text)))
    task = plugins.registry().make_task("gui/episodes", {"simulator": "doors/hall", "style": "brief"})
    prompts = task.prompts("train", 0)
    for prompt, turns in (prompts[0], 1), (prompts[1], 2):
        environment, said = task.environment(prompt), task.gold(prompt)
        replies = [environment.step(said)]
        while not replies[-1].terminated:
            replies.append(environment.step(environment.gold_turn()))
        assert len(replies) == turns and replies[-1].outcome["success"] == 1.0
        environment.close()
    environment = task.environment(prompts[0])
    replies = [
        environment.step(f"click {20 + 40 * n} 40") for n in range(4) if f"click {20 + 40 * n} 40" != task.gold(prompts[0])
    ][:1]
    assert replies[0].terminated and replies[0].outcome["raw_reward"] == -1.0
    environment.close()
