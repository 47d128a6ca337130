"""Where prompts come from: seeds by name, epochs that cover everything, mixtures in proportion, exact resume."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from mmrl.api.errors import PluginError, UserError
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.types import Prompt, user_message
from mmrl.data.prompts import load_prompts, prompt_at
from mmrl.data.stream import GroupOutcome, PromptStream, easy_first


def items(n, name="p"):
    return [Prompt(id=f"{name}{i}", messages=[user_message("x")]) for i in range(n)]


def hard(*difficulties):
    return [Prompt(id=str(d), messages=[user_message("x")], meta={} if d is None else {"difficulty": d}) for d in difficulties]


def outcome(place, *rewards):
    """A group whose completions succeed from 0.5 on."""
    return GroupOutcome(place, rewards, spread=len(set(rewards)) > 1, failed=max(rewards) < 0.5)


def ids(prompts):
    return [p.id for p in prompts]


def test_a_derived_seed_is_the_same_everywhere():
    """The first 63 bits of SHA-256 of `0/sample/1`, from coreutils."""
    assert derive(0, "sample", 1) == 0x828BC95D883C2705 >> 1


def test_derived_seeds_differ_by_seed_name_and_number():
    names = [(0,), (0, "sample"), (0, "sample", 0), (0, "sample", 1), (0, "order", 1), (1, "sample", 1), (0, "order", "a", 1)]
    found = [derive(*n) for n in names]
    assert len(set(found)) == len(names) and all(0 <= s < 2**63 for s in found)


def test_an_epoch_covers_everything_once_and_the_next_in_another_order():
    source = PromptStream({"t": items(20)}, {"t": 1.0}, seed=3)
    epochs = [ids(source.take(20)) for _ in range(3)]
    assert all(sorted(e) == sorted(ids(items(20))) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0] and epochs[0] != ids(items(20))
    assert len(source) == 20


def test_the_order_depends_on_the_seed_and_on_the_task():
    def order(task, seed):
        return ids(PromptStream({task: items(20)}, {task: 1.0}, seed).take(20))

    assert order("t", 3) == order("t", 3) != order("t", 4)
    assert order("t", 3) != order("u", 3)


def test_steps_that_cross_an_epoch_take_the_same_prompts_as_steps_that_do_not():
    whole, parts = (PromptStream({"t": items(5)}, {"t": 1.0}, seed=1) for _ in "ab")
    assert ids(whole.take(12)) == [i for n in (3, 4, 5) for i in ids(parts.take(n))]


def test_a_mixture_follows_its_weights_whatever_their_order_and_scale():
    prompts = {"a": items(3, "a"), "b": items(500, "b"), "c": items(7, "c")}
    source = PromptStream(prompts, {"c": 2.0, "a": 1.0, "b": 5.0}, seed=0)
    taken = source.take(4000)
    shares = {t: n / 4000 for t, n in Counter(p.task for p in taken).items()}
    assert shares == pytest.approx({"a": 0.125, "b": 0.625, "c": 0.25}, abs=0.03)  # four standard deviations
    assert all(p.id.startswith(p.task) for p in taken), "each prompt says which task it is of"
    assert source.taken == Counter(p.task for p in taken) and len(source) == 510


def test_the_mixture_depends_on_the_seed():
    def tasks(seed):
        return [p.task for p in PromptStream({"a": items(9), "b": items(9)}, {"a": 1.0, "b": 1.0}, seed).take(64)]

    assert tasks(1) == tasks(1) != tasks(2)


def test_a_restored_source_goes_on_with_the_very_next_prompts():
    prompts, weights = {"a": items(5, "a"), "b": items(4, "b")}, {"a": 1.0, "b": 2.0}
    source = PromptStream(prompts, weights, seed=5)
    source.take(23)
    state = source.state()
    rest = ids(source.take(30))
    again = PromptStream(prompts, weights, seed=5)
    again.restore(json.loads(json.dumps(state)))
    assert ids(again.take(30)) == rest
    a = state["taken"]["a"]
    assert (state["draws"], state["taken"]) == (23, {"a": a, "b": 23 - a}), "the state that was handed out does not move on"
    assert again.state() == source.state()


class Counted(Task):
    splits = ("train", "test", "empty")

    def prompts(self, split, seed):
        return (p for p in ([] if split == "empty" else items(3, f"{split}-{seed}-")))


def test_the_prompts_of_a_split_are_drawn_with_the_runs_seed():
    found = load_prompts("t", Counted(), "test", 9)
    assert len(found) == 3 and [found[i].id for i in range(3)] == ["test-9-0", "test-9-1", "test-9-2"]


def test_a_lazy_sequence_is_not_read():
    class Lazy:
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            return Prompt(id=str(index), messages=[user_message("x")])

    class Big(Task):
        def prompts(self, split, seed):
            return Lazy()

    assert isinstance(load_prompts("t", Big(), "train", 0), Lazy)


@pytest.mark.parametrize(
    ("split", "message"), [("empty", "task 't' has no prompts in split 'empty'"), ("valid", "choose one of train, test, empty")]
)
def test_a_split_without_prompts_is_refused(split, message):
    with pytest.raises(UserError, match=message):
        load_prompts("t", Counted(), split, 0)


# -- what a prompt says -------------------------------------------------------------------------------------------------------


def test_a_prompt_is_of_the_label_and_keeps_its_id():
    source = PromptStream({"ours": items(1), "theirs": items(1)}, {"ours": 1.0, "theirs": 1.0}, seed=0)
    assert [(source[label, 0].task, source[label, 0].id) for label in ("ours", "theirs")] == [("ours", "p0"), ("theirs", "p0")]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "2 + 2?"}], [{"role": "user", "content": "Q: 2 + 2? Think."}]),
        ([{"role": "user", "content": "the {text}, {x}"}], [{"role": "user", "content": "Q: the {text}, {x} Think."}]),
        ([user_message("which?", "a.png", "b.png")], [user_message("Q: which? Think.", "a.png", "b.png")]),
        ([user_message("", "a.png")], [user_message("Q:  Think.", "a.png")]),
        ([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}], [user_message("Q:  Think.", "a.png")]),
        (
            [
                {
                    "role": "user",
                    "content": [
                        *user_message("one")["content"],
                        *user_message("two", "b.png")["content"],
                        *user_message("", "c.png")["content"][:1],
                    ],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "one"},
                        {"type": "image", "image": "b.png"},
                        {"type": "text", "text": "Q: two Think."},
                        {"type": "image", "image": "c.png"},
                    ],
                }
            ],
        ),
        (
            [
                {"role": "system", "content": "be brief"},
                user_message("one"),
                {"role": "assistant", "content": "1"},
                user_message("two"),
            ],
            [
                {"role": "system", "content": "be brief"},
                user_message("one"),
                {"role": "assistant", "content": "1"},
                user_message("Q: two Think."),
            ],
        ),
    ],
    ids=["text", "braces", "pictures", "empty", "picture-only", "several-texts", "last-user-message"],
)
def test_a_template_goes_around_the_last_text_of_the_last_user_message(messages, expected):
    prompt = Prompt(id="p", messages=messages, answer="4", meta={"k": 1}, seed=7)
    before = json.dumps(messages)
    found = prompt_at([prompt], 0, "sums", "Q: {text} Think.")
    assert list(found.messages) == expected
    assert (found.task, found.id, found.answer, found.meta, found.seed) == ("sums", "p", "4", {"k": 1}, 7)
    assert json.dumps(messages) == before, "the task's own prompt stays as it is"


def test_a_source_puts_each_tasks_template_around_its_prompts():
    source = PromptStream({"a": items(1), "b": items(1)}, {"a": 1.0, "b": 1.0}, 0, templates={"a": "{text}?", "c": "{text}!"})
    assert (source["a", 0].text, source["b", 0].text) == ("x?", "x")


def test_a_template_without_a_user_message_to_change_is_refused():
    with pytest.raises(PluginError, match=r"^task 't': item 0 has no user message for prompt_template of \[\[tasks\]\]"):
        prompt_at([Prompt(messages=[{"role": "system", "content": "x"}])], 0, "t", "{text}!")


# -- which tasks --------------------------------------------------------------------------------------------------------------


def test_tasks_without_a_weight_are_not_drawn():
    prompts = {"a": items(3), "b": items(40), "c": items(5)}
    source = PromptStream(prompts, {"a": 0.0, "c": 2.0}, seed=0)
    assert {p.task for p in source.take(50)} == {"c"}
    assert len(source) == 5 and source.mixture() == {"c": 2.0} and source["b", 1].id == "p1"


def test_a_weight_for_a_task_that_is_not_there_is_a_fault():
    with pytest.raises(ValueError, match="'b'"):
        PromptStream({"a": items(3)}, {"a": 1.0, "b": 1.0}, seed=0)


def test_variance_weighs_tasks_by_the_running_share_of_their_groups_with_spread():
    """a: 1 -> 0.9 -> 0.81 -> 0.829 (a group with spread adds 0.1); b never had a group."""
    source = PromptStream({"a": items(9), "b": items(9)}, {"a": 2.0, "b": 1.0}, 0, adapt="variance")
    assert source.mixture() == pytest.approx({"a": 2.2, "b": 1.1})
    source.record_outcomes([outcome(("a", 0), 0, 0), outcome(("a", 1), 1, 1), outcome(("a", 2), 0, 1)])
    assert source.spread == pytest.approx({"a": 0.829, "b": 1.0})
    assert source.mixture() == pytest.approx({"a": 2 * 0.929, "b": 1.1})
    taken = Counter(source.draw()[0] for _ in range(4000))
    assert taken["a"] / 4000 == pytest.approx(1.858 / 2.958, abs=0.03)  # four standard deviations


def test_the_weights_stay_as_given_without_variance():
    source = PromptStream({"a": items(9), "b": items(9)}, {"a": 2.0, "b": 1.0}, 0)
    source.record_outcomes([outcome(("a", 0), 0, 0)] * 50)
    assert source.mixture() == {"a": 2.0, "b": 1.0}


def test_a_task_whose_groups_all_agree_is_still_drawn():
    source = PromptStream({"a": items(9), "b": items(9)}, {"a": 1.0, "b": 1.0}, 0, adapt="variance")
    source.record_outcomes([outcome(("a", 0), 0, 0)] * 200)
    assert source.mixture()["a"] == pytest.approx(0.1, abs=1e-6) and "a" in {source.draw()[0] for _ in range(200)}


# -- easy first ---------------------------------------------------------------------------------------------------------------


def test_easy_first_makes_no_prompt_whose_difficulty_is_known():
    made = []
    items = LazyPrompts(range(4), lambda n: made.append(n) or Prompt(messages=[], meta={"difficulty": -n}), lambda n: -n)
    assert easy_first(items, "t") == [3, 2, 1, 0] and not made
    assert easy_first(LazyPrompts(items.items, items.make), "t") == [3, 2, 1, 0] and made == [0, 1, 2, 3]
    with pytest.raises(PluginError, match="task 't': difficulty of item 0 of its prompts"):
        easy_first(LazyPrompts(range(4), items.make, lambda n: 1 / n), "t")


def test_easy_first_goes_by_difficulty_and_begins_again_each_epoch():
    source = PromptStream({"t": hard(3, 1.5, -2, np.float32(0.5), np.int64(2))}, {"t": 1.0}, 9, order="easy-first")
    assert [i for _, i in (source.draw() for _ in range(12))] == [2, 3, 1, 4, 0, 2, 3, 1, 4, 0, 2, 3]


def test_equally_hard_items_keep_the_tasks_order():
    source = PromptStream({"t": hard(1, 0, 1, 0, 1)}, {"t": 1.0}, 9, order="easy-first")
    assert [source.draw()[1] for _ in range(5)] == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("difficulty", [None, "hard", True, math.nan, math.inf, [1]])
def test_easy_first_refuses_an_item_without_a_difficulty(difficulty):
    prompts = {"t": hard(1, difficulty), "unused": hard(None)}
    with pytest.raises(UserError, match=r'order = "easy-first": item 1 of task \'t\' has meta\["difficulty"\] = .*"shuffled"$'):
        PromptStream(prompts, {"t": 1.0}, 0, order="easy-first")
    assert len(PromptStream(prompts, {"t": 1.0}, 0)) == 2, "shuffled needs none"
    assert len(PromptStream({"t": hard(1), "unused": hard(None)}, {"t": 1.0}, 0, order="easy-first")) == 1


def test_an_item_that_can_not_be_opened_comes_last():
    class Broken:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i == 0:
                raise UserError("a.png is not a picture")
            return hard(9, 5, 4)[i]

    source = PromptStream({"t": Broken()}, {"t": 1.0}, 0, order="easy-first")
    assert [source.draw()[1] for _ in range(3)] == [2, 1, 0]
    with pytest.raises(UserError, match=r"a\.png"):
        source["t", 0]


# -- replay -------------------------------------------------------------------------------------------------------------------


def failing(n, **options):
    """A source of n prompts that have all failed, in the order of their numbers."""
    source = PromptStream({"t": items(100)}, {"t": 1.0}, 4, **options)
    source.record_outcomes([outcome(("t", i), 0.0, 0.2) for i in range(n)])
    return source


def test_failed_prompts_come_again_in_their_share_of_the_draws():
    again = 0
    source = PromptStream({"t": items(10**4)}, {"t": 1.0}, 4, replay=0.25)
    for _ in range(100):
        source.record_outcomes([outcome(("t", i), 0.0, 0.0) for i in range(50)])
        again += sum(1 for _ in range(40) if source.draw()[1] < 50)
    assert again / 4000 == pytest.approx(0.25, abs=0.03)  # four standard deviations; chance draws add 0.004


def test_an_ordinary_draw_is_the_one_that_would_have_come_next():
    plain, mixed = (PromptStream({"t": items(1000)}, {"t": 1.0}, 4, replay=r) for r in (0.0, 0.5))
    mixed.record_outcomes([outcome(("t", i), 0.0) for i in range(200)])
    before = dict(mixed.failed)
    drawn = [mixed.draw() for _ in range(100)]
    again = {place for place, taken in mixed.failed.items() if taken}
    ordinary = [place for place in drawn if place not in again]
    assert 20 < len(again) < 80 and again <= before.keys() and mixed.taken == {"t": 100 - len(again)}
    expected = [plain.draw() for _ in range(100 - len(again))]
    assert ordinary == [place for place in expected if place not in again]


def test_nothing_comes_again_without_replay():
    assert failing(10).state()["failed"] == []


def test_replay_of_everything_takes_each_failed_prompt_once_before_the_outcome_is_known():
    source = failing(3, replay=1.0)
    assert sorted(source.draw() for _ in range(3)) == [("t", 0), ("t", 1), ("t", 2)] and source.taken == {"t": 0}
    source.draw()
    assert source.taken == {"t": 1}, "then the ordinary ones go on"
    source.record_outcomes([outcome(("t", 0), 0.0)])
    assert sorted(source.draw() for _ in range(3)) == [("t", 0), ("t", 1), ("t", 2)]


def test_the_newest_failures_are_remembered_once_each_until_they_succeed():
    source = failing(6, replay=0.5, replay_size=4)
    assert list(source.failed) == [("t", 2), ("t", 3), ("t", 4), ("t", 5)]
    source.record_outcomes([outcome(("t", 3), 0.0)])
    assert list(source.failed) == [("t", 2), ("t", 4), ("t", 5), ("t", 3)], "failing again makes it the newest"
    source.record_outcomes([outcome(("t", 4), 0.0, 1.0), outcome(("t", 50), 1.0, 1.0)])
    assert list(source.failed) == [("t", 2), ("t", 5), ("t", 3)]
    source.record_outcomes([outcome(("t", 7), 0.1), outcome(("t", 8), 0.1)])
    assert list(source.failed) == [("t", 5), ("t", 3), ("t", 7), ("t", 8)]


# -- what was seen before -----------------------------------------------------------------------------------------------------


def test_the_past_of_a_prompt_counts_visits_and_rewards():
    """0, 1, 2 have the mean 1 and squares 1 + 0 + 1; with 5 they have the mean 2 and 4 + 1 + 0 + 9."""
    source = PromptStream({"t": items(3)}, {"t": 1.0}, 0, history=True)
    assert source.reward_history(("t", 1)) == (0, 0, 0.0, 0.0)
    source.record_outcomes([outcome(("t", 1), 0.0, 1.0, 2.0), outcome(("t", 2), 7.0)])
    assert source.reward_history(("t", 1)) == pytest.approx((1, 3, 1.0, 2.0))
    source.record_outcomes([outcome(("t", 1), 5.0), GroupOutcome(("t", 2), (), False, True)])
    assert source.reward_history(("t", 1)) == pytest.approx((2, 4, 2.0, 14.0))
    assert source.reward_history(("t", 2)) == (2, 1, 7.0, 0.0) and source.reward_history(("t", 0)) == (0, 0, 0.0, 0.0)


def test_the_past_is_not_kept_unless_asked_for():
    source = PromptStream({"t": items(3)}, {"t": 1.0}, 0)
    source.record_outcomes([outcome(("t", 1), 0.0, 1.0)])
    assert source.reward_history(("t", 1)) == (0, 0, 0.0, 0.0) and source.state()["past"] == []


# -- resume -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["shuffled", "easy-first"])
@pytest.mark.parametrize("stop", [0, 1, 7, 8, 30])
def test_a_source_with_everything_on_resumes_exactly(stop, order):
    """Steps of four draws whose outcomes depend on the prompt and the step; the resume is also in the middle of a step."""

    def made():
        prompts = {"a": hard(*range(7)), "b": hard(*range(5, 0, -1)), "c": hard(1)}
        return PromptStream(
            prompts, {"a": 1.0, "b": 2.0}, 3, order=order, adapt="variance", replay=0.4, replay_size=3, history=True
        )

    def go(source, first, last, drawn):
        for n in range(first, last):
            drawn.append(source.draw())
            if n % 4 == 3:
                source.record_outcomes([outcome(p, float((p[1] + n) % 3 == 0), p[1] / 20) for p in dict.fromkeys(drawn[-4:])])

    whole, straight = made(), []
    go(whole, 0, 60, straight)
    first, drawn = made(), []
    go(first, 0, stop, drawn)
    second = made()
    second.restore(json.loads(json.dumps(first.state())))
    go(second, stop, 60, drawn)
    assert drawn == straight and second.state() == whole.state()
    assert whole.failed and whole.state()["past"] and whole.taken["b"] > 10, "the test covers replay, history and epochs"


GOOD = {"draws": 5, "taken": {"t": 3}, "spread": {"t": 0.5}, "failed": [["t", 1, True]], "past": [["t", 1, 2, 4, 0.5, 1.0]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "a source's state has draws, taken, spread, failed, past"),
        ({"t": 3}, "a source's state has"),
        (GOOD | {"more": 1}, "a source's state has"),
        (GOOD | {"draws": -1}, "must be counts"),
        (GOOD | {"draws": 2}, "draws at least all taken"),
        (GOOD | {"draws": 5.0}, "must be counts"),
        (GOOD | {"taken": {"t": -3}}, "must be counts"),
        (GOOD | {"taken": {"t": True}}, "must be counts"),
        (GOOD | {"taken": {"u": 3}}, "taken must have the tasks t"),
        (GOOD | {"taken": {"t": 3, "off": 0}}, "taken must have the tasks t"),
        (GOOD | {"taken": 3}, "taken must have the tasks t"),
        (GOOD | {"spread": {}}, "spread must have the tasks t"),
        (GOOD | {"spread": {"t": 1.5}}, "spread must be shares"),
        (GOOD | {"spread": {"t": math.nan}}, "spread must be shares"),
        (GOOD | {"spread": {"t": "1"}}, "spread must be shares"),
        (GOOD | {"failed": "none"}, "failed must be a list"),
        (GOOD | {"failed": [["u", 1, True]]}, "failed must be rows of a task"),
        (GOOD | {"failed": [["t", 1]]}, "failed must be rows of a task"),
        (GOOD | {"failed": [["t", 4, True]]}, "up to 3 of 't'"),
        (GOOD | {"failed": [["t", -1, True]]}, "up to 3 of 't'"),
        (GOOD | {"failed": [["t", [], True]]}, "up to 3 of 't'"),
        (GOOD | {"failed": [["t", 1, True], ["t", 1, False]]}, "once"),
        (GOOD | {"failed": [["t", 1, 1]]}, "failed must be at most 2 rows"),
        (GOOD | {"failed": [["t", i, False] for i in range(3)]}, "failed must be at most 2 rows"),
        (GOOD | {"past": [["t", 1, 0, 4, 0.5, 1.0]]}, "past of .* can't be 0"),
        (GOOD | {"past": [["t", 1, 2, -4, 0.5, 1.0]]}, "past of .* can't be 2, -4"),
        (GOOD | {"past": [["t", 1, 2, 4, None, 1.0]]}, "past of .* can't be 2, 4, None"),
        (GOOD | {"past": [["t", 1, 2, 4, 0.5, -1.0]]}, "past of .* can't be 2, 4, 0.5, -1.0"),
    ],
    ids=lambda v: None if isinstance(v, str) else json.dumps(v)[-50:],
)
def test_a_state_that_can_not_be_this_sources_is_refused_and_changes_nothing(change, message):
    source = PromptStream({"t": items(4), "off": items(4)}, {"t": 1.0}, 0, replay=0.5, replay_size=2, history=True)
    source.restore(GOOD)
    assert source.state() == GOOD and source.reward_history(("t", 1)) == (2, 4, 0.5, 1.0)
    with pytest.raises(ValueError, match=message):
        source.restore(change)
    assert source.state() == GOOD


def test_a_source_that_remembers_nothing_takes_no_memories():
    source = PromptStream({"t": items(4)}, {"t": 1.0}, 0)
    with pytest.raises(ValueError, match="failed must be at most 0 rows"):
        source.restore(GOOD | {"past": []})
    with pytest.raises(ValueError, match="keeps no history"):
        source.restore(GOOD | {"failed": []})


def test_no_global_random_numbers_are_used():
    import random

    random.seed(1)
    before = random.getstate()
    source = failing(10, replay=0.5, adapt="variance")
    source.take(50)
    assert random.getstate() == before
