"""Secrets are found in settings by name, and do not survive in any text."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import urllib.parse

import pytest
import sqlalchemy

from compactor.errors import GiveUpError, InputError, RetryError
from compactor.events import RunFailed
from compactor.redaction import HIDDEN, hide, is_secret, masked, remember, remember_for_now, secrets_in
from compactor.settings.tree import Settings, load_settings
from compactor.table_names import TableName
from streaming.logs.format import Lines

SECRET = 'canary-Zk9"4\\f é&+/='  # noqa: S105


@pytest.mark.parametrize(
    "name",
    [
        "s3.secret-access-key", "s3.session-token", "token", "credential", "sasl.password", "sasl.jaas.config",
        "ssl.key.password", "ssl.keystore.key", "adls.account-key", "adls.sas-token.account.dfs.core.windows.net",
        "adls.connection-string", "gcs.oauth2.token", "header.Authorization", "header.X-Api-Key", "header.Cookie",
        "jdbc.password", "spark.sql.catalog.lake.s3.secret-access-key", "spark.hadoop.fs.s3a.secret.key",
        "spark.authenticate.secret", "spark.sql.catalog.lake.header.authorization", "basic_auth", "s3.sse.key",
        "spark.kubernetes.authenticate.oauthToken", "AWS_SECRET_ACCESS_KEY", "spark.ssl.keyPassword",
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net", "ssl.key.pem",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name, "a-value")
    assert masked({"catalogs": {"lake": {name: "a-value"}}}) == {"catalogs": {"lake": {name: HIDDEN}}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s3.access-key-id", "AKIA"), ("uri", "http://catalog:8181"), ("oauth2-server-uri", "https://login/token"),
        ("header.X-Iceberg-Access-Delegation", "vended-credentials"), ("header.Accept-Encoding", "gzip"),
        ("password_env", "TRINO_PASSWORD"), ("token-refresh-enabled", "true"), ("sasl.username", "firnline"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"), ("GOOGLE_APPLICATION_CREDENTIALS", "/key.json"),
        ("ssl.keystore.location", "/etc/key.pem"), ("client.credentials-provider", "com.example.Provider"),
        ("tls_key", "/etc/key.pem"), ("spark.authenticate.secret.file", "/etc/secret"),
    ],
)  # fmt: skip
def test_names_of_other_things(name: str, value: str) -> None:
    assert not is_secret(name, value)
    assert masked({name: value}) == {name: value}


def test_no_default_is_taken_for_a_secret() -> None:
    tree = Settings(catalogs={"lake": {"type": "sql", "uri": "sqlite://"}}).model_dump(mode="json")
    assert masked(tree) == tree


def test_secrets_of_a_tree_and_their_parts() -> None:
    tree = {
        "catalogs": {
            "lake": {"credential": "client:s3cret-of-client", "uri": "postgresql://user:p%40ssword@host/db"},
            "other": {"adls.connection-string": "AccountName=a;AccountKey=Zm9vYmFy;EndpointSuffix=x"},
        },
        "kafka": {"options": {"sasl.jaas.config": 'X required username="me" password="in-jaas";'}},
        "http": {"basic_auth": {"me": "$2b$10$hash"}},
        "hooks": [{"password_env": "TRINO_PASSWORD"}],
    }
    found = set(secrets_in(tree))
    assert {"client:s3cret-of-client", "s3cret-of-client", "p%40ssword", "p@ssword", "Zm9vYmFy", "in-jaas"} <= found
    assert "$2b$10$hash" in found
    assert not {"TRINO_PASSWORD", "me", "client"} & found
    shown = json.dumps(masked(tree))
    assert not any(secret in shown for secret in found)
    assert "postgresql://user:********@host/db" in shown


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (
            "-Xmx2g -Djavax.net.ssl.trustStorePassword=changeit-canary -Dx=1",
            "-Xmx2g -Djavax.net.ssl.trustStorePassword=",
        ),
        ("-Dcompany.clientSecret=canary -Dx=1", " -Dx=1"),
        ('-Dproxy.password="canary"', "-Dproxy.password="),
        ("https://account.blob/x?sv=2024&sig=canary%3D", "https://account.blob/x?sv=2024"),
        ("jdbc:postgresql://host/db?user=me&password=canary", "jdbc:postgresql://host/db?user=me&password="),
    ],
)
def test_a_secret_inside_of_a_value_is_hidden(value: str, kept: str) -> None:
    tree = {"spark": {"conf": {"spark.driver.extraJavaOptions": value}}, "list": [value]}
    shown = masked(tree)
    for text in (shown["spark"]["conf"]["spark.driver.extraJavaOptions"], shown["list"][0]):
        assert "canary" not in text
        assert kept in text
        assert HIDDEN in text


def test_passwords_in_options_of_java_are_known() -> None:
    value = "-Djavax.net.ssl.trustStorePassword=changeit -Dsecret.file=/etc/secret"
    assert set(secrets_in({"spark.driver.extraJavaOptions": value})) == {"changeit"}


PASSWORDS = (
    "canary/one@canary-two", "canary%2Fone%40canary-two", "canary@one:12@canary-two",
    "canary+a b/canary-two", "canary#a?b/canary-two", "canary'a\"b@canary-two", "a/canary@b",
    "canary%C3%A9/canary-two",
)  # fmt: skip
ADDRESSES = (
    "postgresql+psycopg2://user:{}@host:5432/db", "jdbc:mysql://user:{}@host/db", "mysql://me@server:{}@host/db",
    "https://user:{}@host/db",
)  # fmt: skip
LIKE_PORTS = ("12345/canary@canary-two",)
"""Hidden in addresses of databases alone: elsewhere, a port and a path are much more likely."""


@pytest.mark.parametrize(
    ("password", "address"),
    [
        *((password, address) for password in PASSWORDS for address in ADDRESSES),
        *((password, address) for password in LIKE_PORTS for address in ADDRESSES[:2]),
    ],
)
def test_a_password_of_a_database_may_hold_any_character(password: str, address: str) -> None:
    uri = address.format(password)
    tree = {"catalogs": {"lake": {"type": "sql", "uri": uri}}, "spark": {"conf": {"spark.x.uri": uri}}}
    for shown in (masked(tree)["catalogs"]["lake"]["uri"], masked(tree)["spark"]["conf"]["spark.x.uri"]):
        assert shown == address.format(HIDDEN)
    found = set(secrets_in(tree))
    assert {password, urllib.parse.unquote(password)} <= found
    remember(found)
    decoded = urllib.parse.unquote(password)
    for text in (uri, password, decoded, urllib.parse.quote(decoded, safe=""), urllib.parse.quote(decoded, safe=" +")):
        for written in (text, repr(text), json.dumps(text)):
            assert "canary" not in hide(f"cannot connect: {written} is refused")


@pytest.mark.parametrize("password", ["canary/one@canary-two", "canary@one:canary-two", "a@canary:2/canary-two"])
def test_parts_that_clients_take_for_something_else_are_hidden(password: str) -> None:
    """Of a password whose special characters are not encoded, SQLAlchemy takes a part for the host or the port."""
    uri = f"postgresql://user:{password.replace('canary', 'canary-part')}@host/db"
    remember(secrets_in({"uri": uri}))
    texts = [uri]
    try:
        parts = sqlalchemy.make_url(uri)
        texts += [repr(parts), f'could not translate host name "{parts.host}" to address']
    except ValueError as error:
        texts.append(str(error))
    try:
        texts.append(str(urllib.parse.urlsplit(uri).port))
    except ValueError as error:
        texts.append(str(error))
    for text in texts:
        assert "canary" not in hide(text), text


def test_a_short_password_of_a_database_is_hidden_in_its_address() -> None:
    for password in ("p/w", "p@w", "p%40w", "5432/w"):
        text = f"cannot connect to 'postgresql://user:{password}@host/db', try again"
        assert hide(text) == f"cannot connect to 'postgresql://user:{HIDDEN}@host/db', try again"


@pytest.mark.parametrize(
    "address",
    [
        "jdbc:postgresql://host/db?user=me&password={}", "postgresql://host/db?sslpassword={}&user=me",
        "mysql+pymysql://host/db?pwd={}", "https://host/x?clientSecret={}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("password", ["canary/a@canary-two", "ab,canary;canary", "canary%2Ca%20canary", "a+b'(canary)"])
def test_a_password_in_a_parameter_may_hold_any_character(address: str, password: str) -> None:
    uri = address.format(password)
    assert masked({"uri": uri}) == {"uri": address.format(HIDDEN)}
    found = set(secrets_in({"uri": uri}))
    assert {password, urllib.parse.unquote(password), urllib.parse.unquote_plus(password)} <= found
    remember(found)
    for text in (uri, urllib.parse.unquote(uri), urllib.parse.unquote_plus(uri), urllib.parse.unquote_plus(password)):
        assert "canary" not in hide(f"cannot connect: {text}")


@pytest.mark.parametrize(
    "value",
    [
        "hdfs://namenode:8020/user/me@company/checkpoint", "http://catalog:8181/api@v1", "thrift://a:9083,thrift://b:9083",
        "abfss://container@account.dfs.core.windows.net/a:b@c", "jdbc:hive2://host:10000/db;principal=hive/_HOST@REALM",
        "http://[::1]:8181/a@b", "abfss://container@account.dfs.core.windows.net:443/x@y", "a = 'b:c@d'",
        "postgresql://me@host:5432/db",
    ],
)  # fmt: skip
def test_addresses_without_a_password_stay_as_they_are(value: str) -> None:
    assert masked({"key": value}) == {"key": value}
    assert hide(value) == value
    assert set(secrets_in({"key": value})) == set()


@pytest.mark.parametrize(
    "text",
    ["postgresql://", "://a:b", "postgresql://a:@", "?password", "&", "?secret_", "mysql+", "://a@", ";pwd", "a@b:"],
)
def test_a_long_text_takes_no_longer_than_its_length(text: str) -> None:
    """Seconds if each character is read a few times, hours if each is compared with all others."""
    assert hide(text * 100_000)


def test_passwords_of_several_addresses_are_known() -> None:
    tree = {"uri": "thrift://me:canary-first@one:9083,thrift://me:canary/second@two:9083"}
    assert {"canary-first", "canary/second"} <= set(secrets_in(tree))
    assert "canary" not in masked(tree)["uri"]


def test_a_known_secret_is_hidden_in_every_spelling() -> None:
    remember([SECRET])
    for text in (
        SECRET,
        urllib.parse.quote(SECRET, safe=""),
        urllib.parse.quote_plus(SECRET),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        html.escape(SECRET),
    ):
        assert HIDDEN in hide(f"refused {text}, try again")
        assert "canary" not in hide(f"refused {text}, try again")


def test_short_values_are_not_searched_for() -> None:
    remember(["ab", "table"])
    assert hide("the table abc") == "the table abc"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer abc123def456.ghi", "Authorization: Bearer"),
        ("sent Basic " + base64.b64encode(b"user:canary").decode(), "sent Basic"),
        ("cannot connect to postgresql://me:canary123@host/db", "@host/db"),
        ("GET https://b.s3/x?X-Amz-Signature=canary123&X-Amz-Date=1", "https://b.s3/x?"),
        ("https://a.blob/x?sv=2024&sig=canary123%3D", "https://a.blob/x?sv=2024"),
        ('{"access_token": "canary123", "expires_in": 3600}', '"expires_in": 3600'),
        ("s3.session-token=canary123, s3.region=us-east-1", "s3.region=us-east-1"),
        ("cannot serve token=4f126afc0dd543aa88canary; try later", "; try later"),
        ("grant_type=client_credentials&client_secret=canary123&scope=x", "&scope=x"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkxMjMifQ.c2lnbmF0dXJl is expired", "is expired"),
    ],
)
def test_forms_that_are_secret_wherever_they_appear(text: str, kept: str) -> None:
    hidden = hide(text)
    assert HIDDEN in hidden
    assert kept in hidden
    for part in ("canary", "4f126afc", "abc123", "eyJzdWI", base64.b64encode(b"user:canary").decode()):
        assert part not in hidden


@pytest.mark.parametrize(
    "text",
    [
        'GET "https://b.s3/x?X-Amz-Signature=canary123"', 'password="canary123"', "password=abc\\canary123 and more",
        'password="canary\\"', "password=\ncanary123", "{'sasl.password': 'canary123'}",
        'token="4f126afc0dd543aa88canary"', 'Bearer "canary123"', 'postgresql://me:canary123@host/"db"',
    ],
)  # fmt: skip
def test_a_line_of_json_stays_one(text: str) -> None:
    """Lines are hidden after their text became JSON: a backslash belongs to the character behind it."""
    line = hide(json.dumps({"message": text, "next": 1}))
    assert json.loads(line)["next"] == 1


def test_a_quoted_secret_is_hidden_in_json_too() -> None:
    assert "canary" not in hide(json.dumps({"message": 'login with access_token="canary123" failed'}))


@pytest.mark.parametrize(
    "text",
    [
        "table lake.db.events: the catalog refused basic authentication",
        "s3://lake/db/t/data/sig=12/00000.parquet does not exist",
        "no Kafka broker answers at kafka:9092: NoBrokersAvailable; check kafka.bootstrap_servers",
        "http://catalog:8181/v1/config: 503",
        "bearer tokens are refused; set oauth2-server-uri",
        "the token is expired",
        "line 3: url 'http://host:8080/a@b'",
    ],
)
def test_harmless_texts_stay_as_they_are(text: str) -> None:
    assert hide(text) == text


def test_errors_events_and_log_lines_are_free_of_secrets() -> None:
    remember(["canary-in-error"])
    error = GiveUpError("driver says canary-in-error")
    assert "canary" not in str(error)
    table = TableName("lake", ("db",), "t")
    assert "canary" not in RunFailed.of(error, "", table, "plan", "raw canary-in-error").message
    try:
        try:
            raise ValueError("raw canary-in-error")  # noqa: TRY301
        except ValueError as cause:
            raise RetryError("outer") from cause
    except RetryError as raised:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed %s", ("canary-in-error",), None)
        record.exc_info = (RetryError, raised, raised.__traceback__)
    for as_json in (True, False):
        line = Lines(as_json=as_json).format(record)
        assert "canary" not in line
        assert HIDDEN in line
        if as_json:
            assert json.loads(line)["stack_trace"]


def test_settings_are_remembered_when_they_are_loaded(tmp_path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text("catalogs: {lake: {type: glue, s3.secret-access-key: canary-from-file}}")
    variables = {"FIRNLINE_CATALOGS__LAKE__TOKEN": "canary-from-variable", "AWS_SESSION_TOKEN": "canary-of-aws"}
    load_settings(file, variables)
    for secret in ("canary-from-file", "canary-from-variable", "canary-of-aws"):
        assert hide(secret) == HIDDEN


def test_invalid_settings_are_remembered_too(tmp_path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text("catalogs: {lake: {type: glue, token: canary-invalid}}\nnonsense: 1\n")
    with pytest.raises(Exception, match="unknown key"):
        load_settings(file, {})
    assert hide("canary-invalid") == HIDDEN


def test_a_file_that_is_not_yaml_is_refused_without_its_lines(tmp_path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text("catalogs:\n  lake:\n    s3.secret-access-key: canary: not yaml\n")
    with pytest.raises(InputError, match=r"line 3, column \d+") as raised:
        load_settings(file, {})
    assert "canary" not in str(raised.value)


def test_credentials_of_a_day_leave_no_compiled_expressions_behind() -> None:
    """`re` keeps the last 512 expressions that it compiled."""
    tokens = [f"{number}-" + "aZ0+/" * 200 for number in range(600)]
    for token in tokens:
        remember_for_now([token])
    assert hide(f"a {tokens[-1]} b {urllib.parse.quote(tokens[-2], safe='')} c") == f"a {HIDDEN} b {HIDDEN} c"
    assert tokens[0] in hide(tokens[0])
    assert sum(len(pattern) for _, pattern, _ in re._cache) < 1_000_000


def test_the_longest_secret_is_hidden_first() -> None:
    remember_for_now(["token-of-today", "token-of-today-and-tomorrow"])
    remember(["token-of-today-and"])
    assert hide("token-of-today-and-tomorrow, token-of-today-and, token-of-today") == ", ".join([HIDDEN] * 3)
