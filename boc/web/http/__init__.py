"""Handle HTTP around the interface: access, limits, connections, headers and errors."""
