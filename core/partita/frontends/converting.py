"""Converting: from what a framework has, or a file, to a model, as OpenVINO's ``convert_model``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.errors import ModelError
from partita.frontends.reader import read_model
from partita.frontends.torch import export_module, is_torch_program
from partita.frontends.torch.example_inputs import examples_of, shapes_by_name
from partita.model.model import Model


def convert_model(
    input_model: Any,
    input: Any = None,
    *,
    example_input: Any = None,
    dynamic_shapes: Any = None,
) -> Model:
    """Makes a model of a PyTorch module, a file, or an ONNX model in memory.

    Args:
        input_model: A ``torch.nn.Module`` or ``torch.export.ExportedProgram`` (extra ``[torch]``),
            or whatever :meth:`partita.Core.read_model` takes. A module is exported in evaluation
            mode, and the model shares its weights.
        input: Shapes of inputs: by name, in order, or one for a model of one input. -1, ``None`` or
            a name stands for a size that may vary.
        example_input: For a module: what to call it with. Tensors or arrays: one, a tuple by place,
            or a dict by name.
        dynamic_shapes: For a module, instead of ``input``: sizes that may vary, as
            ``torch.export.export`` takes them.

    Returns:
        The model. Of one that was a module, ``op.rt_info["module_path"]`` is the module that an
        operation comes from, and pins such as ``path:encoder.layer.3=GPU`` find it.

    Raises:
        ModelError: No example of a module's inputs was given, or shapes do not fit.
        ModelFormatError: It cannot be read, or PyTorch cannot export it.
    """
    if is_torch_program(input_model):
        examples = examples_of(input_model, example_input, input, dynamic_shapes)
        return read_model(export_module(input_model, examples).model)
    if example_input is not None or dynamic_shapes is not None:
        name = "example_input" if example_input is not None else "dynamic_shapes"
        raise ModelError(f"'{name}' is for PyTorch modules; found {type(input_model).__name__}.")
    model = read_model(input_model)
    if input is None:
        return model
    shapes = input
    if not isinstance(shapes, Mapping):
        shapes = shapes_by_name(shapes, [port.name for port in model.inputs])
    return model.reshape(shapes)
