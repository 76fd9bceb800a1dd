"""Cells of the component "credentials": they end while they are needed, and nobody renews them for a while.

The service's catalog wants an OAuth2 login and vends credentials of the store. All of them end at once, right before
the request that a cell names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.faults.cells import DURING, LASTS_SECONDS, Cell, announce_all, make_due
from tests.faults.scene import COMMITS, PARTS, ROWS, Scene
from tests.integration.service_process import wait_for
from tests.services.guarded_catalog import GuardedCatalog, guarded_catalog
from tests.services.s3_server import S3Server
from tests.services.short_credentials import Gate, Issuer, Moment, Vending, store_gate, vending_catalog

LONG = 3600.0
ROWS_FOR_AN_UPLOAD = 40_000
"""In each file of a partition: its output is larger than what is written in one request (16 MiB)."""
Comes = Callable[[str, str, str], bool]


@dataclass(frozen=True)
class Doors:
    """The way of the service to its catalog and its store."""

    issuer: Issuer
    gate: Gate
    vending: Vending
    login: GuardedCatalog


def doors(scene: Scene) -> Doors:
    """The scene's doors; the first call starts the service again behind them."""
    if scene.doors is None:
        issuer = Issuer(S3Server(**vars(scene.store)), lifetime=LONG)
        gate = scene.more.enter_context(store_gate(issuer))
        catalog = f"http://127.0.0.1:{scene.servers['catalog'].proxy.port}"
        vending = scene.more.enter_context(vending_catalog(catalog, issuer))
        login = scene.more.enter_context(guarded_catalog(vending.uri, None, "client:secret", lifetime=LONG))
        scene.doors = Doors(issuer, gate, vending, login)
        reached = {"warehouse": "s3://lake/warehouse", "s3.endpoint": gate.endpoint, "s3.region": "us-east-1"}
        scene.use_catalog({**login.properties, **reached})
    assert isinstance(scene.doors, Doors)
    return scene.doors


def reads(method: str, path: str, _client: str) -> bool:
    return method == "GET" and path.partition("?")[0].endswith(".parquet")


def uploads(method: str, path: str, _client: str) -> bool:
    return method == "PUT" and "partNumber=" in path


def commits(method: str, path: str, client: str) -> bool:
    return method == "PUT" and "/metadata/" in path and "s3fileio" in client


def store_credential_ends(comes: Comes, scene: Scene, table: str) -> None:
    """The store refuses the credential that it took until now."""
    way, ended = doors(scene), [False]

    def end() -> None:
        way.issuer.end_all()
        ended[0] = True

    way.gate.moment = Moment(comes, end)
    rows = ROWS_FOR_AN_UPLOAD if comes is uploads else ROWS
    scene.site.publish(*scene.site.append(table, commits=COMMITS, parts=PARTS, rows=rows))
    wait_for("the request", lambda: ended[0], every=0.01)


def catalog_vends_nothing(scene: Scene, table: str) -> None:
    """The credential ends, and for a while the catalog has no other."""
    way = doors(scene)

    def end() -> None:
        way.vending.down = True
        way.issuer.end_all()

    way.gate.moment = Moment(reads, end)
    make_due(scene, table, DURING)
    wait_for("the request", lambda: way.vending.down, every=0.01)
    time.sleep(LASTS_SECONDS)
    way.vending.down = False


def login_ends(seconds: float, scene: Scene, table: str) -> None:
    """The catalog refuses all logins; the login server refuses new ones for `seconds`."""
    way = doors(scene)
    make_due(scene, table, DURING)
    way.login.refuses = seconds > 0
    way.login.end_all()
    time.sleep(seconds)
    way.login.refuses = False
    announce_all(scene, table)


def logins_are_short(scene: Scene, table: str) -> None:
    """Logins live for seconds, and for longer than one the login server refuses to renew them: Java stops to ask."""
    way = doors(scene)
    way.login.lifetime = 2.0
    way.login.end_all()
    make_due(scene, table, DURING)
    way.login.refuses = True
    time.sleep(LASTS_SECONDS)
    way.login.refuses, way.login.lifetime = False, LONG
    announce_all(scene, table)


def credential_cells() -> list[Cell]:
    """In an order in which a later cell does not depend on an earlier one."""
    acts: dict[tuple[str, str], Callable[[Scene, str], None]] = {
        ("vended credential ends", "during a read"): partial(store_credential_ends, reads),
        ("vended credential ends", "during an upload"): partial(store_credential_ends, uploads),
        ("vended credential ends", "during the commit"): partial(store_credential_ends, commits),
        ("vended credential ends and the catalog vends none", DURING): catalog_vends_nothing,
        ("OAuth2 login ends", DURING): partial(login_ends, 0.0),
        ("OAuth2 login ends and the login server refuses", DURING): partial(login_ends, LASTS_SECONDS),
        ("OAuth2 logins of 2 s and the login server refuses", DURING): logins_are_short,
    }
    return [Cell("credentials", fault, when, act, doors) for (fault, when), act in acts.items()]
