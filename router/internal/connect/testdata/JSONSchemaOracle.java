import com.fasterxml.jackson.databind.ObjectMapper;
import io.confluent.connect.json.JsonSchemaConverter;
import io.confluent.kafka.schemaregistry.client.MockSchemaRegistryClient;
import io.confluent.kafka.schemaregistry.json.JsonSchemaProvider;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;

/**
 * Does for Confluent's JsonSchemaConverter what Oracle.java does for others. An answer is the schema that the converter registered, a
 * space, and the value. The last one is the subject under RecordNameStrategy.
 */
public class JSONSchemaOracle {
    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        List<Map<String, String>> configs = List.of(Map.of(), Map.of("decimal.format", "NUMERIC"), Map.of("object.additional.properties", "false"),
                Map.of("value.subject.name.strategy", "io.confluent.kafka.serializers.subject.RecordNameStrategy"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        out.println(System.getProperty("java.specification.version"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] q = line.split("\t", -1);
            Schema schema = Oracle.schema(mapper.readTree(q[1]));
            StringBuilder answers = new StringBuilder();
            for (Map<String, String> config : configs) {
                Object value = Oracle.value(schema, null, mapper.readTree(q[2]));
                boolean subject = config.containsKey("value.subject.name.strategy");
                answers.append(answers.length() == 0 ? "" : "\t")
                        .append(Oracle.answer((s, v) -> convert(config, subject, s, v), schema, value));
            }
            out.println(answers);
        }
        out.flush();
    }

    static byte[] convert(Map<String, String> config, boolean subject, Schema schema, Object value) {
        try {
            MockSchemaRegistryClient registry = new MockSchemaRegistryClient(List.of(new JsonSchemaProvider()));
            JsonSchemaConverter c = new JsonSchemaConverter(registry);
            Map<String, String> all = new HashMap<>(config);
            all.put("schema.registry.url", "mock://oracle");
            c.configure(all, false);
            byte[] b = c.fromConnectData("topic", schema, value);
            if (b == null) {
                return null;
            }
            String name = registry.getAllSubjects().iterator().next();
            if (subject) {
                return name.getBytes(StandardCharsets.UTF_8);
            }
            String text = registry.getSchemaById(ByteBuffer.wrap(b, 1, 4).getInt()).canonicalString();
            return (text + " " + new String(b, 5, b.length - 5, StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
        } catch (RuntimeException e) {
            Throwable t = e;
            while (t.getCause() != null) {
                t = t.getCause();
            }
            throw new RuntimeException(t.getMessage() == null ? t.getClass().getName() : t.getMessage());
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }
}
