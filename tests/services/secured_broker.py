"""Kafka brokers that want TLS and a login: a password (SASL over PLAIN or SCRAM), or a certificate of the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka.admin import KafkaAdminClient
from kafka.admin._users import ScramMechanism, UserScramCredentialUpsertion

from deploy.demo.broker import embedded_broker
from tests.services.certificates import Certificates
from tests.services.quick_java import quick_java

ADMIN = "admin-of-the-tests"
SECURED = """\
listener.security.protocol.map=PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="admin" password="{admin}" user_admin="{admin}" user_{user}={password};
listener.name.plaintext.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
MUTUAL = """\
listener.security.protocol.map=PLAINTEXT:SSL,CONTROLLER:PLAINTEXT
ssl.client.auth=required
"""
STORES = """\
ssl.keystore.type=PEM
ssl.keystore.location={both}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
"""


@dataclass(frozen=True)
class SecuredBroker:
    """Bootstrap address, user and password, and the authority to trust."""

    address: str
    user: str
    password: str
    certificates: Certificates

    def options(self, mechanism: str, password: str | None = None) -> dict[str, str]:
        """`kafka.options` of a client."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password if password is None else password,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
        }


@dataclass(frozen=True)
class MutualBroker:
    """Bootstrap address, and the authority that the broker and its clients trust."""

    address: str
    certificates: Certificates

    def options(self, client: Path | None = None) -> dict[str, str]:
        """`kafka.options` of a client with its own certificate, or the one in the file `client`."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(client or self.certificates.client),
        }


def _stores(certificates: Certificates) -> str:
    return STORES.format(both=certificates.both, authority=certificates.authority)


def _in_properties(password: str) -> str:
    """A string of a JAAS configuration, in a file of properties."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'.replace("\\", "\\\\")


def _allow_scram(admin: KafkaAdminClient, user: str, password: str) -> None:
    upsertion = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password=password)
    answered = admin.alter_user_scram_credentials([upsertion])
    assert answered == {user: None}, answered


@contextmanager
def secured_broker(folder: Path, certificates: Certificates, user: str, password: str) -> Iterator[SecuredBroker]:
    """Run the broker; the user may log in with both mechanisms."""
    more = SECURED.format(admin=ADMIN, user=user, password=_in_properties(password)) + _stores(certificates)
    with quick_java(embedded_broker(folder, more)) as address:
        admin = KafkaAdminClient(
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_plain_username="admin",
            sasl_plain_password=ADMIN,
            ssl_cafile=str(certificates.authority),
        )
        try:
            _allow_scram(admin, user, password)
        finally:
            admin.close()
        yield SecuredBroker(address, user, password, certificates)


@contextmanager
def mutual_broker(folder: Path, certificates: Certificates) -> Iterator[MutualBroker]:
    """Run a broker that admits clients with a certificate of the authority."""
    with quick_java(embedded_broker(folder, MUTUAL + _stores(certificates))) as address:
        yield MutualBroker(address, certificates)
