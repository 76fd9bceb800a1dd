"""Rules 5, 7, 9, 10, 11, 14, 18 and those beside them: row ids, columns, files that may be copied, footers, Spark."""

from __future__ import annotations

from dataclasses import replace

from tests.mutations.mutation import breaks

_CHECKS = "tests/unit/rewrite/test_spark_checks.py"
_ENCODE = "tests/unit/rewrite/test_encode.py"
_ENGINE = "tests/unit/rewrite/test_engine_choice.py"
_METRICS = "tests/unit/rewrite/test_column_metrics.py"
_OUTPUT = "tests/unit/rewrite/test_encode_output.py"
_REFUSALS = "tests/unit/rewrite/test_splice_refusals.py"


# --- 5 row lineage, 7 spec evolution ---


@breaks(
    "5",
    "compactor.rewrite.encode.encode:_with_lineage",
    "ids are counted from the start of each batch, not of the file",
    f"{_OUTPUT}::test_positions_count_from_the_start_of_a_file_of_many_batches",
)
def counted_from_the_batch(original, table, source, position):
    return original(table, source, 0)


@breaks(
    "5",
    "compactor.planning.engine:_lost_row_ids",
    "a V3 file whose row ids were not read is copied",
    f"{_ENGINE}::test_a_file_whose_row_ids_are_unknown_is_not_copied",
)
def row_ids_not_missed(table, files):
    return False


@breaks(
    "7",
    "compactor.partitions:PartitionLayout.key",
    "equal partition tuples of two specs are one partition",
    "tests/unit/test_partitions.py::test_a_key_is_the_json_array_of_the_partition_tuple",
)
def key_without_the_spec(original, self, values):
    return original(self, values)._replace(spec_id=0)


@breaks(
    "7",
    "compactor.iceberg.tables:TableView.orphans",
    "a spec that lost its column is rewritten",
    f"{_ENGINE}::test_nobody_rewrites_files_whose_deletes_or_partitions_lost_their_column",
)
def no_orphans(self, spec):
    return ()


# --- 9 field ids, 10 name mapping ---


@breaks(
    "9",
    "compactor.rewrite.reading.projection:_plans",
    "columns are matched by name",
    f"{_ENCODE}::test_columns_are_matched_by_id_whatever_their_names_and_order",
    f"{_ENCODE}::test_nested_columns_that_swapped_names",
)
def matched_by_name(original, sources, fields, arrow_fields, constants):
    ids = {field.name: field.field_id for field in fields}
    named = [replace(source, field_id=ids.get(source.name)) for source in sources]
    return original(named, fields, arrow_fields, constants)


@breaks(
    "9",
    "compactor.planning.engine:_compared_ids",
    "an equality delete over a column that the schema lacks is not refused",
    f"{_ENGINE}::test_nobody_rewrites_files_whose_deletes_or_partitions_lost_their_column",
)
def nothing_compared(deletes):
    return frozenset()


@breaks(
    "10",
    "compactor.rewrite.reading.source_columns:source_columns",
    "files without field ids are read without a name mapping",
    f"{_ENCODE}::test_files_without_ids_need_a_name_mapping",
)
def without_a_mapping(original, arrow, parquet, mapping):
    return original(arrow, parquet, mapping or [])


@breaks(
    "10",
    "compactor.rewrite.reading.source_columns:check_identified",
    "values are dropped that PyIceberg finds by name in a file with some field ids",
    "tests/unit/rewrite/test_partial_ids.py::test_a_column_that_the_name_mapping_takes_for_a_missing_field",
)
def not_identified(columns, mapping, field_ids):
    return None


# --- 11 sort orders, 14 encryption ---


@breaks(
    "11",
    "compactor.planning.engine:is_sorted",
    "a sorted table is spliced",
    f"{_ENGINE}::test_a_table_with_a_sort_order_is_sorted_anew_not_copied",
)
def never_sorted(table):
    return False


@breaks(
    "11",
    "compactor.rewrite.tasks.runner:UNSORTED",
    "copied row groups are labelled sorted",
    "tests/integration/test_table_files.py::test_copied_row_groups_are_not_labelled_sorted",
)
def labelled_sorted(original):
    return 1


@breaks(
    "14",
    "compactor.planning.engine:_not_for_arrow",
    "encrypted files are copied and decoded here",
    f"{_ENGINE}::test_the_engine_follows_from_what_manifests_say[encrypted]",
)
def taken_for_plain(original, table, key, files, deletes):
    plain = [file._replace(entry=file.entry._replace(encrypted=False)) for file in files]
    return original(table, key, plain, deletes)


# --- 18 splicing Parquet ---


@breaks(
    "18",
    "compactor.rewrite.splice.checks:refusal",
    "files are joined although their schema elements differ",
    f"{_REFUSALS}::test_schemas_must_be_identical",
)
def schemas_may_differ(original, footers, limits, *, lineage=False):
    found = original(footers, limits, lineage=lineage)
    return None if found is not None and found.reason.name == "SCHEMA_DIFFERS" else found


@breaks(
    "18",
    "compactor.rewrite.parquet.footer:moved_offset_index",
    "OffsetIndex keeps the old offsets",
    "tests/unit/rewrite/test_splice.py::test_unusual_layouts[first-True-order0-0]",
)
def index_not_moved(original, data, pages, shift):
    return original(data, pages, 0)


@breaks(
    "metrics",
    "compactor.rewrite.parquet.column_metrics:_sums",
    "a count that one input does not know looks like a small one",
    f"{_METRICS}::test_count_unknown_in_one_input_is_unknown_in_the_merged_file[nan_value_counts]",
)
def unknown_is_nothing(inputs, field_ids):
    known = {field_id for counts in inputs for field_id in counts}
    return {each: sum(counts.get(each, 0) for counts in inputs) for each in known & set(field_ids)}


@breaks(
    "metrics",
    "compactor.rewrite.parquet.column_metrics:_BoundCodec.extreme",
    "a bound that one input lacks is taken from the others",
    f"{_METRICS}::test_bound_missing_in_one_input_is_dropped_on_that_side_only",
)
def missing_bounds_passed_over(original, self, choose, encoded):
    return original(self, choose, [bound for bound in encoded if bound is not None])


# --- what filters find ---


@breaks(
    "filters",
    "compactor.rewrite.encode.doubts:doubts_of",
    "min and max of a footer leave NaN out",
    "tests/unit/rewrite/test_encode_doubts.py::test_only_chunks_with_nan_have_no_extremes",
)
def no_doubts(original, rows):
    return tuple(each & ~each for each in original(rows))


@breaks(
    "filters",
    "compactor.rewrite.encode.written_metrics:_Column.bounds",
    "metrics: a column with NaN has an upper bound",
    "tests/unit/rewrite/test_encode_metrics.py::test_readers_that_sort_nan_last_find_it_above_every_number[double]",
)
def bounds_without_nan(original, self):
    return original(replace(self, nans=0))


# --- what Spark reads ---


@breaks(
    "spark",
    "compactor.rewrite.tasks.spark_scan:ROW_BY_ROW",
    "Spark reads in columns, milliseconds as microseconds",
    "tests/integration/test_spark_misreads.py::test_milliseconds_in_a_sorted_table",
)
def in_columns(original):
    return {}


@breaks(
    "spark",
    "compactor.rewrite.tasks.spark_checks:misread_files",
    "files that Spark would misread go to Spark unseen",
    f"{_CHECKS}::test_timestamps_of_another_unit",
    f"{_CHECKS}::test_a_struct_without_any_column_of_the_table",
)
def nothing_misread(store, schemas, files, name_mapping_json):
    return None


# --- defaults, predicates ---


@breaks(
    "defaults",
    "compactor.iceberg.tables:DEFAULT_TARGET_FILE_SIZE",
    "the target is not the table's 512 MiB",
    "tests/unit/settings/test_settings.py::test_the_target_is_the_policys_else_the_tables_else_icebergs",
)
def quarter_of_the_target(original):
    return original // 4


@breaks(
    "defaults",
    "compactor.planning.policy:ThresholdPolicy._enough",
    "due one file late",
    "tests/properties/test_planner_properties.py::test_the_policy_picks_what_spark_picks",
)
def one_file_late(original, self, files, total):
    return original(self, files - 1, total)


@breaks(
    "predicates",
    "compactor.filters.projection:_as_written",
    "partition values that older writers store for moments before 1970 are left out",
    "tests/unit/filters/test_time_projections.py::test_projections_read_like_sql",
)
def as_written_today(leaf, field, kind):
    return leaf


@breaks(
    "predicates",
    "compactor.filters.values:compared",
    "a constant that the column cannot hold is rounded: x < 5.255 becomes x < 5.25",
    "tests/unit/filters/test_where.py::test_constants_mean_their_exact_value",
)
def rounded(original, key, name, operator, value):
    return original(key, name, operator, type(value)(value.stored))
