"""Rewards by models that see target and rendering: CLIP's likeness, and a judge behind an endpoint."""

import pytest
import torch
from mmrl_rendering.likeness import ClipLikeness, DinoLikeness, VisualJudge, both, read
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.judge.image_models import build_tiny
from mmrl.registry import plugins

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64">{}</svg>'
SQUARE = SVG.replace("{}", '<rect x="{0}" y="8" width="24" height="48" fill="{1}"/>')


def target():
    picture = Image.new("RGB", (64, 64), "white")
    picture.paste((255, 0, 0), (8, 8, 32, 56))
    return picture


def case(code, picture=None):
    return Case(completion=code, answer=SQUARE, meta={"code": "svg"}, media=(picture or target(),), image_sizes=((64, 64),))


@pytest.mark.parametrize("kind", [ClipLikeness, DinoLikeness])
def test_a_model_finds_the_right_code_the_same_and_code_that_does_not_render_the_opposite(kind):
    same, other, broken = (
        s.value
        for s in kind(model="tiny", device="cpu")([case(SQUARE.format(8, "red")), case(SQUARE.format(30, "blue")), case("<svg")])
    )
    assert same == pytest.approx(1.0, abs=1e-5) and -1 <= other < 0.9999 and broken == -1.0
    assert [s.value for s in kind(model="tiny", device="cpu")([case("no code")])] == [-1.0], "nothing to embed"


def test_dino_compares_the_mean_of_all_tokens_as_the_published_metric_does():
    """star-vector @5f0fac9, compute_dino_score.py: (cosine of the means of last_hidden_state over its tokens + 1) / 2."""
    model, processor = build_tiny()
    cases = [case(SQUARE.format(x, colour)) for x, colour in ((30, "blue"), (12, "red"), (2, "green"))]
    for one, score in zip(cases, DinoLikeness(model="tiny", device="cpu", batch_size=2)(cases), strict=True):
        with torch.no_grad():
            a, b = (model(**processor(images=p, return_tensors="pt")).last_hidden_state.mean(1) for p in both(one))
        assert (score.value + 1) / 2 == pytest.approx((float(torch.nn.CosineSimilarity(dim=1)(a, b)) + 1) / 2, abs=1e-6)


class Endpoint:
    def __init__(self, *answers):
        self.answers, self.asked = answers, []

    def ask(self, questions):
        self.asked += questions
        return list(self.answers)


def test_the_judge_sees_both_pictures_and_no_code():
    judge = VisualJudge(model="tiny")
    judge.endpoint = Endpoint(Answer(text="The square moved.\nScore: 7", finished=True, num_tokens=1))
    scores = judge([case("<svg"), case(SQUARE.format(30, "red"))])
    assert [s.value for s in scores] == [0.0, 0.7], "code that doesn't render isn't shown"
    ((message,),) = (question.messages for question in judge.endpoint.asked)
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url", "image_url", "text"] and "<rect" not in message["content"][2]["text"]
    first, second = (part["image_url"]["url"] for part in message["content"][:2])
    assert first != second and first.startswith("data:image/png")


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Score: 10", 1.0),
        ("**Score: 4/10**\n\n", 0.4),
        ("Score: 3\nbut maybe 5", None),
        ("Score: 11", None),
        ("Score: 7.5", None),
        ("", None),
        (NoAnswer("host: status 500"), None),
    ],
)
def test_what_cannot_be_read_is_a_failure_and_never_zero(said, value):
    assert read(said if isinstance(said, NoAnswer) else Answer(text=said, finished=True, num_tokens=1)).value == value


def test_a_smoke_run_asks_nobody_and_compares_pixels():
    scores = VisualJudge(model="tiny")([case(SQUARE.format(8, "red")), case(SQUARE.format(36, "red"))])
    assert scores[0].value == 1.0 and scores[1].value < 0.1 and scores[0].detail == "no endpoint is asked"


def test_options_that_cannot_work_are_refused_before_a_run():
    with pytest.raises(UserError, match="base_url = 'nowhere' is no address"):
        VisualJudge.check({}, model="m", base_url="nowhere")
    for kind in (ClipLikeness, DinoLikeness):
        with pytest.raises(UserError, match="is not a folder"):
            kind.check({}, model="/nowhere/clip")
    ids = ("rendering/clip@rlrf", "rendering/dino@rlrf", "rendering/judge@rrvf")
    ranges = [(s.low, s.high) for s in (plugins.registry().get("verifiers", id) for id in ids)]
    assert ranges == [(-1.0, 1.0), (-1.0, 1.0), (0.0, 1.0)]
