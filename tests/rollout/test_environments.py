"""Episodes with an environment that answers, in text and pictures: what is sampled is what is trained, and every end is told
apart."""

import functools
import math
import threading
from dataclasses import replace

import pytest
import torch

import vlm_cases as cases
from mmrl.api.errors import EnvironmentFailed, PluginError, UserError
from mmrl.api.interfaces import Task
from mmrl.api.types import Reply, Score, Status, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.judge import build_cases
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.run_folder.rollouts import rollout_row
from mmrl.train.update.pack_conversations import pack

FAMILIES = (*cases.FAMILIES, "llava")
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    @functools.cache
    def make(family):
        if family != "llava":
            return cases.policy(family)
        return VLM(PolicyConfig(model=cases.llava(tmp_path_factory.mktemp("llava"))))

    return make


class Say:
    """Says so many things, each with a picture where `pictures` says so, and then ends."""

    def __init__(self, task, length, pictures):
        self.task, self.left, self.pictures = task, length, pictures
        self.heard = []

    def step(self, completion):
        self.heard.append(completion)
        self.left -= 1
        if self.left < 0:
            return Reply(terminated=True, reward=0.5)
        shown = [cases.picture(self.left, 28 + 28 * self.left, 56)] if self.pictures else []
        return Reply(messages=[user_message(f"No, {self.left}.", *shown)], reward=-0.25)

    def close(self):
        self.task.closed += 1


class Talk(Task):
    """The episode of prompt p1 has one answer, that of p2 two, ..."""

    def __init__(self, pictures=True):
        self.pictures, self.closed, self.environments = pictures, 0, []

    def environment(self, prompt):
        self.environments.append(Say(self, int(prompt.id[1:]) - 1, self.pictures))
        return self.environments[-1]


def collected(vlm, task, prompts=(1, 2, 3), group=2, max_turns=8, max_tokens=5):
    posed = [replace(cases.prompt(n), task="talk") for n in prompts]
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"talk": task}, max_turns)
    return collector.collect(
        posed, collector.encode(posed), group, SamplingParams(max_tokens=max_tokens, temperature=TEMPERATURE, seed=3)
    )


def directly(vlm, rollout):
    """transformers' own forward of all ids and pictures of an episode, with positions of its own: the logprobs of what was
    sampled."""
    ids, sampled = [*rollout.inputs.ids.tolist()], []
    for number, turn in enumerate(rollout.turns):
        ids += turn.observed_ids if number else ()
        sampled += range(len(ids), len(ids) + len(turn.token_ids))
        ids += turn.token_ids
    shown = [
        *rollout.prompt.images,
        *(p["image"] for t in rollout.turns for m in t.messages for p in m["content"] if "image" in p),
    ]
    encoded = dict(vlm.processor.image_processor(images=shown, return_tensors="pt"))
    ids = torch.tensor([ids])
    pads = [vlm.tokenizer.convert_tokens_to_ids(t) for t in ("<|image_pad|>", "<image>")]
    if "llava" not in vlm.model.config.model_type:
        encoded["mm_token_type_ids"] = torch.isin(ids, torch.tensor([p for p in pads if p is not None])).int()
    vlm.family.forget_positions()
    logits = vlm.model(input_ids=ids, attention_mask=torch.ones_like(ids), **encoded).logits[0] / TEMPERATURE
    logits[:, sorted(vlm.banned)] = -torch.inf
    places = torch.tensor(sampled)
    return logits[places - 1].log_softmax(-1).gather(1, ids[0][places][:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_sampled_is_what_is_trained_with_pictures_in_every_turn(policy, family):
    vlm = policy(family)
    found = collected(vlm, Talk())
    assert [len(r.turns) for r in found] == [1, 1, 2, 2, 3, 3]
    want = [directly(vlm, r) for r in found]
    for rollout, expected in zip(found, want, strict=True):
        sampler = torch.tensor([p for t in rollout.turns for p in t.logprobs])
        assert (sampler - expected).abs().max() < 2e-5
    weights = torch.linspace(-1, 2, 6 * max(r.length for r in found)).reshape(6, -1)
    expected = gradient_of(vlm, sum((w * weights[n, : len(w)]).sum() for n, w in enumerate(want)))
    for shared, budget in ((True, 10_000), (False, 10_000), (False, 1), (True, 90)):
        batch = pack(
            found,
            Credit(advantages=weights),
            vlm,
            shared_prefix=shared and vlm.family.shares_prefix,
            budget=budget,
            keep_zero=True,
        )
        got = [vlm.outputs(m, TEMPERATURE).logprobs_L for m in batch.micro]
        for micro, logprobs_L in zip(batch.micro, got, strict=True):
            alone = torch.stack([want[n][t] for n, t in zip(micro.rollout_L, micro.place_L, strict=True)])
            assert (logprobs_L - alone).abs().max() < 2e-5
        loss = sum((g * m.advantages_L).sum() for g, m in zip(got, batch.micro, strict=True))
        assert ((gradient_of(vlm, loss) - expected).norm() / expected.norm()).item() < 2e-5


def gradient_of(vlm, loss):
    vlm.model.zero_grad()
    loss.backward(retain_graph=True)
    found = torch.cat([p.grad.flatten() for _, p in vlm.parameters() if p.grad is not None]).clone()
    vlm.model.zero_grad()
    return found


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_what_an_environment_says_stands_in_the_chat_layout_as_a_user_message_does(family):
    """The ids after an answer that ended by itself, and after one that was cut off, are those of the whole conversation."""
    vlm = cases.policy(family)
    first, second = user_message("What digit is shown?", cases.picture(1)), user_message("No.", cases.picture(2, 84, 56))
    conversation = [first, {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}, second]
    whole = vlm.processor.apply_chat_template(
        [conversation], tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )
    inputs = vlm.encode(replace(cases.prompt(1), messages=[first]))
    answer = vlm.tokenizer.encode("yes", add_special_tokens=False)
    for sampled in (answer, [*answer, vlm.end_id]):
        extended, observed = vlm.extend(inputs, sampled, [second])
        assert extended.ids.tolist() == whole["input_ids"][0].tolist()
        assert extended.ids.tolist() == [*inputs.ids.tolist(), *sampled, *observed]
        assert extended.media["pixel_values"].equal(whole["pixel_values"])
        expected = vlm.family.positions(extended.ids, dict(whole))
        assert extended.positions.equal(expected)
        assert extended.image_sizes == ((56, 56), (84, 56)) and len(extended.model_sizes) == 2
        assert extended.next_position == int(expected.max()) + 1


def test_the_ends_of_episodes():
    vlm, task = cases.policy("qwen2_5_vl"), Talk(pictures=False)
    found = collected(vlm, task, prompts=(1, 2, 4), group=1, max_turns=3)
    assert [r.status for r in found] == [
        Status.FINISHED if r.turns[-1].terminated and i < 2 and not cut(r) else r.status for i, r in enumerate(found)
    ]
    short, two, four = found
    assert len(short.turns) == 1 and short.final_inputs is None and short.turns[0].reward == 0.5 and short.turns[0].terminated
    assert [t.reward for t in two.turns] == [-0.25, 0.5] and [t.terminated for t in two.turns] == [False, True]
    assert four.status is Status.TRUNCATED_TURNS and len(four.turns) == 4, "three turns, and what was said to the last"
    assert four.turns[-1].token_ids == () and four.turns[-1].observed_ids and not four.turns[-1].terminated
    assert four.turns[-1].messages[0]["content"][-1]["text"] == "No, 0."
    assert [len(w.heard) for w in task.environments] == [1, 2, 3] and task.closed == 3
    assert [w.heard[0] for w in task.environments] == [r.turns[0].text for r in found]
    assert four.completion == four.turns[2].text


def cut(rollout):
    return rollout.status is Status.TRUNCATED_LENGTH


def test_an_answer_that_ends_the_episode_and_was_cut_off_says_so():
    vlm = cases.policy("qwen2_5_vl")
    found = collected(vlm, Talk(), prompts=(1,), group=8, max_tokens=1)
    ended = [bool(set(r.turns[0].token_ids) & vlm.eos) for r in found]
    assert [r.status for r in found] == [Status.FINISHED if e else Status.TRUNCATED_LENGTH for e in ended] and not all(ended)


def test_the_same_seed_gives_the_same_episodes_and_another_turn_another_draw():
    vlm = cases.policy("qwen2_5_vl")
    one, two = (collected(vlm, Talk(pictures=False), prompts=(3,), group=4) for _ in range(2))
    assert [r.turns for r in one] == [r.turns for r in two]
    assert any(r.turns[0].token_ids != r.turns[1].token_ids for r in one)


def test_a_task_without_environments_is_asked_for_none():
    vlm, asked = cases.policy("qwen2_5_vl"), []

    class Quiet(Task):
        def environment(self, prompt):
            asked.append(prompt.id)

    assert all(len(r.turns) == 1 and r.final_inputs is None for r in collected(vlm, Quiet())) and len(asked) == 6
    assert all(len(r.turns) == 1 for r in collected(vlm, Task()))


def test_verifiers_and_records_have_the_whole_conversation():
    vlm = cases.policy("qwen2_5_vl")
    found = collected(vlm, Talk(), prompts=(3,), group=1)
    (case,) = build_cases(found)
    assert case.completion == found[0].turns[-1].text and len(case.image_sizes) == len(case.model_sizes) == 3
    row = rollout_row(found[0], Score(1.0), 0.0)
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert row["messages"][1]["content"] == found[0].turns[0].text and row["completion"] == found[0].turns[2].text
    cut_off = rollout_row(collected(vlm, Talk(), prompts=(4,), group=1, max_turns=2)[0], Score(1.0), 0.0)
    assert [m["role"] for m in cut_off["messages"]] == ["user", "assistant", "user", "user"], "what was said to the last turn too"


class Odd(Talk):
    def __init__(self, environment=None, step=None, close=None):
        super().__init__()
        self.how = {"environment": environment, "step": step, "close": close}

    def environment(self, prompt):
        if self.how["environment"]:
            return self.how["environment"](prompt)
        found = super().environment(prompt)
        found.step = self.how["step"] or found.step
        found.close = self.how["close"] or found.close
        return found


def fail(*_):
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"environment": fail}, r"task 'talk': environment\(\) raised RuntimeError: out of order"),
        ({"step": fail}, r"task 'talk': its environment's step\(\) raised RuntimeError: out of order"),
        ({"close": fail}, r"task 'talk': its environment's close\(\) raised RuntimeError: out of order"),
        ({"step": lambda text: "no"}, r"its environment's step\(\) must give a mmrl\.Reply with a finite reward, not 'no'"),
        ({"step": lambda text: Reply(reward=float("nan"), terminated=True)}, "with a finite reward"),
        ({"step": lambda text: Reply()}, "neither ends the episode nor gives messages"),
        ({"step": lambda text: Reply(messages=["no"])}, "its environment's step\\(\\): message 0 must be a dict with a role"),
    ],
)
def test_an_environment_that_breaks_is_named(how, message):
    with pytest.raises(PluginError, match=message):
        collected(cases.policy("qwen2_5_vl"), Odd(**how), prompts=(2,))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (user_message("see", "nowhere.png"), "nowhere.png does not exist"),
        (user_message("see <|image_pad|>"), r"contains '<\|image_pad\|>', a picture's placeholder"),
    ],
)
def test_what_an_environment_says_may_be_wrong(said, message):
    task = Odd(step=lambda text: Reply(messages=[said]))
    with pytest.raises(UserError, match=message):
        collected(cases.policy("qwen2_5_vl"), task, prompts=(2,))
    assert task.closed == 2, "environments are closed whatever happens"


class Slow:
    """Waits for the others: if they were stepped one after the other, none would go on."""

    waits = True

    def __init__(self, gate, closed):
        self.gate, self.closed = gate, closed

    def step(self, completion):
        self.gate.wait(timeout=20)
        return Reply(terminated=True, outcome={"success": 1.0})

    def close(self):
        self.closed.append(self)


def test_environments_that_wait_are_stepped_side_by_side():
    closed, gate = [], threading.Barrier(4)
    task = Odd(environment=lambda prompt: Slow(gate, closed))
    found = collected(cases.policy("qwen2_5_vl"), task, prompts=(1, 2), group=2)
    assert [r.outcome for r in found] == [{"success": 1.0}] * 4
    assert len(closed) == len(set(map(id, closed))) == 4, "each is closed once"


def test_an_episode_whose_environment_fails_is_left_out_and_counted():
    def step(text):
        raise EnvironmentFailed("the page hangs")

    vlm, task = cases.policy("qwen2_5_vl"), Odd(step=step)
    posed = [replace(cases.prompt(1), task="talk")]
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"talk": task})
    with pytest.warns(UserWarning, match=r"task 'talk': an episode was lost, 1 so far: the page hangs"):
        found = collector.collect(posed, collector.encode(posed), 3, SamplingParams(max_tokens=4, temperature=1.0, seed=0))
    assert [r.status for r in found] == [Status.ENVIRONMENT_ERROR] * 3 and task.closed == 3
    assert collector.metrics() == {"environment/lost": 3.0} and collector.metrics() == {"environment/lost": 0.0}


def test_an_episode_whose_environment_never_starts_is_lost_like_any_other():
    def environment(prompt):
        raise EnvironmentFailed("the browser did not start")

    with pytest.warns(UserWarning, match=r"task 'talk': an episode was lost, 1 so far: the browser did not start"):
        found = collected(cases.policy("qwen2_5_vl"), Odd(environment=environment), (1,), 2)
    assert [r.status for r in found] == [Status.ENVIRONMENT_ERROR] * 2


def test_an_environment_that_fails_to_close_costs_nothing_but_a_warning():
    class Stuck(Shows):
        def close(self):
            raise EnvironmentFailed("the page hangs")

    with pytest.warns(UserWarning, match=r"task 'talk': an environment could not be closed: the page hangs"):
        (found,) = collected(cases.policy("qwen2_5_vl"), Odd(environment=lambda prompt: Stuck(1)), (1,), 1)
    assert found.status is not Status.ENVIRONMENT_ERROR and found.turns[-1].terminated


def test_a_demonstration_whose_environment_fails_is_lost():
    class Silent(Shows):
        def gold_turn(self):
            raise EnvironmentFailed("the expert hangs")

    vlm, posed = cases.policy("qwen2_5_vl"), [replace(cases.prompt(1), task="talk")]
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"talk": Odd(environment=lambda prompt: Silent(2))})
    with pytest.warns(UserWarning, match=r"an episode was lost, 1 so far: the expert hangs"):
        (found,) = collector.demonstrate(posed, collector.encode(posed), ["a"])
    assert found.status is Status.ENVIRONMENT_ERROR and len(found.turns) == 1


@pytest.mark.parametrize("outcome", [{"success": "yes"}, {"distance": math.nan}, {3: 1.0}, ["success"], None])
def test_an_outcome_that_is_no_numbers_by_names_is_refused(outcome):
    task = Odd(step=lambda text: Reply(terminated=True, outcome=outcome))
    with pytest.raises(PluginError, match=r"environment's step\(\) must give Reply.outcome as a dict of finite numbers by names"):
        collected(cases.policy("qwen2_5_vl"), task, (1,), 1)


def test_the_last_reply_says_what_came_of_it():
    class Twice:
        def __init__(self):
            self.steps = 0

        def step(self, completion):
            self.steps += 1
            return Reply(messages=[user_message("on")], terminated=self.steps == 2, outcome={"success": float(self.steps == 2)})

        def close(self):
            pass

    found = collected(cases.policy("qwen2_5_vl"), Odd(environment=lambda prompt: Twice()), prompts=(1,), group=2)
    assert [(len(r.turns), r.outcome) for r in found] == [(2, {"success": 1.0})] * 2
    cut = collected(
        cases.policy("qwen2_5_vl"),
        Odd(step=lambda text: Reply(messages=[user_message("on")], outcome={"steps": 2.0})),
        (1,),
        1,
        max_turns=2,
    )
    assert cut[0].status is Status.TRUNCATED_TURNS and cut[0].outcome == {"steps": 2.0}


def test_a_conversation_that_would_be_too_long_is_cut_off():
    vlm = cases.policy("qwen2_5_vl")
    posed = [replace(cases.prompt(1), task="talk")]

    def run(most):
        task = Odd(step=lambda text: Reply(messages=[user_message("go on, and on, and on")]))
        collector = ConversationCollector(vlm, LocalGenerator(vlm), {"talk": task}, max_turns=6, max_context=most)
        (found,) = collector.collect(posed, collector.encode(posed), 1, SamplingParams(max_tokens=4, temperature=1.0, seed=0))
        return found

    free = run(None)
    assert len(free.turns) == 7 and free.status is Status.TRUNCATED_TURNS
    sizes = [sum(len(t.observed_ids) + len(t.token_ids) for t in free.turns[:n]) for n in range(1, 8)]
    tight = run(sizes[2] + 8)  # after the third answer there is no room for what is said and four tokens more
    assert len(tight.turns) == 4 and tight.status is Status.TRUNCATED_LENGTH
    assert not tight.turns[-1].token_ids and tight.turns[-1].observed_ids, "what was said last is observed"


class Pays:
    """Pays 0.25 for each turn, and 4 for an episode that is cut off."""

    def __init__(self):
        self.closed = self.asked = 0

    def step(self, completion):
        assert not self.closed
        return Reply(messages=[user_message("go on, and on")], reward=0.25, outcome={"cut": 0.0})

    def truncate(self):
        assert not self.closed, "it is told before it is closed"
        self.asked += 1
        return Reply(reward=4.0, outcome={"cut": 1.0})

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("of", ["turns", "tokens", "gold turns"])
def test_an_environment_pays_for_an_episode_that_is_cut_off(of):
    vlm = cases.policy("qwen2_5_vl")
    made = []

    def environment(prompt):
        made.append(Pays())
        if of == "gold turns":
            made[-1].gold_turn = lambda: None
        return made[-1]

    posed, task = [replace(cases.prompt(1), task="talk")], Odd(environment=environment)
    longest = len(vlm.encode(posed[0]).ids) + 20 if of == "tokens" else None
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"talk": task}, max_turns=2, max_context=longest)
    if of == "gold turns":
        (found,) = collector.demonstrate(posed, collector.encode(posed), ["a"])
    else:
        (found,) = collector.collect(posed, collector.encode(posed), 1, SamplingParams(max_tokens=4, temperature=1.0, seed=0))
    assert found.status is (Status.TRUNCATED_LENGTH if of == "tokens" else Status.TRUNCATED_TURNS)
    assert [turn.reward for turn in found.turns] == [*[0.25] * (len(found.turns) - 2), 4.25, 0.0]
    assert found.outcome == {"cut": 1.0} and [(one.asked, one.closed) for one in made] == [(1, 1)]


def test_an_environment_that_fails_when_it_is_cut_off_loses_its_episode():
    class Fails(Pays):
        def truncate(self):
            raise EnvironmentFailed("the judge is gone")

    with pytest.warns(UserWarning, match="the judge is gone"):
        found = collected(cases.policy("qwen2_5_vl"), Odd(environment=lambda prompt: Fails()), prompts=(1,), group=2, max_turns=2)
    assert [r.status for r in found] == [Status.ENVIRONMENT_ERROR] * 2


class Shows:
    """Says what is right: the next letter."""

    def __init__(self, length):
        self.heard, self.length = [], length

    def step(self, completion):
        self.heard.append(completion)
        return Reply(terminated=True) if len(self.heard) == self.length else Reply(messages=[user_message("next")])

    def gold_turn(self):
        return "abc"[len(self.heard)] if len(self.heard) < 3 else None

    def close(self):
        pass


def test_demonstrations_of_several_turns():
    vlm, made = cases.policy("qwen2_5_vl"), []
    task = Odd(environment=lambda prompt: made.append(Shows(int(prompt.id[1:]))) or made[-1])
    posed = [replace(cases.prompt(n), task="talk") for n in (1, 3, 5)]
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"talk": task})
    found = collector.demonstrate(posed, collector.encode(posed), ["a", "a", "a"])
    assert [w.heard for w in made] == [["a"], ["a", "b", "c"], ["a", "b", "c"]]
    assert [[t.text for t in r.turns] for r in found] == [["a"], ["a", "b", "c"], ["a", "b", "c", ""]]
    assert all(r.is_demonstration for r in found) and found[2].status is Status.TRUNCATED_TURNS
    for rollout, weights in zip(found, torch.eye(3), strict=True):
        batch = pack(found, Credit(advantages=weights), vlm, shared_prefix=False, budget=10_000, keep_zero=False)
        logprobs = torch.cat([vlm.outputs(m, TEMPERATURE).logprobs_L for m in batch.micro])
        assert torch.allclose(logprobs, directly(vlm, rollout), atol=2e-5)


def test_waves_are_as_large_as_the_batch():
    vlm, alive, most = cases.policy("qwen2_5_vl"), [0], [0]

    class Counted:
        def __init__(self):
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def step(self, completion):
            return Reply(terminated=True)

        def close(self):
            alive[0] -= 1

    posed = [replace(cases.prompt(n), task="talk") for n in (1, 2, 3, 4, 5)]
    collector = ConversationCollector(vlm, LocalGenerator(vlm, 4), {"talk": Odd(environment=lambda prompt: Counted())})
    found = collector.collect(posed, collector.encode(posed), 2, SamplingParams(max_tokens=3, temperature=1.0, seed=0))
    assert most[0] == 4 and alive[0] == 0
    assert [r.group for r in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and [r.prompt.id for r in found] == [
        p.id for p in posed for _ in range(2)
    ]


class Named(Say):
    """There are two states, one after the other, whatever is said."""

    def state_name(self):
        return self.task.name if self.task.name is not None else f"state {self.left % 2}"


class NamedTalk(Talk):
    name = None

    def environment(self, prompt):
        return Named(self, int(prompt.id[1:]) - 1, self.pictures)


def test_each_turn_begins_in_the_state_that_the_environment_names():
    """An episode that is cut off ends in a state in which nothing was said."""
    found = collected(cases.policy("qwen2_5_vl"), NamedTalk(pictures=False), prompts=(1, 4), group=1)
    assert [list(r.states) for r in found] == [[("state 0", "")], [(f"state {n}", "") for n in (1, 0, 1, 0)]]
    (cut,) = collected(cases.policy("qwen2_5_vl"), NamedTalk(pictures=False), prompts=(4,), group=1, max_turns=2)
    assert len(cut.turns) == 3 and [name for name, _ in cut.states] == ["state 1", "state 0"]


def test_a_name_that_is_no_text_is_refused():
    task = NamedTalk(pictures=False)
    task.name = 7
    with pytest.raises(PluginError, match=r"^task 'talk': its environment's state_name\(\) must give a text or None, not 7$"):
        collected(cases.policy("qwen2_5_vl"), task, prompts=(2,), group=1)
