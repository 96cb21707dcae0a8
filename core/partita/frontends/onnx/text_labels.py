"""Classifiers whose labels are texts: labels become numbers, which a LabelEncoder turns to texts.

So a device that has no texts computes the classes, and only their names are left to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

DOMAIN = "ai.onnx.ml"
NUMBERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""Of operators the attribute that has labels which are numbers."""
_INTS = 7  # onnx.AttributeProto.INTS
_STRINGS = 8


def with_numbered_labels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Splits classifiers (domain ``ai.onnx.ml``) that give texts for two classes or more.

    Returns:
        The protobuf itself if it has none, else a copy.
    """
    if not any(_has_texts(node) for node in proto.graph.node):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    for entry in copy.opset_import:
        if (entry.domain, entry.version) == (DOMAIN, 1):
            if any(node.op_type == "LabelEncoder" for node in copy.graph.node):
                return proto  # of another meaning than the one that is to come
            entry.version = 2  # in which all else is as it was
    ends = (*copy.graph.input, *copy.graph.output, *copy.graph.initializer)
    taken = {name for node in copy.graph.node for name in (*node.input, *node.output)}
    taken |= {end.name for end in ends}
    nodes = [part for node in copy.graph.node for part in _split(node, taken)]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _has_texts(node: onnx.NodeProto) -> bool:
    if node.domain != DOMAIN or node.op_type not in NUMBERS or not node.output:
        return False
    return bool(node.output[0]) and len(_texts(node)) > 1


def _texts(node: onnx.NodeProto) -> list[bytes]:
    return [x for found in node.attribute if found.name == "classlabels_strings"
            for x in found.strings]  # fmt: skip


def _split(node: onnx.NodeProto, taken: set[str]) -> Iterator[onnx.NodeProto]:
    yield node
    if not _has_texts(node):
        return
    texts = _texts(node)
    kept = [
        x for x in node.attribute if x.name not in ("classlabels_strings", NUMBERS[node.op_type])
    ]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.add(name=NUMBERS[node.op_type], type=_INTS, ints=range(len(texts)))
    number = f"{node.output[0]}_number"
    while number in taken:
        number += "_"
    taken.add(number)
    names = type(node)(
        op_type="LabelEncoder", domain=DOMAIN, input=[number], output=[node.output[0]]
    )
    if node.name:
        names.name = f"{node.name}_labels"
    names.attribute.add(name="keys_int64s", type=_INTS, ints=range(len(texts)))
    names.attribute.add(name="values_strings", type=_STRINGS, strings=texts)
    node.output[0] = number
    yield names
