import com.fasterxml.jackson.databind.ObjectMapper;
import io.confluent.kafka.schemaregistry.SchemaProvider;
import io.confluent.kafka.schemaregistry.client.MockSchemaRegistryClient;
import io.confluent.kafka.schemaregistry.client.SchemaRegistryClient;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.storage.Converter;

/**
 * Does for one of Confluent's converters what Oracle.java does for others. The arguments are the class of the converter, the class of
 * its SchemaProvider, and options: key=value, or nothing for the defaults. There is an answer for each option: the schema that the
 * converter registered, a space, and the value without its id. With a strategy for names of subjects it is the subject.
 */
public class RegistryOracle {
    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        out.println(System.getProperty("java.specification.version"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] q = line.split("\t", -1);
            Schema schema = Oracle.schema(mapper.readTree(q[1]));
            StringBuilder answers = new StringBuilder();
            for (int i = 2; i < args.length; i++) {
                String option = args[i];
                Object value = Oracle.value(schema, null, mapper.readTree(q[2]));
                answers.append(answers.length() == 0 ? "" : "\t")
                        .append(Oracle.answer((s, v) -> convert(args[0], args[1], option, s, v), schema, value));
            }
            out.println(answers);
        }
        out.flush();
    }

    static byte[] convert(String converter, String provider, String option, Schema schema, Object value) {
        try {
            SchemaProvider p = (SchemaProvider) Class.forName(provider).getConstructor().newInstance();
            MockSchemaRegistryClient registry = new MockSchemaRegistryClient(List.of(p));
            Converter c = (Converter) Class.forName(converter).getConstructor(SchemaRegistryClient.class).newInstance(registry);
            Map<String, String> all = new HashMap<>(Map.of("schema.registry.url", "mock://oracle"));
            if (!option.isEmpty()) {
                all.put(option.split("=")[0], option.split("=")[1]);
            }
            c.configure(all, false);
            byte[] b = c.fromConnectData("topic", schema, value);
            if (b == null) {
                return null;
            }
            String name = registry.getAllSubjects().iterator().next();
            if (option.contains("subject.name.strategy")) {
                return name.getBytes(StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream answer = new ByteArrayOutputStream();
            answer.writeBytes((registry.getSchemaById(ByteBuffer.wrap(b, 1, 4).getInt()).canonicalString() + " ").getBytes(StandardCharsets.UTF_8));
            answer.write(b, 5, b.length - 5);
            return answer.toByteArray();
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
