"""Ctrl-C at each moment at which Python looks for it, one after another.

Python looks when a function begins, after each call of a function written in C, and when a loop
begins anew. It does not in between: a ``finally`` without calls is done before Ctrl-C is raised,
and so was, up to Python 3.13, the beginning of ``with`` for a lock written in C.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_BACK = {"JUMP_BACKWARD", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"}
_BACK |= {"POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"}
_CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}
PATIENCE_S = 120


class Interrupted:
    """Raises ``KeyboardInterrupt`` on this thread in a block, at one of these moments.

    Args:
        at: How many moments it lets pass.

    Attributes:
        left: How many more it would have let pass.
        where: Where it came.
    """

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = "nowhere"
        self._calling: Any = None  # the frame that calls something which nobody has told of yet
        self._resumed: Any = None

    def __enter__(self) -> Interrupted:
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _moment(self, frame: Any, what: str) -> None:
        self.left -= 1
        if self.left < 0:
            self.__exit__()
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno} in {code.co_name} ({what})"
            raise KeyboardInterrupt

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        self._calling = None
        if event == "c_return" and argument not in (sys.settrace, sys.setprofile):
            self._moment(frame, f"after {getattr(argument, '__name__', argument)}")

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        if frame.f_code.co_qualname.startswith("Condition."):
            return None  # of threading: where it has given its lock away, it raises another error
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            self._calling = None
            if frame.f_code.co_flags & 0x2A0 and frame.f_lasti > 4:  # a generator goes on
                self._resumed = frame
            else:
                self._moment(frame, "begins")
        elif event == "opcode":
            if self._resumed is frame:
                self._resumed = None
                self._moment(frame, "goes on")
            found = _instructions(frame.f_code).get(frame.f_lasti)
            if self._calling is frame and found and found[1]:
                self._moment(frame, "after a call")
            self._calling = frame if found and found[0] in _CALLS else None
            if found and found[0] in _BACK:
                self._moment(frame, "loops")
        return self._trace


@functools.cache
def _instructions(code: Any) -> dict[int, tuple[str, bool]]:
    """By offset the instruction, and whether an error goes where one of that before it goes."""
    table = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def handler(offset: int) -> int:
        return next((one.target for one in table if one.start <= offset < one.end), -1)

    found, before = {}, -1
    for one in dis.get_instructions(code):
        found[one.offset] = one.opname, handler(one.offset) == before
        before = handler(one.offset)
    return found


def moments(action: Callable[[], object], step: int = 1, first: int = 0) -> Iterator[Interrupted]:
    """Does something again and again, and interrupts it a moment later each time.

    Ends with the first time that nothing came of it any more.

    Args:
        action: What is done.
        step: How many moments are between those that are tried.
        first: The first of them.

    Yields:
        What has interrupted it, inside of the ``except`` that has caught it.
    """
    at = first
    while True:
        interrupted = Interrupted(at)
        try:
            with interrupted:
                action()
            return
        except KeyboardInterrupt:
            yield interrupted
        at += step


def within_time(action: Callable[[], Any], what: object) -> Any:
    """What something returns, on a thread of its own; fails if it waits for ever."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001  # raised below
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"it waits for ever after an interrupt at {what}"
    if failed:
        raise AssertionError(f"it fails after an interrupt at {what}") from failed[0]
    return found[0]
