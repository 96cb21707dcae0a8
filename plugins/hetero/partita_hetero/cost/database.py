"""The database of measured costs: one SQLite file, shared by models and by processes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from partita.errors import CostError
from partita.storage.cache_folder import CACHE_VARIABLE, cache_folder, make_private, open_private
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_log = logging.getLogger("partita.hetero")

FILE = "costs.sqlite3"
VERSION = 3
"""Of what costs mean, and of the tables; a file of another version is set aside.

In version 1 all that a kernel computed counted as its first operation, and the others as nothing.
In version 2 nobody knew how busy the machine had been.
"""

BUSY_SECONDS = 20.0
"""How long a process waits for another one that is writing."""

MOST_ROWS = 200_000
"""Beyond so many costs the older half is deleted."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS device (id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cost (
    device TEXT NOT NULL, work TEXT NOT NULL, seconds REAL NOT NULL, samples INTEGER NOT NULL,
    how TEXT NOT NULL, label TEXT NOT NULL, busy REAL NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (device, work)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS link (
    source TEXT NOT NULL, target TEXT NOT NULL, latency REAL NOT NULL, per_byte REAL NOT NULL,
    busy REAL NOT NULL, created REAL NOT NULL, PRIMARY KEY (source, target)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS decision (
    id TEXT PRIMARY KEY, content TEXT NOT NULL, created REAL NOT NULL
) WITHOUT ROWID;
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work takes on one device.

    Attributes:
        device: Key of the device, see :func:`device_key`.
        work: Signature of the work.
        seconds: Median time of one run.
        samples: How many runs it is the median of.
        how: ``"measured"`` by itself, or ``"profiled"`` inside a larger submodel.
        label: What it is, for people.
        busy: The share of the processors that others used meanwhile, see `machine_load`.
    """

    device: str
    work: str
    seconds: float
    samples: int
    how: str
    label: str
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkCost:
    """What it takes to bring a tensor from one device to another.

    Attributes:
        source: Key of the device that made the tensor, or ``"host"``.
        target: Key of the device that reads it, or ``"host"``.
        latency: float that every tensor takes.
        per_byte: float that each byte takes on top.
        busy: The share of the processors that others used meanwhile, see `machine_load`.
    """

    source: str
    target: str
    latency: float
    per_byte: float
    busy: float = 0.0


def cost_folder() -> Path | None:
    """Where costs are kept; see :func:`partita.storage.cache_folder.cache_folder`."""
    return cache_folder("hetero")


def device_key(fingerprint: Mapping[str, str]) -> str:
    """A short name for everything that decides how fast a device is.

    Example:
        >>> device_key({"device": "A", "driver": "1"}) == device_key({"driver": "1", "device": "A"})
        True
        >>> device_key({"device": "A", "driver": "1"}) == device_key({"device": "A", "driver": "2"})
        False
    """
    text = json.dumps(dict(fingerprint), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Database:
    """The costs that were measured so far; usable from several threads and processes.

    What was measured on another driver or version has another device key, so it is never found,
    and new measurements take its place. A file that is damaged is set aside with a warning, and
    a new one begun; where no private file can be kept, costs stay in memory, with a warning.

    Args:
        path: The file; ``None`` for the one in the cache folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        folder = cost_folder() if path is None else path.parent
        self._in_memory = folder is None
        self.path = path or (folder or Path()) / FILE
        self._lock = InterruptSafeLock()
        self._connection = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            self._connection.close()

    # ---------------------------------------------------------------------------- reading

    def costs(self, device: str, works: Iterable[str]) -> dict[str, Cost]:
        """What is known of a device's work, by signature."""
        wanted = list(dict.fromkeys(works))
        found: dict[str, Cost] = {}
        for start in range(0, len(wanted), 500):  # SQLite allows 999 parameters
            some = wanted[start : start + 500]
            rows = self._run(functools.partial(_select_costs, device=device, works=some))
            found |= {row[1]: Cost(*row) for row in rows}
        return found

    def link(self, source: str, target: str) -> LinkCost | None:
        """What is known of the way between two devices."""
        row = self._run(
            lambda c: c.execute(
                "SELECT source, target, latency, per_byte, busy FROM link "
                "WHERE source = ? AND target = ?",
                [source, target],
            ).fetchone()
        )
        return LinkCost(*row) if row else None

    def decision(self, key: str) -> dict[str, Any] | None:
        """What was decided for a model before."""
        row = self._run(
            lambda c: c.execute("SELECT content FROM decision WHERE id = ?", [key]).fetchone()
        )
        return dict(json.loads(row[0])) if row else None

    # ---------------------------------------------------------------------------- writing

    def add_device(self, fingerprint: Mapping[str, str]) -> str:
        """Records what a device key stands for, and returns the key."""
        self._run(lambda connection: _insert_device(connection, fingerprint))
        return device_key(fingerprint)

    def add_costs(self, costs: Iterable[Cost]) -> None:
        """Records times; what was known of the same work is replaced."""
        listed = list(costs)
        self._run(lambda connection: _insert_costs(connection, listed))

    def add_link(self, link: LinkCost) -> None:
        """Records the cost of a way; what was known of it is replaced."""
        self._run(lambda connection: _insert_link(connection, link))

    def add_decision(self, key: str, content: Mapping[str, Any]) -> None:
        """Records what was decided for a model; the decision before is replaced."""
        row = [key, json.dumps(content), time.time()]
        self._run(lambda c: c.execute("INSERT OR REPLACE INTO decision VALUES (?,?,?)", row))

    # -------------------------------------------------------------------------- internals

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Runs one transaction; a file that turns out to be damaged is replaced by a new one."""
        with self._lock:
            try:
                with self._connection:
                    return action(self._connection)
            except sqlite3.DatabaseError as error:
                if _takes_no_more(error) and not self._in_memory:
                    self._move_to_memory(error)
                elif isinstance(error, sqlite3.OperationalError):
                    raise CostError(
                        f"The cost database '{self.path}' cannot be used: {error}. Delete it, or "
                        f"set {CACHE_VARIABLE} to another folder."
                    ) from error
                else:
                    self._connection.close()
                    self._set_aside(error)
                    self._connection = self._open()
                with self._connection:
                    return action(self._connection)

    def _open(self) -> sqlite3.Connection:
        if self._in_memory:
            return _connect(":memory:")
        try:
            make_private(self.path.parent)
            self._create()
            open_private(self.path).close()
        except OSError as error:
            return self._only_in_memory(error)
        try:
            return _connect(str(self.path))
        except (sqlite3.DatabaseError, _OtherVersionError) as error:
            if _takes_no_more(error):
                return self._only_in_memory(error)
            if isinstance(error, sqlite3.OperationalError):
                raise CostError(
                    f"The cost database '{self.path}' cannot be opened: {error}. Delete it, or "
                    f"set {CACHE_VARIABLE} to another folder."
                ) from error
            self._set_aside(error)
        self._create()
        return _connect(str(self.path))

    def _only_in_memory(self, error: Exception) -> sqlite3.Connection:
        _log.warning("Costs cannot be kept in '%s', only in memory: %s", self.path, error)
        self._in_memory = True
        return _connect(":memory:")

    def _move_to_memory(self, error: Exception) -> None:
        """Goes on with what the file has, in memory: the disk has no room for more."""
        kept = self._connection
        self._connection = self._only_in_memory(error)
        with contextlib.suppress(sqlite3.DatabaseError):
            kept.backup(self._connection)
        kept.close()

    def _create(self) -> None:
        """Makes the file if it is not there; SQLite keeps its mode for those beside it."""
        if not self.path.is_symlink():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _set_aside(self, error: Exception) -> None:
        """Renames the file, unless another process has done so and begun a new one."""
        with contextlib.suppress(sqlite3.DatabaseError, _OtherVersionError):
            _connect(str(self.path), check=True).close()
            return
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        _log.warning(
            "The cost database '%s' cannot be used (%s); it is kept as '%s', and costs are "
            "measured again.",
            self.path,
            error,
            aside.name,
        )
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _takes_no_more(error: Exception) -> bool:
    """Whether the disk is full, or lets nobody write."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)


class _OtherVersionError(Exception):
    """The file was written by another version of Partita."""


def _connect(path: str, check: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        _log_ahead(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, VERSION):
            raise _OtherVersionError(f"version {found}; this Partita writes {VERSION}")
        if check:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(str(verdict))
        if found == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={VERSION};COMMIT;"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Has changes written to a log first; of processes that ask at once SQLite lets none wait."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _select_costs(
    connection: sqlite3.Connection, device: str, works: Sequence[str]
) -> list[tuple[str, str, float, int, str, str, float]]:
    marks = ",".join("?" * len(works))
    query = (
        "SELECT device, work, seconds, samples, how, label, busy FROM cost "  # noqa: S608  # only marks
        f"WHERE device = ? AND work IN ({marks})"
    )
    return connection.execute(query, [device, *works]).fetchall()


def _insert_device(connection: sqlite3.Connection, fingerprint: Mapping[str, str]) -> None:
    text = json.dumps(dict(fingerprint), sort_keys=True)
    connection.execute(
        "INSERT OR IGNORE INTO device VALUES (?, ?)", [device_key(fingerprint), text]
    )


def _insert_costs(connection: sqlite3.Connection, costs: Sequence[Cost]) -> None:
    """Adds or replaces; deletes the older half where there are too many."""
    now = time.time()
    connection.executemany(
        "INSERT OR REPLACE INTO cost VALUES (?,?,?,?,?,?,?,?)",
        [(c.device, c.work, c.seconds, c.samples, c.how, c.label, c.busy, now) for c in costs],
    )
    count = connection.execute("SELECT count(*) FROM cost").fetchone()[0]
    if count > MOST_ROWS:
        connection.execute(
            "DELETE FROM cost WHERE created <= "
            "(SELECT created FROM cost ORDER BY created LIMIT 1 OFFSET ?)",
            [count // 2],
        )


def _insert_link(connection: sqlite3.Connection, link: LinkCost) -> None:
    row = [link.source, link.target, link.latency, link.per_byte, link.busy, time.time()]
    connection.execute("INSERT OR REPLACE INTO link VALUES (?,?,?,?,?,?)", row)
