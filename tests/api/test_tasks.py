"""What most tasks need: lazy prompts, and options that are refused in one line."""

from collections.abc import Mapping

import pytest

from mmrl import Prompt, UserError, user
from mmrl.api.tasks.options import Prompts, known_split, of_kind, one_of, shares_of, whole


def refused(message: str, check, *args, **options) -> None:
    with pytest.raises(UserError) as caught:
        check(*args, **options)
    assert str(caught.value) == message


# -- prompts ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made():
    """The items of which prompts were made, in order."""
    return []


@pytest.fixture
def prompts(made):
    def make(item: int) -> Prompt:
        made.append(item)
        return Prompt(id=f"test-{item}", messages=[user("?")], answer=str(item))

    return Prompts(range(10, 1_000_010), make)


def test_a_prompt_is_made_when_it_is_asked_for(prompts, made):
    assert len(prompts) == 1_000_000 and made == []
    assert prompts[3].id == "test-13" and prompts[-1].id == "test-1000009"
    assert made == [13, 1_000_009]


def test_a_slice_is_lazy_too(prompts, made):
    part = prompts[4:10:2]
    assert isinstance(part, Prompts) and len(part) == 3 and made == []
    assert [p.id for p in part] == ["test-14", "test-16", "test-18"]
    assert [p.id for p in part[1:]] == ["test-16", "test-18"]
    assert len(prompts[1_000_000:]) == 0


@pytest.mark.parametrize("index", [1_000_000, -1_000_001])
def test_beyond_the_end_is_an_index_error(prompts, made, index):
    with pytest.raises(IndexError):
        prompts[index]
    assert made == []


# -- options ----------------------------------------------------------------------------------------------------------------


def test_one_of_the_choices():
    one_of("style", "tags", ("plain", "tags"))
    one_of("pictures", 2, (1, 2))
    one_of("style", "tags", {"plain": 1, "tags": 2})
    one_of("style", "tags", iter(["plain", "tags"]))
    refused(
        "style = 'tag' is unknown: choose one of plain, tags. Did you mean 'tags'?", one_of, "style", "tag", ("plain", "tags")
    )
    refused("style = 'x' is unknown: choose one of plain, tags", one_of, "style", "x", ("plain", "tags"))
    refused("pictures = 3 is unknown: choose one of 1, 2", one_of, "pictures", 3, (1, 2))
    refused("style = 'tags' is unknown: choose one of plain", one_of, "style", "tags", iter(["plain"]))


@pytest.mark.parametrize("value, choices", [(True, (1, 2)), (False, (0, 1)), (1, (True, False)), (0, (True, False))])
def test_true_is_not_one(value, choices):
    with pytest.raises(UserError, match=f"pictures = {value} is unknown"):
        one_of("pictures", value, choices)


@pytest.mark.parametrize("value", [None, [], ["plain"], {}, {"plain": 1}, 1.5, "", float("nan")])
def test_what_can_not_be_a_choice_is_refused_as_any_other(value):
    for choices in (("plain", "tags"), {"plain": 1}, (1, 2)):
        with pytest.raises(UserError, match=r"style = .* is unknown: choose one of"):
            one_of("style", value, choices)


def test_whole_numbers_within_bounds():
    for value in (2, 3, 8):
        whole("grid", value, 2, 8)
    whole("shots", 10**30, 1)
    whole("seed", -5, -5, 5)
    refused("grid = 1 must be a whole number from 2 to 8", whole, "grid", 1, 2, 8)
    refused("grid = 9 must be a whole number from 2 to 8", whole, "grid", 9, 2, 8)
    refused("size = 9 must be a whole number of pixels from 2 to 8", whole, "size", 9, 2, 8, of="pixels")
    refused("shots = 0 must be a whole number from 1", whole, "shots", 0, 1)


@pytest.mark.parametrize("value", [True, 3.0, "3", None, [3], float("nan")])
def test_nothing_else_is_a_whole_number(value):
    refused(f"grid = {value!r} must be a whole number from 0 to 8", whole, "grid", value, 0, 8)


def test_the_kind_of_an_option():
    for value, kind in (("x", str), (True, bool), (3, int), ([1], list), ({"a": 1}, Mapping)):
        of_kind("option", value, kind)
    refused("think = 'yes' must be true or false", of_kind, "think", "yes", bool)
    refused("think = 1 must be true or false", of_kind, "think", 1, bool)
    refused("seed = True must be a whole number", of_kind, "seed", True, int)
    refused("question = 3 must be a text", of_kind, "question", 3, str)
    refused("shares = 0.5 must be a table, such as {train = 0.9}", of_kind, "shares", 0.5, Mapping, "{train = 0.9}")


def test_a_known_split():
    assert known_split("test", ("train", "test")) == "test"
    assert known_split("test", {"train": 1, "test": 2}) == "test"
    refused("there is no split 'dev': choose one of train, test", known_split, "dev", ("train", "test"))
    refused("there is no split 'tset': choose one of train, test. Did you mean 'test'?", known_split, "tset", ("train", "test"))


def test_a_long_value_is_cut_and_stays_on_one_line():
    long = "x\n" * 10_000
    for check in (
        lambda: one_of("o", long, ("a", "b")),
        lambda: whole("o", long, 1, 2),
        lambda: of_kind("o", long, bool),
        lambda: known_split(long, ("train",)),
    ):
        with pytest.raises(UserError) as caught:
            check()
        assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


# -- shares -----------------------------------------------------------------------------------------------------------------


def test_shares_add_up_to_1():
    assert shares_of("shares", {"train": 3, "test": 1.0}) == {"train": 0.75, "test": 0.25}
    assert list(shares_of("shares", {"test": 1, "a": 1, "train": 2})) == ["test", "a", "train"]
    assert shares_of("shares", {"train": 1e300, "test": 1e300}) == {"train": 0.5, "test": 0.5}


def test_a_split_with_rows_of_its_own_has_no_share():
    assert shares_of("shares", {"train": 3, "warm": 1, "test": 1}, without="test") == {"train": 0.75, "warm": 0.25}
    assert shares_of("shares", {"test": 1}, without="test") == {"train": 1.0} == shares_of("shares", {}, without="test")


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 10**400, True, "1", None])
def test_shares_are_numbers_above_0(wrong):
    with pytest.raises(UserError, match=r"^shares = \{.* must name splits with numbers above 0, \{train = 0.9, test = 0.1\}$"):
        shares_of("shares", {"train": 1, "test": wrong})


def test_shares_are_of_some_split():
    refused("shares = {} must name splits with numbers above 0, {train = 0.9, test = 0.1}", shares_of, "shares", {})
    refused("shares = 1 must be a table, such as {train = 0.9, test = 0.1}", shares_of, "shares", 1)
