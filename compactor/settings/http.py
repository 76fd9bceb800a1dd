"""Settings of the HTTP pages: address, TLS, basic authentication."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from compactor.settings.section import KeyProblemError, Section
from compactor.settings.texts import Host

BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{53}")
LOOPBACK = ("localhost", "::1", "127.")


class HttpSettings(Section):
    """Address of /metrics, /healthz, /readyz and the status page, and who may read them."""

    host: Host = Field(
        default="127.0.0.1",
        description="Interface to listen on. The default is this machine alone, because the pages show table names, "
        "counts and errors. 0.0.0.0: all interfaces (the image sets FIRNLINE_HTTP__HOST to that).",
    )
    port: int = Field(default=9464, ge=0, le=65535, description="Port to listen on. 0: any free port.")
    tls_certificate: str = Field(
        default="",
        description="PEM file with the certificate and its chain. Set it with `http.tls_key` to serve HTTPS (TLS 1.2 "
        "or newer) instead of HTTP. A renewed file is used without a restart.",
    )
    tls_key: str = Field(default="", description="PEM file with the certificate's key, without a passphrase.")
    basic_auth: dict[str, str] = Field(
        default_factory=dict,
        description="Users and the bcrypt hashes of their passwords, as in Prometheus' own web configuration; "
        "`htpasswd -nBC 10 NAME` makes one. /healthz and /readyz then answer others too, with the state alone. Set "
        "`http.tls_certificate` as well, or passwords can be read on the way. Empty: everybody may read.",
    )

    accept_events: bool = Field(
        default=False,
        description="Whether POST /v1/events takes commit events, and /v1/…/metrics reports of Iceberg's REST clients, "
        "and writes them to the commit topic. Needs `http.basic_auth`.",
    )

    @field_validator("basic_auth")
    @classmethod
    def _passwords_are_hashed(cls, hashes: dict[str, str]) -> dict[str, str]:
        for user, digest in hashes.items():
            if not user or ":" in user:
                shown = user.partition(":")[0]  # what follows a colon may be a password
                raise ValueError(f"{shown!r}: a user name must not be empty or contain a colon")
            if not BCRYPT.fullmatch(digest):
                raise ValueError(
                    f"the value of {user} is not a bcrypt hash of cost 4 to 14; make one with `htpasswd -nBC 10 {user}`"
                )
        return hashes

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> HttpSettings:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key must be set together")
        return self

    @model_validator(mode="after")
    def _senders_of_events_log_in(self) -> HttpSettings:
        if self.accept_events and not self.basic_auth:
            raise KeyProblemError(("accept_events",), "events are taken from known senders only: set http.basic_auth")
        return self

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the pages."""
        return self.host.startswith(LOOPBACK)
