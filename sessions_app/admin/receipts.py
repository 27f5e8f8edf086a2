"""Where a session's vendor tells what became of messages: the address to copy, and the button that tells the vendor."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm

from sessions_app import pairing
from sessions_app.admin.showing import back_to
from sessions_app.forms import channel_class
from sessions_app.models import Session


class Receipts(ModelAdmin):
    def session_of(self, request: HttpRequest, object_id: str) -> Session | None:
        """The session of a page's address. None, and a message that says so: it was deleted meanwhile."""
        session = Session.objects.filter(pk=object_id).first() if object_id.isdigit() else None
        if session is None:
            messages.error(request, "That session is not there any more.")
        return session

    @action(
        description="Set up receipts",
        url_path="set-up-receipts",
        icon="mark_email_read",
        permissions=["change"],
        dialog={
            "title": "Set up receipts?",
            "description": "Tells the channel where to report what was delivered, read and answered. Where a webhook secret is needed and "
            "none is stored, one is made. It takes up to ten seconds.",
            "form_class": BaseDialogForm,
            "form_submit_text": "Set up",
        },
    )
    def set_up_receipts(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        session = self.session_of(request, object_id)
        if session is None:
            return back_to(request, reverse("admin:sessions_app_session_changelist"))
        if channel_class(session.channel) is None:
            messages.error(request, f'Session "{session}" is on channel "{session.channel}", which this instance does not know.')
        else:
            try:
                messages.success(request, pairing.set_up_receipts(session))
            except pairing.Refused as refusal:
                # it may name an address to be entered by hand, which is wider than a phone
                messages.warning(request, format_html('<span class="break-words">{}</span>', str(refusal)))
            self.log_change(request, session, "Set up receipts.")
        return back_to(request, reverse("admin:sessions_app_session_change", args=[session.pk]))

    @display(description="Webhook address")
    def show_webhook(self, session: Session) -> str:
        address = pairing.webhook_address(session)
        context: dict[str, Any] = {
            "address": address,
            "own_address": pairing.own_address(session),
            "is_local": pairing.is_local(address),
            "is_stored": session.settings.get(pairing.ADDRESS) == address,
        }
        return render_to_string("admin/sessions_app/session/webhook.html", context)
