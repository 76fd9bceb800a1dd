"""Which deletes apply to what, which may go, and that no row goes with them: rules 2, 3, 4, 8, and conversions."""

from __future__ import annotations

from dataclasses import replace

from tests.mutations.mutation import breaks

_DECISIONS = "tests/properties/test_commit_decisions.py"
_APPLIES = f"{_DECISIONS}::test_a_delete_applies_when_and_only_when_the_spec_says_so"
_LEAVES = f"{_DECISIONS}::test_a_delete_file_leaves_when_and_only_when_no_remaining_row_needs_it"
_CONVERSION = "tests/integration/test_conversion.py"
_REBASE = "tests/unit/rebase/test_rebase.py"


# --- 2 equality deletes, 3 position deletes and vectors ---


@breaks(
    "2",
    "compactor.manifests.live_files:_Scope.equality_deletes",
    "an equality delete applies to data of its own sequence number",
    _APPLIES,
)
def by_value_to_its_own_number(original, self, of_data):
    return original(self, of_data - 1)


@breaks(
    "2",
    "compactor.commit.updates:ReplaceUpdate._lost",
    "our commit drops an equality delete that arrived since the plan (apache/iceberg 10312)",
    "tests/integration/test_commit_groups.py"
    "::test_an_equality_delete_that_arrives_meanwhile_is_not_dropped_by_our_commit[2--before the check]",
)
def none_lost(self, snapshot):
    return set()


@breaks(
    "3",
    "compactor.manifests.live_files:_Scope.position_deletes",
    "a position delete of a partition does not apply to data of its own sequence number",
    _APPLIES,
)
def by_position_to_older_ones(original, self, of_data):
    return original(self, of_data + 1)


@breaks(
    "3",
    "compactor.planning.conflicts:touched_groups",
    "a new position delete or vector against a replaced file is not noticed",
    f"{_DECISIONS}::test_a_group_is_touched_when_and_only_when_a_change_can_alter_its_rows",
)
def deletes_not_noticed(original, groups, changes):
    return original(groups, [each for each in changes if each.content.name == "DATA"])


# --- 4 dangling deletes, deletes that follow their rows ---


@breaks(
    "4",
    "compactor.planning.dangling_deletes:dangling_deletes",
    "a delete file goes with the first of the files that it applies to",
    _LEAVES,
)
def gone_with_the_first(original, coverable, rewritten, changed):
    early = [each.entry for each in coverable if each.covers & rewritten]
    return tuple(dict.fromkeys((*original(coverable, rewritten, changed), *early)))


@breaks(
    "4",
    "compactor.planning.dangling_deletes:coverable_deletes",
    "a delete file goes although it applies to files that are not rewritten",
    _LEAVES,
)
def covers_what_is_planned(original, inventory, entries):
    planned = {entry.path for entry in entries}
    everything = [file.entry for files in inventory.partitions.values() for file in files]
    return tuple(replace(each, covers=each.covers & planned) for each in original(inventory, everything))


@breaks(
    "follow",
    "compactor.rewrite.deletes.row_maps:InputRows.moved",
    "the place of an input's rows in the output is not added to the positions of its deletes",
    "tests/unit/rewrite/test_row_maps.py::test_deletes_follow_their_rows",
)
def where_they_were(original, self, positions):
    return original(self, positions) - self.start


@breaks(
    "follow",
    "compactor.rebase.settle:_deleted_now",
    "deletes that arrive while their files are rewritten do not follow the rows",
    f"{_REBASE}::test_new_deletes_follow_rows_and_join_the_carried_ones",
)
def carried_ones_only(rows, change, found):
    return rows.all_carried


# --- 8 rows ---


@breaks(
    "8",
    "compactor.runs.results:checked_result",
    "the row check takes what is missing for deleted",
    "tests/unit/rewrite/test_engine_choice.py"
    "::test_a_group_is_sound_when_three_separate_counts_add_up[deleted2-written2-False]",
)
def missing_is_deleted(original, run_id, plan, planned, parts):
    missing = planned.file_group.rows - sum(part.rows_out + part.rows_deleted for part in parts)
    first = replace(parts[0], rows_deleted=parts[0].rows_deleted + missing)
    return original(run_id, plan, planned, [first, *parts[1:]])


@breaks(
    "8",
    "compactor.rewrite.deletes.position_deletes:kept_rows",
    "positions are applied a row too far",
    "tests/unit/rewrite/test_encode_output.py::test_position_deletes_are_applied_and_counted",
)
def a_row_too_far(original, positions, start, length):
    return original(positions + 1, start, length)


# --- converted equality deletes ---


@breaks(
    "converted",
    "compactor.planning.conversion:converted",
    "deletes that apply to files of a search that was not tried are removed",
    "tests/unit/planning/test_conversion.py::test_deletes_of_files_that_were_not_searched_stay",
    f"{_CONVERSION}::test_a_search_that_fails_costs_no_other",
)
def without_being_searched(original, conversion, refused, gone):
    return original(conversion, (), gone)


@breaks(
    "converted",
    "compactor.runs.convert:_new_rows",
    "a new vector forgets the positions of the one that it replaces",
    f"{_CONVERSION}::test_equality_deletes_become_positions[3-]",
)
def only_new_positions(original, now, conversion, found, changes):
    return original(now, conversion, replace(found, by_position={}), changes)


@breaks(
    "beside",
    "compactor.planning.conversion:overtaken_by",
    "a delete or data file that a writer has committed once more is no conflict",
    "tests/unit/planning/test_conversion.py::test_what_a_writer_commits_once_more_ends_the_conversion",
)
def never_overtaken(deletes, searched, changes):
    return None


@breaks(
    "beside",
    "compactor.commit.updates:_check_parent",
    "the commit is made for a head that came after the check",
    f"{_CONVERSION}::test_a_position_delete_of_the_same_files_meanwhile[3-_rewrite_files-False]",
    f"{_CONVERSION}::test_a_rewrite_follows_the_deletes_that_a_conversion_moves_meanwhile[3]",
)
def for_any_head(table, snapshot, changes, summary):
    return None
