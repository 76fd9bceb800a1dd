package io.firnline.iceberg;

/** Numbers of one configuration since the JVM began to use it: {@code io.firnline.iceberg:type=KafkaMetricsReporter,*}. */
public interface ReporterStatisticsMXBean {
  /** Reports that the broker has acknowledged. */
  long getSent();

  /** Reports that were given up before they were sent, because the queue was full or the reporter ended. */
  long getDropped();

  /** Reports that could not be written or that the broker did not acknowledge. */
  long getFailed();

  /** Reports that are neither sent nor given up yet. */
  long getPending();
}
