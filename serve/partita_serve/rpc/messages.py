"""Message types of protobuf, made from the table of their fields when this module is imported.

They are in a pool of their own, so that they live beside any client's generated types, whatever
version of protobuf these were generated for.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from partita_serve.protocol.errors import InvalidRequest
from partita_serve.rpc.message_table import ENUMS, MESSAGES, Field

PACKAGE = "inference"

_SCALARS = {
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}


@functools.cache
def message_type(name: str) -> Any:
    """The class of a message.

    Args:
        name: E.g. ``"ModelInferRequest"``.

    Example:
        >>> message_type("ModelReadyRequest")(name="resnet").ByteSize()
        8
    """
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def read_message(name: str, data: bytes) -> Any:
    """A message that a client sent.

    Raises:
        InvalidRequest: The bytes are no such message.
    """
    try:
        return message_type(name).FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"The bytes are not a message '{name}': {error}.") from error


@functools.cache
def _pool() -> Any:
    """All types of the table."""
    file = descriptor_pb2.FileDescriptorProto(
        name="inference.proto", package=PACKAGE, syntax="proto3"
    )
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, field in fields.items():
            _add_field(message, field_name, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: Any, name: str, field: Field) -> None:
    """Adds a field to a message, and the type of its entries if it is a map."""
    *kind, type_name = field.type.split()
    if kind == ["map"]:
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", Field(1, "string"))
        _add_field(entry, "value", Field(2, type_name))
        type_name = f"{message.name}.{entry.name}"
    added = message.field.add(name=name, number=field.number)
    added.label = added.LABEL_REPEATED if kind else added.LABEL_OPTIONAL
    if type_name in _SCALARS:
        added.type = _SCALARS[type_name]
    else:
        added.type = added.TYPE_ENUM if type_name in ENUMS else added.TYPE_MESSAGE
        added.type_name = f".{PACKAGE}.{type_name}"
    if field.choice:
        choices = [choice.name for choice in message.oneof_decl]
        if field.choice not in choices:
            message.oneof_decl.add(name=field.choice)
            choices.append(field.choice)
        added.oneof_index = choices.index(field.choice)
