"""Converted equality deletes: which positions take their place, and what a commit beside them must not lose."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_SEARCH: Final = "tests/unit/rewrite/test_key_search.py"
_COMMAND: Final = "tests/unit/streaming/test_convert_command.py"
_PLANNED: Final = "tests/unit/planning/test_conversion.py"
_SEARCHES: Final = "tests/unit/runs/test_key_searches.py"
_CONVERSION: Final = "tests/integration/test_conversion.py"

MUTATIONS: Final = (
    Mutation(
        "converted",
        "a new vector forgets the positions of another commit's",
        "compactor/runs/convert.py",
        "rows[path] |= bitmap(positions)",
        "rows[path] |= BitMap64()",
        f"{_CONVERSION}::test_a_position_delete_of_the_same_files_meanwhile[3-commit_beside_others-True]",
    ),
    Mutation(
        "converted",
        "a new vector forgets the positions of the one that it replaces",
        "compactor/runs/convert.py",
        "rows[path] |= BitMap64.deserialize(found.by_position[path])",
        "rows[path] |= BitMap64()",
        f"{_CONVERSION}::test_equality_deletes_become_positions[3-]",
    ),
    Mutation(
        "converted",
        "deletes that apply to files of a search that was not tried are removed",
        "compactor/runs/convert.py",
        "in pairs if not isinstance(outcome, FoundRows)]",
        "in pairs if not isinstance(outcome, FoundRows | None)]",
        f"{_SEARCHES}::test_what_was_found_before_the_store_answered_no_more_is_kept_and_no_search_is_given_up",
    ),
    Mutation(
        "converted",
        "the commit does not notice what was committed after its check",
        "compactor/runs/convert.py",
        "compared=now.snapshot.snapshot_id if now.snapshot else None,",
        "compared=None,",
        f"{_CONVERSION}::test_a_position_delete_of_the_same_files_meanwhile[3-commit_replacements-False]",
    ),
    Mutation(
        "converted",
        "the commit is made for a head that came after the check",
        "compactor/commit/replace.py",
        "if parent != compared:",
        "if False:",
        f"{_CONVERSION}::test_a_position_delete_of_the_same_files_meanwhile[3-_rewrite_files-False]",
    ),
    Mutation(
        "converted",
        "a rewrite overlooks a conversion by another process that came after the check",
        "compactor/commit/replace.py",
        "if any(each.operation() == REPLACE and",
        "if any(False and",
        f"{_CONVERSION}::test_a_rewrite_follows_the_deletes_that_a_conversion_moves_meanwhile[3]",
    ),
    Mutation(
        "converted",
        "equality deletes that nobody can compare are removed",
        "compactor/planning/conversion.py",
        "why = not_compared(schema, delete.equality_ids) or _not_parquet(delete)",
        "why = _not_parquet(delete)",
        f"{_CONVERSION}::test_deletes_that_nobody_can_compare_stay_and_the_others_are_converted",
    ),
    Mutation(
        "converted",
        "deletes of a data file that is listed twice are converted",
        "compactor/planning/conversion.py",
        "if entry.path in twice else None",
        "if False else None",
        f"{_PLANNED}::test_deletes_that_apply_to_a_file_that_is_listed_twice_stay",
    ),
    Mutation(
        "converted",
        "a delete or data file that a writer has committed once more is no conflict",
        "compactor/planning/conversion.py",
        "if entry.identity in removed or",
        "if False and",
        f"{_PLANNED}::test_what_a_writer_commits_once_more_ends_the_conversion",
    ),
    Mutation(
        "converted",
        "a bloom filter is believed that does not know the values of its column",
        "compactor/rewrite/deletes/key_search.py",
        "if bloom is None or not all(bloom.may_hold(chunk.physical_type, [each]) for each in known):",
        "if bloom is None:",
        f"{_SEARCH}::test_a_filter_that_does_not_know_the_values_that_are_there_is_not_trusted",
    ),
    Mutation(
        "converted",
        "row groups are skipped by the statistics of another column with the same path",
        "compactor/rewrite/deletes/key_ranges.py",
        "            chunk = group.column(leaf)\n",
        "            path = group.column(leaf).path_in_schema\n"
        "            every = [group.column(index) for index in range(group.num_columns)]\n"
        "            chunk = next(each for each in reversed(every) if each.path_in_schema == path)\n",
        f"{_SEARCH}::test_statistics_of_a_column_with_the_same_path_do_not_count[a.b-False]",
    ),
    Mutation(
        "converted",
        "values are looked for in another block of the bloom filter",
        "compactor/rewrite/parquet/bloom_filter.py",
        "((digest >> 32) * len(self.words)) >> 32",
        "((digest & 0xFFFFFFFF) * len(self.words)) >> 32",
        "tests/unit/rewrite/test_bloom_filter.py::test_a_filter_knows_every_value_and_few_others",
    ),
    Mutation(
        "converted",
        "another compactor that has ended an attempt does not end the next one",
        "streaming/commands/convert.py",
        "if attempt > 1 and conversion.deletes:",
        "if False:",
        f"{_COMMAND}::test_an_attempt_that_a_compactor_has_ended_is_not_repeated[first commit]",
    ),
    Mutation(
        "converted",
        "a compactor whose snapshots have expired is none",
        "compactor/iceberg/other_compactors.py",
        "    return oldest.timestamp_ms / 1000\n",
        "    return None\n",
        "tests/unit/runs/test_table_worker.py::test_nothing_is_converted_while_the_history_may_hide_another_compactor",
    ),
    Mutation(
        "converted",
        "a lock that is taken while the commit waits for a writer is not seen",
        "compactor/runs/run_tools.py",
        "after_writer=held.after_writer))\n            hold.until_our_turn()",
        "after_writer=held.after_writer))",
        "tests/integration/test_flink_locks.py"
        "::test_a_lock_that_is_taken_while_a_rewrite_waits_for_a_writer_is_respected",
    ),
)
