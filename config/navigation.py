"""The sidebar: each line only for those who may open its page."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse_lazy


def _may_view(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)


def _line(title: str, icon: str, app: str, model: str) -> dict[str, Any]:
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{model}_changelist"),
        "permission": _may_view(f"{app}.view_{model}"),
    }


SIDEBAR = {
    "show_search": False,
    "navigation": [
        {"items": [{"title": "Dashboard", "icon": "dashboard", "link": reverse_lazy("admin:index")}]},
        {
            "title": "Sending",
            "items": [
                _line("Campaigns", "campaign", "campaigns", "campaign"),
                _line("Recipients", "groups", "campaigns", "recipient"),
                _line("Messages", "mail", "dispatch", "dispatchlog"),
                _line("Replies", "forum", "dispatch", "inboundmessage"),
                _line("Runs", "history", "dispatch", "run"),
            ],
        },
        {
            "title": "Machinery",
            "items": [
                _line("Sessions", "smartphone", "sessions_app", "session"),
                _line("Lanes", "timeline", "dispatch", "lane"),
                _line("Scheduler heartbeats", "monitor_heart", "dispatch", "heartbeat"),
                _line("Webhook events", "webhook", "dispatch", "webhookevent"),
                _line("Alerts", "notifications", "dispatch", "alert"),
                _line("Jobs", "repeat", "dispatch", "job"),
            ],
        },
        {
            "title": "Accounts",
            "items": [_line("Users", "person", "auth", "user"), _line("Groups", "group", "auth", "group")],
        },
        {
            "title": "Background tasks",
            "items": [
                _line("Schedules", "event_repeat", "django_q", "schedule"),
                _line("Successful tasks", "task_alt", "django_q", "success"),
                _line("Failed tasks", "error", "django_q", "failure"),
            ],
        },
    ],
}
