"""`mmrl.open_task`: prompts, scores and episodes for other programs, on a plugin whose verifiers and environments misbehave."""

import asyncio
import json
import pickle
import warnings

import numpy
import pytest

import mmrl
from mmrl import Case, ImageProcessing, Status, UserError
from mmrl.api.cases import case_from_json, case_to_json, make_turn, with_turns
from mmrl.api.errors import EnvironmentFailed, PluginError
from processes import gone

PLUGIN = """
import time
from PIL import Image
from mmrl import (Case, EnvironmentFailed, NoGold, Prompt, Reply, Score, Task, TaskSpec, VerifierSpec,
                  hookimpl, user_message)
from mmrl.api.coordinates import convert_coordinates

@hookimpl
def mmrl_tasks():
    def spec(name, **verifiers):
        return TaskSpec(id=f"open/{name}", target=f"open:{name}", verifiers={f"open/{v}": w for v, w in verifiers.items()})
    return [spec("Where", near=1.0), spec("Mixed", near=1.0, judge=0.5), spec("Watched", near=1.0, judge=0.0),
            spec("Guess", guessed=2.0), spec("Bare"), spec("Broken", near=1.0), spec("Seen", seen=1.0), spec("Talk", talk=1.0)]

@hookimpl
def mmrl_verifiers():
    more = {"judge": {"timeout_s": 0.5}, "seen": {"images": True}, "talk": {"rollout": True, "high": 100.0}}
    names = ("near", "judge", "guessed", "seen", "talk")
    return [VerifierSpec(id=f"open/{n}", target=f"open:{n}", **more.get(n, {})) for n in names]

class Where(Task):
    '''Where the corner is: (30, 40) of a picture of 120 x 80.'''
    def prompts(self, split, seed):
        picture, unit = Image.new("RGB", (120, 80), "navy"), self.image_processing.coordinate_format
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"In {unit}, number {i}?", picture)], answer=(30, 40),
                       meta={"size": (120, 80), "i": i}) for i in range(3 + seed)]
    def gold(self, prompt):
        seen, size = self.image_processing, (120, 80)
        x, y = convert_coordinates(prompt.answer, "pixels", seen.coordinate_format, size, seen.model_size(size))
        return f"{x} {y}"

class Mixed(Where): pass
class Watched(Where): pass
class Seen(Where): pass
class Bare(Where): pass

class Broken(Where):
    def prompts(self, split, seed):
        rows = super().prompts(split, seed) * 10
        return [Prompt(id=str(i), messages=[user_message("?", "missing.png" if i % seed == 0 else p.images[0])])
                for i, p in enumerate(rows)]

class Guess(Task):
    '''A number from 0 to 9, in several turns.'''
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message("Guess.")], answer=i) for i in range(10)]
    def gold(self, prompt):
        raise NoGold("guess")
    def environment(self, prompt):
        if prompt.answer == 9:
            raise EnvironmentFailed("no more pages")
        return Number(prompt.answer)

class Talk(Guess): pass

class Number:
    closed = 0
    def __init__(self, number):
        self.number = number
    def gold_turn(self):
        return str(self.number)
    def step(self, completion):
        if completion == "die":
            raise EnvironmentFailed("the page is gone")
        if completion == "err":
            raise ValueError("a bug")
        if completion == "odd":
            return Reply(reward=float("nan"))
        if completion.strip() == str(self.number):
            return Reply(terminated=True, reward=0.25, outcome={"success": 1.0})
        return Reply(messages=[user_message("No.", Image.new("RGB", (64, 32)))], reward=-0.125, outcome={"success": 0.0})
    def close(self):
        Number.closed += 1

def near(case):
    if case.completion == "raise":
        raise ValueError("what is this")
    sizes = case.image_sizes[0], (case.model_sizes or ((0, 0),))[0]
    x, y = convert_coordinates([float(v) for v in case.completion.split()], case.coordinate_format, "pixels", *sizes)
    return float(abs(x - case.answer[0]) + abs(y - case.answer[1]) < 1e-3)

def judge(case):
    if "hang" in case.completion:
        time.sleep(60)
    if "sulk" in case.completion:
        return float("nan")
    return 1.0

def seen(case):
    return float(case.images[0].size == (120, 80) and case.images[0].getpixel((0, 0)) == (0, 0, 128))

def guessed(case):
    return case.outcome.get("success", 0.0)

def talk(case):
    said = [(t.text, len(t.token_ids), len(t.messages)) for t in case.rollout.turns]
    return Score(float(case.rollout.length), {}, f"{case.completion} {said} {case.image_sizes} {case.rollout.prompt.text}")
"""
HALF = ImageProcessing(mmrl.CoordinateFormat.MODEL_PIXELS, lambda size: (size[0] // 2, size[1] // 2))


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("open") / "open.py"
    path.write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGINS", "")
        patch.setenv("MMRL_PLUGIN_FILES", str(path))
        yield


@pytest.fixture(scope="module")
def mixed():
    with mmrl.open_task("open/Mixed") as task:
        yield task


def test_a_task_says_what_it_is(mixed):
    assert (mixed.id, mixed.splits, mixed.metric) == ("open/Mixed", ("train", "test"), "open/near")
    assert mixed.verifiers == {"open/near": 1.0, "open/judge": 0.5}
    assert (mixed.multi_turn, mixed.acts, mixed.needs_images) == (False, False, False)


def test_prompts_are_a_sequence_of_a_split_and_a_seed(mixed):
    prompts = mixed.prompts("test", 2)
    assert len(prompts) == 5 == len(list(prompts))
    assert [p.id for p in prompts] == [f"test-{i}" for i in range(5)] and prompts[-1].id == "test-4"
    assert {p.task for p in prompts} == {"open/Mixed"} and prompts[0].answer == (30, 40)
    with pytest.raises(IndexError):
        prompts[5]


def test_scores_are_the_weighted_sum_for_one_case_and_for_several(mixed):
    prompt = mixed.prompts()[0]
    score = mixed.score(mixed.case(prompt, mixed.gold(prompt)))
    assert (score.value, score.parts) == (1.5, {"open/near": 1.0, "open/judge": 1.0})
    assert [s.value for s in mixed.score([mixed.case(prompt, text) for text in ("30 40", "1 1")])] == [1.5, 0.5]
    assert mixed.score([]) == []


def test_what_can_not_be_scored_is_missing_and_says_why(mixed):
    prompt = mixed.prompts()[0]
    hung, raised, sulked = mixed.score([mixed.case(prompt, text) for text in ("30 40 hang", "raise", "1 1 sulk")])
    assert (hung.value, hung.status, raised.value, sulked.value) == (None, "failed", None, None)
    assert "open/judge failed: took longer than its deadline of 0.5 s" in hung.detail
    assert raised.detail.startswith("open/near failed: ValueError: what is this")
    lost = mixed.score(mixed.case(prompt, "30 40", status="environment-error"))
    assert (lost.value, lost.status) == (None, "lost")


def test_a_verifier_of_weight_zero_fails_alone():
    with mmrl.open_task("open/Watched") as task:
        score = task.score(task.case(task.prompts()[0], "30 40"))
        other = task.score(task.case(task.prompts()[0], "1 1 "))
    assert (score.value, other.value) == (1.0, 0.0)


def test_scoring_does_not_block_the_event_loop():
    async def both(task):
        prompt = task.prompts()[0]
        cases = [task.case(prompt, text) for text in ("30 40", "1 1", "30 40 hang")]
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        single, several = await asyncio.gather(task.score_async(cases[0]), task.score_async(cases))
        ticking.cancel()
        return single.value, [s.value for s in several], ticks

    with mmrl.open_task("open/Mixed") as task:
        single, several, ticks = asyncio.run(both(task))
        assert (single, several) == (1.5, [1.5, 0.5, None])
        assert ticks > 10, "half a second of waiting for the deadline"
        assert asyncio.run(both(task))[1] == several, "another event loop"


def test_prompts_without_answers_find_them_again(mixed):
    shown, hidden = mixed.prompts("test", 1), mixed.prompts("test", 1, answers=False)
    for prompt, blind in zip(shown, hidden, strict=True):
        assert blind.answer is None and blind.meta == {"mmrl_place": ["test", 1, blind.meta["mmrl_place"][2]]}
        assert mixed.case(blind, "x").answer == prompt.answer and mixed.case(blind, "x").meta == prompt.meta
        assert mixed.gold(blind) == mixed.gold(prompt)
        assert (blind.id, blind.messages) == (prompt.id, prompt.messages)
    counted = mixed.prompts("test", numpy.int64(1), answers=False)[numpy.int64(0)]
    assert mixed.case(counted, "x").answer == shown[0].answer and json.loads(json.dumps(counted.meta)) == counted.meta
    for place in (["test", 1, 99], ["test", 1], "x", [1, 2, 3]):
        with pytest.raises(UserError, match="has the place"):
            mixed.case(mmrl.Prompt(messages=(), meta={"mmrl_place": place}), "x")


@pytest.mark.parametrize(("processing", "gold"), [(None, "30.0 40.0"), (HALF, "15.0 20.0")])
def test_a_model_s_coordinates_are_asked_for_and_read(processing, gold):
    with mmrl.open_task("open/Where", model=processing) as task:
        prompt = task.prompts()[0]
        case = task.case(prompt, task.gold(prompt))
        assert case.completion == gold and case.image_sizes == ((120, 80),)
        assert case.model_sizes == (((60, 40),) if processing else ((120, 80),))
        assert task.score(case).value == 1.0
        assert task.score(case_from_json(case_to_json(case), "a test")).value == 1.0


def test_a_frame_without_a_model():
    with mmrl.open_task("open/Where", frame="thousandths") as task:
        prompt = task.prompts()[0]
        assert task.gold(prompt) == "250.0 500.0" and "thousandths" in prompt.text
        assert task.score(task.case(prompt, "250 500")).value == 1.0


@pytest.mark.parametrize("name", ["tiny:qwen2_5_vl", pytest.param("tiny:qwen3_vl", marks=pytest.mark.slow)])
def test_a_model_is_seen_as_a_run_sees_it(name):
    """The sizes and the format that a policy of this model gives to its tasks."""
    pytest.importorskip("torch")
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.load import make_policy

    policy = make_policy(PolicyConfig(model=name, max_pixels=4096), device="cpu")
    task = mmrl.open_task("open/Where", model=name, max_pixels=4096)
    prompt = task.prompts()[0]
    case, encoded = task.case(prompt, ""), policy.encode(prompt)
    assert (case.model_sizes, case.image_sizes) == (encoded.model_sizes, encoded.image_sizes)
    assert case.model_sizes[0] != case.image_sizes[0]
    assert case.coordinate_format == encoded.coordinate_format == policy.image_processing.coordinate_format


def test_images_reach_the_verifiers_that_read_them():
    with mmrl.open_task("open/Seen") as task:
        case = task.case(task.prompts()[0], "")
        assert task.needs_images and task.score(case).value == 1.0
        assert task.score(case_from_json(case_to_json(case), "a test")).value == 1.0
        assert "images" not in case_to_json(case, images=False)


def test_images_of_later_turns_have_sizes_too():
    """The prompt's image is in `images`, and those that an environment shows are in its messages."""
    from PIL import Image

    first, later = Image.new("RGB", (8, 4)), Image.new("RGB", (6, 2))
    shown = {"role": "user", "content": [{"type": "image", "image": later}]}
    turns = [make_turn("one"), make_turn("two", messages=[shown])]
    case = with_turns(Case(completion="two", media=(first,), image_sizes=((8, 4), (6, 2)), model_sizes=((8, 4), (6, 2))), turns)
    row = case_to_json(case)
    assert case_from_json(row, "a test").image_sizes == ((8, 4), (6, 2))
    with pytest.raises(UserError, match=r"'image_sizes' says .*\[6, 3\]"):
        case_from_json({**row, "image_sizes": [[8, 4], [6, 3]]}, "a test")


def test_broken_prompts_are_left_out_and_too_many_are_an_error():
    task = mmrl.open_task("open/Broken")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(list(task.prompts(seed=50))) == 530 - 11
    assert "left out 11 prompts; the first: item 0: image missing.png does not exist" in str(said[0].message)
    with pytest.raises(UserError, match="prompts are broken: fix or remove them; the last: item "):
        list(task.prompts(seed=2))


def test_an_episode_is_reset_step_and_done():
    with mmrl.open_task("open/Guess") as task, task.episode(task.prompts()[4]) as episode:
        assert task.multi_turn and episode.messages == episode.prompt.messages and not episode.done
        reply = episode.step("3")
        assert reply.messages[0]["content"][-1]["text"] == "No." and list(episode.messages) == list(reply.messages)
        assert (episode.done, episode.reward) == (False, -0.125)
        assert episode.gold_turn() == "4" and episode.step("4").terminated
        assert (episode.done, episode.status, episode.reward) == (True, Status.FINISHED, 0.125)
        assert episode.gold_turn() is None
        score = episode.score()
        assert (score.value, score.parts) == (2.125, {"open/guessed": 1.0, "environment": 0.125})
        with pytest.raises(UserError, match="the episode of prompt 'train-4' is over"):
            episode.step("4")


def test_an_episode_is_truncated_as_in_a_run():
    with mmrl.open_task("open/Talk") as task, task.episode(task.prompts()[4], max_turns=2) as episode:
        episode.step("one two", tokens=7)
        episode.step("three four five")
        assert (episode.done, episode.status) == (True, Status.TRUNCATED_TURNS)
        score = asyncio.run(episode.score_async())
        said = "[('one two', 7, 0), ('three four five', 3, 1), ('', 0, 1)]"
        assert (score.value, score.detail) == (9.75, f"open/talk: three four five {said} ((64, 32), (64, 32)) Guess.")
        assert task.score(case_from_json(case_to_json(episode.case()), "a test")).detail == score.detail


def test_an_environment_pays_for_an_episode_that_is_truncated():
    with mmrl.open_task("open/Talk") as task, task.episode(task.prompts()[4], max_turns=2) as episode:
        episode._environment.truncate = lambda: mmrl.Reply(reward=3.0, outcome={"cut": 1.0})
        episode.step("one")
        assert episode.step("two").reward == 2.875 and episode.reward == 2.75
        assert episode.case().outcome == {"cut": 1.0} and [turn.reward for turn in episode.turns] == [-0.125, 2.875, 0.0]


def test_an_environment_that_fails_loses_the_score_and_is_closed():
    import sys

    with mmrl.open_task("open/Guess") as task:
        task.prompts()
        number = sys.modules["open"].Number
        before = number.closed
        with task.episode(task.prompts()[4]) as episode:
            asyncio.run(episode.step_async("3"))
            assert episode.step("die").terminated
            assert (episode.done, episode.status, episode.failure) == (True, Status.ENVIRONMENT_ERROR, "the page is gone")
            assert (episode.score().value, episode.score().status) == (None, "lost")
        assert number.closed == before + 1
        for wrong, text in (("err", "raised ValueError: a bug"), ("odd", "must give a mmrl.Reply with a finite reward")):
            with task.episode(task.prompts()[4]) as episode, pytest.raises(PluginError, match=text):
                episode.step(wrong)
        with task.episode(task.prompts()[4]):
            pass
        assert number.closed == before + 4
        with pytest.raises(EnvironmentFailed, match="no more pages"):
            task.episode(task.prompts()[9])


def test_an_episode_of_a_task_without_environments_has_one_turn(mixed):
    with mixed.episode(mixed.prompts()[0]) as episode:
        assert episode.gold_turn() == "30.0 40.0"
        assert episode.step("30 40").terminated and episode.done
        assert episode.score().value == 1.5


def test_closing_ends_the_workers():
    task = mmrl.open_task("open/Where")
    task.close()
    with mmrl.open_task("open/Where") as task:
        task.ready()
        pids = [worker.popen.pid for worker in task._judge._scorers._workers]
        assert len(pids) == 1
    assert all(map(gone, pids))
    task.close()
    with pytest.raises(UserError, match="it is closed: open it again"):
        task.score(Case(completion=""))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"id": "open/Wher"}, "no task 'open/Wher'. Did you mean 'open/Where'?"),
        ({"options": {"speed": 1}}, "task 'open/Where' has no option 'speed'"),
        ({"id": "open/Bare"}, "task 'open/Bare' names no verifiers: give some"),
        ({"verifiers": {"open/nea": 1.0}}, "no verifier 'open/nea'. Did you mean 'open/near'?"),
        (
            {"verifier_options": {"open/nearr": {}}},
            "verifier_options: 'open/nearr' is no verifier of this task. Did you mean 'open/near'?",
        ),
        ({"frame": "percent"}, "frame = 'percent' is unknown. Known: pixels, model-pixels, thousandths, unit"),
        ({"frame": "model-pixels"}, "frame = 'model-pixels' depends on how the model resizes images: give model="),
        ({"model": "./nowhere"}, "policy.model: './nowhere' is not a folder"),
        ({"model": "tiny:qwen3_vl", "frame": "pixels"}, "policy.frame: a qwen3_vl model writes thousandths"),
        ({"model": "tiny:qwen3_vl", "max_pixels": 0}, "policy.max_pixels: 0 must be a whole number of at least 1"),
        ({"model": "tiny:qwen3_vl", "max_pixels": 9, "min_pixels": 10}, "policy.min_pixels: 10 is above max_pixels = 9"),
    ],
)
def test_bad_arguments_are_one_line(args, message):
    with pytest.raises(UserError) as error:
        mmrl.open_task(**{"id": "open/Where"} | args)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda task: task.prompts("dev"), "task 'open/Where' has no split 'dev': choose one of train, test"),
        (lambda task: task.score(["x"]), "score() takes mmrl.Case, not str: make cases with case()"),
        (lambda task: task.simulator(2), "task 'open/Where' is answered in words and has no simulator"),
        (lambda task: task.episode(task.prompts()[0], 0), "max_turns = 0 must be at least 1"),
    ],
)
def test_bad_calls_are_one_line(call, message):
    with mmrl.open_task("open/Where") as task, pytest.raises(UserError) as error:
        call(task)
    assert str(error.value).startswith(message)


def test_a_case_of_turns_crosses_to_json_and_back(mixed):
    case = mixed.case(
        mixed.prompts()[0], "b", turns=[make_turn("a", 3), make_turn("b", reward=0.5, messages=[mmrl.user_message("so?")])]
    )
    back = case_from_json(case_to_json(case), "a test")
    assert [(t.text, len(t.token_ids), t.reward) for t in back.rollout.turns] == [("a", 3, 0.0), ("b", 1, 0.5)]
    assert back.rollout.turns[1].messages == ({"role": "user", "content": [{"type": "text", "text": "so?"}]},)
    assert back.answer == [30, 40] and pickle.loads(pickle.dumps(back)).rollout.length == 4
