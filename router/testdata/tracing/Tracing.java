import io.debezium.transforms.outbox.EventRouter;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;

// Prints the headers that Debezium's EventRouter gives a row with a trace context, for debezium.txt. Ids that are new in each run are *.
// The class path is Kafka Connect's and Debezium's, and opentelemetry-sdk-extension-autoconfigure 1.54.0 with what it needs:
//   java -Dotel.java.global-autoconfigure.enabled=true -Dotel.traces.exporter=none -Dotel.metrics.exporter=none -Dotel.logs.exporter=none Tracing
public class Tracing {
    static final Schema ROW = SchemaBuilder.struct().name("p.public.outbox.Value").optional()
        .field("id", Schema.STRING_SCHEMA).field("aggregate_type", Schema.STRING_SCHEMA).field("aggregate_id", Schema.STRING_SCHEMA)
        .field("payload", Schema.OPTIONAL_STRING_SCHEMA).field("tracingspancontext", Schema.OPTIONAL_STRING_SCHEMA).build();
    static final Schema SOURCE = SchemaBuilder.struct().name("io.debezium.connector.postgresql.Source")
        .field("connector", Schema.STRING_SCHEMA).field("ts_ms", Schema.INT64_SCHEMA).build();
    static final Schema ENVELOPE = SchemaBuilder.struct().name("p.public.outbox.Envelope")
        .field("before", ROW).field("after", ROW).field("source", SOURCE).field("op", Schema.STRING_SCHEMA).field("ts_ms", Schema.OPTIONAL_INT64_SCHEMA).build();

    static void row(String name, String placement, String context) {
        System.out.println("\n== " + name);
        if (!placement.isEmpty()) {
            System.out.println("placement " + placement);
        }
        if (context != null) {
            System.out.println("context \"" + context.replace("\\", "\\\\").replace("\n", "\\n") + "\"");
        }
        EventRouter<SourceRecord> router = new EventRouter<>();
        Map<String, String> config = new HashMap<>(Map.of("route.by.field", "aggregate_type", "table.field.event.key", "aggregate_id"));
        if (!placement.isEmpty()) {
            config.put("table.fields.additional.placement", placement);
        }
        router.configure(config);
        Struct after = new Struct(ROW).put("id", "u-1").put("aggregate_type", "order").put("aggregate_id", "k").put("payload", "x").put("tracingspancontext", context);
        Struct source = new Struct(SOURCE).put("connector", "postgresql").put("ts_ms", 1700000000000L);
        SourceRecord record = new SourceRecord(Map.of(), Map.of(), "p.public.outbox", 0, null, null, ENVELOPE,
            new Struct(ENVELOPE).put("after", after).put("op", "c").put("ts_ms", 1700000000000L).put("source", source));
        record.headers().addString("__debezium.context.connectorLogicalName", "shop");
        try {
            for (Header h : router.apply(record).headers()) {
                String[] parts = h.value().toString().split("-");
                String value = h.value().toString();
                if (parts.length == 4) {
                    value = parts[0] + "-" + (context.contains(parts[1]) ? parts[1] : "*") + "-*-" + parts[3];
                }
                System.out.println("header " + h.key() + " `" + value + "`");
            }
        } catch (Exception e) {
            System.out.println("failure " + e.getMessage());
        }
    }

    public static void main(String[] args) {
        String parent = "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        row("a context", "", parent);
        row("as Properties.store writes it", "", "#Thu Nov 26 20:00:00 UTC 2026\ntracestate=vendor\\=1,b@a\\=2\n" + parent + "\n");
        row("other separators", "", "  traceparent : \\\n  " + parent.substring(12) + "\n! tracestate=a\\=1");
        row("twice", "", "traceparent=x\n" + parent);
        row("escapes", "", parent.replace("traceparent=00", "trace\\u0070arent=\\u00300"));
        row("not sampled", "", parent.substring(0, parent.length() - 2) + "00");
        row("another flag", "", parent.substring(0, parent.length() - 2) + "03");
        row("blanks in the state", "", "tracestate=a\\=1 , b\\=2\t,c\\=3\n" + parent);
        row("a state that is none", "", "tracestate=a\n" + parent);
        row("a state that is partly none", "", "tracestate=a\\=1,b\n" + parent);
        row("an empty state", "", "tracestate=\n" + parent);
        row("baggage", "", "baggage=a\\=1\n" + parent);
        row("a later version", "", parent.replace("=00", "=01") + "-more");
        row("a header of the same name", "aggregate_id:header:traceparent", parent);
        row("no context", "", null);
        row("an empty text", "", "");
        row("no properties", "", "{traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01}");
        row("only a state", "", "tracestate=a\\=1");
        row("version ff", "", parent.replace("=00", "=ff"));
        row("version 00 with more", "", parent + "-more");
        row("no trace", "", "traceparent=00-00000000000000000000000000000000-00f067aa0ba902b7-01");
        row("no span", "", "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01");
        row("capitals", "", parent.replace("4bf", "4BF"));
        row("one digit of flags", "", parent.substring(0, parent.length() - 1));
        row("a wrong escape", "", parent + "\na=\\u12");
    }
}
