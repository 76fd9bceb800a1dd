package io.firnline.iceberg;

import java.util.Map;
import org.apache.iceberg.metrics.CommitReport;
import org.apache.iceberg.metrics.MetricsReport;
import org.apache.iceberg.metrics.MetricsReporter;
import org.apache.iceberg.metrics.ScanReport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends commit reports, and scan reports on request, to a Kafka topic.
 *
 * <p>Iceberg makes one for each catalog object that has the property {@code metrics-reporter-impl=
 * io.firnline.iceberg.KafkaMetricsReporter}, and passes all properties of the catalog: see {@link ReporterOptions}.
 *
 * <p>It never blocks a commit and never fails one. {@link #report} only puts the report into a bounded queue; a thread of
 * {@link ReportSender} does the rest. Whatever is thrown is caught and logged. With invalid properties it sends nothing,
 * and the catalog works as without it.
 */
public final class KafkaMetricsReporter implements MetricsReporter {
  private static final Logger LOG = LoggerFactory.getLogger(KafkaMetricsReporter.class);
  private static final RareLog RARE_LOG = new RareLog(LOG);

  private volatile ReporterOptions options;
  private ReportSender sender;

  @Override
  public void initialize(Map<String, String> properties) {
    try {
      this.options = ReporterOptions.from(properties);
      if (!options.unknown().isEmpty()) {
        LOG.warn("Catalog properties {} are unknown; known are {}", options.unknown(), ReporterOptions.KNOWN);
      }
    } catch (Throwable problem) {
      LOG.error("Commits of this catalog are not announced to firnline: {}", problem.getMessage());
    }
  }

  @Override
  public void report(MetricsReport report) {
    try {
      ReporterOptions known = options;
      if (known != null && isWanted(report, known)) {
        sender(known).offer(report);
      }
    } catch (Throwable problem) {
      RARE_LOG.warn("A report was not announced to firnline", problem);
    }
  }

  /** Reports that wait are still sent. A report after this call is sent too: tables outlive their catalog object. */
  @Override
  public synchronized void close() {
    if (sender != null) {
      sender.release();
      sender = null;
    }
  }

  private static boolean isWanted(MetricsReport report, ReporterOptions options) {
    return report instanceof CommitReport || (options.scansToo() && report instanceof ScanReport);
  }

  /** Made at the first report: a catalog that only reads needs no thread and no connection. */
  private synchronized ReportSender sender(ReporterOptions known) {
    if (sender == null) {
      sender = ReportSender.shared(known);
    }
    return sender;
  }
}
