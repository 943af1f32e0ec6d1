import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;

import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TTransportFactory;

/**
 * Apache Hive's Metastore on 127.0.0.1, at a port that the system picks and the first line of output names. Its tables
 * are in an embedded Derby below the first argument. Ends with standard input.
 */
public final class MetastoreServer {
    private MetastoreServer() {}

    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        HiveConf conf = new HiveConf();
        conf.set("javax.jdo.option.ConnectionURL", "jdbc:derby:" + folder + "/metastore;create=true");
        conf.set("datanucleus.schema.autoCreateAll", "true");
        conf.set("hive.metastore.schema.verification", "false");
        conf.set("datanucleus.connectionPoolingType", "DBCP"); // of those that Hive knows, the one among Spark's jars
        conf.set("hive.metastore.warehouse.dir", folder + "/warehouse");
        TxnDbUtil.setConfValues(conf);
        TxnDbUtil.prepDb(conf);
        IHMSHandler handler = new HiveMetaStore.HMSHandler("forebay", conf, false);
        IHMSHandler retrying = HiveMetaStore.newRetryingHMSHandler(handler, conf);
        ServerSocket socket = new ServerSocket();
        socket.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        TThreadPoolServer.Args args = new TThreadPoolServer.Args(new TServerSocket(socket))
                .processor(new TSetIpAddressProcessor<>(retrying))
                .transportFactory(new TTransportFactory())
                .protocolFactory(new TBinaryProtocol.Factory());
        Thread server = new Thread(new TThreadPoolServer(args)::serve, "metastore");
        server.setDaemon(true);
        server.start();
        System.out.println(socket.getLocalPort());
        System.out.flush();
        InputStream in = System.in;
        while (in.read() >= 0) {
            // wait for the end
        }
        System.exit(0);
    }
}
