import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.StringJoiner;

/** Asks a Flight SQL endpoint through JDBC what DBeaver asks, and prints one line for each answer. */
public class FlightSqlClient {
    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            DatabaseMetaData about = connection.getMetaData();
            System.out.println("product " + about.getDatabaseProductName() + " " + about.getIdentifierQuoteString());
            print("catalogs", about.getCatalogs(), "TABLE_CAT");
            print("schemas", about.getSchemas("lake", "%"), "TABLE_SCHEM");
            print("tables", about.getTables("live", "fluss", "ord%", null), "TABLE_NAME", "TABLE_TYPE");
            print("columns", about.getColumns("live", "fluss", "orders", "%"), "COLUMN_NAME", "TYPE_NAME", "IS_NULLABLE");
            print("key", about.getPrimaryKeys("live", "fluss", "orders"), "COLUMN_NAME");
            try (Statement statement = connection.createStatement()) {
                print("join", statement.executeQuery(
                    "SELECT name, sum(amount) AS s FROM fluss.orders JOIN lake.shop.items USING (item) "
                        + "WHERE id <= 3 GROUP BY ALL ORDER BY name"), "name", "s");
                System.out.println("inserted " + statement.executeUpdate("INSERT INTO fluss.jdbc VALUES (7, 'java', 1.5)"));
                try {
                    statement.executeQuery("SELECT * FROM fluss.nope");
                } catch (SQLException e) {
                    System.out.println("refused " + e.getMessage().lines().findFirst().get());
                }
            }
            String query = "SELECT id, note FROM fluss.jdbc WHERE id >= ? AND note = ? AND amount > ? ORDER BY id";
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO fluss.jdbc VALUES (?, ?, ?)");
                    PreparedStatement select = connection.prepareStatement(query)) {
                for (int id = 8; id < 11; id++) {
                    insert.setLong(1, id);
                    insert.setString(2, "batch");
                    insert.setBigDecimal(3, new BigDecimal("2.50"));
                    insert.addBatch();
                }
                insert.executeBatch();
                select.setLong(1, 9);
                select.setString(2, "batch");
                select.setBigDecimal(3, new BigDecimal("1.00"));
                print("prepared", select.executeQuery(), "id", "note");
            }
        }
        System.exit(0);
    }

    private static void print(String what, ResultSet rows, String... columns) throws SQLException {
        StringJoiner line = new StringJoiner(", ");
        try (rows) {
            while (rows.next()) {
                StringJoiner row = new StringJoiner(" ");
                for (String column : columns) {
                    row.add(String.valueOf(rows.getObject(column)));
                }
                line.add(row.toString());
            }
        }
        System.out.println(what + ": " + line);
    }
}
