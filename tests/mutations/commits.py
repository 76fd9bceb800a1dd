"""What is committed, where, and what is done when that is unclear: rules 1, 6, 12, 13, 15, and those beside them."""

from __future__ import annotations

from dataclasses import replace

from tests.mutations.mutation import breaks

_DECISIONS = "tests/properties/test_commit_decisions.py"
_IN_FLIGHT = "tests/unit/commit/test_in_flight.py"
_MEANWHILE = "tests/integration/test_writers_meanwhile.py"
_RACES = "tests/integration/test_commit_races.py"
_SNAPSHOTS = "tests/integration/test_commit_snapshots.py"
_STATE = "tests/integration/test_commit_state.py"


# --- 1 sequence numbers ---


@breaks(
    "1",
    "compactor.commit.updates:_rewrite_files",
    "outputs get the commit's own sequence number: newer equality deletes do not apply to them",
    f"{_MEANWHILE}::test_writers_that_do_not_conflict[delete_by_equality-2-before the commit-auto]",
)
def numbers_of_the_commit(original, table, changes, carried, summary):
    update = original(table, changes, carried, summary)
    update.dataSequenceNumber(table.handle.snapshot(table.view.ref).sequenceNumber() + 1)
    return update


@breaks(
    "1",
    "compactor.runs.committing:CommitLoop._search",
    "success without a commit is believed (apache/iceberg 17202)",
    f"{_STATE}::test_success_without_a_commit_is_not_believed",
)
def believed(original, self, accepted):
    return self._has_landed(int(self.snapshot.snapshotId())) if accepted else original(self, accepted)


# --- 6 format version, 12 branches and tags, 13 statistics ---


@breaks(
    "6",
    "compactor.spark.java_table:JavaTable.check_unchanged",
    "a commit goes to a table that was upgraded to another format version since the plan",
    f"{_MEANWHILE}::test_writers_that_conflict_win[format version-before the commit]",
)
def not_compared_with_the_plan(self):
    return None


@breaks(
    "12",
    "compactor.iceberg.tables:head_of",
    "a branch is planned from main's files",
    f"{_IN_FLIGHT}::test_only_a_branch_is_loaded_to_be_compacted_and_seen_from_its_own_head",
)
def head_of_main(metadata, ref="main"):
    return metadata.current_snapshot()


@breaks(
    "12",
    "compactor.commit.sweep:referenced_paths",
    "files that only another branch, a tag or an old snapshot holds are swept",
    f"{_IN_FLIGHT}::test_an_output_that_only_a_branch_or_an_old_snapshot_holds_is_kept",
)
def referenced_by_the_head(original, table, record, cache):
    heads = [each for each in [table.snapshot] if each is not None]
    return original(replace(table, metadata=table.metadata.model_copy(update={"snapshots": heads})), record, cache)


@breaks(
    "13",
    "compactor.commit.statistics:carry_statistics",
    "Puffin statistics stay with the old snapshot",
    f"{_SNAPSHOTS}::test_statistics_are_found_after_a_rewrite",
)
def statistics_left_behind(table, snapshot_id, about_to_send):
    return False


# --- 15 commits, unknown outcomes ---


@breaks(
    "15",
    "compactor.commit.updates:_check_counts",
    "the snapshot is not inspected before it is sent: a file that was appended again is removed twice",
    f"{_RACES}::test_a_file_that_is_appended_again_meanwhile_keeps_counting_twice",
)
def counts_not_checked(snapshot, planned, summary):
    return None


@breaks(
    "15",
    "compactor.commit.output_check:missing_files",
    "outputs that another program has deleted are committed",
    "tests/unit/commit/test_output_check.py::test_files_that_are_gone_or_have_another_size_are_missing",
    "tests/integration/test_commit_outputs.py::test_an_output_that_was_taken_costs_its_file_group_only[2-auto]",
)
def nothing_missing(table, sizes):
    return set()


@breaks(
    "unknown",
    "compactor.commit.sends:can_still_land",
    "what a run has written is deleted although a request that was refused may still be under way",
    "tests/unit/commit/test_sends.py::test_what_proves_that_a_commit_cannot_land",
)
def refused_for_good(sent, table):
    return False


@breaks(
    "unknown",
    "compactor.commit.history:committed_id",
    "a commit that landed although an error was answered is taken for lost",
    f"{_STATE}::test_a_commit_that_landed_is_found_by_its_run_whatever_was_answered[CommitStateUnknownException]",
)
def never_found(table, sends, summary):
    return None


# --- lanes ---


@breaks(
    "lanes",
    "compactor.runs.dispatcher:waiting",
    "two runs of one table at once",
    "tests/unit/runs/test_dispatcher.py::test_one_lane_per_table_and_at_most_two_tables_at_once",
)
def running_ones_too(original, tables, holds, running):
    return original(tables, holds, ())


@breaks(
    "lanes",
    "compactor.runs.dispatcher:settle",
    "our own commit makes a table due again",
    "tests/unit/runs/test_dispatcher.py::test_a_settled_table_is_not_rewritten_again_for_the_same_debt",
)
def nothing_settled(holds, debt):
    from compactor.patience.holds import What  # noqa: PLC0415 - product code is there by now

    holds.release(What.TABLE, debt.table)


# --- outputs on record, the sweep, the lease ---


@breaks(
    "record",
    "compactor.commit.in_flight:Record.outputs",
    "files of a lost attempt are on no record: nobody deletes them",
    "tests/unit/rewrite/test_attempts.py::test_a_record_lists_the_files_of_all_attempts",
)
def first_attempts(self):
    return list(self.files)


@breaks(
    "record",
    "compactor.commit.in_flight:InFlightRecords.renew",
    "a commit is sent that is on no record: its outputs are deleted while it may still land",
    f"{_IN_FLIGHT}::test_outputs_of_a_dead_run_go_once_its_commit_cannot_land",
)
def sent_off_the_record(original, self, record, *, sending=None):
    return original(self, record)


@breaks(
    "sweep",
    "compactor.commit.deletion:OwnFiles.refusal",
    "the sweep deletes files that are not the run's own, because a record names them",
    "tests/unit/commit/test_deletion.py::test_nothing_else_is",
)
def all_its_own(self, location):
    return ""


@breaks(
    "sweep",
    "compactor.commit.sweep:judge",
    "a paused service on another host is taken for dead",
    f"{_IN_FLIGHT}::test_the_outputs_of_an_owner_that_is_only_silent_wait_for_the_table",
)
def silent_is_dead(original, record, *, owner_dead, table, now):
    return original(record, owner_dead=owner_dead is not False, table=table, now=now)


@breaks(
    "lease",
    "compactor.lease.holder:LeaseHolder.confirm",
    "a service that another has taken over from commits and deletes all the same",
    "tests/properties/test_lease_properties.py::test_at_most_one_process_may_act_at_any_time",
    "tests/integration/test_lost_lease.py"
    "::test_a_run_whose_service_was_replaced_before_the_commit_commits_and_deletes_nothing",
)
def always_active(self):
    return None


@breaks(
    "lease",
    "compactor.lease.decisions:Watch.sees",
    "a standby takes over from a service that still renews its lease",
    "tests/properties/test_lease_properties.py::test_a_standby_never_replaces_a_holder_that_renews_in_time",
)
def renewals_not_seen(original, self, content, now):
    return self if self.since <= now else original(self, content, now)


# --- 17 Apache Polaris, writers' state, branches ---


@breaks(
    "17",
    "compactor.commit.history:CommitSummary.properties",
    "the summary property for Apache Polaris is missing",
    f"{_DECISIONS}::test_a_commit_is_known_again_by_its_run_and_its_part",
)
def polaris_not_asked(original, self):
    return {name: value for name, value in original(self).items() if value != "rollback"}


@breaks(
    "17",
    "compactor.commit.decisions:_watched",
    "a commit that is rolled back for a writer costs the whole rewrite",
    "tests/unit/commit/test_decisions.py::test_the_next_commit_ends_the_watch",
)
def not_watched(state, seen, now):
    from compactor.commit.decisions import Action, Do  # noqa: PLC0415 - product code is there by now

    return state, Action(Do.END)


@breaks(
    "state",
    "compactor.runs.committing:CommitLoop._has_landed",
    "a commit expires the snapshots that carry it",
    f"{_SNAPSHOTS}::test_state_that_writers_keep_in_summaries_is_found_as_before",
)
def expired_with_the_commit(original, self, snapshot_id):
    found = original(self, snapshot_id)
    self.java.handle.expireSnapshots().expireOlderThan(1 << 60).cleanExpiredFiles(False).commit()
    return found


@breaks(
    "branches",
    "compactor.planning.unpublished:unpublished",
    "main is rewritten while a branch is to be published",
    "tests/unit/runs/test_turns.py::test_main_is_left_alone_until_a_branch_is_published",
)
def branches_overlooked(table, now):
    return None


@breaks(
    "branches",
    "compactor.planning.unpublished:LONGEST",
    "a branch that is written every day stops all rewrites of main for ever",
    "tests/unit/planning/test_unpublished.py::test_a_branch_that_is_kept_for_another_purpose_counts_for_a_limited_time",
)
def branches_for_ever(original):
    return 1000 * original


# --- 16 events ---


@breaks(
    "16",
    "compactor.debt.table_changes:unseen_snapshots",
    "an event stands for one commit: lost events are never counted",
    "tests/properties/test_ledger_looks.py::test_a_walk_over_many_commits_takes_as_many_looks_as_the_budget_says",
)
def newest_snapshot_only(original, metadata, counted_snapshot_id, ref="main"):
    found = original(metadata, counted_snapshot_id, ref)
    return found[-1:] if isinstance(found, tuple) else found


@breaks(
    "16",
    "streaming.ledger.table_record:Count.has",
    "an event of a snapshot that is not counted is taken for one that is",
    "tests/unit/streaming/ledger/test_events_heard.py::test_the_look_that_an_event_asks_for",
)
def seen_if_known(self, snapshot_id, announced_at):
    return announced_at <= self.loaded_at
