"""Any settings file is accepted or refused with a message, and what is accepted can be printed and read back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from compactor.errors import InputError
from compactor.settings.allowed import kinds_of
from compactor.settings.hooks import HookSettings
from compactor.settings.policy import PolicyValues
from compactor.settings.section import Section
from compactor.settings.tree import Settings, load_with_sources
from streaming.commands.settings_report import settings_document, settings_yaml
from tests.properties.examples import examples

WORDS = (
    "table", "db.*", "lake.db.t", "events", "512MB", "10min", "1.5GiB", "rest", "sql", "http://host:8181", "tiered",
    "kafka", "trino", "day = '2024-01-15'", "day >", "22:00-06:00", "s3://b/c", "local[2]", "a # b", "********", "",
    " ", "null", "x: y", "é\n", "{table}", "{", "spark.a", "no", "2024-01-15", "k:9092", "mysql://me:pass@h",
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.sampled_from(WORDS) | st.text(max_size=8)
)
KEYS = st.sampled_from(WORDS) | st.integers(0, 9) | st.booleans() | st.none() | st.text(max_size=3)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=4
)
LIKELY = (
    st.sampled_from(WORDS) | st.integers(0, 100) | st.floats(0, 10) | st.booleans() | st.lists(st.sampled_from(WORDS))
)


def section_of(kind: Any) -> type[Section] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def trees(section: type[Section], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A few keys of the section with values that fit now and then."""
    fields = {
        name: trees(inner, values) if (inner := section_of(next(kinds_of(field)).plain)) else values
        for name, field in section.model_fields.items()
    }
    names = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


def settings(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Sections with a few values, at least one catalog, hooks, and overrides of single tables."""
    properties = st.dictionaries(
        st.sampled_from(("type", "uri", "warehouse", "s3.region", "token")), values, max_size=2
    )
    overrides = st.dictionaries(st.sampled_from(WORDS[:4]), trees(PolicyValues, values), max_size=2)
    made = {
        "catalogs": st.dictionaries(st.sampled_from(("lake", "sea")), properties, min_size=1, max_size=2),
        "policy": trees(PolicyValues, values) | st.fixed_dictionaries({"tables": overrides}),
        "hooks": st.lists(trees(HookSettings, values), max_size=2),
    }
    return st.tuples(trees(Settings, values), st.fixed_dictionaries(made)).map(lambda both: both[0] | both[1])


def loaded(text: str, folder: str, name: str = "a.yaml") -> Any:
    path = Path(folder) / name
    path.write_text(text, encoding="utf-8")
    return load_with_sources(path, {})


def is_refused_well(text: str) -> bool:
    """Whether the text is refused; the message must be one that a person can use."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            loaded(text, folder)
        except InputError as error:
            message = str(error)
            assert "a.yaml" in message
            assert "pydantic" not in message
            assert "Input should" not in message
            return True
    return False


@hypothesis_settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)) | KEYS, ANYTHING, max_size=4))
def test_any_tree_is_accepted_or_refused_with_a_message(tree: dict[Any, Any]) -> None:
    event("refused" if is_refused_well(yaml.safe_dump(tree)) else "accepted")


@hypothesis_settings(max_examples=examples(300), deadline=None)
@given(st.text("ab:{}[]&*!?|>'\"#-\n\t ,0123%@`<é\x00", max_size=40))
def test_any_text_is_accepted_or_refused_with_a_message(text: str) -> None:
    is_refused_well(text)


def print_and_read_back(tree: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            first = loaded(yaml.safe_dump(tree, allow_unicode=True), folder)
        except InputError:
            event("refused")
            return
        text = settings_yaml(first)
        assert text.count("  # ") >= len(settings_document(first)["origins"])
        if "********" in text:
            event("with a secret")
            assert is_refused_well(text)
            return
        event("accepted")
        again = loaded(text, folder, "b.yaml")
        assert again.settings == first.settings
        assert settings_yaml(again) == text


@hypothesis_settings(max_examples=examples(300), deadline=None)
@given(settings(LIKELY))
def test_what_is_accepted_is_printed_so_that_it_reads_the_same(tree: dict[str, Any]) -> None:
    print_and_read_back(tree)


def fitting() -> st.SearchStrategy[dict[str, Any]]:
    """Settings that are accepted: free texts where settings are free."""
    free = st.sampled_from([word for word in WORDS if word != "********"]) | st.text(max_size=8)
    named: Callable[[str], st.SearchStrategy[dict[str, str]]] = lambda prefix: st.dictionaries(  # noqa: E731
        st.text(max_size=5).map(lambda name: f"{prefix}{name}"), free | st.integers() | st.booleans(), max_size=3
    )
    return st.fixed_dictionaries(
        {
            "catalogs": st.dictionaries(st.sampled_from(("lake", "sea-1")), named("x"), min_size=1, max_size=2),
            "kafka": st.fixed_dictionaries({"options": named("x")}),
            "spark": st.fixed_dictionaries({"conf": named("spark.x")}),
            "hooks": st.lists(
                st.fixed_dictionaries({"kind": st.just("spark"), "user": free, "catalog": free}), max_size=2
            ),
        }
    )


@hypothesis_settings(max_examples=examples(300), deadline=None)
@given(fitting())
def test_every_text_is_printed_so_that_it_reads_the_same(tree: dict[str, Any]) -> None:
    print_and_read_back(tree)
