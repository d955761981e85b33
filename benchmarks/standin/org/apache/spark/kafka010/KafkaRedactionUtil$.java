package org.apache.spark.kafka010;

import scala.collection.immutable.Seq;

/** The Scala object KafkaRedactionUtil where settings hold no secrets. */
public final class KafkaRedactionUtil$ {
  public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

  private KafkaRedactionUtil$() {}

  public Seq<?> redactParams(Seq<?> settings) {
    return settings;
  }
}
