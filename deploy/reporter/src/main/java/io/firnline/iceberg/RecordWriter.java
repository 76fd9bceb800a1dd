package io.firnline.iceberg;

import java.time.Duration;
import java.util.function.Consumer;

/** Writes records to one topic. Without types of kafka-clients, which another class loader may define. */
public interface RecordWriter {
  /**
   * Sends one record. It can block as long as the producer's {@code max.block.ms}.
   *
   * @param done is called once, from any thread, with the reason of a failure or with null
   */
  void send(byte[] key, byte[] value, long timestampMs, Consumer<Exception> done);

  /** Waits at most so long for records that are on their way, then gives them up. */
  void close(Duration patience);
}
