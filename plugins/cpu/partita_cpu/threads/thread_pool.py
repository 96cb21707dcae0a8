"""The thread pool: walks a table of kernel calls, so that one call from Python runs many steps.

The calling thread goes from row to row. For a row that is shared it puts up a ticket. Whoever is
awake takes its own share, and soon those that nobody has taken; the caller goes on when all are
done. So nobody waits for a thread that the system has put aside, unless it holds a share, and from
step to step a thread tends to find in its caches what it has computed itself. Idle threads look for
a while, so that the next ticket finds them at once, and then sleep; where runs are apart they do so
at once. They may run wherever the caller may, but for the processor that it is on: the system tends
to wake them there, behind it. They end when nobody has the pool any more: each of them holds a weak
reference to it, whose callback is machine code, too, so that no step of Python comes in between in
which Ctrl-C would be lost.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from partita.errors import CompileError, InferError
from partita.system.living import Living
from partita.system.threads.system_thread import SystemThread
from partita.system.threads.turn import NOW, Turn
from partita.tensors.array_state import data_address
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.foreign_call import invoke
from partita_cpu.jit.intrinsics.atomics import (
    add,
    call_here,
    call_share,
    call_system,
    load,
    pause,
    replace,
    store,
)
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import Entry, fill
from partita_cpu.system import this_system
from partita_cpu.system.linux import calls, set_bytes

_log = logging.getLogger(__name__)

# Words of the shared memory; each on a cache line of its own.
_GENERATION, TICKET, _SLEEPING = 0, 64, 192
_TABLE, _FIRST_TICKET, _STATUS, _SYSCALL, _QUIT = 256, 264, 320, 328, 336
_WHERE, _AVOIDED, _MOVING, _HELPERS, _SET_BYTES = 344, 352, 360, 368, 376
WORDS = 64
"""Size of the shared memory, without the claims."""

_CLAIMS = 8 * WORDS
"""Where the number of the ticket is that each share was taken of last; each on a line of its own:
threads that take their own shares wait for nobody."""

_DONE = 128
"""Bytes from there to the number of the ticket that the share was done of last.

It is on a line of its own too: who has done a share writes there without waiting, and the caller
reads one after the other. If all counted on one line, each would wait for it in turn.
"""

_SHARE = 256
"""Bytes of a share's words. A processor may fetch lines by twos."""

ROW = 5
"""Words of a table's row: trampoline, slots, number of shares (0: the caller alone), where words
are that are cleared before they begin, and on how many cache lines."""

LOOKS = 3000
"""How often a waiting thread looks before it sleeps, or lets others use its processor.

Some tens of microseconds.
"""

OWN_LOOKS = 24
"""How often one looks before it takes a share that is another's: half a microsecond or one.

The line with its claim then stays in that thread's cache, if it comes in time.
"""

IDLE_LOOKS = 10000
"""How often one looks for the next run before it sleeps: a tenth of a millisecond.

Waking a thread takes the caller 30 microseconds, and longer until it is there.
"""

CALM_RUNS = 8
"""Runs without being put aside after which a thread looks so long.

Where others want its processor it had better sleep between runs: then the system lets it go on at
once when it is woken, and not after a while in the middle of a share.
"""

VAIN_LOOKS = 4
"""How often in a row one looks for the next run in vain before it sleeps at once instead.

Runs are apart then, and the time between may be another engine's, whose threads want the processor.
"""

TRIES = 16
"""Of so many runs that are apart there is one behind which a thread looks again."""

USAGE_BYTES = 144
"""What the system counts of a thread; the last word is how often it was put aside."""

# A ticket is the row's number, above how many shares there are.
NUMBER = 12
MOST_SHARES = (1 << NUMBER) - 1

MOST_THREADS = MOST_SHARES
"""Of a thread pool, so that its tickets hold."""

_FUTEX, _YIELD, _SET_AFFINITY, _GET_AFFINITY, _USAGE = calls
_OF_THREAD = 1
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


@jit(inline=True)
def _compute(sync: int, place: int, share: int, shares: int) -> None:
    status = call_share(load(place), (load(place + 8), share, shares))
    if status not in (0, -2):
        store(sync + _STATUS, 1)


@jit(inline=True)
def _take(sync: int, ticket: int, share: int) -> None:
    """Computes a share of a ticket if nobody has taken it.

    All shares of a ticket are taken before the next one is put up: whoever comes late finds them
    taken of the same number, or of a higher one.
    """
    number, shares = ticket >> NUMBER, ticket & MOST_SHARES
    claim = sync + _CLAIMS + _SHARE * share
    before = load(claim)
    if before < number and replace(claim, before, number):
        # Only who holds a share may look at the table: it stays until all shares are done.
        row = number - load(sync + _FIRST_TICKET)
        _compute(sync, load(sync + _TABLE) + 8 * ROW * row, share, shares)
        store(claim + _DONE, number)


@jit(inline=True)
def _take_left(sync: int, ticket: int, own: int) -> None:
    """Computes shares of a ticket that nobody has taken, from the one behind one's own on."""
    shares = ticket & MOST_SHARES
    share = own
    for _ in range(shares):
        share = share + 1 if share + 1 < shares else 0
        _take(sync, ticket, share)


@jit(inline=True)
def looks_after_run(calm: int, vain: int) -> int:
    """How often a thread looks for the next run before it sleeps.

    Args:
        calm: Runs since it was last put aside.
        vain: Runs since one came before it slept.
    """
    if vain >= VAIN_LOOKS and vain % TRIES:
        return 1
    return IDLE_LOOKS if calm >= CALM_RUNS else LOOKS


@jit
def _serve(sync: int, usage: int, own: int, tid: int, nt: int) -> None:
    """What a thread of the pool does all its life; it takes its own share first."""
    seen = 0
    looks = 0
    most = LOOKS
    calm = 0
    put_aside = 0
    idle = 0
    vain = 0
    while load(sync + _QUIT) == 0:
        ticket = load(sync + TICKET)
        number = ticket >> NUMBER
        if number != seen:
            seen = number
            looks = 0
            most = LOOKS
            if idle:  # it has not slept since the run before
                vain = 0
            idle = 0
            if ticket & MOST_SHARES == 0:  # a run is over
                call_system(load(sync + _SYSCALL), (_USAGE, _OF_THREAD, usage, 0, 0, 0))
                before, put_aside = put_aside, load(usage + USAGE_BYTES - 8)
                calm = calm + 1 if put_aside == before else 0
                most = looks_after_run(calm, vain)
                idle = 1
            if own < ticket & MOST_SHARES:
                _take(sync, ticket, own)
            continue
        pause()
        looks += 1
        if looks == OWN_LOOKS:
            _take_left(sync, ticket, own)
        if looks >= most:
            looks = 0
            vain += idle
            idle = 0
            generation = load(sync + _GENERATION)
            add(sync + _SLEEPING, 1)
            if load(sync + TICKET) >> NUMBER == seen and load(sync + _QUIT) == 0:
                call = (_FUTEX, sync, _WAIT_PRIVATE, generation & 0xFFFFFFFF, 0, 0)
                call_system(load(sync + _SYSCALL), call)
            add(sync + _SLEEPING, -1)


@jit(inline=True)
def _wake(sync: int) -> None:
    add(sync + _GENERATION, 1)
    if load(sync + _SLEEPING):
        call_system(load(sync + _SYSCALL), (_FUTEX, sync, _WAKE_PRIVATE, 1 << 20, 0, 0))


@jit
def _dismiss(sync: int, tid: int, nt: int) -> None:
    """Ends all threads of the pool, and waits for none: each first does the share that it has."""
    store(sync + _QUIT, 1)
    _wake(sync)


@jit(inline=True)
def _stand_aside(sync: int) -> None:
    """Keeps the other threads off the caller's processor, if it is not the one of last time."""
    here = call_here(load(sync + _WHERE), ())
    count, size = load(sync + _MOVING), load(sync + _SET_BYTES)
    if count == 0 or here == load(sync + _AVOIDED) or not 0 <= here < 8 * size:
        return
    store(sync + _AVOIDED, here)
    system, processors = load(sync + _SYSCALL), load(sync + _HELPERS)
    if call_system(system, (_GET_AFFINITY, 0, size, processors, 0, 0)) <= 0:
        return
    word = processors + here // 64 * 8
    store(word, load(word) & ~(np.int64(1) << (here % 64)))
    for number in range(count):
        # Fails, and changes nothing, where the caller may run on no other processor.
        thread = load(processors + size + 8 * number)
        call_system(system, (_SET_AFFINITY, thread, size, processors, 0, 0))


@jit
def _lead(sync: int, table: int, first: int, last: int, shared: int, tid: int, nt: int) -> None:
    """Runs rows of a table, with help if `shared`; the status is the row that failed, from 1.

    Args:
        sync: Address of the pool's memory.
        table: Address of the table.
        first: The first row.
        last: Behind the last one.
        shared: Whether others help.
        tid: This thread; not used.
        nt: All threads; not used.
    """
    store(sync + _STATUS, 0)
    number = (load(sync + TICKET) >> NUMBER) + 1
    if shared:
        _stand_aside(sync)
        # Row r of this run has number + r.
        store(sync + _TABLE, table)
        store(sync + _FIRST_TICKET, number - first)
    for row in range(first, last):
        place = table + 8 * ROW * row
        shares = load(place + 16)
        if shares == 0 or not shared:
            _compute(sync, place, 0, 1)
            if load(sync + _STATUS):
                store(sync + _STATUS, row + 1)
                break
            continue
        cleared = load(place + 24)
        for line in range(load(place + 32)):
            store(cleared + 64 * line, 0)
        step = number - first + row
        ticket = (step << NUMBER) | shares
        store(sync + TICKET, ticket)
        _wake(sync)
        _take(sync, ticket, 0)
        looks = 0
        for share in range(shares):
            while load(sync + _CLAIMS + _DONE + _SHARE * share) < step:
                pause()
                looks += 1
                if looks == OWN_LOOKS:
                    _take_left(sync, ticket, 0)
                if looks == LOOKS:
                    # The system has put aside a thread that holds a share: let it go on.
                    call_system(load(sync + _SYSCALL), (_YIELD, 0, 0, 0, 0, 0))
                    looks = LOOKS // 2
        if load(sync + _STATUS):
            store(sync + _STATUS, row + 1)
            break
    if shared:
        store(sync + TICKET, (number - first + last) << NUMBER)


_LEADING = _lead, (0,) * 5
_SERVING = _serve, (0, 0, 0)
_DISMISSING = _dismiss, (0,)
CALLS = _LEADING, _SERVING, _DISMISSING
"""What is compiled here, and arguments like those that it is called with."""

_LOOK_S = 1e-3

_MOST_END_S = 1.0
"""How long the end of the process waits for a run, and then for a thread."""


class Rows:
    """Rows of a table, ready to be run again and again; by one thread at a time.

    Args:
        table: Address of the table, `ROW` words a row.
        first: First row.
        last: Behind the last row.
        shared: Whether it is worth it to wake the other threads.
    """

    def __init__(self, table: int, first: int, last: int, shared: bool) -> None:
        lead, memory = _leading()
        self.shared = shared
        self.trampoline = lead.trampoline
        self.memory = memory.copy()
        start = data_address(self.memory)
        block = start + -start % 64
        self.words = words = self.memory.data
        self._status = (block - start + _STATUS) // 8
        alone, together = (WORDS + 8 + n * lead.slots for n in (0, 1))
        for at in (alone, together):
            words[at + 2], words[at + 3], words[at + 4] = table, first, last
        words[alone + 1] = block
        self.alone, self.together = start + 8 * alone, start + 8 * together
        self.sync_word = together + 1

    def lead_in(self, sync: int) -> int:
        """Where the arguments are for a run with the threads that share a memory."""
        self.words[self.sync_word] = sync
        return self.together

    def failed(self) -> int:
        """Which row failed in the last run by one thread, counted from 1, or 0."""
        return self.words[self._status]


@functools.cache
def _leading() -> tuple[Entry, np.ndarray[Any, Any]]:
    """What walks rows, and their memory at first: its arguments for one thread and for all."""
    lead = _entry(*_LEADING)
    memory = np.zeros(WORDS + 8 + 2 * lead.slots, np.int64)
    for at, shared in ((WORDS + 8, 0), (WORDS + 8 + lead.slots, 1)):
        fill(memory[at : at + lead.slots], lead, (0, 0, 0, 0, shared))
    return lead, memory


def _entry(kernel: Callable[..., None], arguments: tuple[int, ...]) -> Entry:
    """How to call what threads of a pool run, or is called for them."""
    entry = entry_of(kernel, arguments)
    if entry is None:
        raise CompileError("Device CPU cannot compile what walks its programs.")
    return entry


class ThreadPool:
    """The calling thread and some more, which end when nobody has the pool any more.

    Args:
        size: Number of threads, the caller's included.
        processors: One for each thread but the caller's to stay on; none to let them move.

    Raises:
        ValueError: It shall have more than `MOST_THREADS`.
    """

    _dismiss: Callable[..., int]
    _reference: weakref.ref[ThreadPool]

    def __init__(self, size: int, processors: Sequence[int] = ()) -> None:
        if size > MOST_THREADS:
            raise ValueError(
                f"A thread pool of {size} threads is too large; at most {MOST_THREADS}."
            )
        self.size = size
        self._processors = processors
        self._turn = Turn()
        self._pid = 0
        self.memory = np.zeros(0, np.int64)
        self.words = self.memory.data
        self.threads: list[SystemThread] = []
        self._is_ready = False
        self._helpers = np.zeros(set_bytes() // 8 + size - 1, np.int64)
        self._syscall, self._where = map(function_address, ("syscall", "sched_getcpu"))
        self.sync_word = 0
        self._status = 0
        self._invoke = invoke()
        _pools.add(self)

    def run(self, rows: Rows, explain: Callable[[int], None] | None = None) -> None:
        """Runs rows of a table; on the calling thread alone if the pool is busy, or cannot start.

        Args:
            rows: Those to be run, in order.
            explain: Called with the number of a row that failed; may raise an error that says more.

        Raises:
            InferError: A kernel failed.
        """
        users, user = self._turn.users, object()
        try:  # see partita.system.threads.turn
            if rows.shared and self.size > 1 and self._turn.take(user) and self._ready():
                self._invoke(rows.trampoline, rows.lead_in(self.sync_word), 0, 1)
                failed = self.words[self._status]
            else:
                self._invoke(rows.trampoline, rows.alone, 0, 1)
                failed = rows.failed()
        finally:
            if NOW in users and users[NOW] is user:
                del users[NOW]
        if failed:
            raise_failure(failed, explain)

    def begin_anew(self) -> None:
        """Forgets who runs rows, as a child process has to: that thread is not here."""
        self._turn = Turn()

    def _block(self) -> int:
        """Fresh shared memory, at the start of a cache line."""
        entry = _entry(*_DISMISSING)
        behind = WORDS + (_SHARE * self.size + _SHARE) // 8
        self.memory = np.zeros(behind + entry.slots, np.int64)
        self.words = self.memory.data
        start = self.memory.ctypes.data
        block = start + -start % _SHARE
        fill(self.memory[behind:], entry, (block,))
        self._dismiss = functools.partial(self._invoke, entry.trampoline, start + 8 * behind, 0, 1)
        words = {_SYSCALL: self._syscall, _WHERE: self._where, _AVOIDED: -1}
        words[_HELPERS], words[_SET_BYTES] = self._helpers.ctypes.data, set_bytes()
        for place, word in words.items():
            self.words[(block - start + place) // 8] = word
        self._status = (block - start + _STATUS) // 8
        return block

    def _ready(self) -> bool:
        """Starts the threads, if the system lets them; anew after a fork, which has but its own."""
        if self._pid == os.getpid() and self._is_ready:
            return True
        if self._pid != os.getpid():
            entry_of(*_SERVING)  # compiled once, before all threads need it
            self._is_ready = False
            self.sync_word = self._block()
            self.threads = []
            self._reference = weakref.ref(self, self._dismiss)
            self._pid = os.getpid()
        homes: Sequence[int | None] = self._processors or [None] * (self.size - 1)
        while len(self.threads) < self.size - 1:  # Ctrl-C may have kept some from being started
            own = len(self.threads) + 1
            try:
                what = self.memory, self.sync_word, own, homes[own - 1], self._reference
                self.threads.append(SystemThread(_live, *what))
                _threads.add(self.threads[-1])
            except RuntimeError as error:
                _log.info("Device CPU runs on one of %d threads for now: %s", self.size, error)
                return False
        while not all(thread.native_id for thread in self.threads):
            time.sleep(_LOOK_S / 100)
        if not self._processors:
            self._helpers[set_bytes() // 8 :] = [thread.native_id for thread in self.threads]
            self.words[self._status + (_MOVING - _STATUS) // 8] = len(self.threads)
        self._is_ready = True
        return True

    def stop(self) -> None:
        """Ends the threads, and waits for them; what the pool is given then, the caller runs."""
        until = time.monotonic() + _MOST_END_S
        if self._pid != os.getpid():
            return
        while not self._turn.take(self):
            if time.monotonic() > until:
                return
            time.sleep(_LOOK_S)
        self._dismiss()
        for thread in self.threads:
            thread.join(_MOST_END_S)


_pools = Living(in_child=ThreadPool.begin_anew)
_threads: Living[SystemThread] = Living()
"""Of all pools, those that nobody has any more among them."""


@atexit.register
def _stop_all() -> None:
    """Ends the threads of all pools while the code they run is still there."""
    for pool in _pools:
        pool.stop()
    for thread in _threads:
        thread.join(_MOST_END_S)


def raise_failure(failed: int, explain: Callable[[int], None] | None) -> NoReturn:
    """Raises what a row that failed has to say, or that it failed.

    Args:
        failed: Its number, counted from 1.
        explain: Called with its number, from 0; may raise an error that says more.
    """
    if explain is not None:
        explain(failed - 1)
    raise InferError("A kernel failed on device CPU.")


def function_address(name: str) -> int:
    """Where a function of the C library is."""
    return ctypes.cast(ctypes.CDLL(None)[name], ctypes.c_void_p).value or 0


def pin_thread(processor: int | None) -> None:
    """Keeps the calling thread on a processor, if one is given."""
    if processor is not None:
        this_system().pin(processor)


def _live(
    memory: np.ndarray[Any, Any],
    sync: int,
    own: int,
    processor: int | None,
    pool: weakref.ref[ThreadPool],
) -> None:
    """A thread of a pool, which has the pool's memory as long as it lives.

    A thread that does not end with its pool at once, as one that others keep from running, looks
    there once more. As long as there is one, the callback of the reference ends all of them.
    """
    pin_thread(processor)
    usage = np.zeros(USAGE_BYTES, np.uint8)
    _serve(sync, usage.ctypes.data, own, 0, 1)
