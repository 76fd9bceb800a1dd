"""Certificates for tests: an authority of their own, in the formats of Python and Java."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from compactor.spark.java import java_home

STORE_PASSWORD = "changeit"  # noqa: S105 - protects nothing; Java reads a trust store of type JKS without it


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority's certificate; a server's certificate and key; both in one file, as Kafka wants them; a
    client's key and certificate in one file.
    """

    authority: Path
    certificate: Path
    key: Path
    both: Path
    client: Path

    def trust_store(self) -> Path:
        """The authority's certificate as a trust store of Java."""
        store = self.authority.with_suffix(".jks")
        if not store.exists():
            subprocess.run(
                [
                    *(str(java_home() / "bin" / "keytool"), "-importcert", "-noprompt", "-alias", "tests"),
                    *("-file", str(self.authority), "-keystore", str(store), "-storetype", "JKS"),
                    *("-storepass", STORE_PASSWORD),
                ],
                check=True,
                capture_output=True,
            )
        return store


def issue(folder: Path, *names: str) -> Certificates:
    """A new authority and a certificate of it for a server with these names; 127.0.0.1 and localhost by default."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    server = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    made = Certificates(
        *(folder / name for name in ("ca.pem", "server.pem", "server.key", "server-both.pem", "client-both.pem"))
    )
    authority.cert_pem.write_to_path(str(made.authority))
    made.certificate.write_bytes(_chain(server))
    made.key.write_bytes(_key(server))
    made.both.write_bytes(_key(server) + _chain(server))
    client = authority.issue_cert("firnline@example.com")
    made.client.write_bytes(_key(client) + _chain(client))
    return made


def _chain(issued: trustme.LeafCert) -> bytes:
    return b"".join(pem.bytes() for pem in issued.cert_chain_pems)


def _key(issued: trustme.LeafCert) -> bytes:
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8  # the only form that Java reads
    return key.private_bytes(pem, form, serialization.NoEncryption())
