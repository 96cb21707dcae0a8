"""A model on two devices: runs it, and pieces of it fed with the reference's values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from partita.devices import device_string
from partita.errors import (
    CompileError,
    InferError,
    InputError,
    PartitaError,
    UnsupportedOpError,
)
from partita.model.compare import Difference, difference
from partita.model.inference.shape_inference import infer_shapes
from partita.model.model import Model
from partita.model.value_uses import has_own_source, values_read

if TYPE_CHECKING:
    from partita.runtime.compiled_model import CompiledModel

Array = np.ndarray[Any, Any]

ROUNDING = 0.01
"""This part of the relative tolerance goes by the tensor's largest element: where the terms of a
sum cancel, their rounding errors stay."""

_SMALL = 64
"""Integer values up to this many elements are shapes, axes and the like."""


class RefusedError(PartitaError):
    """The device does not take a piece of the model, alone as it is."""


class Compiler(Protocol):
    """Who compiles; a :class:`~partita.Core` does."""

    def compile_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> CompiledModel:
        """A model for a device."""


class Bench:
    """One model, its inputs, and the two devices.

    Args:
        core: Compiles.
        model: The model; it is copied.
        device: The device under test, compiled with ``config``.
        against: The device that is right.
        feeds: Input name to array.
        config: Properties for the device under test.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """

    def __init__(
        self,
        core: Compiler,
        model: Model,
        device: str,
        against: str,
        feeds: Mapping[str, Array],
        config: Mapping[str, Any] | None,
        rtol: float,
        atol: float,
    ) -> None:
        self.core, self.device, self.against, self.config = core, device, against, config
        self.rtol, self.atol = rtol, atol
        self.model = model.clone()
        self.feeds = dict(feeds)
        self.nodes = list(self.model.ir.graph)
        self.names = [node.name or "" for node in self.nodes]
        self.producer = {v.name: i for i, n in enumerate(self.nodes) for v in n.outputs if v.name}
        fed = {port.name for port in model.inputs}
        self.reads = [
            list(
                dict.fromkeys(
                    v.name or ""
                    for v in values_read(node)
                    if v.name in self.producer or v.name in fed
                )
            )
            for node in self.nodes
        ]
        self.results = [port.name for port in model.outputs]
        self.live = self._ancestors(name for name in self.results if name in self.producer)
        self.devices: dict[str, str] = {}
        self.truth: dict[str, Array] = {}
        self.recorded: list[str] = []
        self._readers: dict[str, set[int]] = {}
        for index in self.live:
            for name in self.reads[index]:
                self._readers.setdefault(name, set()).add(index)

    def of(self, model: Model, feeds: Mapping[str, Array]) -> Bench:
        """The same for another model, such as a body of this one."""
        return Bench(
            self.core, model, self.device, self.against, feeds, self.config, self.rtol, self.atol
        )

    # ------------------------------------------------------------------------- whole runs

    def record_truth(self) -> None:
        """Runs the reference with every value as an output.

        Raises:
            PartitaError: It cannot run the model; says what to do.
        """
        tapped = self._tapped(range(len(self.nodes)))
        try:
            values = self.core.compile_model(tapped, self.against)(self.feeds).to_dict()
        except InputError:
            raise
        except (CompileError, UnsupportedOpError, InferError) as error:
            raise type(error)(
                f"'{self.against}' cannot run the model as the reference; compare with "
                f"another one (--against). {error}"
            ) from error
        self.truth = {**self.feeds, **values}
        self.recorded = [
            name
            for index, node in enumerate(self.nodes)
            if has_own_source(node) and index in self.live
            for name in self.writes(index)
        ]

    def run_plain(self) -> dict[str, Array]:
        """The model's outputs on the device under test, compiled as a user would."""
        compiled = self.core.compile_model(self._under_test(self.model), self.device, self.config)
        explanation = compiled.explain()
        self.devices = {op.name: op.device for op in explanation.ops if op.subgraph is not None}
        self.config = compiled.device_model.piece_properties()
        own = device_string.parse(self.device).device
        for op in self.model.ops:
            placed = self.devices.get(op.name)
            if placed is not None and placed not in (own, compiled.device):
                op.affinity = placed
        return self._infer(compiled, self._known(compiled))

    def run_tapped(self) -> dict[str, Array]:
        """Every value on the device under test, in one run, each operation on its device."""
        tapped = self._tapped(i for i in self.live if self.names[i] in self.devices)
        tapped = self._under_test(tapped)
        compiled = self.core.compile_model(tapped, self.device, self.config)
        return self._infer(compiled, self._known(compiled))

    def _under_test(self, model: Model) -> Model:
        """The model with generated random numbers replaced by the reference's."""
        if not self.recorded:
            return model
        inputs = [*(port.name for port in model.inputs), *self.recorded]
        outputs = [port.name for port in model.outputs if port.name in self.producer]
        outputs = [name for name in outputs if name not in self.recorded]
        return model.extract(inputs, outputs, model.name)

    def _tapped(self, ops: Iterable[int]) -> Model:
        clone = self.model.clone()
        graph = clone.ir.graph
        known = set(self.results)
        nodes = list(graph)
        for index in ops:
            for value in nodes[index].outputs:
                if value.name and value.name not in known:
                    graph.outputs.append(value)
                    known.add(value.name)
        return clone

    # ---------------------------------------------------------------------------- pieces

    def writes(self, op: int) -> list[str]:
        """Names of the values that an operation computes and somebody wants."""
        wanted = [v.name for v in self.nodes[op].outputs if v.name]
        used = [n for n in wanted if n in self._readers or n in self.results]
        return used or wanted

    def crossing(self, ops: Iterable[int]) -> list[str]:
        """Values that operations hand to others, or to the model's outputs."""
        inside = set(ops)
        return [
            name
            for op in sorted(inside)
            for name in self.writes(op)
            if name in self.results or not self._readers.get(name, set()) <= inside
        ]

    def above(self, values: Iterable[str], ops: Iterable[int]) -> list[int]:
        """Those of the operations that values depend on, in order."""
        return self._ancestors(values, set(ops))

    def piece(self, ops: Sequence[int], outputs: Sequence[str]) -> tuple[Model, dict[str, Array]]:
        """Operations as a model of their own, and the reference's values for its inputs."""
        nodes = [self.nodes[op] for op in ops]
        made = {value.name for node in nodes for value in node.outputs}
        inputs = list(dict.fromkeys(n for op in ops for n in self.reads[op] if n not in made))
        model = self.model.extract(inputs, outputs, f"{self.model.name}_piece", nodes)
        feeds = {port.name: self.truth[port.name] for port in model.inputs}
        _type_inputs(model, feeds)
        return model, feeds

    def try_piece(
        self, ops: Sequence[int], outputs: Sequence[str]
    ) -> tuple[Model, dict[str, Array], dict[str, Difference]]:
        """Runs operations alone, fed with the reference's values, and compares.

        Where the device refuses them because a shape or an axis has become an input, these are
        stored in the model as constants.

        Raises:
            RefusedError: The device does not take them alone.
            InferError: It takes them and fails.
        """
        model, feeds = self.piece(ops, outputs)
        try:
            values = self.run_piece(model, feeds)
        except RefusedError:
            if not _store_small(model, feeds):
                raise
            values = self.run_piece(model, feeds)
        return model, feeds, {name: self.compare(name, values[name]) for name in outputs}

    def run_piece(self, model: Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs a piece on the device under test.

        Raises:
            RefusedError: The device does not take it, or moves operations elsewhere.
        """
        try:
            compiled = self.core.compile_model(model, self.device, self.config)
        except UnsupportedOpError as error:
            raise RefusedError(str(error)) from error
        for op in compiled.explain().ops:
            due = self.devices.get(op.name)
            if op.subgraph is not None and due is not None and op.device != due:
                raise RefusedError(f"'{op.name}' goes to {op.device} instead of {due}: {op.why}")
        return compiled(dict(feeds)).to_dict()

    def compare(self, name: str, value: Array) -> Difference:
        """How far a value is from the reference's."""
        return difference(value, self.truth[name], self.rtol, self.atol, ROUNDING * self.rtol)

    def _ancestors(self, values: Iterable[str], among: set[int] | None = None) -> list[int]:
        found: set[int] = set()
        stack = [self.producer[name] for name in values if name in self.producer]
        while stack:
            op = stack.pop()
            if op not in found and (among is None or op in among):
                found.add(op)
                stack += [self.producer[n] for n in self.reads[op] if n in self.producer]
        return sorted(found)

    def _known(self, compiled: Any) -> dict[str, Array]:
        return {port.name: self.truth[port.name] for port in compiled.inputs}

    @staticmethod
    def _infer(compiled: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[str, Array] = compiled(dict(feeds)).to_dict()
        return values


def _type_inputs(model: Model, feeds: Mapping[str, Array]) -> None:
    """Gives inputs of unknown type or rank those of the arrays that they get."""
    import onnx_ir as ir

    for value in model.ir.graph.inputs:
        array = feeds[value.name or ""]
        if array.dtype == object and array.ndim == 0:
            continue  # a sequence or an optional value, whose type the model must tell
        if value.dtype is None:
            value.dtype = ir.DataType.STRING if array.dtype == object else _data_type(array)
        if value.shape is None:
            value.shape = ir.Shape(array.shape)


def _data_type(array: Array) -> Any:
    import onnx_ir as ir

    return ir.DataType.from_numpy(array.dtype)


def _store_small(model: Model, feeds: dict[str, Array]) -> bool:
    """Turns small integer inputs into constants; whether there were any."""
    import onnx_ir as ir

    graph = model.ir.graph
    stored = False
    for value in list(graph.inputs):
        array = feeds[value.name or ""]
        if array.dtype.kind in "iub" and array.size <= _SMALL:
            graph.inputs.remove(value)
            value.const_value = ir.Tensor(array, name=value.name)
            graph.register_initializer(value)
            del feeds[value.name or ""]
            stored = True
    if stored:
        infer_shapes(model.ir)
    return stored
