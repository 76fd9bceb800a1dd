"""The base of all settings sections."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from compactor.settings.allowed import is_number
from compactor.settings.origins import Key, dotted
from compactor.whole_numbers import LARGEST

MEBIBYTE = 1024 * 1024


def fixed(default: Any, why: str, **limits: Any) -> Any:
    """A value of a section that no file and no variable sets, because nobody would. `why`: the reason of the value.

    What single tables or runs may want else, table properties `firnline.policy.<key>` and `--option` set.
    """
    return Field(default, description=why, exclude=True, **limits)


def is_setting(field: FieldInfo) -> bool:
    """Whether a file or a variable sets this value."""
    return not field.exclude


class KeyProblemError(ValueError):
    """A problem that a validator of a whole section or map finds in one of its keys; `key`: the way to it."""

    def __init__(self, key: Key, message: str) -> None:
        super().__init__(f"{dotted(key)}: {message}")
        self.key = key
        self.message = message


def kind_of(given: Any) -> str:
    """What is given instead of a map, without its content: that may hold secrets."""
    kinds = {dict: "a map", list: "a list", str: "text", bool: "a boolean", type(None): "no value"}
    return kinds.get(type(given), "a number")


class Section(BaseModel):
    """Base of all sections: frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _boolean_is_no_number(cls, given: Any, info: ValidationInfo) -> Any:
        """In YAML `yes` is a boolean, which Python takes for the number 1."""
        if isinstance(given, bool) and info.field_name and is_number(cls.model_fields[info.field_name]):
            raise PydanticCustomError("boolean", "a boolean is not a number")
        return given

    @field_validator("*")
    @classmethod
    def _number_is_not_too_large(cls, value: Any) -> Any:
        """Numbers are compared with sizes and counts of files, which Arrow and Java hold in 64 bits."""
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"this number is too large; at most {LARGEST:,} is possible")
        return value
