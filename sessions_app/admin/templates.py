"""The button that fetches which templates the vendor approved."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from unfold.decorators import action
from unfold.forms import BaseDialogForm

from sessions_app import template_sync
from sessions_app.admin.receipts import Receipts
from sessions_app.admin.showing import back_to


class Templates(Receipts):
    @action(
        description="Sync templates",
        url_path="sync-templates",
        icon="sync_alt",
        permissions=["change"],
        dialog={
            "title": "Sync the templates?",
            "description": "Asks the channel which templates it approved. It takes up to twenty seconds.",
            "form_class": BaseDialogForm,
            "form_submit_text": "Sync now",
        },
    )
    def sync_templates(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        session = self.session_of(request, object_id)
        if session is None:
            return back_to(request, reverse("admin:sessions_app_session_changelist"))
        messages.info(request, template_sync.sync_and_say(session))
        return back_to(request, reverse("admin:sessions_app_session_change", args=[session.pk]))
