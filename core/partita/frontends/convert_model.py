"""Converting: from what a framework has, or a file, to a model, as OpenVINO's ``convert_model``."""

from __future__ import annotations

from typing import Any

from partita.errors import ModelError
from partita.extensions import Extensions
from partita.frontends.reader import read_model
from partita.frontends.requested_inputs import requested_shapes
from partita.frontends.torch import export_module, is_torch_program
from partita.frontends.torch.example_inputs import examples_of
from partita.model.model import Model
from partita.model.value_uses import values_read


def convert_model(
    input_model: Any,
    input: Any = None,
    output: Any = None,
    *,
    example_input: Any = None,
    dynamic_shapes: Any = None,
    extension: Any = None,
    verbose: bool = False,
    share_weights: bool = True,
) -> Model:
    """Makes a model of a PyTorch module, a file, or an ONNX model in memory.

    Args:
        input_model: A ``torch.nn.Module`` or ``torch.export.ExportedProgram`` (extra ``[torch]``),
            or whatever :meth:`partita.Core.read_model` takes. A module is exported in evaluation
            mode.
        input: Shapes of inputs: by name, in order, or one for a model of one input. -1, ``None`` or
            a name stands for a size that may vary. A file's inputs are also found as OpenVINO's
            ``convert_model`` finds them: ``("x", [1, 3])``, ``("x", [1, 3], Type.f32)``, or a list
            of these; an element type has to be the input's own.
        output: For a file, instead of its outputs: the name of a value or an operation, or a list
            of these. What only the others need, inputs too, is taken out.
        example_input: For a module: what to call it with. Tensors or arrays: one, a tuple by place,
            or a dict by name.
        dynamic_shapes: For a module, instead of ``input``: sizes that may vary, as
            ``torch.export.export`` takes them.
        extension: An operator of an application's own, or a list of these, as
            :meth:`partita.Core.add_extension` takes them.
        verbose: Whether PyTorch's exporter reports what it does, on stdout; of files there is
            nothing to report.
        share_weights: Whether a module's weights are shared with it; with ``False`` they are
            copied, and the module may change them.

    Returns:
        The model. Of one that was a module, ``op.rt_info["module_path"]`` is the module that an
        operation comes from, and pins such as ``path:encoder.layer.3=GPU`` find it.

    Raises:
        ModelError: No example of a module's inputs was given, or shapes do not fit.
        ModelFormatError: It cannot be read, or PyTorch cannot export it.
    """
    own = None
    if extension is not None:
        own = Extensions()
        own.add(extension)
    if is_torch_program(input_model):
        if output is not None:
            raise ModelError(
                "'output' applies to files; let the module return the outputs that you want."
            )
        examples = examples_of(input_model, example_input, input, dynamic_shapes)
        model = read_model(export_module(input_model, examples, verbose).model, extensions=own)
        if not share_weights:
            _copy_weights(model)
        return model
    if example_input is not None or dynamic_shapes is not None:
        name = "example_input" if example_input is not None else "dynamic_shapes"
        raise ModelError(f"'{name}' is for PyTorch modules; found {type(input_model).__name__}.")
    model = read_model(input_model, extensions=own)
    if output is not None:
        _keep_outputs(model, output)
    if input is None:
        return model
    return model.reshape(requested_shapes(input, model.inputs, f"Model '{model.name}'"))


def _copy_weights(model: Model) -> None:
    """Gives the model weights of its own."""
    import onnx_ir as ir

    for name, value in model.ir.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None:
            value.const_value = ir.Tensor(tensor.numpy().copy(), tensor.dtype, name=name)


def _keep_outputs(model: Model, outputs: Any) -> None:
    """Makes values the only outputs, in this order; takes out what only others needed."""
    names = [port.name for port in model.add_outputs(outputs)]
    graph = model.ir.graph
    by_name = {value.name: value for value in graph.outputs}
    graph.outputs[:] = [by_name[name] for name in dict.fromkeys(names)]
    live = set(graph.outputs)
    unused = []
    for node in reversed(list(graph)):
        if live.isdisjoint(node.outputs):
            unused.append(node)
        else:
            live.update(values_read(node))
    dropped = {value for node in unused for value in values_read(node)} - live
    graph.remove(unused, safe=True)
    graph.inputs[:] = [value for value in graph.inputs if value not in dropped]
