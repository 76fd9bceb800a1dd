"""`firnline check-config --connect` asks Apache Polaris' configuration whether it rolls back rewrites."""

from __future__ import annotations

from pathlib import Path

from compactor.settings.tree import Settings
from streaming.commands.connection_checks import ROLLBACK_FLAG, Check, Status, check_connections
from tests.services.faulty_catalog import faulty_catalog


def checked(settings: Settings) -> list[Check]:
    """The checks up to the store of the catalog."""
    found = []
    for check in check_connections(settings):
        found.append(check)
        if check.name.startswith("store"):
            break
    return found


def test_a_catalog_that_rolls_back_one_that_does_not_and_one_that_does_not_say(tmp_path: Path) -> None:
    with faulty_catalog(tmp_path) as catalog:
        tree = {"catalogs": {"lake": {"type": "rest", "uri": catalog.uri}}, "commit": {"polaris_rollback": "always"}}
        for given, status in (("true", Status.OK), ("false", Status.FAILED), (None, Status.SKIPPED)):
            catalog.defaults = {} if given is None else {ROLLBACK_FLAG: given}
            (check,) = (each for each in checked(Settings.model_validate(tree)) if each.name == "rollback of lake")
            assert check.status is status, check
            assert (ROLLBACK_FLAG in check.remedy) == (status is Status.FAILED)
        never = {**tree, "commit": {"polaris_rollback": "never"}}
        assert not [each for each in checked(Settings.model_validate(never)) if each.name.startswith("rollback")]
