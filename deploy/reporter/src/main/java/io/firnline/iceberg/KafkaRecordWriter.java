package io.firnline.iceberg;

import java.time.Duration;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The only class that is linked with kafka-clients: {@link NestedKafka} may define it. */
public final class KafkaRecordWriter implements RecordWriter {
  private final KafkaProducer<byte[], byte[]> producer;
  private final String topic;

  public KafkaRecordWriter(String topic, Map<String, Object> options) {
    this.topic = topic;
    this.producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer());
  }

  @Override
  public void send(byte[] key, byte[] value, long timestampMs, Consumer<Exception> done) {
    producer.send(
        new ProducerRecord<>(topic, null, timestampMs, key, value), (metadata, problem) -> done.accept(problem));
  }

  @Override
  public void close(Duration patience) {
    producer.close(patience);
  }
}
