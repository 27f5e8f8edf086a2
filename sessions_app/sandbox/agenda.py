"""What is to be done later, by one thread."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)
CAPACITY = 100_000


class Agenda:
    """Calls run one after the other, the earliest first. There is no thread until there is something to do."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()  # of two for one moment, the first is first
        self._condition = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.refused = 0

    def later(self, seconds: float, call: Callable[[], object]) -> bool:
        """False: it is full, or stopped, and the call will not be made."""
        with self._condition:
            if self._stopped or len(self._heap) >= self._capacity:
                self.refused += 1
                return False
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox events")
                self._thread.start()
            elif self._heap[0][2] is call:
                self._condition.notify()
            return True

    def waiting(self) -> int:
        with self._condition:
            return len(self._heap)

    def clear(self) -> None:
        with self._condition:
            self._heap.clear()

    def stop(self) -> None:
        """Whatever waits is forgotten. Returns when the call that is being made has returned."""
        with self._condition:
            self._stopped = True
            self._heap.clear()
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                logger.exception("an event of the sandbox failed")

    def _next(self) -> Callable[[], object] | None:
        with self._condition:
            while not self._stopped:
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._heap)[2]
                self._condition.wait(wait)
            return None
