"""A task behind OpenEnv's own server and client, and an OpenEnv server as a task."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request

import pytest

import mmrl
from mmrl import EnvironmentFailed, UserError

openenv = pytest.importorskip("openenv", reason="OpenEnv has an environment of its own: make peers")
uvicorn = pytest.importorskip("uvicorn")
from mmrl_interop.openenv import OpenEnvEnvironment, app  # noqa: E402
from mmrl_interop.openenv_task import OpenEnvTask  # noqa: E402


@contextlib.contextmanager
def served(id, **options):
    with mmrl.open_task(id) as task:
        server = uvicorn.Server(uvicorn.Config(app(task, **options), host="127.0.0.1", port=0, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield task, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@contextlib.contextmanager
def client(url):
    made = openenv.GenericEnvClient(base_url=url).sync()
    made.connect()
    try:
        yield made
    finally:
        made.close()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def test_gold_is_paid_and_wrong_answers_are_not():
    with served("peers/shade") as (task, url), client(url) as env:
        shown = env.reset(split="test", index=3).observation
        assert shown["prompt_id"] == "test-3" and [m["role"] for m in shown["messages"]] == ["system", "user"]
        image, text = shown["messages"][1]["content"]
        assert image["image_url"]["url"].startswith("data:image/png;base64,") and text["text"] == "How dark so so so?"
        gold = task.gold(task.prompts("test")[3])
        expected = task.score(task.case(task.prompts("test")[3], gold))
        paid = env.step({"text": gold})
        assert paid.done and paid.reward == pytest.approx(expected.value) and paid.observation["parts"] == dict(expected.parts)
        env.reset(split="test", index=3)
        assert env.step({"text": "nine"}).reward < paid.reward


def test_the_sum_over_turns_is_the_score():
    """Whoever adds up the steps' rewards, as `interop/openenv` does, and whoever takes the last one, gets the same."""
    with served("interop/sokoban") as (task, url), contextlib.closing(OpenEnvEnvironment(url, split="train", index=0)) as there:
        episode, replies = task.episode(task.prompts("train")[0]), []
        while not episode.done:
            turn = episode.gold_turn().replace(",", "</answer>", 1).partition("</answer>")[0] + "</answer>"  # one move
            episode.step(turn)
            replies.append(there.step(turn))
        score = episode.score().value
    assert len(replies) > 1 and score > 1
    assert replies[-1].reward == pytest.approx(score) and replies[-1].outcome["return"] == pytest.approx(score)


def test_several_turns_and_sessions():
    with served("peers/guess") as (_, url), client(url) as one, client(url) as two:
        for env, index in ((one, 4), (two, 6)):
            env.reset(split="train", index=index)
        first = one.step({"text": "1"})
        assert not first.done and "Guess again" in json.dumps(first.observation["messages"])
        assert two.step({"text": "6"}).done
        last = one.step({"text": "4"})
        assert last.done and last.observation["status"] == "finished" and last.reward > 0.25


def test_what_is_missing_is_no_zero():
    with served("peers/guess") as (_, url), client(url) as env:
        env.reset(split="train", index=4)
        lost = env.step({"text": "die"})
        assert lost.done and lost.reward is None and lost.observation["status"] == "environment-error"


def test_the_task_api_and_bad_requests():
    with served("peers/shade") as (task, url):
        with urllib.request.urlopen(f"{url}/peers-shade/splits", timeout=60) as reply:
            assert [s["name"] for s in json.load(reply)] == list(task.splits)
        assert post(f"{url}/peers-shade/num_tasks", {"split": "test"}) == {"num_tasks": 10}
        assert post(f"{url}/peers-shade/task", {"split": "test", "index": 2})["task"] == {"id": "test-2", "index": 2}
        assert "answer" not in json.dumps(post(f"{url}/peers-shade/tasks", {"split": "test"}))
        with client(url) as env:
            for reset in ({"split": "no"}, {"split": "test", "index": 99}):
                with pytest.raises(Exception, match=r"split|tasks 0 to 9"):
                    env.reset(**reset)
            env.reset(split="test", index=0)
            with pytest.raises(Exception, match="VALIDATION_ERROR"):
                env.step({"words": "1"})


def test_openenv_validates_the_server():
    import subprocess
    import sys
    from pathlib import Path

    with served("peers/shade") as (_, url):
        command = [str(Path(sys.executable).with_name("openenv")), "validate", "--url", url, "--timeout", "20"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_is_a_task():
    with served("peers/shade") as (served_task, url):
        task = OpenEnvTask(url)
        prompts = task.prompts("test", 0)
        assert tuple(task.splits) == tuple(served_task.splits) and len(prompts) == 10
        prompt = prompts[3]
        assert prompt.messages[1]["content"][1]["text"] == "How dark so so so?" and prompt.images[0].size == (56, 56)
        environment = task.environment(prompt)
        reply = environment.step("3")
        environment.close()
        assert reply.terminated and reply.reward > 0 and reply.outcome == {"return": reply.reward}
        assert len(OpenEnvTask(url, max_prompts=4).prompts("test", 0)) == 4
        with pytest.raises(UserError, match="num_tasks"):
            task.prompts("no", 0)


def test_a_server_that_dies_loses_the_episode():
    with served("peers/guess") as (_, url):
        environment = OpenEnvEnvironment(url, split="train", index=2)
        environment.step("1")
    with pytest.raises(EnvironmentFailed):
        environment.step("2")
    environment.close()
    with pytest.raises(EnvironmentFailed):
        OpenEnvEnvironment(url, split="train", index=2)
    with pytest.raises(UserError, match="list_environments"):
        OpenEnvTask(url)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"base_url": "somewhere"}, "is no address"), ({"base_url": "http://127.0.0.1:9", "timeout_s": 0}, "timeout_s")],
)
def test_options_that_cannot_work(options, said):
    with pytest.raises(UserError, match=said):
        OpenEnvTask(**options)
