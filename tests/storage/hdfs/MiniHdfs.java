import java.io.File;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;

/** HDFS in this JVM for the tests: MiniHdfs FOLDER NAMENODES. Prints the NameNodes' addresses; ends with its input. */
public class MiniHdfs {
  public static void main(String[] args) throws Exception {
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);
    conf.setBoolean("dfs.permissions.enabled", true);
    conf.setInt("dfs.replication", 1);
    conf.setLong("dfs.namenode.fs-limits.min-block-size", 1024);
    boolean two = args[1].equals("2");
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf).numDataNodes(1);
    MiniDFSCluster cluster = (two ? builder.nnTopology(MiniDFSNNTopology.simpleHATopology()) : builder).build();
    cluster.waitActive();
    if (two) {
      cluster.transitionToActive(0);
    }
    StringBuilder ports = new StringBuilder();
    for (int node = 0; node < Integer.parseInt(args[1]); node++) {
      ports.append(node == 0 ? "" : ",").append(cluster.getNameNodePort(node));
    }
    System.out.println("READY " + ports);
    for (int next; (next = System.in.read()) >= 0; ) {
      if (next == 's') {  // the other NameNode becomes the active one
        cluster.transitionToStandby(0);
        cluster.transitionToActive(1);
        System.out.println("SWITCHED");
      }
    }
    cluster.shutdown();
    System.exit(0);
  }
}
