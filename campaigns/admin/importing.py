"""The page that takes a CSV of recipients and shows what became of each row."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action

from campaigns.forms import ImportForm
from campaigns.importing import ImportRefused, import_recipients
from campaigns.models import Campaign

ROWS_SHOWN = 500


class ImportPage(ModelAdmin):
    def has_import_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request) and request.user.has_perm("campaigns.add_recipient")

    @action(description="Import", url_path="import", icon="upload", permissions=["import"])
    def import_recipients(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """A page of its own: shown by GET, which changes nothing, and posted to itself."""
        if not self.has_import_permission(request):
            raise PermissionDenied
        campaign = Campaign.objects.select_related("session").filter(pk=object_id).first() if object_id.isdigit() else None
        if campaign is None:
            messages.error(request, "That campaign is not there any more.")
            return redirect(reverse("admin:campaigns_campaign_changelist"))
        form = ImportForm(request.POST or None, request.FILES or None)
        context: dict[str, Any] = {"form": form}
        if form.is_valid():
            dry_run = form.cleaned_data["dry_run"]
            try:
                report = import_recipients(campaign, form.cleaned_data["file"], region=form.cleaned_data["region"], dry_run=dry_run)
            except ImportRefused as refusal:
                form.add_error("file", str(refusal))
            else:
                context |= {"report": report, "dry_run": dry_run, "sections": _sections(report)}
        return TemplateResponse(
            request,
            "admin/campaigns/campaign/import.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "original": campaign,
                "title": f"Import recipients into {campaign}",
                "change_url": reverse("admin:campaigns_campaign_change", args=[campaign.pk]),
                "rows_shown": ROWS_SHOWN,
                **context,
            },
        )


def _sections(report: Any) -> list[dict[str, Any]]:
    """The report's kinds of remarks, each with its first rows; those that are empty are left out."""
    kinds = [
        ("Rejected", "Not imported. Mend these rows and import the file again: what is there already is left alone.", report.rejected),
        ("Repeated", "In the campaign already, or twice in the file.", report.repeated),
        ("Noted", "Imported; have a look at how they were read.", report.noted),
    ]
    return [
        {"title": title, "sentence": sentence, "count": len(rows), "rows": rows[:ROWS_SHOWN]}
        for title, sentence, rows in kinds
        if len(rows)
    ]
