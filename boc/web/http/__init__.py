"""HTTP functions around the JSON API: access control, limits, connections, headers and errors."""
