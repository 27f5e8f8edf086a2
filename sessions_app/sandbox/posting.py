"""The requests to the receivers of webhooks: one at a time, over connections that are kept, and cut at once when it is over."""

import select
import socket
import threading
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

CONNECTS_WITHIN = 2.0  # seconds
ANSWERS_WITHIN = 10.0
ANSWER_AT_MOST = 64 * 1024
KEPT_AT_MOST = 8


class Poster:
    """For one thread; `cut` for any."""

    def __init__(self) -> None:
        self._open: dict[str, HTTPConnection] = {}
        self._lock = threading.Lock()
        self._over = False

    def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer; 0 when there was none. It does not follow redirects and does not try again."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection = self._connection(parts.netloc)
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            response.read(ANSWER_AT_MOST)
            if not response.isclosed():  # there is more of it than anybody wants
                self._drop(parts.netloc)
            return response.status
        except (OSError, HTTPException):
            self._drop(parts.netloc)
            return 0

    def _connection(self, netloc: str) -> HTTPConnection:
        kept = self._open.get(netloc)
        if kept is not None and kept.sock is not None and not _has_news(kept.sock):
            return kept
        self._drop(netloc)
        while len(self._open) >= KEPT_AT_MOST:
            self._drop(next(iter(self._open)))
        connection = HTTPConnection(netloc, timeout=CONNECTS_WITHIN)
        connection.connect()
        connection.sock.settimeout(ANSWERS_WITHIN)
        with self._lock:
            self._open[netloc] = connection
            if self._over:
                raise ConnectionAbortedError
        return connection

    def _drop(self, netloc: str) -> None:
        with self._lock:
            connection = self._open.pop(netloc, None)
        if connection is not None:
            connection.close()

    def cut(self) -> None:
        """What is in progress ends without an answer, and nothing more begins."""
        with self._lock:
            self._over = True
            for connection in self._open.values():
                if connection.sock is not None:
                    try:
                        connection.sock.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass  # the other side was quicker

    def close(self) -> None:
        for netloc in list(self._open):
            self._drop(netloc)


def _has_news(kept: socket.socket) -> bool:
    """Between two requests that can only be its end."""
    poll = select.poll()
    poll.register(kept, select.POLLIN)
    return bool(poll.poll(0))
