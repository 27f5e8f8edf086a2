from typing import Any

from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from unfold.admin import StackedInline
from unfold.decorators import display

from campaigns.forms import StepForm, StepFormSet
from campaigns.models import CampaignStep
from campaigns.template_form import FOLLOW_THE_CHOICE, ONLY_ASKED, templates_of
from campaigns.wall_clock import spoken_moment, zone_named

MEDIA_FIELDS = ["media_url", ("caption", "filename"), ("link_preview", "link_preview_quality")]
SHOWN_MEDIA = ("Media and link preview", {"classes": ["collapse"], "fields": MEDIA_FIELDS})
MEDIA = ("Media and link preview", {"classes": ["collapse"], "fields": ["media_url", "upload", *MEDIA_FIELDS[1:]]})
TYPED = ("Template", {"classes": ["collapse"], "fields": [("template_name", "template_language"), "template_components"]})
CHOSEN = [
    ("Template", {"classes": ["collapse"], "fields": [*ONLY_ASKED]}),
    ("Template, for experts", {"classes": ["collapse"], "fields": ["template_components"]}),
]


class StepInline(StackedInline):
    model = CampaignStep
    form, formset = StepForm, StepFormSet
    verbose_name, verbose_name_plural = "step", "steps"
    ordering = ["order"]
    readonly_fields = ["show_state"]
    offers: bool | None = None  # an inline lives for one request, in which a posted session may replace the campaign's
    fieldsets = [
        (None, {"fields": [("order", "message_type"), "name", "text", "show_state"]}),
        MEDIA,
        ("E-mail", {"classes": ["collapse"], "fields": ["subject", "html"]}),
        TYPED,
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

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Where there are synced templates, whoever may change the steps chooses one; elsewhere its name is typed."""
        may_change = self.has_change_permission(request, obj)
        if self.offers is None:
            may_choose = may_change and request.user.has_perm("campaigns.change_campaign")
            self.offers = bool(obj is not None and may_choose and templates_of(obj))
        sets: Any = super().get_fieldsets(request, obj)
        sets = [SHOWN_MEDIA if listed is MEDIA and not may_change else listed for listed in sets]
        return [one for listed in sets for one in (CHOSEN if self.offers and listed is TYPED else [listed])]

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        fields = flatten_fieldsets(self.get_fieldsets(request, obj))
        if "template" in fields:
            kwargs["fields"] = [*fields, *FOLLOW_THE_CHOICE]
        return super().get_formset(request, obj, **kwargs)

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
