"""The buttons of a campaign: each calls a verb of transitions.py and shows what it said."""

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm

from campaigns import transitions
from campaigns.forms import MoveForm
from campaigns.models import Campaign
from sessions_app.admin import back_to

S = Campaign.Status
# Which buttons a state shows. What a button may do is for the verb to say: another tab may have moved the campaign since.
BUTTONS = {
    S.DRAFT: {"start", "schedule", "move"},
    S.SCHEDULED: {"start", "pause", "stop", "move"},
    S.RUNNING: {"pause", "stop"},
    S.PAUSED: {"schedule", "resume", "stop", "move"},
    S.COMPLETED: {"move"},
    S.FAILED: set(),
}
STOPPING = "What was not sent is skipped. A stopped campaign cannot be started again; pause it if in doubt."
VERBS = {"start", "schedule", "pause", "resume", "stop", "move"}


def _dialog(title: str, description: str, submit: str, form_class: type[BaseDialogForm] = BaseDialogForm) -> Any:
    return {"title": title, "description": description, "form_class": form_class, "form_submit_text": submit}


class CampaignActions(ModelAdmin):
    actions = ["start_selected", "pause_selected", "resume_selected", "schedule_selected", "stop_selected"]
    actions_detail = ["start", "resume", "schedule", "pause", "move", "stop", "import_recipients", "pick_recipients"]

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        status = Campaign.objects.filter(pk=object_id).values_list("status", flat=True).first() if str(object_id).isdigit() else None
        hidden = VERBS - BUTTONS.get(S(status), set()) if status else VERBS
        names = {f"campaigns_campaign_{verb}" for verb in hidden}
        return [button for button in super().get_actions_detail(request, object_id) if button.action_name not in names]

    # --- one campaign: a dialog, so a POST with a CSRF token

    @action(
        description="Start",
        url_path="start",
        icon="play_arrow",
        variant=ActionVariant.PRIMARY,
        permissions=["change"],
        dialog=_dialog("Start now?", "The session is asked whether it can send; then the first message leaves.", "Start"),
    )
    def start(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._apply(request, "start", object_id)

    @action(
        description="Resume",
        url_path="resume",
        icon="play_arrow",
        variant=ActionVariant.PRIMARY,
        permissions=["change"],
        dialog=_dialog("Resume?", "It goes on with the messages that wait, slowly at first.", "Resume"),
    )
    def resume(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._apply(request, "resume", object_id)

    @action(
        description="Schedule",
        url_path="schedule",
        icon="schedule",
        permissions=["change"],
        dialog=_dialog("Schedule?", "It starts by itself at its start time, if its session is connected and free.", "Schedule"),
    )
    def schedule(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._apply(request, "schedule", object_id)

    @action(
        description="Pause",
        url_path="pause",
        icon="pause",
        variant=ActionVariant.WARNING,
        permissions=["change"],
        dialog=_dialog("Pause?", "A message that is on its way arrives; none is begun after it.", "Pause"),
    )
    def pause(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._apply(request, "pause", object_id)

    @action(
        description="Stop",
        url_path="stop",
        icon="stop",
        variant=ActionVariant.DANGER,
        permissions=["change"],
        dialog=_dialog("Stop for good?", STOPPING, "Stop for good"),
    )
    def stop(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._apply(request, "stop", object_id)

    @action(
        description="Move",
        url_path="move",
        icon="swap_horiz",
        permissions=["change"],
        dialog=_dialog("Move to another session", "One of the same channel. What was sent stays in the log of this one.", "Move", MoveForm),
    )
    def move(self, request: HttpRequest, form: MoveForm, object_id: str) -> HttpResponse:
        target = form.cleaned_data["session"]
        return self._apply(request, "move", object_id, session_id=target.pk, done=f'was moved to "{target}"')

    def _apply(self, request: HttpRequest, verb: str, object_id: str, **choices: Any) -> HttpResponse:
        if self._try(request, verb, int(object_id) if object_id.isdigit() else 0, **choices):
            return back_to(request, reverse("admin:campaigns_campaign_change", args=[object_id]))
        there = object_id.isdigit() and Campaign.objects.filter(pk=object_id).exists()
        return back_to(
            request,
            reverse("admin:campaigns_campaign_change", args=[object_id]) if there else reverse("admin:campaigns_campaign_changelist"),
        )

    def _try(self, request: HttpRequest, verb: str, campaign_id: int, *, done: str = "", **choices: Any) -> bool:
        """Call the verb and say what came of it, in its own words when it refuses."""
        by = request.user.get_username()
        call = transitions.move if verb == "move" else transitions.BY_HAND[verb]
        try:
            campaign = call(campaign_id, by=by, **choices)
        except transitions.Refused as refusal:
            messages.error(request, str(refusal))
            return False
        self.log_change(request, campaign, f"{verb}: {campaign.status_reason}")
        messages.success(request, f'"{campaign}" {done or f"is {campaign.get_status_display().lower()}"}.')
        return True

    # --- several campaigns, from the list: Django's actions are POSTs

    @admin.action(description="Start selected campaigns", permissions=["change"])
    def start_selected(self, request: HttpRequest, queryset: QuerySet[Campaign]) -> None:
        self._apply_to_each(request, "start", queryset)

    @admin.action(description="Pause selected campaigns", permissions=["change"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Campaign]) -> None:
        self._apply_to_each(request, "pause", queryset)

    @admin.action(description="Resume selected campaigns", permissions=["change"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Campaign]) -> None:
        self._apply_to_each(request, "resume", queryset)

    @admin.action(description="Schedule selected campaigns", permissions=["change"])
    def schedule_selected(self, request: HttpRequest, queryset: QuerySet[Campaign]) -> None:
        self._apply_to_each(request, "schedule", queryset)

    @admin.action(description="Stop selected campaigns", permissions=["change"])
    def stop_selected(self, request: HttpRequest, queryset: QuerySet[Campaign]) -> HttpResponse | None:
        if "confirmed" in request.POST:
            self._apply_to_each(request, "stop", queryset)
            return None
        return confirmation(
            self,
            request,
            ((campaign.pk, str(campaign)) for campaign in queryset),
            title="Stop for good?",
            sentence=STOPPING,
            submit="Stop for good",
        )

    def _apply_to_each(self, request: HttpRequest, verb: str, queryset: QuerySet[Campaign]) -> None:
        if not self.has_change_permission(request):
            raise PermissionDenied
        for campaign_id in queryset.order_by("pk").values_list("pk", flat=True):
            self._try(request, verb, campaign_id)


def confirmation(
    model_admin: admin.ModelAdmin, request: HttpRequest, rows: Iterable[tuple[int, str]], *, title: str, sentence: str, submit: str
) -> TemplateResponse:
    """A page that asks, and posts the same action again with `confirmed`. `rows` are the keys and names of what was chosen."""
    return TemplateResponse(
        request,
        "admin/confirm_action.html",
        {
            **model_admin.admin_site.each_context(request),
            "opts": model_admin.opts,
            "title": title,
            "sentence": sentence,
            "submit": submit,
            "rows": list(rows),
            "action_name": request.POST["action"],
            "cancel_url": reverse(f"admin:{model_admin.opts.app_label}_{model_admin.opts.model_name}_changelist"),
        },
    )
