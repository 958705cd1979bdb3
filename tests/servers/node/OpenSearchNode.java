import java.lang.reflect.Constructor;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.opensearch.Version;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;

/**
 * A node of OpenSearch 2 or 3 whose plug-ins lie on the class path: OpenSearchNode FOLDER PLUGIN...
 * Settings are read from FOLDER/config/opensearch.yml.
 */
public final class OpenSearchNode extends Node {

    /** OpenSearch 2 takes plug-ins as classes, 3 as descriptions; a raw collection is both. */
    @SuppressWarnings({"rawtypes", "unchecked"})
    private OpenSearchNode(Path folder, Collection plugins) {
        super(
            InternalSettingsPreparer.prepareEnvironment(
                Settings.EMPTY, Map.of("path.home", folder.toString()), folder.resolve("config"), () -> "node"),
            plugins,
            false);
    }

    private static Object plugin(String name) throws ReflectiveOperationException {
        if (Version.CURRENT.major < 3) return Class.forName(name);
        Constructor<?> description = Class.forName("org.opensearch.plugins.PluginInfo").getConstructor(
            String.class, String.class, String.class, Version.class, String.class, String.class, String.class,
            List.class, boolean.class);
        String java = System.getProperty("java.specification.version");
        return description.newInstance(name, name, "1", Version.CURRENT, java, name, null, List.of(), false);
    }

    public static void main(String[] args) throws Exception {
        // A request whose thread dies of an error never gets an answer: better to die as a whole, as the vendor's start does.
        Thread.setDefaultUncaughtExceptionHandler((thread, problem) -> {
            problem.printStackTrace();
            if (problem instanceof Error || thread.getName().equals("main")) Runtime.getRuntime().halt(1);
        });
        List<Object> plugins = new ArrayList<>();
        for (int i = 1; i < args.length; i++) plugins.add(plugin(args[i]));
        OpenSearchNode node = new OpenSearchNode(Path.of(args[0]), plugins);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (java.io.IOException problem) {
                problem.printStackTrace();
            }
        }));
        node.start();
        new CountDownLatch(1).await();
    }
}
