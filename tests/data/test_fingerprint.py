"""Fingerprints tell changed prompts from equal ones, and open few of them."""

from dataclasses import replace

import pytest
from PIL import Image

from mmrl.api.errors import UserError
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.types import Prompt, user_message
from mmrl.data.fingerprint import fingerprint, is_changed


def prompt(n, said="what", answer=("a", 1)):
    return Prompt(id=f"p{n}", messages=[user_message(said, Image.new("RGB", (2, 2)))], answer=[*answer, {1, n}], seed=n)


def of(items):
    return fingerprint(items, "t")


def test_the_first_the_last_and_six_between_are_looked_at():
    made = []
    found = of(LazyPrompts(range(100), lambda n: (made.append(n), prompt(n))[1]))
    assert made == [0, 14, 28, 42, 56, 70, 84, 99]
    assert found[0] == 100 and len({*found[1:]}) == 8
    assert not is_changed(found, of([prompt(n) for n in range(100)])), "pictures tell nothing, nor does a set's order"
    assert len(of([prompt(n) for n in range(3)])) == 4


@pytest.mark.parametrize(
    "other",
    [prompt(9, said="who"), prompt(9, answer="b"), replace(prompt(9), id="x"), replace(prompt(9), seed=1)],
    ids=["text", "answer", "id", "seed"],
)
def test_what_changes_a_fingerprint(other):
    before = [prompt(n) for n in range(10)]
    assert is_changed(of(before), of([*before[:9], other]))
    assert is_changed(of(before), of(before[:9])) and not is_changed(of(before), of(before))


def test_broken_prompts_tell_nothing():
    def broken(n):
        if n == 3:
            raise UserError("no picture")
        return prompt(n)

    before, now = of([prompt(n) for n in range(4)]), of(LazyPrompts(range(4), broken))
    assert now[4] is None and not is_changed(before, now) and not is_changed(now, before)
