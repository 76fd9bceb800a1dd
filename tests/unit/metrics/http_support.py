"""Questions to an HTTP server of the test, over real sockets."""

from __future__ import annotations

import http.client

from metrics.status_page import Health

WELL = Health(live=True, ready=True)


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()
