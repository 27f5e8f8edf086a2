"""The ledger and the machinery as staff see them: nothing here is edited, and what is decided goes through transitions.py."""

from dispatch.admin.machinery import AlertAdmin, HeartbeatAdmin, JobAdmin, LaneAdmin, RunAdmin
from dispatch.admin.message import DispatchLogAdmin
from dispatch.admin.replies import InboundMessageAdmin, WebhookEventAdmin

__all__ = [
    "AlertAdmin",
    "DispatchLogAdmin",
    "HeartbeatAdmin",
    "InboundMessageAdmin",
    "JobAdmin",
    "LaneAdmin",
    "RunAdmin",
    "WebhookEventAdmin",
]
