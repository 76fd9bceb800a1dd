"""Access to tables through PyIceberg: the configured catalogs, and one frozen view of a table at one snapshot."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import VoidTransform

from compactor.credentials.shared_file_systems import sharing
from compactor.errors import FirnlineError, GiveUpError, InputError, RetryError, retried
from compactor.iceberg.conditional_load import Loaded, TableLoader
from compactor.iceberg.manifest_lists import RESTORE, ROW_LINEAGE_VERSION, read_manifest_list
from compactor.iceberg.namespaces import Namespace, listed_tables, refuses
from compactor.iceberg.open_catalog import open_catalog
from compactor.iceberg.rest_catalog import concerns_catalog, refuses_login
from compactor.partitions import PartitionLayout
from compactor.reasons import Reason
from compactor.settings.policy import MOST_SHOWN, PolicyValues
from compactor.table_names import MAIN, TableName
from compactor.whole_numbers import LARGEST, whole_number

DEFAULT_TARGET_FILE_SIZE = 512 * 1024 * 1024  # write.target-file-size-bytes, Iceberg's table property default

LOGIN_REMEDY = (
    "; check credential, oauth2-server-uri and scope of catalogs.{catalog}. A token that is set there ends with its "
    "lifetime; with a credential, firnline logs in again"
)
ETAG_TRUST_SECONDS = 3600.0  # Iceberg's own REST server sends tags of 32 bits


class TableMissingError(InputError):
    """Reaction: **fix the input**: the table does not exist, or was dropped."""

    reason = Reason.UNKNOWN_TABLE


class OtherNameError(TableMissingError):
    """Reaction: **fix the input**: the catalog has the table, and calls it `called`."""

    def __init__(self, asked: TableName, called: TableName) -> None:
        levels = " / ".join(called.namespace)
        super().__init__(f"table {asked}: its catalog calls it {called} (namespace {levels}); use that name")
        self.called = called


@dataclass(frozen=True)
class TableView:
    """One look at a table: its metadata file, pinned to the snapshot that was current.

    `ref`: the branch. `etag`: the tag of the catalog's answer, if it sends tags. The view keeps the manifest list that
    was read last, so that the parts of one look share it.
    """

    name: TableName
    metadata: TableMetadata
    metadata_location: str
    io: FileIO
    ref: str = MAIN
    etag: str | None = None
    _last_list: dict[str, tuple[ManifestFile, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def uuid(self) -> str:
        """The table's UUID: under the same name, another UUID means another table.

        Old tables (V1) may have none, and PyIceberg invents one each time that it reads their metadata: one is made of
        the table's location instead.
        """
        return str(self.metadata.table_uuid if self.has_uuid else uuid5(NAMESPACE_URL, self.metadata.location))

    @property
    def has_uuid(self) -> bool:
        """Whether the metadata name a UUID."""
        return "table_uuid" in self.metadata.model_fields_set

    @property
    def history(self) -> Iterator[Snapshot]:
        """The snapshots of the branch, the newest first."""
        by_id = {each.snapshot_id: each for each in self.metadata.snapshots}
        current = self.snapshot
        while current is not None:
            yield current
            current = by_id.get(current.parent_snapshot_id or 0)

    @property
    def snapshot(self) -> Snapshot | None:
        """The branch's head; None for a table without data."""
        return head_of(self.metadata, self.ref)

    @property
    def keeps_row_lineage(self) -> bool:
        """Whether rows have ids and the sequence number of their last change (format version 3)."""
        return self.metadata.format_version >= ROW_LINEAGE_VERSION

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.properties

    def manifests(self, snapshot: Snapshot | None = None) -> tuple[ManifestFile, ...]:
        """The manifests of `snapshot` (default: the branch's head), in the list's order; none for a table without data.

        Raises:
            RetryError: the list cannot be read.
        """
        chosen = snapshot or self.snapshot
        if chosen is None:
            return ()
        location = chosen.manifest_list
        found = self._last_list.get(location)
        if found is not None:
            return found
        what = f"the manifest list {location} of {self.name} cannot be read"
        with retried(what, Reason.MANIFEST_UNREADABLE, RESTORE):
            found = tuple(read_manifest_list(self.io, location))
        self._last_list.clear()  # one list at a time: a walk over thousands of snapshots must not keep them all
        self._last_list[location] = found
        return found

    def layout(self, spec_id: int) -> PartitionLayout:
        """How to read partition tuples of one spec."""
        spec = self.spec(spec_id)
        return replace(PartitionLayout.of(spec, self._schema_for(spec)), orphans=self.orphans(spec))

    def layouts(self) -> dict[int, PartitionLayout]:
        """The layouts of all the table's specs, by id."""
        return {spec.spec_id: self.layout(spec.spec_id) for spec in self.metadata.partition_specs}

    def spec(self, spec_id: int) -> PartitionSpec:
        for spec in self.metadata.partition_specs:
            if spec.spec_id == spec_id:
                return spec
        raise GiveUpError(
            f"table {self.name} has no partition spec {spec_id}, yet a file names it", reason=Reason.BAD_METADATA
        )

    def orphans(self, spec: PartitionSpec) -> tuple[str, ...]:
        """Fields of the spec whose source column the current schema no longer has: Java cannot read their values.

        Void fields (V1 tables keep dropped fields so) have none: all are null.
        """
        columns = self.metadata.schema()._lazy_id_to_field  # noqa: SLF001 - the public find_field raises per miss
        with_values = (field for field in spec.fields if not isinstance(field.transform, VoidTransform))
        return tuple(field.name for field in with_values if field.source_id not in columns)

    def _schema_for(self, spec: PartitionSpec) -> Schema:
        """The newest schema that has all source columns of the spec: old specs may use dropped columns."""
        wanted = {field.source_id for field in spec.fields}
        schemas = sorted(self.metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
        for schema in (self.metadata.schema(), *schemas):
            if wanted <= set(schema._lazy_id_to_field):  # noqa: SLF001 - the public find_field raises per miss
                return schema
        return self.metadata.schema()


def head_of(metadata: TableMetadata, ref: str = MAIN) -> Snapshot | None:
    """The head of a branch; None if the branch does not exist or the table has no data."""
    return metadata.current_snapshot() if ref == MAIN else metadata.snapshot_by_name(ref)


@dataclass(frozen=True)
class KnownVersion:
    """A version of a table that was seen before.

    `checked_at`: when the catalog last named the location itself, in seconds since the epoch. `etag`: the tag of that
    answer, sent back exactly as it came; None if the catalog sends none.
    """

    metadata_location: str
    etag: str | None = None
    checked_at: float = 0.0

    def trusted_etag(self, now: float) -> str | None:
        """The tag, unless it was trusted for long enough: a tag of 32 bits can be the same for another version.

        The limit lies between half and all of `ETAG_TRUST_SECONDS`, and differs from table to table: tables that were
        first seen together are not all loaded again in one sweep.
        """
        share = 0.5 + zlib.crc32(self.metadata_location.encode()) / 2**33
        return self.etag if 0 <= now - self.checked_at < share * ETAG_TRUST_SECONDS else None


@dataclass(frozen=True)
class Unchanged:
    """A table's metadata location is the known one. `known` replaces what was known: its tag and time can be newer."""

    known: KnownVersion


LARGEST_OUTPUT: Final = 1.8
"""Spark's `max-file-size-bytes`, as a multiple of the target."""


@dataclass(frozen=True)
class FileSizes:
    """Target size and small-file bound of one table, in bytes. The ledger recounts a table when they change.

    `most`: the largest output; None: `LARGEST_OUTPUT` of the target. No count depends on it.
    """

    target: int
    small_below: int
    most: int | None = field(default=None, compare=False)

    @property
    def largest(self) -> int:
        """No output of several files is larger."""
        return int(LARGEST_OUTPUT * self.target) if self.most is None else self.most

    def is_small(self, size: int) -> bool:
        return size < self.small_below


def file_sizes(policy: PolicyValues, properties: Mapping[str, str]) -> FileSizes:
    """Target size and small-file bound: from the policy, else from the table property, else Iceberg's default.

    Raises:
        InputError: the table property is not a positive number of 64 bits, or the policy's sizes do not go with the
            target.
    """
    target = policy.target_file_size
    if target == "table":
        text = properties.get("write.target-file-size-bytes", str(DEFAULT_TARGET_FILE_SIZE))
        given = whole_number(text)
        if not given:
            raise InputError(
                f"table property write.target-file-size-bytes={text[:MOST_SHOWN]!r} must be a positive number of "
                f"bytes, at most {LARGEST:,}"
            )
        target = given
    problem = policy.unfit_for(target)
    if problem is not None:
        key, why = problem
        raise InputError(f"policy.{key}: {why} (set by policy.target_file_size or write.target-file-size-bytes)")
    least = policy.min_file_size
    return FileSizes(target, int(target * policy.min_file_size_ratio) if least is None else least, policy.max_file_size)


@dataclass
class _Opening:
    """The opening of one catalog. Threads that wait for it share its outcome: each waits for one time-out at most."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    attempts: int = 0
    error: RetryError | None = None


class Catalogs:
    """The configured catalogs, opened on first use. Thread-safe; pickled without open connections."""

    def __init__(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        self._properties = {name: dict(values) for name, values in properties.items()}
        self._open: dict[str, TableLoader] = {}
        self._opening: dict[str, _Opening] = {}

    def __reduce__(self) -> tuple[type[Catalogs], tuple[Mapping[str, Mapping[str, str]]]]:
        return Catalogs, (self._properties,)

    @property
    def names(self) -> tuple[str, ...]:
        """Catalog names in the settings' order."""
        return tuple(self._properties)

    def properties(self, name: str) -> dict[str, str]:
        """PyIceberg properties of one catalog."""
        return dict(self._properties[name])

    def catalog(self, name: str) -> Catalog:
        """The PyIceberg catalog.

        Raises:
            RetryError: it cannot be opened or does not answer.
        """
        return self._loader(name).catalog

    def _loader(self, name: str) -> TableLoader:
        found = self._open.get(name)
        if found is not None:
            return found
        opening = self._opening.setdefault(name, _Opening())  # one for each catalog: a silent one delays no other
        attempts = opening.attempts
        with opening.lock:
            if name in self._open:
                return self._open[name]
            if opening.attempts > attempts and opening.error is not None:  # failed while this thread waited
                raise RetryError(str(opening.error), reason=opening.error.reason) from opening.error
            try:
                with retried(f"catalog {name} cannot be opened", Reason.CATALOG_UNAVAILABLE):
                    self._open[name] = TableLoader(open_catalog(name, self._properties[name]))
            except RetryError as error:
                opening.error = error
                raise
            finally:
                opening.attempts += 1
            return self._open[name]

    def load(self, name: TableName, ref: str = MAIN) -> TableView:
        """The table as it is now, at the head of branch `ref`.

        Raises:
            TableMissingError: the table does not exist. OtherNameError: it has another name in the catalog.
            InputError: the branch does not exist, or `ref` is a tag.
            RetryError: the catalog or the store does not answer.
        """
        with self._loading(name) as loader:
            view = _view(name, loader.load(name.identifier), ref)
        if ref != MAIN:
            _check_branch(view.metadata, name, ref)
        return view

    def load_if_changed(self, name: TableName, known: KnownVersion | None, now: float) -> TableView | Unchanged:
        """The table as it is now, or that its version is the known one: one catalog call, and then no store read.

        `now`: seconds since the epoch. Catalogs whose answer PyIceberg does not show (`py-catalog-impl`) read the store
        all the same.

        Raises:
            TableMissingError, RetryError: as `load`.
        """
        if known is None:
            return self.load(name)
        with self._loading(name) as loader:
            found = loader.load_if_changed(name.identifier, known.metadata_location, known.trusted_etag(now))
        if isinstance(found, Loaded):
            return _view(name, found, MAIN)
        return Unchanged(known if found.by_tag else KnownVersion(known.metadata_location, found.etag, now))

    def is_polaris(self, name: str) -> bool:
        """Whether catalog `name` looks like Apache Polaris: a REST catalog under its path `/api/catalog`."""
        properties = self._properties.get(name, {})
        return properties.get("type") == "rest" and properties.get("uri", "").rstrip("/").endswith("/api/catalog")

    @contextmanager
    def _loading(self, name: TableName) -> Iterator[TableLoader]:
        if name.catalog not in self._properties:
            raise TableMissingError(f"table {name}: no catalog named {name.catalog!r} is configured")
        try:
            yield self._loader(name.catalog)
        except (NoSuchTableError, NoSuchNamespaceError):
            known = ", ".join(self._properties)
            dots = "; dots separate namespaces, a dot inside a name is not supported" if name.namespace[1:] else ""
            raise TableMissingError(f"table {name} does not exist (catalogs configured: {known}){dots}") from None
        except FirnlineError:
            raise
        except Exception as error:  # any driver's error: the caller marks the table and retries
            reason = Reason.CATALOG_UNAVAILABLE if concerns_catalog(error) else Reason.TABLE_UNREADABLE
            remedy = LOGIN_REMEDY.format(catalog=name.catalog) if refuses_login(error) else ""
            raise RetryError(f"table {name} cannot be loaded: {_message(error)}{remedy}", reason=reason) from error

    def list_tables(
        self, catalog_name: str, skipped: Callable[[Namespace, RetryError], None] | None = None
    ) -> Iterator[TableName]:
        """Every table of a catalog, nested namespaces included.

        `skipped` gets each namespace that cannot be listed, with the error; its tables are not among the found ones.
        None: such a namespace is an error.

        Raises:
            RetryError: the catalog does not answer, or a namespace cannot be listed and `skipped` is None.
        """

        def cannot_be_listed(namespace: Namespace, error: Exception) -> None:
            remedy = "allow this service to list it" if refuses(error) else "see the catalog's log"
            failure = RetryError(
                f"namespace {'.'.join((catalog_name, *namespace))} cannot be listed: {error}; {remedy}, or exclude its "
                "tables (tables.exclude)",
                reason=Reason.NAMESPACE_UNREADABLE,
            )
            if skipped is None:
                raise failure from error
            skipped(namespace, failure)

        catalog = self.catalog(catalog_name)
        with retried(f"catalog {catalog_name} cannot be listed", Reason.CATALOG_UNAVAILABLE):
            for identifier in listed_tables(catalog, cannot_be_listed):
                yield TableName(catalog_name, tuple(identifier[:-1]), identifier[-1])


def _view(name: TableName, found: Loaded, ref: str) -> TableView:
    table = found.table
    *namespace, last = table.name()  # a catalog may not distinguish capitals: one table, one name
    called = TableName(name.catalog, tuple(namespace), last)
    if called != name and str(called).casefold() == str(name).casefold():
        raise OtherNameError(name, called)
    return TableView(name, table.metadata, table.metadata_location, sharing(table.io), ref, found.etag)


def _message(error: Exception) -> str:
    """The error in one sentence, also for metadata that PyIceberg cannot parse (pydantic prints pages)."""
    unknown = error.__cause__
    if not isinstance(unknown, ValidationError):
        return str(error)
    first = unknown.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return (
        f"PyIceberg cannot parse its metadata: {first['msg']} (at {place}); the table is skipped until its metadata "
        "changes or PyIceberg is upgraded"
    )


def _check_branch(metadata: TableMetadata, name: TableName, ref: str) -> None:
    found = metadata.refs.get(ref)
    branches = ", ".join(sorted(known for known, each in metadata.refs.items() if each.snapshot_ref_type == "branch"))
    if found is None:
        raise InputError(
            f"table {name} has no branch {ref!r}; its branches: {branches or 'none'}", reason=Reason.BAD_BRANCH
        )
    if found.snapshot_ref_type != "branch":
        raise InputError(
            f"{ref!r} of table {name} is a tag, and tags are never rewritten; its branches: {branches}",
            reason=Reason.BAD_BRANCH,
        )
