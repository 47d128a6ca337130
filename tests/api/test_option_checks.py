"""What most tasks need: lazy prompts, and options that are refused in one line."""

from collections.abc import Mapping

import pytest

from mmrl import Prompt, UserError, user_message
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type, parse_split_shares


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
        return Prompt(id=f"test-{item}", messages=[user_message("?")], answer=str(item))

    return LazyPrompts(range(10, 1_000_010), make)


def test_a_prompt_is_made_when_it_is_asked_for(prompts, made):
    assert len(prompts) == 1_000_000 and made == []
    assert prompts[3].id == "test-13" and prompts[-1].id == "test-1000009"
    assert made == [13, 1_000_009]


def test_a_slice_is_lazy_too(prompts, made):
    part = prompts[4:10:2]
    assert isinstance(part, LazyPrompts) and len(part) == 3 and made == []
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
    check_choice("style", "tags", ("plain", "tags"))
    check_choice("pictures", 2, (1, 2))
    check_choice("style", "tags", {"plain": 1, "tags": 2})
    check_choice("style", "tags", iter(["plain", "tags"]))
    refused(
        "style = 'tag' is unknown: choose one of plain, tags. Did you mean 'tags'?",
        check_choice,
        "style",
        "tag",
        ("plain", "tags"),
    )
    refused("style = 'x' is unknown: choose one of plain, tags", check_choice, "style", "x", ("plain", "tags"))
    refused("pictures = 3 is unknown: choose one of 1, 2", check_choice, "pictures", 3, (1, 2))
    refused("style = 'tags' is unknown: choose one of plain", check_choice, "style", "tags", iter(["plain"]))


@pytest.mark.parametrize("value, choices", [(True, (1, 2)), (False, (0, 1)), (1, (True, False)), (0, (True, False))])
def test_true_is_not_one(value, choices):
    with pytest.raises(UserError, match=f"pictures = {value} is unknown"):
        check_choice("pictures", value, choices)


@pytest.mark.parametrize("value", [None, [], ["plain"], {}, {"plain": 1}, 1.5, "", float("nan")])
def test_what_can_not_be_a_choice_is_refused_as_any_other(value):
    for choices in (("plain", "tags"), {"plain": 1}, (1, 2)):
        with pytest.raises(UserError, match=r"style = .* is unknown: choose one of"):
            check_choice("style", value, choices)


def test_whole_numbers_within_bounds():
    for value in (2, 3, 8):
        check_integer("grid", value, 2, 8)
    check_integer("shots", 10**30, 1)
    check_integer("seed", -5, -5, 5)
    refused("grid = 1 must be a whole number from 2 to 8", check_integer, "grid", 1, 2, 8)
    refused("grid = 9 must be a whole number from 2 to 8", check_integer, "grid", 9, 2, 8)
    refused("size = 9 must be a whole number of pixels from 2 to 8", check_integer, "size", 9, 2, 8, of="pixels")
    refused("shots = 0 must be a whole number from 1", check_integer, "shots", 0, 1)


@pytest.mark.parametrize("value", [True, 3.0, "3", None, [3], float("nan")])
def test_nothing_else_is_a_whole_number(value):
    refused(f"grid = {value!r} must be a whole number from 0 to 8", check_integer, "grid", value, 0, 8)


def test_the_kind_of_an_option():
    for value, kind in (("x", str), (True, bool), (3, int), ([1], list), ({"a": 1}, Mapping)):
        check_type("option", value, kind)
    refused("think = 'yes' must be true or false", check_type, "think", "yes", bool)
    refused("think = 1 must be true or false", check_type, "think", 1, bool)
    refused("seed = True must be a whole number", check_type, "seed", True, int)
    refused("question = 3 must be a text", check_type, "question", 3, str)
    refused("shares = 0.5 must be a table, such as {train = 0.9}", check_type, "shares", 0.5, Mapping, "{train = 0.9}")


def test_a_known_split():
    assert check_split("test", ("train", "test")) == "test"
    assert check_split("test", {"train": 1, "test": 2}) == "test"
    refused("there is no split 'dev': choose one of train, test", check_split, "dev", ("train", "test"))
    refused("there is no split 'tset': choose one of train, test. Did you mean 'test'?", check_split, "tset", ("train", "test"))


def test_a_long_value_is_cut_and_stays_on_one_line():
    long = "x\n" * 10_000
    for check in (
        lambda: check_choice("o", long, ("a", "b")),
        lambda: check_integer("o", long, 1, 2),
        lambda: check_type("o", long, bool),
        lambda: check_split(long, ("train",)),
    ):
        with pytest.raises(UserError) as caught:
            check()
        assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


# -- shares -----------------------------------------------------------------------------------------------------------------


def test_shares_add_up_to_1():
    assert parse_split_shares("shares", {"train": 3, "test": 1.0}) == {"train": 0.75, "test": 0.25}
    assert list(parse_split_shares("shares", {"test": 1, "a": 1, "train": 2})) == ["test", "a", "train"]
    assert parse_split_shares("shares", {"train": 1e300, "test": 1e300}) == {"train": 0.5, "test": 0.5}


def test_a_split_with_rows_of_its_own_has_no_share():
    assert parse_split_shares("shares", {"train": 3, "warm": 1, "test": 1}, without="test") == {"train": 0.75, "warm": 0.25}
    assert (
        parse_split_shares("shares", {"test": 1}, without="test")
        == {"train": 1.0}
        == parse_split_shares("shares", {}, without="test")
    )


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 10**400, True, "1", None])
def test_shares_are_numbers_above_0(wrong):
    with pytest.raises(UserError, match=r"^shares = \{.* must give each split a number above 0: \{train = 0.9, test = 0.1\}$"):
        parse_split_shares("shares", {"train": 1, "test": wrong})


def test_shares_are_of_some_split():
    refused("shares = {} must give each split a number above 0: {train = 0.9, test = 0.1}", parse_split_shares, "shares", {})
    refused("shares = 1 must be a table, such as {train = 0.9, test = 0.1}", parse_split_shares, "shares", 1)
