"""Metrics of manifests, read and merged: name, kind, labels, meaning, remedy."""

from __future__ import annotations

from typing import Final

from metrics.metric_definition import MetricDefinition, counter

MANIFEST_CACHE_HITS = counter(
    "firnline_manifest_cache_hits_total",
    "Manifests found in the memory cache.",
    "Low compared with misses: raise service.manifest_cache_bytes.",
)
MANIFEST_CACHE_MISSES = counter(
    "firnline_manifest_cache_misses_total",
    "Manifests that had to be read from the store.",
    "Many after the first hours: raise service.manifest_cache_bytes, or let writers merge manifests.",
)
MANIFEST_DISK_HITS = counter(
    "firnline_manifest_disk_hits_total",
    "Manifests found on local disk, decoded before a restart or by another process of the host.",
    "None after a restart: check service.manifest_disk_folder and whether it survives restarts.",
)
MANIFESTS_PREFETCHED = counter(
    "firnline_manifests_prefetched_total",
    "Manifests read before a plan needed them: after a commit of ours, or when an event announced one.",
    "High compared with foreseen: prefetching does not help here.",
)
MANIFESTS_FORESEEN = counter(
    "firnline_manifests_foreseen_total",
    "Prefetched manifests that a plan used later, each counted once.",
    "Far below prefetched: manifests are evicted too early (raise service.manifest_cache_bytes) or never used.",
)
MANIFESTS_UNUSUAL = counter(
    "firnline_manifests_unusual_total",
    "Manifests that only the slow reference decoder could read.",
    "Any: planning is slower. Find the writer of these manifests and report it.",
)
MANIFEST_READ_BYTES = counter(
    "firnline_manifest_read_bytes_total",
    "Bytes of manifests read from the store.",
    "High compared with the tables' growth: check cache misses and recounts.",
)
MANIFEST_READ_SECONDS = counter(
    "firnline_manifest_read_seconds_total",
    "Time spent reading manifests, from the cache or the store.",
    "High per miss: the store is slow, or manifests are very large.",
)
MANIFEST_REWRITES = counter(
    "firnline_manifest_rewrites_total",
    "Times that the manifests of a table were merged.",
    "Many for one table: its writers leave one manifest per commit. Set commit.manifest-merge.enabled for them.",
)
MANIFESTS_MERGED = counter(
    "firnline_manifests_merged_total",
    "Manifests removed by merging: the number before less the number after.",
    "Low compared with the manifest rewrites: raise manifests.min_reduction.",
)
MANIFEST_REWRITE_SECONDS = counter(
    "firnline_manifest_rewrite_seconds_total",
    "Time spent merging manifests. The table's data files are not rewritten during it.",
    "High: raise manifests.min_count, or give the driver more cores.",
)

MANIFEST_METRICS: Final[tuple[MetricDefinition, ...]] = (
    MANIFEST_CACHE_HITS,
    MANIFEST_CACHE_MISSES,
    MANIFEST_DISK_HITS,
    MANIFESTS_PREFETCHED,
    MANIFESTS_FORESEEN,
    MANIFESTS_UNUSUAL,
    MANIFEST_READ_BYTES,
    MANIFEST_READ_SECONDS,
    MANIFEST_REWRITES,
    MANIFESTS_MERGED,
    MANIFEST_REWRITE_SECONDS,
)
