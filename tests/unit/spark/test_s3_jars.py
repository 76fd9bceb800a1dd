"""The Ivy module file of jar sets whose coordinates have classifiers."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from compactor.spark.java import (
    AWS_JARS,
    KAFKA_BROKER_JARS,
    REST_CATALOG_JARS,
    S3PROXY_JARS,
    SPARK_JARS,
    JarSet,
    _ivy_module,
)

CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"


def dependencies(jar_set: JarSet) -> dict[str, ET.Element]:
    return {found.attrib["name"]: found for found in ET.fromstring(_ivy_module(jar_set)).iter("dependency")}  # noqa: S314


@pytest.mark.parametrize("jar_set", [SPARK_JARS, AWS_JARS, KAFKA_BROKER_JARS, S3PROXY_JARS, REST_CATALOG_JARS])
def test_every_coordinate_is_asked_for_once(jar_set: JarSet) -> None:
    asked = [
        ":".join([found.attrib["org"], name, found.attrib["rev"], *filter(None, [artifact.attrib.get(CLASSIFIER)])])
        for name, found in dependencies(jar_set).items()
        for artifact in found.findall("artifact") or [ET.Element("artifact")]
    ]
    assert sorted(asked) == sorted(jar_set.coordinates)


def test_a_module_named_by_a_classifier_alone_brings_nothing_along() -> None:
    found = dependencies(REST_CATALOG_JARS)
    assert found["iceberg-open-api"].attrib["transitive"] == "false"
    assert found["iceberg-core"].attrib["transitive"] == "true"
    assert [artifact.attrib.get(CLASSIFIER) for artifact in found["iceberg-core"]] == [None, "tests"]


def test_plain_coordinates_are_asked_for_plainly() -> None:
    for found in dependencies(SPARK_JARS).values():
        assert (found.attrib["conf"], found.attrib["transitive"], len(found)) == ("default->master", "false", 0)
    for found in dependencies(KAFKA_BROKER_JARS).values():
        assert found.attrib["conf"] == "default->master,runtime,compile"
