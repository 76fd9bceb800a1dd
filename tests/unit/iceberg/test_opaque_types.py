"""Columns of types that PyIceberg cannot parse do not keep a table from being read."""

from __future__ import annotations

import json

import pytest
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import GeometryType, UnknownType

from compactor.iceberg.opaque_types import OpaqueType

NAMES = ("variant", "geometry(srid:3857)", "geography(srid:4326, karney)")


def schema(name: str) -> str:
    nested = [
        {"id": 3, "name": "l", "required": False,
         "type": {"type": "list", "element-id": 4, "element": name, "element-required": False}},
        {"id": 5, "name": "m", "required": False,
         "type": {"type": "map", "key-id": 6, "key": "string", "value-id": 7, "value": name, "value-required": False}},
        {"id": 8, "name": "s", "required": False,
         "type": {"type": "struct", "fields": [{"id": 9, "name": "v", "required": False, "type": name}]}},
    ]  # fmt: skip
    fields = [{"id": 1, "name": "id", "required": True, "type": "long"}]
    fields += [{"id": 2, "name": name, "required": False, "type": name}]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": [*fields, *nested], "identifier-field-ids": [1]})


@pytest.mark.parametrize("name", NAMES)
def test_the_type_is_its_name_at_every_level(name: str) -> None:
    found = Schema.model_validate_json(schema(name))
    fields = index_by_id(found)
    assert all(isinstance(fields[each].field_type, OpaqueType) for each in (2, 4, 7, 9))
    assert {str(fields[each].field_type) for each in (2, 4, 7, 9)} == {name}
    assert json.loads(found.model_dump_json()) == json.loads(schema(name))
    assert Schema.model_validate_json(found.model_dump_json()) == found
    assert fields[2].field_type != OpaqueType("variant ")


def test_types_that_pyiceberg_knows_are_its_own() -> None:
    fields = index_by_id(Schema.model_validate_json(schema("geometry")))
    assert isinstance(fields[4].field_type, GeometryType)
    assert isinstance(index_by_id(Schema.model_validate_json(schema("unknown")))[9].field_type, UnknownType)


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="strange"):
        Schema.model_validate_json(schema("strange"))
