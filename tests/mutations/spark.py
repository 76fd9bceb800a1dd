"""Rule spark: what Iceberg's reader in Spark takes for other rows than there are."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_MISREADS: Final = "tests/integration/test_spark_misreads.py"
_CHECKS: Final = "tests/unit/rewrite/test_spark_checks.py"
_COLUMNS: Final = "tests/unit/rewrite/test_spark_columns.py"

MUTATIONS: Final = (
    Mutation(
        "spark",
        "Spark reads in columns, milliseconds as microseconds",
        "compactor/rewrite/tasks/spark_scan.py",
        "            .options(**ROW_BY_ROW)\n",
        "",
        f"{_MISREADS}::test_milliseconds_in_a_sorted_table",
    ),
    Mutation(
        "spark",
        "deletes that another query has read are taken from Spark's cache",
        "compactor/spark/session.py",
        '"spark.sql.iceberg.executor-cache.enabled": "false"',
        '"spark.sql.iceberg.executor-cache.enabled": "true"',
        f"{_MISREADS}::test_deletes_by_a_nested_column_after_another_query_has_read_them",
    ),
    Mutation(
        "spark",
        "what encode refuses goes to Spark unseen",
        "compactor/rewrite/tasks/runner.py",
        "found = misread(table, key, files) or misread_files(store, table.metadata.schema(), files, mapping)",
        "found = misread(table, key, files)",
        f"{_MISREADS}::test_nanoseconds_in_a_column_of_microseconds",
    ),
    Mutation(
        "spark",
        "files for Spark are not checked for misreads",
        "compactor/rewrite/tasks/runner.py",
        "found = misread(table, key, files) or misread_files(store, table.metadata.schema(), files, mapping)",
        "found = misread_files(store, table.metadata.schema(), files, mapping)",
        f"{_MISREADS}::test_a_null_struct_that_holds_the_partition_column",
    ),
    Mutation(
        "spark",
        "what only Spark can do is planned although it would change rows",
        "compactor/planning/engine.py",
        "if misunderstood is not None and _not_for_arrow(table, key, files, deletes) is not None:",
        "if misunderstood is not None and not files:",
        f"{_MISREADS}::test_row_ids_in_orc",
    ),
    Mutation(
        "spark",
        "a struct's own nulls are overlooked, only its parent's are seen",
        "compactor/planning/spark_misreads.py",
        "optional=optional or not field.required",
        "optional=optional",
        f"{_CHECKS}::test_a_partition_column_in_a_struct_that_may_be_null",
    ),
    Mutation(
        "spark",
        "a column that was dropped is compared with any of the table's",
        "compactor/rewrite/tasks/spark_checks.py",
        "[columns[field_id]] if field_id in columns else []",
        "[columns[field_id]] if field_id in columns else columns.values()",
        f"{_CHECKS}::test_units_of_columns_that_are_not_the_tables_do_not_matter",
    ),
    Mutation(
        "spark",
        "a null in a required column becomes zero",
        "compactor/rewrite/tasks/spark_scan.py",
        'f"{scan_id}-read", with_optional_columns(table, copy, schema)',
        'f"{scan_id}-read", copy',
        f"{_MISREADS}::test_a_null_in_a_required_column",
    ),
    Mutation(
        "spark",
        "decimals of another scale are rounded",
        "compactor/rewrite/tasks/exact_columns.py",
        "fitted.eqNullSafe(column)",
        "fitted.isNotNull()",
        f"{_MISREADS}::test_decimals_that_do_not_fit",
    ),
    Mutation(
        "spark",
        "decimals in the keys of a map are rounded",
        "compactor/rewrite/tasks/exact_columns.py",
        "F.when(column.isNull() | fit, column)",
        "F.when(F.lit(True), column)",
        f"{_MISREADS}::test_decimals_in_keys_of_a_map",
    ),
    Mutation(
        "spark",
        "maps that are checked are made anew: equal keys, and -0.0 beside 0.0, are refused",
        "compactor/rewrite/tasks/spark_scan.py",
        "checked(table, rows, schema)",
        "rows",
        f"{_MISREADS}::test_nested_values_that_are_checked_keep_their_bits",
    ),
    Mutation(
        "spark",
        "milliseconds that overflow as microseconds go to Spark",
        "compactor/rewrite/tasks/spark_checks.py",
        "_MOST_MILLISECONDS: Final = (2**63 - 1) // 1000",
        "_MOST_MILLISECONDS: Final = 2**63",
        f"{_CHECKS}::test_milliseconds_that_may_overflow",
    ),
    Mutation(
        "spark",
        "a struct whose columns were all replaced goes to Spark, which reads null",
        "compactor/rewrite/tasks/spark_columns.py",
        "if self._leaves[group.field_id].isdisjoint(group.ids()):",
        "if next(group.ids(), None) is None:",
        f"{_CHECKS}::test_a_struct_without_any_column_of_the_table",
    ),
    Mutation(
        "spark",
        "a file without field ids goes to Spark although there is no name mapping: columns are taken by their order",
        "compactor/rewrite/tasks/spark_columns.py",
        "if self._mapping is None and not _identified(footer):",
        "if self._mapping is None and not footer.schema:",
        f"{_COLUMNS}::test_a_file_without_ids_needs_a_name_mapping",
    ),
    Mutation(
        "spark",
        "an ORC or Avro file without field ids goes to Spark although there is no name mapping",
        "compactor/rewrite/tasks/spark_checks.py",
        "return None if entry.encrypted or mapping is not None else _unidentified(store, entry)",
        "return None",
        f"{_COLUMNS}::test_orc",
    ),
    Mutation(
        "spark",
        "of two columns with one field id Spark takes the last",
        "compactor/rewrite/tasks/spark_columns.py",
        "if count > 1 and each in self._ids",
        "if count > 2 and each in self._ids",
        f"{_COLUMNS}::test_two_columns_with_one_id",
    ),
    Mutation(
        "spark",
        "equality deletes without field ids go to Spark, which deletes other rows",
        "compactor/rewrite/tasks/spark_checks.py",
        "missing = set(delete.equality_ids) - stored_ids(store, delete)",
        "missing = set(delete.equality_ids[:0])",
        f"{_COLUMNS}::test_equality_deletes_need_the_ids_of_their_columns",
    ),
    Mutation(
        "spark",
        "a file whose footer cannot be read goes to Spark unseen",
        "compactor/rewrite/tasks/spark_checks.py",
        "if error.reason == Reason.ENCRYPTED:",
        "if error.reason:",
        f"{_CHECKS}::test_a_file_that_cannot_be_judged_is_not_left_to_spark",
    ),
    Mutation(
        "spark",
        "a repeated column that is no list goes to Spark, which takes one value for each row",
        "compactor/rewrite/tasks/spark_columns.py",
        "if _is_repeated(element) and not _is_collection(group):",
        "if _is_repeated(element) and not children and not group.fields:",
        f"{_COLUMNS}::test_a_repeated_column_that_is_no_list",
    ),
)
