"""From a PyTorch module to an ONNX graph whose operations know the modules they come from."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.errors import ModelError, ModelFormatError, first_cause
from partita.frontends.output_values import separate_outputs
from partita.frontends.torch.example_inputs import Examples
from partita.frontends.torch.module_paths import keep_module_paths

if TYPE_CHECKING:
    import onnx_ir as ir


class Returned(enum.Enum):
    """What a module returns at one place: an output of the graph as a tensor, or as a number."""

    TENSOR = enum.auto()
    NUMBER = enum.auto()


@dataclass(frozen=True)
class ExportedModule:
    """A module as a graph.

    Attributes:
        model: The graph.
        returned: For each leaf of what the module returns, which output it is: they come in order.
            What is neither (``None``, a fixed number) is no output, and stands here itself.
    """

    model: ir.Model
    returned: tuple[Any, ...]


def export_module(module: Any, examples: Examples, verbose: bool = False) -> ExportedModule:
    """Exports a PyTorch module, in evaluation mode, as an ONNX graph.

    Weights are shared with the module, not copied: one that is trained further changes them.

    Args:
        module: A ``torch.nn.Module``, or a ``torch.export.ExportedProgram``.
        examples: What it is called with while its operations are recorded.
        verbose: Whether PyTorch reports what it does, on stdout.

    Returns:
        The graph. Its inputs are called after the arguments of ``forward``, and its outputs after
        the keys of the mapping that the module returns, if it returns one.

    Raises:
        ModelError: A package is missing that exporting takes.
        ModelFormatError: PyTorch cannot export the module, or it changes its own state.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise ModelFormatError(
            f"{type(module).__name__} is a TorchScript module, which torch.export does not take; "
            "give the module that it was scripted or traced from."
        )
    try:
        from torch.onnx.errors import OnnxExporterError

        # Where gradients may be asked for, PyTorch records other strides than it exports.
        with torch.no_grad(), _evaluation(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of its own deprecations
            program = torch.onnx.export(
                module,
                examples.args,
                kwargs=examples.kwargs,
                dynamic_shapes=examples.dynamic_shapes,
                dynamo=True,
                verbose=verbose,
            )
    except ImportError as error:
        raise ModelError(
            f"Exporting a PyTorch module takes the package '{error.name}'; "
            'pip install "partita[torch]".'
        ) from error
    except (OnnxExporterError, RuntimeError, ValueError, TypeError) as error:
        raise ModelFormatError(
            f"PyTorch cannot export {_called(module)}: {first_cause(error)}"
        ) from error
    _refuse_mutation(program.exported_program, module)
    model: ir.Model = program.model
    returned = _returned(program.exported_program)
    _name_outputs(model.graph, program.exported_program, returned)
    separate_outputs(model.graph, sources=True)  # a module may return one tensor twice
    keep_module_paths(model)
    _share_weights(model)
    model.graph.name = type(module).__name__
    return ExportedModule(model, returned)


@contextlib.contextmanager
def _evaluation(module: Any) -> Iterator[None]:
    """Lets a module and those inside of it be in evaluation mode, each as before afterwards."""
    import torch

    own = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    training = [inner for inner in own if inner.training]
    for inner in training:
        inner.training = False
    try:
        yield
    finally:
        for inner in training:
            inner.training = True


def _called(module: Any) -> str:
    return f"'{type(module).__name__}'"


def _refuse_mutation(exported: Any, module: Any) -> None:
    """Refuses modules that write to their buffers or inputs: a graph would leave that out."""
    from torch.export.graph_signature import OutputKind

    for spec in exported.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            raise ModelFormatError(
                f"{_called(module)} writes to '{spec.target}' when it is called, which a graph "
                "does not do; return the new value as an output instead."
            )


def _returned(exported: Any) -> tuple[Any, ...]:
    """What the leaves of a module's result are, as :class:`ExportedModule` has them."""
    from torch.export import graph_signature as signature

    return tuple(
        spec.arg.value
        if isinstance(spec.arg, signature.ConstantArgument)
        else Returned.TENSOR
        if isinstance(spec.arg, signature.TensorArgument)
        else Returned.NUMBER
        for spec in exported.graph_signature.output_specs
        if spec.kind is signature.OutputKind.USER_OUTPUT
    )


def _name_outputs(graph: ir.Graph, exported: Any, returned: Sequence[Any]) -> None:
    """Calls outputs after their keys, where the module returns a mapping."""
    from torch.utils import _pytree as pytree

    whole = pytree.tree_unflatten(range(len(returned)), exported.call_spec.out_spec)
    keyed, _ = pytree.tree_flatten_with_path(whole)
    paths = [keys for keys, place in keyed if isinstance(returned[place], Returned)]
    taken = {value.name for value in graph.inputs}
    for value, keys in zip(graph.outputs, paths, strict=True):
        name = _dotted(keys)
        if name is not None and name not in taken and value.producer() is not None:
            value.name = name
            taken.add(name)


def _dotted(keys: Sequence[Any]) -> str | None:
    """``past.0.key`` for a path that starts with a key; ``None`` where it has only places."""
    parts = [getattr(key, "key", getattr(key, "name", getattr(key, "idx", None))) for key in keys]
    if not parts or not isinstance(parts[0], str):
        return None
    return ".".join(map(str, parts))


def _share_weights(model: ir.Model) -> None:
    """Makes of PyTorch's tensors arrays over the same memory, which need no PyTorch to be read."""
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            held = value.const_value
            if held is not None:
                value.const_value = ir.Tensor(held.numpy(), held.dtype, name=value.name)
