"""A port that nobody else is given before the process it is meant for listens on it."""

import contextlib
import socket


@contextlib.contextmanager
def held():
    """Yields a free port, bound here until the block ends.

    JAX's coordinator shares a port that was bound to be shared; the system gives a bound one to
    nobody who asks for any. One that was let go before would be another's once in 10,000 times that
    a program somewhere asks for any port while the coordinator is being imported.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
