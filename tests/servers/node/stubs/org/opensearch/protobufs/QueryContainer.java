package org.opensearch.protobufs;

/** The k-NN plug-in cannot be loaded without these names; no test speaks gRPC. */
public final class QueryContainer {
    public enum QueryContainerCase {}
}
