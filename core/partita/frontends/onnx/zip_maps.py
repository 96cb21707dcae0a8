"""ZipMap at the end of a classifier: its rows stay an array, and labels become notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from partita.errors import ModelFormatError

if TYPE_CHECKING:
    import onnx

Labels = Mapping[str, Sequence[int | str]]
"""What the columns of an output stand for, by the output's name."""


def without_zip_maps(proto: onnx.ModelProto, origin: str) -> tuple[onnx.ModelProto, Labels]:
    """Takes ``ZipMap`` operators out whose maps are outputs of the model.

    ``ZipMap`` (domain ``ai.onnx.ml``) makes a map from labels to numbers of each row, which is no
    tensor. The output is the array of rows instead, float32 of shape (rows, labels), of that name.

    Returns:
        The protobuf itself and no labels if it has no such output, else a copy and the labels.

    Raises:
        ModelFormatError: A ``ZipMap`` has no labels, or labels of two kinds.
    """
    zips = {
        node.output[0]: place
        for place, node in enumerate(proto.graph.node)
        if (node.domain, node.op_type) == ("ai.onnx.ml", "ZipMap") and len(node.output) == 1
    }
    ends = [output.name for output in proto.graph.output if output.name in zips]
    if not ends:
        return proto, {}
    copy = type(proto)()
    copy.CopyFrom(proto)
    labels: dict[str, Sequence[int | str]] = {}
    for output in copy.graph.output:
        if output.name not in ends:
            continue
        node = copy.graph.node[zips[output.name]]
        labels[output.name] = _labels(node, origin)
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        output.type.Clear()
        output.type.tensor_type.elem_type = 1
    if all(entry.domain not in ("", "ai.onnx") for entry in copy.opset_import):
        copy.opset_import.add(domain="", version=13)
    return copy, labels


def _labels(node: onnx.NodeProto, origin: str) -> Sequence[int | str]:
    numbers = [list(found.ints) for found in node.attribute if found.name == "classlabels_int64s"]
    texts = [list(found.strings) for found in node.attribute if found.name == "classlabels_strings"]
    given = [row for row in (*numbers, *texts) if row]
    if len(given) != 1:
        raise ModelFormatError(
            f"{origin}: ZipMap of '{node.output[0]}' has no labels, or numbers and texts; "
            "expected one of 'classlabels_int64s' and 'classlabels_strings'."
        )
    return [label.decode() if isinstance(label, bytes) else label for label in given[0]]
