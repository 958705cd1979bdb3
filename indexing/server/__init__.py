"""The client of search servers, shared by Elasticsearch and OpenSearch."""
