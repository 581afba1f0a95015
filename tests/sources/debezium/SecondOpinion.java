import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.util.Properties;

/** Prints the changes of a PostgreSQL slot as Debezium's embedded engine tells them: a line of JSON for each. */
public class SecondOpinion {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.setProperty("name", "second-opinion");
        settings.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        settings.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        settings.setProperty("topic.prefix", "second");
        settings.setProperty("plugin.name", "pgoutput");
        settings.setProperty("publication.autocreate.mode", "disabled");
        settings.setProperty("snapshot.mode", "no_data");
        settings.setProperty("tombstones.on.delete", "false");
        settings.setProperty("skipped.operations", "none");
        settings.setProperty("decimal.handling.mode", "string");
        settings.setProperty("interval.handling.mode", "string");
        settings.setProperty("binary.handling.mode", "hex");
        settings.setProperty("converter.schemas.enable", "false");
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings)
            .notifying(event -> {
                System.out.println(event.value());
                System.out.flush();
            })
            .using((success, message, error) -> {
                System.err.println("ended: " + message);
                if (error != null) {
                    error.printStackTrace();
                }
            })
            .build();
        engine.run();
    }
}
