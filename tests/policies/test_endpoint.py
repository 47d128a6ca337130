"""A model behind an endpoint as a policy: it is evaluated as any other, and never trained."""

from __future__ import annotations

import functools
import json
import pickle

import pytest
from click.testing import CliRunner

from mmrl.api.endpoints.messages import data_url
from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Environment, Task
from mmrl.api.media.images import load_image
from mmrl.api.types import Prompt, Reply, Status, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.endpoint import EndpointPolicy, OpaqueTokens
from mmrl.registry import plugins
from mmrl.rollout.endpoint import EndpointGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.ui.cli import main
from stub_endpoint import body, completion, status, stub_endpoint

DIGITS = "classification/digits"


@functools.cache
def golds():
    """Data URL of each held-out digit -> its gold completion."""
    task = plugins.registry().make_task(DIGITS, {})
    return {data_url(load_image(p.images[0])): task.gold(p) for p in task.prompts("test", 0)}


def perfect(asked):
    shown, _ = asked["messages"][-1]["content"]
    return golds()[shown["image_url"]["url"]]


def run_file(folder, stub, **policy):
    options = {"base_url": stub.url, "retries": 0, **policy.pop("options", {})}
    rows = [
        f"policy = {json_toml({'model': 'm', 'kind': 'openai', **policy, 'options': options})}",
        f'tasks = [{{id = "{DIGITS}"}}]',
    ]
    rows += [
        'name = "api"',
        'stages = [{kind = "rl", steps = 1}]',
        "evaluate = {num_prompts = 24}",
        "generate = {max_tokens = 8}",
    ]
    (folder / "api.toml").write_text("\n".join(rows))
    return str(folder / "api.toml")


def json_toml(value):
    inner = ", ".join(f"{k} = {json_toml(v) if isinstance(v, dict) else json.dumps(v)}" for k, v in value.items())
    return f"{{{inner}}}"


def call(*arguments):
    done = CliRunner().invoke(main, [*arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_model_that_knows_all_answers_scores_one(tmp_path):
    with stub_endpoint(answer=perfect) as stub:
        done = call("eval", run_file(tmp_path, stub), "--json", "--save", str(tmp_path / "saved"))
    figure = json.loads(done.stdout)[DIGITS]
    assert (figure["value"], figure["n"], figure["extra"]["failed"]) == (1.0, 24, 0.0)
    assert (
        len(stub.bodies) == 24
        and {b["max_tokens"] for b in stub.bodies} == {8}
        and {b["temperature"] for b in stub.bodies} == {0.0}
    )
    with stub_endpoint(answer=lambda asked: "7") as stub:
        call("eval", run_file(tmp_path, stub), "--save", str(tmp_path / "always-7"))
    compared = json.loads(call("compare", str(tmp_path / "always-7"), str(tmp_path / "saved"), "--json").stdout)
    assert compared["tasks"][0]["n"] == 24 and compared["tasks"][0]["paired"]["difference"] > 0.7
    again = call("eval", run_file(tmp_path, stub), "--save", str(tmp_path / "saved"))
    said = f"mmrl: --save {tmp_path / 'saved'} already exists and is not an empty folder: give another\n"
    assert (again.exit_code, again.stderr) == (2, said), "it has no --resume and no --overwrite"
    call("report", str(tmp_path / "saved"))
    assert "classification/digits" in (tmp_path / "saved" / "report.html").read_text("utf-8")


def test_answers_that_the_endpoint_owes_are_failures_and_no_zeros(tmp_path):
    with stub_endpoint(answer=perfect, faults=[body(b"{}")] * 3) as stub:
        done = call("eval", run_file(tmp_path, stub, options={"concurrency": 24}), "--json")
    figure = json.loads(done.stdout)[DIGITS]
    assert (figure["value"], figure["n"], figure["extra"]["failed"]) == (1.0, 21, 3.0)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(status(401, "wrong key"), "status 401: wrong key"), (status(404, "no model m"), "status 404: no model m")],
)
def test_an_endpoint_that_never_answers_ends_the_evaluation(tmp_path, fault, said):
    with stub_endpoint(always=fault) as stub:
        done = call("eval", run_file(tmp_path, stub))
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) <= 2


def test_training_is_refused(tmp_path):
    with stub_endpoint() as stub:
        path = run_file(tmp_path, stub)
        for arguments in (["train", path], ["train", path, "--dry-run"]):
            done = call(*arguments, "--set", f"runs_dir={json.dumps(str(tmp_path))}")
            assert done.exit_code == 2 and 'policy.kind = "openai" can only be evaluated' in done.stderr
    assert not stub.bodies and not (tmp_path / "api").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "bfloat16"}, "policy.dtype: means nothing"),
        ({"lora": {"rank": 4}}, "policy.lora: means nothing"),
        ({"options": {"base_url": "nowhere"}}, "is no address"),
        ({"options": {"concurency": 3}}, "concurency"),
        ({"frame": "miles"}, "policy.frame"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_asked(tmp_path, change, said):
    with stub_endpoint() as stub:
        done = call("eval", run_file(tmp_path, stub, **change))
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1 and not stub.bodies


def test_several_answers_have_seeds_of_their_own_and_greedy_ones_none():
    with stub_endpoint() as stub:
        policy = EndpointPolicy(PolicyConfig(model="m", kind="openai"), base_url=stub.url)
        generator = EndpointGenerator(policy)
        inputs = [policy.encode(Prompt(messages=[user_message(text)])) for text in ("a", "b")]
        sampled = SamplingParams(max_tokens=4, temperature=0.7, top_p=0.9, seed=5)
        groups = generator.generate(inputs, 3, sampled)
        seeds = [b["seed"] for b in stub.bodies]
        assert [len(g) for g in groups] == [3, 3] and len(set(seeds)) == 6
        generator.generate(inputs, 3, sampled)
        assert sorted(b["seed"] for b in stub.bodies[6:]) == sorted(seeds)
        generator.generate(inputs, 1, SamplingParams(max_tokens=4, temperature=0.0))
        assert all("seed" not in b for b in stub.bodies[12:])
        with pytest.raises(UserError, match="top_k"):
            generator.generate(inputs, 1, SamplingParams(max_tokens=4, temperature=1.0, top_k=3))


class Countdown(Environment):
    """Ends after the third answer; each reply shows what was said so far."""

    def __init__(self, log):
        self.left, self.log = 3, log

    def step(self, completion):
        self.left -= 1
        self.log.append(completion)
        return Reply(
            messages=[user_message(f"{self.left} left")], terminated=self.left == 0, outcome={"success": float(self.left == 0)}
        )

    def close(self):
        self.log.append("closed")


class Counting(Task):
    def __init__(self):
        self.log = []

    def environment(self, prompt):
        return Countdown(self.log)


def episode(**settings):
    task = Counting()
    with stub_endpoint(**settings) as stub:
        policy = EndpointPolicy(PolicyConfig(model="m", kind="openai"), base_url=stub.url, retries=0)
        collector = ConversationCollector(policy, EndpointGenerator(policy), {"count": task})
        prompt = Prompt(messages=[user_message("count")], task="count")
        (rollout,) = collector.collect([prompt], collector.encode([prompt]), 1, SamplingParams(max_tokens=4, temperature=0.0))
    assert isinstance(rollout, Conversation)
    return rollout, task, stub


def test_a_conversation_with_an_environment_is_sent_whole():
    rollout, task, stub = episode(answer=lambda asked: f"turn {len(asked['messages'])}")
    assert rollout.status is Status.FINISHED and rollout.outcome == {"success": 1.0}
    assert [t.text for t in rollout.turns] == ["turn 1", "turn 3", "turn 5"] and rollout.length == 12
    assert task.log == ["turn 1", "turn 3", "turn 5", "closed"]
    assert [(m["role"], m["content"]) for m in stub.bodies[-1]["messages"]] == [
        *[("user", "count"), ("assistant", "turn 1"), ("user", "2 left"), ("assistant", "turn 3"), ("user", "1 left")]
    ]


def told(text, finish_reason="stop", **message):
    return body(json.dumps(completion(text, finish_reason, **message)).encode())


def test_environments_get_the_thinking_and_later_turns_don_t_read_it():
    """With a reasoning parser it was lost, without one the endpoint was sent it again."""
    thoughts = [told("1", reasoning="One."), told("Two.</think>\n\n2"), told("3")]
    rollout, task, stub = episode(faults=thoughts)
    assert task.log == ["<think>One.</think>1", "<think>Two.</think>2", "3", "closed"]
    assert [t.text for t in rollout.turns] == task.log[:3] and rollout.length == 12
    assert [m["content"] for m in stub.bodies[-1]["messages"] if m["role"] == "assistant"] == ["1", "2"]


def test_thinking_that_is_cut_off_is_an_answer_cut_off_and_not_a_failure():
    """A policy that runs here has thought and not answered, too, and is wrong."""
    rollout, _, _ = episode(always=told(None, "length", reasoning="It is 7, or"))
    assert (rollout.completion, rollout.status) == ("<think>It is 7, or", Status.TRUNCATED_LENGTH)


def test_an_endpoint_that_fails_in_a_later_turn_loses_the_episode():
    def second(asked):
        if len(asked["messages"]) > 1:
            raise ConnectionResetError
        return "turn 1"

    with pytest.warns(UserWarning, match="an episode was lost"):
        rollout, task, _ = episode(answer=second)
    assert rollout.status is Status.ENVIRONMENT_ERROR and task.log == ["turn 1", "closed"]


def test_coordinates_need_a_frame_that_somebody_says(tmp_path):
    with stub_endpoint() as stub:
        made = EndpointPolicy(PolicyConfig(model="m", kind="openai"), base_url=stub.url)
        with pytest.raises(UserError, match=r"policy\.frame"):
            _ = made.image_processing.coordinate_format
        made = EndpointPolicy(PolicyConfig(model="m", kind="openai", frame="thousandths", max_pixels=100), base_url=stub.url)
        assert made.image_processing.coordinate_format == "thousandths" and made.image_processing.model_size((40, 10)) == (20, 5)


def test_tokens_of_an_answer_carry_its_text():
    tokens = OpaqueTokens("hello", 3)
    again = pickle.loads(pickle.dumps(tokens))
    assert (len(again), again.text, again.said, again) == (3, "hello", "hello", tokens)
    assert pickle.loads(pickle.dumps(OpaqueTokens("<think>a</think>9", 3, "9"))).said == "9"
    assert len(OpaqueTokens("hello", 0)) == 1 and len(OpaqueTokens("", 0)) == 0
