"""What can go wrong on the way to a server."""


class UnavailableError(Exception):
    """This machine cannot have the server; the text says what is missing. Tests are skipped with
    it."""


class MismatchError(Exception):
    """What was fetched is not what the catalogue pins; nothing of it is kept."""


class StartError(Exception):
    """The server died or did not answer in time; the text ends with the tail of its log."""


class RequestError(OSError):
    """A server answered with an error: ``errno`` is the HTTP status, the text its body."""
