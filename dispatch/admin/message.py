from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter, DropdownFilter, TextFilter
from unfold.decorators import display

from campaigns.admin.paging import CappedPaginator
from dispatch.admin.deciding import DecidingActions
from dispatch.admin.readonly import ReadOnlyAdmin
from dispatch.models import Attempt, DispatchLog
from sessions_app.admin import badge

S = DispatchLog.Status
RECEIPTS = {"RECEIPT": ("success", "Receipt"), "FAILED_RECEIPT": ("danger", "Negative receipt")}  # outcomes that no call of ours had
LOG_COLOURS = {S.PENDING: "", S.SENDING: "info", S.SENT: "success", S.FAILED: "danger", S.UNCONFIRMED: "warning", S.SKIPPED: ""}


class AttemptInline(TabularInline):
    model = Attempt
    fields = ["attempt", "show_outcome", "http_status", "detail", "session", "finished_at"]
    readonly_fields = ["show_outcome"]
    extra = 0
    can_delete = False

    @display(description="Outcome")
    def show_outcome(self, attempt: Attempt) -> str:
        return badge(*RECEIPTS[attempt.outcome]) if attempt.outcome in RECEIPTS else attempt.outcome

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("dispatch.view_dispatchlog")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return super().get_queryset(request).select_related("session")


def _lists_unconfirmed(request: HttpRequest) -> bool:
    return request.GET.get("status__exact") == S.UNCONFIRMED


class DecidedByFilter(TextFilter):
    title = "who decided"
    parameter_name = "decided_by"

    def queryset(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> QuerySet[DispatchLog]:
        """The whole name, so that the index serves it."""
        name = (self.value() or "").strip()
        return queryset.filter(decided_by=name) if name else queryset


class HeardFilter(DropdownFilter):
    title = "receipts"
    parameter_name = "heard"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("delivered", "Delivered"), ("read", "Read"), ("nothing", "Sent, and not delivered yet")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> QuerySet[DispatchLog]:
        match self.value():
            case "delivered" | "read" as told:
                return queryset.filter(**{f"{told}_at__isnull": False})
            case "nothing":
                return queryset.filter(status=S.SENT, delivered_at__isnull=True)
            case _:
                return queryset


class UnconfirmedPaginator(CappedPaginator):
    """Counted by an index that holds nothing else, so that all of them can be paged through and chosen."""

    cap = 100_000


@admin.register(DispatchLog)
class DispatchLogAdmin(DecidingActions, ReadOnlyAdmin):
    list_display = ["show_id", "address", "campaign", "step", "show_status", "attempt", "show_sent", "show_heard", "show_decider"]
    list_filter = [
        ("campaign", AutocompleteSelectFilter),
        ("status", ChoicesDropdownFilter),
        ("kind", ChoicesDropdownFilter),
        HeardFilter,
        DecidedByFilter,
    ]
    list_select_related = ["campaign", "step"]
    # Each has its index; anything with "contains" would read the whole ledger.
    search_fields = ["address__startswith", "provider_message_id__exact"]
    search_help_text = "The beginning of an address, or a whole id of the provider."
    list_per_page = 50
    inlines = [AttemptInline]
    fieldsets = [
        (None, {"fields": [("show_status", "kind"), ("address", "recipient"), ("campaign", "step"), ("run", "session"), "body"]}),
        (
            "Outcome",
            {"fields": ["reason", ("error_code", "http_status"), "error_text", ("provider_message_id", "client_ref"), "decided_by"]},
        ),
        (
            "Times",
            {
                "fields": [
                    ("created_at", "available_at"),
                    ("claimed_at", "sent_at"),
                    ("acked_at", "delivered_at"),
                    ("read_at", "unconfirmed_at"),
                ]
            },
        ),
        ("Attempts and verification", {"fields": [("attempt", "token"), ("verifications", "verify_at")]}),
    ]

    def get_list_display(self, request: HttpRequest) -> Any:
        return [
            "show_doubt" if column == "show_sent" and _lists_unconfirmed(request) else column
            for column in super().get_list_display(request)
        ]

    def get_paginator(self, request: HttpRequest, queryset: Any, per_page: int, *rest: Any, **options: Any) -> Any:
        paginator = UnconfirmedPaginator if _lists_unconfirmed(request) else self.paginator
        return paginator(queryset, per_page, *rest, **options)

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """A number is often copied with spaces; addresses and ids have none."""
        return super().get_search_results(request, queryset, "".join(search_term.split()))

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
        return format_html('<span class="whitespace-nowrap">{}</span>', _moment(log.sent_at))

    @display(description="Told by the channel")
    def show_heard(self, log: DispatchLog) -> str:
        """The furthest that it came."""
        for name, moment in (("read", log.read_at), ("delivered", log.delivered_at), ("accepted", log.acked_at)):
            if moment is not None:
                return format_html('<span class="whitespace-nowrap">{} {}</span>', name, _moment(moment))
        return "-"

    @display(description="In doubt since", ordering="unconfirmed_at")
    def show_doubt(self, log: DispatchLog) -> str:
        """And who is asked next: the channel, or whoever reads this."""
        if log.status != S.UNCONFIRMED:
            return "-"
        turn = f"asked again {_moment(log.verify_at)}" if log.verify_at else "waits for a decision"
        lines = (_moment(log.unconfirmed_at), f"asked {log.verifications} time(s), {turn}")
        return format_html('<div class="whitespace-nowrap">{}</div><div class="text-xs whitespace-nowrap">{}</div>', *lines)

    @display(description="Decided by", empty_value="-")
    def show_decider(self, log: DispatchLog) -> str | None:
        if not log.decided_by:
            return None
        query = urlencode({DecidedByFilter.parameter_name: log.decided_by})
        return format_html('<a class="text-link" href="?{}" title="{}">{}</a>', query, log.reason, log.decided_by)


def _moment(moment: datetime | None) -> str:
    return f"{timezone.localtime(moment):%d %b %H:%M:%S}" if moment else "-"
