"""Rule 16: events are hints, the table is the truth."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_LOOKS: Final = "tests/properties/test_ledger_looks.py"
_DATABASE: Final = "tests/unit/storage/test_ledger_database.py"
_DECODED: Final = "tests/unit/streaming/test_event_decoding.py"
_INBOX: Final = "tests/unit/streaming/ledger/test_inbox.py"
_LOOKER: Final = "tests/unit/streaming/ledger/test_looker.py"
_QUEUE: Final = "tests/unit/streaming/ledger/test_look_queue.py"
_TAGS: Final = "tests/unit/iceberg/test_etag_trust.py"
_WATCHER: Final = "tests/unit/streaming/ledger/test_table_watcher.py"

MUTATIONS: Final = (
    Mutation(
        "16",
        "an event stands for one commit: lost events are never counted",
        "compactor/debt/table_changes.py",
        "return tuple(reversed(new))",
        "return tuple(new[:1])",
        f"{_LOOKS}::test_a_walk_over_many_commits_takes_as_many_looks_as_the_budget_says",
    ),
    Mutation(
        "16",
        "an event heard twice counts twice",
        "compactor/debt/table_changes.py",
        "    while snapshot_id != counted_snapshot_id:",
        "    while not new or snapshot_id != counted_snapshot_id:",
        f"{_LOOKS}::test_a_commit_to_a_branch_changes_nothing",
    ),
    Mutation(
        "16",
        "a history with a gap is taken for one without",
        "compactor/debt/table_changes.py",
        "            return gap_in(metadata)",
        "            break",
        f"{_LOOKS}::test_a_walk_and_a_recount_agree_after_every_kind_of_change[back and on-False]",
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
    Mutation(
        "16",
        "a rewrite counts as a writer's commit: its time is measured as a writer's",
        "streaming/ledger/event_reader.py",
        '"writes": not requests and event.operation != "replace",',
        '"writes": not requests,',
        f"{_DECODED}::test_only_writers_commits_write[fields0-None]",
    ),
)
