"""The rules in words: what docs/rules.md says besides its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Rule:
    """A rule that a rewrite must keep.

    Attributes:
        key: As mutations name it.
        title: A few words.
        text: What has to hold, and what happens otherwise.
        also: What keeps the rule without a mutation of its own, and why there is none; may be empty.
    """

    key: str
    title: str
    text: str
    also: str = ""


RULES: Final = (
    Rule(
        "1",
        "Sequence numbers",
        "A run plans and reads one snapshot S, commits its outputs with the data sequence number of S, and validates "
        "from S. A planned snapshot that has expired is planned again; what was committed is looked for in the table "
        "before it is believed (apache/iceberg 17202).",
    ),
    Rule(
        "2",
        "Equality deletes",
        "Apply to older data (`<`) of the same spec and partition; everywhere when their spec is unpartitioned. Newer "
        "ones apply to outputs too, which carry S's number: a commit must not drop them (apache/iceberg 10312).",
    ),
    Rule(
        "3",
        "Position deletes and deletion vectors",
        "Apply to data up to their own number (`<=`). A new one against a replaced file costs its group the "
        "commit, and no other group. A file's vector leaves in the same commit as the file.",
        "A file's vectors leave by themselves: Iceberg's commit (1.11) removes those of removed files even where "
        "`compactor/commit/snapshots.py` does not name them, so that leaving them out breaks nothing; "
        "`test_position_deletes_leave_with_their_rows` looks at it.",
    ),
    Rule(
        "4",
        "Dangling deletes",
        "A delete file leaves with the last live file that it applies to, wherever that is, and not before. Iceberg's "
        "RemoveDanglingDeletes compares within a partition, which brings rows back where a delete is global; its "
        "commit removes vectors only.",
        "A delete file of a partition whose value JSON cannot carry (NaN, infinite, of a dropped column) stays.",
    ),
    Rule(
        "follow",
        "Deletes follow their rows",
        "Rows that are deleted while their files are rewritten, and deleted rows that a splice copies, are deleted in "
        "the outputs by the same commit. Where their place is not known, the group is not committed.",
    ),
    Rule("5", "Row lineage", "In V3 every row keeps its `_row_id` and `_last_updated_sequence_number`."),
    Rule("6", "Format version", "A table whose format version changed during the run is not committed to."),
    Rule("7", "Spec evolution", "Files of an old spec are merged within that spec."),
    Rule(
        "8",
        "Rows",
        "`where` selects files, never rows (StarRocks 77797). Rows in, rows deleted and rows out come from three "
        "separate counts, so that a lost row cannot look like a deleted one.",
    ),
    Rule(
        "9",
        "Field ids",
        "Columns are matched by id. An equality delete over an id that the schema lacks leaves its files alone.",
    ),
    Rule(
        "10",
        "Name mapping",
        "Files without field ids need the table's name mapping and are never spliced. A file is left alone where a "
        "column without an id, beside others with one, is by name a field that the file otherwise lacks: readers "
        "disagree about it.",
    ),
    Rule(
        "11",
        "Sort orders",
        "Merged row groups are not sorted and not labelled so. A sorted table goes to the `spark` engine, which sorts.",
    ),
    Rule(
        "12",
        "Branches and tags",
        "Only the named branch is compacted; a tag never. Files that any retained snapshot holds stay on disk.",
    ),
    Rule("13", "Statistics", "Puffin statistics are registered for the new snapshot too, or readers lose them."),
    Rule("14", "Encryption", "Encrypted files are never spliced or decoded here. See also 18."),
    Rule(
        "15",
        "Commits",
        "One `replace` commit is made for one head, inspected, and sent once. A lost race is retried with new metadata "
        "only, a failed validation is planned again. What the commit adds is there right before it is sent.",
        "The operation is what Iceberg's RewriteFiles says, there is no small way to break it; every run of "
        "`compact_check.py` looks at it.",
    ),
    Rule(
        "unknown",
        "Unknown outcomes",
        "An unknown outcome deletes nothing until the run id in the summaries, or a state of the table in which the "
        "commit cannot land any more, settles it.",
    ),
    Rule("lanes", "One run at a time", "A table has one run at a time, and our own commits are no reason to work."),
    Rule(
        "record",
        "Outputs on record",
        "Every file that an attempt may write is on record before its first byte, every snapshot before it is sent.",
    ),
    Rule(
        "sweep",
        "Clean-up",
        "Only a run's own files are deleted, in its table's folders, when no retained snapshot has them, the run is "
        "over and nothing of it can land any more.",
    ),
    Rule(
        "lease",
        "Lease and fencing",
        "A service that another has replaced commits nothing and deletes no data file. A service that renews its lease "
        "is not replaced.",
    ),
    Rule(
        "16",
        "Events",
        "Are hints: they may be lost, repeated, out of order or forged. Counts come from the table's own history, and "
        "every table is looked at once per sweep.",
        "`TestLedger` plays random histories and looks against a recount.",
    ),
    Rule(
        "17",
        "Apache Polaris",
        "The summary asks Polaris to roll our snapshot back when a writer conflicts with it; by default where the "
        "catalog is Polaris and the format version 1 or 2. Rewrites that are rolled back are committed again, without "
        "being written again.",
    ),
    Rule(
        "18",
        "Splicing Parquet",
        "Files are copied together only where whatever could change the meaning of their bytes agrees; every offset "
        "moves with its bytes.",
        "`test_splice_writers.py` looks at the bytes of six writers, and every other reader at the rows.",
    ),
    Rule(
        "metrics",
        "Metrics of merged files",
        "The manifest's metrics of a merged file promise no more than those of its inputs did: what one of them does "
        "not know is not known.",
    ),
    Rule(
        "filters",
        "What filters find",
        "A query finds after a rewrite every row that it found before. Readers skip files and row groups by bounds, "
        "dictionaries and bloom filters, but compare NaN, -0.0 and UUIDs in different ways: what one of them "
        "misunderstands, `encode` does not write: unlike Iceberg's writer, no upper bound for a column with NaN (which "
        "Spark sorts last), and bounds of zero that take both zeros in.",
        "`test_filters_find_what_other_readers_compare_otherwise` asks Spark. What row groups that are copied say of "
        "their values stays as it is.",
    ),
    Rule(
        "spark",
        "What Spark reads",
        "The `spark` engine writes what Iceberg's reader in Spark reads, and counts cannot tell where that is not what "
        "the files hold. It reads row by row, without its cache of deletes; what it misreads even so (files without "
        "field ids and name mapping, timestamps in another unit than the table's, nulls of a struct that a partition "
        "column lies in, structs whose columns were all replaced or that begin with a default, row ids in ORC, "
        "equality deletes by fixed values) is left alone. Nulls in required columns and decimals that do not fit raise "
        "an error. "
        "Deleted rows are counted by firnline's own readers, so that deletes that are misread show in the row check.",
        "A partition that Spark reads as another one is seen when it has been written: "
        "`test_rows_that_spark_reads_into_another_partition_are_left_alone`.",
    ),
    Rule(
        "defaults",
        "Defaults that users expect",
        "Those of Spark's rewrite_data_files. Commit retries and manifest merging are Iceberg's own, by the table's "
        "properties; at least ten attempts, since a writer may commit every second.",
    ),
    Rule(
        "predicates",
        "Predicates and transforms",
        "A projection is inclusive: if a row matches, its partition is kept, also where a transform loses precision.",
    ),
    Rule(
        "converted",
        "Converted equality deletes",
        "A vector holds all positions that its data file has lost, those of other commits too. A delete that applies "
        "to a file which was not searched stays.",
    ),
    Rule(
        "beside",
        "Commits beside a conversion",
        "The positions that take the place of equality deletes are found and committed at one snapshot. Iceberg never "
        "looks for deletes in `replace` snapshots: we do, also before a rewrite is sent.",
    ),
    Rule(
        "state",
        "Writers' state in summaries",
        "Flink and Kafka Connect walk back from the current snapshot to find their own keys: a `replace` in between is "
        "fine, expiring snapshots is not.",
    ),
    Rule(
        "branches",
        "Branches that are to be published",
        "Main does not move while a branch goes on from it or an overwrite is staged on it: neither could be published "
        "any more. A branch that is kept for another purpose counts for a limited time.",
    ),
)
