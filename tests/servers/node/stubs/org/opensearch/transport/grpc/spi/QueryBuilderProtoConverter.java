package org.opensearch.transport.grpc.spi;

/** The k-NN plug-in cannot be loaded without this name; Maven Central lacks its jar, and no test speaks gRPC. */
public interface QueryBuilderProtoConverter {}
