"""The page that shows the groups and contacts of a campaign's session, to tick those that become recipients."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action

from campaigns import picking
from campaigns.models import Campaign
from sessions_app.forms import channel_class


class ChatsForm(forms.Form):
    """Which part of the list is looked at: the query of the page."""

    KINDS = [("contacts", "Contacts"), ("groups", "Groups")]

    kind = forms.ChoiceField(choices=KINDS, required=False)
    q = forms.CharField(required=False, max_length=100)
    page = forms.IntegerField(required=False, min_value=1, max_value=1000)


class ChatsPage(ModelAdmin):
    def has_pick_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request) and request.user.has_perm("campaigns.add_recipient")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        buttons = super().get_actions_detail(request, object_id)
        campaign = Campaign.objects.select_related("session").filter(pk=object_id).first() if str(object_id).isdigit() else None
        if campaign is not None and campaign.status in picking.MAY_BE_PICKED_FOR and _lists_chats(campaign):
            return buttons
        return [button for button in buttons if button.action_name != "campaigns_campaign_pick_recipients"]

    @action(description="Pick recipients", url_path="pick", icon="group_add", permissions=["pick"])
    def pick_recipients(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """A page of its own: GET lists one page of chats, POST adds what was ticked and shows the same page again."""
        if not self.has_pick_permission(request):
            raise PermissionDenied
        campaign = Campaign.objects.select_related("session").filter(pk=object_id).first() if object_id.isdigit() else None
        if campaign is None:
            messages.error(request, "That campaign is not there any more.")
            return redirect(reverse("admin:campaigns_campaign_changelist"))
        reason = picking.why_not(campaign)
        if not reason and not _lists_chats(campaign):
            reason = f'The channel of "{campaign.session}" has no list of groups or contacts.'
        if reason:
            messages.error(request, reason)
            return redirect(reverse("admin:campaigns_campaign_change", args=[campaign.pk]))
        if request.method == "POST":
            _add(request, campaign)
            return redirect(request.get_full_path())
        return TemplateResponse(request, "admin/campaigns/campaign/chats.html", self._context(request, campaign))

    def _context(self, request: HttpRequest, campaign: Campaign) -> dict[str, Any]:
        form = ChatsForm(request.GET)
        form.is_valid()  # what is odd in an address falls back to the first page of contacts
        asked: dict[str, Any] = {"kind": "contacts", "q": "", "page": 1} | {
            name: value for name, value in form.cleaned_data.items() if value
        }
        groups = asked["kind"] == "groups"
        context: dict[str, Any] = {"chats": [], "trouble": picking.NO_GROUPS if groups and not campaign.allow_groups else ""}
        if not context["trouble"]:
            try:
                chats, context["has_more"] = picking.list_chats(campaign.session, groups=groups, search=asked["q"], page=asked["page"])
                known = picking.known_addresses(campaign, chats)
                context["chats"] = [{"chat": chat, "is_known": chat.address in known} for chat in chats]
            except picking.PickingRefused as refusal:
                context["trouble"] = str(refusal)
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": campaign,
            "title": f"Pick recipients for {campaign}",
            "change_url": reverse("admin:campaigns_campaign_change", args=[campaign.pk]),
            "asked": asked,
            "kinds": ChatsForm.KINDS,
            "previous_page": asked["page"] - 1,
            "next_page": asked["page"] + 1,
            **context,
        }


def _lists_chats(campaign: Campaign) -> bool:
    provider = channel_class(campaign.session.channel)
    return provider is not None and provider.lists_chats


def _add(request: HttpRequest, campaign: Campaign) -> None:
    chosen = request.POST.getlist("chat")[: picking.PAGE]
    if not chosen:
        messages.warning(request, "Nobody was ticked.")
        return
    try:
        picked = picking.add_picked(campaign, {address: request.POST.get(f"name-{address}", "") for address in chosen})
    except picking.PickingRefused as refusal:
        messages.error(request, str(refusal))
        return
    done, *refused = picked.sentences()
    (messages.success if picked.added else messages.warning)(request, done)
    for sentence in refused:
        messages.error(request, sentence)
