"""Store and search posting lists. Each kind of engine has a module with a function ``connect(url)
-> Backend``."""
