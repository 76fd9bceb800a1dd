import java.io.BufferedWriter;
import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.stream.Collectors;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.FlinkSink;

/**
 * Upserts and deletes of random keys into two Iceberg tables, committed every five seconds: by FlinkSink in the DataStream
 * API, and by IcebergSink in SQL. At the end of its standard input the job stops with a savepoint, which commits the rest.
 *
 * <p>Arguments: file with the catalog's properties, table of FlinkSink, table of IcebergSink, folder for checkpoints and
 * the journal, upserts a second, number of keys, seed. Tables are in the namespace db; their columns are id and v.
 */
public final class FlinkUpserts {
  private static final String CATALOG = "lake";
  private static final Duration EVERY = Duration.ofSeconds(5);

  private FlinkUpserts() {}

  public static void main(String[] args) throws Exception {
    Map<String, String> catalog = properties(args[0]);
    Path folder = Path.of(args[3]);
    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.createLocalEnvironment(2, settings(folder));
    Changes changes = new Changes(folder.resolve("journal.tsv").toString(), Long.parseLong(args[6]), Long.parseLong(args[5]));
    DataStream<Row> upserts =
        environment
            .fromSource(
                new DataGeneratorSource<>(
                    changes,
                    Long.MAX_VALUE,
                    RateLimiterStrategy.perSecond(Double.parseDouble(args[4])),
                    Types.ROW_NAMED(new String[] {"id", "v"}, Types.LONG, Types.STRING)),
                WatermarkStrategy.noWatermarks(),
                "changes")
            .setParallelism(1);
    withFlinkSink(upserts, catalog, args[1]);
    withIcebergSink(environment, upserts, catalog, args[2]);
    JobClient job = environment.executeAsync("upserts");
    job.getJobExecutionResult().whenComplete((result, error) -> ended(error));
    System.err.println("the job runs");
    while (System.in.read() >= 0) {}
    job.stopWithSavepoint(false, folder.resolve("savepoints").toUri().toString(), SavepointFormatType.CANONICAL).get();
    System.err.println("the job has stopped");
    System.exit(0);
  }

  private static void ended(Throwable error) {
    if (error != null) {
      error.printStackTrace();
      System.exit(1);
    }
  }

  private static void withFlinkSink(DataStream<Row> upserts, Map<String, String> catalog, String table) {
    CatalogLoader loader = CatalogLoader.rest(CATALOG, new org.apache.hadoop.conf.Configuration(), catalog);
    ResolvedSchema columns =
        ResolvedSchema.of(
            Column.physical("id", DataTypes.BIGINT().notNull()), Column.physical("v", DataTypes.STRING()));
    FlinkSink.forRow(upserts, columns)
        .tableLoader(TableLoader.fromCatalog(loader, TableIdentifier.of("db", table)))
        .equalityFieldColumns(List.of("id"))
        .upsert(true)
        .append();
  }

  private static void withIcebergSink(
      StreamExecutionEnvironment environment, DataStream<Row> upserts, Map<String, String> catalog, String table) {
    StreamTableEnvironment sql = StreamTableEnvironment.create(environment);
    sql.getConfig().set("table.exec.iceberg.use-v2-sink", "true");
    String given =
        catalog.entrySet().stream()
            .map(each -> String.format("'%s' = '%s'", each.getKey(), each.getValue()))
            .collect(Collectors.joining(", "));
    sql.executeSql(
        String.format("CREATE CATALOG %s WITH ('type' = 'iceberg', 'catalog-type' = 'rest', %s)", CATALOG, given));
    Schema keyed =
        Schema.newBuilder()
            .column("id", DataTypes.BIGINT().notNull())
            .column("v", DataTypes.STRING())
            .primaryKey("id")
            .build();
    sql.createTemporaryView("changes", sql.fromChangelogStream(upserts, keyed, ChangelogMode.upsert()));
    sql.createStatementSet()
        .addInsertSql(
            String.format(
                "INSERT INTO %s.db.%s /*+ OPTIONS('upsert-enabled' = 'true') */ SELECT id, v FROM changes", CATALOG, table))
        .attachAsDataStream();
  }

  private static Configuration settings(Path folder) {
    Configuration settings = new Configuration();
    settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, EVERY);
    settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, folder.resolve("checkpoints").toUri().toString());
    settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none"); // a failure of the job must show
    return settings;
  }

  private static Map<String, String> properties(String file) throws Exception {
    Properties read = new Properties();
    try (InputStream in = new FileInputStream(file)) {
      read.load(in);
    }
    Map<String, String> found = new HashMap<>();
    read.stringPropertyNames().forEach(name -> found.put(name, read.getProperty(name)));
    return found;
  }

  /** Change number n: a new value of a random key, or each twentieth time its deletion. The journal has a line for each. */
  private static final class Changes implements GeneratorFunction<Long, Row> {
    private static final long serialVersionUID = 1L;
    private static final int DELETES = 20;

    private final String journal;
    private final long seed;
    private final long keys;
    private transient BufferedWriter lines;

    Changes(String journal, long seed, long keys) {
      this.journal = journal;
      this.seed = seed;
      this.keys = keys;
    }

    @Override
    public void open(SourceReaderContext context) throws Exception {
      lines = Files.newBufferedWriter(Path.of(journal), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    @Override
    public Row map(Long number) throws Exception {
      SplittableRandom random = new SplittableRandom(seed * 1_000_003 + number);
      long key = random.nextLong(keys);
      boolean deletes = random.nextInt(DELETES) == 0;
      String value = "change " + number;
      lines.write(deletes ? key + "\n" : key + "\t" + value + "\n");
      lines.flush();
      return Row.ofKind(deletes ? RowKind.DELETE : RowKind.UPDATE_AFTER, key, value);
    }

    @Override
    public void close() throws Exception {
      if (lines != null) {
        lines.close();
      }
    }
  }
}
