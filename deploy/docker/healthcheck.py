"""The image's health check: asks /healthz of the service in this container, over HTTPS if it serves that."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

SECONDS = 2  # for each attempt


def healthy(port: str) -> bool:
    """Whether the service answers with success. Its certificate names another host than loopback: not checked."""
    unchecked = ssl._create_unverified_context()  # noqa: S323, SLF001 - the standard library has no public one
    for scheme, context in (("http", None), ("https", unchecked)):
        try:
            urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/healthz", timeout=SECONDS, context=context)  # noqa: S310
        except urllib.error.HTTPError:
            return False
        except OSError:
            continue
        return True
    return False


if __name__ == "__main__":
    sys.exit(not healthy(os.environ.get("FIRNLINE_HTTP__PORT", "9464")))
