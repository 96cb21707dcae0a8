"""What code written for OpenVINO asks of a model beyond what :class:`partita.Model` has."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from partita.errors import ModelError
from partita.model.op import Op
from partita.model.port import Port, PortNode, find_port
from partita.model.variables import Variable
from partita.properties.any_value import OVAny
from partita.shapes.dimension import Dimension
from partita.shapes.layout import BATCH
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import Shape
from partita.tensors.element_type import Type
from partita.tensors.tensor import HostTensor, Tensor

if TYPE_CHECKING:
    import onnx
    import onnx_ir

_NOTES = "partita.rt_info"
"""Key of the model's metadata under which its notes are kept, as JSON."""


class GraphEnd(Protocol):
    """A node that was written with an operation set and ends a graph."""

    def model_to(
        self, results: Sequence[Any], parameters: Sequence[Any], name: str
    ) -> onnx_ir.Model:
        """The model that computes results from parameters."""


class ModelSurface(abc.ABC):
    """OpenVINO's spellings, over the graph and its ports.

    Attributes:
        ir: The graph.
    """

    ir: onnx_ir.Model

    @property
    @abc.abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """The inputs in order."""

    @property
    @abc.abstractmethod
    def outputs(self) -> tuple[Port, ...]:
        """The outputs in order."""

    @property
    @abc.abstractmethod
    def variables(self) -> tuple[Variable, ...]:
        """What is kept from run to run."""

    @abc.abstractmethod
    def to_onnx(self) -> onnx.ModelProto:
        """The model as a protobuf."""

    # ------------------------------------------------------------------ names

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.ir.graph.name or "model"

    friendly_name = name

    def get_name(self) -> str:
        """The graph's name (OpenVINO's spelling)."""
        return self.name

    def get_friendly_name(self) -> str:
        """The graph's name (OpenVINO's spelling)."""
        return self.name

    def set_friendly_name(self, name: str) -> None:
        """Renames the graph."""
        self.ir.graph.name = name

    # ------------------------------------------------------------------ ends

    @property
    def parameters(self) -> list[PortNode]:
        """The inputs as nodes."""
        return [port.node for port in self.inputs]

    @property
    def results(self) -> list[PortNode]:
        """The outputs as nodes."""
        return [port.node for port in self.outputs]

    @property
    def result(self) -> PortNode:
        """The one output as a node; raises ``ModelError`` if there are more."""
        return self.get_result()

    @property
    def sinks(self) -> list[Op]:
        """Operations that only write state; there are none in ONNX."""
        return []

    def get_parameters(self) -> list[PortNode]:
        """The inputs as nodes (OpenVINO's spelling)."""
        return self.parameters

    def get_results(self) -> list[PortNode]:
        """The outputs as nodes (OpenVINO's spelling)."""
        return self.results

    def get_result(self) -> PortNode:
        """The one output as a node.

        Raises:
            ModelError: There are more.
        """
        if len(self.outputs) != 1:
            raise ModelError(f"Model '{self.name}' has {len(self.outputs)} outputs; name one.")
        return self.outputs[0].node

    def get_sinks(self) -> list[Op]:
        """Operations that only write state; there are none in ONNX."""
        return self.sinks

    def get_parameter_index(self, parameter: PortNode | Port) -> int:
        """The place of an input, -1 if it is another model's."""
        return next((port.index for port in self.inputs if port.name == parameter.name), -1)

    def get_result_index(self, result: PortNode | Port) -> int:
        """The place of an output, -1 if it is another model's."""
        return next((port.index for port in self.outputs if port.name == result.name), -1)

    def get_sink_index(self, sink: Op) -> int:
        """The place of an operation that only writes state: -1, since there are none."""
        return -1

    def get_output_size(self) -> int:
        """Number of outputs."""
        return len(self.outputs)

    def get_output_op(self, index: int) -> PortNode:
        """An output as a node."""
        return self._output(index).node

    def get_output_element_type(self, index: int) -> Type:
        """The element type of an output."""
        return self._output(index).element_type

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """The dimensions of an output."""
        return self._output(index).partial_shape

    def get_output_shape(self, index: int) -> Shape:
        """The sizes of an output; raises ``ModelError`` if some are not known."""
        return self._output(index).get_shape()

    def _output(self, key: Any) -> Port:
        return find_port(self.outputs, key, f"Model '{self.name}'")

    @property
    def dynamic(self) -> bool:
        """Whether an input has a dimension without a size."""
        return self.is_dynamic()

    def is_dynamic(self) -> bool:
        """Whether an input has a dimension without a size."""
        return not all(port.is_static for port in self.inputs)

    # ------------------------------------------------------------------ state

    def get_variables(self) -> tuple[Variable, ...]:
        """What the model keeps from run to run (OpenVINO's spelling)."""
        return self.variables

    def get_variable_by_id(self, name: str) -> Variable:
        """The variable of a name.

        Raises:
            ModelError: There is none.
        """
        for variable in self.variables:
            if variable.name == name:
                return variable
        known = ", ".join(f"'{variable.name}'" for variable in self.variables) or "none"
        raise ModelError(f"Model '{self.name}' has no variable '{name}'; it has {known}.")

    # ------------------------------------------------------------------ changes

    def add_outputs(self, outputs: Any) -> list[Port]:
        """Makes results of operations outputs of the model, behind those it has.

        Args:
            outputs: The name of a value or an operation, an operation and the index of its output,
                a port, or a list of these.

        Returns:
            The ports.

        Raises:
            ModelError: There is no such value; nothing is changed then.
        """
        pair = isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[1], int)
        several = isinstance(outputs, (list, tuple)) and not pair
        found = [self._value(one) for one in (outputs if several else [outputs])]
        graph = self.ir.graph
        for value in found:
            if value not in graph.outputs:
                graph.outputs.append(value)
        places = {id(value): index for index, value in enumerate(graph.outputs)}
        return [self.outputs[places[id(value)]] for value in found]

    def add_results(self, results: Sequence[PortNode | Port]) -> list[Port]:
        """Makes values outputs of the model (OpenVINO's spelling of :meth:`add_outputs`)."""
        return self.add_outputs(list(results))

    def remove_result(self, result: PortNode | Port) -> None:
        """Makes an output none; what it was computed by stays until it is compiled.

        Raises:
            ModelError: It is no output of the model, or the last one.
        """
        index = self._output(result).index
        if len(self.outputs) == 1:
            raise ModelError(f"Model '{self.name}' needs an output; '{result.name}' is its last.")
        del self.ir.graph.outputs[index]

    def remove_parameter(self, parameter: PortNode | Port) -> None:
        """Removes an input that no operation reads.

        Raises:
            ModelError: It is no input of the model, or is read.
        """
        port = find_port(self.inputs, parameter, f"Model '{self.name}'")
        value = self.ir.graph.inputs[port.index]
        if value.uses() or value in self.ir.graph.outputs:
            raise ModelError(f"Input '{port.name}' of model '{self.name}' is read by operations.")
        del self.ir.graph.inputs[port.index]

    def validate_nodes_and_infer_types(self) -> None:
        """Infers all shapes anew.

        Raises:
            ModelError: They contradict each other.
        """
        from partita.model.inference.shape_inference import infer_shapes

        infer_shapes(self.ir)

    def _value(self, key: Any) -> onnx_ir.Value:
        """The value of the graph that something names."""
        graph, index = self.ir.graph, 0
        if isinstance(key, tuple):
            key, index = key
        if isinstance(key, Port) and key.value is not None:
            key = key.value.name
        name = key if isinstance(key, str) else getattr(key, "name", None)
        for node in graph:
            values = node.outputs
            if node.name == name and 0 <= index < len(values):
                return values[index]
            for value in values:
                if value.name == name:
                    return value
        for value in graph.inputs:
            if value.name == name:
                return value
        raise ModelError(
            f"Model '{self.name}' has neither a value nor an operation {key!r} with an output "
            f"{index}; model.ops lists its operations."
        )

    # ------------------------------------------------------------------ computing

    def evaluate(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
        """Computes the outputs with ONNX's reference, slowly, on no device.

        Args:
            outputs: Host tensors that the results are written to.
            inputs: The inputs in order.

        Returns:
            ``True``.

        Raises:
            ModelError: There are other numbers of them.
        """
        from onnx.reference import ReferenceEvaluator

        if (len(inputs), len(outputs)) != (len(self.inputs), len(self.outputs)):
            raise ModelError(
                f"Model '{self.name}' has {len(self.inputs)} inputs and {len(self.outputs)} "
                f"outputs; {len(inputs)} and {len(outputs)} tensors were given."
            )
        feeds = {port.name: one.numpy() for port, one in zip(self.inputs, inputs, strict=True)}
        found = ReferenceEvaluator(self.to_onnx()).run(None, feeds)
        for target, result in zip(outputs, found, strict=True):
            target.copy_from(HostTensor(np.asarray(result)))
        return True

    # ------------------------------------------------------------------ notes

    @property
    def rt_info(self) -> dict[str, Any]:
        """The notes on the model, which are saved with it; change them by :meth:`set_rt_info`."""
        noted: dict[str, Any] = json.loads(self.ir.metadata_props.get(_NOTES, "{}"))
        return noted

    def get_rt_info(self, path: str | Sequence[str] | None = None) -> Any:
        """A note on the model, or all of them.

        Args:
            path: Its name, or names that lead to it: ``["model_info", "labels"]``.

        Returns:
            The note as an :class:`partita.OVAny`; all of them as a dict.

        Raises:
            ModelError: There is none.
        """
        found: Any = self.rt_info
        if path is None:
            return found
        for name in _steps(path):
            if not isinstance(found, Mapping) or name not in found:
                raise ModelError(
                    f"Model '{self.name}' has no runtime info {path!r}; check with has_rt_info()."
                )
            found = found[name]
        return OVAny(found)

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        """Whether there is a note."""
        found: Any = self.rt_info
        for name in _steps(path):
            if not isinstance(found, Mapping) or name not in found:
                return False
            found = found[name]
        return True

    def set_rt_info(self, value: Any, path: str | Sequence[str]) -> None:
        """Sets a note: anything that JSON holds.

        Raises:
            ModelError: It is something else.
        """
        notes = self.rt_info
        *steps, last = _steps(path)
        place = notes
        for name in steps:
            below = place.get(name)
            place[name] = below if isinstance(below, dict) else {}
            place = place[name]
        place[last] = value.value if isinstance(value, OVAny) else value
        try:
            note_on_model(self.ir, notes)
        except TypeError as error:
            raise ModelError(
                f"Runtime info {path!r} cannot be stored: {error}; give text or numbers."
            ) from error


def note_on_model(model: onnx_ir.Model, notes: Mapping[str, Any]) -> None:
    """Sets all notes on a model."""
    model.metadata_props[_NOTES] = json.dumps(notes)


def get_batch(model: ModelSurface) -> Dimension:
    """The size of the batch, as inputs with a layout have it.

    Raises:
        ModelError: No input has a layout with a batch, or they differ.
    """
    found = [port.partial_shape[port.layout.get_index_by_name(BATCH)] for port in _batched(model)]
    if any(dim != found[0] for dim in found):
        raise ModelError(f"Inputs of model '{model.name}' differ in the batch: {found}.")
    return found[0]


def set_batch(model: Any, batch: Any) -> None:
    """Sets the size of the batch of all inputs whose layout names it.

    Args:
        model: A :class:`partita.Model`.
        batch: What :class:`partita.Dimension` takes.

    Raises:
        ModelError: No input has a layout with a batch.
    """
    shapes = {}
    for port in _batched(model):
        shapes[port] = port.partial_shape
        shapes[port][port.layout.get_index_by_name(BATCH)] = batch
    model.reshape(shapes)


def _batched(model: ModelSurface) -> list[Port]:
    found = [port for port in model.inputs if port.layout.has_name(BATCH)]
    if not found:
        raise ModelError(
            f"No input of model '{model.name}' has a layout that names the batch; note it: "
            "model.input().set_layout('NCHW')."
        )
    return found


def _steps(path: str | Sequence[str]) -> Sequence[str]:
    steps = [path] if isinstance(path, str) else path
    if not isinstance(steps, (list, tuple)) or not steps:
        raise ModelError(f"A note is named by a text, or by texts that lead to it; found {path!r}.")
    return steps
