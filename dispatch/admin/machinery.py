from django.contrib import admin
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter
from unfold.decorators import display

from campaigns.admin.overview import progress_bar
from dispatch.admin.readonly import ReadOnlyAdmin
from dispatch.models import Heartbeat, Lane, Run
from sessions_app.admin import badge

RUN_COLOURS = {Run.Status.RUNNING: "success", Run.Status.COMPLETED: "primary", Run.Status.STOPPED: "danger", Run.Status.SKIPPED: "warning"}


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ["__str__", "campaign", "show_status", "show_progress", "sent", "failed", "unconfirmed", "skipped", "created_at"]
    list_filter = [("campaign", AutocompleteSelectFilter), ("status", ChoicesDropdownFilter)]
    list_select_related = ["campaign", "step"]
    fieldsets = [
        (None, {"fields": [("campaign", "step"), ("number", "scheduled_for"), ("show_status", "show_progress")]}),
        ("Counts", {"fields": [("planned", "rows_complete"), ("sent", "failed"), ("unconfirmed", "skipped"), "show_messages"]}),
        ("As frozen when it began", {"fields": ["message", "pacing", ("created_at", "completed_at")]}),
    ]

    @display(description="Status", ordering="status")
    def show_status(self, run: Run) -> str:
        return badge(RUN_COLOURS.get(Run.Status(run.status), ""), run.get_status_display(), run.reason)

    @display(description="Progress")
    def show_progress(self, run: Run) -> str:
        return progress_bar({"planned": run.planned, "pending": run.waiting})

    @display(description="Messages")
    def show_messages(self, run: Run) -> str:
        url = reverse("admin:dispatch_dispatchlog_changelist")
        return format_html('<a class="text-link" href="{}?campaign__id__exact={}">Messages of the campaign</a>', url, run.campaign_id)


@admin.register(Lane)
class LaneAdmin(ReadOnlyAdmin):
    list_display = ["session", "campaign", "is_open", "next_send_at", "in_flight", "day_count", "show_trouble"]
    list_filter = ["is_open"]
    list_select_related = ["session", "campaign"]
    search_fields = ["session__name"]
    fieldsets = [
        (None, {"fields": [("session", "campaign"), ("is_open", "open_until"), "next_send_at", "show_trouble"]}),
        ("Pacing", {"fields": [("rate", "burst"), ("attempts_in_run", "attempts_in_batch"), ("day", "day_count"), "longest_wait"]}),
        ("In a row", {"fields": ["consecutive_failures", "consecutive_invalid", "consecutive_rate_limits"]}),
        ("Ownership", {"fields": [("owner", "lease_expires_at"), ("in_flight", "token"), ("epoch", "configured_from"), "origin"]}),
    ]

    @display(description="Trouble")
    def show_trouble(self, lane: Lane) -> str:
        return badge("danger", lane.trouble_code or "trouble", lane.trouble) if lane.trouble else "-"


@admin.register(Heartbeat)
class HeartbeatAdmin(ReadOnlyAdmin):
    list_display = ["kind", "host", "pid", "version", "show_alive", "beat_at", "last_pass_at", "started_at"]
    list_filter = [("kind", ChoicesDropdownFilter)]
    fieldsets = [
        (None, {"fields": ["show_alive", ("kind", "version"), ("host", "pid"), "host_identity", "interval"]}),
        ("Times", {"fields": [("started_at", "beat_at"), "last_pass_at", ("stopped_at", "recovered_at")]}),
    ]

    @display(description="State")
    def show_alive(self, heartbeat: Heartbeat) -> str:
        if heartbeat.stopped_at:
            return badge("", "Stopped")
        silent = timezone.now() - heartbeat.beat_at > 3 * heartbeat.interval
        return badge("danger", "Silent") if silent else badge("success", "Alive")
