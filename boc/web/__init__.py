"""Serve the search page and its JSON API, as an ASGI application for one index."""
