import pytest

from sessions_app.providers.base import Answer, MessageType, SessionState
from sessions_app.providers.mock import MockProvider
from tests.providers.contract import REF, ChannelContract, soon


class TestMock(ChannelContract):
    provider = MockProvider

    @pytest.mark.parametrize("type", MessageType)
    def test_accepts_everything_under_the_rows_own_reference(self, type: MessageType) -> None:
        result = self.make().send(self.address, self.message(type), REF, soon())
        assert (result.answer, result.message_id) == (Answer.ACCEPTED, str(REF))

    def test_goes_nowhere_at_the_pace_of_a_human(self) -> None:
        provider = self.make()
        assert (provider.origin, provider.metered) == ("", None)
        assert provider.check_session(soon()).state == SessionState.CONNECTED
