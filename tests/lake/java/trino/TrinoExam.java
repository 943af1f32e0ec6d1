import com.google.inject.Binder;
import com.google.inject.multibindings.MapBinder;
import io.trino.filesystem.Location;
import io.trino.filesystem.TrinoFileSystem;
import io.trino.filesystem.TrinoFileSystemFactory;
import io.trino.filesystem.local.LocalFileSystemFactory;
import io.trino.plugin.iceberg.IcebergConnectorFactory;
import io.trino.spi.Plugin;
import io.trino.spi.connector.Connector;
import io.trino.spi.connector.ConnectorContext;
import io.trino.spi.connector.ConnectorFactory;
import io.trino.testing.DistributedQueryRunner;
import io.trino.testing.MaterializedRow;
import io.trino.testing.TestingSession;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Trino with its Iceberg connector on a REST catalog: URI QUERY... Prints each row as its values between tabs, and an
 * empty line behind each query.
 */
public final class TrinoExam {
  public static void main(String[] arguments) {
    PrintStream out = System.out; // Trino puts its own in this place
    int code = 1;
    try {
      answer(arguments, out);
      code = 0;
    } catch (Throwable e) {
      e.printStackTrace();
    }
    out.flush();
    Runtime.getRuntime().halt(code); // its threads would keep it
  }

  private static void answer(String[] arguments, PrintStream out) throws Exception {
    DistributedQueryRunner trino =
        DistributedQueryRunner.builder(TestingSession.testSessionBuilder().build()).setWorkerCount(0).build();
    trino.installPlugin(new Plugin() {
      @Override
      public Iterable<ConnectorFactory> getConnectorFactories() {
        return List.of(new LocalIceberg());
      }
    });
    trino.createCatalog(
        "lake", "iceberg", Map.of("iceberg.catalog.type", "rest", "iceberg.rest-catalog.uri", arguments[0]));
    for (int i = 1; i < arguments.length; i++) {
      for (MaterializedRow row : trino.execute(arguments[i]).getMaterializedRows()) {
        out.println(String.join("\t", row.getFields().stream().map(String::valueOf).toList()));
      }
      out.println();
    }
  }

  /** The connector as it is, but that it opens files of this machine, which have the scheme "file" in the lake. */
  private static final class LocalIceberg implements ConnectorFactory {
    @Override
    public String getName() {
      return "iceberg";
    }

    @Override
    public Connector create(String catalog, Map<String, String> config, ConnectorContext context) {
      return IcebergConnectorFactory.createConnector(
          catalog, config, context, LocalIceberg::bindFiles, Optional.empty());
    }

    private static void bindFiles(Binder binder) {
      TrinoFileSystemFactory local = new LocalFileSystemFactory(Path.of("/"));
      MapBinder.newMapBinder(binder, String.class, TrinoFileSystemFactory.class)
          .addBinding("file")
          .toInstance(identity -> renaming(local.create(identity)));
    }

    private static TrinoFileSystem renaming(TrinoFileSystem local) {
      return (TrinoFileSystem) Proxy.newProxyInstance(
          TrinoFileSystem.class.getClassLoader(), new Class<?>[] {TrinoFileSystem.class}, (proxy, method, given) -> {
            Object[] renamed = given == null ? new Object[0] : given.clone();
            for (int i = 0; i < renamed.length; i++) {
              if (renamed[i] instanceof Location location) {
                renamed[i] = Location.of("local:///" + location.path().replaceFirst("^/+", ""));
              }
            }
            try {
              return method.invoke(local, renamed);
            } catch (InvocationTargetException e) {
              throw e.getCause();
            }
          });
    }
  }
}
