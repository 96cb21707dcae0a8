"""Lets something happen in the middle of functions, where another thread might come in between."""

from __future__ import annotations

import sys
from contextlib import contextmanager


@contextmanager
def between_steps(function, act):
    """Calls ``act`` before each step of Python's in a function that this thread runs meanwhile.

    Functions that it calls are not stopped, nor is what ``act`` calls.
    """

    def within(frame, event, _):
        if event == "opcode":
            act()
        return within

    def begin(frame, event, _):
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        return within

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)
