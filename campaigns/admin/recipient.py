from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import AutocompleteSelectFilter

from campaigns.admin.paging import CappedPaginator
from campaigns.forms import RecipientForm
from campaigns.models import Recipient


@admin.register(Recipient)
class RecipientAdmin(ModelAdmin):
    form = RecipientForm
    list_display = ["address", "name", "campaign", "order", "created_at"]
    list_filter = [("campaign", AutocompleteSelectFilter)]
    list_filter_submit = True
    list_select_related = ["campaign"]
    search_fields = ["address__startswith"]
    search_help_text = "The beginning of an address. With a campaign chosen: any part of an address or a name."
    ordering = ["campaign_id", "order", "pk"]  # the index recipient_sending_order
    show_full_result_count = False
    paginator = CappedPaginator
    autocomplete_fields = ["campaign"]
    fields = ["campaign", "address", "address_as_imported", "name", "metadata", "order"]

    def get_readonly_fields(self, request: HttpRequest, obj: Recipient | None = None) -> list[str]:
        return ["address_as_imported"] if obj is None else ["address_as_imported", "campaign"]

    def get_fields(self, request: HttpRequest, obj: Recipient | None = None) -> Any:
        return [name for name in self.fields if obj is not None or name != "address_as_imported"]

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """Any part of the text only inside one campaign: over all of them it would read the whole table."""
        term = search_term.strip()
        if term and any(name.startswith("campaign__") for name in request.GET):
            return queryset.filter(Q(address__icontains=term) | Q(name__icontains=term)), False
        return super().get_search_results(request, queryset, "".join(term.split()))

    def get_form(self, request: HttpRequest, obj: Recipient | None = None, change: bool = False, **kwargs: Any) -> type[forms.ModelForm]:
        form = super().get_form(request, obj, change, **kwargs)
        if "order" in form.base_fields:
            form.base_fields["order"].required = False  # empty: after the last one
        return form

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Its messages stay in the log, without their recipient; those that wait are skipped by the scheduler."""
        chosen = list(objs)
        return [str(recipient) for recipient in chosen[:200]], {"Recipients": len(chosen)}, set(), []
