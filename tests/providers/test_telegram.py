import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessions_app.addresses import InvalidAddress, canonical
from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Inbound,
    Message,
    MessageType,
    NotPossible,
    SessionConfig,
    SessionState,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.telegram import TelegramCredentials, TelegramProvider
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, WebhookContract, soon
from tests.providers.scripted_server import HANG, reply

TOKEN = "123456789:" + "AAHdqTcv-not-a-real-token-but-as-long"  # in two parts, so that no scanner takes it for one
HOOK = "https://paceline.example/api/webhooks/6f1f4b2c/"


def refusing(status: int, description: str, **parameters: Any) -> Any:
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": description}
    return reply(status, {**body, "parameters": parameters} if parameters else body)


def update(**changes: Any) -> dict[str, Any]:
    message = {
        "message_id": 31,
        "from": {"id": 987654321, "is_bot": False, "first_name": "Ana", "last_name": "Müller", "username": "anam", "language_code": "pt"},
        "chat": {"id": 987654321, "first_name": "Ana", "type": "private"},
        "date": 1796050000,
        "text": "STOP please",
    }
    return {"update_id": 10000, "message": {name: value for name, value in {**message, **changes}.items() if value is not None}}


class TestTelegram(HTTPChannelContract, WebhookContract):
    provider = TelegramProvider
    address = "987654321"
    credentials = {"token": TOKEN, "webhook_secret": SECRET}
    accepted = reply(200, {"ok": True, "result": {"message_id": 77, "chat": {"id": 987654321}, "date": 1, "text": "x"}})
    accepted_id = "987654321:77"
    unauthorised = refusing(401, "Unauthorized")
    takes_an_empty_body = False
    address_is_a_setting = False

    @classmethod
    def error(cls, words: Any) -> dict[str, Any]:
        return {"ok": False, "error_code": 400, "description": f"{words} bad\0news"}

    # -- requests --------------------------------------------------------------------------------------------------------------

    def test_a_text_as_documented(self) -> None:
        self.send()
        request = self.server.requests[0]
        assert (request.method, request.path) == ("POST", f"/bot{TOKEN}/sendMessage")
        assert request.json() == {
            "chat_id": 987654321,
            "text": TEXT,
            "link_preview_options": {"is_disabled": False, "prefer_large_media": False},
        }

    @pytest.mark.parametrize(
        ("type", "method", "field"),
        [
            (MessageType.IMAGE, "sendPhoto", "photo"),
            (MessageType.VIDEO, "sendVideo", "video"),
            (MessageType.AUDIO, "sendAudio", "audio"),
            (MessageType.DOCUMENT, "sendDocument", "document"),
        ],
    )
    def test_a_file_as_documented(self, type: MessageType, method: str, field: str) -> None:
        provider = self.make()
        provider.send("@news_of_ana", self.message(type), REF, soon())
        provider.send("-1001234567890", replace(self.message(type), caption=""), REF, soon())
        first, second = self.server.requests
        assert first.path == f"/bot{TOKEN}/{method}"
        assert first.json() == {"chat_id": "@news_of_ana", field: "https://example.org/a.jpg", "caption": TEXT}
        assert second.json() == {"chat_id": -1001234567890, field: "https://example.org/a.jpg"}

    def test_the_preview_can_be_left_out(self) -> None:
        self.make().send(self.address, Message(MessageType.TEXT, "x", link_preview=False), REF, soon())
        assert self.server.requests[0].json()["link_preview_options"]["is_disabled"] is True

    @pytest.mark.parametrize(
        ("address", "message", "code"),
        [
            ("12 34", Message(MessageType.TEXT, "x"), ErrorCode.INVALID_RECIPIENT),
            ("", Message(MessageType.TEXT, "x"), ErrorCode.INVALID_RECIPIENT),
            ("+5511999990101", Message(MessageType.TEXT, "x"), ErrorCode.INVALID_RECIPIENT),
            ("987654321", Message(MessageType.TEXT, " \n"), ErrorCode.FATAL),
            ("987654321", Message(MessageType.TEXT, "x" * 4097), ErrorCode.FATAL),
            ("987654321", Message(MessageType.IMAGE, media_url="https://example.org/a.png", caption="x" * 1025), ErrorCode.FATAL),
            ("987654321", Message(MessageType.IMAGE), ErrorCode.MISCONFIGURED),
        ],
        ids=["blank", "none", "phone", "empty", "long", "long-caption", "no-file"],
    )
    def test_what_telegram_would_refuse_does_not_leave(self, address: str, message: Message, code: ErrorCode) -> None:
        assert self.make().send(address, message, REF, soon()).code == code
        assert self.server.connections == 0

    def test_the_longest_that_telegram_takes_leaves(self) -> None:
        assert self.make().send(self.address, Message(MessageType.TEXT, "x" * 4096), REF, soon()).answer == Answer.ACCEPTED

    def test_without_a_token_nothing_leaves(self) -> None:
        provider = TelegramProvider(SessionConfig(settings={"base_url": self.server.url}))
        assert provider.send(self.address, self.message(), REF, soon()).code == ErrorCode.DISCONNECTED
        assert provider.check_session(soon()).state == SessionState.DISCONNECTED
        assert self.server.connections == 0

    # -- answers ---------------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("status", "description", "code"),
        [
            (401, "Unauthorized", ErrorCode.DISCONNECTED),
            (404, "Not Found", ErrorCode.DISCONNECTED),
            (403, "Forbidden: bot was blocked by the user", ErrorCode.INVALID_RECIPIENT),
            (403, "Forbidden: user is deactivated", ErrorCode.INVALID_RECIPIENT),
            (403, "Forbidden: bot was kicked from the supergroup chat", ErrorCode.INVALID_RECIPIENT),
            (403, "Forbidden: bot is not a member of the channel chat", ErrorCode.INVALID_RECIPIENT),
            (403, "Forbidden: the group chat was deleted", ErrorCode.INVALID_RECIPIENT),
            (403, "Forbidden: bot can't initiate conversation with a user", ErrorCode.INVALID_RECIPIENT),
            (400, "Bad Request: chat not found", ErrorCode.INVALID_RECIPIENT),
            (400, "Bad Request: private chat not found", ErrorCode.INVALID_RECIPIENT),
            (400, "Bad Request: PEER_ID_INVALID", ErrorCode.INVALID_RECIPIENT),
            (400, "Bad Request: not enough rights to send text messages to the chat", ErrorCode.INVALID_RECIPIENT),
            (400, "Bad Request: group chat was upgraded to a supergroup chat", ErrorCode.INVALID_RECIPIENT),
            (400, "Bad Request: message is too long", ErrorCode.FATAL),
            (400, "Bad Request: message caption is too long", ErrorCode.FATAL),
            (400, "Bad Request: message text is empty", ErrorCode.FATAL),
            (400, "Bad Request: can't parse entities: unsupported start tag", ErrorCode.MISCONFIGURED),
            (400, "Bad Request: wrong file identifier/HTTP URL specified", ErrorCode.MISCONFIGURED),
            (400, "Bad Request: failed to get HTTP URL content", ErrorCode.MISCONFIGURED),
            (400, "Bad Request: something new", ErrorCode.MISCONFIGURED),
            (409, "Conflict: terminated by other getUpdates request", ErrorCode.UNCONFIRMED),
            (429, "Too Many Requests: retry after 7", ErrorCode.RATE_LIMIT),
            (500, "Internal Server Error", ErrorCode.UNCONFIRMED),
            (502, "Bad Gateway", ErrorCode.UNCONFIRMED),
        ],
    )
    def test_each_documented_refusal(self, status: int, description: str, code: ErrorCode) -> None:
        result = self.send(refusing(status, description))
        assert (result.code, result.http_status) == (code, status)
        assert description in result.detail

    @pytest.mark.parametrize("status", [400, 401, 403, 404])
    def test_a_refusal_that_is_not_telegrams_is_a_doubt(self, status: int) -> None:
        self.doubtful(self.send(reply(status, b"<h1>proxy</h1>")))

    @pytest.mark.parametrize(
        "body", [{}, {"ok": True}, {"ok": True, "result": True}, {"ok": True, "result": {"message_id": "7"}}, [], None]
    )
    def test_an_acceptance_without_its_message_is_a_doubt(self, body: Any) -> None:
        self.doubtful(self.send(reply(200, body)))

    def test_the_wait_of_the_body_wins(self) -> None:
        body = {"ok": False, "error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": 35}}
        assert self.send(reply(429, body, headers={"Retry-After": "1"})).retry_after == timedelta(seconds=35)

    def test_an_upgraded_group_says_what_to_do_and_not_its_new_id(self) -> None:
        result = self.send(refusing(400, "Bad Request: see -1005551234567", migrate_to_chat_id=-1005551234567))
        assert result.code == ErrorCode.INVALID_RECIPIENT
        assert "new id" in result.detail and "1005551234567" not in result.detail

    def test_the_chat_of_a_channel_is_the_one_that_was_answered(self) -> None:
        answer = reply(200, {"ok": True, "result": {"message_id": 5, "chat": {"id": -1001234567890}}})
        self.server.script(answer, reply(200, {"ok": True, "result": {"message_id": 6}}))
        provider = self.make()
        assert provider.send("@news_of_ana", self.message(), REF, soon()).message_id == "-1001234567890:5"
        assert provider.send("@news_of_ana", self.message(), REF, soon()).message_id == "@news_of_ana:6"

    def test_half_a_token_is_a_secret_too(self) -> None:
        assert "AAHdqTcv" not in self.send(refusing(400, f"no such bot: {TOKEN.partition(':')[2]}")).detail

    # -- the session -----------------------------------------------------------------------------------------------------------

    def test_the_check_names_the_bot(self) -> None:
        self.server.script(reply(200, {"ok": True, "result": {"id": 1, "is_bot": True, "username": "acme_bot"}}))
        check = self.make().check_session(soon())
        assert (check.state, check.detail) == (SessionState.CONNECTED, "The bot is @acme_bot.")
        assert (self.server.requests[0].method, self.server.requests[0].path) == ("GET", f"/bot{TOKEN}/getMe")

    @pytest.mark.parametrize(
        "answer",
        [refusing(401, "Unauthorized"), refusing(404, "Not Found"), reply(200, {}), reply(502)],
        ids=["401", "404", "empty", "502"],
    )
    def test_the_check_says_what_is_wrong(self, answer: Any) -> None:
        self.server.script(answer)
        check = self.make().check_session(soon())
        assert check.state == SessionState.DISCONNECTED and check.detail

    def test_the_webhook_is_set_with_its_secret(self) -> None:
        self.server.script(reply(200, {"ok": True, "result": True, "description": "Webhook was set"}))
        self.make().set_webhook(HOOK, soon())
        assert self.server.requests[0].path == f"/bot{TOKEN}/setWebhook"
        assert self.server.requests[0].json() == {"url": HOOK, "secret_token": SECRET, "allowed_updates": ["message", "my_chat_member"]}

    def test_a_webhook_that_was_not_set_is_said(self) -> None:
        self.server.script(refusing(400, f"Bad Request: bad webhook: HTTPS url must be provided {SECRET}"), HANG)
        with pytest.raises(NotPossible, match="HTTPS url must be provided") as refusal:
            self.make().set_webhook(HOOK, soon())
        assert SECRET not in str(refusal.value)
        with pytest.raises(NotPossible, match="did not answer"):
            self.make().set_webhook(HOOK, soon(0.2))
        with pytest.raises(NotPossible, match="webhook secret"):
            TelegramProvider(SessionConfig(credentials={"token": TOKEN})).set_webhook(HOOK, soon())

    # -- webhooks --------------------------------------------------------------------------------------------------------------

    def signed(self, body: bytes = b"", **changes: Any) -> WebhookRequest:
        headers = {"x-telegram-bot-api-secret-token": SECRET, "content-type": "application/json"}
        return replace(WebhookRequest("POST", HOOK, headers, {}, body or json.dumps(update()).encode()), **changes)

    def forged(self) -> WebhookRequest:
        return self.signed(headers={"x-telegram-bot-api-secret-token": "another-secret"})

    def unsigned(self) -> WebhookRequest:
        return self.signed(headers={})

    def test_a_changed_body_is_refused(self) -> None:
        """Not so here: Telegram shows a secret and signs nothing. What is left to check is that the body is an update at all."""
        assert self._refused(self.signed(b'{"message": {}}')).status == 400

    def test_no_secret_is_no_secret_to_show(self) -> None:
        bare = self.provider(SessionConfig(credentials={"token": TOKEN}))
        for headers in ({}, {"x-telegram-bot-api-secret-token": ""}):
            with pytest.raises(WebhookRefused):
                bare.accept_webhook(self.signed(headers=headers))

    def test_a_reply(self) -> None:
        item = self._items(self.signed())[0]
        assert (item.event_id, item.kind) == ("10000", "message")
        assert self.make().read_event(item) == [
            Inbound(
                sender="987654321",
                at=datetime.fromtimestamp(1796050000, UTC),
                text="STOP please",
                message_id="987654321:31",
                name="Ana Müller",
            )
        ]

    @pytest.mark.parametrize(
        ("changes", "text", "kind"),
        [
            ({"text": None, "caption": "look", "photo": [{"file_id": "x"}]}, "look", "IMAGE"),
            ({"text": None, "voice": {"file_id": "x"}}, "", "AUDIO"),
            ({"text": None, "document": {"file_id": "x"}}, "", "DOCUMENT"),
        ],
        ids=["photo", "voice", "document"],
    )
    def test_a_reply_with_a_file(self, changes: dict[str, Any], text: str, kind: str) -> None:
        [event] = self.make().read_event(WebhookItem("1", "message", update(**changes)))
        assert isinstance(event, Inbound)
        assert (event.text, event.message_type) == (text, kind)

    @pytest.mark.parametrize(
        "payload",
        [
            {"update_id": 1, "my_chat_member": {"new_chat_member": {"status": "kicked"}}},
            {"update_id": 1, "edited_message": update()["message"]},
            update(text=None, new_chat_title="x"),
            update(**{"from": None}),
            update(**{"from": {"id": 1, "is_bot": True}}),
            {"update_id": 1},
        ],
        ids=["kicked", "edited", "notice", "nobody", "bot", "empty"],
    )
    def test_what_is_no_reply_is_ignored(self, payload: dict[str, Any]) -> None:
        [item] = self._items(self.signed(json.dumps(payload).encode()))
        assert item.kind == next((name for name in payload if name != "update_id"), "")
        assert self.make().read_event(item) == []

    @pytest.mark.parametrize("changes", [{"date": None}, {"date": 10**20}, {"chat": None}, {"chat": []}, {"from": {"id": "x"}}], ids=str)
    def test_half_a_message_is_a_value_error(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            self.make().read_event(WebhookItem("1", "message", update(**changes)))


# -- addresses and the form ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "chat"),
    [
        ("987654321", "987654321"),
        (" -1001234567890 ", "-1001234567890"),
        ("\u22121001234567890", "-1001234567890"),
        ("@News_of_Ana", "@news_of_ana"),
        ("https://t.me/News_of_Ana", "@news_of_ana"),
        ("t.me/news_of_ana/", "@news_of_ana"),
        ("telegram.me/news_of_ana", "@news_of_ana"),
    ],
)
def test_chats_people_write(text: str, chat: str) -> None:
    assert canonical("telegram", text, region="").value == chat == canonical("telegram", chat, region="").value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("+5511999990101", "phone number"),
        ("https://t.me/+AbCdEf123", "invite link"),
        ("t.me/joinchat/AbCdEf123", "invite link"),
        ("news_of_ana", "@ before its name"),
        ("@ab", "Not a Telegram chat"),
        ("@1abcd", "Not a Telegram chat"),
        ("0", "Not a Telegram chat"),
        ("-", "Not a Telegram chat"),
        ("", "The address is empty"),
        ("12345678901234567", "Not a Telegram chat"),
        ("https://t.me/news_of_ana/55", "Not a Telegram chat"),
        ("\u0661\u0662\u0663\u0664", "Not a Telegram chat"),
    ],
)
def test_chats_nobody_can_write_to(text: str, words: str) -> None:
    with pytest.raises(InvalidAddress, match=words):
        canonical("telegram", text, region="")


def test_the_form_takes_what_botfather_gives() -> None:
    form = TelegramCredentials({"token": f" {TOKEN}\n", "webhook_secret": "a-secret-of-mine-1"})
    assert form.is_valid() and form.cleaned_data["token"] == TOKEN
    assert TelegramCredentials({"token": TOKEN}).is_valid()
    assert TOKEN not in str(form)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"token": ""}, "token"),
        ({"token": "123456789"}, "token"),
        ({"token": f"bot{TOKEN}"}, "token"),
        ({"token": TOKEN, "webhook_secret": "short"}, "webhook_secret"),
        ({"token": TOKEN, "webhook_secret": "blanks are not taken"}, "webhook_secret"),
    ],
    ids=["none", "half", "bot", "short", "blanks"],
)
def test_the_form_says_what_is_wrong(values: dict[str, str], field: str) -> None:
    form = TelegramCredentials(values)
    assert list(form.errors) == [field] and str(form.errors[field][0]).endswith(".")
