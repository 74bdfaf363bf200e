import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Says what Java makes of a pattern, a replacement and a value. It reads one question per line, with its fields in hex. It
 * writes one answer per line: "= " and hex, or "! " and the exception. It needs no jar: run it as a source file.
 */
public class Oracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] q = line.split(" ", -1);
            try {
                out.println("= " + hex(answer(q)));
            } catch (Exception | StackOverflowError e) {
                out.println("! " + e.getClass().getSimpleName());
            }
        }
        out.flush();
    }

    static String answer(String[] q) {
        switch (q[0]) {
            case "regex": // org.apache.kafka.connect.transforms.RegexRouter
                Matcher m = Pattern.compile(text(q[1])).matcher(text(q[3]));
                return m.matches() ? m.replaceFirst(text(q[2])) : text(q[3]);
        }
        throw new IllegalArgumentException(q[0]);
    }

    static String text(String hex) {
        byte[] b = new byte[hex.length() / 2];
        for (int i = 0; i < b.length; i++) {
            b[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return new String(b, StandardCharsets.UTF_8);
    }

    static String hex(String s) {
        StringBuilder b = new StringBuilder();
        for (byte c : s.getBytes(StandardCharsets.UTF_8)) {
            b.append(String.format("%02x", c & 0xff));
        }
        return b.toString();
    }
}
