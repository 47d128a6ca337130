"""The client of OpenAI-compatible endpoints, against one on loopback that answers, fails and lies."""

from __future__ import annotations

import json
import threading

import pytest
from PIL import Image

from mmrl.api.endpoints.answers import Answer, NoAnswer, read_reply
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.judges import judge_endpoint
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.endpoints.options import AnswerOptions
from mmrl.api.errors import UserError
from mmrl.api.media.images import load_image
from mmrl.api.types import user_message
from stub_endpoint import body, completion, hang_up, status, stub_endpoint

NOW = {"retry_after": "0"}


def question(text="what?", **more):
    return Question(messages=[{"role": "user", "content": text}], max_tokens=16, **more)


def ask(stub, *texts, **settings):
    return ChatEndpoint(model="m", base_url=stub.url, **settings).ask([question(t) for t in texts or ("what?",)])


def test_answers_come_in_order_and_at_most_so_many_at_once():
    two = threading.Barrier(2)

    def answer(asked):
        two.wait(30)
        return asked["messages"][0]["content"].upper()

    with stub_endpoint(answer=answer) as stub:
        texts = [f"q{i}" for i in range(12)]
        endpoint = ChatEndpoint(model="m", base_url=stub.url, concurrency=3)
        assert [a.text for a in endpoint.ask([question(t) for t in texts])] == [t.upper() for t in texts]
        assert stub.most_at_once <= 3
        assert (endpoint.calls, endpoint.total_tokens) == (12, 12 * 14)
        assert len(stub.bodies) == 12


def test_the_request_has_the_settings_and_the_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    with stub_endpoint() as stub:
        endpoint = ChatEndpoint(model="m", base_url=stub.url, extra={"top_k": 5}, omit=("temperature",))
        assert endpoint.ask([question(seed=3, top_p=0.5)]) == [Answer(text="yes", finished=True, num_tokens=4)]
        expected = {"model": "m", "max_tokens": 16, "top_p": 0.5, "seed": 3, "top_k": 5}
        assert stub.bodies == [{**expected, "messages": [{"role": "user", "content": "what?"}]}]
        assert stub.keys == ["Bearer s3cret"]


@pytest.mark.parametrize("fault", [status(429, **NOW), status(500, **NOW), status(503, **NOW), hang_up])
def test_what_may_pass_is_asked_again(fault):
    with stub_endpoint(faults=[fault]) as stub:
        assert ask(stub)[0].text == "yes"
        assert len(stub.bodies) == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (status(429, "slow down", **NOW), "status 429: slow down"),
        (status(500, "oops", **NOW), "status 500: oops"),
        (status(400, "bad\npicture"), "status 400: bad picture"),
        (status(401, "who?"), "status 401: who?"),
        (status(404, "no such model"), "status 404: no such model"),
        (body(b'{"choices": [{"mess'), "its reply is no JSON"),
        (body(b"<html>hello</html>", "text/html"), "its reply is no JSON"),
        (body(b"", "text/plain"), "its reply is no JSON"),
        (body(b'{"weather": "fine"}'), "its reply holds no answer"),
        (body(b"[1, 2]"), "its reply holds no answer"),
        (body(json.dumps(completion(None)).encode()), "its reply holds no answer"),
        (body(json.dumps(completion(None, refusal="I won't")).encode()), "its reply holds no answer: I won't"),
        (body(json.dumps(completion(["a list"])).encode()), "its reply holds no answer"),
        (body(json.dumps(completion("x", "content_filter")).encode()), "a filter"),
        (body(b" " * (9 * 2**20)), "longer than 8,388,608 bytes"),
        (hang_up, "RemoteProtocolError"),
    ],
)
def test_what_is_no_answer_is_told_in_one_line(fault, said):
    with stub_endpoint(always=fault) as stub:
        (answer,) = ask(stub, retries=1)
        assert isinstance(answer, NoAnswer)
        assert said in str(answer) and str(answer).startswith("127.0.0.1:") and "\n" not in str(answer)
        assert len(str(answer)) < 400


def test_an_endpoint_that_stalls_and_one_that_is_not_there():
    told = threading.Event()
    with stub_endpoint(always=lambda handler: told.wait(60)) as stub:
        (answer,) = ask(stub, retries=0, timeout_s=0.2)
        assert isinstance(answer, NoAnswer) and "Timeout" in str(answer)
        told.set()
        url = stub.url
    (answer,) = ChatEndpoint(model="m", base_url=url, retries=0).ask([question()])
    assert isinstance(answer, NoAnswer) and "ConnectError" in str(answer)


def test_one_failure_leaves_the_other_answers_alone():
    def answer(asked):
        return asked["messages"][0]["content"]

    with stub_endpoint(answer=answer, faults=[status(400)]) as stub:
        found = ask(stub, "a", "b", "c", concurrency=1)
        assert isinstance(found[0], NoAnswer) and [a.text for a in found[1:]] == ["b", "c"]


def test_the_budget_ends_further_questions():
    with stub_endpoint() as stub:
        found = ask(stub, "a", "b", "c", max_calls=2, concurrency=1)
        assert isinstance(found[2], NoAnswer) and "max_calls = 2" in str(found[2]) and len(stub.bodies) == 2
    with stub_endpoint() as stub:  # an answer takes 14 tokens
        found = ask(stub, "a", "b", "c", max_total_tokens=20, concurrency=1)
        assert isinstance(found[2], NoAnswer) and "max_total_tokens = 20" in str(found[2]) and len(stub.bodies) == 2
    nothing = [body(json.dumps(completion(*one)).encode()) for one in ((None, "length"), ("x", "content_filter"))]
    with stub_endpoint(faults=nothing) as stub:  # what holds no answer takes tokens too: a model may have thought to its limit
        found = ask(stub, "a", "b", "c", max_total_tokens=20, concurrency=1)
        assert "cut it off before one: raise max_tokens" in str(found[0]) and "removed the answer" in str(found[1])
        assert "max_total_tokens = 20" in str(found[2]) and len(stub.bodies) == 2


def test_answers_are_kept_by_content(tmp_path):
    with stub_endpoint() as stub:
        for _ in range(2):
            assert ask(stub, "a", "b", cache=tmp_path / "kept")[1].text == "yes"
        assert len(stub.bodies) == 2
        ask(stub, "other", cache=tmp_path / "kept")
        assert len(stub.bodies) == 3
        for file in (tmp_path / "kept").rglob("*.json"):
            file.write_text('{"text": 3}')
        assert ask(stub, "a", cache=tmp_path / "kept")[0].text == "yes"  # a damaged file counts as missing
        assert len(stub.bodies) == 4


def test_failures_are_not_kept(tmp_path):
    with stub_endpoint(faults=[status(400)]) as stub:
        assert isinstance(ask(stub, cache=tmp_path)[0], NoAnswer)
        assert ask(stub, cache=tmp_path)[0].text == "yes"


def test_an_answer_that_was_cut_off_says_so():
    with stub_endpoint(finish_reason="length") as stub:
        assert ask(stub)[0].finished is False


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"base_url": "localhost"}, "is no address"),
        ({"base_url": "file:///etc/passwd"}, "is no address"),
        ({"model": ""}, "has no name"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"max_calls": True}, "max_calls = True"),
        ({"retries": -1}, "retries = -1"),
        ({"timeout_s": float("nan")}, "timeout_s = nan"),
        ({"base_url": "https://api.example.com/v1"}, "set the environment variable OPENAI_API_KEY"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, said, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError) as refused:
        ChatEndpoint(**{"model": "m", "base_url": "http://127.0.0.1:1/v1"} | settings)
    assert said in str(refused.value)


def test_pixels_arrive_unchanged_and_large_images_are_shrunk():
    import base64

    image = Image.effect_noise((40, 20), 80).convert("RGB")
    (message,), sizes = ChatEncoder()([user_message("where?", image)])
    shown, text = message["content"]
    sent = load_image(base64.b64decode(shown["image_url"]["url"].partition(",")[2]))
    assert sent.tobytes() == image.tobytes() and sizes == [(40, 20)] and text == {"type": "text", "text": "where?"}
    small = ChatEncoder(max_pixels=200)
    (message,), _ = small([user_message("where?", image)])
    sent = load_image(base64.b64decode(message["content"][0]["image_url"]["url"].partition(",")[2]))
    assert sent.size == small.size((40, 20)) == (20, 10)
    assert ChatEncoder()([{"role": "system", "content": "hello"}])[0] == [{"role": "system", "content": "hello"}]


TOLD = [
    # with a reasoning parser: SGLang and DeepSeek, vLLM and OpenRouter; both at once, as vLLM 0.11
    (completion("9", reasoning_content="A loop."), "<think>A loop.</think>9", "9"),
    (completion("9", reasoning="A loop."), "<think>A loop.</think>9", "9"),
    (completion("9", reasoning="A loop.", reasoning_content="A loop."), "<think>A loop.</think>9", "9"),
    (completion("9", reasoning_content="</think> ends it."), "<think></think> ends it.</think>9", "9"),
    # without one, where the chat template has begun the thinking or the model
    (completion("A loop.\n</think>\n\n9"), "<think>A loop.\n</think>9", "9"),
    (completion("<think>\nA loop.</think>9"), "<think>\nA loop.</think>9", "9"),
    (completion('{"why": "</think>", "score": 3}'), '{"why": "</think>", "score": 3}', '{"why": "</think>", "score": 3}'),
    # without thinking
    (completion("9", reasoning_content=None), "9", "9"),
    (completion("\n9", reasoning=""), "\n9", "\n9"),
    (completion("9", reasoning={"effort": "low"}), "9", "9"),
]


@pytest.mark.parametrize(("reply", "whole", "text"), TOLD)
def test_what_a_model_thought_is_read_and_told_from_what_it_says(reply, whole, text):
    """It was lost where a server split it off, and was a part of a judge's verdict where none did."""
    answer, _ = read_reply(json.dumps(reply).encode())
    assert (answer.whole, answer.text) == (whole, text)


@pytest.mark.parametrize(
    ("reply", "whole", "finished"),
    [
        (completion(None, "length", reasoning="A loop, or"), "<think>A loop, or", False),
        (completion("", "length", reasoning_content="A loop, or"), "<think>A loop, or", False),
        (completion("<think>A loop, or", "length"), "<think>A loop, or", False),
        (completion(None, reasoning="A loop."), "<think>A loop.</think>", True),
    ],
)
def test_thinking_without_an_answer_is_none_and_is_kept(reply, whole, finished):
    with pytest.raises(NoAnswer, match="holds no answer" + ("" if finished else ".*cut it off before one")) as lost:
        read_reply(json.dumps(reply).encode())
    assert (lost.value.thought.whole, lost.value.thought.finished, lost.value.used) == (whole, finished, 14)


@pytest.mark.parametrize(
    "reply", [completion(None, reasoning="x", refusal="no"), completion("x", "content_filter", reasoning="x")]
)
def test_a_refusal_behind_thinking_is_no_thought(reply):
    with pytest.raises(NoAnswer) as lost:
        read_reply(json.dumps(reply).encode())
    assert lost.value.thought is None


def test_answers_that_were_kept_before_thinking_was_are_found(tmp_path):
    with stub_endpoint(faults=[body(json.dumps(completion("9", reasoning="A loop.")).encode())]) as stub:
        kept = {"base_url": stub.url, "cache": str(tmp_path)}
        first, again = (ChatEndpoint(model="m", **kept).ask([question()])[0] for _ in range(2))
        assert first == again and again.whole == "<think>A loop.</think>9"
        (file,) = tmp_path.rglob("*.json")
        file.write_text('{"text": "8", "finished": true, "num_tokens": 1}')
        assert ChatEndpoint(model="m", **kept).ask([question()]) == [Answer(text="8", finished=True, num_tokens=1)]
        assert len(stub.bodies) == 1


def test_counts_of_the_reply_are_not_believed_blindly():
    strange = completion("x") | {"usage": {"completion_tokens": "many", "total_tokens": -5}}
    assert read_reply(json.dumps(strange).encode()) == (Answer(text="x", finished=True, num_tokens=0), 0)
    with pytest.raises(NoAnswer):
        read_reply(b"[" * 100_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency = 0 must be a whole number of at least 1"),
        ({"retries": -1}, "retries = -1 must be a whole number of at least 0"),
        ({"max_calls": 1.5}, "max_calls = 1.5 must be a whole number of at least 1"),
        ({"request_timeout_s": 0}, "request_timeout_s = 0 must be a number above 0 and at most 86400"),
        ({"max_tokens": True}, "max_tokens = True must be a whole number of at least 1"),
        ({"temperature": -0.1}, "temperature = -0.1 must be a number of at least 0"),
        ({"extra": "x"}, "extra = 'x' must be a table"),
        (
            {"key_variable": "HOME"},
            "key_variable = 'HOME': a verifier gets OPENAI_API_KEY and MMRL_JUDGE_KEY alone: use one of them",
        ),
    ],
)
def test_options_of_an_endpoint_are_checked_where_they_are_declared(options, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        AnswerOptions(model="m", **options)


def test_what_is_said_of_an_endpoint_reaches_it():
    """Each setting under its own name, and the seconds of a request, which a verifier's own time-out isn't."""
    said = {
        "base_url": "http://there:1/v1",
        "concurrency": 3,
        "retries": 2,
        "max_calls": 5,
        "max_total_tokens": 7,
        "omit": ["seed"],
    }
    said |= {"extra": {"top_k": 5}, "key_variable": "MMRL_JUDGE_KEY", "cache": None}
    made = judge_endpoint(AnswerOptions(model="m", request_timeout_s=9, max_tokens=4, **said))
    assert made is not None and (made.model, made.timeout_s) == ("m", 9)
    assert {name: getattr(made, name) for name in said} == said
    assert judge_endpoint(AnswerOptions(model="tiny")) is None
