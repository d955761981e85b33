import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own transactional producers and consumers, driven line by line.
 *
 * Argument: the bootstrap servers. A request is one line of words; the answer is one line: "ok", "ok" with words, or
 * "error" with the class of the exception.
 *
 *   producer NAME ID TIMEOUT_MS      init NAME      begin NAME      commit NAME      abort NAME      close NAME
 *   send NAME TOPIC PARTITION VALUE...           waits until all are written
 *   submit NAME TOPIC PARTITION VALUE...         does not wait
 *   offsets NAME GROUP TOPIC PARTITION OFFSET    adds a group's offset to the transaction
 *   read ISOLATION TOPIC PARTITION END           the values up to the end of that isolation level
 *   committed GROUP TOPIC PARTITION              the group's offset, -1 if it has none
 *   copy NAME GROUP FROM TO COUNT                reads as a member of the group, writes and commits in transactions
 */
public final class TransactionClient {
    private static String bootstrap;
    private static final Map<String, Producer<String, String>> producers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split(" ")));
            System.out.flush();
        }
        System.exit(0);
    }

    private static String answer(String[] words) {
        try {
            return "ok" + run(words);
        } catch (Throwable error) {
            Throwable cause = error instanceof java.util.concurrent.ExecutionException ? error.getCause() : error;
            System.err.println(String.join(" ", words) + ": " + cause);
            return "error " + cause.getClass().getSimpleName();
        }
    }

    private static String run(String[] words) throws Exception {
        Producer<String, String> producer = words.length > 1 ? producers.get(words[1]) : null;
        switch (words[0]) {
            case "producer": producers.put(words[1], newProducer(words[2], words[3])); return "";
            case "init": producer.initTransactions(); return "";
            case "begin": producer.beginTransaction(); return "";
            case "commit": producer.commitTransaction(); return "";
            case "abort": producer.abortTransaction(); return "";
            case "close": producer.close(Duration.ZERO); return "";
            case "send": for (Future<?> each : submit(producer, words)) each.get(); return "";
            case "submit": submit(producer, words); return "";
            case "offsets":
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(words[3], Integer.parseInt(words[4])),
                        new OffsetAndMetadata(Long.parseLong(words[5]))),
                    new ConsumerGroupMetadata(words[2]));
                return "";
            case "read": return read(words[1], words[2], Integer.parseInt(words[3]));
            case "committed": return committed(words[1], new TopicPartition(words[2], Integer.parseInt(words[3])));
            case "copy": return copy(producer, words[2], words[3], words[4], Integer.parseInt(words[5]));
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static Producer<String, String> newProducer(String id, String timeoutMs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", id);
        properties.put("transaction.timeout.ms", timeoutMs);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("linger.ms", "1");
        properties.put("max.block.ms", "20000");
        return new KafkaProducer<>(properties);
    }

    private static List<Future<?>> submit(Producer<String, String> producer, String[] words) {
        List<Future<?>> sent = new ArrayList<>();
        for (int at = 4; at < words.length; at++)
            sent.add(producer.send(new ProducerRecord<>(words[2], Integer.parseInt(words[3]), null, words[at])));
        return sent;
    }

    private static Consumer<String, String> newConsumer(String group, String isolation) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        if (group != null) properties.put("group.id", group);
        properties.put("isolation.level", isolation);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("default.api.timeout.ms", "20000");
        return new KafkaConsumer<>(properties);
    }

    private static String read(String isolation, String topic, int partition) {
        StringBuilder values = new StringBuilder();
        TopicPartition from = new TopicPartition(topic, partition);
        try (Consumer<String, String> consumer = newConsumer(null, isolation)) {
            consumer.assign(List.of(from));
            consumer.seekToBeginning(List.of(from));
            long end = consumer.endOffsets(List.of(from)).get(from);
            while (consumer.position(from) < end)
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(100)))
                    values.append(' ').append(each.value());
        }
        return values.toString();
    }

    private static String committed(String group, TopicPartition partition) {
        try (Consumer<String, String> consumer = newConsumer(group, "read_committed")) {
            OffsetAndMetadata found = consumer.committed(java.util.Set.of(partition)).get(partition);
            return " " + (found == null ? -1 : found.offset());
        }
    }

    private static String copy(Producer<String, String> producer, String group, String from, String to, int count) {
        int copied = 0;
        try (Consumer<String, String> consumer = newConsumer(group, "read_committed")) {
            consumer.subscribe(List.of(from));
            long deadline = System.currentTimeMillis() + 60_000;
            for (boolean aborts = true; copied < count && System.currentTimeMillis() < deadline; aborts = !aborts) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                for (ConsumerRecord<String, String> each : records)
                    producer.send(new ProducerRecord<>(to, null, each.value()));
                producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
                if (aborts) {
                    producer.abortTransaction();
                    for (TopicPartition each : records.partitions())
                        consumer.seek(each, records.records(each).get(0).offset());
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
        }
        return " " + copied;
    }
}
