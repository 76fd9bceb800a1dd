"""Options of Kafka's clients, checked: what cannot work is refused before a broker is asked. Pure.

Java's clients (Spark's source and sink) and kafka-python log in with the same options, so both must understand them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compactor.settings.section import KeyProblemError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
BY_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
BY_JAAS: Final = ("GSSAPI", "AWS_MSK_IAM")
"""Mechanisms that Java needs a JAAS configuration for; kafka-python takes a ticket, or AWS's own credentials."""
_PEM_ONLY: Final = "kafka-python reads PEM files only"
_NO_PEM: Final[Mapping[str, str]] = {
    "ssl.truststore.password": "a PEM file of authorities has no password; remove it",
    "ssl.keystore.password": "a PEM file has no password of its own; remove it, or name that of the key "
    "ssl.key.password",
    "ssl.truststore.certificates": f"{_PEM_ONLY}; write the certificates to one, and set ssl.truststore.location",
    "ssl.keystore.certificate.chain": f"{_PEM_ONLY}; write certificate and key to one, and set ssl.keystore.location",
    "ssl.keystore.key": f"{_PEM_ONLY}; write certificate and key to one, and set ssl.keystore.location",
}


def check_options(options: Mapping[str, str]) -> None:
    """Check that the options can work with both kinds of clients.

    Raises:
        KeyProblemError: they cannot; the message names the option and the remedy.
    """
    for name in options:
        if name == "bootstrap.servers":
            raise KeyProblemError((name,), "use kafka.bootstrap_servers instead")
        if name.startswith("kafka."):
            raise KeyProblemError((name,), f"write the option without Spark's prefix: {name.removeprefix('kafka.')}")
    protocol = options.get("security.protocol", PROTOCOLS[0])
    if protocol not in PROTOCOLS:
        raise KeyProblemError(("security.protocol",), f"{protocol!r} is not allowed; allowed: {', '.join(PROTOCOLS)}")
    for name in options:
        needed = [each for each in PROTOCOLS if name.split(".")[0].upper() in each.split("_")]
        # A secret may be in the environment of all commands, whatever their settings file says.
        if name.startswith(("sasl.", "ssl.")) and not name.endswith(".password") and protocol not in needed:
            unused = f"it has no effect while security.protocol is {protocol}"
            raise KeyProblemError((name,), f"{unused}; set that to {' or '.join(needed)}, or remove this option")
    if protocol.startswith("SASL_"):
        _check_login(protocol, options)
    _check_certificates(options)


def missing_login(options: Mapping[str, str]) -> list[str]:
    """The options of a login by password that a client needs and that are not set, or empty."""
    needed = ("sasl.username", "sasl.password") if options.get("sasl.mechanism") in BY_PASSWORD else ()
    return [name for name in needed if not options.get(name)]


def _check_login(protocol: str, options: Mapping[str, str]) -> None:
    mechanism, has_jaas = options.get("sasl.mechanism", ""), bool(options.get("sasl.jaas.config"))
    if mechanism in BY_PASSWORD:
        # Without JAAS they may be missing: commands that need no Kafka run without its password in the environment.
        if has_jaas and not (options.get("sasl.username") and options.get("sasl.password")):
            raise KeyProblemError(
                ("sasl.jaas.config",),
                f"only Java's clients read it: remove it, and give sasl.username and sasl.password; {mechanism} works "
                "with them in both kinds of clients",
            )
    elif mechanism not in BY_JAAS:
        found = f"{mechanism!r} is not allowed" if mechanism else "this key is missing"
        token = "; kafka-python has no token for it" if mechanism == "OAUTHBEARER" else ""
        raise KeyProblemError(("sasl.mechanism",), f"{found}{token}; allowed: {', '.join((*BY_PASSWORD, *BY_JAAS))}")
    elif not has_jaas:
        raise KeyProblemError(("sasl.jaas.config",), f"this key is missing; Java's clients need it for {mechanism}")
    elif mechanism == "AWS_MSK_IAM" and protocol != "SASL_SSL":
        raise KeyProblemError(("security.protocol",), f"{protocol} is not allowed; AWS_MSK_IAM needs SASL_SSL")


def _check_certificates(options: Mapping[str, str]) -> None:
    for name in options:
        if name in _NO_PEM:
            raise KeyProblemError((name,), _NO_PEM[name])
    for store in ("ssl.truststore", "ssl.keystore"):
        given = options.get(f"{store}.type", "JKS")
        if f"{store}.location" in options and given != "PEM":
            raise KeyProblemError(
                (f"{store}.type",),
                f"{given} cannot be used: {_PEM_ONLY}; convert {store}.location to PEM, and set this key to PEM",
            )
