"""What docs/isolation.md promises, each sentence with a test: verifiers that misuse their process."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from mmrl import Case, Score, UserError
from mmrl.api.processes import sandbox
from mmrl.judge import local_judge
from mmrl.testing.cases import mostly_slow
from processes import gone

pytestmark = pytest.mark.usefixtures("new_interpreters")
SUPPORT = Path(__file__).parents[1] / "support"
PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"
PROMISES: dict[str, list[str]] = {}
"""Sentence of the page -> the tests of it."""
strict = pytest.mark.skipif(bool(sandbox.problem()), reason=f"no sandbox here: {sandbox.problem()}")
linux = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="Linux only")
pytestmark = linux


def promise(sentence):
    def register(test):
        PROMISES.setdefault(sentence, []).append(test.__name__)
        return test

    return register


@pytest.fixture(scope="module")
def innocent(tmp_path_factory):
    innocent = tmp_path_factory.mktemp("isolation") / "innocent.py"
    innocent.write_text(
        "from mmrl import VerifierSpec, hookimpl\n"
        "@hookimpl\n"
        "def mmrl_verifiers():\n"
        "    return [VerifierSpec(id='innocent/equal', target='innocent:equal')]\n"
        "def equal(case):\n"
        "    return float(case.completion == case.answer)\n"
    )
    return innocent


@pytest.fixture(autouse=True)
def plugin(monkeypatch, innocent):
    monkeypatch.setenv("MMRL_PLUGINS", "")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([str(SUPPORT / "hostile_verifiers.py"), str(innocent)]))


def judge(*names, **settings):
    return local_judge({f"hostile_verifiers/{name}": {} for name in names}, **settings)


def acts(on, *pairs):
    """Scores of (act, what it needs), each a case of one request."""
    return on.run("hostile_verifiers/act", [Case(completion=act, answer=needs) for act, needs in pairs])


def seen(on, *keys):
    """What the next verifier sees in the worker."""
    with tempfile.NamedTemporaryFile() as file:
        assert on.run("hostile_verifiers/look", [Case(completion="", answer=file.name)]) == [Score(1.0)]
        found = json.load(file)
    return {key: found[key] for key in keys}


@contextlib.contextmanager
def children_seen():
    """Ids of all descendants that this process gets meanwhile, looked at a hundred times a second, as they may end soon."""
    me, done, found = psutil.Process(), threading.Event(), set()
    before = {child.pid for child in me.children(recursive=True)}

    def look():
        while not done.wait(0.01):
            found.update({child.pid for child in me.children(recursive=True)} - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def test_a_worker_of_a_local_file_loads_that_file_alone_and_can_import_the_others(monkeypatch, innocent, tmp_path):
    borrows = tmp_path / "borrows.py"
    borrows.write_text(
        "import sys\n"
        "from mmrl import VerifierSpec, hookimpl\n"
        "@hookimpl\n"
        "def mmrl_verifiers():\n"
        "    return [VerifierSpec(id='borrows/equal', target='borrows:equal')]\n"
        "def equal(case):\n"
        "    import innocent\n"
        "    return innocent.equal(case) if 'hostile_verifiers' not in sys.modules else 0.5\n"
    )
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([os.environ["MMRL_PLUGIN_FILES"], str(borrows)]))
    with local_judge({"borrows/equal": {}}) as on:
        assert on.run("borrows/equal", [Case(completion="x", answer=answer) for answer in "xy"]) == [Score(1.0), Score(0.0)]


# With a process of its own


FORGED = [
    '["done", 0, [[1.0, {}, "forged", []],[1.0, {}, "forged", []],[1.0, {}, "forged", []]], true]',
    '["done", 3]',
    '["done", 0, [], true]',
    '["scores", 0, [[1.0,{},"",[]],[1.0,{},"",[]],[1.0,{},"",[]],[1.0,{},"",[]]]]',
    '["scores", 0, [["x"]]]',
    '["scores", 0, [[null,null,null,null]]]',
    '["scores", 0, [[1.0,{"a":NaN},"",[]]]]',
    '["scores", 0, [[1.0,{"\\ud800":1},"",[]]]]',
    '["scores", 0, [[true,{},"",[]]]]',
    '["scores", 0, [[1.0,{},"",[1e999]]]]',
    '["scores", 0, [[1.0,{"a":"b"},"",[]]]]',
    '["scores", 0, 7]',
    '["fault", ["UserError", "forged", "", {}]]',
    '["fault", 7]',
    '["ready"]',
    "[1]",
    "{}",
    "nonsense",
    "[" * 100_000,
    "9" * 5000,
]


@promise("A reply that isn't the one asked for ends the worker and fails its case, never the run.")
@pytest.mark.parametrize("line", mostly_slow(FORGED, everyday=3), ids=lambda line: re.sub(r"\W+", " ", line)[:40].strip())
def test_forged_replies(line):
    with judge("act") as on:
        scores = acts(on, ("nothing", ""), ("forge", line), ("nothing", ""))
        assert [s.value for s in scores] == [1.0, None, 1.0]
        assert scores[1].detail == "the verifier broke the pipe to the judge"
        assert acts(on, ("nothing", "")) == [Score(1.0)]


@pytest.mark.slow
@promise("A reply that isn't the one asked for ends the worker and fails its case, never the run.")
def test_a_reply_without_end():
    with judge("act") as on:
        assert [s.value for s in acts(on, ("endless_line", ""), ("nothing", ""))] == [None, 1.0]


@promise("A value outside the range of the spec has failed, whatever the verifier did to its process.")
def test_forged_score_is_in_its_range():
    for value, detail in ((1e9, "the value is 1e+09, outside its range [0, 1]"), (0.5, "")):
        with judge("act") as on:
            forged, *others = acts(on, ("forge", f'["done", 0, [[{value}, {{}}, "", []]], true]'), *[("nothing", "")] * 3)
            assert [s.value for s in others] == [1.0] * 3
            assert forged == Score(None if detail else value, {}, detail)


@promise("A worker runs the verifiers of one plugin; what one does to Python itself reaches no verifier of another.")
@pytest.mark.parametrize("patch", mostly_slow(["patch_builtins", "patch_json"], everyday=1))
def test_patched_builtins(patch):
    with local_judge({"hostile_verifiers/act": {}, "innocent/equal": {}}) as on:
        acts(on, (patch, ""), (patch, ""))
        assert on.run("innocent/equal", [Case(completion="a", answer="a"), Case(completion="b", answer="a")]) == [
            Score(1.0),
            Score(0.0),
        ]
        assert all(s.value in (None, 1.0) for s in acts(on, ("nothing", ""), ("return", "0.5 + 2")))


@promise("Each chunk begins in the folder of the run, with the worker's own environment, `sys.path`, signal handlers and timers.")
def test_leaks_of_state(tmp_path):
    with judge("act", "look") as on:
        keys = ("pid", "folder", "environment", "path", "terminated", "timer")
        before = seen(on, *keys)
        acts(on, ("chdir", str(tmp_path)), ("environment", "LEAKED"), ("path", "/leaked"), ("signals", ""), ("alarm", 0.05))
        time.sleep(0.1)
        assert seen(on, *keys) == before
        assert before["folder"] == os.getcwd() and before["path"] == sys.path


@promise("Each chunk begins in the folder of the run, with the worker's own environment, `sys.path`, signal handlers and timers.")
def test_relative_pictures_after_another_verifier_has_left_the_folder(tmp_path, monkeypatch):
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "relative.png")
    monkeypatch.chdir(tmp_path)
    with judge("act", "picture") as on:
        acts(on, ("chdir", "/"))
        assert on.run("hostile_verifiers/picture", [Case(completion="", media=("relative.png",))]) == [Score(1.0)]


@promise(
    "A worker is replaced after a chunk that leaves threads, processes or many files, or changes limits or builtin functions; "
    "with models only for the last two."
)
@pytest.mark.parametrize(
    ("act", "needs"),
    mostly_slow([("start_thread", ""), ("leak_descriptors", "300"), ("own_limit", ""), ("patch_builtins", "")], everyday=1),
)
def test_what_is_left_over(act, needs):
    with judge("act", "look") as on:
        keys = ("threads", "data")
        before, pid, descriptors = seen(on, *keys), seen(on, "pid"), seen(on, "descriptors")["descriptors"]
        acts(on, (act, needs))
        assert seen(on, "pid") != pid
        assert seen(on, "threads") == {"threads": before["threads"]}
        assert abs(seen(on, "descriptors")["descriptors"] - descriptors) < 5


@promise("A deadline counts by the clock of the run; a case is stopped at most a quarter of its deadline too late.")
def test_a_verifier_that_moves_its_progress():
    with judge("act", timeout_s=0.4) as on:
        start = time.monotonic()
        scores = acts(on, ("move_progress", ""), ("nothing", ""))
        assert time.monotonic() - start < 60, "it would never end"
    assert scores[1].value == 1.0 and scores[0].value is None


@promise("A case that allocates more than `judge.memory_mb` gets a MemoryError.")
def test_hoarding():
    with judge("act", memory_mb=64) as on:
        scores = acts(on, ("hoard", 200), ("nothing", ""))
    assert [s.value for s in scores] == [None, 1.0] and scores[0].detail.startswith("MemoryError (")


@promise("A worker that occupies a quarter more, with its children and shared memory, is killed within a second.")
@pytest.mark.parametrize("act", mostly_slow(["lift_limit", "shared_map", "child_hoards"], everyday=1))
def test_memory_beyond_the_limit(act):
    with judge("act", memory_mb=64) as on:
        scores = acts(on, (act, 150), ("nothing", ""))
    assert [s.value for s in scores] == [None, 1.0]
    assert scores[0].detail == "took more memory than its limit of 64 MB"


@promise("Processes that a verifier leaves behind end with its worker, also those in a session of their own.")
@pytest.mark.parametrize("act", mostly_slow(["daemon", "daemon_and_die"], everyday=1))
def test_daemons(act, tmp_path):
    path = tmp_path / "pid"
    with judge("act") as on:
        acts(on, (act, str(path)))
        pid = int(path.read_text())
        assert gone(pid)


@promise("A signal to the parent process ends the worker, not the run.")
@pytest.mark.parametrize("name", mostly_slow(["SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP"], everyday=1))
def test_signals_to_the_parent(name):
    received = []
    old = {number: signal.signal(number, lambda *_: received.append(1)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with judge("act", timeout_s=2.0) as on:
            scores = acts(on, ("signal_parent", name), ("nothing", ""))
        assert scores[1].value == 1.0 and not received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@promise("A worker gets the environment variables of a list and those that its verifiers' specs name, so no keys of the run.")
def test_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("SPECIAL_KEY", "given")
    monkeypatch.setenv("OTHER_KEY", "kept")
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", "redis://user:password@host")
    on_gpu = {"PYTORCH_ALLOC_CONF": "backend:native", "TORCHINDUCTOR_CACHE_DIR": "a", "TRITON_CACHE_DIR": "b", "CC": "gcc"}
    for name, value in on_gpu.items():
        monkeypatch.setenv(name, value)
    with judge("look") as on:
        found = seen(on, "environment")["environment"]
    assert not {"HF_TOKEN", "SPECIAL_KEY", "OTHER_KEY", "TORCHINDUCTOR_REDIS_URL"} & set(found)
    assert found["PATH"] == os.environ["PATH"] and found.items() >= on_gpu.items(), "what a model on a GPU needs"
    with judge("keyed") as on:
        assert on.run("hostile_verifiers/keyed", [Case(completion="")]) == [Score(1.0, {}, "given None")]


@promise("Details are cut to one line of 500 characters, and a score has at most 256 parts.")
def test_large_scores():
    with judge("act") as on:
        parts, detail = acts(
            on, ("return", "Score(1.0, {str(i): 1.0 for i in range(200_000)})"), ("return", "Score(1.0, {}, 'line\\n' * 10**6)")
        )
    assert (parts.value, parts.detail) == (None, "it gave 200000 parts, more than 256")
    assert detail.value == 1.0 and len(detail.detail) <= 500 and "\n" not in detail.detail


# In a sandbox


@pytest.fixture
def port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def strictly(act, needs=""):
    """The score of an act in a sandbox; the same act without one shows that it is the sandbox that prevents it."""
    with judge("act", isolation="strict") as on:
        refused, fine = acts(on, (act, needs), ("nothing", ""))
    assert fine == Score(1.0)
    return refused


@strict
@promise("It has no network, and reaches no socket of the file system.")
def test_network(port, tmp_path):
    with judge("act") as on:
        assert acts(on, ("connect", port)) == [Score(1.0)]
    assert strictly("connect", port).detail.startswith("PermissionError")
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with judge("act") as on:
            assert acts(on, ("connect_unix", path)) == [Score(1.0)]
        assert strictly("connect_unix", path).detail.startswith("PermissionError")
    path = str(tmp_path / "datagrams")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        with judge("act") as on:
            assert acts(on, ("send_unix", path)) == [Score(1.0)]
        assert strictly("send_unix", path).detail.startswith("PermissionError")
        server.setblocking(False)
        assert server.recv(9) == server.recv(9) == b"hello"
        with pytest.raises(BlockingIOError):
            server.recv(9)


@strict
@promise("It can write nowhere but in a folder of its own in memory, of 256 MB, which ends with the worker.")
def test_files(tmp_path):
    assert "Read-only file system" in strictly("write_file", str(tmp_path / "file")).detail
    assert not (tmp_path / "file").exists()
    assert strictly("scratch", 8) == Score(1.0)
    assert "No space left" in strictly("scratch", 300).detail
    assert not os.path.exists("/dev/shm/file")


@strict
@promise("It can still read every file that you can read, also those that hold keys.")
def test_reading(tmp_path):
    (tmp_path / "file").write_text("open")
    assert strictly("read_file", str(tmp_path / "file")) == Score(1.0)


@strict
@promise("It sees no process outside: neither to signal it, nor to read its environment, nor to trace it.")
def test_processes(monkeypatch):
    received = []
    old = signal.signal(signal.SIGTERM, lambda *_: received.append(1))
    try:
        assert strictly("kill_engine", os.getpid()).value is None and not received
    finally:
        signal.signal(signal.SIGTERM, old)
    assert strictly("engine_environment", os.getpid()).value is None
    assert strictly("trace").detail.startswith("PermissionError")


@strict
@promise("It can make no name spaces of its own, mount nothing and load nothing into the kernel.")
def test_name_spaces():
    assert strictly("new_space").detail.startswith("PermissionError")


@strict
@promise("Everything that it started ends with it.")
@pytest.mark.parametrize("act", mostly_slow(["daemon", "daemon_and_die"], everyday=1))
def test_daemons_in_a_sandbox(act):
    with children_seen() as seen, judge("act", isolation="strict", timeout_s=3.0) as on:
        acts(on, (act, "/dev/shm/pid"))
    assert seen and all(gone(pid) for pid in seen)


@pytest.mark.slow
@strict
@promise("Deadlines, limits of memory and crashes are as without a sandbox.")
def test_failures_in_a_sandbox():
    with judge("act", isolation="strict", timeout_s=0.5, memory_mb=64) as on:
        scores = acts(on, ("hang", ""), ("hoard", 200), ("return", "__import__('ctypes').string_at(0)"), ("nothing", ""))
        assert acts(on, ("child_hoards", 150))[0].value is None
    assert [s.value for s in scores] == [None, None, None, 1.0]
    assert scores[0].detail == "took longer than its deadline of 0.5 s" and scores[1].detail.startswith("MemoryError (")
    assert "killed by SIGSEGV" in scores[2].detail


def test_a_machine_without_a_sandbox_refuses_strict_isolation(monkeypatch):
    sandbox.problem.cache_clear()
    monkeypatch.setenv("PATH", "")
    try:
        with pytest.raises(
            UserError, match=r'judge.isolation = "strict" needs a sandbox, and bubblewrap isn.t installed: install'
        ):
            judge("act", isolation="strict")
    finally:
        sandbox.problem.cache_clear()


def test_the_page_promises_what_is_tested():
    """Each row of the page's tables of promises is a sentence that tests here carry, and the other way round."""
    rows = re.findall(r"^\| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    promised = {row for row in rows if row not in ("It holds that", "---") and not row.startswith("--")}
    assert promised == set(PROMISES)
