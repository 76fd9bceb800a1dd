"""Rules 7, 10, 11, 14, branches and the defaults: which files are merged with which, by what, and whether now."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_KINDS: Final = "tests/integration/test_table_kinds.py"
_FILES: Final = "tests/integration/test_table_files.py"
_ENCODE: Final = "tests/unit/rewrite/test_encode.py"
_PARTIAL: Final = "tests/unit/rewrite/test_partial_ids.py"
_PLANNER: Final = "tests/properties/test_planner_properties.py"
_SETTINGS: Final = "tests/unit/settings/test_settings.py"
_ENGINE: Final = "tests/unit/rewrite/test_engine_choice.py"
_REFUSALS: Final = "tests/unit/rewrite/test_splice_refusals.py"
_UNPUBLISHED: Final = "tests/unit/planning/test_unpublished.py"

MUTATIONS: Final = (
    # --- 7 spec evolution ---
    Mutation(
        "7",
        "equal partition tuples of two specs are one partition",
        "compactor/partitions.py",
        "return PartitionKey(self.spec_id, json.dumps(",
        "return PartitionKey(0, json.dumps(",
        "tests/unit/test_partitions.py::test_a_key_is_the_json_array_of_the_partition_tuple",
    ),
    Mutation(
        "7",
        "the spark engine writes files of an old spec into the table's present one",
        "compactor/rewrite/tasks/spark_scan.py",
        '.option("output-spec-id", str(spec_id))',
        '.option("output-spec-id", str(table.handle.spec().specId()))',
        f"{_KINDS}::test_each_spec_is_compacted_within_itself[2-spark]",
    ),
    Mutation(
        "7",
        "a spec that lost its column is rewritten",
        "compactor/iceberg/tables.py",
        "if field.source_id not in columns)",
        "if field.source_id < 0)",
        f"{_ENGINE}::test_nobody_rewrites_files_whose_deletes_or_partitions_lost_their_column",
    ),
    # --- 10 name mapping ---
    Mutation(
        "10",
        "files without field ids are spliced",
        "compactor/rewrite/splice/checks.py",
        "if limits.require_field_ids and without_id:",
        "if False:",
        f"{_REFUSALS}::test_columns_need_field_ids",
    ),
    Mutation(
        "10",
        "files without field ids are read without a name mapping",
        "compactor/rewrite/reading/source_columns.py",
        "    if mapping is None:\n",
        "    mapping = mapping or []\n    if mapping is None:\n",
        f"{_ENCODE}::test_files_without_ids_need_a_name_mapping",
    ),
    Mutation(
        "10",
        "the name mapping is used for files that have field ids",
        "compactor/rewrite/reading/source_columns.py",
        "    if _any_id(columns):\n",
        "    if mapping is None and _any_id(columns):\n",
        f"{_ENCODE}::test_a_column_without_an_id_in_a_file_with_ids_is_nobodys",
    ),
    Mutation(
        "10",
        "encode drops values that PyIceberg finds by name in a file with some field ids",
        "compactor/rewrite/reading/files.py",
        "            check_identified(sources, self._mapping, self._written.iceberg.field_ids)\n",
        "",
        f"{_PARTIAL}::test_a_column_that_the_name_mapping_takes_for_a_missing_field",
    ),
    Mutation(
        "10",
        "Spark drops values that PyIceberg finds by name in a file with some field ids",
        "compactor/rewrite/tasks/spark_columns.py",
        "        check_identified(found, self._mapping, self._schema.field_ids)\n",
        "",
        f"{_PARTIAL}::test_a_column_that_the_name_mapping_takes_for_a_missing_field",
    ),
    # --- 11 sort orders ---
    Mutation(
        "11",
        "a sorted table is spliced",
        "compactor/planning/engine.py",
        "(is_sorted(table), Reason.SORTED,",
        "(False, Reason.SORTED,",
        f"{_ENGINE}::test_a_table_with_a_sort_order_is_sorted_anew_not_copied",
    ),
    Mutation(
        "11",
        "copied row groups are labelled sorted",
        "compactor/rewrite/tasks/runner.py",
        '"sort-order-id": UNSORTED}',
        '"sort-order-id": files[0].entry.sort_order_id or 1}',
        f"{_FILES}::test_copied_row_groups_are_not_labelled_sorted",
    ),
    Mutation(
        "11",
        "the spark engine does not sort the rows of a sorted table",
        "compactor/rewrite/tasks/spark_scan.py",
        '"true" if ordered else "false"',
        '"false"',
        f"{_FILES}::test_a_sorted_table_stays_sorted",
    ),
    Mutation(
        "11",
        "what Spark sorted by other columns first is labelled sorted",
        "compactor/rewrite/tasks/spark_scan.py",
        "            .options(**_unsorted_label(table))\n",
        "",
        f"{_FILES}::test_a_sorted_table_stays_sorted",
    ),
    # --- 14 encryption ---
    Mutation(
        "14",
        "key metadata in the manifest is overlooked",
        "compactor/manifests/decoder.py",
        '"encrypted": pc.is_valid(read.column(131)),',
        '"encrypted": pc.is_valid(read.column(140)),',
        "tests/contracts/test_manifest_decoders.py::test_decoders_agree_on_any_manifest",
    ),
    Mutation(
        "14",
        "encrypted files are spliced",
        "compactor/planning/engine.py",
        "any(encrypted for _, encrypted in kinds), Reason.ENCRYPTED",
        "False, Reason.ENCRYPTED",
        f"{_ENGINE}::test_the_engine_follows_from_what_manifests_say[encrypted]",
    ),
    Mutation(
        "14",
        "encrypted position deletes are read as they are",
        "compactor/planning/engine.py",
        'any(delete.file_format not in {"parquet", "puffin"} or delete.encrypted for delete in deletes),',
        'any(delete.file_format not in {"parquet", "puffin"} for delete in deletes),',
        f"{_ENGINE}::test_the_engine_follows_from_what_manifests_say[encrypted deletes]",
    ),
    # --- defaults ---
    Mutation(
        "defaults",
        "the target is not the table's 512 MiB",
        "compactor/iceberg/tables.py",
        "DEFAULT_TARGET_FILE_SIZE = 512 * 1024 * 1024",
        "DEFAULT_TARGET_FILE_SIZE = 128 * 1024 * 1024",
        f"{_SETTINGS}::test_the_target_is_the_policys_else_the_tables_else_icebergs",
    ),
    Mutation(
        "defaults",
        "a file is small below another share of the target than 75 %",
        "compactor/settings/policy.py",
        "default=0.75, gt=0, le=1,",
        "default=0.7, gt=0, le=1,",
        f"{_SETTINGS}::test_defaults_touch_nothing_and_are_sparks",
    ),
    Mutation(
        "defaults",
        "outputs are 180 % of the target on average",
        "compactor/debt/tiers.py",
        "return max(1, whole + (1 if rest >= ROUND_UP_FROM * target else 0))",
        "return max(1, whole)",
        f"{_PLANNER}::test_the_number_of_outputs_keeps_their_average_healthy",
    ),
    Mutation(
        "defaults",
        "outputs grow beyond 180 % of the target",
        "compactor/debt/tiers.py",
        "end = max(first, min(max(near, enough), fitting))",
        "end = max(near, enough)",
        f"{_PLANNER}::test_a_cut_loses_nothing_and_keeps_the_order",
    ),
    Mutation(
        "defaults",
        "a run leaves files that the next run merges",
        "compactor/planning/planner.py",
        "        choice = choose(files)\n    by_group",
        "        break\n    by_group",
        "tests/properties/test_one_run.py::test_a_second_run_finds_nothing_to_do",
    ),
    Mutation(
        "defaults",
        "a partition is due from another number of small files than 5",
        "compactor/settings/policy.py",
        "default=5,\n        ge=1,",
        "default=2,\n        ge=1,",
        f"{_SETTINGS}::test_defaults_touch_nothing_and_are_sparks",
    ),
    Mutation(
        "defaults",
        "due one file late",
        "compactor/planning/policy.py",
        "return self.force or files >= self.values.min_input_files or total > self.sizes.target",
        "return self.force or files > self.values.min_input_files or total > self.sizes.target",
        f"{_PLANNER}::test_the_policy_picks_what_spark_picks",
    ),
    Mutation(
        "defaults",
        "groups are larger than 100 GiB",
        "compactor/planning/planner.py",
        "bisect_right(ends, before + limits.bytes)",
        "len(files)",
        f"{_PLANNER}::test_a_group_is_larger_than_its_limit_only_when_one_file_is",
    ),
    Mutation(
        "defaults",
        "the delete ratio counts deletes that name other files",
        "compactor/manifests/live_files.py",
        "named = takewhile(lambda delete: delete.applies_to is not None, self.deletes)",
        "named = self.deletes",
        f"{_PLANNER}::test_position_deletes_without_a_named_file_are_not_in_a_files_ratio",
    ),
    Mutation(
        "defaults",
        "a file is due from another share of deleted rows than 30 %",
        "compactor/settings/policy.py",
        "default=0.3, gt=0, le=1,",
        "default=0.5, gt=0, le=1,",
        f"{_SETTINGS}::test_defaults_touch_nothing_and_are_sparks",
    ),
    Mutation(
        "15",
        "a run commits after another run has reached the limit of replace snapshots in a row",
        "compactor/runs/run_tools.py",
        " or writer_first(table, self.most_replaces(table), run_id)",
        "",
        "tests/unit/runs/test_run_tools.py::"
        "test_a_commit_waits_for_a_writer_if_another_run_has_reached_the_limit_since_the_plan",
    ),
    # --- branches that are to be published ---
    Mutation(
        "branches",
        "main is rewritten while a branch is to be published",
        "compactor/runs/turns.py",
        "theirs = locked(table.name, self.locks) or unpublished_first(table, self.clock())",
        "theirs = locked(table.name, self.locks)",
        "tests/unit/runs/test_turns.py::test_main_is_left_alone_until_a_branch_is_published",
    ),
    Mutation(
        "branches",
        "a rewrite is committed although a branch was made while it was under way",
        "compactor/runs/commit_groups.py",
        "        self._tools.check_turn(head.table)\n",
        "",
        "tests/integration/test_unpublished.py::test_a_rewrite_is_committed_after_the_branch_that_was_made_meanwhile",
    ),
    Mutation(
        "branches",
        "a merge of manifests is committed although a branch was made while it was under way",
        "compactor/commit/manifest_rewrite.py",
        "        check_turn()\n",
        "",
        "tests/integration/test_manifest_rewrite.py::"
        "test_a_merge_whose_turn_has_passed_is_not_committed_and_leaves_no_file",
    ),
    Mutation(
        "branches",
        "a merge of manifests does not ask again whose turn it is",
        "compactor/runs/table_worker.py",
        "self.planner.turns.check(self.planner.catalogs.load(name), manifests=True)",
        "del name",
        "tests/unit/runs/test_table_worker.py::test_a_merge_of_manifests_is_not_committed_once_it_is_anothers_turn",
    ),
    Mutation(
        "branches",
        "a branch that is written every day stops all rewrites of main for ever",
        "compactor/planning/unpublished.py",
        "until = min(_at(own[0]) + ABANDONED, _at(own[-1]) + LONGEST)",
        "until = _at(own[0]) + ABANDONED",
        f"{_UNPUBLISHED}::test_a_branch_that_is_kept_for_another_purpose_counts_for_a_limited_time",
    ),
    Mutation(
        "branches",
        "a branch that main has left behind stops rewrites of main",
        "compactor/planning/unpublished.py",
        "return None  # it left main before",
        "return found  # it left main before",
        f"{_UNPUBLISHED}::test_a_branch_cannot_be_published_any_more_once_main_has_moved",
    ),
)
