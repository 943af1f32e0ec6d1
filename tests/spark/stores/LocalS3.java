import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/** A store at s3a:// whose objects are local files: it wants the credentials of its bucket, as S3 does. */
public class LocalS3 extends FilterFileSystem {
    private URI uri;
    private Path root;

    public LocalS3() { super(new RawLocalFileSystem()); }

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(URI.create("file:///"), conf);
        uri = URI.create(name.getScheme() + "://" + name.getHost());
        String prefix = "fs.s3a.bucket." + name.getHost() + ".";
        for (String setting : new String[] {"access.key", "secret.key"}) {
            String given = conf.get(prefix + setting);
            if (!conf.get("test." + setting).equals(given)) {
                throw new IOException(prefix + setting + " is " + given);
            }
        }
        root = new Path(new Path(conf.get("test.root")), name.getHost());
    }

    private Path local(Path path) { return new Path(root, path.toUri().getPath().substring(1)); }

    @Override
    protected void checkPath(Path path) {}

    @Override
    public URI getUri() { return uri; }

    @Override
    public Path makeQualified(Path path) { return path; }

    @Override
    public FSDataInputStream open(Path path, int size) throws IOException { return fs.open(local(path), size); }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        FileStatus found = fs.getFileStatus(local(path));
        return new FileStatus(found.getLen(), false, 1, 1 << 27, found.getModificationTime(), path);
    }
}
