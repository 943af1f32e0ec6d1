import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's REST catalog on 127.0.0.1, over a JDBC catalog in SQLite: WAREHOUSE is a folder. Prints its port, and ends
 * when its standard input does.
 */
public final class IcebergRest {
  public static void main(String[] arguments) throws Exception {
    String warehouse = arguments[0];
    Map<String, String> properties = Map.of(
        "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri", "jdbc:sqlite:" + warehouse + "/rest.db",
        "jdbc.schema-version", "V1",
        "warehouse", "file://" + warehouse);
    Catalog catalog = CatalogUtil.buildIcebergCatalog("rest", properties, new Configuration());
    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    server.setHandler(context);
    server.start();
    System.out.println(connector.getLocalPort());
    while (System.in.read() >= 0) {
      // until it is closed
    }
    server.stop();
    System.exit(0);
  }
}
