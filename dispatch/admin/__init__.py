"""The ledger and the machinery as staff see them: nothing here is edited, and what is decided goes through transitions.py."""

from dispatch.admin.machinery import HeartbeatAdmin, LaneAdmin, RunAdmin
from dispatch.admin.message import DispatchLogAdmin

__all__ = ["DispatchLogAdmin", "HeartbeatAdmin", "LaneAdmin", "RunAdmin"]
