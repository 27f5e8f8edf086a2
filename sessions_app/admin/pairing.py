"""The page on which a person connects a session with their phone. The QR code goes from the vendor into the page, and nowhere else."""

import base64
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm

from sessions_app import pairing
from sessions_app.admin.receipts import Receipts
from sessions_app.admin.showing import STATUS_COLOURS, back_to, badge
from sessions_app.forms import PairingForm, channel_class
from sessions_app.models import Session

S = Session.Status
SENTENCES = {
    S.CONNECTED: "Connected: this session can send.",
    S.CONNECTING: "Connecting. This takes some seconds.",
    S.NEEDS_PAIRING: "Waiting for the phone.",
    S.DISCONNECTED: "Not connected. Start it, or create it if the channel does not have it yet.",
    S.RESTRICTED: "Paired, but the account may not send now.",
}
ENDS_A_PAIRING = {S.NEEDS_PAIRING, S.CONNECTING}  # what the page showed before it was connected


def _button(verb: str, label: str, question: str, explanation: str, **looks: Any) -> Any:
    def press(self: "PairingPage", request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
        return self.apply(request, verb, label, object_id)

    press.__name__ = f"{verb}_there"
    dialog = {"title": question, "description": explanation, "form_class": BaseDialogForm, "form_submit_text": label}
    return action(press, description=label, url_path=f"pair/{verb}", permissions=["change"], dialog=dialog, **looks)


BUTTONS = ["start_there", "restart_there", "stop_there", "create_there", "logout_there"]


class PairingPage(Receipts):
    start_there = _button("start", "Start", "Start the session?", "It connects, or waits to be paired.", icon="play_arrow")
    restart_there = _button(
        "restart", "Restart", "Restart the session?", "For some seconds nothing can be sent: a running campaign may pause.", icon="sync"
    )
    stop_there = _button(
        "stop", "Stop", "Stop the session?", "Nothing can be sent until it is started again. It stays paired.", icon="stop"
    )
    create_there = _button("create", "Create", "Create the session?", "Makes it at the channel, with the address for receipts.", icon="add")
    logout_there = _button(
        "logout",
        "Log out",
        "Log the session out?",
        "It is unlinked from the phone: nothing can be sent until it is paired again.",
        icon="logout",
        variant=ActionVariant.DANGER,
    )

    @action(description="Pair", url_path="pair", icon="qr_code_2", variant=ActionVariant.PRIMARY, permissions=["change"])
    def pair(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Shown by GET, which asks nothing; then the page posts to itself every three seconds, and gets a piece of itself."""
        session = self._pairable(request, object_id)
        if session is None:
            return self._away(request)
        state = self._look(request, session) if request.method == "POST" else {"shown": session.status, "is_first": True}
        is_piece = request.method == "POST" and "HX-Request" in request.headers
        buttons = {button.action_name: button for button in self._get_base_actions_detail()}
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": session,
            "title": f"Pair {session}",
            "sentence": SENTENCES[S(session.status)],
            "badge": badge(STATUS_COLOURS[S(session.status)], session.get_status_display()),
            "is_connected": session.status == S.CONNECTED,
            "is_piece": is_piece,
            "change_url": reverse("admin:sessions_app_session_change", args=[session.pk]),
            "pair_url": reverse("admin:sessions_app_session_pair", args=[session.pk]),
            "buttons": [
                (reverse(f"admin:sessions_app_session_{name}", args=[session.pk]), buttons[f"sessions_app_session_{name}"])
                for name in BUTTONS
            ],
            **state,
        }
        name = "pairing_state" if is_piece else "pairing"
        return TemplateResponse(request, f"admin/sessions_app/session/{name}.html", context)

    def _look(self, request: HttpRequest, session: Session) -> dict[str, Any]:
        """One question to the vendor -> what the page shows of the answer."""
        form = PairingForm(request.POST)
        if not form.is_valid():
            return {"troubles": [error for errors in form.errors.values() for error in errors], "shown": session.status}
        asked = form.cleaned_data
        try:
            found = pairing.look(session, phone=asked["phone"], only_state=bool(asked["code"] and not asked["phone"]))
        except pairing.Refused as refusal:
            return {"troubles": [str(refusal)], "shown": asked["shown"], "code": asked["code"]}
        is_waiting = session.status == S.NEEDS_PAIRING
        state: dict[str, Any] = {
            "shown": session.status,
            "detail": found.check.detail,
            "code": (found.code or asked["code"]) if is_waiting else "",
            "qr": base64.b64encode(found.qr_png).decode() if found.qr_png else "",
        }
        if session.status == S.CONNECTED and asked["shown"] in ENDS_A_PAIRING:
            self.log_change(request, session, "Paired.")
            state |= _receipts_after_pairing(session)
        return state

    def apply(self, request: HttpRequest, verb: str, label: str, object_id: str) -> HttpResponse:
        session = self._pairable(request, object_id)
        if session is None:
            return self._away(request)
        try:
            check = pairing.apply(session, verb)
        except pairing.Refused as refusal:
            messages.error(request, str(refusal))
        else:
            self.log_change(request, session, f"{label}, at the channel.")
            messages.success(request, f"{label}: done. {check.detail or SENTENCES[S(session.status)]}")
        return back_to(request, reverse("admin:sessions_app_session_pair", args=[session.pk]))

    def _pairable(self, request: HttpRequest, object_id: str) -> Session | None:
        session = self.session_of(request, object_id)
        provider = channel_class(session.channel) if session is not None else None
        if session is not None and (provider is None or not provider.can_pair):
            messages.error(request, f'Session "{session}" is on a channel that is not paired with a phone.')
            return None
        return session

    def _away(self, request: HttpRequest) -> HttpResponse:
        url = reverse("admin:sessions_app_session_changelist")
        return back_to(request, url) if request.method == "POST" else redirect(url)


def _receipts_after_pairing(session: Session) -> dict[str, Any]:
    """So that nobody has to know about receipts. Whatever comes of it, the session is paired."""
    if not session.provider_class.takes_webhooks:
        return {}
    try:
        return {"news": [pairing.set_up_receipts(session)]}
    except pairing.Refused as refusal:
        return {"troubles": [f'Receipts are not set up yet. {refusal} Then use "Set up receipts" on the session\'s page.']}
