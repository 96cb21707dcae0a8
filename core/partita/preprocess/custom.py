"""Steps that an application writes itself, with OpenVINO's operation sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.errors import ModelError
from partita.frontends.opset import with_opset
from partita.model.model import Model
from partita.opsets.functions import parameter
from partita.opsets.node import Node
from partita.opsets.ports import Output
from partita.preprocess.flow import Flow


def put_custom(flow: Flow, operation: Callable[[Output[Node]], Any]) -> None:
    """Puts what a function makes of the value so far into a flow.

    Raises:
        ModelError: The value is an image in several tensors, or the function returns something else
            than one output of a graph that it writes from what it is given.
    """
    if flow.planes:
        raise ModelError(
            "custom() takes one tensor, and the image is in several here; put convert_color() "
            "before it."
        )
    given = parameter(flow.dims(), flow.dtype, "given")
    made = operation(given.output())
    if not isinstance(made, (Node, Output)):
        raise ModelError(
            f"The function of custom() returned {made!r}; it returns a node of partita.opsets, or "
            "an output of one. It is called while the model is built, and gets no numbers."
        )
    if isinstance(made, Node):
        if made.get_output_size() != 1:
            raise ModelError(
                f"The function of custom() returned {made!r}, which has {made.get_output_size()} "
                "outputs; it returns one of them, as node.output(0)."
            )
        made = made.output()
    part = with_opset(Model(made.model_to([made], [given], "custom")), flow.opset)
    flow.take_over(part.ir.graph)
    axes, rank = flow.axes, made.partial_shape.rank
    if rank.is_dynamic:
        raise ModelError(f"The rank of what custom() makes ({made!r}) is not known.")
    flow.rank = rank.get_length()
    flow.axes = axes if axes is not None and len(axes) == flow.rank else None
    flow.dtype = made.element_type.dtype
