"""The lease document comes back as it was; what is not one is None, never an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.lease.document import Lease, decode, encode
from compactor.lease.owner import Owner

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leases = st.builds(
    Lease,
    token=st.integers(1),
    beat=st.integers(0),
    holder=texts,
    owner=st.builds(Owner, texts, texts, texts, st.integers(0), texts),
    since=st.floats(0, 4e9),
    deployment=texts,
    released=st.booleans(),
)


@given(leases)
def test_a_document_comes_back_as_it_was(lease: Lease) -> None:
    assert decode(encode(lease)) == lease
    assert json.loads(encode(lease))["version"] == 1


@given(leases)
def test_each_renewal_is_another_document(lease: Lease) -> None:
    documents = [lease, lease.renewed(), lease.renewed().renewed(), lease.renewed().renewed().given_back()]
    assert len({encode(each) for each in documents}) == len(documents)
    assert {each.token for each in documents} == {lease.token}


@given(leases, st.integers(0, 400))
def test_half_a_document_is_none(lease: Lease, length: int) -> None:
    content = encode(lease)
    assert decode(content[: min(length, len(content) - 1)]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"owner": "host"},
        {"owner": {"host": "h"}},
        {"token": "1"},
        {"since": 1e300},
        {"since": "now"},
        {"released": "no"},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_document_of_this_version_is_none(change: dict[str, object]) -> None:
    lease = Lease(1, 0, "id", Owner("host", "boot", "namespace", 1, "1"), 0.0, "deployment")
    tree = json.loads(encode(lease))
    assert decode(json.dumps({**tree, **change}).encode()) is None
    assert decode(b"[]") is None
    assert decode(b"\xff") is None
    assert decode(b"") is None


def test_it_says_who_is_active_since_when() -> None:
    lease = Lease(1, 0, "id", Owner("pod-0", "boot", "namespace", 7, "1"), 0.0, "deployment")
    assert str(lease) == "pod-0 (pid 7) is active since 1970-01-01 00:00:00Z"
