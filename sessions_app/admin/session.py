from datetime import date
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, FilteredRelation, ProtectedError, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm

from sessions_app.admin.pairing import BUTTONS, PairingPage
from sessions_app.admin.showing import SPOKEN, STATUS_COLOURS, back_to, badge
from sessions_app.admin.templates import Templates
from sessions_app.checking import check_session
from sessions_app.forms import (
    BASE_FIELDS,
    CLEAR,
    CREDENTIAL,
    SETTING,
    NewSessionForm,
    channel_class,
    channel_label,
    field_names,
    session_form,
)
from sessions_app.models import Session
from sessions_app.template_sync import has_templates

CHECKS_AT_ONCE = 10  # each may take ten seconds, and the browser waits


def session_day(session: Session) -> date:
    """Today where the session lives; the server's day when its zone cannot be read."""
    try:
        return timezone.localdate(timezone=ZoneInfo(session.time_zone))
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return timezone.localdate()


class ChannelFilter(admin.SimpleListFilter):
    title, parameter_name = "channel", "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, channel_label(key)) for key in Session.objects.order_by("channel").values_list("channel", flat=True).distinct()]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(channel=self.value()) if self.value() else queryset


@admin.register(Session)
class SessionAdmin(PairingPage, Templates, ModelAdmin):
    list_display = ["name", "show_channel", "show_status", "checked_at", "show_day", "show_running"]
    list_filter = [("status", ChoicesDropdownFilter), ChannelFilter]
    list_filter_submit = True
    search_fields = ["name"]
    show_full_result_count = False
    actions = ["check_selected"]
    actions_detail = ["pair", "check_connection", "set_up_receipts", "sync_templates", *BUTTONS]
    warn_unsaved_form = True
    add_fieldsets = [(None, {"fields": ["name", "channel", "time_zone", "daily_limit"]})]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        running = Session.campaigns.rel.related_model.Status.RUNNING  # type: ignore[attr-defined]
        return (
            super()
            .get_queryset(request)
            .select_related("lane")
            .annotate(now_sending=FilteredRelation("campaigns", condition=Q(campaigns__status=running)))
            .annotate(running_id=F("now_sending__pk"), running_name=F("now_sending__name"))
        )

    # --- the form, built for the channel

    def get_form(self, request: HttpRequest, obj: Session | None = None, change: bool = False, **kwargs: Any) -> type[forms.ModelForm]:
        kwargs["form"] = NewSessionForm if obj is None else session_form(obj)
        return super().get_form(request, obj, change, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Session | None = None) -> list[str]:
        if obj is None:
            return []
        shown = ["show_channel", "show_status", "status_detail", "checked_at", "show_day", "show_running", "show_webhook"]
        return [*shown, "restricted_until"] if obj.restricted_until else shown

    def get_fieldsets(self, request: HttpRequest, obj: Session | None = None) -> Any:
        if obj is None:
            return self.add_fieldsets
        detail = ["status_detail", "restricted_until"] if obj.restricted_until else ["status_detail"]
        sets: list[Any] = [
            (None, {"fields": [("show_channel", "show_status"), *detail, ("checked_at", "show_day"), "show_running", *BASE_FIELDS]})
        ]
        provider = channel_class(obj.channel)
        if self.has_change_permission(request, obj):
            if settings := field_names(obj, SETTING):
                sets.append(("Channel settings", {"fields": settings}))
            if secrets := field_names(obj, CREDENTIAL, CLEAR):
                sets.append(("Credentials", {"fields": secrets, "description": "Stored encrypted and never shown again."}))
        if provider is not None and provider.takes_webhooks:
            sets.append(("Receipts and replies", {"fields": ["show_webhook"]}))
        return sets

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """The vendor's buttons stand on the pairing page; of the others, those that the channel has."""
        channel = Session.objects.filter(pk=object_id).values_list("channel", flat=True).first() if str(object_id).isdigit() else None
        provider = channel_class(channel) if channel else None
        hidden = set(BUTTONS)
        if provider is None or not provider.can_pair:
            hidden.add("pair")
        if provider is None or not provider.takes_webhooks:
            hidden.add("set_up_receipts")
        if not has_templates(provider):
            hidden.add("sync_templates")
        names = {f"sessions_app_session_{name}" for name in hidden}
        return [button for button in super().get_actions_detail(request, object_id) if button.action_name not in names]

    def response_add(self, request: HttpRequest, obj: Session, post_url_continue: str | None = None) -> HttpResponse:
        """On to the channel's fields, whichever button was pressed."""
        if "_popup" not in request.POST:
            posted = request.POST.copy()
            posted["_continue"] = "1"
            request.POST = posted  # type: ignore[assignment]
        return super().response_add(request, obj, post_url_continue)

    def save_model(self, request: HttpRequest, obj: Session, form: forms.ModelForm, change: bool) -> None:
        """Only the columns of the form: the engine may have written the status since the page was opened."""
        if change:
            obj.save(update_fields=[*BASE_FIELDS, "settings", "sealed_credentials", "updated_at"])
        else:
            obj.save()

    # --- deleting

    def _why_not_deleted(self, session: Session) -> str:
        names = list(session.campaigns.order_by("pk").values_list("name", flat=True)[:4])
        if names:
            listed = ", ".join(f'"{name}"' for name in names[:3]) + (" and others" if len(names) > 3 else "")
            return f'Session "{session}" cannot be deleted: campaigns use it ({listed}). Move or delete them first.'
        if session.logs.exists():
            return f'Session "{session}" cannot be deleted: messages were sent from it, and the log keeps saying from where.'
        return ""

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # Its lane goes with it and asks for no permission of its own.
        return [str(session) for session in objs], {"Sessions": len(objs)}, set(), []

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        session = self.get_object(request, object_id)
        if session is not None and self.has_delete_permission(request, session) and (reason := self._why_not_deleted(session)):
            messages.error(request, reason)
            return redirect(reverse("admin:sessions_app_session_change", args=[session.pk]))
        try:
            return super().delete_view(request, object_id, extra_context)
        except ProtectedError:  # a campaign was made on it since the look above
            messages.error(request, f'Session "{session}" cannot be deleted: a campaign uses it.')
            return HttpResponseRedirect(reverse("admin:sessions_app_session_changelist"))

    def get_actions(self, request: HttpRequest) -> Any:
        actions = super().get_actions(request)
        if "delete_selected" in actions:
            standard, name, description = actions["delete_selected"]

            def delete_selected(model_admin: Any, request: HttpRequest, queryset: QuerySet[Session]) -> Any:
                refusals = [reason for session in queryset if (reason := self._why_not_deleted(session))]
                for reason in refusals:
                    messages.error(request, reason)
                if refusals:
                    return None
                try:
                    return standard(model_admin, request, queryset)
                except ProtectedError:
                    messages.error(request, "Nothing was deleted: a campaign uses one of these sessions.")
                    return None

            actions["delete_selected"] = (delete_selected, name, description)
        return actions

    # --- asking the provider

    @action(
        description="Check connection",
        url_path="check",
        icon="sync",
        permissions=["change"],
        dialog={
            "title": "Check the connection?",
            "description": "Asks the channel whether this session can send now. It takes up to ten seconds.",
            "form_class": BaseDialogForm,
            "form_submit_text": "Check now",
        },
    )
    def check_connection(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        session = self.session_of(request, object_id)
        if session is None:
            return back_to(request, reverse("admin:sessions_app_session_changelist"))
        self._check(request, session)
        return back_to(request, reverse("admin:sessions_app_session_change", args=[session.pk]))

    @admin.action(description="Check connection", permissions=["change"])
    def check_selected(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        if not self.has_change_permission(request):
            raise PermissionDenied
        chosen = list(queryset[: CHECKS_AT_ONCE + 1])
        if len(chosen) > CHECKS_AT_ONCE:
            messages.error(request, f"Choose at most {CHECKS_AT_ONCE} sessions at once: each check can take ten seconds.")
            return
        for session in chosen:
            self._check(request, session)

    def _check(self, request: HttpRequest, session: Session) -> None:
        if channel_class(session.channel) is None:
            messages.error(request, f'Session "{session}" is on channel "{session.channel}", which this instance does not know.')
            return
        result = check_session(session)
        connected = session.status == Session.Status.CONNECTED
        sentence = f'Session "{session}" {SPOKEN[Session.Status(session.status)]}'
        sentence = f"{sentence}: {result.detail}" if result.detail else f"{sentence}."
        if session.status == Session.Status.NEEDS_PAIRING and session.provider_class.can_pair:
            sentence += ' The button "Pair" connects it with the phone.'
        (messages.success if connected else messages.warning)(request, sentence)

    # --- columns

    @display(description="Channel", ordering="channel")
    def show_channel(self, session: Session) -> str:
        return channel_label(session.channel)

    @display(description="Status", ordering="status")
    def show_status(self, session: Session) -> str:
        return badge(STATUS_COLOURS.get(Session.Status(session.status), "info"), session.get_status_display(), session.status_detail)

    @display(description="Sent today")
    def show_day(self, session: Session) -> str:
        lane = getattr(session, "lane", None)
        count = lane.day_count if lane is not None and lane.day == session_day(session) else 0
        return f"{count} of {session.daily_limit}" if session.daily_limit else f"{count}, no limit"

    @display(description="Running campaign")
    def show_running(self, session: Session) -> str:
        if not getattr(session, "running_id", None):
            return "-"
        url = reverse("admin:campaigns_campaign_change", args=[session.running_id])  # type: ignore[attr-defined]
        return format_html('<a class="text-link" href="{}">{}</a>', url, session.running_name)  # type: ignore[attr-defined]
