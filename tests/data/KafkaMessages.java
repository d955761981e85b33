import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.message.ApiMessageType.ListenerType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * What Kafka's own classes make of requests and responses. For each line on the standard input, the names of two files
 * with a tab between, it answers the first file's lines in the second one, and then prints a line. Lines are:
 *
 *   message NAME READ WRITE HEX  decodes the bytes in version READ and encodes them in WRITE: their hexadecimal form, a
 *                                blank and the message's JSON in READ; "refused", or "unsupported" if WRITE cannot hold it
 *   default NAME VERSION         the same of a message with no field set
 *   headers KEY VERSION          headers of a request (correlation id 7, client id "c") and its response
 *   versions                     KEY:LOW-HIGH of each API that a broker offers
 *   errors                       CODE:NAME:RETRIABLE of each error
 */
public class KafkaMessages {
    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] files = line.split("\t");
            List<String> answers = new ArrayList<>();
            for (String request : Files.readAllLines(Path.of(files[0]))) {
                answers.add(answer(request.split(" ")));
            }
            Files.write(Path.of(files[1]), answers, StandardCharsets.UTF_8);
            System.out.println("done");
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "message":
                return message(words[1], Short.parseShort(words[2]), Short.parseShort(words[3]),
                    words.length > 4 ? words[4] : "");
            case "default":
                return written(create(words[1]), Short.parseShort(words[2]), Short.parseShort(words[2]));
            case "headers":
                return headers(Short.parseShort(words[1]), Short.parseShort(words[2]));
            case "versions":
                return Arrays.stream(ApiKeys.values())
                    .filter(key -> key.inScope(ListenerType.BROKER) && key.toApiVersion(false).isPresent())
                    .map(key -> key.id + ":" + key.toApiVersion(false).get().minVersion() + "-"
                        + key.toApiVersion(false).get().maxVersion())
                    .collect(Collectors.joining(" "));
            case "errors":
                return Arrays.stream(Errors.values())
                    .map(error -> error.code() + ":" + error.name() + ":"
                        + (error.exception() instanceof RetriableException))
                    .collect(Collectors.joining(" "));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static Message create(String name) throws Exception {
        return (Message) Class.forName("org.apache.kafka.common.message." + name + "Data")
            .getDeclaredConstructor().newInstance();
    }

    private static String message(String name, short read, short write, String hex) throws Exception {
        Message message = create(name);
        ByteBuffer buffer = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        try {
            message.read(new ByteBufferAccessor(buffer), read);
        } catch (RuntimeException error) {
            return "refused";
        }
        return buffer.hasRemaining() ? "trailing" : written(message, read, write);
    }

    private static String written(Message message, short read, short write) throws Exception {
        try {
            return hex(message, write) + " " + json(message, read);
        } catch (RuntimeException error) {
            return "unsupported";
        }
    }

    private static String hex(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        buffer.flip();
        return HexFormat.of().formatHex(buffer.array(), 0, buffer.limit());
    }

    private static String json(Message message, short version) throws Exception {
        Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
        try {
            return converter.getMethod("write", message.getClass(), short.class)
                .invoke(null, message, version).toString();
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof UnsupportedVersionException) {
                throw (RuntimeException) error.getCause();
            }
            throw error;
        }
    }

    private static String headers(short apiKey, short version) {
        ApiKeys api = ApiKeys.forId(apiKey);
        RequestHeaderData request = new RequestHeaderData().setRequestApiKey(apiKey).setRequestApiVersion(version)
            .setCorrelationId(7).setClientId("c");
        ResponseHeaderData response = new ResponseHeaderData().setCorrelationId(7);
        return hex(request, api.requestHeaderVersion(version)) + " " + hex(response, api.responseHeaderVersion(version));
    }
}
