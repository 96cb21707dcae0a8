"""Things that a process has one of: whoever asks for one while it is made gets the same."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from partita.system.threads.made_once import made_once


def test_who_asks_meanwhile_waits_for_the_same():
    made, begun, this = [], threading.Event(), threading.get_ident()

    def asks():
        frame = sys._current_frames()[this]
        while frame is not None and frame.f_code is not once.__code__:
            frame = frame.f_back
        return frame is not None

    @made_once
    def once(name):
        begun.set()
        while not asks():
            time.sleep(1e-3)
        made.append([name])
        return made[-1]

    other = threading.Thread(target=once, args=("a",))
    other.start()
    assert begun.wait(60)
    assert once("a") is made[0]
    other.join()
    assert made == [["a"]]
    assert once("b") is not once("a")


def test_what_could_not_be_made_is_tried_again():
    answers = iter([ValueError("not yet"), 7])

    @made_once
    def once():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="not yet"):
        once()
    assert once() == once() == 7
