import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * What Kafka makes of rules for principals: for each line of a file (UTF-8 in hexadecimal) and each subject of another
 * one, a line with the name in hexadecimal, "none" if no rule applies, "invalid" for rules that Kafka refuses.
 */
public class PrincipalRules {
    public static void main(String[] args) throws Exception {
        List<String> answers = new ArrayList<>();
        List<String> subjects = Files.readAllLines(Path.of(args[1]));
        for (String rules : Files.readAllLines(Path.of(args[0]))) {
            for (String subject : subjects) {
                answers.add(answer(text(rules), text(subject)));
            }
        }
        Files.write(Path.of(args[2]), answers);
    }

    private static String answer(String rules, String subject) throws Exception {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(rules);
        } catch (IllegalArgumentException error) {
            return "invalid";
        }
        try {
            byte[] name = mapper.getName(subject).getBytes(StandardCharsets.UTF_8);
            StringBuilder hexadecimal = new StringBuilder("=");
            for (byte each : name) {
                hexadecimal.append(String.format("%02x", each));
            }
            return hexadecimal.toString();
        } catch (SslPrincipalMapper.NoMatchingRule error) {
            return "none";
        }
    }

    private static String text(String hexadecimal) {
        byte[] data = new byte[hexadecimal.length() / 2];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) Integer.parseInt(hexadecimal.substring(2 * i, 2 * i + 2), 16);
        }
        return new String(data, StandardCharsets.UTF_8);
    }
}
