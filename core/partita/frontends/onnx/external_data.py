"""Weights as a file holds them: where they may lie, how long they must be, sparse made dense."""

from __future__ import annotations

import errno
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


_DENSE_BYTES = 1 << 26
_DENSE_PER_BYTE = 1024
_MOST_DENSE_BYTES = 1 << 30
"""What sparse tensors may become, in all: so many bytes, and so many for each byte of elements that
are kept, but never more than the last. A few bytes may claim any number."""

_NUMBERS_AND_TEXTS = frozenset({1, 2, 3, 6, 7, 8})
"""Types of attributes that hold neither tensors nor graphs."""


def check_weights(
    proto: onnx.ModelProto,
    path: Path | None,
    origin: str,
    apart: Mapping[str, memoryview],
) -> bool:
    """Refuses tensors with too few bytes, and files outside of the model's folder.

    Args:
        proto: The model.
        path: Its file, if it came from one.
        origin: What messages call it.
        apart: Elements of initializers that the protobuf does not hold itself.

    Returns:
        Whether some tensors are in other files.

    Raises:
        ModelNotFoundError: A file of weights does not exist.
        ModelFormatError: A tensor is broken, or its file lies elsewhere or is too short.
    """
    from onnx import TensorProto

    ours = len(proto.graph.initializer)
    external: int = TensorProto.EXTERNAL
    has_files = False
    for number, tensor in enumerate(tensors_of(proto)):
        nbytes = _bytes_of(tensor, origin)
        if tensor.data_location == external:
            _check_file(tensor, nbytes, path, _named(tensor, origin))
            has_files = True
            continue
        if tensor.HasField("raw_data"):
            found = len(tensor.raw_data)
        elif number < ours and (elements := apart.get(tensor.name)) is not None:
            found = len(elements)
        else:
            _check_elements(tensor, nbytes, origin)
            continue
        if found != nbytes:
            raise ModelFormatError(
                f"{_named(tensor, origin)} has {found} bytes; its shape {list(tensor.dims)} and "
                f"type take {nbytes}."
            )
    return has_files


def put_weights(graph: ir.Graph, apart: Mapping[str, memoryview]) -> None:
    """Gives initializers their elements, without a copy; they may lie at any address."""
    import onnx_ir as ir

    for name, elements in apart.items():
        value = graph.initializers[name]
        tensor = value.const_value
        if tensor is None:
            raise KeyError(name)
        dtype, shape = tensor.dtype, tensor.shape
        array = np.frombuffer(elements, dtype.numpy()).reshape(shape.numpy())
        sizes: Any = shape  # a Shape; onnx-ir promises only what is like one
        value.const_value = ir.Tensor(
            array, dtype, shape=sizes, name=name, doc_string=tensor.doc_string
        )


def tensors_of(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """All tensors that a model holds, its functions and all bodies included.

    They are initializers, tensors in attributes and in defaults of functions' attributes, and both
    parts of sparse ones. What is not listed here is not checked before it is read.
    """
    graphs, holders = _contents(proto.graph)
    for function in proto.functions:
        inner = _within([*function.attribute_proto, *_of_nodes(function.node)])
        graphs += inner[0]
        holders += inner[1]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    sparse = [tensor for graph in graphs for tensor in graph.sparse_initializer]
    for attribute in holders:
        tensors += [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
        sparse += attribute.sparse_tensors
        if attribute.HasField("sparse_tensor"):
            sparse.append(attribute.sparse_tensor)
    return tensors + [part for tensor in sparse for part in (tensor.values, tensor.indices)]


def set_folder(model: ir.Model, folder: Path) -> None:
    """Says in which folder files of weights lie, those of functions and bodies included.

    Tensors in attributes, which are no initializers and may stay where they are, become arrays that
    map their files: a model that is written holds no other files' names.
    """
    import onnx_ir as ir

    functions = model.functions.values()
    held = [function.attributes for function in functions]  # defaults
    graphs = [model.graph, *(function.graph for function in functions)]
    graphs += [
        default.value
        for defaults in held
        for default in defaults.values()
        if isinstance(default.value, ir.Graph)
    ]
    for graph in graphs:
        ir.external_data.set_base_dir(graph, folder)
        held += [node.attributes for node in ir.traversal.RecursiveGraphIterator(graph)]
    for attributes in held:
        for name, attribute in attributes.items():
            tensor = attribute.value
            if isinstance(tensor, ir.ExternalTensor):
                tensor.base_dir = folder
                array = ir.Tensor(tensor.numpy(), tensor.dtype, name=tensor.name)
                attributes[name] = ir.AttrTensor(name, array)


def densify(proto: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """Turns sparse initializers and sparse ``Constant`` values into dense ones.

    Returns:
        The protobuf itself if it has none, else a copy.

    Raises:
        ModelFormatError: An index lies outside of its tensor, or they would become too large.
    """
    sparse = _sparse_of(proto.graph)
    if not sparse:
        return proto
    _check_dense_bytes(sparse, origin)
    copy = type(proto)()
    copy.CopyFrom(proto)
    graphs, holders = _contents(copy.graph)
    for graph in graphs:
        for tensor in graph.sparse_initializer:
            graph.initializer.append(_dense(tensor, origin))
        del graph.sparse_initializer[:]
    for attribute in holders:
        if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
            dense = _dense(attribute.sparse_tensor, origin)
            attribute.Clear()
            attribute.name, attribute.type = "value", attribute.TENSOR
            attribute.t.CopyFrom(dense)
    return copy


_Contents = tuple[list["onnx.GraphProto"], list["onnx.AttributeProto"]]
"""Graphs, and the attributes that may hold tensors or further graphs."""


def _contents(graph: onnx.GraphProto) -> _Contents:
    """A graph and all bodies in it, and their attributes."""
    graphs, holders = _within(_of_nodes(graph.node))
    return [graph, *graphs], holders


def _within(holders: list[onnx.AttributeProto]) -> _Contents:
    """All graphs that attributes hold, at any depth, and these and their attributes."""
    graphs: list[onnx.GraphProto] = []
    found = list(holders)
    for attribute in holders:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inner = _contents(body)
            graphs += inner[0]
            found += inner[1]
    return graphs, found


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> list[onnx.AttributeProto]:
    """The attributes of nodes that are no numbers or texts."""
    return [
        attribute
        for node in nodes
        for attribute in node.attribute
        if attribute.type not in _NUMBERS_AND_TEXTS
    ]


def _named(tensor: onnx.TensorProto, origin: str) -> str:
    """What messages call a tensor."""
    return f"Tensor '{tensor.name}' of {origin}"


def _bytes_of(tensor: onnx.TensorProto, origin: str) -> int:
    """Size of the elements as raw data; types of less than a byte are packed."""
    dims = tuple(tensor.dims)
    if dims and min(dims) < 0:
        raise ModelFormatError(
            f"{_named(tensor, origin)} has shape {list(dims)}; sizes are 0 or more."
        )
    width = _bits().get(tensor.data_type, _UNDEFINED)
    if width < 0:
        fault = (
            "no element type"
            if tensor.data_type in _bits()
            else f"element type {tensor.data_type}, which is not known"
        )
        raise ModelFormatError(f"{_named(tensor, origin)} has {fault}.")
    bits: int = math.prod(dims) * width
    return -(-bits // 8)


_FIELDS = {
    **dict.fromkeys((1, 14), "float_data"),
    **dict.fromkeys((11, 15), "double_data"),
    **dict.fromkeys((12, 13), "uint64_data"),
    7: "int64_data",
    8: "string_data",
}
"""Where a tensor keeps elements that are no raw bytes, by its type's number."""


def _check_elements(tensor: onnx.TensorProto, nbytes: int, origin: str) -> None:
    """Refuses a tensor of another number of elements than its shape has.

    One that keeps none would be one of zeros, of any size that it claims.

    Args:
        tensor: It keeps its elements in fields of their types, as ONNX's text says.
        nbytes: What its elements would take as raw bytes.
        origin: What messages call its model.
    """
    kind, field = tensor.data_type, _FIELDS.get(tensor.data_type, "int32_data")
    due = math.prod(tensor.dims)
    if kind in (14, 15):  # a complex number is two
        due *= 2
    elif _bits()[kind] in (2, 4):  # one number for each byte
        due = nbytes
    found = len(getattr(tensor, field))
    if found != due:
        raise ModelFormatError(
            f"{_named(tensor, origin)} has {found} elements in '{field}'; its shape "
            f"{list(tensor.dims)} needs {due}."
        )
    if tensor.HasField("segment"):
        raise ModelFormatError(f"{_named(tensor, origin)} is a segment of one, which is not read.")


_UNDEFINED = -1


@functools.cache
def _bits() -> dict[int, int]:
    """Bits of an element by its type's number; 0 of strings, which have a field of their own."""
    import onnx_ir as ir

    unsized = {ir.DataType.STRING: 0, ir.DataType.UNDEFINED: _UNDEFINED}
    sized = {kind: kind.bitwidth for kind in ir.DataType if kind not in unsized}
    return {kind.value: bits for kind, bits in {**sized, **unsized}.items()}


def beside(model: Path, location: str) -> Path | None:
    """The file that a model's file names, links followed; ``None`` if it is not in its folder.

    Where the model's file is a link, the folder that it leads to is its folder too: caches of
    downloads keep files side by side there, and lay links of their names elsewhere.

    Raises:
        ValueError: No file can have that name.
        OSError: Links lead nowhere, or in circles.
        RuntimeError: They lead in circles, as Python tells it up to 3.12.
    """
    target = (model.parent / location).resolve()
    if target.is_symlink():  # what links lead to is none
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))
    folders = (model.parent.resolve(), model.resolve().parent)
    named = bool(location) and not Path(location).is_absolute()
    return target if named and any(map(target.is_relative_to, folders)) else None


def by_real_names(proto: onnx.ModelProto, path: Path) -> tuple[onnx.ModelProto, Path]:
    """The protobuf of a file, and the folder to which the names of its weights' files relate.

    Where files of a model that is a link lie beside what it leads to, names are those of the files
    there, and the protobuf is a copy.

    Args:
        proto: A model whose weights were checked.
        path: Its file.

    Raises:
        ModelFormatError: Some files lie beside the link, and some beside what it leads to.
    """
    home, folder = path.resolve().parent, path.parent.resolve()
    if home == folder or all(
        target.is_relative_to(folder) for _, target in _files(proto, path) if target is not None
    ):
        return proto, path.parent
    copy = type(proto)()
    copy.CopyFrom(proto)
    for entry, target in _files(copy, path):
        if target is None or not target.is_relative_to(home):
            raise ModelFormatError(
                f"'{path}' has weights in '{entry.value}', and others next to '{path.resolve()}', "
                "to which it is a link. Put all files into one folder."
            )
        entry.value = str(target.relative_to(home))
    return copy, home


def _files(
    proto: onnx.ModelProto, path: Path
) -> Iterator[tuple[onnx.StringStringEntryProto, Path | None]]:
    """The entries that name files of weights, and the files."""
    for tensor in tensors_of(proto):
        if tensor.data_location == tensor.EXTERNAL:
            for entry in tensor.external_data:
                if entry.key == "location":
                    yield entry, beside(path, entry.value)


def _check_file(tensor: onnx.TensorProto, nbytes: int, path: Path | None, where: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if path is None:
        raise ModelFormatError(
            f"{where} is kept in file '{location}'; read the model from its path so that the file "
            "can be found."
        )
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", nbytes))
        target = beside(path, location)
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelFormatError(f"{where} has a broken external-data entry: {error}") from error
    if target is None:
        raise ModelFormatError(
            f"{where} points to '{location}', which is outside the model's folder. Put the file "
            "beside the model."
        )
    named = path.parent / location
    if not named.is_file():  # target may be one where a folder in between is missing
        what = "is a folder, pipe or device" if named.exists() else "does not exist"
        raise ModelNotFoundError(f"{where} is kept in '{named}', which {what}.")
    if length != nbytes:
        raise ModelFormatError(
            f"{where} names {length} bytes of '{target}'; its shape {list(tensor.dims)} and type "
            f"take {nbytes}."
        )
    size = target.stat().st_size
    if offset < 0 or offset + nbytes > size:
        raise ModelFormatError(
            f"{where} needs bytes {offset} to {offset + nbytes} of '{target}', which has {size}."
        )


def _check_dense_bytes(tensors: Sequence[onnx.SparseTensorProto], origin: str) -> None:
    """Refuses sparse tensors that would become too large."""
    kept = sum(sparse.values.ByteSize() for sparse in tensors)
    most = min(_DENSE_BYTES + _DENSE_PER_BYTE * kept, _MOST_DENSE_BYTES)
    total = 0
    for sparse in tensors:
        where = f"Sparse tensor '{sparse.values.name}' of {origin}"
        if sparse.dims and min(sparse.dims) < 0:
            raise ModelFormatError(f"{where} has shape {list(sparse.dims)}; sizes are 0 or more.")
        total += math.prod(sparse.dims) * max(_bits().get(sparse.values.data_type, 0), 8) // 8
        if total > most:
            raise ModelFormatError(
                f"{where} has shape {list(sparse.dims)}; sparse tensors that keep {kept} bytes may "
                f"become {most} in all."
            )


def _sparse_of(graph: onnx.GraphProto) -> list[onnx.SparseTensorProto]:
    """The sparse tensors of a graph and its bodies."""
    graphs, holders = _contents(graph)
    return [
        *(tensor for one in graphs for tensor in one.sparse_initializer),
        *(one.sparse_tensor for one in holders if one.HasField("sparse_tensor")),
    ]


def _dense(sparse: onnx.SparseTensorProto, origin: str) -> onnx.TensorProto:
    from onnx import numpy_helper

    name = sparse.values.name
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    shape = tuple(sparse.dims)
    dense = np.zeros(shape, values.dtype)
    try:
        if (indices < 0).any():
            raise IndexError("an index is negative")
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (IndexError, ValueError) as error:
        raise ModelFormatError(
            f"Sparse tensor '{name}' of {origin} does not fit its shape {list(shape)}: {error}"
        ) from error
    return numpy_helper.from_array(dense, name)
