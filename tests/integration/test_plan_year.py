"""`plan` for one user of a year of days in 16 buckets: what it selects, and how many manifests it opens."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from streaming.cli import main
from tests.benchmarks.planning_table import call
from tests.conftest import Lake
from tests.integration.table_kit import java_table

pytestmark = pytest.mark.spark

DAYS, BUCKETS, USER = 365, 16, 4711
BUCKET = BucketTransform(BUCKETS).transform(LongType())(USER)
FIRST = dt.date(2023, 1, 1)
LAST = FIRST + dt.timedelta(days=DAYS - 1)
COMMITS_OF_THE_LAST_DAY = 6
MANIFESTS = DAYS - 1 + COMMITS_OF_THE_LAST_DAY
TABLE = "year.events"
JAVA = """
import org.apache.iceberg.*;

public class DayByDay {
  public static void append(Table table, String lines, int files) throws Exception {
    String[] partitions = lines.split("\\n");
    AppendFiles append = table.newFastAppend();
    for (int first = 0; first < partitions.length; first += files) {
      String name = table.location() + "/metadata/day-" + first + ".avro";
      ManifestWriter writer = ManifestFiles.write(2, table.spec(), table.io().newOutputFile(name), null);
      for (int file = first; file < first + files; file++) {
        writer.add(DataFiles.builder(table.spec()).withPath("file:///nowhere/" + file + ".parquet")
            .withPartitionPath(partitions[file]).withFileSizeInBytes(1L << 20).withRecordCount(1000).build());
      }
      writer.close();
      append.appendManifest(writer.toManifestFile());
    }
    append.commit();
  }
}

public class ByBucket implements java.util.function.Function {
  public ByBucket() {}

  public Object apply(Object file) {
    StructLike partition = ((DataFile) file).partition();
    int day = ((Integer) partition.get(0, Integer.class)).intValue();
    return partition.get(1, Integer.class) + "/" + day / 30;
  }
}
"""


@pytest.fixture(scope="module")
def year(lake: Lake) -> Iterator[str]:
    """A manifest a day, as a daily commit writes it; Spark writes the rows of the last day in six commits."""
    lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.year")
    lake.sql(
        f"CREATE TABLE lake.{TABLE} (user_id bigint, ts timestamp) USING iceberg "
        f"PARTITIONED BY (days(ts), bucket({BUCKETS}, user_id)) "
        "TBLPROPERTIES ('format-version'='2', 'commit.manifest-merge.enabled'='false')"
    )
    days = [FIRST + dt.timedelta(days=number) for number in range(DAYS - 1)]
    partitions = "\n".join(f"ts_day={day}/user_id_bucket={bucket}" for day in days for bucket in range(BUCKETS))
    call(lake.session, compiled(lake, "DayByDay"), "append", java_table(lake, TABLE), partitions, BUCKETS)
    for hour in range(COMMITS_OF_THE_LAST_DAY):
        lake.sql(
            f"INSERT INTO lake.{TABLE} SELECT /*+ COALESCE(1) */ id, TIMESTAMP '{LAST} {hour:02}:00:00Z' "
            f"FROM (SELECT id FROM range(200) UNION ALL SELECT {USER}L AS id)"
        )
    yield TABLE
    lake.sql(f"DROP TABLE lake.{TABLE}")


def compiled(lake: Lake, name: str) -> Any:
    """A class of `JAVA`, by the compiler that Spark brings along."""
    compiler = lake.session._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(lake.session._jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(JAVA)
    return compiler.getClassLoader().loadClass(name)


def plan(lake: Lake, where: str, *options: str, kept: Path | None = None) -> str:
    """`kept`: a folder for decoded manifests, as every command and the service have one unless told otherwise."""
    config = Path(lake.folder) / "year.yaml"
    config.write_text(yaml.safe_dump({"catalogs": lake.settings.catalogs}))
    with TemporaryDirectory() as none:
        cache = {"XDG_CACHE_HOME": str(kept or none)}
        done = CliRunner().invoke(main, ["-c", str(config), "plan", TABLE, "--where", where, *options], env=cache)
    assert done.exit_code == 0, done.output
    return done.stdout


def planned(lake: Lake, where: str) -> tuple[dict[str, Any], int, int]:
    """The document, manifests read (those opened in the store, not only those counted), and all there are."""
    document = json.loads(plan(lake, where, "--output", "json"))
    (spec,) = document["selection"]["specs"]
    manifests = spec["manifests_read"]
    assert document["planning"]["manifests"]["from_store"] == manifests["chosen"]
    assert [(each["selected"], each["of"]) for each in spec["buckets"]] == [(1, BUCKETS)]
    return document, manifests["chosen"], manifests["of"]


@pytest.mark.slow
def test_a_user_and_a_day_open_the_manifests_of_that_day(lake: Lake, year: str) -> None:
    where = f"user_id = {USER} AND ts >= '{LAST}'"
    document, read, of = planned(lake, where)
    assert (read, of) == (COMMITS_OF_THE_LAST_DAY, MANIFESTS)
    assert read <= 0.02 * of
    (group,) = document["groups"]
    assert (group["bucket"], group["files_in"], group["files_out"]) == (BUCKET, COMMITS_OF_THE_LAST_DAY, 1)
    assert "SelectedBucketsCount: 1 out of 16" in plan(lake, where)


@pytest.mark.slow
def test_a_user_alone_opens_them_all_as_every_day_has_him(lake: Lake, year: str) -> None:
    _, read, of = planned(lake, f"user_id = {USER}")
    assert (read, of) == (MANIFESTS, MANIFESTS)


def test_a_user_alone_opens_what_is_new_where_others_have_planned_before(lake: Lake, year: str, tmp_path: Path) -> None:
    """Each manifest is read once: by the service, which hears of every commit, or by an earlier plan on this host."""

    def opened() -> tuple[int, int, int]:
        document = json.loads(plan(lake, f"user_id = {USER}", "--output", "json", kept=tmp_path))
        (spec,) = document["selection"]["specs"]
        manifests = document["planning"]["manifests"]
        return manifests["from_store"], manifests["from_disk"], spec["manifests_read"]["of"]

    assert opened() == (MANIFESTS, 0, MANIFESTS)
    before = java_table(lake, TABLE).currentSnapshot().snapshotId()
    lake.sql(f"INSERT INTO lake.{TABLE} VALUES ({USER}, TIMESTAMP '{LAST} 23:00:00Z')")
    assert opened() == (1, MANIFESTS, MANIFESTS + 1)
    assert 0.02 * (MANIFESTS + 1) >= 1
    lake.sql(f"CALL lake.system.rollback_to_snapshot('{TABLE}', {before})")


@pytest.mark.slow
def test_ordered_by_bucket_a_user_alone_opens_a_sixteenth_and_a_week_of_his_less_than_a_fiftieth(
    lake: Lake, year: str
) -> None:
    """After the others: it clusters the manifests by bucket and 30 days, through Iceberg's own RewriteManifests."""
    by_bucket = compiled(lake, "ByBucket").newInstance()
    java_table(lake, TABLE).rewriteManifests().clusterBy(by_bucket).commit()
    _, read, of = planned(lake, f"user_id = {USER}")
    assert of > 10 * BUCKETS
    assert of / BUCKETS - 1 <= read <= of / BUCKETS + 2
    week = LAST - dt.timedelta(days=6)
    document, read, of = planned(lake, f"user_id = {USER} AND ts >= '{week}'")
    assert read <= 0.02 * of
    assert len(document["groups"]) == 1
