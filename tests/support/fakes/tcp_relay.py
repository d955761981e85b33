"""A TCP relay between a client and a server: forwards bytes, and delays, withholds or cuts them when a test says so.

delay_s       each piece that the server sends arrives so much later
is_silent     connections stay open, and nothing arrives on them
is_cut        connections are reset, and new ones end at once
reset()       the connections that are open now are reset, wherever an answer is
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Final

_PIECE_BYTES: Final = 16_384
_LOOK_AGAIN_S: Final = 0.02
#: close() sends RST, not FIN.
_ABRUPT: Final = struct.pack("ii", 1, 0)


class TcpRelay:
    """Listens on a free port of 127.0.0.1, `port`, while it is entered, and connects to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.delay_s = 0.0
        self.is_silent = False
        self._is_cut = False
        self.target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> TcpRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._listener.close()
        self.reset()

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    @is_cut.setter
    def is_cut(self, is_cut: bool) -> None:
        self._is_cut = is_cut
        if is_cut:
            self.reset()

    def heal(self) -> None:
        """Forward everything at once from now on."""
        self.delay_s, self.is_silent, self.is_cut = 0.0, False, False

    def reset(self) -> None:
        """Reset all connections."""
        with self._lock:
            ended, self._open = self._open, set()
        for each in ended:
            _close(each)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                _close(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), timeout=10)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._forward, args=(source, sink, is_answer), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := source.recv(_PIECE_BYTES):
                if is_answer and self.delay_s:
                    time.sleep(self.delay_s)
                while self.is_silent and not self._is_closed:
                    time.sleep(_LOOK_AGAIN_S)
                sink.sendall(piece)
        with self._lock:
            self._open -= {source, sink}
        _close(source)
        _close(sink)


def _close(connection: socket.socket) -> None:
    """Reset the connection; a thread that waits for it wakes up."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPT)
        connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connection.close()
