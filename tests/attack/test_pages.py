"""A part of what `make attack` does to the pages of runs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import board_requests
import run_folders

from mmrl.testing.attack import run, show


def test_some_run_folders():
    [found] = run({"run folders": lambda: run_folders.run_folders(every=2500, size=0.001, bombs=31)})
    assert found.tried >= 3 and not found.fell, show([found])


def test_some_board_requests():
    [found] = run({"board requests": lambda: board_requests.board_requests(every=101)})
    assert found.tried > 40 and not found.fell, show([found])


def test_an_answer_that_should_not_be_is_a_fault():
    judged = board_requests._judged
    assert judged(b"HTTP/1.1 404 Not Found\r\n\r\nno", ("4",)) == "" == judged(b"", ("", "4"))
    assert "not 4" in judged(b"HTTP/1.1 500 Internal Server Error\r\n\r\n", ("4",)) and judged(b"", ("4",))
    assert "is in the answer" in judged(b"HTTP/1.1 200 OK\r\n\r\n" + board_requests.SECRET.encode(), ("2",))
    for place in (b"//evil.example", b"https://evil.example", b"/\\evil.example"):
        assert "it leads to" in judged(b"HTTP/1.1 303 See Other\r\nlocation: " + place + b"\r\n\r\n", ("303",))
    assert judged(b"HTTP/1.1 303 See Other\r\nlocation: /curves\r\n\r\n", ("303",)) == ""


def test_a_page_that_should_not_be_is_a_fault():
    listed = '200 <tr data-run="sound">'
    assert run_folders._page_fault("/", listed, True) == ""
    assert "sound" in run_folders._page_fault("/", "200 ", True)
    assert "script" in run_folders._page_fault("/", listed + "<img src=x>", False)
    assert run_folders._page_fault("/curves", "404 ", False) and not run_folders._page_fault("/curves", "404 ", True)
    assert run_folders._page_fault("/text?id=10.0", "500 ", True)


@pytest.mark.slow
def test_run_folders():
    [found] = run({"run folders": run_folders.run_folders})
    assert found.tried >= 300 and not found.fell, show([found])


@pytest.mark.slow
def test_board_requests():
    [found] = run({"board requests": board_requests.board_requests})
    assert found.tried >= 600 and not found.fell, show([found])
