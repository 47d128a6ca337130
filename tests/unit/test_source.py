"""Where prompts come from: seeds by name, epochs that cover everything, mixtures in proportion, exact resume."""

from collections import Counter

import pytest

from mmrl.data.seeds import derive
from mmrl.data.source import Source, prompts_of
from mmrl.errors import UserError
from mmrl.interfaces import Task
from mmrl.types import Prompt, user


def items(n, name="p"):
    return [Prompt(id=f"{name}{i}", messages=[user("x")]) for i in range(n)]


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
    source = Source({"t": items(20)}, {"t": 1.0}, seed=3)
    epochs = [ids(source.take(20)) for _ in range(3)]
    assert all(sorted(e) == sorted(ids(items(20))) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0] and epochs[0] != ids(items(20))
    assert len(source) == 20


def test_the_order_depends_on_the_seed_and_on_the_task():
    def order(task, seed):
        return ids(Source({task: items(20)}, {task: 1.0}, seed).take(20))

    assert order("t", 3) == order("t", 3) != order("t", 4)
    assert order("t", 3) != order("u", 3)


def test_steps_that_cross_an_epoch_take_the_same_prompts_as_steps_that_do_not():
    whole, parts = (Source({"t": items(5)}, {"t": 1.0}, seed=1) for _ in "ab")
    assert ids(whole.take(12)) == [i for n in (3, 4, 5) for i in ids(parts.take(n))]


def test_a_mixture_follows_its_weights_whatever_their_order_and_scale():
    prompts = {"a": items(3, "a"), "b": items(500, "b"), "c": items(7, "c")}
    source = Source(prompts, {"c": 2.0, "a": 1.0, "b": 5.0}, seed=0)
    taken = source.take(4000)
    shares = {t: n / 4000 for t, n in Counter(p.task for p in taken).items()}
    assert shares == pytest.approx({"a": 0.125, "b": 0.625, "c": 0.25}, abs=0.03)  # four standard deviations
    assert all(p.id.startswith(p.task) for p in taken), "each prompt says which task it is of"
    assert source.state() == Counter(p.task for p in taken) and len(source) == 510


def test_the_mixture_depends_on_the_seed():
    def tasks(seed):
        return [p.task for p in Source({"a": items(9), "b": items(9)}, {"a": 1.0, "b": 1.0}, seed).take(64)]

    assert tasks(1) == tasks(1) != tasks(2)


def test_a_restored_source_goes_on_with_the_very_next_prompts():
    prompts, weights = {"a": items(5, "a"), "b": items(4, "b")}, {"a": 1.0, "b": 2.0}
    source = Source(prompts, weights, seed=5)
    source.take(23)
    state = source.state()
    rest = ids(source.take(30))
    again = Source(prompts, weights, seed=5)
    again.restore(state)
    assert ids(again.take(30)) == rest
    assert state == {"a": state["a"], "b": 23 - state["a"]}, "the state that was handed out does not move on"


class Counted(Task):
    splits = ("train", "test", "empty")

    def prompts(self, split, seed):
        return (p for p in ([] if split == "empty" else items(3, f"{split}-{seed}-")))


def test_the_prompts_of_a_split_are_drawn_with_the_runs_seed():
    found = prompts_of("t", Counted(), "test", 9)
    assert len(found) == 3 and [found[i].id for i in range(3)] == ["test-9-0", "test-9-1", "test-9-2"]


def test_a_lazy_sequence_is_not_read():
    class Lazy:
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            return Prompt(id=str(index), messages=[user("x")])

    class Big(Task):
        def prompts(self, split, seed):
            return Lazy()

    assert isinstance(prompts_of("t", Big(), "train", 0), Lazy)


@pytest.mark.parametrize(
    ("split", "message"), [("empty", "task 't' has no prompts in split 'empty'"), ("valid", "choose one of train, test, empty")]
)
def test_a_split_without_prompts_is_refused(split, message):
    with pytest.raises(UserError, match=message):
        prompts_of("t", Counted(), split, 0)
