from typing import Any

from django.http import HttpRequest
from unfold.admin import ModelAdmin

from campaigns.admin.paging import CappedPaginator


class ReadOnlyAdmin(ModelAdmin):
    show_full_result_count = False
    paginator = CappedPaginator
    list_filter_submit = True

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
