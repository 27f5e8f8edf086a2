"""The first page: is it sending, what waits, and what needs a person. Each part only for those who may see the rest of it."""

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.text import Truncator

from campaigns.admin import overview
from campaigns.models import Campaign
from dispatch.admin.machinery import subject_link
from dispatch.models import Alert, DispatchLog, Heartbeat
from sessions_app.admin import STATUS_COLOURS, badge
from sessions_app.clock import database_now
from sessions_app.models import Session

ROWS = 10
ROOM = 50  # characters of a reason: the cards of a phone are low
COUNTED_UP_TO = 1000
ALERTS_ARE_SHOWN_FOR = timedelta(hours=24)


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """UNFOLD's DASHBOARD_CALLBACK."""
    facts: list[dict[str, Any]] = []
    panels: list[dict[str, Any]] = []
    if request.user.has_perm("dispatch.view_heartbeat"):
        facts.append(_scheduler())
    if request.user.has_perm("dispatch.view_alert"):
        panels.append(_alerts())
    if request.user.has_perm("campaigns.view_campaign"):
        facts.append(
            _count("Running campaigns", Campaign.objects.running(), "admin:campaigns_campaign_changelist", "status__exact=RUNNING")
        )
        panels += [_running(), _waiting()]
    if request.user.has_perm("dispatch.view_dispatchlog"):
        unconfirmed = DispatchLog.objects.unconfirmed()
        facts.append(_count("Unconfirmed messages", unconfirmed, "admin:dispatch_dispatchlog_changelist", "status__exact=UNCONFIRMED"))
    if request.user.has_perm("sessions_app.view_session"):
        away = Session.objects.exclude(status=Session.Status.CONNECTED)
        facts.append(_count("Sessions not connected", away, "admin:sessions_app_session_changelist", ""))
        panels.append(_away(away))
    context.update(facts=facts, panels=[panel for panel in panels if panel["table"]["rows"]])
    return context


def _count(label: str, rows: QuerySet, page: str, query: str) -> dict[str, Any]:
    number = rows.order_by()[: COUNTED_UP_TO + 1].count()
    url = f"{reverse(page)}?{query}" if query else reverse(page)
    return {"label": label, "value": number if number <= COUNTED_UP_TO else f"over {COUNTED_UP_TO}", "url": url}


def _scheduler() -> dict[str, Any]:
    alive = Heartbeat.objects.alive(database_now()).count()
    return {
        "label": "Schedulers alive",
        "value": alive,
        "remark": "" if alive else "Nothing is sent until one runs: manage.py run_scheduler.",
        "url": reverse("admin:dispatch_heartbeat_changelist"),
    }


def _campaigns(rows: QuerySet[Campaign]) -> list[Campaign]:
    return list(rows.with_totals().select_related("session__lane")[:ROWS])  # type: ignore[attr-defined]


def _link(page: str, pk: int, text: str) -> str:
    return format_html('<a class="text-link" href="{}">{}</a>', reverse(page, args=[pk]), text)


def _alerts() -> dict[str, Any]:
    rows = [
        [
            _link("admin:dispatch_alert_change", alert.pk, alert.kind),
            subject_link(alert),
            Truncator(alert.detail).chars(2 * ROOM),
            alert.times,
            formats.localize(timezone.localtime(alert.last_at)),
        ]
        for alert in Alert.objects.filter(last_at__gte=Now() - ALERTS_ARE_SHOWN_FOR)[:ROWS]
    ]
    return {"title": "Alerts of the last 24 hours", "table": {"headers": ["Alert", "About", "Detail", "Times", "Last"], "rows": rows}}


def _running() -> dict[str, Any]:
    rows = [
        [
            _link("admin:campaigns_campaign_change", campaign.pk, campaign.name),
            campaign.session.name,
            overview.progress_bar(overview.totals(campaign)),
            overview.next_send(campaign),
        ]
        for campaign in _campaigns(Campaign.objects.running())
    ]
    return {"title": "Running", "table": {"headers": ["Campaign", "Session", "Progress", "Next send"], "rows": rows}}


def _waiting() -> dict[str, Any]:
    waiting = Campaign.objects.filter(status__in=[Campaign.Status.SCHEDULED, Campaign.Status.PAUSED]).order_by("due_at", "-pk")
    rows = [
        [
            _link("admin:campaigns_campaign_change", campaign.pk, campaign.name),
            campaign.session.name,
            overview.status_badge(campaign, room=ROOM),
            overview.next_send(campaign),
        ]
        for campaign in _campaigns(waiting)
    ]
    return {"title": "Scheduled and paused", "table": {"headers": ["Campaign", "Session", "Status", "Next"], "rows": rows}}


def _away(sessions: QuerySet[Session]) -> dict[str, Any]:
    rows = [
        [
            _link("admin:sessions_app_session_change", session.pk, session.name),
            badge(STATUS_COLOURS[Session.Status(session.status)], session.get_status_display(), session.status_detail, room=ROOM),
        ]
        for session in sessions[:ROWS]
    ]
    return {"title": "Sessions not connected", "table": {"headers": ["Session", "Status"], "rows": rows}}
