"""Ctrl-C that comes while something must not be left halfway."""

import signal
import threading

import pytest

from mmrl.api.signals import defer_interrupt, on_termination


@pytest.fixture(autouse=True)
def heard():
    """As in a terminal: of a program that a script has put into the background Ctrl-C is ignored, this one's too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_is_heard_at_the_end_and_told(capfd):
    done = []
    with pytest.raises(KeyboardInterrupt), defer_interrupt("it is up"):
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done and capfd.readouterr().err == "\nstopping when it is up; Ctrl-C again to stop at once\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_is_heard_at_once(capfd):
    done = []
    with pytest.raises(KeyboardInterrupt), defer_interrupt("it is up"):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert not done and capfd.readouterr().err.count("stopping") == 1


def test_who_heard_before_is_told_and_an_error_goes_first():
    told = []
    signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    with defer_interrupt("it is up"):
        signal.raise_signal(signal.SIGINT)
        assert not told
    assert told == [signal.SIGINT]
    with pytest.raises(ValueError, match=r"^broken$"), defer_interrupt("it is up"):
        signal.raise_signal(signal.SIGINT)
        raise ValueError("broken")
    assert len(told) == 1


def test_a_wish_to_end_is_told_and_the_handlers_of_before_come_back():
    told, before = [], signal.getsignal(signal.SIGTERM)
    with on_termination(told.append):
        signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == [signal.default_int_handler, before]


def test_what_is_ignored_stays_so(capfd):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with defer_interrupt("it is up"):
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_another_thread_hears_none():
    done = []

    def work():
        with defer_interrupt("it is up"):
            done.append("it")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
