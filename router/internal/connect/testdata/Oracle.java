import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.config.CommonConnectorConfig.FieldNameAdjustmentMode;
import io.debezium.converters.BinaryDataConverter;
import io.debezium.schema.FieldNameSelector;
import io.debezium.transforms.outbox.EventRouterConfigDefinition.JsonPayloadNullFieldBehavior;
import io.debezium.transforms.outbox.JsonSchemaData;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.converters.ByteArrayConverter;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;

/**
 * Says what Kafka Connect's converters and Debezium make of values. Reads one question a line, fields parted by tabs, and writes one
 * line of answers, parted by tabs: "= " and the bytes in hex, "0" for null, or "! " and the exception's message in hex.
 *
 *   value   SCHEMA VALUE              both in the notation of notation_test.go
 *   expand  NULLS ADJUSTMENT PAYLOAD  the payload in hex
 *   double  DECIMAL, float DECIMAL    one answer
 *
 * The first line it writes is the version of Java.
 */
public class Oracle {
    interface Conversion {
        byte[] apply(Schema schema, Object value);
    }

    static final ObjectMapper MAPPER = new ObjectMapper();
    static final List<Conversion> CONVERTERS = new ArrayList<>();
    static final JsonConverter WITH_SCHEMAS = json("true", "BASE64", "true");
    static final JsonConverter WITHOUT_SCHEMAS = json("false", "BASE64", "true");
    static final StringConverter STRING = string();

    public static void main(String[] args) throws Exception {
        SimpleHeaderConverter simple = new SimpleHeaderConverter();
        add(STRING);
        CONVERTERS.add((schema, value) -> simple.fromConnectHeader("topic", "header", schema, value));
        add(WITHOUT_SCHEMAS);
        add(WITH_SCHEMAS);
        add(json("true", "NUMERIC", "false"));
        add(new ByteArrayConverter());
        add(binary(Map.of()));
        add(binary(Map.of("delegate.converter.type", "org.apache.kafka.connect.storage.StringConverter")));
        add(binary(Map.of("delegate.converter.type", "org.apache.kafka.connect.json.JsonConverter",
                "delegate.converter.type.schemas.enable", "false")));

        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        out.println(System.getProperty("java.specification.version"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] q = line.split("\t", -1);
            switch (q[0]) {
                case "value":
                    Schema schema = schema(MAPPER.readTree(q[1]));
                    StringBuilder answers = new StringBuilder();
                    for (Conversion c : CONVERTERS) {
                        // Made anew: a converter may move the position of a ByteBuffer.
                        Object value = value(schema, null, MAPPER.readTree(q[2]));
                        answers.append(answers.length() == 0 ? "" : "\t").append(answer(c, schema, value));
                    }
                    out.println(answers);
                    break;
                case "expand":
                    out.println(expand(q[1], q[2], new String(HexFormat.of().parseHex(q[3]), StandardCharsets.UTF_8)));
                    break;
                case "double":
                    out.println("= " + hex(Double.toString(Double.parseDouble(q[1]))));
                    break;
                case "float":
                    out.println("= " + hex(Float.toString(Float.parseFloat(q[1]))));
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        out.flush();
    }

    /** What EventRouterDelegate does with a payload, and the converters after it. */
    static String expand(String nulls, String adjustment, String text) {
        JsonSchemaData data = new JsonSchemaData(JsonPayloadNullFieldBehavior.parse(nulls),
                FieldNameSelector.defaultNonRelationalSelector(FieldNameAdjustmentMode.parse(adjustment).createAdjuster()));
        Schema schema = Schema.OPTIONAL_STRING_SCHEMA;
        Object payload = text;
        try {
            if (!text.startsWith("{") && !text.startsWith("[")) {
                throw new Exception("Unable to parse payload starting with '" + text.charAt(0) + "'");
            }
            JsonNode node = MAPPER.readTree(text);
            schema = data.toConnectSchema("payload", node);
            payload = data.toConnectData(node, schema);
        } catch (Exception e) {
            // it is logged
        }
        Schema s = schema;
        Object p = payload;
        return answer((x, y) -> WITHOUT_SCHEMAS.fromConnectData("topic", s, p), null, null) + "\t"
                + answer((x, y) -> WITH_SCHEMAS.fromConnectData("topic", s, p), null, null) + "\t"
                + answer((x, y) -> STRING.fromConnectData("topic", s, p), null, null);
    }

    static void add(Converter c) {
        CONVERTERS.add((schema, value) -> c.fromConnectData("topic", schema, value));
    }

    static JsonConverter json(String schemas, String decimals, String defaults) {
        JsonConverter c = new JsonConverter();
        c.configure(Map.of("schemas.enable", schemas, "decimal.format", decimals, "replace.null.with.default", defaults), false);
        return c;
    }

    static StringConverter string() {
        StringConverter c = new StringConverter();
        c.configure(Map.of(), false);
        return c;
    }

    static BinaryDataConverter binary(Map<String, String> config) {
        BinaryDataConverter c = new BinaryDataConverter();
        c.configure(config, false);
        return c;
    }

    static String answer(Conversion c, Schema schema, Object value) {
        try {
            byte[] b = c.apply(schema, value);
            return b == null ? "0" : "= " + HexFormat.of().formatHex(b);
        } catch (Exception e) {
            return "! " + hex(String.valueOf(e.getMessage()));
        }
    }

    static String hex(String s) {
        return HexFormat.of().formatHex(s.getBytes(StandardCharsets.UTF_8));
    }

    static Schema schema(JsonNode n) {
        if (n.isNull()) {
            return null;
        }
        Schema.Type type = Schema.Type.valueOf(n.get("type").asText());
        SchemaBuilder b;
        switch (type) {
            case ARRAY:
                b = SchemaBuilder.array(schema(n.get("elem")));
                break;
            case MAP:
                b = SchemaBuilder.map(schema(n.get("key")), schema(n.get("elem")));
                break;
            default:
                b = new SchemaBuilder(type);
        }
        if (n.has("optional")) {
            b.optional();
        }
        if (n.has("name")) {
            b.name(n.get("name").asText());
        }
        if (n.has("version")) {
            b.version(n.get("version").asInt());
        }
        if (n.has("doc")) {
            b.doc(n.get("doc").asText());
        }
        if (n.has("params")) {
            for (JsonNode p : n.get("params")) {
                b.parameter(p.get(0).asText(), p.get(1).asText());
            }
        }
        if (n.has("fields")) {
            for (JsonNode f : n.get("fields")) {
                b.field(f.get(0).asText(), schema(f.get(1)));
            }
        }
        if (n.has("default")) {
            b.defaultValue(value(b, null, n.get("default")));
        }
        return b.build();
    }

    static Object value(Schema s, Schema parent, JsonNode n) {
        if (n.isNull()) {
            return null;
        }
        if (s == null) {
            return n.asText();
        }
        String name = s.name() == null ? "" : s.name();
        switch (name) {
            case "org.apache.kafka.connect.data.Decimal":
                return new BigDecimal(n.asText());
            case "org.apache.kafka.connect.data.Date":
                return new java.util.Date(n.asLong() * 86_400_000);
            case "org.apache.kafka.connect.data.Time":
            case "org.apache.kafka.connect.data.Timestamp":
                return new java.util.Date(n.asLong());
        }
        switch (s.type()) {
            case INT8:
                return (byte) n.asInt();
            case INT16:
                return (short) n.asInt();
            case INT32:
                return n.asInt();
            case INT64:
                return n.asLong();
            case FLOAT32:
                return Float.parseFloat(n.asText());
            case FLOAT64:
                return Double.parseDouble(n.asText());
            case BOOLEAN:
                return n.asBoolean();
            case STRING:
                return n.asText();
            case BYTES:
                byte[] b = HexFormat.of().parseHex(n.asText());
                boolean array = name.equals("io.debezium.data.Bits")
                        || parent != null && parent.name() != null && parent.name().startsWith("io.debezium.data.");
                return array ? b : ByteBuffer.wrap(b);
            case ARRAY:
                List<Object> list = new ArrayList<>();
                for (JsonNode e : n) {
                    list.add(value(s.valueSchema(), null, e));
                }
                return list;
            case MAP:
                Map<Object, Object> map = new LinkedHashMap<>();
                for (JsonNode e : n) {
                    map.put(value(s.keySchema(), null, e.get(0)), value(s.valueSchema(), null, e.get(1)));
                }
                return map;
            default:
                Struct struct = new Struct(s.schema() == null ? s : s.schema());
                int i = 0;
                for (Field f : s.fields()) {
                    struct.put(f, value(f.schema(), s, n.get(i++)));
                }
                return struct;
        }
    }
}
