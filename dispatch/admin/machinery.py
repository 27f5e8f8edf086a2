from django.contrib import admin
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter
from unfold.decorators import display

from campaigns.admin.overview import progress_bar
from dispatch.admin.readonly import ReadOnlyAdmin
from dispatch.alerts import is_configured
from dispatch.models import Alert, Heartbeat, Job, Lane, Run
from sessions_app.admin import badge

SUBJECT_PAGES = {
    "campaign": "admin:campaigns_campaign_change",
    "session": "admin:sessions_app_session_change",
    "message": "admin:dispatch_dispatchlog_change",
}
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


def subject_link(alert: Alert) -> str:
    """To the page of what the alert is about, where it has one."""
    what, _, number = alert.subject.partition(" ")
    if what not in SUBJECT_PAGES or not number.isdecimal():
        return alert.subject or "-"
    return format_html('<a class="text-link" href="{}">{}</a>', reverse(SUBJECT_PAGES[what], args=[number]), alert.subject)


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ["kind", "show_subject", "detail", "times", "last_at", "show_told"]
    search_fields = ["kind", "subject", "detail"]
    fieldsets = [
        (None, {"fields": [("kind", "show_subject"), "detail", ("times", "times_told"), ("first_at", "last_at")]}),
        ("Telling", {"fields": ["show_told", ("told_at", "tell_at"), ("failures", "error")]}),
        ("The last time", {"fields": ["facts"]}),
    ]

    @display(description="Subject", ordering="subject")
    def show_subject(self, alert: Alert) -> str:
        return subject_link(alert)

    @display(description="Told")
    def show_told(self, alert: Alert) -> str:
        if alert.failures:
            return badge("danger", f"Failed {alert.failures} times", alert.error)
        if alert.times > alert.times_told:
            return badge("warning", "Waits") if is_configured() else badge("", "No channel")
        return badge("success", "Told")


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ["name", "show_state", "started_at", "finished_at", "succeeded_at", "show_counts", "runs", "failures"]
    fieldsets = [
        (None, {"fields": ["name", "show_state", ("runs", "failures")]}),
        ("Last run", {"fields": [("started_at", "finished_at"), "succeeded_at", "show_counts", "error"]}),
        ("Lock", {"fields": ["holder_label", "locked_until"]}),
    ]

    @display(description="State")
    def show_state(self, job: Job) -> str:
        if job.runs_at(timezone.now()):
            return badge("success", "Running", f"held by {job.holder_label} since {formats.localize(timezone.localtime(job.started_at))}")
        if job.locked_until:
            return badge("warning", "Lost", f"{job.holder_label} did not end it; the next run takes over")
        return badge("danger", "Failed", job.error) if job.error else badge("", "Idle")

    @display(description="Last counts")
    def show_counts(self, job: Job) -> str:
        return ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in job.counts.items()) or "-"
