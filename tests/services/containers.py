"""Services in containers, by testcontainers, where a Docker daemon runs and the image is there: nothing is pulled.

`tests/services/images/build.sh` builds images with the same names' behaviour from Maven jars, for machines without a
registry; `TEST_KAFKA_IMAGE`, `TEST_S3_IMAGE` and `TEST_REST_CATALOG_IMAGE` name others than the usual ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

HOST = "host.docker.internal"  # this machine, as containers see it
START_SECONDS = 90.0


@cache
def image_is_here(image: str) -> bool:
    """Whether a container of the image can be started now."""
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


@contextmanager
def container(
    image: str, ports: Mapping[int, int], environment: Mapping[str, str], answers: Callable[[], bool]
) -> Iterator[None]:
    """Run the image from the moment `answers` says yes to the end of the block; `ports`: inside → on this machine."""
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # its reaper is one more image to pull
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - asks for a daemon

    made = DockerContainer(image).with_kwargs(extra_hosts={HOST: "host-gateway"})
    for inside, outside in ports.items():
        made = made.with_bind_ports(inside, outside)
    for name, value in environment.items():
        made = made.with_env(name, value)
    with made:
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if time.monotonic() > deadline:
                words = b"\n".join(made.get_logs()).decode(errors="replace")[-3000:]
                raise RuntimeError(f"{image} did not start:\n{words}")
            time.sleep(0.2)
        yield
