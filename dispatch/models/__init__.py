from dispatch.models.heartbeat import Heartbeat
from dispatch.models.lane import Lane
from dispatch.models.log import Attempt, DispatchLog
from dispatch.models.run import Run

__all__ = ["Attempt", "DispatchLog", "Heartbeat", "Lane", "Run"]
