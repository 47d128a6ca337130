"""Judges and simulators as Ray actors: what they answer, what they cost when they die, and what is refused."""

import os
import time
from concurrent.futures import CancelledError
from dataclasses import replace

import psutil
import pytest
import torch
from mmrl_robotics.small import Small

import runs
from mmrl import Case, Prompt, Status
from mmrl.api.episodes import Trajectory
from mmrl.api.errors import PluginError, UserError, plugin_errors
from mmrl.api.interfaces import Expert, Simulator
from mmrl.api.simulators.types import Observation, Simulation
from mmrl.compute.crossing import RemoteTraceback, attempt
from mmrl.compute.ray import NICENESS, judges_of_rank, start_local_ray, wait_for_cpus
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.judge import local_judge
from mmrl.judge.actors import ray_judge
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.remote import ActorSimulator, SimulatorActors, to_arrays, to_tensors
from processes import of_ray

DIAL = os.path.join(os.path.dirname(runs.TOY), "dial.py")
FAULTY = """
import os, signal, time
from mmrl import Score, SimulatorSpec, VerifierSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

@hookimpl
def mmrl_verifiers():
    return [
        VerifierSpec(id="odd/length", target="odd:length", high=100.0),
        VerifierSpec(id="odd/shown", target="odd:shown", images=True),
        VerifierSpec(id="odd/slow", target="odd:slow", timeout_s=0.5),
        VerifierSpec(id="odd/raises", target="odd:raises"),
        VerifierSpec(id="odd/dies", target="odd:dies"),
        VerifierSpec(id="odd/absent", target="no_such_module:f"),
        VerifierSpec(id="odd/episode", target="odd:episode", rollout=True),
        VerifierSpec(id="odd/where", target="odd:where", high=1e9),
        VerifierSpec(id="odd/model", target="odd:Model", model=True),
    ]

@hookimpl
def mmrl_simulators():
    spec = dict(action=ActionSpec(dims=2), max_steps=6, capabilities=frozenset({"partial-reset", "per-env-seed"}))
    return [SimulatorSpec(id=f"odd/{name.lower()}", target=f"odd:{name}", **spec) for name in ("Breaks", "Hangs", "Unmade")]

def length(case):
    return Score(float(len(case.completion)), {"even": float(len(case.completion) % 2 == 0)}, f"{case.answer} letters")

def shown(case):
    return float(len(case.media) == 1)

def slow(case):
    time.sleep(5 if case.answer == "bad" else 0)
    return 1.0

def raises(case):
    if case.answer == "bad":
        raise ValueError("no good")
    return 1.0

def dies(case):
    if case.answer == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0

def episode(case):
    return float(case.rollout.prompt.id == case.answer)

def where(case):
    time.sleep(0.02)
    return float(os.getppid())

class Model:
    def __call__(self, cases):
        return [case.completion.count("x") / 4 for case in cases]

class Unmade:
    def __init__(self, num_envs, device):
        raise RuntimeError("no assets")

import dial

class Hangs(dial.Dial):
    def step(self, actions_NA, active_N):
        time.sleep(60 if (actions_NA > 0.99).any() else 0)
        return super().step(actions_NA, active_N)

class Breaks(dial.Dial):
    def step(self, actions_NA, active_N):
        import warnings
        warnings.warn("a screw is loose")
        if (actions_NA > 0.99).any():
            raise ZeroDivisionError("out of gears")
        return super().step(actions_NA, active_N)
"""
SAMPLING = SamplingParams(max_tokens=1, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("odd")
    (made / "odd.py").write_text(FAULTY)
    return made


@pytest.fixture(scope="module")
def ray(folder):
    """One Ray for all; its processes begin with the plugins that each actor names."""
    with pytest.MonkeyPatch.context() as m:
        m.setenv("HOME", str(folder))
        started = start_local_ray("a test", 6)
        yield started
        started.shutdown()


@pytest.fixture(autouse=True)
def loaded(folder, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL, str(folder / "odd.py")]))


def config(judges=2, retries=2, **judge):
    return runs.toy_config(".", compute={"judges": judges, "retries": retries}, judge=judge)


def await_(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- judges ---------------------------------------------------------------------------------------------------------------


def test_the_judges_of_a_learner_are_its_share_or_all():
    assert [list(judges_of_rank(5, 2, rank)) for rank in range(2)] == [[0, 2, 4], [1, 3]]
    assert [list(judges_of_rank(2, 3, rank)) for rank in range(3)] == [[0, 1], [0, 1], [0, 1]]
    assert list(judges_of_rank(3, 1, 0)) == [0, 1, 2]


def cases(n=13):
    """Of all kinds; the third is bad, the fifth's environment failed, the seventh can't be pickled where pictures are asked
    for."""
    found = [Case(completion="x" * i, answer=str(i), meta={"i": i}, media=("one.png",)) for i in range(n)]
    found[3] = replace(found[3], answer="bad")
    found[5] = replace(found[5], status=Status.ENVIRONMENT_ERROR)
    found[7] = replace(found[7], media=(lambda: None,))
    return [
        replace(c, rollout=Trajectory(prompt=Prompt(id=c.answer, messages=[]), group=0, status=c.status, data=None))
        for c in found
    ]


@pytest.mark.slow
def test_scores_failures_and_deadlines_are_those_of_a_judge_here(ray):
    own = {f"odd/{name}": {} for name in ("length", "shown", "slow", "raises", "dies", "episode")}
    weights = [{"odd/length": 0.5, "odd/shown": 1.0} if i % 2 else {"odd/length": 1.0} for i in range(13)]
    with local_judge(own) as here, ray_judge(config(), own) as there:
        there.ready()
        assert there.score(cases(), weights) == here.score(cases(), weights)
        for name in own:
            found = there.run(name, cases())
            assert found == here.run(name, cases()), name
            if name in ("odd/slow", "odd/raises", "odd/dies"):
                assert [s.value for s in found] == [1.0] * 3 + [None] + [1.0] + [None] + [1.0] * 7
        with pytest.raises(UserError, match=r"verifier 'odd/where' is not one of this judge's"):
            there.run("odd/where", cases())
        with pytest.raises(UserError, match="case 0 has no verifiers"):
            there.score(cases(1 + 7), [{}] * 8)
    await_(lambda: not of_ray("JudgeActor"))


@pytest.mark.slow
def test_cases_are_divided_evenly_and_models_are_asked_too(ray):
    own = {"odd/where": {}, "odd/model": {}}
    with ray_judge(config(), own) as judge:
        found = [s.value for s in judge.run("odd/where", [Case(completion="")] * 12)]
        assert len(set(found)) == 2 and found == found[:2] * 6
        assert [s.value for s in judge.run("odd/model", [Case(completion="x" * i) for i in range(5)])] == [
            0.0,
            0.25,
            0.5,
            0.75,
            1.0,
        ]
        assert judge.run("odd/where", []) == []


@pytest.mark.exhaustive  # actors take seconds to start
@pytest.mark.slow
def test_what_a_verifier_s_module_lacks_is_told_as_here(ray):
    with local_judge({"odd/absent": {}}) as here, pytest.raises(PluginError) as one:
        here.ready()
    with ray_judge(config(), {"odd/absent": {}}) as there, pytest.raises(PluginError) as two:
        there.ready()
    assert str(two.value) == str(one.value) and "ModuleNotFoundError" in str(two.value.__cause__)
    with pytest.raises(UserError, match="no verifier 'odd/lenght'"):
        ray_judge(config(), {"odd/lenght": {}})


@pytest.mark.slow
def test_a_judge_that_dies_is_asked_again_and_then_no_more(ray):
    with ray_judge(config(retries=1), {"odd/slow": {}}, on_gpu=False) as judge:
        judge.ready()
        for deaths in (1, 2):
            asked = judge.submit([Case(completion="", answer="bad")] * 8 + [Case(completion="")] * 2, [{"odd/slow": 1.0}] * 10)
            time.sleep(0.3)
            first = (
                min(of_ray("JudgeActor"), key=lambda p: p.pid) if deaths == 1 else max(of_ray("JudgeActor"), key=lambda p: p.pid)
            )
            first.kill()
            if deaths == 1:
                scores = asked.result(60)
                assert [s.value for s in scores] == [None] * 8 + [1.0] * 2
                assert "longer than its deadline of 0.5 s" in scores[0].detail
                await_(lambda: len(of_ray("JudgeActor")) == 2)
            else:
                said = r"^a judge died more often than compute\.retries = 1 allows \(.*\): give it more memory .*--resume$"
                with pytest.raises(UserError, match=said):
                    asked.result(60)


@pytest.mark.exhaustive  # actors take seconds to start
@pytest.mark.slow
def test_whoever_waits_for_a_closed_judge_is_told(ray):
    judge = ray_judge(config(1), {"odd/slow": {}})
    judge.ready()
    asked = judge.submit([Case(completion="", answer="bad")] * 50, [{"odd/slow": 1.0}] * 50)
    judge.close()
    judge.close()
    with pytest.raises(CancelledError):
        asked.result(60)
    with pytest.raises(RuntimeError, match="the judge is closed"):
        judge.run("odd/slow", [Case(completion="")])


@pytest.mark.slow
def test_more_judges_than_there_is_room_for_are_refused(ray, monkeypatch):
    monkeypatch.setattr("mmrl.compute.ray.PATIENCE_S", 0.0)
    await_(lambda: ray.available_resources()["CPU"] == 6)
    with pytest.raises(UserError, match=r"^compute\.judges = 4 wants 20 CPUs, and 6 of 6 in the cluster are free: ask for fewer"):
        ray_judge(config(4, num_workers=5), {"odd/slow": {}})


# -- simulators -----------------------------------------------------------------------------------------------------------


def pair(simulator="dial/dial", num_envs=4, retries=2, timeout_s=60.0, **options):
    simulation = Simulation(simulator=simulator, options=options)
    here = plugins.registry().make_simulator(simulation, num_envs, "cpu")
    return here, ActorSimulator(simulation, num_envs, retries, timeout_s)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    elif hasattr(a, "__slots__") and hasattr(a, "__dataclass_fields__"):
        for name in a.__dataclass_fields__:
            equal(getattr(a, name), getattr(b, name))
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal(a[key], b[key])
    else:
        assert a == b
    return True


def test_tensors_travel_as_arrays_and_come_back_as_they_were():
    seen = Observation(images={"front": torch.arange(6, dtype=torch.uint8).view(1, 1, 2, 3)}, state=None, instructions=["go"])
    back = to_tensors(to_arrays(seen))
    equal(back, seen)
    back.images["front"][0] = 9  # its own
    assert int(seen.images["front"].sum()) == 15
    flags = torch.tensor([True, False])
    assert to_tensors(to_arrays({"a": flags}))["a"].tolist() == [True, False] and to_tensors(to_arrays(None)) is None


@pytest.mark.slow
def test_a_simulator_elsewhere_does_bit_for_bit_what_one_here_does(ray):
    here, there = pair()
    assert isinstance(there, Simulator) and isinstance(there, Expert) and there.action == here.action and there.num_envs == 4
    seeds, some = torch.tensor([3, 1, 4, 1]), torch.tensor([2, 0])
    active = torch.tensor([True, True, False, True])
    for made in (here, there):
        made.found = [made.reset(seeds), made.expert()]
        made.found += [made.step(made.expert() * 0.1, active) for _ in range(3)]
        state = made.snapshot(some)
        made.found += [made.reset(torch.tensor([9]), torch.tensor([1]), "far"), made.step(torch.ones(4, 2), active)]
        made.found += [made.restore(some, state), made.render(some), made.step(torch.zeros(4, 2), ~active)]
    for one, two in zip(here.found, there.found, strict=True):
        equal(one, two)
    for made in (here, there):
        with pytest.raises(UserError, match=r"^dial: there is no variant 'near': there is far$"):
            made.reset(seeds, None, "near")
    there.close()
    there.close()
    await_(lambda: not of_ray("SimulatorActor"))


@pytest.mark.exhaustive  # actors take seconds to start
@pytest.mark.slow
def test_what_a_simulator_raises_and_warns_of_is_told_as_here(ray):
    here, there = pair("odd/breaks", 2)
    for made in (here, there):
        made.reset(torch.tensor([1, 2]))
        with pytest.warns(UserWarning, match="^a screw is loose$"):
            made.step(torch.zeros(2, 2), torch.ones(2, dtype=torch.bool))
        with (
            pytest.warns(UserWarning, match="loose"),
            pytest.raises(PluginError) as error,
            plugin_errors("simulator 'odd/breaks'"),
        ):
            made.step(torch.ones(2, 2), torch.ones(2, dtype=torch.bool))
        assert str(error.value) == "simulator 'odd/breaks' raised ZeroDivisionError: out of gears"
    assert isinstance(error.value.__cause__, RemoteTraceback) and 'raise ZeroDivisionError("out of gears")' in str(
        error.value.__cause__
    )
    there.close()
    with pytest.raises(UserError, match=r"^simulator 'odd/unmade', made with \{\}, raised RuntimeError: no assets: see "):
        ActorSimulator(Simulation(simulator="odd/unmade"), 2, 2, 60.0)
    await_(lambda: not of_ray("SimulatorActor"))
    with pytest.raises(UserError, match=r"simulator 'dial/dial' has no option 'sise'. Did you mean 'size'\?"):
        ActorSimulator(Simulation(simulator="dial/dial", options={"sise": 3}), 2, 2, 60.0)


def collected(lanes, elsewhere=None, between=lambda made: None):
    made_config = PolicyConfig(model="mlp", kind="robotics/small")
    policy = Small(made_config, dims=2, state=2, hidden=[8], chunk=2, seed=3)
    task = plugins.registry().make_task("dial/turn", {"n": 16, "reward": "own"})
    made = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=6, lanes=lanes), "cpu", elsewhere)
    asked = [replace(p, task="dial/turn") for p in task.prompts("train", 0)]
    made.ready()
    between(made)
    found = made.collect(asked, made.encode(asked), 2, SAMPLING)
    figures = made.metrics()
    made.close()
    return found, figures


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_episodes_are_the_very_same_wherever_they_are_simulated(ray, lanes):
    one, _ = collected(lanes)
    two, figures = collected(lanes, SimulatorActors(runs.toy_config(".")))
    for a, b in zip(one, two, strict=True):
        assert (a.status, a.outcome) == (b.status, b.outcome)
        equal(a.data, b.data)
    assert figures["simulator/lost"] == 0


@pytest.mark.slow
def test_an_actor_that_dies_costs_its_episodes_which_are_begun_again(ray):
    one, _ = collected(2)

    def kill_soon(made):
        lane = made.lanes("dial/turn")[0]
        step, done = lane.simulator.step, []

        def stepped(*arguments):
            done.append(1)
            if len(done) == 3:
                of_ray("SimulatorActor")[0].kill()
            return step(*arguments)

        lane.simulator.step = stepped

    with pytest.warns(UserWarning, match=r"simulator 'dial/dial': its process died, and its episodes are restarted"):
        two, figures = collected(2, SimulatorActors(runs.toy_config(".")), kill_soon)
    assert figures["simulator/lost"] in (1, 2, 3)
    for a, b in zip(one, two, strict=True):
        assert (a.status, a.outcome) == (b.status, b.outcome)
        equal(a.data, b.data)


@pytest.mark.slow
def test_only_those_that_were_lost_are_and_a_reset_mends_them(ray):
    here, there = pair(num_envs=3)
    for made in (here, there):
        made.reset(torch.tensor([1, 2, 3]))
    of_ray("SimulatorActor")[0].kill()
    with pytest.warns(UserWarning, match="are restarted"):
        equal(here.reset(torch.tensor([7]), torch.tensor([1])), there.reset(torch.tensor([7]), torch.tensor([1])))
    every = torch.ones(3, dtype=torch.bool)
    one, two = here.step(torch.zeros(3, 2), every), there.step(torch.zeros(3, 2), every)
    assert two.lost_N.tolist() == [True, False, True]
    assert torch.equal(one.observation.state[1], two.observation.state[1])
    assert there.step(torch.zeros(3, 2), torch.tensor([False, True, False])).lost_N.tolist() == [False] * 3
    there.reset(torch.tensor([1, 3]), torch.tensor([0, 2]))
    assert not there.step(torch.zeros(3, 2), every).lost_N.any()
    there.close()


@pytest.mark.slow
def test_one_that_hangs_is_replaced_at_the_deadline(ray):
    _, there = pair("odd/hangs", 2, retries=1, timeout_s=3.0)
    there.reset(torch.tensor([1, 2]))
    every = torch.ones(2, dtype=torch.bool)
    with (
        pytest.warns(UserWarning, match=r"its episodes are restarted: step took longer than 3 s"),
        pytest.raises(UserError) as error,
    ):
        there.step(torch.ones(2, 2), every)  # it is called again, and hangs again
    assert "compute.retries = 1 allows (step took longer than 3 s): give it more memory or time" in str(error.value)
    there.close()
    await_(lambda: not of_ray("SimulatorActor"))


@pytest.mark.slow
def test_one_that_dies_too_often_ends_the_run_in_one_line(ray):
    _, there = pair(retries=0)
    there.reset(torch.tensor([1, 2, 3, 4]))
    of_ray("SimulatorActor")[0].kill()
    said = r"^simulator 'dial/dial': its process died more often than compute\.retries = 0 allows \(.*\): give it .*--resume$"
    with pytest.raises(UserError, match=said) as error:
        there.step(torch.zeros(4, 2), torch.ones(4, dtype=torch.bool))
    assert "\n" not in str(error.value)
    there.close()


# -- what both use --------------------------------------------------------------------------------------------------------


def test_a_user_error_is_an_answer_and_the_traceback_of_a_plugin_comes_along():
    assert attempt(lambda: 5).result("there") == 5

    def refuse():
        raise UserError("no: do this")

    with pytest.raises(UserError, match=r"^no: do this$"):
        attempt(refuse).result("there")

    def breaks():
        with plugin_errors("it"):
            raise KeyError("k")

    with pytest.raises(PluginError, match=r"^it raised KeyError: 'k'$") as error:
        attempt(breaks).result("there")
    assert "in breaks" in str(error.value.__cause__)


class There:
    def __init__(self, has, free):
        self.has, self.free = has, free

    def cluster_resources(self):
        return {"CPU": self.has}

    def available_resources(self):
        return {"CPU": self.free.pop(0)}


def test_what_others_are_about_to_leave_is_waited_for(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    there = There(4.0, [0.0, 1.0, 2.0])
    wait_for_cpus(there, "it", 2)
    assert there.free == []
    with pytest.raises(UserError, match=r"^it wants 5 CPUs, and 3 of 4 in the cluster are free: ask for fewer, or add nodes$"):
        wait_for_cpus(There(4.0, [3.0]), "it", 5)
    with pytest.raises(UserError, match=r"^it wants 3 CPUs, and 1 of 4 in the cluster are free"):
        monkeypatch.setattr("mmrl.compute.ray.PATIENCE_S", 0.0)
        wait_for_cpus(There(4.0, [1.0, 1.0]), "it", 3)


@pytest.mark.slow
def test_actors_are_no_nicer_than_other_processes(ray):
    """Ray's own 15 would leave them a thirtieth of a core where others are busy."""
    own = os.nice(0)

    @ray.remote
    def niceness():
        return os.nice(0)

    assert ray.get(niceness.remote()) == own and NICENESS not in os.environ


def test_a_niceness_that_was_asked_for_is_kept(monkeypatch):
    seen = []
    monkeypatch.setattr("ray.init", lambda **_: seen.append(os.environ[NICENESS]))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "none")
    start_local_ray("a test", 1)
    monkeypatch.setenv(NICENESS, "7")
    start_local_ray("a test", 1)
    assert seen == ["0", "7"] and os.environ[NICENESS] == "7"


@pytest.mark.slow
def test_a_ray_of_this_machine_listens_on_loopback(ray):
    """Every one of its processes: their token would keep others out, too."""

    @ray.remote
    class Anyone:
        def pid(self):
            return os.getpid()

    anyone = Anyone.remote()
    ray.get(anyone.pid.remote())
    session = ray._private.worker._global_node.get_session_dir_path()
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter(["cmdline"]):
        if session in " ".join(process.info["cmdline"] or ()):
            own.add(process.pid)
    listening = [
        c.laddr.ip.removeprefix("::ffff:") for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in own
    ]
    ray.kill(anyone)
    assert len(listening) > 3 and set(listening) == {"127.0.0.1"}
    constants = ray._private.ray_constants  # and what is started later may be part of a cluster
    assert constants.ENABLE_RAY_CLUSTER and constants.ENABLE_RAY_CLUSTERS_ENV_VAR not in os.environ
