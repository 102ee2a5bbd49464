"""How messages of `proto.API` are declared: a class for each message, which mypy reads as it stands, and from which
`add_messages` makes the description for protobuf. The annotation of a field is its type on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, dataclass_transform

import msgspec
from google.protobuf import descriptor_pb2
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.internal.containers import (
        MessageMap,
        RepeatedCompositeFieldContainer,
        RepeatedScalarFieldContainer,
        ScalarMap,
    )

Scalar = TypeVar("Scalar", bound=str | bytes | int)
Inner = TypeVar("Inner", bound=Message)
Int32: TypeAlias = int
Int64: TypeAlias = int
UInt64: TypeAlias = int


@dataclass_transform(kw_only_default=True)
class ApiMessage(Message):
    """Its subclasses are declarations. A constructor takes the fields as keywords, and none of them is required."""


class Repeated(Protocol[Scalar]):
    """A list of texts or numbers. A constructor takes any iterable; nothing can be assigned later."""

    def __get__(self, message: object, owner: type) -> RepeatedScalarFieldContainer[Scalar]: ...
    def __set__(self, message: object, values: Iterable[Scalar]) -> None: ...


class Messages(Protocol[Inner]):
    """A list of messages."""

    def __get__(self, message: object, owner: type) -> RepeatedCompositeFieldContainer[Inner]: ...
    def __set__(self, message: object, values: Iterable[Inner]) -> None: ...


class Headers(Protocol):
    """A map from texts to bytes."""

    def __get__(self, message: object, owner: type) -> ScalarMap[str, bytes]: ...
    def __set__(self, message: object, values: Mapping[str, bytes]) -> None: ...


class Numbered(Protocol[Inner]):
    """A map from Int32 to messages."""

    def __get__(self, message: object, owner: type) -> MessageMap[int, Inner]: ...
    def __set__(self, message: object, values: Mapping[int, Inner]) -> None: ...


class _Field(msgspec.Struct, frozen=True):
    number: int
    enum: str


def field(number: int, enum: str = "") -> Any:
    """The value of a field in a declaration. `enum`: the enumeration that a number is of. The result is typed as Any
    because mypy wants a value that suits the annotation."""
    return _Field(number, enum)


_Description: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "Int32": _Description.TYPE_INT32,
    "Int64": _Description.TYPE_INT64,
    "UInt64": _Description.TYPE_UINT64,
    "bool": _Description.TYPE_BOOL,
    "str": _Description.TYPE_STRING,
    "bytes": _Description.TYPE_BYTES,
}


def add_messages(
    file: descriptor_pb2.FileDescriptorProto, declared: Iterable[type[ApiMessage]], enums: Mapping[str, str]
) -> None:
    """`enums`: names of values by the name of the enumeration, after the name of the message that it belongs to."""
    messages = {each.__name__: _add_message(file, each) for each in declared}
    for name, values in enums.items():
        owner, _, own = name.rpartition(".")
        enum = messages[owner].enum_type.add(name=own) if owner else file.enum_type.add(name=own)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)


def _add_message(
    file: descriptor_pb2.FileDescriptorProto, declared: type[ApiMessage]
) -> descriptor_pb2.DescriptorProto:
    message = file.message_type.add(name=declared.__name__)
    package = f".{file.package}"
    for name, annotation in vars(declared).get("__annotations__", {}).items():
        said: _Field = vars(declared)[name]
        added = message.field.add(name=name, number=said.number, label=_Description.LABEL_OPTIONAL)
        kind, _, inner = annotation.removesuffix("]").partition("[")
        if kind in ("Headers", "Numbered"):  # a map is a list of entries of a type of its own
            key, value = ("str", "bytes") if kind == "Headers" else ("Int32", inner)
            entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
            entry.options.map_entry = True
            for number, (part, type_) in enumerate((("key", key), ("value", value)), 1):
                of_entry = entry.field.add(name=part, number=number, label=_Description.LABEL_OPTIONAL)
                _set_type(of_entry, package, type_)
            added.label = _Description.LABEL_REPEATED
            _set_type(added, package, f"{message.name}.{entry.name}")
        else:
            if inner:
                added.label = _Description.LABEL_REPEATED
            _set_type(added, package, inner or kind, said.enum)
    return message


def _set_type(added: descriptor_pb2.FieldDescriptorProto, package: str, kind: str, enum: str = "") -> None:
    if kind in _SCALARS:
        added.type = _SCALARS[kind]
    else:
        added.type = _Description.TYPE_ENUM if enum else _Description.TYPE_MESSAGE
        added.type_name = f"{package}.{enum or kind}"
