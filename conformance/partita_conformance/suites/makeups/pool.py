"""A pool of models that differ in one thing, created and dropped in a drawn order."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import partita
from partita.errors import BlobError, CompileError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.draws.makeup.built import Built
from partita_conformance.judging.requirements import ConformanceError
from partita_conformance.suites.makeups.monitor import agree, require_facts
from partita_conformance.suites.makeups.settings import unknown_model


@dataclass(frozen=True)
class Member:
    """One of the models.

    Attributes:
        what: In what it differs from the others.
        made: The model.
        settings: What it is compiled with.
        device: Where.
    """

    what: str
    made: Built = field(repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""


@dataclass
class _Alive:
    member: Member
    compiled: partita.CompiledModel
    request: partita.InferRequest


class Pool:
    """A walk through what may become of models while others are there.

    Args:
        bench: The device.
        members: The models, of which each differs from each other in one thing.
        seed: Which walk.
        folder: For ``CACHE_DIR``.
    """

    def __init__(self, bench: Bench, members: Sequence[Member], seed: int, folder: str) -> None:
        self._bench, self._members, self._folder = bench, members, folder
        self._random = random.Random(seed)  # noqa: S311  # the same walk each time
        self._core = bench.new_core()  # whose plugin has seen none of them
        self._alive: list[_Alive] = []
        self._blobs: dict[int, bytes] = {}
        self._steps: dict[Callable[[Member], None], int] = {
            self._compile: 4,
            self._cache: 4,
            self._import: 4,
            self._drop: 2,
            self._ask: 1,
            self._fail: 1,
            self._compile_side_by_side: 1,
        }

    def go(self, steps: int) -> None:
        """Compiles each of them, then makes so many steps.

        Raises:
            ConformanceError: A model is not itself behind one; the message tells the last ones.
        """
        story: list[str] = []
        kinds, weights = [*self._steps], [*self._steps.values()]
        turn = [*self._members]
        self._random.shuffle(turn)
        begin: list[tuple[Callable[[Member], None], Member]] = [(self._compile, m) for m in turn]
        begin += [(self._cache, m) for m in turn[:2]]
        drawn = [
            (self._random.choices(kinds, weights)[0], self._random.choice(self._members))
            for _ in range(steps)
        ]
        for step, member in (*begin, *drawn):
            story.append(f"{step.__name__.strip('_')} '{member.what}'")
            try:
                step(member)
                self._look()
            except Exception as error:
                kind = "" if isinstance(error, ConformanceError) else f"{type(error).__name__}: "
                raise ConformanceError(f"{'; '.join(story[-5:])}: {kind}{error}") from error
        for one in self._alive:
            self._right(one, "of all, at the end")

    # ----------------------------------------------------------------------------- looking

    def _look(self) -> None:
        for one in (*self._alive[-1:], *self._random.sample(self._alive, min(2, len(self._alive)))):
            self._right(one, "")

    def _right(self, one: _Alive, when: str) -> None:
        feeds, due = self._random.choice(one.member.made.cases[:2])
        results = one.request.infer({name: array.copy() for name, array in feeds.items()})
        agree(results.to_tuple(), due, f"'{one.member.what}'{when}")

    def _keep(self, member: Member, compiled: partita.CompiledModel) -> None:
        model = self._bench.read(member.made.proto)
        require_facts(self._bench, model, compiled, member.settings)
        self._alive = [*self._alive[-7:], _Alive(member, compiled, compiled.create_infer_request())]

    # ------------------------------------------------------------------------------- steps

    def _config(self, member: Member, **more: Any) -> dict[str, Any]:
        return {**self._bench.target.config, **member.settings, **more}

    def _compiled(self, member: Member, **more: Any) -> partita.CompiledModel:
        model = self._bench.read(member.made.proto)
        device = member.device or self._bench.device
        return self._core.compile_model(model, device, self._config(member, **more))

    def _compile(self, member: Member) -> None:
        compiled = self._compiled(member)
        try:
            self._blobs[self._members.index(member)] = compiled.export_model()
        except (CompileError, NotImplementedError, BlobError):
            self._blobs.clear()  # it exports nothing
        self._keep(member, compiled)

    def _cache(self, member: Member) -> None:
        self._keep(member, self._compiled(member, CACHE_DIR=self._folder))

    def _import(self, member: Member) -> None:
        blob = self._blobs.get(self._members.index(member))
        if blob is not None:
            self._keep(member, self._core.import_model(blob, member.device or self._bench.device))

    def _drop(self, member: Member) -> None:
        self._alive = [one for one in self._alive if one.member is not member]
        gc.collect(0)

    def _ask(self, member: Member) -> None:
        model = self._bench.read(member.made.proto)
        self._core.query_model(model, self._bench.device, self._config(member))

    def _fail(self, member: Member) -> None:
        try:
            self._core.compile_model(unknown_model(), self._bench.device, self._config(member))
        except PartitaError:
            return

    def _compile_side_by_side(self, member: Member) -> None:
        """All are compiled at once, each on a thread of its own."""
        made: list[tuple[Member, Any]] = []
        start = threading.Barrier(len(self._members))

        def work(one: Member) -> None:
            start.wait(10)
            try:
                made.append((one, self._compiled(one)))
            except Exception as error:  # noqa: BLE001  # raised again below
                made.append((one, error))

        threads = [threading.Thread(target=work, args=(one,)) for one in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one, compiled in made:
            if isinstance(compiled, Exception):
                raise compiled
            self._keep(one, compiled)
            self._right(self._alive[-1], ", compiled while others were")
