"""Translate Kafka options (dotted names) to options of Spark and arguments of kafka-python; make clients."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic, OffsetSpec
from kafka.errors import KafkaError, RetriableError, TopicAlreadyExistsError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from compactor.errors import FirnlineError, InputError, RetryError
from compactor.reasons import Reason
from compactor.redaction import hide
from compactor.settings.environment import variable_of
from compactor.settings.kafka import INTERNAL, KafkaSettings
from compactor.settings.kafka_options import missing_login
from compactor.settings.section import KeyProblemError
from compactor.whole_numbers import whole_number
from streaming.commit_events.decoder import MAX_EVENT_BYTES

LOG = logging.getLogger("firnline")
Client = TypeVar("Client", KafkaAdminClient, KafkaConsumer, KafkaProducer)
# kafka-python uses snake_case names. These differ in more than spelling.
PYTHON_NAMES = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
FILES = ("ssl.truststore.location", "ssl.keystore.location", "ssl.key.location")
NOT_ALLOWED = 29  # error code of the broker
SEND_SECONDS = 30
BOOTSTRAP_MS = 10_000  # instead of kafka-python's 30 s for a missing broker; `bootstrap.timeout.ms` overrides it
POLL_RECORDS = 8
"""Records that a poll of Spark's consumer returns; Kafka's default is 500. Each can have a megabyte or more, and the
consumer of every partition keeps the rest of its last poll for minutes."""
FETCH_WAIT_MS = 5
"""How long the broker holds a fetch without data; Kafka's default is 500. Spark reads only offsets that exist, so only
fetches that were sent too early wait, and with them each partition of a batch: 0.1 s each by default."""
PRODUCER = {"linger_ms": 5, "max_block_ms": 15_000, "max_request_size": MAX_EVENT_BYTES + 64 * 1024}
"""Arguments of producers; `kafka.options` override them. The largest event fits, with key and headers; whether the
broker takes it, it says itself."""
FIXED = {"acks": "all", "enable_idempotence": False}
"""Arguments that no option overrides. All brokers have what is answered as sent. An idempotent producer of kafka-python
fails for ever after one record that the broker refuses (too large, not allowed); a repeated event does no harm."""
LETTER_COMPRESSION = "zstd"
LETTER_BLOCK_MS = "15000"
"""Instead of a minute: commit events wait for the dead letters of their batch."""
JAVA_ONLY = (
    "sasl.jaas.config", "isolation.level", "group.id", "auto.offset.reset", "ssl.truststore.type", "ssl.keystore.type",
)  # fmt: skip
PYTHON_ONLY = ("ssl.key.location", "sasl.username", "sasl.password")
"""Java reads the key from the key store, and user and password from a JAAS configuration."""
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def source_options(kafka: KafkaSettings, most_events: int) -> dict[str, str]:
    """Options of Spark's Kafka source, for batches of at most `most_events`.

    Control topics of sinks are transactional: read only committed records.

    With a list of topics, a missing topic ends the query. A pattern finds a topic in the first batch after its creation
    and reads it from its beginning, but lists all topics of the cluster. So use a pattern only with topics that other
    systems create. Checkpoints store offsets by topic in both cases.

    Without a checkpoint a query starts at the end: the sweep finds earlier commits. A topic that appears later is read
    from its beginning.
    """
    alone = kafka.named_topics == (kafka.commit_topic,) and not kafka.patterns
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": isolation_of(kafka),
        **({"subscribe": kafka.commit_topic} if alone else {"subscribePattern": _pattern(kafka)}),
        "startingOffsets": "latest",
        "failOnDataLoss": "false",  # the sweep finds commits whose events retention has removed
        "includeHeaders": "true",
        "kafka.max.poll.records": str(POLL_RECORDS),
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
        "maxOffsetsPerTrigger": str(most_events),
        **{f"kafka.{key}": value for key, value in java_options(kafka).items()},
    }


def isolation_of(kafka: KafkaSettings) -> str:
    """How the stream reads: by default what aborted transactions wrote is left out, and open ones are waited for."""
    return kafka.options.get("isolation.level", "read_committed")


def _pattern(kafka: KafkaSettings) -> str:
    """One regular expression for all topics that are read; as `KafkaSettings.reads` says."""
    read = [*map(re.escape, kafka.named_topics), *(f"(?!{INTERNAL})(?:{each})" for each in kafka.patterns)]
    return f"^(?!{re.escape(kafka.dead_letter_topic)}$)(?:{'|'.join(f'(?:{each})' for each in read)})$"


def java_options(kafka: KafkaSettings) -> dict[str, str]:
    """`kafka.options` for Java's clients. User and password become the JAAS configuration that Java wants instead."""
    options = {key: value for key, value in kafka.options.items() if key not in PYTHON_ONLY}
    module = LOGIN_MODULES.get(kafka.options.get("sasl.mechanism", ""))
    if module and "sasl.username" in kafka.options and "sasl.jaas.config" not in options:
        user, password = (_quoted(kafka.options.get(f"sasl.{key}", "")) for key in ("username", "password"))
        options["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return options


def _quoted(value: str) -> str:
    """A string of a JAAS configuration."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sink_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka sink for dead letters. They repeat the events, so they are compressed."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.compression.type": LETTER_COMPRESSION,
        "kafka.max.block.ms": LETTER_BLOCK_MS,
        "kafka.delivery.timeout.ms": "20000",  # no bad event holds up the good ones for minutes
        "kafka.request.timeout.ms": "10000",
        "topic": kafka.dead_letter_topic,
        **{f"kafka.{key}": value for key, value in java_options(kafka).items()},
    }


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections of a client of kafka-python that keep what the brokers answered while it starts.

    kafka-python only logs it, and asks again until its time is over, which for a wrong password is no use.
    """

    starts = True
    failure: Exception | None = None

    def get_connection(self, node_id: Any, *arguments: Any, **options: Any) -> Any:
        connection = super().get_connection(node_id, *arguments, **options)
        if self.starts and self.cluster.is_bootstrap(node_id):
            connection.init_future.add_errback(self._failed)
        return connection

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        """Before each attempt to connect."""
        if self.starts and self.failure is not None and is_refusal(self.failure):
            raise self.failure
        super().maybe_raise_auth_failure(node_id)

    def _failed(self, error: Exception) -> None:
        if self.failure is None or not is_refusal(self.failure):
            self.failure = error


def is_refusal(error: BaseException) -> bool:
    """Whether another attempt with the same options would fail as well."""
    if isinstance(error.__context__, ssl.SSLCertVerificationError):  # kafka-python reports it as a lost connection
        return True
    return not isinstance(error, (RetriableError, OSError)) or isinstance(error, ssl.SSLError)


def make_client(kind: type[Client], *topics: str, **arguments: Any) -> Client:
    """A client of kafka-python. One that reaches no broker is closed.

    Its constructor starts a thread before it asks the broker; if that fails, only its connections can end the thread.

    Raises:
        Exception: of the constructor; its cause is what a broker answered last.
    """
    made: list[tuple[KafkaNetClient, _Connections]] = []

    def connections(**options: Any) -> KafkaNetClient:
        net = NetworkSelector(**options)
        manager = _Connections(net, **options)
        made.append((KafkaNetClient(net=net, manager=manager), manager))
        return made[-1][0]

    try:
        client = kind(*topics, **arguments, kafka_client=connections)
    except Exception as error:
        for each, _ in made:
            each.close()
        raise error from next((manager.failure for _, manager in made if manager.failure is not error), None)
    for _, manager in made:
        manager.starts = False
    return client


def admin_client(kafka: KafkaSettings, **arguments: Any) -> KafkaAdminClient:
    """A client for topics, groups and the cluster; `arguments` take precedence over the settings.

    Raises:
        KafkaError: no broker answers.
    """
    return make_client(KafkaAdminClient, **{**client_arguments(kafka, KafkaAdminClient), **arguments})


def consumer_client(kafka: KafkaSettings, *topics: str, **arguments: Any) -> KafkaConsumer:
    """A consumer; `arguments` take precedence over the settings.

    Raises:
        KafkaError: no broker answers.
    """
    return make_client(KafkaConsumer, *topics, **{**client_arguments(kafka, KafkaConsumer), **arguments})


def producer(kafka: KafkaSettings) -> KafkaProducer:
    """Make a producer for events.

    Raises:
        RetryError: no broker answers.
    """
    try:
        return make_client(KafkaProducer, **{**PRODUCER, **client_arguments(kafka, KafkaProducer), **FIXED})
    except Exception as error:
        raise no_broker(kafka, error) from error


def publish(kafka: KafkaSettings, key: bytes, value: bytes, *, what: str) -> tuple[TopicPartition, int]:
    """Write one record to the commit topic, and wait until the brokers have it: its place.

    `what`: the record's name in the error.

    Raises:
        RetryError: no broker answers, or the record was not written.
    """
    with closing(producer(kafka)) as client:
        try:
            sent = client.send(kafka.commit_topic, key=key, value=value).get(timeout=SEND_SECONDS)
        except Exception as error:
            raise RetryError(f"cannot send {what} to topic {kafka.commit_topic}: {error}") from error
    return TopicPartition(sent.topic, sent.partition), sent.offset


def waits_for_transaction(kafka: KafkaSettings, place: TopicPartition, offset: int) -> bool:
    """Whether a record that was written cannot be read yet. False if the broker does not tell.

    A record in an open transaction, or behind one, waits for its end.
    """
    try:
        with closing(admin_client(kafka)) as client:
            found = client.list_partition_offsets({place: OffsetSpec.LATEST}, isolation_of(kafka))
    except KafkaError as error:
        LOG.debug("the end of %s is not known: %s", place, error)
        return False
    return bool(found[place].offset <= offset)


def ensure_topics(kafka: KafkaSettings, *, create: bool, hook_topics: Iterable[str] = ()) -> None:
    """Check that the topics exist; create missing ones if `create` allows it.

    Never creates topics of other systems: those do, and firnline then reads them.

    Raises:
        RetryError: no broker answers.
        InputError: a topic is missing and cannot be created, or may not be seen; the message names the key.
    """
    try:
        admin = admin_client(kafka)
        existing = set(admin.list_topics())
    except Exception as error:
        raise no_broker(kafka, error) from error
    wanted = {"kafka.commit_topic": kafka.commit_topic}
    if create:
        wanted["kafka.dead_letter_topic"] = kafka.dead_letter_topic
        wanted |= {f"hooks: topic {topic}": topic for topic in hook_topics}
    try:
        for topic in kafka.named_topics:
            if topic not in existing and topic != kafka.commit_topic:
                _wait_for(admin, topic)
        for key, topic in wanted.items():
            if topic not in existing:
                _create(admin, key, topic, create=create)
    except FirnlineError:
        raise
    except Exception as error:
        raise no_broker(kafka, error) from error
    finally:
        admin.close()


def _wait_for(admin: KafkaAdminClient, topic: str) -> None:
    """Log that a topic of another system is missing. Raise if this principal may not see it: that would never end."""
    (found,) = admin.describe_topics([topic])
    if found["error_code"] == NOT_ALLOWED:
        raise InputError(
            f"kafka.commit_topics: the broker does not allow this principal to DESCRIBE topic "
            f"{topic!r}; allow READ on it",
            reason=Reason.NOT_ALLOWED,
        )
    LOG.warning("kafka: topic %s does not exist yet; firnline reads it from its beginning once it exists", topic)


def _create(admin: KafkaAdminClient, key: str, topic: str, *, create: bool) -> None:
    cause = "observe mode creates nothing"
    if create:
        try:
            admin.create_topics([NewTopic(topic)], wait_for_metadata=True)
        except TopicAlreadyExistsError:
            return  # another service that starts at the same moment was faster
        except Exception as error:  # noqa: BLE001 - every failure has the same remedy
            cause = str(error)
        else:
            return
    raise InputError(f"{key}: topic {topic!r} does not exist ({cause}); create it first", reason=Reason.NO_TOPIC)


def client_arguments(
    kafka: KafkaSettings, client: type[KafkaAdminClient | KafkaConsumer | KafkaProducer]
) -> dict[str, Any]:
    """`kafka.options` as arguments of a client of kafka-python, which raises on options of the other clients.

    Raises:
        KeyProblemError: a password or a file of certificates is missing.
    """
    _check_at_hand(kafka.options)
    translated = {
        PYTHON_NAMES.get(key, key.replace(".", "_")): value
        for key, value in kafka.options.items()
        if key not in JAVA_ONLY
    }
    known = client.DEFAULT_CONFIG
    own = {key: _typed(value, known[key]) for key, value in translated.items() if key in known}
    return {"bootstrap_servers": kafka.bootstrap_servers.split(","), "bootstrap_timeout_ms": BOOTSTRAP_MS, **own}


def _check_at_hand(options: Mapping[str, str]) -> None:
    """What is not in the settings file: a password, files of certificates. kafka-python names neither."""
    missing = missing_login(options)
    if missing:
        variables = " and ".join(str(variable_of(("kafka", "options", name))) for name in missing)
        raise KeyProblemError(
            ("kafka", "options", "sasl.mechanism"),
            f"{options['sasl.mechanism']} needs {' and '.join(missing)}; set {variables}",
        )
    for name in FILES:
        try:
            if name in options:
                Path(options[name]).open("rb").close()
        except OSError as error:
            raise KeyProblemError(
                ("kafka", "options", name), f"{options[name]} cannot be read: {error.strerror}; name a PEM file"
            ) from error


def _typed(value: str, default: object) -> str | int | bool:
    """The text of an option as a value like its default."""
    if isinstance(default, bool):
        return value.strip().lower() == "true"
    number = whole_number(value) if isinstance(default, int) else None
    return value if number is None else number


def no_broker(kafka: KafkaSettings, error: Exception) -> FirnlineError:
    """The error that says why no client can be made: no broker answers, or a broker's answer, or a missing file."""
    cause = error if isinstance(error, KeyProblemError) else error.__cause__ or error
    if isinstance(cause, KeyProblemError):
        return InputError(str(cause), reason=Reason.BAD_SETTING)
    secured = any(key.startswith(("sasl.", "ssl.", "security.")) for key in kafka.options)
    also = ", and security.protocol, mechanism, user, password and certificates in kafka.options" if secured else ""
    what = "Kafka does not let this client in" if is_refusal(cause) else "no Kafka broker answers"
    text, kind = str(cause), type(cause).__name__  # errors of kafka-python name their class themselves
    why = hide(text if kind in text else f"{kind}: {text}" if text else kind)
    return RetryError(
        f"{what} at {kafka.bootstrap_servers}: {why}; check kafka.bootstrap_servers{also}",
        reason=Reason.KAFKA_UNAVAILABLE,
    )
