"""A type-preserving codec for Thrift's compact protocol, for editing Parquet metadata safely.

A decoded struct is a plain tree. Every field, also an unknown one, keeps its id, its wire type and its order, so that
`encode_struct(decode_struct(data)[0])` returns the same bytes. It decodes Parquet footers, page indexes, page headers
and bloom-filter headers. Source: apache/thrift, doc/specs/thrift-compact-protocol.md.

Values by wire type: `BOOL_TRUE`/`BOOL_FALSE` bool · `I8` `I16` `I32` `I64` int · `DOUBLE` its 8 bytes (raw, which keeps
a NaN's payload) · `BINARY` bytes · `STRUCT` `Struct` · `LIST` `ThriftList`.

Refused are types that Parquet does not use (sets, maps, UUIDs), and two spellings that no known writer uses and that
decoding would lose: padded varints, and a long list header for fewer than 15 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from compactor.errors import GiveUpError
from compactor.reasons import Reason

BOOL_TRUE: Final = 1
BOOL_FALSE: Final = 2
I8: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12

MAX_DEPTH: Final = 64  # Parquet nests six levels deep; each level costs two Python frames

_BOOLEANS: Final = (BOOL_TRUE, BOOL_FALSE)
_CONTINUE: Final = 0x80  # a varint byte with this bit set is followed by another
_LOW_SEVEN: Final = 0x7F
_NIBBLE: Final = 0x0F
_LONG_SIZE: Final = 15  # list header: the size follows as a varint
_MAX_DELTA: Final = 15  # the largest step between field ids that a short header holds
_MAX_VARINT_BYTES: Final = 10
_DOUBLE_BYTES: Final = 8
_INTEGER_BITS: Final = {I16: 16, I32: 32, I64: 64}

Field = tuple[int, Any]
"""(wire type, value)"""


class ThriftError(GiveUpError):
    """Bytes that are not a struct in compact protocol, or a tree that cannot be written as one."""

    reason = Reason.UNREADABLE_FOOTER


@dataclass(frozen=True, slots=True)
class ThriftList:
    """The elements of a list, all of `element_type`.

    `values` is a list, except for booleans: there it is the raw bytes, one per element (1 is true; writers disagree
    whether false is 2 or 0).
    """

    element_type: int
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields by id, in wire order. Editing makes a new struct that shares unchanged parts.

    `long_headers`: ids of fields with a long header although a short one would suffice.
    Two structs are equal if they have the same fields, in any order.
    """

    fields: dict[int, Field]
    long_headers: frozenset[int] = field(default=frozenset(), compare=False)

    def get(self, field_id: int, *wire_types: int) -> Any:
        """The field's value, None if absent.

        Raises:
            ThriftError: the field's wire type is not one of `wire_types` (without any, all are accepted).
        """
        found = self.fields.get(field_id)
        if found is None:
            return None
        if wire_types and found[0] not in wire_types:
            raise ThriftError(f"Thrift field {field_id} has wire type {found[0]}, expected one of {wire_types}.")
        return found[1]

    def require(self, field_id: int, *wire_types: int) -> Any:
        """Like `get`, but an absent field raises ThriftError."""
        value = self.get(field_id, *wire_types)
        if value is None:
            raise ThriftError(f"Required Thrift field {field_id} is missing.")
        return value

    def elements(self, field_id: int, element_type: int) -> Sequence[Any]:
        """The values of a list field, empty if absent.

        Raises:
            ThriftError: not a list, or its elements have another type. An empty list's type is ignored: some writers
                store 0.
        """
        found: ThriftList | None = self.get(field_id, LIST)
        if found is None or not found.values:
            return ()
        if found.element_type != element_type:
            raise ThriftError(f"Thrift list {field_id} holds type {found.element_type}, expected {element_type}.")
        return found.values

    def with_fields(self, changes: Mapping[int, Field]) -> Struct:
        """A copy with fields set: existing ones keep their place, new ones go before the first larger id."""
        fields = dict(self.fields)
        for field_id, changed in changes.items():
            if field_id in fields or not fields or field_id > next(reversed(fields)):
                fields[field_id] = changed
            else:
                fields = _inserted(fields, field_id, changed)
        return Struct(fields, self.long_headers)

    def without(self, *field_ids: int) -> Struct:
        """A copy lacking these fields; absent ones are no error."""
        kept = {field_id: found for field_id, found in self.fields.items() if field_id not in field_ids}
        return Struct(kept, self.long_headers)


def structs(values: Sequence[Struct]) -> Field:
    """A list of structs, as a field."""
    return LIST, ThriftList(STRUCT, values)


def _inserted(fields: dict[int, Field], field_id: int, new: Field) -> dict[int, Field]:
    items = list(fields.items())
    place = next(place for place, (other_id, _) in enumerate(items) if other_id > field_id)
    return dict([*items[:place], (field_id, new), *items[place:]])


def decode_struct(data: bytes | memoryview, offset: int = 0) -> tuple[Struct, int]:
    """The struct that starts at `offset`, and the offset after its end. Later bytes are ignored.

    Time and memory are bounded by the length of `data`.

    Raises:
        ThriftError: truncated, malformed, nested deeper than `MAX_DEPTH`, or spelled so that encoding would not return
            the same bytes.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    if not 0 <= offset <= len(raw):
        raise ThriftError(f"Thrift struct at offset {offset} lies outside its {len(raw)} bytes.")
    try:
        return _read_struct(raw, offset, MAX_DEPTH)
    except IndexError:
        raise ThriftError(f"Thrift struct at offset {offset} is cut off after {len(raw) - offset} bytes.") from None


def encode_struct(struct: Struct) -> bytes:
    """The struct in compact protocol.

    Raises:
        ThriftError: a value does not fit its wire type (an i16 above 32767, text for an integer).
    """
    out = bytearray()
    try:
        _write_struct(out, struct)
    except (TypeError, AttributeError, ValueError, KeyError, RecursionError) as error:
        raise ThriftError(f"This tree cannot be written as Thrift: {error!r}.") from error
    return bytes(out)


def varint(number: int) -> bytes:
    """A number from 0 on as an unsigned varint; Parquet's own encodings use it too."""
    out = bytearray()
    _write_varint(out, number)
    return bytes(out)


# --- reading: each reader takes (data, position, depth left) and returns (value, position after it) ---


def _read_struct(data: bytes, position: int, depth: int) -> tuple[Struct, int]:
    if depth <= 0:
        raise ThriftError(f"Thrift nests deeper than {MAX_DEPTH} levels.")
    fields: dict[int, Field] = {}
    long_headers: list[int] = []
    field_id = 0
    while header := data[position]:
        position += 1
        if header > _NIBBLE:
            field_id += header >> 4
        else:
            previous = field_id
            field_id, position = _read_signed(data, position, 16)
            if 0 < field_id - previous <= _MAX_DELTA:
                long_headers.append(field_id)
        if field_id in fields:
            raise ThriftError(f"Thrift field {field_id} appears twice in one struct.")
        wire_type = header & _NIBBLE
        if I16 <= wire_type <= I64:
            # Most fields are integers of one byte: save two calls for them.
            raw = data[position]
            if raw < _CONTINUE:
                position += 1
                fields[field_id] = (wire_type, (raw >> 1) ^ -(raw & 1))
                continue
        value, position = _FIELD_READERS[wire_type](data, position, depth - 1)
        fields[field_id] = (wire_type, value)
    return Struct(fields, frozenset(long_headers)) if long_headers else Struct(fields), position + 1


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    raw = data[position]
    position += 1
    if raw < _CONTINUE:
        return raw, position
    result = raw & _LOW_SEVEN
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        raw = data[position]
        position += 1
        if raw < _CONTINUE:
            if not raw:
                raise ThriftError("A Thrift number is padded with zero bits.")
            return result | raw << shift, position
        result |= (raw & _LOW_SEVEN) << shift
    raise ThriftError("A Thrift number is longer than 64 bits.")


def _read_signed(data: bytes, position: int, bits: int) -> tuple[int, int]:
    raw, position = _read_varint(data, position)
    if raw >> bits:
        raise ThriftError(f"A Thrift number does not fit its {bits} bits.")
    return (raw >> 1) ^ -(raw & 1), position


def _read_i8(data: bytes, position: int, _depth: int) -> tuple[int, int]:
    raw = data[position]
    return raw - 256 if raw >= _CONTINUE else raw, position + 1


def _read_double(data: bytes, position: int, _depth: int) -> tuple[bytes, int]:
    end = position + _DOUBLE_BYTES
    if end > len(data):
        raise ThriftError(f"Thrift bytes end after {len(data)}, a value needs {end}.")
    return data[position:end], end


def _read_binary(data: bytes, position: int, _depth: int) -> tuple[bytes, int]:
    length = data[position]
    if length < _CONTINUE:
        position += 1
    else:
        length, position = _read_varint(data, position)
    end = position + length
    if end > len(data):
        raise ThriftError(f"Thrift bytes end after {len(data)}, a value of {length} bytes needs {end}.")
    return data[position:end], end


def _read_list(data: bytes, position: int, depth: int) -> tuple[ThriftList, int]:
    header = data[position]
    position += 1
    size, element_type = header >> 4, header & _NIBBLE
    if size == _LONG_SIZE:
        size, position = _read_varint(data, position)
        if size < _LONG_SIZE:
            raise ThriftError("A short Thrift list is spelled with a long header.")
    if depth <= 0:
        raise ThriftError(f"Thrift nests deeper than {MAX_DEPTH} levels.")
    # Every element takes at least one byte, so a wrong size is found before memory is allocated.
    if size > len(data) - position:
        raise ThriftError(f"A Thrift list claims {size} elements, {len(data) - position} bytes are left.")
    if element_type in _BOOLEANS:
        return ThriftList(element_type, data[position : position + size]), position + size
    if not size:
        return ThriftList(element_type, []), position
    read = _FIELD_READERS[element_type]
    values = []
    for _ in range(size):
        value, position = read(data, position, depth - 1)
        values.append(value)
    return ThriftList(element_type, values), position


def _read_unknown(_data: bytes, position: int, _depth: int) -> tuple[None, int]:
    raise ThriftError(f"Unknown Thrift wire type before offset {position}.")


_Reader = Callable[[bytes, int, int], tuple[Any, int]]
_FIELD_READERS: Final[tuple[_Reader, ...]] = (
    _read_unknown,
    lambda _data, position, _depth: (True, position),
    lambda _data, position, _depth: (False, position),
    _read_i8,
    lambda data, position, _depth: _read_signed(data, position, 16),
    lambda data, position, _depth: _read_signed(data, position, 32),
    lambda data, position, _depth: _read_signed(data, position, 64),
    _read_double,
    _read_binary,
    _read_list,
    _read_unknown,
    _read_unknown,
    _read_struct,
    _read_unknown,
    _read_unknown,
    _read_unknown,
)


# --- writing ---


def _write_struct(out: bytearray, struct: Struct) -> None:
    previous = 0
    for field_id, (wire_type, value) in struct.fields.items():
        written_type = (BOOL_TRUE if value else BOOL_FALSE) if wire_type in _BOOLEANS else wire_type
        if 0 < field_id - previous <= _MAX_DELTA and field_id not in struct.long_headers:
            out.append((field_id - previous) << 4 | written_type)
        else:
            out.append(written_type)
            _write_signed(out, field_id, 16)
        previous = field_id
        if wire_type not in _BOOLEANS:
            _write_value(out, wire_type, value)
    out.append(0)


def _write_value(out: bytearray, wire_type: int, value: Any) -> None:
    if wire_type in _INTEGER_BITS:
        _write_signed(out, value, _INTEGER_BITS[wire_type])
    elif wire_type == BINARY:
        _write_varint(out, len(value))
        out += value
    else:
        _OTHER_WRITERS[wire_type](out, value)


def _write_varint(out: bytearray, number: int) -> None:
    while number >= _CONTINUE:
        out.append(number & _LOW_SEVEN | _CONTINUE)
        number >>= 7
    out.append(number)


def _write_signed(out: bytearray, number: int, bits: int) -> None:
    if not isinstance(number, int) or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ThriftError(f"{number!r} does not fit a Thrift i{bits}.")
    _write_varint(out, number << 1 if number >= 0 else (~number << 1) | 1)


def _write_i8(out: bytearray, number: int) -> None:
    if not -_CONTINUE <= number < _CONTINUE:
        raise ThriftError(f"{number!r} does not fit a Thrift i8.")
    out.append(number & 0xFF)


def _write_double(out: bytearray, value: bytes) -> None:
    if len(value) != _DOUBLE_BYTES:
        raise ThriftError(f"A Thrift double has {len(value)} bytes.")
    out += value


def _write_list(out: bytearray, value: ThriftList) -> None:
    size = len(value.values)
    if size < _LONG_SIZE:
        out.append(size << 4 | value.element_type)
    else:
        out.append(_LONG_SIZE << 4 | value.element_type)
        _write_varint(out, size)
    if value.element_type in _BOOLEANS:
        out += bytes(value.values)
    elif value.element_type == STRUCT:
        for element in value.values:
            _write_struct(out, element)
    else:
        for element in value.values:
            _write_value(out, value.element_type, element)


_OTHER_WRITERS: Final[dict[int, Callable[[bytearray, Any], None]]] = {
    I8: _write_i8,
    DOUBLE: _write_double,
    LIST: _write_list,
    STRUCT: _write_struct,
}
