package io.firnline.iceberg;

import java.io.IOException;
import java.io.InputStream;
import java.net.URL;
import java.util.Enumeration;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds kafka-clients: on the class path if they are there, else in this jar below {@link #FOLDER}.
 *
 * <p>The class path's come first because login modules and callback handlers of the class path (e.g. of a cloud's IAM)
 * implement their interfaces. Spark and Flink have no kafka-clients of their own, so the jar carries some.
 */
final class NestedKafka extends ClassLoader {
  private static final Logger LOG = LoggerFactory.getLogger(NestedKafka.class);
  private static final String FOLDER = "io/firnline/iceberg/kafka-clients/";
  private static final String KAFKA = "org.apache.kafka.";
  private static final String PRODUCER = "org.apache.kafka.clients.producer.KafkaProducer";
  private static final String WRITER = "io.firnline.iceberg.KafkaRecordWriter";
  private static final ClassLoader WRITERS = NestedKafka.class.getClassLoader();

  static {
    registerAsParallelCapable();
  }

  private NestedKafka() {
    super(WRITERS);
  }

  /**
   * Makes a writer. Sets the context class loader of the calling thread, from which Kafka loads classes named by options.
   *
   * @throws ReflectiveOperationException the cause is the producer's exception, e.g. about an invalid option
   */
  static RecordWriter open(String topic, Map<String, Object> options) throws ReflectiveOperationException {
    ClassLoader loader = loader();
    Thread.currentThread().setContextClassLoader(loader);
    return (RecordWriter)
        loader.loadClass(WRITER).getConstructor(String.class, Map.class).newInstance(topic, options);
  }

  private static ClassLoader loader() {
    try {
      Class.forName(PRODUCER, false, WRITERS);
      return WRITERS;
    } catch (ClassNotFoundException | LinkageError absent) {
      LOG.debug("The class path has no kafka-clients; those of the reporter's jar are used");
      return Carried.LOADER;
    }
  }

  /** Made when it is needed, once for all producers of the JVM. */
  private static final class Carried {
    private static final ClassLoader LOADER = new NestedKafka();
  }

  @Override
  protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
    if (!name.startsWith(KAFKA) && !name.equals(WRITER)) {
      return super.loadClass(name, resolve);
    }
    synchronized (getClassLoadingLock(name)) {
      Class<?> loaded = findLoadedClass(name);
      return loaded != null ? loaded : findClass(name);
    }
  }

  @Override
  protected Class<?> findClass(String name) throws ClassNotFoundException {
    String path = (name.equals(WRITER) ? "" : FOLDER) + name.replace('.', '/') + ".class";
    try (InputStream file = WRITERS.getResourceAsStream(path)) {
      if (file == null) {
        throw new ClassNotFoundException(name);
      }
      byte[] code = file.readAllBytes();
      return defineClass(name, code, 0, code.length, NestedKafka.class.getProtectionDomain());
    } catch (IOException problem) {
      throw new ClassNotFoundException(name, problem);
    }
  }

  @Override
  protected URL findResource(String name) {
    return WRITERS.getResource(FOLDER + name);
  }

  @Override
  protected Enumeration<URL> findResources(String name) throws IOException {
    return WRITERS.getResources(FOLDER + name);
  }
}
