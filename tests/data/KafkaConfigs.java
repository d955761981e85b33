import java.lang.reflect.Field;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.ConfigSynonym;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints the configurations of topics and of groups that Kafka has, a line each, with tabs between the fields:
 *
 *   topic or group, name, type, default, broker-level names with commas between
 *
 * Groups have broker-level names since Kafka 4.3; before, the field is "?".
 */
public class KafkaConfigs {
    public static void main(String[] args) throws Exception {
        for (ConfigDef.ConfigKey key : definitions(LogConfig.class).configKeys().values()) {
            List<ConfigSynonym> names = ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.get(key.name);
            print("topic", key, names == null ? "" : String.join(",", names.stream().map(ConfigSynonym::name).toList()));
        }
        Field synonyms = fieldOf(GroupConfig.class, "ALL_GROUP_CONFIG_SYNONYMS");
        for (ConfigDef.ConfigKey key : definitions(GroupConfig.class).configKeys().values()) {
            Object name = synonyms == null ? Optional.of("?") : ((Map<?, ?>) synonyms.get(null)).get(key.name);
            print("group", key, ((Optional<?>) name).map(Object::toString).orElse(""));
        }
    }

    private static void print(String kind, ConfigDef.ConfigKey key, String names) {
        Object value = key.hasDefault() ? key.defaultValue : null;
        String text = value == null ? "" : ConfigDef.convertToString(value, key.type);
        System.out.println(String.join("\t", kind, key.name, key.type.toString().toLowerCase(), text, names));
    }

    /** What the class checks configurations by: the field was renamed. */
    private static ConfigDef definitions(Class<?> of) throws Exception {
        Field found = fieldOf(of, "CONFIG");
        return (ConfigDef) (found == null ? fieldOf(of, "CONFIG_DEF") : found).get(null);
    }

    private static Field fieldOf(Class<?> of, String name) {
        for (Field each : of.getDeclaredFields()) {
            if (each.getName().equals(name)) {
                each.setAccessible(true);
                return each;
            }
        }
        return null;
    }
}
