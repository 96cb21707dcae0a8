"""Bound calls of many requests, made by threads that stay outside of Python from call to call.

For a small network, waking a thread and handing over the GIL take longer than computing. So a
thread that has made a call takes the next one that waits without asking Python, looks for more a
while before it leaves, and tells of several ends at once. The thread that starts requests computes
too when it has nothing else to do, and then one thread less has to be woken. Whether it will come
is not known before: if it was away while a call waited, as many threads are woken from then on as
there are streams, until it has come in time again some times.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.call_queue import CallQueue
from partita.errors import CompileError, InferError
from partita.system.processors import usable_processors
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.foreign_call import invoke
from partita_cpu.jit.intrinsics.atomics import (
    add,
    call_clock,
    call_share,
    call_system,
    load,
    pause,
    replace,
    store,
)
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import fill
from partita_cpu.system.linux import calls
from partita_cpu.threads.thread_pool import Rows, function_address

# Words of the shared memory; those that several threads write on a cache line of their own.
_TAKEN, _SUBMITTED, _SERVING, _HELPING, _ENDED, _SLEEPING = 0, 64, 128, 192, 256, 320
_MOST_SERVING, _STREAMS, _REQUESTS, _CLOCK, _LOOKS, _TOLD = 384, 392, 400, 408, 416, 424
_SUBMITTED_AT, _PUNCTUAL, _LONG, _CAME_AT, _CLAIMED = 432, 448, 456, 464, 480
_COMING, _ASLEEP, _SYSCALL, _LINGER = 512, 576, 640, 648
_TABLES = 704
"""Behind them: which requests wait, which have ended, and what to call for each."""

CALL = 8
"""Words of a request's call: trampoline, arguments, its start and its end (seconds, and ns)."""
_START, _END = 16, 32

SLOW_NS = 100_000
"""After a call that took so long, or longer, its end is told at once; else with those that follow.

To tell takes some microseconds, if no other thread has the GIL.
"""

LONG = 3
"""After so many of them in a row, calls are taken for long ones. Each stream then has its thread:
who starts requests would be late to start the next one if it computed itself.
"""

AWAY_NS = 200_000
"""Who starts requests is away if it has not come back so long after the last one."""

PUNCTUAL = 8
"""How often it must have come back sooner before it is counted on."""

LINGER_NS = 20_000_000
"""How long a thread sleeps outside of Python before it leaves; to wake it there is cheaper."""

_LOOKS_FOR_MORE = 1000
_FUTEX = calls.futex
_WAIT, _WAKE = 128, 129  # by threads of this process
_MONOTONIC = 1
_BILLION = 1_000_000_000


@jit(inline=True)
def _now(queue: int, place: int) -> None:
    call_clock(load(queue + _CLOCK), (_MONOTONIC, place))


@jit(inline=True)
def _elapsed(first: int, last: int) -> Any:
    """Nanoseconds between two times."""
    return (load(last) - load(first)) * _BILLION + load(last + 8) - load(first + 8)


@jit(inline=True)
def _take(queue: int) -> Any:
    """The next request that waits, or -1."""
    while True:
        taken = load(queue + _TAKEN)
        if taken >= load(queue + _SUBMITTED):
            return -1
        place = taken % load(queue + _REQUESTS)
        request = load(queue + _TABLES + 8 * place)
        if replace(queue + _TAKEN, taken, taken + 1):
            return request


@jit(inline=True)
def _place(queue: int, request: int) -> Any:
    """Where a request's call is."""
    return queue + _TABLES + 8 * (2 * load(queue + _REQUESTS) + CALL * request)


@jit(inline=True)
def _count_on_nobody(queue: int) -> None:
    """Lets as many threads come as there are streams."""
    store(queue + _MOST_SERVING, load(queue + _STREAMS))
    store(queue + _PUNCTUAL, 0)


@jit(inline=True)
def _make(queue: int, request: int) -> Any:
    """Makes a request's call and says so; returns how long it took."""
    call = _place(queue, request)
    _now(queue, call + _START)
    alone = load(queue + _HELPING) == 0 and load(queue + _SERVING) < load(queue + _STREAMS)
    if alone and _elapsed(queue + _SUBMITTED_AT, call + _START) > AWAY_NS:
        _count_on_nobody(queue)
    call_share(load(call), (load(call + 8), 0, 1))
    _now(queue, call + _END)
    took = _elapsed(call + _START, call + _END)
    long = load(queue + _LONG) + 1 if took >= SLOW_NS else 0
    store(queue + _LONG, long)
    if long == LONG:
        _count_on_nobody(queue)
    requests = load(queue + _REQUESTS)
    place = add(queue + _ENDED, 1) % requests
    add(queue + _TABLES + 8 * (requests + place), request + 1)
    return took


@jit(inline=True)
def _something_ended(queue: int) -> Any:
    requests = load(queue + _REQUESTS)
    return load(queue + _TABLES + 8 * (requests + load(queue + _TOLD) % requests)) != 0


@jit(inline=True)
def _linger(queue: int) -> Any:
    """Sleeps until a call is submitted, outside of Python; whether none was for a long time."""
    seen = load(queue + _SUBMITTED)
    add(queue + _ASLEEP, 1)
    if load(queue + _TAKEN) >= load(queue + _SUBMITTED):
        call = (_FUTEX, queue + _SUBMITTED, _WAIT, seen & 0xFFFFFFFF, queue + _LINGER, 0)
        call_system(load(queue + _SYSCALL), call)
    add(queue + _ASLEEP, -1)
    return load(queue + _SUBMITTED) == seen


@jit
def _claim(queue: int, tid: int, nt: int) -> None:
    """Counts one more thread as coming, if one is to come; by one thread at a time."""
    coming = load(queue + _SERVING) + load(queue + _COMING)
    submitted = load(queue + _SUBMITTED)
    waits = load(queue + _TAKEN) < submitted and coming < load(queue + _MOST_SERVING)
    nobody = coming + load(queue + _HELPING) == 0
    claimed = waits or (nobody and load(queue + _TOLD) < submitted)
    store(queue + _CLAIMED, 1 if claimed else 0)
    if claimed:
        add(queue + _COMING, 1)


@jit
def _serve(queue: int, tid: int, nt: int) -> None:
    serving = add(queue + _SERVING, 1)
    coming = load(queue + _COMING)
    while coming > 0:  # who comes may not have been asked for
        if replace(queue + _COMING, coming, coming - 1):
            break
        coming = load(queue + _COMING)
    if serving < load(queue + _MOST_SERVING):
        looks = 0
        while True:
            request = _take(queue)
            if request < 0:
                pause()
                looks += 1
                if looks > load(queue + _LOOKS):
                    if _something_ended(queue) or _linger(queue):
                        break
                    looks = 0
                continue
            looks = 0
            took = _make(queue, request)
            if took >= SLOW_NS or load(queue + _SLEEPING) > 0:
                break
            if load(queue + _SERVING) > load(queue + _MOST_SERVING):
                break
    add(queue + _SERVING, -1)


@jit(inline=True)
def _note_punctual(queue: int) -> None:
    """Notes whether the thread that starts requests has come in time."""
    since = queue + _CAME_AT
    _now(queue, since)
    if _elapsed(queue + _SUBMITTED_AT, since) > AWAY_NS:
        return
    times = load(queue + _PUNCTUAL) + 1
    store(queue + _PUNCTUAL, times)
    if times >= PUNCTUAL and load(queue + _STREAMS) > 1:
        store(queue + _MOST_SERVING, load(queue + _STREAMS) - 1)


@jit
def _help(queue: int, tid: int, nt: int) -> None:
    if load(queue + _LONG) >= LONG:
        return
    if load(queue + _PUNCTUAL) < PUNCTUAL:
        _note_punctual(queue)
    looks = 0
    while looks <= load(queue + _LOOKS):
        if _something_ended(queue):
            return
        waits = load(queue + _TAKEN) < load(queue + _SUBMITTED)
        if waits and load(queue + _SERVING) + load(queue + _HELPING) < load(queue + _STREAMS):
            add(queue + _HELPING, 1)
            request = _take(queue)
            if request >= 0:
                _make(queue, request)
            add(queue + _HELPING, -1)
            if request >= 0:
                return
        pause()
        looks += 1


@jit
def _submit(queue: int, request: int, trampoline: int, arguments: int, tid: int, nt: int) -> None:
    """Puts a call behind those that wait; by one thread at a time.

    Args:
        queue: Address of the queue.
        request: The request's number.
        trampoline: Address of what is called.
        arguments: Address of its arguments.
        tid: This thread; not used.
        nt: All threads; not used.
    """
    call = _place(queue, request)
    store(call, trampoline)
    store(call + 8, arguments)
    _now(queue, queue + _SUBMITTED_AT)
    place = load(queue + _SUBMITTED) % load(queue + _REQUESTS)
    store(queue + _TABLES + 8 * place, request)
    add(queue + _SUBMITTED, 1)
    if load(queue + _ASLEEP) > 0:
        call_system(load(queue + _SYSCALL), (_FUTEX, queue + _SUBMITTED, _WAKE, 1, 0, 0))


@jit
def _sleep(queue: int, change: int, tid: int, nt: int) -> None:
    """Counts one more thread that sleeps until it is notified, or one less."""
    add(queue + _SLEEPING, change)


_CLAIMS, _SERVES, _HELPS = (_claim, (0,)), (_serve, (0,)), (_help, (0,))
_SUBMITS, _SLEEPS = (_submit, (0,) * 4), (_sleep, (0,) * 2)
CALLS = _CLAIMS, _SERVES, _HELPS, _SUBMITS, _SLEEPS
"""What is compiled here, and arguments like those that it is called with."""


class _Function:
    """A compiled function, ready to be called with the GIL let go.

    Args:
        kernel: The function, and arguments like its own.
        queue: Its first argument.
    """

    def __init__(self, kernel: tuple[Any, tuple[int, ...]], queue: int) -> None:
        entry = entry_of(*kernel)
        if entry is None:
            raise CompileError("Device CPU cannot compile what its queues of requests call.")
        self._slots = np.zeros(entry.slots, np.int64)
        fill(self._slots, entry, (queue, *kernel[1][1:]))
        self.words = self._slots.data
        self._where = entry.trampoline, self._slots.ctypes.data, 0, 1
        self._invoke = invoke()

    def __call__(self, *arguments: int) -> None:
        """Calls it; by one thread at a time if there are arguments behind the first."""
        for place, argument in enumerate(arguments, 2):
            self.words[place] = argument
        self._invoke(*self._where)


class NativeCall(BoundCall):
    """A bound call that may be nothing but one call of machine code."""

    @abc.abstractmethod
    def rows(self) -> Rows | None:
        """What it is on one thread, for what the inputs hold now; ``None`` if it is more."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises what the last call of the rows has to say, if it failed.

        Raises:
            InferError: It failed.
        """


class NativeCallQueue(CallQueue):
    """Calls of machine code, each by one thread.

    Args:
        requests: How many requests there are; 0 for one per stream, and as many again that wait
            meanwhile, so that no thread waits for the next one.
        streams: How many calls are made at a time.
    """

    def __init__(self, requests: int, streams: int) -> None:
        self.requests = requests or 2 * streams
        self._streams = streams
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets threads and calls, as a child process has to."""
        requests = self.requests
        self._memory = np.zeros(_TABLES // 8 + (2 + CALL) * requests + 8, np.int64)
        start = self._memory.ctypes.data
        queue = start + -start % 64
        self._words = words = self._memory.data[(queue - start) // 8 :]
        looks = _LOOKS_FOR_MORE if usable_processors() > 1 else 0
        for place, word in (
            (_MOST_SERVING, self._streams),
            (_STREAMS, self._streams),
            (_REQUESTS, requests),
            (_CLOCK, function_address("clock_gettime")),
            (_LOOKS, looks),
            (_LONG, LONG),
            (_SYSCALL, function_address("syscall")),
            (_LINGER + 8, LINGER_NS),
        ):
            words[place // 8] = word
        self._calls: list[NativeCall | None] = [None] * requests
        self._claim = _Function(_CLAIMS, queue)
        self._serve, self._help = _Function(_SERVES, queue), _Function(_HELPS, queue)
        self._submit, self._sleep = _Function(_SUBMITS, queue), _Function(_SLEEPS, queue)

    def submit(self, request: int, call: BoundCall) -> bool:
        """Lets a call wait for a thread; ``False`` if it can only be made by Python."""
        rows = call.rows() if isinstance(call, NativeCall) else None
        if rows is None or not isinstance(call, NativeCall):
            return False
        self._calls[request] = call
        self._submit(request, rows.trampoline, rows.alone)
        return True

    def holds(self, request: int) -> bool:
        """Whether a request's call was submitted and its end was not reported yet."""
        return bool(self._words[_TABLES // 8 + 2 * self.requests + CALL * request])

    def lacks_thread(self) -> bool:
        """Whether calls wait, or ends untold, for one more thread to come; it is then expected."""
        words = self._words
        if words[_SERVING // 8] >= words[_MOST_SERVING // 8]:
            return False
        self._claim()
        return bool(words[_CLAIMED // 8])

    def is_idle(self) -> bool:
        """Whether all calls have ended and were reported."""
        return bool(self._words[_SUBMITTED // 8] == self._words[_TOLD // 8])

    def serve(self) -> None:
        """Makes calls until none has come for a while, or an end is to be reported."""
        self._serve()

    def help(self) -> None:
        """Makes a call, if one waits, or looks for a while until one has ended."""
        self._help()

    def expect(self) -> None:
        """Says that a thread is going to sleep until the next end is reported."""
        self._sleep(1)

    def expect_no_more(self) -> None:
        """Says that it sleeps no more."""
        self._sleep(-1)

    def has_ended(self) -> bool:
        """Whether :meth:`next_ended` would return one."""
        return bool(self._words[self._place_told()])

    def next_ended(self) -> int | None:
        """The request whose call has ended and was not reported yet; ``None`` if none has."""
        words, place = self._words, self._place_told()
        found = words[place]
        if not found:
            return None
        words[_TABLES // 8 + 2 * self.requests + CALL * (found - 1)] = 0
        words[place] = 0
        words[_TOLD // 8] += 1
        return found - 1

    def _place_told(self) -> int:
        told = self._words[_TOLD // 8]
        return _TABLES // 8 + self.requests + told % self.requests

    def result(self, request: int) -> float:
        """Seconds that the call of a request took, which has ended."""
        call, self._calls[request] = self._calls[request], None
        if call is None:
            raise InferError(f"Request {request} has no call that has ended.")
        call.check()
        words, at = self._words, _TABLES // 8 + 2 * self.requests + CALL * request
        first, last = at + _START // 8, at + _END // 8
        return words[last] - words[first] + (words[last + 1] - words[first + 1]) * 1e-9
