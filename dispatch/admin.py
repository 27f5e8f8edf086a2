"""The ledger as staff see it: nothing here is edited, and what is decided goes through transitions.py."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from unfold.admin import ModelAdmin, TabularInline
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm

from campaigns.admin.actions import confirmation
from campaigns.admin.overview import progress_bar
from campaigns.admin.paging import CappedPaginator
from campaigns.transitions import Refused
from dispatch import transitions
from dispatch.models import Attempt, DispatchLog, Heartbeat, Lane, Run
from sessions_app.admin import back_to, badge

S = DispatchLog.Status
LOG_COLOURS = {S.PENDING: "", S.SENDING: "info", S.SENT: "success", S.FAILED: "danger", S.UNCONFIRMED: "warning", S.SKIPPED: ""}
RUN_COLOURS = {Run.Status.RUNNING: "success", Run.Status.COMPLETED: "primary", Run.Status.STOPPED: "danger", Run.Status.SKIPPED: "warning"}
DECIDED_AT_ONCE = 200
MAY_DOUBLE = "Nobody knows whether it arrived. If it did, this person gets the message twice."


class ReadOnlyAdmin(ModelAdmin):
    show_full_result_count = False
    paginator = CappedPaginator
    list_filter_submit = True

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AttemptInline(TabularInline):
    model = Attempt
    fields = ["attempt", "outcome", "http_status", "detail", "session", "finished_at"]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("dispatch.view_dispatchlog")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return super().get_queryset(request).select_related("session")


def _decision(description: str, title: str, sentence: str, submit: str, icon: str, variant: ActionVariant) -> Any:
    return action(
        description=description,
        url_path=submit.lower().replace(" ", "-"),
        icon=icon,
        variant=variant,
        permissions=["decide"],
        dialog={"title": title, "description": sentence, "form_class": BaseDialogForm, "form_submit_text": submit},
    )


@admin.register(DispatchLog)
class DispatchLogAdmin(ReadOnlyAdmin):
    list_display = ["show_id", "address", "campaign", "step", "show_status", "attempt", "show_sent"]
    list_filter = [("campaign", AutocompleteSelectFilter), ("status", ChoicesDropdownFilter), ("kind", ChoicesDropdownFilter)]
    list_select_related = ["campaign", "step"]
    # Each has its index; anything with "contains" would read the whole ledger.
    search_fields = ["address__startswith", "provider_message_id__exact"]
    search_help_text = "The beginning of an address, or a whole id of the provider."
    list_per_page = 50
    inlines = [AttemptInline]
    actions = ["mark_sent_selected", "send_again_selected", "give_up_selected", "remove_selected"]
    actions_detail = ["mark_sent", "send_again", "give_up", "remove"]
    fieldsets = [
        (None, {"fields": [("show_status", "kind"), ("address", "recipient"), ("campaign", "step"), ("run", "session"), "body"]}),
        (
            "Outcome",
            {"fields": ["reason", ("error_code", "http_status"), "error_text", ("provider_message_id", "client_ref"), "decided_by"]},
        ),
        ("Times", {"fields": [("created_at", "available_at"), ("claimed_at", "sent_at"), ("delivered_at", "read_at"), "unconfirmed_at"]}),
        ("Attempts and verification", {"fields": [("attempt", "token"), ("verifications", "verify_at")]}),
    ]
    OFFERED = {S.UNCONFIRMED: {"mark_sent", "send_again", "give_up"}, S.PENDING: {"remove"}}

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """A number is often copied with spaces; addresses and ids have none."""
        return super().get_search_results(request, queryset, "".join(search_term.split()))

    def has_decide_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Django's change permission on messages: nobody edits one, but some may decide what became of it."""
        return request.user.has_perm("dispatch.change_dispatchlog")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        status = DispatchLog.objects.filter(pk=object_id).values_list("status", flat=True).first() if str(object_id).isdigit() else None
        offered = {f"dispatch_dispatchlog_{name}" for name in self.OFFERED.get(S(status), set())} if status else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.action_name in offered]

    @_decision(
        "Mark as sent", "Did it arrive?", "Only if you saw it arrive. It counts as sent.", "Mark as sent", "done", ActionVariant.SUCCESS
    )
    def mark_sent(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.mark_sent, object_id)

    @_decision("Send again", "Send again, though it may double?", MAY_DOUBLE, "Send again", "replay", ActionVariant.WARNING)
    def send_again(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.send_again, object_id)

    @_decision("Give up", "Give it up?", "It counts as failed, and nothing more is sent.", "Give up", "close", ActionVariant.DEFAULT)
    def give_up(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.give_up, object_id)

    @_decision("Remove", "Take it out?", "This message is skipped; the others go on.", "Remove", "delete", ActionVariant.DANGER)
    def remove(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.remove, object_id)

    @admin.action(description="Mark as sent (unconfirmed ones)", permissions=["decide"])
    def mark_sent_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> None:
        self._decide_each(request, transitions.mark_sent, queryset)

    @admin.action(description="Send again (unconfirmed ones, may double)", permissions=["decide"])
    def send_again_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> HttpResponse | None:
        if "confirmed" in request.POST:
            self._decide_each(request, transitions.send_again, queryset)
            return None
        rows = ((log.pk, f"{log} to {log.address}") for log in queryset[: DECIDED_AT_ONCE + 1])
        return confirmation(self, request, rows, title="Send again, though it may double?", sentence=MAY_DOUBLE, submit="Send again")

    @admin.action(description="Give up (unconfirmed ones)", permissions=["decide"])
    def give_up_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> None:
        self._decide_each(request, transitions.give_up, queryset)

    @admin.action(description="Remove (waiting ones)", permissions=["decide"])
    def remove_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> None:
        self._decide_each(request, transitions.remove, queryset)

    def _decide_one(self, request: HttpRequest, verb: Callable[..., None], object_id: str) -> HttpResponse:
        log_id = int(object_id) if object_id.isdigit() else 0
        try:
            verb(log_id, by=request.user.get_username())
        except Refused as refusal:
            messages.error(request, str(refusal))
        log = DispatchLog.objects.filter(pk=log_id).first()
        if log is None:
            return back_to(request, reverse("admin:dispatch_dispatchlog_changelist"))
        messages.info(request, f"{log} is {log.get_status_display().lower()}{f': {log.reason}' if log.reason else ''}.")
        return back_to(request, reverse("admin:dispatch_dispatchlog_change", args=[log_id]))

    def _decide_each(self, request: HttpRequest, verb: Callable[..., None], queryset: QuerySet[DispatchLog]) -> None:
        if not self.has_decide_permission(request):
            raise PermissionDenied
        chosen = list(queryset.order_by("pk").values_list("pk", flat=True)[: DECIDED_AT_ONCE + 1])
        if len(chosen) > DECIDED_AT_ONCE:
            messages.error(request, f"Choose at most {DECIDED_AT_ONCE} messages at once. Nothing was changed.")
            return
        decided = 0
        for log_id in chosen:
            try:
                verb(log_id, by=request.user.get_username())
                decided += 1
            except Refused as refusal:
                messages.error(request, str(refusal))
        if decided:
            messages.success(request, f"{decided} message(s) decided.")

    @display(description="Message", ordering="pk")
    def show_id(self, log: DispatchLog) -> int:
        return log.pk

    @display(description="Status", ordering="status")
    def show_status(self, log: DispatchLog) -> str:
        detail = log.reason or " ".join(filter(None, (log.error_code, log.error_text)))
        return badge(LOG_COLOURS.get(S(log.status), ""), log.get_status_display(), detail)

    @display(description="Sent at", ordering="sent_at")
    def show_sent(self, log: DispatchLog) -> str:
        if log.sent_at is None:
            return "-"
        return format_html('<span class="whitespace-nowrap">{}</span>', f"{timezone.localtime(log.sent_at):%d %b %H:%M:%S}")


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
