import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;

/**
 * A ResourceManager and NodeManagers in this JVM: MiniYarn FOLDER NODES MEGABYTES CORES, both for each node.
 *
 * <p>Node N has the address 127.0.0.N+1, so that it can be decommissioned alone. On its input it takes lines:
 * "decommission HOST SECONDS" lets a node's containers run for so many seconds at most.
 */
public class MiniYarn {
  public static void main(String[] args) throws Exception {
    File folder = new File(args[0]);
    int nodes = Integer.parseInt(args[1]);
    File excluded = new File(folder, "excluded.xml");
    exclude(excluded, "");
    YarnConfiguration conf = settings(Integer.parseInt(args[2]), Integer.parseInt(args[3]));
    conf.set(YarnConfiguration.RM_NODES_EXCLUDE_FILE_PATH, excluded.getPath());
    MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 0, 1, 1);
    cluster.init(conf);
    cluster.start();
    for (int node = 0; node < nodes; node++) {
      startNode(new YarnConfiguration(cluster.getConfig()), "127.0.0." + (node + 1), new File(folder, "node-" + node));
    }
    while (cluster.getResourceManager().getResourceScheduler().getNumClusterNodes() < nodes) {
      Thread.sleep(100);
    }
    Configuration site = new Configuration(cluster.getConfig());
    site.set("fs.defaultFS", "file:///");
    File written = new File(folder, "conf");
    written.mkdirs();
    for (String name : new String[] {"yarn-site.xml", "core-site.xml"}) {
      try (FileOutputStream out = new FileOutputStream(new File(written, name))) {
        site.writeXml(out);
      }
    }
    System.out.println("READY " + site.get(YarnConfiguration.RM_WEBAPP_ADDRESS));
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      String[] words = line.split(" ");
      exclude(excluded, "<host><name>" + words[1] + "</name><timeout>" + words[2] + "</timeout></host>");
      cluster.getResourceManager().getRMContext().getNodesListManager()
          .refreshNodesGracefully(conf, Integer.valueOf(words[2]));
      System.out.println("DONE");
    }
    System.exit(0);
  }

  private static YarnConfiguration settings(int megabytes, int cores) {
    YarnConfiguration conf = new YarnConfiguration();
    conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
    conf.setInt(YarnConfiguration.RM_SCHEDULER_MAXIMUM_ALLOCATION_MB, megabytes);
    conf.setInt(YarnConfiguration.NM_PMEM_MB, megabytes);
    conf.setInt(YarnConfiguration.NM_VCORES, cores);
    conf.setInt(YarnConfiguration.RM_SCHEDULER_MAXIMUM_ALLOCATION_VCORES, cores);
    conf.set(YarnConfiguration.RM_SCHEDULER,
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler");
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    conf.set("yarn.scheduler.capacity.root.default.maximum-am-resource-percent", "1.0");
    conf.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    conf.setInt(YarnConfiguration.RM_AM_MAX_ATTEMPTS, 3);
    conf.setLong(YarnConfiguration.RM_NM_HEARTBEAT_INTERVAL_MS, 500);
    conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
    conf.setBoolean(YarnConfiguration.NM_PMEM_CHECK_ENABLED, false);
    conf.set(YarnConfiguration.NM_ENV_WHITELIST, "JAVA_HOME,HADOOP_CONF_DIR,PATH");
    conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "100");
    return conf;
  }

  private static void startNode(YarnConfiguration conf, String host, File folder) {
    for (String name : new String[] {
      YarnConfiguration.NM_ADDRESS, YarnConfiguration.NM_LOCALIZER_ADDRESS,
      YarnConfiguration.NM_WEBAPP_ADDRESS, YarnConfiguration.NM_COLLECTOR_SERVICE_ADDRESS,
    }) {
      conf.set(name, host + ":0");
    }
    conf.set(YarnConfiguration.NM_LOCAL_DIRS, new File(folder, "local").getPath());
    conf.set(YarnConfiguration.NM_LOG_DIRS, new File(folder, "logs").getPath());
    NodeManager manager = new NodeManager();
    manager.init(conf);
    manager.start();
  }

  private static void exclude(File excluded, String hosts) throws Exception {
    Files.writeString(excluded.toPath(), "<?xml version=\"1.0\"?>\n<hosts>" + hosts + "</hosts>\n");
  }
}
