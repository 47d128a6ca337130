"""Verifiers that misuse their process: a plugin file. A case's completion says how, its answer holds what the act needs."""

import builtins
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from mmrl import Case, Score, VerifierSpec, hookimpl

HOARD = []
"""What stays referenced after a case."""


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="hostile_verifiers/act", target="hostile_verifiers:act", timeout_s=3.0),
        VerifierSpec(id="hostile_verifiers/look", target="hostile_verifiers:look"),
        VerifierSpec(id="hostile_verifiers/keyed", target="hostile_verifiers:keyed", environment=("SPECIAL_KEY",)),
        VerifierSpec(id="hostile_verifiers/picture", target="hostile_verifiers:picture", images=True),
    ]


def act(case: Case) -> float | Score:
    result = ACTS[case.completion](case.answer)
    return 1.0 if result is None else result


def look(case: Case) -> Score:
    """Write what a verifier finds in its process into the file that the answer names."""
    found = {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": sys.path,
        "terminated": repr(signal.getsignal(signal.SIGTERM)),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "data": resource.getrlimit(resource.RLIMIT_DATA),
        "pid": os.getpid(),
    }
    Path(case.answer).write_text(json.dumps(found))
    return Score(1.0)


def keyed(case: Case) -> Score:
    return Score(1.0, {}, f"{os.environ.get('SPECIAL_KEY')} {os.environ.get('OTHER_KEY')}")


def picture(case: Case) -> float:
    return float(case.images[0].size == (8, 8))


def forge(line):
    """Write a line of its own to all pipes that might be the judge's."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe"):
            try:
                os.write(int(name), line.encode() + b"\n")
            except OSError:  # a pipe that is read
                continue


def endless_line(_):
    """Write to the judge's pipe, and never end the line."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe"):
            try:
                while True:
                    os.write(int(name), b"[" * 2**16)
            except OSError:
                continue


def patch_builtins(_):
    builtins.float = lambda value=0: 999.0
    builtins.max = builtins.min = lambda *a, **k: 999.0


def patch_json(_):
    json.dumps = lambda *a, **k: '["done", 0, [[999.0, {}, "", []]], true]'


def leak_descriptors(count):
    HOARD.append([os.open("/dev/null", os.O_RDONLY) for _ in range(int(count))])


def start_thread(_):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def shared_map(megabytes):
    size = int(megabytes) * 2**20
    shared = mmap.mmap(-1, size)
    HOARD.append(shared)
    for start in range(0, size, 4096):
        shared[start] = 1
    time.sleep(2)


def lift_limit(megabytes):
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.getrlimit(kind)[1]))
    hoard(megabytes)
    time.sleep(2)


def hoard(megabytes):
    HOARD.append(bytearray(int(megabytes) * 2**20))
    memory = HOARD[-1]
    for start in range(0, len(memory), 4096):
        memory[start] = 1


def child_hoards(megabytes):
    code = f"import time; b = bytearray({int(megabytes)} * 2**20); b[::4096] = b[::4096]; time.sleep(20)"
    subprocess.run([sys.executable, "-c", f"import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1)); {code}"])


def move_progress(_):
    """Tell the engine again and again that the next case has begun, and never end."""
    for name in Path("/proc/self/maps").read_text().splitlines():
        if "mmrl" in name and "memfd" in name:
            start = int(name.split("-")[0], 16)
            index = ctypes.c_int64.from_address(start)
            while True:
                index.value += 1
                time.sleep(0.05)


def daemon(path):
    """Leave a process behind that is nobody's child and has a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(path).write_text(str(os.getpid()))
            for descriptor in range(256):
                try:
                    os.close(descriptor)
                except OSError:
                    continue
            time.sleep(1000)
        os._exit(0)
    os.wait()
    while not (Path(path).exists() and Path(path).read_text()):
        time.sleep(0.01)


def daemon_and_die(path):
    daemon(path)
    os._exit(9)


def signal_parent(name):
    os.kill(os.getppid(), getattr(signal, name))
    time.sleep(1)


def connect(port):
    with socket.create_connection(("127.0.0.1", int(port)), timeout=2) as connection:
        connection.sendall(b"hello")


def connect_unix(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)


def send_unix(path):
    for make in (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0]):
        make().sendto(b"hello", path)


def engine_environment(pid):
    """Read the environment of the engine."""
    return float(b"MMRL_SECRET" in Path(f"/proc/{pid}/environ").read_bytes())


def kill_engine(pid):
    os.kill(int(pid), signal.SIGTERM)


def write_file(path):
    Path(path).write_text("written")


def read_file(path):
    return float(Path(path).read_text() == "open")


def scratch(megabytes):
    folder = os.environ["TMPDIR"]
    with open(f"{folder}/file", "wb") as file:
        for _ in range(int(megabytes)):
            file.write(bytes(2**20))
            file.flush()


def new_space(_):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0:  # CLONE_NEWUSER
        return 1.0
    raise PermissionError("no new name space")


def trace(_):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, os.getppid(), None, None) == 0:  # PTRACE_ATTACH
        return 1.0
    raise PermissionError("no tracing")


ACTS = {
    "nothing": lambda _: None,
    "return": lambda value: eval(value),  # the test says what
    "chdir": os.chdir,
    "environment": lambda name: os.environ.__setitem__(name, "changed"),
    "path": lambda name: sys.path.insert(0, name),
    "signals": lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None,
    "alarm": lambda seconds: signal.setitimer(signal.ITIMER_REAL, float(seconds)) and None,
    "hang": lambda _: time.sleep(1000),
    "own_limit": lambda _: resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.getrlimit(resource.RLIMIT_DATA)[1])),
    **{
        function.__name__: function
        for function in (
            *(forge, endless_line, patch_builtins, patch_json, leak_descriptors, start_thread, shared_map, lift_limit, hoard),
            *(
                child_hoards,
                move_progress,
                daemon,
                daemon_and_die,
                signal_parent,
                connect,
                connect_unix,
                send_unix,
                engine_environment,
            ),
            *(kill_engine, write_file, read_file, scratch, new_space, trace),
        )
    },
}
