"""firnline's own image, built by the daemon that is there, and containers of it that leave nothing behind."""

from __future__ import annotations

import functools
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = "firnline:test"


def docker(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command of the client to its end."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=timeout)


@functools.cache
def daemon_missing() -> str:
    """Why no image can be built here; empty where one can."""
    try:
        asked = docker("version", "--format", "{{.Server.Version}}", timeout=20)
    except FileNotFoundError:
        return "docker is not installed"
    return "" if asked.returncode == 0 else "no docker daemon answers"


@functools.cache
def built_image() -> str:
    """Its name; layers that are there already are taken as they are."""
    made = docker("build", "-f", "deploy/docker/Dockerfile", *_base(), "-t", IMAGE, str(ROOT), timeout=1200)
    assert made.returncode == 0, (made.stdout + made.stderr)[-3000:]
    return IMAGE


def _base() -> list[str]:
    """Tests pull no image: where only an unpinned base of the same release is there, it is used instead."""
    pinned = re.search(r"^ARG BASE=(\S+)$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    assert pinned is not None
    local = "debian:bookworm-slim"
    if docker("image", "inspect", pinned[1]).returncode == 0 or docker("image", "inspect", local).returncode != 0:
        return []
    return ["--build-arg", f"BASE={local}"]


def image_bytes() -> int:
    """What the image takes on disk, its layers unpacked."""
    return int(docker("image", "inspect", built_image(), "--format", "{{.Size}}").stdout)


@dataclass(frozen=True)
class Container:
    """One that was started in the background."""

    name: str

    def inspect(self, template: str) -> str:
        return docker("inspect", self.name, "--format", template).stdout.strip()

    @property
    def log(self) -> str:
        done = docker("logs", self.name)
        return done.stdout + done.stderr

    @property
    def health(self) -> str:
        return self.inspect("{{.State.Health.Status}}")

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return docker("exec", self.name, *command)

    def stop(self, grace_seconds: int) -> int:
        """SIGTERM, and SIGKILL after the grace period, as Kubernetes does; the exit code, 137 if it was killed."""
        docker("stop", "--time", str(grace_seconds), self.name, timeout=grace_seconds + 60)
        return int(self.inspect("{{.State.ExitCode}}"))


@contextmanager
def container(*options: str, command: tuple[str, ...] = ()) -> Iterator[Container]:
    """A container of the image, removed with its volumes at the end of the block."""
    made = Container(f"firnline-{uuid.uuid4().hex[:8]}")
    started = docker("run", "--detach", "--name", made.name, *options, built_image(), *command)
    try:
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        docker("rm", "--force", "--volumes", made.name)


@contextmanager
def lonely_network() -> Iterator[str]:
    """A network that reaches its own containers and nothing else."""
    name = f"firnline-{uuid.uuid4().hex[:8]}"
    made = docker("network", "create", "--internal", name)
    assert made.returncode == 0, made.stderr
    try:
        yield name
    finally:
        docker("network", "rm", name)
