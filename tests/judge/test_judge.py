"""The judge against verifiers that do everything wrong. Failures are never zeros, and cost nobody else's score."""

import os
import subprocess
import sys
import time
from concurrent.futures import CancelledError

import pytest

from mmrl import Case, CoordinateFormat, Prompt, Score, Status, Turn, UserError, user_message
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError
from mmrl.judge import build_cases, local_judge, pool
from mmrl.judge.messages import Request
from processes import gone

PLUGIN = '''
import ctypes, os, signal, sys, threading, time
from mmrl import Score, UserError, VerifierSpec, hookimpl

SPECS = {"seen": {"images": True}, "episode": {"rollout": True}, "quick": {"timeout_s": 0.5}, "signed": {"low": -1.0},
         "absent": {"target": "no_such_module:f"},
         "dying": {"target": "dies_on_import:f"}, "slow_import": {"target": "sleeps_on_import:f"}}

@hookimpl
def mmrl_verifiers():
    names = """equal value wrong mutate children raises hang stuck memory leave abort crash interrupt chatty fork dead_parent
        helper local long closes scribbles own_failure torch_loaded sessions meet slow odd_message option
        prepared""".split() + list(SPECS)
    return [VerifierSpec(**({"id": f"faulty/{n}", "target": f"faulty:{n}"} | SPECS.get(n, {}))) for n in names]

def bad(case):
    return case.answer == "bad"

def equal(case):
    return float(case.completion == case.answer)

def value(case):
    return eval(case.answer)  # the test says what is returned

signed = value

def wrong(case):
    return Score(0.25, {"format": 1, "overlap": 0.5}, "a quarter")

def raises(case):
    if bad(case):
        raise ValueError("no\\ngood")  # RAISED HERE
    return 1.0

def odd_message(case):
    class Odd(Exception):
        def __str__(self):
            raise KeyError
    raise Odd

def hang(case):
    while bad(case):
        pass
    return 1.0

def quick(case):
    time.sleep(case.answer)
    return 1.0

def slow(case):
    time.sleep(0.4)
    return 1.0

def stuck(case):
    if bad(case):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).pause()  # C code that keeps the interpreter's lock
    return 1.0

def memory(case):
    hoard = []
    while bad(case):
        hoard.append(bytearray(2**20))
    return Score(1.0, {"pid": os.getpid()})

def leave(case):
    if bad(case):
        sys.exit("bye")
    return 1.0

def abort(case):
    if bad(case):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    return 1.0

def crash(case):
    if bad(case):
        ctypes.string_at(0)
    return 1.0

def interrupt(case):
    raise KeyboardInterrupt

def chatty(case):
    print("out " * 1000)
    print("err " * 1000, file=sys.stderr)
    os.system("echo from a child")
    return float(sys.stdin.read() == "")

def mutate(case):
    case.meta["list"].append(1)
    return len(case.meta["list"]) / 10

def fork(case):
    if bad(case):
        os.fork()
        return 0.5
    return 1.0

def helper(case):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    with open(case.answer, "a") as file:
        file.write(f"{pid} ")
    return 1.0

def dead_parent(case):
    if bad(case):
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(4)
    return 1.0

def local(case):
    class Local:
        pass
    return Local()

def long(case):
    return Score(1.0, {}, "line\\n" * 10**6)

def closes(case):
    if bad(case):
        os.closerange(0, 256)
    return 1.0

def scribbles(case):
    for fd in range(3, 20) if bad(case) else ():
        try:
            os.write(fd, b"scribble\\n")
        except OSError:
            pass
    return 1.0

def own_failure(case):
    return Score(None, {}, "the renderer is away")

def torch_loaded(case):
    return float("torch" in sys.modules or "numpy" in sys.modules)

def seen(case):
    return len(case.media) / 10

def episode(case):
    return 1.0 if case.rollout.inputs is None and not case.media else 0.0

def children(case):
    return 1.0 if case.rollout is None and not case.media else 0.0

def sessions(case):
    with open(case.answer, "w") as file:
        file.write(str(os.getpid()))
    while case.meta.get("hang"):
        time.sleep(1)
    return 1.0

def meet(case):
    mine, other = case.answer
    open(mine, "w").close()
    while not os.path.exists(other):
        time.sleep(0.01)
    return 1.0

def prepared(case, seconds=0.0):
    return HELD["seconds"] if case.answer is None else float(len(HELD["bytes"]) > 0)

HELD = {}

def load(seconds=0.0):
    if seconds < 0:
        raise OSError("no such lexicon")
    time.sleep(seconds)
    HELD.update(seconds=seconds, bytes=bytes(200_000_000))

def check(cameras, seconds=0.0):
    if seconds > 10:
        raise UserError(f"seconds = {seconds} is too long")

prepared.prepare, prepared.check = load, check

def option(case, *, scale):
    return scale
'''
GOOD = Case(completion="a", answer="a")
BAD = Case(completion="a", answer="bad")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    (folder / "faulty.py").write_text(PLUGIN)
    (folder / "dies_on_import.py").write_text("import os; os._exit(7)")
    (folder / "sleeps_on_import.py").write_text("import time; time.sleep(100)")
    return folder


@pytest.fixture(autouse=True)
def plugin(folder, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGINS", "")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(folder / "faulty.py"))
    monkeypatch.syspath_prepend(str(folder))


def run(name, cases, timeout_s=10.0, **settings):
    with local_judge({f"faulty/{name}": {}}, timeout_s=timeout_s, **settings) as judge:
        return judge.run(f"faulty/{name}", cases)


def one_failed(scores, at):
    """The detail of the failed score `at`, after checking that all others are 1.0."""
    assert [s.value for s in scores] == [None if i == at else 1.0 for i in range(len(scores))]
    return scores[at].detail


def among_good(at, n=12):
    return [BAD if i == at else GOOD for i in range(n)]


# What is asked of it


def test_unknown_verifier_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr("mmrl.judge.Pool", None)
    with pytest.raises(UserError, match=r"no verifier 'faulty/equa'\. Did you mean 'faulty/equal'"):
        local_judge({"faulty/equal": {}, "faulty/equa": {}})


def test_weighted_sum_has_all_parts():
    weights = [{"faulty/equal": 0.5, "faulty/wrong": 2.0}, {"faulty/wrong": 1.0}, {"faulty/equal": 3.0}]
    with local_judge({"faulty/equal": {}, "faulty/wrong": {}}) as judge:
        scores = judge.score([GOOD, BAD, GOOD], weights)
    parts = {"faulty/wrong": 0.25, "faulty/wrong/format": 1.0, "faulty/wrong/overlap": 0.5}
    assert scores == [
        Score(1.0, {"faulty/equal": 1.0} | parts, "faulty/wrong: a quarter"),  # 0.5 * 1 + 2 * 0.25
        Score(0.25, parts, "faulty/wrong: a quarter"),
        Score(3.0, {"faulty/equal": 1.0}, ""),
    ]


def test_a_failed_verifier_fails_the_sum():
    with local_judge({"faulty/equal": {}, "faulty/own_failure": {}}) as judge:
        [score] = judge.score([GOOD], [{"faulty/equal": 0.5, "faulty/own_failure": 0.5}])
    assert score == Score(None, {"faulty/equal": 1.0}, "faulty/own_failure failed: the renderer is away")


def test_a_failed_verifier_of_weight_zero_is_only_reported():
    with local_judge({"faulty/equal": {}, "faulty/own_failure": {}, "faulty/wrong": {}}) as judge:
        [score] = judge.score([GOOD], [{"faulty/own_failure": 0.0, "faulty/wrong": 0.0, "faulty/equal": 0.5}])
    assert score.value == 0.5
    assert score.parts["faulty/wrong"] == 0.25
    assert score.detail == "faulty/own_failure failed: the renderer is away; faulty/wrong: a quarter"


def test_case_without_verifiers_and_foreign_verifier_are_refused():
    with local_judge({"faulty/equal": {}}) as judge:
        with pytest.raises(UserError, match="case 1 has no verifiers"):
            judge.score([GOOD, GOOD], [{"faulty/equal": 1.0}, {}])
        with pytest.raises(UserError, match=r"'faulty/wrong' is not one of this judge's \(faulty/equal\)"):
            judge.run("faulty/wrong", [GOOD])
        with pytest.raises(ValueError, match="shorter"):
            judge.score([GOOD, GOOD], [{"faulty/equal": 1.0}])


def test_no_cases():
    with local_judge({"faulty/equal": {}}) as judge:
        assert judge.run("faulty/equal", []) == judge.score([], []) == []


def test_scores_come_in_the_order_of_the_cases():
    with local_judge({"faulty/value": {}}, num_workers=3) as judge:
        scores = judge.run("faulty/value", [Case(completion="", answer=f"{i} / 2000") for i in range(2000)])
    assert [s.value for s in scores] == [i / 2000 for i in range(2000)]


def test_an_episode_whose_environment_failed_has_failed_whatever_a_verifier_says():
    lost = Case(completion="right", answer="right", status=Status.ENVIRONMENT_ERROR)
    with local_judge({"faulty/equal": {}}) as judge:
        first, second, third = judge.run("faulty/equal", [GOOD, lost, GOOD])
        (weighed,) = judge.score([lost], [{"faulty/equal": 1.0}])
    assert first.value == third.value == 1.0 and second == weighed
    assert (weighed.value, weighed.status, first.status) == (None, "lost", "ok") and weighed.as_json()["status"] == "lost"
    with pytest.raises(ValueError, match=r"the score of a lost episode has no value, not 1\.0"):
        Score(1.0, lost=True)


def test_processes_work_side_by_side(tmp_path):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    cases = [Case(completion="", answer=(a, b)), Case(completion="", answer=(b, a))]  # each waits for the other
    assert [s.value for s in run("meet", cases, num_workers=2)] == [1.0, 1.0]


def test_submit_goes_on_beside_the_caller(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    with local_judge({"faulty/meet": {}}, timeout_s=60.0) as judge:
        future = judge.submit([Case(completion="", answer=(str(a), str(b)))], [{"faulty/meet": 2.0}])
        assert not future.done()
        b.touch()
        assert future.result(timeout=60) == [Score(2.0, {"faulty/meet": 1.0}, "")]


def test_options_reach_the_verifier():
    with local_judge({"faulty/option": {"scale": 0.75}}) as judge:
        assert judge.run("faulty/option", [GOOD]) == [Score(0.75)]


def test_workers_do_not_load_what_they_do_not_need():
    assert run("torch_loaded", [GOOD])[0].value == 0.0


# What it sends


class Inputs:
    image_sizes = ((640, 480),)
    model_sizes = ((644, 476),)
    coordinate_format = CoordinateFormat.MODEL_PIXELS

    def __reduce__(self):
        raise TypeError("tensors must stay here")


def rollout():
    prompt = Prompt(messages=[user_message("what?", "one.png", "two.png")], answer="cat", meta={"k": 1})
    turn = Turn(observed_ids=(1,), token_ids=(2,), logprobs=(-0.5,), text="a cat")
    return Conversation(prompt=prompt, group=0, turns=(turn,), status=Status.TRUNCATED_LENGTH, inputs=Inputs())


def test_cases_of_rollouts():
    r = rollout()
    [case] = build_cases([r])
    assert case == Case(
        completion="a cat",
        answer="cat",
        meta={"k": 1},
        status=Status.TRUNCATED_LENGTH,
        image_sizes=((640, 480),),
        model_sizes=((644, 476),),
        coordinate_format=CoordinateFormat.MODEL_PIXELS,
        media=("one.png", "two.png"),
        rollout=r,
    )


def test_cases_of_rollouts_without_inputs():
    from dataclasses import replace

    [case] = build_cases([replace(rollout(), inputs=None)])
    assert (case.image_sizes, case.model_sizes, case.coordinate_format) == ((), (), CoordinateFormat.PIXELS)


@pytest.mark.parametrize(("name", "value"), [("seen", 0.2), ("episode", 1.0), ("children", 1.0)])
def test_images_and_episodes_go_only_to_those_who_ask(name, value):
    assert run(name, build_cases([rollout()])) == [Score(value)]


def test_case_that_does_not_pickle_fails_alone():
    detail = one_failed(run("raises", [GOOD, Case(completion="", answer=lambda: 0), GOOD]), at=1)
    assert detail.startswith("the case can't be pickled: ")


# What verifiers do wrong


def test_raises(folder):
    line = next(i for i, text in enumerate(PLUGIN.splitlines(), 1) if "RAISED HERE" in text)
    assert one_failed(run("raises", among_good(5)), at=5) == f"ValueError: no good (faulty.py:{line})"


def test_raises_what_does_not_print():
    [score] = run("odd_message", [GOOD])
    assert score.failed
    assert score.detail.startswith("Odd: (its message raised KeyError) (faulty.py:")


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        ("0.5", 0.5),
        ("1", 1.0),
        ("True", 1.0),
        ("False", 0.0),
        ("1 + 1e-9", 1 + 1e-9),
        ("Score(True)", 1.0),
        ("__import__('fractions').Fraction(1, 4)", 0.25),
    ],
)
def test_numbers_are_taken(returned, value):
    assert run("value", [Case(completion="", answer=returned)]) == [Score(value)]


@pytest.mark.parametrize(
    ("returned", "detail"),
    [
        ("float('nan')", "the value is nan, not a finite number"),
        ("float('-inf')", "the value is -inf, not a finite number"),
        ("None", "the value is of type NoneType, not a finite number"),
        ("'1'", "the value is of type str, not a finite number"),
        ("1j", "the value is of type complex, not a finite number"),
        ("[1.0]", "the value is of type list, not a finite number"),
        ("lambda: 1", "the value is of type function, not a finite number"),
        ("10 ** 400", "the value is of type int, not a finite number"),
        ("Score(float('nan'))", "the value is nan, not a finite number"),
        ("Score(1.0, {'iou': float('inf')})", "part 'iou' is inf, not a finite number"),
        ("1.5", "the value is 1.5, outside its range [0, 1]"),
        ("-0.001", "the value is -0.001, outside its range [0, 1]"),
    ],
)
def test_no_finite_number_in_range(returned, detail):
    assert run("value", [Case(completion="", answer=returned)]) == [Score(None, {}, detail)]


def test_range_is_that_of_the_spec():
    scores = run("signed", [Case(completion="", answer=text) for text in ("-1.0", "-1.1")])
    assert [s.value for s in scores] == [-1.0, None]


def test_unpicklable_return():
    assert run("local", [GOOD]) == [Score(None, {}, "the value is of type Local, not a finite number")]


def test_hang_costs_its_deadline_and_nothing_else():
    start = time.monotonic()
    scores = run("hang", among_good(7, 200), timeout_s=0.5)
    assert one_failed(scores, at=7) == "took longer than its deadline of 0.5 s"
    assert time.monotonic() - start < 50  # half of what 200 deadlines take


def test_hang_in_c_with_signals_blocked():
    assert one_failed(run("stuck", among_good(1), timeout_s=0.5), at=1) == "took longer than its deadline of 0.5 s"


def test_deadline_is_the_specs_and_for_each_case_alone():
    scores = run("quick", [Case(completion="", answer=s) for s in (0.01, 0.01, 0.01, 60.0, 0.01)], timeout_s=None)
    assert one_failed(scores, at=3) == "took longer than its deadline of 0.5 s"


@pytest.mark.slow
def test_a_chunk_may_take_longer_than_a_case():
    assert [s.value for s in run("slow", [GOOD] * 12, timeout_s=1.0)] == [1.0] * 12  # chunks of 3, each 1.2 s


def test_out_of_memory():
    found = run("memory", among_good(3), memory_mb=64)
    assert one_failed(found, at=3).startswith("MemoryError (faulty.py:")
    assert found[0].parts == found[5].parts != found[6].parts, "the process is replaced after its chunk, which frees the memory"


@pytest.mark.parametrize(
    ("name", "detail"), [("leave", "SystemExit: bye (faulty.py:"), ("interrupt", "KeyboardInterrupt (faulty.py:")]
)
def test_exits(name, detail):
    [score] = run(name, [BAD])
    assert score.failed
    assert score.detail.startswith(detail)


def test_ends_the_process():
    assert one_failed(run("abort", among_good(5)), at=5) == "the worker exited with code 3; stderr: last words"


def test_crashes():
    detail = one_failed(run("crash", among_good(5)), at=5)
    assert detail.startswith("the worker was killed by SIGSEGV; stderr: Fatal Python error: Segmentation fault")


def test_several_crashes_in_one_chunk():
    scores = run("crash", [BAD if i in (2, 3, 9) else GOOD for i in range(12)])
    assert [i for i, s in enumerate(scores) if s.failed] == [2, 3, 9]


def test_prints_reach_nobody(capfd):
    assert run("chatty", [GOOD] * 20) == [Score(1.0)] * 20
    assert capfd.readouterr() == ("", "")


def test_changes_to_a_case_are_seen_by_nobody():
    case = Case(completion="", meta={"list": []})
    with local_judge({"faulty/mutate": {}, "faulty/equal": {}}) as judge:
        assert judge.run("faulty/mutate", [case, case, case]) == [Score(0.1)] * 3
    assert case.meta == {"list": []}


def test_fork_that_comes_back_does_not_reply():
    scores = run("fork", [BAD if i % 2 else GOOD for i in range(40)])
    assert [s.value for s in scores] == [0.5 if i % 2 else 1.0 for i in range(40)]


def test_processes_left_behind_are_killed_after_their_chunk(tmp_path):
    pids = tmp_path / "pids"
    with local_judge({"faulty/helper": {}}) as judge:
        assert judge.run("faulty/helper", [Case(completion="", answer=str(pids))] * 3) == [Score(1.0)] * 3
        found = [int(pid) for pid in pids.read_text().split()]
        assert len(found) == 3
        assert all(gone(pid) for pid in found)


def test_dead_worker_whose_child_keeps_the_pipes_open():
    assert one_failed(run("dead_parent", among_good(2)), at=2) == "the worker exited with code 4"


def test_huge_detail_is_cut_to_one_line():
    [score] = run("long", [GOOD])
    assert score.value == 1.0
    assert len(score.detail) <= 500
    assert "\n" not in score.detail
    assert score.detail.startswith("line line")


@pytest.mark.parametrize("name", ["closes", "scribbles"])
def test_pipe_broken_by_a_verifier(name):
    assert one_failed(run(name, among_good(4)), at=4) == "the verifier broke the pipe to the judge"


@pytest.mark.everyday
def test_many_faults_at_once():
    names = ["raises", "hang", "abort", "crash", "closes", "fork"]
    bad = [7, 8, 41]
    cases = [BAD if i in bad else GOOD for i in range(60)]
    with local_judge({f"faulty/{n}": {} for n in names}, num_workers=2, timeout_s=0.3) as judge:
        scores = judge.score(cases, [{f"faulty/{n}": 1.0 for n in names}] * 60)
    assert [i for i, s in enumerate(scores) if s.failed] == bad
    assert {s.value for i, s in enumerate(scores) if i not in bad} == {6.0}
    for i in bad:
        assert scores[i].parts == {"faulty/fork": 0.5}
        assert scores[i].detail.count(" failed: ") == 5


# Faults of the set-up


def test_verifier_that_can_not_be_imported():
    with local_judge({"faulty/equal": {}, "faulty/absent": {}}) as judge:
        with pytest.raises(PluginError, match="'faulty/absent' failed to import: no module named 'no_such_module'") as caught:
            judge.ready()
        assert "ModuleNotFoundError" in str(caught.value.__cause__)
        with pytest.raises(UserError, match="no_such_module"):
            judge.run("faulty/equal", [GOOD])


def test_what_a_function_prepares_counts_for_no_case():
    """Neither as time, 0.6 s with a limit of 0.3 s, nor as memory, 200 MB with a limit of 64 MB."""
    with local_judge({"faulty/prepared": {"seconds": 0.6}}, timeout_s=0.3, memory_mb=64) as judge:
        assert [s.value for s in judge.run("faulty/prepared", [Case(completion=""), Case(completion="", answer=1)])] == [0.6, 1.0]
    with pytest.raises(PluginError, match=r"verifier 'faulty/prepared': prepare\(\) raised OSError: no such lexicon"):
        with local_judge({"faulty/prepared": {"seconds": -1.0}}) as judge:
            judge.ready()
    with pytest.raises(UserError, match=r"verifier 'faulty/prepared': seconds = 11.0 is too long"):
        with local_judge({"faulty/prepared": {"seconds": 11.0}}) as judge:
            judge.ready()


def test_unknown_option():
    with local_judge({"faulty/option": {"scall": 1}}) as judge:
        with pytest.raises(UserError, match=r"no option 'scall'\. Did you mean 'scale'"):
            judge.ready()


def test_import_that_ends_the_process():
    with (
        local_judge({"faulty/dying": {}}) as judge,
        pytest.raises(UserError, match="could not start: the worker exited with code 7"),
    ):
        judge.run("faulty/dying", [GOOD])


def test_import_that_hangs(monkeypatch):
    monkeypatch.setattr(pool, "START_S", 0.5)
    with local_judge({"faulty/slow_import": {}}) as judge:
        with pytest.raises(UserError, match=r"importing the verifiers took longer than 0\.5 s"):
            judge.ready()


def test_a_result_that_can_t_be_made_is_told_to_who_asked_and_nobody_else():
    def fault(scores):
        raise KeyError("weight")

    with local_judge({"faulty/equal": {}}) as judge:
        request = Request([GOOD], {"faulty/equal": [0]}, fault)
        judge._scorers.submit(request)
        with pytest.raises(KeyError, match="weight"):
            request.future.result(timeout=60)
        assert judge.run("faulty/equal", [GOOD])[0].value is not None


# How it ends


def test_close_cancels_what_is_running_and_kills(tmp_path):
    pid = tmp_path / "pid"
    judge = local_judge({"faulty/sessions": {}}, timeout_s=60.0)
    future = judge.submit([Case(completion="", answer=str(pid), meta={"hang": True})], [{"faulty/sessions": 1.0}])
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.01)
    judge.close()
    judge.close()
    with pytest.raises(CancelledError):
        future.result(timeout=1)
    assert gone(int(pid.read_text()))
    with pytest.raises(RuntimeError, match="closed"):
        judge.run("faulty/sessions", [GOOD])


@pytest.mark.parametrize("hang", [False, True])
def test_workers_end_when_the_engine_is_killed(tmp_path, hang):
    pid = tmp_path / "pid"
    engine = f"""
from mmrl import Case
from mmrl.judge import local_judge
judge = local_judge({{"faulty/sessions": {{}}}}, timeout_s=600.0)
future = judge.submit([Case(completion="", answer={str(pid)!r}, meta={{"hang": {hang}}})], [{{"faulty/sessions": 1.0}}])
import time; time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", engine], env=dict(os.environ))
    try:
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert gone(int(pid.read_text()))
