"""Loop, Scan and SequenceMap as ONNX specifies them, where ``onnx.reference`` leaves parts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TypeProto, helper
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class Loop(OpRun):
    """The original gives scan outputs of scalars a second axis, and none a shape without runs."""

    def need_context(self) -> bool:
        """Bodies read values of the graph around them."""
        return True

    def _run(
        self,
        limit: Array | None = None,
        cond: Array | None = None,
        *states: Any,
        context: Mapping[str, Any] | None = None,
        attributes: Any = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        body: Any = self.body  # type: ignore[attr-defined]  # set from the attribute
        values = list(states)
        scanned: list[list[Array]] = [[] for _ in range(len(body.output_names) - 1 - len(values))]
        count = None if limit is None else int(np.asarray(limit).item())
        going = cond is None or bool(np.asarray(cond).item())
        step = 0
        while going and (count is None or step < count):
            feeds = dict(context or {})
            inner = [np.array(step, np.int64), np.array(True), *values]
            feeds.update(zip(body.input_names, inner, strict=True))
            keep, *results = self._run_body(feeds, attributes=attributes)  # type: ignore[attr-defined]
            going = bool(np.asarray(keep).item())
            values = results[: len(values)]
            for rows, row in zip(scanned, results[len(values) :], strict=True):
                rows.append(np.asarray(row))
            step += 1
        types = body.output_types[1 + len(values) :]
        stacks = [_stack(rows, kind, 0) for rows, kind in zip(scanned, types, strict=True)]
        return (*values, *stacks)


class Scan(OpRun):
    """The original has only axis 0 and forward, no empty scans, and not opset 8's batches."""

    def need_context(self) -> bool:
        """Bodies read values of the graph around them."""
        return True

    def _run(
        self, *args: Any, context: Mapping[str, Any] | None = None, attributes: Any = None, **_: Any
    ) -> tuple[Any, ...]:
        if self.run_params["opsets"].get("", 9) >= 9:
            return self._scan(args, context, attributes)
        lengths, *rest = args
        count = rest[0].shape[0]
        sequence = rest[-1].shape[1]
        per_item = []
        for item in range(count):
            length = sequence if lengths is None else int(lengths[item])
            first = len(rest) - self._scanned
            cut = [x[item] if i < first else x[item][:length] for i, x in enumerate(rest)]
            padded = [
                y if i < first else _pad_rows(y, sequence)
                for i, y in enumerate(self._scan(cut, context, attributes))
            ]
            per_item.append(padded)
        return tuple(np.stack(columns) for columns in zip(*per_item, strict=True))

    @property
    def _scanned(self) -> int:
        return int(self.num_scan_inputs)  # type: ignore[attr-defined]  # set from the attribute

    def _scan(
        self, args: Sequence[Any], context: Mapping[str, Any] | None, attributes: Any
    ) -> tuple[Any, ...]:
        body: Any = self.body  # type: ignore[attr-defined]
        first = len(args) - self._scanned
        states, scans = list(args[:first]), args[first:]
        n_out = len(body.output_names) - first
        in_axes = _given(getattr(self, "scan_input_axes", None), len(scans))
        backward = _given(
            getattr(self, "scan_input_directions", None) or getattr(self, "directions", None),
            len(scans),
        )
        out_axes = _given(getattr(self, "scan_output_axes", None), n_out)
        out_backward = _given(getattr(self, "scan_output_directions", None), n_out)
        rows = [
            np.flip(np.moveaxis(x, axis, 0), 0) if flip else np.moveaxis(x, axis, 0)
            for x, axis, flip in zip(scans, in_axes, backward, strict=True)
        ]
        collected: list[list[Array]] = [[] for _ in range(n_out)]

        def results_of(slices: Iterable[Array]) -> Sequence[Any]:
            feeds = dict(context or {})
            feeds.update(zip(body.input_names, [*states, *slices], strict=True))
            results: Sequence[Any] = self._run_body(feeds, attributes=attributes)  # type: ignore[attr-defined]
            return results

        for step in range(rows[0].shape[0]):
            results = results_of(np.asarray(row[step]) for row in rows)
            states = list(results[:first])
            for column, value in zip(collected, results[first:], strict=True):
                column.append(np.asarray(value))
        kinds = body.output_types[first:]
        if not len(rows[0]) and not all(map(_is_settled, kinds)):
            of_zeros = results_of(np.zeros(row.shape[1:], row.dtype) for row in rows)
            columns = zip(of_zeros[first:], out_axes, strict=True)
            return (*states, *(np.stack([value], axis).take([], axis) for value, axis in columns))
        outputs = []
        for column, axis, flip, kind in zip(collected, out_axes, out_backward, kinds, strict=True):
            outputs.append(_stack(column[::-1] if flip else column, kind, axis))
        return (*states, *outputs)


class SequenceMap(OpRun):
    """The original's body reads no values of the graph around it, and one further sequence at most.

    It also has no results for a sequence of no elements.
    """

    def need_context(self) -> bool:
        """Bodies read values of the graph around them."""
        return True

    def _run(
        self,
        sequence: list[Any],
        *others: Any,
        context: Mapping[str, Any] | None = None,
        attributes: Any = None,
        **_: Any,
    ) -> tuple[list[Any], ...]:
        body: Any = self.body  # type: ignore[attr-defined]  # set from the attribute
        lengths = [len(sequence), *(len(other) for other in others if isinstance(other, list))]
        if len(set(lengths)) > 1:
            raise ValueError(f"the sequences have different lengths: {lengths}")
        outputs: tuple[list[Any], ...] = tuple([] for _ in body.output_names)
        for place, element in enumerate(sequence):
            beside = [other[place] if isinstance(other, list) else other for other in others]
            feeds = dict(context or {})
            feeds.update(zip(body.input_names, [element, *beside], strict=True))
            results = self._run_body(feeds, attributes=attributes)  # type: ignore[attr-defined]
            for output, value in zip(outputs, results, strict=True):
                output.append(value)
        return outputs


def _given(values: Sequence[int] | None, count: int) -> list[int]:
    """An optional list attribute, zeros where it is left out."""
    return list(values) if values else [0] * count


def _is_settled(kind: TypeProto) -> bool:
    """Whether a declared type tells all sizes."""
    tensor = kind.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _stack(rows: Sequence[Array], kind: TypeProto, axis: int) -> Array:
    """Rows along a new axis; of none, what the body declares says type and shape."""
    if rows:
        return np.stack(rows, axis=axis)
    tensor = kind.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
    return np.empty(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _pad_rows(rows: Array, count: int) -> Array:
    """Zeros behind the rows of an item that is shorter than the others."""
    result = np.zeros((count, *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    return result
