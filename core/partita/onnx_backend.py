"""ONNX's own interface for engines, ``onnx.backend.base.Backend``, over Partita's devices.

A ``device`` here is a Partita device string: ``"CPU"`` is device CPU alone and refuses what it does
not take, ``"HETERO:CPU,REFERENCE"`` falls back. Keyword arguments are properties to compile with::

    rep = partita.onnx_backend.prepare(model, "HETERO:GPU,CPU", PERF_COUNT=True)
    y, = rep.run([x])

ONNX's test runner knows only the device names ``CPU`` and ``CUDA``; :func:`backend_for` makes a
backend that plays any device string under the name ``CPU``::

    tests = onnx.backend.test.BackendTest(backend_for("HETERO:CPU,REFERENCE"), __name__)
    globals().update(tests.test_cases)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, DeviceType, namedtupledict

from partita.core import Core
from partita.errors import DeviceError, InputError
from partita.runtime.compiled_model import CompiledModel
from partita.tensors.sequence_values import boxed, unboxed

Array = np.ndarray[Any, Any]


@functools.cache
def _core() -> Core:
    """One core for all backends of the process; discovery is not repeated for every model."""
    return Core()


class PartitaBackendRep(BackendRep):
    """A compiled model that takes and returns values as ONNX's interface wants them.

    Args:
        compiled: What to run.
        inputs: Names of the model's inputs, initializers that are also inputs included.
    """

    def __init__(self, compiled: CompiledModel, inputs: Sequence[str]) -> None:
        self.compiled = compiled
        self._inputs = list(inputs)
        self._input_names = {port.name for port in compiled.inputs}
        self._request = compiled.create_infer_request()
        self._result = namedtupledict("Outputs", [port.name for port in compiled.outputs])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Computes the outputs.

        Args:
            inputs: A dict by name, one array, or a sequence of values in the model's order. A
                value is an array, a list of arrays (sequence) or ``None`` (absent optional).
            kwargs: None are accepted.

        Returns:
            A named tuple; sequences come back as lists.

        Raises:
            InputError: Too many values, or an argument that is not known.
        """
        if kwargs:
            raise InputError(f"run() takes no argument {', '.join(map(repr, kwargs))}.")
        feeds = {name: boxed(value) for name, value in self._by_name(inputs).items()}
        result = self._request.infer(feeds)
        values: tuple[Any, ...] = self._result(*(unboxed(array) for array in result.to_tuple()))
        return values

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(values) > len(self._inputs):
            raise InputError(
                f"The model has {len(self._inputs)} inputs ({', '.join(self._inputs)}); "
                f"{len(values)} values were given."
            )
        pairs = zip(self._inputs, values, strict=False)
        return {name: value for name, value in pairs if name in self._input_names}


class PartitaBackend(Backend):
    """Partita as an ONNX backend; all methods are class methods, as the interface has them."""

    plays: ClassVar[str | None] = None
    """The device string that the name ``CPU`` stands for; ``None``: names mean what they say."""

    @classmethod
    def is_compatible(
        cls, model: onnx.ModelProto, device: str | None = None, **kwargs: Any
    ) -> bool:
        """Whether the device takes every operation of the model."""
        core = _core()
        readable = core.read_model(model)
        answer = core.query_model(readable, cls._device(device), kwargs)
        return all(op.name in answer for op in readable.ops)

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str | None = None, **kwargs: Any
    ) -> PartitaBackendRep:
        """Compiles a model.

        Args:
            model: The model; it is not changed.
            device: A Partita device string; by default the device of those who name none.
            kwargs: Properties to compile with.

        Raises:
            PartitaError: As :meth:`partita.Core.compile_model`.
        """
        compiled = _core().compile_model(model, cls._device(device), kwargs)
        return PartitaBackendRep(compiled, [value.name for value in model.graph.input])

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compiles and runs a model once.

        Args:
            model: The model; it is not changed.
            inputs: A dict by name, or one array per input.
            device: A Partita device string; by default the device of those who name none.
            kwargs: Properties to compile with.

        Returns:
            The outputs in the model's order.

        Raises:
            PartitaError: As :meth:`partita.Core.compile_model`, and as a request.
        """
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str | None = None,
        outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node.

        Args:
            node: Of any domain; its operator set is the one in ``kwargs``.
            inputs: A dict by name, or one array per input that is not left out.
            device: A Partita device string; by default the device of those who name none.
            outputs_info: Dtype and shape of each output; inferred if not given.
            kwargs: ``opset_version`` (by default the newest); others are properties.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        present = list(dict.fromkeys(name for name in node.input if name))
        values = inputs if isinstance(inputs, Mapping) else None
        if values is None:
            given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            named = [name for name in node.input if name]
            values = dict(zip(named, given, strict=True))
        known = list(outputs_info) if outputs_info is not None else [None] * len(node.output)
        graph = helper.make_graph(
            [node],
            node.op_type,
            [_value_info(name, np.asarray(values[name])) for name in present],
            [
                _output_info(name, info)
                for name, info in zip(node.output, known, strict=True)
                if name
            ],
        )
        imports = [helper.make_opsetid("", opset)]
        if node.domain:
            imports.append(helper.make_opsetid(node.domain, kwargs.pop("domain_version", 1)))
        model = helper.make_model(graph, opset_imports=imports)
        return cls.run_model(model, dict(values), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device can be used on this machine."""
        if cls.plays is not None and not _is_host(device):
            return False
        try:
            _core().resolve_device(cls._device(device).partition(":")[0])
        except DeviceError:
            return False
        return True

    @classmethod
    def _device(cls, device: str | None) -> str:
        if device is None:
            return cls.plays or _core().default_device
        return cls.plays if cls.plays is not None and _is_host(device) else device


def backend_for(device: str) -> type[PartitaBackend]:
    """A backend whose device ``CPU`` is the given device string, for ONNX's test runner."""
    return type("PartitaBackend", (PartitaBackend,), {"plays": device})


def _is_host(device: str) -> bool:
    """Whether this is ONNX's name for devices that compute on the host."""
    return vars(DeviceType).get(device) == DeviceType.CPU


def _value_info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def _output_info(name: str, info: tuple[Any, Sequence[int]] | None) -> onnx.ValueInfoProto:
    if info is None:
        return helper.make_empty_tensor_value_info(name)
    dtype, shape = info
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape)
    )


is_compatible = PartitaBackend.is_compatible
prepare = PartitaBackend.prepare
run_model = PartitaBackend.run_model
run_node = PartitaBackend.run_node
supports_device = PartitaBackend.supports_device
