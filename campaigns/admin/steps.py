from typing import Any

from django.db.models import Count, QuerySet
from django.http import HttpRequest
from unfold.admin import StackedInline
from unfold.decorators import display

from campaigns.forms import StepForm, StepFormSet
from campaigns.models import CampaignStep
from campaigns.wall_clock import spoken_moment, zone_named


class StepInline(StackedInline):
    model = CampaignStep
    form, formset = StepForm, StepFormSet
    verbose_name, verbose_name_plural = "step", "steps"
    ordering = ["order"]
    readonly_fields = ["show_state"]
    fieldsets = [
        (None, {"fields": [("order", "message_type"), "name", "text", "show_state"]}),
        (
            "Media and link preview",
            {"classes": ["collapse"], "fields": ["media_url", ("caption", "filename"), ("link_preview", "link_preview_quality")]},
        ),
        ("E-mail", {"classes": ["collapse"], "fields": ["subject", "html"]}),
        ("Template", {"classes": ["collapse"], "fields": [("template_name", "template_language"), "template_components"]}),
        (
            "When",
            {
                "classes": ["collapse"],
                "fields": [
                    ("scheduled_at", "delay_after_previous", "time_zone"),
                    ("recurrence_type", "recurrence_until", "recurrence_count"),
                ],
            },
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[CampaignStep]:
        return super().get_queryset(request).select_related("campaign").annotate(run_count=Count("runs"))

    def get_extra(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> int:
        return 0 if obj is not None and obj.steps.exists() else 1

    @display(description="State")
    def show_state(self, step: CampaignStep) -> str:
        if not step.pk:
            return "New"
        state = step.get_status_display()
        if step.next_run_at:
            state += f", next at {spoken_moment(step.next_run_at, zone_named(step.time_zone or step.campaign.time_zone))}"
        return f"{state}; {step.runs_made} run(s)" if step.runs_made else state
