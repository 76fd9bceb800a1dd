"""The image's health check: asks /healthz of the service in this container, over HTTPS if it serves that."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

SECONDS = 2  # for each attempt


def healthy(port: str) -> bool:
    """Whether the service answers with success. Its certificate names another host than loopback: not checked. A proxy
    for everything else, which the environment may name, is not asked: it would look for the service on its own host.
    """
    unchecked = ssl._create_unverified_context()  # noqa: S323, SLF001 - the standard library has no public one
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unchecked)
    )
    for scheme in ("http", "https"):
        try:
            opener.open(f"{scheme}://127.0.0.1:{port}/healthz", timeout=SECONDS)
        except urllib.error.HTTPError:
            return False
        except OSError:
            continue
        return True
    return False


if __name__ == "__main__":
    sys.exit(not healthy(os.environ.get("FIRNLINE_HTTP__PORT", "9464")))
