package io.firnline.iceberg;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/**
 * The reporter's properties, from those of the catalog.
 *
 * <ul>
 *   <li>{@code firnline.kafka.bootstrap-servers}: required.
 *   <li>{@code firnline.kafka.topic}: {@code iceberg-commits} by default.
 *   <li>{@code firnline.kafka.options.NAME}: the option NAME of Kafka's producer.
 *   <li>{@code firnline.reports}: {@code commits} (default), or {@code all} for scan reports too.
 *   <li>{@code firnline.exit-wait-ms}: how long the end of the JVM waits for reports on their way, 5000 by default.
 * </ul>
 *
 * <p>Equal options share one producer. Values of Kafka options can be secrets: they are in no message.
 */
final class ReporterOptions {
  private static final String PREFIX = "firnline.";
  private static final String SERVERS = "firnline.kafka.bootstrap-servers";
  private static final String TOPIC = "firnline.kafka.topic";
  private static final String REPORTS = "firnline.reports";
  private static final String EXIT_WAIT = "firnline.exit-wait-ms";
  private static final String KAFKA_OPTION = "firnline.kafka.options.";

  static final List<String> KNOWN = List.of(SERVERS, TOPIC, REPORTS, EXIT_WAIT, KAFKA_OPTION + "*");

  private final String servers;
  private final String topic;
  private final boolean scansToo;
  private final Duration exitWait;
  private final Map<String, String> kafka;
  private final List<String> unknown;

  private ReporterOptions(
      String servers,
      String topic,
      boolean scansToo,
      Duration exitWait,
      Map<String, String> kafka,
      List<String> unknown) {
    this.servers = servers;
    this.topic = topic;
    this.scansToo = scansToo;
    this.exitWait = exitWait;
    this.kafka = kafka;
    this.unknown = unknown;
  }

  /**
   * Reads the properties of a catalog.
   *
   * @throws IllegalArgumentException a property is missing or invalid; the message names it
   */
  static ReporterOptions from(Map<String, String> properties) {
    Map<String, String> kafka = new HashMap<>();
    List<String> unknown = new ArrayList<>();
    for (String name : new TreeSet<>(properties.keySet())) {
      if (name.startsWith(KAFKA_OPTION)) {
        kafka.put(name.substring(KAFKA_OPTION.length()), properties.get(name));
      } else if (name.startsWith(PREFIX) && !KNOWN.contains(name)) {
        unknown.add(name);
      }
    }
    String servers = text(properties, SERVERS, "");
    if (servers.isEmpty()) {
      throw new IllegalArgumentException("set the catalog property " + SERVERS + ", e.g. to kafka:9092");
    }
    String reports = text(properties, REPORTS, "commits");
    if (!reports.equals("commits") && !reports.equals("all")) {
      throw new IllegalArgumentException(
          "the catalog property " + REPORTS + " must be commits or all, not '" + reports + "'");
    }
    return new ReporterOptions(
        servers,
        text(properties, TOPIC, "iceberg-commits"),
        reports.equals("all"),
        milliseconds(properties, EXIT_WAIT, 5000),
        Collections.unmodifiableMap(kafka),
        Collections.unmodifiableList(unknown));
  }

  private static String text(Map<String, String> properties, String name, String otherwise) {
    String value = properties.get(name);
    return value == null || value.isBlank() ? otherwise : value.trim();
  }

  private static Duration milliseconds(Map<String, String> properties, String name, long otherwise) {
    String value = text(properties, name, Long.toString(otherwise));
    if (!value.matches("[0-9]{1,12}")) {
      throw new IllegalArgumentException(
          "the catalog property " + name + " must be a number of milliseconds, not '" + value + "'");
    }
    return Duration.ofMillis(Long.parseLong(value));
  }

  String servers() {
    return servers;
  }

  String topic() {
    return topic;
  }

  boolean scansToo() {
    return scansToo;
  }

  Duration exitWait() {
    return exitWait;
  }

  /** Names that begin with {@code firnline.} but are none of ours: probably misspelt. */
  List<String> unknown() {
    return unknown;
  }

  /**
   * Options of the producer. Not idempotent by default: an event that arrives twice is harmless, and old brokers ask for a
   * permission on the whole cluster.
   */
  Map<String, Object> producer(String clientId) {
    Map<String, Object> options = new HashMap<>();
    options.put("client.id", clientId);
    options.put("enable.idempotence", "false");
    options.putAll(kafka);
    options.put("bootstrap.servers", servers);
    return options;
  }

  /** Scan reports or not is a matter of the reporter, not of the connection. */
  @Override
  public boolean equals(Object other) {
    return other instanceof ReporterOptions
        && servers.equals(((ReporterOptions) other).servers)
        && topic.equals(((ReporterOptions) other).topic)
        && exitWait.equals(((ReporterOptions) other).exitWait)
        && kafka.equals(((ReporterOptions) other).kafka);
  }

  @Override
  public int hashCode() {
    return 31 * (31 * servers.hashCode() + topic.hashCode()) + kafka.hashCode();
  }
}
