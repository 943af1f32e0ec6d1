import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Apache Paimon's Java API behind standard input and output: each line is a request, `{"op": ..., ...}`, and is answered
 * by one line, `{"value": ...}` or `{"error": class, "message": ..., "trace": ...}`. Ends with standard input.
 */
public final class PaimonExam {
    private PaimonExam() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        Map<String, Operation> operations = new HashMap<>();
        new Tables(arguments[0]).register(operations);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = json.readTree(line);
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                Operation operation = operations.get(request.get("op").asText());
                if (operation == null) {
                    throw new IllegalArgumentException("there is no operation " + request.get("op"));
                }
                answer.put("value", operation.run(request));
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace, true));
                answer.put("error", failure.getClass().getName());
                answer.put("message", String.valueOf(failure.getMessage()));
                answer.put("trace", trace.toString());
            }
            answers.println(json.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    /** What one kind of request does; the result must be plain Java values. */
    interface Operation {
        Object run(JsonNode request) throws Exception;
    }
}
