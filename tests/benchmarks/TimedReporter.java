import io.firnline.iceberg.KafkaMetricsReporter;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.metrics.CommitReport;
import org.apache.iceberg.metrics.MetricsReport;
import org.apache.iceberg.metrics.MetricsReporter;

/** firnline's reporter with a clock around `report`: what a commit pays for it. For bench_reporter.py. */
public final class TimedReporter implements MetricsReporter {
  private static final List<long[]> TIMES = Collections.synchronizedList(new ArrayList<>());

  private final KafkaMetricsReporter timed = new KafkaMetricsReporter();

  @Override
  public void initialize(Map<String, String> properties) {
    timed.initialize(properties);
  }

  @Override
  public void report(MetricsReport report) {
    long begin = System.nanoTime();
    timed.report(report);
    long nanos = System.nanoTime() - begin;
    if (report instanceof CommitReport) {
      CommitReport commit = (CommitReport) report;
      TIMES.add(new long[] {nanos, commit.commitMetrics().totalDuration().totalDuration().toNanos()});
    }
  }

  /** Nanoseconds of the reports, and of Iceberg's commits by its own clock, since the last call; as text, for Py4J. */
  public static String taken() {
    StringBuilder text = new StringBuilder();
    synchronized (TIMES) {
      for (long[] times : TIMES) {
        text.append(times[0]).append(' ').append(times[1]).append('\n');
      }
      TIMES.clear();
    }
    return text.toString();
  }
}
