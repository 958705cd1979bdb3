"""Serve the search page and its JSON interface, an ASGI application over one index."""
