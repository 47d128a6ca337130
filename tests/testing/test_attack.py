"""Attacks on a plugin: what is weak must fall, and what is sound must hold."""

import json

import pytest
import torch
from click.testing import CliRunner

from mmrl import UserError
from mmrl.testing.attack import Attempt, attacks_on, run, show
from mmrl.testing.attack.campaign import attempt, refusal_fault
from mmrl.testing.attack.completions import BATCH, attack_verifier, hostile_completions
from mmrl.testing.attack.turns import attack_simulator
from mmrl.ui.cli import main

PLUGIN = '''
import json, math
from mmrl import Prompt, Reply, SimulatorSpec, Task, TaskSpec, UserError, VerifierSpec, hookimpl, user_message

class Sound(Task):
    """Sum."""

    def __init__(self, most: int = 9, names: str = "a"):
        if not isinstance(most, int) or not 1 <= most <= 100:
            raise UserError(f"most = {most!r:.40} must be a whole number from 1 to 100")
        if not isinstance(names, str):
            raise UserError(f"names = {names!r:.40} must be a text")
        self.most = most

    def prompts(self, split, seed):
        return [Prompt(id=str(i), messages=[user_message("?")], answer=str(i)) for i in range(self.most)]

class Weak(Sound):
    def __init__(self, most: int = 9):
        self.most = len(range(most))

    def environment(self, prompt):
        return Repeats()

class Repeats:
    def step(self, completion):
        json.loads(completion)
        return Reply(terminated=True)

    def close(self):
        pass

def equal(case):
    return float(case.completion.strip() == case.answer)

def slow(case):
    import re
    return float(bool(re.fullmatch("(a+)+b", "a" * 40)))

def number(case):
    return float(json.loads(case.completion) == case.answer)

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="fortress/sound", target="fortress:Sound", verifiers={"fortress/equal": 1.0}),
            TaskSpec(id="fortress/weak", target="fortress:Weak", verifiers={"fortress/number": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id=f"fortress/{n}", target=f"fortress:{n}") for n in ("equal", "number")] + [
        VerifierSpec(id="fortress/slow", target="fortress:slow", timeout_s=0.1)] + [
        VerifierSpec(id="fortress/model", target="fortress:Weak", model=True)]

class Ring:
    def __init__(self, num_envs, device, laps: int):
        self.laps = laps

@hookimpl
def mmrl_simulators():
    return [SimulatorSpec(id="fortress/ring", target="fortress:Ring", cameras=("front",))]
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("attack") / "fortress.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(autouse=True)
def plugin(file, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGINS", "")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(file))


def outcomes(id):
    return {o.kind: o for o in run(attacks_on(id))}


def test_a_sound_task_holds():
    found = outcomes("fortress/sound")
    assert set(found) == {"options", "completions, fortress/equal"}
    assert all(not o.fell and o.tried > 30 and o.held == o.tried for o in found.values())


def test_a_weak_task_falls_by_its_options_its_verifier_and_its_environment():
    found = outcomes("fortress/weak")
    assert set(found) == {"options", "completions, fortress/number", "turns"}
    assert "fortress/weak: most is enormous: OverflowError: Python int too large to convert to C ssize_t" in found["options"].fell
    assert any("many '('" in text and "JSONDecodeError" in text for text in found["completions, fortress/number"].fell)
    assert any(text.startswith("fortress/weak: a turn of many 'a', bare: JSONDecodeError") for text in found["turns"].fell)
    assert 0 < found["turns"].held < found["turns"].tried, "some of them are JSON"


def test_a_verifier_is_attacked_on_a_task_that_names_it():
    found = outcomes("fortress/equal")
    assert not any(o.fell for o in found.values()) and found["completions"].tried == len(hostile_completions()) > 600


@pytest.mark.slow
def test_a_verifier_that_takes_too_long_each_time_is_given_up():
    from mmrl import Case

    found = list(attack_verifier("fortress/slow", [Case(completion="")]))
    assert len(found) == BATCH + 1 and all(a.fault for a in found)
    assert found[-1].fault == f"not tried, because {BATCH} completions took too long"


def test_the_command():
    sound = CliRunner().invoke(main, ["check", "--attack", "fortress/sound"])
    assert sound.exit_code == 0 and sound.stdout.splitlines()[0].split() == ["attack", "tried", "held", "fell", "s"]
    weak = CliRunner().invoke(main, ["check", "--attack", "fortress/weak", "--json"])
    assert weak.exit_code == 1
    assert {row["kind"]: bool(row["fell"]) for row in json.loads(weak.stdout)}["turns"]
    unknown = CliRunner().invoke(main, ["check", "--attack", "fortress/nothing"])
    assert unknown.exit_code == 2 and "no task 'fortress/nothing'" in unknown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fortress/model"], "verifier 'fortress/model' is a model"),
        (["fortress/equal", "--set", "strip=true"], "verifier 'fortress/equal' is attacked without options"),
        (["fortress/equal", "--task", "fortress/sound"], "--attack takes no --task"),
        (["fortress/ring"], "simulator 'fortress/ring' needs the option 'laps'"),
        (["fortress/ring", "--set", "laps=1", "--set", "lapse=1"], "simulator 'fortress/ring' has no option 'lapse'"),
    ],
)
def test_what_cannot_be_attacked_is_refused_in_one_line(arguments, message):
    result = CliRunner().invoke(main, ["check", "--attack", *arguments])
    assert result.exit_code == 2 and message in result.output and len(result.output.splitlines()) == 1


def test_what_counts_as_a_refusal():
    assert refusal_fault(UserError("most = 3: choose another")) == ""
    assert refusal_fault(ValueError("odd")) == "ValueError: odd"

    class Longer(UserError):
        def __str__(self):
            return "two\nlines"

    assert refusal_fault(Longer()) == "a message of several lines: 'two\\nlines'"


def test_what_takes_too_long_has_fallen():
    def endless():
        while True:
            pass

    assert attempt("it", 0.1, endless) == Attempt("it", "it took more than 0.1 s")


def test_an_attack_that_raises_has_fallen_and_the_others_go_on():
    def raises():
        yield Attempt("first")
        raise KeyError("x")

    first, second = run({"one": raises, "two": lambda: iter([Attempt("a"), Attempt("b", "fell")])})
    assert (first.tried, first.held, list(first.fell)) == (2, 1, ["the attack itself: KeyError: 'x'"])
    assert (second.tried, list(second.fell)) == (2, ["b: fell"])
    table = show([first, second])
    assert table.splitlines()[3].split()[:4] == ["all", "4", "2", "2"] and "two: b: fell" in table


def test_the_time_is_cut_between_attempts():
    [found] = run({"one": lambda: iter([Attempt(str(i)) for i in range(9)])}, seconds=-1)
    assert found.tried == 1 and not found.complete and "cut short" in show([found])


class Simulator:
    """A point that is moved; `weak`: it takes any action, and remembers it over a reset."""

    def __init__(self, n, weak):
        self.n, self.weak, self.at = n, weak, torch.zeros(n)

    def reset(self, seeds_n, env_ids_n=None, variant=None):
        ids = torch.arange(self.n) if env_ids_n is None else env_ids_n
        if not self.weak and (len(seeds_n) != len(ids) or variant or not bool((ids < self.n).all())):
            raise UserError("no such reset")
        if not self.weak or not bool(self.at.isnan().any()):
            self.at = torch.zeros(self.n)

    def step(self, actions_NA, active_N):
        if not self.weak and (actions_NA.shape != (self.n, 1) or active_N.shape != (self.n,)):
            raise UserError("actions of a wrong shape")
        if not self.weak and bool(actions_NA[active_N].isnan().any()):
            raise UserError("NaN actions")
        actions = actions_NA if self.weak else actions_NA.clip(-1, 1)
        moved = self.at + actions[:, 0].float()
        self.at = torch.where(active_N, moved, self.at)
        return type("Transition", (), {"reward_N": self.at})

    def close(self):
        pass


def test_simulators():
    sound = list(attack_simulator("point", lambda n: Simulator(n, weak=False), dims=1))
    assert len(sound) > 40 and not any(a.fault for a in sound)
    weak = {a.name: a.fault for a in attack_simulator("point", lambda n: Simulator(n, weak=True), dims=1) if a.fault}
    assert weak["point: actions of NaN, all active"] == "ValueError: rewards of [nan, nan]"
    assert weak["point: an episode after actions of NaN"].startswith(
        "ValueError: an episode from the same seeds has other rewards"
    )
    assert weak["point: actions with no dims, all active"].startswith("IndexError")
