import io.debezium.config.Field;
import java.lang.reflect.Modifier;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;

/**
 * Writes defaults.txt: java -cp 'the jars of internal/testenv/connect_pom.xml and connect_debezium_pom.xml' Defaults.java
 */
public class Defaults {
    static final Map<String, String> ALL = new TreeMap<>();

    public static void main(String[] args) throws Exception {
        for (String name : new String[] {"connector.postgresql.PostgresConnectorConfig", "schema.AbstractTopicNamingStrategy",
                "pipeline.signal.channels.FileSignalChannel", "pipeline.signal.channels.KafkaSignalChannel"}) {
            fields(Class.forName("io.debezium." + name), "");
        }
        fields(Class.forName("io.debezium.transforms.outbox.EventRouterConfigDefinition"), "transforms.outbox.");
        fields(Class.forName("io.debezium.transforms.tracing.ActivateTracingSpan"), "transforms.outbox.");
        definition("connect.runtime.SourceConnectorConfig", "");
        definition("connect.json.JsonConverterConfig", "value.converter.");
        definition("connect.storage.StringConverterConfig", "key.converter.");
        definition("clients.producer.ProducerConfig", "producer.override.");
        ALL.forEach((name, value) -> System.out.println(name + "=" + value));
    }

    static void fields(Class<?> type, String prefix) throws Exception {
        for (; type != null; type = type.getSuperclass()) {
            for (java.lang.reflect.Field f : type.getDeclaredFields()) {
                if (Modifier.isStatic(f.getModifiers()) && f.getType() == Field.class) {
                    f.setAccessible(true);
                    Field option = (Field) f.get(null);
                    if (option.defaultValueAsString() != null) {
                        ALL.putIfAbsent(prefix + option.name(), option.defaultValueAsString());
                    }
                }
            }
        }
    }

    static void definition(String type, String prefix) throws Exception {
        ConfigDef def = (ConfigDef) Class.forName("org.apache.kafka." + type).getMethod("configDef").invoke(null);
        for (ConfigDef.ConfigKey k : def.configKeys().values()) {
            if (k.defaultValue != null && k.defaultValue != ConfigDef.NO_DEFAULT_VALUE) {
                ALL.put(prefix + k.name, ConfigDef.convertToString(k.defaultValue, k.type));
            }
        }
    }
}
