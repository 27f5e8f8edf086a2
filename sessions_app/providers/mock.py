"""A dry run: everything is accepted, nothing leaves this process, and nobody gets anything.

For looking at a campaign, its texts and its pacing before a real identity is connected. It waits like a human, as WhatsApp would.
"""

import uuid

from sessions_app.providers.base import ChannelProvider, Deadline, ErrorCode, Message, MessageType, SendResult


class MockProvider(ChannelProvider):
    key = "mock"
    label = "Dry run (sends nothing)"
    address_kind = "whatsapp"  # so that a list meant for WhatsApp can be tried as it is
    message_types = frozenset(MessageType)

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        """The id is the client_ref, so the ledger shows which answer belongs to which row."""
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if deadline.passed:
            return SendResult.unsent("The deadline had passed before the call")
        return SendResult.accepted(str(client_ref))
