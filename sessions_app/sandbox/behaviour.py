"""What people do with what reaches them. Pure: the same person always behaves in the same way."""

from dataclasses import asdict, dataclass
from itertools import permutations
from random import Random
from typing import Any

from sessions_app.sandbox.people import is_reached, share
from sessions_app.sandbox.state import Accepted


class BadBehaviour(ValueError):
    """Nothing that people could do."""


@dataclass(frozen=True)
class Behaviour:
    server: float = 0.2  # seconds from the acceptance to each ack
    device: float = 0.8
    read: float = 2.0
    never_read: float = 0.2  # share of the people
    replies: float = 0.1  # share of the people
    reply_after: float = 3.0
    texts: tuple[str, ...] = ("Ok, thank you", "👍", "Who is this?")

    def changed(self, entry: Any) -> "Behaviour":
        """With these fields changed. Raises BadBehaviour."""
        known = asdict(self)
        if not isinstance(entry, dict) or entry.keys() - known.keys():
            raise BadBehaviour(f"A behaviour is {', '.join(known)}.")
        texts = entry.get("texts", self.texts)
        if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
            raise BadBehaviour("texts must be an array of at least one text.")
        for name in entry.keys() - {"texts"}:
            most = 1 if name in ("never_read", "replies") else 86_400
            if not isinstance(entry[name], (int, float)) or not 0 <= entry[name] <= most:
                raise BadBehaviour(f"{name} must be a number from 0 to {most}.")
        return Behaviour(**{**known, **entry, "texts": tuple(texts)})


@dataclass(frozen=True)
class Plan:
    acks: tuple[tuple[float, int], ...]  # seconds from now, and the ack
    reply: tuple[float, str] | None = None


def plan(behaviour: Behaviour, message: Accepted, *, fault: str = "", restricted: bool = False) -> Plan:
    """A chat that nobody gets messages in has the server's ack and never another, as with WhatsApp."""
    who = message.chat_id
    reached = is_reached(who)
    acks = [(behaviour.server, 1)]
    if restricted or fault == "ack-error":
        return Plan(((behaviour.server, -1),))
    if reached:
        acks.append((behaviour.device, 2))
        if share("reads", who) >= behaviour.never_read:
            acks.append((behaviour.read, 3))
    if fault == "no-acks":
        acks = []
    elif fault == "early-ack":
        acks[0] = (0.0, 1)
    elif fault == "shuffle-acks" and len(acks) > 1:
        others = list(permutations([ack for _, ack in acks]))[1:]  # the first is the order they are in
        acks = list(zip(sorted(after for after, _ in acks), Random(message.raw_id).choice(others), strict=True))
    writes = reached and not who.endswith("@g.us") and share("replies", who) < behaviour.replies and fault != "drop-replies"
    words = behaviour.texts[int(share("words", who) * len(behaviour.texts))]
    return Plan(tuple(acks), (behaviour.reply_after, words) if writes else None)
