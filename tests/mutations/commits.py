"""Rules 1, 6, 12, 13, 15, 16, 17 and writers' state: what is committed, where, and what is done when it is unclear."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FENCE: Final = "tests/integration/test_lost_lease.py"
_GROUPS: Final = "tests/integration/test_commit_groups.py"
_KINDS: Final = "tests/integration/test_table_kinds.py"
_RACES: Final = "tests/integration/test_commit_races.py"
_STATE: Final = "tests/integration/test_commit_state.py"
_DECISIONS: Final = "tests/properties/test_commit_decisions.py"
_LEASES: Final = "tests/properties/test_lease_properties.py"
_LEDGER: Final = "tests/properties/test_ledger_properties.py"
_IN_FLIGHT: Final = "tests/unit/commit/test_in_flight.py"
_DATABASE: Final = "tests/unit/storage/test_ledger_database.py"
_INBOX: Final = "tests/unit/streaming/ledger/test_inbox.py"
_LOOKER: Final = "tests/unit/streaming/ledger/test_looker.py"
_QUEUE: Final = "tests/unit/streaming/ledger/test_look_queue.py"
_TAGS: Final = "tests/unit/iceberg/test_etag_trust.py"
_WATCHER: Final = "tests/unit/streaming/ledger/test_table_watcher.py"
_SETTINGS: Final = "tests/unit/settings/test_settings.py"

MUTATIONS: Final = (
    # --- 1 sequence numbers ---
    Mutation(
        "1",
        "the spark engine reads the newest snapshot, not the planned one",
        "compactor/spark/java_table.py",
        "newScan().useSnapshot(self.snapshot_id).ignoreResiduals()",
        "newScan().ignoreResiduals()",
        f"{_KINDS}::test_the_pinned_snapshot_is_read_not_the_newest[spark]",
    ),
    Mutation(
        "1",
        "outputs get the commit's own sequence number: newer equality deletes do not apply to them",
        "compactor/commit/snapshots.py",
        "    rewrite.dataSequenceNumber(table.sequence_number)\n",
        "",
        f"{_KINDS}::test_writers_that_do_not_conflict[delete_by_equality-2-before the commit-auto]",
    ),
    Mutation(
        "1",
        "success without a commit is believed (apache/iceberg 17202)",
        "compactor/commit/replace.py",
        "found = _verified(table, changes, summary)",
        "found = _snapshot_of(table, summary) or table.snapshot_id",
        f"{_STATE}::test_success_without_a_commit_is_not_believed",
    ),
    Mutation(
        "1",
        "the files that the committed snapshot replaced are not compared with the plan",
        "compactor/commit/replace.py",
        "if _counts(found) != changes.planned:",
        "if False:",
        f"{_STATE}::test_a_commit_of_other_files_than_planned_is_not_sent_and_if_it_were_would_be_told",
    ),
    Mutation(
        "8",
        "the snapshot is not inspected before it is sent: a file that was appended again is removed twice",
        "compactor/commit/replace.py",
        "            _check_counts(snapshot, changes, summary)\n",
        "",
        f"{_RACES}::test_a_file_that_is_appended_again_meanwhile_keeps_counting_twice",
    ),
    Mutation(
        "8",
        "a file that was appended again is no conflict",
        "compactor/planning/conflicts.py",
        "hit = [owner[entry.path]] if entry.path in owner else []",
        "hit = [owner[entry.path]] if removed and entry.path in owner else []",
        f"{_RACES}::test_a_file_that_is_appended_again_meanwhile_keeps_counting_twice",
    ),
    Mutation(
        "8",
        "rows that do not add up are put down to other commits",
        "compactor/runs/dropped_groups.py",
        "mine = [drop for drop in failed if drop.error.reason in DAMAGE]",
        "mine = []",
        f"{_RACES}::test_damage_stays_damage_however_busy_the_table_is",
    ),
    # --- 6 format version ---
    Mutation(
        "6",
        "a commit goes to a table that was upgraded to another format version since the plan",
        "compactor/spark/java_table.py",
        "if version != self.view.metadata.format_version:",
        "if version < self.view.metadata.format_version:",
        f"{_KINDS}::test_writers_that_conflict_win[format version-before the commit]",
    ),
    Mutation(
        "6",
        "a table that is upgraded while the commit is made is committed to",
        "compactor/commit/replace.py",
        "            table.check_unchanged()  # `make`",
        "            # `make`",
        f"{_RACES}::test_a_table_that_is_upgraded_while_the_commit_is_made_is_planned_anew",
    ),
    # --- 12 branches and tags ---
    Mutation(
        "12",
        "a branch that was dropped since the plan is created again",
        "compactor/spark/java_table.py",
        "if metadata.ref(self.view.ref) is None:",
        "if False:",
        f"{_RACES}::test_a_branch_that_is_dropped_while_the_commit_is_made_stays_dropped",
    ),
    Mutation(
        "12",
        "a branch's rewrite is committed to main",
        "compactor/commit/snapshots.py",
        "return rewrite.toBranch(table.view.ref)",
        'return rewrite.toBranch("main")',
        f"{_GROUPS}::test_a_branch_is_compacted_alone[False]",
    ),
    Mutation(
        "12",
        "a branch is planned from main's files",
        "compactor/iceberg/tables.py",
        "return metadata.current_snapshot() if ref == MAIN else metadata.snapshot_by_name(ref)",
        "return metadata.current_snapshot()",
        f"{_IN_FLIGHT}::test_only_a_branch_is_loaded_to_be_compacted_and_seen_from_its_own_head",
    ),
    Mutation(
        "12",
        "a tag can be compacted",
        "compactor/iceberg/tables.py",
        'if found.snapshot_ref_type != "branch":',
        "if False:",
        f"{_IN_FLIGHT}::test_only_a_branch_is_loaded_to_be_compacted_and_seen_from_its_own_head",
    ),
    Mutation(
        "12",
        "files that only another branch, a tag or an old snapshot holds are swept",
        "compactor/commit/in_flight.py",
        "for snapshot in table.metadata.snapshots\n        if not snapshot",
        "for snapshot in [table.snapshot]\n        if snapshot and not snapshot",
        f"{_IN_FLIGHT}::test_an_output_that_only_a_branch_or_an_old_snapshot_holds_is_kept",
    ),
    # --- 13 statistics ---
    Mutation(
        "13",
        "Puffin statistics stay with the old snapshot",
        "compactor/runs/run.py",
        "            carry_statistics(table, committed.snapshot_id, self._tools.right.confirm)\n",
        "            pass\n",
        f"{_GROUPS}::test_statistics_are_found_after_a_rewrite",
    ),
    # --- 15 commits ---
    Mutation(
        "15",
        "two runs of one table at once",
        "compactor/runs/dispatcher.py",
        "debt.table not in running",
        "debt.table",
        "tests/unit/runs/test_dispatcher.py::test_one_lane_per_table_and_at_most_two_tables_at_once",
    ),
    Mutation(
        "15",
        "our own commit makes a table due again",
        "compactor/runs/dispatcher.py",
        "attempt = Attempt(settled=debt)",
        "attempt = Attempt()",
        "tests/unit/runs/test_dispatcher.py::test_a_settled_table_is_not_rewritten_again_for_the_same_debt",
    ),
    Mutation(
        "15",
        "outputs are rewritten again and again",
        "compactor/planning/planner.py",
        "return len(task) > 1 or any(file.deletes for file in task)",
        "return bool(task)",
        "tests/properties/test_planner_properties.py::test_planning_again_over_the_outputs_comes_to_an_end",
    ),
    Mutation(
        "15",
        "a commit that another one beat to it is not sent again",
        "compactor/commit/replace.py",
        "    attempts = max(FEWEST_ATTEMPTS, 1 + _retries(table))\n",
        "    attempts = 1\n",
        f"{_GROUPS}::test_a_commit_lands_only_on_the_head_it_was_made_for",
    ),
    Mutation(
        "15",
        "a validation failure is retried unchanged instead of planned again",
        "compactor/commit/snapshots.py",
        "    if kind == VALIDATION:\n",
        "    if False:\n",
        f"{_GROUPS}::test_deletes_that_arrive_meanwhile_follow_their_rows[2-DELETE FROM lake.{{table}} WHERE id = 5-"
        "after the check-auto-file]",
    ),
    Mutation(
        "15",
        "outputs are deleted although it is unknown whether they were committed",
        "compactor/runs/output_record.py",
        "self.records.abandon(record)  # the sweep",
        "self.abandon(record)  # the sweep",
        f"{_STATE}::test_an_interrupt_while_the_commit_is_on_its_way_deletes_nothing",
    ),
    Mutation(
        "15",
        "a commit that landed although an error was answered is taken for lost",
        "compactor/commit/replace.py",
        "    if found is Search.FOUND:\n",
        "    if False:\n",
        f"{_STATE}::test_a_commit_that_landed_is_found_by_its_run_whatever_was_answered[CommitStateUnknownException]",
    ),
    Mutation(
        "15",
        "another part of the same run is taken for this commit",
        "compactor/commit/snapshots.py",
        "return summary.get(RUN_ID) == self.run_id and summary.get(PART) == self.part",
        "return summary.get(RUN_ID) == self.run_id",
        f"{_DECISIONS}::test_a_commit_is_known_again_by_its_run_and_its_part",
    ),
    Mutation(
        "15",
        "a dead run's outputs are deleted while its commit may still land",
        "compactor/commit/in_flight.py",
        "if head != record.seen_head or (over and now - record.seen_at > grace_seconds):",
        "if now >= record.seen_at:",
        f"{_IN_FLIGHT}::test_outputs_of_a_dead_run_go_once_the_head_has_moved",
    ),
    Mutation(
        "15",
        "a location that Hadoop spells otherwise is taken for unreferenced",
        "compactor/commit/in_flight.py",
        "    if at < 0:\n        return plain_path(location)",
        "    return plain_path(location)",
        f"{_IN_FLIGHT}::test_what_spark_wrote_is_kept_although_hadoop_spells_its_location_otherwise",
    ),
    Mutation(
        "15",
        "committed outputs are deleted where the catalog does not show their snapshot",
        "compactor/commit/in_flight.py",
        " | set(record.committed)",
        "",
        f"{_IN_FLIGHT}::test_an_output_that_was_committed_is_the_tables_even_if_no_snapshot_shows_it",
    ),
    Mutation(
        "15",
        "the head is noted before the mark that stops the owner",
        "compactor/commit/in_flight.py",
        "current = head_of(catalogs.load(record.table).metadata, record.ref)",
        "current = snapshot",
        f"{_IN_FLIGHT}::test_the_head_is_noted_after_the_mark_that_stops_the_owner",
    ),
    Mutation(
        "15",
        "a paused service on another host is taken for dead after the grace period",
        "compactor/commit/in_flight.py",
        "(over and now - record.seen_at > grace_seconds)",
        "now - record.seen_at > grace_seconds",
        f"{_IN_FLIGHT}::test_the_outputs_of_an_owner_that_is_only_silent_wait_for_the_head",
    ),
    Mutation(
        "15",
        "a run that a sweep has taken for dead commits all the same",
        "compactor/commit/in_flight.py",
        "if known is None or known.seen_at is not None:",
        "if False:",
        f"{_IN_FLIGHT}::test_a_run_that_a_sweep_has_taken_for_dead_keeps_no_lease",
    ),
    Mutation(
        "15",
        "a task that Spark starts again writes the file that the lost attempt may still write",
        "compactor/rewrite/tasks/output_task.py",
        "work.at_attempt(number)",
        "work",
        "tests/unit/rewrite/test_attempts.py::test_a_task_reports_which_attempt_wrote_its_file",
    ),
    Mutation(
        "15",
        "files of a lost attempt are on no record: nobody deletes them",
        "compactor/commit/in_flight.py",
        "for file in self.files for attempt in range(self.attempts)",
        "for file in self.files for attempt in range(1)",
        "tests/unit/rewrite/test_attempts.py::test_a_record_lists_the_files_of_all_attempts",
    ),
    Mutation(
        "15",
        "a service that another has taken over from commits all the same",
        "compactor/runs/run.py",
        "        self.right.confirm()  # last",
        "        # last",
        f"{_FENCE}::test_a_run_whose_service_was_replaced_before_the_commit_commits_and_deletes_nothing",
    ),
    Mutation(
        "15",
        "a service that another has taken over from deletes files",
        "compactor/runs/output_record.py",
        "            self.right.confirm()\n",
        "",
        f"{_FENCE}::test_a_run_whose_service_was_replaced_before_the_commit_commits_and_deletes_nothing",
    ),
    Mutation(
        "15",
        "a paused service counts its lease from the answer of the store, not from the question",
        "compactor/lease/holder.py",
        "                self._held = _Held(lease, written, began)\n",
        "                self._held = _Held(lease, written, self._clock())\n",
        f"{_LEASES}::test_at_most_one_process_may_act_at_any_time",
    ),
    Mutation(
        "15",
        "a standby takes over from a service that still renews its lease",
        "compactor/lease/decisions.py",
        "return self if content == self.content and self.since <= now else Watch(content, now)",
        "return self if self.since <= now else Watch(content, now)",
        f"{_LEASES}::test_a_standby_never_replaces_a_holder_that_renews_in_time",
    ),
    # --- 16 events are hints ---
    Mutation(
        "16",
        "an event stands for one commit: lost events are never counted",
        "compactor/debt/table_changes.py",
        "return tuple(reversed(new))",
        "return tuple(new[:1])",
        f"{_LEDGER}::test_a_walk_over_many_commits_takes_as_many_looks_as_the_budget_says",
    ),
    Mutation(
        "16",
        "an event heard twice counts twice",
        "compactor/debt/table_changes.py",
        "    while snapshot_id != counted_snapshot_id:",
        "    while not new or snapshot_id != counted_snapshot_id:",
        f"{_LEDGER}::test_a_commit_to_a_branch_changes_nothing",
    ),
    Mutation(
        "16",
        "a history with a gap is taken for one without",
        "compactor/debt/table_changes.py",
        '            return Gap("history_gap")',
        "            break",
        f"{_LEDGER}::test_a_walk_and_a_recount_agree_after_every_kind_of_change[back and on-False]",
    ),
    Mutation(
        "16",
        "tables are listed at the start only",
        "streaming/ledger/table_watcher.py",
        "this.list_again_at = min(this.list_again_at, self.ticks() + pause)",
        "this.list_again_at = pause * float('inf')",
        f"{_WATCHER}::test_sweeps_are_repeated_and_begin_when_the_stream_has_fixed_its_first_offsets",
    ),
    Mutation(
        "16",
        "sweeps begin before the stream has fixed its first offsets: a commit between the two is missed",
        "streaming/ledger/table_watcher.py",
        "started = started or self.surroundings.may_start()",
        "started = True",
        f"{_WATCHER}::test_sweeps_are_repeated_and_begin_when_the_stream_has_fixed_its_first_offsets",
    ),
    Mutation(
        "16",
        "an event of a snapshot that is not counted is taken for one that is",
        "streaming/ledger/looker.py",
        "return known is not None and announced_at <= known.loaded_at and snapshot_id in known.seen",
        "return known is not None and announced_at <= known.loaded_at",
        f"{_INBOX}::test_an_event_about_a_snapshot_that_was_counted_asks_for_no_look",
    ),
    Mutation(
        "16",
        "a rollback to a counted snapshot is taken for a late event",
        "streaming/ledger/looker.py",
        "return known is not None and announced_at <= known.loaded_at and snapshot_id in known.seen",
        "return known is not None and snapshot_id in known.seen",
        f"{_INBOX}::test_a_counted_snapshot_that_is_announced_after_the_last_look_is_news",
    ),
    Mutation(
        "16",
        "a branch that is published is taken for counted, because its snapshots were listed before",
        "streaming/ledger/looker.py",
        'array("q", _newest_ancestors(view))',
        'array("q", (each.snapshot_id for each in view.metadata.snapshots))',
        f"{_INBOX}::test_a_snapshot_of_another_branch_is_news_when_it_is_published",
    ),
    Mutation(
        "16",
        "an event during a look is lost",
        "streaming/ledger/look_queue.py",
        "            self._busy[table] = asked if before is None else before.joined(asked)\n",
        "",
        f"{_QUEUE}::test_a_table_that_is_asked_for_while_it_is_looked_at_is_looked_at_once_more",
    ),
    Mutation(
        "16",
        "a look that fails half way saves half a state",
        "compactor/storage/ledger_database.py",
        "        self._changed[number] = packed\n",
        "        self._changed[number] = packed\n        self._database.save(\n"
        "            self._name, head=None, cleared=False, slots={number: packed}\n        )\n",
        f"{_LOOKER}::test_a_look_that_fails_half_way_leaves_the_saved_state_and_the_next_one_counts_right",
    ),
    Mutation(
        "16",
        "a state that could not be saved as a whole is saved in part",
        "compactor/storage/ledger_database.py",
        "                with self._connection as connection:\n                    yield connection\n",
        "                self._connection.isolation_level = None\n                yield self._connection\n",
        f"{_DATABASE}::test_an_interrupted_save_saves_nothing",
    ),
    Mutation(
        "16",
        "a look that ends early is taken for a finished count",
        "streaming/ledger/looker.py",
        "        if update.more or not saved:  # the next look",
        "        if False:  # unfinished",
        f"{_LOOKER}::test_a_long_count_goes_on_look_by_look",
    ),
    Mutation(
        "16",
        "a table is taken for unchanged after an hour of equal tags",
        "compactor/iceberg/tables.py",
        "return self.etag if 0 <= now - self.checked_at < share * ETAG_TRUST_SECONDS else None",
        "return self.etag",
        "tests/unit/iceberg/test_conditional_load.py::"
        "test_a_tag_is_trusted_for_an_hour_at_most_and_each_tables_hour_is_its_own",
    ),
    Mutation(
        "16",
        "an answer by tag alone renews the trust in the tag",
        "compactor/iceberg/tables.py",
        "return Unchanged(known if found.by_tag else KnownVersion(known.metadata_location, found.etag, now))",
        "return Unchanged(KnownVersion(known.metadata_location, found.etag, now))",
        f"{_TAGS}::test_an_answer_by_tag_does_not_renew_the_trust_in_the_tag",
    ),
    # --- 17 Polaris ---
    Mutation(
        "17",
        "the summary property for Apache Polaris is missing",
        "compactor/commit/snapshots.py",
        'properties[POLARIS_ROLLBACK] = "rollback"',
        'properties[POLARIS_ROLLBACK] = "fail"',
        f"{_DECISIONS}::test_a_commit_is_known_again_by_its_run_and_its_part",
    ),
    Mutation(
        "17",
        "it is off by default for Apache Polaris",
        "compactor/settings/tree.py",
        'or (self.polaris_rollback == "auto" and is_polaris)',
        "",
        f"{_SETTINGS}::test_apache_polaris_is_asked_to_let_writers_win_unless_told_otherwise[auto-False-True]",
    ),
    Mutation(
        "17",
        "Apache Polaris is not recognised",
        "compactor/iceberg/tables.py",
        '.rstrip("/").endswith("/api/catalog")',
        '.endswith("polaris/api/catalog")',
        f"{_SETTINGS}::test_apache_polaris_is_known_by_its_path",
    ),
    Mutation(
        "17",
        "the setting does not reach the commit",
        "compactor/runs/run.py",
        "self.commit.rolls_back(is_polaris=self.catalogs.is_polaris(table.catalog)),",
        "False,",
        f"{_GROUPS}::test_polaris_is_asked_to_let_writers_win[always-rollback]",
    ),
    # --- writers' state in summaries ---
    Mutation(
        "state",
        "a commit expires the snapshots that carry it",
        "compactor/commit/replace.py",
        "            found = _verified(table, changes, summary)\n",
        "            found = _verified(table, changes, summary)\n"
        "            table.handle.expireSnapshots().expireOlderThan(1 << 60).cleanExpiredFiles(False).commit()\n",
        f"{_GROUPS}::test_state_that_writers_keep_in_summaries_is_found_as_before",
    ),
    Mutation(
        "15",
        "Iceberg validates from the planned snapshot although its successors expired",
        "compactor/runs/commit_groups.py",
        "from_head = not head.traced or any(",
        "from_head = any(",
        "tests/integration/test_table_kinds.py::test_a_history_that_expires_meanwhile_costs_nothing"
        "[compact_one_and_expire-before the commit-committed1-left1-2]",
    ),
    Mutation(
        "15",
        "a file that was removed while its history expired counts as there",
        "compactor/planning/conflicts.py",
        "*(entry._replace(status=Status.DELETED) for entry in removed),",
        "*(entry for entry in ()),",
        "tests/integration/test_table_kinds.py::test_a_history_that_expires_meanwhile_costs_nothing"
        "[compact_one_and_expire-before the commit-committed1-left1-2]",
    ),
)
