import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.UUID;

import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestWriter;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/** Manifests of files that do not exist, by Iceberg's own writers; compiled when wanted by the compiler in Spark. */
public class ManifestMaker {
  private static final int TEXT_BOUND = 16;

  /** One commit of `manifests` manifests of `files` data files each; scattered: each lists all partitions. */
  public static void append(
      Table table, String[] partitions, int first, int manifests, int files, boolean scattered, long smallEvery)
      throws Exception {
    AppendFiles append = table.newFastAppend();
    for (int number = first; number < first + manifests; number++) {
      Random random = new Random(number);
      String folder = table.location() + "/metadata/" + UUID.randomUUID() + "-m" + number + ".avro";
      ManifestWriter writer = ManifestFiles.write(2, table.spec(), table.io().newOutputFile(folder), null);
      for (int file = 0; file < files; file++) {
        int index = scattered ? file % partitions.length : number % partitions.length;
        boolean small = index % smallEvery == 0;
        writer.add(dataFile(table, partitions[index], number, file, small, random));
      }
      writer.close();
      append.appendManifest(writer.toManifestFile());
    }
    append.commit();
  }

  /** One commit of files without column metrics, spread evenly over partitions (days from 2024-01-01, buckets). */
  public static void appendSpread(Table table, int partitions, int buckets, int manifests, int files)
      throws Exception {
    AppendFiles append = table.newFastAppend();
    for (int number = 0; number < manifests; number++) {
      Random random = new Random(number);
      String path = table.location() + "/metadata/" + UUID.randomUUID() + "-m" + number + ".avro";
      ManifestWriter writer = ManifestFiles.write(2, table.spec(), table.io().newOutputFile(path), null);
      for (int file = 0; file < files; file++) {
        int index = (int) (((long) number * files + file) % partitions);
        String partition = "ts_day=" + LocalDate.of(2024, 1, 1).plusDays(index / buckets)
            + "/user_id_bucket=" + (index % buckets);
        long size = 8L * 1024 * 1024 + random.nextInt(1 << 22);
        writer.add(
            DataFiles.builder(table.spec())
                .withPath(table.location() + "/data/" + partition + "/" + number + "-" + file + ".parquet")
                .withPartitionPath(partition)
                .withFileSizeInBytes(size)
                .withRecordCount(size / 120)
                .build());
      }
      writer.close();
      append.appendManifest(writer.toManifestFile());
    }
    append.commit();
  }

  private static DataFile dataFile(
      Table table, String partition, int manifest, int file, boolean small, Random random) {
    long size = (small ? 8L : 420L) * 1024 * 1024 + random.nextInt(1 << 22);
    long rows = size / 120;
    Map sizes = new HashMap();
    Map counts = new HashMap();
    Map nulls = new HashMap();
    Map lower = new HashMap();
    Map upper = new HashMap();
    for (int column = 0; column < table.schema().columns().size(); column++) {
      Types.NestedField field = (Types.NestedField) table.schema().columns().get(column);
      Integer id = Integer.valueOf(field.fieldId());
      sizes.put(id, Long.valueOf(size / 20 + random.nextInt(1 << 20)));
      counts.put(id, Long.valueOf(rows));
      nulls.put(id, Long.valueOf(random.nextInt(1000)));
      lower.put(id, bound(field.type(), random));
      upper.put(id, bound(field.type(), random));
    }
    String name = String.format(
        "%s/data/%s/%05d-%d-%s-%05d.parquet",
        new Object[] {table.location(), partition, Integer.valueOf(file % 28), Integer.valueOf(manifest),
            new UUID(random.nextLong(), random.nextLong()), Integer.valueOf(file)});
    return DataFiles.builder(table.spec())
        .withPath(name)
        .withPartitionPath(partition)
        .withFileSizeInBytes(size)
        .withMetrics(new Metrics(Long.valueOf(rows), sizes, counts, nulls, null, lower, upper))
        .build();
  }

  private static ByteBuffer bound(Type type, Random random) {
    if (type.typeId() == Type.TypeID.STRING) {
      byte[] text = new byte[TEXT_BOUND];
      for (int at = 0; at < TEXT_BOUND; at++) {
        text[at] = (byte) ('a' + random.nextInt(26));
      }
      return ByteBuffer.wrap(text);
    }
    if (type.typeId() == Type.TypeID.DOUBLE) {
      return Conversions.toByteBuffer(type, Double.valueOf(random.nextDouble()));
    }
    return Conversions.toByteBuffer(type, Long.valueOf(random.nextLong() >>> 16));
  }

  /** Files that Iceberg's own planning finds; it reads manifests with one thread a core. */
  public static long plan(Table table) throws Exception {
    table.refresh();
    CloseableIterable tasks = table.newScan().planFiles();
    CloseableIterator iterator = tasks.iterator();
    long found = 0;
    while (iterator.hasNext()) {
      FileScanTask task = (FileScanTask) iterator.next();
      found += task.file().fileSizeInBytes() > 0 ? 1 : 0;
    }
    tasks.close();
    return found;
  }
}
