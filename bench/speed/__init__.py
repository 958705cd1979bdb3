"""How fast single parts are."""
