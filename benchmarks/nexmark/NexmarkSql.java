import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Runs the SQL statements of a file, separated by semicolons, of which the last starts a job, in this process. The
 * other arguments are settings, name=value. Prints the seconds from the job's start to its end, as the last line.
 */
public class NexmarkSql {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new TreeMap<>();
        for (int place = 1; place < arguments.length; place++) {
            int equals = arguments[place].indexOf('=');
            options.put(arguments[place].substring(0, equals), arguments[place].substring(equals + 1));
        }
        Configuration settings = Configuration.fromMap(options);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        String[] statements = Files.readString(Path.of(arguments[0])).split(";");
        TableResult result = null;
        for (String statement : statements) {
            if (!statement.isBlank()) {
                result = tables.executeSql(statement.strip());
            }
        }
        long millis = result.getJobClient().get().getJobExecutionResult().get().getNetRuntime();
        System.out.println(millis / 1000.0);
        System.exit(0);
    }
}
