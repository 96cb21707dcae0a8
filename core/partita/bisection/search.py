"""The search: from wrong outputs to the fewest operations that show the fault.

1. The reference runs with every value as an output; so does the device under test. Operations
   whose results are out of tolerance there are tried alone, in order, fed with the reference's
   values: the first that is wrong by itself is the fault.
2. Where none is, errors add up: the shortest run of operations that ends at the first value out of
   tolerance and shows it when fed with the reference's values, found by halving.
3. Where the intermediate values are all right and the outputs are not, the fault lies in operations
   that are only computed together when nobody asks for what lies between them. The shortest
   beginning of the model that is wrong is found by halving, then its shortest end.

Halving keeps one wrong and one right piece, so that it ends at a real border whether or not
the fault is monotone; it compiles about ``log2(operations)`` pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from partita.bisection import body_models, repro
from partita.bisection.device_pair import Bench, RefusedError
from partita.bisection.finding import Bisection, Finding, Kind, ValueDifference
from partita.core import Core
from partita.errors import CompileError, InferError
from partita.model.compare import Difference
from partita.model.model import Model
from partita.properties import Config, normalize

Array = np.ndarray[Any, Any]

Progress = Callable[[str, float], None]
"""Told what is going on and how much of it is done, from 0 to 1."""

_ALONE = 200
"""Most operations that are tried alone; those with inputs within tolerance always are."""

_THIN = 32
"""Up to this many operations each is tried to be left out."""


@dataclass(frozen=True)
class _Piece:
    """Operations that show the fault."""

    ops: tuple[int, ...]
    model: Model
    feeds: Mapping[str, Array]
    value: str
    difference: Difference


def bisect(
    model: Any,
    device: str,
    inputs: Mapping[str, Any],
    *,
    against: str | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-4,
    config: Config = None,
    output: str | Path | None = None,
    core: Core | None = None,
    progress: Progress | None = None,
) -> Bisection:
    """Finds the first operation, or the fewest operations together, that are out of tolerance.

    Keeps all intermediate values of both devices in memory while it runs.

    Args:
        model: A ``Model``, or whatever :meth:`Core.read_model` takes.
        device: The device under test, e.g. ``"HETERO:GPU,CPU"``.
        inputs: Input name to array.
        against: The device that is taken to be right; by default the reference device.
        rtol: Relative tolerance of every element.
        atol: Absolute tolerance; integers may be so far apart, which by default is not at all.
            Elements may also differ by ``rtol / 100`` of their tensor's largest one, since sums
            that cancel keep the rounding errors of their terms.
        config: Properties for the device under test.
        output: Where to write the fault as a model of its own (``.onnx``); its inputs and expected
            outputs go beside it, into ``<stem>/test_data_set_0``. The files are read back, and run.
        core: Compiles; by default a new one.
        progress: Told how far it is.

    Returns:
        What was compared and what was found.

    Raises:
        PartitaError: The reference cannot run the model, or the device cannot compile it.
    """
    core = core or Core()
    right = against or core.reference_device
    settings = normalize(config)
    bench = Bench(core, core.read_model(model), device, right, inputs, settings, rtol, atol)
    search = _Search(bench)
    result, piece = search.run(progress or (lambda what, share: None))
    if output is not None and piece is not None and result.finding is not None:
        path = Path(output)
        expected = {port.name: search.where.truth[port.name] for port in piece.model.outputs}
        data = repro.write(path, piece.model, piece.feeds, expected)
        seen = repro.shows(core, path, device, search.where.config, rtol, atol)
        finding = replace(result.finding, model=path, data=data, verified=seen)
        result = replace(result, finding=finding)
    return result


class _Search:
    """One bisection; descends into bodies by making another one."""

    def __init__(self, bench: Bench) -> None:
        self.bench = self.where = bench
        self.notes: list[str] = []
        self.crash: str = ""

    def run(self, progress: Progress) -> tuple[Bisection, _Piece | None]:
        """Compares, searches, descends."""
        bench = self.bench
        progress("running the reference", 0)
        bench.record_truth()
        progress("running the device", 0)
        outputs = self._compare_plain()
        values = self._compare_tapped()
        finding, piece = self._find(outputs, values, progress)
        if piece is not None and finding is not None and len(piece.ops) == 1:
            finding, piece = self._descend(finding, piece, progress)
        result = Bisection(
            bench.model.name,
            bench.device,
            bench.against,
            bench.rtol,
            bench.atol,
            outputs,
            values,
            finding,
            self.notes,
        )
        return result, piece

    # ------------------------------------------------------------------------ whole runs

    def _compare_plain(self) -> list[ValueDifference]:
        """The outputs of the model as it is; a device that fails is as wrong as can be."""
        try:
            values = self.bench.run_plain()
        except InferError as error:
            self.crash = str(error)
            self.notes.append(f"The device fails: {error}")
            self.bench.devices = dict.fromkeys(self.bench.names, self.bench.device)
            wrong = Difference(math.inf, what=f"not computed: {error}")
            return [self._row(name, wrong) for name in self.bench.results]
        return [self._row(name, self.bench.compare(name, v)) for name, v in values.items()]

    def _compare_tapped(self) -> list[ValueDifference]:
        """Every value, all made outputs of one run."""
        if self.crash:
            return []
        bench = self.bench
        try:
            values = bench.run_tapped()
        except (CompileError, InferError) as error:
            self.notes.append(
                f"The device cannot run with every value as an output, so pieces are tried: {error}"
            )
            return []
        return [
            self._row(name, bench.compare(name, values[name]))
            for op in bench.live
            for name in bench.writes(op)
            if name in values
        ]

    def _row(self, name: str, difference: Difference) -> ValueDifference:
        bench = self.bench
        op = bench.producer.get(name)
        if op is None:
            return ValueDifference(name, "", "", "", difference)
        device = bench.devices.get(bench.names[op], "-")
        return ValueDifference(name, bench.names[op], bench.nodes[op].op_type, device, difference)

    # ---------------------------------------------------------------------------- search

    def _find(
        self,
        outputs: Sequence[ValueDifference],
        values: Sequence[ValueDifference],
        progress: Progress,
    ) -> tuple[Finding | None, _Piece | None]:
        bad = {row.value for row in values if not row.difference.ok}
        wrong_outputs = [row for row in outputs if not row.difference.ok]
        if bad:
            if not wrong_outputs:
                self.notes.append("The model's outputs are within tolerance all the same.")
            piece = self._first_alone(bad, progress)
            if piece is not None:
                return self._finding(Kind.OPERATION, piece), piece
            first = next(row.value for row in values if row.value in bad)
            piece = self._grow(first, progress)
            if piece is not None:
                kind = Kind.OPERATION if len(piece.ops) == 1 else Kind.ACCUMULATED
                return self._finding(kind, piece), piece
            self.notes.append(f"No piece shows alone what is wrong with '{first}'.")
        if not wrong_outputs:
            return None, None
        if values and not bad:
            self.notes.append(
                "With every intermediate value as an output, which keeps operations from being "
                "fused, all of them are right: the fault is in what is computed together."
            )
        piece = self._halve(progress)
        if piece is None:
            self.notes.append("No piece of the model shows the fault when it runs alone.")
            return None, None
        kind = Kind.OPERATION if len(piece.ops) == 1 else Kind.FUSED
        return self._finding(kind, piece), piece

    def _first_alone(self, bad: set[str], progress: Progress) -> _Piece | None:
        """The first operation that is wrong when the reference's values go in."""
        bench = self.bench
        suspects = [op for op in bench.live if any(name in bad for name in bench.writes(op))]
        roots = [op for op in suspects if not any(name in bad for name in bench.reads[op])]
        tried = sorted({*roots, *suspects[:_ALONE]})
        refused = 0
        for done, op in enumerate(tried):
            progress("trying operations alone", done / len(tried))
            try:
                piece = self._shows((op,), bench.writes(op))
            except RefusedError:
                refused += 1
                continue
            if piece is not None:
                return piece
        if refused:
            self.notes.append(
                f"{refused} of {len(tried)} suspects could not be tried alone: the device refuses "
                "them without their surroundings."
            )
        return None

    def _grow(self, value: str, progress: Progress) -> _Piece | None:
        """The shortest run of operations that ends at a value and shows that it is wrong."""
        return self._shortest_end(self.bench.above([value], self._runnable()), [value], progress)

    def _halve(self, progress: Progress) -> _Piece | None:
        """The shortest beginning of the model that is wrong, then its shortest end."""
        bench = self.bench
        ops = self._runnable()
        right, wrong = 0, len(ops)
        found = self._beginning(ops, wrong)
        if found is None:
            return None
        while wrong - right > 1:
            progress("halving", 1 - math.log2(wrong - right) / max(1.0, math.log2(len(ops))))
            middle = (right + wrong) // 2
            piece = self._beginning(ops, middle)
            if piece is None:
                right = middle
            else:
                wrong, found = middle, piece
        outputs = [port.name for port in found.model.outputs]
        if found.value:
            alone = bench.above([found.value], found.ops)
            pruned = self._try(alone, [found.value])
            if pruned is not None:
                return self._shortest_end(alone, [found.value], progress) or pruned
        return self._shortest_end(found.ops, outputs, progress) or found

    def _beginning(self, ops: Sequence[int], count: int) -> _Piece | None:
        first = ops[:count]
        return self._try(first, self.bench.crossing(first))

    def _shortest_end(
        self, ops: Sequence[int], outputs: Sequence[str], progress: Progress
    ) -> _Piece | None:
        """The fewest of the last operations that still show the fault, then without the idle."""
        found = self._try(ops, outputs)
        if found is None:
            return None
        low, high = 0, len(ops)  # from low on it is wrong; from high on there is nothing
        while high - low > 1:
            progress("halving", 1 - math.log2(high - low) / max(1.0, math.log2(len(ops))))
            middle = (low + high) // 2
            piece = self._try(self.bench.above(outputs, ops[middle:]), outputs)
            if piece is None:
                high = middle
            else:
                low, found = middle, piece
        if len(found.ops) <= _THIN:
            for op in found.ops:
                rest = [other for other in found.ops if other != op]
                piece = self._try(self.bench.above(outputs, rest), outputs) if rest else None
                found = piece or found
        return found

    def _runnable(self) -> list[int]:
        return [op for op in self.bench.live if self.bench.names[op] in self.bench.devices]

    def _try(self, ops: Iterable[int], outputs: Sequence[str]) -> _Piece | None:
        """The piece if it shows the fault; a device that refuses it does not show it."""
        chosen = tuple(ops)
        inside = {name for op in chosen for name in self.bench.writes(op)}
        if not set(outputs) <= inside:
            return None
        try:
            return self._shows(chosen, outputs)
        except RefusedError:
            return None

    def _shows(self, ops: tuple[int, ...], outputs: Sequence[str]) -> _Piece | None:
        bench = self.bench
        outputs = [name for name in outputs if name not in bench.recorded]
        if not outputs:
            return None
        try:
            model, feeds, differences = bench.try_piece(ops, outputs)
        except InferError as error:
            model, feeds = bench.piece(ops, outputs)
            wrong = Difference(math.inf, what=f"not computed: {error}")
            return _Piece(ops, model, feeds, "", wrong)
        worst = next((name for name in outputs if not differences[name].ok), None)
        if worst is None:
            return None
        return _Piece(ops, model, feeds, worst, differences[worst])

    def _finding(self, kind: Kind, piece: _Piece) -> Finding:
        bench = self.bench
        names = [bench.names[op] for op in piece.ops]
        return Finding(
            kind,
            names,
            [bench.nodes[op].op_type for op in piece.ops],
            [bench.devices.get(name, "-") for name in names],
            piece.value,
            piece.difference,
        )

    # -------------------------------------------------------------------------- descent

    def _descend(
        self, finding: Finding, piece: _Piece, progress: Progress
    ) -> tuple[Finding, _Piece]:
        """Looks into the body of If and Loop; keeps the operation where no body shows the fault."""
        bench = self.bench
        for inner in body_models.runs(bench, piece.ops[0]):
            search = _Search(bench.of(inner.model, inner.feeds))
            result, deeper = search.run(progress)
            if result.finding is not None and deeper is not None:
                inside = (inner.description, *result.finding.inside)
                self.where = search.where
                self.notes += [note for note in result.notes if note not in self.notes]
                return replace(result.finding, inside=inside), deeper
        return finding, piece
