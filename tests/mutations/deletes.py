"""Rules 2, 3, 4, 8 and 9: which deletes apply to what, which may go, and that no row goes with them."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_DECISIONS: Final = "tests/properties/test_commit_decisions.py"
_APPLIES: Final = f"{_DECISIONS}::test_a_delete_applies_when_and_only_when_the_spec_says_so"
_LEAVES: Final = f"{_DECISIONS}::test_a_delete_file_leaves_when_and_only_when_no_remaining_row_needs_it"
_TOUCHED: Final = f"{_DECISIONS}::test_a_group_is_touched_when_and_only_when_a_change_can_alter_its_rows"
_CONFLICTS: Final = "tests/unit/planning/test_conflicts.py"
_GROUPS: Final = "tests/integration/test_commit_groups.py"
_KINDS: Final = "tests/integration/test_table_kinds.py"
_FILES: Final = "tests/integration/test_table_files.py"
_ENGINE: Final = "tests/unit/rewrite/test_engine_choice.py"
_ENCODE: Final = "tests/unit/rewrite/test_encode.py"
_BY_VALUE: Final = (
    "tests/unit/rewrite/test_equality_deletes.py::test_rows_equal_in_the_compared_columns_go_if_the_delete_is_newer"
)
_ROW_MAPS: Final = "tests/unit/rewrite/test_row_maps.py"

MUTATIONS: Final = (
    # --- 2 equality deletes ---
    Mutation(
        "2",
        "an equality delete applies to data of its own sequence number",
        "compactor/manifests/live_files.py",
        "return file.data_sequence_number < delete.data_sequence_number",
        "return file.data_sequence_number <= delete.data_sequence_number",
        _APPLIES,
    ),
    Mutation(
        "2",
        "encode: an equality delete removes rows of its own sequence number",
        "compactor/rewrite/deletes/equality_deletes.py",
        "keys.newest_deletes(rows) > sequence_numbers",
        "keys.newest_deletes(rows) >= sequence_numbers",
        _BY_VALUE,
    ),
    Mutation(
        "2",
        "encode: a null in an equality delete removes nothing",
        "compactor/rewrite/deletes/equality_deletes.py",
        "pc.index_in(_storage(rows.column(self.name)), value_set=self.values)",
        "pc.index_in(_storage(rows.column(self.name)), value_set=self.values, skip_nulls=True)",
        _BY_VALUE,
    ),
    Mutation(
        "2",
        "encode: of two deletes of one value the older one counts",
        "compactor/rewrite/deletes/equality_deletes.py",
        "np.maximum.at(newest,",
        "np.put(newest,",
        _BY_VALUE,
    ),
    Mutation(
        "2",
        "encode: columns are compared one by one, not together",
        "compactor/rewrite/deletes/equality_deletes.py",
        "pc.add(pc.multiply(number, len(column.values)), column.numbers(rows))",
        "column.numbers(rows)",
        _BY_VALUE,
    ),
    Mutation(
        "2",
        "an equality delete of an unpartitioned spec stays within that spec",
        "compactor/manifests/live_files.py",
        "elif delete.content is Content.EQUALITY_DELETES and layouts[delete.key.spec_id].is_unpartitioned:",
        "elif False:",
        _APPLIES,
    ),
    Mutation(
        "2",
        "a spec of void fields only counts as partitioned",
        "compactor/partitions.py",
        "return len(self.void_fields) == len(self.names)",
        "return not self.names",
        _APPLIES,
    ),
    Mutation(
        "2",
        "deletes meet data of another spec with the same partition tuple",
        "compactor/manifests/live_files.py",
        "*self.by_partition.get(file.key, ()),",
        "*(each for key, found in self.by_partition.items() if key.values == file.key.values for each in found),",
        _APPLIES,
    ),
    Mutation(
        "2",
        "our commit drops an equality delete that arrived since the plan (apache/iceberg 10312)",
        "compactor/commit/snapshots.py",
        "            if follows and not lost:\n",
        "            if follows:\n",
        f"{_GROUPS}::test_an_equality_delete_that_arrives_meanwhile_is_not_dropped_by_our_commit[2--before the check]",
    ),
    Mutation(
        "2",
        "an equality delete with a number that was given a second time does not apply to the outputs",
        "compactor/planning/conflicts.py",
        "any(entry.data_sequence_number <= planned for",
        "any(entry.data_sequence_number < 0 for",
        f"{_CONFLICTS}::test_an_upsert_with_the_planned_snapshots_number_is_not_hidden_from_the_outputs",
    ),
    Mutation(
        "2",
        "outputs get a number that a restored table has not reached: later deletes do not apply to them",
        "compactor/planning/conflicts.py",
        "return head < planned or any(",
        "return any(",
        f"{_CONFLICTS}::test_outputs_do_not_get_a_number_that_the_restored_table_has_not_reached",
    ),
    Mutation(
        "2",
        "such a delete is put in again with a new number: it hits rows written after it",
        "compactor/commit/snapshots.py",
        "rewrite.addFile(file, file.dataSequenceNumber())",
        "rewrite.addFile(file)",
        f"{_GROUPS}::test_an_equality_delete_that_arrives_meanwhile_is_not_dropped_by_our_commit[2--before the check]",
    ),
    Mutation(
        "2",
        "an added file does not inherit its manifest's sequence number",
        "compactor/manifests/decoder.py",
        "inherits = pc.or_(pc.equal(of_manifest, 0), pc.equal(status, Status.ADDED.value))",
        "inherits = pc.equal(of_manifest, 0)",
        "tests/contracts/test_manifest_decoders.py::test_decoders_agree_on_any_manifest",
    ),
    # --- 3 position deletes and deletion vectors ---
    Mutation(
        "3",
        "a position delete does not apply to data of its own sequence number",
        "compactor/manifests/live_files.py",
        "or file.data_sequence_number <= delete.data_sequence_number",
        "or file.data_sequence_number < delete.data_sequence_number",
        _APPLIES,
    ),
    Mutation(
        "3",
        "position deletes apply beside the deletion vector that took their place",
        "compactor/manifests/live_files.py",
        "if not any(delete.is_deletion_vector for delete in applying):",
        "if applying or True:",
        "tests/integration/test_broken_rules.py::test_a_deletion_vector_takes_the_place_of_older_position_deletes",
    ),
    Mutation(
        "3",
        "a delete of another partition than the file it names is overlooked under a filter",
        "compactor/runs/dropped_groups.py",
        "strays = touched_groups([planned.file_group for planned in plan.groups], entries)",
        "strays = touched_groups([planned.file_group for planned in plan.groups], entries[:0])",
        "tests/integration/test_broken_rules.py::test_a_delete_of_another_partition_than_its_file_is_not_overlooked",
    ),
    Mutation(
        "3",
        "a new position delete of the partition is not noticed",
        "compactor/planning/conflicts.py",
        "hit = in_partition.get(entry.key, [])",
        "hit = []",
        _TOUCHED,
    ),
    Mutation(
        "3",
        "a new deletion vector against a replaced file is not noticed",
        "compactor/planning/conflicts.py",
        "hit = [owner[entry.applies_to]] if entry.applies_to in owner else []",
        "hit = []",
        _TOUCHED,
    ),
    Mutation(
        "3",
        "a new position delete costs every group its place, not only the one it hits",
        "compactor/planning/conflicts.py",
        "hit = in_partition.get(entry.key, [])",
        "hit = list(range(len(groups)))",
        _TOUCHED,
    ),
    Mutation(
        "3",
        "vectors of many files in one Puffin file are taken for one",
        "compactor/planning/conflicts.py",
        "hit = using_delete.get((entry.path, entry.applies_to), [])",
        "hit = [index for key, found in using_delete.items() if key[0] == entry.path for index in found]",
        f"{_DECISIONS}::test_vectors_that_share_a_puffin_file_are_told_apart",
    ),
    Mutation(
        "3",
        "a delete that comes between our check and the commit is overlooked by Iceberg's validation",
        "compactor/commit/snapshots.py",
        "    rewrite.validateFromSnapshot(table.snapshot_id if validated_at is None else validated_at)\n",
        "    rewrite.validateFromSnapshot(table.handle.currentSnapshot().snapshotId())\n",
        f"{_GROUPS}::test_deletes_that_arrive_meanwhile_follow_their_rows[2-DELETE FROM lake.{{table}} WHERE id = 5-"
        "after the check-auto-file]",
    ),
    Mutation(
        "3",
        "one group's conflict, found by Iceberg, ends the run for all groups",
        "compactor/runs/races.py",
        "if error.reason != Reason.CONFLICT or attempt == RACES:",
        "if error:",
        f"{_GROUPS}::test_deletes_that_arrive_meanwhile_follow_their_rows[2-DELETE FROM lake.{{table}} WHERE id = 5-"
        "after the check-auto-file]",
    ),
    # --- 4 dangling deletes ---
    Mutation(
        "4",
        "a delete that an earlier attempt has dropped is not there after a rollback",
        "compactor/commit/snapshots.py",
        "return before is None or",
        "return True or",
        "tests/integration/test_commit_races.py::test_a_delete_that_a_rollback_makes_necessary_again_stays",
    ),
    Mutation(
        "4",
        "delete files leave although a rollback has brought their data files back",
        "compactor/commit/replace.py",
        "if parent != compared:",
        "if False:",
        "tests/integration/test_deletion_vectors_leave.py::"
        "test_vectors_whose_files_come_back_while_the_commit_is_made_stay",
    ),
    Mutation(
        "4",
        "a delete file goes with the first of the files it covers",
        "compactor/planning/dangling_deletes.py",
        "if delete.covers <= rewritten and",
        "if (delete.covers & rewritten or not delete.covers) and",
        _LEAVES,
    ),
    Mutation(
        "4",
        "a delete file goes before the oldest file that it applies to",
        "compactor/planning/dangling_deletes.py",
        "CoverableDelete(delete, frozenset(applies_to[delete.identity]))",
        "CoverableDelete(delete, frozenset(sorted(applies_to[delete.identity])[1:]))",
        _LEAVES,
    ),
    Mutation(
        "4",
        "a global equality delete is judged by its own partition (Iceberg's RemoveDanglingDeletes)",
        "compactor/planning/dangling_deletes.py",
        "applies_to[delete.identity].add(file.entry.path)",
        "applies_to[delete.identity].update({file.entry.path} if delete.key == file.entry.key else ())",
        _LEAVES,
    ),
    Mutation(
        "4",
        "deletion vectors stay when their data files leave",
        "compactor/planning/dangling_deletes.py",
        "if inventory.not_as_json(delete.key) is None and",
        "if not delete.is_deletion_vector and inventory.not_as_json(delete.key) is None and",
        _LEAVES,
    ),
    Mutation(
        "4",
        "a commit names delete files of a spec that lost its column",
        "compactor/partitions.py",
        "        if self.orphans:",
        "        if len(self.orphans) > 1:",
        f"{_KINDS}::test_dangling_deletes_of_a_spec_whose_column_was_dropped_do_not_stop_a_commit[equality]",
    ),
    Mutation(
        "4",
        "the deletion vectors of one Puffin file are taken for one",
        "compactor/iceberg/manifest_entries.py",
        "return self.path, self.blob",
        "return self.path, None",
        _LEAVES,
    ),
    Mutation(
        "4",
        "a delete file that somebody else has removed is removed again",
        "compactor/planning/dangling_deletes.py",
        "delete.covers <= rewritten and delete.entry.identity not in gone",
        "delete.covers <= rewritten",
        _LEAVES,
    ),
    Mutation(
        "4",
        "covered V2 position-delete files stay",
        "compactor/commit/replace.py",
        "table.delete_files([delete_file(entry) for entry in dangling])",
        "table.delete_files([])",
        f"{_GROUPS}::test_position_deletes_leave_with_the_last_file_they_cover[auto-partition]",
    ),
    Mutation(
        "4",
        "part two of a run counts what part one has rewritten, although it was rolled back",
        "compactor/runs/commit_groups.py",
        "rewritten = {file.entry.path for group, _ in pairs for file in group.planned.file_group.files}",
        "rewritten = {file.entry.path for group in plan.groups for file in group.file_group.files}",
        f"{_GROUPS}::test_deletes_stay_when_an_earlier_part_of_the_run_was_rolled_back",
    ),
    Mutation(
        "3",
        "deletes that arrive while their files are rewritten do not follow the rows",
        "compactor/rebase/settle.py",
        "mine.update(each.moved(now).astype(np.uint64))",
        "mine.update(each.moved(before).astype(np.uint64))",
        f"{_GROUPS}::test_deletes_that_arrive_meanwhile_follow_their_rows[2-UPDATE lake.{{table}} SET k = 100 WHERE "
        "id = 5-before the check-encode-file]",
    ),
    Mutation(
        "4",
        "deleted rows that a splice copies are not deleted in the output",
        "compactor/rebase/settle.py",
        "before = unpacked(each.carried)",
        "before = NO_POSITIONS",
        f"{_GROUPS}::test_few_deleted_rows_are_copied_and_deleted_in_the_output[2-file]",
    ),
    Mutation(
        "4",
        "the place of an input's rows in the output is not added to the positions of its deletes",
        "compactor/rewrite/deletes/row_maps.py",
        "return self.start + there - np",
        "return there - np",
        f"{_ROW_MAPS}::test_deletes_follow_their_rows",
    ),
    Mutation(
        "4",
        "rows that a rewrite left out are counted when later rows of the input are deleted",
        "compactor/rewrite/deletes/row_maps.py",
        "return self.start + there - np.searchsorted(dropped, there)",
        "return self.start + there",
        f"{_ROW_MAPS}::test_deletes_follow_their_rows",
    ),
    Mutation(
        "3",
        "deletes that a rewrite has applied are taken back, and nobody notices",
        "compactor/rebase/settle.py",
        "    if any(len(np.setdiff1d(",
        "    if False and any(len(np.setdiff1d(",
        "tests/unit/rebase/test_rebase.py::test_deletes_that_were_taken_back_are_a_conflict[True]",
    ),
    Mutation(
        "4",
        "delete files that name only rewritten files stay if they are newer than the plan",
        "compactor/runs/commit_groups.py",
        "rewritten, gone), *changes.new_ones_of(rewritten))",
        "rewritten, gone),)",
        f"{_GROUPS}::test_deletes_that_arrive_meanwhile_follow_their_rows[3-DELETE FROM lake.{{table}} WHERE id = 5-"
        "before the check-encode-file]",
    ),
    # --- 8 rows are counted ---
    Mutation(
        "8",
        "the row check takes what is missing for deleted",
        "compactor/runs/results.py",
        "rows_deleted = sum(part.rows_deleted for part in parts)",
        "rows_deleted = rows_in - rows_out",
        f"{_ENGINE}::test_a_group_is_sound_when_three_separate_counts_add_up[deleted2-written2-False]",
    ),
    Mutation(
        "8",
        "encode counts as deleted what it has not written",
        "compactor/rewrite/encode/encode.py",
        "if written.rows != self._rows_read - self._rows_deleted:",
        "if written.rows != self._rows_read - (self._rows_read - written.rows):",
        "tests/unit/rewrite/test_encode_output.py::test_deleted_rows_are_counted_from_the_deletes_not_from_what_is_left",
    ),
    Mutation(
        "8",
        "the spark engine counts as deleted what it has not written (StarRocks 77797)",
        "compactor/rewrite/tasks/spark_scan.py",
        "rows_deleted=deleted,",
        "rows_deleted=sum(int(task.file().recordCount()) for task in scan_tasks) - rows_out,",
        f"{_FILES}::test_rows_that_a_filter_takes_away_while_spark_reads_are_noticed",
    ),
    Mutation(
        "8",
        "a spliced file's rows are not compared with the manifests'",
        "compactor/rewrite/splice/checks.py",
        "if sum(counts) != footer.num_rows or min(counts, default=0) < 0:",
        "if min(counts, default=0) < 0:",
        f"tests/unit/rewrite/test_splice_refusals.py::test_row_counts_must_add_up[{60 - 1}]",
    ),
    Mutation(
        "8",
        "positions are applied a row too far",
        "compactor/rewrite/deletes/position_deletes.py",
        "kept[positions[first:last] - start] = False",
        "kept[(positions[first:last] - start + 1) % length] = False",
        "tests/unit/rewrite/test_encode_output.py::test_position_deletes_are_applied_and_counted",
    ),
    Mutation(
        "8",
        "a data file without a vector in its Puffin file loses no row",
        "compactor/rewrite/deletes/deletion_vectors.py",
        "if len(vectors) != 1:",
        "if not vectors:\n            continue\n        if len(vectors) != 1:",
        "tests/unit/rewrite/test_deletion_vectors.py::test_what_cannot_be_trusted_is_no_vector",
    ),
    Mutation(
        "8",
        "a damaged deletion vector is applied as it is",
        "compactor/rewrite/deletes/deletion_vectors.py",
        'int.from_bytes(data[-_CHECKSUM:], "big") == zlib.crc32(body)',
        "True",
        "tests/unit/rewrite/test_deletion_vectors.py::test_what_cannot_be_trusted_is_no_vector",
    ),
    Mutation(
        "8",
        "the first vector of a Puffin file is every data file's",
        "compactor/rewrite/deletes/deletion_vectors.py",
        "vectors = found[path]",
        "vectors = next(iter(found.values()))",
        "tests/unit/rewrite/test_deletion_vectors.py::test_every_position_of_the_files_asked_for",
    ),
    # --- 4 dangling deletes, under a filter ---
    Mutation(
        "4",
        "a delete is taken for dangling although manifests it may apply to were not read",
        "compactor/planning/inventory.py",
        "_deletes_known(deletes, rows, layouts, kept) if skipped else deletes",
        "deletes",
        "tests/integration/test_where.py::test_a_filtered_run_leaves_deletes_that_may_apply_elsewhere",
    ),
    Mutation(
        "8",
        "a page that fails its checksum is left to Spark, which does not look",
        "compactor/rewrite/tasks/output_task.py",
        "{Reason.ROW_COUNT_MISMATCH, Reason.CORRUPT_PAGE, ",
        "{Reason.ROW_COUNT_MISMATCH, ",
        "tests/unit/rewrite/test_encode_output.py::test_a_flipped_bit_in_a_page_is_noticed",
    ),
    Mutation(
        "8",
        "the spark engine does not look at the checksums of pages",
        "compactor/spark/session.py",
        '"spark.hadoop.parquet.page.verify-checksum.enabled": "true"',
        '"spark.hadoop.parquet.page.verify-checksum.enabled": "false"',
        "tests/integration/test_broken_rules.py::test_a_damaged_page_is_not_written_anew_as_if_it_were_sound",
    ),
    # --- 9 field ids ---
    Mutation(
        "9",
        "columns are matched by name",
        "compactor/rewrite/reading/projection.py",
        "position = by_id.get(field.field_id)",
        "position = next((at for at, each in enumerate(sources) if each.name == field.name), None)",
        f"{_ENCODE}::test_columns_are_matched_by_id_whatever_their_names_and_order",
    ),
    Mutation(
        "9",
        "columns inside structs are matched by name",
        "compactor/rewrite/reading/projection.py",
        "    plans = _plans(source.children, target.fields, arrow, constants)\n",
        "    ids = {field.name: field.field_id for field in target.fields}\n"
        "    replaced = __import__('dataclasses').replace\n"
        "    named = [replaced(each, field_id=ids.get(each.name)) for each in source.children]\n"
        "    plans = _plans(named, target.fields, arrow, constants)\n",
        f"{_ENCODE}::test_nested_columns_that_swapped_names",
    ),
    Mutation(
        "9",
        "an equality delete over a column that the schema lacks is not refused",
        "compactor/planning/engine.py",
        "ids = _compared_ids(deletes) - set(columns)",
        "ids = _compared_ids(deletes) - set(columns) - {*range(1000)}",
        f"{_ENGINE}::test_nobody_rewrites_files_whose_deletes_or_partitions_lost_their_column",
    ),
)
