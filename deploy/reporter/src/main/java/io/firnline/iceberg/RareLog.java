package io.firnline.iceberg;

import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;

/** Writes at most one line a minute, with the number of lines that it left out. */
final class RareLog {
  private static final long INTERVAL_NANOS = TimeUnit.MINUTES.toNanos(1);

  private final Logger log;
  private boolean written;
  private long writtenNanos;
  private long leftOut;

  RareLog(Logger log) {
    this.log = log;
  }

  /** Whatever the logger throws is dropped: callers are on the way of a commit. */
  void warn(String message, Throwable problem) {
    try {
      long others = othersOrNotNow();
      if (others >= 0) {
        log.warn("{}{}", message, others == 0 ? "" : " (and " + others + " more such messages)", problem);
      }
    } catch (Throwable ignored) {
      // nothing is left to be done
    }
  }

  private synchronized long othersOrNotNow() {
    long now = System.nanoTime();
    if (written && now - writtenNanos < INTERVAL_NANOS) {
      leftOut++;
      return -1;
    }
    long others = leftOut;
    written = true;
    writtenNanos = now;
    leftOut = 0;
    return others;
  }
}
