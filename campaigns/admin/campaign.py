from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter
from unfold.decorators import display

from campaigns.admin import overview
from campaigns.admin.actions import CampaignActions
from campaigns.admin.chats import ChatsPage
from campaigns.admin.importing import ImportPage
from campaigns.admin.steps import StepInline
from campaigns.forms import CampaignForm
from campaigns.models import Campaign

S = Campaign.Status
HAS_NO_PROMISED_TIME = {S.DRAFT, S.PAUSED}  # here the start time may be edited; then it is scheduled


@admin.register(Campaign)
class CampaignAdmin(CampaignActions, ChatsPage, ImportPage, ModelAdmin):
    form = CampaignForm
    inlines = [StepInline]
    list_display = ["show_name", "show_status", "show_progress", "show_counts", "show_next_send", "session"]
    list_filter = [("status", ChoicesDropdownFilter), ("session", AutocompleteSelectFilter)]
    list_filter_submit = True
    search_fields = ["name", "tenant"]
    show_full_result_count = False
    list_per_page = 50
    autocomplete_fields = ["session"]
    warn_unsaved_form = True
    change_form_outer_before_template = "admin/campaigns/campaign/overview.html"
    fieldsets = [
        (None, {"fields": ["name", "session", ("tenant", "time_zone")]}),
        ("Start", {"fields": [("scheduled_at", "grace_seconds")]}),
        ("Pacing", {"fields": ["show_pacing", ("min_interval", "max_interval"), ("batch_size", "batch_pause")]}),
        ("Safe hours and recipients", {"fields": ["safe_hours", ("safe_from", "safe_until"), "allow_groups"]}),
        ("When nobody knows whether a message arrived", {"fields": ["unconfirmed_default"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Campaign]:
        return super().get_queryset(request).with_totals().select_related("session__lane")

    def get_readonly_fields(self, request: HttpRequest, obj: Campaign | None = None) -> list[str]:
        """The session changes by a verb once addresses were read for its channel; the start time once it was taken over by a schedule."""
        fixed = ["show_pacing"]
        if obj is not None and (obj.status != S.DRAFT or obj.recipients.exists()):
            fixed.append("session")
        if obj is not None and obj.status not in HAS_NO_PROMISED_TIME:
            fixed.append("show_start")
        return fixed

    def get_fieldsets(self, request: HttpRequest, obj: Campaign | None = None) -> Any:
        sets: Any = super().get_fieldsets(request, obj)
        if obj is None or obj.status in HAS_NO_PROMISED_TIME:
            return sets
        return [(title, {"fields": [("show_start", "grace_seconds")]}) if title == "Start" else (title, rest) for title, rest in sets]

    # --- saving beside a running engine

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Campaign | None:
        """For a POST under the row lock that the verbs take: what a form decides on stays true until it is saved."""
        if request.method == "POST" and object_id.isdigit() and transaction.get_connection().in_atomic_block:
            Campaign.objects.select_for_update().filter(pk=object_id).first()
        return super().get_object(request, object_id, from_field)

    def save_model(self, request: HttpRequest, obj: Campaign, form: forms.ModelForm, change: bool) -> None:
        """Only the columns of the form: status, epoch and the like belong to the verbs."""
        if change:
            obj.save(update_fields=[*form.cleaned_data, "updated_at"])
        else:
            obj.created_by = request.user  # type: ignore[assignment]
            obj.save()

    def save_formset(self, request: HttpRequest, form: forms.ModelForm, formset: Any, change: bool) -> None:
        for step in formset.save(commit=False):
            typed = next(f for f in formset.forms if f.instance is step).fields
            step.save(update_fields=None if step._state.adding else [name for name in typed if name not in {"id", "campaign", "DELETE"}])
        for step in formset.deleted_objects:
            step.delete()

    # --- the page

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        context = dict(extra_context or {})
        campaign = self.get_queryset(request).filter(pk=object_id).first() if object_id and object_id.isdigit() else None
        if campaign is not None and self.has_view_permission(request, campaign):
            context["overview"] = self._overview(request, campaign)
        return super().changeform_view(request, object_id, form_url, context)

    def _overview(self, request: HttpRequest, campaign: Campaign) -> dict[str, Any]:
        counts = overview.totals(campaign)
        may_start = campaign.status in {S.DRAFT, S.SCHEDULED, S.PAUSED}
        return {
            "campaign": campaign,
            "badge": overview.status_badge(campaign, room=None),
            "progress": overview.progress_bar(counts),
            "next_send": overview.next_send(campaign),
            "recipients": campaign.recipients.count(),
            "recipients_url": f"{reverse('admin:campaigns_recipient_changelist')}?campaign__id__exact={campaign.pk}",
            "import_url": reverse("admin:campaigns_campaign_import_recipients", args=[campaign.pk]),
            "may_import": self.has_import_permission(request),
            "links": overview.log_links(campaign, counts) + overview.heard_links(campaign),
            "findings": overview.findings(campaign) if may_start else [],
        }

    # --- deleting

    @staticmethod
    def why_not_deleted(campaign: Campaign) -> str:
        if campaign.is_live():
            return f'"{campaign}" is {campaign.get_status_display().lower()} and cannot be deleted. Stop it first.'
        if campaign.logs.in_flight().exists():
            return f'"{campaign}" has a message on its way. Wait until it has arrived, then delete it.'
        return ""

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Counted, not listed: a campaign may have a million messages."""
        chosen = list(objs)
        recipients = sum(campaign.recipients.count() for campaign in chosen)
        runs = sum(campaign.runs.count() for campaign in chosen)
        lines = [f"{campaign}, with its steps, recipients and the log of its messages" for campaign in chosen]
        return lines, {"Campaigns": len(chosen), "Recipients": recipients, "Runs": runs}, set(), []

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        campaign = Campaign.objects.filter(pk=object_id).first() if object_id.isdigit() else None
        if campaign is not None and self.has_delete_permission(request, campaign) and (reason := self.why_not_deleted(campaign)):
            messages.error(request, reason)
            return redirect(reverse("admin:campaigns_campaign_change", args=[campaign.pk]))
        return super().delete_view(request, object_id, extra_context)

    def get_actions(self, request: HttpRequest) -> Any:
        actions = super().get_actions(request)
        if "delete_selected" in actions:
            standard, name, description = actions["delete_selected"]

            def delete_selected(model_admin: Any, request: HttpRequest, queryset: QuerySet[Campaign]) -> Any:
                with transaction.atomic():
                    chosen = list(Campaign.objects.select_for_update().filter(pk__in=[campaign.pk for campaign in queryset]).order_by("pk"))
                    refusals = [reason for campaign in chosen if (reason := self.why_not_deleted(campaign))]
                    for reason in refusals:
                        messages.error(request, reason)
                    return None if refusals else standard(model_admin, request, Campaign.objects.filter(pk__in=[c.pk for c in chosen]))

            actions["delete_selected"] = (delete_selected, name, description)
        return actions

    # --- columns

    @display(description="Campaign", ordering="name", header=True)
    def show_name(self, campaign: Campaign) -> list[str]:
        return [campaign.name, campaign.tenant]

    @display(description="Status", ordering="status")
    def show_status(self, campaign: Campaign) -> str:
        return overview.status_badge(campaign)

    @display(description="Progress")
    def show_progress(self, campaign: Campaign) -> str:
        return overview.progress_bar(overview.totals(campaign))

    @display(description="Outcomes")
    def show_counts(self, campaign: Campaign) -> str:
        counts = overview.totals(campaign)
        if not counts["planned"]:
            return "-"
        return format_html(
            '<div class="text-xs whitespace-nowrap"><div>{} sent, {} failed</div><div>{} unconfirmed, {} pending</div></div>',
            *(counts[name] for name in ("sent", "failed", "unconfirmed", "pending")),
        )

    @display(description="Next send")
    def show_next_send(self, campaign: Campaign) -> str:
        return overview.next_send(campaign)

    @display(description="Start at")
    def show_start(self, campaign: Campaign) -> str:
        zone = overview.zone_named(campaign.time_zone)
        return overview.spoken_moment(campaign.scheduled_at, zone) if campaign.scheduled_at else "by hand"

    @display(description="Used in sending")
    def show_pacing(self, campaign: Campaign) -> str:
        if not campaign.session_id:
            return "Intervals below 8 s, a spread below 5 s, batches above 20 and pauses below 60 s are corrected to these."
        return format_html_join("", "<div>{}</div>", ((line,) for line in overview.pacing_lines(campaign)))
