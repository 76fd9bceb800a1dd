package io.firnline.iceberg;

import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.ObjectName;
import org.apache.iceberg.metrics.CommitReport;
import org.apache.iceberg.metrics.MetricsReport;
import org.apache.iceberg.metrics.ScanReport;
import org.apache.iceberg.rest.requests.ReportMetricsRequest;
import org.apache.iceberg.rest.requests.ReportMetricsRequestParser;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends reports to a topic, from a queue and a daemon thread of its own. One for each configuration in a JVM: engines make
 * a catalog for each session, task or query.
 *
 * <p>A record is the report as a REST catalog would receive it ({@code ReportMetricsRequest}); its key is the table's name,
 * its timestamp the time of the report.
 *
 * <p>If the queue is full, the oldest report is dropped: newer ones of the same table say more.
 */
final class ReportSender implements ReporterStatisticsMXBean {
  private static final Logger LOG = LoggerFactory.getLogger(ReportSender.class);
  private static final int QUEUED_REPORTS = 1000;
  private static final long REOPEN_NANOS = TimeUnit.SECONDS.toNanos(30);
  private static final Duration CLOSE_PATIENCE = Duration.ofSeconds(10);
  private static final long POLL_MS = 200;
  private static final long EXIT_POLL_MS = 5;

  private static final Map<ReporterOptions, ReportSender> SHARED = new HashMap<>();
  private static final AtomicLong MADE = new AtomicLong();

  private final ReporterOptions options;
  private final String name = "firnline-iceberg-reporter-" + MADE.incrementAndGet();
  private final BlockingQueue<Waiting> queue = new ArrayBlockingQueue<>(QUEUED_REPORTS);
  private final RareLog dropLog = new RareLog(LOG);
  private final RareLog failureLog = new RareLog(LOG);
  private final AtomicLong accepted = new AtomicLong();
  private final AtomicLong sent = new AtomicLong();
  private final AtomicLong dropped = new AtomicLong();
  private final AtomicLong failed = new AtomicLong();
  private final Thread exitHook = thread(this::beforeExit, name + "-exit");

  private int users; // guarded by SHARED
  private volatile boolean released;
  private volatile long releasedNanos;
  private volatile boolean lastOneFailed;
  private volatile RecordWriter writer;
  private Throwable notOpened; // this and the next: only for the thread
  private long notOpenedNanos;
  private ObjectName bean;

  private static final class Waiting {
    private final MetricsReport report;
    private final long timestampMs = System.currentTimeMillis();

    Waiting(MetricsReport report) {
      this.report = report;
    }
  }

  private ReportSender(ReporterOptions options) {
    this.options = options;
  }

  /** The sender of equal options, or a new one. Every call needs one call of {@link #release}. */
  static ReportSender shared(ReporterOptions options) {
    synchronized (SHARED) {
      ReportSender sender = SHARED.get(options);
      if (sender == null) {
        sender = new ReportSender(options);
        sender.start();
        SHARED.put(options, sender);
      }
      sender.users++;
      return sender;
    }
  }

  /** Ends the thread and the producer after the last user's reports: classes of a stopped job must not stay loaded. */
  void release() {
    synchronized (SHARED) {
      users--;
      if (users == 0) {
        SHARED.remove(options);
        releasedNanos = System.nanoTime();
        released = true;
      }
    }
  }

  /** Never blocks. */
  void offer(MetricsReport report) {
    accepted.incrementAndGet();
    Waiting waiting = new Waiting(report);
    while (!queue.offer(waiting)) {
      if (queue.poll() != null) {
        drop(1, "the queue is full, see whether " + options.servers() + " can be reached");
      }
    }
  }

  private void start() {
    thread(this::run, name).start();
    LOG.info("Commits are announced to topic {} at {}", options.topic(), options.servers());
    try {
      Runtime.getRuntime().addShutdownHook(exitHook);
    } catch (IllegalStateException exiting) {
      LOG.debug("The JVM ends: {} does not wait for its last reports", name);
    }
  }

  /** A daemon that keeps nothing of the thread that commits: neither its thread-locals nor its class loader. */
  private static Thread thread(Runnable work, String name) {
    Thread made = new Thread(null, work, name, 0, false);
    made.setDaemon(true);
    made.setContextClassLoader(ReportSender.class.getClassLoader());
    return made;
  }

  private void run() {
    try {
      register();
      while (!isOver()) {
        Waiting next = queue.poll(POLL_MS, TimeUnit.MILLISECONDS);
        if (next != null) {
          send(next);
        }
      }
    } catch (Throwable problem) { // e.g. an interrupt, or classes that are gone with their job
      failureLog.warn("Reports are not announced to firnline any more", problem);
    } finally {
      end();
    }
  }

  /** Reports that wait at the release are sent, within limits: a broker can be away. */
  private boolean isOver() {
    return released && (queue.isEmpty() || System.nanoTime() - releasedNanos > CLOSE_PATIENCE.toNanos());
  }

  private void send(Waiting waiting) {
    try {
      byte[] key = tableName(waiting.report).getBytes(StandardCharsets.UTF_8);
      String value = ReportMetricsRequestParser.toJson(ReportMetricsRequest.of(waiting.report));
      opened().send(key, value.getBytes(StandardCharsets.UTF_8), waiting.timestampMs, this::done);
    } catch (Throwable problem) {
      done(problem);
    }
  }

  private static String tableName(MetricsReport report) {
    return report instanceof CommitReport ? ((CommitReport) report).tableName() : ((ScanReport) report).tableName();
  }

  private void done(Throwable problem) {
    lastOneFailed = problem != null;
    if (problem == null) {
      sent.incrementAndGet();
    } else {
      long failures = failed.incrementAndGet();
      failureLog.warn(
          "A report was not sent to topic " + options.topic() + " at " + options.servers() + ": " + causeOf(problem)
              + "; failed so far: " + failures, null);
    }
  }

  /** The root cause says what is wrong; the chain above it is ours and the loader's. */
  private static Throwable causeOf(Throwable problem) {
    Throwable cause = problem;
    while (cause.getCause() != null && cause.getCause() != cause) {
      cause = cause.getCause();
    }
    return cause;
  }

  private RecordWriter opened() throws Throwable {
    if (writer != null) {
      return writer;
    }
    if (notOpened != null && System.nanoTime() - notOpenedNanos < REOPEN_NANOS) {
      throw notOpened;
    }
    try {
      writer = NestedKafka.open(options.topic(), options.producer(name));
      notOpened = null;
      return writer;
    } catch (Throwable problem) {
      notOpened = problem;
      notOpenedNanos = System.nanoTime();
      throw problem;
    }
  }

  private void drop(int reports, String why) {
    long all = dropped.addAndGet(reports);
    dropLog.warn("Reports for topic " + options.topic() + " were dropped (" + all + " so far): " + why, null);
  }

  private void end() {
    int left = queue.size();
    if (left > 0) {
      queue.clear();
      drop(left, "the reporter ended before they were sent");
    }
    try {
      close(CLOSE_PATIENCE);
      if (bean != null) {
        ManagementFactory.getPlatformMBeanServer().unregisterMBean(bean);
      }
      Runtime.getRuntime().removeShutdownHook(exitHook);
    } catch (Throwable problem) {
      LOG.debug("{} did not end cleanly", name, problem);
    }
  }

  private void close(Duration patience) {
    RecordWriter open = writer;
    if (open != null) {
      open.close(patience);
    }
  }

  /** At the end of the JVM: short programs end right after their commit. Nothing pends in others, and nothing waits. */
  private void beforeExit() {
    try {
      long deadline = System.nanoTime() + options.exitWait().toNanos();
      while (getPending() > 0 && !lastOneFailed && System.nanoTime() < deadline) {
        Thread.sleep(EXIT_POLL_MS);
      }
      close(Duration.ZERO);
    } catch (Throwable problem) {
      LOG.debug("{} did not end cleanly", name, problem);
    }
  }

  private void register() {
    try {
      String key =
          "io.firnline.iceberg:type=KafkaMetricsReporter,topic=" + ObjectName.quote(options.topic())
              + ",servers=" + ObjectName.quote(options.servers());
      try {
        bean = ManagementFactory.getPlatformMBeanServer().registerMBean(this, new ObjectName(key)).getObjectName();
      } catch (InstanceAlreadyExistsException other) { // of other Kafka options, or of another class loader
        ObjectName own = new ObjectName(key + ",id=" + Integer.toHexString(System.identityHashCode(this)));
        bean = ManagementFactory.getPlatformMBeanServer().registerMBean(this, own).getObjectName();
      }
    } catch (JMException | RuntimeException problem) {
      LOG.debug("{} has no MBean", name, problem);
    }
  }

  @Override
  public long getSent() {
    return sent.get();
  }

  @Override
  public long getDropped() {
    return dropped.get();
  }

  @Override
  public long getFailed() {
    return failed.get();
  }

  @Override
  public long getPending() {
    return accepted.get() - sent.get() - dropped.get() - failed.get();
  }
}
