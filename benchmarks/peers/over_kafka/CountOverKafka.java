import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The count in Flink, exactly once from end to end. Arguments: the broker's address and a folder. */
public class CountOverKafka {
    /** Emits the count of each key after each row, as JSON. */
    static class Count extends KeyedProcessFunction<Long, Tuple2<Long, Long>, String> {
        private transient ValueState<Long> seen;

        @Override
        public void open(OpenContext context) {
            seen = getRuntimeContext().getState(new ValueStateDescriptor<>("seen", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<Long, Long> row, Context context, Collector<String> out) throws Exception {
            Long before = seen.value();
            long now = before == null ? 1 : before + 1;
            seen.update(now);
            out.collect("{\"k\":" + row.f0 + ",\"n\":" + now + ",\"at\":" + row.f1 + "}");
        }
    }

    /** The number after a field's name; the messages are flat and have only numbers. */
    static long field(String json, String name) {
        int begin = json.indexOf("\"" + name + "\":") + name.length() + 3;
        int end = begin;
        while (end < json.length() && (Character.isDigit(json.charAt(end)) || json.charAt(end) == ' ')) {
            end++;
        }
        return Long.parseLong(json.substring(begin, end).trim());
    }

    /** The newest complete checkpoint of an earlier run. */
    static Optional<Path> newestCheckpoint(Path folder) throws Exception {
        if (!Files.exists(folder)) {
            return Optional.empty();
        }
        try (Stream<Path> files = Files.walk(folder)) {
            return files.filter(each -> each.getFileName().toString().equals("_metadata"))
                    .max(Comparator.comparing(each -> each.toFile().lastModified()))
                    .map(Path::getParent);
        }
    }

    public static void main(String[] args) throws Exception {
        String servers = args[0];
        Path checkpoints = Path.of(args[1], "checkpoints");
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", "hashmap");
        settings.setString("execution.checkpointing.interval", "100ms");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        Optional<Path> newest = newestCheckpoint(checkpoints);
        if (newest.isPresent()) {
            settings.setString("execution.state-recovery.path", newest.get().toUri().toString());
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(2);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(servers)
                .setTopics("in")
                .setGroupId("counts")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(servers)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("counts")
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                        .setTopic("out")
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "in")
                .map(json -> Tuple2.of(field(json, "k"), field(json, "at")))
                .returns(Types.TUPLE(Types.LONG, Types.LONG))
                .keyBy(row -> row.f0, Types.LONG)
                .process(new Count())
                .sinkTo(sink);
        environment.execute("counts");
    }
}
