"""The board's responses, its access control, and that it never writes to a run folder."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from boards import Running, board
from long_runs import rollout, write_run
from mmrl.run_folder.writer import RunFolder
from mmrl.ui import cli
from mmrl.ui.board import pages, serving
from mmrl.ui.board.state import State
from runs import figure

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board") / "runs"
    write_run(folder / "one", steps=60, every=10, groups=3, size=4)
    write_run(folder / "deep" / "two", steps=40, every=10, groups=3, size=4, planned=80)
    return folder


@pytest.fixture(scope="module")
def served(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with board(runs, tmp_path_factory.mktemp("caches")) as running:
        yield running


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A board, and its folder, into which tests write runs of their own."""
    folder = tmp_path_factory.mktemp("written") / "runs"
    folder.mkdir()
    with board(folder, tmp_path_factory.mktemp("caches")) as running:
        yield running, folder


@pytest.fixture(scope="module")
def guarded(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with board(runs, tmp_path_factory.mktemp("caches"), "--host", "127.0.0.1", token="tell-nobody") as running:
        yield running


PAGES = ("/", "/curves", "/rollouts", "/rollout", "/episodes", "/alarms", "/compare", "/settings")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_whole_and_may_run_nothing_of_others(served: Running, page: str) -> None:
    answer = served.get(page, run="deep/two", id="40.1")
    assert answer.code == 200 and answer.text.rstrip().endswith("</html>")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self';" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    inline = re.search(r"<script(?![^>]*src=)|\son\w+=|style=|https?://(?!127)", answer.text)
    assert not inline, "nothing inline, nothing from elsewhere"


def test_the_list_says_how_runs_stand(served: Running, runs: Path) -> None:
    rows = {row["name"]: row for row in served.get("/api/runs").json["runs"]}
    assert {name: row["state"] for name, row in rows.items()} == {"one": "stopped", "deep/two": "stopped"}
    assert (rows["deep/two"]["step"], rows["deep/two"]["steps"]) == (40, 80)
    assert rows["one"]["evals"][0]["value"] == pytest.approx(0.9)


def test_a_column_has_one_title_which_is_true_of_runs_that_ended() -> None:
    html = pages.runs(
        [State(name="a", state="finished", step=3, steps=3, seconds=25.0), State(name="b", state="running", step=1, left=9.0)],
        "runs",
    )
    assert "25 s<small>elapsed</small>" in html and re.search(r"9(\.0)? s<small>left</small>", html)
    titles = re.findall(r'data-sort="(\w+)"><button type="button" class="sort">(.*?)</button>', html)
    assert dict(titles)["left"] == "Time"
    assert titles * 2 == re.findall(r'data-field="(\w+)" data-title="(.*?)"', html)


def test_a_run_that_goes_fails_or_ends_is_called_that(written: tuple[Running, Path]) -> None:
    served, runs = written
    run = write_run(runs / "x", steps=40, every=20, groups=1, size=2, planned=100)

    def state() -> dict:
        return next(row for row in served.get("/api/runs").json["runs"] if row["name"] == "x")

    code = "import fcntl,sys,time; fcntl.flock(f := open(sys.argv[1], 'ab'), fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(run / ".lock")], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout
            holder.stdout.readline()
            assert state()["state"] == "running"
            assert state()["left"] == pytest.approx(60 * 4.0), "at the pace of the newest steps"
        finally:
            holder.kill()
    assert state()["state"] == "stopped" and state()["left"] is None
    (run / ".lock").write_text("another-machine, whose locks nobody sees here")
    assert state()["state"] == "running"
    os.utime(run / "metrics.jsonl", (time.time() - 700, time.time() - 700))
    assert state()["state"] == "stopped"
    row = {"step": 40, "where": "the end of the run", "what": "the disk is full"}
    (run / "errors.jsonl").write_text(json.dumps(row) + "\n")
    assert (state()["state"], state()["why"]) == ("failed", "the disk is full")
    assert "the disk is full" in served.get("/").text
    (run / "summary.json").write_text("{}")
    assert state()["state"] == "finished"
    (run / "config.toml").write_text("not = [toml")
    assert state()["state"] == "unreadable"
    assert served.get("/curves", run="x").code == 200, "what can be read is shown"


def test_a_run_stands_where_it_is_after_an_evaluation_of_many_tasks(written: tuple[Running, Path]) -> None:
    """The rows of such an evaluation are longer than the end of the file that the list reads at first."""
    served, runs = written
    run = RunFolder.open(write_run(runs / "many", steps=40, every=20, groups=1, size=2, planned=100))
    for number in range(300):
        run.evaluation(40, "rl", figure(f"task {number}", 0.5, extra={f"part/of/{n:02}": 0.5 for n in range(50)}))
    (row,) = [row for row in served.get("/api/runs").json["runs"] if row["name"] == "many"]
    assert (row["step"], row["steps"], row["reward"] is not None) == (40, 100, True)


def test_curves_say_what_was_measured(served: Running, runs: Path) -> None:
    served.indexed("one", 72)
    about = served.get("/api/curves", run=["one", "deep/two"]).json
    assert [run["name"] for run in about["runs"]] == ["one", "deep/two"] and about["shares"] == ["accuracy", "success"]
    titles = {chart["title"]: chart for section in about["sections"] for chart in section["charts"]}
    assert titles["Reward"]["keys"] == ["reward/mean"] and titles["Seconds per step"]["stacked"]
    assert len(about["evals"]["one"]) == 20
    rows = [json.loads(line) for line in (runs / "one" / "metrics.jsonl").read_text().splitlines()]
    known = [row["metrics"]["kl"] for row in rows if "metrics" in row]
    found = served.get("/api/series", run="one", key=["kl", "loss"]).json
    assert found["series"]["kl"]["value"] == known and found["last"] == 60
    few = served.get("/api/series", run="one", key="kl", points=5).json["series"]["kl"]
    assert len(few["value"]) == 5 and max(few["high"]) == max(known)


def test_rollouts_are_found_and_linked(served: Running) -> None:
    served.indexed("one", 72)
    page = served.get("/rollouts", run="one", step=30).text
    assert page.count('class="card group') == 3
    link = re.search(r'href="(/rollout\?[^"]+)"', page)
    assert link
    answer = served.get(link[1].replace("&amp;", "&"))
    assert answer.code == 200 and "What does the picture show?" in answer.text
    first = served.get("/part/groups", run="one")
    seen = set(re.findall(r"id=(\d+\.\d+)", first.text))
    while more := re.search(r'id="more" href="/rollouts\?([^"]+)"', first.text):
        first = served.get("/part/groups?" + more[1].replace("&amp;", "&"))
        seen |= set(re.findall(r"id=(\d+\.\d+)", first.text))
    assert len({place.partition(".")[0] for place in seen}) == 6, "all recorded steps come by"


def events(served: Running, run: str, seconds: float, found: list[tuple[float, str, dict]], began: threading.Event) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=seconds)
    connection.request("GET", f"/api/live?run={run}")
    answer, kind = connection.getresponse(), ""
    try:
        while line := answer.readline().decode():
            text = line.rstrip("\n")
            began.set()
            if text.startswith("event: "):
                kind = text.removeprefix("event: ")
            elif text.startswith("data: "):
                found.append((time.monotonic(), kind, json.loads(text.removeprefix("data: "))))
    except OSError:
        pass
    finally:
        connection.close()


@pytest.mark.slow
def test_a_step_is_told_within_a_second(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "live", steps=30, every=10, groups=1, size=2)
    found: list[tuple[float, str, dict]] = []

    def told(kind: str) -> list[tuple[float, int]]:
        """When, and of which step."""
        messages = [(when, message) for when, one, message in found if one == kind]
        return [(when, row["step"]) for when, message in messages for row in message.get("rows") or [message] if "step" in row]

    with board(tmp_path / "runs", tmp_path / "caches") as served:
        served.get("/curves", run="live")
        began = threading.Event()
        reader = threading.Thread(target=events, args=(served, "live", 60.0, found, began))
        reader.start()
        assert began.wait(30)
        time.sleep(0.3)
        took: list[float] = []
        while not took or (took[-1] > 1.0 and len(took) < 10):  # now and then others keep the machine busy
            step, written = 31 + len(took), time.monotonic()
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"step": step, "stage": "rl", "time": 200.0, "metrics": {"kl": 0.5}}) + "\n")
            row = json.dumps(rollout(step, 0, 0, None, random.Random(0)))
            (run / "rollouts" / f"step-{step:06}.jsonl").write_text(row + "\n")
            while not all(told(kind) and told(kind)[-1][1] == step for kind in ("steps", "rollouts")):
                assert time.monotonic() < written + 30
                time.sleep(0.01)
            took.append(told("steps")[-1][0] - written)
        assert took[-1] < 1.0, took
    reader.join()


OUTSIDE = (
    "../secret.png", "..%2fsecret.png", "rollouts/media/../../../secret.png", "/etc/passwd", "config.toml", "checkpoints/x.png",
    "rollouts/media/link.png", "rollouts/media/%2e%2e/secret.png", "rollouts\\media\\x.png", "rollouts/media/x.png\0.png",
    "rollouts/media/a.svg",
)  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_is_served(served: Running, runs: Path, path: str) -> None:
    (runs.parent / "secret.png").write_bytes(b"t0p")
    link = runs / "one" / "rollouts" / "media" / "link.png"
    if not link.is_symlink():
        link.symlink_to(runs.parent / "secret.png")
    for answer in (served.get("/media", run="one", path=path), served.get(f"/media?run=one&path={path}".replace("\0", "%00"))):
        assert answer.code == 404 and b"t0p" not in answer.body


NAMES = ("..", "../runs/one", "one/../one", "/one", "./one", "one/", "deep", "", "one\0", "alias", "%2e%2e/runs/one")


@pytest.mark.parametrize("name", NAMES)
def test_no_other_name_is_a_run(served: Running, runs: Path, tmp_path: Path, name: str) -> None:
    if not (runs / "alias").is_symlink():
        outside = write_run(tmp_path / "outside", steps=1, every=1, groups=1, size=1)
        (runs / "alias").symlink_to(outside)
    for page in ("/curves", "/media", "/api/series", "/text", "/rollouts", "/settings"):
        assert served.get(page, run=name, path="rollouts/media/" + "0" * 64 + ".png", key="kl", id="10.0").code == 404


CODE = ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/nothing")


@pytest.mark.parametrize("path", CODE)
def test_no_code_is_served(served: Running, path: str) -> None:
    answer = served.get(path)
    assert answer.code in (404, 405) and b"import" not in answer.body


def test_only_this_machine_is_answered(served: Running) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert served.get("/", {"Host": host}).code in (400, 403), host
    for host in ("localhost", "localhost:9", "127.0.0.1", "[::1]:80"):
        assert served.get("/", {"Host": host}).code == 200, host
    assert served.get("/", method="POST").code == 405
    listening = [c.laddr.ip for c in psutil.Process(served.process.pid).net_connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


def test_a_token_is_asked_for(guarded: Running) -> None:
    assert guarded.get("/").code == guarded.get("/", token="tell-nobod").code == 403
    answer = guarded.get("/curves", run="one", token="tell-nobody")
    assert answer.code == 303 and answer.headers["location"] == "/curves?run=one"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert guarded.get("/", {"Cookie": cookie.partition(";")[0], "Host": "elsewhere"}).code == 200
    assert guarded.get("/", {"Cookie": "mmrl-board=x"}).code == 403


def test_a_token_is_not_in_the_list_of_processes(guarded: Running) -> None:
    guarded.get("/curves", {"Cookie": "mmrl-board=tell-nobody"}, run="one")
    server = psutil.Process(guarded.process.pid)
    (indexer,) = server.children()
    assert not [one for one in (server, indexer) if "tell-nobody" in " ".join(one.cmdline())]
    assert "MMRL_BOARD_TOKEN" not in indexer.environ(), "the indexer needs no secret"


def test_a_token_comes_from_a_file(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tell-nobody\n")
    with board(runs, tmp_path / "caches", "--token-file", str(tmp_path / "token")) as served:
        assert served.get("/").code == 403 and served.get("/", {"Cookie": "mmrl-board=tell-nobody"}).code == 200


def test_the_browser_is_given_a_file_that_leads_to_the_address_with_the_secret() -> None:
    with serving._page_that_leads_to("http://127.0.0.1:1/?token=tell-nobody") as path:
        assert "tell-nobody" not in path and "?token=tell-nobody" in Path(path).read_text()
        assert Path(path).stat().st_mode & 0o077 == 0
    assert not Path(path).exists()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The line in which `mmrl board OPTIONS` is refused."""

    def refused(*options: str, token: str = "") -> str:
        monkeypatch.setenv("MMRL_BOARD_TOKEN", token)
        with pytest.raises(SystemExit) as ended:
            cli.main(["board", *options], prog_name="mmrl")
        said = capsys.readouterr()
        assert ended.value.code == 2 and said.out == "" and said.err.count("\n") == 1
        return said.err

    return refused


def test_what_can_not_be_served_is_refused_in_one_line(runs: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "give the folder that holds runs" in refused(str(tmp_path / "none"))
    assert "protect them with a token" in refused(str(runs), "--host", "0.0.0.0")
    assert "the token must be" in refused(str(runs), token="a b")
    assert "set MMRL_BOARD_TOKEN" in refused(str(runs), "--token", "tell-nobody")
    assert "can't be read" in refused(str(runs), "--token-file", str(tmp_path / "none"))
    assert "is empty" in refused(str(runs), "--token-file", os.devnull)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "is in use" in refused(str(runs), "--port", str(taken.getsockname()[1]))
    assert "can't listen on" in refused(str(runs), "--host", "127.0.0.999", token="tell-nobody")


def test_hostile_text_stays_text(written: tuple[Running, Path]) -> None:
    served, runs = written
    name = "a <u>&'x"
    run = write_run(runs / name, steps=10, every=10, groups=1, size=1, tasks=[{"id": HOSTILE}])
    row = rollout(10, 0, 0, "media/../../../x.png", random.Random(0))
    row |= {key: HOSTILE for key in ("task", "prompt_id", "completion", "answer", "status", "source")}
    row["score"] = {"value": 1.0, "parts": {HOSTILE: 1.0}, "status": "ok", "detail": HOSTILE}
    row["overlays"] = [
        {"kind": HOSTILE, "label": HOSTILE},
        {"kind": "box", "coordinates": [0, 0, 1, 1], "source": "said", "label": HOSTILE},
    ]
    (run / "rollouts" / "step-000010.jsonl").write_text(json.dumps(row) + "\n")
    (run / "errors.jsonl").write_text(json.dumps({"step": 5, "where": HOSTILE, "what": HOSTILE}) + "\n")
    served.indexed(name, 1)
    for page in PAGES:
        text = served.get(page, run=name, id="10.0", q=HOSTILE if page == "/rollouts" else "").text
        assert not re.search("<script>alert|<img src=x|<u>", text), page


def test_odd_media_are_shown_as_what_they_are(written: tuple[Running, Path]) -> None:
    served, runs = written
    run = write_run(runs / "odd", steps=10, every=10, groups=1, size=1)
    media = run / "rollouts" / "media"
    Image.new("1", (10_000, 10_000)).save(media / "huge.png")
    (media / "torn.png").write_bytes((media / "huge.png").read_bytes()[:20])
    (media / "torn.webp").write_bytes(b"RIFF")
    rows = []
    for n, path in enumerate(("huge.png", "torn.png", "none.png")):
        said = "x" * (1 << 20) if n == 0 else "y"
        rows.append({**rollout(10, n, 0, f"media/{path}", random.Random(0)), "completion": said})
    (run / "rollouts" / "step-000010.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    served.indexed("odd", 3)
    page = served.get("/rollouts", run="odd")
    assert page.code == 200 and len(page.body) < 200_000, "a megabyte of text is not sent"
    assert "image is missing" in page.text and "not a PNG" in page.text
    assert "too large to be shown: 10,000 by 10,000 pixels" in page.text
    assert len(served.get("/text", run="odd", id="10.0").body) == 1 << 20, "but may be asked for"
    assert served.get("/media/frame", run="odd", path="rollouts/media/torn.webp").code in (404, 422)


def test_a_folder_that_vanishes(written: tuple[Running, Path]) -> None:
    served, runs = written
    run = write_run(runs / "gone", steps=20, every=10, groups=1, size=1)
    served.indexed("gone", 2)
    shutil.rmtree(run)
    answer = served.get("/curves", run="gone")
    assert answer.code == 404 and "there is no run" in answer.text and answer.text.rstrip().endswith("</html>")
    assert "gone" not in [row["name"] for row in served.get("/api/runs").json["runs"]]
    write_run(runs / "gone", steps=10, every=10, groups=1, size=2)
    served.indexed("gone", 2)


def test_it_ends_with_its_watcher(runs: Path, tmp_path: Path) -> None:
    with board(runs, tmp_path / "caches") as served:
        served.get("/curves", run="one")
        children = psutil.Process(served.process.pid).children(recursive=True)
        assert children
        os.kill(served.process.pid, signal.SIGINT)
        served.process.wait(30)
        psutil.wait_procs(children, timeout=30)
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
