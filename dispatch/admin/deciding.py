"""What staff decide about messages: one on its page, or as many as a list has, over all its pages."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm

from campaigns.transitions import Refused
from dispatch import deciding, transitions
from dispatch.models import DispatchLog
from dispatch.transitions import Decision
from sessions_app.admin import back_to
from sessions_app.clock import database_now

S = DispatchLog.Status
OFFERED = {S.UNCONFIRMED: {"mark_sent", "send_again", "give_up"}, S.PENDING: {"remove"}}
LISTED = 10
MAY_DOUBLE = "Nobody knows whether it arrived. If it did, this person gets the message twice."
QUESTIONS = {
    transitions.MARK_SENT: ("Did they arrive?", "Only if you saw them arrive. They count as sent.", "Mark as sent"),
    transitions.SEND_AGAIN: (
        "Send again, though each may double?",
        "Nobody knows whether they arrived. Each of them may double: who has got it gets the message twice.",
        "Send again",
    ),
    transitions.GIVE_UP: ("Give them up?", "They count as failed, and nothing more is sent.", "Give up"),
    transitions.REMOVE: ("Take them out?", "These messages are skipped; the others go on.", "Remove"),
}


def _is_whole_list(request: HttpRequest) -> bool:
    return request.POST.get("select_across", "0") not in {"", "0"}


def _number_chosen(request: HttpRequest, decision: Decision, rows: QuerySet[DispatchLog]) -> int:
    """Of single ones, all that were ticked; of a whole list, those that can be decided: the rest may be millions."""
    return (deciding.eligible(decision, rows) if _is_whole_list(request) else rows).order_by().count()


def _as_shown(rows: QuerySet[DispatchLog], shown_at: str) -> QuerySet[DispatchLog]:
    """Without those that fell into doubt after the page that asked was made: nobody was asked about them."""
    if not shown_at:
        return rows
    try:
        moment = datetime.fromisoformat(shown_at)
    except ValueError:
        raise BadRequest("shown_at is not a moment") from None
    if moment.tzinfo is None:
        raise BadRequest("shown_at has no time zone")
    return rows.exclude(unconfirmed_at__gt=moment).exclude(created_at__gt=moment)


def _decision(description: str, title: str, sentence: str, submit: str, icon: str, variant: ActionVariant) -> Any:
    return action(
        description=description,
        url_path=submit.lower().replace(" ", "-"),
        icon=icon,
        variant=variant,
        permissions=["decide"],
        dialog={"title": title, "description": sentence, "form_class": BaseDialogForm, "form_submit_text": submit},
    )


class DecidingActions(ModelAdmin):
    actions = ["mark_sent_selected", "send_again_selected", "give_up_selected", "remove_selected"]
    actions_detail = ["mark_sent", "send_again", "give_up", "remove"]

    def has_decide_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Django's change permission on messages: nobody edits one, but some may decide what became of it."""
        return request.user.has_perm("dispatch.change_dispatchlog")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        status = DispatchLog.objects.filter(pk=object_id).values_list("status", flat=True).first() if str(object_id).isdigit() else None
        offered = {f"dispatch_dispatchlog_{name}" for name in OFFERED.get(S(status), set())} if status else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.action_name in offered]

    @_decision(
        "Mark as sent", "Did it arrive?", "Only if you saw it arrive. It counts as sent.", "Mark as sent", "done", ActionVariant.SUCCESS
    )
    def mark_sent(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.mark_sent, object_id)

    @_decision("Send again", "Send again, though it may double?", MAY_DOUBLE, "Send again", "replay", ActionVariant.WARNING)
    def send_again(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.send_again, object_id)

    @_decision("Give up", "Give it up?", "It counts as failed, and nothing more is sent.", "Give up", "close", ActionVariant.DEFAULT)
    def give_up(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.give_up, object_id)

    @_decision("Remove", "Take it out?", "This message is skipped; the others go on.", "Remove", "delete", ActionVariant.DANGER)
    def remove(self, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self._decide_one(request, transitions.remove, object_id)

    @admin.action(description="Mark as sent (unconfirmed ones)", permissions=["decide"])
    def mark_sent_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> HttpResponse | None:
        return self._decide_many(request, transitions.MARK_SENT, queryset)

    @admin.action(description="Send again (unconfirmed ones, may double)", permissions=["decide"])
    def send_again_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> HttpResponse | None:
        return self._decide_many(request, transitions.SEND_AGAIN, queryset)

    @admin.action(description="Give up (unconfirmed ones)", permissions=["decide"])
    def give_up_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> HttpResponse | None:
        return self._decide_many(request, transitions.GIVE_UP, queryset)

    @admin.action(description="Remove (waiting ones)", permissions=["decide"])
    def remove_selected(self, request: HttpRequest, queryset: QuerySet[DispatchLog]) -> HttpResponse | None:
        return self._decide_many(request, transitions.REMOVE, queryset)

    def _decide_one(self, request: HttpRequest, verb: Callable[..., None], object_id: str) -> HttpResponse:
        log_id = int(object_id) if object_id.isdigit() else 0
        try:
            verb(log_id, by=request.user.get_username())
        except Refused as refusal:
            messages.error(request, str(refusal))
        log = DispatchLog.objects.filter(pk=log_id).first()
        if log is None:
            return back_to(request, reverse("admin:dispatch_dispatchlog_changelist"))
        messages.info(request, f"{log} is {log.get_status_display().lower()}{f': {log.reason}' if log.reason else ''}.")
        return back_to(request, reverse("admin:dispatch_dispatchlog_change", args=[log_id]))

    def _decide_many(self, request: HttpRequest, decision: Decision, queryset: QuerySet[DispatchLog]) -> HttpResponse | None:
        """Asks first, naming the number; then decides what was there when it asked, however many pages that fills."""
        if not self.has_decide_permission(request):
            raise PermissionDenied
        if "confirmed" not in request.POST:
            return self._ask(request, decision, queryset)
        rows, state = _as_shown(queryset, request.POST.get("shown_at", "")), decision.origin.label.lower()
        counted = int(request.POST["counted"]) if request.POST.get("counted", "").isdecimal() else _number_chosen(request, decision, rows)
        result = deciding.decide_all(decision, rows, by=request.user.get_username())
        if result.decided or not counted:
            messages.success(request, f"{result.decided} message(s) decided.")
        if not result.is_done:
            messages.warning(request, "There was no time for all of them. Do the same again for the rest.")
        elif counted > result.decided:
            messages.warning(request, f"{counted - result.decided} left alone: not {state}, or decided by somebody or something meanwhile.")
        return None

    def _ask(self, request: HttpRequest, decision: Decision, queryset: QuerySet[DispatchLog]) -> HttpResponse:
        title, sentence, submit = QUESTIONS[decision]
        now, rows = database_now(), deciding.eligible(decision, queryset)
        number, state = rows.order_by().count(), decision.origin.label.lower()
        is_whole_list = _is_whole_list(request)
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "sentence": sentence,
            "label": f"{submit}: {number}",
            "number": number,
            "state": state,
            "others": 0 if is_whole_list else len(chosen) - number,
            "rows": rows.order_by("-pk")[:LISTED],
            "not_listed": max(0, number - LISTED),
            "hidden": [
                ("action", request.POST["action"]),
                ("confirmed", "yes"),
                ("shown_at", now.isoformat()),
                ("counted", _number_chosen(request, decision, queryset)),
                *(
                    [("select_across", 1), (ACTION_CHECKBOX_NAME, chosen[0])]
                    if is_whole_list
                    else ((ACTION_CHECKBOX_NAME, pk) for pk in chosen)
                ),
            ],
            "cancel_url": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/dispatch/dispatchlog/decide.html", context)
