"""Compiled models that run in ``onnx.reference``, and which operators it has."""

from __future__ import annotations

import functools
import importlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError
from onnx.reference.ops._op_list import load_op

from partita.contract.device_model import DeviceModel
from partita.contract.profiling import ProfilingInfo
from partita.contract.query import Reason, ReasonCode
from partita.contract.runner import Runner
from partita.errors import CompileError, InferError, InputError, in_words, raised_as
from partita.extensions import extension_of
from partita.model.model import Model
from partita.properties import DeviceProperties
from partita.system.threads.blas_threads import blas_threads
from partita.tensors.sequence_values import boxed, copied, unboxed
from partita.tensors.tensor import HostTensor, Tensor
from partita_reference.corrections import corrected_for
from partita_reference.declared_shapes import graphs, tell_declared_shapes
from partita_reference.decoder import unread as unread_of_decoder
from partita_reference.extensions import python_operators
from partita_reference.properties import ReferenceProperties
from partita_reference.recurrent import ACTIVATIONS
from partita_reference.texts.pattern import steps_of
from partita_reference.texts.tokens import refused_tokens

_OTHER_DOMAINS = {
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",  # since onnx 1.22
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}
"""Where the evaluator keeps the operators of domains other than ONNX's main one."""


MOST_TAPS = 1 << 16
"""Elements of a window; the evaluator walks through them in Python."""


@functools.cache
def _implemented(domain: str, op_type: str, version: int) -> bool:
    """Whether the evaluator has the operator, itself or as a function of others."""
    if any((new.op_domain, new.__name__) == (domain, op_type) for new in corrected_for(version)):
        return True
    try:
        if domain in _OTHER_DOMAINS:
            importlib.import_module(_OTHER_DOMAINS[domain]).load_op(domain, op_type, version)
        else:
            load_op(domain, op_type, version, evaluator_cls=ReferenceEvaluator)
    except RuntimeContextError:
        return True  # a function whose body depends on the types that its inputs turn out to have
    except (ImportError, RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _nodes(node: ir.Node) -> Iterator[ir.Node]:
    """The node and all nodes in its bodies."""
    yield node
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from ir.traversal.RecursiveGraphIterator(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                yield from ir.traversal.RecursiveGraphIterator(graph)


def _taps(node: ir.Node) -> int:
    """Elements of the window that a pool moves over its input."""
    window = node.attributes.get("kernel_shape")
    if window is None or window.type != ir.AttributeType.INTS:
        return 1
    return math.prod(window.as_ints())


def _unread(node: ir.Node) -> str | None:
    """The first attribute that the evaluator would ignore, or misread, where it matters."""
    if node.op_type in ("LSTM", "GRU", "RNN") and not node.domain:
        given = node.attributes.get("activations")
        names = [] if given is None else [name.lower() for name in given.as_strings()]
        return None if ACTIVATIONS.keys() >= set(names) else "activations"
    return unread_of_decoder(node)


def _unreadable(node: ir.Node) -> str | None:
    """What is wrong with the pattern of an operation that has one."""
    if (node.domain, node.op_type) == ("com.microsoft", "Tokenizer"):
        given = node.attributes.get("separators")
        separators = () if given is None else given.as_strings()
        return refused_tokens(separators, node.attributes.get_string("tokenexp", ""))
    if (node.domain, node.op_type) != ("", "RegexFullMatch"):
        return None
    try:
        steps_of(node.attributes.get_string("pattern", ""))
    except ValueError as error:
        return str(error)
    return None


def missing(node: ir.Node) -> Reason | None:
    """Why the evaluator cannot run a node, or ``None`` if it can."""
    imports = node.graph.opset_imports if node.graph is not None else {}
    for part in _nodes(node):
        own = extension_of(part)
        if own is not None:
            untyped = [value.name for value in part.outputs if value.name and value.dtype is None]
            if untyped and part is node:  # nobody else reads what bodies compute
                return Reason(
                    ReasonCode.UNSUPPORTED_DTYPE,
                    f"nothing tells the element type of '{untyped[0]}'; give {own} a rule for it",
                )
            continue
        version = part.version or imports.get(part.domain, 1)
        if not _implemented(part.domain, part.op_type, version):
            return Reason(
                ReasonCode.UNSUPPORTED_OP,
                f"onnx.reference has no '{part.domain or 'ai.onnx'}::{part.op_type}' "
                f"of opset {version}",
            )
        unread = _unread(part)
        if unread is not None:
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"onnx.reference ignores or misreads attribute '{unread}' of {part.op_type}",
            )
        wrong = _unreadable(part)
        if wrong is not None:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, wrong)
        taps = _taps(part)
        if taps > MOST_TAPS:
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"a window of {taps} elements; takes up to {MOST_TAPS}",
            )
    return None


def _name_left_out_outputs(graph: onnx.GraphProto) -> None:
    """Gives outputs of a graph that are left out names that nothing reads; none in bodies.

    The evaluator keeps them under the empty name, which is that of inputs that are left out.
    """
    for number, node in enumerate(graph.node):
        for place, name in enumerate(node.output):
            if not name:
                node.output[place] = f"{graph.name}/left out/{number}.{place}"


def _without_weights(model: Model) -> onnx.ModelProto:
    """The model as a protobuf in which nothing tells what its initializers hold.

    Those of bodies are there.
    """
    copy = model.ir.clone()
    copy.graph.initializers.clear()
    return ir.to_proto(copy)


def _weights(model: Model) -> dict[str, np.ndarray[Any, Any]]:
    """The initializers as the evaluator has them: views that nobody can write by.

    Only those that do not lie in memory row by row are copied.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in model.ir.graph.initializers.items():
        weight = value.const_value
        if weight is None:
            continue
        if weight.dtype == ir.DataType.STRING:  # onnx_ir has them as bytes
            arrays[name] = onnx.numpy_helper.to_array(ir.to_proto(weight))
        else:
            # BLAS adds terms in another order where a matrix lies turned.
            arrays[name] = np.asarray(weight.numpy(), order="C").view()
            arrays[name].flags.writeable = False
    return arrays


class ReferenceModel(DeviceModel):
    """A model held by the reference evaluator.

    Attributes:
        evaluator: Computes it.
        blas_threads: Threads of its matrix products; 0 for as many as numpy uses.
        sizes_vary: Whether the shape of an input or of a value depends on what a request gives.

    Raises:
        CompileError: The evaluator refuses the model.
    """

    def __init__(self, model: Model, properties: DeviceProperties, device: str) -> None:
        super().__init__(model, properties, device)
        # Other devices may run the evaluator too, with properties of their own.
        own = properties if isinstance(properties, ReferenceProperties) else ReferenceProperties()
        self.blas_threads = own.INFERENCE_NUM_THREADS
        self.sizes_vary = _sizes_vary(model)
        try:
            opset = model.ir.opset_imports.get("", 1)
            proto = _without_weights(model)
            for graph in graphs(proto.graph):
                _name_left_out_outputs(graph)
                tell_declared_shapes(graph)
            new_ops = {(new.op_domain, new.__name__): new for new in corrected_for(opset)}
            new_ops |= python_operators(node for top in model.ir.graph for node in _nodes(top))
            self.evaluator = ReferenceEvaluator(proto, new_ops=list(new_ops.values()))
            self.evaluator.rt_inits_.update(_weights(model))
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            raise CompileError(
                f"The reference evaluator refuses '{model.name}': {error}"
            ) from error

    def create_runner(self) -> Runner:
        """A runner; the evaluator keeps no state between runs."""
        return ReferenceRunner(self)


class ReferenceRunner(Runner):
    """Evaluates the model with the inputs of each run."""

    def __init__(self, compiled: ReferenceModel) -> None:
        self._evaluator = compiled.evaluator
        self._names = [port.name for port in compiled.inputs]
        self._ports = compiled.outputs
        self._sizes_vary = compiled.sizes_vary
        self._threads = compiled.blas_threads
        self._count = compiled.properties.PERF_COUNT
        self._ops = [(op.name, op.op_type) for op in compiled.model.ops] if self._count else []
        self._infos: list[ProfilingInfo] = []

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Evaluates the model node by node."""
        feeds = {
            name: unboxed(tensor.numpy().copy())
            for name, tensor in zip(self._names, inputs, strict=True)
        }
        start = time.perf_counter()
        with (
            blas_threads(self._threads),
            raised_as(InferError, "The reference evaluator failed"),
            np.errstate(all="ignore"),  # infinities are results like others
        ):
            try:
                results = self._evaluator.run(None, feeds)
            except (IndexError, TypeError, ValueError) as error:
                if isinstance(error, IndexError) or (self._sizes_vary and _is_of_sizes(error)):
                    what = "The reference evaluator cannot compute these inputs"
                    raise InputError(f"{what}: {in_words(error)}") from error
                raise
        if self._count:
            elapsed = (time.perf_counter() - start) * 1e6
            self._infos = self._as_one_record(elapsed)
        return [
            HostTensor(_as_output(result, port.dtype))
            for result, port in zip(results, self._ports, strict=True)
        ]

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """The whole run as one record: the evaluator does not time its nodes."""
        return tuple(self._infos)

    def _as_one_record(self, elapsed_us: float) -> list[ProfilingInfo]:
        """The time of all operations, in the record of the first one."""
        if not self._ops:
            return []
        (first, kind), *others = self._ops
        covers = tuple(name for name, _ in others)
        return [
            ProfilingInfo(
                first,
                kind,
                "onnx.reference",
                real_time_us=elapsed_us,
                cpu_time_us=elapsed_us,
                covers=covers,
            )
        ]


def _sizes_vary(model: Model) -> bool:
    """Whether a request decides the shape of a value, so that its inputs may not fit each other.

    An integer may say which shape a value is to have.
    """
    values = (*model.ir.graph.inputs, *(v for node in model.ir.graph for v in node.outputs))
    return any(value.shape is None or not value.shape.is_static() for value in values) or any(
        port.dtype is not None and port.dtype.kind in "iu" for port in model.inputs
    )


def _is_of_sizes(error: Exception) -> bool:
    """Whether an error is what numpy raises for arrays that do not fit each other, or for sizes.

    The evaluator has a TypeError follow it, which tells the types of both.
    """
    return isinstance(error, ValueError) or isinstance(error.__cause__, ValueError)


def _as_output(result: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """A copy: what the evaluator returns may be a constant, an input or part of another result.

    Scalars and wider types, which it returns here and there, become what the port says is due.
    """
    if isinstance(result, dict):
        raise InferError("Maps cannot be outputs; tensors, sequences and optional values can.")
    if result is None or isinstance(result, (list, tuple)):
        return np.asarray(boxed(copied(result)))
    return np.array(result, dtype or None, order="C")
