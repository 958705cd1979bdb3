"""Store and search posting lists: one module per kind of engine, with ``connect(url) ->
Backend``."""
