"""A Concat between submodels without a copy: its inputs are written where they belong.

Where a submodel is nothing but a Concat, and devices that work in host memory write its inputs in
a layout whose innermost axis is the one that is joined, each input becomes a window of the result:
its writer writes there, and the Concat has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from partita.runtime.compiled_model import CompiledModel
from partita.tensors.layout import LaidOutTensor, Layout, Window
from partita.tensors.tensor import Tensor
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel


@dataclass(frozen=True, slots=True)
class Join:
    """A submodel that is one Concat.

    Attributes:
        number: The submodel's.
        axis: Along which it joins, counted from the first one.
        inputs: What it joins, in order.
        output: Its result.
    """

    number: int
    axis: int
    inputs: tuple[str, ...]
    output: str


def find_joins(
    wiring: OpGraph, pieces: Sequence[Submodel], works_on_host: Callable[[str], bool]
) -> list[Join]:
    """The submodels that join what others on the host write for them alone.

    Args:
        wiring: The model.
        pieces: Its submodels.
        works_on_host: Whether a device's tensors are ordinary host memory.
    """
    device_of = {name: piece.device for piece in pieces for name in piece.outputs}
    readers: dict[str, int] = {}
    for piece in pieces:
        for name in piece.inputs:
            readers[name] = readers.get(name, 0) + 1
    found = []
    for piece in pieces:
        if len(piece.ops) != 1 or len(piece.outputs) != 1 or not works_on_host(piece.device):
            continue
        node = wiring.nodes[piece.ops[0]]
        names = tuple(wiring.reads[piece.ops[0]])
        alone = (
            node.op_type == "Concat"
            and node.domain in ("", "ai.onnx")
            and len(node.inputs) == len(set(names)) == len(names)
            and all(name in device_of and works_on_host(device_of[name]) for name in names)
            and all(readers[name] == 1 and name not in wiring.outputs for name in names)
        )
        rank = _rank(node.outputs[0].shape) if alone else None
        if alone and rank:
            axis = node.attributes["axis"].as_int() % rank
            found.append(Join(piece.number, axis, names, piece.outputs[0]))
    return found


def _rank(shape: object) -> int | None:
    return None if shape is None else len(shape)  # type: ignore[arg-type]  # a shape of onnx_ir


def in_windows(
    join: Join, compiled: Sequence[CompiledModel], agreed: Mapping[str, Layout]
) -> dict[str, Layout]:
    """The layouts of what is joined, as windows of the result; none if a writer cannot do that."""
    whole = agreed.get(join.output)
    if whole is None or whole.axes[-1] != join.axis:
        return {}
    ports = {port.name: (port, part) for part in compiled for port in part.outputs}
    sizes = []
    for name in join.inputs:
        port, part = ports[name]
        size = None if port.shape is None else port.shape[join.axis]
        if agreed.get(name) != whole or not port.is_static or not isinstance(size, int):
            return {}
        if port not in part.windows():
            return {}
        sizes.append(size)
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    return {
        name: replace(whole, window=Window(begin, size, sum(sizes)))
        for name, begin, size in zip(join.inputs, begins, sizes, strict=True)
    }


def bring_together(
    slots: Sequence[Tensor | None], prepared: Sequence[Tensor | None], reads: Sequence[int]
) -> None:
    """Copies to their windows what writers have put elsewhere, which they may."""
    for slot in reads:
        tensor, window = slots[slot], prepared[slot]
        if tensor is window or tensor is None or not isinstance(window, LaidOutTensor):
            continue
        layout = window.layout
        source = (
            layout.own(tensor.stored())
            if isinstance(tensor, LaidOutTensor) and tensor.layout == layout
            else tensor.numpy().transpose(layout.axes)
        )
        layout.own(window.stored())[...] = source
