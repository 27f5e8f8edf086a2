"""What providers told: what people wrote back, and the events as they came."""

import json

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.text import Truncator
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter
from unfold.decorators import display

from dispatch.admin.readonly import ReadOnlyAdmin
from dispatch.models import InboundMessage, WebhookEvent
from sessions_app.admin import badge

E = WebhookEvent.State
EVENT_COLOURS = {E.RECEIVED: "info", E.APPLIED: "success", E.IGNORED: "", E.FAILED: "danger"}
SHOWN_OF_A_REPLY = 120


@admin.register(InboundMessage)
class InboundMessageAdmin(ReadOnlyAdmin):
    list_display = ["sender", "name", "show_text", "campaign", "session", "received_at"]
    list_filter = [("campaign", AutocompleteSelectFilter), ("session", AutocompleteSelectFilter)]
    list_select_related = ["campaign", "session"]
    search_fields = ["sender__startswith"]
    search_help_text = "The beginning of a sender's address."
    list_per_page = 50
    fieldsets = [
        (None, {"fields": [("sender", "name"), "text", ("message_type", "message_id"), "sender_id"]}),
        ("Whom it answers", {"fields": [("campaign", "recipient"), "session"]}),
        ("Times", {"fields": [("sent_at", "received_at")]}),
    ]

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """A number is often copied with spaces; addresses have none."""
        return super().get_search_results(request, queryset, "".join(search_term.split()))

    @display(description="Text")
    def show_text(self, reply: InboundMessage) -> str:
        text = Truncator(reply.text).chars(SHOWN_OF_A_REPLY) or reply.message_type.lower()
        return format_html('<div class="whitespace-normal min-w-40 max-w-md break-words">{}</div>', text)


@admin.register(WebhookEvent)
class WebhookEventAdmin(ReadOnlyAdmin):
    list_display = ["received_at", "session", "kind", "show_state", "tries", "applied_at"]
    list_filter = [("session", AutocompleteSelectFilter), ("state", ChoicesDropdownFilter)]
    list_select_related = ["session"]
    ordering = ["-received_at"]  # the index webhook_age; of those that failed webhook_failed
    search_fields = ["event_id__exact"]
    search_help_text = "A whole id of an event. With a session chosen it is found at once."
    list_per_page = 50
    fieldsets = [
        (None, {"fields": ["session", ("kind", "event_id"), "show_state"]}),
        ("Times", {"fields": [("received_at", "applied_at"), ("tries", "apply_at")]}),
        ("As it came", {"fields": ["show_payload"]}),
    ]

    @display(description="State", ordering="state")
    def show_state(self, event: WebhookEvent) -> str:
        return badge(EVENT_COLOURS.get(E(event.state), ""), event.get_state_display(), event.error)

    @display(description="Payload")
    def show_payload(self, event: WebhookEvent) -> str:
        text = json.dumps(event.payload, indent=2, ensure_ascii=False)
        return format_html('<pre class="whitespace-pre-wrap break-words text-xs">{}</pre>', text)

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookEvent]:
        """Without what a list does not show: a payload may be a megabyte."""
        events = super().get_queryset(request)
        return events if request.resolver_match and "object_id" in request.resolver_match.kwargs else events.defer("payload")
