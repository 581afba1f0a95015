import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * The workload of benchmarks/count.py on Flink: a sequence, keyed; per record one state read, one state write, one
 * output record that is discarded. Arguments as name=value. The last line of the output is a JSON object.
 */
public class RunningCount {
    /** Emits (key, how often it has been seen). */
    static class Running extends KeyedProcessFunction<Long, Long, Tuple2<Long, Long>> {
        private transient ValueState<Long> seen;

        @Override
        public void open(OpenContext context) {
            seen = getRuntimeContext().getState(new ValueStateDescriptor<>("seen", Types.LONG));
        }

        @Override
        public void processElement(Long value, Context context, Collector<Tuple2<Long, Long>> out) throws Exception {
            Long before = seen.value();
            long now = before == null ? 1 : before + 1;
            seen.update(now);
            out.collect(Tuple2.of(context.getCurrentKey(), now));
        }
    }

    static long keyOf(long x, long keys) {
        if (keys == 1000) {
            return x % 500 + 500 * ((x / 1000) % 2);
        }
        return ((x * 2654435761L) & 0x7fffffffffffL) % keys;
    }

    static Configuration configuration(Map<String, String> options, int port) {
        Path folder = Path.of(options.get("folder"));
        Configuration settings = new Configuration();
        settings.setString("rest.port", Integer.toString(port));
        settings.setString("rest.bind-port", Integer.toString(port));
        settings.setString("state.backend.type", options.get("backend"));
        settings.setString("state.changelog.enabled", options.get("changelog"));
        settings.setString("state.changelog.storage", "filesystem");
        settings.setString("state.changelog.dstl.dfs.base-path", folder.resolve("dstl").toUri().toString());
        settings.setString("state.changelog.periodic-materialize.interval", "3min");
        settings.setString("execution.checkpointing.interval", options.get("interval"));
        settings.setString("execution.checkpointing.incremental", "true");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", folder.resolve("checkpoints").toUri().toString());
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("taskmanager.memory.managed.size", "1g");
        return settings;
    }

    /** The checkpoint counts as Flink's own REST endpoint tells them; null once it has gone. */
    static String checkpointCounts(HttpClient http, String url) throws InterruptedException {
        try {
            HttpResponse<String> answer =
                    http.send(HttpRequest.newBuilder(URI.create(url)).build(), HttpResponse.BodyHandlers.ofString());
            String body = answer.body();
            int from = body.indexOf("\"counts\":");
            return answer.statusCode() == 200 && from >= 0 ? body.substring(from + 9, body.indexOf('}', from) + 1) : null;
        } catch (java.io.IOException gone) {
            return null;
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String arg : args) {
            options.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        }
        long rows = Long.parseLong(options.get("rows"));
        long keys = Long.parseLong(options.get("keys"));
        int port = Integer.parseInt(options.get("port"));

        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironmentWithWebUI(configuration(options, port));
        environment.setParallelism(Integer.parseInt(options.get("parallelism")));
        environment
                .fromSequence(0, rows - 1)
                .keyBy(x -> keyOf(x, keys), Types.LONG)
                .process(new Running())
                .returns(Types.TUPLE(Types.LONG, Types.LONG))
                .sinkTo(new DiscardingSink<>());

        long started = System.nanoTime();
        JobClient job = environment.executeAsync("running count");
        String url = "http://localhost:" + port + "/jobs/" + job.getJobID() + "/checkpoints";
        HttpClient http = HttpClient.newHttpClient();
        String counts = "null";
        while (!job.getJobExecutionResult().isDone()) {
            String latest = checkpointCounts(http, url);
            counts = latest == null ? counts : latest;
            Thread.sleep(200);
        }
        job.getJobExecutionResult().get();
        double seconds = (System.nanoTime() - started) / 1e9;
        System.out.printf("{\"rows\":%d,\"seconds\":%.2f,\"rows_per_s\":%.0f,\"checkpoints\":%s}%n", rows, seconds, rows / seconds, counts);
        System.exit(0);
    }
}
