"""`firnline check-config --connect`: check that all systems in the settings answer and grant the needed permissions.

Each check performs an operation of the service once and cleans up: it writes, reads and deletes a probe object where
outputs are written, and reads a few records of the topics. For permission to write to Kafka it only queries the broker,
because a record cannot be deleted.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import JavaGateway
from pyiceberg.catalog import Catalog

from compactor.errors import FirnlineError, InputError
from compactor.history.table import HistoryTable
from compactor.iceberg.open_catalog import other_names
from compactor.iceberg.proxies import with_store_proxy
from compactor.iceberg.tables import Catalogs, TableView
from compactor.locations import plain_path
from compactor.locks.flink_locks import opened
from compactor.reasons import Reason
from compactor.redaction import hide
from compactor.settings.hooks import HookSettings
from compactor.settings.http import HttpSettings
from compactor.settings.kafka import KafkaSettings
from compactor.settings.locks import LockSettings
from compactor.settings.tree import Settings
from compactor.spark.catalogs import spark_catalog_conf
from compactor.spark.java import jars_folder, java_home
from compactor.spark.java_client import JavaClient, java_gateway
from compactor.spark.java_table import data_folder
from compactor.spark.session import jar_sets
from compactor.storage.byte_store import ByteStore
from compactor.storage.file_io_store import FileIOByteStore
from compactor.storage.opening import byte_store_for
from compactor.storage.s3_store import S3ByteStore
from compactor.table_names import TableName
from metrics.http.http_access import Certificate
from streaming.hooks.kinds import make_hook
from streaming.hooks.refresh_hooks import hook_name
from streaming.kafka.access import KafkaAccess
from streaming.kafka.commit_topic import ForeignTopicError, sample_topic
from streaming.ledger.watched_tables import raise_unless_excluded
from streaming.wiring import history_table, in_flight_records

PROBE = b"written by firnline check-config --connect; it may be deleted"
TOPICS_NAMED = 10
TABLES_LOOKED_AT = 500  # in search of one that may be rewritten; a catalog can have very many
REFUSED = re.compile(
    "access.?denied|forbidden|unauthori[sz]ed|permission denied|not authori[sz]ed|authori[sz]ation ?failed|"
    "authentication ?failed|InvalidAccessKeyId|SignatureDoesNotMatch",
    re.IGNORECASE,
)
LOCK_REMEDY = "check locks[].database or locks[].zookeeper, the password, and that the driver is installed"
HISTORY_REMEDY = "set history.table to a new table or to an existing history, and allow writing to it"
ROLLBACK_FLAG = "polaris.config.rollback.compaction.on-conflicts.enabled"
ROLLBACK_FEATURE = 'polaris.features."ICEBERG_ROLLBACK_COMPACTION_ON_CONFLICTS"=true'
"""Of the server. Only this counts in Apache Polaris up to 1.7, not the catalog's property; no client can read it."""
ROLLBACK_REMEDY = (
    f"in Apache Polaris, set {ROLLBACK_FEATURE} of the server and the property {ROLLBACK_FLAG}=true of the catalog; or "
    "commit.polaris_rollback: never"
)
CHECK: Final = "; check "  # before the remedy that an error of firnline brings
OBSERVED = "not tried: `run --observe` writes nothing"


class Status(Enum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One check. `remedy`: what to do after a failure. `again`: the check may pass later without a change."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    again: bool = False

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.value}


class NothingToTryError(Exception):
    """The check does not apply; the text says why."""


def check_connections(settings: Settings, *, observe: bool = False) -> Iterator[Check]:
    """Run all checks, one after the other; a failure does not end them."""
    yield _tried("java", "install Java 17 or 21, then run `firnline jars`", _java, settings)
    if settings.http.tls_certificate:
        yield _tried("http certificate", "correct http.tls_certificate and http.tls_key", _certificate, settings.http)
    catalogs = Catalogs(settings.catalogs)
    found = dict[str, TableView | None]()
    for name in catalogs.names:
        yield from _check_catalog(settings, catalogs, name, found, observe=observe)
    yield from _check_java(settings, found, observe=observe)
    history = history_table(settings, catalogs)
    if history is not None:
        yield _tried(f"history table {history.name}", HISTORY_REMEDY, _history, catalogs, history, observe)
    for lock in settings.locks:
        yield _tried(f"Flink's lock {lock.lock_id}", LOCK_REMEDY, _lock, lock)
    for number, hook in enumerate(settings.hooks):
        if hook.kind == "trino":
            name = hook_name(number, hook)
            remedy = f"repair hooks[{number}] or what it needs on this host"
            yield _tried(f"hook {name}", remedy, _hook, hook, settings.kafka, observe)
    yield _tried("in-flight folder", "make state.checkpoint writable", _in_flight, settings, observe)
    yield from _check_kafka(settings, observe=observe)


def _tried(name: str, remedy: str, attempt: Callable[..., str], *of: Any) -> Check:
    """Call `attempt`, which performs the checked operation and describes the result; it raises if that fails."""
    try:
        return Check(name, Status.OK, attempt(*of))
    except NothingToTryError as nothing:
        return Check(name, Status.SKIPPED, str(nothing))
    except ForeignTopicError as foreign:
        return Check(name, Status.FAILED, f"it {foreign.refusal.why}", foreign.refusal.remedy)
    except Exception as error:  # noqa: BLE001 - any error of a client is the result of the check
        detail = str(error) if isinstance(error, FirnlineError) else hide(f"{type(error).__name__}: {error}")
        again = not _needs_a_change(error, detail)
        detail = " ".join(detail.split())
        what, _, own = detail.rpartition(CHECK)
        if what and remedy.startswith(f"check {own.split()[0]}"):  # the same remedy, with fewer words
            detail = what
        return Check(name, Status.FAILED, detail, remedy, again=again)


def _needs_a_change(error: Exception, detail: str) -> bool:
    """Whether a retry cannot help: a wrong setting, or refused credentials."""
    return isinstance(error, (InputError, PermissionError)) or REFUSED.search(detail) is not None


def _java(settings: Settings) -> str:
    home = java_home()
    missing = [jar_set.name for jar_set in jar_sets(settings) if not jars_folder(jar_set).is_dir()]
    fetched = f"jars {', '.join(missing)} will be fetched at the first start" if missing else "jars are present"
    return f"{home}; {fetched}"


def _check_catalog(
    settings: Settings, catalogs: Catalogs, name: str, tables: dict[str, TableView | None], *, observe: bool
) -> Iterator[Check]:
    """The clients of Python. Puts a table of a catalog that answers into `tables`, None where none is found."""
    found: list[TableView] = []

    def open_it() -> str:
        spark_catalog_conf(name, catalogs.properties(name))
        return _namespaces(name, catalogs.catalog(name))

    def read() -> str:
        table = _some_table(settings, catalogs, name)
        if table is None:
            raise NothingToTryError("the catalog has no table that is rewritten or observed; see tables.*")
        view = catalogs.load(table)
        with view.io.new_input(view.metadata_location).open() as stream:
            size = len(stream.read())
        found.append(view)
        seen = f"{table}: {size:,} bytes of metadata, {len(view.manifests())} manifests"
        acts = settings.tables.acts_on(table, view.properties)
        return seen if acts else f"{seen}; found no table that may be rewritten, see tables.include"

    def write() -> str:
        if observe:
            raise NothingToTryError(OBSERVED)
        if found:
            return _written(data_folder(found[0]), found[0].io.properties)
        return _written(_warehouse(catalogs.properties(name)), with_store_proxy(catalogs.properties(name)))

    opened = _tried(f"catalog {name}", f"check catalogs.{name}: type, uri and credentials", open_it)
    yield opened
    if opened.status is Status.OK:
        if settings.commit.rolls_back(is_polaris=catalogs.is_polaris(name), row_lineage=False):
            yield _tried(f"rollback of {name}", ROLLBACK_REMEDY, _rolls_back, catalogs.catalog(name).properties)
        remedy = f"check the store's properties in catalogs.{name} and the permissions of its credentials"
        yield _tried(f"store of {name}, read", remedy, read)
        remedy += "; `run --observe` does not need it (check with --observe)"
        yield _tried(f"store of {name}, write", remedy, write)
        tables[name] = found[0] if found else None


def _warehouse(properties: Mapping[str, str]) -> str:
    warehouse = properties.get("warehouse", "")
    if "://" not in warehouse and not warehouse.startswith(("/", "file:")):
        raise NothingToTryError("no table whose folder could be tried, and the warehouse is not a location")
    return warehouse


def _check_java(settings: Settings, found: Mapping[str, TableView | None], *, observe: bool) -> Iterator[Check]:
    """Iceberg's Java client, which commits, in one JVM for all catalogs that answer. `found`: a table of each."""
    with ExitStack() as running:
        started: list[tuple[JavaGateway, Mapping[str, str]]] = []

        def tried(name: str, view: TableView | None) -> str:
            if "spark.jars.packages" in settings.spark.conf:
                raise NothingToTryError("Spark downloads the jars when it starts (spark.jars.packages)")
            if not started:
                started.append(running.enter_context(java_gateway(settings)))
            gateway, conf = started[0]
            return _through_java(JavaClient(gateway, name, conf), settings.catalogs[name], view, observe=observe)

        for name, view in found.items():
            remedy = f"check catalogs.{name} and the environment for Java, which commits (region, keys, proxy)"
            yield _tried(f"Java client of {name}", remedy, tried, name, view)


def _through_java(java: JavaClient, properties: Mapping[str, str], view: TableView | None, *, observe: bool) -> str:
    if view is None and observe:
        raise NothingToTryError("the catalog has no table that is rewritten or observed; see tables.*")
    io = java.store_io() if view is None else java.table_io(view)
    loaded = "" if view is None else f"loaded {view.name}; "
    if view is not None and observe:
        return f"{loaded}read {len(java.read(io, view.metadata_location)):,} bytes of metadata"
    location = _probe_in(_warehouse(properties) if view is None else data_folder(view))
    with _folders_kept(location):
        java.write(io, location, PROBE)
        back = java.read(io, location)
        java.delete(io, location)
    if back != PROBE:
        raise InputError(f"{location} was read back with different bytes than were written")
    return f"{loaded}wrote, read and deleted {location}"


def _probe_in(folder: str) -> str:
    return f"{folder.rstrip('/')}/.firnline-probe-{uuid.uuid4().hex}"


def _namespaces(name: str, catalog: Catalog) -> str:
    """An empty catalog may be one that the writers give another name, in a database that holds several."""
    found = catalog.list_namespaces()
    others = [] if found else other_names(catalog)
    if others:
        raise InputError(
            f"the database has no namespaces of a catalog named {name}, but of {_listed(others)}: the key below "
            "`catalogs` must be the name that the writers give their catalog",
            reason=Reason.BAD_SETTING,
        )
    return f"{len(found)} namespaces"


def _rolls_back(properties: Mapping[str, str]) -> str:
    """Apache Polaris sends the properties of its catalog with the REST catalog's configuration."""
    given = properties.get(ROLLBACK_FLAG)
    if given is None:
        raise NothingToTryError(
            f"the catalog has no property {ROLLBACK_FLAG}, and Apache Polaris does not tell whether its server has "
            f"{ROLLBACK_FEATURE}"
        )
    if given.strip().lower() != "true":
        raise InputError(f"{ROLLBACK_FLAG} is {given}: a writer that conflicts with a rewrite fails")
    return (
        "the catalog asks that a rewrite is rolled back rather than a conflicting writer fails. Apache Polaris up to "
        f"1.7 does so only if its server has {ROLLBACK_FEATURE}, which it does not tell"
    )


def _some_table(settings: Settings, catalogs: Catalogs, name: str) -> TableName | None:
    """A table that may be rewritten, else one that is observed."""
    listed = catalogs.list_tables(name, partial(raise_unless_excluded, settings.tables, name))
    watched = (table for table in listed if not settings.tables.ignores(table))
    first = None
    for table in islice(watched, TABLES_LOOKED_AT):
        first = first or table
        if settings.tables.acts_on(table, {}):
            return table
    return first


def _written(folder: str, properties: Mapping[str, str]) -> str:
    """Write an object as outputs are written, read it and delete it. On S3, Arrow writes and reads it too: it writes
    the history.
    """
    location = _probe_in(folder)
    store = byte_store_for(location, properties)
    with _folders_kept(location):
        if isinstance(store, S3ByteStore):
            arrow = FileIOByteStore(dict(properties))
            _write(arrow, location)
            arrow.read(location, 0, len(PROBE))
            store.delete(location)
        _write(store, location)
        back = store.read(location, 0, len(PROBE))
        try:
            store.delete(location)
        except Exception as error:
            raise InputError(f"{location} was written but cannot be deleted: {error}") from error
    if back != PROBE:
        raise InputError(f"{location} was read back with different bytes than were written")
    return f"wrote, read and deleted {location}"


def _write(store: ByteStore, location: str) -> None:
    output = store.create(location)
    try:
        output.write(PROBE)
        output.finish()
    except Exception:
        with suppress(Exception):
            output.abort()
        raise


@contextmanager
def _folders_kept(location: str) -> Iterator[None]:
    """Remove empty local folders that were created inside the block."""
    path = Path(plain_path(location))
    local = location.startswith(("/", "file:"))
    missing = [parent for parent in path.parents if not parent.exists()] if local else []
    try:
        yield
    finally:
        with suppress(OSError):
            for parent in missing:
                parent.rmdir()


def _history(catalogs: Catalogs, history: HistoryTable, observe: bool) -> str:
    if not history.exists():
        return "it does not exist yet; the service will create it"
    if observe:
        return "it exists"
    view = catalogs.load(history.name)
    return f"it exists; {_written(data_folder(view), view.io.properties)}"


def _in_flight(settings: Settings, observe: bool) -> str:
    if observe:
        raise NothingToTryError(OBSERVED)
    records = in_flight_records(settings.state.checkpoint)
    with _folders_kept(f"{records.location}/probe"):
        records.probe()
    return f"wrote, read and deleted a file in {records.location}"


def _lock(settings: LockSettings) -> str:
    held = opened(settings).held()
    return "it is held: nothing is written to its tables now" if held else "it can be read; nobody holds it"


def _certificate(http: HttpSettings) -> str:
    Certificate(http.tls_certificate, http.tls_key)
    return f"{http.tls_certificate} can be used"


def _hook(hook: HookSettings, kafka: KafkaSettings, observe: bool) -> str:
    """Its client is installed, and its password is there. Its engine is not asked: each statement changes something."""
    if observe:
        raise NothingToTryError("not called: `run --observe` commits nothing")
    make_hook(hook, kafka)
    if hook.password_env and not os.environ.get(hook.password_env):
        raise InputError(
            f"the environment variable {hook.password_env}, which hooks[].password_env names, is not set",
            reason=Reason.BAD_SETTING,
        )
    password = f"its password is in {hook.password_env}" if hook.password_env else "it has no password"
    return f"its client is installed, and {password}; its engine is not asked"


def _check_kafka(settings: Settings, *, observe: bool) -> Iterator[Check]:
    kafka = settings.kafka
    access: list[KafkaAccess] = []

    def connect() -> str:
        if not kafka.bootstrap_servers:
            raise NothingToTryError("kafka.bootstrap_servers is not set; only `run`, `request` and `emit` need it")
        access.append(KafkaAccess(kafka))
        return f"{kafka.bootstrap_servers} answers"

    yield _tried("kafka", "check kafka.bootstrap_servers and kafka.options (security.protocol, sasl.*)", connect)
    if not access:
        return
    written = {f"dead-letter topic {kafka.dead_letter_topic}": kafka.dead_letter_topic}
    written |= {f"hook topic {hook.topic}": hook.topic for hook in settings.hooks if hook.kind == "kafka"}
    try:
        needed = ("READ",) if observe else ("READ", "WRITE")  # `request` and events by HTTP
        remedy = _topic_remedy(kafka.commit_topic, needed)
        yield _tried(f"commit topic {kafka.commit_topic}", remedy, _commit_topic, access[0], kafka, needed, observe)
        for topic in kafka.named_topics[1:]:
            remedy = f"allow this principal to READ topic {topic}"
            yield _tried(f"events topic {topic}", remedy, _read_topic, access[0], kafka, topic)
        for pattern in kafka.patterns:
            remedy = f"allow this principal to DESCRIBE and READ the topics that match {pattern}"
            yield _tried(f"events topics {pattern}", remedy, _read_topics, access[0], kafka, pattern)
        for name, topic in written.items():
            yield _tried(name, _topic_remedy(topic, ("WRITE",)), _written_topic, access[0], topic, observe)
    finally:
        access[0].close()


def _commit_topic(access: KafkaAccess, kafka: KafkaSettings, operations: tuple[str, ...], observe: bool) -> str:
    topic = kafka.commit_topic
    if not access.topic(topic).exists:
        return _creatable(access, topic, observe=observe)
    allowed, sample = _allowed(access, topic, operations), sample_topic(kafka, topic)
    seen = f"{allowed}; {sample.text}"
    if sample.refusal is None:
        return seen
    if observe:  # does not write to the topic
        return f"{seen}; `run` without --observe refuses this topic: it {sample.refusal.why}"
    raise ForeignTopicError(topic, sample.refusal)


def _read_topic(access: KafkaAccess, kafka: KafkaSettings, topic: str) -> str:
    if not access.topic(topic).exists:
        return "it does not exist yet; the service waits for it"
    return f"{_allowed(access, topic, ('READ',))}; {sample_topic(kafka, topic).text}"


def _read_topics(access: KafkaAccess, kafka: KafkaSettings, pattern: str) -> str:
    matching = [topic for topic in access.names() if re.fullmatch(pattern, topic) and kafka.reads(topic)]
    if not matching:
        return "no topic matches that this principal may DESCRIBE; the service waits for one"
    refused = [topic for topic in matching if "READ" not in access.topic(topic).operations]
    if refused:
        raise InputError(f"the broker does not allow this principal to READ {_listed(refused)}")
    return f"READ allowed on {_listed(matching)}"


def _listed(topics: list[str]) -> str:
    more = f" and {len(topics) - TOPICS_NAMED} more" if len(topics) > TOPICS_NAMED else ""
    return f"{', '.join(topics[:TOPICS_NAMED])}{more}"


def _written_topic(access: KafkaAccess, topic: str, observe: bool) -> str:
    if observe:
        raise NothingToTryError(OBSERVED)
    exists = access.topic(topic).exists
    return _allowed(access, topic, ("WRITE",)) if exists else _creatable(access, topic, observe=False)


def _creatable(access: KafkaAccess, topic: str, *, observe: bool) -> str:
    if observe:
        raise InputError("it does not exist, and observe mode does not create it")
    access.check_creation(topic)
    return "it does not exist yet; the service will create it (it is allowed to)"


def _allowed(access: KafkaAccess, topic: str, operations: tuple[str, ...]) -> str:
    found = access.topic(topic)
    missing = [operation for operation in operations if operation not in found.operations]
    if missing:
        raise InputError(f"the broker does not allow this principal to {' and '.join(missing)}")
    return f"{found.partitions} partitions, {' and '.join(operations)} allowed"


def _topic_remedy(topic: str, operations: tuple[str, ...]) -> str:
    return f"create topic {topic} if it is missing, and allow this principal to {' and '.join(operations)}"
