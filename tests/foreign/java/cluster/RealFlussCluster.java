import java.io.File;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.fluss.cluster.Endpoint;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.server.coordinator.CoordinatorServer;
import org.apache.fluss.server.tablet.TabletServer;
import org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServer;

/**
 * A whole Apache Fluss cluster in one JVM: ZooKeeper, one coordinator and one or more tablet servers.
 *
 * <p>Every port is 0, so the system picks them. Once all roles serve, one JSON line with their addresses is printed on
 * standard output; everything else goes to standard error. The cluster lives as long as standard input is open: when
 * the parent closes it, or dies, the JVM halts at once; a line there shuts its tablet servers down gracefully before.
 * The data folder is the caller's to delete.
 *
 * <p>Arguments: the data folder, the number of tablet servers, then any number of {@code key=value} settings. With
 * {@code server:ID@PORT} in place of the number it is one tablet server of the cluster whose ZooKeeper has that port.
 */
public final class RealFlussCluster {
  private static final String INTERNAL = "INTERNAL";
  private static final String PLAIN = "PLAIN_CLIENT";
  private static final String SASL = "CLIENT";

  private static final List<TabletServer> TABLET_SERVERS = new CopyOnWriteArrayList<>();

  private RealFlussCluster() {}

  public static void main(String[] args) throws Exception {
    Path data = Path.of(args[0]);
    Map<String, String> settings = new LinkedHashMap<>();
    for (int i = 2; i < args.length; i++) {
      int equals = args[i].indexOf('=');
      settings.put(args[i].substring(0, equals), args[i].substring(equals + 1));
    }
    haltWhenStandardInputCloses();
    try {
      if (args[1].startsWith("server:")) {
        String[] server = args[1].substring("server:".length()).split("@");
        StringBuilder json = new StringBuilder();
        startTabletServer(data, Integer.parseInt(server[1]), settings, server[0], json);
        System.out.println(json);
      } else {
        System.out.println(start(data, Integer.parseInt(args[1]), settings));
      }
      System.out.flush();
    } catch (Throwable failure) {
      failure.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  private static String start(Path data, int tabletServers, Map<String, String> settings) throws Exception {
    int zooKeeperPort = startZooKeeper(Files.createDirectories(data.resolve("zookeeper")).toFile());

    CoordinatorServer coordinator =
        new CoordinatorServer(configuration(data, zooKeeperPort, settings, data.resolve("coordinator")));
    coordinator.start();
    StringBuilder json = new StringBuilder("{\"zookeeper\":").append(zooKeeperPort).append(",\"coordinator\":");
    appendEndpoints(json, coordinator.getRpcServer().getBindEndpoints());

    json.append(",\"tablet_servers\":[");
    for (int id = 0; id < tabletServers; id++) {
      json.append(id == 0 ? "" : ",");
      startTabletServer(data, zooKeeperPort, settings, Integer.toString(id), json);
    }
    return json.append("]}").toString();
  }

  private static void startTabletServer(
      Path data, int zooKeeperPort, Map<String, String> settings, String id, StringBuilder json) throws Exception {
    Configuration configuration = configuration(data, zooKeeperPort, settings, data.resolve("tablet-server-" + id));
    configuration.setString("tablet-server.id", id);
    TabletServer tabletServer = new TabletServer(configuration);
    tabletServer.start();
    TABLET_SERVERS.add(tabletServer);
    appendEndpoints(json, tabletServer.getRpcServer().getBindEndpoints());
  }

  private static int startZooKeeper(File folder) throws IOException, InterruptedException {
    ZooKeeperServer zooKeeper = new ZooKeeperServer(folder, folder, ZooKeeperServer.DEFAULT_TICK_TIME);
    NIOServerCnxnFactory listener = new NIOServerCnxnFactory();
    listener.configure(new InetSocketAddress("127.0.0.1", 0), 0);
    listener.startup(zooKeeper);
    return listener.getLocalPort();
  }

  private static Configuration configuration(
      Path data, int zooKeeperPort, Map<String, String> settings, Path dataDir) {
    Configuration configuration = new Configuration();
    configuration.setString("zookeeper.address", "127.0.0.1:" + zooKeeperPort);
    configuration.setString("remote.data.dir", data.resolve("remote").toUri().toString());
    configuration.setString("data.dir", dataDir.toString());
    String listeners = INTERNAL + "://127.0.0.1:0," + PLAIN + "://127.0.0.1:0";
    if (settings.containsKey("security.protocol.map")) {
      listeners += "," + SASL + "://127.0.0.1:0";
    }
    configuration.setString("bind.listeners", listeners);
    configuration.setString("internal.listener.name", INTERNAL);
    settings.forEach(configuration::setString);
    return configuration;
  }

  private static void appendEndpoints(StringBuilder json, List<Endpoint> endpoints) {
    json.append('{');
    for (int i = 0; i < endpoints.size(); i++) {
      Endpoint endpoint = endpoints.get(i);
      json.append(i == 0 ? "\"" : ",\"").append(endpoint.getListenerName()).append("\":\"");
      json.append(endpoint.getHost()).append(':').append(endpoint.getPort()).append('"');
    }
    json.append('}');
  }

  private static void haltWhenStandardInputCloses() {
    Thread watcher =
        new Thread(
            () -> {
              try {
                if (System.in.read() >= 0) {
                  for (TabletServer server : TABLET_SERVERS) {
                    server.close();
                  }
                }
              } catch (Exception closed) {
                System.err.println("standard input is gone, or a server cannot be closed: " + closed);
              }
              // Without a line: the data folder is thrown away, so a clean shutdown would buy nothing.
              Runtime.getRuntime().halt(0);
            },
            "parent-watcher");
    watcher.setDaemon(true);
    watcher.start();
  }
}
