import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.net.util.SubnetUtils;
import org.apache.commons.net.util.SubnetUtils6;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * What Kafka's StandardAuthorizer decides for clients by the hosts of entries.
 *
 * Arguments: a file of lines "ALLOW|DENY, tab, host of the entry, tab, host of the client", and the file to write, one
 * line "true" or "false" each. Beside a DENY entry another one allows the same for all hosts.
 *
 * No release has ranges of hosts yet (KIP-1276). The classes that its CidrUtils calls are in commons-net: whether a range
 * has the client is asked of them, in the way that CidrUtils does, and the authorizer gets the client's address, or
 * another one, instead of the range.
 */
public class HostDecisions {
    private static final KafkaPrincipal ANN = new KafkaPrincipal("User", "ann");

    public static void main(String[] arguments) throws IOException {
        List<String> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split("\t", -1);
            answers.add(String.valueOf(decide(parts[0].equals("DENY"), parts[1], InetAddress.getByName(parts[2]))));
        }
        Files.write(Path.of(arguments[1]), answers);
    }

    private static boolean decide(boolean denies, String host, InetAddress client) {
        String known = host;
        if (host.contains("/")) {
            known = isInRange(host, client.getHostAddress()) ? client.getHostAddress() : "nowhere";
        }
        Map<Uuid, StandardAcl> entries = new LinkedHashMap<>();
        entries.put(Uuid.randomUuid(), entry(known, denies ? AclPermissionType.DENY : AclPermissionType.ALLOW));
        if (denies) {
            entries.put(Uuid.randomUuid(), entry("*", AclPermissionType.ALLOW));
        }
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(Map.of("node.id", "1"));
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        authorizer.loadSnapshot(entries);
        authorizer.completeInitialLoad();
        ResourcePattern topic = new ResourcePattern(ResourceType.TOPIC, "orders", PatternType.LITERAL);
        Action read = new Action(AclOperation.READ, topic, 1, false, false);
        return authorizer.authorize(new Client(client), List.of(read)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static StandardAcl entry(String host, AclPermissionType permission) {
        return new StandardAcl(
            ResourceType.TOPIC, "orders", PatternType.LITERAL, ANN.toString(), host, AclOperation.READ, permission);
    }

    private static boolean isInRange(String range, String host) {
        try {
            if (range.contains(":")) {
                return new SubnetUtils6(range).getInfo().isInRange(host);
            }
            SubnetUtils subnet = new SubnetUtils(range);
            subnet.setInclusiveHostCount(true);
            return subnet.getInfo().isInRange(host);
        } catch (IllegalArgumentException notARange) {
            return false;
        }
    }

    private record Client(InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() {
            return "PLAINTEXT";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        public KafkaPrincipal principal() {
            return ANN;
        }

        public int requestType() {
            return 1;
        }

        public int requestVersion() {
            return 1;
        }

        public String clientId() {
            return "tests";
        }

        public int correlationId() {
            return 1;
        }
    }
}
