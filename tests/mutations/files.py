"""Rules 5 and 18 and what filters find: row lineage, what may be copied into one Parquet file, what footers say."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_KINDS: Final = "tests/integration/test_table_kinds.py"
_METRICS: Final = "tests/unit/rewrite/test_column_metrics.py"
_ROW_IDS: Final = "tests/unit/iceberg/test_manifests_row_ids.py"
_UPGRADES: Final = "tests/integration/test_commit_upgrades.py"
_SPLICE: Final = "tests/unit/rewrite/test_splice.py"
_REFUSALS: Final = "tests/unit/rewrite/test_splice_refusals.py"
_LAYOUTS: Final = f"{_SPLICE}::test_unusual_layouts[first-True-order0-0]"
_LINEAGE: Final = "tests/unit/rewrite/test_splice_lineage.py"
_CHECKS: Final = "compactor/rewrite/splice/checks.py"
_FOOTER: Final = "compactor/rewrite/parquet/footer.py"
_WRITER: Final = "compactor/rewrite/splice/splice.py"
_WRITTEN: Final = "compactor/rewrite/encode/writer.py"
_DOUBTED: Final = "compactor/rewrite/encode/doubts.py"
_DOUBTS: Final = "tests/unit/rewrite/test_encode_doubts.py"
_COUNTED: Final = "compactor/rewrite/encode/written_metrics.py"
_COUNTS: Final = "tests/unit/rewrite/test_encode_metrics.py"
_MERGE: Final = "compactor/rewrite/parquet/column_metrics.py"

LINEAGE: Final = (
    Mutation(
        "5",
        "splice: every row group's ids begin at the file's first",
        "compactor/rewrite/splice/lineage_chunks.py",
        "row_id = None if lineage.first_row_id is None else lineage.first_row_id + position",
        "row_id = lineage.first_row_id",
        f"{_LINEAGE}::test_every_row_keeps_what_it_had_or_inherited",
    ),
    Mutation(
        "5",
        "splice: inherited ids start again in each page",
        "compactor/rewrite/splice/inherited_chunks.py",
        "lows = [first + step * PAGE_ROWS * number for number in range(len(counts))]",
        "lows = [first for _ in counts]",
        "tests/unit/rewrite/test_inherited_chunks.py::test_other_readers_find_the_values",
    ),
    Mutation(
        "5",
        "splice: ids and sequence numbers that rows have of their own are overwritten",
        "compactor/rewrite/splice/lineage_chunks.py",
        "return pc.coalesce(own, inherited)",
        "return inherited",
        f"{_LINEAGE}::test_columns_of_other_spelling_are_read",
    ),
    Mutation(
        "5",
        "splice: ids are made up for files that have none",
        "compactor/rewrite/splice/lineage_chunks.py",
        "sequence = None if lineage.first_row_id is None else lineage.data_sequence_number",
        "sequence = lineage.data_sequence_number",
        f"{_LINEAGE}::test_what_a_file_without_ids_holds_is_not_lineage",
    ),
    Mutation(
        "5",
        "splice: a column with nulls is copied as it is, rows lose what they inherited",
        "compactor/rewrite/splice/lineage_chunks.py",
        "return chunk.null_count == 0 and",
        "return chunk.null_count is not None and",
        "tests/unit/rewrite/test_splice_lineage_layout.py::test_a_null_in_one_row_group_leaves_the_others_copied",
    ),
    Mutation(
        "5",
        "encode: ids and sequence numbers that rows have of their own are overwritten",
        "compactor/rewrite/encode/encode.py",
        "ids = pc.coalesce(table.column(width - 2), pa.array(np.arange(first, first + rows, dtype=np.int64)))",
        "ids = pa.chunked_array([pa.array(np.arange(first, first + rows, dtype=np.int64))])",
        "tests/unit/rewrite/test_encode_output.py::test_row_lineage_is_completed_as_readers_do",
    ),
    Mutation(
        "5",
        "encode: ids are counted over the rows that are left, not over the file's",
        "compactor/rewrite/encode/encode.py",
        "table = _with_lineage(table, source, position)",
        "table = _with_lineage(table, source, self._rows_read)",
        "tests/unit/rewrite/test_encode_output.py::test_positions_count_from_the_start_of_a_file_of_many_batches",
    ),
    Mutation(
        "5",
        "deleted entries of a manifest take row ids too",
        "compactor/manifests/decoder.py",
        "takes = pc.and_(pc.is_null(own), pc.not_equal(status, Status.DELETED.value)).to_numpy(zero_copy_only=False)",
        "takes = pc.is_null(own).to_numpy(zero_copy_only=False)",
        f"{_ROW_IDS}::test_entries_without_an_id_count_up_from_the_manifests",
    ),
    Mutation(
        "5",
        "manifests of V3 tables are rewritten by Iceberg's Spark action, which gives every row a new id",
        "compactor/commit/manifest_rewrite.py",
        "        if table.keeps_row_lineage:\n",
        "        if False:\n",
        "tests/integration/test_manifest_rewrite.py::test_rows_lineage_and_files_stay[PARTITIONED BY (part)-3]",
    ),
    Mutation(
        "5",
        "manifests that were read before an upgrade to V3 are committed after it: every row gets a second id",
        "compactor/commit/manifest_rewrite.py",
        "            java.check_unchanged()\n            about_to_send()\n",
        "            about_to_send()\n",
        f"{_UPGRADES}::test_the_first_commit_after_an_upgrade_gives_the_row_ids[-meanwhile]",
    ),
    Mutation(
        "5",
        "manifests without row ids are sent again after the first commit that gave ids",
        "compactor/spark/java_table.py",
        "        if self.plans_without_row_ids and self.handle.snapshot(self.view.ref).firstRowId() is not None:\n",
        "        if False:\n",
        f"{_UPGRADES}::test_the_first_commit_after_an_upgrade_gives_the_row_ids[-before]",
    ),
    Mutation(
        "5",
        "ids go on counting from one manifest to the next where several are decoded together",
        "compactor/manifests/decoder.py",
        "inherited = pc.add(_repeated(firsts, counts), pa.array(within, pa.int64()))",
        "inherited = pc.add(_repeated(firsts, counts), pa.array(before, pa.int64()))",
        "tests/contracts/test_manifest_decoders.py::test_row_ids_start_anew_in_each_manifest",
    ),
    Mutation(
        "5",
        "a V3 table's files are spliced without lineage",
        "compactor/rewrite/tasks/task_input.py",
        "lineage = plan.table.keeps_row_lineage",
        "lineage = False",
        f"{_KINDS}::test_every_format_version[3]",
    ),
    Mutation(
        "5",
        "a V3 file whose row ids were not read is copied",
        "compactor/planning/engine.py",
        "return given and any(file.entry.first_row_id is None for file in files)",
        "return given and all(file.entry.first_row_id is None for file in files)",
        "tests/unit/rewrite/test_engine_choice.py::test_a_file_whose_row_ids_are_unknown_is_not_copied",
    ),
)

REFUSED: Final = (
    Mutation(
        "18",
        "schema elements differ",
        _CHECKS,
        "if any(footer.schema != footers[0].schema for footer in footers):",
        "if any(len(footer.schema) != len(footers[0].schema) for footer in footers):",
        f"{_REFUSALS}::test_schemas_must_be_identical",
    ),
    Mutation(
        "18",
        "created_by differs",
        _CHECKS,
        "if any(footer.created_by != first for footer in footers):",
        "if any(footer.created_by.split()[:2] != first.split()[:2] for footer in footers):",
        f"{_REFUSALS}::test_created_by_must_agree",
    ),
    Mutation(
        "18",
        "column_orders differ",
        _CHECKS,
        "if any(order != orders[0] for order in orders):",
        "if False:",
        f"{_REFUSALS}::test_column_orders_must_agree",
    ),
    Mutation(
        "18",
        "key-values that readers interpret differ",
        _CHECKS,
        "pairs = Counter(pair for pair in footer.key_values if pair[0] not in _MAY_DIFFER)",
        "pairs = Counter[tuple[bytes, bytes | None]]()",
        f"{_REFUSALS}::test_metadata_that_readers_interpret_must_agree",
    ),
    Mutation(
        "18",
        "columns lie in other files",
        _CHECKS,
        "if any(ChunkField.FILE_PATH in chunk.tree.fields for chunk in _chunks(footers)):",
        "if False:",
        f"{_REFUSALS}::test_columns_in_other_files",
    ),
    Mutation(
        "18",
        "columns are encrypted",
        _FOOTER,
        "return any(chunk.is_encrypted for group in self.row_groups for chunk in group.chunks)",
        "return False",
        f"{_REFUSALS}::test_encrypted_columns",
    ),
    Mutation(
        "18",
        "the footer of an encrypted file is plain text",
        _FOOTER,
        "if {FileField.ENCRYPTION_ALGORITHM, FileField.FOOTER_SIGNING_KEY} & self.tree.fields.keys():",
        "if {FileField.FOOTER_SIGNING_KEY} & self.tree.fields.keys():",
        f"{_REFUSALS}::test_plaintext_footers_of_encrypted_files",
    ),
    Mutation(
        "18",
        "the footer is encrypted",
        _FOOTER,
        "    if magic == ENCRYPTED_MAGIC:\n",
        "    if False:\n",
        f"{_REFUSALS}::test_encrypted_footers",
    ),
    Mutation(
        "18",
        "chunks lie upon each other",
        _CHECKS,
        "if any(before.end > after.offset for before, after in pairwise(ranges)):",
        "if False:",
        f"{_REFUSALS}::test_chunks_must_lie_in_the_file_and_apart",
    ),
    Mutation(
        "18",
        "an old parquet-java whose row groups depend on each other wrote the files",
        _CHECKS,
        "if found and (found[1] is None or tuple(map(int, found.groups())) < _FIRST_SOUND_PARQUET_JAVA):",
        "if found and found[1] is None:",
        f"{_REFUSALS}::test_old_parquet_java_files_stay_apart",
    ),
)

PLACED: Final = (
    Mutation(
        "18",
        "page offsets are not moved with their pages",
        _FOOTER,
        "{field_id: (I64, offset + shift) for field_id, offset in self.page_offsets.items()}",
        "{field_id: (I64, offset) for field_id, offset in self.page_offsets.items()}",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "index_page_offset is not re-based",
        _FOOTER,
        "{field_id: (I64, offset + shift) for field_id, offset in self.page_offsets.items()}",
        "{field_id: (I64, offset + shift * (field_id != ColumnField.INDEX_PAGE_OFFSET)) "
        "for field_id, offset in self.page_offsets.items()}",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "row-group ordinals are not renumbered",
        _WRITER,
        "changes[GroupField.ORDINAL] = (I16, ordinal)",
        "changes[GroupField.ORDINAL] = (I16, group.ordinal)",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "RowGroup.file_offset is not re-based",
        _WRITER,
        "changes[GroupField.FILE_OFFSET] = (I64, start)",
        "changes[GroupField.FILE_OFFSET] = group.tree.fields[GroupField.FILE_OFFSET]",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "OffsetIndex keeps the old offsets",
        _FOOTER,
        "moved.append(location.with_fields({_PAGE_OFFSET: (I64, offset + shift)}))",
        "moved.append(location)",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "ColumnIndex is left behind",
        _WRITER,
        "return _Indexes(column_index, offset_index)",
        "return _Indexes(None, offset_index)",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "a ColumnIndex that does not fit its OffsetIndex is copied",
        _WRITER,
        "if column_index is not None and column_index_pages(column_index) != pages:",
        "if False:",
        f"{_SPLICE}::test_both_indexes_go_when_one_is_damaged",
    ),
    Mutation(
        "18",
        "bloom filters keep their old offsets",
        _FOOTER,
        "| _range_fields(bloom, ColumnField.BLOOM_OFFSET, ColumnField.BLOOM_LENGTH)",
        "| _range_fields(bloom and ByteRange(self.bloom_offset, bloom.length),"
        " ColumnField.BLOOM_OFFSET, ColumnField.BLOOM_LENGTH)",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "bloom filters are left behind",
        _WRITER,
        "ByteRange(copier.append(source.location, found), found.length) if source and found else None",
        "None",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "split_offsets are not the starts of the row groups",
        _WRITER,
        "split_offsets=tuple(starts),",
        "split_offsets=tuple(start + 1 for start in starts),",
        _LAYOUTS,
    ),
    Mutation(
        "18",
        "a file without rows gives the head although it was never compared",
        _WRITER,
        "files = [(source, footer) for source, footer in files if footer.filled_row_groups] or files[:1]",
        "files = files[:1] + [each for each in files[1:] if each[1].filled_row_groups]",
        f"{_SPLICE}::test_files_without_rows_are_skipped",
    ),
)

METRICS: Final = (
    Mutation(
        "18",
        "metrics: counts do not add up",
        _MERGE,
        "field_id: sum(counts[field_id] for counts in inputs)",
        "field_id: max(counts[field_id] for counts in inputs)",
        f"{_METRICS}::test_counts_and_sizes_add_up",
    ),
    Mutation(
        "18",
        "metrics: a count that one input does not know looks like a small one",
        _MERGE,
        "field_id: sum(counts[field_id] for counts in inputs)\n"
        "        for field_id in field_ids\n"
        "        if inputs and all(field_id in counts for counts in inputs)",
        "field_id: sum(counts.get(field_id, 0) for counts in inputs)\n"
        "        for field_id in field_ids\n"
        "        if any(field_id in counts for counts in inputs)",
        f"{_METRICS}::test_count_unknown_in_one_input_is_unknown_in_the_merged_file[nan_value_counts]",
    ),
    Mutation(
        "18",
        "metrics: integers are compared as bytes",
        _MERGE,
        "return _BoundCodec(decode, encode, (_itself,))",
        "return _BoundCodec(decode, encode, (encode,))",
        f"{_METRICS}::test_bounds_are_the_extremes_by_the_order_of_the_type",
    ),
    Mutation(
        "18",
        "metrics: strings are compared by code point alone",
        _MERGE,
        "_BoundCodec(_decode_string, str.encode, (_itself, _utf16_units))",
        "_BoundCodec(_decode_string, str.encode, (_itself,))",
        f"{_METRICS}::test_string_bound_is_dropped_where_code_points_and_utf16_units_disagree",
    ),
    Mutation(
        "18",
        "metrics: a truncated upper bound is cut again, below its values",
        _MERGE,
        "_BoundCodec(_decode_string, str.encode,",
        "_BoundCodec(_decode_string, lambda value: value[:4].encode(),",
        f"{_METRICS}::test_truncated_bounds_are_kept_as_they_are",
    ),
    Mutation(
        "18",
        "metrics: a file whose column is all null drops the others' bounds",
        _MERGE,
        "        metrics.null_value_counts.get(field_id),\n        metrics.nan_value_counts.get(field_id),\n",
        "        metrics.nan_value_counts.get(field_id),\n",
        f"{_METRICS}::test_all_null_input_is_passed_over",
    ),
    Mutation(
        "18",
        "metrics: a bound that one input lacks is taken from the others",
        _MERGE,
        "        values = [None if bound is None else self.decode(bound) for bound in encoded]\n",
        "        values = [self.decode(bound) for bound in encoded if bound is not None]\n",
        f"{_METRICS}::test_bound_missing_in_one_input_is_dropped_on_that_side_only",
    ),
    Mutation(
        "18",
        "metrics: bounds stay where a null count above zero was lost",
        _MERGE,
        "        if not _loses_a_positive_count(inputs, counted, field_id)\n",
        "",
        f"{_METRICS}::test_bounds_go_when_a_null_count_is_lost_that_was_not_zero",
    ),
    Mutation(
        "18",
        "metrics: column sizes are the inputs', not the new footer's",
        _MERGE,
        "return replace(metrics, column_sizes=dict(sizes))",
        "return metrics",
        f"{_METRICS}::test_column_sizes_of_the_footer_replace_the_sums",
    ),
)

FILTERS: Final = (
    Mutation(
        "filters",
        "min and max of a footer leave NaN out",
        _WRITTEN,
        "self._doubts.append(doubts_of(table))",
        "self._doubts.append(())",
        f"{_DOUBTS}::test_only_chunks_with_nan_have_no_extremes",
    ),
    Mutation(
        "filters",
        "all row groups lose min and max where one has a NaN: queries read more than before",
        _WRITTEN,
        "self._doubts.append(doubts_of(table))",
        "self._doubts = [doubts_of(table)] * (len(self._doubts) + 1)",
        f"{_DOUBTS}::test_only_chunks_with_nan_have_no_extremes",
    ),
    Mutation(
        "filters",
        "min and max of pages leave NaN out",
        _DOUBTED,
        "tree = tree.without(ChunkField.COLUMN_INDEX_OFFSET, ChunkField.COLUMN_INDEX_LENGTH)",
        "tree = chunk.tree",
        f"{_DOUBTS}::test_only_chunks_with_nan_have_no_extremes",
    ),
    Mutation(
        "filters",
        "NaN in the values of a map are overlooked",
        _DOUBTED,
        "yield from _doubts(kind.item_type, [_elements(array, array.items) for array in arrays])",
        "yield from _doubts(kind.item_type, [array.items[:0] for array in arrays])",
        f"{_DOUBTS}::test_nan_in_structs_lists_and_maps",
    ),
    Mutation(
        "filters",
        "min and max of UUIDs are those of unsigned bytes, Iceberg compares signed longs",
        _DOUBTED,
        "yield Doubt.NONE if _are_ordered_alike(arrays) else Doubt.EXTREMES",
        "yield Doubt.NONE",
        f"{_DOUBTS}::test_uuids_have_extremes_where_both_orders_are_the_same",
    ),
    Mutation(
        "filters",
        "a dictionary tells that a row group with -0.0 has no 0.0",
        _DOUBTED,
        "metadata.without(ColumnField.ENCODING_STATS, ColumnField",
        "metadata.without(ColumnField",
        f"{_DOUBTS}::test_only_chunks_with_minus_zero_hide_their_members[double]",
    ),
    Mutation(
        "filters",
        "a bloom filter tells that a row group with -0.0 has no 0.0",
        _DOUBTED,
        "ColumnField.BLOOM_OFFSET, ColumnField.BLOOM_LENGTH)",
        "ColumnField.BLOOM_LENGTH)",
        f"{_DOUBTS}::test_only_chunks_with_minus_zero_hide_their_members[double]",
    ),
    Mutation(
        "filters",
        "metrics: a column with NaN has an upper bound",
        _COUNTED,
        "None if self.nans else encode(high or 0.0)",
        "encode(high or 0.0)",
        f"{_COUNTS}::test_readers_that_sort_nan_last_find_it_above_every_number[double]",
    ),
    Mutation(
        "filters",
        "metrics: a column of NaN alone is taken for one without values",
        _COUNTED,
        "self.is_floating and not 0 < self.nans == self.values",
        "self.is_floating",
        f"{_COUNTS}::test_readers_that_sort_nan_last_find_it_above_every_number[double]",
    ),
    Mutation(
        "filters",
        "metrics: the upper bound of other files holds for one of NaN alone",
        _MERGE,
        "if any(_holds_nan_alone(each, field_id) for each in inputs):",
        "if not inputs:",
        f"{_METRICS}::test_all_nan_input_drops_the_upper_bound_alone",
    ),
)

MUTATIONS: Final = LINEAGE + REFUSED + PLACED + METRICS + FILTERS
