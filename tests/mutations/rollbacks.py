"""Rule 17: writers win on catalogs that roll rewrites back, and the work is not lost."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_SNAPSHOTS: Final = "tests/integration/test_commit_snapshots.py"
_AGAIN: Final = "tests/integration/test_rolled_back_commits.py"
_DECISIONS: Final = "tests/properties/test_commit_decisions.py"
_SETTINGS: Final = "tests/unit/settings/test_settings.py"
_ROLLBACKS: Final = "tests/unit/planning/test_rollbacks.py"
_TIMING: Final = "tests/unit/planning/test_commit_timing.py"
_HOLD: Final = "tests/unit/runs/test_commit_hold.py"
_WATCH: Final = "tests/unit/runs/test_rollback_watch.py"

MUTATIONS: Final = (
    Mutation(
        "17",
        "the summary property for Apache Polaris is missing",
        "compactor/commit/snapshots.py",
        'properties[POLARIS_ROLLBACK] = "rollback"',
        'properties[POLARIS_ROLLBACK] = "fail"',
        f"{_DECISIONS}::test_a_commit_is_known_again_by_its_run_and_its_part",
    ),
    Mutation(
        "17",
        "it is off by default for Apache Polaris",
        "compactor/settings/tree.py",
        "return is_polaris and not row_lineage",
        "return False",
        f"{_SETTINGS}::test_apache_polaris_is_asked_to_let_writers_win_unless_told_otherwise[auto-False-True]",
    ),
    Mutation(
        "17",
        "Apache Polaris is asked also on V3 tables, where it then fails the writer",
        "compactor/settings/tree.py",
        "return is_polaris and not row_lineage",
        "return is_polaris",
        "tests/integration/test_polaris.py::test_who_wins",
    ),
    Mutation(
        "17",
        "Apache Polaris is not recognised",
        "compactor/iceberg/tables.py",
        '.rstrip("/").endswith("/api/catalog")',
        '.endswith("polaris/api/catalog")',
        f"{_SETTINGS}::test_apache_polaris_is_known_by_its_path",
    ),
    Mutation(
        "17",
        "the setting does not reach the commit",
        "compactor/runs/run_tools.py",
        "rollback_on_conflict=self.rolls_back(table),",
        "rollback_on_conflict=False,",
        f"{_SNAPSHOTS}::test_polaris_is_asked_to_let_writers_win[always-rollback]",
    ),
    Mutation(
        "17",
        "a commit that another builds on is taken for rolled back, and made twice",
        "compactor/planning/rollbacks.py",
        "            return Fate.STAYS if number else Fate.NEWEST\n",
        "            continue\n",
        f"{_ROLLBACKS}::test_a_commit_is_rolled_back_where_another_has_taken_its_place",
    ),
    Mutation(
        "17",
        "a commit that is rolled back together with the one before it is taken for the newest",
        "compactor/planning/rollbacks.py",
        "if each.parent_snapshot_id in before:",
        "if each.parent_snapshot_id in [*before][:1]:",
        f"{_ROLLBACKS}::test_parts_of_a_run_are_rolled_back_together",
    ),
    Mutation(
        "17",
        "a commit that is rolled back for a writer costs the whole rewrite",
        "compactor/runs/rollback_watch.py",
        "return fate is Fate.ROLLED_BACK",
        "return False",
        f"{_WATCH}::test_the_next_commit_ends_the_watch",
    ),
    Mutation(
        "17",
        "a commit that was rolled back before it is read again counts as unknown",
        "compactor/commit/replace.py",
        "            return None\n        if attempt <",
        "            pass\n        if attempt <",
        f"{_AGAIN}::test_a_rewrite_is_committed_again",
    ),
    Mutation(
        "17",
        "every commit is watched for half a minute, also where no writer comes",
        "compactor/planning/rollbacks.py",
        "rhythm.every > OFTEN or ",
        "",
        f"{_ROLLBACKS}::test_commits_beside_frequent_writers_are_watched",
    ),
    Mutation(
        "17",
        "a rewrite is committed right after a late commit, whose writer has begun the next one",
        "compactor/planning/commit_timing.py",
        "hardly_begun = not behind and now",
        "hardly_begun = now",
        f"{_TIMING}::test_right_after_a_late_commit_a_rewrite_waits_for_the_one_after_it",
    ),
    Mutation(
        "17",
        "a rewrite follows a commit of a writer that is behind its schedule, and meets its next statement",
        "compactor/planning/commit_timing.py",
        "    return sum(gap - usual for gap in since) > max(0.0, IDLE * usual - SHORTEST_MOMENT)",
        "    return False",
        "tests/unit/runs/test_commit_moments.py::test_a_rewrite_meets_hardly_any_statement_of_a_writer_with_a_schedule",
    ),
    Mutation(
        "17",
        "a rewrite follows a commit that is seen too late, after this process was stopped",
        "compactor/runs/commit_hold.py",
        "self.after_writer = followed and in_time and",
        "self.after_writer = followed and",
        f"{_HOLD}::test_a_commit_that_is_seen_too_late_is_not_followed",
    ),
    Mutation(
        "17",
        "a rewrite follows a commit that comes early, of a writer that has not caught up yet",
        "compactor/planning/commit_timing.py",
        "early <= gap <= late for gap in gaps",
        "gap <= late for gap in gaps",
        f"{_TIMING}::test_a_writer_that_is_behind_its_schedule_is_told",
    ),
    Mutation(
        "17",
        "a rewrite is committed as soon as the catalog answers again, when its writers begin",
        "compactor/runs/commit_hold.py",
        "self.ends - ticks, self.silent)",
        "self.ends - ticks)",
        f"{_HOLD}::test_when_the_catalog_answers_again_its_writer_begins_at_once",
    ),
    Mutation(
        "17",
        "an append ends the wait for a MERGE where the catalog lists the newest snapshot alone",
        "compactor/runs/commit_hold.py",
        "writers_rhythm(view.history, view.properties, wait.newest)",
        "writers_rhythm(view.history, view.properties)",
        f"{_HOLD}::test_an_append_ends_no_wait_for_a_row_level_commit",
    ),
    Mutation(
        "17",
        "a commit that was prepared too late after a writer's commit is sent all the same",
        "compactor/runs/run_tools.py",
        "good_until if missed < MISSES else None",
        "None",
        "tests/integration/test_commit_hold.py::test_a_commit_that_is_prepared_too_late_waits_for_the_next_moment",
    ),
    Mutation(
        "17",
        "a rewrite is committed before the first MERGE of a table's life, which is under way",
        "compactor/planning/commit_timing.py",
        "return any_commits and",
        "return rhythm and",
        f"{_TIMING}::test_before_the_first_row_level_commit_any_commit_tells_of_a_writer_that_the_properties_announce",
    ),
)
