"""The image as it is deployed: small, non-root, on a read-only root, without a network, beside a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactor.spark.java import KAFKA_BROKER_JARS, fetch_jars
from deploy.demo.broker import PROPERTIES
from deploy.image_size import LARGEST_IMAGE, SIZE
from tests.integration.service_process import free_port, site, wait_for
from tests.services.firnline_image import (
    Container,
    built_image,
    container,
    daemon_missing,
    docker,
    image_bytes,
    lonely_network,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the first test builds the image

ESTIMATE = 0.02  # of the size that is measured without a daemon
GRACE_SECONDS = 45  # of deploy/compose and deploy/kubernetes
HARDENED = ("--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")  # noqa: S108
KAFKA_ID = "MkU3OEVBNTcwNTJENDM2Qg"
MASTER = "org.apache.spark.deploy.master.Master"


@pytest.fixture(autouse=True)
def _daemon() -> None:
    if daemon_missing():
        pytest.skip(daemon_missing())


def alone(*command: str) -> str:
    """The output of a command in a container without a network."""
    done = docker("run", "--rm", "--network", "none", *HARDENED, built_image(), *command, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_it_is_small() -> None:
    print(f"\nthe image takes {image_bytes() / 1e6:.0f} MB")
    assert image_bytes() <= LARGEST_IMAGE
    assert image_bytes() == pytest.approx(json.loads(SIZE.read_text())["bytes"], rel=ESTIMATE)


def test_commands_need_no_network() -> None:
    assert "Commit events in, healthy files out" in alone("--help")
    assert "firnline" in alone("simulate", "--size", "1MB")


def test_it_runs_as_nobody_in_particular() -> None:
    done = docker("run", "--rm", "--entrypoint", "sh", built_image(), "-c", "id -un; touch /opt/firnline/x 2>&1")
    assert done.stdout.splitlines()[0] == "firnline"
    assert "Permission denied" in done.stdout


@contextmanager
def broker(network: str, folder: Path) -> Iterator[str]:
    """Kafka from the demo's jars, run by the image's Java; its address, which the host reaches too."""
    jars = fetch_jars(KAFKA_BROKER_JARS)[0].parent
    properties = PROPERTIES.format(port=9092, controller=9093, folder="/tmp/log")  # noqa: S108 - in the container
    (folder / "template").write_text(properties.replace("PLAINTEXT://127.0.0.1", "PLAINTEXT://ADDRESS"))
    start = f"""set -e
        sed "s/ADDRESS/$(hostname -i)/" /kafka/template > /tmp/properties
        java -cp '/jars/*' kafka.tools.StorageTool format -t {KAFKA_ID} -c /tmp/properties
        exec java -Xmx512m -cp '/jars/*' kafka.Kafka /tmp/properties"""
    options = ("--network", network, "--volume", f"{jars}:/jars:ro", "--volume", f"{folder}:/kafka:ro")
    with container(*options, "--no-healthcheck", "--entrypoint", "sh", command=("-c", start)) as made:
        wait_for("Kafka", lambda: "Kafka Server started" in made.log or not running(made), seconds=60)
        assert running(made), made.log[-3000:]
        yield made.inspect("{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}") + ":9092"


def test_it_compacts_through_a_broker_and_stops_in_time(tmp_path: Path) -> None:
    """Nothing but the broker can be reached."""
    kafka, data = tmp_path / "kafka", tmp_path / "data"
    kafka.mkdir()
    data.mkdir()
    with (
        lonely_network() as network,
        broker(network, kafka) as address,
        site(data, address) as place,
    ):
        events = place.append("events")
        rows = place.rows("events")
        writable_for_all(data)
        options = ("--network", network, *HARDENED, "--volume", f"{data}:{data}")
        with container(*options, command=("-c", str(place.config), "run")) as service:
            wait_for("readiness", lambda: ready(service))
            place.publish(*events)
            wait_for("the rewrite", lambda: "replace" in place.operations("events") or not running(service))
            assert place.operations("events") == ["append"] * 6 + ["replace"], service.log[-3000:]
            wait_for("the health check", lambda: service.health == "healthy")
            outside = "import urllib.request as r; r.urlopen('http://1.1.1.1', timeout=3)"
            assert service.execute("python", "-c", outside).returncode != 0
            assert service.stop(GRACE_SECONDS) == 0, service.log[-3000:]
            assert "Traceback" not in service.log
        assert place.rows("events") == rows
        assert len(place.live_files("events")) == 4
        assert place.unreferenced("events") == set()


def writable_for_all(folder: Path) -> None:
    """The container's user is another one than the test's."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)


def running(service: Container) -> bool:
    return service.inspect("{{.State.Running}}") == "true"


def ready(service: Container) -> bool:
    assert running(service), service.log[-3000:]
    asked = "import urllib.request as r; r.urlopen('http://127.0.0.1:9464/readyz', timeout=4)"
    return service.execute("python", "-c", asked).returncode == 0


def test_an_executor_of_the_image_does_the_work(tmp_path: Path) -> None:
    """As Spark on Kubernetes starts one. The driver's master has no workers, so that nobody else can."""
    master, driver = free_port(), free_port()
    conf = {"spark.driver.port": str(driver), "spark.executor.memory": "512m", "spark.default.parallelism": "2"}
    given = {
        "DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{driver}", "EXECUTOR_ID": "1", "EXECUTOR_CORES": "2",
        "EXECUTOR_MEMORY": "512m", "APPLICATION_ID": "test", "RESOURCE_PROFILE_ID": "0", "EXECUTOR_POD_IP": "127.0.0.1",
        "EXECUTOR_POD_NAME": "test", "JAVA_OPT_0": "-Dfirst=of", "JAVA_OPT_1": "-Dtwo=options",
    }  # fmt: skip
    spark = {"master": f"spark://127.0.0.1:{master}", "conf": {"spark.driver.host": "127.0.0.1", **conf}}
    with site(tmp_path / "data", "127.0.0.1:1", spark=spark) as place:
        place.append("events")
        rows = place.rows("events")
        writable_for_all(place.folder)
        options = ("--network", "host", *HARDENED, "--volume", f"{place.folder}:{place.folder}")
        start = f'exec java -cp "$SPARK_HOME/jars/*" {MASTER} --host 127.0.0.1 --port {master} --webui-port 0'
        variables = [part for name, value in given.items() for part in ("--env", f"SPARK_{name}={value}")]
        with (
            container(*options, "--no-healthcheck", "--entrypoint", "sh", command=("-c", start)),
            container(
                *options, *variables, "--no-healthcheck", "--restart", "always", command=("executor",)
            ) as executor,
        ):
            command = (built_image(), "-c", str(place.config), "compact", "db.events")
            done = docker("run", "--rm", *options, *command, timeout=300)
            assert done.returncode == 0, done.stderr[-3000:] + executor.log[-3000:]
        assert place.operations("events") == ["append"] * 6 + ["replace"]
        assert place.rows("events") == rows
