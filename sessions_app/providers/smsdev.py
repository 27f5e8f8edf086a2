"""SMS in Brazil through SMSDev (smsdev.com.br): numbers of +55 only.

The outcome stands in the body (situacao, codigo) and not in the HTTP status. The table of codes is that of the vendor's sister brand, as
SMSDev publishes none, nor a limit of requests. From memory, not tried against SMSDev: whether one message is answered with an object or
with a list of one (both are read), and whether /v1/dlr finds a message by our `refer` alone (its page says so in words, its table does
not).

Status calls are not signed: they carry the account's key, which is compared, and come to an address nobody can guess. Replies do not carry
even the key, so they are not taken. `data_envio` is when the message left, in the time of Brasília; a receipt has no later moment.
"""

import hmac
import json
import re
import uuid
from datetime import datetime
from math import ceil
from typing import Any, ClassVar
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from django import forms

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Message,
    Presence,
    Receipt,
    ReceiptState,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    Verification,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
    event_id_of,
)

API = "https://api.smsdev.com.br"
DEFAULT_RATE = 5
BRASILIA = ZoneInfo("America/Sao_Paulo")
_NUMBER = re.compile(r"\+(55[1-9][0-9]{9,10})", re.ASCII)

# `codigo` of an answer with situacao ERRO: the message was not taken.
REFUSALS = {
    "400": (ErrorCode.FATAL, "The text is empty"),
    "402": (ErrorCode.INVALID_RECIPIENT, "The number is missing"),
    "403": (ErrorCode.DISCONNECTED, "SMSDev does not know this key"),
    "407": (ErrorCode.INVALID_RECIPIENT, "SMSDev does not reach this number"),
    "408": (ErrorCode.MISCONFIGURED, "The balance is used up: buy credits at SMSDev"),
    "414": (ErrorCode.DISCONNECTED, "SMSDev has blocked this account, or it was not confirmed yet"),
    "420": (ErrorCode.FATAL, "The text is too long"),
    **dict.fromkeys(("401", "405", "409", "416", "435", "436"), (ErrorCode.MISCONFIGURED, "SMSDev did not understand the request")),
}
_HTTP_REFUSALS = {
    401: (ErrorCode.DISCONNECTED, "SMSDev refused the key"),
    403: (ErrorCode.DISCONNECTED, "SMSDev refused the key, or this machine"),
    429: (ErrorCode.RATE_LIMIT, "Too many requests"),
}
# What is told of a message: its receipt, its code, and whether it is (or was) on its way.
STATUSES: dict[str, tuple[ReceiptState, ErrorCode | None, Presence]] = {
    "RECEBIDA": (ReceiptState.DELIVERED, None, Presence.PRESENT),
    "ENVIADA": (ReceiptState.ACCEPTED, None, Presence.PRESENT),
    "FILA": (ReceiptState.ACCEPTED, None, Presence.PRESENT),
    "ERRO": (ReceiptState.FAILED, ErrorCode.FATAL, Presence.ABSENT),
    "CANCELADA": (ReceiptState.FAILED, ErrorCode.FATAL, Presence.ABSENT),
    "BLACK LIST": (ReceiptState.FAILED, ErrorCode.INVALID_RECIPIENT, Presence.ABSENT),
}


class SMSDevSettings(forms.Form):
    rate = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=0.01,
        max_value=20,
        help_text=f"SMSDev publishes no limit; ask its support before you raise it. Empty: {DEFAULT_RATE}.",
    )


class SMSDevCredentials(forms.Form):
    api_key = forms.CharField(
        label="Key (Chave Key)",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="At painel.smsdev.com.br under Minha Conta. It is all that SMSDev asks for: whoever has it can spend your credits.",
    )

    def clean_api_key(self) -> str:
        key = self.cleaned_data["api_key"].strip()
        if not re.fullmatch(r"[A-Za-z0-9]{8,100}", key):
            raise forms.ValidationError("Not a key of SMSDev: it has letters and digits only. Copy it again from Minha Conta.")
        return key


class SMSDevProvider(ChannelProvider):
    key = "smsdev"
    label = "SMS (SMSDev, Brazil)"
    counts_segments = True  # a text costs by the SMS it becomes
    address_kind = "phone"
    pacing: ClassVar[Metered] = Metered(rate=20, burst=5)
    settings_form: ClassVar[type[forms.Form]] = SMSDevSettings
    credentials_form: ClassVar[type[forms.Form]] = SMSDevCredentials
    can_verify = True
    absence_is_proof = False  # a message it refused and one it never got look alike, and it does not promise to keep the others
    takes_webhooks = True
    receipts = frozenset({ReceiptState.ACCEPTED, ReceiptState.DELIVERED, ReceiptState.FAILED})

    @property
    def origin(self) -> str:
        return str(self.config.settings.get("base_url") or API).rstrip("/")

    @property
    def api_key(self) -> str:
        return self.config.credentials.get("api_key", "")

    @property
    def metered(self) -> Metered:
        rate = self.config.settings.get("rate")
        if not isinstance(rate, (int, float)) or not 0 < rate <= self.pacing.rate:
            rate = DEFAULT_RATE
        return Metered(rate=rate, burst=min(self.pacing.burst, ceil(rate)))

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        number = _NUMBER.fullmatch(address)
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if not self.api_key:
            return SendResult.refused(ErrorCode.DISCONNECTED, "The key of SMSDev is missing. Enter it in the session.")
        if number is None:
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "SMSDev sends to Brazilian numbers (+55) only.")
        if not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        hidden = self._hidden(address, message)
        one = {"key": self.api_key, "type": 9, "number": int(number[1]), "msg": message.text, "refer": str(client_ref)}
        content = {"Content-Type": "application/json"}
        try:
            response = http.post_bytes(f"{self.origin}/v1/send", json.dumps([one]).encode(), headers=content, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return http.without_answer(error, "SMSDev", hidden)
        return read_send(response, hidden)

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if not self.api_key:
            return SessionCheck(SessionState.DISCONNECTED, "The key of SMSDev is missing. Enter it in the session.")
        try:
            response = http.post_json(f"{self.origin}/v1/balance", {"key": self.api_key}, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, f"SMSDev does not answer: {error}")
        answer = read_body(response)
        left = str(answer.get("saldo_sms", ""))
        if response.status == 200 and answer.get("situacao") == "OK" and left.isdecimal():
            if int(left) == 0:
                return SessionCheck(SessionState.DISCONNECTED, "The key is right, and the balance is used up: buy credits at SMSDev.")
            return SessionCheck(SessionState.CONNECTED, f"The balance is {int(left)} messages of 160 characters.")
        _, advice = REFUSALS.get(str(answer.get("codigo")), (None, "SMSDev could not tell the balance"))
        detail = f"{advice} ({response.status}): {_words(answer)}"
        return SessionCheck(SessionState.DISCONNECTED, http.scrub(detail, [self.api_key]))

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """By SMSDev's id where it was heard, else by our reference. Only one of the published statuses is an answer."""
        hidden = self._hidden(sent.address, sent.message)
        which: dict[str, Any] = {"refer": str(sent.client_ref)}
        if sent.provider_message_id.isdecimal():
            which = {"id": [int(sent.provider_message_id)]}
        try:
            response = http.post_json(f"{self.origin}/v1/dlr", {"key": self.api_key, **which}, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(f"SMSDev could not be asked: {error}", hidden))
        answer = read_body(response)
        status = str(answer.get("descricao", "")).strip().upper()
        is_ours = str(answer.get("refer") or sent.client_ref) == str(sent.client_ref)
        if response.status != 200 or answer.get("situacao") != "OK" or status not in STATUSES or not is_ours:
            detail = f"SMSDev does not say what became of it ({response.status}): {_words(answer)}"
            return Verification(Presence.UNKNOWN, detail=http.scrub(detail, hidden))
        return Verification(STATUSES[status][2], str(answer.get("id") or sent.provider_message_id), f"SMSDev says {status}.")

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        """A status, in the query (GET), as a form or as JSON. The key in it is compared, and not kept."""
        if not self.api_key:
            raise WebhookRefused("The session has no key")
        told = _told(request)
        if not told or not all(hmac.compare_digest(str(one.get("key", "")).encode(), self.api_key.encode()) for one in told):
            raise WebhookRefused("The account's key is missing or wrong")
        return WebhookAnswer(tuple(_item(one) for one in told))

    def read_event(self, item: WebhookItem) -> list[Event]:
        state, code, _ = STATUSES.get(item.kind, (None, None, None))
        message_id = str(item.payload.get("id") or "")
        try:
            client_ref = uuid.UUID(str(item.payload.get("refer")))
        except ValueError:
            client_ref = None
        if state is None or not (message_id or client_ref):
            return []
        at = datetime.strptime(str(item.payload.get("data_envio")), "%d%m%Y%H%M%S").replace(tzinfo=BRASILIA)
        return [Receipt(state, at, message_id, client_ref, code, f"SMSDev says {item.kind}." if code else "")]

    def _hidden(self, address: str, message: Message) -> list[str]:
        digits = address.removeprefix("+")
        return [self.api_key, address, digits, digits.removeprefix("55"), message.text, *message.text.splitlines()]


def read_body(response: http.Response) -> dict[str, Any]:
    """The one object of an answer, its names in lower case; {} for anything else."""
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return {}
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    return {str(name).lower(): value for name, value in answer.items()} if isinstance(answer, dict) else {}


def read_send(response: http.Response, hidden: list[str]) -> SendResult:
    answer, status = read_body(response), response.status
    situation, code = answer.get("situacao"), str(answer.get("codigo"))
    if status in (200, 201) and situation == "OK":
        return SendResult.accepted(str(answer.get("id") or ""), http_status=status)
    if status in _HTTP_REFUSALS:
        refusal, advice = _HTTP_REFUSALS[status]
    elif status < 500 and situation == "ERRO":
        refusal, advice = REFUSALS.get(code, (ErrorCode.FATAL, "SMSDev refused the message"))
    else:
        refusal, advice = ErrorCode.UNCONFIRMED, "SMSDev gave no clear answer, perhaps after sending"
    detail = http.scrub(f"{advice} ({status}): {_words(answer)}", hidden)
    retry_after = response.retry_after if refusal == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(refusal, detail, retry_after=retry_after, http_status=status)


def _words(answer: dict[str, Any]) -> str:
    return " ".join(str(answer[name]) for name in ("codigo", "descricao") if name in answer)


def _told(request: WebhookRequest) -> list[dict[str, Any]]:
    """What stands in the request, wherever SMSDev was told to write it; [] when nothing can be read."""
    if request.method == "GET":
        return [dict(request.query)]
    try:
        body: Any = json.loads(request.body)
    except (ValueError, RecursionError):
        try:
            body = dict(parse_qsl(request.body.decode(), max_num_fields=50))
        except ValueError:
            body = None
    told = body if isinstance(body, list) else [body]
    return told if all(isinstance(one, dict) for one in told) else []


def _item(told: dict[str, Any]) -> WebhookItem:
    kept = {name: str(told[name])[:200] for name in ("id", "refer", "situacao", "data_envio", "operadora") if told.get(name)}
    kind = kept.get("situacao", "").strip().upper()[:60]
    return WebhookItem(event_id_of(kept.get("id"), kept.get("refer"), kind), kind, kept)
