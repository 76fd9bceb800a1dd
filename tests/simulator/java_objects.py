"""Java's objects as Py4J shows them: packages, collections, exceptions, and objects with set answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError


class JavaError(Py4JJavaError):
    """An exception of Java of this class."""

    def __init__(self, kind: str, message: str) -> None:
        Exception.__init__(self, message)
        self.message = message
        self.java_exception = Answers(getClass=Answers(getName=kind), getMessage=message)

    def __str__(self) -> str:
        return str(self.message)


class Answers:
    """A Java object: each method returns a value, or what a function makes of its arguments."""

    def __init__(self, **methods: Any) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Callable[..., Any]:
        value = self.__dict__["_methods"][name]
        return value if callable(value) and not isinstance(value, Answers) else lambda *_: value


class Package:
    """Java's packages and classes: `members` by their full names."""

    def __init__(self, members: Mapping[str, Any], prefix: str = "") -> None:
        self._members, self._prefix = members, prefix

    def __getattr__(self, name: str) -> Any:
        full = self._prefix + name
        return self._members[full] if full in self._members else Package(self._members, f"{full}.")


class JavaSet(list[Any]):
    """A set or list of Java: each element once."""

    def add(self, element: Any) -> bool:
        if element in self:
            return False
        self.append(element)
        return True

    def addAll(self, elements: Iterable[Any]) -> None:  # noqa: N802 - as Java calls it
        for each in elements:
            self.add(each)

    def toArray(self) -> list[Any]:  # noqa: N802
        return list(self)

    def isEmpty(self) -> bool:  # noqa: N802
        return not self

    def size(self) -> int:
        return len(self)

    def get(self, index: int) -> Any:
        return self[index]

    def iterator(self) -> JavaIterator:
        return JavaIterator(iter(list(self)))


class JavaIterator:
    def __init__(self, elements: Iterator[Any]) -> None:
        self._left = list(elements)

    def hasNext(self) -> bool:  # noqa: N802
        return bool(self._left)

    def next(self) -> Any:
        return self._left.pop(0)
