import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.options.Options;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.view.View;
import org.apache.paimon.view.ViewImpl;

/**
 * Java Paimon's catalogs behind standard input and output. A line asks one thing, with tabs between its words: the
 * catalog's number, an operation, its arguments. It is answered by one line: `ok` or `error`, a tab, and what was said.
 * `open` makes the next catalog, of options `key=value`. Ends with standard input.
 */
public final class CatalogExam {
    private final Catalog catalog;

    private CatalogExam(Catalog catalog) {
        this.catalog = catalog;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<CatalogExam> exams = new ArrayList<>();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] words = line.split("\t", -1);
            String answer;
            try {
                if (words[1].equals("open")) {
                    Options options = new Options(options(words, 2));
                    exams.add(new CatalogExam(CatalogFactory.createCatalog(CatalogContext.create(options))));
                    answer = "ok\t" + (exams.size() - 1);
                } else {
                    answer = "ok\t" + exams.get(Integer.parseInt(words[0])).run(words);
                }
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = "error\t" + failure.toString().replaceAll("\\s+", " ");
            }
            answers.println(answer);
            answers.flush();
        }
        System.exit(0);
    }

    private String run(String[] words) throws Exception {
        switch (words[1]) {
            case "create_database":
                catalog.createDatabase(words[2], false);
                return "";
            case "databases":
                return sorted(catalog.listDatabases());
            case "tables":
                return sorted(catalog.listTables(words[2]));
            case "create":
                Schema.Builder schema = Schema.newBuilder();
                schema.column("id", DataTypes.BIGINT()).column("v", DataTypes.STRING()).options(options(words, 3));
                catalog.createTable(table(words[2]), schema.build(), false);
                return "";
            case "columns":
                return String.join(" ", ((FileStoreTable) catalog.getTable(table(words[2]))).schema().fieldNames());
            case "options":
                return ((FileStoreTable) catalog.getTable(table(words[2]))).options().get(words[3]);
            case "add_column":
                catalog.alterTable(table(words[2]), SchemaChange.addColumn(words[3], DataTypes.INT()), false);
                return "";
            case "set_option":
                catalog.alterTable(table(words[2]), SchemaChange.setOption(words[3], words[4]), false);
                return "";
            case "rename":
                catalog.renameTable(table(words[2]), table(words[3]), false);
                return "";
            case "drop":
                catalog.dropTable(table(words[2]), false);
                return "";
            case "write":
                return write(catalog.getTable(table(words[2])), Long.parseLong(words[3]), words[4]);
            case "read":
                return read(catalog.getTable(table(words[2])));
            case "create_view":
                List<DataField> fields = Collections.singletonList(new DataField(0, "n", DataTypes.BIGINT()));
                Map<String, String> dialects = options(words, 4);
                Identifier id = table(words[2]);
                catalog.createView(id, new ViewImpl(id, fields, words[3], dialects, "of Java", new HashMap<>()), false);
                return "";
            case "view":
                View view = catalog.getView(table(words[2]));
                return view.rowType() + " " + view.comment().orElse("none") + " " + view.query("spark");
            case "views":
                return sorted(catalog.listViews(words[2]));
            case "rename_view":
                catalog.renameView(table(words[2]), table(words[3]), false);
                return "";
            case "drop_view":
                catalog.dropView(table(words[2]), false);
                return "";
            default:
                throw new IllegalArgumentException("there is no operation " + words[1]);
        }
    }

    /** Writes one row; columns behind the second are null. */
    private static String write(Table table, long id, String text) throws Exception {
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        try (BatchTableWrite write = builder.newWrite(); BatchTableCommit commit = builder.newCommit()) {
            GenericRow row = new GenericRow(table.rowType().getFieldCount());
            row.setField(0, id);
            row.setField(1, BinaryString.fromString(text));
            write.write(row);
            commit.commit(write.prepareCommit());
        }
        return "";
    }

    /** The first two columns of all rows. */
    private static String read(Table table) throws Exception {
        ReadBuilder builder = table.newReadBuilder();
        List<String> rows = new ArrayList<>();
        builder.newRead().createReader(builder.newScan().plan()).forEachRemaining((InternalRow row) -> {
            rows.add(row.getLong(0) + "=" + row.getString(1));
        });
        return sorted(rows);
    }

    private static Identifier table(String name) {
        return Identifier.fromString(name);
    }

    private static Map<String, String> options(String[] words, int from) {
        Map<String, String> options = new HashMap<>();
        for (int i = from; i < words.length; i++) {
            int end = words[i].indexOf('=');
            options.put(words[i].substring(0, end), words[i].substring(end + 1));
        }
        return options;
    }

    private static String sorted(List<String> words) {
        List<String> copy = new ArrayList<>(words);
        Collections.sort(copy);
        return String.join(" ", copy);
    }
}
