"""A plugin file with tasks of one and of several turns, of which some verifiers and environments misbehave."""

import json
import os
import subprocess
from pathlib import Path

import pytest

PLUGIN = '''
import time
from PIL import Image
from mmrl import EnvironmentFailed, Prompt, Reply, Score, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="peers/shade", target="peers:Shade", verifiers={"peers/exact": 1.0, "peers/long": 0.25}),
            TaskSpec(id="peers/seen", target="peers:Shade", verifiers={"peers/pictures": 1.0}),
            TaskSpec(id="peers/guess", target="peers:Guess", verifiers={"peers/guessed": 2.0}),
            TaskSpec(id="peers/quiz", target="peers:Quiz", verifiers={"peers/guessed": 2.0}),
            *(TaskSpec(id=f"peers/{name.lower()}", target=f"peers:{name}", verifiers={"peers/exact": 1.0})
              for name in ("Clip", "Wide", "Places", "Talk", "Secret", "Media", "Exam"))]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="peers/exact", target="peers:exact", timeout_s=0.5),
            VerifierSpec(id="peers/long", target="peers:long", rollout=True, high=100.0),
            VerifierSpec(id="peers/pictures", target="peers:pictures", images=True),
            VerifierSpec(id="peers/guessed", target="peers:guessed")]

class Shade(Task):
    """How dark a picture is: a number from 0 to 9."""
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[{"role": "system", "content": "Be brief."},
                       user_message("How dark" + i * " so" + "?", Image.new("RGB", (56, 56), (20 * i,) * 3))],
                       answer=(i, "dark"), meta={"shade": (20 * i,)}) for i in range(10)]
    def gold(self, prompt):
        return str(prompt.answer[0])

class Clip(Shade):
    def prompts(self, split, seed):
        from mmrl.api.media import clips
        return [Prompt(id="a", messages=[user_message("?", clips.Clip(path="a.mp4", fps=2.0))], answer=0)]

class Wide(Shade):
    """The same in pictures that are shrunk."""
    def prompts(self, split, seed):
        return [Prompt(id=p.id, messages=[user_message(p.text.splitlines()[1], p.images[0].resize((224, 112)))], answer=p.answer)
                for p in super().prompts(split, seed)]

class Places(Shade):
    def prompts(self, split, seed):
        return [Prompt(id="0", messages=[user_message("What is <image>?")], answer=0)]

class Exam(Shade):
    held_out = ("test",)

class Talk(Shade):
    def prompts(self, split, seed):
        return [Prompt(id="0", messages=[user_message("?"), {"role": "assistant", "content": "!"}, user_message("?")], answer=0)]

class Secret(Shade):
    def prompts(self, split, seed):
        return [Prompt(id="0", messages=[user_message("?")], answer={1, 2})]

class Media(Shade):
    def prompts(self, split, seed):
        from mmrl.api.media import clips
        return [Prompt(id=str(i), messages=[user_message("?", *[clips.Clip(path="a.mp4")] * i)], answer=0) for i in range(2)]

class Guess(Task):
    """A number from 0 to 9, in several turns. think: what has to stand before it."""
    def __init__(self, think=""):
        self.think = think
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message("Guess a number.")], answer=i) for i in range(10)]
    def gold(self, prompt):
        return str(prompt.answer)
    def environment(self, prompt):
        if prompt.answer == 9:
            raise EnvironmentFailed("no more pages")
        return Number(prompt.answer, think=self.think)

class Quiz(Guess):
    """The same in words alone."""
    def environment(self, prompt):
        super().environment(prompt)
        return Number(prompt.answer, "No. Guess again.")

class Number:
    def __init__(self, number, *no, think=""):
        self.number, self.think = number, think
        self.no = no or ("No. Guess again.", Image.new("RGB", (56, 28), "red"))
    def step(self, completion):
        if "die" in completion:
            raise EnvironmentFailed("the page is gone")
        if "bug" in completion:
            raise ValueError("a bug")
        thought = f"<think>\\n{self.think}</think>" if self.think else ""
        if completion.startswith(thought) and completion.removeprefix(thought).strip() == str(self.number):
            return Reply(terminated=True, reward=0.25, outcome={"success": 1.0})
        return Reply(messages=[user_message(*self.no)], outcome={"success": 0.0})
    def close(self):
        pass

def exact(case):
    if "raise" in case.completion:
        raise ValueError("what is this")
    if "hang" in case.completion:
        time.sleep(60)
    return float(case.completion.strip() == str(case.answer[0]))

def long(case):
    return float(case.rollout.length) if case.rollout else 1.0

def pictures(case):
    return float([i.getpixel((0, 0)) for i in case.images] == [(case.meta["shade"][0],) * 3])

def guessed(case):
    return case.outcome.get("success", 0.0)
'''


@pytest.fixture(scope="session")
def plugin_file(tmp_path_factory):
    """One for all modules, since a process imports a module of this name once."""
    path = tmp_path_factory.mktemp("peers") / "peers.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(scope="module", autouse=True)
def plugin(plugin_file):
    path = plugin_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGINS", "interop,vqa,robotics,tabletop")
        patch.setenv("MMRL_PLUGIN_FILES", str(path))
        yield path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny model."""
    pytest.importorskip("torch")
    from mmrl.policies.vlm import tiny

    path = tmp_path_factory.mktemp("tiny")
    tiny.save(str(path), "qwen2_5_vl")
    return path


@pytest.fixture(scope="session")
def thinker(tmp_path_factory):
    """A tiny model whose chat template opens the thinking of each answer, unless it is told otherwise."""
    pytest.importorskip("torch")
    from mmrl.policies.vlm import tiny

    path = tmp_path_factory.mktemp("thinker")
    tiny.save(str(path), "qwen2_5_vl")
    file = path / "chat_template.jinja"
    head = "assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}"
    file.write_text(file.read_text().replace("assistant\n{% endif %}", head))
    return path


@pytest.fixture
def python_of():
    """The interpreter of a peer's own environment, which tests/environments.sh makes. Skips the test if it isn't installed."""

    def found(peer):
        python = HERE.parents[2] / ".peers" / peer / "bin" / "python"
        if not python.exists():
            pytest.skip(f"{peer} is not installed in {python.parents[1]}: make peers")
        return python

    return found


@pytest.fixture
def by_peer(plugin, python_of):
    """Runs a program of tests/programs by a peer's interpreter: (peer, program, its arguments, what it reads as JSON) -> what it
    prints last, read as JSON."""

    def run(peer, program, *args, told, **environment):
        done = subprocess.run(
            [python_of(peer), HERE / "programs" / program, *map(str, args)],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "MMRL_PLUGINS": "interop", "MMRL_PLUGIN_FILES": str(plugin), **environment},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


HERE = Path(__file__).parent
