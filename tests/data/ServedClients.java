import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RetriableException;

/**
 * Kafka's own clients, which note what they do and see: one process, one thread for each of them.
 *
 * Arguments: BOOTSTRAP NAME HISTORY CONTROL SEED. What each client does, and the lines of the history, are those of
 * served_clients.py; the transactional ids are others, the groups are the same. A reader reads all topics to their ends,
 * with and without isolation, once there is a file CONTROL/read.
 */
public final class ServedClients {
    private static final int PARTITIONS = 3;
    private static final int KEYS = 7;
    private static final Map<String, List<String>> SUBSCRIPTIONS =
        Map.of("classic", List.of("plain", "tx", "compacted"), "cooperative", List.of("plain", "copied"),
            "next", List.of("plain", "tx", "copied"));
    private static final Map<String, String> ISOLATION =
        Map.of("classic", "read_uncommitted", "cooperative", "read_committed", "next", "read_committed");
    private static final String SERIALIZATION = "org.apache.kafka.common.serialization.String";

    private static String bootstrap;
    private static String name;
    private static Path control;
    private static FileOutputStream history;

    private interface Session {
        void run(int at) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        name = args[1];
        history = new FileOutputStream(args[2], true);
        control = Path.of(args[3]);
        String seed = args[4];
        start("producer", "stop-writing", at -> produce(at, new Random((seed + "producer").hashCode())));
        start("transactional", "stop-writing", at -> transact(at, new Random((seed + "transactional").hashCode())));
        start("classic", "stop", at -> consume("classic", at));
        start("cooperative", "stop", at -> consume("cooperative", at));
        start("next", "stop", at -> consume("next", at));
        start("copier", "stop", ServedClients::copy);
        start("reader", "stop", ServedClients::readAll);
    }

    /** Keep a client of this role until the end: one that has failed has a successor. */
    private static void start(String role, String until, Session session) {
        new Thread(() -> {
            for (int at = 0; ; at++) {
                String client = name + "." + role + at;
                try {
                    session.run(at);
                    note("finished", "client", client, "role", role);
                    return;
                } catch (KafkaException | IllegalStateException failure) {
                    note("error", "client", client, "error", failure.toString());
                    if (has(until)) {
                        note("finished", "client", client, "role", role);
                        return;
                    }
                    pause(200);
                } catch (Throwable failure) {
                    note("broken", "client", client, "error", failure.toString());
                    return;
                }
            }
        }).start();
    }

    // The history

    /** A line of the names and values; a value that is a StringBuilder is JSON already. */
    private static void note(String op, Object... fields) {
        StringBuilder line = new StringBuilder("{\"op\":\"").append(op).append('"');
        for (int at = 0; at < fields.length; at += 2) {
            line.append(",\"").append(fields[at]).append("\":");
            append(line, fields[at + 1]);
        }
        byte[] bytes = line.append("}\n").toString().getBytes(StandardCharsets.UTF_8);
        synchronized (history) {
            try {
                history.write(bytes);
            } catch (IOException failure) {
                throw new AssertionError(failure);
            }
        }
    }

    private static void append(StringBuilder line, Object value) {
        if (!(value instanceof String)) {
            line.append(value);
            return;
        }
        line.append('"');
        for (char each : ((String) value).toCharArray())
            if (each == '"' || each == '\\') line.append('\\').append(each);
            else if (each < ' ') line.append(' ');
            else line.append(each);
        line.append('"');
    }

    private static StringBuilder json(Collection<TopicPartition> partitions) {
        StringBuilder list = new StringBuilder("[");
        for (TopicPartition each : partitions) {
            if (list.length() > 1) list.append(',');
            list.append("[\"").append(each.topic()).append("\",").append(each.partition()).append(']');
        }
        return list.append(']');
    }

    private static void notePoll(
            String client, String group, String isolation, String transaction,
            ConsumerRecords<String, String> records) {
        StringBuilder list = new StringBuilder("[");
        for (ConsumerRecord<String, String> each : records) {
            if (list.length() > 1) list.append(',');
            list.append("[\"").append(each.topic()).append("\",").append(each.partition()).append(',');
            append(list.append(each.offset()).append(','), each.value());
            list.append(']');
        }
        note("poll", "client", client, "group", group, "isolation", isolation, "txn", transaction, "t",
            System.nanoTime(), "records", list.append(']'));
    }

    private static boolean has(String word) {
        return Files.exists(control.resolve(word));
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException failure) {
            throw new AssertionError(failure);
        }
    }

    // Producers

    private static KafkaProducer<String, String> newProducer(String transactionalId) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", SERIALIZATION + "Serializer");
        properties.put("value.serializer", SERIALIZATION + "Serializer");
        properties.put("linger.ms", "2");
        properties.put("max.block.ms", "45000");
        properties.put("reconnect.backoff.max.ms", "1000");
        if (transactionalId != null) {
            properties.put("transactional.id", transactionalId);
            properties.put("transaction.timeout.ms", "10000");
        }
        return new KafkaProducer<>(properties);
    }

    private static final class Sender {
        private final String client;
        private final AtomicInteger unsent = new AtomicInteger();
        private int count = 0;

        private Sender(String client) {
            this.client = client;
        }

        private void send(
                KafkaProducer<String, String> producer, String topic, int partition, String key, String transaction,
                String source) {
            String value = client + "#" + count++;
            note("send", "client", client, "txn", transaction, "source", source, "topic", topic, "partition", partition,
                "key", key, "value", value);
            unsent.incrementAndGet();
            producer.send(new ProducerRecord<>(topic, partition, key, value), (metadata, error) -> {
                unsent.decrementAndGet();
                if (error == null) note("sent", "value", value, "offset", metadata.offset());
                else note("error", "client", client, "error", value + ": " + error);
            });
        }
    }

    private static void produce(int at, Random drawn) {
        Sender sender = new Sender(name + ".producer" + at);
        try (KafkaProducer<String, String> producer = newProducer(null)) {
            while (!has("stop-writing")) {
                if (sender.unsent.get() < 200) {
                    for (int count = 1 + drawn.nextInt(5); count > 0; count--)
                        sender.send(producer, "plain", drawn.nextInt(PARTITIONS), null, null, null);
                    sender.send(producer, "compacted", 0, "k" + drawn.nextInt(KEYS), null, null);
                    sender.send(producer, "aging", 0, null, null, null);
                }
                pause(50);
            }
            producer.flush();
        }
    }

    private static void transact(int at, Random drawn) {
        String client = name + ".transactional" + at;
        Sender sender = new Sender(client);
        KafkaProducer<String, String> producer = newProducer("java");
        try {
            producer.initTransactions();
            for (int count = 1; !has("stop-writing"); count++) {
                String transaction = client + "/" + count;
                producer.beginTransaction();
                for (int left = 1 + drawn.nextInt(8); left > 0; left--)
                    sender.send(producer, drawn.nextInt(3) == 0 ? "plain" : "tx", drawn.nextInt(PARTITIONS), null,
                        transaction, null);
                double choice = drawn.nextDouble();
                if (choice < 0.1) {
                    producer.flush();
                    KafkaProducer<String, String> zombie = producer;
                    producer = newProducer("java");
                    producer.initTransactions(); // aborts what is open
                    commitAsZombie(zombie, transaction);
                    continue;
                }
                if (choice < 0.2) pause(drawn.nextInt(2000));
                if (choice < 0.4) abort(producer, transaction);
                else commit(producer, transaction);
                pause(drawn.nextInt(100));
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private static void commitAsZombie(KafkaProducer<String, String> producer, String transaction) {
        note("commit", "txn", transaction, "t", System.nanoTime());
        try {
            producer.commitTransaction();
            note("ended", "txn", transaction, "committed", true);
        } catch (ProducerFencedException | InvalidProducerEpochException failure) {
            note("ended", "txn", transaction, "committed", false);
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    /** Commit: true; or abort where the error allows that. After a KafkaException the producer is done for. */
    private static boolean commit(KafkaProducer<String, String> producer, String transaction) {
        note("commit", "txn", transaction, "t", System.nanoTime());
        long deadline = System.nanoTime() + Duration.ofSeconds(90).toNanos();
        while (true) {
            try {
                producer.commitTransaction();
                note("ended", "txn", transaction, "committed", true);
                return true;
            } catch (RetriableException failure) { // above all a timeout: the call goes on where it was
                if (System.nanoTime() > deadline) throw failure;
            } catch (ProducerFencedException failure) {
                throw failure;
            } catch (KafkaException failure) {
                note("error", "client", transaction, "error", failure.toString());
                abort(producer, transaction);
                return false;
            }
        }
    }

    private static void abort(KafkaProducer<String, String> producer, String transaction) {
        producer.abortTransaction();
        note("ended", "txn", transaction, "committed", false);
    }

    // Consumers

    private static KafkaConsumer<String, String> newMember(String group, String isolation) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("isolation.level", isolation);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("key.deserializer", SERIALIZATION + "Deserializer");
        properties.put("value.deserializer", SERIALIZATION + "Deserializer");
        properties.put("default.api.timeout.ms", "45000");
        properties.put("reconnect.backoff.max.ms", "1000");
        if (group.equals("next")) properties.put("group.protocol", "consumer");
        else properties.put("session.timeout.ms", "6000");
        if (group.equals("cooperative"))
            properties.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        return new KafkaConsumer<>(properties);
    }

    private static void subscribe(KafkaConsumer<String, String> consumer, String client, List<String> topics) {
        consumer.subscribe(topics, new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                note("reset", "client", client, "partitions", json(partitions));
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                note("reset", "client", client, "partitions", json(partitions));
            }
        });
    }

    private static void consume(String group, int at) {
        String client = name + "." + group + at;
        try (KafkaConsumer<String, String> consumer = newMember(group, ISOLATION.get(group))) {
            subscribe(consumer, client, SUBSCRIPTIONS.get(group));
            boolean isUncommitted = false; // a commit that failed is tried again: partitions that are kept go on
            while (!has("stop")) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (!records.isEmpty()) {
                    notePoll(client, group, ISOLATION.get(group), null, records);
                    isUncommitted = true;
                }
                if (!isUncommitted) continue;
                try {
                    consumer.commitSync();
                    isUncommitted = false;
                } catch (KafkaException failure) {
                    note("error", "client", client, "error", failure.toString());
                }
            }
        }
    }

    private static void copy(int at) {
        String client = name + ".copier" + at;
        Sender sender = new Sender(client);
        KafkaProducer<String, String> producer = newProducer("java-copier");
        try (KafkaConsumer<String, String> consumer = newMember("copiers", "read_committed")) {
            producer.initTransactions();
            subscribe(consumer, client, List.of("tx"));
            for (int count = 1; !has("stop"); ) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) continue;
                String transaction = client + "/" + count++;
                producer.beginTransaction();
                notePoll(client, "copiers", "read_committed", transaction, records);
                try {
                    for (ConsumerRecord<String, String> each : records)
                        sender.send(producer, "copied", each.partition(), null, transaction, each.value());
                    producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
                } catch (ProducerFencedException failure) {
                    throw failure;
                } catch (KafkaException failure) {
                    note("error", "client", client, "error", failure.toString());
                    abort(producer, transaction);
                    goToCommitted(consumer, client);
                    continue;
                }
                if (!commit(producer, transaction)) goToCommitted(consumer, client);
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private static void readAll(int at) {
        while (!has("read")) {
            if (has("stop")) return;
            pause(200);
        }
        String client = name + ".reader" + at;
        for (String isolation : List.of("read_committed", "read_uncommitted"))
            try (KafkaConsumer<String, String> consumer = newMember("readers", isolation)) {
                List<TopicPartition> partitions = new ArrayList<>();
                for (String topic : List.of("plain", "tx", "copied", "compacted", "aging"))
                    consumer.partitionsFor(topic).forEach(
                        each -> partitions.add(new TopicPartition(topic, each.partition())));
                consumer.assign(partitions);
                consumer.seekToBeginning(partitions);
                Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
                Map<TopicPartition, StringBuilder> found = new HashMap<>();
                while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each)))
                    for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(1))) {
                        TopicPartition partition = new TopicPartition(each.topic(), each.partition());
                        StringBuilder list = found.computeIfAbsent(partition, absent -> new StringBuilder("["));
                        if (list.length() > 1) list.append(',');
                        append(list.append('[').append(each.offset()).append(','), each.value());
                        list.append(']');
                    }
                for (TopicPartition each : partitions)
                    note("final", "client", client, "topic", each.topic(), "partition", each.partition(), "isolation",
                        isolation, "records", found.getOrDefault(each, new StringBuilder("[")).append(']'));
            }
    }

    private static void goToCommitted(KafkaConsumer<String, String> consumer, String client) {
        Set<TopicPartition> assigned = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
        List<TopicPartition> unknown = new ArrayList<>();
        for (TopicPartition each : assigned) {
            OffsetAndMetadata offset = committed.get(each);
            if (offset == null) unknown.add(each);
            else consumer.seek(each, offset);
        }
        if (!unknown.isEmpty()) consumer.seekToBeginning(unknown);
        note("reset", "client", client, "partitions", json(assigned));
    }
}
