"""MiniWoB++'s pages: its utterances and rewards, and the same as its own environment."""

import os
import random
import shutil

import pytest

from mmrl import UserError
from mmrl.api.simulators.gui import Action
from mmrl.testing.cases import some_of

AGREE = (
    *("click-test", "click-test-2", "click-test-transfer", "click-button", "click-button-sequence", "click-dialog"),
    *("click-dialog-2", "click-link", "click-option", "click-checkboxes", "click-tab", "click-tab-2", "click-color"),
    *(
        "click-shape",
        "click-pie-nodelay",
        "click-collapsible-nodelay",
        "focus-text",
        "focus-text-2",
        "enter-text",
        "enter-password",
    ),
    *("identify-shape", "grid-coordinate", "number-checkboxes", "tic-tac-toe", "guess-number", "simple-arithmetic"),
)
"""Pages on which both are compared."""
SEEDS = 3
STEPS = 4


@pytest.fixture(scope="session")
def miniwob(browser):
    from mmrl_browser.miniwob import MiniWoB, pages

    try:
        pages()
    except UserError as error:
        pytest.skip(str(error))
    return MiniWoB()


def played(miniwob, page, seed, actions):
    screen = miniwob.open(elements=True)
    shown = [screen.start(page, seed)]
    for action in actions:
        if shown[-1].terminated:
            break
        said = action(screen)
        if said is None:
            break
        shown.append(screen.act(said))
    screen.close()
    return shown


def advised(screen):
    return screen.expert_action()


def test_all_of_its_pages_are_there(miniwob):
    assert len(miniwob.pages) >= 125 and miniwob.size == (160, 210)
    assert "open" not in miniwob.actions


@pytest.mark.slow
def test_experts_do_what_is_to_be_done(miniwob):
    from mmrl_browser.experts import EXPERTS

    for page in EXPERTS:
        for seed in range(3):
            last = played(miniwob, page, seed, [advised] * 10)[-1]
            assert last.terminated and last.success and last.raw_reward == 1.0, (page, seed)


def test_the_reward_falls_with_the_number_of_actions(miniwob):
    waited = [lambda _: Action(kind="wait")] * 4
    soon, late = (played(miniwob, "click-button-sequence", 5, before + [advised] * 3)[-1] for before in ([], waited))
    assert (soon.raw_reward, late.raw_reward) == (1.0, 1.0)
    assert (soon.reward, late.reward) == (pytest.approx(0.95), pytest.approx(0.75))  # half a second of ten for each action


def test_time_runs_out_after_twenty_actions(miniwob):
    shown = played(miniwob, "click-button-sequence", 5, [lambda _: Action(kind="wait")] * 30)
    assert len(shown) == 21 and shown[-1].terminated and not shown[-1].success
    assert (shown[-1].reward, shown[-1].raw_reward) == (-1.0, -1.0)


def test_a_wrong_click_is_paid_as_the_page_pays(miniwob):
    screen = miniwob.open(elements=True)
    first, right = screen.start("click-test-2", 3), screen.expert_action()
    other = next(e for e in first.elements if e.role == "button" and e.click_point != right.at)
    last = screen.act(Action(kind="click", at=other.click_point))
    screen.close()
    assert (last.terminated, last.success, last.raw_reward, last.reward) == (True, False, -1.0, -1.0)


@pytest.mark.slow
def test_a_page_starts_the_same_whatever_was_played_before(miniwob):
    for page in ("click-checkboxes", "choose-date", "email-inbox"):  # their own environment leaves things behind on these
        first = played(miniwob, page, 11, [])[0]
        played(miniwob, page, 12, [advised, lambda _: Action(kind="click", at=(80, 100))])
        again = played(miniwob, page, 11, [])[0]
        assert (again.instruction, again.elements) == (first.instruction, first.elements)
        assert again.screenshot.tobytes() == first.screenshot.tobytes()


def test_pages_that_are_kept_go_on_where_they_are(miniwob):
    """Loaded once for many episodes, each drawn from its seed; and never met by those that want theirs fresh."""
    from mmrl_browser.miniwob import MiniWoB

    kept, loaded = MiniWoB(fresh=False), []
    for seed in range(6):
        screen = kept.open()
        first = screen.start("focus-text-2", seed)
        again = played(miniwob, "focus-text-2", seed, [])[0]
        assert first.instruction == again.instruction and first.screenshot.tobytes() == again.screenshot.tobytes()
        loaded.append(screen._driver.run(screen._page.script("() => window.loaded = (window.loaded || 0) + 1")))
        last = screen.act(
            screen.expert_action() if seed % 3 else Action(kind="click", at=(1, 1))
        )  # some are left before their end
        assert last.terminated == last.success == (seed % 3 > 0)
        screen.close()
    assert loaded == [1, 2, 3, 4, 5, 6]
    fresh = miniwob.open()
    fresh.start("focus-text-2", 0)
    assert fresh._driver.run(fresh._page.script("() => window.loaded === undefined"))
    fresh.close()


def test_a_kept_page_that_went_elsewhere_is_loaded_again(miniwob):
    from mmrl_browser.miniwob import MiniWoB

    screen = (kept := MiniWoB(fresh=False)).open()
    screen.start("focus-text", 0)
    screen._driver.run(screen._page.script("() => { window.loaded = 1; location.href = 'click-test.html'; }"))
    screen._driver.run(screen._page.wait(500))
    screen.close()
    screen = kept.open()
    assert screen.start("focus-text", 1).instruction.startswith("Focus into the textbox")
    screen.close()


def test_no_such_page(miniwob):
    with pytest.raises(UserError, match=r"no page 'click-tset'.*click-test"):
        miniwob.open().start("click-tset", 0)


def test_without_the_package(monkeypatch):
    import importlib.util

    from mmrl_browser import miniwob

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "multimodal-rl\[browser\]"'):
        miniwob.home()


@pytest.fixture(scope="module")
def theirs(miniwob):
    """Makes environments of the package, driven by selenium."""
    driver, chrome = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or chrome is None:
        pytest.skip("chromedriver or Chromium is not installed: make system")
    os.environ |= {"MINIWOB_CHROMEDRIVER": driver, "MINIWOB_CHROME_BINARY": chrome}
    gymnasium = pytest.importorskip("gymnasium")
    import miniwob as package

    gymnasium.register_envs(package)
    return lambda page: gymnasium.make(f"miniwob/{page}-v1").unwrapped


@pytest.mark.slow
@pytest.mark.parametrize("page", some_of(AGREE, AGREE[::3]))
def test_it_is_the_packages_own_environment(miniwob, theirs, page):
    from miniwob.action import ActionTypes

    env = theirs(page)
    try:
        ours = miniwob.open(elements=True)
        for seed in range(SEEDS):
            draw = random.Random(seed)
            if seed:  # what was clicked last keeps the focus in theirs, and its ring is on the next episode's picture
                env.instance.driver.execute_script("document.activeElement.blur()")
            shown, (seen, _) = ours.start(page, seed), env.reset(seed=seed)
            assert shown.instruction == seen["utterance"]
            _same_picture(shown.screenshot, seen["screenshot"])
            for _ in range(STEPS):
                spots = [e.click_point for e in shown.elements if e.interactive] or [
                    (draw.uniform(5, 155), draw.uniform(55, 205))
                ]
                at = tuple(float(round(v)) for v in draw.choice(spots))
                shown = ours.act(Action(kind="click", at=at))
                action = env.create_action(ActionTypes.CLICK_COORDS, coords=list(at))
                _, reward, done, _, info = env.step(action)
                assert shown.terminated == done, (seed, at)
                assert shown.raw_reward == (info["raw_reward"] if done else 0.0)
                if done:  # theirs has lost as much as its real time took, and ours half a second for each action before
                    assert (reward < info["raw_reward"]) >= (shown.reward < shown.raw_reward)
                    assert abs(reward) <= abs(info["raw_reward"]) and (reward > 0) == (shown.reward > 0)
                    break
        ours.close()
    finally:
        env.close()


def _same_picture(ours, theirs):
    import numpy as np

    gap = np.abs(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)[:210, :160, :3]).mean()
    assert gap < 4, f"pictures differ by {gap:.1f} of 255 on average"
