import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's consumer without a group, driven by lines of stdin. Each is answered by a line: "ok" and values.
 *
 *     assign TOPIC FIRST LAST [TOPIC FIRST LAST ...]   read these partitions, from the start those that are new
 *     poll COUNT SECONDS                               the values of the next records, until there are COUNT
 */
public class AssigningConsumer {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", "200");
        settings.put("metadata.max.age.ms", "1000");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println(answer(consumer, line.split(" ")));
                System.out.flush();
            }
        }
    }

    private static String answer(KafkaConsumer<String, String> consumer, String[] words) {
        StringBuilder answer = new StringBuilder("ok");
        if (words[0].equals("assign")) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int at = 1; at < words.length; at += 3) {
                for (int each = Integer.parseInt(words[at + 1]); each <= Integer.parseInt(words[at + 2]); each++) {
                    partitions.add(new TopicPartition(words[at], each));
                }
            }
            consumer.assign(partitions);
            return answer.toString();
        }
        long endNs = System.nanoTime() + Long.parseLong(words[2]) * 1_000_000_000L;
        int left = Integer.parseInt(words[1]);
        while (left > 0 && System.nanoTime() < endNs) {
            for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                answer.append(' ').append(each.value());
                left--;
            }
        }
        return answer.toString();
    }
}
