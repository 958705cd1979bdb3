"""Connect to search servers; Elasticsearch and OpenSearch share this client."""
