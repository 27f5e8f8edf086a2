import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Presence,
    Receipt,
    ReceiptState,
    SentMessage,
    SessionConfig,
    SessionState,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.smsdev import REFUSALS, STATUSES, SMSDevCredentials, SMSDevProvider, SMSDevSettings
from tests.providers import scripted_server
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, WebhookContract, soon
from tests.providers.scripted_server import HANG, reply

OK = {"situacao": "OK", "codigo": "1", "id": "637849052", "descricao": "MENSAGEM NA FILA"}
# As the vendor publishes it for JSON: field -> (type, required)
SEND = {
    "key": (str, True),
    "type": (int, True),
    "number": (int, True),
    "msg": (str, True),
    "refer": (str, False),
    "flash": (int, False),
    "jobdate": (str, False),
    "jobtime": (str, False),
}
STATUS_CALL = {
    "key": SECRET,
    "id": "637849052",
    "refer": str(REF),
    "situacao": "RECEBIDA",
    "data_envio": "30112026093000",
    "operadora": "VIVO-PORTABILIDADE",
    "qtd_credito": "1",
}


def refusal(code: str, words: str = "texto") -> scripted_server.Answer:
    return reply(200, {"situacao": "ERRO", "codigo": code, "descricao": words})


class TestSMSDev(HTTPChannelContract):
    provider = SMSDevProvider
    address = "+5511988887777"
    accepted = reply(200, OK)
    accepted_id = "637849052"
    takes_an_empty_body = False
    address_is_a_setting = False

    @classmethod
    def error(cls, words: Any) -> dict[str, Any]:
        return {"situacao": "ERRO", "codigo": "499", "descricao": f"bad\0news {words}"}

    def sent(self, **more: Any) -> SentMessage:
        return SentMessage(self.address, self.message(), REF, datetime.now(UTC), **more)

    def test_the_request_is_as_published(self) -> None:
        self.send()
        request = self.server.requests[0]
        assert (request.method, request.path, request.headers["content-type"]) == ("POST", "/v1/send", "application/json")
        [one] = request.json()
        assert {name for name, (_, required) in SEND.items() if required} <= one.keys() <= SEND.keys()
        assert all(type(value) is SEND[name][0] for name, value in one.items())
        assert one == {"key": SECRET, "type": 9, "number": 5511988887777, "msg": TEXT, "refer": str(REF)}

    def test_the_key_is_in_no_url(self) -> None:
        self.send()
        self.make().check_session(soon())
        self.make().verify(self.sent(), soon())
        assert [request.path for request in self.server.requests] == ["/v1/send", "/v1/balance", "/v1/dlr"]
        assert all(request.method == "POST" for request in self.server.requests)

    @pytest.mark.parametrize("body", [[OK], {"SITUACAO": "OK", "Id": 637849052}], ids=["a list of one", "other letters"])
    def test_other_ways_to_say_ok(self, body: Any) -> None:
        result = self.send(reply(200, body))
        assert (result.answer, result.message_id) == (Answer.ACCEPTED, "637849052")

    @pytest.mark.parametrize("code", REFUSALS)
    def test_each_documented_code(self, code: str) -> None:
        expected = {
            "403": ErrorCode.DISCONNECTED,
            "414": ErrorCode.DISCONNECTED,
            "408": ErrorCode.MISCONFIGURED,
            "402": ErrorCode.INVALID_RECIPIENT,
            "407": ErrorCode.INVALID_RECIPIENT,
            "400": ErrorCode.FATAL,
            "420": ErrorCode.FATAL,
        }.get(code, ErrorCode.MISCONFIGURED)
        result = self.send(refusal(code, "as palavras"))
        assert (result.answer, result.code, "as palavras" in result.detail) == (Answer.REFUSED, expected, True)

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (refusal("999"), ErrorCode.FATAL),
            (reply(403, b"blocked"), ErrorCode.DISCONNECTED),
            (reply(500, {"situacao": "ERRO", "codigo": "407"}), ErrorCode.UNCONFIRMED),
            (reply(200, []), ErrorCode.UNCONFIRMED),
            (reply(200, [OK, OK]), ErrorCode.UNCONFIRMED),
            (reply(200, {"ok": True}), ErrorCode.UNCONFIRMED),
            (reply(404, b""), ErrorCode.UNCONFIRMED),
        ],
        ids=["unknown code", "blocked", "500", "empty", "two", "something else", "404"],
    )
    def test_other_answers(self, answer: scripted_server.Answer, code: ErrorCode) -> None:
        assert self.send(answer).code == code

    @pytest.mark.parametrize("address", ["+12025550101", "5511988887777", "+55119", "+5511988887777@c.us", ""])
    def test_numbers_of_brazil_only(self, address: str) -> None:
        result = self.make().send(address, self.message(), REF, soon())
        assert (result.code, self.server.connections) == (ErrorCode.INVALID_RECIPIENT, 0)

    @pytest.mark.parametrize(
        ("answer", "state", "words"),
        [
            (reply(200, {"situacao": "OK", "saldo_sms": "1200", "descricao": "SALDO ATUAL"}), SessionState.CONNECTED, "1200"),
            (reply(200, {"situacao": "OK", "saldo_sms": "0"}), SessionState.DISCONNECTED, "used up"),
            (refusal("403"), SessionState.DISCONNECTED, "key"),
            (refusal("414"), SessionState.DISCONNECTED, "blocked"),
            (reply(502, b"<h1>oops</h1>"), SessionState.DISCONNECTED, "502"),
        ],
        ids=["balance", "no balance", "wrong key", "blocked", "502"],
    )
    def test_the_check(self, answer: scripted_server.Answer, state: SessionState, words: str) -> None:
        self.server.script(answer)
        check = self.make().check_session(soon())
        assert (check.state, words in check.detail) == (state, True)
        assert self.server.requests[0].json() == {"key": SECRET}

    @pytest.mark.parametrize("status", STATUSES)
    def test_a_look_up(self, status: str) -> None:
        self.server.script(reply(200, {"situacao": "OK", "codigo": "1", "data_envio": "21/10/2019 11:29", "descricao": status}))
        found = self.make().verify(self.sent(), soon())
        is_there = status in {"RECEBIDA", "ENVIADA", "FILA"}
        assert found.presence == (Presence.PRESENT if is_there else Presence.ABSENT)
        assert self.server.requests[0].json() == {"key": SECRET, "refer": str(REF)}

    def test_a_look_up_by_their_id(self) -> None:
        self.server.script(reply(200, [{"situacao": "OK", "id": "5", "descricao": "RECEBIDA"}]))
        found = self.make().verify(self.sent(provider_message_id="5"), soon())
        assert (found.presence, found.message_id) == (Presence.PRESENT, "5")
        assert self.server.requests[0].json() == {"key": SECRET, "id": [5]}

    @pytest.mark.parametrize(
        "answer",
        [
            refusal("405", "ID VAZIO"),
            refusal("403"),
            reply(200, {"situacao": "OK", "descricao": "RECEBIDA", "refer": "another"}),
            reply(200, {"situacao": "OK", "descricao": "?"}),
            reply(500, {"situacao": "OK", "descricao": "RECEBIDA"}),
            HANG,
        ],
        ids=["not found", "wrong key", "of another", "unknown status", "500", "silent"],
    )
    def test_absence_is_no_proof_and_no_answer_is_no_absence(self, answer: scripted_server.Answer) -> None:
        self.server.script(answer)
        assert self.make().verify(self.sent(), soon(0.4)).presence == Presence.UNKNOWN
        assert not SMSDevProvider.absence_is_proof


class TestSMSDevWebhooks(WebhookContract):
    provider = SMSDevProvider
    address = "+5511988887777"
    settings = {"base_url": "http://127.0.0.1:9"}  # nobody there
    credentials = {"api_key": SECRET}

    def signed(self, body: bytes = b"", **changes: Any) -> WebhookRequest:
        request = {"method": "POST", "url": "https://x.example/api/webhooks/1/", "headers": {}, "query": {}}
        return WebhookRequest(**{**request, "body": body or json.dumps(STATUS_CALL).encode(), **changes})

    def forged(self) -> WebhookRequest:
        return self.signed(json.dumps({**STATUS_CALL, "key": "another"}).encode())

    def unsigned(self) -> WebhookRequest:
        return self.signed(json.dumps({**STATUS_CALL, "key": ""}).encode())

    def test_a_changed_body_is_refused(self) -> None:
        """Not so here: SMSDev shows its key and signs nothing. What is left to check is that every part of the body shows it."""
        assert self._refused(self.signed(json.dumps([STATUS_CALL, {**STATUS_CALL, "key": "x"}]).encode())).status == 401

    @pytest.mark.parametrize("how", ["query", "form", "json"])
    def test_each_way_to_write_it(self, how: str) -> None:
        request = {
            "query": self.signed(method="GET", query=STATUS_CALL, body=b""),
            "form": self.signed(urlencode(STATUS_CALL).encode()),
            "json": self.signed(),
        }[how]
        [item] = self._items(request)
        assert self.make().read_event(item) == [
            Receipt(ReceiptState.DELIVERED, datetime(2026, 11, 30, 12, 30, tzinfo=UTC), "637849052", REF),
        ]
        assert item.event_id == self._items(self.signed())[0].event_id

    def test_the_key_is_not_stored(self) -> None:
        assert SECRET not in json.dumps(self._items(self.signed())[0].payload)

    @pytest.mark.parametrize(
        ("status", "state", "code"),
        [
            ("RECEBIDA", ReceiptState.DELIVERED, None),
            ("ENVIADA", ReceiptState.ACCEPTED, None),
            ("fila", ReceiptState.ACCEPTED, None),
            ("ERRO", ReceiptState.FAILED, ErrorCode.FATAL),
            ("CANCELADA", ReceiptState.FAILED, ErrorCode.FATAL),
            ("BLACK LIST", ReceiptState.FAILED, ErrorCode.INVALID_RECIPIENT),
        ],
    )
    def test_each_status(self, status: str, state: ReceiptState, code: ErrorCode | None) -> None:
        [item] = self._items(self.signed(json.dumps({**STATUS_CALL, "situacao": status}).encode()))
        [event] = self.make().read_event(item)
        assert isinstance(event, Receipt)
        assert (event.state, event.code, event.client_ref) == (state, code, REF)

    def test_what_means_nothing(self) -> None:
        for change in ({"situacao": "OUTRA"}, {"id": "", "refer": "not ours"}):
            [item] = self._items(self.signed(json.dumps({**STATUS_CALL, **change}).encode()))
            assert self.make().read_event(item) == []
        with pytest.raises(ValueError):
            self.make().read_event(WebhookItem("1", "RECEBIDA", {"id": "5", "data_envio": "yesterday"}))

    def test_a_reply_shows_no_key_and_is_not_taken(self) -> None:
        body = {"from": "5562988887777", "id": "1", "id_sent": "637849052", "message": "Oi", "refer": str(REF)}
        with pytest.raises(WebhookRefused):
            self.make().accept_webhook(self.signed(json.dumps(body).encode()))
        assert not SMSDevProvider.takes_replies

    def test_no_key_is_no_key_to_show(self) -> None:
        with pytest.raises(WebhookRefused):
            SMSDevProvider(SessionConfig()).accept_webhook(self.signed(json.dumps({**STATUS_CALL, "key": ""}).encode()))


def test_the_forms() -> None:
    assert SMSDevCredentials({"api_key": " ABC123DEF456GH78 "}).is_valid()
    for key in ("", "short", "with blanks in it", "ABC123DEF456GH78&x=1"):
        assert not SMSDevCredentials({"api_key": key}).is_valid()
    assert SMSDevSettings({}).is_valid()
    assert not SMSDevSettings({"rate": "21"}).is_valid()
    assert not re.search(SECRET, str(SMSDevCredentials({"api_key": SECRET})))
    assert (
        SMSDevProvider(SessionConfig()).send("+5511988887777", TestSMSDev().message(), uuid.uuid4(), soon()).code == ErrorCode.DISCONNECTED
    )
