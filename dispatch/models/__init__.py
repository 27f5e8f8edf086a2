from dispatch.models.alert import Alert
from dispatch.models.heartbeat import Heartbeat
from dispatch.models.inbound import InboundMessage
from dispatch.models.job import Job, JobAnswer
from dispatch.models.known_address import KnownAddress
from dispatch.models.lane import Lane
from dispatch.models.log import Attempt, DispatchLog
from dispatch.models.run import Run
from dispatch.models.webhook import WebhookEvent

__all__ = [
    "Alert",
    "Attempt",
    "DispatchLog",
    "Heartbeat",
    "InboundMessage",
    "Job",
    "JobAnswer",
    "KnownAddress",
    "Lane",
    "Run",
    "WebhookEvent",
]
