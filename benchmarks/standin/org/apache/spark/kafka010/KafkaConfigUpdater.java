package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;
import scala.Option;
import scala.collection.Iterator;
import scala.Tuple2;

/** Collects client settings, as the connector asks; knows of no authentication. */
public final class KafkaConfigUpdater {
  private final Map<String, Object> settings = new HashMap<>();

  public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> initial) {
    for (Iterator<Tuple2<String, Object>> each = initial.iterator(); each.hasNext(); ) {
      Tuple2<String, Object> setting = each.next();
      settings.put(setting._1(), setting._2());
    }
  }

  public KafkaConfigUpdater set(String name, Object value) {
    settings.put(name, value);
    return this;
  }

  public KafkaConfigUpdater setIfUnset(String name, Object value) {
    settings.putIfAbsent(name, value);
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> cluster) {
    return this;
  }

  public Map<String, Object> build() {
    return settings;
  }
}
