import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The Java source of the catalog classes, of which Spark creates objects by name in sessions that it derives or that no
 * Python program has attached.
 *
 * The objects pass every call on to a catalog in Python, which `opener` opens. The interfaces differ between releases
 * of Spark, so the source is generated from the interfaces of the running Spark. Catalogs with views have a second
 * class, because Spark expects views of every catalog with the interfaces of views; a Spark without these interfaces
 * has no such class.
 */
public class ForebayCatalogSource {
    private final String source;

    public ForebayCatalogSource(Object interfaces, Object ofViews) throws ClassNotFoundException {
        Map methods = new LinkedHashMap();
        StringBuilder made = new StringBuilder("package org.forebay;\n");
        made.append("public class SparkCatalog implements ").append(collect(interfaces, methods)).append(" {\n");
        made.append("  public static volatile java.util.function.Function opener;\n");
        made.append("  protected Object opened;\n");
        made.append("  public void initialize(String name, ").append(OPTIONS).append(" options) {\n");
        made.append("    SparkPython.start(name, options);\n");
        made.append("    opened = opener.apply(new Object[] {name, options});\n  }\n");
        appendAll(made, methods.values());
        if (!((java.util.List) ofViews).isEmpty()) {
            Map more = new LinkedHashMap();
            String listed = collect(ofViews, more);
            more.keySet().removeAll(methods.keySet());
            made.append("public class SparkViewCatalog extends SparkCatalog implements ").append(listed).append(" {\n");
            made.append("  public void initialize(String name, ").append(OPTIONS).append(" options) {\n");
            made.append("    super.initialize(name, options);\n");
            made.append("    if (!(opened instanceof ").append(listed).append(")) {\n");
            made.append("      throw new IllegalArgumentException(\"catalog \" + name + \" has no views: set \"\n");
            made.append("        + \"spark.sql.catalog.\" + name + \" to org.forebay.SparkCatalog\");\n    }\n  }\n");
            appendAll(made, more.values());
        }
        source = made.toString();
    }

    private static void appendAll(StringBuilder made, java.util.Collection bodies) {
        Object[] each = bodies.toArray();
        for (int i = 0; i < each.length; i++) {
            made.append((String) each[i]);
        }
        made.append("}\n");
    }

    /** The names of interfaces, and in `methods` the bodies of their methods by signature. */
    private static String collect(Object interfaces, Map methods) throws ClassNotFoundException {
        Object[] names = ((java.util.List) interfaces).toArray();
        ClassLoader loader = org.apache.spark.sql.sources.BaseRelation.class.getClassLoader();
        StringBuilder listed = new StringBuilder();
        for (int i = 0; i < names.length; i++) {
            Class kind = Class.forName((String) names[i], false, loader);
            listed.append(i == 0 ? "" : ", ").append(name(kind));
            Method[] all = kind.getMethods();
            for (int j = 0; j < all.length; j++) {
                if (!Modifier.isStatic(all[j].getModifiers())) {
                    add(methods, all[j]);
                }
            }
        }
        return listed.toString();
    }

    private static final String OPTIONS = "org.apache.spark.sql.util.CaseInsensitiveStringMap";

    private static String name(Class kind) {
        return kind.getCanonicalName();
    }

    private static void add(Map methods, Method method) {
        Class[] types = method.getParameterTypes();
        if (method.getName().equals("initialize") && types.length == 2) {
            return;
        }
        StringBuilder parameters = new StringBuilder();
        StringBuilder arguments = new StringBuilder();
        for (int i = 0; i < types.length; i++) {
            parameters.append(i == 0 ? "" : ", ").append(name(types[i])).append(" a").append(i);
            arguments.append(i == 0 ? "a" : ", a").append(i);
        }
        Class[] thrown = method.getExceptionTypes();
        StringBuilder declared = new StringBuilder();
        for (int i = 0; i < thrown.length; i++) {
            declared.append(i == 0 ? " throws " : ", ").append(name(thrown[i]));
        }
        String key = method.getName() + "(" + parameters + ")";
        Class result = method.getReturnType();
        String body = "  public " + name(result) + " " + key + declared + " {\n    "
            + (result == void.class ? "" : "return ")
            + "((" + name(method.getDeclaringClass()) + ") opened)." + method.getName() + "(" + arguments + ");\n  }\n";
        if (!methods.containsKey(key)) {
            methods.put(key, body);
        }
    }

    public String toString() {
        return source;
    }
}
