"""Twenty user journeys on the board in Chromium. MMRL_SHOTS=DIR keeps a screenshot of the end of each."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boards import Running, board
from browsers import no_browser
from long_runs import figures, rollout, write_episodes, write_items, write_run

why = no_browser()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(why is not None, reason=str(why))]

CHARTS = "() => document.querySelectorAll('#curves canvas').length >= 3"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journeys") / "runs"
    first = write_run(folder / "first", steps=300, every=10, groups=5, size=4)
    second = write_run(folder / "sweep" / "second", steps=200, every=10, groups=5, size=4, planned=400, seed=7)
    for run, right in ((first, 0.5), (second, 0.7)):
        write_items(run, 200, right)
    write_episodes(first, 300)
    (first / "summary.json").write_text("{}")
    alarm = {
        "step": 155,
        "where": "rl",
        "what": "91% of the prompts get one answer: balance them (limits.answer_collapse.warn = 0.9)",
        "alarm": "answer_collapse",
        "level": "warn",
    }
    ended = {"step": 200, "where": "the end of the run", "what": "out of memory: lower train.micro_batch_tokens = 8192"}
    (second / "errors.jsonl").write_text(json.dumps(alarm) + "\n" + json.dumps(ended) + "\n")
    rows = [{**rollout(200, g, m, None, random.Random(m)), "step": 200} for g in range(2) for m in range(4)]
    rows[5] |= {"score": {"value": None, "parts": {}, "status": "failed", "detail": "it raised ValueError"}, "reward": None}
    rows[6] |= {"completion": "a zebra crossing"}
    (second / "rollouts" / "step-000200.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def served(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with board(runs, tmp_path_factory.mktemp("caches")) as running:
        running.get("/curves", run="first")
        running.indexed("first", 600)
        running.indexed("sweep/second", 388)
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from mmrl_browser.chromium import executable
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(executable()), args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """A page in the browser; errors in its console fail the test."""

    def __init__(self, chromium: Any, address: str, **context: Any) -> None:
        self.context = chromium.new_context(viewport={"width": 1280, "height": 900}, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.address, self.errors = address, list[str]()
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, path: str, ready: str = "() => document.readyState === 'complete'") -> Any:
        self.page.goto(self.address + path)
        self.page.wait_for_function(ready)
        return self.page

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()


@pytest.fixture
def visitor(chromium: Any, served: Running, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    visitor = Visitor(chromium, served.address)
    yield visitor
    if folder := os.environ.get("MMRL_SHOTS"):
        visitor.page.screenshot(path=str(Path(folder) / f"{request.node.name}.png"))
    visitor.context.close()
    assert visitor.errors == []


def names(page: Any) -> list[str]:
    return [row.get_attribute("data-run") for row in page.locator("#runs tbody tr:visible").all()]


def test_1_the_list_says_how_runs_stand(visitor: Visitor) -> None:
    page = visitor.open("/")
    assert sorted(names(page)) == ["first", "sweep/second"]
    second = page.locator('tr[data-run="sweep/second"]')
    assert "failed" in second.inner_text() and "out of memory" in second.inner_text() and "step 200 of 400" in second.inner_text()
    assert (
        "finished" in page.locator('tr[data-run="first"]').inner_text()
        and "90.0%" in page.locator('tr[data-run="first"]').inner_text()
    )


def test_2_runs_are_found_by_what_is_typed(visitor: Visitor) -> None:
    page = visitor.open("/")
    page.fill("#find", "failed")
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr:not([hidden])').length === 1")
    assert names(page) == ["sweep/second"]


def test_3_runs_are_put_in_order(visitor: Visitor) -> None:
    page = visitor.open("/")
    button = page.locator('th[data-sort="progress"] button')
    button.click()
    one = names(page)
    button.click()
    assert one == names(page)[::-1] and page.locator('th[data-sort="progress"]').get_attribute("aria-sort")


def test_4_two_runs_are_overlaid(visitor: Visitor) -> None:
    page = visitor.open("/")
    for box in page.locator('#runs input[name="run"]').all():
        box.check()
    page.click("#overlay")
    page.wait_for_url(re.compile("/curves"))
    page.wait_for_function(CHARTS)
    assert "run=first" in page.url and "run=sweep%2Fsecond" in page.url
    visitor.sees("sweep/second")


def test_5_two_runs_are_compared(visitor: Visitor) -> None:
    page = visitor.open("/")
    for box in page.locator('#runs input[name="run"]').all():
        box.check()
    page.click("#compare")
    page.wait_for_url(re.compile("/compare"))
    text = page.inner_text("main")
    assert "40 prompts in common" in text and "the runs differ on 8" in text
    differences = [abs(float(found)) for found in re.findall(r"^([+-]\d\.\d\d)$", text, re.MULTILINE)]
    assert len(differences) == 40 and differences == sorted(differences, reverse=True)
    assert "the runs differ in seed" in text or "the seeds differ" in text
    assert page.locator(".pair .prompt img").count() == 16, "of those prompts the pictures were kept"
    page.wait_for_function("() => [...document.querySelectorAll('.pair img')].every(one => one.naturalWidth)")


def test_6_curves_of_a_run(visitor: Visitor) -> None:
    page = visitor.open("/")
    page.click('tr[data-run="first"] a')
    page.wait_for_function(CHARTS)
    for title in ("Evaluation", "Evaluation: steps", "Reward", "Entropy", "Completion length"):
        visitor.sees(title)


def test_7_curves_are_smoothed_and_the_address_says_so(visitor: Visitor) -> None:
    page = visitor.open("/curves?run=first", CHARTS)
    slider = page.get_by_label("Smoothing")
    slider.fill("0.5")
    page.wait_for_function("() => location.search.includes('smooth=0.5')")
    visitor.open(page.url.removeprefix(visitor.address), CHARTS)
    assert page.get_by_label("Smoothing").input_value() == "0.5"


def test_8_a_part_of_the_curves_is_looked_at_closely(visitor: Visitor) -> None:
    page = visitor.open("/curves?run=first", CHARTS)
    box = page.locator("#curves .u-over").nth(1).bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 32, steps=5)
    page.mouse.up()
    page.wait_for_function("() => /from=\\d/.test(location.search)")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !/from=\\d/.test(location.search)")


def test_9_from_a_point_to_its_rollouts(visitor: Visitor) -> None:
    page = visitor.open("/curves?run=first", CHARTS)
    box = page.locator("#curves .u-over").nth(1).bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 30)
    page.wait_for_function("() => /step=\\d/.test(location.search)")
    link = page.locator('#curves a[href*="/rollouts"]').first
    link.click()
    page.wait_for_url(re.compile("/rollouts.*step="))


def test_10_a_live_run_is_followed(chromium: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "live", steps=50, every=10, groups=1, size=2, planned=100)
    with board(tmp_path / "runs", tmp_path / "caches") as served:
        visitor = Visitor(chromium, served.address)
        page = visitor.open("/curves?run=live&smooth=0", CHARTS)
        page.wait_for_timeout(1000)

        def write(step: int) -> str:
            """Returns the reward that was written."""
            metrics = {**figures(step, 100, random.Random(0)), "reward/mean": step / 1000 + 0.4}
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"step": step, "stage": "rl", "time": 4.0 * step, "metrics": metrics}) + "\n")
            return f"{step / 1000 + 0.4:.3f}"

        took: list[float] = []
        while not took or (took[-1] > 1.0 and len(took) < 10):  # now and then others keep the machine busy
            shown, began = write(51 + len(took)), time.monotonic()
            page.wait_for_function(f"() => document.querySelector('#curves').innerText.includes('{shown}')", polling=20)
            took.append(time.monotonic() - began)
        assert took[-1] < 1.0, f"a point is on the screen within a second of being written, and here after {took}"
        page = visitor.open("/")
        page.wait_for_timeout(1500)
        write(70)
        visitor.sees("step 70 of 100")
        assert visitor.errors == []
        visitor.context.close()


def test_11_rollouts_whose_scores_failed(visitor: Visitor) -> None:
    page = visitor.open("/rollouts?run=sweep/second")
    page.locator('#filters [name="status"]').select_option("failed")
    page.wait_for_function("() => document.querySelectorAll('#groups .group').length === 1")
    assert "it raised ValueError" in page.inner_text("#groups") and "status=failed" in page.url


def test_12_words_are_searched(visitor: Visitor) -> None:
    page = visitor.open("/rollouts?run=sweep/second")
    page.keyboard.press("/")
    page.keyboard.type("zebra cross")
    page.wait_for_function("() => document.querySelectorAll('#groups .group').length === 1")
    assert "a zebra crossing" in page.inner_text("#groups")


def test_13_older_rollouts_come_as_one_scrolls(visitor: Visitor) -> None:
    page = visitor.open("/rollouts?run=first", "() => document.querySelectorAll('#groups .group').length > 0")
    seen = page.locator("#groups .group").count()
    for _ in range(30):
        page.mouse.wheel(0, 3000)
        page.wait_for_timeout(50)
    page.wait_for_function(f"() => document.querySelectorAll('#groups .group').length > {2 * seen}")


def test_14_one_rollout_and_its_neighbours(visitor: Visitor) -> None:
    page = visitor.open("/rollouts?run=first&step=100")
    page.get_by_role("link", name="open").first.click()
    page.wait_for_url(re.compile(r"/rollout\?.*id=100\."))
    first = page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => location.href !== {json.dumps(first)}")
    assert "id=100." in page.url
    page.wait_for_load_state("load")  # keys pressed before are lost
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"() => location.href === {json.dumps(first)}")


def test_15_a_link_survives_a_restart(chromium: Any, runs: Path, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        with board(runs, tmp_path / "caches") as served:
            visitor = Visitor(chromium, served.address)
            texts.append(visitor.open("/rollout?run=first&id=150.7").inner_text("main"))
            assert visitor.errors == []
            visitor.context.close()
    assert texts[0] == texts[1] and "rollout 7" in texts[0]


def test_16_marks_over_pictures_come_and_go(visitor: Visitor) -> None:
    page = visitor.open("/rollouts?run=first&task=grounding", "() => document.querySelectorAll('#groups svg .said').length > 0")
    said = page.locator("#groups svg .said").first
    assert said.is_visible()
    page.keyboard.press("o")
    said.wait_for(state="hidden")
    page.keyboard.press("o")
    said.wait_for(state="visible")


WHOLE = """() => [...document.querySelectorAll("#groups .pixels")].map(
  (e) => e.clientWidth / (e.naturalWidth || e.viewBox.baseVal.width))"""
"""How many times as wide as its file each small picture is on the page."""


@pytest.mark.parametrize(("wide", "large"), [(360, 320), (640, 512), (1280, 512)])
def test_small_pictures_are_shown_at_whole_multiples(visitor: Visitor, wide: int, large: int) -> None:
    page = visitor.open("/rollouts?run=first", "() => document.querySelectorAll('#groups img.pixels').length > 0")
    page.set_viewport_size({"width": wide, "height": 700})
    page.wait_for_timeout(100)
    assert set(page.evaluate(WHOLE)) == {2.0}
    page.locator("#groups button.picture:has(img)").first.click()
    assert page.locator(".large img").evaluate("e => e.clientWidth") == large
    page.set_viewport_size({"width": wide, "height": 300})  # 94 hundredths of 300 are four times 64, and some
    page.keyboard.press("Escape")
    page.locator("#groups button.picture:has(img)").first.click()
    assert page.locator(".large img").evaluate("e => e.clientWidth") == 256


def test_17_an_episode_is_played(visitor: Visitor) -> None:
    page = visitor.open("/episodes?run=first")
    player = page.locator("figure.player").first
    player.get_by_role("button").first.click()
    shown, end = set(), time.monotonic() + 60
    while len(shown) < 5:
        assert time.monotonic() < end, "frame after frame"
        shown.add(player.locator("img").get_attribute("src"))
        page.wait_for_timeout(50)
    player.get_by_role("slider").fill("7")
    page.wait_for_function("() => document.querySelector('figure.player').innerText.includes('/12')")


PLAYER = """() => {
  const prompt = document.querySelector('#groups .group .prompt');
  prompt.style.width = '150px';
  prompt.innerHTML = `<figure class="player"><img width="400" height="200"><div class="play"><button>&#9654;</button>
    <input type="range"><span>16/16</span><select><option>0.25x</option></select></div></figure>`;
  const end = prompt.getBoundingClientRect().right;
  return [...prompt.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > end + 1).map((e) => e.tagName);
}"""
"""Puts a player of a wide video into a prompt with a narrow column; returns what leaves its column."""


def test_a_player_doesnt_cover_the_reward_beside_it(visitor: Visitor) -> None:
    page = visitor.open("/rollouts?run=first", "() => document.querySelectorAll('#groups .group .prompt').length > 0")
    assert page.evaluate(PLAYER) == []


def test_18_alarms_and_the_rollouts_that_show_why(visitor: Visitor) -> None:
    page = visitor.open("/alarms?run=sweep/second")
    text = page.inner_text("main")
    assert text.index("What ended the run") < text.index("Different prompts are answered alike")
    assert "out of memory" in text and "Step 150: what most prompts get" in text
    assert page.locator(".alarm .group").count() == 2


def test_19_settings_and_what_differs(visitor: Visitor) -> None:
    page = visitor.open("/settings?run=first")
    page.get_by_label("Compare with").select_option("sweep/second")
    page.get_by_role("button", name="Show").click()
    visitor.sees("Differences")
    cells = page.locator("main table tbody tr").all_inner_texts()
    assert any(re.match(r"seed\s+0\s+7", cell) for cell in cells) and any("stages.0.steps" in cell for cell in cells)


def test_20_by_the_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.open("/curves?run=first", CHARTS)
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("l")
    page.wait_for_url(re.compile("/rollouts"))
    page.wait_for_function("() => document.querySelectorAll('#groups .group').length > 0")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/rollout\?"))
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"


PAGES = (
    "/", "/curves?run=first&run=sweep/second", "/rollouts?run=first", "/rollout?run=first&id=100.1", "/episodes?run=first",
    "/alarms?run=sweep/second", "/compare?run=first&with=sweep/second", "/settings?run=first&with=sweep/second",
    "/curves?run=none",
)  # fmt: skip
CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, img, svg[role=img], summary"
NAMELESS = (
    f"""() => [...document.querySelectorAll('{CONTROLS}')]
  """
    """.filter((e) => e.checkVisibility() && !(e.getAttribute('aria-label') || e.alt || e.textContent.trim() || e.title
    || (e.labels && [...e.labels].some((l) => l.innerText.trim())))).map((e) => e.outerHTML.slice(0, 160))"""
)
FAINT = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    const hidden = !e.checkVisibility({opacityProperty: true}) || e.closest('svg, script, [disabled], .unseen, .skip');
    if (hidden || !walker.currentNode.data.trim()) continue;
    let ground = null;
    for (let at = e; at && !ground; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (c[3] > .99) ground = c;
    }
    const style = getComputedStyle(e), a = light(parse(style.color)), b = light(ground ?? [255, 255, 255]);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push([walker.currentNode.data.trim().slice(0, 40), +ratio.toFixed(2)]);
  }
  return found;
}"""


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_everybody_can_use_it(chromium: Any, served: Running, path: str, colours: Any) -> None:
    """No errors in the console, a name for all controls and pictures, contrast of 4.5 (WCAG 2.2, 1.4.3), one h1, and at 360
    pixels nothing that must be scrolled sideways."""
    visitor = Visitor(chromium, served.address, color_scheme=colours)
    page = visitor.open(path)
    page.wait_for_timeout(700)
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(FAINT) == []
    assert page.locator("h1").count() == 1 and page.locator("main").count() == 1
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(400)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    if folder := os.environ.get("MMRL_SHOTS"):
        page.screenshot(path=str(Path(folder) / f"narrow-{colours}-{PAGES.index(path)}.png"))
    missing = ["404"] if "none" in path else []
    assert [e for e in visitor.errors if not any(code in e for code in missing)] == []
    visitor.context.close()
