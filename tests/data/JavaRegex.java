import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * What java.util.regex makes of expressions: for each line of a file (as \\uXXXX code units in hexadecimal) one line,
 * "invalid" and why, or for each name "f" where it is found, "m" where it matches the whole name too, "-" for neither.
 */
public class JavaRegex {
    public static void main(String[] args) throws Exception {
        List<String> names = Files.readAllLines(Path.of(args[0]));
        List<String> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[1]))) {
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < line.length(); i += 4) {
                text.append((char) Integer.parseInt(line.substring(i, i + 4), 16));
            }
            answers.add(answer(text.toString(), names));
        }
        Files.write(Path.of(args[2]), answers, StandardCharsets.UTF_8);
    }

    private static String answer(String text, List<String> names) {
        try {
            Pattern pattern = Pattern.compile(text);
            StringBuilder found = new StringBuilder();
            for (String name : names) {
                boolean matches = pattern.matcher(name).matches();
                boolean isFound = pattern.matcher(name).find();
                found.append(matches ? (isFound ? "m" : "!") : (isFound ? "f" : "-"));
            }
            return found.toString();
        } catch (PatternSyntaxException error) {
            return "invalid " + error.getDescription();
        } catch (RuntimeException error) { // Java 17 compiles [a-bc&&], and fails when it is used.
            return "invalid " + error;
        }
    }
}
