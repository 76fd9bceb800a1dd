"""The image's recipe and the compose file, as far as they can be checked without a daemon."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from compose_spec import PyCompose
from packaging.requirements import Requirement
from packaging.version import Version

from compactor.settings.tree import load_settings
from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.grafana import file_name
from deploy.image_size import LARGEST_IMAGE, SIZE, made_from
from streaming.cli import main
from streaming.wiring import check_run_settings

ROOT = Path(__file__).parents[3]
DOCKER, COMPOSE = ROOT / "deploy" / "docker", ROOT / "deploy" / "compose"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return found


# The image


def pinned() -> dict[str, Version]:
    lines = (DOCKER / "requirements.txt").read_text().splitlines()
    named = [line.removesuffix(" \\").split(";")[0].split("==") for line in lines if re.match("[a-z]", line)]
    return {name.strip().replace("_", "-"): Version(version.strip()) for name, version in named}


@pytest.mark.parametrize("dependency", PROJECT["dependencies"])
def test_the_image_pins_every_dependency_within_its_bounds(dependency: str) -> None:
    wanted = Requirement(dependency)
    assert pinned()[wanted.name] in wanted.specifier, "run make requirements"


def test_what_the_image_copies_is_in_the_build_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert len(copied) > 5
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == one or source.startswith(f"{one}/") for one in allowed), source


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        ("spark-yarn*", "`spark.master: yarn`"),
        ("hive_metastore", "catalogs of type `hive`"),
        ("zookeeper*", "locks in ZooKeeper"),
        ("s3control", "S3 Access Grants"),
        ("bcprov-*", "HDFS encryption zones"),
    ],
)
def test_what_the_image_leaves_out_is_said_where_the_image_is_described(removed: str, named: str) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    listed = page.split("Not available in the image:", 1)[1].split("\n\n", 1)[0]
    assert f'"{removed}"' in (DOCKER / "slim.py").read_text()
    assert named in " ".join(listed.split())


def test_the_image_stays_within_its_limit() -> None:
    """Noticed without a Docker daemon, with the change that makes it too large."""
    size = json.loads(SIZE.read_text())
    assert size["made_from"] == made_from(), "run: make image-size"
    assert size["bytes"] <= LARGEST_IMAGE


def test_no_frontend_is_pulled_and_nothing_runs_as_root() -> None:
    assert "# syntax" not in DOCKERFILE
    final = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    assert "\nUSER 10001:10001\n" in final
    assert "\nHEALTHCHECK " in final


# The compose file


def test_the_compose_file_is_valid() -> None:
    parsed = PyCompose.from_yaml(yaml.safe_dump(compose()))  # merge keys are YAML's, and it does not know them
    parsed.validate()
    assert set(parsed.service_names()) >= {"firnline", "kafka", "catalog", "s3", "prometheus", "grafana"}


@pytest.mark.parametrize("client", [["docker-compose"], ["docker", "compose"]], ids=" ".join)
def test_compose_itself_agrees(client: list[str]) -> None:
    if (
        shutil.which(client[0]) is None
        or subprocess.run([*client, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{' '.join(client)} is not installed")
    command = [*client, "-f", str(COMPOSE / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", compose()["services"])
def test_services_are_pinned_and_their_files_are_there(name: str) -> None:
    service, declared = compose()["services"][name], compose()
    tag = service["image"].rpartition(":")[2]
    assert re.search(r"\d", tag), service["image"]
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert (COMPOSE / source).exists() if source.startswith(".") else source in declared["volumes"], volume
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert set(service.get("depends_on", ())) <= set(declared["services"])


def test_the_version_is_the_same_everywhere() -> None:
    tag = f"firnline:{PROJECT['version']}"
    assert compose()["services"]["firnline"]["image"] == tag
    assert f"-t {tag} " in DOCKERFILE
    for path in sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml")):
        text = path.read_text()
        assert f"newTag: {PROJECT['version']}" in text if "newTag" in text else True, path
        assert all(found == tag for found in re.findall(r"firnline:\d[\w.]*", text)), path


def test_the_compose_settings_are_accepted_and_name_its_services() -> None:
    path = COMPOSE / "firnline.yaml"
    done = CliRunner().invoke(main, ["-c", str(path), "check-config"])
    assert done.exit_code == 0, done.output
    settings, services = load_settings(path, {}), compose()["services"]
    check_run_settings(settings, observe=False)
    lake = settings.catalogs["lake"]
    hosts = [lake["uri"], lake["s3.endpoint"], f"kafka://{settings.kafka.bootstrap_servers}"]
    assert {re.sub(r"^\w+://|:\d+$", "", host) for host in hosts} <= set(services)
    assert lake["s3.access-key-id"] == services["s3"]["environment"]["MINIO_ROOT_USER"]
    assert lake["s3.secret-access-key"] == services["s3"]["environment"]["MINIO_ROOT_PASSWORD"]
    assert lake["warehouse"] == services["catalog"]["environment"]["CATALOG_WAREHOUSE"]
    kafka = services["kafka"]["environment"]
    assert f"INSIDE://{settings.kafka.bootstrap_servers}" in kafka["KAFKA_ADVERTISED_LISTENERS"]


def test_prometheus_and_grafana_find_what_they_are_given() -> None:
    services = compose()["services"]
    mounts = {
        volume.split(":")[1]: volume.split(":")[0]
        for one in ("prometheus", "grafana")
        for volume in services[one]["volumes"]
    }
    prometheus = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    assert set(prometheus["rule_files"]) <= set(mounts)
    assert prometheus["scrape_configs"][0]["static_configs"] == [{"targets": ["firnline:9464"]}]
    provider = yaml.safe_load((COMPOSE / "grafana" / "dashboards.yaml").read_text())["providers"][0]
    dashboards = {path.name for path in (COMPOSE / mounts[provider["options"]["path"]]).glob("*.json")}
    assert dashboards == {file_name(one) for one in DASHBOARDS}
    source = yaml.safe_load((COMPOSE / "grafana" / "datasources.yaml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert fnmatch.fnmatch(home, f"{provider['options']['path']}/*.json")
    assert Path(home).name in dashboards
