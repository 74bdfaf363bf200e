import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.connect.data.Date;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Time;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs Debezium's Postgres connector in its embedded engine and prints schema and value of the column v of every row:
 *
 * <pre>
 * row TABLE ID SCHEMA VALUE     tabs between; "absent" is a column that Debezium left out
 * died MESSAGE                  the connector ended; a line on standard input starts it again
 * </pre>
 *
 * Its arguments are properties of the connector. The text of schemas and values is what render_test.go makes of ours.
 */
public class Oracle {
    static final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        Properties p = new Properties();
        p.setProperty("name", "oracle");
        p.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        p.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        p.setProperty("offset.flush.interval.ms", "3600000");
        p.setProperty("plugin.name", "pgoutput");
        p.setProperty("publication.autocreate.mode", "disabled");
        p.setProperty("snapshot.mode", "no_data");
        p.setProperty("topic.prefix", "p");
        p.setProperty("poll.interval.ms", "5");
        p.setProperty("errors.max.retries", "0");
        for (String arg : args) {
            int eq = arg.indexOf('=');
            p.setProperty(arg.substring(0, eq), arg.substring(eq + 1));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        do {
            CountDownLatch ended = new CountDownLatch(1);
            String[] message = {""};
            DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
                    .using(p)
                    .using((success, text, error) -> {
                        StringBuilder b = new StringBuilder(String.valueOf(text));
                        for (Throwable e = error; e != null; e = e.getCause()) {
                            b.append(" <- ").append(e.getClass().getSimpleName()).append(": ").append(e.getMessage());
                        }
                        message[0] = b.toString();
                        ended.countDown();
                    })
                    .notifying(event -> print(event.value()))
                    .build();
            new Thread(engine).start();
            ended.await();
            out.println("died\t" + message[0].replaceAll("\\s+", " "));
        } while (in.readLine() != null);
        System.exit(0);
    }

    static void print(SourceRecord r) {
        if (r.value() == null || r.valueSchema().field("after") == null) {
            return;
        }
        Struct after = ((Struct) r.value()).getStruct("after");
        String table = ((Struct) r.value()).getStruct("source").getString("table");
        Field v = after.schema().field("v");
        String schema = "absent";
        String value = "absent";
        if (v != null) {
            schema = schema(v.schema());
            try {
                value = value(v.schema(), after.get(v)); // get, as the EventRouter does: a default stands for NULL
            }
            catch (Exception e) {
                value = "!" + e;
            }
        }
        out.println("row\t" + table + "\t" + after.get("id") + "\t" + schema + "\t" + value);
    }

    static String schema(Schema s) {
        StringBuilder b = new StringBuilder(s.type().toString());
        if (s.isOptional()) {
            b.append('?');
        }
        if (s.name() != null) {
            b.append(' ').append(s.name());
        }
        if (s.version() != null) {
            b.append('/').append(s.version());
        }
        if (s.doc() != null) {
            b.append(" doc=").append(quote(s.doc()));
        }
        if (s.parameters() != null) {
            for (Map.Entry<String, String> e : s.parameters().entrySet()) {
                b.append(' ').append(quote(e.getKey())).append('=').append(quote(e.getValue()));
            }
        }
        switch (s.type()) {
            case ARRAY -> b.append(" <").append(schema(s.valueSchema())).append('>');
            case MAP -> b.append(" <").append(schema(s.keySchema())).append(", ").append(schema(s.valueSchema())).append('>');
            case STRUCT -> {
                b.append(" {");
                String comma = "";
                for (Field f : s.fields()) {
                    b.append(comma).append(f.name()).append(": ").append(schema(f.schema()));
                    comma = ", ";
                }
                b.append('}');
            }
            default -> {
            }
        }
        if (s.defaultValue() != null) {
            b.append(" default ").append(value(s, s.defaultValue()));
        }
        return b.toString();
    }

    static String value(Schema s, Object v) {
        if (v == null) {
            return "null";
        }
        if (Decimal.LOGICAL_NAME.equals(s.name())) {
            BigDecimal d = (BigDecimal) v;
            Decimal.fromLogical(s, d); // complains of a scale that is not the schema's
            return d.unscaledValue() + "e" + -d.scale();
        }
        if (Date.LOGICAL_NAME.equals(s.name())) {
            return String.valueOf(Date.fromLogical(s, (java.util.Date) v));
        }
        if (Time.LOGICAL_NAME.equals(s.name())) {
            return String.valueOf(Time.fromLogical(s, (java.util.Date) v));
        }
        if (Timestamp.LOGICAL_NAME.equals(s.name())) {
            return String.valueOf(Timestamp.fromLogical(s, (java.util.Date) v));
        }
        StringBuilder b = new StringBuilder();
        String comma = "";
        switch (s.type()) {
            case FLOAT32:
                return String.format("f32 %08x", Float.floatToIntBits((Float) v));
            case FLOAT64:
                return String.format("f64 %016x", Double.doubleToLongBits((Double) v));
            case STRING:
                return quote((String) v);
            case BYTES:
                byte[] bytes;
                if (v instanceof ByteBuffer buffer) {
                    bytes = new byte[buffer.remaining()];
                    buffer.duplicate().get(bytes);
                }
                else {
                    bytes = (byte[]) v;
                }
                b.append("x'");
                for (byte x : bytes) {
                    b.append(String.format("%02x", x));
                }
                return b.append('\'').toString();
            case ARRAY:
                for (Object e : (List<?>) v) {
                    b.append(comma).append(value(s.valueSchema(), e));
                    comma = ", ";
                }
                return "[" + b + "]";
            case MAP:
                for (Map.Entry<?, ?> e : ((Map<?, ?>) v).entrySet()) {
                    b.append(comma).append(value(s.keySchema(), e.getKey())).append(" => ").append(value(s.valueSchema(), e.getValue()));
                    comma = ", ";
                }
                return "<" + b + ">";
            case STRUCT:
                for (Field f : s.fields()) {
                    b.append(comma).append(f.name()).append(": ").append(value(f.schema(), ((Struct) v).getWithoutDefault(f.name())));
                    comma = ", ";
                }
                return "{" + b + "}";
            default:
                return String.valueOf(v);
        }
    }

    static String quote(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            }
            else if (c < ' ') {
                b.append(String.format("\\x%02x", (int) c));
            }
            else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }
}
