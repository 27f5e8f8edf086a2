"""How a running process is asked to stop. The only module that sleeps or touches signals."""

import os
import signal
import time
from types import FrameType

SLICE = 0.2


class StopFlag:
    """A plain bool on purpose: Event.set() takes a lock that the interrupted thread may hold, and then the process hangs."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        """SIGTERM and SIGINT ask; a second one leaves at once, and what was on its way becomes UNCONFIRMED."""
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True

    def sleep(self, seconds: float) -> None:
        """Returns early when asked to stop, at most a slice late."""
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(SLICE, left))


def rest(seconds: float) -> None:
    """For the end of a loop, where being asked to stop is no news."""
    time.sleep(seconds)


class StopAfter(StopFlag):
    """Asked to stop from the start of the given number of seconds on: for drivers that lend a process for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.monotonic() + seconds

    @property
    def requested(self) -> bool:
        return time.monotonic() >= self._end

    @requested.setter
    def requested(self, value: bool) -> None:
        if value:
            self._end = 0.0
