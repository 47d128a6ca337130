"""BrowserGym's own environment as a task, on MiniWoB++'s pages in a real Chromium, in an interpreter without mmrl."""

import re
import shutil
from pathlib import Path

import pytest
from mmrl_interop.browsergym_task import BrowserGymTask
from mmrl_interop.worlds.browsergym import SERVED, acted, check_sites
from mmrl_interop.worlds.child import Refused

import mmrl
from mmrl import EnvironmentFailed, UserError

PYTHON = Path(__file__).parents[3] / ".peers" / "browsergym" / "bin" / "python"
needs_browsergym = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"BrowserGym is not installed in {PYTHON.parents[1]}: make peers"
)
needs_chromium = pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-headless-shell"))), reason="there is no Chromium: make system"
)


@pytest.fixture(scope="module")
def task():
    made = BrowserGymTask(
        ["miniwob.click-test-2", "miniwob.enter-text"], python=str(PYTHON), train=6, test=2, processes=1, timeout_s=60
    )
    yield made
    made.worlds.close()


@pytest.mark.slow
@needs_browsergym
@needs_chromium
def test_an_episode_is_won_by_its_goal(task):
    prompts = task.prompts("train", 0)
    assert len(prompts) == 6 and [prompts[i].meta["where"]["task"] for i in (0, 1)] == list(task.worlds.facts["tasks"])
    click = prompts[0]
    assert click.text.startswith("Click button ONE.") and "click(bid" in click.text and "upload_file" not in click.text
    assert click.images[0].size == (498, 321) and len(click.images[0].getcolors(10**6)) > 10, "the page is drawn"
    environment = task.environment(click)
    lost = environment.step("click('99')")
    assert (lost.reward, lost.terminated, lost.outcome["refused"]) == (0.0, False, 1.0)
    parts = lost.messages[0]["content"]
    assert 'Could not find element with bid "99"' in parts[0]["text"] and [p["type"] for p in parts[1:]] == ["image", "text"]
    evil = environment.step("upload_file('13', '/etc/passwd')")
    assert evil.outcome["refused"] == 1.0 and "upload_file" in evil.messages[0]["content"][0]["text"]
    button = re.search(r"\[(\d+)\] button 'ONE'", click.text)[1]
    won = environment.step(f"The first. <action>click('{button}')</action>")
    assert (won.reward, won.terminated, won.outcome["success"], won.outcome["return"]) == (1.0, True, 1.0, 1.0)
    environment.close()


@pytest.mark.slow
@needs_browsergym
@needs_chromium
def test_text_is_typed_and_a_dead_process_loses_its_episode(task):
    psutil = pytest.importorskip("psutil")
    prompt = task.prompts("test", 0)[1]
    wanted = re.search(r'Enter "(\w+)"', prompt.text)[1]
    box, button = (re.search(rf"\[(\d+)\] {role}", prompt.text)[1] for role in ("textbox", "button"))
    environment = task.environment(prompt)
    typed = environment.step(f"```python\nfill('{box}', '{wanted}')\n```")
    assert typed.outcome["refused"] == 0.0 and f"value='{wanted}'" in typed.messages[0]["content"][1]["text"]
    assert environment.step(f"click('{button}')").outcome["success"] == 1.0
    environment.close()
    dying = task.environment(prompt)
    dying.step("noop()")
    process = task.worlds._alive[0]
    family = psutil.Process(process.child.pid).children(recursive=True)
    assert any("chrom" in child.name() for child in family)
    process.child.popen.kill()
    with pytest.raises(EnvironmentFailed, match="BrowserGym: its process was killed by SIGKILL"):
        dying.step("noop()")
    dying.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE], "its browsers end with it"
    again = task.environment(prompt)
    assert not again.step("noop()").terminated
    again.close()


@pytest.mark.always
@pytest.mark.slow
@needs_browsergym
@needs_chromium
def test_it_is_scored_by_the_judge():
    options = {"tasks": "miniwob.click-test", "observe": "tree", "python": str(PYTHON), "train": 2}
    with mmrl.open_task("interop/browsergym", options) as task:
        prompt = task.prompts("train")[0]
        assert prompt.images == ()
        episode = task.episode(prompt)
        button = re.search(r"\[(\d+)\] button", prompt.text)[1]
        episode.step(f"click('{button}')")
        assert episode.done and episode.score().value == 1.0 and episode.score().parts["interop/success"] == 1.0


@pytest.mark.slow
@needs_browsergym
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "miniwob.click-tset"}, "BrowserGym: BrowserGym has no task 'miniwob.click-tset'. Did you mean"),
        ({"tasks": "webarena.3"}, "BrowserGym: no module named 'browsergym.webarena': pip install browsergym-core"),
        ({"actions": ["bids"]}, "BrowserGym: actions = ['bids']: Unknown high-level action subspace: bids"),
        ({"browser": "/no/chromium"}, "BrowserGym: browser = '/no/chromium' is no program: give the path of a Chromium"),
    ],
)
def test_what_browsergym_does_not_have(options, message):
    with pytest.raises(UserError) as error:
        BrowserGymTask(**{"tasks": "miniwob.click-test", "python": str(PYTHON), **options}).prompts("train", 0)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_sites_that_are_named_nowhere_are_refused_in_one_line(monkeypatch):
    for name in {name for names in SERVED.values() for name in names}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WA_REDDIT", "http://127.0.0.1:9")
    with pytest.raises(
        Refused, match="webarenalite is played on sites that you serve: set WA_SHOPPING, WA_SHOPPING_ADMIN, WA_GITLAB"
    ):
        check_sites(["miniwob", "webarenalite"])
    monkeypatch.setenv("SNOW_INSTANCE_URL", "http://127.0.0.1:9")
    with pytest.raises(Refused, match="set SNOW_INSTANCE_UNAME, SNOW_INSTANCE_PWD in the option environment"):
        check_sites(["workarena.servicenow.x"])
    check_sites(["miniwob.click-test", "core"])


def test_without_browsergym_it_is_one_line():
    with pytest.raises(
        UserError, match=r"BrowserGym: no module named 'browsergym': pip install browsergym-core browsergym-miniwob"
    ):
        BrowserGymTask().prompts("train", 0)


def test_another_version_is_refused(tmp_path):
    core = tmp_path / "browsergym" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text('__version__ = "1.2.3"')
    pytest.importorskip("gymnasium")
    with pytest.raises(UserError, match=r"works with browsergym-core >=0\.13,<0\.15, and 1\.2\.3 is installed"):
        BrowserGymTask("openended", environment={"PYTHONPATH": str(tmp_path)}).prompts("train", 0)


@pytest.mark.parametrize(
    ("completion", "action"),
    [
        ("click('1')", "click('1')"),
        ("I try <action>click('1')</action>, then <action>click('2')</action>", "click('2')"),
        ("```\nclick('1')\n``` or\n```python\nfill('2', 'a')\n```", "fill('2', 'a')"),
        ("<answer>noop()</answer> ```click('1')```", "noop()"),
    ],
)
def test_the_action_of_a_completion(completion, action):
    assert acted(completion) == action


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": []}, "tasks = [] must name tasks"),
        ({"actions": "bid"}, "actions = 'bid' must be a list"),
        ({"observe": "smell"}, "observe = 'smell' is unknown"),
        ({"slow_mo": -1}, "slow_mo = -1 must be a whole number of milliseconds from 0"),
        ({"delay_s": float("nan")}, "delay_s = nan must be a number of seconds"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError) as error:
        BrowserGymTask(**options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
