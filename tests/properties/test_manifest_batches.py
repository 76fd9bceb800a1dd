"""Property: batches of manifests hold each manifest once, in order; about equal manifests make about equal batches."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestFile

from compactor.manifests.reads import BATCH_MANIFESTS, Wanted, batches
from compactor.partitions import PartitionLayout

LAYOUT = PartitionLayout(0, (), (), ())


def of_sizes(sizes: list[int]) -> list[Wanted]:
    manifests = [ManifestFile.from_args(_table_format_version=2, manifest_length=size) for size in sizes]
    return [Wanted(manifest, LAYOUT, f"manifest {number}") for number, manifest in enumerate(manifests)]


def bytes_of(wanted: list[Wanted]) -> int:
    return sum(each.manifest.manifest_length for each in wanted)


@given(st.lists(st.integers(1, 10_000), max_size=600), st.integers(1, 100_000))
def test_each_manifest_is_in_one_batch_and_a_batch_is_too_large_by_half_a_manifest_at_most(
    sizes: list[int], most_bytes: int
) -> None:
    wanted = of_sizes(sizes)
    made = list(batches(wanted, most_bytes))
    assert [each.key for each in chain.from_iterable(made)] == [each.key for each in wanted]
    for batch in made:
        assert 1 <= len(batch) <= BATCH_MANIFESTS
        if len(batch) > 1:
            assert bytes_of(batch[:-1]) + bytes_of(batch[-1:]) / 2 <= most_bytes


@given(st.lists(st.integers(9_700, 10_300), min_size=2, max_size=20).filter(lambda sizes: len(sizes) % 2 == 0))
def test_two_decoders_get_as_many_manifests_each_when_all_are_about_as_large(sizes: list[int]) -> None:
    made = list(batches(of_sizes(sizes), sum(sizes) // 2 + 1))
    assert [len(batch) for batch in made] == [len(sizes) // 2] * 2
