
/** The Python process that opens catalogs in a driver without one: spark-sql, Thrift and Spark Connect servers. */
class SparkPython implements Runnable {
    private static final long SECONDS = 120;

    private final org.apache.spark.SparkConf conf;
    private volatile org.apache.spark.api.python.Py4JServer server;

    private SparkPython(org.apache.spark.SparkConf conf) { this.conf = conf; }

    public void run() {
        org.apache.spark.api.python.Py4JServer made = new org.apache.spark.api.python.Py4JServer(conf);
        made.start();
        server = made;
    }

    static synchronized void start(String name, org.apache.spark.sql.util.CaseInsensitiveStringMap options) {
        if (SparkCatalog.opener != null) {
            return;
        }
        org.apache.spark.SparkContext context = org.apache.spark.SparkContext.getOrCreate();
        String python = (String) ((java.util.Map) options).get("python");
        if (python == null) {
            python = org.apache.spark.api.python.PythonUtils$.MODULE$.defaultPythonExec();
        }
        // The gateway's threads are daemons if this thread is. Others would keep the JVM alive after its program.
        SparkPython started = new SparkPython(context.conf());
        Thread starting = new Thread(started, "forebay-py4j-start");
        starting.setDaemon(true);
        starting.start();
        try {
            starting.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("catalog " + name + ": interrupted while its gateway started");
        }
        org.apache.spark.api.python.Py4JServer server = started.server;
        if (server == null) {
            throw new IllegalStateException("catalog " + name + ": its gateway did not start; see above");
        }
        ProcessBuilder builder = new ProcessBuilder(new String[] {python, "-m", "forebay.spark.catalog_process"});
        java.util.Map environment = builder.environment();
        environment.put("PYSPARK_GATEWAY_PORT", String.valueOf(server.getListeningPort()));
        environment.put("PYSPARK_GATEWAY_SECRET", server.secret());
        builder.redirectOutput(ProcessBuilder.Redirect.INHERIT);
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        String where = "catalog " + name + ": the Python process " + python + " -m forebay.spark.catalog_process";
        String remedy = "; set spark.sql.catalog." + name + ".python to the interpreter that Forebay is installed in";
        try {
            Process process = builder.start();
            long deadline = System.nanoTime() + SECONDS * 1000000000L;
            while (SparkCatalog.opener == null) {
                if (!process.isAlive()) {
                    throw new IllegalStateException(where + " ended with code " + process.exitValue() + remedy);
                }
                if (System.nanoTime() > deadline) {
                    process.destroy();
                    throw new IllegalStateException(where + " was not ready within " + SECONDS + " s" + remedy);
                }
                Thread.sleep(20);
            }
        } catch (java.io.IOException e) {
            throw new IllegalStateException(where + " could not be started: " + e.getMessage() + remedy);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(where + ": interrupted while it started");
        }
    }
}
