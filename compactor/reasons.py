"""Reasons of errors and of skipped runs, and an engine's refusal with its reason.

A reason is a slug from this bounded set, fit for a metric label. It compares equal to its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Values as in events, metric labels and JSON."""

    # Input: settings, options, names.
    BAD_INPUT = "bad_input"
    BAD_SETTING = "bad_setting"
    BAD_OPTION = "bad_option"
    BAD_FILTER = "bad_filter"
    BAD_BRANCH = "bad_branch"
    NO_JAVA = "no_java"
    NO_TOPIC = "no_topic"
    NOT_ALLOWED = "not_allowed"
    FOREIGN_TOPIC = "foreign_topic"
    UNKNOWN_TABLE = "unknown_table"

    # Services that firnline needs.
    UNAVAILABLE = "unavailable"
    ACCESS_DENIED = "access_denied"
    CREDENTIALS_EXPIRED = "credentials_expired"
    CATALOG_UNAVAILABLE = "catalog_unavailable"
    KAFKA_UNAVAILABLE = "kafka_unavailable"
    JARS_UNAVAILABLE = "jars_unavailable"
    JAR_DIFFERS = "jar_differs"
    NO_SPACE = "no_space"
    STORE_REFUSES = "store_refuses"
    HISTORY = "history"
    MANIFEST_JOB = "manifest_job"
    SPARK_LOST = "spark_lost"
    LOOK_HANGS = "look_hangs"

    # Tables and their metadata.
    BAD_METADATA = "bad_metadata"
    TABLE_UNREADABLE = "table_unreadable"
    NAMESPACE_UNREADABLE = "namespace_unreadable"
    TABLE_REPLACED = "table_replaced"
    FORMAT_CHANGED = "format_changed"
    BRANCH_DROPPED = "branch_dropped"
    SNAPSHOT_EXPIRED = "snapshot_expired"
    HISTORY_GAP = "history_gap"
    MANIFEST_UNREADABLE = "manifest_unreadable"
    PLANS_DIFFER = "plans_differ"

    # Files.
    INPUT_MISSING = "input_missing"
    INPUT_TRUNCATED = "input_truncated"
    INPUT_CHANGED = "input_changed"
    OUTPUT_MISSING = "output_missing"
    OUTPUT_EXISTS = "output_exists"
    OUTPUT_CLOSED = "output_closed"
    UNSUPPORTED_LOCATION = "unsupported_location"
    UNSUPPORTED_ENCRYPTION = "unsupported_encryption"
    TOO_MANY_PARTS = "too_many_parts"
    ENCRYPTED = "encrypted"
    CORRUPT_PAGE = "corrupt_page"
    UNREADABLE_FOOTER = "unreadable_footer"
    UNREADABLE_DATA = "unreadable_data"
    UNREADABLE_DELETE_FILE = "unreadable_delete_file"
    FOOTER_TOO_LARGE = "footer_too_large"

    # Why an engine refuses files, or why it was chosen.
    REFUSED = "refused"
    REQUESTED = "requested"
    ROW_GROUPS_COPIED = "row_groups_copied"
    NO_ENGINE = "no_engine"
    NO_INPUTS = "no_inputs"
    DUPLICATE_INPUTS = "duplicate_inputs"
    FILE_FORMAT = "file_format"
    SORTED = "sorted"
    PARTITION_VALUE = "partition_value"
    SCHEMA_DIFFERS = "schema_differs"
    NO_FIELD_IDS = "no_field_ids"
    PARTIAL_FIELD_IDS = "partial_field_ids"
    CREATED_BY_DIFFERS = "created_by_differs"
    UNSUPPORTED_WRITER = "unsupported_writer"
    COLUMN_ORDERS_DIFFER = "column_orders_differ"
    METADATA_DIFFERS = "metadata_differs"
    EXTERNAL_COLUMN_FILES = "external_column_files"
    MALFORMED_ROW_GROUP = "malformed_row_group"
    BAD_OFFSETS = "bad_offsets"
    TOO_MANY_ROW_GROUPS = "too_many_row_groups"
    TOO_MANY_ROWS = "too_many_rows"
    ROW_GROUPS_TOO_SMALL = "row_groups_too_small"
    CHUNKS_TOO_SMALL = "chunks_too_small"
    EQUALITY_DELETES = "equality_deletes"
    POSITION_DELETES = "position_deletes"
    DELETION_VECTORS = "deletion_vectors"
    DELETES_CARRIED = "deletes_carried"
    TOO_MANY_DELETES = "too_many_deletes"
    DELETE_FILE_FORMAT = "delete_file_format"
    NESTED_PARTITION_SOURCE = "nested_partition_source"
    STRUCT_FIELDS_REPLACED = "struct_fields_replaced"
    NESTED_DEFAULT = "nested_default"
    TIMESTAMP_UNIT = "timestamp_unit"
    ORC_ROW_IDS = "orc_row_ids"
    ROW_LINEAGE = "row_lineage"
    ROW_LINEAGE_UNKNOWN = "row_lineage_unknown"
    MALFORMED_LINEAGE = "malformed_lineage"
    RESERVED_COLUMN_NAME = "reserved_column_name"
    TYPE_NOT_SUPPORTED = "type_not_supported"
    NOT_SUPPORTED_BY_ARROW = "not_supported_by_arrow"
    DUPLICATE_FIELD_IDS = "duplicate_field_ids"
    REQUIRED_FIELD_MISSING = "required_field_missing"
    COLUMN_NAMES_COLLIDE = "column_names_collide"
    STRAY_DELETE = "stray_delete"

    # Row counts and values that do not match.
    ROW_COUNT_MISMATCH = "row_count_mismatch"
    RECORD_COUNT_UNKNOWN = "record_count_unknown"
    NULL_IN_REQUIRED_FIELD = "null_in_required_field"
    VALUE_OUT_OF_RANGE = "value_out_of_range"
    NOT_ENCODABLE = "not_encodable"
    PARTITION_CHANGED = "partition_changed"

    # Runs.
    CONFLICT = "conflict"
    STOPPED = "stopped"
    LEASE_LOST = "lease_lost"
    STALLED = "stalled"
    OTHER_COMPACTOR = "other_compactor"
    REPLACES_IN_A_ROW = "replaces_in_a_row"
    FLINK_CONVERTER = "flink_converter"
    CONVERSION_REFUSED = "conversion_refused"
    FLINK_LOCK = "flink_lock"
    LOCK_UNREADABLE = "lock_unreadable"
    UNPUBLISHED = "unpublished"
    SWITCHED_OFF = "switched_off"
    NOTHING_DUE = "nothing_due"
    UNEXPECTED = "unexpected"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    TASK_LOST = "task_lost"

    # Commits.
    COMMIT_STATE_UNKNOWN = "commit_state_unknown"
    COMMIT_FAILED = "commit_failed"
    COMMIT_REFUSED = "commit_refused"
    COMMIT_DIFFERS = "commit_differs"
    MANIFEST_REWRITE_FAILED = "manifest_rewrite_failed"

    # Records of runs and requests.
    STATE_UNREADABLE = "state_unreadable"
    STATE_UNWRITABLE = "state_unwritable"


SIGNS_OF_DAMAGE: Final = frozenset(
    {
        Reason.COMMIT_DIFFERS,
        Reason.INPUT_MISSING,
        Reason.INPUT_TRUNCATED,
        Reason.CORRUPT_PAGE,
        Reason.ROW_COUNT_MISMATCH,
        Reason.UNREADABLE_DATA,
        Reason.UNREADABLE_DELETE_FILE,
        Reason.UNREADABLE_FOOTER,
    }
)
"""Of an error that is given up: rows or files of the table may be lost or wrong. Other reasons leave it as it is."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine cannot rewrite these files without loss, or should not: the reason, and a sentence for display."""

    reason: Reason
    sentence: str
