"""Kubernetes manifests: built by kustomize, valid, and in step with the settings, rules and dashboards they carry."""

from __future__ import annotations

import copy
import functools
import ipaddress
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from compactor.settings.tree import load_settings
from streaming.cli import main
from streaming.wiring import check_run_settings
from tests.services.spark_cluster import SECURED_RPC
from tests.unit.deploy.test_alerts import RULES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
SEVERAL = "several-services"
OVERLAYS = ("local", "spark-on-kubernetes", SEVERAL)
SINGLE = ("local", "spark-on-kubernetes")
KUBERNETES = "1.32"  # of the schemas; the manifests use nothing younger than 1.27
OPERATOR = {"PodMonitor": {"selector", "podMetricsEndpoints"}, "PrometheusRule": {"groups"}}
RULE_KEYS = {"alert", "record", "expr", "for", "labels", "annotations", "keep_firing_for"}

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@functools.cache
def built(overlay: str) -> tuple[dict[str, Any], ...]:
    """Every object of an overlay, as `kubectl apply -k` would send it."""
    return objects(FOLDER / "overlays" / overlay)


def objects(folder: Path) -> tuple[dict[str, Any], ...]:
    """What kustomize makes of a folder."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def only(overlay: str, kind: str, name: str = "firnline") -> dict[str, Any]:
    hashed = re.compile(f"{name}(-[a-z0-9]{{10}})?")  # of a ConfigMap that is made anew with its contents
    found = [one for one in built(overlay) if one["kind"] == kind and hashed.fullmatch(name_of(one))]
    assert len(found) == 1, (kind, name)
    return found[0]


def name_of(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["name"])


def pod(overlay: str) -> dict[str, Any]:
    spec: dict[str, Any] = workload(overlay)["spec"]["template"]["spec"]
    return spec


def workload(overlay: str) -> dict[str, Any]:
    """What runs the pods."""
    return only(overlay, "StatefulSet" if overlay == SEVERAL else "Deployment")


def settings_files(overlay: str) -> dict[str, str]:
    data: dict[str, str] = only(overlay, "ConfigMap", "firnline-settings")["data"]
    return data


def check(thing: dict[str, Any]) -> None:
    """Against Kubernetes' own schemas, unknown keys refused; the operator's kinds by what is used of them.

    Raises:
        AssertionError, kubernetes_validate.ValidationError: what is wrong.
    """
    if thing["kind"] in OPERATOR:
        assert thing["apiVersion"] == "monitoring.coreos.com/v1"
        assert thing["metadata"]["name"]
        assert set(thing["spec"]) == OPERATOR[thing["kind"]]
        for group in thing["spec"].get("groups", ()):
            assert set(group) <= {"name", "interval", "rules"}
            for rule in group["rules"]:
                assert set(rule) <= RULE_KEYS
                assert isinstance(rule["expr"], str)
                assert ("alert" in rule) != ("record" in rule)
        for endpoint in thing["spec"].get("podMetricsEndpoints", ()):
            assert set(endpoint) <= {"port", "path", "interval", "scheme", "tlsConfig", "basicAuth"}
    else:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid(overlay: str) -> None:
    kinds = {thing["kind"] for thing in built(overlay)}
    assert kinds >= {"PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"}
    assert kinds >= {"PodMonitor", "PrometheusRule", "ConfigMap", "Service"}
    assert {"Deployment", "PersistentVolumeClaim", "StatefulSet"} & kinds == (
        {"StatefulSet"} if overlay == SEVERAL else {"Deployment", "PersistentVolumeClaim"}
    )
    for thing in built(overlay):
        check(thing)
        assert thing["metadata"]["namespace"] == "firnline", name_of(thing)


@needs_kubectl
def test_several_services_have_a_number_and_a_volume_each() -> None:
    spec = workload(SEVERAL)["spec"]
    assert spec["replicas"] > 1
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["state"]
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    headless = only(SEVERAL, "Service", spec["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    environment = {each["name"]: each.get("value") for each in pod(SEVERAL)["containers"][0]["env"]}
    assert environment["FIRNLINE_SERVICE__SHARD"] == f"$(POD_INDEX)/{spec['replicas']}"


@needs_kubectl
def test_the_pods_of_a_stateful_set_are_those_of_the_deployment() -> None:
    """All but the settings, and the volume of the state, which each pod claims for itself."""
    one, several = pod("local"), copy.deepcopy(pod(SEVERAL))
    del several["containers"][0]["env"]  # its number
    assert {**several, "volumes": []} == {**one, "volumes": []}
    volumes = [
        [each for each in spec["volumes"] if each["name"] not in {"settings", "state"}] for spec in (one, several)
    ]
    assert volumes[0] == volumes[1]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_and_time_to_stop(overlay: str) -> None:
    assert pod(overlay)["terminationGracePeriodSeconds"] > 30
    container = pod(overlay)["containers"][0]
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_with_tls_probes_and_scrapes_use_https(overlay: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    copy = tmp_path / "deploy" / "kubernetes" / "overlays" / overlay
    own = yaml.safe_load((copy / "kustomization.yaml").read_text())
    own["components"].append("../../components/tls")
    (copy / "kustomization.yaml").write_text(yaml.safe_dump(own))
    found = objects(copy)
    for thing in found:
        check(thing)
    (pods,) = [one["spec"]["template"]["spec"] for one in found if one["kind"] in {"Deployment", "StatefulSet"}]
    container = pods["containers"][0]
    assert {container[f"{each}Probe"]["httpGet"]["scheme"] for each in ("startup", "liveness", "readiness")} == {
        "HTTPS"
    }
    (volume,) = [each for each in pods["volumes"] if each.get("secret", {}).get("secretName") == "firnline-pages"]
    assert {"name": volume["name"], "mountPath": "/etc/firnline-tls", "readOnly": True} in container["volumeMounts"]
    (monitor,) = [one for one in found if one["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert set(endpoint["basicAuth"]) == {"username", "password"}
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "firnline-pages"


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_point_at_what_is_there(overlay: str) -> None:
    spec, labels = pod(overlay), workload(overlay)["spec"]["template"]["metadata"]["labels"]
    names = {(thing["kind"], name_of(thing)) for thing in built(overlay)}
    assert ("ServiceAccount", spec["serviceAccountName"]) in names
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in names
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
    mounted = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    claimed = {name_of(claim) for claim in workload(overlay)["spec"].get("volumeClaimTemplates", ())}
    assert mounted == {volume["name"] for volume in spec["volumes"]} | claimed
    for kind in ("Service", "PodDisruptionBudget", "PodMonitor", workload(overlay)["kind"]):
        selector = only(overlay, kind)["spec"]["selector"]
        selected = selector.get("matchLabels", selector)
        assert selected.items() <= labels.items(), kind
    ports = {port["name"] for port in spec["containers"][0]["ports"]}
    assert {endpoint["port"] for endpoint in only(overlay, "PodMonitor")["spec"]["podMetricsEndpoints"]} <= ports


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_runs_as_root_or_writes_beside_its_volumes(overlay: str) -> None:
    specs = [pod(overlay)]
    if "executor.yaml" in settings_files(overlay):
        specs.append(yaml.safe_load(settings_files(overlay)["executor.yaml"])["spec"])
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            writable = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert writable >= {"/tmp", "/var/cache/firnline"}  # noqa: S108 - mount points
            assert ("/var/lib/firnline" in writable) == (container["name"] == "firnline"), "the driver alone has state"


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_are_accepted(overlay: str, tmp_path: Path) -> None:
    path = tmp_path / "firnline.yaml"
    path.write_text(settings_files(overlay)["firnline.yaml"])
    done = CliRunner().invoke(main, ["-c", str(path), "check-config"])
    assert done.exit_code == 0, done.output
    settings = load_settings(path, {})
    check_run_settings(settings, observe=False)
    assert settings.state.checkpoint.startswith("file:///var/lib/firnline/")
    assert settings.http.host != "127.0.0.1"
    ports = {port["name"]: port["containerPort"] for port in pod(overlay)["containers"][0]["ports"]}
    assert settings.http.port == ports["http"]


@needs_kubectl
def test_executors_are_what_the_driver_is() -> None:
    overlay = "spark-on-kubernetes"
    files, container = settings_files(overlay), pod(overlay)["containers"][0]
    conf = yaml.safe_load(files["firnline.yaml"])["spark"]["conf"]
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.namespace"] == only(overlay, "Deployment")["metadata"]["namespace"]
    (address,) = (each for each in container["env"] if each["name"] == "POD_IP")
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert conf["spark.driver.host"] == "${env:POD_IP}"  # a Service would name a standby too
    ports = {port["containerPort"] for port in container["ports"]}
    assert {int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])} <= ports
    template = yaml.safe_load(files["executor.yaml"])
    kubernetes_validate.validate(_with_image(template), KUBERNETES, strict=True)
    assert template["spec"]["containers"][0]["name"] == conf["spark.kubernetes.executor.podTemplateContainerName"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "settings"}
    assert str(Path(conf["spark.kubernetes.executor.podTemplateFile"]).parent) in mounted
    label = template["metadata"]["labels"]["app.kubernetes.io/name"]
    policy = only(overlay, "NetworkPolicy", "firnline-executor")["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": label}
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] in {
        name_of(thing) for thing in built(overlay) if thing["kind"] == "ServiceAccount"
    }
    assert only(overlay, "PersistentVolumeClaim", "firnline-state")["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert not [volume for volume in template["spec"]["volumes"] if "persistentVolumeClaim" in volume]


def _with_image(template: dict[str, Any]) -> dict[str, Any]:
    """A template need not name an image: Spark adds it."""
    template["metadata"]["name"] = "executor"
    template["spec"]["containers"][0]["image"] = "firnline"
    return template


@needs_kubectl
def test_only_the_driver_of_executors_may_ask_the_api_server() -> None:
    assert pod("local")["automountServiceAccountToken"] is False
    assert pod("spark-on-kubernetes")["automountServiceAccountToken"] is True
    bound = only("spark-on-kubernetes", "RoleBinding", "firnline-spark")["subjects"]
    assert [subject["name"] for subject in bound] == [pod("spark-on-kubernetes")["serviceAccountName"]]
    assert pod("local")["serviceAccountName"] not in {subject["name"] for subject in bound}
    assert not [thing for thing in built("local") if thing["kind"] in {"Role", "RoleBinding"}]


OUTSIDE = {"0.0.0.0/0"}
PRIVATE = ("10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.0.1")


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_names_broker_catalog_and_store_and_nothing_else(overlay: str) -> None:
    """Every rule names places and ports; the ports are those of the settings."""
    policy = only(overlay, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    names, broker, catalog, store, *more = policy["egress"]
    assert ports(names) == {53, 5353}
    settings = yaml.safe_load(settings_files(overlay)["firnline.yaml"])
    for rule, address in (
        (broker, settings["kafka"]["bootstrap_servers"]), (catalog, settings["catalogs"]["lake"]["uri"]),
    ):  # fmt: skip
        host, port = re.sub(r"^\w+://", "", address).split(":")
        assert rule["to"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": host}}}]
        assert ports(rule) == {int(port)}
    (outside,) = store["to"]
    excepted = [ipaddress.ip_network(one) for one in outside["ipBlock"]["except"]]
    assert ports(store) == {443}
    assert all(any(ipaddress.ip_address(one) in network for network in excepted) for one in PRIVATE)
    assert all(rule.get("to") for rule in policy["egress"])
    assert [ports(rule) for rule in more] == ([{443, 6443}, set()] if overlay == "spark-on-kubernetes" else [])
    for rule in more:
        assert not OUTSIDE & {place.get("ipBlock", {}).get("cidr") for place in rule["to"]}


POLICIES = ("base", "overlays/spark-on-kubernetes")


@pytest.mark.parametrize("folder", POLICIES)
@pytest.mark.parametrize(
    "server",
    [
        ("kube-system", {"k8s-app": "kube-dns"}, "", 53),
        ("kube-system", {"k8s-app": "coredns"}, "", 53),
        ("kube-system", {"k8s-app": "node-local-dns"}, "", 53),
        ("openshift-dns", {"dns.operator.openshift.io/daemonset-dns": "default"}, "", 5353),  # its pods' own port
        ("", {}, "169.254.20.10", 53),
    ],
    ids=["kube-dns", "coredns", "node-local-dns", "openshift", "address of NodeLocal DNSCache"],
)
def test_names_are_found_whoever_resolves_them(folder: str, server: tuple[str, dict[str, str], str, int]) -> None:
    policy = yaml.safe_load((ROOT / "deploy" / "kubernetes" / folder / "network-policy.yaml").read_text())
    namespace, labels, address, port = server
    rules = [rule for rule in policy["spec"]["egress"] if port in ports(rule)]
    assert any(admits(place, namespace, labels, address) for rule in rules for place in rule["to"])
    others = [place for rule in rules for place in rule["to"]]
    assert not any(admits(place, "default", {"app": "web"}, "169.254.169.254") for place in others)


def admits(place: dict[str, Any], namespace: str, labels: dict[str, str], address: str) -> bool:
    if "ipBlock" in place:
        return bool(address) and ipaddress.ip_address(address) in ipaddress.ip_network(place["ipBlock"]["cidr"])
    wanted = place.get("podSelector", {}).get("matchExpressions", [])
    return place["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace} and all(
        labels.get(each["key"]) in each["values"] for each in wanted
    )


def ports(rule: dict[str, Any]) -> set[int]:
    return {port["port"] for port in rule.get("ports", ())}


@needs_kubectl
def test_executors_reach_what_their_driver_reaches_but_not_the_api_server() -> None:
    driver = only("spark-on-kubernetes", "NetworkPolicy")["spec"]["egress"]
    executor = only("spark-on-kubernetes", "NetworkPolicy", "firnline-executor")["spec"]["egress"]
    assert executor[1:] == driver[:4]
    selected = executor[0]["to"][0]["podSelector"]["matchExpressions"][0]
    assert selected["values"] == ["firnline", "firnline-executor"]


@needs_kubectl
def test_connections_of_spark_are_secured_by_a_file_that_both_sides_mount() -> None:
    overlay = "spark-on-kubernetes"
    files = settings_files(overlay)
    conf = yaml.safe_load(files["firnline.yaml"])["spark"]["conf"]
    assert SECURED_RPC.items() <= conf.items()
    assert "spark.authenticate.secret" not in conf
    folder = str(Path(conf["spark.authenticate.secret.file"]).parent)
    for spec in (pod(overlay), yaml.safe_load(files["executor.yaml"])["spec"]):
        (name,) = [mount["name"] for mount in spec["containers"][0]["volumeMounts"] if mount["mountPath"] == folder]
        (volume,) = [volume for volume in spec["volumes"] if volume["name"] == name]
        assert volume["secret"] == {"secretName": "firnline-spark-rpc"}


@needs_kubectl
def test_rules_are_those_of_prometheus() -> None:
    rule = only("local", "PrometheusRule")
    assert rule["spec"] == RULES, "run: deploy/kubernetes/components/monitoring/make-prometheus-rule.sh"


@needs_kubectl
def test_dashboards_are_those_of_grafana() -> None:
    carried = only("local", "ConfigMap", "firnline-dashboards")
    files = {path.name: json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    assert {name: json.loads(text) for name, text in carried["data"].items()} == files
    assert carried["metadata"]["labels"]["grafana_dashboard"] == "1"
