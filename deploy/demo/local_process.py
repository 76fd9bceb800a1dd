"""Run a server as a child process: start it, wait until it answers, stop it; show its log if it does not start."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from compactor.errors import GiveUpError

START_SECONDS = 60.0
STOP_SECONDS = 15.0
LOOK_SECONDS = 0.1
LAST_CHARACTERS = 3000
PORTS = range(20_000, 32_000)
MOST_TRIES = 100


def free_port(wanted: int | None = None) -> int:
    """`wanted` if no process listens on that port of 127.0.0.1, else another free port.

    It is none that systems give to outgoing connections: one of these could take it before the server is there.
    """
    others = random.SystemRandom().sample(PORTS, MOST_TRIES)
    for port in others if wanted is None else (wanted, *others):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise GiveUpError("no port is free on 127.0.0.1; stop a process that listens there")


@contextmanager
def local_process(
    name: str,
    command: list[str],
    folder: Path,
    answers: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run `command` in `folder`. Enter the block once `answers()` is true; stop the process at the end.

    Raises:
        GiveUpError: the process did not start; the message contains the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C in a terminal must not reach the server
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace")[-LAST_CHARACTERS:]
                raise GiveUpError(f"{name} did not start:\n{words}")
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
