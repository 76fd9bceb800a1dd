"""A store in S3 that counts the bytes of objects."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from compactor.storage.s3_client import PROCESS_CONNECTIONS, S3Connections
from compactor.storage.s3_store import S3ByteStore


class CountedStore(S3ByteStore):
    """`moved`: bytes `read` into this process, `sent` from it, `copied` inside the store."""

    def __init__(self, properties: dict[str, str], connections: S3Connections = PROCESS_CONNECTIONS) -> None:
        super().__init__(properties, connections)
        self.moved = Counter[str]()
        self._counting = threading.Lock()

    def raw_request(self, location: str, operation: str, **parameters: Any) -> Any:
        answer = super().raw_request(location, operation, **parameters)
        with self._counting:
            if operation == "get_object":
                self.moved["read"] += int(answer["ContentLength"])
            elif operation == "upload_part_copy":
                if not answer.get("CopyPartResult", {}).get("ETag"):
                    return answer  # nothing was copied
                first, last = parameters["CopySourceRange"].removeprefix("bytes=").split("-")
                self.moved["copied"] += int(last) + 1 - int(first)
            else:
                self.moved["sent"] += len(parameters.get("Body", b""))
        return answer
