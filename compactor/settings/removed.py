"""Keys that are no settings any more: they have no effect, and a warning says what holds instead."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from compactor.settings.origins import Key, Sources, dotted, walk
from compactor.settings.policy import PolicyValues
from compactor.settings.section import is_setting

_OF_A_RUN: Final = "give it to the run by --option instead (docs/spark-options.md)"
REMOVED: Final[dict[str, str]] = {
    **{
        f"policy.{name}": f"set the table property firnline.policy.{name} instead (one run: docs/spark-options.md)"
        for name, field in PolicyValues.model_fields.items()
        if not is_setting(field)
    },
    "policy.max_small_bytes": "set the table property firnline.policy.max_small_files instead",
    "policy.settle_growth": "it is 2; see policy.growth and policy.settle_after_seconds",
    "kafka.control_topics": "name these topics in kafka.commit_topics, which are only read too",
    "kafka.consumer_group": "the group is firnline- and the commit topic",
    "kafka.max_events_per_batch": "a batch has at most 2,000 events",
    "commit.groups": "a commit has at most 1,000 file groups",
    "commit.bytes": "a commit has at most 100 GiB of input",
    "commit.max_commits": _OF_A_RUN,
    "commit.max_failed_commits": _OF_A_RUN,
    "service.max_concurrent_file_group_rewrites": _OF_A_RUN,
    "manifests.min_count": "manifests are merged from 100 on; manifests.rewrite switches it",
    "manifests.min_reduction": "a merge must make manifests four times fewer; manifests.rewrite switches it",
    "manifests.wait_seconds": "merges wait an hour for another writer's commit; manifests.rewrite switches them",
    "service.trigger_seconds": "events are read once a second",
    "service.switch_check_seconds": "switches are read every 15 seconds",
    "service.retry_seconds": "the first back-off of a table is 10 seconds",
    "service.manifests_per_batch": "a look reads at most 500 manifests",
    "service.manifest_job_bytes": "executors decode manifests from 256 MiB on",
    "service.manifest_disk_bytes": "decoded manifests take 1 GiB of disk at most",
    "service.manifest_disk_folder": "set XDG_CACHE_HOME instead",
    "service.worst_partitions": "partitions have no metrics; see `firnline debt`",
    "service.lease_seconds": "a process that is silent for 60 seconds is dead",
    "service.grace_seconds": "a table that is gone is searched under other names after 45 minutes",
    "history.batch_rows": "an append has at most 1,000 decisions",
    "history.batch_seconds": "a decision is appended within 300 seconds, and at a stop",
    "history.buffer_rows": "20,000 decisions wait while appends fail",
    "history.repeat_skips_seconds": "the same reason to skip a partition is recorded once a day",
    "hooks[*].timeout_seconds": "an attempt has 10 seconds",
    "hooks[*].user": "write it into hooks[].uri, e.g. https://user@trino:8443",
    "hooks[*].catalog": "write Trino's name of the catalog into hooks[].statement",
}
"""By key: its successor, or why it needs none. `policy.<key>` also stands for `policy.tables.<glob>.<key>`."""


def drop_removed(sources: Sources) -> tuple[str, ...]:
    """Take the removed keys out of what file and environment say; return a notice for each."""
    found = [(key, why) for key, _ in walk(sources.values) for why in _reasons(key)]
    notices = []
    for key, why in found:
        origin = sources.origin(key)
        where = f" ({origin.place})" if origin else ""
        notices.append(f"{dotted(key)} is no setting any more and has no effect: {why}{where}")
        _take(sources.values, key)
    return tuple(notices)


def _reasons(key: Key) -> Iterator[str]:
    name = dotted(("policy", *key[3:]) if key[:2] == ("policy", "tables") and len(key) == 4 else key)  # noqa: PLR2004 - policy.tables.<glob>.<key>
    yield from (why for removed, why in REMOVED.items() if fnmatchcase(name, removed.replace("[*]", "[[]*]")))


def _take(tree: Any, key: Key) -> None:
    for part in key[:-1]:
        tree = tree[part]
    tree.pop(key[-1], None)  # an alias of YAML stands in several places, and is one value
