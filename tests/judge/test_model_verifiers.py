"""Verifiers that are models: made once, in a process of their own, called with many cases; whatever they do costs no more than it
must, and never a zero."""

from __future__ import annotations

import os
import pickle
import time

import pytest
import torch

from mmrl import Case, Prompt, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import Simulation, TrajectoryData
from mmrl.api.specs import VerifierSpec
from mmrl.compute import ranks
from mmrl.compute.ray import ACTOR, switches
from mmrl.judge import build_cases, local_judge, pool
from mmrl.judge.actors import JudgeActor
from mmrl.judge.pool import strip_case
from mmrl.registry.plugins import registry
from mmrl.rollout.simulators.remote import SimulatorActor
from mmrl.testing import check_id
from mmrl.ui.cli.options import options_of

PLUGIN = '''
import os, subprocess, sys, threading, time, types
from mmrl import Score, UserError, VerifierSpec, hookimpl

@hookimpl
def mmrl_verifiers():
    made = "Plain Picky Few Odd Nan Beyond Hangs Dies Hungry Late Broken Refuses NoCall".split()
    made += "Helped Sees Sticky Wrapped Full Cached".split()
    specs = [VerifierSpec(id=f"looks/{n.lower()}", target=f"looks:{n}", model=True, timeout_s=20) for n in made]
    return [*specs, VerifierSpec(id="looks/steps", target="looks:Steps", model=True, rollout=True, timeout_s=20),
            VerifierSpec(id="looks/function", target="looks:function"),
            VerifierSpec(id="looks/blind", target="looks:Steps", model=True),
            VerifierSpec(id="looks/along", target="looks:along", rollout=True, high=99)]

class Plain:
    """How many times it was made and called, and with how many cases."""
    made = 0
    def __init__(self, scale: float = 1.0):
        Plain.made += 1
        self.scale, self.calls = scale, 0
    def __call__(self, cases):
        self.calls += 1
        return [Score(self.scale * float(c.completion), {"made": Plain.made, "call": self.calls, "cases": len(cases),
                                                         "pid": os.getpid()}) for c in cases]

class Helped(Plain):
    """Helpers that go on, as those of torch's compiler: one started while loading, others in each call."""
    def __init__(self):
        super().__init__()
        self.helper = subprocess.Popen(["sleep", "60"])
    def __call__(self, cases):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        self.files = [open(os.devnull) for _ in range(64)]
        return super().__call__(cases)

class Sees:
    """Which GPUs torch would see."""
    def __init__(self, device: str = "auto"):
        pass
    def __call__(self, cases):
        return [Score(1.0, {}, os.environ.get("CUDA_VISIBLE_DEVICES", "all")) for _ in cases]

class Sticky(Plain):
    """A GPU after an illegal access: each later call fails too."""
    error, later = RuntimeError("CUDA error: an illegal memory access was encountered\\nfor debugging ..."), None
    def __call__(self, cases):
        if self.calls or any(c.completion == "bad" for c in cases):
            self.calls += 1
            raise self.error from self.later
        return [Score(1.0, {"pid": os.getpid()}) for _ in cases]

class Wrapped(Sticky):
    error, later = ValueError("the model can't answer"), Sticky.error

class Full(Sticky):
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

class Cached:
    """How often torch's cache of the GPU's memory was emptied before each call; a bad case leaves an error behind."""
    def __init__(self):
        self.emptied, self.bad = 0, False
        cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=self.empty)
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    def empty(self):
        self.emptied += 1
        if self.bad:
            raise RuntimeError("CUDA error: unspecified launch failure")
    def __call__(self, cases):
        self.bad = any(c.completion == "bad" for c in cases)
        return [Score(1.0, {"emptied": self.emptied, "pid": os.getpid()}) for _ in cases]

class Steps:
    def __call__(self, cases):
        return [Score(0.5, steps=[0.25] * int(c.completion)) for c in cases]

class Picky:
    def __call__(self, cases):
        if any(c.completion == "bad" for c in cases):
            raise ValueError("one of them\\nis bad")
        return [1.0] * len(cases)

class Few:
    def __call__(self, cases):
        return [1.0]

class Odd:
    def __call__(self, cases):
        return (1.0 for _ in cases)

class Nan:
    def __call__(self, cases):
        return [float("nan") if c.completion == "bad" else 1.0 for c in cases]

class Beyond:
    def __call__(self, cases):
        return [2.0 if c.completion == "bad" else 1.0 for c in cases]

class Hangs:
    def __call__(self, cases):
        while any(c.completion == "bad" for c in cases):
            pass
        return [1.0] * len(cases)

class Dies:
    def __call__(self, cases):
        if any(c.completion == "bad" for c in cases):
            os._exit(3)
        return [1.0] * len(cases)

class Hungry:
    def __call__(self, cases):
        return [float(len(bytearray(700 * 2**20)) > 0) for _ in cases]

class Late:
    def __init__(self):
        time.sleep(60)
    def __call__(self, cases):
        return [1.0] * len(cases)

class Broken:
    def __init__(self, model: str = "none"):
        raise RuntimeError(f"no weights in {model}")

class Refuses:
    def __init__(self, *, share: float):
        pass
    @staticmethod
    def check(cameras, *, share):
        if not 0 <= share <= 1:
            raise UserError(f"share = {share} must be from 0 to 1")
        for label, known in cameras.items():
            if "wrist" not in known:
                raise UserError(f"task {label!r} has {', '.join(known)}, and no wrist")
    def __call__(self, cases):
        return [1.0] * len(cases)

class NoCall:
    pass

def function(case):
    return 0.5

def along(case):
    return Score(sum(case.answer), steps=case.answer)
'''
GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
GOOD, BAD = Case(completion="1"), Case(completion="bad")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("looks")
    (path / "looks.py").write_text(PLUGIN)
    return path


@pytest.fixture(autouse=True)
def plugin(folder, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGINS", "")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(folder / "looks.py"))


def run(name, cases, options=None, **settings):
    with local_judge({f"looks/{name}": options or {}}, **settings) as judge:
        return judge.run(f"looks/{name}", cases)


def played(calls, **changes):
    """A rollout of so many calls."""
    track = TrajectoryData(
        instruction="go",
        images={"front": torch.zeros(calls + 1, 2, 2, 3, dtype=torch.uint8)},
        state=None,
        choices=torch.zeros(calls, 1, 1),
        logprobs_TKC=torch.zeros(calls, 1, 1),
        valid_TK=torch.ones(calls, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(calls, 1),
    )
    return Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track, **changes)


def test_it_is_made_once_and_called_with_many_cases():
    cases = [Case(completion=str(i / 40)) for i in range(20)]
    with local_judge({"looks/plain": {"scale": 0.5}}, num_workers=3) as judge:
        found = judge.run("looks/plain", cases) + judge.run("looks/plain", cases[:3])
    assert [s.value for s in found] == pytest.approx([i / 80 for i in [*range(20), 0, 1, 2]]), "in order, with its options"
    assert {s.parts["made"] for s in found} == {1.0} and len({s.parts["pid"] for s in found}) == 1
    assert [s.parts["cases"] for s in found] == [8.0] * 16 + [4.0] * 4 + [3.0] * 3


def test_it_stands_beside_functions_in_one_sum():
    with local_judge({"looks/plain": {}, "looks/function": {}}) as judge:
        found = judge.score([Case(completion="0.25")] * 3, [{"looks/plain": 2.0, "looks/function": 1.0}] * 3)
    assert [s.value for s in found] == [1.0] * 3 and found[0].parts["looks/plain"] == 0.25


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("picky", "ValueError: one of them is bad (looks.py:"),
        ("nan", "the value is nan, not a finite number"),
        ("beyond", "the value is 2, outside its range [0, 1]"),
    ],
)
def test_a_case_that_cannot_be_scored_costs_no_other(name, detail):
    found = run(name, [BAD if i == 4 else GOOD for i in range(11)])
    assert [s.value for s in found] == [None if i == 4 else 1.0 for i in range(11)]
    assert detail in found[4].detail


@pytest.mark.parametrize(
    ("name", "n", "detail"),
    [("few", 3, None), ("odd", 1, "must give a list of 1 scores, one for each case, and gave a generator")],
)
def test_answers_that_are_not_one_for_each_case(name, n, detail):
    found = run(name, [GOOD] * n)
    if detail is None:  # alone, each of them has one answer
        assert [s.value for s in found] == [1.0] * n
    else:
        assert found[0].value is None and detail in found[0].detail


def test_what_hangs_is_stopped_and_what_follows_is_scored():
    started = time.monotonic()
    found = run("hangs", [BAD] + [GOOD] * 15, timeout_s=0.2)
    assert [s.value for s in found] == [None] * 8 + [1.0] * 8, "those of the same call are lost with it"
    assert found[0].detail == "took longer than its deadline of 0.2 s for each of 8 cases"
    assert time.monotonic() - started < 30


def test_what_dies_is_replaced():
    found = run("dies", [BAD] + [GOOD] * 9)
    assert [s.value for s in found] == [None] * 8 + [1.0] * 2
    assert "exited with code 3" in found[0].detail


def test_helpers_that_go_on_cost_no_new_process():
    """On a GPU a model's compiler has a child process, and it would be loaded again after each chunk."""
    found = run("helped", [GOOD] * 24)
    assert len({s.parts["pid"] for s in found}) == 1 and {s.parts["call"] for s in found} == {1.0, 2.0, 3.0}


def test_each_of_several_learners_has_its_models_on_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert run("sees", [GOOD])[0].detail == "all", "a learner that is alone"
    monkeypatch.setattr(ranks, "world_size", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert run("sees", [GOOD], {"device": "cuda"})[0].detail == "2"
    assert run("sees", [GOOD], {"device": "cuda:1"})[0].detail == "all", "a number counts all GPUs"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5,7")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert run("sees", [GOOD])[0].detail == "GPU-5"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert run("sees", [GOOD])[0].detail == "4,GPU-5,7", "a learner on a CPU"


def test_a_model_on_a_gpu_by_number_has_a_worker_of_its_own():
    with local_judge({"looks/sees": {"device": "cuda:1"}, "looks/plain": {}, "looks/picky": {}}) as judge:
        crews = [set(crew.verifiers) for crew in judge._scorers._crews]
    assert crews == [{"looks/sees"}, {"looks/plain", "looks/picky"}]


@pytest.mark.parametrize("name", ["sticky", "wrapped"])
def test_a_process_that_lost_its_gpu_is_replaced(name):
    found = run(name, [GOOD] * 8 + [BAD] + [GOOD] * 15)
    assert [s.value for s in found] == [1.0] * 8 + [None] * 8 + [1.0] * 8, "a chunk is lost, and no more"
    assert found[0].parts["pid"] != found[-1].parts["pid"]


def test_a_full_gpu_is_no_lost_one():
    found = run("full", [BAD] * 8 + [GOOD] * 8)
    assert [s.value for s in found] == [None] * 16, "in the same process, where each later call raises"


def test_a_model_gives_cached_memory_back_after_each_chunk():
    found = run("cached", [GOOD] * 16 + [BAD] + [GOOD] * 15)
    assert [s.parts["emptied"] for s in found] == [0.0] * 8 + [1.0] * 8 + [2.0] * 8 + [0.0] * 8
    assert found[0].parts["pid"] == found[16].parts["pid"] != found[-1].parts["pid"], "an error that comes late is one too"


def test_a_judge_in_an_actor_sees_no_gpu(monkeypatch, tmp_path):
    """Ray shows an actor that asks for none all of the machine's."""
    for variable in GPUS:
        monkeypatch.setenv(variable, "0,1")
    monkeypatch.chdir(tmp_path)
    actor = JudgeActor({"looks/sees": {}}, 1, None, 512, "process", str(tmp_path), switches())
    try:
        (score,) = actor.run({"looks/sees": [pickle.dumps(GOOD)]}).result(ACTOR)["looks/sees"]
    finally:
        actor._made().close()
    assert score.value == 1.0 and score.detail == "" and not any(os.environ[variable] for variable in GPUS)


def test_a_simulator_in_an_actor_sees_no_gpu(monkeypatch, tmp_path):
    for variable in GPUS:
        monkeypatch.setenv(variable, "0,1")
    monkeypatch.chdir(tmp_path)
    SimulatorActor(Simulation(simulator="robotics/small"), 1, str(tmp_path), switches())
    assert not any(os.environ[variable] for variable in GPUS)


def test_a_model_has_no_limit_of_memory():
    assert run("hungry", [GOOD], memory_mb=64)[0].value == 1.0


def test_what_cannot_be_loaded_is_said_before_anything_is_scored(monkeypatch):
    with local_judge({"looks/broken": {"model": "folder"}}) as judge, pytest.raises(UserError, match="no weights in folder"):
        judge.ready()
    with local_judge({"looks/nocall": {}}) as judge, pytest.raises(UserError, match="can't be called: define __call__"):
        judge.ready()
    monkeypatch.setattr(pool, "MODEL_START_S", 0.5)
    with local_judge({"looks/late": {}}) as judge, pytest.raises(UserError, match=r"loading the models took longer than 0\.5 s"):
        judge.ready()


def test_the_judge_is_ready_when_all_are():
    with local_judge({"looks/plain": {}, "looks/function": {}}) as judge:
        judge.ready()
        assert judge._scorers.loaded.done()
    with local_judge({}) as judge:
        judge.ready()


@pytest.mark.slow
def test_steps_are_one_for_each_call():
    cases = build_cases([played(3), played(2)])
    texts = [pool.replace(c, completion=n) for c, n in zip(cases, "32", strict=True)]
    found = run("steps", texts)
    assert [s.value for s in found] == [0.5, 0.5] and [s.steps for s in found] == [(0.25,) * 3, (0.25,) * 2]
    found = run("steps", [pool.replace(cases[0], completion="2"), texts[1]])
    assert found[0].detail == "it gave 2 steps, and the episode has 3 calls or turns" and found[1].value == 0.5


def test_steps_need_an_episode():
    found = run("blind", [Case(completion="2")])
    assert found[0].value is None and "its spec needs rollout=True" in found[0].detail


def test_a_function_may_give_steps_too_and_none_that_are_not_numbers():
    given = [
        pool.replace(c, answer=a) for c, a in zip(build_cases([played(2)] * 2), [(1.0, 2.0), (1.0, float("inf"))], strict=True)
    ]
    found = run("along", given)
    assert found[0].value == 3.0 and found[0].steps == (1.0, 2.0)
    assert found[1].value is None and "inf" in found[1].detail


def test_options_are_refused_before_a_model_is_loaded():
    def check(id, *given):
        return registry().check_verifier(registry().get("verifiers", id), *given)

    assert check("looks/refuses", {"share": 0.5}, {"a": ("front", "wrist")})[1] == {"share": 0.5}
    for options, cameras, said in [
        ({"share": 2}, {}, "verifier 'looks/refuses': share = 2 must be from 0 to 1"),
        ({"share": 0.5}, {"a": ("front",)}, "verifier 'looks/refuses': task 'a' has front, and no wrist"),
        ({"shares": 0.5}, {}, "verifier 'looks/refuses' has no option 'shares'. Did you mean 'share'?"),
        ({}, {}, """needs the option 'share': give share = ... under [verifiers."looks/refuses"] in a run file"""),
    ]:
        with pytest.raises(UserError) as error:
            check("looks/refuses", options, cameras)
        assert said in str(error.value) and "\n" not in str(error.value)
    assert check("looks/broken", {"model": "x"})[1] == {"model": "x"}, "it is not made"


def test_an_episode_travels_without_what_stands_beside_it():
    """The lane's tensors hold all episodes; one of them must not bring the others along."""
    many = torch.zeros(50, 2000, 1, 1)
    rollout = played(3)
    track = pool.replace(rollout.data, choices=many[:3, 7], logprobs_TKC=many[:3, 8])
    (case,) = build_cases([pool.replace(rollout, data=track)])
    sent = strip_case(case, VerifierSpec(id="x/y", target="x:y", rollout=True))
    assert len(pickle.dumps(sent)) < 10_000 < len(pickle.dumps(case))
    assert torch.equal(sent.rollout.data.choices, many[:3, 7]) and sent.rollout.data.images.keys() == {"front"}
    assert strip_case(case, VerifierSpec(id="x/y", target="x:y")).rollout is None


def test_all_that_it_is_made_with_are_options():
    spec = registry().get("verifiers", "looks/refuses")
    (option,) = options_of("verifiers", spec, registry().target(spec))
    assert option.name == "share" and option.required
    spec = registry().get("verifiers", "looks/plain")
    assert [o.default for o in options_of("verifiers", spec, registry().target(spec))] == [1.0]


def test_the_rules_for_functions_say_that_they_are_not_for_it():
    (report,) = check_id("looks/refuses")
    assert report.ok and report.results[0].name == "it_is_a_model" and "nothing was checked" in report.results[0].note
