import io.fabric8.kubernetes.api.model.Container;
import io.fabric8.kubernetes.api.model.ContainerStateBuilder;
import io.fabric8.kubernetes.api.model.EnvVar;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.PodBuilder;
import io.fabric8.kubernetes.api.model.Service;
import io.fabric8.kubernetes.api.model.Volume;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.server.mock.KubernetesCrudDispatcher;
import io.fabric8.kubernetes.client.server.mock.KubernetesMockServer;
import io.fabric8.kubernetes.client.utils.KubernetesSerialization;
import io.fabric8.mockwebserver.Context;
import io.fabric8.mockwebserver.MockWebServer;
import io.fabric8.mockwebserver.dsl.HttpMethod;
import io.fabric8.mockwebserver.http.Buffer;
import io.fabric8.mockwebserver.http.MockResponse;
import io.fabric8.mockwebserver.http.RecordedRequest;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.logging.LogManager;

/**
 * An API server, and a kubelet that runs the container of each pod as a process: MiniKubernetes FOLDER SPARK_HOME.
 *
 * <p>Pod N has the address 127.0.1.N. A pod's folder FOLDER/pods/NAME holds its `log` and its `pid`. Names of services go
 * into FOLDER/hosts, which is this process's /etc/hosts. A pod that is deleted stays, marked, until its process has ended,
 * which has its grace period for that: first its preStop hook, then SIGTERM.
 */
public class MiniKubernetes {
  private static final String FINALIZER = "tests/kubelet";
  private static final long LOOK_MS = 200;
  private static final long GRACE_S = 30;
  private static final String CONF = "/opt/spark/conf";

  private final KubernetesClient client;
  private final Path folder;
  private final String spark;
  private final Map<String, Process> running = new HashMap<>();
  private final Map<String, String> addresses = new HashMap<>();
  private final List<String> ending = new ArrayList<>();

  private MiniKubernetes(KubernetesClient client, Path folder, String spark) {
    this.client = client;
    this.folder = folder;
    this.spark = spark;
  }

  public static void main(String[] args) throws Exception {
    LogManager.getLogManager().reset();  // the mock logs each request
    KubernetesMockServer server = new KubernetesMockServer(
        new Context(), new MockWebServer(), new HashMap<>(), new Applying(), false);
    server.init(InetAddress.getByName("127.0.0.1"), 0);
    MiniKubernetes kubelet = new MiniKubernetes(server.createClient(), Path.of(args[0]), args[1]);
    System.out.println("READY " + server.url("/"));
    while (true) {
      kubelet.look();
      Thread.sleep(LOOK_MS);
    }
  }

  /** Creates objects that are applied and do not exist, and gives new pods a phase, which the mock does not do. */
  private static class Applying extends KubernetesCrudDispatcher {
    private final KubernetesSerialization json = new KubernetesSerialization();

    @Override
    public MockResponse handleCreate(RecordedRequest request) {
      if (!request.getPath().split("\\?")[0].endsWith("/pods")) {
        return super.handleCreate(request);
      }
      Pod pod = json.unmarshal(request.getUtf8Body(), Pod.class);
      Pod pending = new PodBuilder(pod).withNewStatus().withPhase("Pending").endStatus().build();
      return super.handleCreate(new RecordedRequest(request.getHttpVersion(), HttpMethod.POST, request.getPath(),
          request.getHeaders(), new Buffer(json.asJson(pending).getBytes(StandardCharsets.UTF_8))));
    }

    @Override
    public MockResponse handlePatch(RecordedRequest request) {
      String path = request.getPath().split("\\?")[0];
      boolean applies = request.getHeader("Content-Type").startsWith("application/apply-patch");
      if (!applies || findResource(getKey(path)) != null) {
        return super.handlePatch(request);
      }
      String folder = path.substring(0, path.lastIndexOf('/'));
      return handleCreate(new RecordedRequest(
          request.getHttpVersion(), HttpMethod.POST, folder, request.getHeaders(), request.getBody()));
    }
  }

  private void look() throws Exception {
    List<Pod> pods = client.pods().inAnyNamespace().list().getItems();
    for (Pod pod : pods) {
      addresses.computeIfAbsent(name(pod), name -> "127.0.1." + (addresses.size() + 1));
    }
    writeHosts(pods);
    for (Pod pod : pods) {
      Process process = running.get(name(pod));
      if (process == null) {
        if (hasVolumes(pod)) {
          start(pod);
        }
      } else if (!process.isAlive()) {
        ended(pod, process.exitValue());
      } else if (pod.getMetadata().getDeletionTimestamp() != null && !ending.contains(name(pod))) {
        ending.add(name(pod));
        new Thread(() -> end(pod, process)).start();
      }
    }
  }

  private static String name(Pod pod) {
    return pod.getMetadata().getName();
  }

  // --- services and volumes ------------------------------------------------------------------------------------------

  private void writeHosts(List<Pod> pods) throws IOException {
    StringBuilder hosts = new StringBuilder("127.0.0.1 localhost\n127.0.0.1 " + InetAddress.getLocalHost().getHostName() + "\n");
    for (Service service : client.services().inAnyNamespace().list().getItems()) {
      for (Pod pod : pods) {
        Map<String, String> labels = pod.getMetadata().getLabels();
        if (labels != null && labels.entrySet().containsAll(service.getSpec().getSelector().entrySet())) {
          hosts.append(addresses.get(name(pod))).append(' ').append(service.getMetadata().getName()).append(".default.svc\n");
        }
      }
    }
    if (!Files.readString(folder.resolve("hosts")).contentEquals(hosts)) {
      Files.writeString(folder.resolve("hosts"), hosts);
    }
  }

  private boolean hasVolumes(Pod pod) {
    return pod.getSpec().getVolumes().stream().filter(each -> each.getConfigMap() != null)
        .allMatch(each -> contents(pod, each) != null);
  }

  private Map<String, String> contents(Pod pod, Volume volume) {
    var found = client.configMaps().inNamespace(pod.getMetadata().getNamespace()).withName(volume.getConfigMap().getName()).get();
    return found == null ? null : found.getData();
  }

  // --- processes -----------------------------------------------------------------------------------------------------

  private void start(Pod pod) throws IOException {
    Container container = pod.getSpec().getContainers().get(0);
    Path own = folder.resolve("pods").resolve(name(pod));
    Path conf = Files.createDirectories(own.resolve("conf"));
    for (Volume volume : pod.getSpec().getVolumes()) {
      if (volume.getConfigMap() != null) {
        for (Map.Entry<String, String> file : contents(pod, volume).entrySet()) {
          Files.writeString(conf.resolve(file.getKey()), file.getValue());
        }
      }
    }
    ProcessBuilder builder = new ProcessBuilder();
    Map<String, String> environment = builder.environment();
    for (EnvVar each : container.getEnv()) {
      environment.put(each.getName(), value(pod, each));
    }
    environment.put("SPARK_LOCAL_DIRS", own.toString());
    environment.put("SPARK_LOCAL_IP", addresses.get(name(pod)));
    environment.put("SPARK_CONF_DIR", conf.toString());
    List<String> command = container.getArgs().get(0).equals("driver")
        ? driver(container.getArgs(), conf, addresses.get(name(pod))) : executor(environment);
    Process process = builder.command(command).directory(own.toFile()).redirectErrorStream(true)
        .redirectOutput(new File(own.toFile(), "log")).start();
    Files.writeString(own.resolve("pid"), Long.toString(process.pid()));
    running.put(name(pod), process);
    status(pod, "Running", null);
  }

  private String value(Pod pod, EnvVar variable) {
    if (variable.getValueFrom() == null || variable.getValueFrom().getFieldRef() == null) {
      return variable.getValue() == null ? "" : variable.getValue();
    }
    return variable.getValueFrom().getFieldRef().getFieldPath().equals("status.podIP") ? addresses.get(name(pod)) : name(pod);
  }

  /** Does for a driver as the entry point of Spark's image does. */
  private List<String> driver(List<String> args, Path conf, String address) {
    List<String> command = new ArrayList<>(List.of(
        spark + "/bin/spark-submit", "--conf", "spark.driver.bindAddress=" + address, "--deploy-mode", "client"));
    args.stream().skip(1).map(each -> each.replace(CONF, conf.toString())).forEach(command::add);
    return command;
  }

  /** Does for an executor as the entry point of Spark's image does. */
  private List<String> executor(Map<String, String> environment) {
    List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java"));
    TreeMap<Integer, String> options = new TreeMap<>();
    for (Map.Entry<String, String> each : environment.entrySet()) {
      if (each.getKey().startsWith("SPARK_JAVA_OPT_")) {
        options.put(Integer.valueOf(each.getKey().substring(15)), each.getValue());
      }
    }
    command.addAll(options.values());
    command.addAll(List.of("-Xmx" + environment.get("SPARK_EXECUTOR_MEMORY"), "-cp", spark + "/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url", environment.get("SPARK_DRIVER_URL"), "--executor-id", environment.get("SPARK_EXECUTOR_ID"),
        "--cores", environment.get("SPARK_EXECUTOR_CORES"), "--app-id", environment.get("SPARK_APPLICATION_ID"),
        "--hostname", environment.get("SPARK_EXECUTOR_POD_IP"), "--podName", environment.get("SPARK_EXECUTOR_POD_NAME"),
        "--resourceProfileId", environment.get("SPARK_RESOURCE_PROFILE_ID")));
    return command;
  }

  private void end(Pod pod, Process process) {
    try {
      var lifecycle = pod.getSpec().getContainers().get(0).getLifecycle();
      if (lifecycle != null && lifecycle.getPreStop() != null) {  // Spark's hook sends SIGPWR, and waits for the end
        new ProcessBuilder("kill", "-PWR", Long.toString(process.pid())).start().waitFor();
        process.waitFor(GRACE_S, TimeUnit.SECONDS);
      }
      process.destroy();
      if (!process.waitFor(GRACE_S, TimeUnit.SECONDS)) {
        process.destroyForcibly();
      }
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private void ended(Pod pod, int exit) {
    if (pod.getMetadata().getDeletionTimestamp() != null) {
      if (pod.getMetadata().getFinalizers().contains(FINALIZER)) {
        edit(pod, new PodBuilder(pod).editMetadata().removeFromFinalizers(FINALIZER).endMetadata().build());
      }
    } else if (pod.getStatus().getPhase().equals("Running")) {
      status(pod, exit == 0 ? "Succeeded" : "Failed", exit);
    }
  }

  private void status(Pod pod, String phase, Integer exit) {
    String container = pod.getSpec().getContainers().get(0).getName();
    ContainerStateBuilder state = new ContainerStateBuilder();
    if (exit == null) {
      state.withNewRunning().endRunning();
    } else {
      state.withNewTerminated().withExitCode(exit).withReason(exit == 0 ? "Completed" : "Error").endTerminated();
    }
    PodBuilder builder = new PodBuilder(pod).withNewStatus().withPhase(phase).withPodIP(addresses.get(name(pod)))
        .withHostIP("127.0.0.1").addNewContainerStatus().withName(container).withReady(exit == null)
        .withState(state.build()).endContainerStatus().endStatus();
    if (exit == null) {
      builder.editMetadata().addToFinalizers(FINALIZER).endMetadata();
    } else {
      builder.editMetadata().removeFromFinalizers(FINALIZER).endMetadata();
    }
    edit(pod, builder.build());
  }

  private void edit(Pod pod, Pod after) {
    var resource = client.pods().inNamespace(pod.getMetadata().getNamespace()).withName(name(pod));
    try {
      resource.edit(found -> new PodBuilder(found).editMetadata().withFinalizers(after.getMetadata().getFinalizers()).endMetadata().build());
      resource.editStatus(found -> new PodBuilder(found).withStatus(after.getStatus()).build());
    } catch (KubernetesClientException | NullPointerException gone) {
      System.err.println("no status for " + name(pod) + ": " + gone);
    }
  }
}
