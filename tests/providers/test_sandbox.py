import contextlib

import pytest

from sessions_app.pacing import Metered
from sessions_app.providers.base import ErrorCode, MessageType, NotPossible, SessionState
from sessions_app.providers.sandbox import SandboxProvider, SandboxSettings, is_loopback
from tests.providers.contract import REF, HTTPChannelContract, soon
from tests.providers.scripted_server import reply

ELSEWHERE = [
    "http://10.0.0.5:3900",
    "http://0.0.0.0:3900",
    "http://192.168.1.2",
    "http://127.0.0.1.example.org",
    "http://127.1",
    "http://2130706433",
    "http://localhost.example.org",
    "http://127.0.0.1@example.org",
    "http://example.org#@127.0.0.1",
    "http://example.org\\@127.0.0.1",
    "http://127.0.0.1\\@example.org",
    "http://[::ffff:10.0.0.1]",
    "http://[::2]",
    "https://waha.example.org",
]
HERE = ["http://127.0.0.1:3900", "http://127.8.9.10", "http://localhost:80", "http://LOCALHOST", "http://[::1]:3900", "https://127.0.0.1"]


class TestSandbox(HTTPChannelContract):
    provider = SandboxProvider
    settings = {"session": "demo", "engine": "NOWEB"}
    accepted = reply(201, {"key": {"remoteJid": "12025550101@s.whatsapp.net", "fromMe": True, "id": "3EB0AA"}})
    accepted_id = "3EB0AA"

    @pytest.mark.parametrize("url", ELSEWHERE)
    def test_no_other_machine_is_called(self, url: str) -> None:
        assert not is_loopback(url)
        provider = self.make(base_url=url)
        assert provider.send(self.address, self.message(), REF, soon()).code == ErrorCode.MISCONFIGURED
        assert provider.check_session(soon()).state == SessionState.DISCONNECTED
        assert "base_url" in SandboxSettings({"base_url": url, "session": "demo", "engine": "NOWEB"}).errors

    @pytest.mark.parametrize("url", HERE)
    def test_this_machine_in_every_spelling(self, url: str) -> None:
        assert is_loopback(url)
        assert SandboxSettings({"base_url": url, "session": "demo", "engine": "NOWEB"}).is_valid()

    def test_a_path_that_a_real_waha_does_not_have(self) -> None:
        self.send()
        self.make().check_session(soon())
        assert [request.path for request in self.server.requests] == ["/_sandbox/waha/api/sendText", "/_sandbox/waha/api/sessions/demo"]

    def test_the_instances_own_waha_and_key_are_not_used(self, settings) -> None:
        settings.WAHA_API_URL, settings.WAHA_API_KEY = "https://waha.example.org", "the-real-key"
        provider = SandboxProvider(type(self.make().config)())
        assert (provider.origin, provider.api_key) == ("http://127.0.0.1:3900", "")

    def test_the_rate_can_be_lowered(self) -> None:
        assert self.make().metered == Metered(rate=200, burst=32)
        assert self.make(rate=10).metered == Metered(rate=10, burst=10)
        assert self.make(rate=0.5).metered == Metered(rate=0.5, burst=1)

    def test_the_form_refuses_a_higher_rate(self) -> None:
        assert "rate" in SandboxSettings({"session": "demo", "engine": "NOWEB", "rate": "201"}).errors

    def test_numbers_are_checked_only_where_chosen(self) -> None:
        assert not self.make().needs_resolving(self.address)
        assert self.make(check_numbers=True).needs_resolving(self.address)
        assert SandboxSettings().fields["check_numbers"].initial is False

    def test_every_call_has_the_path_that_a_real_waha_does_not_have(self) -> None:
        provider = self.make(show_seen=True, show_typing=True)
        provider.send(self.address, self.message(), REF, soon())
        provider.send(self.address, self.message(MessageType.IMAGE), REF, soon())
        provider.resolve_address(self.address, soon())
        provider.resolve_sender("998877@lid", soon())
        provider.manage("create", soon())
        for groups in (True, False):
            with contextlib.suppress(NotPossible):
                provider.list_chats(soon(), groups=groups)
        assert len(self.server.requests) >= 10
        assert all(request.path.startswith("/_sandbox/waha/api/") for request in self.server.requests)
