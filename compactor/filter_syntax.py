"""Parse filter text into a syntax tree: the part of SQL that can select partitions, and PyIceberg's filter strings.

Tests of one column against constants (`= == != <> < <= > >=`, IN, BETWEEN, LIKE, IS NULL, IS NAN and their NOT forms),
joined by AND, OR, NOT and parentheses. The parser knows no table; binding.py adds the schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Literal

DEEPEST: Final = 200
_KEYWORDS: Final = frozenset(
    {"and", "or", "not", "is", "in", "null", "nan", "like", "between", "true", "false", "escape"}
)
_TYPED: Final = frozenset({"date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time"})
_MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SPELLINGS: Final = {"==": "=", "<>": "!="}
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<bytes>[xX]'(?:[0-9a-fA-F]{2})*')
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<symbol><=>|<=|>=|<>|!=|==|[=<>(),.])
    |(?P<end>\Z)
    )""",
    re.VERBOSE,
)

_WITH_WIDTH: Final = frozenset({"bucket", "truncate"})
_TRANSFORMS: Final = {name: name for name in _WITH_WIDTH} | {
    spelling: unit for unit in ("year", "month", "day", "hour") for spelling in (unit, f"{unit}s")
}
"""Names of Iceberg's functions in Spark, without `system.`, and of the transforms in partition specs."""
_NO_FUNCTIONS: Final = (
    "{name}(...) is not read: compare the column itself with a constant, which is converted to the column's type, as "
    "in id = '12' or ts >= '2024-01-15'; of functions, only a partition's own: system.bucket(16, id), system.days(ts)"
)

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "is null", "is nan", "like"]


class FilterSyntaxError(ValueError):
    """The text is not a filter; the message names the position and what was expected there."""


@dataclass(frozen=True)
class Constant:
    """A constant as written: `number` (Decimal), `text` (str), `bytes` or `boolean`."""

    kind: Literal["number", "text", "bytes", "boolean"]
    value: Any


@dataclass(frozen=True)
class Test:
    """A test of one column (full dotted name) against constants. LIKE has a second constant if ESCAPE is given.

    `transform`: of the column's values, as Iceberg writes it: `bucket[16]`; empty: none.
    """

    column: str
    operator: Operator
    constants: tuple[Constant, ...] = ()
    transform: str = ""


@dataclass(frozen=True)
class Every:
    """AND; true without parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Some:
    """OR; false without parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Negated:
    """NOT."""

    part: Node


Node = Test | Every | Some | Negated


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind == "symbol" and self.text in symbols

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def parse_filter(text: str) -> Node:
    """The syntax tree of a filter.

    Raises:
        FilterSyntaxError: the text cannot be read.
    """
    parser = _Parser(_tokens(text))
    node = parser.either(0)
    if parser.token.kind != "end":
        raise parser.fail("AND, OR or the end")
    return node


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        found = _TOKEN.match(text, position)
        if found is None:
            rest = text[position:].lstrip()
            start = len(text) - len(rest)
            raise FilterSyntaxError(f"cannot read {rest[:20]!r} at character {start + 1}{_hint(rest)}")
        kind = str(found.lastgroup)
        tokens.append(_Token(kind, found.group(kind), found.start(kind)))
        position = found.end()
    return tokens


def _hint(rest: str) -> str:
    if rest.startswith("'"):
        return ": the closing quote is missing (write '' for a quote inside a string)"
    if rest[:1].isdigit():
        return ": a number is written like 12, -3.5 or 1e6; dates, times and names with digits in front need quotes"
    return ""


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._next]

    def take(self) -> _Token:
        token = self.token
        self._next += 1
        return token

    def took_word(self, word: str) -> bool:
        taken = self.token.is_word(word)
        self._next += taken
        return taken

    def took_symbol(self, symbol: str) -> bool:
        taken = self.token.is_symbol(symbol)
        self._next += taken
        return taken

    def fail(self, expected: str) -> FilterSyntaxError:
        return FilterSyntaxError(f"expected {expected} at character {self.token.start + 1}, found {self.token.shown}")

    def either(self, depth: int) -> Node:
        parts = [self.both(depth)]
        while self.took_word("or"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def both(self, depth: int) -> Node:
        parts = [self.maybe_negated(depth)]
        while self.took_word("and"):
            parts.append(self.maybe_negated(depth))
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def maybe_negated(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise FilterSyntaxError(f"parentheses and NOT are nested more than {DEEPEST} deep")
        if self.took_word("not"):
            return Negated(self.maybe_negated(depth + 1))
        if self.took_symbol("("):
            node = self.either(depth + 1)
            if not self.took_symbol(")"):
                raise self.fail("')', AND or OR")
            return node
        return self.predicate()

    def predicate(self) -> Node:
        if self.starts_constant():
            constant = self.constant()
            if constant.kind == "boolean" and not self.token.is_symbol(*_MIRRORED, *_SPELLINGS):
                return Every(()) if constant.value else Some(())
            operator = self.comparison_operator("a comparison such as '='")
            if self.starts_constant():
                raise FilterSyntaxError("two constants are compared, which selects all or nothing: write true or false")
            return replace(self.term(), operator=_MIRRORED[operator], constants=(constant,))  # type: ignore[arg-type]
        term = self.term()
        if self.took_word("is"):
            return self.is_test(term)
        negated = self.took_word("not")
        test = self.word_test(term)
        if test is not None:
            return Negated(test) if negated else test
        if negated:
            raise self.fail("IN, LIKE or BETWEEN after NOT")
        operator = self.comparison_operator("=, !=, <, <=, >, >=, IN, BETWEEN, LIKE or IS")
        return replace(term, operator=operator, constants=(self.constant(),))  # type: ignore[arg-type]

    def is_test(self, term: Test) -> Node:
        negated = self.took_word("not")
        if self.took_word("null"):
            test = term
        elif self.took_word("nan"):
            test = replace(term, operator="is nan")
        else:
            raise self.fail("NULL, NOT NULL or NAN after IS")
        return Negated(test) if negated else test

    def word_test(self, term: Test) -> Node | None:
        if self.took_word("in"):
            return replace(term, operator="in", constants=self.list_of_constants())
        if self.took_word("like"):
            pattern = self.constant()
            escape = (self.constant(),) if self.took_word("escape") else ()
            return replace(term, operator="like", constants=(pattern, *escape))
        if self.took_word("between"):
            low = self.constant()
            if not self.took_word("and"):
                raise self.fail("AND between the two ends of BETWEEN")
            least, most = (low,), (self.constant(),)
            return Every((replace(term, operator=">=", constants=least), replace(term, operator="<=", constants=most)))
        return None

    def list_of_constants(self) -> tuple[Constant, ...]:
        if not self.took_symbol("("):
            raise self.fail("'(' after IN")
        constants = [self.constant()]
        while self.took_symbol(","):
            constants.append(self.constant())
        if not self.took_symbol(")"):
            raise self.fail("',' or ')'")
        return tuple(constants)

    def comparison_operator(self, expected: str) -> str:
        if self.token.is_symbol("<=>"):
            raise FilterSyntaxError("`<=>` is not read: write `=`, or `IS NULL` where both may be null")
        if not self.token.is_symbol(*_MIRRORED, *_SPELLINGS):
            raise self.fail(expected)
        symbol = self.take().text
        return _SPELLINGS.get(symbol, symbol)

    def term(self) -> Test:
        """What is tested: a column, or a transform of one. The operator is the default, IS NULL."""
        name = self.column()
        if not self.took_symbol("("):
            return Test(name, "is null")
        function = name.lower().rpartition("system.")[2]
        if function not in _TRANSFORMS:
            raise FilterSyntaxError(_NO_FUNCTIONS.format(name=name))
        width = ""
        if function in _WITH_WIDTH:
            if self.token.kind != "number" or not self.token.text.isdigit():
                raise self.fail(f"a whole number, as in {function}(16, id)")
            width = f"[{int(self.take().text)}]"
            if not self.took_symbol(","):
                raise self.fail("',' and a column")
        column = self.column()
        if not self.took_symbol(")"):
            raise self.fail("')'")
        return Test(column, "is null", transform=_TRANSFORMS[function] + width)

    def column(self) -> str:
        parts = [self.name()]
        while self.took_symbol("."):
            parts.append(self.name())
        return ".".join(parts)

    def name(self) -> str:
        if self.token.kind == "quoted":
            text = self.take().text
            return text[1:-1].replace(text[0] * 2, text[0])
        if self.token.kind == "word" and not self.token.is_word(*_KEYWORDS):
            return self.take().text
        raise self.fail("the name of a column (in double quotes where it is a keyword or has odd characters)")

    def starts_constant(self) -> bool:
        if self.token.kind in {"number", "text", "bytes"} or self.token.is_word("true", "false"):
            return True
        return self.token.is_word(*_TYPED) and self._tokens[self._next + 1].kind == "text"

    def constant(self) -> Constant:
        if not self.starts_constant():
            if self.token.is_word("null"):
                raise FilterSyntaxError("nothing equals NULL; write `IS NULL` or `IS NOT NULL`")
            if self.token.kind == "quoted":
                text = self.token.text[1:-1].replace("'", "''")
                raise self.fail(f"a value: text is written in single quotes, '{text}', and double quotes are for names")
            if self.token.kind == "word":
                raise self.fail("a value (strings, dates and times are written in single quotes; no function is read)")
            raise self.fail("a value")
        token = self.take()
        if token.is_word(*_TYPED):
            token = self.take()
        if token.kind == "number":
            return Constant("number", Decimal(token.text))
        if token.kind == "bytes":
            return Constant("bytes", bytes.fromhex(token.text[2:-1]))
        if token.kind == "text":
            return Constant("text", token.text[1:-1].replace("''", "'"))
        return Constant("boolean", token.text.lower() == "true")
