"""Children that are given up, and those whose answer only waits to be read."""

import time

from gpuwright.onnode.children import start, value


def late(seconds):
    time.sleep(seconds)
    return "late"


def test_an_answer_that_was_given_in_time_may_be_read_late():
    child = start(lambda: "here", 0.3)
    time.sleep(0.5)
    assert value(child) == "here"


def test_an_answer_larger_than_a_pipe_may_be_read_late():
    child = start(lambda: "x" * 1_000_000, 0.3)
    time.sleep(0.5)
    assert len(value(child)) == 1_000_000


def test_a_child_without_an_answer_at_its_deadline_is_given_up():
    began = time.monotonic()
    assert value(start(lambda: late(20), 0.3)) is None
    assert time.monotonic() - began < 10
