"""The back-end ``partita`` of ``torch.compile``: graphs that TorchDynamo captures, run by a device.

PyTorch finds it by its entry point::

    fast = torch.compile(module, backend="partita", options={"device": "HETERO:GPU,CPU"})
    with torch.no_grad():
        y = fast(x)

Each graph between two graph breaks is exported and compiled when it is first called, its weights as
constants. What cannot be exported or compiled runs as PyTorch would run it, and a warning says why.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch

from partita.core import Core
from partita.errors import PartitaError, PropertyError
from partita.frontends.reader import read_model
from partita.frontends.torch.example_inputs import Examples
from partita.frontends.torch.exporting import ExportedModule, Returned, export_module
from partita.runtime.compiled_model import CompiledModel
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_log = logging.getLogger("partita")

_OPTIONS = ("device", "config")

_NARROW = {
    torch.bfloat16: (torch.int16, np.dtype(np.int16), np.dtype(ml_dtypes.bfloat16)),
}
"""Types that PyTorch does not hand to numpy: as which they cross, and what they are there."""


@functools.cache
def _core() -> Core:
    """One core for all graphs of the process."""
    return Core()


def compile_graph(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Makes of a captured graph what computes it; ``torch.compile`` calls this.

    Args:
        graph_module: The graph.
        example_inputs: What it was captured with, weights included.
        options: ``device``, a device string, and ``config``, properties to compile with.

    Raises:
        PropertyError: There is another option.
    """
    given = dict(options or {})
    device, config = given.pop("device", None), given.pop("config", None)
    if given:
        raise PropertyError(
            f"The back-end 'partita' has no option '{next(iter(given))}'; it has "
            f"{', '.join(map(repr, _OPTIONS))}."
        )
    reason = _reason_for_eager(example_inputs)
    if reason is not None:
        _tell_eager(graph_module, reason)
        eager: Callable[..., Any] = graph_module.forward
        return eager
    return CompiledGraph(
        graph_module,
        example_inputs,
        lambda model: _core().compile_model(read_model(model), device, config),
    )


def _reason_for_eager(example_inputs: Sequence[Any]) -> str | None:
    """Why a graph with such inputs cannot be compiled at all, if so."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "it may be asked for gradients; call it inside of torch.no_grad()"
    places = {tensor.device.type for tensor in tensors} - {"cpu"}
    if places:
        return f"it has tensors on '{places.pop()}', and takes them from the host"
    return None


def _tell_eager(graph_module: torch.fx.GraphModule, reason: str) -> None:
    count = sum(node.op.startswith("call_") for node in graph_module.graph.nodes)
    _log.warning("PyTorch itself runs a graph of %d operations: %s.", count, reason)


class _Compiled(NamedTuple):
    """A graph that was compiled.

    Attributes:
        model: Computes it.
        returned: What it returns, as :class:`ExportedModule` tells it.
        weights: Those that are constants of it, each with how often it had been written to.
    """

    model: CompiledModel
    returned: tuple[Any, ...]
    weights: Sequence[tuple[Any, int]]


class CompiledGraph:
    """A captured graph that is compiled at its first call, and again if its weights change.

    Args:
        graph_module: The graph.
        example_inputs: What it was captured with: weights are marked in it as such.
        compile_model: Compiles what was exported.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        compile_model: Callable[[Any], CompiledModel],
    ) -> None:
        self._eager = graph_module
        self._weights = [place for place, value in enumerate(example_inputs) if _is_weight(value)]
        self._moving = [
            place for place in range(len(example_inputs)) if place not in set(self._weights)
        ]
        self._compile_model = compile_model
        self._compiling = InterruptSafeLock()
        self._compiled: _Compiled | None = None
        self._gave_up = False

    def __call__(self, *args: Any) -> Any:
        """Computes the graph's outputs."""
        compiled = self._compiled_for(args) or self._compile(args)
        return self._eager(*args) if compiled is None else self._run(compiled, args)

    def _compiled_for(self, args: Sequence[Any]) -> _Compiled | None:
        """What was compiled, if nobody has written to its weights, and these are still those."""
        compiled = self._compiled
        if compiled is None or not all(
            args[place] is weight and _version(weight) == version
            for place, (weight, version) in zip(self._weights, compiled.weights, strict=True)
        ):
            return None
        return compiled

    def _compile(self, args: Sequence[Any]) -> _Compiled | None:
        """Compiles the graph, unless another thread just has; ``None`` if it cannot be."""
        with self._compiling:
            compiled = self._compiled_for(args)
            if compiled is not None or self._gave_up:
                return compiled
            try:
                exported = self._export(args)
                model = self._compile_model(exported.model)
            except PartitaError as error:
                self._gave_up = True
                self._compiled = None
                _tell_eager(self._eager, str(error).rstrip("."))
                return None
            weights = [(args[place], _version(args[place])) for place in self._weights]
            self._compiled = _Compiled(model, exported.returned, weights)
            return self._compiled

    def _export(self, args: Sequence[Any]) -> ExportedModule:
        """The graph with its weights as constants."""
        graph = copy.deepcopy(self._eager.graph)
        inputs = list(graph.find_nodes(op="placeholder"))
        holder = torch.nn.Module()
        for name, child in self._eager.named_children():
            holder.add_module(name, child)
        for name, value in vars(self._eager).items():
            if isinstance(value, torch.Tensor):
                setattr(holder, name, value)
        for name, buffer in self._eager.named_buffers(recurse=False):
            holder.register_buffer(name, buffer)
        for place in self._weights:
            node = inputs[place]
            holder.register_buffer(node.name, args[place].detach())
            with graph.inserting_before(node):
                constant = graph.get_attr(node.name)
            node.replace_all_uses_with(constant)
            graph.erase_node(node)
        sizes = tuple(_varying(inputs[place]) for place in self._moving)
        examples = Examples(
            tuple(args[place] for place in self._moving), {}, sizes if any(sizes) else None
        )
        return export_module(torch.fx.GraphModule(holder, graph), examples)

    def _run(self, compiled: _Compiled, args: Sequence[Any]) -> tuple[Any, ...]:
        ports = compiled.model.inputs
        feeds = {
            port.name: _to_array(args[place])
            for port, place in zip(ports, self._moving, strict=True)
        }
        arrays = iter(compiled.model(feeds).to_tuple())
        return tuple(
            _from_array(next(arrays), kind) if isinstance(kind, Returned) else kind
            for kind in compiled.returned
        )


def _is_weight(value: Any) -> bool:
    """Whether an input is a parameter or buffer, which stays where it is."""
    return isinstance(value, torch.nn.Parameter) or (
        isinstance(value, torch.Tensor)
        and getattr(value, "_dynamo_static_input_type", None) is not None
    )


def _version(weight: torch.Tensor) -> int:
    """How often a weight was written to; tensors of ``inference_mode`` do not count that."""
    return 0 if weight.is_inference() else weight._version


def _varying(node: torch.fx.Node) -> Any:
    """The axes of a graph's input whose sizes vary, as ``torch.export`` wants them."""
    example = node.meta.get("example_value")
    if isinstance(example, torch.SymInt):
        return torch.export.Dim.DYNAMIC
    if not isinstance(example, torch.Tensor):
        return None
    axes = [axis for axis, size in enumerate(example.shape) if isinstance(size, torch.SymInt)]
    return dict.fromkeys(axes, torch.export.Dim.AUTO) or None


def _to_array(value: Any) -> Any:
    """A tensor's memory as an array; a number as it is."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach()
    if value.dtype in _NARROW:
        as_type, _, dtype = _NARROW[value.dtype]
        return value.contiguous().view(as_type).numpy().view(dtype)
    return value.numpy()


def _from_array(array: Any, kind: Returned) -> Any:
    """An array's memory as a tensor, or its number."""
    if kind is Returned.NUMBER:
        return array.item()
    for dtype, (_, as_type, name) in _NARROW.items():
        if array.dtype == name:
            return torch.from_numpy(array.view(as_type)).view(dtype)
    return torch.from_numpy(array)
